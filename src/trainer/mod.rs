//! The training loop, read from top to bottom: [`Trainer::train`]. Evaluation, logging and saving hang on it; nothing else
//! trains.

mod callback;
mod evaluate;
mod output;

use std::time::{Duration, Instant};

use burn::module::Module;
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::{Device, Tensor};
use kiln_models::Model;
use kiln_models::weights::{LoadReport, load};

use crate::config::EvalStrategy;
use crate::data::loader::{Loader, LoaderOptions};
use crate::error::{Error, Result};
use crate::execution::{peak_mib, read_scalars, seed_for};
use crate::metrics::Record;
use crate::optim::adamw::{AdamW, AdamWConfig};
use crate::optim::gradient::{global_norm, scale_and_norm};
use crate::plan::RunPlan;
use crate::task::DeviceBatch;

pub use callback::{Callback, Control, Progress};
pub use evaluate::{Evaluation, evaluate};
pub use output::RunFolder;

/// A model, its optimizer and its data, ready to train.
pub struct Trainer {
    plan: RunPlan,
    model: Model,
    optimizer: AdamW,
    device: Device,
    callbacks: Vec<Box<dyn Callback>>,
    load_report: Option<LoadReport>,
}

/// What a finished run reports.
#[derive(Debug, Clone)]
pub struct TrainOutput {
    /// Optimizer steps made.
    pub step: u64,
    /// The last record: `train_runtime`, `train_samples_per_second`, `train_steps_per_second`, `train_loss`, `epoch` and
    /// the steady-state figures.
    pub summary: Record,
    /// The text that the model wrote at the end, when the config asks for one.
    pub sample: Option<String>,
}

/// Where the time of a run goes, and how far it has come.
struct Clock {
    start: Instant,
    window_start: Instant,
    window_steps: u64,
    window_tokens: u64,
    /// `(step_ms, tokens_per_s)` of every log window but the first, which is the warm-up.
    steady: Vec<(f64, f64)>,
    warmup: Option<Duration>,
    eval: Duration,
}

impl Trainer {
    /// Builds the model (random weights, or those that `model.from` names) and the optimizer.
    ///
    /// # Errors
    /// Weights that do not fit the model.
    pub fn new(plan: RunPlan) -> Result<Self> {
        let device = plan.device.device.clone().autodiff();
        device.seed(seed_for(plan.config.trainer.seed, "init", 0, 0));
        let model = Model::new(&plan.model_config, plan.task.head(), &device)?;
        let (model, load_report) = match &plan.model_from {
            Some(folder) => load(model, folder).map(|(model, report)| (model, Some(report)))?,
            None => (model, None),
        };
        let trainer = &plan.config.trainer;
        let config = AdamWConfig {
            beta1: trainer.adam_beta1,
            beta2: trainer.adam_beta2,
            epsilon: trainer.adam_epsilon,
            weight_decay: trainer.weight_decay,
        };
        let optimizer = AdamW::new(config, &model);
        Ok(Self { plan, model, optimizer, device, callbacks: Vec::new(), load_report })
    }

    /// Adds a callback; they are called in the order in which they were added.
    #[must_use]
    pub fn with_callback(mut self, callback: impl Callback + 'static) -> Self {
        self.callbacks.push(Box::new(callback));
        self
    }

    /// What was missing from and unused in the checkpoint that `model.from` names; none for random weights.
    pub fn load_report(&self) -> Option<&LoadReport> {
        self.load_report.as_ref()
    }

    /// The plan of this run.
    pub fn plan(&self) -> &RunPlan {
        &self.plan
    }

    /// The model as it is now.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Trains to the end of the plan, writes the run folder, and returns the summary.
    ///
    /// # Errors
    /// Data that cannot be read, a loss or gradient norm that is not finite, a device or a disk that fails.
    pub fn train(&mut self) -> Result<TrainOutput> {
        let mut folder = RunFolder::create(&self.plan)?;
        let trainer = self.plan.config.trainer.clone();
        let total_steps = self.plan.steps.total as u64;
        let accumulation = self.plan.batch.accumulation;
        let clip = (trainer.max_grad_norm > 0.0).then_some(trainer.max_grad_norm);
        let mut loader = self.train_loader()?;
        let mut progress = Progress { step: 0, total_steps, samples: 0, tokens: 0, epoch: 0.0 };
        let mut control = Control::default();
        let mut loss_total: Option<Tensor<1>> = None; // sum over steps of the step's loss, on the device
        for callback in &mut self.callbacks {
            callback.on_train_begin(&self.plan);
        }
        let mut clock = Clock::start();
        if trainer.eval_on_start {
            self.evaluate_and_record(&mut folder, &progress, &mut clock)?;
        }

        while progress.step < total_steps && !control.should_training_stop {
            // One optimizer step: up to `accumulation` micro-batches, fewer at the end of an epoch.
            let mut accumulator = GradientsAccumulator::new();
            let mut loss_sum: Option<Tensor<1>> = None;
            let (mut num_labels, mut micro_batches, mut step_tokens) = (0, 0, 0);
            let mut epoch_ended = false;
            for micro in 0..accumulation {
                let Some(loaded) = loader.next_batch()? else { break };
                self.device.seed(seed_for(trainer.seed, "dropout", progress.step, micro as u64));
                let batch = DeviceBatch::new(self.plan.task, &loaded.batch, &self.device)?;
                let loss = batch.loss(self.model.forward(batch.input.clone(), true))?;
                let grads = GradientsParams::from_grads(loss.sum.backward(), &self.model);
                accumulator.accumulate(&self.model, grads);
                let sum = loss.sum.inner();
                loss_sum = Some(match loss_sum {
                    Some(total) => total + sum,
                    None => sum,
                });
                num_labels += batch.num_labels;
                micro_batches += 1;
                step_tokens += loaded.batch.num_tokens as u64;
                progress.samples += loaded.batch.rows as u64;
                progress.epoch = loaded.epoch_progress;
                if loaded.last_in_epoch {
                    epoch_ended = true;
                    break;
                }
            }
            let (Some(loss_sum), true) = (loss_sum, num_labels > 0) else {
                return Err(Error::data(format!("step {}: no label of the batch is valid", progress.step + 1))
                    .help("every optimizer step needs at least one label that is not -100"));
            };

            // Divide once, clip by the global norm, update.
            let grads = accumulator.grads();
            let divisor = self.plan.task.step_divisor(num_labels, micro_batches);
            let (scale, grad_norm) = scale_and_norm(global_norm(&self.model, &grads), divisor, clip);
            let lr = self.plan.schedule.lr(progress.step as usize);
            let model = self.model.clone();
            self.model = self.optimizer.step(model, grads, &scale, lr);
            let loss = loss_sum * (1.0 / divisor);
            loss_total = Some(match loss_total {
                Some(total) => total + loss.clone(),
                None => loss.clone(),
            });
            progress.step += 1;
            progress.tokens += step_tokens;
            clock.step(step_tokens);

            let last = progress.step == total_steps;
            let out_of_time = self.plan.steps.max_duration.is_some_and(|limit| clock.start.elapsed() >= limit);
            for callback in &mut self.callbacks {
                callback.on_step_end(&progress, &mut control);
            }
            let ends = last || out_of_time || control.should_training_stop;
            if self.plan.logs_at(progress.step as usize) || ends {
                let values = read_scalars(vec![loss, grad_norm])?;
                let row = clock.close_window(&progress, values[0], values[1], lr);
                folder.metrics.append(&row)?;
                for callback in &mut self.callbacks {
                    callback.on_log(&progress, &row);
                }
                stop_if_not_finite(&progress, values[0], values[1])?;
            }
            if self.evaluates_after(progress.step, epoch_ended, ends) {
                self.evaluate_and_record(&mut folder, &progress, &mut clock)?;
            }
            if out_of_time {
                break;
            }
        }

        let train_loss = match loss_total {
            Some(total) => read_scalars(vec![total])?[0] / progress.step as f64,
            None => f64::NAN,
        };
        let summary = clock.summary(&progress, train_loss);
        folder.metrics.append(&summary)?;
        folder.write_model(&self.model, &self.plan)?;
        let sample = self.sample()?;
        for callback in &mut self.callbacks {
            callback.on_train_end(&progress, &summary);
        }
        Ok(TrainOutput { step: progress.step, summary, sample })
    }

    fn train_loader(&self) -> Result<Loader> {
        let trainer = &self.plan.config.trainer;
        Loader::new(
            self.plan.train.clone(),
            LoaderOptions {
                batch_size: self.plan.batch.micro,
                sampler: self.plan.config.data.sampler,
                seed: trainer.data_seed(),
                drop_last: trainer.dataloader_drop_last,
                pad_id: self.plan.pad_id,
                pad_to: None,
                prefetch: 2,
                repeat: true,
            },
        )
    }

    /// Whether an evaluation follows step `step`; a run that evaluates at all does so at its end.
    fn evaluates_after(&self, step: u64, epoch_ended: bool, run_ends: bool) -> bool {
        match self.plan.config.trainer.eval_strategy {
            EvalStrategy::No => false,
            EvalStrategy::Epoch => epoch_ended || run_ends,
            EvalStrategy::Steps => step.is_multiple_of(self.plan.eval_steps as u64) || run_ends,
        }
    }

    fn evaluate_and_record(&mut self, folder: &mut RunFolder, progress: &Progress, clock: &mut Clock) -> Result<()> {
        let Some(validation) = self.plan.validation.clone() else { return Ok(()) };
        let started = Instant::now();
        let evaluation = evaluate(
            &self.model,
            self.plan.task,
            validation,
            self.plan.config.trainer.per_device_eval_batch_size,
            self.plan.pad_id,
            &self.plan.device.device,
        )?;
        let elapsed = started.elapsed();
        clock.exclude_evaluation(elapsed);
        let row = evaluation.record(progress, elapsed);
        folder.metrics.append(&row)?;
        for callback in &mut self.callbacks {
            callback.on_evaluate(progress, &row);
        }
        Ok(())
    }

    /// The text sample that `[generation]` asks for, from the model as it is now.
    fn sample(&self) -> Result<Option<String>> {
        let (Some(options), Some(tokenizer)) = (&self.plan.generation, &self.plan.tokenizer) else { return Ok(None) };
        let prompt = tokenizer.encode(&options.prompt)?;
        let model = self.model.valid();
        let device = &self.plan.device.device;
        let tokens =
            crate::generate::generate(&model, &self.plan.model_config, device, &prompt, &options.sampling, |_| {
                std::ops::ControlFlow::Continue(())
            })?;
        Ok(Some(format!("{}{}", options.prompt, tokenizer.decode(&tokens)?)))
    }
}

/// A run whose loss or gradient norm is no number learns nothing any more: it ends, after the row that shows it.
fn stop_if_not_finite(progress: &Progress, loss: f64, grad_norm: f64) -> Result<()> {
    if loss.is_finite() && grad_norm.is_finite() {
        return Ok(());
    }
    Err(Error::non_finite(format!(
        "step {}: the loss is {loss} and the gradient norm {grad_norm}; expected finite numbers",
        progress.step
    ))
    .help("lower trainer.learning_rate, raise trainer.warmup_steps, or set trainer.max_grad_norm"))
}

impl Clock {
    fn start() -> Self {
        let now = Instant::now();
        Self {
            start: now,
            window_start: now,
            window_steps: 0,
            window_tokens: 0,
            steady: Vec::new(),
            warmup: None,
            eval: Duration::ZERO,
        }
    }

    fn step(&mut self, tokens: u64) {
        self.window_steps += 1;
        self.window_tokens += tokens;
    }

    /// Evaluation is not training time: the open window starts that much later.
    fn exclude_evaluation(&mut self, elapsed: Duration) {
        self.eval += elapsed;
        self.window_start += elapsed;
    }

    /// Ends the window that started at the last log row. Its values have just been read, so the device is idle.
    fn close_window(&mut self, progress: &Progress, loss: f64, grad_norm: f64, lr: f64) -> Record {
        let seconds = self.window_start.elapsed().as_secs_f64();
        let step_ms = seconds * 1e3 / self.window_steps as f64;
        let tokens_per_s = self.window_tokens as f64 / seconds;
        match self.warmup {
            Some(_) => self.steady.push((step_ms, tokens_per_s)),
            None => self.warmup = Some(self.window_start.elapsed()),
        }
        self.window_start = Instant::now();
        (self.window_steps, self.window_tokens) = (0, 0);
        Record::default()
            .with("step", progress.step)
            .with("epoch", progress.epoch)
            .with("samples", progress.samples)
            .with("tokens", progress.tokens)
            .with("loss", loss)
            .with("grad_norm", grad_norm)
            .with("learning_rate", lr)
            .with("step_ms", step_ms)
            .with("tokens_per_s", tokens_per_s)
            .with("peak_mib", peak_mib())
    }

    /// The last row: Hugging Face's keys, then medians of the steady state, which leaves the first log window out.
    fn summary(&mut self, progress: &Progress, train_loss: f64) -> Record {
        let runtime = self.start.elapsed().as_secs_f64();
        let median = |pick: fn(&(f64, f64)) -> f64| {
            let mut values = self.steady.iter().map(pick).collect::<Vec<_>>();
            values.sort_by(f64::total_cmp);
            (!values.is_empty()).then(|| values[values.len() / 2])
        };
        Record::default()
            .with("step", progress.step)
            .with("train_runtime", runtime)
            .with("train_samples_per_second", progress.samples as f64 / runtime)
            .with("train_steps_per_second", progress.step as f64 / runtime)
            .with("train_loss", train_loss)
            .with("epoch", progress.epoch)
            .with("samples", progress.samples)
            .with("tokens", progress.tokens)
            .with("steady_step_ms", median(|window| window.0))
            .with("steady_tokens_per_second", median(|window| window.1))
            .with("warmup_seconds", self.warmup.map(|warmup| warmup.as_secs_f64()))
            .with("eval_seconds", self.eval.as_secs_f64())
            .with("peak_mib", peak_mib())
    }
}
