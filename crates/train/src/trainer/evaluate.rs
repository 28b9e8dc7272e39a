//! Evaluations in the middle of a run and at its end.

use std::time::Instant;

use kiln_core::error::{ErrorKind, Result};

use super::callback::Activity;
use super::observer::Part;
use super::run::Training;
use super::setup::Trainer;
use crate::engine::device::release_memory;
use crate::evaluation::evaluate;
use crate::run_folder::RunFolder;
use crate::task::TrainingTask;

impl<T: TrainingTask> Trainer<T> {
    /// Evaluates and writes the row. When a signal comes first, the evaluation stays due.
    pub(super) fn evaluate_and_record(&mut self, folder: &mut RunFolder, run: &mut Training) -> Result<()> {
        run.evaluating.is_best = false;
        run.evaluating.is_pending = false;
        let Some(validation) = self.session.validation().cloned() else { return Ok(()) };
        let (_time, started) = (self.spans.open(Part::Evaluation), Instant::now());
        let (callbacks, progress) = (&mut self.callbacks, &run.progress);
        let mut told = |done: u64, batches: u64| {
            let activity = Activity::Evaluating { done, batches };
            callbacks.iter_mut().for_each(|callback| callback.on_activity(progress, activity));
        };
        let session = self.session.evaluation(validation);
        let evaluation = match evaluate(&self.world, &session, &self.state.model, &mut told) {
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted(_)) && run.progress.step > 0 => {
                run.evaluating.is_pending = true;
                return Ok(());
            }
            other => other?,
        };
        // Batches of other shapes leave pages in the device's pools that training does not use.
        release_memory(&self.session.device);
        let elapsed = started.elapsed();
        run.clock.exclude_evaluation(elapsed);
        let row = self.labelled(evaluation.record(run.progress.step, run.progress.epoch, elapsed));
        folder.metrics.append(&row)?;
        self.callbacks.iter_mut().for_each(|callback| callback.on_evaluate(&run.progress, &row, &mut run.control));
        if run.progress.step > 0 {
            run.evaluating.is_best = run.evaluating.best.see(&row, run.progress.step)?;
            run.control.should_training_stop |= run.evaluating.best.is_exhausted();
        }
        let evaluating = &mut run.evaluating;
        if evaluating.is_best {
            evaluating.best_row = Some(row.clone());
        }
        // Where the best model is kept, its matrix is.
        if evaluating.is_best || evaluating.best.step.is_none() || !self.session.plan().saving.load_best_at_end {
            self.keep_confusion(folder, evaluation.confusion.as_ref(), run.progress.step)?;
        }
        run.evaluating.last = Some(row);
        Ok(())
    }
}
