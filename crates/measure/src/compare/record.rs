//! The record of a comparison: its arms and their runs, as `experiment.json` keeps them, and the
//! figures and verdicts that follow, as `report.json` has them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::learned::Learned;
use crate::figures::SpeedFigures;
use crate::loss_parity::Parity;
use crate::runner::Failure;
use crate::stats::Interval;
use crate::verdict::Verdict;
use kiln::session::provenance::Provenance;
use kiln::trainer::laps::Parts;
use kiln_core::metrics::Record;

/// The role of an arm.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    #[default]
    /// The arm that the others are compared with: native at the native batch, or the first of
    /// finished runs.
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
pub struct ArmRuns {
    /// Short name, also of its folder.
    pub name: String,
    /// Its description, for people.
    pub label: String,
    /// Its role.
    pub role: Role,
    /// Settings (`section.key`) and circumstances (`commit`, `device`, ...) in which it may differ
    /// from the reference, because that is what it is about; a name with a point at its end stands
    /// for all that begin so.
    pub changes: Vec<String>,
    /// The batch and block that it has instead of the reference's, so that arms at the same point
    /// can be compared.
    pub point: Option<String>,
    /// Run folders, one a repeat, relative to the experiment's folder.
    pub runs: Vec<PathBuf>,
    /// Seconds that each run's process took, where Kiln started it.
    pub process_seconds: Vec<f64>,
    /// Why it has no (more) runs.
    pub failure: Option<Failure>,
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

/// Everything that a report is made of, besides the run folders.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Experiment {
    /// [`EXPERIMENT_SCHEMA`]
    pub schema: String,
    /// The subject: the config file, or the runs.
    pub title: String,
    /// Whether every run that was wanted has been made or has failed.
    pub is_complete: bool,
    /// The reference first.
    pub arms: Vec<ArmRuns>,
    /// The run that the config describes.
    pub whole: Option<WholeRun>,
    /// The rate that the device reaches in a matrix product of 2048 x 2048 x 2048, GFLOP/s.
    pub gemm_gflops: Option<f64>,
    /// The cost of an hour of the machine.
    pub price_per_hour: Option<f64>,
    /// The loss that arms race to; left out, the highest of the arms' last losses.
    pub target_loss: Option<f64>,
    /// Notes for the reader: caches, columns that this device lacks.
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

/// A moment of a run on each of its axes, or what it had there.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Moments<T> {
    /// After as many optimizer steps.
    pub steps: T,
    /// After as many attended tokens.
    pub tokens: T,
    /// After as many seconds of training.
    pub seconds: T,
}

/// Figures of an arm, over the steady state of all its repeats.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ArmReport {
    /// Short name.
    pub name: String,
    /// Its description.
    pub label: String,
    /// Its role.
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
    /// Its figures over the steady windows of all runs.
    #[serde(flatten)]
    pub figures: SpeedFigures,
    /// Milliseconds a step: median.
    pub step_ms_p50: Option<f64>,
    /// 95 % of steps are faster.
    pub step_ms_p95: Option<f64>,
    /// The slowest.
    pub step_ms_max: Option<f64>,
    /// Time of a steady step by part, medians; evaluation and saving spread over the steps of the
    /// whole run. None for runs without `steps.jsonl`.
    pub budget_ms: Option<Parts>,
    /// Seconds of training before the steady state in the first run; whether kernels were kept
    /// before it is in the notes.
    pub warmup_seconds_first: Option<f64>,
    /// Seconds of training before the steady state in the later runs, median.
    pub warmup_seconds_later: Option<f64>,
    /// Seconds of the process outside of training: start, model, data, writing the model; median.
    pub startup_seconds: Option<f64>,
    /// Seconds that the first run takes beyond its steady steps: start and end of the process, and
    /// of the warm-up what it takes longer than so many steady steps.
    pub overhead_seconds_first: Option<f64>,
    /// Seconds that a later run takes beyond its steady steps, median.
    pub overhead_seconds_later: Option<f64>,
    /// Seconds of an evaluation.
    pub evaluation_seconds: Option<f64>,
    /// Seconds of a checkpoint.
    pub save_seconds: Option<f64>,
    /// Model GFLOP/s; the convention is that of
    /// [`Architecture::flops_per_token`](kiln::plan::Architecture::flops_per_token).
    pub model_gflops: Option<f64>,
    /// Share of the device's measured matrix-product rate.
    pub model_flops_utilization: Option<f64>,
    /// The evaluations of a finished run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub evaluations: Vec<Record>,
    /// The evaluation of the model that a finished run kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<Record>,
    /// Loss of the last step, mean over the repeats.
    pub last_loss: Option<f64>,
    /// Mean loss of the repeats at the last step, token count and second that all arms have
    /// reached, smoothed like the target; the moments are [`Derived`]'s. None where it had not
    /// logged one by then.
    pub loss_at_equal: Option<Moments<Option<f64>>>,
    /// Seconds for which the machine would be paid for the whole run: start-up, evaluation and
    /// saving included. Of a finished run, what it took.
    pub billable_seconds: Option<f64>,
    /// Their cost at the price per hour.
    pub cost: Option<f64>,
    /// Watt-hours that the processors and their memory, or the GPU, take for the examples of the
    /// whole run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy_wh: Option<f64>,
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
    /// The arm that it is compared with.
    pub against: String,
    /// The verdict.
    pub verdict: Verdict,
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
    /// The evaluations of two finished runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learned: Option<Learned>,
    /// Whether both learn the same; none where batches or seeds differ, so that losses cannot be
    /// equal.
    pub parity: Option<Parity>,
    /// Settings and circumstances in which the two differ, with both values.
    pub differences: Vec<String>,
}

/// Figures that are none where an arm is missing or must not be compared.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Derived {
    /// Native at the native batch / compiled at the compiled batch, time per example:
    /// `compiler_share x batch_share`.
    pub total_speedup: Option<f64>,
    /// Compiled against native at the native batch.
    pub compiler_share: Option<f64>,
    /// Compiled at the compiled batch against compiled at the native batch.
    pub batch_share: Option<f64>,
    /// Native at the compiled batch against native at the native batch: what the batch alone gives.
    pub native_batch_share: Option<f64>,
    /// `batch_share / native_batch_share`: above 1 the compiler gains from the batch more than
    /// native does.
    pub interaction: Option<f64>,
    /// Steps after which the compiled run is ahead: what it takes more beside its steady steps in
    /// the first run, nothing tuned, over what a step takes less. None when it is not measurably
    /// faster.
    pub break_even_step: Option<f64>,
    /// Steps after which a later compiled run is ahead, with the kernels that earlier runs have
    /// tuned. None when it is not measurably faster.
    pub break_even_step_later: Option<f64>,
    /// The most that any compiler could give at this batch: `step / (step - forward - backward -
    /// update)` (Amdahl); on a GPU the wait for the device counts as computing.
    pub ceiling: Option<f64>,
    /// Share of the native step that a compiler works on: forward, backward and update.
    pub compute_share: Option<f64>,
    /// The loss that the arms' seconds to the target are about.
    pub target_loss: Option<f64>,
    /// The last step, token count and second that the arms of the comparison (not those of
    /// ablations and sweeps) have all reached: where their losses are compared.
    pub equal: Option<Moments<f64>>,
    /// One sentence for whoever decides.
    pub advice: Option<String>,
}

/// The content of `report.json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// [`REPORT_SCHEMA`]
    pub schema: String,
    /// The subject of the comparison.
    pub title: String,
    /// When the report was made, RFC 3339.
    pub made_at: String,
    /// The arms; the reference first.
    pub arms: Vec<ArmReport>,
    /// The reference against itself.
    pub noise: Option<Comparison>,
    /// Every other arm against the reference.
    pub comparisons: Vec<Comparison>,
    /// The figures that follow from them.
    pub derived: Derived,
    /// The run that the config describes.
    pub whole: Option<WholeRun>,
    /// The rate that the device reaches in a matrix product, GFLOP/s.
    pub gemm_gflops: Option<f64>,
    /// The price per hour that was given.
    pub price_per_hour: Option<f64>,
    /// Notes for the reader.
    pub notes: Vec<String>,
}

impl Report {
    /// The comparison that a gate's `speedup` is about: compiled against native (at the compiled
    /// batch where there is no other compiled arm), or the second run against the first.
    pub fn main(&self) -> Option<&Comparison> {
        let of = |role: Role| {
            let arm = self.arms.iter().find(|arm| arm.role == role)?;
            self.comparisons.iter().find(|comparison| comparison.arm == arm.name)
        };
        [Role::Compiled, Role::Run, Role::CompiledLarge].into_iter().find_map(of)
    }
}
