//! The training loop is `Trainer::run`; [`Trainer::train`] opens the run folder around it, and
//! makes micro-batches smaller where memory runs out. After each step the loop asks its parts
//! (logging, evaluation, verification, saving, the reasons to stop) whether they are due; each
//! decides for itself. The steps are computed by an executor, operation by operation or as
//! recordings. The loop trains a [`TrainingTask`]; it is the only training loop of Kiln.

pub mod debug;
pub mod gradients;
pub mod runs;
pub mod step_closures;
pub mod warmup;
mod best;
mod callback;
#[cfg(feature = "compiler")]
mod captured;
pub mod checkpoint;
mod clock;
mod eager;
mod evaluating;
mod fault;
mod guard;
mod history;
mod kernels;
pub mod laps;
mod logging;
mod losses;
mod manifest;
pub mod observer;
mod output;
mod page;
mod promise;
mod ranks;
mod recover;
mod run;
pub mod run_log;
mod saver;
mod shapes;
mod status;
mod step;
mod stopping;
mod tensorboard;
mod verifying;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

pub use best::Best;
use burn::tensor::Device;
pub use callback::{Callback, Control, DeviceValues, PrinterCallback, Progress, StopAfter};
use history::write_trainer_state;
use kiln_core::dataset::Dataset;
use kiln_core::dataset::loader::{Loader, LoaderOptions};
use kiln_core::device_error::device_error;
use kiln_core::error::{Error, Result};
use kiln_core::metrics::Record;
use kiln_core::panics;
use kiln_models::ops::threads;
use kiln_models::weights::{LoadReport, StateDict};
use laps::Laps;
use observer::{Observer, Part};
pub use output::{PREDICTIONS, RunFolder};
pub use page::{CONFUSION, ConfusionFile, PAGE, SAMPLES};
pub use promise::Promise;
pub use ranks::{LOGS, log_of};
use run::{After, Run, finish_saving};
use run_log::RunLog;
pub use shapes::{Shape, Shapes};
pub use status::{RunStatus, Status};
use step::TrainState;
use stopping::Stopping;
use tensorboard::TensorBoard;
pub use verifying::Verifier;
use verifying::Verifying;

use crate::arguments::Integration;
use crate::distributed::World;
use crate::engine::device;
use crate::engine::settings::DeviceKind;
pub use crate::evaluation::Evaluation;
use crate::evaluation::no_validation;
use crate::evaluation::{evaluate, figures};
use crate::optim::backward::ActivationCheckpointing;
use crate::optim::outliers::Outliers;
use crate::optim::scaler::{LossScaler, ScalerConfig};
use crate::optim::{LambdaLr, Optimizer, UpdateRule};
use crate::plan::{OptimizerPlan, TrainPlan, check_metric};
use crate::session::Session;
use crate::task::TrainingTask;

/// The purpose of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Its model: a signal stops it after a checkpoint, and when memory runs out, the micro-batch
    /// is halved.
    Train,
    /// Its steps are looked at and thrown away: no model is written, a signal saves nothing, and a
    /// batch that is too large is its end, since with another one it would be another run.
    Rehearsal,
    /// A dry run like [`Rehearsal`](Self::Rehearsal) that measures the steps of a run and may write
    /// the model.
    Measurement {
        /// A model is written at the end.
        writes_model: bool,
    },
}

impl Purpose {
    /// Whether a model is written at the end.
    fn writes_model(self) -> bool {
        matches!(self, Self::Train | Self::Measurement { writes_model: true })
    }
}

/// Writes the page of a run into its folder.
type PageWriter = Box<dyn Fn(&Path) -> Result<()>>;

/// A model, its optimizer and its data, ready to train: of Kiln's own, or of a [`TrainingTask`]
/// that a program brings along.
pub struct Trainer<T: TrainingTask> {
    session: Session<T>,
    /// The ranks that share the micro-batches of a step; alone, one computes all of them.
    world: World,
    state: TrainState<T::Model>,
    /// With autodiff.
    device: Device,
    purpose: Purpose,
    /// Whether dropout drops anything. It is no matter of the purpose: checks of the modes compare
    /// rehearsals and whole runs without dropout, of which each mode draws its own, and other
    /// rehearsals drop as the run does.
    drops: bool,
    callbacks: Vec<Box<dyn Callback<T::Model>>>,
    observer: Box<dyn Observer>,
    verifying: Verifying<T>,
    /// Writes the page of the run, where somebody asks for it.
    page: Option<PageWriter>,
    load_report: Option<LoadReport>,
}

/// The result of a finished run.
#[derive(Debug, Clone)]
pub struct TrainOutput {
    /// Optimizer steps made.
    pub step: u64,
    /// The last record: `train_runtime`, `train_samples_per_second`, `train_steps_per_second`,
    /// `train_loss`, `epoch` and the steady-state figures.
    pub summary: Record,
    /// The texts that the model wrote at the end, when the config asks for them: each a prompt with
    /// its continuation.
    pub samples: Vec<String>,
    /// The run that was to be continued was complete already: nothing was done, and nothing in its
    /// folder touched.
    pub was_complete: bool,
}

impl TrainOutput {
    /// The output of a rank that has no run folder.
    fn of_other_rank(step: u64) -> Self {
        Self { step, summary: Record::default(), samples: Vec::new(), was_complete: false }
    }
}

impl<T: TrainingTask> Trainer<T> {
    /// Builds the model (random weights, or those that the task begins with) and the optimizer.
    ///
    /// # Errors
    /// Weights that do not fit the model; a plan whose mode is to be chosen by a trial that nobody
    /// has made.
    pub(crate) fn build(session: Session<T>) -> Result<Self> {
        if session.plan().engine.device.kind != DeviceKind::Cpu {
            device::probe(&session.device)?;
        }
        let plan = session.plan();
        if plan.engine.is_undecided() {
            return Err(Error::config("compiler.enabled = \"auto\": nothing has chosen the mode of this plan yet")
                .help("make the trainer with Trainer::new or Trainer::from_session, which try both modes first"));
        }
        let device = session.device.clone().autodiff();
        let device = match plan.engine.activation_checkpointing {
            ActivationCheckpointing::None | ActivationCheckpointing::Blocks => device,
            ActivationCheckpointing::Balanced => device.gradient_checkpointing(),
        };
        let (state, load_report) = Self::begin_state(&session, &device)?;
        let (callbacks, observer, verifying) = (Vec::new(), Box::new(()), Verifying::new(plan));
        Ok(Self {
            session,
            world: World::alone(),
            state,
            device,
            purpose: Purpose::Train,
            drops: true,
            callbacks,
            observer,
            verifying,
            page: None,
            load_report,
        })
    }

    /// The state of training before the first step.
    fn begin_state(session: &Session<T>, device: &Device) -> Result<(TrainState<T::Model>, Option<LoadReport>)> {
        let plan = session.plan();
        let (model, load_report) = session.model(device)?;
        let optimizer = begin_optimizer(plan, &model);
        let scales = plan.engine.precision.scales_loss();
        let scaler = scales.then(|| LossScaler::new(ScalerConfig::default(), &session.device));
        let outliers = plan.optimizer.outliers.map(Outliers::new);
        Ok((TrainState { model, optimizer, scaler, outliers }, load_report))
    }

    /// A run that is not made for its model.
    pub fn with_purpose(mut self, purpose: Purpose) -> Self {
        self.purpose = purpose;
        self
    }

    /// Nothing is dropped out, whatever the model says.
    pub fn without_dropout(mut self) -> Self {
        self.drops = false;
        self
    }

    /// `observer` hears of the parts of every step.
    pub fn with_observer(mut self, observer: impl Observer + 'static) -> Self {
        self.observer = Box::new(observer);
        self
    }

    /// The trainer that evaluates on the examples `validation`.
    ///
    /// # Errors
    /// Validation data without an example, or with which the arguments contradict the plan.
    pub fn with_validation(mut self, validation: impl Dataset<T::Example>) -> Result<Self> {
        self.session = self.session.with_validation(validation)?;
        Ok(self)
    }

    /// The trainer whose weights `rule` updates, before the first step.
    ///
    /// # Errors
    /// Arguments of another optimizer, and those that need one of Kiln's.
    pub fn with_optimizer(mut self, rule: impl UpdateRule + 'static) -> Result<Self> {
        self.session = self.session.with_optimizer(rule)?;
        let (plan, model) = (self.session.plan(), &self.state.model);
        self.state.optimizer = begin_optimizer(plan, model);
        Ok(self)
    }

    /// The trainer with the learning rates of `schedule`.
    ///
    /// # Errors
    /// Arguments of another schedule, and a function that gives no learning rate.
    pub fn with_schedule(mut self, schedule: LambdaLr) -> Result<Self> {
        self.session = self.session.with_schedule(schedule)?;
        Ok(self)
    }

    /// Adds a callback; they are called in the order in which they were added.
    #[must_use]
    pub fn with_callback(mut self, callback: impl Callback<T::Model> + 'static) -> Self {
        self.callbacks.push(Box::new(callback));
        self
    }

    /// Also writes `steps.jsonl` into the run folder: the time of every step by part; see [`laps`].
    #[must_use]
    pub fn with_step_times(self) -> Self {
        self.with_observer(Laps::default())
    }

    /// Where `compiler.verify` asks for it, `verifier` compares the modes.
    #[must_use]
    pub fn with_verifier(mut self, verifier: impl Verifier<T> + 'static) -> Self {
        self.verifying.verifier = Some(Box::new(verifier));
        self
    }

    /// `compiler.verify` before the first step has been done elsewhere, as `kiln train` does it in
    /// processes where each mode has an engine of its own.
    #[must_use]
    pub fn with_verified_start(mut self) -> Self {
        self.verifying.start_is_verified();
        self
    }

    /// The tensors that were missing from and unused in the checkpoint that `model.from` names;
    /// none for random weights.
    pub fn load_report(&self) -> Option<&LoadReport> {
        self.load_report.as_ref()
    }

    /// The session of this run.
    pub fn session(&self) -> &Session<T> {
        &self.session
    }

    /// The plan of this run in lines, every number with its arithmetic.
    ///
    /// # Errors
    /// A value that cannot be written.
    pub fn describe(&self) -> Result<String> {
        Ok(self.session.description()?.lines)
    }

    /// The plan of this run.
    pub fn plan(&self) -> &TrainPlan {
        self.session.plan()
    }

    /// The model as it is now.
    pub fn model(&self) -> &T::Model {
        &self.state.model
    }

    /// Evaluates the model as it is now on the validation data.
    ///
    /// # Errors
    /// A run without validation data, data that cannot be read, a signal.
    pub fn evaluate(&self) -> Result<Evaluation> {
        let validation = self.session.validation().cloned().ok_or_else(no_validation)?;
        evaluate(&self.world, &self.session.evaluation(validation), &self.state.model)
    }

    /// Refuses a run whose best model is to be found by a figure that its evaluations do not have.
    /// The figures of a task that does not tell them before are those of one batch.
    fn check_figures(&self) -> Result<()> {
        let (task, plan) = (&self.session.task, self.session.plan());
        let Some(validation) = self.session.validation() else { return Ok(()) };
        if task.metrics().is_some() {
            return Ok(());
        }
        let session = self.session.evaluation(validation.clone());
        let figures = figures(&session, &self.state.model)?;
        check_metric(&plan.saving.metric, &figures, task.task_name().unwrap_or(&plan.model.kind))
    }

    /// Trains to the end of the plan, writes the run folder, and returns the summary. With
    /// `run.on_existing = "resume"` it begins where the newest checkpoint stands. On the CPU this
    /// thread is one of those that compute from then on ([`threads::compute_here`]).
    ///
    /// # Errors
    /// Memory that does not suffice for a micro-batch of 1 (a larger one is halved, from the last
    /// good state on); data that cannot be read, a loss or gradient norm that is not finite, a
    /// device or a disk that fails, a checkpoint of another run; a signal that stopped the run
    /// after a checkpoint was saved.
    pub fn train(&mut self) -> Result<TrainOutput> {
        self.check_world()?;
        self.session.plan().check_evaluation()?;
        self.check_figures()?;
        threads::compute_here(&self.session.device);
        #[cfg(feature = "cuda")]
        self.connect_devices()?;
        let Some((mut folder, checkpoint)) = self.open_folder()? else { return Ok(TrainOutput::of_other_rank(0)) };
        if let Some(summary) = folder.complete.take() {
            return Ok(TrainOutput { step: folder.status.step, summary, samples: Vec::new(), was_complete: true });
        }
        self.callbacks.push(Box::new(RunLog::new(folder.path())));
        #[cfg(feature = "cuda")]
        if let Some(name) = self.world.nccl() {
            self.notice(&format!("gradients are summed by {name}"));
        }
        if self.session.plan().logging.report_to.contains(&Integration::TensorBoard) {
            self.callbacks.push(Box::new(TensorBoard::create(folder.path())?));
        }
        if let Some(decision) = &self.session.plan().engine.decision {
            decision.write(folder.path())?;
        }
        let mut output = self.begin(&folder, checkpoint.as_ref()).and_then(|run| self.attempt(&mut folder, run));
        while let Err(error) = &output
            && self.purpose == Purpose::Train
            // The other ranks do not know of it, and end with this one.
            && !self.world.is_shared()
            && let Some(smaller) = recover::smaller_batch(self.session.plan(), error)
        {
            let error = error.to_string();
            output = self.recover(&mut folder, smaller, &error).and_then(|run| self.attempt(&mut folder, run));
        }
        if let Err(error) = &output {
            RunLog::new(folder.path()).say(format_args!("ended: {error}"));
        }
        folder.status.end(output.as_ref().err());
        let written = folder.status.write(folder.path());
        self.write_page(&folder);
        output.and_then(|output| written.map(|()| output))
    }

    /// The loop from where `run` stands to the end of the plan, or to what stops it.
    fn attempt(&mut self, folder: &mut RunFolder, mut run: Run) -> Result<TrainOutput> {
        // Some failures of a device come as panics of this thread.
        let output = catch_unwind(AssertUnwindSafe(|| self.run(folder, &mut run))).unwrap_or_else(|payload| {
            let (step, message) = (run.progress.step + 1, panics::message(&*payload));
            Err(if run.guard.panics().is_empty() {
                Error::panicked(format_args!("step {step}"), &message)
                    .help("what the device holds is lost; continue with `kiln train FILE --resume`")
            } else {
                device_error(&message).at(format_args!("step {step}"))
            })
        });
        if let Some(notice) =
            output.as_ref().err().and_then(|error| fault::report(self.session.plan(), folder, &mut run, error))
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

    /// The training loop: an iteration computes one optimizer step, counts it, and lets every part
    /// do what is due.
    fn run(&mut self, folder: &mut RunFolder, run: &mut Run) -> Result<TrainOutput> {
        let mut executor = self.executor()?;
        let mut loader = self.train_loader()?;
        loader.seek(run.position);
        self.begin_training(folder, run)?;

        while run.goes_on() {
            self.begin_step(run);
            // Forward and backward of the micro-batches, and the update.
            let stepped = self.step(&mut *executor, &mut loader, run)?;
            let after = self.end_step(run, stepped, loader.position())?;

            let logs = run.logging.due(&after);
            if logs {
                self.log(folder, run, &after, loader.data_wait())?;
            } else {
                run.closures.end_step(false)?;
            }
            self.observer.part(Part::Sync);
            let evaluates = run.evaluating.due(&after) || run.control.should_evaluate;
            if evaluates {
                self.evaluate_and_record(folder, run)?;
            }
            if self.samples_are_due(after.step, run.progress.total_steps) {
                self.show_samples(folder, run)?;
            }
            if self.verifying.due(&after) {
                self.verify(run)?;
            }
            self.observer.part(Part::Sync);
            let limit = self.session.plan().steps.max_duration;
            let stopping = Stopping::of(&after, run, folder, limit);
            let stopping = self.exchange(run, |world| stopping.agreed(world))?;
            if run.saver.due(&after, stopping.is_end(), run.evaluating.is_best)
                || run.control.should_save
                || stopping.saves(self.purpose)
            {
                self.save(folder, run, &after, stopping)?;
            }
            self.observer.end_step(&run.progress, logs)?;
            stopping.check_signal(&self.world, run, self.purpose)?;
            (run.control.should_evaluate, run.control.should_save) = (false, false);
            if stopping.ends_early(run, folder) {
                // The end of this process. It follows the checkpoint, since a run that is continued
                // has no end here.
                let end = After { is_last: true, ..after };
                if !logs {
                    self.log(folder, run, &end, loader.data_wait())?;
                }
                if !evaluates && run.evaluating.due(&end) {
                    self.evaluate_and_record(folder, run)?;
                }
                break;
            }
        }
        self.tell_moments();
        let written = self.world.clone().by_root(|| self.end_training(folder, run))?;
        Ok(written.unwrap_or_else(|| TrainOutput::of_other_rank(run.progress.step)))
    }

    /// Writes the model, the summary and the results after the last step.
    fn end_training(&mut self, folder: &mut RunFolder, run: &mut Run) -> Result<TrainOutput> {
        let saving = finish_saving(run)?;
        if self.session.plan().saving.load_best_at_end {
            self.load_best(folder, run)?;
        }
        let summary = self.labelled(run.clock.summary(&run.progress, run.losses.mean(run.progress.step)?, saving));
        folder.metrics.append(&summary)?;
        if self.purpose.writes_model() {
            folder.write_model(&self.state.model, &self.session)?;
        }
        folder.write_results(run.evaluating.last.as_ref(), &summary)?;
        write_trainer_state(folder, self.session.plan(), run, true)?;
        folder.status.advance(&run.progress, run.clock.start.elapsed().as_secs_f64());
        self.callbacks.iter_mut().for_each(|callback| callback.on_train_end(&run.progress, &summary));
        let samples = self.sample(folder, run)?;
        Ok(TrainOutput { step: run.progress.step, summary, samples, was_complete: false })
    }

    /// The batches of this rank; none where the other ranks have the last of an epoch.
    fn train_loader(&self) -> Result<Loader<T::Example, Option<T::Batch>>> {
        let task = self.session.task.clone();
        let batches = self.session.plan().data.drawn(&self.session.plan().batch);
        Loader::new(
            self.session.train().clone(),
            move |examples| match examples {
                [] => Ok(None),
                examples => task.batch(examples, batches.size).map(Some),
            },
            LoaderOptions {
                batch_size: batches.size,
                order: batches.order,
                drop_last: batches.drop_last,
                prefetch: 2,
                repeat: true,
                share: self.share(),
            },
        )
    }

    /// Tells the callbacks.
    fn notice(&mut self, notice: &str) {
        self.callbacks.iter_mut().for_each(|callback| callback.on_notice(notice));
    }
}

/// The optimizer of `plan` for `model`, before the first step.
fn begin_optimizer<M: StateDict>(plan: &TrainPlan, model: &M) -> Optimizer {
    let OptimizerPlan { config, groups, .. } = &plan.optimizer;
    Optimizer::new(config.clone(), groups, model).with_ops(plan.engine.ops)
}
