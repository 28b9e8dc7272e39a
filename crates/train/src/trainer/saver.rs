//! Writes checkpoints on a thread of their own, one at a time, so that training goes on meanwhile.
//! An error there is reported at the next save or at the end, and fails the run.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kiln_core::error::{Error, Result};
use kiln_core::panics;

use super::after::After;
use crate::arguments::SaveStrategy;
use crate::plan::TrainPlan;
use crate::run_folder::{
    checkpoint::{self, Snapshot},
    manifest::Manifest,
};

/// When a checkpoint is due, the thread that writes one, if it is at work, and what saving has
/// cost.
#[derive(Debug)]
pub(super) struct Saver {
    checkpoints: PathBuf,
    manifest: Arc<Manifest>,
    limit: Option<usize>,
    strategy: SaveStrategy,
    steps: u64,
    keeps_best: bool,
    writing: Option<JoinHandle<Result<Duration>>>,
    /// Time spent on reading values and writing files, on either thread.
    pub spent: Duration,
}

impl Saver {
    /// For the run of `plan`: saves into the folder `checkpoints` and lists the files in
    /// `manifest`.
    pub(super) fn new(plan: &TrainPlan, checkpoints: PathBuf, manifest: Arc<Manifest>) -> Self {
        let saving = &plan.saving;
        Self {
            checkpoints,
            manifest,
            limit: saving.total_limit,
            strategy: saving.strategy,
            steps: saving.steps as u64,
            keeps_best: saving.load_best_at_end,
            writing: None,
            spent: Duration::ZERO,
        }
    }

    /// Whether a checkpoint follows a step; `run_ends` there, or the model `is_best`.
    pub(super) fn due(&self, after: &After, run_ends: bool, is_best: bool) -> bool {
        // The checkpoint that is loaded at the end has to be on disk, also when no save was due.
        let wanted = is_best && self.keeps_best;
        match self.strategy {
            SaveStrategy::No => false,
            SaveStrategy::Best => is_best,
            SaveStrategy::Epoch => after.epoch_ended || run_ends || wanted,
            SaveStrategy::Steps => after.step.is_multiple_of(self.steps) || run_ends || wanted,
        }
    }

    /// Starts writing `snapshot`, after the one before is done. Once it is written, removes what
    /// the run has left behind and old checkpoints, but not the one of step `keep` nor the newest
    /// up to step `good`.
    ///
    /// # Errors
    /// The snapshot before could not be written, or the thread that writes does not start.
    pub fn save(&mut self, snapshot: Snapshot, keep: Option<u64>, good: u64) -> Result<()> {
        self.wait()?;
        let (checkpoints, manifest, limit) = (self.checkpoints.clone(), self.manifest.clone(), self.limit);
        let write = move || {
            let started = Instant::now();
            let of_any = Manifest::any_checkpoint();
            let list = |names: &[&str]| manifest.list(names.iter().map(|name| of_any.join(name)));
            let is_own = |name: &Path| manifest.has_in_checkpoints(name);
            snapshot.write(&checkpoints, &list, &is_own)?;
            checkpoint::remove_superseded(&checkpoints, &is_own);
            if let Some(limit) = limit {
                checkpoint::rotate(&checkpoints, limit, keep, good, &is_own)?;
            }
            Ok(started.elapsed())
        };
        let thread = std::thread::Builder::new().name("kiln-saver".into()).spawn(write);
        self.writing = Some(thread.map_err(|error| Error::start("the thread that saves checkpoints", &error))?);
        Ok(())
    }

    /// Waits until nothing is being written.
    ///
    /// # Errors
    /// The last snapshot could not be written.
    pub fn wait(&mut self) -> Result<()> {
        let Some(thread) = self.writing.take() else { return Ok(()) };
        let written = thread
            .join()
            .map_err(|payload| Error::panicked("the thread that saves checkpoints", &panics::message(&*payload)))?;
        self.spent += written?;
        Ok(())
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        // A run that fails for another reason still lets the checkpoint under way become whole.
        if let Err(error) = self.wait() {
            tracing::warn!("{error}");
        }
    }
}
