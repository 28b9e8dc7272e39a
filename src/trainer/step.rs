//! One optimizer step of the loop: its micro-batches, and the update. How their losses, gradients and the update are computed
//! is the [`Executor`]'s; what follows from a step is the loop's.

use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};

use super::Trainer;
#[cfg(feature = "compiler")]
use super::captured::CapturedSteps;
use super::eager::Eager;
use super::observer::{Observer, Part};
use super::run::Run;
use super::shapes::Shape;
use crate::base::error::{Error, Result};
use crate::base::random::seed_for;
use crate::data::loader::Loader;
use crate::optim::Optimizer;
use crate::precision::scaler::{LossScaler, Verdict};
use crate::session::TrainingTask;

/// The state that training changes.
pub(super) struct TrainState<M> {
    pub(super) model: M,
    pub(super) optimizer: Optimizer,
    /// The loss scale of f16.
    pub(super) scaler: Option<LossScaler>,
}

/// Computes the micro-batches of a step and its update: operation by operation ([`Eager`]), or by replaying recordings
/// (`CapturedSteps`).
pub(super) trait Executor<T: TrainingTask> {
    /// Where batches have to be.
    fn device(&self) -> &Device;

    /// Adds the loss and the gradients of a micro-batch to those of the step. Returns what is worth telling.
    ///
    /// # Errors
    /// A batch without labels.
    fn micro_batch(
        &mut self,
        state: &mut TrainState<T::Model>,
        micro: MicroBatch<T::DeviceBatch>,
        observer: &mut dyn Observer,
    ) -> Result<Option<String>>;

    /// The update after the micro-batches of a step. `sees` is called with the model and its summed gradients before the
    /// weights change, where there is a moment for it.
    ///
    /// # Errors
    /// A batch without labels.
    fn update(
        &mut self,
        state: &mut TrainState<T::Model>,
        totals: Totals,
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
    /// The sum of the weights of its valid labels.
    pub(super) labels: f64,
    /// That of the first micro-batch of the step.
    pub(super) first_labels: f64,
}

/// The totals of a step, for its update.
#[derive(Debug, Clone, Copy)]
pub(super) struct Totals {
    /// The sum of the weights of the valid labels of all micro-batches; more than 0.
    pub(super) labels: f64,
    /// That of the first micro-batch.
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
    /// A notice for the user.
    pub(super) notice: Option<String>,
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
    /// Captured steps where the plan has them, unless a callback sees gradients, which is then said; else eager ones.
    pub(super) fn executor(&mut self) -> Box<dyn Executor<T>> {
        #[cfg(feature = "compiler")]
        if self.session.plan().captures().is_ok() {
            if self.callbacks.iter().any(|callback| callback.sees_gradients()) {
                self.notice("steps are not captured: a callback sees gradients");
            } else if let Some(captured) = CapturedSteps::new(&mut self.state, &self.session, self.drops) {
                return Box::new(captured);
            }
        }
        Box::new(Eager::new(&self.session, &self.world, &self.state.model, self.device.clone(), self.drops))
    }

    /// The next step of `run`: up to `accumulation` micro-batches a device, fewer at the end of an epoch, and one update, for which
    /// their losses and gradients are divided once. The ranks of the world take turns with the micro-batches.
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
            let size = loaded.batch.as_ref().map(|batch| self.session.task.size(batch));
            if round == 0 {
                first_labels = self.world.of_root(size.as_ref().map_or(0.0, |size| size.labels))?;
            }
            if let (Some(batch), Some(size)) = (&loaded.batch, size) {
                let shape = Shape::of(&size);
                if let Some(news) = run.shapes.see(shape, step + 1) {
                    self.notice(&news);
                }
                let batch = self.session.task.to_device(batch, executor.device())?;
                self.observer.batch(shape);
                self.observer.part(Part::Data);
                let seed = seed_for(self.session.plan().run.seed, "dropout", step, (round * ranks + rank) as u64);
                let micro = MicroBatch { batch, seed, labels: size.labels, first_labels };
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
        let [labels, micro_batches, tokens] = self.world.totals([labels, micro_batches as f64, tokens as f64])?;
        let (micro_batches, tokens) = (micro_batches as usize, tokens as u64);
        if labels == 0.0 {
            return Err(Error::data(format!("step {}: no label of the batch is valid", step + 1))
                .help("every optimizer step needs at least one label that is not -100"));
        }

        let lr = self.session.plan().optimizer.schedule.lr(step.saturating_add_signed(-run.steps_ahead) as usize);
        let (callbacks, progress) = (&mut self.callbacks, &run.progress);
        let mut sees = |model: &T::Model, grads: &GradientsParams| {
            callbacks.iter_mut().for_each(|callback| callback.on_pre_optimizer_step(progress, model, grads));
        };
        let updated =
            executor.update(&mut self.state, Totals { labels, first_labels, micro_batches, lr }, &mut sees)?;
        run.kernels.recorded(executor.recordings());
        let Updated { loss, grad_norm, verdict, notice } = updated;
        if let Some(notice) = notice {
            self.notice(&notice);
        }
        self.observer.part(Part::Update);
        Ok(Stepped { loss, grad_norm, lr, verdict, tokens, epoch_ended })
    }
}
