//! Ranges of the values of settings. Each is a function of the key and the value; a value that is
//! not given is in every range.

use std::fmt::Display;
use std::ops::RangeInclusive;

use crate::complaint::{Checked, Complaint, at_least, at_most, not_empty};

/// Finite numbers for which `holds`, which `expected` says in words.
pub fn number<T: Copy + Into<Option<f64>>>(expected: &str, holds: fn(f64) -> bool) -> impl Fn(&str, &T) -> Checked {
    move |key, value| match (*value).into() {
        Some(value) if !value.is_finite() => Err(Complaint::new(key, format!("expected a finite number, got {value}"))),
        Some(value) if !holds(value) => Err(Complaint::new(key, format!("expected {expected}, got {value}"))),
        _ => Ok(()),
    }
}

/// Numbers above 0.
///
/// # Errors
/// A complaint about the key.
pub fn above_0(key: &str, value: &(impl Copy + Into<Option<f64>>)) -> Checked {
    number("a number above 0", |value| value > 0.0)(key, value)
}

/// Numbers of 0 or more.
///
/// # Errors
/// A complaint about the key.
pub fn from_0(key: &str, value: &(impl Copy + Into<Option<f64>>)) -> Checked {
    number("a number of 0 or more", |value| value >= 0.0)(key, value)
}

/// Numbers from 0 to below 1.
///
/// # Errors
/// A complaint about the key.
pub fn from_0_to_1(key: &str, value: &(impl Copy + Into<Option<f64>>)) -> Checked {
    number("a number from 0 to below 1", |value| (0.0..1.0).contains(&value))(key, value)
}

/// Numbers above 0 and at most 1.
///
/// # Errors
/// A complaint about the key.
pub fn above_0_to_1(key: &str, value: &(impl Copy + Into<Option<f64>>)) -> Checked {
    number("a number above 0 and at most 1", |value| value > 0.0 && value <= 1.0)(key, value)
}

/// Whole numbers in `range`.
pub fn whole<N: PartialOrd + Display + Copy, T: Copy + Into<Option<N>>>(
    range: RangeInclusive<N>,
) -> impl Fn(&str, &T) -> Checked {
    move |key, value| match (*value).into() {
        Some(value) => at_least(key, value, *range.start()).and_then(|()| at_most(key, value, *range.end())),
        None => Ok(()),
    }
}

/// Sections, or sections that may be left out, whose own values are in their ranges.
pub fn section<S, T>(check: fn(&S) -> Checked) -> impl Fn(&str, &T) -> Checked
where
    for<'a> &'a T: Into<Option<&'a S>>,
{
    move |_, section| section.into().map_or(Ok(()), check)
}

/// A text that is not empty.
///
/// # Errors
/// A complaint about the key.
pub fn text(key: &str, text: &Option<String>) -> Checked {
    not_empty(key, text.as_deref())
}

/// Texts that are not empty.
///
/// # Errors
/// A complaint about the key.
pub fn texts(key: &str, texts: &[String]) -> Checked {
    texts.iter().try_for_each(|text| not_empty(key, Some(text)))
}
