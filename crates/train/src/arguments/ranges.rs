//! Ranges of the values of arguments, beside those of [`kiln_core::ranges`].

use std::path::Path;

use kiln_core::complaint::{Checked, Complaint, MAX_STEPS, at_least, at_most};
use kiln_core::ranges::{above_0, number, text, whole};

use super::{ClassWeights, Interval};

/// Epochs or minutes: numbers above 0 that can be multiplied.
pub(super) fn duration(key: &str, value: &Option<f64>) -> Checked {
    above_0(key, value)?;
    value.map_or(Ok(()), |value| at_most(key, value, MAX_STEPS as f64))
}

/// Limits of a z-score.
pub(super) fn z_score(key: &str, value: &Option<f64>) -> Checked {
    number("a number of 0 or more (0 applies all steps)", |value| value >= 0.0)(key, value)
}

/// Optimizer steps of a run.
pub(super) fn steps(key: &str, steps: &Option<usize>) -> Checked {
    let help = "-1, or no such key, leaves the length to num_train_epochs; with 0 transformers makes one idle step";
    whole(1..=usize::MAX)(key, steps).map_err(|complaint| complaint.help(help))?;
    whole(1..=MAX_STEPS)(key, steps)
}

/// Intervals of at least so many steps.
pub(super) fn interval<T: Copy + Into<Option<Interval>>>(least: usize) -> impl Fn(&str, &T) -> Checked {
    move |key, value| match (*value).into() {
        Some(Interval::Steps(steps)) => at_least(key, steps, least),
        Some(interval @ (Interval::Samples(0) | Interval::Tokens(0))) if least > 0 => {
            Err(Complaint::new(key, format!("expected more than {interval}")))
        }
        Some(ratio) if !ratio.is_valid() => {
            Err(Complaint::new(key, format!("expected a ratio between 0 and 1, got {ratio}")))
        }
        _ => Ok(()),
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
pub(super) fn folder(key: &str, folder: &Path) -> Checked {
    if folder.as_os_str().is_empty() {
        return Err(Complaint::new(key, "required: the folder that the run writes to"));
    }
    Ok(())
}
