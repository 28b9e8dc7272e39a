//! Why a run ends before its plan does: a signal, `trainer.max_minutes`, early stopping or a
//! callback.

use std::time::Duration;

use kiln_core::error::{CONTINUE, Result};
use kiln_core::signals::{self, Signal};

use super::after::After;
use super::run::{Training, finish_saving};
use super::setup::Purpose;
use crate::distributed::World;
use crate::run_folder::{RunFolder, RunStatus, runs};

/// The reasons to end the run after a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stopping {
    signal: Option<Signal>,
    out_of_time: bool,
    /// Early stopping, or a callback.
    is_told: bool,
    is_last: bool,
}

impl Stopping {
    /// Asks signals, the time `limit` and what `run` has been told.
    pub(super) fn of(after: &After, run: &Training, folder: &RunFolder, limit: Option<Duration>) -> Self {
        // Over all processes of the run.
        let seconds = folder.status.seconds_before + run.clock.start.elapsed().as_secs_f64();
        Self {
            signal: signals::received(),
            out_of_time: !after.is_last && limit.is_some_and(|limit| seconds >= limit.as_secs_f64()),
            is_told: run.control.should_training_stop,
            is_last: after.is_last,
        }
    }

    /// Reasons on which all ranks of `world` agree: a signal to any rank, and the time of rank 0.
    ///
    /// # Errors
    /// MPI's.
    pub(super) fn agreed(self, world: &World) -> Result<Self> {
        let out_of_time = world.of_root(f64::from(u8::from(self.out_of_time)))? > 0.0;
        Ok(Self { signal: world.received()?, out_of_time, ..self })
    }

    /// Whether the run, or the plan, ends here, so that what is due at the end is due now. A run
    /// that is continued has no end here.
    pub(super) fn is_end(&self) -> bool {
        self.is_last || self.is_told
    }

    /// Whether a checkpoint is due because the run stops: who stops it wants to continue it.
    pub(super) fn saves(&self, purpose: Purpose) -> bool {
        self.out_of_time || (self.signal.is_some() && purpose == Purpose::Train)
    }

    /// Whether the run is to be continued from here. Early stopping is an end.
    pub(super) fn is_continued(&self, run: &Training) -> bool {
        let stopped = self.is_told && !self.is_last && !run.evaluating.best.is_exhausted();
        self.out_of_time || self.signal.is_some() || run.control.should_save || stopped
    }

    /// The error with which a signal ends the run, once its checkpoint is written.
    pub(super) fn check_signal(&self, world: &World, run: &mut Training, purpose: Purpose) -> Result<()> {
        let Some(signal) = self.signal else { return Ok(()) };
        finish_saving(run)?;
        // A launcher ends the others with the first that ends, unless all have left.
        world.leave()?;
        let (step, total_steps) = (run.progress.step, run.progress.total_steps);
        Err(match purpose {
            Purpose::Train => signal
                .error(format_args!("stopped after step {step} of {total_steps}; a checkpoint is saved"))
                .help(CONTINUE),
            Purpose::Rehearsal | Purpose::Measurement { .. } => {
                signal.error(format_args!("stopped after step {step} of {total_steps}"))
            }
        })
    }

    /// Whether the run ends here although its plan does not, which the status then says, with the
    /// command that goes on where the time `limit` is over.
    pub(super) fn ends_early(&self, run: &Training, folder: &mut RunFolder, limit: Option<Duration>) -> bool {
        if self.is_last || !(self.out_of_time || self.is_told) {
            return false;
        }
        let at = format!("after step {} of {}", run.progress.step, run.progress.total_steps);
        folder.status.message = Some(if self.is_told {
            let is_exhausted = run.evaluating.best.is_exhausted();
            let by = if is_exhausted { "early stopping" } else { "a callback asked for it" };
            format!("ended {at}: {by}")
        } else {
            folder.status.status = RunStatus::Stopped;
            let command = runs::continue_command(folder.path(), limit);
            let command = command.map_or_else(String::new, |command| format!(", as in `{command}`"));
            format!("stopped {at}: trainer.max_minutes is over; a higher limit continues the run{command}")
        });
        true
    }
}

/// A signal that comes before the first step.
pub(super) fn check_signals_at_start() -> Result<()> {
    match signals::received() {
        Some(signal) => Err(signal.error("stopped before the first step")),
        None => Ok(()),
    }
}
