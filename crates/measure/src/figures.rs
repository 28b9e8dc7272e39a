//! The one record of a measurement that every tool shares: the steps of an arm ([`StepTimes`]) make
//! [`Window`]s, and the windows that count make its [`SpeedFigures`]. Arms are the modes of a
//! comparison, finished runs, the programs of a benchmark, and numbers of devices.

use kiln::trainer::laps::{Parts, StepTimes};
use kiln_core::stats::{mean, median, quantile};
use serde::Serialize;

/// Steps between two moments at which the device had finished everything: one step on the CPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Window {
    /// Optimizer steps.
    pub steps: u64,
    /// Examples.
    pub samples: u64,
    /// Attended tokens.
    pub tokens: u64,
    /// Milliseconds of training.
    pub ms: f64,
    /// Milliseconds of a step by part, means over the window: a step of it may wait for the ones
    /// before. None in the log of a run.
    pub parts: Option<Parts>,
    /// Reads from the device, where they are known.
    pub device_reads: Option<u64>,
    /// Kernel launches, where they are known.
    pub kernel_launches: Option<u64>,
    /// Joules, where they were counted.
    pub joules: Option<f64>,
}

impl Window {
    /// The window that `steps` make.
    pub fn of(steps: &[StepTimes]) -> Self {
        let sum = |pick: fn(&StepTimes) -> u64| steps.iter().map(pick).sum();
        Self {
            steps: steps.len() as u64,
            samples: sum(|step| step.samples),
            tokens: sum(|step| step.tokens),
            ms: steps.iter().map(|step| step.step_ms).sum(),
            parts: Some(Parts::over(&steps.iter().map(StepTimes::parts).collect::<Vec<_>>(), mean)),
            device_reads: Some(sum(|step| step.device_reads)),
            kernel_launches: steps.iter().map(|step| step.kernel_launches).sum(),
            joules: steps.iter().map(|step| step.joules).sum(),
        }
    }

    /// Milliseconds for a step.
    pub fn step_ms(&self) -> f64 {
        self.ms / self.steps as f64
    }

    /// Milliseconds for an example.
    pub fn sample_ms(&self) -> f64 {
        self.ms / self.samples as f64
    }
}

/// The median of the windows' milliseconds for a step; NaN without windows.
pub(crate) fn median_step_ms(windows: &[Window]) -> f64 {
    median(&windows.iter().map(Window::step_ms).collect::<Vec<_>>())
}

/// The steps of every window of `steps`. Steps at the end for which the device was not waited
/// belong to none.
pub(crate) fn windows(steps: &[StepTimes]) -> impl Iterator<Item = &[StepTimes]> {
    steps.split_inclusive(|step| step.synced).filter(|window| window.last().is_some_and(|step| step.synced))
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
    /// One in twenty is above.
    pub p95: f64,
    /// The largest.
    pub max: f64,
    /// Windows.
    pub windows: usize,
}

impl Spread {
    /// The spread of `values`; none where there are no values.
    pub fn of(values: &[f64]) -> Option<Self> {
        (!values.is_empty()).then(|| Self {
            median: median(values),
            p10: quantile(values, 0.1),
            p90: quantile(values, 0.9),
            p95: quantile(values, 0.95),
            max: quantile(values, 1.0),
            windows: values.len(),
        })
    }
}

/// The figures of an arm over all windows that count.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SpeedFigures {
    /// Windows that count.
    pub windows: usize,
    /// Examples a second, median.
    pub samples_per_s: Option<f64>,
    /// Attended tokens a second, median.
    pub tokens_per_s: Option<f64>,
    /// The most memory, in MiB: of the process on the CPU, of the device's pools on a GPU.
    pub peak_mib: Option<f64>,
    /// Milliseconds of a step; saved by each tool under keys of its own.
    #[serde(skip)]
    pub step_ms: Option<Spread>,
    /// Medians of the parts; saved as `step_ms` is.
    #[serde(skip)]
    pub parts_ms: Option<Parts>,
    /// Reads from the device in a step, mean.
    pub device_reads_per_step: Option<f64>,
    /// Kernel launches in a step, mean; the kernels of a captured step count, though one call
    /// replays them all. 0 on the CPU, where an operation is a call.
    pub kernel_launches_per_step: Option<f64>,
    /// Joules of the processors and their memory, or of the GPU, for an example, mean, where they
    /// were counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joules_per_sample: Option<f64>,
}

impl SpeedFigures {
    /// The figures of `windows`.
    pub fn of(windows: &[Window], peak_mib: Option<f64>) -> Self {
        let over = |pick: &dyn Fn(&Window) -> f64| finite(median(&windows.iter().map(pick).collect::<Vec<_>>()));
        let parts = windows.iter().filter_map(|window| window.parts).collect::<Vec<_>>();
        let a_step = |pick: fn(&Window) -> Option<u64>| {
            let counted = windows.iter().filter_map(|window| Some((pick(window)?, window.steps)));
            let (count, steps) = counted.fold((0, 0), |sum, window| (sum.0 + window.0, sum.1 + window.1));
            finite(count as f64 / steps as f64)
        };
        Self {
            windows: windows.len(),
            samples_per_s: over(&|window| window.samples as f64 / window.ms * 1e3),
            tokens_per_s: over(&|window| window.tokens as f64 / window.ms * 1e3),
            peak_mib,
            step_ms: Spread::of(&windows.iter().map(Window::step_ms).collect::<Vec<_>>()),
            parts_ms: (!parts.is_empty()).then(|| Parts::over(&parts, median)),
            device_reads_per_step: a_step(|window| window.device_reads),
            kernel_launches_per_step: a_step(|window| window.kernel_launches),
            joules_per_sample: {
                let counted = windows.iter().filter_map(|window| Some((window.joules?, window.samples as f64)));
                let (joules, samples) = counted.fold((0.0, 0.0), |sum, window| (sum.0 + window.0, sum.1 + window.1));
                finite(joules / samples)
            },
        }
    }
}

/// A number that could be made; none for NaN.
pub(crate) fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}
