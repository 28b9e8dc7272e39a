//! How fast a run is, and when it will end: the forecast of the progress line and of `kiln watch`.

use std::collections::VecDeque;

use kiln::config::EvalStrategy;
use kiln::plan::{EvaluationPlan, TrainPlan};
use kiln_core::metrics::Record;
use kiln_core::stats::median;

/// Rows over which the pace is the median.
const ROWS: usize = 20;

/// The pace of a run, from its rows.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Milliseconds of a step, of the last rows of training.
    steps_ms: VecDeque<f64>,
    /// Seconds of the last evaluations.
    evaluations: VecDeque<f64>,
    /// The step of the last evaluation.
    evaluated: Option<u64>,
}

impl Pace {
    /// The pace that `rows` tell.
    pub(super) fn of<'a>(rows: impl IntoIterator<Item = &'a Record>) -> Self {
        let mut pace = Self::default();
        rows.into_iter().for_each(|row| pace.see(row));
        pace
    }

    /// Takes another row into account.
    pub(super) fn see(&mut self, row: &Record) {
        let keep = |values: &mut VecDeque<f64>, name: &str| {
            values.extend(row.get(name).filter(|value| value.is_finite()));
            values.drain(..values.len().saturating_sub(ROWS));
        };
        keep(&mut self.steps_ms, "step_ms");
        keep(&mut self.evaluations, "eval_runtime");
        if row.get("eval_loss").is_some() {
            self.evaluated = row.get("step").map(|step| step as u64);
        }
    }

    /// Seconds from step `step` to the last of `total`: the steps, and the evaluations that `plan`
    /// has on the way. Before the first row of training a step takes `so_far` milliseconds, where
    /// that is known.
    pub(super) fn seconds_left(
        &self,
        plan: Option<&TrainPlan>,
        step: u64,
        total: u64,
        so_far: Option<f64>,
    ) -> Option<f64> {
        let median_of = |values: &VecDeque<f64>| median(&values.iter().copied().collect::<Vec<_>>());
        let steps_ms = Some(median_of(&self.steps_ms)).filter(|ms| ms.is_finite()).or(so_far)?;
        let one = Some(median_of(&self.evaluations)).filter(|seconds| seconds.is_finite()).unwrap_or(0.0);
        // An evaluation of the last step may be yet to come.
        let from = if self.evaluated == Some(step) { step } else { step.saturating_sub(1) };
        let plan = plan.filter(|plan| plan.data.validation_examples.is_some());
        let evaluations =
            plan.map_or(0, |plan| evaluations(&plan.evaluation, plan.steps.per_epoch as u64, from, total));
        Some(total.saturating_sub(step) as f64 * steps_ms / 1e3 + evaluations as f64 * one)
    }
}

/// The evaluations that are `planned` after step `from`, up to the last of `total`.
fn evaluations(planned: &EvaluationPlan, per_epoch: u64, from: u64, total: u64) -> u64 {
    if from >= total {
        return 0;
    }
    let (every, delay) = match planned.strategy {
        EvalStrategy::No => return u64::from(planned.at_end),
        EvalStrategy::Steps => (planned.steps as u64, planned.delay),
        EvalStrategy::Epoch => (per_epoch, planned.delay * per_epoch as f64),
    };
    let (every, from) = (every.max(1), from.max((delay.ceil() as u64).saturating_sub(1)).min(total));
    let is_extra = !total.is_multiple_of(every) && from < total;
    total / every - from / every + u64::from(is_extra)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(strategy: EvalStrategy, steps: usize, delay: f64, at_end: bool) -> EvaluationPlan {
        EvaluationPlan { strategy, steps, delay, on_start: false, at_end, batch_size: 8 }
    }

    #[test]
    fn planned_evaluations_are_those_of_the_loop() {
        let cases = [
            (EvalStrategy::Steps, 0.0, [4, 4, 3, 1, 0]),
            // Not before step 30.
            (EvalStrategy::Steps, 30.0, [3, 3, 3, 1, 0]),
            (EvalStrategy::Steps, 200.0, [0, 0, 0, 0, 0]),
            // Epochs of 40 steps: after 40, 80 and 90.
            (EvalStrategy::Epoch, 0.0, [3, 3, 3, 1, 0]),
            (EvalStrategy::Epoch, 2.0, [2, 2, 2, 1, 0]),
            (EvalStrategy::No, 0.0, [1, 1, 1, 1, 0]),
        ];
        for (strategy, delay, expected) in cases {
            let plan = planned(strategy, 25, delay, true);
            assert_eq!(
                [0, 24, 25, 89, 90].map(|from| evaluations(&plan, 40, from, 90)),
                expected,
                "{strategy:?} {delay}"
            );
        }
        assert_eq!(evaluations(&planned(EvalStrategy::No, 25, 0.0, false), 40, 0, 90), 0);
        assert_eq!(evaluations(&planned(EvalStrategy::Steps, 30, 0.0, false), 40, 0, 90), 3, "the end is no extra one");
    }

    #[test]
    fn the_forecast_is_the_median_of_the_rows() {
        let row = |step: u64, ms: f64| Record::default().with("step", step).with("step_ms", ms);
        let pace = |count: u64| Pace::of(&(1..=count).map(|step| row(step, 1000.0)).collect::<Vec<_>>());
        assert_eq!(pace(0).seconds_left(None, 10, 15, None), None);
        assert_eq!(pace(0).seconds_left(None, 10, 15, Some(500.0)), Some(2.5));
        assert_eq!(pace(3).seconds_left(None, 10, 15, Some(500.0)), Some(5.0));
        let mut slower = pace(30);
        [f64::NAN, f64::INFINITY].into_iter().for_each(|ms| slower.see(&row(31, ms)));
        assert_eq!(slower.seconds_left(None, 10, 15, None), Some(5.0), "no number is no pace");
        (32..=51).for_each(|step| slower.see(&row(step, 2000.0)));
        assert_eq!(slower.seconds_left(None, 10, 15, None), Some(10.0), "the last rows count");
    }
}
