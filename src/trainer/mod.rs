//! The training loop, read from top to bottom: [`Trainer::train`]. Evaluation, logging and saving hang on it; nothing else
//! trains.

pub mod debug;
pub mod runs;
pub mod step_closures;
pub mod warmup;
mod best;
mod callback;
#[cfg(feature = "compiler")]
mod captured;
pub mod checkpoint;
mod clock;
mod fault;
mod guard;
mod history;
mod kernels;
pub mod laps;
mod losses;
mod manifest;
mod output;
mod promise;
mod recover;
mod run;
mod run_log;
mod saver;
mod shapes;
mod status;
mod step;
mod tensorboard;

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use kiln_models::Model;
use kiln_models::weights::LoadReport;

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::metrics::Record;
use crate::base::panics;
use crate::base::signals;
use crate::config::{ActivationCheckpointing, CompilerMode, DeviceKind, Integration, LoggingStrategy};
use crate::data::loader::{Loader, LoaderOptions};
use crate::engine::device::release_memory;
use crate::engine::handover;
use crate::optim::Optimizer;
use crate::plan::RunPlan;
use crate::precision::scaler::{LossScaler, MIN_SCALE, ScalerConfig, Scaling};
use crate::session::{self, Session};
use crate::trainer::step_closures::{StepClosures, When};
use guard::{Guard, Reading};
use history::write_trainer_state;
use laps::{Laps, Part};
use run::{Run, finish_saving};
use run_log::RunLog;
use step::Stepped;
use tensorboard::TensorBoard;

pub use crate::inference::evaluate::{Evaluation, evaluate};
pub use best::Best;
pub use callback::{Callback, Control, DeviceValues, Progress, StopAfter};
pub use output::{PREDICTIONS, RunFolder};
pub use promise::Promise;
pub(crate) use shapes::{Shape, Shapes};
pub use status::{RunStatus, Status};

/// A model, its optimizer and its data, ready to train.
pub struct Trainer {
    session: Session,
    model: Model,
    optimizer: Optimizer,
    /// The loss scale of f16.
    scaler: Option<LossScaler>,
    device: Device,
    callbacks: Vec<Box<dyn Callback>>,
    load_report: Option<LoadReport>,
    step_times: bool,
    /// What it does is looked at and thrown away: a signal saves nothing.
    rehearsal: bool,
    /// A model is written at the end.
    writes_model: bool,
    /// Before a step it may be held up until it is its turn.
    by_turns: bool,
    /// When memory runs out, the micro-batch is halved.
    halves: bool,
    /// The compiler has been checked before the first step.
    is_verified: bool,
    /// Checks the compiler where `compiler.verify` asks for it.
    verifier: Option<Box<dyn Verifier>>,
}

/// Compares the modes of the compiler, for `compiler.verify`.
pub trait Verifier {
    /// Whether compiled computes what native does in the first steps of `session`, after `step` steps of the run whose weights
    /// are in the folder `weights`, or from those that the run begins with. Returns the verdict for people.
    ///
    /// # Errors
    /// A difference, and what the steps meet.
    fn verify(&self, session: &Session, weights: Option<&Path>, step: u64) -> Result<String>;
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
    /// The run that was to be continued was complete already: nothing was done, and nothing in its folder touched.
    pub was_complete: bool,
}

impl Trainer {
    /// Builds the model (random weights, or those that `model.from` names) and the optimizer.
    ///
    /// # Errors
    /// Weights that do not fit the model; a plan whose mode is to be chosen by a trial that nobody has made
    /// ([`proof::trainer`](crate::proof::trainer) makes it).
    pub fn new(session: Session) -> Result<Self> {
        let plan = &session.plan;
        if plan.config.compiler_mode() == CompilerMode::Auto && plan.decision.is_none() {
            return Err(Error::config("compiler.enabled = \"auto\": nothing has chosen the mode of this plan yet")
                .help("make the trainer with `kiln::proof::trainer(session)`, which tries both modes first"));
        }
        let device = session.device.clone().autodiff();
        let device = match plan.config.trainer.activation_checkpointing {
            ActivationCheckpointing::None | ActivationCheckpointing::Blocks => device,
            ActivationCheckpointing::Balanced => device.gradient_checkpointing(),
        };
        let (model, optimizer, load_report) = Self::build(plan, &device)?;
        let callbacks = Vec::new();
        let (step_times, rehearsal, writes_model, by_turns) = (false, false, true, false);
        let (halves, is_verified) = (true, false);
        let scaler = Self::scaler(&session);
        Ok(Self {
            session,
            model,
            optimizer,
            scaler,
            device,
            callbacks,
            load_report,
            step_times,
            rehearsal,
            writes_model,
            by_turns,
            halves,
            is_verified,
            verifier: None,
        })
    }

    /// The scaler of the loss before the first step, where the precision needs one.
    fn scaler(session: &Session) -> Option<LossScaler> {
        let scales = session.plan.precision.scales_loss();
        scales.then(|| LossScaler::new(ScalerConfig::default(), &session.device))
    }

    /// Model and optimizer as they are before the first step.
    fn build(plan: &RunPlan, device: &Device) -> Result<(Model, Optimizer, Option<LoadReport>)> {
        let (model, load_report) = session::model(plan, device)?;
        let optimizer = Optimizer::new(plan.optimizer, &plan.groups, &model).with_ops(plan.ops);
        Ok((model, optimizer, load_report))
    }

    /// A trainer whose steps are looked at and thrown away: it writes no model.
    pub(crate) fn rehearsing(mut self) -> Self {
        (self.rehearsal, self.writes_model) = (true, false);
        self
    }

    /// A run that is measured by turns ([`crate::measure::turns`]) and then thrown away; with `writes_model` it writes a model as any
    /// run does. A batch that is too large is its end: with another one it would be another run.
    pub(crate) fn by_turns(mut self, writes_model: bool) -> Self {
        (self.rehearsal, self.by_turns, self.halves, self.writes_model) = (true, true, false, writes_model);
        self
    }

    /// A rehearsal of every batch shape ([`crate::trainer::warmup`]): a batch that is too large is the error of the run, not of this.
    pub(crate) fn warming_up(mut self) -> Self {
        self.halves = false;
        self.rehearsing()
    }

    /// Adds a callback; they are called in the order in which they were added.
    #[must_use]
    pub fn with_callback(mut self, callback: impl Callback + 'static) -> Self {
        self.callbacks.push(Box::new(callback));
        self
    }

    /// Also writes `steps.jsonl` into the run folder: the time of every step by part; see [`laps`].
    #[must_use]
    pub fn with_step_times(mut self) -> Self {
        self.step_times = true;
        self
    }

    /// Where `compiler.verify` asks for it, `verifier` compares the modes.
    #[must_use]
    pub fn with_verifier(mut self, verifier: impl Verifier + 'static) -> Self {
        self.verifier = Some(Box::new(verifier));
        self
    }

    /// `compiler.verify` before the first step has been done elsewhere, as `kiln train` does it in processes where each mode
    /// has an engine of its own.
    #[must_use]
    pub fn with_verified_start(mut self) -> Self {
        self.is_verified = true;
        self
    }

    /// What was missing from and unused in the checkpoint that `model.from` names; none for random weights.
    pub fn load_report(&self) -> Option<&LoadReport> {
        self.load_report.as_ref()
    }

    /// The plan of this run.
    pub fn plan(&self) -> &RunPlan {
        &self.session.plan
    }

    /// The session of this run.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The model as it is now.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Trains to the end of the plan, writes the run folder, and returns the summary. With `run.on_existing = "resume"` it
    /// begins where the newest checkpoint stands.
    ///
    /// # Errors
    /// Memory that does not suffice for a micro-batch of 1 (a larger one is halved, from the last good state on); data that
    /// cannot be read, a loss or gradient norm that is not finite, a device or a disk that fails, a checkpoint
    /// of another run; a signal that stopped the run after a checkpoint was saved.
    pub fn train(&mut self) -> Result<TrainOutput> {
        let (mut folder, checkpoint) = RunFolder::create(&self.session)?;
        if let Some(summary) = folder.complete.take() {
            return Ok(TrainOutput { step: folder.status.step, summary, sample: None, was_complete: true });
        }
        self.callbacks.push(Box::new(RunLog::new(folder.path())));
        if self.session.plan.config.trainer.report_to.contains(&Integration::TensorBoard) {
            self.callbacks.push(Box::new(TensorBoard::create(folder.path())?));
        }
        if let Some(decision) = &self.session.plan.decision {
            decision.write(folder.path())?;
        }
        let mut output = self.begin(&folder, checkpoint.as_ref()).and_then(|run| self.attempt(&mut folder, run));
        while let Err(error) = &output
            && self.halves
            && let Some(smaller) = recover::smaller_batch(&self.session.plan, error)
        {
            let error = error.to_string();
            output = self.recover(&mut folder, smaller, &error).and_then(|run| self.attempt(&mut folder, run));
        }
        if let Err(error) = &output {
            RunLog::new(folder.path()).say(format_args!("ended: {error}"));
        }
        folder.status.end(output.as_ref().err());
        let written = folder.status.write(folder.path());
        output.and_then(|output| written.map(|()| output))
    }

    /// The loop from where `run` stands to the end of the plan, or to what stops it.
    fn attempt(&mut self, folder: &mut RunFolder, mut run: Run) -> Result<TrainOutput> {
        // Some failures of a device come as panics of this thread.
        let output = catch_unwind(AssertUnwindSafe(|| self.run(folder, &mut run))).unwrap_or_else(|payload| {
            let step = run.progress.step + 1;
            Err(Error::panicked(format_args!("step {step}"), &panics::message(&*payload))
                .help("what the device holds is lost; continue with `kiln train FILE --resume`"))
        });
        if let Some(notice) =
            output.as_ref().err().and_then(|error| fault::report(&self.session.plan, folder, &mut run, error))
        {
            self.notice(&notice);
        }
        if output.is_err() {
            folder.status.advance(&run.progress, run.clock.start.elapsed().as_secs_f64());
        }
        if let Some(watch) = run.watch.take() {
            match watch.finish(&self.session, folder.path(), &run.shapes, run.progress.step) {
                Ok(lines) => lines.iter().for_each(|line| self.notice(line)),
                // The run is what it is without its debug folder.
                Err(error) => tracing::warn!("{error}"),
            }
        }
        output
    }

    /// THE loop.
    fn run(&mut self, folder: &mut RunFolder, run: &mut Run) -> Result<TrainOutput> {
        let trainer = self.session.plan.config.trainer.clone();
        let total_steps = self.session.plan.steps.total as u64;
        let mut stepper = self.stepper();
        let mut loader = self.train_loader()?;
        loader.seek(run.position);
        let mut epoch_begins = true;
        let mut laps = match self.step_times {
            true => Laps::create(folder.path(), &run.progress, self.session.plan.device.kind == DeviceKind::Cpu)?,
            false => Laps::off(),
        };
        self.callbacks.iter_mut().for_each(|callback| callback.on_train_begin(&self.session.plan));
        if run.pending_evaluation {
            self.evaluate_and_record(folder, run)?;
        }
        laps.lap(Part::Evaluation);
        if let Some(signal) = signals::received() {
            return Err(signal.error("stopped before the first step"));
        }

        while run.progress.step < total_steps && !run.control.should_training_stop {
            if std::mem::take(&mut epoch_begins) {
                self.callbacks.iter_mut().for_each(|callback| callback.on_epoch_begin(&run.progress));
            }
            let before = Instant::now();
            self.callbacks.iter_mut().for_each(|callback| callback.on_step_begin(&run.progress));
            // A run that waits for its turn does so there; what callbacks of others do belongs to their run.
            let waited = if self.by_turns { before.elapsed() } else { Duration::ZERO };
            run.clock.exclude_waiting(waited);
            laps.skip(waited);

            let stepped = self.step(&mut stepper, &mut loader, run, &mut laps)?;
            let Stepped { loss, grad_norm, lr, verdict, step_tokens, epoch_ended } = stepped;
            self.callbacks.iter_mut().for_each(|callback| callback.on_optimizer_step(&run.progress, &self.model));
            run.note_step(&loss, &grad_norm, verdict.as_ref());
            let scaling = self.scaler.as_mut().zip(verdict).map(|(scaler, verdict)| scaler.update(&verdict));
            run.position = loader.position();
            run.progress.step += 1;
            run.progress.tokens += step_tokens;
            run.clock.step(step_tokens);
            run.is_best = false;

            // What follows the step: its row, its evaluation, its checkpoint.
            run.guard.check_threads(&run.progress, run.last_row)?;
            let (step, last) = (run.progress.step, run.progress.step == total_steps);
            self.callbacks.iter_mut().for_each(|callback| callback.on_step_end(&run.progress, &mut run.control));
            if epoch_ended {
                epoch_begins = true;
                self.callbacks.iter_mut().for_each(|callback| callback.on_epoch_end(&run.progress, &mut run.control));
            }
            let step_values = StepValues { loss, grad_norm, lr, scaling };
            step_values.show(&mut self.callbacks, run);
            let logs = self.session.plan.logs_after(step as usize, epoch_ended) || last;
            match logs {
                true => self.log(folder, run, &step_values, loader.data_wait())?,
                false => run.closures.end_step(false)?,
            }
            laps.lap(Part::Sync);
            let evaluates = self.evaluates_after(&run.progress, epoch_ended, last) || run.control.should_evaluate;
            if evaluates {
                self.evaluate_and_record(folder, run)?;
                laps.lap(Part::Evaluation);
            }
            if self.verifies_after(step) {
                self.verify(run)?;
                laps.lap(Part::Evaluation);
            }
            let limit = self.session.plan.steps.max_duration;
            let elapsed = run.clock.start.elapsed().as_secs_f64();
            let seconds = folder.status.seconds_before + elapsed; // over all processes of the run
            let out_of_time = !last && limit.is_some_and(|limit| seconds >= limit.as_secs_f64());
            let signal = signals::received();
            let ends = last || run.control.should_training_stop;
            let saves = self.saves_after(step, epoch_ended, ends, run.is_best) || run.control.should_save;
            if saves || out_of_time || (signal.is_some() && !self.rehearsal) {
                step_values.read_finite(run)?;
                // Who stops a run wants to continue it; early stopping is an end.
                let stopped = run.control.should_training_stop && !last && !run.best.is_exhausted();
                let stops = out_of_time || signal.is_some() || run.control.should_save || stopped;
                self.save(folder, run, trainer.save_only_model && !stops)?;
                laps.lap(Part::Save);
            }
            laps.end_step(&run.progress, logs)?;
            if let Some(signal) = signal {
                finish_saving(run)?;
                return Err(match self.rehearsal {
                    true => signal.error(format_args!("stopped after step {step} of {total_steps}")),
                    false => signal
                        .error(format_args!("stopped after step {step} of {total_steps}; a checkpoint is saved"))
                        .help("continue with `kiln train FILE --resume`"),
                });
            }
            (run.control.should_evaluate, run.control.should_save) = (false, false);
            if (out_of_time || run.control.should_training_stop) && !last {
                let at = format!("after step {step} of {total_steps}");
                folder.status.message = Some(if run.control.should_training_stop {
                    format!("ended {at}: early stopping, or a callback")
                } else {
                    folder.status.status = RunStatus::Stopped;
                    format!("stopped {at}: trainer.max_minutes is over; raise it to continue with --resume")
                });
                // The end of a run that ends early. A run that is continued has none here, so it follows the checkpoint.
                if !logs {
                    self.log(folder, run, &step_values, loader.data_wait())?;
                }
                if !evaluates && self.evaluates_after(&run.progress, epoch_ended, true) {
                    self.evaluate_and_record(folder, run)?;
                }
                break;
            }
        }

        let saving = finish_saving(run)?;
        if trainer.load_best_model_at_end {
            self.load_best(folder, run)?;
        }
        let summary = self.labelled(run.clock.summary(&run.progress, run.losses.mean(run.progress.step)?, saving));
        folder.metrics.append(&summary)?;
        if self.writes_model {
            folder.write_model(&self.model, &self.session)?;
        }
        folder.write_results(run.evaluation.as_ref(), &summary)?;
        write_trainer_state(folder, &self.session.plan, run, true)?;
        folder.status.advance(&run.progress, run.clock.start.elapsed().as_secs_f64());
        self.callbacks.iter_mut().for_each(|callback| callback.on_train_end(&run.progress, &summary));
        let sample = self.sample()?;
        Ok(TrainOutput { step: run.progress.step, summary, sample, was_complete: false })
    }

    fn train_loader(&self) -> Result<Loader> {
        let batches = self.session.plan.batch.drawn(&self.session.plan.config);
        Loader::new(
            self.session.train.clone(),
            LoaderOptions {
                batch_size: batches.size,
                order: batches.order,
                drop_last: batches.drop_last,
                pad_id: self.session.plan.pad_id,
                padding: self.session.plan.padding.clone(),
                prefetch: 2,
                repeat: true,
            },
        )
    }

    fn log(&mut self, folder: &mut RunFolder, run: &mut Run, values: &StepValues, waited: Duration) -> Result<()> {
        let closures = std::mem::take(&mut run.closures);
        let read = values.read(run, Some(&self.model), closures)?;
        let loss = run.losses.close(read.window);
        let row = run.clock.close_window(&run.progress, [loss, read.grad_norm, values.lr], waited);
        let new_shapes = run.shapes.new_since_last_row();
        let row = new_shapes.into_iter().fold(row, |row, new| row.with("new_shapes", new));
        let news = run.kernels.since_last_row(run.progress.step, new_shapes.unwrap_or(0));
        let row = news.iter().fold(row, |row, news| row.with("new_kernels", news.kernels));
        let row = self.labelled(read.scaling.iter().fold(row, |row, scaling| scaling.record(row)));
        if self.session.plan.config.trainer.logging_strategy != LoggingStrategy::No {
            folder.metrics.append(&row)?;
            self.callbacks.iter_mut().for_each(|callback| callback.on_log(&run.progress, &row));
        }
        if let Some(said) = news.and_then(|news| news.said) {
            self.notice(&said);
        }
        read.check_finite(run)?;
        if !read.is_skipped() {
            let figures = [read.loss, read.grad_norm, values.lr];
            run.guard.check_progress(&run.progress, figures, read.reading, run.last_row)?;
        }
        run.last_row = run.progress.step;
        Ok(())
    }

    /// Tells the callbacks.
    fn notice(&mut self, notice: &str) {
        self.callbacks.iter_mut().for_each(|callback| callback.on_notice(notice));
    }

    /// `row`, marked where Burn's fusion was held off or the compiler was looked at: its times are those of no engine.
    fn labelled(&self, row: Record) -> Record {
        let unfused = handover::is_unfused(self.session.plan.config.compiler.as_ref(), self.session.plan.device.kind);
        let row = if unfused { row.with("unfused", 1u64) } else { row };
        if debug::is_on(&self.session.plan) { row.with(debug::MARK, 1u64) } else { row }
    }

    /// Evaluates and writes the row. When a signal comes first, the evaluation stays due.
    fn evaluate_and_record(&mut self, folder: &mut RunFolder, run: &mut Run) -> Result<()> {
        run.is_best = false;
        run.pending_evaluation = false;
        let Some(validation) = self.session.validation.clone() else { return Ok(()) };
        let started = Instant::now();
        let batch_size = self.session.plan.config.trainer.per_device_eval_batch_size;
        let evaluation = evaluate(&self.model, &self.session, validation, batch_size);
        let evaluation = match evaluation {
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted(_)) && run.progress.step > 0 => {
                run.pending_evaluation = true;
                return Ok(());
            }
            other => other?,
        };
        // Batches of other shapes leave pages in the device's pools that training does not use.
        release_memory(&self.session.device);
        let elapsed = started.elapsed();
        run.clock.exclude_evaluation(elapsed);
        let row = self.labelled(evaluation.record(run.progress.step, run.progress.epoch, elapsed));
        folder.metrics.append(&row)?;
        self.callbacks.iter_mut().for_each(|callback| callback.on_evaluate(&run.progress, &row, &mut run.control));
        if run.progress.step > 0 {
            run.is_best = run.best.see(&row, run.progress.step)?;
            run.control.should_training_stop |= run.best.is_exhausted();
        }
        run.evaluation = Some(row);
        Ok(())
    }

    /// The text sample that `[generation]` asks for, from the model as it is now.
    fn sample(&self) -> Result<Option<String>> {
        let (Some(options), Some(tokenizer)) = (&self.session.plan.generation, &self.session.tokenizer) else {
            return Ok(None);
        };
        let prompt = tokenizer.encode(&options.prompt)?;
        let model = self.model.valid();
        let device = &self.session.device;
        let tokens = crate::inference::generate::generate(
            &model,
            &self.session.plan.model_config,
            device,
            &prompt,
            &options.sampling,
            |_| {
                // The run is complete by now, so a signal only cuts the sample short.
                if signals::received().is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            },
        )?;
        Ok(Some(format!("{}{}", options.prompt, tokenizer.decode(&tokens)?)))
    }
}

/// What a step leaves to be shown: loss and gradient norm, `[1]` each, still on the device, the learning rate, and what became
/// of the loss scale.
struct StepValues {
    loss: Tensor<1>,
    grad_norm: Tensor<1>,
    lr: f64,
    scaling: Option<Scaling<Tensor<1>>>,
}

/// [`StepValues`] on the host.
struct ReadValues {
    loss: f64,
    /// Sum of the losses since the last row.
    window: f64,
    grad_norm: f64,
    scaling: Option<Scaling<f64>>,
    reading: Reading,
}

impl StepValues {
    /// Shows the callbacks what is still on the device.
    fn show(&self, callbacks: &mut [Box<dyn Callback>], run: &mut Run) {
        let values = DeviceValues { loss: &self.loss, grad_norm: &self.grad_norm };
        callbacks.iter_mut().for_each(|callback| callback.on_step_values(&run.progress, values, &mut run.closures));
    }

    /// Reads loss, gradient norm, loss scale, the losses since the last row, what the guard of `run` wants to know and what
    /// `closures` wait for, in one transfer.
    #[track_caller]
    fn read(&self, run: &mut Run, model: Option<&Model>, closures: StepClosures<'static>) -> Result<ReadValues> {
        let (mut figures, mut scaling, mut reading) = ([f64::NAN; 3], None, Guard::reading(&[]));
        let mut closures: StepClosures<'_> = closures;
        let window = run.losses.window().unwrap_or_else(|| self.loss.zeros_like());
        closures.add(When::AtLog, [self.loss.clone(), self.grad_norm.clone(), window], |values| {
            figures.copy_from_slice(values);
        });
        if let Some(of_scaler) = self.scaling.clone() {
            closures.add(When::AtLog, of_scaler.into_values(), |values| scaling = Scaling::from_values(values));
        }
        closures.add(When::AtLog, run.guard.values(model), |values| reading = Guard::reading(values));
        closures.end_step(true)?;
        drop(closures);
        let [loss, grad_norm, window] = figures;
        Ok(ReadValues { loss, window, grad_norm, scaling, reading })
    }

    /// A checkpoint of a run that learns nothing any more would only be in the way.
    #[track_caller]
    fn read_finite(&self, run: &mut Run) -> Result<()> {
        self.read(run, None, StepClosures::default())?.check_finite(run)
    }
}

impl ReadValues {
    /// Whether the step was skipped because its gradients overflowed, as a loss scale may have it: not one at its end.
    fn is_skipped(&self) -> bool {
        self.scaling.as_ref().is_some_and(|scaling| scaling.found_inf > 0.0 && scaling.loss_scale >= MIN_SCALE)
    }

    fn check_finite(&self, run: &mut Run) -> Result<()> {
        // The figures of a skipped step are no numbers, and that is no fault.
        let (loss, grad_norm) = if self.is_skipped() { (0.0, 0.0) } else { (self.loss, self.grad_norm) };
        run.guard.check_finite(&run.progress, loss, grad_norm, self.reading)
    }
}
