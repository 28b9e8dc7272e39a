//! Recovers a run that ran out of memory: back to the last good state (the newest whole checkpoint,
//! or the start), the micro-batch halved, the global batch kept. Steps computed since that state
//! are not trusted: a device that ran out of memory may have left any values. Only running out that
//! is reported as an error can be caught here. Where the system refuses a block, the command begins
//! again with such a batch; a process that the kernel ends is continued with `--resume`.

use kiln_core::error::{Error, ErrorKind, Result};
use kiln_core::metrics::MetricsFile;

use super::setup::Trainer;
use crate::plan::{BatchPlan, TrainPlan};
use crate::run_folder::{
    RunFolder,
    checkpoint::{self, Checkpoint},
    write_plan,
};
use crate::task::TrainingTask;

/// The batch to go on with after `error`; none when it was not about memory, or when no smaller
/// micro-batch trains the same.
pub(super) fn smaller_batch(plan: &TrainPlan, error: &Error) -> Option<BatchPlan> {
    (error.kind() == ErrorKind::OutOfMemory).then(|| plan.smaller_batch()).flatten()
}

impl<T: TrainingTask> Trainer<T> {
    /// Goes back to the last good state, with the batch `smaller`, which changes nothing that the
    /// run promises: rows written since are taken back, plan.toml and plan.json are written again.
    /// Returns the checkpoint from which the run goes on; none where it begins anew.
    pub(super) fn recover(
        &mut self,
        folder: &mut RunFolder,
        smaller: BatchPlan,
        error: &str,
    ) -> Result<Option<Checkpoint>> {
        let checkpoint = Checkpoint::newest(&folder.checkpoints())?;
        checkpoint::supersede(
            &folder.checkpoints(),
            checkpoint.as_ref().map_or(0, |found| found.state.step),
            &|name| folder.manifest.has_in_checkpoints(name),
        )?;
        let back_to = checkpoint.as_ref().map_or("the start".into(), |found| format!("step {}", found.state.step));
        let message = format!(
            "out of memory: {}; back to {back_to} with half the micro-batch and the same global batch: {}, was {}",
            error.lines().next().unwrap_or_default(),
            smaller.arithmetic(),
            self.session.plan().batch.arithmetic()
        );
        self.notice(&message);

        self.session = self.session.with_batch(&smaller)?;
        (self.state, _) = Self::begin_state(&self.session, &self.device)?;
        write_plan(folder.path(), &self.session.description()?.files)?;
        let (rows, step) = checkpoint.as_ref().map_or((0, 0), |found| (found.state.metrics_rows, found.state.step));
        folder.metrics = MetricsFile::resume(folder.path(), rows, step)?;
        Ok(checkpoint)
    }
}
