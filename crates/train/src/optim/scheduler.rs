//! The arguments of the learning-rate schedule: its name and its own arguments, both Hugging
//! Face's. The values themselves come from [`schedule`](super::schedule).

use kiln_core::choices;
use kiln_core::complaint::Complaint;
use kiln_core::error::{Error, Result, nearest};
use kiln_core::ranges::{ABOVE_0, number, whole};
use kiln_core::values::some_count;
use serde::{Deserialize, Serialize};

choices! {
    /// The learning-rate schedules of transformers 5.23 that are functions of the step alone.
    SchedulerType("learning-rate schedule", needs_metrics) {
        /// Warm-up, then a straight line to 0.
        Linear = "linear",
        /// Warm-up, then half a cosine to 0.
        Cosine = "cosine",
        /// Warm-up, then `num_cycles` half cosines, each from the peak to 0.
        CosineWithRestarts = "cosine_with_restarts",
        /// Warm-up, then a polynomial of degree `power` to `lr_end`.
        Polynomial = "polynomial",
        /// A constant rate; takes no warm-up.
        Constant = "constant",
        /// Warm-up, then the same rate.
        ConstantWithWarmup = "constant_with_warmup",
        /// Warm-up, then falling with the inverse square root of the step.
        InverseSqrt = "inverse_sqrt",
        /// [`Cosine`](Self::Cosine) that ends at `min_lr` or `min_lr_rate`.
        CosineWithMinLr = "cosine_with_min_lr",
        /// [`CosineWithMinLr`](Self::CosineWithMinLr) whose warm-up starts above 0, at
        /// `warmup_lr_rate`.
        CosineWarmupWithMinLr = "cosine_warmup_with_min_lr",
        /// Warm-up, a plateau, then a decay over the last `num_decay_steps`.
        WarmupStableDecay = "warmup_stable_decay",
    }
}

fn needs_metrics(given: &str) -> Option<Error> {
    matches!(given, "reduce_lr_on_plateau" | "greedy").then(|| {
        Error::config(format!(
            "Hugging Face's schedule `{given}` is not supported: it changes the rate by what it measures on the way, and \
             Kiln's learning rate is a function of the step alone"
        ))
        .help("use `cosine` or `warmup_stable_decay`")
    })
}

impl SchedulerType {
    /// The arguments that the schedule takes in `lr_scheduler_kwargs`.
    pub const fn kwargs(self) -> &'static [&'static str] {
        match self {
            Self::Linear | Self::Constant | Self::ConstantWithWarmup => &[],
            Self::Cosine | Self::CosineWithRestarts => &["num_cycles"],
            Self::Polynomial => &["lr_end", "power"],
            Self::InverseSqrt => &["timescale"],
            Self::CosineWithMinLr => &["num_cycles", "min_lr", "min_lr_rate"],
            Self::CosineWarmupWithMinLr => &["num_cycles", "min_lr", "min_lr_rate", "warmup_lr_rate"],
            Self::WarmupStableDecay => {
                &["num_decay_steps", "num_stable_steps", "warmup_type", "decay_type", "min_lr_ratio", "num_cycles"]
            }
        }
    }
}

choices! {
    /// The form of a ramp of [`SchedulerType::WarmupStableDecay`].
    Ramp("ramp") {
        /// A straight line.
        Linear = "linear",
        /// A cosine.
        Cosine = "cosine",
        /// One minus a square root.
        OneMinusSqrt = "1-sqrt",
    }
}

kiln_core::keys! {
    /// `[trainer.lr_scheduler_kwargs]`: a schedule's own arguments. [`SchedulerType::kwargs`] says
    /// which schedule takes which; one that the schedule does not take is refused.
    #[serde(default, deny_unknown_fields)]
    pub struct SchedulerKwargs in "trainer.lr_scheduler_kwargs" {
        /// Waves of the cosine: 0.5 is the fall from the peak to the end (the default); for
        /// `cosine_with_restarts` the number of restarts (default 1).
        #[serde(skip_serializing_if = "Option::is_none")]
        num_cycles: Option<f64> = None, Bound, ABOVE_0;
        /// Degree of the polynomial (default 1).
        #[serde(skip_serializing_if = "Option::is_none")]
        power: Option<f64> = None, Bound, ABOVE_0;
        /// Learning rate at the end of `polynomial` (default 1e-7).
        #[serde(skip_serializing_if = "Option::is_none")]
        lr_end: Option<f64> = None, Bound, number("a number that is not negative", 0.0..);
        /// Learning rate at the end of the schedules with a minimum; this or `min_lr_rate` must be
        /// given.
        #[serde(skip_serializing_if = "Option::is_none")]
        min_lr: Option<f64> = None, Bound, number("a number that is not negative", 0.0..);
        /// Learning rate at the end of the schedules with a minimum, as a part of `learning_rate`.
        #[serde(skip_serializing_if = "Option::is_none")]
        min_lr_rate: Option<f64> = None, Bound, number(PART, 0.0..=1.0);
        /// Where the warm-up of `cosine_warmup_with_min_lr` starts, as a part of `learning_rate`
        /// (default one step's worth).
        #[serde(skip_serializing_if = "Option::is_none")]
        warmup_lr_rate: Option<f64> = None, Bound, number(PART, 0.0..=1.0);
        /// Time scale of `inverse_sqrt` in steps (default `warmup_steps`, or 10,000 without
        /// warm-up).
        #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
        timescale: Option<usize> = None, Bound, whole(1..=usize::MAX);
        /// Steps of the decay of `warmup_stable_decay`; must be given.
        #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
        num_decay_steps: Option<usize> = None, Bound;
        /// Steps of its plateau (default what warm-up and decay leave).
        #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
        num_stable_steps: Option<usize> = None, Bound;
        /// Form of its warm-up (default linear).
        #[serde(skip_serializing_if = "Option::is_none")]
        warmup_type: Option<Ramp> = None, Bound;
        /// Form of its decay (default cosine).
        #[serde(skip_serializing_if = "Option::is_none")]
        decay_type: Option<Ramp> = None, Bound;
        /// Where its warm-up starts and its decay ends, as a part of `learning_rate` (default 0).
        #[serde(skip_serializing_if = "Option::is_none")]
        min_lr_ratio: Option<f64> = None, Bound, number(PART, 0.0..=1.0);
    }
}

/// The range of a part of a whole.
const PART: &str = "a number from 0 to 1";

impl SchedulerKwargs {
    /// Whether none is given.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Checks that the arguments are ones that `kind` takes, that those it needs are there and that
    /// their values make sense for a peak of `learning_rate`.
    ///
    /// # Errors
    /// A config error that names the argument.
    pub fn check(&self, kind: SchedulerType, learning_rate: f64) -> Result<()> {
        let takes = kind.kwargs();
        if let Some(name) = self.given().map(|key| key.field).find(|name| !takes.contains(name)) {
            let list =
                if takes.is_empty() { "it takes none".to_owned() } else { format!("it takes {}", takes.join(", ")) };
            let error = Error::config(format!("the schedule `{kind}` has no argument `{name}`: {list}"));
            return Err(match nearest(name, takes.iter().copied()) {
                Some(near) => error.help(format!("did you mean `{near}`?")),
                None => error.help("remove it, or choose a schedule that takes it in lr_scheduler_type"),
            });
        }
        self.check_ranges().map_err(Complaint::of_an_argument)?;
        match kind {
            SchedulerType::Polynomial => {
                let lr_end = self.lr_end.unwrap_or(DEFAULT_LR_END);
                (lr_end < learning_rate).then_some(()).ok_or_else(|| {
                    Error::config(format!(
                        "`lr_end`: expected less than learning_rate ({learning_rate:e}), got {lr_end:e}"
                    ))
                })
            }
            SchedulerType::CosineWithMinLr | SchedulerType::CosineWarmupWithMinLr => {
                match (self.min_lr, self.min_lr_rate) {
                    (Some(_), Some(_)) => {
                        Err(Error::config("`min_lr` and `min_lr_rate` are two ways of stating the same thing")
                            .help("keep one"))
                    }
                    (None, None) => {
                        Err(Error::config(format!("the schedule `{kind}` needs `min_lr` or `min_lr_rate`"))
                            .help("for a fall to 10 %: lr_scheduler_kwargs = { min_lr_rate = 0.1 }"))
                    }
                    (Some(min_lr), None) if min_lr > learning_rate => Err(Error::config(format!(
                        "`min_lr`: expected at most learning_rate ({learning_rate:e}), got {min_lr:e}"
                    ))),
                    _ => Ok(()),
                }
            }
            SchedulerType::WarmupStableDecay if self.num_decay_steps.is_none() => {
                Err(Error::config(format!("the schedule `{kind}` needs `num_decay_steps`"))
                    .help("for example lr_scheduler_kwargs = { num_decay_steps = 100 }"))
            }
            _ => Ok(()),
        }
    }
}

/// Hugging Face's default of `lr_end`.
pub(crate) const DEFAULT_LR_END: f64 = 1e-7;
