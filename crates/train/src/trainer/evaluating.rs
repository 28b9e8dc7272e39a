//! Evaluations in the middle of a run: when one is due, its row, and which was the best.

use kiln_core::metrics::Record;

use super::after::After;
use crate::arguments::EvalStrategy;
use crate::plan::TrainPlan;
use crate::run_folder::Best;

/// When an evaluation is due, and what the last ones said.
#[derive(Debug)]
pub(super) struct Evaluating {
    strategy: EvalStrategy,
    steps: u64,
    delay: f64,
    at_end: bool,
    /// An evaluation is due before anything else: that at the start, or one that was interrupted.
    pub(super) is_pending: bool,
    /// The last evaluation's row; at the end, that of the model that is kept.
    pub(super) last: Option<Record>,
    pub(super) best: Best,
    /// The row of the best evaluation, where this process has made it.
    pub(super) best_row: Option<Record>,
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
            best_row: None,
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
