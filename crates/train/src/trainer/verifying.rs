//! `compiler.verify`: the compiler is compared with native before the first step, and every so many
//! steps.

use std::path::Path;
use std::time::{Duration, Instant};

use kiln_core::error::{Error, Result};
use kiln_core::process::scratch;
use kiln_models::weights::save;

use super::Trainer;
use super::checkpoint::Checkpoint;
use super::observer::Part;
use super::run::{After, Run};
use crate::engine::compiler::settings::Verify;
use crate::engine::device::release_memory;
use crate::engine::settings::DeviceKind;
use crate::plan::TrainPlan;
use crate::session::Session;
use crate::task::TrainingTask;

/// Compares the modes of the compiler, for `compiler.verify`.
pub trait Verifier<T: TrainingTask> {
    /// Whether compiled computes what native does in the first steps of `session`, after `step`
    /// steps of the run whose weights are in the folder `weights`, or from those that the run
    /// begins with. Returns the verdict for people.
    ///
    /// # Errors
    /// A difference, and what the steps meet.
    fn verify(&self, session: &Session<T>, weights: Option<&Path>, step: u64) -> Result<String>;
}

/// When the compiler is checked, and who does it.
pub(super) struct Verifying<T: TrainingTask> {
    /// Before the first step.
    at_start: bool,
    /// After every so many steps.
    every: Option<u64>,
    pub(super) verifier: Option<Box<dyn Verifier<T>>>,
}

impl<T: TrainingTask> Verifying<T> {
    pub(super) fn new(plan: &TrainPlan) -> Self {
        let (at_start, every) = match plan.engine.verify {
            Verify::Off => (false, None),
            Verify::Start => (true, None),
            Verify::Every(steps) => (true, Some(steps)),
        };
        Self { at_start, every, verifier: None }
    }

    /// The check before the first step has been made elsewhere.
    pub(super) fn start_is_verified(&mut self) {
        self.at_start = false;
    }

    /// Whether a check follows a step.
    pub(super) fn due(&self, after: &After) -> bool {
        self.every.is_some_and(|steps| after.step.is_multiple_of(steps))
    }

    /// Whether checks are made in the middle of the run.
    pub(super) fn is_repeated(&self) -> bool {
        self.every.is_some()
    }

    fn verifier(&self) -> Result<&dyn Verifier<T>> {
        self.verifier.as_deref().ok_or_else(|| {
            Error::config("compiler.verify: this trainer has nobody who compares the modes")
                .help("make it with Trainer::new or Trainer::from_session, or set compiler.verify = \"off\"")
        })
    }
}

impl<T: TrainingTask> Trainer<T> {
    /// The check of the compiler before the first step, and how long it took; none where nobody
    /// asked, or where it has been made.
    pub(super) fn verify_start(&mut self, checkpoint: Option<&Checkpoint>) -> Result<Option<Duration>> {
        if !self.verifying.at_start {
            return Ok(None);
        }
        if self.session.plan().engine.device.kind != DeviceKind::Cpu {
            return Err(Error::config(format!(
                "compiler.verify: on {} each mode has an engine of its own, and this process has one",
                self.session.plan().engine.device.kind
            ))
            .help(
                "`kiln train` makes the check; a program compares with kiln_measure::proof::parity, or sets verify = \"off\"",
            ));
        }
        let started = Instant::now();
        let from = checkpoint.map(|checkpoint| (checkpoint.path.as_path(), checkpoint.state.step));
        let verifier = self.verifying.verifier()?;
        // The verdict of rank 0 is that of all.
        let said = self
            .world
            .made_by_root(|| verifier.verify(&self.session, from.map(|from| from.0), from.map_or(0, |from| from.1)))?;
        self.notice(&said);
        Ok(Some(started.elapsed()))
    }

    /// The check of the compiler from the weights that the run has now. When it fails, checkpoints
    /// since the last one that passed are suspect.
    pub(super) fn verify(&mut self, run: &mut Run) -> Result<()> {
        let started = Instant::now();
        let verifier = self.verifying.verifier()?;
        let verdict = self.world.made_by_root(|| {
            let folder = scratch()?;
            save(&self.state.model, folder.path())?;
            verifier.verify(&self.session, Some(folder.path()), run.progress.step)
        });
        release_memory(&self.session.device);
        run.clock.exclude_check(started.elapsed(), false);
        match verdict {
            Ok(said) => {
                run.verified = run.progress.step;
                self.notice(&said);
                self.observer.part(Part::Evaluation);
                Ok(())
            }
            Err(error) => {
                run.last_row = run.last_row.min(run.verified);
                Err(error)
            }
        }
    }
}
