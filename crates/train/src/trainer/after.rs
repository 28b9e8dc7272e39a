//! The facts about a step that the parts of the loop decide by.

use burn::tensor::Tensor;

use crate::optim::scaler::Scaling;

/// The facts about a step by which the parts of the loop decide whether they are due.
pub(super) struct After {
    /// Steps made.
    pub(super) step: u64,
    /// Passes over the training data.
    pub(super) epoch: f64,
    /// It was the last step of an epoch.
    pub(super) epoch_ended: bool,
    /// It was the last step of the run.
    pub(super) is_last: bool,
    pub(super) values: StepValues,
}

/// The values of a step that are logged: loss and gradient norm, `[1]` each, still on the device,
/// the learning rate, and what became of the loss scale.
pub(super) struct StepValues {
    pub(super) loss: Tensor<1>,
    pub(super) grad_norm: Tensor<1>,
    pub(super) lr: f64,
    pub(super) scaling: Option<Scaling<Tensor<1>>>,
}
