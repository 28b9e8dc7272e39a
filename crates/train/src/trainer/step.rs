//! One optimizer step of the loop: its micro-batches, and the update. How their losses, gradients
//! and the update are computed is the [`Executor`]'s; what follows from a step is the loop's.

use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use kiln_core::dataset::loader::{Loader, Position};
use kiln_core::device_error::device_error;
use kiln_core::error::{Error, Result};
use kiln_core::random::seed_for;

use super::after::{After, StepValues};
use super::callback::Progress;
#[cfg(feature = "compiler")]
use super::captured::CapturedSteps;
use super::eager::Eager;
use super::executor::{Executor, MicroBatch, StepTotals, Updated};
use super::observer::Part;
use super::run::Training;
use super::setup::Trainer;
use super::shapes::Shape;
use crate::distributed::World;
#[cfg(all(feature = "compiler", feature = "cuda"))]
use crate::engine::cuda;
#[cfg(all(feature = "compiler", feature = "cuda"))]
use crate::engine::settings::DeviceKind;
use crate::optim::scaler::Verdict;
use crate::task::{Batch, TrainingTask};

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
    /// Tells that a step begins, which may be held up.
    pub(super) fn begin_step(&mut self, run: &mut Training) {
        if std::mem::take(&mut run.epoch_begins) {
            self.callbacks.iter_mut().for_each(|callback| callback.on_epoch_begin(&run.progress));
        }
        self.callbacks.iter_mut().for_each(|callback| callback.on_step_begin(&run.progress));
        run.clock.exclude_waiting(self.observer.before_step(&run.progress));
        self.spans.skip();
    }

    /// Counts a step after which the data stands at `position`, and tells that it has been made.
    pub(super) fn end_step(&mut self, run: &mut Training, stepped: Stepped, position: Position) -> Result<After> {
        let Stepped { loss, grad_norm, lr, verdict, tokens, epoch_ended } = stepped;
        self.callbacks.iter_mut().for_each(|callback| callback.on_optimizer_step(&run.progress, &self.state.model));
        run.note_step(&loss, &grad_norm, verdict.as_ref());
        let scaling = self.state.scaler.as_mut().zip(verdict).map(|(scaler, verdict)| scaler.update(&verdict));
        run.position = position;
        run.progress.step += 1;
        run.progress.tokens += tokens;
        run.clock.step(tokens);
        run.evaluating.is_best = false;
        run.epoch_begins = epoch_ended;
        run.guard.check_threads(&run.progress, &loss)?;
        self.callbacks.iter_mut().for_each(|callback| callback.on_step_end(&run.progress, &mut run.control));
        if epoch_ended {
            self.callbacks.iter_mut().for_each(|callback| callback.on_epoch_end(&run.progress, &mut run.control));
        }
        let values = StepValues { loss, grad_norm, lr, scaling };
        values.show(&mut self.callbacks, run);
        let Progress { step, total_steps, epoch, .. } = run.progress;
        Ok(After { step, epoch, epoch_ended, is_last: step == total_steps, values })
    }

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
            } else if let Some(captured) =
                CapturedSteps::new(&mut self.state, &self.session, &self.world, self.drops, &self.spans)
            {
                #[cfg(feature = "cuda")]
                if self.session.plan().engine.device.kind == DeviceKind::Cuda {
                    cuda::permit_loading_while_capturing(&self.session.device)?;
                }
                return Ok(Box::new(captured));
            }
        }
        let sees = self.callbacks.iter().any(|callback| callback.sees_gradients());
        let (model, device) = (&self.state.model, self.device.clone());
        let eager = Eager::new(&self.session, &self.world, model, device, self.drops, sees, &self.spans)?;
        Ok(Box::new(eager))
    }

    /// The next step of `run`: up to `accumulation` micro-batches a device, fewer at the end of an
    /// epoch, and one update, for which their losses and gradients are divided once. The ranks of
    /// the world take turns with the micro-batches.
    pub(super) fn step(
        &mut self,
        executor: &mut dyn Executor<T>,
        loader: &mut Loader<T::Example, Option<T::Batch>>,
        run: &mut Training,
    ) -> Result<Stepped> {
        let step = run.progress.step;
        let (reduction, of_plan) =
            (self.session.plan().optimizer.loss.reduction, self.session.plan().batch.micro_batches());
        let (mut labels, mut expected, mut micro_batches, mut tokens) = (0.0, 1.0, 0, 0);
        let (ranks, rank) = (self.world.size(), self.world.rank());
        let rounds = of_plan / ranks;
        let mut epoch_ended = false;
        for round in 0..rounds {
            if epoch_ended {
                break;
            }
            let _time = self.spans.open(Part::Data);
            let Some(loaded) = loader.next_batch()? else { break };
            let size = loaded.batch.as_ref().map(Batch::size);
            if round == 0 {
                let own = size.as_ref().map_or(0.0, |size| size.labels);
                let first = self.exchange(|world| world.of_root(own))?;
                expected = reduction.expected_divisor(first, of_plan);
            }
            if let (Some(batch), Some(size)) = (&loaded.batch, size) {
                let shape = Shape::of(&size);
                if let Some(news) = run.shapes.see(shape, step + 1) {
                    self.notice(&news);
                }
                let batch = batch.to_device(executor.device())?;
                self.observer.batch(shape);
                let seed = seed_for(self.session.plan().run.seed, "dropout", step, (round * ranks + rank) as u64);
                let is_last = round + 1 == rounds || loaded.last_in_epoch;
                let micro = MicroBatch { batch, seed, weight: reduction.weight(size.labels), expected, is_last };
                if let Some(notice) = executor.micro_batch(&mut self.state, micro)? {
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
            let _time = self.spans.open(Part::Backward);
            // Gradients are read next. The work of the device until then is the backward pass, and
            // no exchange.
            self.session.device.sync().map_err(|error| device_error(&error))?;
            let _time = self.spans.open(Part::Communicate);
            executor.end_micro_batches(&mut self.state)?;
        }
        let own = [labels, micro_batches as f64, tokens as f64];
        let [labels, micro_batches, tokens] = self.exchange(|world| world.totals(own))?;
        let _time = self.spans.open(Part::Update);
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
        let totals = StepTotals { divisor: reduction.divisor(labels, micro_batches as usize), expected, lr };
        let updated = executor.update(&mut self.state, totals, &mut sees)?;
        run.kernels.recorded(executor.recordings());
        let Updated { loss, grad_norm, verdict, outlier, notice } = updated;
        if let Some(notice) = notice {
            self.notice(&notice);
        }
        if let Some(why) = outlier {
            self.notice(&format!("step {} is not applied: {why}", step + 1));
        }
        Ok(Stepped { loss, grad_norm, lr, verdict, tokens: tokens as u64, epoch_ended })
    }

    /// Has `exchange` done with the other ranks, and counts its time.
    pub(super) fn exchange<R>(&self, exchange: impl FnOnce(&World) -> Result<R>) -> Result<R> {
        let _time = self.world.is_shared().then(|| self.spans.open(Part::Communicate));
        exchange(&self.world)
    }
}
