//! The files that a run keeps for its page, `report.html`: the texts that it generated, and the
//! confusion matrix of its last evaluation. The page itself is written by the function that is
//! handed to [`Trainer::with_page`].

use std::path::Path;
use std::time::Instant;

use burn::module::Module;
use kiln_core::error::{Error, Result};
use kiln_core::files::{write_json, write_whole};
use kiln_core::signals;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Trainer;
use super::callback::Progress;
use super::observer::Part;
use super::output::RunFolder;
use super::run::Run;
use crate::arguments::Samples;
use crate::confusion::Confusion;
use crate::engine::device::release_memory;
use crate::task::TrainingTask;

/// The page of a run, in its folder.
pub const PAGE: &str = "report.html";

/// The texts that the model wrote at the end of the run and on the way, in the run folder: lines
/// with `step`, `prompt` and `text`.
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
    /// `page` is called with the run folder when a run has ended, well or not, and its
    /// `status.json` says how: it writes the page of the run there.
    /// `kiln_measure::report::page_of_run` is such a function. Its errors are shown as warnings.
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
        let names = self.session.task.class_names()?;
        let classes = 0..confusion.num_labels();
        let name = |class: usize| names.as_ref().and_then(|names| names.get(class)).cloned();
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

    /// Whether samples of text follow step `step`, besides those at the end of a run of `total`
    /// steps.
    pub(super) fn samples_are_due(&self, step: u64, total: u64) -> bool {
        let Samples::Every(every) = self.session.plan().samples else { return false };
        step.is_multiple_of(every as u64) && step != total && self.purpose.writes_model() && self.world.is_root()
    }

    /// Makes the samples of the step from which the run is continued, where a signal cut them
    /// short.
    pub(super) fn make_up_samples(&mut self, folder: &RunFolder, run: &mut Run) -> Result<()> {
        let Progress { step, total_steps, .. } = run.progress;
        if step == 0 || !self.samples_are_due(step, total_steps) {
            return Ok(());
        }
        let path = folder.path().join(SAMPLES);
        if earlier_samples(&path, step + 1)?.len() > earlier_samples(&path, step)?.len() {
            Ok(())
        } else {
            self.show_samples(folder, run)
        }
    }

    /// Lets the model write its samples, keeps them and shows them.
    pub(super) fn show_samples(&mut self, folder: &RunFolder, run: &mut Run) -> Result<()> {
        let samples = self.sample(folder, run)?;
        if !samples.is_empty() {
            self.callbacks.iter_mut().for_each(|callback| callback.on_samples(&run.progress, &samples));
        }
        Ok(())
    }

    /// Lets the model write its samples and keeps them in the place of those of this step and of
    /// later ones, which a run that was continued from an earlier checkpoint makes again. None are
    /// written once a signal has come, since it cuts them short.
    pub(super) fn sample(&mut self, folder: &RunFolder, run: &mut Run) -> Result<Vec<String>> {
        if self.session.plan().samples == Samples::Never {
            return Ok(Vec::new());
        }
        let (started, step) = (Instant::now(), run.progress.step);
        let samples = self.session.task.samples(&self.state.model.valid(), &self.session.device)?;
        if signals::received().is_some() {
            return Ok(Vec::new());
        }
        // Batches of other shapes leave pages in the device's pools that training does not use.
        release_memory(&self.session.device);
        let path = folder.path().join(SAMPLES);
        let mut lines = earlier_samples(&path, step)?;
        for (prompt, text) in &samples {
            lines += &format!("{}\n", json!({"step": step, "prompt": prompt, "text": text}));
        }
        write_whole(&path, lines.as_bytes())?;
        run.clock.exclude_evaluation(started.elapsed());
        self.observer.part(Part::Evaluation);
        Ok(samples.into_iter().map(|(_, text)| text).collect())
    }
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
fn earlier_samples(path: &Path, step: u64) -> Result<String> {
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
