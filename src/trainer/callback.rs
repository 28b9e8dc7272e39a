//! Hooks into the training loop, with Hugging Face's event names (`TrainerCallback`). The command line prints through one.

use crate::metrics::Record;
use crate::plan::RunPlan;

/// How far a run has come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// Optimizer steps made.
    pub step: u64,
    /// Optimizer steps that the plan wants.
    pub total_steps: u64,
    /// Examples seen.
    pub samples: u64,
    /// Attended tokens seen.
    pub tokens: u64,
    /// Passes over the training data, with fraction.
    pub epoch: f64,
}

/// What a callback may ask of the loop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Control {
    /// End after this step, as if the plan ended here.
    pub should_training_stop: bool,
}

/// Called by the loop; every method does nothing unless it is written.
#[allow(unused_variables)]
pub trait Callback {
    /// Before the first step.
    fn on_train_begin(&mut self, plan: &RunPlan) {}

    /// After every optimizer step. Reads nothing from the device.
    fn on_step_end(&mut self, progress: &Progress, control: &mut Control) {}

    /// After a training row was written.
    fn on_log(&mut self, progress: &Progress, row: &Record) {}

    /// After an evaluation row was written.
    fn on_evaluate(&mut self, progress: &Progress, row: &Record) {}

    /// After the last step, when everything is written.
    fn on_train_end(&mut self, progress: &Progress, summary: &Record) {}
}
