//! Mistakes in settings, by the key of the setting, and the rules that many settings share.

use std::fmt::Display;

use crate::error::Error;

/// A mistake in one key, before it is known where in which file that key stands.
#[derive(Debug)]
pub struct Complaint {
    /// The key, such as `trainer.max_steps`.
    pub key: String,
    /// The mistake.
    pub error: Error,
}

/// Whether a rule is kept.
pub type Checked = Result<(), Complaint>;

impl Complaint {
    /// `message` says what was expected and what was given.
    pub fn new(key: &str, message: impl Into<String>) -> Self {
        Self::of(key, Error::config(message))
    }

    /// An error of a value that knows no key.
    pub fn of(key: &str, error: Error) -> Self {
        Self { key: key.to_owned(), error }
    }

    /// The error about an argument in the table of a key, which it names by itself.
    pub fn of_an_argument(self) -> Error {
        let name = self.key.rsplit('.').next().unwrap_or_default();
        self.error.at(format_args!("`{name}`"))
    }

    /// The complaint with advice.
    #[must_use]
    pub fn help(self, help: impl Into<String>) -> Self {
        Self { error: self.error.help(help), ..self }
    }
}

impl From<Complaint> for Error {
    fn from(Complaint { key, error }: Complaint) -> Self {
        error.at(if key.is_empty() { "\"\"" } else { &key })
    }
}

/// Far above any use, and small enough that steps, samples and bytes can be multiplied in 64 bits.
pub const MAX_STEPS: usize = 1 << 31;
/// The most examples of a batch, for the same reason.
pub const MAX_BATCH: usize = 1 << 20;

/// Whether `value` is at most `most`.
///
/// # Errors
/// A complaint about `key`.
pub fn at_most<N: PartialOrd + Display>(key: &str, value: N, most: N) -> Checked {
    if value > most { Err(Complaint::new(key, format!("expected at most {most}, got {value}"))) } else { Ok(()) }
}

/// Whether `value` is at least `least`.
///
/// # Errors
/// A complaint about `key`.
pub fn at_least<N: PartialOrd + Display>(key: &str, value: N, least: N) -> Checked {
    if value < least { Err(Complaint::new(key, format!("expected {least} or more, got {value}"))) } else { Ok(()) }
}

/// Whether `value`, where it is given, has text.
///
/// # Errors
/// A complaint about `key`.
pub fn not_empty(key: &str, value: Option<&str>) -> Checked {
    match value {
        Some(text) if text.trim().is_empty() => {
            Err(Complaint::new(key, "expected a name or path, got an empty string"))
        }
        _ => Ok(()),
    }
}

/// The complaint that `key` and `other` state one thing.
pub fn two_ways(key: &str, other: &str, help: &str) -> Complaint {
    Complaint::new(key, format!("`{other}` and `{key}` are two ways of stating the same thing"))
        .help(format!("keep one: {help}"))
}
