//! One optimizer step of the loop: its micro-batches, and the update. How their losses, gradients
//! and the update are computed is the [`Executor`]'s; what follows from a step is the loop's.

use std::time::{Duration, Instant};

use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use kiln_core::dataset::loader::Loader;
use kiln_core::device_error::device_error;
use kiln_core::error::{Error, Result};
use kiln_core::random::seed_for;

use super::Trainer;
#[cfg(feature = "compiler")]
use super::captured::CapturedSteps;
use super::eager::Eager;
use super::observer::{Observer, Part};
use super::run::Run;
use super::shapes::Shape;
use crate::distributed::World;
#[cfg(all(feature = "compiler", feature = "cuda"))]
use crate::engine::cuda;
#[cfg(all(feature = "compiler", feature = "cuda"))]
use crate::engine::settings::DeviceKind;
use crate::optim::Optimizer;
use crate::optim::outliers::Outliers;
use crate::optim::scaler::{LossScaler, Verdict};
use crate::reads::read_scalars;
use crate::task::{Batch, OnDevice, TrainingTask};

/// The state that training changes.
pub(super) struct TrainState<M> {
    pub(super) model: M,
    pub(super) optimizer: Optimizer,
    /// The loss scale of f16.
    pub(super) scaler: Option<LossScaler>,
    /// Finds the steps that are not applied.
    pub(super) outliers: Option<Outliers>,
}

impl<M> TrainState<M> {
    /// Why a step with this loss and gradient norm, `[1]` each, is not to be applied, if it is an
    /// outlier. The ranks of `world` all go by the values of rank 0.
    ///
    /// # Errors
    /// The device's, and MPI's.
    pub(super) fn outlier(&mut self, world: &World, loss: &Tensor<1>, grad_norm: &Tensor<1>) -> Result<Option<String>> {
        let Some(outliers) = &mut self.outliers else { return Ok(None) };
        let values = read_scalars(vec![loss.clone(), grad_norm.clone()])?;
        Ok(outliers.judge(world.of_root(values[0])?, world.of_root(values[1])?))
    }
}

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
        observer: &mut dyn Observer,
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
        totals: Totals,
        sees: &mut dyn FnMut(&T::Model, &GradientsParams),
        observer: &mut dyn Observer,
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
    /// The divisor of its loss sum.
    pub(super) labels: f64,
    /// The divisor of the loss sum of the step's first micro-batch on rank 0.
    pub(super) first_labels: f64,
    /// No micro-batch of the step follows, on any rank.
    pub(super) is_last: bool,
}

/// The totals of a step, for its update.
#[derive(Debug, Clone, Copy)]
pub(super) struct Totals {
    /// The divisor of the loss sum of all micro-batches; more than 0.
    pub(super) labels: f64,
    /// The divisor of the loss sum of the step's first micro-batch on rank 0.
    pub(super) first_labels: f64,
    /// How many micro-batches there were.
    pub(super) micro_batches: usize,
    /// The learning rate.
    pub(super) lr: f64,
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
    /// Time of exchanges with the other ranks.
    pub(super) communicated: Duration,
}

/// The results of a step, for the loop.
pub(super) struct Stepped {
    /// The step's loss, `[1]`.
    pub(super) loss: Tensor<1>,
    /// Norm of its gradient before clipping, `[1]`.
    pub(super) grad_norm: Tensor<1>,
    /// The learning rate.
    pub(super) lr: f64,
    /// Whether it overflowed, where losses are scaled.
    pub(super) verdict: Option<Verdict>,
    /// Attended tokens.
    pub(super) tokens: u64,
    /// It was the last of an epoch.
    pub(super) epoch_ended: bool,
}

impl<T: TrainingTask> Trainer<T> {
    /// Captured steps where the plan has them, unless a callback sees gradients, which is then
    /// said; else eager ones.
    ///
    /// # Errors
    /// A thread that cannot be started; a CUDA driver that does not permit a capture.
    pub(super) fn executor(&mut self) -> Result<Box<dyn Executor<T>>> {
        #[cfg(feature = "compiler")]
        if self.session.plan().captures().is_ok() {
            if self.callbacks.iter().any(|callback| callback.sees_gradients()) {
                self.notice("steps are not captured: a callback sees gradients");
            } else if let Some(captured) = CapturedSteps::new(&mut self.state, &self.session, &self.world, self.drops) {
                #[cfg(feature = "cuda")]
                if self.session.plan().engine.device.kind == DeviceKind::Cuda {
                    cuda::permit_loading_while_capturing(&self.session.device)?;
                }
                return Ok(Box::new(captured));
            }
        }
        let sees = self.callbacks.iter().any(|callback| callback.sees_gradients());
        Ok(Box::new(Eager::new(&self.session, &self.world, &self.state.model, self.device.clone(), self.drops, sees)?))
    }

    /// The next step of `run`: up to `accumulation` micro-batches a device, fewer at the end of an
    /// epoch, and one update, for which their losses and gradients are divided once. The ranks of
    /// the world take turns with the micro-batches.
    pub(super) fn step(
        &mut self,
        executor: &mut dyn Executor<T>,
        loader: &mut Loader<T::Example, Option<T::Batch>>,
        run: &mut Run,
    ) -> Result<Stepped> {
        let step = run.progress.step;
        let (mut labels, mut first_labels, mut micro_batches, mut tokens) = (0.0, 0.0, 0, 0);
        let (ranks, rank) = (self.world.size(), self.world.rank());
        let rounds = self.session.plan().batch.micro_batches() / ranks;
        let mut epoch_ended = false;
        for round in 0..rounds {
            if epoch_ended {
                break;
            }
            let Some(loaded) = loader.next_batch()? else { break };
            let size = loaded.batch.as_ref().map(Batch::size);
            if round == 0 {
                let own = size.as_ref().map_or(0.0, |size| size.labels);
                self.observer.part(Part::Data);
                first_labels = self.exchange(run, |world| world.of_root(own))?;
            }
            if let (Some(batch), Some(size)) = (&loaded.batch, size) {
                let shape = Shape::of(&size);
                if let Some(news) = run.shapes.see(shape, step + 1) {
                    self.notice(&news);
                }
                let batch = batch.to_device(executor.device())?;
                self.observer.batch(shape);
                self.observer.part(Part::Data);
                let seed = seed_for(self.session.plan().run.seed, "dropout", step, (round * ranks + rank) as u64);
                let is_last = round + 1 == rounds || loaded.last_in_epoch;
                let micro = MicroBatch { batch, seed, labels: size.labels, first_labels, is_last };
                if let Some(notice) = executor.micro_batch(&mut self.state, micro, &mut *self.observer)? {
                    self.notice(&notice);
                }
                labels += size.labels;
                micro_batches += 1;
                tokens += size.tokens;
            }
            run.progress.samples += loaded.examples as u64;
            run.progress.epoch = loaded.epoch_progress;
            epoch_ended = loaded.last_in_epoch;
        }
        if self.world.is_shared() {
            // Gradients are read next. The work of the device until then is the backward pass, and
            // no exchange.
            self.session.device.sync().map_err(|error| device_error(&error))?;
            self.observer.part(Part::Backward);
            let began = Instant::now();
            executor.end_micro_batches(&mut self.state)?;
            run.clock.communicated(began.elapsed());
            self.observer.part(Part::Communicate);
        }
        let own = [labels, micro_batches as f64, tokens as f64];
        let [labels, micro_batches, tokens] = self.exchange(run, |world| world.totals(own))?;
        let (micro_batches, tokens) = (micro_batches as usize, tokens as u64);
        if labels == 0.0 {
            return Err(Error::data(format!("step {}: no label of the batch is valid", step + 1)).help(
                "every optimizer step needs at least one label that is not -100; a causal language model predicts the \
                 labels behind the first of each row",
            ));
        }

        let lr = self.session.plan().optimizer.schedule.lr(step.saturating_add_signed(-run.steps_ahead) as usize);
        let (callbacks, progress) = (&mut self.callbacks, &run.progress);
        let mut sees = |model: &T::Model, grads: &GradientsParams| {
            callbacks.iter_mut().for_each(|callback| callback.on_pre_optimizer_step(progress, model, grads));
        };
        let totals = Totals { labels, first_labels, micro_batches, lr };
        let updated = executor.update(&mut self.state, totals, &mut sees, &mut *self.observer)?;
        run.kernels.recorded(executor.recordings());
        let Updated { loss, grad_norm, verdict, outlier, notice, communicated } = updated;
        if self.world.is_shared() {
            run.clock.communicated(communicated);
        }
        if let Some(notice) = notice {
            self.notice(&notice);
        }
        if let Some(why) = outlier {
            self.notice(&format!("step {} is not applied: {why}", step + 1));
        }
        self.observer.part(Part::Update);
        Ok(Stepped { loss, grad_norm, lr, verdict, tokens, epoch_ended })
    }

    /// Has `exchange` done with the other ranks, and counts its time.
    pub(super) fn exchange<R>(&mut self, run: &mut Run, exchange: impl FnOnce(&World) -> Result<R>) -> Result<R> {
        if !self.world.is_shared() {
            return exchange(&self.world);
        }
        let began = Instant::now();
        let result = exchange(&self.world)?;
        run.clock.communicated(began.elapsed());
        self.observer.part(Part::Communicate);
        Ok(result)
    }
}
