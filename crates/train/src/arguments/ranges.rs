//! Ranges of the values of arguments, beside those of [`kiln_core::ranges`].

use std::path::Path;

use kiln_core::complaint::{Checked, Complaint, MAX_STEPS, at_least, at_most};
use kiln_core::ranges::{ABOVE_0, Range, text, whole};
use kiln_core::schema::Value;
use serde_json::json;

use super::{ClassWeights, Interval};

/// Epochs or minutes: numbers above 0 that can be multiplied.
pub(super) struct Duration;

impl Range<Option<f64>> for Duration {
    fn check(&self, key: &str, value: &Option<f64>) -> Checked {
        ABOVE_0.check(key, value)?;
        value.map_or(Ok(()), |value| at_most(key, value, MAX_STEPS as f64))
    }

    fn bound(&self, of_type: Value) -> Value {
        let mut bound = Range::<Option<f64>>::bound(&ABOVE_0, of_type);
        bound["maximum"] = MAX_STEPS.into();
        bound
    }
}

/// A first and a last step.
pub(super) struct Window;

impl Range<Option<[u64; 2]>> for Window {
    fn check(&self, key: &str, window: &Option<[u64; 2]>) -> Checked {
        match window {
            Some([first, last]) if *first == 0 || first > last => {
                let message = format!(
                    "expected a first step of 1 or more and a last one that is not before it, got [{first}, {last}]"
                );
                Err(Complaint::new(key, message))
            }
            _ => Ok(()),
        }
    }

    fn bound(&self, mut of_type: Value) -> Value {
        of_type["items"]["minimum"] = 1.into();
        of_type
    }
}

/// Optimizer steps of a run.
pub(super) struct Steps;

impl Range<Option<usize>> for Steps {
    fn check(&self, key: &str, steps: &Option<usize>) -> Checked {
        let help = "-1, or no such key, leaves the length to num_train_epochs; with 0 transformers makes one idle step";
        whole(1..=usize::MAX).check(key, steps).map_err(|complaint| complaint.help(help))?;
        whole(1..=MAX_STEPS).check(key, steps)
    }

    fn bound(&self, of_type: Value) -> Value {
        Range::<Option<usize>>::bound(&whole(1..=MAX_STEPS), of_type)
    }
}

/// Intervals of at least so many steps.
pub(super) struct AtLeast(pub usize);

impl<T: Copy + Into<Option<Interval>>> Range<T> for AtLeast {
    fn check(&self, key: &str, value: &T) -> Checked {
        match (*value).into() {
            Some(Interval::Steps(steps)) => at_least(key, steps, self.0),
            Some(interval @ (Interval::Samples(0) | Interval::Tokens(0))) if self.0 > 0 => {
                Err(Complaint::new(key, format!("expected more than {interval}")))
            }
            Some(ratio) if !ratio.is_valid() => {
                Err(Complaint::new(key, format!("expected a ratio between 0 and 1, got {ratio}")))
            }
            _ => Ok(()),
        }
    }

    fn bound(&self, mut of_type: Value) -> Value {
        if self.0 > 0 {
            of_type["not"] = json!({ "enum": [0] });
        }
        of_type
    }
}

/// Weights of classes, each above 0.
pub(super) fn weights(key: &str, weights: &Option<ClassWeights>) -> Checked {
    match weights.iter().flat_map(ClassWeights::numbers).find(|weight| !(weight.is_finite() && *weight > 0.0)) {
        Some(weight) => Err(Complaint::new(key, format!("expected numbers above 0, got {weight}"))),
        None => Ok(()),
    }
}

/// One line of text.
pub(super) fn line(key: &str, line: &Option<String>) -> Checked {
    text(key, line)?;
    if line.iter().any(|line| line.chars().any(char::is_control)) {
        return Err(Complaint::new(key, "expected one line of text without control characters"));
    }
    Ok(())
}

/// The folder of the run, which has no default.
pub(super) fn folder(key: &str, folder: &impl AsRef<Path>) -> Checked {
    if folder.as_ref().as_os_str().is_empty() {
        return Err(Complaint::new(key, "required: the folder that the run writes to"));
    }
    Ok(())
}
