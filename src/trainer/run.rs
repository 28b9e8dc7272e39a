//! What a run carries from step to step besides the model, and how it is saved and taken up again.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use burn::tensor::Tensor;
use kiln_models::weights::{export, load, save};

use super::best::Best;
use super::callback::{Control, Progress};
use super::checkpoint::{self, Checkpoint, FORMAT_VERSION, Snapshot, State};
use super::clock::Clock;
use super::guard::Guard;
use super::history::{History, write_trainer_state};
use super::kernels::Kernels;
use super::losses::Losses;
use super::output::RunFolder;
use super::saver::Saver;
use super::shapes::Shapes;
use super::{Trainer, Verifier};
use crate::base::error::{Error, Result};
use crate::base::metrics::Record;
use crate::base::process::scratch;
use crate::config::{DeviceKind, EvalStrategy, SaveStrategy, Verify};
use crate::data::loader::Position;
use crate::engine::compiler::checks;
use crate::engine::device::release_memory;
use crate::engine::launches::NewKernels;
use crate::precision::scaler::{LossScaler, ScalerConfig, Verdict};
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
    /// The losses of the steps so far.
    pub(super) losses: Losses,
    pub(super) best: Best,
    /// The evaluation of this step was the best so far.
    pub(super) is_best: bool,
    /// An evaluation is due and has been interrupted.
    pub(super) pending_evaluation: bool,
    /// The last evaluation's row.
    pub(super) evaluation: Option<Record>,
    pub(super) clock: Clock,
    pub(super) saver: Saver,
    pub(super) guard: Guard,
    /// The step of the last log row, or where the run was taken up.
    pub(super) last_row: u64,
    pub(super) shapes: Shapes,
    pub(super) kernels: Kernels,
    /// What callbacks wait for.
    pub(super) closures: StepClosures<'static>,
    /// Looks at the compiler, where `compiler.debug` asks for it.
    pub(super) watch: Option<Watch>,
    /// The step up to which the compiler is known to compute what native does, where that is asked for.
    pub(super) verified: u64,
    /// `trainer_state.json`.
    pub(super) history: History,
}

impl Run {
    /// Takes up the loss and the gradient norm of a step, `[1]` each; those of a skipped one are no fault.
    pub(super) fn note_step(&mut self, loss: &Tensor<1>, grad_norm: &Tensor<1>, verdict: Option<&Verdict>) {
        let counted = |value: &Tensor<1>| match verdict {
            Some(verdict) => value.clone().mask_fill(verdict.overflow.clone(), 0.0),
            None => value.clone(),
        };
        self.guard.step(&counted(loss), &counted(grad_norm));
        self.losses.add(loss, verdict);
    }
}

impl Trainer {
    /// The run at its start, or where `checkpoint` stands.
    pub(super) fn begin(&mut self, folder: &RunFolder, checkpoint: Option<&Checkpoint>) -> Result<Run> {
        let watch = Watch::start(&self.session.plan);
        let checked = self.verify_start(checkpoint)?;
        let seen = NewKernels::start();
        let warmed = self.warm_up()?;
        let trainer = self.session.plan.config.trainer.clone();
        let total_steps = self.session.plan.steps.total as u64;
        let mut progress = Progress { step: 0, total_steps, samples: 0, tokens: 0, epoch: 0.0 };
        let mut best = Best::new(&trainer);
        let mut control = Control::default();
        let (mut position, mut losses) = (Position::default(), Losses::default());
        let mut pending_evaluation = trainer.eval_on_start;
        if let Some(checkpoint) = checkpoint {
            let state = &checkpoint.state;
            self.load_weights(&checkpoint.path)?;
            let device = &self.session.device;
            self.optimizer
                .import(&self.model, state.step, checkpoint.optimizer()?, device)
                .map_err(|error| error.at(checkpoint.path.display()))?;
            self.scaler = match (self.scaler.take(), state.scaler) {
                (Some(_), Some(state)) => Some(LossScaler::restored(ScalerConfig::default(), state, device)),
                (scaler, _) => scaler,
            };
            progress = Progress {
                step: state.step,
                total_steps,
                samples: state.samples,
                tokens: state.tokens,
                epoch: state.epoch,
            };
            best.restore(&state.best);
            control.should_training_stop = best.is_exhausted();
            position = state.position;
            losses = Losses::restored(state.losses, device);
            pending_evaluation = state.pending_evaluation;
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
            if self.session.plan.device.kind != DeviceKind::Cpu {
                kernels = Kernels::after_warmup(seen);
            }
        }
        Ok(Run {
            progress,
            control,
            position,
            losses,
            best,
            is_best: false,
            pending_evaluation,
            evaluation: checkpoint.and_then(|_| folder.metrics.last_with("eval_loss")),
            clock,
            saver: Saver::new(folder.checkpoints(), folder.manifest.clone(), trainer.save_total_limit),
            guard: Guard::new(&self.session.plan),
            last_row: progress.step,
            shapes,
            kernels,
            closures: StepClosures::default(),
            watch,
            verified: progress.step,
            history: History::default(),
        })
    }

    /// The stage before the first step, where the run has one. What it says goes to the callbacks.
    fn warm_up(&mut self) -> Result<Option<Warmed>> {
        if !warmup::is_wanted(&self.session.plan) {
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

    /// The check of the compiler before the first step, and how long it took; none where nobody asked, or where it has been
    /// made.
    fn verify_start(&mut self, checkpoint: Option<&Checkpoint>) -> Result<Option<Duration>> {
        if checks::of(self.session.plan.compiler().as_ref()) == Verify::Off || self.is_verified {
            return Ok(None);
        }
        if self.session.plan.device.kind != DeviceKind::Cpu {
            return Err(Error::config(format!(
                "compiler.verify: on {} each mode has an engine of its own, and this process has one",
                self.session.plan.device.kind
            ))
            .help(
                "`kiln train` makes the check; a program compares with kiln::proof::parity, or sets verify = \"off\"",
            ));
        }
        let started = Instant::now();
        let from = checkpoint.map(|checkpoint| (checkpoint.path.as_path(), checkpoint.state.step));
        let said = self.verifier()?.verify(&self.session, from.map(|from| from.0), from.map_or(0, |from| from.1))?;
        self.notice(&said);
        Ok(Some(started.elapsed()))
    }

    /// Who checks the compiler where `compiler.verify` asks for it.
    fn verifier(&self) -> Result<&dyn Verifier> {
        self.verifier.as_deref().ok_or_else(|| {
            Error::config("compiler.verify: this trainer has nobody who compares the modes")
                .help("make it with `kiln::proof::trainer(session)`, or set compiler.verify = \"off\"")
        })
    }

    /// Whether a check of the compiler follows step `step`.
    pub(super) fn verifies_after(&self, step: u64) -> bool {
        matches!(checks::of(self.session.plan.compiler().as_ref()), Verify::Every(steps) if step.is_multiple_of(steps))
    }

    /// The check of the compiler from the weights that the run has now. When it fails, checkpoints since the last one that
    /// passed are suspect.
    pub(super) fn verify(&mut self, run: &mut Run) -> Result<()> {
        let started = Instant::now();
        let folder = scratch()?;
        save(&self.model, folder.path())?;
        let verdict = self.verifier()?.verify(&self.session, Some(folder.path()), run.progress.step);
        release_memory(&self.session.device);
        run.clock.exclude_check(started.elapsed(), false);
        match verdict {
            Ok(said) => {
                run.verified = run.progress.step;
                self.notice(&said);
                Ok(())
            }
            Err(error) => {
                run.last_row = run.last_row.min(run.verified);
                Err(error)
            }
        }
    }

    /// All weights of the model from a checkpoint's folder.
    fn load_weights(&mut self, path: &std::path::Path) -> Result<()> {
        let (model, report) = load(self.model.clone(), path)?;
        if !report.new.is_empty() || !report.unused.is_empty() {
            return Err(Error::data(format!(
                "{}: the checkpoint is of another model: {}",
                path.display(),
                report.lines().join("; ")
            )));
        }
        self.model = self.session.plan.groups.freeze(model);
        self.optimizer.copies().clear();
        Ok(())
    }

    /// Whether an evaluation follows the step that led to `progress`; a run that evaluates at all does so at its end, unless
    /// that comes before `trainer.eval_delay`.
    pub(super) fn evaluates_after(&self, progress: &Progress, epoch_ended: bool, run_ends: bool) -> bool {
        let trainer = &self.session.plan.config.trainer;
        match trainer.eval_strategy {
            EvalStrategy::No => trainer.do_eval && run_ends,
            EvalStrategy::Epoch => (epoch_ended || run_ends) && trainer.eval_delay <= progress.epoch,
            EvalStrategy::Steps => {
                (progress.step.is_multiple_of(self.session.plan.eval_steps as u64) || run_ends)
                    && trainer.eval_delay <= progress.step as f64
            }
        }
    }

    /// Whether a checkpoint follows step `step` by `trainer.save_strategy`.
    pub(super) fn saves_after(&self, step: u64, epoch_ended: bool, run_ends: bool, is_best: bool) -> bool {
        let trainer = &self.session.plan.config.trainer;
        // What is to be loaded at the end has to be on disk, also when no save was due.
        let wanted = is_best && trainer.load_best_model_at_end;
        match trainer.save_strategy {
            SaveStrategy::No => false,
            SaveStrategy::Best => is_best,
            SaveStrategy::Epoch => epoch_ended || run_ends || wanted,
            SaveStrategy::Steps => step.is_multiple_of(self.session.plan.save_steps as u64) || run_ends || wanted,
        }
    }

    /// Reads everything that a checkpoint holds and hands it to the thread that writes it; with `only_model` all but what
    /// continues the optimizer.
    pub(super) fn save(&mut self, folder: &mut RunFolder, run: &mut Run, only_model: bool) -> Result<()> {
        let started = Instant::now();
        folder.metrics.sync()?;
        let progress = run.progress;
        let elapsed = run.clock.start.elapsed().as_secs_f64();
        let state = State {
            format_version: FORMAT_VERSION,
            kiln_version: env!("CARGO_PKG_VERSION").into(),
            step: progress.step,
            samples: progress.samples,
            tokens: progress.tokens,
            epoch: progress.epoch,
            position: run.position,
            losses: run.losses.state()?,
            metrics_rows: folder.metrics.rows(),
            pending_evaluation: run.pending_evaluation,
            seconds: folder.status.seconds_before + elapsed,
            best: run.best.clone(),
            scaler: self.scaler.as_ref().map(LossScaler::state).transpose()?,
            promise: folder.promise.clone(),
            only_model,
            files: Default::default(),
        };
        let snapshot = Snapshot {
            state,
            model: export(&self.model).map_err(Error::device)?,
            optimizer: if only_model { Vec::new() } else { self.optimizer.export(&self.model)? },
            files: self.session.files_beside_weights(&self.model)?,
        };
        run.saver.spent += started.elapsed();
        let keep = self.session.plan.config.trainer.load_best_model_at_end.then_some(run.best.step).flatten();
        // The newest checkpoint stays that nothing found later can make suspect: up to the last row, the last check of the
        // compiler, and where the run last looked as if it learned.
        let verifies =
            matches!(checks::of(self.session.plan.compiler().as_ref()), Verify::Every(_)).then_some(run.verified);
        let good = verifies.into_iter().chain(run.guard.doubtful_since()).fold(run.last_row, u64::min);
        run.saver.save(snapshot, keep, good)?;
        folder.status.advance(&progress, elapsed);
        folder.status.write(folder.path())?;
        write_trainer_state(folder, &self.session.plan, run, false)?;
        run.clock.exclude_saving(started.elapsed());
        let target = folder.checkpoints().join(checkpoint::name(progress.step));
        for callback in &mut self.callbacks {
            callback.on_save(&progress, &target);
        }
        Ok(())
    }

    /// Puts the weights of the best checkpoint into the model.
    pub(super) fn load_best(&mut self, folder: &RunFolder, run: &Run) -> Result<()> {
        let Some(step) = run.best.step else { return Ok(()) };
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
