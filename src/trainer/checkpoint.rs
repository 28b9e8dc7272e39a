//! Checkpoints: `checkpoints/step-000123/` in the run folder, from which the same run continues. One holds
//! `model.safetensors` and `config.json` (with the tokenizer, so that it opens as a model folder), the optimizer's moments
//! in `optimizer.safetensors`, and `state.json`: counters, the position in the data, and size and SHA-256 of every other
//! file. Nothing of a random generator is saved, since every seed is a function of the run's seed and the step.
//!
//! A checkpoint is written aside, brought to disk and renamed, so a folder of that name is whole; one that is damaged
//! afterwards is recognised by its checksums. When to save, and on which thread, is for others to say.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use kiln_models::weights::{NamedTensor, write_safetensors};
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::best::Best;
use super::losses::LossSums;
use super::promise::Promise;
use crate::data::loader::Position;
use crate::data::tokenizer::{NamedFile, write_files};
use crate::error::{Error, Result};
use crate::precision::scaler::ScalerState;

/// The version of the format that this Kiln writes and reads.
pub const FORMAT_VERSION: u32 = 1;

/// The folder of a run's checkpoints, in the run folder.
pub const FOLDER: &str = "checkpoints";

const STATE: &str = "state.json";
const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
/// Why a checkpoint is not to be trusted, in the checkpoint.
const SUSPECT: &str = "suspect.txt";
/// How the names of folders begin that are being written.
const ASIDE: &str = ".writing-";

/// `state.json`: everything that continues a run besides weights and moments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// [`FORMAT_VERSION`] of the writer.
    pub format_version: u32,
    /// The version of Kiln that wrote it.
    pub kiln_version: String,
    /// Optimizer steps made.
    pub step: u64,
    /// Examples seen.
    pub samples: u64,
    /// Attended tokens seen.
    pub tokens: u64,
    /// Passes over the training data, with fraction.
    #[serde(with = "exact")]
    pub epoch: f64,
    /// Where the training data stands. A checkpoint lies between optimizer steps, so no accumulated gradient is open.
    pub position: Position,
    /// Sums of the losses of the steps.
    pub losses: LossSums,
    /// Rows of `metrics.jsonl` that belong to the run up to here.
    pub metrics_rows: u64,
    /// The evaluation of this step was interrupted and is the first thing that a resumed run does.
    pub pending_evaluation: bool,
    /// Seconds that the run has taken so far, over all its processes.
    pub seconds: f64,
    /// The best evaluation so far.
    pub best: Best,
    /// The loss scale of f16 with its counters; none in other precisions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaler: Option<ScalerState>,
    /// What must not change for the run to stay the same run.
    pub promise: Promise,
    /// The other files, by name.
    pub files: BTreeMap<String, Checksum>,
}

/// Size and content of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checksum {
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 in hexadecimal digits.
    pub sha256: String,
}

/// Everything that a checkpoint will hold, on the host.
pub struct Snapshot {
    /// The state; its `files` are filled in when they are written.
    pub state: State,
    /// The model's parameters.
    pub model: Vec<NamedTensor>,
    /// The optimizer's moments.
    pub optimizer: Vec<NamedTensor>,
    /// The [files beside the weights](crate::plan::RunPlan::files_beside_weights) of a saved model.
    pub files: Vec<NamedFile>,
}

/// A checkpoint on disk, verified.
#[derive(Debug)]
pub struct Checkpoint {
    /// Its folder, which [`kiln_models::weights::load`] reads the weights from.
    pub path: PathBuf,
    /// Its state.
    pub state: State,
}

/// What is wrong with a checkpoint.
enum Fault {
    /// Half written or damaged; another one may be whole.
    Damaged(String),
    /// It cannot be used, and neither can any other.
    Refused(Error),
}

impl Snapshot {
    /// Writes the checkpoint into the folder `checkpoints`, in place of one of the same step.
    ///
    /// # Errors
    /// The operating system's; nothing is left under the checkpoint's name then.
    pub fn write(mut self, checkpoints: &Path) -> Result<PathBuf> {
        let target = checkpoints.join(name(self.state.step));
        let io = |error: &std::io::Error| Error::io(format!("write {}", target.display()), error);
        let aside = checkpoints.join(format!("{ASIDE}{}", name(self.state.step)));
        fs::create_dir_all(checkpoints).map_err(|error| io(&error))?;
        remove_folder(&aside).map_err(|error| io(&error))?;
        fs::create_dir(&aside).map_err(|error| io(&error))?;
        let written = self.write_into(&aside).and_then(|()| {
            sync_folder(&aside).map_err(|error| io(&error))?;
            remove_folder(&target).map_err(|error| io(&error))?;
            fs::rename(&aside, &target).map_err(|error| io(&error))?;
            sync_folder(checkpoints).map_err(|error| io(&error))
        });
        if written.is_err() {
            let _ = fs::remove_dir_all(&aside);
        }
        written.map(|()| target)
    }

    fn write_into(&mut self, folder: &Path) -> Result<()> {
        write_safetensors(&folder.join(MODEL), &self.model)?;
        write_safetensors(&folder.join(OPTIMIZER), &self.optimizer)?;
        let io = |error: &std::io::Error| Error::io(format!("write {}", folder.display()), error);
        write_files(folder, &self.files)?;
        for name in [MODEL, OPTIMIZER].into_iter().chain(self.files.iter().map(|(name, _)| name.as_str())) {
            let path = folder.join(name);
            File::open(&path).and_then(|file| file.sync_all()).map_err(|error| io(&error))?;
            self.state.files.insert(name.into(), checksum(&path).map_err(|error| io(&error))?);
        }
        let text = serde_json::to_string_pretty(&self.state)
            .map_err(|error| Error::data(format!("{}: {error}", folder.join(STATE).display())))?;
        super::output::write_whole(&folder.join(STATE), (text + "\n").as_bytes())
    }
}

impl Checkpoint {
    /// Opens a checkpoint and verifies it: its format and every file's size and content.
    ///
    /// # Errors
    /// A checkpoint that is damaged or of another format.
    pub fn open(path: &Path) -> Result<Self> {
        Self::verify(path).map_err(|fault| match fault {
            Fault::Damaged(what) => Error::data(format!("the checkpoint {} is damaged: {what}", path.display())),
            Fault::Refused(error) => error,
        })
    }

    /// The newest whole checkpoint of the folder `checkpoints`; none when there is none. Half-written and damaged ones
    /// are skipped with a warning, and put aside under another name; those that are [suspect](mark_suspect) are skipped
    /// with a warning.
    ///
    /// # Errors
    /// A checkpoint of another format version; a folder that cannot be read.
    pub fn newest(checkpoints: &Path) -> Result<Option<Self>> {
        for (_, path) in list(checkpoints)?.into_iter().rev() {
            if let Ok(why) = fs::read_to_string(path.join(SUSPECT)) {
                let why = why.lines().next().unwrap_or_default();
                eprintln!("warning: {} is suspect and skipped: {why}", path.display());
                continue;
            }
            match Self::verify(&path) {
                Ok(checkpoint) => return Ok(Some(checkpoint)),
                Err(Fault::Refused(error)) => return Err(error),
                Err(Fault::Damaged(what)) => {
                    eprintln!("warning: {} is damaged ({what}) and skipped", path.display());
                    let aside = path.with_extension("damaged");
                    let _ = fs::remove_dir_all(&aside);
                    let _ = fs::rename(&path, &aside);
                }
            }
        }
        Ok(None)
    }

    fn verify(path: &Path) -> std::result::Result<Self, Fault> {
        let state_path = path.join(STATE);
        let io = |what: &Path, error: &std::io::Error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                Fault::Damaged(format!("{} is missing", what.file_name().unwrap_or_default().to_string_lossy()))
            }
            _ => Fault::Refused(Error::io(format!("read {}", what.display()), error)),
        };
        let text = fs::read(&state_path).map_err(|error| io(&state_path, &error))?;
        let bad = |error: &dyn std::fmt::Display| Fault::Damaged(format!("{STATE}: {error}"));
        // The version comes first: another version may have other fields.
        let value: serde_json::Value = serde_json::from_slice(&text).map_err(|error| bad(&error))?;
        let version = value.get("format_version").and_then(serde_json::Value::as_u64);
        match version {
            None => return Err(bad(&"there is no format_version")),
            Some(version) if version != u64::from(FORMAT_VERSION) => {
                return Err(Fault::Refused(
                    Error::data(format!(
                        "{}: format version {version}; this Kiln reads version {FORMAT_VERSION}",
                        state_path.display()
                    ))
                    .help("continue the run with the Kiln that started it, or set run.on_existing = \"overwrite\""),
                ));
            }
            Some(_) => {}
        }
        let state: State = serde_json::from_value(value).map_err(|error| bad(&error))?;
        for file in [MODEL, OPTIMIZER] {
            if !state.files.contains_key(file) {
                return Err(bad(&format!("has no checksum of {file}")));
            }
        }
        for (name, expected) in &state.files {
            let file = path.join(name);
            let found = fs::metadata(&file).map_err(|error| io(&file, &error))?.len();
            if found != expected.bytes {
                return Err(Fault::Damaged(format!("{name} has {found} bytes, expected {}", expected.bytes)));
            }
            if checksum(&file).map_err(|error| io(&file, &error))? != *expected {
                return Err(Fault::Damaged(format!("the content of {name} does not match its checksum")));
            }
        }
        Ok(Self { path: path.into(), state })
    }

    /// The optimizer's moments.
    ///
    /// # Errors
    /// A file that is no safetensors file of f32 values.
    pub fn optimizer(&self) -> Result<Vec<NamedTensor>> {
        let path = self.path.join(OPTIMIZER);
        let bytes = fs::read(&path).map_err(|error| Error::io(format!("read {}", path.display()), &error))?;
        let bad = |what: String| Error::data(format!("{}: {what}", path.display()));
        let file = SafeTensors::deserialize(&bytes).map_err(|error| bad(error.to_string()))?;
        let read = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
            if view.dtype() != Dtype::F32 {
                return Err(bad(format!("{name}: expected F32, got {:?}", view.dtype())));
            }
            let data = view.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            Ok(NamedTensor { name, shape: view.shape().to_vec(), data })
        };
        file.tensors().into_iter().map(read).collect()
    }
}

/// `step-000123`
pub fn name(step: u64) -> String {
    format!("step-{step:06}")
}

/// The checkpoints in the folder `checkpoints`, by name alone, oldest first.
///
/// # Errors
/// A folder that cannot be read.
pub fn list(checkpoints: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let entries = match fs::read_dir(checkpoints) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io(format!("read {}", checkpoints.display()), &error)),
    };
    let mut found = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        let digits = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix("step-"));
        if let Some(step) = digits.and_then(|digits| digits.parse::<u64>().ok()) {
            found.push((step, path));
        }
    }
    found.sort();
    Ok(found)
}

/// Marks a checkpoint as one that a fault may have spoiled: no run continues from it.
///
/// # Errors
/// The operating system's.
pub fn mark_suspect(checkpoint: &Path, why: &str) -> Result<()> {
    super::output::write_whole(&checkpoint.join(SUSPECT), format!("{why}\n").as_bytes())
}

/// Removes the oldest checkpoints beyond `limit`, but not the one of step `keep`, nor the newest one up to step `good`, and
/// never the newest of all (`rotate_checkpoints`).
///
/// # Errors
/// A folder that cannot be removed.
pub fn rotate(checkpoints: &Path, limit: usize, keep: Option<u64>, good: Option<u64>) -> Result<()> {
    let all = list(checkpoints)?;
    let excess = all.len().saturating_sub(limit.max(1));
    let newest = all.last().map(|(step, _)| *step);
    let good = good.and_then(|good| all.iter().map(|(step, _)| *step).rfind(|step| *step <= good));
    let kept = [keep, good, newest];
    let removable = all.iter().filter(|(step, _)| !kept.contains(&Some(*step)));
    for (_, path) in removable.take(excess) {
        // Renamed first: a folder that is half removed must not look like a checkpoint.
        let aside = checkpoints.join(format!("{ASIDE}removed"));
        let removed =
            remove_folder(&aside).and_then(|()| fs::rename(path, &aside)).and_then(|()| remove_folder(&aside));
        removed.map_err(|error| Error::io(format!("remove {}", path.display()), &error))?;
    }
    Ok(())
}

/// Removes what a process that was killed had not finished writing.
///
/// # Errors
/// A folder that cannot be read or removed.
pub fn remove_unfinished(checkpoints: &Path) -> Result<()> {
    let entries = fs::read_dir(checkpoints).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(ASIDE)) {
        remove_folder(&entry.path())
            .map_err(|error| Error::io(format!("remove {}", entry.path().display()), &error))?;
    }
    Ok(())
}

fn remove_folder(path: &Path) -> std::io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Brings a folder's entries to disk, where the system can.
fn sync_folder(path: &Path) -> std::io::Result<()> {
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}

fn checksum(path: &Path) -> std::io::Result<Checksum> {
    let mut hash = Sha256::new();
    let bytes = std::io::copy(&mut File::open(path)?, &mut hash)?;
    Ok(Checksum { bytes, sha256: hex(&hash.finalize()) })
}

/// Bytes in hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A float as the shortest decimal that reads back as the same float, in a string: JSON readers may round numbers.
pub(super) mod exact {
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes it.
    pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{value:?}"))
    }

    /// Reads it.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}
