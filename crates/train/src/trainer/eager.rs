//! Steps that are computed operation by operation: on every device, and with every option.

use burn::module::{Module, ModuleMapper, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use kiln_core::error::Result;
use kiln_models::Compute;
use kiln_models::ops::dropout::DropoutRng;

use super::executor::{Executor, MicroBatch, StepTotals, Updated};
use super::gradients::{gradients, gradients_in_parts};
use super::observer::Part;
use super::spans::Spans;
use super::state::TrainState;
use super::sums::{Add, StepSums};
use crate::distributed::{Overlap, Shard, ShardGradients, World, sum_gradients, sum_loss};
use crate::engine::settings::DeviceKind;
use crate::optim::Optimizer;
use crate::optim::backward::{ActivationCheckpointing, GradientPass};
use crate::optim::gradient::{global_norm, global_norm_of_shards, scale_and_norm_by};
use crate::optim::scaler::Verdict;
use crate::reads::read_scalars;
use crate::session::Session;
use crate::task::{OnDevice, TrainingTask};

/// Computes steps, and holds the sums over the micro-batches of the one at hand.
pub(super) struct Eager<T: TrainingTask> {
    task: T,
    /// The ranks whose losses and gradients are summed.
    world: World,
    /// With autodiff.
    device: Device,
    compute: Compute,
    /// Whether dropout drops anything.
    drops: bool,
    checkpointing: ActivationCheckpointing,
    clip: Option<f64>,
    /// Whether the gradient norm of rank 0 is that of all: on a GPU ranks may have tuned their way
    /// to kernels that add in different orders, and their weights would drift apart.
    agrees: bool,
    /// Whether a callback sees gradients, which are put together for it where they are divided.
    shows_gradients: bool,
    /// Stands in for the model while it is updated: it has one element in every parameter.
    stand_in: T::Model,
    sums: StepSums,
    /// Sums gradients during the backward pass, where the plan asks for it.
    overlap: Option<Overlap>,
    /// The sums that it has made in the step at hand.
    summed: Option<GradientsParams>,
    spans: Spans,
}

impl<T: TrainingTask> Eager<T> {
    /// For the run of `session` by the ranks of `world` that trains `model`, on `device` with
    /// autodiff. `spans` are those of the run.
    ///
    /// # Errors
    /// A thread that cannot be started.
    pub(super) fn new(
        session: &Session<T>,
        world: &World,
        model: &T::Model,
        device: Device,
        drops: bool,
        shows_gradients: bool,
        spans: &Spans,
    ) -> Result<Self> {
        let plan = session.plan();
        let overlaps = world.is_shared() && plan.distributed.overlap_communication;
        Ok(Self {
            task: session.task.clone(),
            world: world.clone(),
            stand_in: model.clone().map(&mut Emptied),
            device,
            compute: plan.engine.compute(),
            drops,
            checkpointing: plan.engine.activation_checkpointing,
            clip: plan.optimizer.max_grad_norm,
            agrees: world.is_shared() && plan.engine.device.kind != DeviceKind::Cpu,
            shows_gradients,
            sums: StepSums::default(),
            overlap: if overlaps { Some(Overlap::new(world, model)?) } else { None },
            summed: None,
            spans: spans.clone(),
        })
    }

    /// Gradients and loss of the step, summed over the ranks.
    fn sums_of_all(&mut self, state: &TrainState<T::Model>, device: &Device) -> Result<(Summed, Tensor<1>)> {
        let _time = self.world.is_shared().then(|| self.spans.open(Part::Communicate));
        let (model, StepSums { grads, loss }) = (&state.model, std::mem::take(&mut self.sums));
        Ok(match (state.optimizer.shard(), self.summed.take()) {
            (Some(shard), _) => {
                let (grads, loss) = shard.scatter(model, grads, loss, device)?;
                (Summed::Shard(shard.clone(), grads), loss)
            }
            (None, Some(grads)) => (Summed::All(grads), sum_loss(&self.world, loss, device)?),
            (None, None) if self.world.is_shared() => {
                let (grads, loss) = sum_gradients(&self.world, model, grads, loss, device)?;
                (Summed::All(grads), loss)
            }
            (None, None) => (Summed::All(grads), loss.expect("a step with labels has a micro-batch")),
        })
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
        micro: MicroBatch<OnDevice<T>>,
    ) -> Result<Option<String>> {
        if micro.weight == 0.0 {
            return Ok(None); // it adds nothing, and a step of nothing else is refused
        }
        let _time = self.spans.open(Part::Backward);
        let pass = GradientPass {
            rng: DropoutRng::of(self.drops),
            seed: micro.seed,
            checkpointing: self.checkpointing,
            compute: self.compute,
            device: &self.device,
            copies: Some(state.optimizer.copies()),
        };
        let MicroBatch { weight, expected, .. } = micro;
        let weighted = |loss: Tensor<1>| if weight == 1.0 { loss } else { loss * weight };
        let forward = self.spans.open(Part::Forward);
        let scaled = |loss| {
            drop(forward); // this is called between forward and backward pass
            match &state.scaler {
                None => weighted(loss),
                Some(scaler) => scaler.scaled(weighted(loss), expected),
            }
        };
        let model = &state.model;
        let (loss, grads) = match self.overlap.as_mut().filter(|_| micro.is_last) {
            Some(overlap) => {
                let before = overlap.is_ready().then(|| std::mem::take(&mut self.sums.grads));
                overlap.begin(before.unwrap_or_default());
                let on_part = &mut |part| overlap.part(model, part);
                let loss = gradients_in_parts(&self.task, model, &micro.batch, &pass, scaled, on_part)?;
                (loss, overlap.end().unwrap_or_default())
            }
            None => gradients(&self.task, model, &micro.batch, &pass, scaled)?,
        };
        self.sums.take_up(model, grads, weighted(loss), Add);
        Ok(None)
    }

    fn end_micro_batches(&mut self, state: &mut TrainState<T::Model>) -> Result<()> {
        let Some(overlap) = &mut self.overlap else { return Ok(()) };
        let device = self.device.clone().inner();
        overlap.finish(&state.model, || std::mem::take(&mut self.sums.grads))?;
        self.summed = overlap.sums(&state.model, &device)?;
        Ok(())
    }

    fn update(
        &mut self,
        state: &mut TrainState<T::Model>,
        totals: StepTotals,
        sees: &mut dyn FnMut(&T::Model, &GradientsParams),
    ) -> Result<Updated> {
        let device = self.device.clone().inner();
        let (grads, loss_sum) = self.sums_of_all(state, &device)?;
        let TrainState { model, scaler, .. } = &*state;
        // Divide once, clip by the global norm, update.
        let sum_norm = match &grads {
            Summed::All(grads) => global_norm(model, grads, self.compute.ops()),
            Summed::Shard(shard, grads) => global_norm_of_shards(shard, grads, self.compute.ops(), &device)?,
        };
        let sum_norm = if self.agrees {
            let _time = self.spans.open(Part::Communicate);
            let norm = self.world.of_root(read_scalars(vec![sum_norm])?[0])?;
            Tensor::from_floats([norm as f32], &device)
        } else {
            sum_norm
        };
        let verdict = scaler.as_ref().map(|scaler| scaler.judge(sum_norm.clone()));
        let (of_loss, of_grads) = totals.factors(scaler.as_ref());
        let of_grads = of_grads.unwrap_or_else(|| sum_norm.full_like(of_loss));
        let (scale, grad_norm) = scale_and_norm_by(sum_norm, of_grads, self.clip);
        let loss = loss_sum * of_loss;
        if let Some(why) = state.outlier(&self.world, &loss, &grad_norm)? {
            return Ok(Updated { loss, grad_norm, verdict, outlier: Some(why), notice: None });
        }
        let (TrainState { model, optimizer, .. }, lr) = (state, totals.lr);
        // The model is moved, not copied: weights that nobody else holds are updated in place.
        match grads {
            Summed::All(grads) => {
                sees(model, &grads);
                let moved = std::mem::replace(model, self.stand_in.clone());
                *model = update(optimizer, moved, grads, &scale, verdict.as_ref(), lr);
            }
            Summed::Shard(shard, grads) => {
                if self.shows_gradients {
                    sees(model, &shard.all_gradients(model, &grads, &device)?);
                }
                let (own, grads) = shard.cut(model, grads, &device);
                let own = update(optimizer, own, grads, &scale, verdict.as_ref(), lr);
                let _time = self.spans.open(Part::Communicate);
                let moved = std::mem::replace(model, self.stand_in.clone());
                *model = shard.put_back(moved, own, &device)?;
            }
        }
        Ok(Updated { loss, grad_norm, verdict, outlier: None, notice: None })
    }
}

/// The gradients of a step, summed over the ranks.
enum Summed {
    All(GradientsParams),
    /// Summed gradients of this rank's part of the parameters.
    Shard(Shard, ShardGradients),
}

/// `parameters` after an update, unless `verdict` says that it is skipped.
fn update<M: Module>(
    optimizer: &mut Optimizer,
    parameters: M,
    grads: GradientsParams,
    scale: &Tensor<1>,
    verdict: Option<&Verdict>,
    lr: f64,
) -> M {
    match verdict {
        None => optimizer.step(parameters, grads, scale, lr),
        Some(verdict) => optimizer.step_unless(verdict, parameters, grads, scale, lr),
    }
}
