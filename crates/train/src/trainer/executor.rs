//! The mathematics of a step: [`Executor`], which has two forms.

use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use kiln_core::error::Result;

use super::state::TrainState;
use crate::optim::scaler::{LossScaler, Verdict};
use crate::task::{OnDevice, TrainingTask};

/// Computes the micro-batches of a step and its update: operation by operation ([`Eager`]), or by
/// replaying recordings (`CapturedSteps`).
pub(super) trait Executor<T: TrainingTask> {
    /// Where batches have to be.
    fn device(&self) -> &Device;

    /// Adds the loss and the gradients of a micro-batch to those of the step. Returns what is worth
    /// telling.
    ///
    /// # Errors
    /// A batch without labels.
    fn micro_batch(
        &mut self,
        state: &mut TrainState<T::Model>,
        micro: MicroBatch<OnDevice<T>>,
    ) -> Result<Option<String>>;

    /// All micro-batches of the step have been computed on this rank: exchanges with others that
    /// they have begun are completed as far as other exchanges need it.
    ///
    /// # Errors
    /// MPI's, and the device's.
    fn end_micro_batches(&mut self, state: &mut TrainState<T::Model>) -> Result<()> {
        let _ = state;
        Ok(())
    }

    /// The update after the micro-batches of a step. `sees` is called with the model and its summed
    /// gradients before the weights change, where there is a moment for it.
    ///
    /// # Errors
    /// A batch without labels.
    fn update(
        &mut self,
        state: &mut TrainState<T::Model>,
        totals: StepTotals,
        sees: &mut dyn FnMut(&T::Model, &GradientsParams),
    ) -> Result<Updated>;

    /// Steps, micro-batches and updates that have been recorded.
    fn recordings(&self) -> usize {
        0
    }
}

/// A micro-batch of a step.
pub(super) struct MicroBatch<B> {
    pub(super) batch: B,
    /// The seed of its dropout.
    pub(super) seed: u64,
    /// The factor of its loss before it is added to those of the others; 0 where none of its labels
    /// is valid.
    pub(super) weight: f64,
    /// See [`StepTotals::expected`].
    pub(super) expected: f64,
    /// No micro-batch of the step follows, on any rank.
    pub(super) is_last: bool,
}

/// The numbers of a step that its update needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepTotals {
    /// The divisor of the sums of losses and gradients over the micro-batches; more than 0.
    pub(super) divisor: f64,
    /// The divisor if all micro-batches were like the first one on rank 0. Before a backward pass
    /// in f16 the loss is divided by it: the gradients of a sum over thousands of tokens would
    /// overflow under any scale.
    pub(super) expected: f64,
    /// The learning rate.
    pub(super) lr: f64,
}

impl StepTotals {
    /// The factors of the step's sums: that of the losses, and where the losses were scaled by
    /// `scaler` that of the gradients, `[1]`, on the device; else it is the same.
    pub(super) fn factors(&self, scaler: Option<&LossScaler>) -> (f64, Option<Tensor<1>>) {
        let of_grads = scaler.map(|scaler| scaler.scale().recip() * (self.expected / self.divisor));
        (1.0 / self.divisor, of_grads)
    }
}

/// The results of an update, on the device and without autodiff.
pub(super) struct Updated {
    /// The step's loss, `[1]`.
    pub(super) loss: Tensor<1>,
    /// Norm of its gradient before clipping, `[1]`.
    pub(super) grad_norm: Tensor<1>,
    /// Whether it overflowed, where losses are scaled.
    pub(super) verdict: Option<Verdict>,
    /// Why it was not applied, where it was an outlier.
    pub(super) outlier: Option<String>,
    /// A notice for the user.
    pub(super) notice: Option<String>,
}
