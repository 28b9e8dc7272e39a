//! The files that a run keeps for its page, `report.html`: the text that it generated at its end, and the confusion matrix of its
//! last evaluation. The page itself is written by the function that is handed to [`Trainer::with_page`].

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Trainer;
use super::output::RunFolder;
use crate::base::error::Result;
use crate::base::files::{write_json, write_whole};
use crate::data::labels::LabelNames;
use crate::session::TrainingTask;
use crate::task::scores::Confusion;

/// The page of a run, in its folder.
pub const PAGE: &str = "report.html";

/// The text that the model wrote at the end of the run, in the run folder: a line with `step`, `prompt` and `text`.
pub const SAMPLES: &str = "samples.jsonl";

/// The confusion matrix of the last evaluation of a classification, in the run folder.
pub const CONFUSION: &str = "confusion_matrix.json";

/// A matrix of more classes is not kept: it has more counts than anybody reads.
const MOST_CLASSES: usize = 256;

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

impl<T: TrainingTask> Trainer<T> {
    /// `page` is called with the run folder when a run has ended, well or not, and its `status.json` says how: it writes the
    /// page of the run there. [`page_of_run`](crate::measure::report::page_of_run) is such a function. Its errors are shown as
    /// warnings.
    #[must_use]
    pub fn with_page(mut self, page: impl Fn(&Path) -> Result<()> + 'static) -> Self {
        self.page = Some(Box::new(page));
        self
    }

    /// Lets the page of the run in `folder` be written.
    pub(super) fn write_page(&self, folder: &RunFolder) {
        if let Some(Err(error)) = self.page.as_ref().map(|page| page(folder.path())) {
            tracing::warn!("the run has no page: {error}");
        }
    }

    /// Keeps the confusion matrix of the evaluation after step `step`, where there is one.
    pub(super) fn keep_confusion(&self, folder: &RunFolder, confusion: Option<&Confusion>, step: u64) -> Result<()> {
        let Some(confusion) = confusion.filter(|confusion| confusion.num_labels() <= MOST_CLASSES) else {
            return Ok(());
        };
        let names = match &self.session.plan().model.config {
            Some(config) => LabelNames::of_model(config.labels())?,
            None => None,
        };
        let classes = 0..confusion.num_labels();
        let name = |class: usize| names.as_ref().and_then(|names| names.names().get(class)).cloned();
        let kept = ConfusionFile {
            step,
            labels: classes.clone().map(|class| name(class).unwrap_or_else(|| format!("LABEL_{class}"))).collect(),
            counts: classes
                .clone()
                .map(|label| classes.clone().map(|of| confusion.count(label, of)).collect())
                .collect(),
        };
        write_json(&folder.path().join(CONFUSION), &kept)
    }

    /// Keeps the text that the model wrote after step `step`.
    pub(super) fn keep_sample(&self, folder: &RunFolder, sample: &str, step: u64) -> Result<()> {
        let prompt = self.session.plan().generation.as_ref().map(|options| options.prompt.as_str());
        let line = json!({"step": step, "prompt": prompt, "text": sample});
        write_whole(&folder.path().join(SAMPLES), format!("{line}\n").as_bytes())
    }
}
