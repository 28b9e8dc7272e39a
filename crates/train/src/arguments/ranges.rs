//! Ranges of the values of arguments. Each is a function of the key and the value; a value that is
//! not given is in every range.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::Path;

use kiln_core::complaint::{Checked, Complaint, MAX_STEPS, at_least, at_most, not_empty};

use super::{ClassWeights, Interval};

/// Finite numbers for which `holds`, which `expected` says in words.
pub(super) fn number<T: Copy + Into<Option<f64>>>(
    expected: &str,
    holds: fn(f64) -> bool,
) -> impl Fn(&str, &T) -> Checked {
    move |key, value| match (*value).into() {
        Some(value) if !value.is_finite() => Err(Complaint::new(key, format!("expected a finite number, got {value}"))),
        Some(value) if !holds(value) => Err(Complaint::new(key, format!("expected a number {expected}, got {value}"))),
        _ => Ok(()),
    }
}

/// Numbers above 0.
pub(super) fn above_0(key: &str, value: &(impl Copy + Into<Option<f64>>)) -> Checked {
    number("above 0", |value| value > 0.0)(key, value)
}

/// Numbers of 0 or more.
pub(super) fn from_0(key: &str, value: &(impl Copy + Into<Option<f64>>)) -> Checked {
    number("of 0 or more", |value| value >= 0.0)(key, value)
}

/// Numbers from 0 to below 1.
pub(super) fn from_0_to_1(key: &str, value: &(impl Copy + Into<Option<f64>>)) -> Checked {
    number("from 0 to below 1", |value| (0.0..1.0).contains(&value))(key, value)
}

/// Numbers above 0 and at most 1.
pub(super) fn above_0_to_1(key: &str, value: &(impl Copy + Into<Option<f64>>)) -> Checked {
    number("above 0 and at most 1", |value| value > 0.0 && value <= 1.0)(key, value)
}

/// Epochs or minutes: numbers above 0 that can be multiplied.
pub(super) fn duration(key: &str, value: &Option<f64>) -> Checked {
    above_0(key, value)?;
    value.map_or(Ok(()), |value| at_most(key, value, MAX_STEPS as f64))
}

/// Limits of a z-score.
pub(super) fn z_score(key: &str, value: &Option<f64>) -> Checked {
    number("of 0 or more (0 applies all steps)", |value| value >= 0.0)(key, value)
}

/// Whole numbers in `range`.
pub(super) fn whole<N: PartialOrd + Display + Copy, T: Copy + Into<Option<N>>>(
    range: RangeInclusive<N>,
) -> impl Fn(&str, &T) -> Checked {
    move |key, value| match (*value).into() {
        Some(value) => at_least(key, value, *range.start()).and_then(|()| at_most(key, value, *range.end())),
        None => Ok(()),
    }
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
    match weights.iter().flat_map(ClassWeights::numbers).find(|weight| *weight <= 0.0) {
        Some(weight) => Err(Complaint::new(key, format!("expected numbers above 0, got {weight}"))),
        None => Ok(()),
    }
}

/// A text that is not empty.
pub(super) fn text(key: &str, text: &Option<String>) -> Checked {
    not_empty(key, text.as_deref())
}

/// Texts that are not empty.
pub(super) fn texts(key: &str, texts: &[String]) -> Checked {
    texts.iter().try_for_each(|text| not_empty(key, Some(text)))
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
