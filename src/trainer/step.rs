//! One optimizer step of the loop: its batches, their losses and gradients, and the update; with captured steps as one
//! replay. What follows from a step is the loop's.

use burn::optim::GradientsAccumulator;
use burn::tensor::Tensor;
use kiln_models::Model;

use super::Trainer;
#[cfg(feature = "compiler")]
use super::captured::{self, Adding, CapturedSteps, Told};
use super::laps::{Laps, Part};
use super::run::Run;
use super::shapes::Shape;
use crate::base::error::{Error, Result};
use crate::base::random::seed_for;
use crate::data::loader::Loader;
use crate::optim::backward::{DropoutSeed, GradientPass};
use crate::optim::gradient::{global_norm, scale_and_norm, unscale_and_norm};
use crate::precision::scaler::Verdict;
use crate::task::DeviceBatch;

/// What a step leaves to the loop.
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
    pub(super) step_tokens: u64,
    /// It was the last of an epoch.
    pub(super) epoch_ended: bool,
}

/// How the steps of a run are made.
pub(super) struct Stepper {
    #[cfg(feature = "compiler")]
    captured: Option<CapturedSteps>,
}

impl Trainer {
    /// Captured steps where the plan has them, unless a callback sees gradients, which is then said.
    pub(super) fn stepper(&mut self) -> Stepper {
        #[cfg(feature = "compiler")]
        {
            if self.session.plan.captures().is_err() {
                return Stepper { captured: None };
            }
            if self.callbacks.iter().any(|callback| callback.sees_gradients()) {
                self.notice("steps are not captured: a callback sees gradients");
                return Stepper { captured: None };
            }
            let (options, device) = (self.session.plan.loss.clone(), &self.session.device);
            Stepper { captured: CapturedSteps::new(&self.model, &self.optimizer, options, self.clip(), device) }
        }
        #[cfg(not(feature = "compiler"))]
        Stepper {}
    }

    fn clip(&self) -> Option<f64> {
        let max_grad_norm = self.session.plan.config.trainer.max_grad_norm;
        (max_grad_norm > 0.0).then_some(max_grad_norm)
    }

    /// The next step of `run`.
    pub(super) fn step(
        &mut self,
        stepper: &mut Stepper,
        loader: &mut Loader,
        run: &mut Run,
        laps: &mut Laps,
    ) -> Result<Stepped> {
        #[cfg(feature = "compiler")]
        if let Some(captured) = &mut stepper.captured {
            return self.captured_step(captured, loader, run, laps);
        }
        let Stepper { .. } = stepper;
        self.computed_step(loader, run, laps)
    }

    /// Up to `accumulation` micro-batches, fewer at the end of an epoch.
    fn computed_step(&mut self, loader: &mut Loader, run: &mut Run, laps: &mut Laps) -> Result<Stepped> {
        let mut accumulator = GradientsAccumulator::new();
        let mut loss_sum: Option<Tensor<1>> = None;
        let mut expected_divisor = None;
        let (mut num_labels, mut micro_batches, mut step_tokens) = (0.0, 0, 0);
        let mut epoch_ended = false;
        let reduction = self.session.plan.loss.reduction;
        for micro in 0..self.session.plan.batch.accumulation {
            let Some(loaded) = loader.next_batch()? else { break };
            let shape = Shape::of(&loaded.batch);
            if let Some(news) = run.shapes.see(shape, run.progress.step + 1) {
                self.notice(&news);
            }
            let batch = DeviceBatch::new(self.session.plan.task, &loaded.batch, &self.device)?;
            laps.shape(shape);
            laps.lap(Part::Data);
            let seed = seed_for(self.session.plan.config.trainer.seed, "dropout", run.progress.step, micro as u64);
            let pass = GradientPass {
                seed: DropoutSeed::Host(seed),
                checkpointing: self.session.plan.config.trainer.activation_checkpointing,
                options: &self.session.plan.loss,
                copies: Some(self.optimizer.copies()),
            };
            // In f16 the gradients of a sum over thousands of tokens would overflow under any scale, so the sum is
            // divided before the backward pass, by what the step's divisor will be if all batches are like this.
            let labels = self.session.plan.loss.total_weight(&loaded.batch.labels, batch.num_labels);
            let accumulation = self.session.plan.batch.accumulation;
            let all = reduction.divisor(labels * accumulation as f64, accumulation);
            let expected = *expected_divisor.get_or_insert(all.max(1.0));
            let weight = reduction.weight(labels);
            let weighted = |loss: Tensor<1>| if weight == 1.0 { loss } else { loss * weight };
            let scaled = |loss| {
                laps.lap(Part::Forward);
                match &self.scaler {
                    None => weighted(loss),
                    Some(scaler) => scaler.scaled(weighted(loss), expected),
                }
            };
            let (sum, grads) = pass.run(&self.model, &batch, scaled)?;
            accumulator.accumulate(&self.model, grads);
            laps.lap(Part::Backward);
            let sum = weighted(sum);
            loss_sum = Some(match loss_sum {
                Some(total) => total + sum,
                None => sum,
            });
            num_labels += labels;
            micro_batches += 1;
            step_tokens += loaded.batch.num_tokens as u64;
            run.progress.samples += loaded.batch.examples as u64;
            run.progress.epoch = loaded.epoch_progress;
            if loaded.last_in_epoch {
                epoch_ended = true;
                break;
            }
        }
        let (Some(loss_sum), true) = (loss_sum, num_labels > 0.0) else {
            return Err(no_label(run));
        };

        // Divide once, clip by the global norm, update.
        let clip = self.clip();
        let grads = accumulator.grads();
        let divisor = reduction.divisor(num_labels, micro_batches);
        let sum_norm = global_norm(&self.model, &grads, self.model.ops());
        let verdict = self.scaler.as_ref().map(|scaler| scaler.judge(sum_norm.clone()));
        let (scale, grad_norm) = match &self.scaler {
            None => scale_and_norm(sum_norm, divisor, clip),
            Some(scaler) => unscale_and_norm(sum_norm, scaler.scale(), divisor / expected_divisor.unwrap_or(1.0), clip),
        };
        let lr = self.session.plan.schedule.lr(run.progress.step as usize);
        for callback in &mut self.callbacks {
            callback.on_pre_optimizer_step(&run.progress, &self.model, &grads);
        }
        // The model is moved, not copied: weights that nobody else holds are updated in place. What stands in for it
        // has no weights before they are used, and they never are.
        let empty = Model::new(&self.session.plan.model_config, self.session.plan.task.head(), &self.device)?;
        let model = std::mem::replace(&mut self.model, empty);
        self.model = match &verdict {
            None => self.optimizer.step(model, grads, &scale, lr),
            Some(verdict) => self.optimizer.step_unless(verdict, model, grads, &scale, lr),
        };
        laps.lap(Part::Update);
        Ok(Stepped { loss: loss_sum * (1.0 / divisor), grad_norm, lr, verdict, step_tokens, epoch_ended })
    }

    /// One batch as one replay, or a replay for every micro-batch and one for the update.
    #[cfg(feature = "compiler")]
    fn captured_step(
        &mut self,
        captured: &mut CapturedSteps,
        loader: &mut Loader,
        run: &mut Run,
        laps: &mut Laps,
    ) -> Result<Stepped> {
        let accumulation = self.session.plan.batch.accumulation;
        let (mut num_labels, mut micro_batches, mut step_tokens) = (0.0, 0, 0);
        let (mut epoch_ended, mut alone) = (false, None);
        for micro in 0..accumulation as u64 {
            let Some(loaded) = loader.next_batch()? else { break };
            let shape = Shape::of(&loaded.batch);
            if let Some(news) = run.shapes.see(shape, run.progress.step + 1) {
                self.notice(&news);
            }
            let batch = DeviceBatch::new(self.session.plan.task, &loaded.batch, &self.session.device)?;
            laps.shape(shape);
            laps.lap(Part::Data);
            let labels = self.session.plan.loss.total_weight(&loaded.batch.labels, batch.num_labels);
            num_labels += labels;
            micro_batches += 1;
            step_tokens += loaded.batch.num_tokens as u64;
            let seed = seed_for(self.session.plan.config.trainer.seed, "dropout", run.progress.step, micro);
            if accumulation == 1 {
                alone = Some((batch, seed));
            } else {
                let weight = self.session.plan.loss.reduction.weight(labels);
                let adding = if micro == 0 { Adding::First(weight) } else { Adding::Next(weight) };
                if let Some(notice) = captured.micro_batch(batch, seed, adding)? {
                    self.notice(&notice);
                }
                laps.lap(Part::Backward);
            }
            run.progress.samples += loaded.batch.examples as u64;
            run.progress.epoch = loaded.epoch_progress;
            epoch_ended = loaded.last_in_epoch;
            if epoch_ended {
                break;
            }
        }
        if num_labels == 0.0 {
            return Err(no_label(run));
        }
        // The mean of one micro-batch is that of the step, and it was not weighted before.
        let divisor = match alone {
            Some(_) => num_labels,
            None => self.session.plan.loss.reduction.divisor(num_labels, micro_batches),
        };
        let lr = self.session.plan.schedule.lr(run.progress.step as usize);
        let told = Told { optimizer: &mut self.optimizer, lr, divisor };
        let captured::Stepped { loss, grad_norm } = match alone {
            None => captured.update(told),
            Some((batch, seed)) => {
                let (stepped, notice) = captured.step(batch, seed, told)?;
                if let Some(notice) = notice {
                    self.notice(&notice);
                }
                stepped
            }
        };
        run.kernels.recorded(captured.recordings());
        laps.lap(Part::Update);
        Ok(Stepped { loss, grad_norm, lr, verdict: None, step_tokens, epoch_ended })
    }
}

fn no_label(run: &Run) -> Error {
    Error::data(format!("step {}: no label of the batch is valid", run.progress.step + 1))
        .help("every optimizer step needs at least one label that is not -100")
}
