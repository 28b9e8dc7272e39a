//! The results of a job, where its platform looks for them: the model by itself, everything else,
//! why it failed, and how long it took over all its starts.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kiln_core::error::{Error, ErrorKind, Result, printable};
use kiln_core::files::{write_json, write_whole};
use serde::{Deserialize, Serialize};

use super::contract::{Contract, failure};

/// So much of a failure is shown by the platform.
const MOST: usize = 1024;

/// The file that counts the seconds of a job, beside its checkpoints.
const JOB: &str = "job.json";

/// How often that file is written while the job runs, after a tenth of the time that it has taken:
/// at least and at most.
const TICK: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];

/// The file that says why a job failed.
pub(super) struct Failure {
    path: PathBuf,
}

impl Failure {
    /// Removes what an earlier start of the job under `root` has left.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) fn at(root: &Path) -> Result<Self> {
        let path = failure(root);
        match fs::remove_file(&path) {
            Err(error) if !matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
                Err(Error::io(format!("remove {}", path.display()), &error))
            }
            _ => Ok(Self { path }),
        }
    }

    /// Writes `error`, at most 1024 characters of it. A signal is no failure: the job is started
    /// again or was no longer wanted.
    ///
    /// # Errors
    /// `error` itself, and why it cannot be written.
    pub(super) fn write(&self, error: &Error) -> Result<()> {
        if matches!(error.kind(), ErrorKind::Interrupted(_)) {
            return Ok(());
        }
        let text = printable(&error.to_string()).into_owned();
        let text = match text.char_indices().nth(MOST) {
            Some(_) => text.chars().take(MOST - 3).chain("...".chars()).collect(),
            None => text,
        };
        let folder = self.path.parent().unwrap_or(Path::new("."));
        // A root that is not there is not made.
        let is_there = folder.parent().is_some_and(Path::is_dir);
        let made = if is_there { fs::create_dir_all(folder) } else { return Ok(()) };
        let io = |error: &std::io::Error| Error::io(format!("create {}", folder.display()), error);
        if let Err(second) = made.map_err(|error| io(&error)).and_then(|()| write_whole(&self.path, text.as_bytes())) {
            tracing::warn!("{second}");
        }
        Ok(())
    }
}

/// Copies what the run in the folder `run` has made: the model to the folder of the model, all but
/// checkpoints to the folder of other results.
///
/// # Errors
/// The operating system's.
pub(super) fn publish(contract: &Contract, run: &Path) -> Result<()> {
    let model = run.join("model");
    if model.is_dir() {
        copy(&model, &contract.model, &|_| true)?;
    }
    let is_result = |name: &str| !name.starts_with('.') && !["checkpoints", "model"].contains(&name);
    if run.is_dir() { copy(run, &contract.output, &is_result) } else { Ok(()) }
}

/// Copies the entries of `from` whose names `takes` takes, each file at once whole.
fn copy(from: &Path, to: &Path, takes: &dyn Fn(&str) -> bool) -> Result<()> {
    fs::create_dir_all(to).map_err(|error| Error::io(format!("create {}", to.display()), &error))?;
    let entries = fs::read_dir(from).map_err(|error| Error::io(format!("read {}", from.display()), &error))?;
    for entry in entries.flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        if !takes(&name.to_string_lossy()) {
            continue;
        }
        let target = to.join(&name);
        if path.is_dir() {
            copy(&path, &target, &|_| true)?;
            continue;
        }
        let partial = to.join(format!(".{}.partial", name.to_string_lossy()));
        let copied = fs::copy(&path, &partial).and_then(|_| fs::rename(&partial, &target));
        if let Err(error) = copied {
            let _ = fs::remove_file(&partial);
            return Err(Error::io(format!("copy {} to {}", path.display(), target.display()), &error));
        }
    }
    Ok(())
}

/// The seconds of a job, over all its starts. A start that is killed counts as far as was written
/// last.
#[derive(Debug)]
pub(super) struct Clock {
    /// None on a machine that keeps no checkpoints.
    file: Option<PathBuf>,
    begun: Instant,
    written: Instant,
    starts: Starts,
}

/// The content of `job.json`.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Starts {
    /// The seconds of each start of the job, this one the last.
    seconds: Vec<f64>,
}

impl Clock {
    /// Begins to count a start of the job whose folder of checkpoints is `folder`; without one it
    /// is kept nowhere.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub(super) fn start(folder: Option<&PathBuf>) -> Result<Self> {
        let file = folder.map(|folder| folder.join(JOB));
        // A file that says nothing is no reason not to train.
        let read = file.as_ref().and_then(|file| fs::read(file).ok());
        let starts = read.and_then(|bytes| serde_json::from_slice::<Starts>(&bytes).ok());
        let mut starts = starts.unwrap_or_default();
        starts.seconds.push(0.0);
        let clock = Self { file, begun: Instant::now(), written: Instant::now(), starts };
        clock.write()?;
        Ok(clock)
    }

    /// Writes how long it has been, now and then.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub(super) fn tick(&mut self) -> Result<()> {
        let due = (self.begun.elapsed() / 10).clamp(TICK[0], TICK[1]);
        if self.written.elapsed() < due { Ok(()) } else { self.stop() }
    }

    /// Writes how long it has been.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub(super) fn stop(&mut self) -> Result<()> {
        self.written = Instant::now();
        if let Some(last) = self.starts.seconds.last_mut() {
            *last = self.begun.elapsed().as_secs_f64();
        }
        self.write()
    }

    fn write(&self) -> Result<()> {
        self.file.as_ref().map_or(Ok(()), |file| write_json(file, &self.starts))
    }

    /// The lines at the end, in the words of SageMaker's Python SDK, which counts the seconds of
    /// each of `machines`; with the `price` of an hour of one, the cost too.
    pub(super) fn lines(&self, price: Option<f64>, machines: usize) -> Vec<String> {
        let seconds = self.starts.seconds.iter().sum::<f64>().ceil() * machines as f64;
        let mut lines = vec![format!("Training seconds: {seconds}"), format!("Billable seconds: {seconds}")];
        if let Some(price) = price {
            lines.push(format!("Cost: {:.4} ({seconds} seconds at {price} an hour)", seconds / 3600.0 * price));
        }
        lines
    }
}
