//! Checkpoints: what a run reads for one, and when it is told of it.

use std::time::Instant;

use kiln_core::dataset::loader::Position;
use kiln_core::error::{Error, Result};
use kiln_models::weights::{StateDict, export_saved};

use super::after::After;
use super::callback::Activity;
use super::observer::Part;
use super::run::{Training, write_trainer_state};
use super::setup::Trainer;
use super::stopping::Stopping;
use crate::optim::scaler::LossScaler;
use crate::run_folder::{
    RunFolder,
    checkpoint::{self, FORMAT_VERSION, Snapshot, State},
};
use crate::task::TrainingTask;

impl<T: TrainingTask> Trainer<T> {
    /// Reads everything that a checkpoint holds and hands it to the thread that writes it. With
    /// `trainer.save_only_model` all but what continues the optimizer, unless the run is to be
    /// continued from here.
    pub(super) fn save(
        &mut self,
        folder: &mut RunFolder,
        run: &mut Training,
        after: &After,
        stopping: Stopping,
    ) -> Result<()> {
        let _time = self.spans.open(Part::Save);
        after.values.read_finite(run)?;
        self.tell(&run.progress, Activity::Saving);
        self.check_ranks(run.progress.step)?;
        let only_model = self.session.plan().saving.only_model && !stopping.is_continued(run);
        let started = Instant::now();
        let is_divided = self.state.optimizer.shard().is_some();
        // Rank 0 says whether all of them hand it their moments.
        let joins = is_divided && self.world.of_root(f64::from(u8::from(!only_model)))? > 0.0;
        let divided = if joins { Some(self.state.optimizer.export(&self.state.model)?) } else { None };
        if !self.world.is_root() {
            run.clock.exclude_saving(started.elapsed());
            return Ok(());
        }
        folder.metrics.sync()?;
        let progress = run.progress;
        let elapsed = run.clock.start.elapsed().as_secs_f64();
        let (position, stream) = match self.session.train().stream() {
            Some(stream) => {
                // Counted over all passes: how many examples one has is not known.
                let index = run.position.epoch * self.session.train().len() as u64 + run.position.index;
                (Position { epoch: 0, index }, Some(stream.position(index)?))
            }
            None => (run.position, None),
        };
        let state = State {
            format_version: FORMAT_VERSION,
            kiln_version: env!("CARGO_PKG_VERSION").into(),
            step: progress.step,
            steps_ahead: run.steps_ahead,
            samples: progress.samples,
            tokens: progress.tokens,
            epoch: progress.epoch,
            position,
            stream,
            losses: run.losses.state()?,
            metrics_rows: folder.metrics.rows(),
            pending_evaluation: run.evaluating.is_pending,
            seconds: folder.status.seconds_before + elapsed,
            best: run.evaluating.best.clone(),
            scaler: self.state.scaler.as_ref().map(LossScaler::state).transpose()?,
            outliers: self.state.outliers.as_ref().map(|outliers| outliers.state.clone()),
            promise: folder.promise.clone(),
            only_model,
            files: Default::default(),
        };
        let model = &self.state.model;
        let snapshot = Snapshot {
            state,
            file: model.file(),
            model: export_saved(model).map_err(Error::device)?,
            optimizer: match divided {
                Some(joined) => joined,
                None if only_model => Vec::new(),
                None => self.state.optimizer.export(model)?,
            },
            files: self.session.task.files(model)?,
        };
        run.saver.spent += started.elapsed();
        let keep = self.session.plan().saving.load_best_at_end.then_some(run.evaluating.best.step).flatten();
        // The newest checkpoint stays that nothing found later can make suspect: up to the last
        // row, the last check of the compiler, and where the run last looked as if it learned.
        let good = self.verifying.good_until().into_iter().fold(run.guard.good_until(), u64::min);
        run.saver.save(snapshot, keep, good)?;
        folder.status.advance(progress.step, progress.total_steps, elapsed);
        folder.status.write(folder.path())?;
        write_trainer_state(folder, self.session.plan(), run, false)?;
        run.clock.exclude_saving(started.elapsed());
        let target = folder.checkpoints().join(checkpoint::name(progress.step));
        for callback in &mut self.callbacks {
            callback.on_save(&progress, &target);
        }
        Ok(())
    }
}
