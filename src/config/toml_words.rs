//! Errors of TOML's reader in the words of Kiln's other messages.

use std::fmt;

use kiln_core::error::Error;
use kiln_core::words::serde_words;

/// A message of TOML's reader about a value, in the words of Kiln's other messages.
pub fn plain_words(message: &str) -> String {
    serde_words(message, "a table")
}

/// The error of `text`, which came from `origin`, and is no TOML or not that of a value.
pub fn toml_error(origin: impl fmt::Display, text: &str, error: &toml::de::Error) -> Error {
    let words = plain_words(error.message());
    let Some(at) = error.span().map(|span| span.start.min(text.len())).filter(|_| !text.is_empty()) else {
        return Error::config(format!("{origin}: {words}"));
    };
    let number = text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count();
    // The end of the text may lie behind its last line.
    let line = text.lines().nth(number).or_else(|| text.lines().last()).unwrap_or_default().trim();
    let line = line.chars().take(80).collect::<String>();
    Error::config(format!("{origin}:{}: {words}, in {line:?}", number + 1))
}
