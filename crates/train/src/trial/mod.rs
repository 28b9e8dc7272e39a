//! `compiler.enabled = "auto"`: which mode a run takes, found out before step 1 by a short trial of
//! both on its own data.
//!
//! The rule: with different losses, gradients or weight changes (see [`figures`]) the run is
//! native. Otherwise it is compiled if that is faster and the run long enough: what the compiled
//! start takes longer is regained after `start seconds / (native step - compiled step)` steps. One
//! step's examples are timed over and over, so that no shape is new. The trial's probes end in a
//! temporary folder, so the run's state is what it would be without. The choice is kept in the run
//! folder and holds when the run is continued.
//!
//! On the CPU the modes are two forms of one process ([`decide`]). On a GPU each is an engine of
//! its own, so `kiln train` tries them in processes and becomes the one that is chosen
//! (`kiln_measure::proof::auto`). A program that is built as one engine tries the forms that it has
//! there, with and without Kiln's operators.

pub mod figures;
pub mod probe;
pub mod report;
pub mod verify;

use figures::Difference;
use kiln_core::dataset::Dataset;
use kiln_core::error::Result;
use kiln_core::words::duration;
use kiln_models::Ops;
use probe::{Look, Probe, run};
use report::report;
use verify::InProcess;

use crate::arguments::{OnExisting, TrainingArguments};
use crate::engine::compiler::decision::Decision;
use crate::engine::settings::{CompilerMode, DeviceKind};
use crate::plan::TrainPlan;
use crate::run_folder::checkpoint;
use crate::session::Session;
use crate::task::TrainingTask;
use crate::trainer::{PrinterCallback, Trainer, warmup};

/// Steps whose figures are compared.
pub const COMPARED: usize = 2;

/// Steps that are timed, the first of them left out, in each of [`ROUNDS`] turns of each mode.
pub const TIMED: usize = 6;

/// Turns of each mode, taken alternately.
pub const ROUNDS: usize = 2;

/// The mode for the run of `session`: that of the process that began the run, or else what a trial
/// in this process says.
///
/// # Errors
/// An earlier decision that cannot be read, and an error of the trial.
pub fn decide<T: TrainingTask>(session: &Session<T>) -> Result<Decision> {
    let plan = session.plan();
    if let Some(decision) = kept(plan)? {
        return Ok(decision);
    }
    if plan.engine.ops == Ops::Plain {
        return Ok(choice(
            CompilerMode::Native,
            "this build has no fused operators for the device, so there is one form",
        ));
    }
    let figures = |ops, look| run(session, ops, COMPARED, look);
    let (native, compiled) = (figures(Ops::Plain, Look::Figures)?, figures(plan.engine.ops, Look::Figures)?);
    let captured = if compiled.captures { Some(figures(plan.engine.ops, Look::Captured)?) } else { None };
    if let Some(difference) = report(&native, &native, &(compiled, captured))?.difference {
        return Ok(differs(&difference));
    }
    let (mut natives, mut compileds) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        natives.push(run(session, Ops::Plain, TIMED, Look::Times)?);
        compileds.push(run(session, plan.engine.ops, TIMED, Look::Times)?);
    }
    Ok(judge(&natives, &compileds, plan.steps.total, starts(plan)))
}

/// How often the compiled run of `plan` starts: on a GPU every shape of batches is compiled and
/// recorded by itself.
pub fn starts(plan: &TrainPlan) -> usize {
    if plan.engine.device.kind == DeviceKind::Cpu { 1 } else { plan.data.padding_cost.shapes.clamp(1, warmup::MOST) }
}

/// The choice with which the run that `plan` continues began; none where it begins.
///
/// # Errors
/// A file that holds no choice, and the operating system's.
pub fn kept(plan: &TrainPlan) -> Result<Option<Decision>> {
    let folder = plan.output_dir()?;
    let continues =
        plan.run.on_existing == OnExisting::Resume && !checkpoint::list(&folder.join(checkpoint::FOLDER))?.is_empty();
    if continues { Decision::read(&folder) } else { Ok(None) }
}

/// The choice of native, since compiled has a `difference`.
pub fn differs(difference: &Difference) -> Decision {
    choice(CompilerMode::Native, format!("because compiled differs: {difference}"))
}

/// The choice of `mode` for a `reason`, without times.
pub fn choice(mode: CompilerMode, reason: impl Into<String>) -> Decision {
    Decision {
        mode,
        reason: reason.into(),
        native_step_ms: None,
        compiled_step_ms: None,
        compiled_start_seconds: None,
        break_even_steps: None,
    }
}

/// The rule, for probes of equal figures and a run of `steps` steps that starts `starts` times. The
/// quickest turn of a mode counts, also for its start: what else the machine does only slows it
/// down, and what the first turn compiled the run finds compiled.
pub fn judge(natives: &[Probe], compileds: &[Probe], steps: usize, starts: usize) -> Decision {
    let least = |probes: &[Probe], of: fn(&Probe) -> f64| probes.iter().map(of).fold(f64::NAN, f64::min);
    let (native, compiled) = (least(natives, Probe::median_ms), least(compileds, Probe::median_ms));
    let later = least(compileds, Probe::start_seconds) - least(natives, Probe::start_seconds);
    let start = later.max(0.0) * starts as f64;
    let measured = format!("{compiled:.1} ms a step against {native:.1} ms native, the same figures");
    let gain = (native - compiled) / 1e3;
    let break_even = (gain > 0.0).then(|| start / gain);
    let later = duration(start);
    let (mode, reason) = match break_even {
        None => (CompilerMode::Native, format!("compiled is not faster: {measured}")),
        Some(steps_needed) if steps_needed > steps as f64 => (
            CompilerMode::Native,
            format!("compiled starts {later} later, regained after {steps_needed:.0} steps of {steps}: {measured}"),
        ),
        Some(steps_needed) => (
            CompilerMode::Compiled,
            format!("{measured}; its start takes {later} more, regained after {steps_needed:.0} steps of {steps}"),
        ),
    };
    Decision {
        native_step_ms: native.is_finite().then_some(native),
        compiled_step_ms: compiled.is_finite().then_some(compiled),
        compiled_start_seconds: Some(start),
        break_even_steps: break_even,
        ..choice(mode, reason)
    }
}

impl<T: TrainingTask> Trainer<T> {
    /// The trainer of `task` on the examples `train`, under `arguments`, in the mode that they
    /// name; with `auto` a short trial of both chooses it. Compiled steps are checked against
    /// native where the arguments ask for it. Rows are printed ([`PrinterCallback`]).
    ///
    /// # Errors
    /// Arguments that contradict one another, the task or the data, a model that cannot be made,
    /// and an error of the trial.
    pub fn new(arguments: TrainingArguments, task: T, train: impl Dataset<T::Example>) -> Result<Self> {
        Ok(Self::from_session(Session::new(arguments, task, train)?)?.with_callback(PrinterCallback::default()))
    }

    /// The trainer of a run that is open, like [`new`](Self::new); it prints nothing.
    ///
    /// # Errors
    /// Weights that do not fit the model, and an error of the trial.
    pub fn from_session(session: Session<T>) -> Result<Self> {
        let undecided = session.plan().engine.is_undecided();
        let session = if undecided { session.decided(decide(&session)?)? } else { session };
        Ok(Self::build(session)?.with_verifier(InProcess))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn probe(first: f64, then: f64) -> Probe {
        Probe { step_ms: vec![first, then, then, then], ..Probe::default() }
    }

    #[test]
    fn the_faster_mode_wins_if_the_run_is_long_enough() {
        let native = [probe(520.0, 20.0), probe(830.0, 30.0)];
        // 1 s more at the start once what is compiled is kept, 10 ms less a step: 100 steps.
        let compiled = [probe(9510.0, 10.0), probe(1510.0, 10.0)];
        let decision = judge(&native, &compiled, 101, 1);
        assert_eq!((decision.mode, decision.break_even_steps), (CompilerMode::Compiled, Some(100.0)));
        let short = judge(&native, &compiled, 99, 1);
        assert_eq!(short.mode, CompilerMode::Native);
        assert!(short.reason.contains("regained after 100 steps of 99"), "{}", short.reason);
        assert_eq!(judge(&native, &compiled, 399, 4).break_even_steps, Some(400.0), "four shapes start");
        let slower = judge(&compiled, &native, 1000, 1);
        assert_eq!((slower.mode, slower.break_even_steps), (CompilerMode::Native, None));
        assert_eq!(Decision::from_json(&decision.to_json().unwrap()).unwrap(), decision);
        // One step has no median to compare.
        assert_eq!(judge(&[probe(1.0, f64::NAN)], &[probe(1.0, f64::NAN)], 1, 1).mode, CompilerMode::Native);
    }
}
