//! The state of a run besides the model: it goes from step to step, is saved, and is restored when
//! the run is continued.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use burn::tensor::Tensor;
use kiln_core::dataset::loader::Position;
use kiln_core::error::{Error, Result};
use kiln_models::weights::{StateDict, export_saved, load_saved};

use super::Trainer;
use super::callback::{Control, Progress};
use super::checkpoint::{self, Checkpoint, FORMAT_VERSION, Snapshot, State};
use super::clock::Clock;
use super::evaluating::Evaluating;
use super::guard::Guard;
use super::history::{History, write_trainer_state};
use super::kernels::Kernels;
use super::logging::{Logging, StepValues};
use super::losses::Losses;
use super::observer::Part;
use super::output::RunFolder;
use super::run_log::RunLog;
use super::saver::Saver;
use super::shapes::Shapes;
use super::step::{Stepped, TrainState};
use super::stopping::{Stopping, check_signals_at_start};
use crate::engine::launches::NewKernels;
use crate::engine::settings::DeviceKind;
use crate::optim::scaler::{LossScaler, ScalerConfig, Verdict};
use crate::task::TrainingTask;
use crate::trainer::debug::Watch;
use crate::trainer::step_closures::StepClosures;
use crate::trainer::warmup;
use crate::trainer::warmup::Warmed;

/// The state of a run between two steps.
pub(super) struct Run {
    pub(super) progress: Progress,
    pub(super) control: Control,
    /// Where the training data stands.
    pub(super) position: Position,
    /// A step is the first of an epoch, or of this process.
    pub(super) epoch_begins: bool,
    /// The losses of the steps so far.
    pub(super) losses: Losses,
    pub(super) logging: Logging,
    pub(super) evaluating: Evaluating,
    pub(super) clock: Clock,
    pub(super) saver: Saver,
    pub(super) guard: Guard,
    /// See [`State::steps_ahead`].
    pub(super) steps_ahead: i64,
    /// The step of the last log row, or where the run was taken up.
    pub(super) last_row: u64,
    pub(super) shapes: Shapes,
    pub(super) kernels: Kernels,
    /// The closures that callbacks have queued.
    pub(super) closures: StepClosures<'static>,
    /// Looks at the compiler, where `compiler.debug` asks for it.
    pub(super) watch: Option<Watch>,
    /// The step up to which the compiler is known to compute what native does, where that is asked
    /// for.
    pub(super) verified: u64,
    /// `trainer_state.json`.
    pub(super) history: History,
}

/// The facts about a step by which the parts of the loop decide whether they are due.
pub(super) struct After {
    /// Steps made.
    pub(super) step: u64,
    /// Passes over the training data.
    pub(super) epoch: f64,
    /// It was the last step of an epoch.
    pub(super) epoch_ended: bool,
    /// It was the last step of the run.
    pub(super) is_last: bool,
    pub(super) values: StepValues,
}

impl Run {
    /// Whether another step follows.
    pub(super) fn goes_on(&self) -> bool {
        self.progress.step < self.progress.total_steps && !self.control.should_training_stop
    }

    /// Takes up the loss and the gradient norm of a step, `[1]` each; those of a skipped one are no
    /// fault.
    fn note_step(&mut self, loss: &Tensor<1>, grad_norm: &Tensor<1>, verdict: Option<&Verdict>) {
        let counted = |value: &Tensor<1>| match verdict {
            Some(verdict) => value.clone().mask_fill(verdict.overflow.clone(), 0.0),
            None => value.clone(),
        };
        self.guard.step(&counted(loss), &counted(grad_norm));
        self.losses.add(loss, verdict);
    }
}

impl<T: TrainingTask> Trainer<T> {
    /// The run at its start, or where `checkpoint` stands.
    pub(super) fn begin(&mut self, folder: &RunFolder, checkpoint: Option<&Checkpoint>) -> Result<Run> {
        let watch = Watch::start(self.session.plan());
        let checked = self.verify_start(checkpoint)?;
        let seen = NewKernels::start();
        let warmed = self.warm_up()?;
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
        Ok(Run {
            progress,
            control,
            position,
            epoch_begins: true,
            losses,
            logging: Logging::new(self.session.plan()),
            evaluating,
            clock,
            saver: Saver::new(self.session.plan(), folder.checkpoints(), folder.manifest.clone()),
            guard: Guard::new(self.session.plan()),
            steps_ahead,
            last_row: progress.step,
            shapes,
            kernels,
            closures: StepClosures::default(),
            watch,
            verified: progress.step,
            history: History::default(),
        })
    }

    /// Prepares the first step of this process.
    pub(super) fn begin_training(&mut self, folder: &mut RunFolder, run: &mut Run) -> Result<()> {
        let is_synchronous = self.session.plan().engine.device.kind == DeviceKind::Cpu;
        self.observer.begin(folder.path(), &run.progress, is_synchronous)?;
        RunLog::new(folder.path()).begin(&self.session.description()?.lines);
        self.callbacks.iter_mut().for_each(|callback| callback.on_train_begin(self.session.plan()));
        if run.evaluating.is_pending {
            self.evaluate_and_record(folder, run)?;
        }
        self.make_up_samples(folder, run)?;
        self.observer.part(Part::Evaluation);
        check_signals_at_start()
    }

    /// Tells that a step begins, which may be held up.
    pub(super) fn begin_step(&mut self, run: &mut Run) {
        if std::mem::take(&mut run.epoch_begins) {
            self.callbacks.iter_mut().for_each(|callback| callback.on_epoch_begin(&run.progress));
        }
        self.callbacks.iter_mut().for_each(|callback| callback.on_step_begin(&run.progress));
        run.clock.exclude_waiting(self.observer.before_step(&run.progress));
    }

    /// Counts a step after which the data stands at `position`, and tells that it has been made.
    pub(super) fn end_step(&mut self, run: &mut Run, stepped: Stepped, position: Position) -> Result<After> {
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
        run.guard.check_threads(&run.progress, run.last_row, &loss)?;
        self.callbacks.iter_mut().for_each(|callback| callback.on_step_end(&run.progress, &mut run.control));
        if epoch_ended {
            self.callbacks.iter_mut().for_each(|callback| callback.on_epoch_end(&run.progress, &mut run.control));
        }
        let values = StepValues { loss, grad_norm, lr, scaling };
        values.show(&mut self.callbacks, run);
        let Progress { step, total_steps, epoch, .. } = run.progress;
        Ok(After { step, epoch, epoch_ended, is_last: step == total_steps, values })
    }

    /// The warm-up before the first step, where the run has one. Its messages go to the callbacks.
    fn warm_up(&mut self) -> Result<Option<Warmed>> {
        if !self.session.plan().engine.warmup {
            return Ok(None);
        }
        let callbacks = Rc::new(RefCell::new(std::mem::take(&mut self.callbacks)));
        let hear = callbacks.clone();
        let say: warmup::Say =
            Rc::new(move |line| hear.borrow_mut().iter_mut().for_each(|callback| callback.on_notice(line)));
        let warmed = warmup::run(&self.session, &say);
        self.callbacks = std::mem::take(&mut *callbacks.borrow_mut());
        warmed.map(Some)
    }

    /// All weights of the model that a checkpoint's folder has.
    fn load_weights(&mut self, path: &std::path::Path) -> Result<()> {
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

    /// Reads everything that a checkpoint holds and hands it to the thread that writes it. With
    /// `trainer.save_only_model` all but what continues the optimizer, unless the run is to be
    /// continued from here.
    pub(super) fn save(
        &mut self,
        folder: &mut RunFolder,
        run: &mut Run,
        after: &After,
        stopping: Stopping,
    ) -> Result<()> {
        after.values.read_finite(run)?;
        self.check_ranks(run.progress.step)?;
        let only_model = self.session.plan().saving.only_model && !stopping.is_continued(run);
        let started = Instant::now();
        let is_divided = self.state.optimizer.shard().is_some();
        // Rank 0 says whether all of them hand it their moments.
        let joins = is_divided && self.world.of_root(f64::from(u8::from(!only_model)))? > 0.0;
        let divided = if joins { Some(self.state.optimizer.export(&self.state.model)?) } else { None };
        if !self.world.is_root() {
            run.clock.exclude_saving(started.elapsed());
            self.observer.part(Part::Save);
            return Ok(());
        }
        folder.metrics.sync()?;
        let progress = run.progress;
        let elapsed = run.clock.start.elapsed().as_secs_f64();
        let (position, stream) = match self.session.train().stream() {
            Some(stream) => {
                // Counted over all passes: how many examples one has is not known.
                let index = run.position.epoch * self.session.train().len() as u64 + run.position.index;
                (Position { epoch: 0, index }, Some(stream.position(index)?))
            }
            None => (run.position, None),
        };
        let state = State {
            format_version: FORMAT_VERSION,
            kiln_version: env!("CARGO_PKG_VERSION").into(),
            step: progress.step,
            steps_ahead: run.steps_ahead,
            samples: progress.samples,
            tokens: progress.tokens,
            epoch: progress.epoch,
            position,
            stream,
            losses: run.losses.state()?,
            metrics_rows: folder.metrics.rows(),
            pending_evaluation: run.evaluating.is_pending,
            seconds: folder.status.seconds_before + elapsed,
            best: run.evaluating.best.clone(),
            scaler: self.state.scaler.as_ref().map(LossScaler::state).transpose()?,
            outliers: self.state.outliers.as_ref().map(|outliers| outliers.state.clone()),
            promise: folder.promise.clone(),
            only_model,
            files: Default::default(),
        };
        let model = &self.state.model;
        let snapshot = Snapshot {
            state,
            file: model.file(),
            model: export_saved(model).map_err(Error::device)?,
            optimizer: match divided {
                Some(joined) => joined,
                None if only_model => Vec::new(),
                None => self.state.optimizer.export(model)?,
            },
            files: self.session.task.files(model)?,
        };
        run.saver.spent += started.elapsed();
        let keep = self.session.plan().saving.load_best_at_end.then_some(run.evaluating.best.step).flatten();
        // The newest checkpoint stays that nothing found later can make suspect: up to the last
        // row, the last check of the compiler, and where the run last looked as if it learned.
        let verifies = self.verifying.is_repeated().then_some(run.verified);
        let good = verifies.into_iter().chain(run.guard.doubtful_since()).fold(run.last_row, u64::min);
        run.saver.save(snapshot, keep, good)?;
        folder.status.advance(&progress, elapsed);
        folder.status.write(folder.path())?;
        write_trainer_state(folder, self.session.plan(), run, false)?;
        run.clock.exclude_saving(started.elapsed());
        let target = folder.checkpoints().join(checkpoint::name(progress.step));
        for callback in &mut self.callbacks {
            callback.on_save(&progress, &target);
        }
        self.observer.part(Part::Save);
        Ok(())
    }

    /// Puts the weights of the best checkpoint into the model.
    pub(super) fn load_best(&mut self, folder: &RunFolder, run: &Run) -> Result<()> {
        let Some(step) = run.evaluating.best.step else { return Ok(()) };
        if step == run.progress.step {
            return Ok(());
        }
        let path = folder.checkpoints().join(checkpoint::name(step));
        if !path.exists() {
            tracing::warn!("the best checkpoint, {}, was not kept; the model is the last one", path.display());
            return Ok(());
        }
        let checkpoint = Checkpoint::open(&path).map_err(|error| error.at("trainer.load_best_model_at_end"))?;
        self.load_weights(&checkpoint.path)
    }
}

/// How long training waited for the last checkpoint to be written.
pub(super) fn finish_saving(run: &mut Run) -> Result<Duration> {
    let started = Instant::now();
    run.saver.wait()?;
    run.clock.exclude_saving(started.elapsed());
    Ok(run.saver.spent)
}
