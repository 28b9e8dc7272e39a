//! `compiler.enabled = "auto"`: which mode a run takes, found out before step 1 by a short trial of
//! both on its own data.
//!
//! The rule: with different losses, gradients or weight changes (see [`super::figures`]) the run is
//! native. Otherwise it is compiled if that is faster and the run long enough: what the compiled
//! start takes longer is regained after `start seconds / (native step - compiled step)` steps. One
//! step's examples are timed over and over, so that no shape is new. The trial's probes end in a
//! temporary folder, so the run's state is what it would be without. The choice is kept in the run
//! folder and holds when the run is continued.
//!
//! On the CPU the modes are two forms of one process ([`decide`]). On a GPU each is an engine of
//! its own, so `kiln train` tries them in processes and becomes the one that is chosen
//! ([`between_engines`]). A program that is built as one engine tries the forms that it has there,
//! with and without Kiln's operators.

use kiln::config::{CompilerMode, DeviceKind, OnExisting};
use kiln::engine::compiler::decision::Decision;
use kiln::plan::RunPlan;
use kiln::session::{Session, TrainingTask};
use kiln::trainer::{Trainer, checkpoint, warmup};
use kiln_core::error::{ErrorKind, Result};
use kiln_models::Ops;

use super::figures::Difference;
use super::parity::{Runner, in_mode, parity, report};
use super::probe::{Look, Probe, run};
use crate::proof::verify::InProcess;

/// Steps whose figures are compared.
const COMPARED: usize = 2;

/// Steps that are timed, the first of them left out, in each of [`ROUNDS`] turns of each mode.
const TIMED: usize = 6;

/// Turns of each mode, taken alternately.
const ROUNDS: usize = 2;

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

/// The trainer of `session`, whose mode is chosen by [`decide`] where the config leaves that to a
/// trial, and which checks the compiler where `compiler.verify` asks for it.
///
/// # Errors
/// An error of the trial of the modes, and one of [`Trainer::new`].
pub fn trainer<T: TrainingTask>(session: Session<T>) -> Result<Trainer<T>> {
    let plan = session.plan();
    let session = if plan.engine.is_undecided() { session.clone().decided(decide(&session)?)? } else { session };
    Ok(Trainer::new(session)?.with_verifier(InProcess))
}

/// Chooses a mode by a trial where each mode has an engine of its own: `runner` makes the probes of
/// a config, in the engine of its mode. A mode in which the device fails or its memory runs out is
/// not chosen, provided that the other one works.
///
/// # Errors
/// An error that the run would have in both modes, or before a device is used.
pub fn between_engines(session: &Session, runner: &mut Runner<'_>) -> Result<Decision> {
    let mut failed = None;
    let tried = try_engines(session, &mut |config, steps, look| {
        runner(config, steps, look).inspect_err(|error| failed = Some((config.trainer.compiler_mode(), error.kind())))
    });
    match (tried, failed) {
        (
            Err(error),
            Some((CompilerMode::Compiled, ErrorKind::OutOfMemory | ErrorKind::Device | ErrorKind::NonFinite)),
        ) => Ok(choice(CompilerMode::Native, format!("because compiled fails: {error}"))),
        (Err(error), Some((CompilerMode::Native, ErrorKind::OutOfMemory))) => {
            runner(&in_mode(&session.config(), CompilerMode::Compiled), COMPARED, Look::Figures)?;
            Ok(choice(CompilerMode::Compiled, format!("because native does not fit, so nothing is compared: {error}")))
        }
        (tried, _) => tried,
    }
}

fn try_engines(session: &Session, runner: &mut Runner<'_>) -> Result<Decision> {
    let (plan, config) = (session.plan(), session.config());
    if let Some(difference) = parity(&config, COMPARED, runner)?.difference {
        return Ok(differs(&difference));
    }
    let mut time = |mode| runner(&in_mode(&config, mode), TIMED, Look::Times);
    let (mut natives, mut compileds) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        natives.push(time(CompilerMode::Native)?);
        compileds.push(time(CompilerMode::Compiled)?);
    }
    Ok(judge(&natives, &compileds, plan.steps.total, starts(plan)))
}

/// How often the compiled run of `plan` starts: on a GPU every shape of batches is compiled and
/// recorded by itself.
fn starts(plan: &RunPlan) -> usize {
    if plan.engine.device.kind == DeviceKind::Cpu { 1 } else { plan.data.padding_cost.shapes.clamp(1, warmup::MOST) }
}

/// The choice with which the run that `plan` continues began; none where it begins.
///
/// # Errors
/// A file that holds no choice, and the operating system's.
pub fn kept(plan: &RunPlan) -> Result<Option<Decision>> {
    let folder = plan.output_dir()?;
    let continues =
        plan.run.on_existing == OnExisting::Resume && !checkpoint::list(&folder.join(checkpoint::FOLDER))?.is_empty();
    if continues { Decision::read(&folder) } else { Ok(None) }
}

fn differs(difference: &Difference) -> Decision {
    choice(CompilerMode::Native, format!("because compiled differs: {difference}"))
}

fn choice(mode: CompilerMode, reason: impl Into<String>) -> Decision {
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
fn judge(natives: &[Probe], compileds: &[Probe], steps: usize, starts: usize) -> Decision {
    let least = |probes: &[Probe], of: fn(&Probe) -> f64| probes.iter().map(of).fold(f64::NAN, f64::min);
    let (native, compiled) = (least(natives, Probe::median_ms), least(compileds, Probe::median_ms));
    let later = least(compileds, Probe::start_seconds) - least(natives, Probe::start_seconds);
    let start = later.max(0.0) * starts as f64;
    let measured = format!("{compiled:.1} ms a step against {native:.1} ms native, the same figures");
    let gain = (native - compiled) / 1e3;
    let break_even = (gain > 0.0).then(|| start / gain);
    let (mode, reason) = match break_even {
        None => (CompilerMode::Native, format!("compiled is not faster: {measured}")),
        Some(steps_needed) if steps_needed > steps as f64 => (
            CompilerMode::Native,
            format!(
                "compiled starts {start:.2} s later, regained after {steps_needed:.0} steps of {steps}: {measured}"
            ),
        ),
        Some(steps_needed) => (
            CompilerMode::Compiled,
            format!("{measured}; its start takes {start:.2} s more, regained after {steps_needed:.0} steps of {steps}"),
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
