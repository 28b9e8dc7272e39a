//! The run folder: `plan.toml`, `plan.json`, `metrics.jsonl`, `status.json`, `trainer_state.json`,
//! `checkpoints/`, and at the end `all_results.json` and `model/` in Hugging Face's form. One
//! process at a time has it: the file `.lock` is locked while a run writes, and lists what Kiln has
//! written (`manifest`). A folder that belongs to another run is refused,
//! `model/` appears only when all of it is written, and a file that is not listed is never replaced
//! or removed.
//!
//! A process may be killed at any moment. The next process in the folder removes unfinished files,
//! and a folder that holds only the beginning of a run counts as empty.

pub mod checkpoint;
pub mod runs;
mod best;
mod card;
pub(crate) mod history;
pub(crate) mod manifest;
mod names;
pub(crate) mod page;
mod promise;
mod status;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kiln_core::error::{CONTINUE, Error, ErrorKind, Result};
use kiln_core::files::{
    NamedFile, is_blocked, read_regular, set_aside_damaged, write_files, write_folder, write_whole,
};
use kiln_core::metrics::{self, MetricsFile, Record};
use kiln_core::variables;
use kiln_models::weights::{StateDict, save};

pub use self::best::Best;
use self::checkpoint::{Checkpoint, State, keep};
use self::manifest::{LOCK, Listed, MODEL, MODEL_ASIDE, Manifest};
use self::names::EVENT_FILES;
pub use self::names::{
    COMPILER, COMPILER_FILES, FAULT, LOGS, MLFLOW, PREDICTIONS, RUN_LOG, STEP_TIMES, TENSORBOARD, TRACE, log_of,
};
pub use self::page::{CONFUSION, ConfusionFile, PAGE, SAMPLES};
pub use self::promise::Promise;
pub(crate) use self::status::TOLD_TO_STOP;
pub use self::status::{BestModel, RunStatus, Status};
use crate::arguments::{Integration, OnExisting};
use crate::engine::compiler;
use crate::plan::{RunSettings, TrainPlan};
use crate::provenance;
use crate::provenance::Provenance;

const RESULTS: &str = "all_results.json";

/// The files that every run writes into its folder, besides checkpoints and the model.
const FILES: [&str; 13] = [
    "plan.toml",
    crate::plan::FILE,
    metrics::FILE,
    status::FILE,
    history::FILE,
    RESULTS,
    RUN_LOG,
    STEP_TIMES,
    PREDICTIONS,
    PAGE,
    SAMPLES,
    CONFUSION,
    provenance::FILE,
];

/// The model that another one is about to take the place of.
const REPLACED: &str = ".replaced-model";

/// An open run folder, this process's alone.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    /// `metrics.jsonl`
    pub metrics: MetricsFile,
    /// The settings that the run promises not to change.
    pub promise: Promise,
    /// Where it stands, as `status.json` says.
    pub status: Status,
    /// The summary of a run that is resumed although it is complete, or its time over: there is
    /// nothing left to do.
    pub complete: Option<Record>,
    /// The files that Kiln has written, and the lock.
    pub(crate) manifest: Arc<Manifest>,
}

/// A run when it begins in its folder, or goes on there.
#[derive(Debug)]
pub struct Beginning {
    /// The settings that it promises not to change.
    pub promise: Promise,
    /// By what it is made, without the digest of its validation data.
    pub provenance: Provenance,
    /// The files of its plan.
    pub files: Vec<NamedFile>,
    /// The name of its task, where that has one.
    pub task: Option<String>,
}

/// The state of a folder that a run is to write to.
enum Content {
    /// Nothing, or nothing but the beginning of a run that was killed.
    Free,
    /// A run, whose files are listed.
    Run(BTreeSet<String>),
    /// A run of a Kiln that listed nothing, or whose list is lost or damaged. Only a checkpoint of
    /// the same run can tell that the folder is that run's.
    Unlisted,
    /// Somebody else's files.
    Foreign,
}

impl Content {
    fn of(path: &Path) -> Result<Self> {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        let is_empty = entries.into_iter().all(|entry| entry.file_name() == LOCK);
        let checkpoints = path.join(checkpoint::FOLDER);
        let has_checkpoint = || checkpoint::list(&checkpoints).is_ok_and(|found| !found.is_empty());
        // A model of the run has the config of its checkpoints.
        let has_model = || {
            let config = |folder: &Path| read_regular(&folder.join(checkpoint::CONFIG)).ok();
            let is_same = |model: &Vec<u8>| {
                let all = checkpoint::list(&checkpoints).unwrap_or_default();
                all.iter().any(|(_, checkpoint)| config(checkpoint).as_ref() == Some(model))
            };
            config(&path.join(MODEL)).is_some_and(|model| is_same(&model))
        };
        Ok(match Listed::read(path)? {
            Listed::Files { files, .. } if Manifest::is_only_begun(path, &files) => Self::Free,
            Listed::Files { files, is_ended } => {
                // Checkpoints and models are listed before they appear.
                let has = |folder: &str| files.iter().any(|file| Path::new(file).starts_with(folder));
                let is_whole = is_ended && has(checkpoint::FOLDER) && (has(MODEL) || !has_model());
                if !is_whole && has_checkpoint() { Self::Unlisted } else { Self::Run(files) }
            }
            Listed::Nothing if is_empty => Self::Free,
            Listed::Nothing | Listed::Foreign if has_checkpoint() => Self::Unlisted,
            Listed::Nothing if [crate::plan::FILE, status::FILE].iter().all(|file| path.join(file).is_file()) => {
                Self::Unlisted
            }
            Listed::Nothing | Listed::Foreign => Self::Foreign,
        })
    }

    /// Whether the folder `path` holds a checkpoint, whole or damaged, or a model.
    fn has_work(&self, path: &Path) -> bool {
        let mut entries = fs::read_dir(path.join(checkpoint::FOLDER)).into_iter().flatten().flatten();
        matches!(self, Self::Unlisted)
            || entries.any(|entry| !checkpoint::is_unfinished(&entry.path()))
            || [MODEL, REPLACED].iter().any(|model| path.join(model).exists())
    }

    /// Whether a run may begin in the folder `path`, or go on there.
    fn admits(&self, folder: &Path, how: OnExisting) -> Result<()> {
        let path = folder.display();
        let refused = |error: Error| Err(error.help("set run.output_dir to another folder"));
        match (self, how) {
            (Self::Free, _) | (Self::Unlisted, OnExisting::Resume) => Ok(()),
            (_, OnExisting::Fail) => Err(Error::config(format!("run.output_dir: {path} exists and is not empty")).help(
                match self {
                    Self::Foreign => "set run.output_dir to another folder",
                    _ if self.has_work(folder) => {
                        "set run.output_dir to another folder, --resume to continue the run in it, or run.on_existing = \
                         \"overwrite\" to replace it"
                    }
                    _ => {
                        "set run.output_dir to another folder, or run.on_existing = \"overwrite\" to replace the run in it, \
                         which holds no checkpoint"
                    }
                },
            )),
            (Self::Foreign, how) => refused(Error::config(format!(
                "run.on_existing = \"{how}\": {path} holds no run of Kiln's, so nothing in it is touched"
            ))),
            (Self::Unlisted, OnExisting::Overwrite) => refused(Error::config(format!(
                "run.on_existing = \"overwrite\": {path} holds a run, but its {LOCK} does not list which files are Kiln's \
                 (it is damaged, or an older Kiln kept no list), so nothing in it is touched"
            ))),
            (Self::Run(listed), OnExisting::Overwrite | OnExisting::Resume) => {
                // A model that Kiln has not written stands where it is to write one. A card alone
                // is none: `overwrite` leaves one that somebody has changed.
                let model = fs::read_dir(folder.join(MODEL)).into_iter().flatten().flatten();
                let is_taken = model.into_iter().any(|entry| entry.file_name() != card::FILE);
                let is_own = listed.iter().any(|file| Path::new(file).starts_with(MODEL));
                if is_taken && !is_own {
                    return refused(Error::config(format!(
                        "run.output_dir: {path} holds a folder {MODEL}/ that Kiln has not written, and the run is to write one"
                    )));
                }
                Ok(())
            }
        }
    }
}

impl RunFolder {
    /// Checks that the run may write to its folder, before time is spent on anything else.
    ///
    /// # Errors
    /// A folder that exists (unless `run.on_existing` allows it), one that another process writes
    /// to, or a path that is not a folder.
    pub fn check(run: &RunSettings) -> Result<PathBuf> {
        let path = run.expanded_output_dir()?;
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
        if fs::symlink_metadata(path.join(LOCK)).is_ok_and(|found| found.is_file()) {
            drop(Manifest::lock(&path)?);
        }
        checkpoint::list(&path.join(checkpoint::FOLDER))?;
        Content::of(&path)?.admits(&path, run.on_existing)?;
        Ok(path)
    }

    /// [`check`](Self::check) for a run that is to be continued and not begun.
    ///
    /// # Errors
    /// A folder without a checkpoint, and an error of [`check`](Self::check).
    pub fn check_continued(run: &RunSettings) -> Result<PathBuf> {
        let path = Self::check(run)?;
        if Content::of(&path)?.has_work(&path) {
            return Ok(path);
        }
        let why = if path.exists() { "holds no checkpoint" } else { "does not exist" };
        Err(Error::config(format!("--resume: nothing to continue: the run folder {} {why}", path.display())).help(
            "look at run.output_dir; run.on_existing = \"resume\" in place of --resume also begins a run where there is \
             none",
        ))
    }

    /// Makes the folder, takes its lock and writes `plan.toml` and `plan.json`. With
    /// `run.on_existing = "resume"` also finds the newest whole checkpoint, sets those after it
    /// aside, and cuts off the rows of `metrics.jsonl` that were written after it.
    ///
    /// # Errors
    /// A folder that [`check`](Self::check) refuses, a checkpoint of another run, or an error of
    /// the operating system.
    pub fn create(plan: &TrainPlan, begin: impl FnOnce() -> Result<Beginning>) -> Result<(Self, Option<Checkpoint>)> {
        let how = plan.run.on_existing;
        let path = Self::check(&plan.run)?;
        let io = |action: &str, path: &Path, error: &std::io::Error| {
            Error::io(format!("{action} {}", path.display()), error).help("run.output_dir must be a writable folder")
        };
        fs::create_dir_all(&path).map_err(|error| io("create", &path, &error))?;
        Manifest::make_way(&path)?;
        let manifest = Manifest::lock(&path)?;
        // Again, now that nobody else can come between.
        let content = Content::of(&path)?;
        content.admits(&path, how)?;
        let Beginning { promise, provenance, files, task } = begin()?;
        let checkpoints = path.join(checkpoint::FOLDER);
        let found = match (how, &plan.run.resume_from_checkpoint) {
            (OnExisting::Resume, Some(chosen)) => {
                let chosen = variables::expand(&chosen.to_string_lossy())?;
                Some(Checkpoint::chosen(&chosen, &checkpoints, matches!(content, Content::Free))?)
            }
            (OnExisting::Resume, None) => Checkpoint::newest(&checkpoints)?,
            (OnExisting::Fail | OnExisting::Overwrite, _) => None,
        };
        if let Some(found) = &found {
            let State { step, promise: was, .. } = &found.state;
            was.kept_by(&promise, *step, found.state.scheduled(plan)).map_err(|e| e.at(found.path.display()))?;
            was.notices(&promise, *step).iter().for_each(|notice| tracing::warn!("{notice}"));
        } else if how == OnExisting::Resume {
            // Files found here may be somebody's work: only `overwrite` may replace them.
            if content.has_work(&path) {
                return Err(Error::data(format!(
                    "run.output_dir: {} holds a run, but no whole checkpoint to continue from",
                    path.display()
                ))
                .help("to train on from its weights, set model.from; else set run.output_dir to another folder, or run.on_existing = \"overwrite\" to replace it"));
            }
        }
        // Nothing has been changed up to here.
        manifest.open()?;
        if let (Content::Unlisted, Some(found)) = (&content, &found) {
            tracing::warn!(
                "{} does not list which files are Kiln's: it is written again, and every file that this run does not write is \
                 kept as yours",
                path.join(LOCK).display()
            );
            manifest.list(written_by(plan))?;
            let own = [checkpoint::STATE, checkpoint::DIGEST, checkpoint::SUSPECT].into_iter();
            let own = own.chain(found.state.files.keys().map(String::as_str));
            manifest.list(own.map(|name| Manifest::any_checkpoint().join(name)))?;
            // A model of this run has the files of its checkpoints.
            let model = path.join(MODEL);
            let config = model.join(checkpoint::CONFIG);
            let config = config.is_file().then(|| checkpoint::checksum(&config).ok()).flatten();
            if config.is_some_and(|config| found.state.files.get(checkpoint::CONFIG) == Some(&config)) {
                let card = model.join(card::FILE);
                let card = (card.is_file() && !card::is_changed(&card)).then_some(card::FILE);
                let files = found.state.files.keys().map(String::as_str).chain(card);
                manifest.list(files.map(|name| Path::new(MODEL).join(name)))?;
            }
        }
        manifest.remove_unfinished()?;
        finish_replacing(&path, &manifest)?;
        // From here on the folder itself has the weights and moments that the run goes on from,
        // however this process ends.
        let origin = found.as_ref().filter(|_| matches!(content, Content::Free)).map(|found| found.path.clone());
        let found = match found {
            Some(found) if origin.is_some() => Some(found.copied(&checkpoints, &|names| {
                manifest.list(names.iter().map(|name| Manifest::any_checkpoint().join(name)))
            })?),
            found => found,
        };
        let ended = found.as_ref().is_some_and(|found| {
            let limit = plan.steps.max_duration;
            let out_of_time = limit.is_some_and(|limit| found.state.seconds >= limit.as_secs_f64());
            let mut best = Best::new(&plan.saving);
            best.restore(&found.state.best);
            out_of_time || best.is_exhausted() || found.state.scheduled(plan) >= plan.steps.total as u64
        });
        if ended && path.join(MODEL).exists() {
            let status = Status::read(&path).unwrap_or_else(|error| {
                tracing::warn!("{error}; it is written again");
                None
            });
            // A run that a signal stopped has no summary.
            let has_ended = |status: &Status| matches!(status.status, RunStatus::Completed | RunStatus::Stopped);
            if let Some(status) = status.filter(has_ended)
                && let Some(metrics) = MetricsFile::open_whole(&path)?
                && let Some(summary) = metrics.last_with("train_runtime")
            {
                let manifest = Arc::new(manifest);
                return Ok((Self { path, metrics, promise, status, complete: Some(summary), manifest }, found));
            }
        }
        let written = written_by(plan);
        let there = || written.iter().map(|file| path.join(file)).filter(|file| fs::symlink_metadata(file).is_ok());
        match &found {
            Some(found) => {
                // `metrics.jsonl` is checked when its rows are read, with warnings of its own.
                for file in there().filter(|file| !file.ends_with(metrics::FILE) && is_blocked(file)) {
                    let aside = set_aside_damaged(&file)?;
                    tracing::warn!("{}, which is no regular file, is now {}", file.display(), aside.display());
                }
                checkpoint::supersede(&checkpoints, found.state.step, &|name| manifest.has_in_checkpoints(name))?;
                // The previous process wrote these files at its end, but the run goes on.
                let mut stale = vec![RESULTS, PAGE, SAMPLES, CONFUSION];
                // A program's run had one in Kiln up to 0.1.0.
                if !files.iter().any(|(name, _)| name == "plan.toml") {
                    stale.push("plan.toml");
                }
                for file in stale.into_iter().map(|name| path.join(name)) {
                    if fs::symlink_metadata(&file).is_err() {
                        continue;
                    }
                    let is_own = file.strip_prefix(&path).is_ok_and(|name| manifest.has(name));
                    if is_own && file.ends_with(SAMPLES) && page::keep_samples(&file, &file, found.state.step)? {
                        continue;
                    }
                    if is_own && file.ends_with(CONFUSION) && page::has_confusion_until(&file, found.state.step) {
                        continue;
                    }
                    let gone = if is_own { fs::remove_file(&file) } else { keep(&file, &file) };
                    gone.map_err(|error| io("remove", &file, &error))?;
                }
            }
            None => {
                let kept = manifest.remove_listed()?;
                if !kept.is_empty() {
                    let names = kept.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
                    tracing::warn!("{}: kept, since Kiln has not written them: {names}", path.display());
                }
                // A file that still has the name of a file of the run was not written by Kiln.
                for file in there() {
                    keep(&file, &file).map_err(|error| io("rename", &file, &error))?;
                }
                manifest.restart()?;
            }
        }
        manifest.list(written)?;
        write_plan(&path, &files)?;
        let validation_sha256 = promise.validation().map(str::to_owned);
        let begun_from = match &found {
            Some(_) if origin.is_none() => provenance::begun_from(&path),
            _ => origin.clone(),
        };
        Provenance { validation_sha256, begun_from, ..provenance }.write(&path)?;
        let seconds = found.as_ref().map_or(0.0, |found| found.state.seconds);
        let has_rows = match (&found, &origin) {
            (Some(found), Some(origin)) => take_over(origin, &found.state, &path)?,
            _ => true,
        };
        let metrics = match &found {
            Some(found) => {
                let rows = if has_rows { found.state.metrics_rows } else { 0 };
                MetricsFile::resume(&path, rows, found.state.step)?
            }
            None => MetricsFile::open(&path)?,
        };
        let step = found.as_ref().map_or(0, |found| found.state.step);
        let status = Status { step, ..Status::begin(plan, task.as_deref(), seconds) };
        status.write(&path)?;
        Ok((Self { path, metrics, promise, status, complete: None, manifest: Arc::new(manifest) }, found))
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder of the model that the run writes at its end.
    pub fn model(&self) -> PathBuf {
        self.path.join(MODEL)
    }

    /// The folder of the checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join(checkpoint::FOLDER)
    }

    /// Writes `all_results.json`: the last evaluation and the summary in one object, as
    /// `transformers`' examples do.
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
        write_whole(&self.path.join(RESULTS), (results.to_json() + "\n").as_bytes())
    }

    /// The file of the model card `card`; none where somebody has written or changed the one in
    /// `model/`, which stays.
    pub fn card(&self, card: &str) -> Option<NamedFile> {
        let there = self.path.join(MODEL).join(card::FILE);
        let is_kept = card::is_changed(&there);
        if is_kept {
            tracing::warn!("{} stays as somebody has changed it, and may tell of an earlier model", there.display());
        }
        (!is_kept).then(|| (card::FILE.into(), card::sealed(card).into_bytes().into()))
    }

    /// Writes `model/`: weights and the files `beside` them. The folder is written under another
    /// name and then renamed. Files that somebody has added to an earlier
    /// `model/` stay in it.
    ///
    /// # Errors
    /// The operating system's; no `model/` is left behind then, or the one from before.
    pub fn write_model(&self, model: &impl StateDict, beside: &[NamedFile]) -> Result<PathBuf> {
        let target = self.path.join(MODEL);
        match self.write_aside(&target, model, beside) {
            Ok(()) => Ok(target),
            Err(error) if error.kind() == ErrorKind::Device => Err(error.at(target.display())),
            Err(error) => {
                let help = error.remedy().map_or(CONTINUE.into(), |remedy| format!("{remedy}; {CONTINUE}"));
                Err(error.at(target.display()).help(help))
            }
        }
    }

    fn write_aside(&self, target: &Path, model: &impl StateDict, beside: &[NamedFile]) -> Result<()> {
        let io = |error: std::io::Error| Error::io(format!("write {}", target.display()), &error);
        let aside = tempfile::Builder::new().prefix(MODEL_ASIDE).tempdir_in(&self.path).map_err(io)?.keep();
        let write = || {
            write_files(&aside, beside)?;
            save(model, &aside)?;
            #[cfg(unix)]
            {
                use std::os::unix::fs::PermissionsExt;
                fs::set_permissions(&aside, fs::Permissions::from_mode(0o755)).map_err(io)?;
            }
            let names = beside.iter().map(|(name, _)| name.as_str()).chain([model.file()]);
            let files = names.clone().map(|name| Path::new(MODEL).join(name)).collect::<Vec<_>>();
            for (name, file) in names.zip(&files) {
                let there = target.join(name);
                if fs::symlink_metadata(&there).is_ok() && !self.manifest.has(file) {
                    keep(&there, &there).map_err(io)?;
                }
            }
            self.manifest.list(files)
        };
        let make_way = || match fs::symlink_metadata(target) {
            Ok(_) => fs::rename(target, self.path.join(REPLACED)).map_err(io),
            Err(_) => Ok(()),
        };
        write_folder(&aside, target, write, make_way)?;
        finish_replacing(&self.path, &self.manifest)
    }
}

/// Writes the `files` of a plan into the run folder `folder`, each whole or not at all.
pub(crate) fn write_plan(folder: &Path, files: &[NamedFile]) -> Result<()> {
    files.iter().try_for_each(|(name, bytes)| write_whole(&folder.join(name), bytes))
}

/// Copies rows and samples of the run of the checkpoint `origin` to `folder`, where the run goes
/// on: up to there they are those of both. False, with a warning, where `origin` lies in no run
/// folder, so that there are no rows.
fn take_over(origin: &Path, state: &State, folder: &Path) -> Result<bool> {
    let whole = fs::canonicalize(origin).unwrap_or_else(|_| origin.to_owned());
    let run = whole.parent().filter(|above| above.ends_with(checkpoint::FOLDER)).and_then(Path::parent);
    let Some(run) = run.filter(|run| run.join(metrics::FILE).is_file()) else {
        if state.metrics_rows > 0 {
            tracing::warn!(
                "the checkpoint {} lies in no run folder with a {}: the {} rows up to step {} are missing in that of {}",
                origin.display(),
                metrics::FILE,
                state.metrics_rows,
                state.step,
                folder.display()
            );
        }
        return Ok(false);
    };
    page::keep_samples(&run.join(SAMPLES), &folder.join(SAMPLES), state.step)?;
    let rows = run.join(metrics::FILE);
    let copied = fs::copy(&rows, folder.join(metrics::FILE));
    copied.map(|_| true).map_err(|error| Error::io(format!("copy {}", rows.display()), &error))
}

/// The files that the run of `plan` will write, besides its checkpoints and its model.
fn written_by(plan: &TrainPlan) -> Vec<PathBuf> {
    let mut files = FILES.map(PathBuf::from).to_vec();
    files.extend((1..plan.batch.devices.count).map(log_of));
    files.extend(plan.engine.decision.as_ref().map(|_| compiler::decision::FILE.into()));
    files.extend(plan.logging.profile_steps.map(|_| TRACE.into()));
    if plan.engine.debug {
        files.extend(COMPILER_FILES.map(|name| Path::new(COMPILER).join(name)));
    }
    if plan.logging.report_to.contains(&Integration::TensorBoard) {
        files.push(Path::new(TENSORBOARD).join(EVENT_FILES));
    }
    if plan.logging.report_to.contains(&Integration::Mlflow) {
        files.push(MLFLOW.into());
    }
    files
}

/// Ends what [`RunFolder::write_model`] does with a `model/` that was there: what somebody has
/// added to it is moved into the new one, and the rest is removed. A process that was killed in
/// between has left this to the next one.
fn finish_replacing(run: &Path, manifest: &Manifest) -> Result<()> {
    let (replaced, target) = (run.join(REPLACED), run.join(MODEL));
    let io = |error: std::io::Error| Error::io(format!("replace {}", target.display()), &error);
    let Ok(found) = fs::symlink_metadata(&replaced) else { return Ok(()) };
    if fs::symlink_metadata(&target).is_err() {
        return fs::rename(&replaced, &target).map_err(io);
    }
    if !found.is_dir() {
        return keep(&replaced, &target).map_err(io); // somebody's link or file
    }
    keep_foreign(&replaced, &target, Path::new(MODEL), manifest).map_err(io)?;
    fs::remove_dir_all(&replaced).map_err(io)
}

/// Moves the files below `from` that `manifest` does not list under the folder `listed` to the same
/// place below `to`.
fn keep_foreign(from: &Path, to: &Path, listed: &Path, manifest: &Manifest) -> std::io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        let (source, target, listed) = (entry.path(), to.join(&name), listed.join(&name));
        if entry.file_type()?.is_dir() && fs::symlink_metadata(&target).is_ok_and(|there| there.is_dir()) {
            keep_foreign(&source, &target, &listed, manifest)?;
        } else if entry.file_type()?.is_dir() || !manifest.has(&listed) || card::is_changed(&source) {
            keep(&source, &target)?;
        }
    }
    Ok(())
}
