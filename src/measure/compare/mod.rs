//! `kiln compare` and `kiln report`: is it worth compiling this run, on this machine, with this data, and at what batch?
//! [`run`](mod@run) makes the runs, each in a process of its own; [`measured`] reads finished ones; [`analyse`](mod@analyse)
//! makes a [`Report`] of them; [`crate::measure::report`] shows it. What a report needs beyond the run folders is in an
//! [`Experiment`], kept as `experiment.json`, so that it can be made again without running anything.

pub mod ablation;
pub mod analyse;
pub mod arms;
mod derived;
pub mod gate;
pub mod measured;
pub(crate) mod parity;
pub(crate) mod peak;
mod repeat;
pub mod run;
pub mod saved;
pub mod stats;
pub mod verdict;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::base::error::{Error, ErrorKind};
use crate::session::provenance::Provenance;
use crate::trainer::laps::Parts;
pub use derived::Derived;
pub use gate::Gate;
pub use parity::Parity;
use stats::Interval;
use verdict::Word;

/// Settings by which arms differ.
mod keys {
    pub(super) const BATCH: &str = "trainer.per_device_train_batch_size";
    pub(super) const ACCUMULATION: &str = "trainer.gradient_accumulation_steps";
    pub(super) const BLOCK: &str = "data.block_size";
}

/// What an arm is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// What the others are compared with: native at the native batch, or the first of finished runs.
    Reference,
    /// The reference once more: how much it differs from itself is the noise.
    Again,
    /// Compiled at the native batch.
    Compiled,
    /// Native at the compiled batch.
    NativeLarge,
    /// Compiled at the compiled batch.
    CompiledLarge,
    /// One column of what the compiler activates is off.
    Ablation,
    /// A point of a sweep, in one of the modes.
    Sweep,
    /// Another finished run.
    Run,
}

/// An arm and the runs that were made of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Arm {
    /// Short name, also of its folder.
    pub name: String,
    /// What it is, for people.
    pub label: String,
    /// What it is for.
    pub role: Role,
    /// Settings (`section.key`) and circumstances (`commit`, `device`, ...) in which it may differ from the reference, because
    /// that is what it is about; a name with a point at its end stands for all that begin so.
    pub changes: Vec<String>,
    /// The batch and block that it has instead of the reference's, so that arms at the same point can be compared.
    pub point: Option<String>,
    /// Run folders, one a repeat, relative to the experiment's folder.
    pub runs: Vec<PathBuf>,
    /// Seconds that each run's process took, where Kiln started it.
    pub process_seconds: Vec<f64>,
    /// Why it has no (more) runs.
    pub failure: Option<Failure>,
}

/// How an arm's process ended that did not end well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The exit code that the comparison ends with: 4 out of memory, 5 a loss that is no number, 7 a crash, ...
    pub exit_code: u8,
    /// What it said.
    pub message: String,
    /// The comparison expects that it may fail: a batch that need not fit in this mode.
    pub is_expected: bool,
}

impl Failure {
    /// An answer of its process that is none.
    pub(crate) fn of_data(message: String) -> Self {
        Self::from(&Error::data(message))
    }

    /// The error that the process which started it ends with; `who` failed.
    pub(crate) fn error(&self, who: &str) -> Error {
        let kind = ErrorKind::of_exit_code(self.exit_code.into()).unwrap_or(ErrorKind::Device);
        Error::of_kind(kind, format!("{who}: {}", self.message))
    }
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        let message = error.message().lines().next().unwrap_or_default();
        let message = match error.kind() {
            ErrorKind::OutOfMemory if !message.contains("out of memory") => format!("out of memory: {message}"),
            _ => message.to_owned(),
        };
        Self { exit_code: error.exit_code(), message, is_expected: false }
    }
}

/// The run that the config describes, of which an experiment runs the first steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WholeRun {
    /// Optimizer steps at the native batch.
    pub steps: u64,
    /// Examples.
    pub samples: u64,
    /// Evaluations.
    pub evaluations: u64,
    /// Checkpoints.
    pub saves: u64,
}

/// The version of the form of `experiment.json`.
pub const EXPERIMENT_SCHEMA: &str = "kiln.experiment/2";

/// The version of the form of `report.json`.
pub const REPORT_SCHEMA: &str = "kiln.report/2";

/// What a report is made of, besides the run folders.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Experiment {
    /// [`EXPERIMENT_SCHEMA`]
    pub schema: String,
    /// What was compared: the config file, or the runs.
    pub title: String,
    /// Whether every run that was wanted has been made or has failed.
    pub is_complete: bool,
    /// The reference first.
    pub arms: Vec<Arm>,
    /// The run that the config describes.
    pub whole: Option<WholeRun>,
    /// What the device reaches in a matrix product of 2048 x 2048 x 2048, GFLOP/s.
    pub gemm_gflops: Option<f64>,
    /// What an hour of the machine costs.
    pub price_per_hour: Option<f64>,
    /// The loss that arms race to; left out, the highest of the arms' last losses.
    pub target_loss: Option<f64>,
    /// What the reader must know: caches, columns that this device lacks.
    pub notes: Vec<String>,
}

/// A point of an arm's loss: mean, least and largest over its repeats (each with another seed).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LossPoint {
    /// Optimizer steps.
    pub step: u64,
    /// Attended tokens.
    pub tokens: f64,
    /// Training seconds.
    pub seconds: f64,
    /// Mean loss.
    pub loss: f64,
    /// Least loss.
    pub low: f64,
    /// Largest loss.
    pub high: f64,
}

/// The moments that arms are compared at.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct AtEqual {
    /// Optimizer steps.
    pub steps: f64,
    /// Attended tokens.
    pub tokens: f64,
    /// Seconds of training.
    pub seconds: f64,
}

/// An arm's loss at such moments; none where it had not logged one by then.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LossAtEqual {
    /// After as many optimizer steps.
    pub steps: Option<f64>,
    /// After as many attended tokens.
    pub tokens: Option<f64>,
    /// After as many seconds of training.
    pub seconds: Option<f64>,
}

/// Figures of an arm, over the steady state of all its repeats.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ArmReport {
    /// Short name.
    pub name: String,
    /// What it is.
    pub label: String,
    /// What it is for.
    pub role: Role,
    /// Why there are no figures, or fewer than were wanted.
    pub failure: Option<String>,
    /// Micro-batch.
    pub micro_batch: Option<u64>,
    /// Micro-batches a step.
    pub accumulation: Option<u64>,
    /// Tokens of a sequence.
    pub block: Option<u64>,
    /// The learning rate at its peak, scaled with the batch where the config says so.
    pub learning_rate: Option<f64>,
    /// Runs.
    pub repeats: usize,
    /// Steady windows of all runs.
    pub windows: usize,
    /// Examples a second, median.
    pub samples_per_s: Option<f64>,
    /// Attended tokens a second, median.
    pub tokens_per_s: Option<f64>,
    /// Milliseconds a step: median.
    pub step_ms_p50: Option<f64>,
    /// 95 % of steps are faster.
    pub step_ms_p95: Option<f64>,
    /// The slowest.
    pub step_ms_max: Option<f64>,
    /// Time of a steady step by part, medians; evaluation and saving spread over the steps of the whole run. None for runs
    /// without `steps.jsonl`.
    pub budget_ms: Option<Parts>,
    /// Seconds of training before the steady state in the first run; whether kernels were kept before it is in the notes.
    pub warmup_seconds_first: Option<f64>,
    /// The same in the later runs, median.
    pub warmup_seconds_later: Option<f64>,
    /// Seconds of the process outside of training: start, model, data, writing the model; median.
    pub startup_seconds: Option<f64>,
    /// Seconds that the first run takes beyond its steady steps: start and end of the process, and of the warm-up what it takes
    /// longer than so many steady steps.
    pub overhead_seconds_first: Option<f64>,
    /// The same of the later runs, median.
    pub overhead_seconds_later: Option<f64>,
    /// Seconds of an evaluation.
    pub evaluation_seconds: Option<f64>,
    /// Seconds of a checkpoint.
    pub save_seconds: Option<f64>,
    /// The most memory the process had, MiB.
    pub peak_mib: Option<f64>,
    /// Reads from the device in a step.
    pub device_reads_per_step: Option<f64>,
    /// Kernel launches in a step; the kernels of a captured step count, though one call replays them all. 0 on the CPU, where
    /// an operation is a call.
    pub kernel_launches_per_step: Option<f64>,
    /// Model GFLOP/s; the convention is that of [`RunPlan::flops_per_token`](crate::plan::RunPlan::flops_per_token).
    pub model_gflops: Option<f64>,
    /// Share of the device's measured matrix-product rate.
    pub model_flops_utilization: Option<f64>,
    /// Loss of the last step, mean over the repeats.
    pub last_loss: Option<f64>,
    /// Mean loss of the repeats at the last step, token count and second that all arms have reached, smoothed like the
    /// target; the moments are [`Derived`]'s.
    pub loss_at_equal: Option<LossAtEqual>,
    /// Seconds for which the machine would be paid for the whole run: start-up, evaluation and saving included. Of a
    /// finished run, what it took.
    pub billable_seconds: Option<f64>,
    /// Their cost at the price per hour.
    pub cost: Option<f64>,
    /// Seconds of training to the target loss.
    pub seconds_to_target: Option<f64>,
    /// The loss.
    pub loss: Vec<LossPoint>,
    /// Folders of the runs, with the raw samples.
    pub runs: Vec<PathBuf>,
    /// Program and machine of the first run.
    pub provenance: Option<Provenance>,
}

/// An arm against the reference.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// The arm.
    pub arm: String,
    /// What it is compared with.
    pub against: String,
    /// The verdict.
    pub verdict: Word,
    /// Why it is not comparable.
    pub reason: Option<String>,
    /// Time of the reference / time of the arm, per example; none where it is not comparable.
    pub speedup: Option<Interval>,
    /// `(n - o) x 100 / n` of the time for an example.
    pub time_saved_percent: Option<f64>,
    /// `(o / n - 1) x 100` of the examples a second.
    pub throughput_gained_percent: Option<f64>,
    /// `(n - o) x 100 / n` of the billable seconds of the whole run.
    pub billable_saved_percent: Option<f64>,
    /// Whether both learn the same; none where batches or seeds differ, so that losses cannot be equal.
    pub parity: Option<Parity>,
    /// Settings and circumstances in which the two differ, with both values.
    pub differences: Vec<String>,
}

/// What `report.json` holds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// [`REPORT_SCHEMA`]
    pub schema: String,
    /// What was compared.
    pub title: String,
    /// When the report was made, RFC 3339.
    pub made_at: String,
    /// The arms; the reference first.
    pub arms: Vec<ArmReport>,
    /// The reference against itself.
    pub noise: Option<Comparison>,
    /// Every other arm against the reference.
    pub comparisons: Vec<Comparison>,
    /// What follows from them.
    pub derived: Derived,
    /// The run that the config describes.
    pub whole: Option<WholeRun>,
    /// What the device reaches in a matrix product, GFLOP/s.
    pub gemm_gflops: Option<f64>,
    /// The price per hour that was given.
    pub price_per_hour: Option<f64>,
    /// What the reader must know.
    pub notes: Vec<String>,
}

impl Report {
    /// The comparison that a gate's `speedup` is about: compiled against native (at the compiled batch where there is no other
    /// compiled arm), or the second run against the first.
    pub fn main(&self) -> Option<&Comparison> {
        let of = |role: Role| {
            let arm = self.arms.iter().find(|arm| arm.role == role)?;
            self.comparisons.iter().find(|comparison| comparison.arm == arm.name)
        };
        [Role::Compiled, Role::Run, Role::CompiledLarge].into_iter().find_map(of)
    }

    /// A figure by its name in [`gate::MEASURES`].
    ///
    /// # Errors
    /// Why it is not there, for people.
    pub fn measure(&self, name: &str) -> Result<f64, String> {
        let main = self.main().ok_or("there is no second arm")?;
        let arm = |name: &str| self.arms.iter().find(|arm| arm.name == name);
        let derived = &self.derived;
        let value = match name {
            "speedup" => main.speedup.map(|speedup| speedup.ratio),
            "speedup_low" => main.speedup.map(|speedup| speedup.low),
            "total_speedup" => derived.total_speedup,
            "compiler_share" => derived.compiler_share,
            "batch_share" => derived.batch_share,
            "time_saved_percent" => main.time_saved_percent,
            "throughput_gained_percent" => main.throughput_gained_percent,
            "billable_saved_percent" => main.billable_saved_percent,
            "loss_delta" => main.parity.as_ref().map(|parity| parity.max_delta),
            "peak_memory_ratio" => arm(&main.arm)
                .and_then(|arm| arm.peak_mib)
                .zip(self.arms.first().and_then(|first| first.peak_mib))
                .map(|(arm, first)| arm / first),
            "break_even_step" => derived.break_even_step,
            "model_gflops" => arm(&main.arm).and_then(|arm| arm.model_gflops),
            _ => None,
        };
        value.ok_or_else(|| match &main.reason {
            Some(reason) => format!("not comparable ({reason})"),
            None => "it was not measured here".into(),
        })
    }
}
