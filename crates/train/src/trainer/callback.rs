//! Hooks into the training loop, with Hugging Face's event names (`TrainerCallback`). The command
//! line prints through one.

use std::fmt::Display;
use std::io::Write;
use std::path::Path;

use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use kiln_core::error::printable;
use kiln_core::metrics::{Record, Value};
use kiln_models::Model;

use crate::arguments::Integration;
use crate::plan::TrainPlan;
use crate::trainer::step_closures::StepClosures;

/// How far a run has come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// Optimizer steps made.
    pub step: u64,
    /// Optimizer steps that the plan wants.
    pub total_steps: u64,
    /// Examples seen.
    pub samples: u64,
    /// Attended tokens seen.
    pub tokens: u64,
    /// Passes over the training data, with fraction.
    pub epoch: f64,
}

/// Requests of a callback to the loop (`TrainerControl`). All but `should_training_stop` hold for
/// the step at hand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Control {
    /// End after this step, as if the plan ended here.
    pub should_training_stop: bool,
    /// Evaluate after this step.
    pub should_evaluate: bool,
    /// Save a checkpoint after this step.
    pub should_save: bool,
}

/// The work of a run between two steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// The validation data are evaluated.
    Evaluating {
        /// Batches done.
        done: u64,
        /// Batches in all.
        batches: u64,
    },
    /// A checkpoint is read from the device, and the one before it written to its end.
    Saving,
    /// The model writes samples of text.
    Generating,
    /// The model of the run is written into its folder.
    WritingModel,
}

impl Display for Activity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Evaluating { done, batches } => write!(f, "evaluating {done}/{batches}"),
            Self::Saving => f.write_str("saving"),
            Self::Generating => f.write_str("generating"),
            Self::WritingModel => f.write_str("writing the model"),
        }
    }
}

/// The values that a step has computed, `[1]` each, still on the device.
#[derive(Debug, Clone, Copy)]
pub struct DeviceValues<'a> {
    /// The step's loss.
    pub loss: &'a Tensor<1>,
    /// Norm of its gradient before clipping.
    pub grad_norm: &'a Tensor<1>,
}

/// Called by the loop; every method does nothing unless it is written. `M` is the model that is
/// trained: one that looks at no model is a callback for all of them (`impl<M> Callback<M> for
/// ...`).
#[allow(unused_variables)]
pub trait Callback<M = Model> {
    /// The service of `trainer.report_to` that this callback tells of the rows.
    fn reports_to(&self) -> Option<Integration> {
        None
    }

    /// Whether this callback uploads what `trainer.push_to_hub` names.
    fn pushes_to_hub(&self) -> bool {
        false
    }

    /// Before everything else, when the run continues from `checkpoint`.
    fn on_resume(&mut self, progress: &Progress, checkpoint: &Path) {}

    /// Before the first step, and again when the run goes on after it ran out of memory.
    fn on_train_begin(&mut self, plan: &TrainPlan) {}

    /// Before the first step of an epoch, also when a run is taken up in the middle of one.
    fn on_epoch_begin(&mut self, progress: &Progress) {}

    /// Before every optimizer step.
    fn on_step_begin(&mut self, progress: &Progress) {}

    /// Whether [`on_pre_optimizer_step`](Self::on_pre_optimizer_step) or
    /// [`on_optimizer_step`](Self::on_optimizer_step) is to be called: a captured step
    /// (`compiler.graph`) has no moment for them, so steps are not captured then.
    fn sees_gradients(&self) -> bool {
        false
    }

    /// Before the weights change: the model and its gradients, summed over the micro-batches,
    /// neither divided nor clipped. Only where some callback [sees
    /// gradients](Self::sees_gradients), or steps are not captured and the optimizer is not divided
    /// among ranks.
    fn on_pre_optimizer_step(&mut self, progress: &Progress, model: &M, grads: &GradientsParams) {}

    /// After the weights have changed, before the step is counted. As `on_pre_optimizer_step`.
    fn on_optimizer_step(&mut self, progress: &Progress, model: &M) {}

    /// After every optimizer step, before its `on_step_end`, with its values on the device. A
    /// callback that wants to read them, or others, queues them with `closures`: they are handed to
    /// it after the step, or with the next log row, when they are read together with the values of
    /// that row.
    fn on_step_values(&mut self, progress: &Progress, values: DeviceValues<'_>, closures: &mut StepClosures<'static>) {}

    /// After every optimizer step. Reads nothing from the device.
    fn on_step_end(&mut self, progress: &Progress, control: &mut Control) {}

    /// After the last step of an epoch, following its `on_step_end`.
    fn on_epoch_end(&mut self, progress: &Progress, control: &mut Control) {}

    /// After a training row was written.
    fn on_log(&mut self, progress: &Progress, row: &Record) {}

    /// After an evaluation row was written.
    fn on_evaluate(&mut self, progress: &Progress, row: &Record, control: &mut Control) {}

    /// After the model wrote `samples` of text in the middle of the run (`generation.every`), each
    /// a prompt with its continuation.
    fn on_samples(&mut self, progress: &Progress, samples: &[String]) {}

    /// Between two steps, when other work begins or goes on; the next step ends it.
    fn on_activity(&mut self, progress: &Progress, activity: Activity) {}

    /// Something worth telling has happened.
    fn on_notice(&mut self, notice: &str) {}

    /// After a checkpoint was handed over for writing into `checkpoint`; the folder appears when it
    /// is whole.
    fn on_save(&mut self, progress: &Progress, checkpoint: &Path) {}

    /// After the last step of a run that ends before its plan does, and after the rows of that
    /// step. `why` is the message of `status.json`: early stopping, a callback, or
    /// `trainer.max_minutes`. Rank 0 alone calls it.
    fn on_early_end(&mut self, progress: &Progress, why: &str) {}

    /// After the last step, when the weights of the best evaluation, whose row is `evaluation`,
    /// have become the model's (`trainer.load_best_model_at_end`).
    fn on_load_best(&mut self, progress: &Progress, evaluation: &Record) {}

    /// After the last step, when everything is written.
    fn on_train_end(&mut self, progress: &Progress, summary: &Record) {}

    /// After a run that came to its end, when its status and its page are written in `folder`; what
    /// is worth telling. It may take long, and keeps nobody from the results.
    fn on_run_end(&mut self, folder: &Path) -> Vec<String> {
        Vec::new()
    }
}

/// Prints the rows of a run on stdout, the figures that people read with four digits, and why it
/// ends before its plan does. Where `trainer.log_level` wants them, notices go to stderr
/// (`PrinterCallback` of `transformers`). [`Trainer::new`](super::Trainer::new) adds it.
#[derive(Debug, Clone, Copy, Default)]
pub struct PrinterCallback {
    /// Notices are not wanted.
    is_quiet: bool,
}

impl PrinterCallback {
    /// Prints `line`. A terminal that is gone is no reason to end a training.
    fn print(line: impl Display) {
        let _ = writeln!(std::io::stdout(), "{line}");
    }
}

impl<M> Callback<M> for PrinterCallback {
    fn on_resume(&mut self, progress: &Progress, checkpoint: &Path) {
        Self::print(format_args!("continuing after step {} from {}", progress.step, checkpoint.display()));
    }

    fn on_train_begin(&mut self, plan: &TrainPlan) {
        self.is_quiet = !plan.run.log_level.warns();
    }

    fn on_log(&mut self, _progress: &Progress, row: &Record) {
        Self::print(brief(row).to_dict());
    }

    fn on_evaluate(&mut self, _progress: &Progress, row: &Record, _control: &mut Control) {
        Self::print(brief(row).to_dict());
    }

    fn on_notice(&mut self, notice: &str) {
        if !self.is_quiet {
            let _ = writeln!(std::io::stderr(), "{}", printable(notice));
        }
    }

    fn on_early_end(&mut self, _progress: &Progress, why: &str) {
        Self::print(printable(why));
    }

    fn on_train_end(&mut self, _progress: &Progress, summary: &Record) {
        Self::print(brief(summary).to_dict());
    }
}

/// The figures of a row that people read, those that the Trainer of `transformers` logs among them,
/// without those of single parts of the work, with four significant digits. metrics.jsonl has all
/// of it.
fn brief(row: &Record) -> Record {
    const LEFT_OUT: [&str; 11] = [
        "samples",
        "tokens",
        "step_ms",
        "data_wait",
        "reserved_mib",
        "communicate_ms",
        "eval_samples",
        "steady_step_ms",
        "eval_seconds",
        "save_seconds",
        "save_wait_seconds",
    ];
    let kept = row.fields().filter(|(name, _)| !LEFT_OUT.contains(name));
    kept.fold(Record::default(), |record, (name, value)| match value {
        Value::Real(real) => record.with(name, format!("{real:.3e}").parse().unwrap_or(*real)),
        value => record.with(name, value.clone()),
    })
}

/// Ends the run after a number of steps, as if the plan ended there; the schedule stays that of the
/// whole plan.
#[derive(Debug, Clone, Copy)]
pub struct StopAfter(
    /// The steps.
    pub u64,
);

impl<M> Callback<M> for StopAfter {
    fn on_step_end(&mut self, progress: &Progress, control: &mut Control) {
        control.should_training_stop |= progress.step >= self.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_row_has_the_figures_of_the_table_with_four_digits() {
        let row = Record::default().with("step", 12_345).with("epoch", 0.00148221).with("samples", 49_380);
        let row = row.with("loss", 5.689328).with("learning_rate", 0.0004666666).with("tokens_per_s", 8639.3231);
        let row = row.with("step_ms", 3.7042).with("peak_mib", None::<f64>).with("grad_norm", f64::NAN);
        let printed = brief(&row).to_dict();
        let expected = "{'step': 12345, 'epoch': 0.001482, 'loss': 5.689, 'learning_rate': 0.0004667, 'tokens_per_s': 8639.0, \
                        'peak_mib': None, 'grad_norm': nan}";
        assert_eq!(printed, expected);
        // The rows that transformers' PrinterCallback prints of an evaluation, and at the end.
        for split in ["eval", "train"] {
            let names =
                ["loss", "runtime", "samples_per_second", "steps_per_second"].map(|name| format!("{split}_{name}"));
            let row = names.iter().fold(Record::default(), |row, name| row.with(name, 0.5));
            assert_eq!(brief(&row).to_dict(), row.to_dict());
        }
    }
}
