//! Log rows: when one is due, and how the values of a step come to the host for it, in one
//! transfer.

use super::after::After;
use crate::arguments::LoggingStrategy;
use crate::plan::TrainPlan;

/// When a row is due.
#[derive(Debug, Clone, Copy)]
pub(super) struct Logging {
    strategy: LoggingStrategy,
    steps: u64,
    first_step: bool,
}

impl Logging {
    pub(super) fn new(plan: &TrainPlan) -> Self {
        let (strategy, first_step) = (plan.logging.strategy, plan.logging.first_step);
        Self { strategy, steps: plan.logging.steps as u64, first_step }
    }

    /// Whether the values of a step are read, which `logging_strategy = "no"` does without a row.
    pub(super) fn due(&self, after: &After) -> bool {
        let due = match self.strategy {
            LoggingStrategy::Epoch => after.epoch_ended,
            LoggingStrategy::Steps | LoggingStrategy::No => after.step.is_multiple_of(self.steps),
        };
        due || after.is_last || (self.first_step && after.step == 1)
    }

    /// Whether a row is written.
    pub(super) fn writes(&self) -> bool {
        self.strategy != LoggingStrategy::No
    }
}
