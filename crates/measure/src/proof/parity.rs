//! `kiln parity FILE`: the first steps of a run in both modes, from the same weights, batches and
//! seeds, each in a process of its own, and what differs. A second native process shows how far two
//! runs of one mode are apart (on the CPU: not at all), which widens the limits. Where the compiled
//! run captures its steps, another process makes them so: its gradients cannot be seen, but its
//! losses and weights can. Dropout is off, since the modes draw it differently.

use kiln::config::{CompilerMode, DeviceKind, RunConfig};
use kiln::session::{Session, TrainingTask};
use kiln_core::error::{Error, Result};
use kiln_models::Ops;

use kiln_train::trial::probe::{Look, Probe, run};
use kiln_train::trial::report::{Compiled, Parity, report};

/// Makes a probe of a config: `kiln parity` in a child process, tests in their own.
pub type Runner<'a> = dyn FnMut(&RunConfig, usize, Look) -> Result<Probe> + 'a;

/// `config` in the mode `mode`, as a run of its own.
pub(super) fn in_mode(config: &RunConfig, mode: CompilerMode) -> RunConfig {
    let mut config = config.clone();
    config.trainer.set_compiler(mode);
    config
}

/// Compares the first `steps` steps of the run of `config` in both modes; `runner` makes the
/// probes.
///
/// # Errors
/// An error of a probe, and modes that have not seen the same number of steps.
pub fn parity(config: &RunConfig, steps: usize, runner: &mut Runner<'_>) -> Result<Parity> {
    let native = runner(&in_mode(config, CompilerMode::Native), steps, Look::Figures)?;
    let again = runner(&in_mode(config, CompilerMode::Native), steps, Look::Figures)?;
    let compiled = computed_and_captured(&in_mode(config, CompilerMode::Compiled), steps, runner)?;
    report(&native, &again, &compiled)
}

/// The result of [`modes`].
#[derive(Debug, Clone, PartialEq)]
pub struct Modes {
    /// Whether both modes compute the same.
    pub report: Parity,
    /// Milliseconds of a median step, native.
    pub native_ms: f64,
    /// Milliseconds of a median step, compiled.
    pub compiled_ms: f64,
}

/// Makes the first `steps` steps of `session` in both modes in this process: without dropout to
/// compare their figures, then as they are to time them, the first step left out. The run itself is
/// not touched.
///
/// # Errors
/// A session that is not compiled, another device than the CPU, where each mode has an engine of
/// its own, and whatever the steps meet. A difference is in the report.
pub fn modes<T: TrainingTask>(session: &Session<T>, steps: usize) -> Result<Modes> {
    let engine = &session.plan().engine;
    if engine.device.kind != DeviceKind::Cpu {
        return Err(Error::config(format!(
            "on {} each mode has an engine of its own, and this process has one",
            engine.device.kind
        ))
        .help("`kiln parity` and `kiln compare` start processes"));
    }
    if engine.ops.fused_operators().is_empty() {
        return Err(Error::config("the session is native, so that there is one mode: expected a compiled one")
            .help("set compiler.enabled = \"compiled\""));
    }
    let native = run(session, Ops::Plain, steps, Look::Figures)?;
    let compiled = run(session, engine.ops, steps, Look::Figures)?;
    let time = |ops| run(session, ops, steps.max(3), Look::Times).map(|probe| probe.median_ms());
    let (native_ms, compiled_ms) = (time(Ops::Plain)?, time(engine.ops)?);
    // Two native runs are equal to the bit on the CPU, so there is no noise to measure.
    Ok(Modes { report: report(&native, &native, &(compiled, None))?, native_ms, compiled_ms })
}

/// Makes both probes of the compiled `config`.
pub(super) fn computed_and_captured(config: &RunConfig, steps: usize, runner: &mut Runner<'_>) -> Result<Compiled> {
    let computed = runner(config, steps, Look::Figures)?;
    let captured = if computed.captures { Some(runner(config, steps, Look::Captured)?) } else { None };
    Ok((computed, captured))
}
