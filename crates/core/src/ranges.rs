//! Ranges of the values of settings. A value that is not given is in every range.

use std::fmt::Display;
use std::ops::{Bound, RangeBounds, RangeInclusive};

use serde::Serialize;
use serde_json::json;

use crate::complaint::{Checked, Complaint, at_least, at_most, not_empty};
use crate::schema::Value;

/// The values that a key of type `T` may have: a function of the key and the value, or one of the
/// types here, which a JSON Schema has too.
pub trait Range<T: ?Sized> {
    /// Whether `value` is one of them.
    ///
    /// # Errors
    /// A complaint about the key.
    fn check(&self, key: &str, value: &T) -> Checked;

    /// The JSON Schema `of_type` with these values alone.
    fn bound(&self, of_type: Value) -> Value {
        of_type
    }
}

/// Seeds: any number of 64 bits. One above the whole numbers of TOML stands in quotes.
pub struct Seed;

impl<T> Range<T> for Seed {
    fn check(&self, _key: &str, _value: &T) -> Checked {
        Ok(())
    }

    fn bound(&self, _of_type: Value) -> Value {
        json!({ "type": ["number", "string"], "multipleOf": 1, "minimum": 0, "pattern": "^[0-9]+$" })
    }
}

impl<T: ?Sized, F: Fn(&str, &T) -> Checked> Range<T> for F {
    fn check(&self, key: &str, value: &T) -> Checked {
        self(key, value)
    }
}

/// Finite numbers in a range, which the text says in words.
#[derive(Debug, Clone, Copy)]
pub struct Number(&'static str, Bound<f64>, Bound<f64>);

/// Finite numbers in `range`, which `expected` says in words.
pub fn number(expected: &'static str, range: impl RangeBounds<f64>) -> Number {
    Number(expected, range.start_bound().cloned(), range.end_bound().cloned())
}

/// Numbers above 0.
pub const ABOVE_0: Number = Number("a number above 0", Bound::Excluded(0.0), Bound::Unbounded);
/// Numbers of 0 or more.
pub const FROM_0: Number = Number("a number of 0 or more", Bound::Included(0.0), Bound::Unbounded);
/// Numbers from 0 to below 1.
pub const FROM_0_TO_1: Number = Number("a number from 0 to below 1", Bound::Included(0.0), Bound::Excluded(1.0));
/// Numbers above 0 and at most 1.
pub const ABOVE_0_TO_1: Number = Number("a number above 0 and at most 1", Bound::Excluded(0.0), Bound::Included(1.0));

impl<T: Copy + Into<Option<f64>>> Range<T> for Number {
    fn check(&self, key: &str, value: &T) -> Checked {
        let Self(expected, from, to) = *self;
        match (*value).into() {
            Some(value) if !value.is_finite() => {
                Err(Complaint::new(key, format!("expected a finite number, got {value}")))
            }
            Some(value) if !(from, to).contains(&value) => {
                Err(Complaint::new(key, format!("expected {expected}, got {value}")))
            }
            _ => Ok(()),
        }
    }

    fn bound(&self, mut of_type: Value) -> Value {
        let mut excluded = Vec::new();
        for (word, bound) in [("minimum", self.1), ("maximum", self.2)] {
            match bound {
                Bound::Included(number) => of_type[word] = number.into(),
                Bound::Excluded(number) => {
                    of_type[word] = number.into();
                    excluded.push(number);
                }
                Bound::Unbounded => {}
            }
        }
        if !excluded.is_empty() {
            of_type["not"] = json!({ "enum": excluded });
        }
        of_type
    }
}

/// Whole numbers in a range.
#[derive(Debug, Clone)]
pub struct Whole<N>(RangeInclusive<N>);

/// Whole numbers in `range`.
pub fn whole<N>(range: RangeInclusive<N>) -> Whole<N> {
    Whole(range)
}

impl<N: PartialOrd + Display + Copy + Serialize, T: Copy + Into<Option<N>>> Range<T> for Whole<N> {
    fn check(&self, key: &str, value: &T) -> Checked {
        match (*value).into() {
            Some(value) => at_least(key, value, *self.0.start()).and_then(|()| at_most(key, value, *self.0.end())),
            None => Ok(()),
        }
    }

    fn bound(&self, mut of_type: Value) -> Value {
        of_type["minimum"] = json!(self.0.start());
        // Above the numbers of TOML there is no limit.
        if let Some(most) = json!(self.0.end()).as_i64().filter(|most| *most < i64::MAX) {
            of_type["maximum"] = most.into();
        }
        of_type
    }
}

/// Sections, or sections that may be left out, whose own values are in their ranges.
#[derive(Debug, Clone, Copy)]
pub struct Section<S>(pub fn(&S) -> Checked);

impl<S> Range<S> for Section<S> {
    fn check(&self, _: &str, section: &S) -> Checked {
        self.0(section)
    }
}

impl<S> Range<Option<S>> for Section<S> {
    fn check(&self, _: &str, section: &Option<S>) -> Checked {
        section.as_ref().map_or(Ok(()), self.0)
    }
}

/// A range whose key is read with other spellings of its values too: those of a JSON Schema.
#[derive(Debug, Clone, Copy)]
pub struct Spelled<R>(pub R, pub fn() -> Value);

impl<T, R: Range<T>> Range<T> for Spelled<R> {
    fn check(&self, key: &str, value: &T) -> Checked {
        self.0.check(key, value)
    }

    fn bound(&self, of_type: Value) -> Value {
        let mut of_type = self.0.bound(of_type);
        let description = of_type.as_object_mut().and_then(|schema| schema.remove("description"));
        let mut schema = json!({ "anyOf": [of_type, self.1()] });
        if let Some(description) = description {
            schema["description"] = description;
        }
        schema
    }
}

/// All values.
///
/// # Errors
/// None.
pub fn any<T: ?Sized>(_: &str, _: &T) -> Checked {
    Ok(())
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
pub fn texts(key: &str, texts: &impl AsRef<[String]>) -> Checked {
    texts.as_ref().iter().try_for_each(|text| not_empty(key, Some(text)))
}
