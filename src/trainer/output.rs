//! The run folder: `plan.toml`, `metrics.jsonl`, `status.json`, `trainer_state.json`, `checkpoints/`, and at the end
//! `all_results.json` and `model/` in Hugging Face's form. One process at a time has it: the file `.lock` is locked while a
//! run writes. A folder that belongs to another run is refused, and `model/` appears only when all of it is written.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use kiln_models::Model;
use kiln_models::weights::save;

use super::checkpoint::{self, Checkpoint};
use super::promise::Promise;
use super::status::{RunStatus, Status};
use super::{fault, run_log, tensorboard};
use crate::compiler;
use crate::config::{OnExisting, RunConfig};
use crate::data::tokenizer::write_files;
use crate::error::{Error, Result};
use crate::metrics::{MetricsFile, Record};
use crate::plan::RunPlan;
use crate::provenance::{self, Provenance};

/// What a run writes into its folder; `overwrite` removes these and nothing else.
const ENTRIES: &[&str] = &[
    "plan.toml",
    "metrics.jsonl",
    "model",
    checkpoint::FOLDER,
    super::status::FILE,
    "trainer_state.json",
    "all_results.json",
    compiler::auto::FILE,
    compiler::debug::FOLDER,
    fault::FOLDER,
    run_log::FILE,
    super::laps::FILE,
    provenance::FILE,
    tensorboard::FOLDER,
];

/// The locked file of a folder that a process writes to.
pub const LOCK: &str = ".lock";

/// An open run folder, this process's alone.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    /// `metrics.jsonl`
    pub metrics: MetricsFile,
    /// What the run promises not to change.
    pub promise: Promise,
    /// Where it stands, as `status.json` says.
    pub status: Status,
    /// The summary of a run that is resumed although it is complete, or its time over: there is nothing left to do.
    pub complete: Option<Record>,
    _lock: File,
}

impl RunFolder {
    /// Checks that the run may write to its folder, before time is spent on anything else.
    ///
    /// # Errors
    /// A folder that exists (unless `run.on_existing` allows it), one that another process writes to, or a path that is
    /// not a folder.
    pub fn check(config: &RunConfig) -> Result<PathBuf> {
        let path = config.output_dir()?;
        if path.exists() && !path.is_dir() {
            return Err(Error::config(format!("run.output_dir: {} exists and is not a folder", path.display()))
                .help("set run.output_dir to a folder that does not exist"));
        }
        let above = path.ancestors().skip(1).find(|above| above.exists());
        if let Some(above) = above.filter(|above| !above.is_dir()) {
            let (above, path) = (above.display(), path.display());
            return Err(Error::config(format!(
                "run.output_dir: {above} is not a folder, so {path} cannot be made in it"
            ))
            .help("set run.output_dir to a folder that does not exist"));
        }
        if path.join(LOCK).exists() {
            drop(lock(&path)?);
        }
        let used = ENTRIES.iter().any(|entry| path.join(entry).exists());
        let entries = fs::read_dir(&path).into_iter().flatten().flatten();
        let occupied = entries.into_iter().any(|entry| entry.file_name() != LOCK);
        match config.run.on_existing {
            OnExisting::Fail if occupied => {
                Err(Error::config(format!("run.output_dir: {} exists and is not empty", path.display())).help(
                    "set run.output_dir to another folder, --resume to continue the run in it, or run.on_existing = \
                     \"overwrite\" to replace it",
                ))
            }
            how @ (OnExisting::Overwrite | OnExisting::Resume) if occupied && !used => Err(Error::config(format!(
                "run.on_existing = \"{how}\": {} holds no run of Kiln's, so nothing in it is touched",
                path.display()
            ))
            .help("set run.output_dir to another folder")),
            _ => Ok(path),
        }
    }

    /// Makes the folder, takes its lock and writes `plan.toml`. With `run.on_existing = "resume"` also finds the newest
    /// whole checkpoint, and cuts off the rows of `metrics.jsonl` that were written after it.
    ///
    /// # Errors
    /// As [`check`](Self::check); a checkpoint that is of another run; the operating system's.
    pub fn create(plan: &RunPlan) -> Result<(Self, Option<Checkpoint>)> {
        let path = plan.output_dir()?;
        let io = |action: &str, path: &Path, error: &std::io::Error| {
            Error::io(format!("{action} {}", path.display()), error).help("run.output_dir must be a writable folder")
        };
        Self::check(&plan.config)?;
        fs::create_dir_all(&path).map_err(|error| io("create", &path, &error))?;
        let lock = lock(&path)?;
        // Again, now that nobody else can come between.
        if plan.config.run.on_existing == OnExisting::Fail {
            let entries = fs::read_dir(&path).into_iter().flatten().flatten();
            if entries.into_iter().any(|entry| entry.file_name() != LOCK) {
                return Err(Error::config(format!("run.output_dir: {} is not empty any more", path.display()))
                    .help("another run has begun in it; set run.output_dir to another folder"));
            }
        }
        let checkpoints = path.join(checkpoint::FOLDER);
        let promise = Promise::of(plan)?;
        let found = match plan.config.run.on_existing {
            OnExisting::Resume => {
                checkpoint::remove_unfinished(&checkpoints)?;
                Checkpoint::newest(&checkpoints)?
            }
            _ => None,
        };
        if let Some(found) = &found {
            found.state.promise.kept_by(&promise, found.state.step).map_err(|e| e.at(found.path.display()))?;
        }
        if found.is_none() && plan.config.run.on_existing == OnExisting::Resume {
            // What is there is somebody's work: only `overwrite` may replace it.
            let kept = fs::read_dir(&checkpoints).is_ok_and(|mut entries| entries.next().is_some());
            if kept || path.join("model").exists() {
                return Err(Error::data(format!(
                    "run.output_dir: {} holds a run, but no whole checkpoint to continue from",
                    path.display()
                ))
                .help("set run.output_dir to another folder, or run.on_existing = \"overwrite\" to replace it"));
            }
        }
        let ended = found.as_ref().is_some_and(|found| {
            let limit = plan.steps.max_duration;
            let out_of_time = limit.is_some_and(|limit| found.state.seconds >= limit.as_secs_f64());
            out_of_time || found.state.step >= plan.steps.total as u64
        });
        // A run that a signal stopped has no summary.
        if let (true, Some(status)) = (ended && path.join("model").exists(), Status::read(&path)?)
            && matches!(status.status, RunStatus::Completed | RunStatus::Stopped)
        {
            let metrics = MetricsFile::open(&path)?;
            if let Some(summary) = metrics.last_with("train_runtime") {
                return Ok((Self { path, metrics, promise, status, complete: Some(summary), _lock: lock }, found));
            }
        }
        let stale: &[&str] = match &found {
            Some(_) => &["all_results.json"],
            None => ENTRIES,
        };
        for entry in stale.iter().map(|entry| path.join(entry)).filter(|entry| entry.exists()) {
            let removed = if entry.is_dir() { fs::remove_dir_all(&entry) } else { fs::remove_file(&entry) };
            removed.map_err(|error| io("remove", &entry, &error))?;
        }
        write_whole(&path.join("plan.toml"), plan.to_toml()?.as_bytes())?;
        Provenance::of(plan).write(&path)?;
        let seconds = found.as_ref().map_or(0.0, |found| found.state.seconds);
        let metrics = match &found {
            Some(found) => MetricsFile::open_with(&path, found.state.metrics_rows)?,
            None => MetricsFile::open(&path)?,
        };
        let status = Status::begin(plan, seconds);
        status.write(&path)?;
        Ok((Self { path, metrics, promise, status, complete: None, _lock: lock }, found))
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder of the checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join(checkpoint::FOLDER)
    }

    /// Writes `all_results.json`: the last evaluation and the summary in one object, as `transformers`' examples do.
    ///
    /// # Errors
    /// The operating system's.
    pub fn write_results(&self, evaluation: Option<&Record>, summary: &Record) -> Result<()> {
        let mut results = summary.clone();
        for (name, value) in evaluation.into_iter().flat_map(Record::fields) {
            if name.starts_with("eval_") && summary.fields().all(|(known, _)| known != name) {
                results = results.with(name, value.clone());
            }
        }
        write_whole(&self.path.join("all_results.json"), (results.to_json() + "\n").as_bytes())
    }

    /// Writes `model/`: weights and the [files beside them](RunPlan::files_beside_weights). It is written aside and renamed.
    ///
    /// # Errors
    /// The operating system's; no `model/` is left behind then.
    pub fn write_model(&self, model: &Model, plan: &RunPlan) -> Result<PathBuf> {
        let target = self.path.join("model");
        match write_aside(&self.path, &target, model, plan) {
            Ok(()) => Ok(target),
            Err(error) => {
                Err(error.at(target.display()).help("make room there, or fix its permissions, and run again"))
            }
        }
    }
}

fn write_aside(run: &Path, target: &Path, model: &Model, plan: &RunPlan) -> Result<()> {
    let io = |error: std::io::Error| Error::io(format!("write {}", target.display()), &error);
    let aside = tempfile::Builder::new().prefix(".model-").tempdir_in(run).map_err(io)?;
    write_files(aside.path(), &plan.files_beside_weights(model)?)?;
    save(model, aside.path())?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(aside.path(), fs::Permissions::from_mode(0o755)).map_err(io)?;
    }
    if target.exists() {
        fs::remove_dir_all(target).map_err(io)?;
    }
    fs::rename(aside.path(), target).map_err(io)?;
    let _renamed = aside.keep(); // nothing is left under the temporary name to delete
    Ok(())
}

/// Locks the run folder `path` for this process. The lock ends with the process, however that ends.
fn lock(path: &Path) -> Result<File> {
    let file = path.join(LOCK);
    let io = |error: &std::io::Error| {
        Error::io(format!("lock {}", file.display()), error).help("run.output_dir must be a writable folder")
    };
    let open = File::options().create(true).truncate(false).write(true).open(&file).map_err(|error| io(&error))?;
    // `kiln describe` holds the lock for an instant to see whether it is free.
    for _ in 0..5 {
        match open.try_lock() {
            Ok(()) => return Ok(open),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(20)),
            Err(TryLockError::Error(error)) => return Err(io(&error)),
        }
    }
    Err(Error::config(format!("run.output_dir: another process is writing to {}", path.display()))
        .help("wait until that run ends, or set run.output_dir to another folder"))
}

/// Writes a file that appears under its name only when it is whole.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let error = |error: &std::io::Error| Error::io(format!("write {}", path.display()), error);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let aside = folder.join(format!(".{}.part", path.file_name().unwrap_or_default().to_string_lossy()));
    let write = || -> std::io::Result<()> {
        fs::write(&aside, bytes)?;
        File::open(&aside)?.sync_all()?;
        fs::rename(&aside, path)
    };
    write().map_err(|cause| {
        let _ = fs::remove_file(&aside);
        error(&cause)
    })
}
