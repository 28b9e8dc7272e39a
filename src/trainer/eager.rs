//! Steps that are computed operation by operation: on every device, and with every option.

use burn::module::{Module, ModuleMapper, Param};
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::{Device, Tensor};
use kiln_models::Compute;

use super::observer::{Observer, Part};
use super::step::{Executor, MicroBatch, Totals, TrainState, Updated};
use crate::base::distributed::{World, sum_gradients};
use crate::base::error::Result;
use crate::config::ActivationCheckpointing;
use crate::optim::backward::{DropoutSeed, GradientPass};
use crate::optim::gradient::{global_norm, scale_and_norm, unscale_and_norm};
use crate::session::{Session, TrainingTask};
use crate::task::Reduction;

/// Computes steps, and holds the sums over the micro-batches of the one at hand.
pub(super) struct Eager<T: TrainingTask> {
    task: T,
    /// The ranks whose losses and gradients are summed.
    world: World,
    /// With autodiff.
    device: Device,
    compute: Compute,
    reduction: Reduction,
    /// Whether dropout drops anything.
    drops: bool,
    checkpointing: ActivationCheckpointing,
    /// Micro-batches of a step.
    micro_batches: usize,
    clip: Option<f64>,
    /// Stands in for the model while it is updated: it has one element in every parameter.
    stand_in: T::Model,
    grads: GradientsAccumulator<T::Model>,
    /// `[1]`
    loss_sum: Option<Tensor<1>>,
}

impl<T: TrainingTask> Eager<T> {
    /// For the run of `session` by the ranks of `world` that trains `model`, on `device` with autodiff.
    pub(super) fn new(session: &Session<T>, world: &World, model: &T::Model, device: Device, drops: bool) -> Self {
        let plan = session.plan();
        Self {
            task: session.task.clone(),
            world: world.clone(),
            stand_in: model.clone().map(&mut Emptied),
            device,
            compute: plan.engine.compute(),
            reduction: plan.optimizer.loss.reduction,
            drops,
            checkpointing: plan.engine.activation_checkpointing,
            micro_batches: plan.batch.micro_batches(),
            clip: plan.optimizer.max_grad_norm,
            grads: GradientsAccumulator::new(),
            loss_sum: None,
        }
    }

    /// The divisor that the step will have if all its micro-batches are like the first, which has so many labels.
    fn expected_divisor(&self, first_labels: f64) -> f64 {
        self.reduction.divisor(first_labels * self.micro_batches as f64, self.micro_batches).max(1.0)
    }
}

/// Leaves one element of every parameter.
struct Emptied;

impl ModuleMapper for Emptied {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let device = param.lazy_device();
        Param::from_tensor(Tensor::zeros([1; D], &device))
    }
}

impl<T: TrainingTask> Executor<T> for Eager<T> {
    fn device(&self) -> &Device {
        &self.device
    }

    fn micro_batch(
        &mut self,
        state: &mut TrainState<T::Model>,
        micro: MicroBatch<T::DeviceBatch>,
        observer: &mut dyn Observer,
    ) -> Result<Option<String>> {
        let pass = GradientPass {
            seed: if self.drops { DropoutSeed::Host(micro.seed) } else { DropoutSeed::Off },
            checkpointing: self.checkpointing,
            compute: self.compute,
            device: &self.device,
            copies: Some(state.optimizer.copies()),
        };
        // In f16 the gradients of a sum over thousands of tokens would overflow under any scale, so the sum is divided before
        // the backward pass, by what the step's divisor will be if all batches are like this.
        let expected = self.expected_divisor(micro.first_labels);
        let weight = self.reduction.weight(micro.labels);
        let weighted = |loss: Tensor<1>| if weight == 1.0 { loss } else { loss * weight };
        let scaled = |loss| {
            observer.part(Part::Forward);
            match &state.scaler {
                None => weighted(loss),
                Some(scaler) => scaler.scaled(weighted(loss), expected),
            }
        };
        let (sum, grads) = self.task.gradients(&state.model, &micro.batch, &pass, scaled)?;
        self.grads.accumulate(&state.model, grads);
        observer.part(Part::Backward);
        let sum = weighted(sum);
        self.loss_sum = Some(match self.loss_sum.take() {
            Some(total) => total + sum,
            None => sum,
        });
        Ok(None)
    }

    fn update(
        &mut self,
        state: &mut TrainState<T::Model>,
        totals: Totals,
        sees: &mut dyn FnMut(&T::Model, &GradientsParams),
    ) -> Result<Updated> {
        let TrainState { model, optimizer, scaler } = state;
        let expected = self.expected_divisor(totals.first_labels);
        let (grads, loss_sum) = match self.world.is_shared() {
            true => {
                let device = self.device.clone().inner();
                sum_gradients(&self.world, model, self.grads.grads(), self.loss_sum.take(), &device)?
            }
            false => (self.grads.grads(), self.loss_sum.take().expect("a step with labels has a micro-batch")),
        };
        // Divide once, clip by the global norm, update.
        let divisor = self.reduction.divisor(totals.labels, totals.micro_batches);
        let sum_norm = global_norm(model, &grads, self.compute.ops());
        let verdict = scaler.as_ref().map(|scaler| scaler.judge(sum_norm.clone()));
        let (scale, grad_norm) = match scaler {
            None => scale_and_norm(sum_norm, divisor, self.clip),
            Some(scaler) => unscale_and_norm(sum_norm, scaler.scale(), divisor / expected, self.clip),
        };
        sees(model, &grads);
        // The model is moved, not copied: weights that nobody else holds are updated in place.
        let moved = std::mem::replace(model, self.stand_in.clone());
        *model = match &verdict {
            None => optimizer.step(moved, grads, &scale, totals.lr),
            Some(verdict) => optimizer.step_unless(verdict, moved, grads, &scale, totals.lr),
        };
        Ok(Updated { loss: loss_sum * (1.0 / divisor), grad_norm, verdict, notice: None })
    }
}
