//! The choice of the mode where `compiler.enabled = "auto"` leaves it to a trial, as it is kept in
//! the run folder.

use std::path::Path;

use kiln_core::error::{Error, ErrorKind, Result};
use kiln_core::files::{read_json_if_there, write_whole};
use kiln_core::words::json_words;
use serde::{Deserialize, Serialize};

use crate::engine::handover::Engine;
use crate::engine::settings::CompilerMode;

/// The file in the run folder that holds the choice.
pub const FILE: &str = "compiler.json";

/// The choice and what it rests on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// `native` or `compiled`.
    pub mode: CompilerMode,
    /// Why, for people.
    pub reason: String,
    /// Median time of a native step in milliseconds.
    pub native_step_ms: Option<f64>,
    /// Median time of a compiled step in milliseconds.
    pub compiled_step_ms: Option<f64>,
    /// The time that the first compiled step of every shape takes beyond a later one, less that of
    /// the first native step, in seconds.
    pub compiled_start_seconds: Option<f64>,
    /// Steps after which that is regained.
    pub break_even_steps: Option<f64>,
}

impl Decision {
    /// The engine that computes by it, where each mode has one.
    pub fn engine(&self) -> Engine {
        if self.mode == CompilerMode::Compiled { Engine::Compiled } else { Engine::Native }
    }

    /// This decision as JSON, for the engine that computes by it.
    ///
    /// # Errors
    /// A number that JSON cannot hold.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string_pretty(self).map_err(|error| Error::data(format!("{FILE}: {error}")))
    }

    /// Reads the value that [`to_json`](Self::to_json) has written.
    ///
    /// # Errors
    /// Any other text.
    pub fn from_json(text: &str) -> Result<Self> {
        serde_json::from_str(text)
            .map_err(|error| Error::config(format!("expected a choice of the mode: {}", json_words(&error))))
    }

    /// The choice of an earlier process of the run in `folder`; none when there is none.
    ///
    /// # Errors
    /// A file that is no such choice, and the operating system's.
    pub fn read(folder: &Path) -> Result<Option<Self>> {
        read_json_if_there(&folder.join(FILE)).map_err(|error| match error.kind() {
            ErrorKind::Data => {
                error.help("remove the file to have the modes tried again, or set compiler.enabled to true or false")
            }
            _ => error,
        })
    }

    /// Writes the choice into the run folder.
    ///
    /// # Errors
    /// The operating system's.
    pub fn write(&self, folder: &Path) -> Result<()> {
        write_whole(&folder.join(FILE), (self.to_json()? + "\n").as_bytes())
    }
}

impl std::fmt::Display for Decision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "compiler auto: {}, {}", self.mode, self.reason)
    }
}
