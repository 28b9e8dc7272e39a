//! `run.log`: what a run printed, with the time, so that it can be read after the terminal is gone.
//! Appended by every process that takes the run up.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use kiln_core::clock;
use kiln_core::error::printable;
use kiln_core::metrics::Record;
use kiln_core::signal::Signal;

use super::callback::{Callback, Control, Progress};
use crate::run_folder::{RUN_LOG, TOLD_TO_STOP};

/// Writes the log of one run folder.
#[derive(Debug)]
pub struct RunLog {
    path: PathBuf,
    /// It could not be written once, which was said then.
    failed: bool,
    /// The last evaluation; at the end, that of the model that is kept.
    evaluation: Option<Record>,
}

impl RunLog {
    /// The log in the run folder `folder`.
    pub fn new(folder: &Path) -> Self {
        Self { path: folder.join(RUN_LOG), failed: false, evaluation: None }
    }

    /// Appends the lines of `text`. A log that cannot be written is no reason to end a training: it
    /// is said once.
    pub fn say(&mut self, text: impl Display) {
        let now = clock::rfc3339();
        let lines = printable(&text.to_string()).lines().map(|line| format!("{now} {line}\n")).collect::<String>();
        let file = OpenOptions::new().create(true).append(true).open(&self.path);
        let written = file.and_then(|mut file| file.write_all(lines.as_bytes()));
        if let (Err(error), false) = (&written, self.failed) {
            tracing::warn!("cannot write {}: {error}", self.path.display());
        }
        self.failed |= written.is_err();
    }
}

impl RunLog {
    /// `signal` tells the run to stop, which it does after its current step.
    pub fn told_to_stop(&mut self, signal: Signal) {
        self.say(format_args!("{TOLD_TO_STOP}{}: the run stops after the current step", signal.name()));
    }

    /// A run begins whose plan has these `lines`.
    pub(super) fn begin(&mut self, lines: &str) {
        self.say(format_args!("kiln {} begins\n{lines}", env!("CARGO_PKG_VERSION")));
    }
}

impl<M> Callback<M> for RunLog {
    fn on_resume(&mut self, progress: &Progress, checkpoint: &Path) {
        self.say(format_args!("continuing after step {} from {}", progress.step, checkpoint.display()));
    }

    fn on_log(&mut self, _progress: &Progress, row: &Record) {
        self.say(row.to_dict());
    }

    fn on_evaluate(&mut self, _progress: &Progress, row: &Record, _control: &mut Control) {
        self.say(row.to_dict());
        self.evaluation = Some(row.clone());
    }

    fn on_notice(&mut self, notice: &str) {
        self.say(notice);
    }

    fn on_save(&mut self, _progress: &Progress, checkpoint: &Path) {
        self.say(format_args!("saving {}", checkpoint.display()));
    }

    fn on_load_best(&mut self, _progress: &Progress, evaluation: &Record) {
        self.evaluation = Some(evaluation.clone());
    }

    fn on_train_end(&mut self, _progress: &Progress, summary: &Record) {
        self.say(summary.to_dict());
        self.say(summary.to_lines("train"));
        if let Some(evaluation) = self.evaluation.take() {
            self.say(evaluation.to_lines("eval"));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_line_has_its_time_and_a_failure_is_no_end() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = RunLog::new(folder.path());
        log.say("one\ntwo");
        let text = std::fs::read_to_string(folder.path().join(RUN_LOG)).unwrap();
        let lines = text.lines().collect::<Vec<_>>();
        assert!(lines[0].ends_with("Z one") && lines[1].ends_with("Z two") && lines.len() == 2, "{text}");
        let mut nowhere = RunLog::new(&folder.path().join("none"));
        nowhere.say("lost");
        assert!(nowhere.failed);
    }
}
