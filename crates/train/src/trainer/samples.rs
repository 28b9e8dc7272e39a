//! The page of a run, its confusion matrix and the texts that the model writes.

use std::time::Instant;

use burn::module::Module;
use kiln_core::error::Result;
use kiln_core::files::{write_json, write_whole};
use kiln_core::signals;
use serde_json::json;

use super::callback::{Activity, Progress};
use super::observer::Part;
use super::run::Training;
use super::setup::Trainer;
use crate::arguments::Samples;
use crate::confusion::{Confusion, class_name};
use crate::engine::device::release_memory;
use crate::run_folder::{
    CONFUSION, ConfusionFile, RunFolder, SAMPLES,
    page::{MOST_CLASSES, earlier_samples},
};
use crate::task::TrainingTask;

impl<T: TrainingTask> Trainer<T> {
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
        let names = names.unwrap_or_default();
        let kept = ConfusionFile {
            step,
            labels: classes.clone().map(|class| class_name(&names, class)).collect(),
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
    pub(super) fn make_up_samples(&mut self, folder: &RunFolder, run: &mut Training) -> Result<()> {
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
    pub(super) fn show_samples(&mut self, folder: &RunFolder, run: &mut Training) -> Result<()> {
        let samples = self.sample(folder, run)?;
        if !samples.is_empty() {
            self.callbacks.iter_mut().for_each(|callback| callback.on_samples(&run.progress, &samples));
        }
        Ok(())
    }

    /// Lets the model write its samples and keeps them in the place of those of this step and of
    /// later ones, which a run that was continued from an earlier checkpoint makes again. None are
    /// written once a signal has come, since it cuts them short.
    pub(super) fn sample(&mut self, folder: &RunFolder, run: &mut Training) -> Result<Vec<String>> {
        if self.session.plan().samples == Samples::Never {
            return Ok(Vec::new());
        }
        let _time = self.spans.open(Part::Evaluation);
        self.tell(&run.progress, Activity::Generating);
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
        Ok(samples.into_iter().map(|(_, text)| text).collect())
    }
}
