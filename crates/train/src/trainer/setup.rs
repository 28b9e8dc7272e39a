//! The parts of a [`Trainer`], and how it is put together.

use std::path::Path;

use burn::tensor::Device;
use kiln_core::dataset::Dataset;
use kiln_core::error::{Error, Result};
use kiln_core::metrics::Record;
use kiln_models::weights::{LoadReport, StateDict};

use super::callback::{Activity, Callback, Progress};
use super::laps::Laps;
use super::observer::Observer;
use super::spans::Spans;
use super::state::TrainState;
use super::verifying::{Verifier, Verifying};
use crate::distributed::World;
use crate::engine::device;
use crate::engine::settings::DeviceKind;
use crate::evaluation::{Evaluation, evaluate, no_validation};
use crate::optim::backward::ActivationCheckpointing;
use crate::optim::outliers::Outliers;
use crate::optim::scaler::{LossScaler, ScalerConfig};
use crate::optim::{LambdaLr, Optimizer, UpdateRule};
use crate::plan::{OptimizerPlan, TrainPlan};
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
    pub(super) fn writes_model(self) -> bool {
        matches!(self, Self::Train | Self::Measurement { writes_model: true })
    }
}

/// Writes the page of a run into its folder.
type PageWriter = Box<dyn Fn(&Path) -> Result<()>>;

/// A model, its optimizer and its data, ready to train: of Kiln's own, or of a [`TrainingTask`]
/// that a program brings along.
pub struct Trainer<T: TrainingTask> {
    pub(super) session: Session<T>,
    /// The ranks that share the micro-batches of a step; alone, one computes all of them.
    pub(super) world: World,
    pub(super) state: TrainState<T::Model>,
    /// With autodiff.
    pub(super) device: Device,
    pub(super) purpose: Purpose,
    /// Whether dropout drops anything. It is no matter of the purpose: where each mode draws masks
    /// of its own, checks of the modes compare rehearsals and whole runs without dropout, and other
    /// rehearsals drop as the run does.
    pub(super) drops: bool,
    pub(super) callbacks: Vec<Box<dyn Callback<T::Model>>>,
    pub(super) observer: Box<dyn Observer>,
    pub(super) spans: Spans,
    pub(super) verifying: Verifying<T>,
    /// Writes the page of the run, where somebody asks for it.
    pub(super) page: Option<PageWriter>,
    /// The advice how to go on after an early end, where it is no command on the run.
    pub(super) way_on: Option<String>,
    pub(super) load_report: Option<LoadReport>,
    /// The run of several ranks was complete already, so that no rank has its weights.
    pub(super) is_unread: bool,
    /// The first lines of the run's log.
    pub(super) said: Vec<String>,
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
    /// The run that was to be continued was complete already: the trainer has read the model of the
    /// run folder, unless there are several ranks, and nothing in the folder was touched.
    pub was_complete: bool,
}

impl TrainOutput {
    /// The output of a rank that has no run folder.
    pub(super) fn of_other_rank(step: u64) -> Self {
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
            spans: Spans::default(),
            verifying,
            page: None,
            way_on: None,
            load_report,
            is_unread: false,
            said: Vec::new(),
        })
    }

    /// The state of training before the first step.
    pub(super) fn begin_state(
        session: &Session<T>,
        device: &Device,
    ) -> Result<(TrainState<T::Model>, Option<LoadReport>)> {
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

    /// `observer` hears of every step.
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

    /// Also writes `steps.jsonl` into the run folder: the time of every step by part; see
    /// [`laps`](super::laps).
    #[must_use]
    pub fn with_step_times(self) -> Self {
        let laps = Laps::on(&self.session.facts().device);
        self.with_observer(laps)
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
    /// A run without validation data, data that cannot be read, a signal; several ranks whose run
    /// was complete already, since they have not read its weights.
    pub fn evaluate(&self) -> Result<Evaluation> {
        if self.is_unread {
            return Err(Error::config(
                "evaluate: the run was complete already, and its ranks have not read its weights",
            )
            .help("evaluate in a process without other ranks"));
        }
        let validation = self.session.validation().cloned().ok_or_else(no_validation)?;
        evaluate(&self.world, &self.session.evaluation(validation), &self.state.model, &mut |_, _| {})
    }

    /// Tells the callbacks what is done between two steps.
    pub(super) fn tell(&mut self, progress: &Progress, activity: Activity) {
        self.callbacks.iter_mut().for_each(|callback| callback.on_activity(progress, activity));
    }

    /// The log of the run has `line`, which has been said before the run begins.
    #[must_use]
    pub fn with_said(mut self, line: String) -> Self {
        self.said.push(line);
        self
    }

    /// Tells the callbacks.
    pub(super) fn notice(&mut self, notice: &str) {
        self.callbacks.iter_mut().for_each(|callback| callback.on_notice(notice));
    }

    /// `page` is called with the run folder when a run has ended, well or not, and its
    /// `status.json` says how: it writes the page of the run there.
    /// `kiln_measure::report::page_of_run` is such a function. Its errors are shown as warnings.
    #[must_use]
    pub fn with_page(mut self, page: impl Fn(&Path) -> Result<()> + 'static) -> Self {
        self.page = Some(Box::new(page));
        self
    }

    /// Errors that end the run give the advice `way_on`, in place of the command that continues the
    /// run in its folder.
    #[must_use]
    pub fn with_way_on(mut self, way_on: impl Into<String>) -> Self {
        self.way_on = Some(way_on.into());
        self
    }
}

/// The optimizer of `plan` for `model`, before the first step.
fn begin_optimizer<M: StateDict>(plan: &TrainPlan, model: &M) -> Optimizer {
    let OptimizerPlan { config, groups, .. } = &plan.optimizer;
    Optimizer::new(config.clone(), groups, model).with_ops(plan.engine.ops)
}
