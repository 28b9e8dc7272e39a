//! `status.json`: how a run stands, for whoever looks at its folder later. Together with the lock
//! of the folder it tells a run that is going on from one whose process was killed.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::UNIX_EPOCH;

use kiln_core::clock;
use kiln_core::error::{Error, ErrorKind, Result};
use kiln_core::files::{read_json_if_there, write_json};
use kiln_core::metrics::Record;
use kiln_core::signal::Signal;
use serde::{Deserialize, Serialize};

use super::manifest::LOCK;
use super::names::RUN_LOG;
use crate::plan::TrainPlan;

/// The file's name.
pub const FILE: &str = "status.json";

/// How a run stands. The names are those of SageMaker's training jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunStatus {
    /// A process is at work on it.
    InProgress,
    /// It reached its end.
    Completed,
    /// A signal or `trainer.max_minutes` stopped it; it can be continued.
    Stopped,
    /// It ended with an error, or its process was killed.
    Failed,
}

impl std::fmt::Display for RunStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::InProgress => "InProgress",
            Self::Completed => "Completed",
            Self::Stopped => "Stopped",
            Self::Failed => "Failed",
        })
    }
}

/// The model in `model/` that `trainer.load_best_model_at_end` has chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BestModel {
    /// The step after which it was evaluated and saved.
    pub step: u64,
    /// The figure by which it was the best, as evaluation rows name it.
    pub metric: String,
}

/// The content of `status.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// How the run stands.
    pub status: RunStatus,
    /// The error that ended it, or why it stopped before its last step.
    pub message: Option<String>,
    /// The run's name, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The model's type and the task.
    pub model: String,
    /// Optimizer steps made when this was written.
    pub step: u64,
    /// Optimizer steps that the plan wants.
    pub total_steps: u64,
    /// The model that `trainer.load_best_model_at_end` kept, also where it is that of the last
    /// step; none without that setting, before the end, and where the best checkpoint is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_model: Option<BestModel>,
    /// When this process took the run up, in seconds since 1970.
    pub started_at: f64,
    /// When this was written.
    pub written_at: f64,
    /// Seconds that the run had taken before that process took it up.
    pub seconds_before: f64,
    /// Seconds that the run has taken, over all its processes.
    pub seconds: f64,
}

/// The message of a run whose process could not tell its end.
pub(super) const KILLED: &str = "the process ended without a word: it was killed, by hand or by the kernel where memory \
                                 ran out (signal 9), or the machine stopped";

/// The beginning of the line of `run.log` about a signal that has come while a step goes on; its
/// name and a colon follow.
pub(crate) const TOLD_TO_STOP: &str = "told to stop by ";

/// So much of the end of `run.log` is read, in bytes: the lines of one step.
const LAST_LINES: u64 = 1 << 16;

/// The message of a run whose process was ended after a signal had told it to stop; none where the
/// log of its last process tells of no signal.
fn told_to_stop(folder: &Path) -> Option<String> {
    let log = folder.join(RUN_LOG);
    // A pipe in its place would not open.
    let mut log = log.is_file().then(|| File::open(log).ok()).flatten()?;
    let size = log.metadata().ok()?.len();
    log.seek(SeekFrom::Start(size.saturating_sub(LAST_LINES))).ok()?;
    let mut end = Vec::new();
    log.read_to_end(&mut end).ok()?;
    let end = String::from_utf8_lossy(&end);
    // Each line begins with its time.
    let lines = end.lines().rev().filter_map(|line| Some(line.split_once(' ')?.1));
    let mut of_process = lines.take_while(|line| !(line.starts_with("kiln ") && line.ends_with(" begins")));
    let name = of_process.find_map(|line| line.strip_prefix(TOLD_TO_STOP)?.split(':').next())?;
    let signal = Signal::ALL.iter().copied().find(|signal| signal.name() == name)?;
    let by = match signal {
        Signal::Interrupt => "interrupted by the user (SIGINT)".to_owned(),
        _ => format!("told to stop by {name}"),
    };
    Some(format!(
        "{by}, and ended before the step was made and a checkpoint saved: by a second signal, or killed (signal 9)"
    ))
}

impl Status {
    /// A run that begins now, or is taken up after `seconds`.
    pub fn begin(plan: &TrainPlan, task: Option<&str>, seconds: f64) -> Self {
        let now = clock::seconds();
        Self {
            status: RunStatus::InProgress,
            message: None,
            name: plan.run.name.clone(),
            model: task.map_or(plan.model.kind.clone(), |task| format!("{} {task}", plan.model.kind)),
            step: 0,
            total_steps: plan.steps.total as u64,
            best_model: None,
            started_at: now,
            written_at: now,
            seconds_before: seconds,
            seconds,
        }
    }

    /// The run has come to `step` of `total_steps`, `seconds` after this process took it up.
    pub fn advance(&mut self, step: u64, total_steps: u64, seconds: f64) {
        (self.step, self.total_steps) = (step, total_steps);
        self.seconds = self.seconds_before + seconds;
        self.written_at = clock::seconds();
    }

    /// The evaluation, among the rows of the run, of the model that was kept: the last one unless
    /// the best was kept.
    pub fn evaluation<'a>(&self, rows: impl DoubleEndedIterator<Item = &'a Record>) -> Option<&'a Record> {
        let step = self.best_model.as_ref().map(|best| best.step as f64);
        let is_of_model = |row: &&Record| step.is_none_or(|step| row.get("step") == Some(step));
        rows.rev().filter(|row| row.get("eval_loss").is_some()).find(is_of_model)
    }

    /// The run has ended well, or with `error`.
    pub fn end(&mut self, error: Option<&Error>) {
        (self.status, self.message) = match error {
            // The loop's message about an early end stays.
            None if self.status == RunStatus::InProgress => (RunStatus::Completed, self.message.take()),
            None => (self.status, self.message.take()),
            Some(error) => match error.kind() {
                ErrorKind::Interrupted(_) => (RunStatus::Stopped, Some(error.to_string())),
                _ => (RunStatus::Failed, Some(error.to_string())),
            },
        };
        self.written_at = clock::seconds();
    }

    /// Writes `status.json` into the run folder.
    ///
    /// # Errors
    /// The operating system's.
    pub fn write(&self, folder: &Path) -> Result<()> {
        write_json(&folder.join(FILE), self)
    }

    /// Reads how the run in `folder` stands; none when there is no run of Kiln's. A run that says
    /// it is in progress while nobody holds its folder was killed.
    ///
    /// # Errors
    /// A `status.json` that is no such file.
    pub fn read(folder: &Path) -> Result<Option<Self>> {
        let Some(mut status) = read_json_if_there::<Self>(&folder.join(FILE))? else { return Ok(None) };
        if status.status == RunStatus::InProgress {
            let lock = folder.join(LOCK);
            // A pipe in its place would not open.
            let free = lock.is_file() && File::open(lock).is_ok_and(|file| file.try_lock_shared().is_ok());
            // A clock that was set back gives no negative time.
            let since = |at: f64| (at - status.started_at).max(0.0);
            if free {
                let last = fs::metadata(folder.join("metrics.jsonl")).and_then(|file| file.modified()).ok();
                let last = last.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).map_or(0.0, |at| at.as_secs_f64());
                let seconds = status.seconds_before + since(last.max(status.written_at));
                status.seconds = status.seconds.max(seconds);
                status.status = RunStatus::Failed;
                status.message = Some(told_to_stop(folder).unwrap_or_else(|| KILLED.into()));
            } else {
                status.seconds = status.seconds.max(status.seconds_before + since(clock::seconds()));
            }
        }
        Ok(Some(status))
    }
}
