//! The beginning of a run, or its continuation from a checkpoint.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use kiln_core::dataset::loader::Position;
use kiln_core::error::{Error, Result};
use kiln_models::weights::load_saved;

use super::callback::{Control, Progress};
use super::clock::Clock;
use super::debug::Watch;
use super::evaluating::Evaluating;
use super::guard::Guard;
use super::kernels::Kernels;
use super::logging::Logging;
use super::losses::Losses;
use super::observer::Part;
use super::profile::Profile;
use super::run::Training;
use super::run_log::RunLog;
use super::saver::Saver;
use super::setup::Trainer;
use super::shapes::Shapes;
use super::state::TrainState;
use super::step_closures::StepClosures;
use super::stopping::check_signals_at_start;
use super::warmup::{self, Train, Warmed};
#[cfg(feature = "compiler")]
use crate::engine::compiler::records::Session;
use crate::engine::launches::NewKernels;
use crate::engine::settings::DeviceKind;
use crate::optim::scaler::{LossScaler, ScalerConfig};
use crate::run_folder::{
    BestModel, RunFolder,
    checkpoint::{self, Checkpoint},
    history::History,
    runs::rows,
};
use crate::task::TrainingTask;

impl<T: TrainingTask> Trainer<T> {
    /// The run at its start, or where `checkpoint` stands, after its warm-up, which `train` trains.
    pub(super) fn begin(
        &mut self,
        folder: &RunFolder,
        checkpoint: Option<&Checkpoint>,
        train: Train<T>,
    ) -> Result<Training> {
        let watch = Watch::start(self.session.plan());
        let checked = self.verify_start(checkpoint)?;
        let seen = NewKernels::start();
        let warmed = self.warm_up(train)?;
        let steps_ahead = checkpoint.map_or(0, |checkpoint| checkpoint.state.steps_ahead_of(self.session.plan()));
        let total_steps = (self.session.plan().steps.total as u64).saturating_add_signed(steps_ahead);
        let mut progress = Progress { step: 0, total_steps, samples: 0, tokens: 0, epoch: 0.0 };
        let mut evaluating = Evaluating::new(self.session.plan());
        let mut control = Control::default();
        let (mut position, mut losses) = (Position::default(), Losses::default());
        if let Some(checkpoint) = checkpoint {
            let state = &checkpoint.state;
            self.load_weights(&checkpoint.path)?;
            let device = &self.session.device;
            let TrainState { model, optimizer, scaler, outliers } = &mut self.state;
            optimizer
                .import(model, state.step, checkpoint.optimizer()?, device)
                .map_err(|error| error.at(checkpoint.path.display()))?;
            *scaler = match (scaler.take(), state.scaler) {
                (Some(_), Some(state)) => Some(LossScaler::restored(ScalerConfig::default(), state, device)),
                (scaler, _) => scaler,
            };
            if let (Some(outliers), Some(state)) = (outliers, &state.outliers) {
                outliers.state = state.clone();
            }
            progress = Progress {
                step: state.step,
                total_steps,
                samples: state.samples,
                tokens: state.tokens,
                epoch: state.epoch,
            };
            evaluating.best.restore(&state.best);
            let has = |step: u64| folder.checkpoints().join(checkpoint::name(step)).exists();
            if self.session.plan().saving.load_best_at_end
                && self.world.is_root()
                && let Some(step) = evaluating.best.step.filter(|step| !has(*step))
            {
                tracing::warn!(
                    "the best evaluation so far is that of step {step}, of which {} has no checkpoint: \
                     trainer.load_best_model_at_end loads a later one that is better, or else the model is the last one",
                    folder.checkpoints().display()
                );
                evaluating.best.step = None;
            }
            control.should_training_stop = evaluating.best.is_exhausted();
            position = state.position;
            if let (Some(stream), Some(place)) = (self.session.train().stream(), &state.stream) {
                stream.seek(place).map_err(|error| error.at(checkpoint.path.display()))?;
            }
            losses = Losses::restored(state.losses, device);
            evaluating.is_pending = state.pending_evaluation;
            evaluating.last = folder.metrics.last_with("eval_loss");
            self.callbacks.iter_mut().for_each(|callback| callback.on_resume(&progress, &checkpoint.path));
        }
        let mut clock = Clock::start(progress, self.session.device.clone());
        if let Some(checked) = checked {
            clock.exclude_check(checked, true);
        }
        let (mut shapes, mut kernels) = (Shapes::default(), Kernels::default());
        if let Some(warmed) = warmed {
            clock.charge_warmup(warmed.elapsed);
            shapes.warmed(&warmed.shapes);
            if self.session.plan().engine.device.kind != DeviceKind::Cpu {
                kernels = Kernels::after_warmup(seen);
            }
        }
        self.verifying.verified = progress.step;
        #[cfg(feature = "compiler")]
        let is_gpu = self.session.plan().engine.device.kind != DeviceKind::Cpu;
        Ok(Training {
            progress,
            control,
            position,
            epoch_begins: true,
            losses,
            logging: Logging::new(self.session.plan()),
            evaluating,
            clock,
            saver: Saver::new(self.session.plan(), folder.checkpoints(), folder.manifest.clone()),
            guard: Guard::new(self.session.plan(), progress.step),
            steps_ahead,
            shapes,
            kernels,
            closures: StepClosures::default(),
            #[cfg(feature = "compiler")]
            tunings: (is_gpu && watch.is_none()).then(Session::start),
            watch,
            profile: Profile::of(self.session.plan().logging.profile_steps),
            history: History::default(),
        })
    }

    /// Prepares the first step of this process.
    pub(super) fn begin_training(&mut self, folder: &mut RunFolder, run: &mut Training) -> Result<()> {
        let is_synchronous = self.session.plan().engine.device.kind == DeviceKind::Cpu;
        self.observer.begin(folder.path(), &run.progress, is_synchronous)?;
        self.spans.begin();
        let _time = self.spans.open(Part::Evaluation);
        RunLog::new(folder.path()).begin(&self.session.description()?.lines);
        self.callbacks.iter_mut().for_each(|callback| callback.on_train_begin(self.session.plan()));
        if run.evaluating.is_pending {
            self.evaluate_and_record(folder, run)?;
        }
        self.make_up_samples(folder, run)?;
        check_signals_at_start()
    }

    /// The warm-up before the first step, where the run has one. Its messages go to the callbacks.
    fn warm_up(&mut self, train: Train<T>) -> Result<Option<Warmed>> {
        if !self.session.plan().engine.warmup {
            return Ok(None);
        }
        let callbacks = Rc::new(RefCell::new(std::mem::take(&mut self.callbacks)));
        let hear = callbacks.clone();
        let say: warmup::Say =
            Rc::new(move |line| hear.borrow_mut().iter_mut().for_each(|callback| callback.on_notice(line)));
        let warmed = warmup::run(&self.session, &say, train);
        self.callbacks = std::mem::take(&mut *callbacks.borrow_mut());
        warmed.map(Some)
    }

    /// All weights of the model that a checkpoint's folder has.
    pub(super) fn load_weights(&mut self, path: &Path) -> Result<()> {
        let (model, report) = load_saved(self.state.model.clone(), path)?;
        if !report.new.is_empty() || !report.unused.is_empty() {
            return Err(Error::data(format!(
                "{}: the checkpoint is of another model: {}",
                path.display(),
                report.lines().join("; ")
            ))
            .help("restore the [model] section of the run, or set run.output_dir to another folder"));
        }
        self.state.model = self.session.plan().optimizer.groups.freeze(model);
        self.state.optimizer.copies().clear();
        Ok(())
    }

    /// Puts the weights of the best checkpoint into the model, and tells the callbacks how that one
    /// was evaluated.
    pub(super) fn load_best(&mut self, folder: &mut RunFolder, run: &mut Training) -> Result<()> {
        let best = &run.evaluating.best;
        let Some(step) = best.step else { return Ok(()) };
        if step != run.progress.step {
            let path = folder.checkpoints().join(checkpoint::name(step));
            if !path.exists() {
                tracing::warn!("the best checkpoint, {}, was not kept; the model is the last one", path.display());
                return Ok(());
            }
            let checkpoint = Checkpoint::open(&path).map_err(|error| error.at("trainer.load_best_model_at_end"))?;
            self.load_weights(&checkpoint.path)?;
        }
        folder.status.best_model = Some(BestModel { step, metric: best.metric.clone() });
        let saved = || folder.status.evaluation(rows(folder.path()).iter()).cloned();
        if let Some(row) = run.evaluating.best_row.take().or_else(saved) {
            self.callbacks.iter_mut().for_each(|callback| callback.on_load_best(&run.progress, &row));
            run.evaluating.last = Some(row);
        }
        Ok(())
    }
}
