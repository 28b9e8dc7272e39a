//! The state of a run besides the model: it goes from step to step, is saved, and is restored when
//! the run is continued.

use std::time::{Duration, Instant};

use burn::tensor::Tensor;
use kiln_core::dataset::loader::Position;
use kiln_core::error::{Error, Result, printable};
use serde_json::json;

use super::callback::{Control, Progress};
use super::clock::Clock;
use super::debug::Watch;
use super::evaluating::Evaluating;
use super::guard::Guard;
use super::kernels::Kernels;
use super::logging::Logging;
use super::losses::Losses;
use super::profile::Profile;
use super::saver::Saver;
use super::shapes::Shapes;
use super::step_closures::StepClosures;
#[cfg(feature = "compiler")]
use crate::engine::compiler::records::Session;
use crate::optim::scaler::Verdict;
use crate::plan::TrainPlan;
use crate::run_folder::{
    RunFolder, checkpoint,
    history::{self, History},
};

/// A training under way: the state of its run between two steps.
pub(super) struct Training {
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
    pub(super) shapes: Shapes,
    pub(super) kernels: Kernels,
    /// The closures that callbacks have queued.
    pub(super) closures: StepClosures<'static>,
    /// Looks at the compiler, where `compiler.debug` asks for it.
    pub(super) watch: Option<Watch>,
    /// Records of the tuning of kernels, for a fault; `watch` has its own.
    #[cfg(feature = "compiler")]
    pub(super) tunings: Option<Session>,
    /// Looks at some steps, where `trainer.profile_steps` asks for it.
    pub(super) profile: Option<Profile>,
    /// `trainer_state.json`.
    pub(super) history: History,
}

impl Training {
    /// Whether another step follows.
    pub(super) fn goes_on(&self) -> bool {
        self.progress.step < self.progress.total_steps && !self.control.should_training_stop
    }

    /// Takes up the loss and the gradient norm of a step, `[1]` each; those of a skipped one are no
    /// fault.
    pub(super) fn note_step(&mut self, loss: &Tensor<1>, grad_norm: &Tensor<1>, verdict: Option<&Verdict>) {
        let counted = |value: &Tensor<1>| match verdict {
            Some(verdict) => value.clone().mask_fill(verdict.overflow.clone(), 0.0),
            None => value.clone(),
        };
        self.guard.step(&counted(loss), &counted(grad_norm));
        self.losses.add(loss, verdict);
    }
}

/// How long training waited for the last checkpoint to be written.
pub(super) fn finish_saving(run: &mut Training) -> Result<Duration> {
    let started = Instant::now();
    run.saver.wait()?;
    run.clock.exclude_saving(started.elapsed());
    Ok(run.saver.spent)
}

/// Writes `trainer_state.json`; `is_last` when this process writes it for the last time.
///
/// # Errors
/// The operating system's.
pub(super) fn write_trainer_state(
    folder: &RunFolder,
    plan: &TrainPlan,
    run: &mut Training,
    is_last: bool,
) -> Result<()> {
    let best = run.evaluating.best.step.map(|step| folder.checkpoints().join(checkpoint::name(step)));
    let rest = json!({
        "best_global_step": run.evaluating.best.step,
        "best_metric": run.evaluating.best.value(),
        "best_model_checkpoint": best.filter(|path| path.is_dir()).map(|path| path.display().to_string()),
        "epoch": run.progress.epoch,
        "eval_steps": plan.evaluation.steps,
        "global_step": run.progress.step,
        "is_hyper_param_search": false,
        "is_local_process_zero": true,
        "is_world_process_zero": true,
        "logging_steps": plan.logging.steps,
        "max_steps": run.progress.total_steps,
        "num_input_tokens_seen": run.progress.tokens,
        "num_train_epochs": (plan.steps.total as f64 / plan.steps.per_epoch as f64).ceil() as u64,
        "save_steps": plan.saving.steps,
        "stateful_callbacks": {},
        "total_flos": 0,
        "train_batch_size": plan.batch.micro,
        "trial_name": null,
        "trial_params": null,
    });
    let rest =
        serde_json::to_string_pretty(&rest).map_err(|error| Error::data(format!("{}: {error}", history::FILE)))?;
    let end = format!("\n  ],\n{}\n", printable(rest.trim_start_matches("{\n")));
    run.history.write(folder.path(), &end, is_last)
}
