//! What a benchmark leaves: the form of its JSON. Raw samples are kept; every figure can be computed from them again.

use serde::Serialize;
use serde_json::Value;

use crate::base::stats::{mean, median, quantile};
use crate::measure::compare::measured::{Window, windows};
use crate::trainer::laps::{Parts, StepTimes};

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
    /// What the CPU reaches in a matrix product of 2048 x 2048 x 2048, GFLOP/s; none on other devices.
    pub gemm_gflops: Option<f64>,
    /// What was measured.
    pub cases: Vec<CaseReport>,
    /// What the reader must know.
    pub notes: Vec<String>,
}

/// One case: every contestant on the same model, batches and weights.
#[derive(Debug, Clone, Serialize)]
pub struct CaseReport {
    /// Short name.
    pub name: String,
    /// What it is.
    pub about: String,
    /// Processes that wanted to run in the mean of the last minute, before it began (1 a core is a busy machine).
    pub load_before: Option<f64>,
    /// The same after it, its own work included.
    pub load_after: Option<f64>,
    /// Whether the contestants lived side by side and took turns.
    pub together: bool,
    /// Steps of each that are not counted, its turns, steps of a turn.
    pub warmup: usize,
    /// See `warmup`.
    pub rounds: usize,
    /// See `warmup`.
    pub steps: usize,
    /// What a step would take if its arithmetic ran at the rate of the large matrix product, in ms.
    pub gemm_floor_ms: Option<f64>,
    /// Who took part.
    pub contestants: Vec<ContestantReport>,
    /// Whether the losses are equal; no ratio is given where they are not.
    pub losses: Vec<LossCheck>,
    /// Times of others over those of `compiled`, and of peers over those of `native`.
    pub ratios: Vec<Ratio>,
    /// Single operators.
    pub operators: Vec<OperatorReport>,
}

/// What one contestant did.
#[derive(Debug, Clone, Serialize)]
pub struct ContestantReport {
    /// `native`, `compiled`, or a peer's name.
    pub name: String,
    /// What it says of itself.
    pub provenance: Value,
    /// Rows of a batch.
    pub batch: usize,
    /// Share of positions that is padding, where the contestant knows it.
    pub padding: Option<f64>,
    /// Why it has no (more) figures.
    pub failure: Option<String>,
    /// From the start of the process to the end of its first step, in seconds.
    pub first_step_seconds: Option<f64>,
    /// Milliseconds of a step over all counted windows.
    pub step_ms: Option<Spread>,
    /// Medians of the parts.
    pub parts_ms: Option<Parts>,
    /// Attended tokens a second, median.
    pub tokens_per_s: Option<f64>,
    /// Examples a second, median.
    pub samples_per_s: Option<f64>,
    /// The most memory, in MiB: of the process on the CPU, of the device's pools on a GPU.
    pub peak_mib: Option<f64>,
    /// All steps but those of the rounds.
    pub warmup_steps: Vec<StepTimes>,
    /// The steps of each turn.
    pub rounds: Vec<Vec<StepTimes>>,
}

/// A distribution.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// One in ten is below.
    pub p10: f64,
    /// One in ten is above.
    pub p90: f64,
    /// Windows.
    pub windows: usize,
}

impl Spread {
    /// Of `values`; none of nothing.
    pub fn of(values: &[f64]) -> Option<Self> {
        (!values.is_empty()).then(|| Self {
            median: median(values),
            p10: quantile(values, 0.1),
            p90: quantile(values, 0.9),
            windows: values.len(),
        })
    }
}

/// Losses of a contestant against those of the first one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LossCheck {
    /// The contestant.
    pub of: String,
    /// The one that it is held against.
    pub against: String,
    /// Losses that were compared.
    pub losses: usize,
    /// The largest relative difference of losses at equal steps; of their means where there is dropout.
    pub relative: f64,
    /// What it may be.
    pub limit: f64,
    /// Whether it is within that.
    pub passed: bool,
}

/// Time of `of` / time of `against`: above 1 `against` is faster.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ratio {
    /// The slower one, if the ratio is above 1.
    pub of: String,
    /// The faster one, if it is.
    pub against: String,
    /// The geometric mean, over the rounds, of the ratios of medians.
    pub ratio: f64,
    /// Its 98 % interval.
    pub low: f64,
    /// See `low`.
    pub high: f64,
}

/// One operator in every contestant.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OperatorReport {
    /// Its name.
    pub name: String,
    /// Its sizes.
    pub shape: String,
    /// Contestant and milliseconds of forward and backward.
    pub ms: Vec<(String, Spread)>,
}

/// The windows of a turn without its first, which finds the caches of another process; a turn of one window keeps it.
fn counted(turn: &[StepTimes]) -> Vec<&[StepTimes]> {
    let mut windows = windows(turn).collect::<Vec<_>>();
    if windows.len() > 1 {
        windows.remove(0);
    }
    windows
}

impl CaseReport {
    /// A case of which nothing is known yet.
    pub(super) fn empty(name: &str, about: &str) -> Self {
        Self {
            name: name.into(),
            about: about.into(),
            load_before: None,
            load_after: None,
            together: false,
            warmup: 0,
            rounds: 0,
            steps: 0,
            gemm_floor_ms: None,
            contestants: Vec::new(),
            losses: Vec::new(),
            ratios: Vec::new(),
            operators: Vec::new(),
        }
    }
}

impl ContestantReport {
    /// A contestant that has done nothing yet.
    pub(super) fn empty(name: &str) -> Self {
        Self {
            name: name.into(),
            provenance: Value::Null,
            batch: 0,
            padding: None,
            failure: None,
            first_step_seconds: None,
            step_ms: None,
            parts_ms: None,
            tokens_per_s: None,
            samples_per_s: None,
            peak_mib: None,
            warmup_steps: Vec::new(),
            rounds: Vec::new(),
        }
    }

    /// Computes the figures from the steps.
    pub(super) fn finish(&mut self) {
        let counted = self.rounds.iter().flat_map(|turn| counted(turn)).collect::<Vec<_>>();
        if counted.is_empty() {
            return;
        }
        let values =
            |pick: fn(&Window) -> f64| counted.iter().map(|steps| pick(&Window::of(steps))).collect::<Vec<_>>();
        self.step_ms = Spread::of(&values(Window::step_ms));
        self.tokens_per_s = Some(median(&values(Window::tokens_per_s)));
        self.samples_per_s = Some(median(&values(Window::samples_per_s)));
        // A step of a window may wait for the ones before it, so their mean is one sample.
        let of_window =
            |steps: &&[StepTimes]| Parts::over(&steps.iter().map(StepTimes::parts).collect::<Vec<_>>(), mean);
        self.parts_ms = Some(Parts::over(&counted.iter().map(of_window).collect::<Vec<_>>(), median));
    }

    /// Milliseconds of a step, of the windows of every round.
    pub(super) fn samples(&self) -> Vec<Vec<f64>> {
        self.rounds
            .iter()
            .map(|turn| counted(turn).into_iter().map(|steps| Window::of(steps).step_ms()).collect())
            .collect()
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
        let of = |turn: &[StepTimes]| counted(turn).into_iter().map(Window::of).collect::<Vec<_>>();
        let found = of(&turn(&[true, true, true])).iter().map(|w| w.ms).collect::<Vec<_>>();
        assert_eq!(found, [20.0, 30.0]);
        // Steps 1, 2 and 3, 4 are windows; nobody waited for step 5.
        let found = of(&turn(&[false, true, false, true, false]));
        assert_eq!(found.len(), 1);
        assert!((found[0].step_ms() - 35.0).abs() < 1e-12 && (found[0].tokens_per_s() - 100.0 / 0.035).abs() < 1e-6);
        assert_eq!(of(&turn(&[true])).len(), 1, "a turn of one window keeps it");
    }
}
