//! Checkpoints: `checkpoints/step-000123/` in the run folder, from which the same run continues.
//! One holds `model.safetensors` (of a model with adapters theirs alone,
//! `adapter_model.safetensors`) and `config.json` (with the tokenizer, so that it opens as a model
//! folder), the optimizer's moments in `optimizer.safetensors`, and `state.json`: counters, the
//! position in the data, and name, size and SHA-256 of every other file. `state.sha256` holds the
//! SHA-256 of `state.json`, which so stands for everything in the checkpoint (`sha256sum -c
//! state.sha256` compares it). Nothing of a random generator is saved, since every seed is a
//! function of the run's seed and the step.
//!
//! A checkpoint is written aside, brought to disk and renamed, so a folder of that name is whole;
//! one that is damaged afterwards is recognised by its digests. When to save, and on which thread,
//! is for others to say.
//!
//! A run that continues after step N has left the checkpoints after N behind, and so it has the
//! suspect ones: they are renamed when it begins ([`supersede`]) and removed when it has saved its
//! next one, so that at every moment the newest good checkpoint is there, and none of another
//! course of the run is taken for one of this.

mod folder;
mod loss_sums;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

pub use folder::{
    IsOwn, is_own, is_unfinished, keep, list, mark_suspect, name, remove_superseded, remove_unfinished, rotate,
    supersede,
};
use folder::{entries, suspicion, write_aside};
use kiln_core::dataset::loader::Position;
use kiln_core::error::{Error, Result, printable};
use kiln_core::files::{NamedFile, hex, is_plain_name, sha256, sync_folder, write_files, write_whole};
use kiln_core::words::json_words;
use kiln_models::weights::{ADAPTER_FILE, MODEL_FILE as MODEL, NamedTensor, safetensors_words, write_safetensors};
pub use loss_sums::LossSums;
use loss_sums::exact;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::best::Best;
use super::promise::Promise;
use crate::optim::outliers::OutlierState;
use crate::optim::scaler::ScalerState;
use crate::plan::TrainPlan;

/// The version of the format that this Kiln writes and reads. Version 1 had no digest of
/// `state.json`.
pub const FORMAT_VERSION: u32 = 2;

/// The folder of a run's checkpoints, in the run folder.
pub const FOLDER: &str = "checkpoints";

/// The file that names the others.
pub const STATE: &str = "state.json";
/// The digest of [`STATE`], as `sha256sum` writes it.
pub const DIGEST: &str = "state.sha256";
/// Moments and counters of the optimizer.
pub const OPTIMIZER: &str = "optimizer.safetensors";
/// Why a checkpoint is not to be trusted, in the checkpoint.
pub const SUSPECT: &str = "suspect.txt";
/// The model's config, in a checkpoint as in a model folder.
pub const CONFIG: &str = "config.json";
/// The message about a checkpoint that `trainer.save_only_model` left.
const ONLY_MODEL: &str = "the model alone (trainer.save_only_model), and no optimizer to continue with";
/// No `state.json` is longer.
const MAX_STATE_BYTES: u64 = 16 << 20;
/// No count of steps, examples, tokens or rows is larger: up to here an f64 holds every integer.
const MAX_COUNT: u64 = 1 << 53;

/// `state.json`: everything that continues a run besides weights and moments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// [`FORMAT_VERSION`] of the writer.
    pub format_version: u32,
    /// The version of Kiln that wrote it.
    pub kiln_version: String,
    /// Optimizer steps made.
    pub step: u64,
    /// Optimizer steps made beyond those of the learning-rate schedule, which counts the steps that
    /// as many examples take in batches of the present size. It differs from 0 where the run was
    /// continued with another global batch, and is negative where fewer steps were made.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub steps_ahead: i64,
    /// Examples seen.
    pub samples: u64,
    /// Attended tokens seen.
    pub tokens: u64,
    /// Passes over the training data, with fraction.
    #[serde(with = "exact")]
    pub epoch: f64,
    /// Where the training data stands. A checkpoint lies between optimizer steps, so no accumulated
    /// gradient is open.
    pub position: Position,
    /// Where in the files, for data that are streamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<serde_json::Value>,
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
    /// The values by which outliers are found, where the run looks for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outliers: Option<OutlierState>,
    /// The settings that must not change for the run to stay the same run.
    pub promise: Promise,
    /// It has no optimizer (`trainer.save_only_model`): no run continues from it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub only_model: bool,
    /// The other files, by name.
    pub files: BTreeMap<String, Checksum>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_zero(value: &i64) -> bool {
    *value == 0
}

impl State {
    /// [`steps_ahead`](Self::steps_ahead) for a run that goes on by `plan`, perhaps with another
    /// global batch.
    pub fn steps_ahead_of(&self, plan: &TrainPlan) -> i64 {
        let step_examples = plan.batch.global as u64;
        if self.promise.step_examples() == Some(step_examples) {
            return self.steps_ahead;
        }
        // Counted from the end of the epoch, where only the last step may be a smaller one.
        let examples = plan.data.examples_of_epoch(&plan.batch) as u64;
        let left = examples.saturating_sub(self.position.index).div_ceil(step_examples);
        let of_epoch = (plan.steps.per_epoch as u64).saturating_sub(left);
        self.step as i64 - (self.position.epoch * plan.steps.per_epoch as u64 + of_epoch) as i64
    }

    /// The step of the schedule of `plan` that the run has come to.
    pub fn scheduled(&self, plan: &TrainPlan) -> u64 {
        self.step.saturating_add_signed(-self.steps_ahead_of(plan))
    }
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
    /// The file of the model's parameters: [`MODEL`], or [`ADAPTER_FILE`].
    pub file: &'static str,
    /// The model's parameters, without those of a frozen base.
    pub model: Vec<NamedTensor>,
    /// The optimizer's moments; not written where the state says that it has the model alone.
    pub optimizer: Vec<NamedTensor>,
    /// The [files beside the weights](crate::task::TrainingTask::files) of a saved model.
    pub files: Vec<NamedFile>,
}

/// A checkpoint on disk, verified.
#[derive(Debug)]
pub struct Checkpoint {
    /// Its folder, which [`kiln_models::weights::load_saved`] reads the weights from.
    pub path: PathBuf,
    /// Its state.
    pub state: State,
}

/// A damage of a checkpoint.
enum Fault {
    /// Half written or damaged; another one may be whole.
    Damaged(String),
    /// It cannot be used, and neither can any other.
    Refused(Error),
}

impl Snapshot {
    /// Writes the checkpoint into the folder `checkpoints`, in place of one of the same step, of
    /// which it keeps the files that are not Kiln's by `is_own`. `list` is told the names of its
    /// files before they appear under the checkpoint's name.
    ///
    /// # Errors
    /// The operating system's; nothing is left under the checkpoint's name then.
    pub fn write(
        mut self,
        checkpoints: &Path,
        list: &dyn Fn(&[&str]) -> Result<()>,
        is_own: IsOwn<'_>,
    ) -> Result<PathBuf> {
        write_aside(checkpoints, self.state.step, list, is_own, |aside| {
            self.write_into(aside)?;
            Ok(self.state.files.keys().cloned().collect())
        })
    }

    fn write_into(&mut self, folder: &Path) -> Result<()> {
        let mut weights = vec![self.file];
        write_safetensors(&folder.join(self.file), &self.model)?;
        if !self.state.only_model {
            write_safetensors(&folder.join(OPTIMIZER), &self.optimizer)?;
            weights.push(OPTIMIZER);
        }
        let io = |error: &std::io::Error| Error::io(format!("write {}", folder.display()), error);
        write_files(folder, &self.files)?;
        for name in weights.into_iter().chain(self.files.iter().map(|(name, _)| name.as_str())) {
            let path = folder.join(name);
            File::open(&path).and_then(|file| file.sync_all()).map_err(|error| io(&error))?;
            if let Some(above) = path.parent().filter(|above| *above != folder) {
                sync_folder(above).map_err(|error| io(&error))?;
            }
            self.state.files.insert(name.into(), checksum(&path).map_err(|error| io(&error))?);
        }
        let text = serde_json::to_string_pretty(&self.state)
            .map_err(|error| Error::data(format!("{}: {error}", folder.join(STATE).display())))?;
        let text = format!("{}\n", printable(&text));
        write_whole(&folder.join(STATE), text.as_bytes())?;
        write_whole(&folder.join(DIGEST), digest_line(text.as_bytes()).as_bytes())
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

    /// The checkpoint `path`: one of the folder `checkpoints` of the run that is to be continued,
    /// or, where the run folder `is_free`, that of any run, which then goes on in a folder of its
    /// own.
    ///
    /// # Errors
    /// A folder that is no checkpoint, or none of the run that the run folder holds; one that is
    /// damaged, suspect, or has no optimizer.
    pub fn chosen(path: &Path, checkpoints: &Path, is_free: bool) -> Result<Self> {
        let at = |error: Error| error.at("run.resume_from_checkpoint");
        let same =
            |a: &Path, b: &Path| fs::canonicalize(a).ok().is_some_and(|a| fs::canonicalize(b).is_ok_and(|b| a == b));
        let listed = list(checkpoints)?;
        let own = listed.iter().find(|(_, listed)| same(listed, path)).map(|(_, own)| own.as_path());
        let Some(found) = own.or_else(|| Some(path).filter(|path| is_free && path.join(STATE).is_file())) else {
            let steps = listed.iter().map(|(step, _)| name(*step)).collect::<Vec<_>>().join(", ");
            let has = if steps.is_empty() {
                "it has none".into()
            } else {
                format!("it has {steps}, and --resume alone continues from the newest")
            };
            return Err(at(Error::config(format!(
                "expected a checkpoint of this run, in {}, got {}",
                checkpoints.display(),
                path.display()
            ))
            .help(format!(
                "{has}; to go on from a checkpoint of another run of Kiln, set run.output_dir to a new folder; to train on from \
                 the weights of a model, set model.from"
            ))));
        };
        let unusable =
            |why: &str| at(Error::data(format!("{}: {why}", path.display())).help("name another checkpoint"));
        if found.join(SUSPECT).exists() {
            return Err(unusable("the checkpoint is suspect: a fault may have spoiled it"));
        }
        let checkpoint = Self::open(found).map_err(at)?;
        if checkpoint.state.only_model {
            Err(unusable(&format!("the checkpoint has {ONLY_MODEL}")))
        } else {
            Ok(checkpoint)
        }
    }

    /// A copy of it in the folder `checkpoints` of another run, whole or not there; see
    /// [`Snapshot::write`].
    ///
    /// # Errors
    /// The operating system's.
    pub fn copied(self, checkpoints: &Path, list: &dyn Fn(&[&str]) -> Result<()>) -> Result<Self> {
        let Self { path, state } = self;
        let target = write_aside(checkpoints, state.step, list, &|_| false, |aside| {
            let names = state.files.keys().cloned().collect::<Vec<_>>();
            for name in names.iter().map(String::as_str).chain([STATE, DIGEST]) {
                let (from, to) = (path.join(name), aside.join(name));
                let above = to.parent().unwrap_or(aside);
                let copied = fs::create_dir_all(above).and_then(|()| {
                    fs::copy(&from, &to)?;
                    File::open(&to)?.sync_all()?;
                    sync_folder(above)
                });
                copied.map_err(|error| Error::io(format!("copy {} to {}", from.display(), to.display()), &error))?;
            }
            Ok(names)
        })?;
        Ok(Self { path: target, state })
    }

    /// The newest whole checkpoint of the folder `checkpoints` of a run; none when there is none.
    /// Every other one is passed over with a warning, and nothing is changed: those that are half
    /// written, damaged or cannot be read, and those that are [suspect](mark_suspect) or have no
    /// optimizer.
    ///
    /// # Errors
    /// A checkpoint of another format version; a folder that cannot be read.
    pub fn newest(checkpoints: &Path) -> Result<Option<Self>> {
        for (step, path) in entries(checkpoints)?.into_iter().rev() {
            if let Some(why) = suspicion(&path) {
                tracing::warn!("{} is suspect and skipped: {why}", path.display());
                continue;
            }
            let fault = match Self::verify(&path) {
                Ok(found) if found.state.only_model => {
                    tracing::warn!("{} is skipped: it has {ONLY_MODEL}", path.display());
                    continue;
                }
                Ok(found) if found.state.step != step => {
                    Fault::Damaged(format!("it is the checkpoint of step {}", found.state.step))
                }
                Ok(found) => return Ok(Some(found)),
                Err(fault) => fault,
            };
            match fault {
                Fault::Refused(error) => return Err(error),
                Fault::Damaged(what) => tracing::warn!("{} is damaged ({what}) and skipped", path.display()),
            }
        }
        Ok(None)
    }

    fn verify(path: &Path) -> std::result::Result<Self, Fault> {
        let read = |name: &str, most: u64| {
            let file = path.join(name);
            let found = fs::metadata(&file).map_err(|error| unreadable(name, &error))?;
            // A pipe or a device would not end, and what is far too long is not read into memory.
            if !found.is_file() || found.len() > most {
                return Err(Fault::Damaged(format!("{name} is no file of at most {most} bytes")));
            }
            fs::read(&file).map_err(|error| unreadable(name, &error))
        };
        let text = read(STATE, MAX_STATE_BYTES)?;
        let digest = read(DIGEST, 1 << 10);
        if let Ok(digest) = &digest
            && *digest != digest_line(&text).into_bytes()
        {
            return Err(Fault::Damaged(format!("the content of {STATE} does not match its checksum in {DIGEST}")));
        }
        let bad = |error: &dyn std::fmt::Display| Fault::Damaged(format!("{STATE}: {error}"));
        // The version comes first: another version may have other fields, and the first one had no
        // digest.
        let value: serde_json::Value = serde_json::from_slice(&text).map_err(|error| bad(&json_words(&error)))?;
        let version = value.get("format_version").and_then(serde_json::Value::as_u64);
        match version {
            None => return Err(bad(&"there is no format_version")),
            Some(version) if version != u64::from(FORMAT_VERSION) => {
                return Err(Fault::Refused(
                    Error::data(format!(
                        "{}: format version {version}; this Kiln reads version {FORMAT_VERSION}",
                        path.join(STATE).display()
                    ))
                    .help("continue the run with the Kiln that started it, or set run.output_dir to another folder"),
                ));
            }
            Some(_) => digest?,
        };
        let state: State = serde_json::from_value(value).map_err(|error| bad(&json_words(&error)))?;
        state.check().map_err(|error| bad(&error))?;
        for (name, expected) in &state.files {
            let file = path.join(name);
            let found = fs::metadata(&file).map_err(|error| unreadable(name, &error))?;
            if !found.is_file() || found.len() != expected.bytes {
                return Err(Fault::Damaged(format!("{name} has {} bytes, expected {}", found.len(), expected.bytes)));
            }
            if checksum(&file).map_err(|error| unreadable(name, &error))? != *expected {
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
        let file = SafeTensors::deserialize(&bytes).map_err(|error| bad(safetensors_words(&error)))?;
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

impl State {
    /// Whether the numbers can be those of a run.
    fn check(&self) -> std::result::Result<(), String> {
        let counts = [
            ("step", self.step),
            ("samples", self.samples),
            ("tokens", self.tokens),
            ("metrics_rows", self.metrics_rows),
            ("scaler.growth_tracker", self.scaler.map_or(0, |scaler| scaler.growth_tracker)),
        ];
        for (name, count) in counts {
            if count > MAX_COUNT {
                return Err(format!("{name}: expected at most {MAX_COUNT}, got {count}"));
            }
        }
        // The upper bound of a part of the steps.
        let parts = [
            ("position.epoch", self.position.epoch, self.step),
            ("position.index", self.position.index, self.promise.training_examples().unwrap_or(self.samples)),
            ("losses.steps", self.losses.steps, self.step),
            ("best.step", self.best.step.unwrap_or(0), self.step),
            ("scaler.skipped", self.scaler.map_or(0, |scaler| scaler.skipped), self.step),
            ("scaler.applied", self.scaler.map_or(0, |scaler| scaler.applied), self.step),
        ];
        for (name, part, most) in parts {
            if part > most {
                return Err(format!("{name}: expected at most {most}, got {part}"));
            }
        }
        let scale = self.scaler.map_or(1.0, |scaler| scaler.scale);
        let measures = [("epoch", self.epoch), ("seconds", self.seconds), ("scaler.scale", scale)];
        for (name, measure) in measures {
            if !(0.0..=f64::from(f32::MAX)).contains(&measure) {
                return Err(format!("{name}: expected a number from 0 to {:e}, got {measure}", f32::MAX));
            }
        }
        // A sum may be beyond what an f32 holds, but it is a number.
        for (name, sum) in [("losses.logged", self.losses.logged), ("losses.window", self.losses.window)] {
            if sum.is_nan() {
                return Err(format!("{name}: expected a number, got NaN"));
            }
        }
        self.outliers.as_ref().map_or(Ok(()), |outliers| outliers.check(self.step))?;
        let model = if self.files.contains_key(ADAPTER_FILE) { ADAPTER_FILE } else { MODEL };
        for name in [model, OPTIMIZER, CONFIG].into_iter().filter(|name| *name != OPTIMIZER || !self.only_model) {
            if !self.files.contains_key(name) {
                return Err(format!("has no checksum of {name}"));
            }
        }
        // A chat template lies in a folder of its own.
        match self.files.keys().find(|name| !name.split('/').all(is_plain_name)) {
            Some(name) => Err(format!("files: {name:?} is no name of a file")),
            None => Ok(()),
        }
    }
}

/// The damage of a checkpoint whose file `name` cannot be read.
fn unreadable(name: &str, error: &std::io::Error) -> Fault {
    Fault::Damaged(match error.kind() {
        std::io::ErrorKind::NotFound => format!("{name} is missing"),
        _ => format!("{name}: {error}"),
    })
}

/// The content of [`DIGEST`] for a [`STATE`] of this content.
fn digest_line(state: &[u8]) -> String {
    format!("{}  {STATE}\n", hex(&Sha256::digest(state)))
}

pub(super) fn checksum(path: &Path) -> std::io::Result<Checksum> {
    let (bytes, sha256) = sha256(path)?;
    Ok(Checksum { bytes, sha256 })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::arguments::TrainingArguments;

    fn state(step: u64) -> State {
        State {
            only_model: false,
            format_version: FORMAT_VERSION,
            kiln_version: "test".into(),
            step,
            steps_ahead: 0,
            samples: 6 * step,
            tokens: 30 * step,
            epoch: 0.1 + 0.2,
            position: Position { epoch: 0, index: step },
            losses: LossSums { logged: 0.7, window: 0.1, steps: 1 },
            stream: None,
            metrics_rows: step,
            pending_evaluation: false,
            seconds: 1.5,
            best: Best::new(&crate::plan::SavingPlan::of(&TrainingArguments::default(), 1)),
            scaler: Some(ScalerState { scale: 65536.0, growth_tracker: 1, skipped: 0, applied: step }),
            outliers: Some(OutlierState { loss: [0.1, 3.4e38].into(), grad_norm: [1e-7].into(), skipped: 0 }),
            promise: serde_json::from_value(json!({"fingerprint": "", "settings": {"training examples": 20}})).unwrap(),
            files: BTreeMap::new(),
        }
    }

    fn write(checkpoints: &Path, state: State) -> PathBuf {
        let tensor = || vec![NamedTensor { name: "w".into(), shape: vec![2], data: vec![1.0, 2.0] }];
        let (model, optimizer) = (tensor(), tensor());
        let snapshot =
            Snapshot { state, file: MODEL, model, optimizer, files: vec![(CONFIG.into(), b"{}\n".as_slice().into())] };
        snapshot.write(checkpoints, &|_| Ok(()), &is_own).unwrap()
    }

    fn is_own(name: &Path) -> bool {
        [STATE, DIGEST, MODEL, OPTIMIZER, CONFIG, SUSPECT].iter().any(|own| Path::new(own) == name)
    }

    fn newest(checkpoints: &Path) -> Option<u64> {
        Checkpoint::newest(checkpoints).unwrap().map(|found| found.state.step)
    }

    #[test]
    fn any_changed_byte_of_any_file_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = write(folder.path(), state(7));
        assert_eq!(Checkpoint::open(&path).unwrap().state.step, 7);
        let mut files = Vec::new();
        for entry in fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()) {
            files.push(entry.file_name().unwrap().to_str().unwrap().to_owned());
            let whole = fs::read(&entry).unwrap();
            let lengths = [&whole[..whole.len() - 1], &[&whole[..], b"\n"].concat()].map(<[u8]>::to_vec);
            let flipped = (0..whole.len()).map(|at| {
                let mut other = whole.clone();
                other[at] ^= 1 << (at % 8);
                other
            });
            for other in flipped.chain(lengths) {
                fs::write(&entry, &other).unwrap();
                let error = Checkpoint::open(&path).unwrap_err().to_string();
                assert!(error.contains("is damaged"), "{}: {error}", entry.display());
            }
            fs::remove_file(&entry).unwrap();
            assert!(Checkpoint::open(&path).unwrap_err().to_string().contains("missing"));
            fs::write(&entry, whole).unwrap();
            Checkpoint::open(&path).unwrap();
        }
        files.sort();
        assert_eq!(files, [CONFIG, MODEL, OPTIMIZER, STATE, DIGEST]);
    }

    #[test]
    fn numbers_that_cannot_be_are_refused_by_name() {
        type Change = fn(&mut State);
        let changes: [(&str, Change); 14] = [
            ("step", |state| state.step = 1 << 63),
            ("samples", |state| state.samples = u64::MAX),
            ("tokens", |state| state.tokens = (1 << 53) + 1),
            ("metrics_rows", |state| state.metrics_rows = u64::MAX),
            ("position.epoch", |state| state.position.epoch = 8),
            ("position.index", |state| state.position.index = 21),
            ("best.step", |state| state.best.step = Some(8)),
            ("scaler.applied", |state| state.scaler.as_mut().unwrap().applied = 8),
            ("epoch", |state| state.epoch = f64::NAN),
            ("seconds", |state| state.seconds = -1.0),
            ("losses.window", |state| state.losses.window = f64::NAN),
            ("losses.steps", |state| state.losses.steps = 8),
            ("outliers.loss", |state| state.outliers.as_mut().unwrap().loss.extend([0.5; 128])),
            ("outliers.skipped", |state| state.outliers.as_mut().unwrap().skipped = 8),
        ];
        for (name, change) in changes {
            let folder = tempfile::tempdir().unwrap();
            write(folder.path(), state(3));
            let mut changed = state(7);
            change(&mut changed);
            let path = write(folder.path(), changed);
            let error = Checkpoint::open(&path).unwrap_err().to_string();
            assert!(error.contains(&format!("state.json: {name}: expected ")), "{error}");
            assert_eq!(newest(folder.path()), Some(3));
        }
    }

    /// A run continues after step 5, below three suspect checkpoints, and is killed between any two
    /// of its actions.
    #[test]
    fn at_every_moment_the_newest_good_checkpoint_is_there() {
        for limit in 1..=3 {
            let folder = tempfile::tempdir().unwrap();
            let at = folder.path();
            (1..=8).for_each(|step| drop(write(at, state(step))));
            (6..=8).for_each(|step| mark_suspect(&at.join(name(step)), "a fault").unwrap());
            assert_eq!(newest(at), Some(5));
            // The same limit without a step back would have seen the suspect ones as the newest.
            rotate(at, limit, None, 5, &is_own).unwrap();
            assert_eq!(newest(at), Some(5));
            supersede(at, 5, &is_own).unwrap();
            assert_eq!((newest(at), list(at).unwrap().len()), (Some(5), limit));
            for step in 6..=9 {
                write(at, state(step));
                assert_eq!(newest(at), Some(step));
                remove_superseded(at, &is_own);
                // The last row is that of step 5, so that what is saved now may yet turn out to be
                // suspect.
                rotate(at, limit, None, 5, &is_own).unwrap();
                let kept = list(at).unwrap().into_iter().map(|(step, _)| step).collect::<Vec<_>>();
                assert!(kept.contains(&5) && kept.contains(&step), "{kept:?}");
                assert!(kept.len() <= limit.max(2), "{kept:?}");
            }
            rotate(at, limit, None, 9, &is_own).unwrap();
            assert_eq!(fs::read_dir(at).unwrap().count(), limit);
        }
    }

    #[test]
    fn what_a_removed_checkpoint_holds_beside_kilns_files_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        (1..=4).for_each(|step| drop(write(folder.path(), state(step))));
        for file in ["step-000001/notes.txt", "step-000002/mine/model.safetensors", "step-000004/mine.txt"] {
            fs::create_dir_all(at(file).parent().unwrap()).unwrap();
            fs::write(at(file), file).unwrap();
        }
        // By rotation, by a resume that has left it behind, and by one that writes it again.
        rotate(folder.path(), 2, None, 4, &is_own).unwrap();
        supersede(folder.path(), 3, &is_own).unwrap();
        write(folder.path(), state(4));
        remove_superseded(folder.path(), &is_own);
        let kept = |name: &str| fs::read_to_string(at(name)).unwrap();
        assert_eq!(kept("step-000001.kept-1/notes.txt"), "step-000001/notes.txt");
        assert_eq!(kept("step-000002.kept-1/mine/model.safetensors"), "step-000002/mine/model.safetensors");
        assert_eq!(kept("step-000004.kept-1/mine.txt"), "step-000004/mine.txt");
        for (name, count) in [("step-000001.kept-1", 1), ("step-000002.kept-1", 1), ("step-000004.kept-1", 1), ("", 5)]
        {
            assert_eq!(fs::read_dir(at(name)).unwrap().count(), count, "{name}");
        }
        assert_eq!(newest(folder.path()), Some(4));
    }

    #[test]
    fn only_a_folder_of_that_name_is_a_checkpoint() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), state(3));
        for name in ["step-000008", "step-4", "step-+00005", "step-0000006", "step-000007.kept-1", "step-"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        fs::write(folder.path().join("step-000009"), "mine").unwrap();
        assert_eq!(list(folder.path()).unwrap().len(), 1);
        assert_eq!(newest(folder.path()), Some(3));
        rotate(folder.path(), 1, None, 3, &is_own).unwrap();
        supersede(folder.path(), 0, &is_own).unwrap();
        remove_superseded(folder.path(), &is_own);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 7);
        fs::write(folder.path().join("step-000008/notes.txt"), "mine").unwrap();
        [8, 9].into_iter().for_each(|step| drop(write(folder.path(), state(step))));
        remove_superseded(folder.path(), &is_own);
        assert_eq!(newest(folder.path()), Some(9));
        let kept = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(kept("step-000008.kept-1/notes.txt") + &kept("step-000009.kept-1"), "minemine");
    }
}
