//! Evaluations in the middle of a run: when one is due, its row, and which was the best.

use std::time::Instant;

use kiln_core::error::{ErrorKind, Result};
use kiln_core::metrics::Record;

use super::Trainer;
use super::best::Best;
use super::observer::Part;
use super::output::RunFolder;
use super::run::{After, Run};
use crate::arguments::EvalStrategy;
use crate::engine::device::release_memory;
use crate::evaluation::evaluate;
use crate::plan::TrainPlan;
use crate::task::TrainingTask;

/// When an evaluation is due, and what the last ones said.
#[derive(Debug)]
pub(super) struct Evaluating {
    strategy: EvalStrategy,
    steps: u64,
    delay: f64,
    at_end: bool,
    /// An evaluation is due before anything else: that at the start, or one that was interrupted.
    pub(super) is_pending: bool,
    /// The last evaluation's row.
    pub(super) last: Option<Record>,
    pub(super) best: Best,
    /// The evaluation of this step was the best so far.
    pub(super) is_best: bool,
}

impl Evaluating {
    pub(super) fn new(plan: &TrainPlan) -> Self {
        let evaluation = &plan.evaluation;
        Self {
            strategy: evaluation.strategy,
            steps: evaluation.steps as u64,
            delay: evaluation.delay,
            at_end: evaluation.at_end,
            is_pending: evaluation.on_start,
            last: None,
            best: Best::new(&plan.saving),
            is_best: false,
        }
    }

    /// Whether an evaluation follows a step. A run that evaluates at all does so at its end, unless
    /// that comes before `trainer.eval_delay`.
    pub(super) fn due(&self, after: &After) -> bool {
        match self.strategy {
            EvalStrategy::No => self.at_end && after.is_last,
            EvalStrategy::Epoch => (after.epoch_ended || after.is_last) && self.delay <= after.epoch,
            EvalStrategy::Steps => {
                (after.step.is_multiple_of(self.steps) || after.is_last) && self.delay <= after.step as f64
            }
        }
    }
}

impl<T: TrainingTask> Trainer<T> {
    /// Evaluates and writes the row. When a signal comes first, the evaluation stays due.
    pub(super) fn evaluate_and_record(&mut self, folder: &mut RunFolder, run: &mut Run) -> Result<()> {
        run.evaluating.is_best = false;
        run.evaluating.is_pending = false;
        let Some(validation) = self.session.validation().cloned() else { return Ok(()) };
        let started = Instant::now();
        let evaluation = match evaluate(&self.world, &self.session.evaluation(validation), &self.state.model) {
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
        self.keep_confusion(folder, evaluation.confusion.as_ref(), run.progress.step)?;
        self.callbacks.iter_mut().for_each(|callback| callback.on_evaluate(&run.progress, &row, &mut run.control));
        if run.progress.step > 0 {
            run.evaluating.is_best = run.evaluating.best.see(&row, run.progress.step)?;
            run.control.should_training_stop |= run.evaluating.best.is_exhausted();
        }
        run.evaluating.last = Some(row);
        self.observer.part(Part::Evaluation);
        Ok(())
    }
}
