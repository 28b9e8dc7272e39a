//! Sizes that were found, kept in Kiln's cache: one file for each thing that a size depends on.
//! `per_device_train_batch_size = "auto"` reads them, `kiln tune-batch --list` shows them, `kiln
//! cache clear` removes them.

use std::path::PathBuf;
use std::{fmt, fs};

use kiln_core::error::{Error, Result};
use kiln_core::files::{hex, read_regular, read_regular_text, write_whole};
use kiln_core::host::cpu_name;
use kiln_data::cache;
use kiln_data::cache::mapped::make_way;
use kiln_models::Ops;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::build_info::BURN_VERSION;
use crate::config::{BatchArguments, CompilerMode, DeviceKind, OnExisting, RunConfig, SaveStrategy, TrainBatchSize};
use crate::engine::device::DeviceFacts;
use crate::plan::batch::{micro_batch, part_of_device};
use crate::plan::{FoundBatch, RunPlan, TrainPlan};
use crate::session::inputs::Inputs;
use crate::session::memory_line::MemoryLine;

/// Everything that a size depends on, besides the memory there is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// The model, for people: its kind and how many parameters it has.
    pub model: String,
    /// The SHA-256 of its whole configuration, 16 digits.
    pub model_config: String,
    /// The task.
    pub task: String,
    /// `native` or `compiled`.
    pub mode: String,
    /// The type of the numbers.
    pub precision: String,
    /// Tokens of the longest example.
    pub block_size: usize,
    /// Further settings that take memory: the optimizer, what learns, the evaluation batch,
    /// accumulation, checkpoints.
    pub training: String,
    /// The device.
    pub device: String,
    /// Kiln's version and Burn's.
    pub versions: String,
}

impl Key {
    /// The key of `plan`, a plan for a micro-batch of any size of the run that `config` describes.
    ///
    /// # Errors
    /// A model that is not Kiln's.
    pub fn of(config: &RunConfig, plan: &RunPlan) -> Result<Self> {
        let (mode, (model_config, task)) = (config.trainer.compiler_mode(), plan.model_and_task()?);
        let TrainPlan { model, batch, optimizer, engine, .. } = &plan.train;
        let operators = match (mode, engine.ops) {
            (CompilerMode::Compiled, Ops::Plain) => ", without Kiln's operators",
            _ => "",
        };
        let trainer = &config.trainer;
        let device = match engine.device.kind {
            DeviceKind::Cpu => cpu_name(),
            _ => engine.device.name.clone(),
        };
        Ok(Self {
            model: format!("{}, {} parameters", model.kind, model.num_parameters),
            model_config: digest(&model_config.to_json("").to_string()),
            task: task.name().into(),
            mode: format!("{mode}{operators}"),
            precision: engine.precision.precision.to_string(),
            block_size: batch.seq_len,
            training: format!(
                "{} {}, {} parameters learn, evaluation of {}, {}, {}{}",
                trainer.optim,
                optimizer.config.describe(),
                model.num_trainable,
                trainer.per_device_eval_batch_size,
                if accumulates(config) { "accumulates" } else { "one micro-batch a step" },
                if trainer.save_strategy == SaveStrategy::No { "no checkpoints" } else { "checkpoints" },
                match (config.trainer.devices.count, config.trainer.distributed.optimizer_sharding) {
                    (1, _) => String::new(),
                    (devices, false) => format!(", gradients of {devices} devices"),
                    (devices, true) => format!(", gradients and optimizer of {devices} devices"),
                }
            ),
            device: format!(
                "{} {}: {device}{}",
                engine.device.kind,
                engine.device.index,
                shared(config, engine.device.kind)
            ),
            versions: format!("kiln {}, burn {BURN_VERSION}", env!("CARGO_PKG_VERSION")),
        })
    }

    fn file(&self) -> Result<PathBuf> {
        let text = serde_json::to_string(self).map_err(|error| Error::data(format!("the key of a size: {error}")))?;
        Ok(cache::folder()?.join(cache::BATCH_SIZES).join(format!("{}.json", digest(&text))))
    }
}

/// The processes of a run that share the memory of a machine, where it is that of the processor.
pub fn sharers(config: &RunConfig, kind: DeviceKind) -> usize {
    if kind == DeviceKind::Cpu { config.trainer.devices.of_a_node() } else { 1 }
}

/// The part of a key that counts the ranks of a machine, which share its memory; empty for one.
fn shared(config: &RunConfig, kind: DeviceKind) -> String {
    match sharers(config, kind) {
        1 => String::new(),
        ranks => format!(", shared by {ranks} ranks"),
    }
}

/// Whether gradients of several micro-batches are added up, which takes memory for them.
pub fn accumulates(config: &RunConfig) -> bool {
    config.trainer.batch.global_batch_size.is_some() || config.trainer.gradient_accumulation_steps > 1
}

/// The outcome of a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It trained.
    Fits {
        /// The most memory that the trial's process had resident, in MiB; none where memory is the
        /// device's.
        peak_mib: Option<f64>,
        /// The median time of a step, in milliseconds.
        step_ms: Option<f64>,
    },
    /// It ran out of memory: how.
    TooLarge(String),
    /// The time limit came first: it says nothing about the size.
    OutOfTime,
}

/// A size that was tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Samples of a forward pass.
    pub batch: usize,
    /// Its outcome.
    pub outcome: Outcome,
}

/// A size that was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stored {
    /// The run that it is the size for.
    pub key: Key,
    /// The largest size that ran.
    pub batch: usize,
    /// The next size was tried and does not fit.
    pub next_fails: bool,
    /// The run had no use for more than this, so that larger sizes were not tried; none where
    /// memory or the options ended the search.
    pub capped_at: Option<usize>,
    /// The memory that trials were allowed, in MiB; none where the device sets the limit.
    pub budget_mib: Option<f64>,
    /// The memory line.
    pub line: Option<MemoryLine>,
    /// Every trial.
    pub trials: Vec<Trial>,
    /// When, in UTC.
    pub date: String,
}

impl Stored {
    /// The size that is stored under `key`. None when no size is stored, or when its search stopped
    /// at a size below `useful` because the run of then had no use for a larger one.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn find(key: &Key, useful: usize) -> Result<Option<Self>> {
        let path = key.file()?;
        make_way(&path)?;
        match read_regular(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            // A file that is no size any more is as good as none: it is found and written again.
            text => {
                let text = text.map_err(|error| Error::io(format!("read {}", path.display()), &error))?;
                let stored = serde_json::from_slice::<Self>(&text).ok().filter(|stored| stored.key == *key);
                Ok(stored.filter(|stored| stored.capped_at.is_none_or(|cap| cap >= useful)))
            }
        }
    }

    /// Keeps it, in place of what was found before.
    ///
    /// # Errors
    /// The operating system's.
    pub fn write(&self) -> Result<()> {
        let path = self.key.file()?;
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(|error| Error::io(format!("make {}", folder.display()), &error))?;
        }
        let text = serde_json::to_string_pretty(self).map_err(|error| Error::data(format!("a size: {error}")))?;
        write_whole(&path, (text + "\n").as_bytes())
    }

    /// Everything that is stored, newest first.
    ///
    /// # Errors
    /// A folder that cannot be read.
    pub fn list() -> Result<Vec<Self>> {
        let folder = cache::folder()?.join(cache::BATCH_SIZES);
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|error| Error::io(format!("read {}", folder.display()), &error))?,
        };
        let texts = entries.flatten().filter_map(|entry| read_regular_text(&entry.path()).ok());
        let mut found = texts.filter_map(|text| serde_json::from_str::<Self>(&text).ok()).collect::<Vec<_>>();
        found.sort_by(|a, b| b.date.cmp(&a.date));
        Ok(found)
    }
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        let budget = self.budget_mib.map_or(String::new(), |mib| format!(" in {mib:.0} MiB"));
        writeln!(
            f,
            "{} {}{budget}: {} for {}, {} tokens, {}",
            self.batch, key.mode, key.model, key.task, key.block_size, key.precision
        )?;
        write!(f, "    {}; {}; {}; {}", key.training, key.device, key.versions, self.date)
    }
}

/// A config that plans the run of `config` with a micro-batch of 1 and nothing derived from the
/// batch: from its plan follow the facts that a size depends on.
pub fn probe(config: &RunConfig) -> RunConfig {
    let mut probe = config.clone();
    probe.trainer.per_device_train_batch_size = TrainBatchSize::Size(1);
    probe.trainer.gradient_accumulation_steps = 1;
    probe.trainer.load_best_model_at_end = false;
    probe.trainer.dataloader_drop_last = false;
    probe.trainer.batch = BatchArguments::default();
    probe
}

/// The micro-batch where `config` says `"auto"`, and where it comes from: a run that is continued
/// keeps its own, any other has what `kiln tune-batch` found for it. None when the config has a
/// number.
///
/// # Errors
/// No size is stored for this run on this machine.
pub(crate) fn found(config: &RunConfig, inputs: &Inputs, device: &DeviceFacts) -> Result<Option<FoundBatch>> {
    if config.trainer.per_device_train_batch_size != TrainBatchSize::Auto {
        return Ok(None);
    }
    if let Some(micro) = size_of_run(config)? {
        return Ok(Some(FoundBatch { micro, because: "the size with which the run began".into() }));
    }
    let probed = probe(config).checked()?;
    let (.., facts) = inputs.facts(&probed, device.clone(), None)?;
    let probe = RunPlan::derive(&probed, &facts)?;
    let mode = config.trainer.compiler_mode();
    let Some(stored) = Stored::find(&Key::of(config, &probe)?, useful(config, &probe.train))? else {
        return Err(Error::config(format!(
            "trainer.per_device_train_batch_size = \"auto\": no size has been found yet for this run on this machine, {mode}"
        ))
        .help(format!("`kiln tune-batch FILE --mode {mode}` finds one, and `kiln train` does so by itself")));
    };
    let micro = micro_batch(&config.trainer, stored.batch);
    let budget = stored.budget_mib.map_or(String::new(), |mib| format!(" in {mib:.0} MiB"));
    let fits = format!("{} fit{budget}, {mode} (kiln tune-batch, {})", stored.batch, stored.date);
    let because = match part_of_device(&config.trainer) {
        Some(part) if micro < stored.batch => {
            format!("{micro} is the largest divisor of {part} up to what fits: {fits}")
        }
        _ => fits,
    };
    Ok(Some(FoundBatch { micro, because }))
}

/// The largest size that the run has a use for: each device's part of a fixed global batch, and no
/// more than all training examples.
pub fn useful(config: &RunConfig, probe: &TrainPlan) -> usize {
    part_of_device(&config.trainer).unwrap_or(usize::MAX).min(probe.data.train_examples).max(1)
}

/// The micro-batch of the run that `config` continues; none when it begins one.
pub fn size_of_run(config: &RunConfig) -> Result<Option<usize>> {
    let file = config.trainer.expanded_output_dir()?.join("plan.toml");
    if config.trainer.on_existing != OnExisting::Resume || !file.is_file() {
        return Ok(None);
    }
    Ok(RunConfig::load(&file)?.trainer.per_device_train_batch_size.size())
}

fn digest(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes())[..8])
}
