//! The files that a run keeps for its page, `report.html`: the texts that it generated, and the
//! confusion matrix of its model. The page itself is written by the function that is
//! handed to `Trainer::with_page`.

use std::path::Path;

use kiln_core::error::{Error, Result};
use kiln_core::files::{read_regular_text, write_whole};
use serde::{Deserialize, Serialize};

/// The page of a run, in its folder.
pub const PAGE: &str = "report.html";

/// The texts that the model wrote at the end of the run and on the way, in the run folder: lines
/// with `step`, `prompt` and `text`.
pub const SAMPLES: &str = "samples.jsonl";

/// The confusion matrix of a classification, in the run folder: of the last evaluation, or with
/// `trainer.load_best_model_at_end` of the best one.
pub const CONFUSION: &str = "confusion_matrix.json";

/// A matrix of more classes is not kept: it has more counts than anybody reads.
pub(crate) const MOST_CLASSES: usize = 256;

/// The contents of `confusion_matrix.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConfusionFile {
    /// Optimizer steps made.
    pub step: u64,
    /// The names of the classes.
    pub labels: Vec<String>,
    /// `[label][prediction]`: how many examples.
    pub counts: Vec<Vec<u64>>,
}

impl ConfusionFile {
    /// Whether it has a row and a column for each label.
    pub fn is_square(&self) -> bool {
        let size = self.labels.len();
        size > 0 && self.counts.len() == size && self.counts.iter().all(|row| row.len() == size)
    }
}

/// Whether the file at `path` holds a confusion matrix of step `step` or of an earlier one.
pub(super) fn has_confusion_until(path: &Path, step: u64) -> bool {
    let text = read_regular_text(path).unwrap_or_default();
    serde_json::from_str::<ConfusionFile>(&text).is_ok_and(|kept| kept.is_square() && kept.step <= step)
}

/// Writes those lines of the file at `from` that are of step `step` and earlier ones to `to`; false
/// when there are none.
pub(super) fn keep_samples(from: &Path, to: &Path, step: u64) -> Result<bool> {
    let lines = earlier_samples(from, step + 1)?;
    if !lines.is_empty() {
        write_whole(to, lines.as_bytes())?;
    }
    Ok(!lines.is_empty())
}

/// The lines of the file at `path` that are of steps before `step`; empty where there is no file.
pub(crate) fn earlier_samples(path: &Path, step: u64) -> Result<String> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(String::new()),
        Err(error) => return Err(Error::io(format!("read {}", path.display()), &error)),
    };
    let is_earlier = |line: &&str| {
        let line = serde_json::from_str::<serde_json::Value>(line).ok();
        line.and_then(|line| line.get("step")?.as_u64()).is_some_and(|of| of < step)
    };
    Ok(text.lines().filter(is_earlier).map(|line| format!("{line}\n")).collect())
}
