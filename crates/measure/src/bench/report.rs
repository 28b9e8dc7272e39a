//! The report of a benchmark, as its JSON has it. Raw samples are kept; every figure can be
//! computed from them again.

use serde::Serialize;
use serde_json::Value;

use crate::figures::{SpeedFigures, Spread, Window, windows};
use crate::loss_parity::Parity;
use crate::stats::Interval;
use kiln::trainer::laps::{Parts, StepTimes};

/// The version of the form.
pub const SCHEMA: &str = "kiln.bench/1";

/// A benchmark.
#[derive(Debug, Clone, Serialize)]
pub struct BenchReport {
    /// [`SCHEMA`]
    pub schema: &'static str,
    /// The suite, or the config file.
    pub title: String,
    /// When it began, RFC 3339.
    pub began_at: String,
    /// When this was written, RFC 3339.
    pub written_at: String,
    /// Whether everything that was wanted is in it.
    pub complete: bool,
    /// The processor and its threads.
    pub machine: String,
    /// The rate that the CPU reaches in a matrix product of 2048 x 2048 x 2048, GFLOP/s; none on
    /// other devices.
    pub gemm_gflops: Option<f64>,
    /// The suite that was measured.
    pub cases: Vec<CaseReport>,
    /// Notes for the reader.
    pub notes: Vec<String>,
}

/// One case: every arm on the same model, batches and weights.
#[derive(Debug, Clone, Default, Serialize)]
pub struct CaseReport {
    /// Short name.
    pub name: String,
    /// Its description.
    pub about: String,
    /// Processes that wanted to run in the mean of the last minute, before it began (1 a core is a
    /// busy machine).
    pub load_before: Option<f64>,
    /// Processes that wanted to run in the mean of the last minute, after the case ended; its own
    /// are among them.
    pub load_after: Option<f64>,
    /// Whether the arms lived side by side and took turns.
    pub together: bool,
    /// Steps of each that are not counted, its turns, steps of a turn.
    pub warmup: usize,
    /// See `warmup`.
    pub rounds: usize,
    /// See `warmup`.
    pub steps: usize,
    /// The time that a step would take if its arithmetic ran at the rate of the large matrix
    /// product, in ms.
    pub gemm_floor_ms: Option<f64>,
    /// Who took part.
    #[serde(rename = "contestants")]
    pub arms: Vec<BenchArm>,
    /// Whether the losses are equal; no ratio is given where they are not.
    pub losses: Vec<Pair<Parity>>,
    /// Times of others over those of `compiled`, and of peers over those of `native`: above 1 the
    /// latter is faster.
    pub ratios: Vec<Pair<Interval>>,
    /// Single operators.
    pub operators: Vec<OperatorReport>,
    /// The most that the CPU can multiply, beside which the rates of operators stand; none on other
    /// devices.
    pub peak: Option<UnitPeak>,
}

/// The measurements of one arm.
#[derive(Debug, Clone, Default, Serialize)]
pub struct BenchArm {
    /// `native`, `compiled`, or a peer's name.
    pub name: String,
    /// Its description of itself.
    pub provenance: Value,
    /// Rows of a batch.
    pub batch: usize,
    /// Share of positions that is padding, where the arm knows it.
    pub padding: Option<f64>,
    /// Why it has no (more) figures.
    pub failure: Option<String>,
    /// From the start of the process to the end of its first step, in seconds.
    pub first_step_seconds: Option<f64>,
    /// Its figures over the windows that count: all of a turn but the first, which finds the caches
    /// of another process.
    #[serde(flatten)]
    pub figures: SpeedFigures,
    /// Milliseconds of a step.
    pub step_ms: Option<Spread>,
    /// Medians of the parts.
    pub parts_ms: Option<Parts>,
    /// All steps but those of the rounds.
    pub warmup_steps: Vec<StepTimes>,
    /// The steps of each turn.
    pub rounds: Vec<Vec<StepTimes>>,
}

/// The comparison of one arm with another.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Pair<T> {
    /// The arm.
    pub of: String,
    /// The one that it is held against.
    pub against: String,
    /// The verdict.
    #[serde(flatten)]
    pub found: T,
}

/// The rate of the instructions that multiply in fused operators on the CPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UnitPeak {
    /// The unit and its threads, as in plans.
    pub unit: String,
    /// GFLOP/s of all threads together, of operands that stay in the first-level caches.
    pub gflops: f64,
}

/// One operator in every arm.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OperatorReport {
    /// Its name.
    pub name: String,
    /// Its sizes.
    pub shape: String,
    /// The arithmetic of its matrix products, forward and backward, in 10^9 operations, where it
    /// consists of them.
    pub gflop: Option<f64>,
    /// Arm and milliseconds of forward and backward.
    pub ms: Vec<(String, Spread)>,
}

/// The windows of a turn without its first; a turn of one window keeps it.
fn counted(turn: &[StepTimes]) -> Vec<Window> {
    let mut windows = windows(turn).map(Window::of).collect::<Vec<_>>();
    if windows.len() > 1 {
        windows.remove(0);
    }
    windows
}

impl BenchArm {
    /// Computes the figures from the steps.
    pub(super) fn finish(&mut self) {
        let windows = self.rounds.iter().flat_map(|turn| counted(turn)).collect::<Vec<_>>();
        self.figures = SpeedFigures::of(&windows, self.figures.peak_mib);
        (self.step_ms, self.parts_ms) = (self.figures.step_ms, self.figures.parts_ms);
    }

    /// Milliseconds of a step, of the windows of every round.
    pub(super) fn samples(&self) -> Vec<Vec<f64>> {
        self.rounds.iter().map(|turn| counted(turn).iter().map(Window::step_ms).collect()).collect()
    }

    /// `(step, loss)` of every step whose loss was read.
    pub(super) fn losses(&self) -> impl Iterator<Item = (u64, f64)> {
        let steps = self.warmup_steps.iter().chain(self.rounds.iter().flatten());
        steps.filter_map(|step| step.loss.map(|loss| (step.step, loss)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(synced: &[bool]) -> Vec<StepTimes> {
        let step = |(index, synced): (usize, &bool)| StepTimes {
            step: index as u64 + 1,
            tokens: 100,
            samples: 4,
            step_ms: 10.0 * (index + 1) as f64,
            synced: *synced,
            ..StepTimes::default()
        };
        synced.iter().enumerate().map(step).collect()
    }

    #[test]
    fn windows_end_where_the_device_had_finished_and_the_first_is_left_out() {
        let found = counted(&turn(&[true, true, true])).iter().map(|w| w.ms).collect::<Vec<_>>();
        assert_eq!(found, [20.0, 30.0]);
        // Steps 1, 2 and 3, 4 are windows; nobody waited for step 5.
        let found = counted(&turn(&[false, true, false, true, false]));
        assert_eq!(found.len(), 1);
        let figures = SpeedFigures::of(&found, None);
        assert!((found[0].step_ms() - 35.0).abs() < 1e-12);
        assert!((figures.tokens_per_s.unwrap_or(0.0) - 100.0 / 0.035).abs() < 1e-6);
        assert_eq!(counted(&turn(&[true])).len(), 1, "a turn of one window keeps it");
    }
}
