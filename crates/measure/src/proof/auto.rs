//! `compiler.enabled = "auto"` where each mode has an engine of its own: `kiln train` tries them in
//! processes and becomes the one that is chosen. The rule is [`kiln_train::trial`]'s.

use kiln::config::CompilerMode;
use kiln::engine::compiler::decision::Decision;
use kiln::session::{OpenSession, Session};
use kiln_core::error::{ErrorKind, Result};
use kiln_train::trial::probe::Look;
use kiln_train::trial::{COMPARED, ROUNDS, TIMED, choice, differs, judge, starts};

use super::parity::{Runner, in_mode, parity};

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
            runner(&in_mode(&session.config()?, CompilerMode::Compiled), COMPARED, Look::Figures)?;
            Ok(choice(CompilerMode::Compiled, format!("because native does not fit, so nothing is compared: {error}")))
        }
        (tried, _) => tried,
    }
}

fn try_engines(session: &Session, runner: &mut Runner<'_>) -> Result<Decision> {
    let (plan, config) = (session.plan(), session.config()?);
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
