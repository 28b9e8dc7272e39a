//! Steps that are computed operation by operation: on every device, and with every option.

use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::{Device, Tensor};
use kiln_models::{Model, ModelConfig};

use super::observer::{Observer, Part};
use super::step::{Executor, MicroBatch, Totals, TrainState, Updated, clip};
use crate::base::error::Result;
use crate::config::{ActivationCheckpointing, Task};
use crate::optim::backward::{DropoutSeed, GradientPass};
use crate::optim::gradient::{global_norm, scale_and_norm, unscale_and_norm};
use crate::plan::RunPlan;
use crate::task::LossOptions;

/// Computes steps, and holds the sums over the micro-batches of the one at hand.
pub(super) struct Eager {
    /// With autodiff.
    device: Device,
    loss: LossOptions,
    checkpointing: ActivationCheckpointing,
    accumulation: usize,
    clip: Option<f64>,
    empty: (ModelConfig, Task),
    grads: GradientsAccumulator<Model>,
    /// `[1]`
    loss_sum: Option<Tensor<1>>,
    /// What the divisor of the step will be if all its micro-batches are like the first.
    expected_divisor: Option<f64>,
}

impl Eager {
    /// For the run of `plan`, on `device` with autodiff.
    pub(super) fn new(plan: &RunPlan, device: Device) -> Result<Self> {
        let (config, task) = plan.model.built_in()?;
        Ok(Self {
            device,
            loss: plan.optimizer.loss.clone(),
            checkpointing: plan.engine.activation_checkpointing,
            accumulation: plan.batch.accumulation,
            clip: clip(plan),
            empty: (config.clone(), task),
            grads: GradientsAccumulator::new(),
            loss_sum: None,
            expected_divisor: None,
        })
    }
}

impl Executor for Eager {
    fn device(&self) -> &Device {
        &self.device
    }

    fn micro_batch(
        &mut self,
        state: &mut TrainState,
        micro: MicroBatch,
        observer: &mut dyn Observer,
    ) -> Result<Option<String>> {
        let pass = GradientPass {
            seed: DropoutSeed::Host(micro.seed),
            checkpointing: self.checkpointing,
            options: &self.loss,
            copies: Some(state.optimizer.copies()),
        };
        // In f16 the gradients of a sum over thousands of tokens would overflow under any scale, so the sum is divided before
        // the backward pass, by what the step's divisor will be if all batches are like this.
        let (reduction, accumulation) = (self.loss.reduction, self.accumulation);
        let all = reduction.divisor(micro.labels * accumulation as f64, accumulation);
        let expected = *self.expected_divisor.get_or_insert(all.max(1.0));
        let weight = reduction.weight(micro.labels);
        let weighted = |loss: Tensor<1>| if weight == 1.0 { loss } else { loss * weight };
        let scaled = |loss| {
            observer.part(Part::Forward);
            match &state.scaler {
                None => weighted(loss),
                Some(scaler) => scaler.scaled(weighted(loss), expected),
            }
        };
        let (sum, grads) = pass.run(&state.model, &micro.batch, scaled)?;
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
        state: &mut TrainState,
        totals: Totals,
        sees: &mut dyn FnMut(&Model, &GradientsParams),
    ) -> Result<Updated> {
        let TrainState { model, optimizer, scaler } = state;
        let grads = self.grads.grads();
        let loss_sum = self.loss_sum.take().expect("a step with labels has a micro-batch");
        let expected = self.expected_divisor.take().expect("a step with labels has a micro-batch");
        // Divide once, clip by the global norm, update.
        let divisor = self.loss.reduction.divisor(totals.labels, totals.micro_batches);
        let sum_norm = global_norm(model, &grads, model.ops());
        let verdict = scaler.as_ref().map(|scaler| scaler.judge(sum_norm.clone()));
        let (scale, grad_norm) = match scaler {
            None => scale_and_norm(sum_norm, divisor, self.clip),
            Some(scaler) => unscale_and_norm(sum_norm, scaler.scale(), divisor / expected, self.clip),
        };
        sees(model, &grads);
        // The model is moved, not copied: weights that nobody else holds are updated in place. What stands in for it has no
        // weights before they are used, and they never are.
        let (config, task) = &self.empty;
        let moved = std::mem::replace(model, Model::new(config, task.head(), &self.device)?);
        *model = match &verdict {
            None => optimizer.step(moved, grads, &scale, totals.lr),
            Some(verdict) => optimizer.step_unless(verdict, moved, grads, &scale, totals.lr),
        };
        Ok(Updated { loss: loss_sum * (1.0 / divisor), grad_norm, verdict, notice: None })
    }
}
