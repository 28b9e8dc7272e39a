//! Which evaluation was the best so far, and when too many in a row were not better:
//! `metric_for_best_model` and `EarlyStoppingCallback` of `transformers`. It only counts; the loop
//! saves and stops.

use kiln_core::error::{Error, Result};
use kiln_core::metrics::Record;
use serde::{Deserialize, Serialize};

use crate::plan::SavingPlan;

/// The best evaluation so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// The figure that is compared, as evaluation rows name it.
    pub metric: String,
    /// More of it is better.
    pub greater_is_better: bool,
    /// The best value; none before the first evaluation. A NaN is never the best. Written exactly,
    /// as text.
    value: Option<String>,
    /// The step after which it was measured.
    pub step: Option<u64>,
    /// Evaluations in a row that were not better by more than the threshold.
    pub not_better: usize,
    #[serde(skip)]
    patience: Option<usize>,
    #[serde(skip)]
    threshold: f64,
}

impl Best {
    /// Before the first evaluation.
    pub fn new(saving: &SavingPlan) -> Self {
        Self {
            metric: saving.metric.clone(),
            greater_is_better: saving.greater_is_better,
            value: None,
            step: None,
            not_better: 0,
            patience: saving.early_stopping_patience,
            threshold: saving.early_stopping_threshold,
        }
    }

    /// Takes over what a checkpoint knows. One that compared another figure knows nothing of use.
    pub fn restore(&mut self, saved: &Self) {
        if (&saved.metric, saved.greater_is_better) == (&self.metric, self.greater_is_better) {
            (self.value, self.step, self.not_better) = (saved.value.clone(), saved.step, saved.not_better);
        }
    }

    /// The best value.
    pub fn value(&self) -> Option<f64> {
        self.value.as_ref().and_then(|value| value.parse().ok())
    }

    /// Whether the evaluations have not become better for `early_stopping_patience` times.
    pub fn is_exhausted(&self) -> bool {
        self.patience.is_some_and(|patience| self.not_better >= patience)
    }

    /// Takes the evaluation after `step` into account; true when it is the best so far.
    ///
    /// # Errors
    /// An evaluation without the figure.
    pub fn see(&mut self, row: &Record, step: u64) -> Result<bool> {
        let Some(value) = row.get(&self.metric) else {
            let names = row.fields().map(|(name, _)| name).filter(|name| name.starts_with("eval_"));
            return Err(Error::config(format!("trainer.metric_for_best_model: the evaluation has no {}", self.metric))
                .help(format!("it has {}", names.collect::<Vec<_>>().join(", "))));
        };
        let better = |than: f64| if self.greater_is_better { value > than } else { value < than };
        let best = self.value();
        let counts = best.is_none_or(|best| better(best) && (value - best).abs() > self.threshold);
        self.not_better = if counts && !value.is_nan() { 0 } else { self.not_better + 1 };
        let is_best = !value.is_nan() && best.is_none_or(better);
        if is_best {
            (self.value, self.step) = (Some(format!("{value:?}")), Some(step));
        }
        Ok(is_best)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::arguments::TrainingArguments;

    fn best(patience: usize, threshold: f64) -> Best {
        let saving = SavingPlan::of(&TrainingArguments::default(), 1);
        Best::new(&SavingPlan {
            early_stopping_patience: Some(patience),
            early_stopping_threshold: threshold,
            ..saving
        })
    }

    fn row(loss: f64) -> Record {
        Record::default().with("eval_loss", loss)
    }

    #[test]
    fn the_best_is_kept_and_patience_counts() {
        let mut best = best(2, 0.0);
        let seen = [3.0, 2.0, 2.5, f64::NAN, 1.0].iter().enumerate().map(|(step, loss)| {
            let is_best = best.see(&row(*loss), step as u64).unwrap();
            (is_best, best.is_exhausted())
        });
        let expected = [(true, false), (true, false), (false, false), (false, true), (true, false)];
        assert_eq!(seen.collect::<Vec<_>>(), expected);
        assert_eq!((best.value(), best.step), (Some(1.0), Some(4)));
    }

    #[test]
    fn a_small_gain_is_the_best_but_does_not_count() {
        let mut best = best(1, 0.1);
        assert!(best.see(&row(1.0), 1).unwrap());
        assert!(best.see(&row(0.95), 2).unwrap());
        assert!(best.is_exhausted());
    }

    #[test]
    fn a_figure_that_is_not_there_is_named() {
        let mut best = best(1, 0.0);
        best.metric = "eval_f1".into();
        let error = best.see(&row(1.0), 1).unwrap_err().to_string();
        assert!(error.contains("no eval_f1") && error.contains("eval_loss"), "{error}");
    }

    #[test]
    fn a_checkpoint_of_another_figure_starts_anew() {
        let mut saved = best(1, 0.0);
        saved.see(&row(0.1 + 0.2), 7).unwrap();
        let saved: Best = serde_json::from_str(&serde_json::to_string(&saved).unwrap()).unwrap();
        let mut same = best(1, 0.0);
        same.restore(&saved);
        assert_eq!((same.value(), same.step), (Some(0.1 + 0.2), Some(7)));
        let mut other = best(1, 0.0);
        other.metric = "eval_accuracy".into();
        other.restore(&saved);
        assert_eq!(other.value(), None);
    }
}
