//! The folder of a local job: what it holds, how the job stands, its log.
//!
//! ```text
//! jobs/NAME/status.json   how the job stands, written whole at every change
//!           log.txt       what all its starts have said, with the lines of its status
//!           opt/ml/       what is /opt/ml in a container
//!           output/       model.tar.gz and output.tar.gz
//! ```

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use kiln::run_folder::runs::Run;
use kiln::run_folder::{RunStatus, Status};
use kiln_core::clock;
use kiln_core::error::{Error, Result};
use kiln_core::files::{read_json, write_json};
use serde::{Deserialize, Serialize};

use crate::job::RUN;
use crate::metrics::Definition;
use crate::say;

const STATUS: &str = "status.json";
const LOG: &str = "log.txt";
const LOCK: &str = ".lock";
const STOP: &str = ".stop";

/// The folder of a job.
#[derive(Debug, Clone)]
pub(super) struct JobFolder(pub(super) PathBuf);

/// How a job stands; names and statuses are SageMaker's.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct JobStatus {
    pub(super) name: String,
    pub(super) status: RunStatus,
    /// The last of `transitions`.
    pub(super) secondary_status: String,
    /// Why it failed or stopped.
    pub(super) message: Option<String>,
    /// Exit code of the last start, when it has ended.
    pub(super) exit_code: Option<u8>,
    /// The kind of its runner: `process`, `docker` or `podman`.
    pub(super) runner: String,
    /// How often it was started.
    pub(super) starts: u64,
    /// Seconds of training over all starts.
    pub(super) training_seconds: f64,
    pub(super) max_run: u64,
    pub(super) written_at: f64,
    pub(super) transitions: Vec<Transition>,
    #[serde(default)]
    pub(super) metric_definitions: Vec<Definition>,
}

/// A change of a job's status.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Transition {
    pub(super) status: String,
    /// Seconds since 1970.
    pub(super) at: f64,
    pub(super) message: String,
}

impl JobFolder {
    /// The folder of the job `name` in the folder of all jobs.
    pub(super) fn of(jobs: &Path, name: &str) -> Self {
        Self(jobs.join(name))
    }

    /// The folder that a container sees as `/opt/ml`.
    pub(super) fn root(&self) -> PathBuf {
        self.0.join("opt/ml")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.0.join(LOG)
    }

    /// How the job stands, by its file; none where there is no job.
    ///
    /// # Errors
    /// The operating system's; a file that is damaged.
    pub(super) fn status(&self) -> Result<Option<JobStatus>> {
        let path = self.0.join(STATUS);
        if path.exists() { read_json(&path).map(Some) } else { Ok(None) }
    }

    /// Begins to work on the job: until the file is dropped nobody else does. None where somebody
    /// does already.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) fn lock(&self) -> Result<Option<File>> {
        let path = self.0.join(LOCK);
        let io = |error: std::io::Error| Error::io(format!("lock {}", path.display()), &error);
        let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(io(error)),
        }
    }

    /// Whether somebody works on the job now.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) fn is_going_on(&self) -> Result<bool> {
        Ok(self.0.join(LOCK).exists() && self.lock()?.is_none())
    }

    /// Asks whoever works on the job to stop it.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) fn ask_to_stop(&self) -> Result<()> {
        let path = self.0.join(STOP);
        File::create(&path).map(drop).map_err(|error| Error::io(format!("write {}", path.display()), &error))
    }

    /// Whether somebody has asked to stop the job.
    pub(super) fn is_to_stop(&self) -> bool {
        self.0.join(STOP).exists()
    }

    /// Forgets that somebody has asked to stop the job.
    pub(super) fn forget_stop(&self) {
        // Where nobody has asked there is no such file.
        let _ = fs::remove_file(self.0.join(STOP));
    }

    /// How the job stands; one whose launcher was killed could not say so any more. None where the
    /// folder holds no job.
    ///
    /// # Errors
    /// The operating system's; a file that is damaged.
    pub(super) fn standing(&self) -> Result<Option<JobStatus>> {
        let goes_on = self.is_going_on()?;
        let Some(mut job) = self.status()? else { return Ok(None) };
        if job.status == RunStatus::InProgress && !goes_on {
            job.status = RunStatus::Failed;
            job.message = Some("the process that ran it was killed; submit the job again to continue it".into());
        }
        Ok(Some(job))
    }

    /// The folder of the job's run.
    fn run(&self) -> PathBuf {
        self.root().join("checkpoints").join(RUN)
    }

    /// The job has come to `status`, which its file and its log say from now on.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) fn enter(&self, job: &mut JobStatus, status: &str, message: impl Into<String>) -> Result<()> {
        let (at, message) = (clock::seconds(), message.into());
        status.clone_into(&mut job.secondary_status);
        let path = self.log();
        let io = |error: std::io::Error| Error::io(format!("write {}", path.display()), &error);
        let mut log = File::options().create(true).append(true).open(&path).map_err(io)?;
        let moment = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs_f64(at)).to_string();
        let moment = moment.trim_end_matches('Z').replace('T', " ");
        writeln!(log, "{moment} {status} - {message}").map_err(io)?;
        job.transitions.push(Transition { status: status.into(), at, message });
        self.write(job)
    }

    /// Writes the status.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) fn write(&self, job: &mut JobStatus) -> Result<()> {
        job.written_at = clock::seconds();
        write_json(&self.0.join(STATUS), job)
    }
}

/// Whether `folder` is that of a job: a run has a status of another form, and no such log.
pub(crate) fn is_job(folder: &Path) -> bool {
    folder.join(STATUS).is_file() && folder.join(LOG).is_file()
}

/// The run of the job in `folder`, which stands as the job does: a job may fail before its run
/// begins, and after it.
///
/// # Errors
/// A status that cannot be read, of the job or of its run.
pub(crate) fn run_of_job(folder: &Path) -> Result<Option<Run>> {
    let job_folder = JobFolder(folder.to_owned());
    let Some(job) = job_folder.standing()? else { return Ok(None) };
    let run = Run::read(&job_folder.run())?.unwrap_or_else(|| {
        let begun = job.transitions.first().map_or(job.written_at, |begun| begun.at);
        Run::of_status(
            folder,
            Status {
                status: job.status,
                message: None,
                name: None,
                model: "-".into(),
                step: 0,
                total_steps: 0,
                best_model: None,
                started_at: begun,
                written_at: job.written_at,
                seconds_before: 0.0,
                seconds: job.training_seconds,
            },
        )
    });
    let status = Status { status: job.status, name: Some(job.name), ..run.status };
    let reason = job.message.or(run.reason.filter(|_| job.status != RunStatus::InProgress));
    // A job is continued by its launcher, with the input that it lays out.
    Ok(Some(Run { status, reason, continued_by: None, ..run }))
}

/// The names of the jobs in a folder.
pub(super) fn names(jobs: &Path) -> Vec<String> {
    let entries = fs::read_dir(jobs).into_iter().flatten().flatten();
    let jobs = entries.filter(|entry| is_job(&entry.path()));
    let mut names = jobs.map(|job| job.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>();
    names.sort();
    names
}

/// Prints a log as it grows, in whole lines.
#[derive(Debug)]
pub(super) struct Follower {
    file: File,
    rest: Vec<u8>,
}

impl Follower {
    /// Follows the log `path` from `offset`.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) fn new(path: &Path, offset: u64) -> Result<Self> {
        let io = |error: std::io::Error| Error::io(format!("read {}", path.display()), &error);
        let mut file = File::open(path).map_err(io)?;
        file.seek(SeekFrom::Start(offset)).map_err(io)?;
        Ok(Self { file, rest: Vec::new() })
    }

    /// Prints what has come; with `all` also a last line that does not end.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) fn print(&mut self, all: bool) -> Result<()> {
        self.file.read_to_end(&mut self.rest).map_err(|error| Error::io("read the job's log", &error))?;
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line = self.rest.drain(..=end).collect::<Vec<_>>();
            say(String::from_utf8_lossy(&line[..end]))?;
        }
        if all && !self.rest.is_empty() {
            say(String::from_utf8_lossy(&std::mem::take(&mut self.rest)))?;
        }
        Ok(())
    }
}
