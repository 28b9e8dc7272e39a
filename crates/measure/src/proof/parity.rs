//! `kiln parity FILE`: the first steps of a run in both modes, from the same weights, batches and
//! seeds, each in a process of its own, and what differs. A second native process shows how far two
//! runs of one mode are apart (on the CPU: not at all), which widens the limits. Where the compiled
//! run captures its steps, another process makes them so: its gradients cannot be seen, but its
//! losses and weights can. Dropout is off, since the modes draw it differently.

use kiln::config::{CompilerMode, DeviceKind, Precision, RunConfig};
use kiln::session::{Session, TrainingTask};
use kiln_core::error::{Error, Result};
use kiln_models::Ops;

use super::figures::{Difference, Distance, Limits, compare};
use super::probe::{Look, Probe, run};

/// Makes a probe of a config: `kiln parity` in a child process, tests in their own.
pub type Runner<'a> = dyn FnMut(&RunConfig, usize, Look) -> Result<Probe> + 'a;

/// The comparison that was made.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Steps that were made.
    pub steps: usize,
    /// The type in which the models computed, which decides the limits.
    pub precision: Precision,
    /// Gradients that were compared in each of them.
    pub tensors: usize,
    /// The operators that were fused in the compiled runs.
    pub fused: Vec<String>,
    /// How far two native runs are apart.
    pub noise: Distance,
    /// How far compiled is from native.
    pub distance: Distance,
    /// How far compiled with captured steps is from native, without the gradients; none where no
    /// step is captured.
    pub captured: Option<Distance>,
    /// The differences that were allowed.
    pub limits: Limits,
    /// The first thing that differs; none when both modes compute the same.
    pub difference: Option<Difference>,
}

impl Report {
    /// The report in lines.
    pub fn lines(&self) -> Vec<String> {
        let Limits { loss, gradient, all_gradients, change } = self.limits;
        let (steps, tensors, precision) = (self.steps, self.tensors, self.precision);
        let fused = if self.fused.is_empty() { "nothing".into() } else { self.fused.join(", ") };
        let captured = self.captured.map(|Distance { loss, change, .. }| {
            format!("native against captured loss {loss:.1e}, weight change {change:.1e}")
        });
        let mut lines = vec![
            format!(
                "{steps} steps without dropout, {precision}: the loss, {tensors} gradients, every layer's weight change"
            ),
            format!("fused in compiled       {fused}"),
            format!("native against native   {}", self.noise),
            format!("native against compiled {}", self.distance),
        ];
        lines.extend(captured);
        lines.push(format!(
            "allowed                 loss {loss:.1e}, gradient {gradient:.1e} and {all_gradients:.1e} of all, weight \
             change {change:.1e}"
        ));
        lines
    }
}

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
pub fn parity(config: &RunConfig, steps: usize, runner: &mut Runner<'_>) -> Result<Report> {
    let native = runner(&in_mode(config, CompilerMode::Native), steps, Look::Figures)?;
    let again = runner(&in_mode(config, CompilerMode::Native), steps, Look::Figures)?;
    let compiled = computed_and_captured(&in_mode(config, CompilerMode::Compiled), steps, runner)?;
    report(&native, &again, &compiled)
}

/// The result of [`modes`].
#[derive(Debug, Clone, PartialEq)]
pub struct Modes {
    /// Whether both modes compute the same.
    pub report: Report,
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

/// A compiled run as its steps are computed and, where it has them, captured.
pub(super) type Compiled = (Probe, Option<Probe>);

/// Makes both probes of the compiled `config`.
pub(super) fn computed_and_captured(config: &RunConfig, steps: usize, runner: &mut Runner<'_>) -> Result<Compiled> {
    let computed = runner(config, steps, Look::Figures)?;
    let captured = if computed.captures { Some(runner(config, steps, Look::Captured)?) } else { None };
    Ok((computed, captured))
}

/// Compares native, native again and compiled.
pub(super) fn report(native: &Probe, again: &Probe, (compiled, captured): &Compiled) -> Result<Report> {
    let tensors = |probe: &Probe| probe.steps.first().map_or(0, |step| step.gradients.len());
    let shape = |probe: &Probe| (probe.precision, probe.steps.len(), tensors(probe));
    let others = [again, compiled].map(shape).into_iter();
    // Gradients of captured steps are not seen.
    let others = others.chain(captured.as_ref().map(|it| (it.precision, it.steps.len(), tensors(native))));
    if let Some(other) = others.into_iter().find(|other| *other != shape(native)) {
        return Err(Error::differs(format!(
            "precision, steps and gradients: native {:?}, another run {other:?}; expected the same",
            shape(native)
        )));
    }
    let limits = Limits::of(native.precision, native.in_tf32);
    let (noise, _) = compare(&native.steps, &again.steps, &limits);
    let limits = limits.above(&noise);
    let (distance, difference) = compare(&native.steps, &compiled.steps, &limits);
    let replayed = captured.as_ref().map(|captured| compare(&native.steps, &captured.steps, &limits));
    let (captured, of_captured) = replayed.map_or((None, None), |(distance, difference)| (Some(distance), difference));
    let of_captured = of_captured
        .map(|difference| Difference { what: format!("{} of captured steps", difference.what), ..difference });
    Ok(Report {
        steps: native.steps.len(),
        precision: native.precision,
        tensors: tensors(native),
        fused: compiled.fused.clone(),
        noise,
        distance,
        captured,
        limits,
        difference: difference.or(of_captured),
    })
}
