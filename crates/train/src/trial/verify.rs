//! `compiler.verify`: a compiled run checks itself against native, on its own data, before step 1
//! or every so many steps from the weights that it then has. Each check is a short parity
//! ([`mod@super::report`]) of [`STEPS`] steps without dropout, thrown away: the run is the same to
//! the bit with and without it. On the CPU both modes live in this process. Elsewhere each has an
//! engine of its own, so there `kiln train` makes the check before step 1 in processes, and one in
//! the middle of a run is refused.

use std::path::Path;

use crate::description::Weights;
use crate::session::Session;
use crate::task::TrainingTask;
use crate::trainer::Verifier;
use kiln_core::error::{Error, Result};
use kiln_models::Ops;

use super::probe::{Look, run};
use super::report::{Parity, report};

/// Steps of a check: the second one sees what the first update has done.
pub const STEPS: usize = 2;

/// Makes the checks of `compiler.verify` in this process.
#[derive(Debug, Clone, Copy)]
pub struct InProcess;

impl<T: TrainingTask> Verifier<T> for InProcess {
    fn verify(&self, session: &Session<T>, weights: Option<&Path>, step: u64) -> Result<String> {
        verdict(check(session, weights)?.as_ref(), step)
    }
}

/// Makes a check in this process: the first steps of the run of `session` in both modes, from the
/// weights in the folder `from` where there is one. None where nothing is fused, so that there is
/// nothing to compare.
///
/// # Errors
/// Any error of the steps. A difference is no error: it is in the report.
pub fn check<T: TrainingTask>(session: &Session<T>, from: Option<&Path>) -> Result<Option<Parity>> {
    if session.plan().engine.ops.fused_operators().is_empty() {
        return Ok(None);
    }
    let session = match from {
        Some(folder) => session.clone().with_weights(Weights::Saved(folder.to_path_buf())),
        None => session.clone(),
    };
    let native = run(&session, Ops::Plain, STEPS, Look::Figures)?;
    let compiled = run(&session, session.plan().engine.ops, STEPS, Look::Figures)?;
    // Two native runs are equal to the bit on the CPU, so there is no noise to measure.
    report(&native, &native, &(compiled, None)).map(Some)
}

/// The message of a check after `step` steps in which nothing differs, or the error that names the
/// difference.
///
/// # Errors
/// A difference, with the first tensor that differs.
pub fn verdict(report: Option<&Parity>, step: u64) -> Result<String> {
    let Some(report) = report else {
        return Ok("verify: nothing is fused, so there is nothing to compare".into());
    };
    let place = if step == 0 { "before step 1".to_owned() } else { format!("after step {step}") };
    match &report.difference {
        None => Ok(format!("verify {place}: native and compiled compute the same: {}", report.distance)),
        Some(difference) => Err(Error::differs(format!(
            "compiler.verify {place}: compiled differs from native in {} steps from here: {difference}",
            report.steps
        ))
        .help("`kiln bisect FILE` finds what is to blame; until then train with --compiler native")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::trial::figures::{StepFigures, TensorFigures};
    use crate::trial::probe::Probe;

    #[test]
    fn a_difference_is_an_error_that_names_the_tensor() {
        let probe = |norm: f64| {
            let figures = TensorFigures { name: "transformer.h.0.mlp.c_fc.weight".into(), norm, projection: norm };
            let step = StepFigures { loss: 2.0, gradients: vec![figures], changes: Vec::new() };
            Probe { steps: vec![step], ..Probe::default() }
        };
        let of = |norm: f64| report(&probe(1.0), &probe(1.0), &(probe(norm), None)).unwrap();
        let same = verdict(Some(&of(1.0)), 0).unwrap();
        assert!(same.starts_with("verify before step 1: native and compiled compute the same"), "{same}");
        let error = verdict(Some(&of(1.1)), 20).unwrap_err();
        assert_eq!(error.exit_code(), 6);
        assert!(error.to_string().contains("verify after step 20: compiled differs"), "{error}");
        assert!(error.to_string().contains("gradient of transformer.h.0.mlp.c_fc.weight"), "{error}");
        assert!(verdict(None, 0).unwrap().contains("nothing is fused"));
    }
}
