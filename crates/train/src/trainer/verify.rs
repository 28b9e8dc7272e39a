//! The checks of `compiler.verify` in a run.

use std::time::{Duration, Instant};

use kiln_core::error::{Error, Result};
use kiln_core::process::scratch;
use kiln_models::weights::save;

use super::observer::Part;
use super::run::Training;
use super::setup::Trainer;
use crate::engine::device::release_memory;
use crate::engine::settings::DeviceKind;
use crate::run_folder::checkpoint::Checkpoint;
use crate::task::TrainingTask;

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
    pub(super) fn verify(&mut self, run: &mut Training) -> Result<()> {
        let (_time, started) = (self.spans.open(Part::Evaluation), Instant::now());
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
                self.verifying.verified = run.progress.step;
                self.notice(&said);
                Ok(())
            }
            Err(error) => {
                run.guard.distrust_after(self.verifying.verified);
                Err(error)
            }
        }
    }
}
