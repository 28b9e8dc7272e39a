//! `kiln bisect FILE`: which of Kiln's fused operators makes compiled differ from native, or makes it slower. Every operator
//! is made plain by itself; the one without which the difference is gone is to blame. Where no single one is, every operator
//! is fused by itself, which finds those that are wrong together.

use kiln_models::Operator;

use super::parity::{Report, Runner, in_mode, report};
use super::probe::{Look, Probe};
use crate::config::{CompilerMode, FusedOps, RunConfig, Switch};
use crate::error::{Error, Result};

/// Compiled counts as slower when a step takes this much longer than native, relative, or the noise of two native runs.
const SLOWER: f64 = 0.05;

/// What was found.
#[derive(Debug, Clone, PartialEq)]
pub enum Finding {
    /// Compiled computes what native does, and is not slower.
    Nothing {
        /// The comparison.
        parity: Box<Report>,
        /// Median time of a step in milliseconds, native and compiled.
        step_ms: [f64; 2],
    },
    /// Compiled differs because of these operators; none means that it does so without any of them.
    Wrong {
        /// The comparison of all operators.
        parity: Box<Report>,
        /// The operators.
        operators: Vec<Operator>,
    },
    /// Compiled is slower because of these operators; none means that no single one is to blame.
    Slow {
        /// Median time of a step in milliseconds, native and compiled.
        step_ms: [f64; 2],
        /// The operators, each with the time of a step without it.
        operators: Vec<(Operator, f64)>,
    },
}

/// Looks for the operator that makes compiled differ in the first `steps` steps of the run of `config`, or makes it slower.
/// `runner` makes the probes; `said` is told every one.
///
/// # Errors
/// What the probes meet; a compiled mode that fuses nothing on this device.
pub fn bisect(
    config: &RunConfig,
    steps: usize,
    runner: &mut Runner<'_>,
    said: &mut dyn FnMut(&str),
) -> Result<Finding> {
    let native = in_mode(config, CompilerMode::Native);
    let first = runner(&native, steps, Look::Figures)?;
    let again = runner(&native, steps, Look::Figures)?;
    let compiled = in_mode(config, CompilerMode::Compiled);
    let all = runner(&compiled, steps, Look::Figures)?;
    let fused = Operator::ALL.into_iter().filter(|operator| all.fused.iter().any(|name| name == operator.name()));
    let fused = fused.collect::<Vec<_>>();
    if fused.is_empty() {
        return Err(Error::config("compiled fuses no operator of Kiln's here, so there is nothing to turn off")
            .help("set compiler.fused_ops = \"on\" and a device that has them"));
    }
    let parity = report(&first, &again, &all)?;
    let with = |operators: Vec<Operator>| {
        let mut config = compiled.clone();
        let fused_ops = if operators.is_empty() { Switch::Off.into() } else { FusedOps::Only(operators) };
        config.compiler.get_or_insert_default().fused_ops = fused_ops;
        config
    };
    let without = |operator: Operator| with(fused.iter().copied().filter(|other| *other != operator).collect());
    if parity.difference.is_some() {
        let mut same = |config: &RunConfig, what: String| -> Result<bool> {
            let difference = report(&first, &again, &runner(config, steps, Look::Figures)?)?.difference;
            said(&match &difference {
                None => format!("{what}: the same as native"),
                Some(difference) => format!("{what}: {difference}"),
            });
            Ok(difference.is_none())
        };
        let mut operators = Vec::new();
        for operator in &fused {
            if same(&without(*operator), format!("without {}", operator.name()))? {
                operators.push(*operator);
            }
        }
        if operators.is_empty() {
            for operator in &fused {
                if !same(&with(vec![*operator]), format!("{} alone", operator.name()))? {
                    operators.push(*operator);
                }
            }
        }
        return Ok(Finding::Wrong { parity: Box::new(parity), operators });
    }
    // A median needs some steps; the first is left out.
    let timed = steps.max(6);
    let mut time = |config: &RunConfig| runner(config, timed, Look::Times).map(|probe: Probe| probe.median_ms());
    let natives = [time(&native)?, time(&native)?];
    let compiled_ms = time(&compiled)?;
    let native_ms = natives[0].min(natives[1]);
    let noise = (natives[0] - natives[1]).abs() / native_ms;
    let step_ms = [native_ms, compiled_ms];
    said(&format!("native {native_ms:.2} ms a step, compiled {compiled_ms:.2} ms"));
    let limit = native_ms * (1.0 + SLOWER.max(noise));
    if compiled_ms <= limit {
        return Ok(Finding::Nothing { parity: Box::new(parity), step_ms });
    }
    let mut operators = Vec::new();
    for operator in &fused {
        let ms = time(&without(*operator))?;
        said(&format!("without {}: {ms:.2} ms a step", operator.name()));
        if ms <= limit {
            operators.push((*operator, ms));
        }
    }
    Ok(Finding::Slow { step_ms, operators })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::compiler::figures::{StepFigures, TensorFigures};

    fn config() -> RunConfig {
        let mut config = RunConfig::default();
        config.set_compiler(CompilerMode::Compiled);
        config
    }

    fn fused(config: &RunConfig) -> Vec<Operator> {
        match config.compiler.as_ref().filter(|compiler| compiler.enabled == CompilerMode::Compiled) {
            None => Vec::new(),
            Some(compiler) => match &compiler.fused_ops {
                FusedOps::Only(operators) => operators.clone(),
                FusedOps::All(Switch::Off) => Vec::new(),
                FusedOps::All(_) => Operator::ALL.to_vec(),
            },
        }
    }

    /// A machine on which the operators `wrong` spoil a gradient and `slow` take 10 ms more.
    fn machine<'a>(
        wrong: &'a [Operator],
        slow: &'a [Operator],
    ) -> impl FnMut(&RunConfig, usize, Look) -> Result<Probe> + 'a {
        move |config, steps, look| {
            let fused = fused(config);
            let spoiled = wrong.iter().filter(|operator| fused.contains(operator)).count() as f64;
            let gradient = TensorFigures { name: "a".into(), norm: 1.0 + spoiled, projection: 0.5 };
            let step = StepFigures { loss: 2.0, gradients: vec![gradient], changes: Vec::new() };
            let ms = 20.0 + 10.0 * slow.iter().filter(|operator| fused.contains(operator)).count() as f64;
            let ms = if look == Look::Times { vec![ms; steps] } else { Vec::new() };
            let names = fused.iter().map(|operator| operator.name().to_owned()).collect();
            Ok(Probe { fused: names, steps: vec![step; steps], step_ms: ms, ..Probe::default() })
        }
    }

    #[test]
    fn the_operators_to_blame_are_named() {
        let find = |wrong: &[Operator], slow: &[Operator]| {
            bisect(&config(), 3, &mut machine(wrong, slow), &mut |_| {}).unwrap()
        };
        assert!(matches!(find(&[], &[]), Finding::Nothing { step_ms: [20.0, 20.0], .. }));
        for wrong in [vec![Operator::Gelu], vec![Operator::Embedding, Operator::AdamW]] {
            let Finding::Wrong { operators, parity } = find(&wrong, &[]) else { panic!("{wrong:?} not found") };
            assert_eq!(operators, wrong);
            assert_eq!(parity.difference.unwrap().what, "gradient of a");
        }
        let Finding::Slow { operators, step_ms } = find(&[], &[Operator::Linear]) else { panic!("not found") };
        assert_eq!((operators, step_ms), (vec![(Operator::Linear, 20.0)], [20.0, 30.0]));
    }
}
