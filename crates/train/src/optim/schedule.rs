//! The learning rate of every optimizer step, as a pure function: Hugging Face's schedules, formula
//! by formula (transformers 5.23, `optimization.py`), checked against values computed there. It
//! holds no state, so a resumed run has nothing to restore. The plan builds one, prints its curve,
//! and the trainer asks it once per step.

use std::f64::consts::PI;

use kiln_core::error::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::optim::own::LambdaLr;
use crate::optim::scheduler::DEFAULT_LR_END;
pub use crate::optim::scheduler::{Ramp, SchedulerKwargs, SchedulerType};

/// A learning-rate schedule over a run of known length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// None for one that a program brings along.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kind: Option<SchedulerType>,
    base_lr: f64,
    warmup_steps: usize,
    total_steps: usize,
    shape: Shape,
}

/// A schedule's own arguments with the defaults filled in; rates are parts of the peak.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Shape {
    Linear,
    Constant,
    Cosine {
        num_cycles: f64,
        min_rate: f64,
    },
    CosineWithRestarts {
        num_cycles: f64,
    },
    Polynomial {
        lr_end: f64,
        power: f64,
    },
    InverseSqrt {
        timescale: f64,
    },
    CosineWithWarmupRate {
        num_cycles: f64,
        min_rate: f64,
        warmup_rate: Option<f64>,
    },
    Own(LambdaLr),
    WarmupStableDecay {
        stable: usize,
        decay: usize,
        warmup_type: Ramp,
        decay_type: Ramp,
        min_ratio: f64,
        num_cycles: f64,
    },
}

impl Schedule {
    /// Kind, warm-up, and the rate at the first, the peak and the last step, and at quarters, for
    /// the plan.
    pub fn describe(&self) -> String {
        let total = self.total_steps;
        let mut steps = vec![0, self.warmup_steps, total / 4, total / 2, total * 3 / 4, total.saturating_sub(1)];
        steps.retain(|step| *step < total);
        steps.sort_unstable();
        steps.dedup();
        steps.retain(|step| self.lr(*step).is_finite()); // the name alone is known of one from a file
        let points = steps.iter().map(|step| format!("{:.3e} at step {}", self.lr(*step), step + 1));
        let points = points.collect::<Vec<_>>().join(", ");
        match self.shape {
            Shape::Own(_) => format!("{}: {points}", self.name()),
            _ => format!("{}, warm-up {} steps: {points}", self.name(), self.warmup_steps),
        }
    }

    /// The schedule `kind` with peak `base_lr` over `total_steps` optimizer steps, of which the
    /// first `warmup_steps` warm up (a ratio is resolved by
    /// [`Interval::resolve`](crate::arguments::Interval::resolve)).
    ///
    /// # Errors
    /// A config error when the peak is not a number above 0, the run has no steps, the warm-up is
    /// longer than the run or given to `constant`, or `kwargs` do not fit the schedule.
    pub fn new(
        kind: SchedulerType,
        base_lr: f64,
        warmup_steps: usize,
        total_steps: usize,
        kwargs: &SchedulerKwargs,
    ) -> Result<Self> {
        check_peak(base_lr)?;
        if total_steps == 0 {
            return Err(Error::config("the run has no optimizer steps: expected 1 or more"));
        }
        if warmup_steps > total_steps {
            return Err(Error::config(format!(
                "warmup_steps: the warm-up of {warmup_steps} steps is longer than the run of {total_steps} steps"
            ))
            .help("lower warmup_steps, or give it as a ratio below 1, or train for more steps"));
        }
        kwargs.check(kind, base_lr).map_err(|error| error.at("lr_scheduler_kwargs"))?;
        let num_cycles = kwargs.num_cycles.unwrap_or(0.5);
        let min_rate = kwargs.min_lr.map(|min_lr| min_lr / base_lr).or(kwargs.min_lr_rate).unwrap_or(0.0);
        let shape = match kind {
            SchedulerType::Linear => Shape::Linear,
            SchedulerType::Constant if warmup_steps > 0 => {
                return Err(Error::config(format!(
                    "the schedule `constant` has no warm-up, got warmup_steps = {warmup_steps}"
                ))
                .help("use `constant_with_warmup`"));
            }
            SchedulerType::Constant | SchedulerType::ConstantWithWarmup => Shape::Constant,
            SchedulerType::Cosine | SchedulerType::CosineWithMinLr => Shape::Cosine { num_cycles, min_rate },
            SchedulerType::CosineWithRestarts => {
                Shape::CosineWithRestarts { num_cycles: kwargs.num_cycles.unwrap_or(1.0) }
            }
            SchedulerType::Polynomial => Shape::Polynomial {
                lr_end: kwargs.lr_end.unwrap_or(DEFAULT_LR_END),
                power: kwargs.power.unwrap_or(1.0),
            },
            SchedulerType::InverseSqrt => {
                let timescale = kwargs.timescale.unwrap_or(if warmup_steps > 0 { warmup_steps } else { 10_000 });
                Shape::InverseSqrt { timescale: timescale as f64 }
            }
            SchedulerType::CosineWarmupWithMinLr => {
                Shape::CosineWithWarmupRate { num_cycles, min_rate, warmup_rate: kwargs.warmup_lr_rate }
            }
            SchedulerType::WarmupStableDecay => {
                let decay = kwargs.num_decay_steps.unwrap_or(0);
                let left = total_steps.checked_sub(warmup_steps).and_then(|steps| steps.checked_sub(decay)).ok_or_else(|| {
                    Error::config(format!(
                        "num_decay_steps: a warm-up of {warmup_steps} and a decay of {decay} steps are longer than the run \
                         of {total_steps} steps"
                    ))
                })?;
                Shape::WarmupStableDecay {
                    stable: kwargs.num_stable_steps.unwrap_or(left),
                    decay,
                    warmup_type: kwargs.warmup_type.unwrap_or(Ramp::Linear),
                    decay_type: kwargs.decay_type.unwrap_or(Ramp::Cosine),
                    min_ratio: kwargs.min_lr_ratio.unwrap_or(0.0),
                    num_cycles,
                }
            }
        };
        Ok(Self { kind: Some(kind), base_lr, warmup_steps, total_steps, shape })
    }

    /// The schedule `own` of a program with peak `base_lr` over `total_steps` optimizer steps.
    ///
    /// # Errors
    /// A config error when the peak is not a number above 0, or the function gives a factor that is
    /// negative or not finite.
    pub fn own(own: LambdaLr, base_lr: f64, total_steps: usize) -> Result<Self> {
        check_peak(base_lr)?;
        let factors = (0..total_steps).map(|step| (step, own.factor(step, total_steps).unwrap_or(f64::NAN)));
        if let Some((step, factor)) = { factors }.find(|(_, factor)| !(factor.is_finite() && *factor >= 0.0)) {
            return Err(Error::config(format!(
                "the schedule `{}`: expected a factor of 0 or more for every step, got {factor} for step {}",
                own.name(),
                step + 1
            )));
        }
        Ok(Self { kind: None, base_lr, warmup_steps: 0, total_steps, shape: Shape::Own(own) })
    }

    /// The learning rate of the optimizer step that follows `step` completed ones. The first step
    /// asks for `lr(0)`, which is 0 under a linear warm-up, as in Hugging Face's Trainer.
    pub fn lr(&self, step: usize) -> f64 {
        self.base_lr * self.factor(step)
    }

    /// The schedule's name.
    pub fn name(&self) -> &str {
        match (&self.shape, self.kind) {
            (Shape::Own(own), _) => own.name(),
            (_, kind) => kind.map_or("", SchedulerType::as_str),
        }
    }

    /// Whether a program brings it along.
    pub fn is_own(&self) -> bool {
        matches!(self.shape, Shape::Own(_))
    }

    /// Length of the warm-up in optimizer steps.
    pub fn warmup_steps(&self) -> usize {
        self.warmup_steps
    }

    /// Length of the run in optimizer steps.
    pub fn total_steps(&self) -> usize {
        self.total_steps
    }

    /// The factor of the peak: the `lr_lambda` of Hugging Face's function of the same name.
    fn factor(&self, step: usize) -> f64 {
        let (now, warmup, total) = (step as f64, self.warmup_steps as f64, self.total_steps as f64);
        let after_warmup = (total - warmup).max(1.0);
        if step < self.warmup_steps {
            let progress = now / warmup;
            return match self.shape {
                Shape::CosineWithWarmupRate { warmup_rate: None, .. } => (now + 1.0) / warmup,
                Shape::CosineWithWarmupRate { warmup_rate: Some(rate), .. } => {
                    rate + (1.0 - rate) * now / (warmup - 1.0).max(1.0)
                }
                Shape::WarmupStableDecay { warmup_type, min_ratio, .. } => {
                    let factor = match warmup_type {
                        Ramp::Linear => progress,
                        Ramp::Cosine => 0.5 * (1.0 - (PI * progress).cos()),
                        Ramp::OneMinusSqrt => 1.0 - (1.0 - progress).sqrt(),
                    };
                    (factor * (1.0 - min_ratio) + min_ratio).max(0.0)
                }
                _ => progress,
            };
        }
        let progress = (now - warmup) / after_warmup;
        match self.shape {
            Shape::Own(ref own) => own.factor(step, self.total_steps).unwrap_or(f64::NAN),
            Shape::Constant => 1.0,
            Shape::Linear => ((total - now) / after_warmup).max(0.0),
            Shape::Cosine { num_cycles, min_rate } => cosine(num_cycles, progress, min_rate),
            Shape::CosineWithRestarts { .. } if progress >= 1.0 => 0.0,
            Shape::CosineWithRestarts { num_cycles } => {
                (0.5 * (1.0 + (PI * ((num_cycles * progress) % 1.0)).cos())).max(0.0)
            }
            Shape::Polynomial { lr_end, .. } if step > self.total_steps => lr_end / self.base_lr,
            Shape::Polynomial { lr_end, power } => {
                ((self.base_lr - lr_end) * (1.0 - progress).powf(power) + lr_end) / self.base_lr
            }
            Shape::InverseSqrt { timescale } => 1.0 / ((now + (timescale - warmup)) / timescale).sqrt(),
            // This one counts from 1 after its warm-up, so that the last step of the run is at the
            // minimum.
            Shape::CosineWithWarmupRate { num_cycles, min_rate, .. } => {
                cosine(num_cycles, (now - warmup + 1.0) / after_warmup, min_rate)
            }
            Shape::WarmupStableDecay { stable, decay, decay_type, min_ratio, num_cycles, .. } => {
                let decayed = step - self.warmup_steps;
                if decayed < stable {
                    return 1.0;
                }
                let decayed = decayed - stable;
                if decayed >= decay {
                    return min_ratio;
                }
                let progress = decayed as f64 / decay as f64;
                let factor = match decay_type {
                    Ramp::Linear => 1.0 - progress,
                    Ramp::Cosine => 0.5 * (1.0 + (PI * num_cycles * 2.0 * progress).cos()),
                    Ramp::OneMinusSqrt => 1.0 - progress.sqrt(),
                };
                (factor * (1.0 - min_ratio) + min_ratio).max(0.0)
            }
        }
    }
}

fn check_peak(base_lr: f64) -> Result<()> {
    if base_lr.is_finite() && base_lr > 0.0 {
        return Ok(());
    }
    Err(Error::config(format!("learning_rate: expected a number above 0, got {base_lr}")))
}

/// `num_cycles` waves of a cosine between 1 and `min_rate`.
fn cosine(num_cycles: f64, progress: f64, min_rate: f64) -> f64 {
    let factor = 0.5 * (1.0 + (PI * num_cycles * 2.0 * progress).cos());
    (factor * (1.0 - min_rate) + min_rate).max(0.0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::arguments::{Interval, StepSize};

    #[derive(serde::Deserialize)]
    struct Fixture {
        transformers: String,
        cases: Vec<Case>,
    }

    #[derive(serde::Deserialize)]
    struct Case {
        name: SchedulerType,
        learning_rate: f64,
        warmup_steps: Interval,
        total_steps: usize,
        kwargs: SchedulerKwargs,
        lr: Vec<f64>,
    }

    fn new(kind: &str, warmup: usize, total: usize, kwargs: &str) -> Result<Schedule> {
        let kwargs: SchedulerKwargs = toml::from_str(kwargs).unwrap();
        Schedule::new(kind.parse()?, 1e-3, warmup, total, &kwargs)
    }

    fn refused(result: Result<Schedule>, part: &str) {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }

    #[test]
    fn every_schedule_equals_transformers() {
        let text = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/schedules.json"));
        let fixture: Fixture = serde_json::from_str(text).unwrap();
        assert!(fixture.transformers.starts_with("5.23"));
        for kind in SchedulerType::ALL {
            assert!(fixture.cases.iter().any(|case| case.name == *kind), "no fixture for {kind}");
        }
        for case in fixture.cases {
            let warmup = case.warmup_steps.resolve(StepSize { total_steps: case.total_steps, samples: 1, tokens: 1.0 });
            let schedule =
                Schedule::new(case.name, case.learning_rate, warmup, case.total_steps, &case.kwargs).unwrap();
            for (step, expected) in case.lr.iter().enumerate() {
                let lr = schedule.lr(step);
                // The second term is for the zeros of a cosine: one rounding of a factor near 1
                // before it.
                let tolerance = 1e-12 * expected.abs() + 1e-16 * case.learning_rate;
                assert!(
                    (lr - expected).abs() <= tolerance,
                    "{} {:?} step {step}: {lr} is not {expected}",
                    case.name,
                    case.kwargs
                );
            }
        }
    }

    #[test]
    fn first_step_of_a_warm_up_has_rate_zero() {
        let schedule = new("linear", 4, 20, "").unwrap();
        assert_eq!(schedule.lr(0), 0.0);
        assert_eq!(schedule.lr(4), 1e-3);
        assert_eq!(schedule.lr(20), 0.0);
        assert_eq!((schedule.warmup_steps(), schedule.total_steps()), (4, 20));
        assert_eq!(schedule.name(), "linear");
    }

    #[test]
    fn a_warm_up_may_fill_the_run_but_not_exceed_it() {
        for kind in SchedulerType::ALL.iter().filter(|kind| **kind != SchedulerType::Constant) {
            let kwargs = match kind {
                SchedulerType::CosineWithMinLr | SchedulerType::CosineWarmupWithMinLr => "min_lr_rate = 0.1",
                SchedulerType::WarmupStableDecay => "num_decay_steps = 0",
                _ => "",
            };
            let schedule = new(kind.as_str(), 10, 10, kwargs).unwrap();
            assert!((0..15).all(|step| schedule.lr(step).is_finite()), "{kind}");
            refused(new(kind.as_str(), 11, 10, kwargs), "the warm-up of 11 steps is longer than the run of 10 steps");
        }
    }

    #[test]
    fn names_that_are_not_schedules() {
        refused(new("cosin", 0, 10, ""), "did you mean `cosine`?");
        refused(new("step", 0, 10, ""), "expected one of linear, cosine, cosine_with_restarts, polynomial");
        refused(new("reduce_lr_on_plateau", 0, 10, ""), "function of the step alone");
        refused(new("greedy", 0, 10, ""), "function of the step alone");
    }

    #[test]
    fn arguments_that_do_not_fit() {
        refused(new("linear", 0, 10, "power = 2.0"), "has no argument `power`: it takes none");
        refused(new("cosine_with_min_lr", 0, 10, "min_lr_ratio = 0.1"), "did you mean `min_lr_rate`?");
        refused(new("cosine_with_min_lr", 0, 10, ""), "needs `min_lr` or `min_lr_rate`");
        refused(new("cosine_with_min_lr", 0, 10, "min_lr = 1e-4\nmin_lr_rate = 0.1"), "two ways");
        refused(new("cosine_with_min_lr", 0, 10, "min_lr = 1e-2"), "expected at most learning_rate");
        refused(new("cosine_warmup_with_min_lr", 0, 10, "min_lr_rate = 1.5"), "expected a number from 0 to 1, got 1.5");
        refused(new("polynomial", 0, 10, "lr_end = 1e-3"), "expected less than learning_rate");
        refused(new("polynomial", 0, 10, "power = 0.0"), "expected a number above 0, got 0");
        refused(new("cosine", 0, 10, "num_cycles = nan"), "`num_cycles`: expected a finite number, got NaN");
        refused(new("inverse_sqrt", 0, 10, "timescale = 0"), "expected 1 or more, got 0");
        refused(new("warmup_stable_decay", 0, 10, ""), "needs `num_decay_steps`");
        refused(new("warmup_stable_decay", 5, 10, "num_decay_steps = 6"), "longer than the run of 10 steps");
        refused(new("constant", 3, 10, ""), "use `constant_with_warmup`");
    }

    #[test]
    fn runs_and_peaks_that_make_no_schedule() {
        refused(new("linear", 0, 0, ""), "no optimizer steps");
        for peak in [0.0, -1e-3, f64::NAN, f64::INFINITY] {
            let result = Schedule::new(SchedulerType::Linear, peak, 0, 10, &SchedulerKwargs::default());
            refused(result, "expected a number above 0");
        }
    }
}
