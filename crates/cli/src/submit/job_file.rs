//! `job.toml`: what a job is, by the names of SageMaker's estimators, for this machine and for
//! SageMaker alike.

use std::path::{Path, PathBuf};

use kiln::config;
use kiln::config::toml_words::{plain_words, toml_error};
use kiln_core::error::{Error, Result, nearest};
use serde::Deserialize;
use toml::{Table, Value};

use crate::metrics::{Definition, definitions, text_of as text_of_file};

/// The longest training of a job in seconds where it does not say, as in SageMaker's estimators: a
/// day.
const MAX_RUN: u64 = 24 * 3600;

/// The folder of checkpoints in a container.
pub(super) const CHECKPOINTS: &str = "/opt/ml/checkpoints";

/// A job: its program, its input, where its results go and how long it may take.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JobFile {
    /// The job's name; the file's without its ending where it is left out.
    #[serde(default, alias = "job_name", alias = "base_job_name")]
    pub(super) name: String,
    /// The container.
    #[serde(alias = "image")]
    pub(super) image_uri: Option<String>,
    /// The kiln that runs a local job without a container; this one where it is left out.
    pub(super) binary: Option<PathBuf>,
    /// The ARN of the role that the job has on SageMaker.
    pub(super) role: Option<String>,
    /// Where the archives of the results go.
    pub(super) output_path: Option<String>,
    /// The machine; `local` and `local_gpu` are this one.
    pub(super) instance_type: Option<String>,
    #[serde(default = "one")]
    pub(super) instance_count: i64,
    /// GiB of the disk.
    #[serde(default = "thirty")]
    pub(super) volume_size: i64,
    /// Seconds of training, over all starts.
    #[serde(default = "max_run")]
    pub(super) max_run: i64,
    /// Seconds of training and of waiting for a spot machine.
    pub(super) max_wait: Option<i64>,
    #[serde(default, alias = "spot")]
    pub(super) use_spot_instances: bool,
    pub(super) checkpoint_s3_uri: Option<String>,
    #[serde(default = "file_mode")]
    pub(super) input_mode: String,
    #[serde(default)]
    hyperparameters: Table,
    /// The script whose rules the job follows.
    entry_point: Option<String>,
    /// How the job is divided among GPUs, as the estimators have it.
    #[serde(default, deserialize_with = "distribution")]
    distribution: Vec<(String, Value)>,
    /// Names of the estimators that change nothing here, a line for each.
    #[serde(skip)]
    pub(super) told: Vec<String>,
    /// `[compiler]`, as SageMaker's `TrainingCompilerConfig`: given is on.
    #[serde(alias = "compiler")]
    compiler_config: Option<CompilerConfig>,
    #[serde(default, alias = "inputs")]
    channels: Table,
    #[serde(default)]
    pub(super) environment: Table,
    #[serde(default)]
    pub(super) tags: Table,
    /// A list of names and regular expressions, or a file of them.
    metric_definitions: Option<Value>,
}

/// Names of SageMaker's estimators that change nothing about a job of Kiln's, and why.
const INERT: [(&str, &str); 13] = [
    ("transformers_version", IMAGE),
    ("pytorch_version", IMAGE),
    ("tensorflow_version", IMAGE),
    ("framework_version", IMAGE),
    ("py_version", IMAGE),
    ("source_dir", SOURCE),
    ("git_config", SOURCE),
    ("dependencies", SOURCE),
    ("disable_profiler", PROFILER),
    ("profiler_config", PROFILER),
    ("debugger_hook_config", PROFILER),
    ("rules", PROFILER),
    ("container_log_level", "the log of a job is that of its run"),
];

const IMAGE: &str = "image_uri, or binary, names the program that trains";
const SOURCE: &str = "Kiln runs no script; entry_point names the one whose rules it follows";
const PROFILER: &str =
    "SageMaker's profiler and debugger watch programs of Python; `kiln train --step-times` times the parts of a step";

/// Names of SageMaker's estimators for what Kiln does not hand over, and what to do instead.
const REFUSED: [(&str, &str); 3] = [
    (
        "file_system_id",
        "channels are on S3 or on this machine: mount the file system and name its folder, or copy it to S3",
    ),
    (
        "file_system_type",
        "channels are on S3 or on this machine: mount the file system and name its folder, or copy it to S3",
    ),
    (
        "directory_path",
        "channels are on S3 or on this machine: mount the file system and name its folder, or copy it to S3",
    ),
];

/// The hyperparameters by which SageMaker's estimators hand over `distribution`.
fn distribution<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Vec<(String, Value)>, D::Error> {
    use serde::de::Error as _;
    let table = Table::deserialize(deserializer)?;
    let mut found = Vec::new();
    let mut enabled = |name: &str, path: &str, value: &Value| match value.get("enabled").and_then(Value::as_bool) {
        Some(on) => {
            found.push((name.to_owned(), Value::Boolean(on)));
            Ok(())
        }
        None => Err(D::Error::custom(format!("{path}: expected a table with enabled = true or false"))),
    };
    let mut processes = None;
    for (kind, value) in &table {
        match kind.as_str() {
            "smdistributed" => {
                let parts = value.as_table().cloned().unwrap_or_default();
                if let Some(part) = parts.keys().find(|part| *part != "dataparallel") {
                    return Err(D::Error::custom(format!(
                        "smdistributed.{part}: not supported; every device has the whole model"
                    )));
                }
                let Some(part) = parts.get("dataparallel") else {
                    return Err(D::Error::custom("smdistributed: expected dataparallel = { enabled = true }"));
                };
                enabled("sagemaker_distributed_dataparallel_enabled", "smdistributed.dataparallel", part)?;
            }
            "pytorchxla" => enabled("sagemaker_pytorch_xla_multi_worker_enabled", kind, value)?,
            "pytorchddp" => enabled("sagemaker_pytorch_ddp_enabled", kind, value)?,
            "torch_distributed" => enabled("sagemaker_torch_distributed_enabled", kind, value)?,
            "mpi" => {
                enabled("sagemaker_mpi_enabled", kind, value)?;
                processes = value.get("processes_per_host").cloned();
            }
            _ => {
                return Err(D::Error::custom(format!(
                    "{kind}: expected smdistributed, torch_distributed, pytorchddp, pytorchxla or mpi"
                )));
            }
        }
    }
    found.extend(processes.map(|count| ("sagemaker_mpi_num_of_processes_per_host".to_owned(), count)));
    Ok(found)
}

fn one() -> i64 {
    1
}

fn thirty() -> i64 {
    30
}

fn max_run() -> i64 {
    MAX_RUN as i64
}

fn file_mode() -> String {
    "File".into()
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct CompilerConfig {
    #[serde(default = "yes")]
    enabled: bool,
    #[serde(default)]
    debug: bool,
}

fn yes() -> bool {
    true
}

/// Where a channel's files are: on this machine, on S3, or both, for the same file to serve both.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Channel {
    /// A file or folder of this machine.
    pub(super) local: Option<String>,
    /// An address.
    #[serde(alias = "s3_data", alias = "uri")]
    pub(super) s3: Option<String>,
    pub(super) distribution: Option<String>,
    pub(super) content_type: Option<String>,
    pub(super) compression: Option<String>,
    pub(super) input_mode: Option<String>,
}

impl JobFile {
    /// Reads `path`.
    ///
    /// # Errors
    /// The operating system's, TOML's, an unknown key, a wrong type.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let at = |error: Error| error.at(path.display());
        let text = config::read(path)?;
        let mut table = text.parse::<Table>().map_err(|error| toml_error(path.display(), &text, &error))?;
        let mut told = Vec::new();
        for (name, why) in INERT {
            if let Some(value) = table.remove(name) {
                told.push(format!("{name} = {value}: no effect: {why}"));
            }
        }
        if let Some((name, help)) = REFUSED.into_iter().find(|(name, _)| table.contains_key(*name)) {
            return Err(at(Error::config(format!("{name}: not supported")).help(help)));
        }
        let known = config::field_names::<Self>();
        let unknown = table.keys().find(|key| !known.contains(&key.as_str()));
        if let Some(key) = unknown {
            let error = at(Error::config(format!("{key}: unknown key")));
            return Err(match nearest(key, known.iter().copied()) {
                Some(near) => error.help(format!("did you mean `{near}`?")),
                None => error.help(format!("a job has {}", known.join(", "))),
            });
        }
        let mut job: Self = serde_path_to_error::deserialize(table).map_err(|error| {
            let key = error.path().to_string();
            at(Error::config(format!("{key}: {}", plain_words(error.into_inner().message()))))
        })?;
        job.told = told;
        if job.name.is_empty() {
            job.name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        }
        Ok(job)
    }

    /// The hyperparameters as the strings that a container gets, those of the compiler's switch
    /// included.
    pub(super) fn hyperparameters(&self) -> Vec<(String, String)> {
        let own = self.hyperparameters.iter().map(|(name, value)| (name.clone(), text_of(value)));
        let switch = self.compiler_config.into_iter().flat_map(|compiler| {
            [
                ("sagemaker_training_compiler_enabled", compiler.enabled),
                ("sagemaker_training_compiler_debug_mode", compiler.debug),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_string()))
        });
        let script = self.entry_point.iter().map(|script| ("sagemaker_program".to_owned(), script.clone()));
        let devices = self.distribution.iter().map(|(name, value)| (name.clone(), text_of(value)));
        own.chain(switch).chain(script).chain(devices).collect()
    }

    /// The names of hyperparameters that the job gives twice, by themselves and by its
    /// `[compiler]`, `entry_point` or `distribution`.
    pub(super) fn given_twice(&self) -> Vec<String> {
        let all = self.hyperparameters();
        let own = self.hyperparameters.keys().cloned();
        own.filter(|name| all.iter().filter(|(other, _)| other == name).count() > 1).collect()
    }

    /// The channels, or what is wrong with them.
    pub(super) fn channels(&self) -> std::result::Result<Vec<(String, Channel)>, Vec<String>> {
        let (mut channels, mut wrong) = (Vec::new(), Vec::new());
        for (name, value) in &self.channels {
            let channel = match value {
                Value::String(place) if is_address(place) => {
                    Ok(Channel { s3: Some(place.clone()), ..Channel::default() })
                }
                Value::String(place) => Ok(Channel { local: Some(place.clone()), ..Channel::default() }),
                Value::Table(_) => value.clone().try_into::<Channel>().map_err(|error| plain_words(error.message())),
                other => Err(format!("expected a path, an address or a table, got {other}")),
            };
            match channel {
                Ok(Channel { local: None, s3: None, .. }) => {
                    wrong.push(format!("channels.{name}: expected `local`, `s3` or both, got neither"));
                }
                Ok(channel) => channels.push((name.clone(), channel)),
                Err(error) => wrong.push(format!("channels.{name}: {error}")),
            }
        }
        for (at, (name, _)) in channels.iter().enumerate() {
            if let Some((first, _)) = channels[..at].iter().find(|(first, _)| first.eq_ignore_ascii_case(name)) {
                let variable = name.to_uppercase();
                wrong
                    .push(format!("channels.{name}: {first} has the same variable, SM_CHANNEL_{variable}; rename one"));
            }
        }
        if wrong.is_empty() { Ok(channels) } else { Err(wrong) }
    }

    /// The metric definitions.
    ///
    /// # Errors
    /// A file that cannot be read; definitions that are none, or more or longer than SageMaker
    /// takes.
    pub(super) fn metric_definitions(&self) -> Result<Vec<Definition>> {
        const KEY: &str = "metric_definitions";
        let (text, origin) = match &self.metric_definitions {
            None => return Ok(Vec::new()),
            Some(Value::String(path)) => {
                (text_of_file(Path::new(path)).map_err(|error| error.at(KEY))?, format!("{KEY}: {path}"))
            }
            Some(list) => (text_of(list), KEY.to_owned()),
        };
        Ok(definitions(&text, &origin)?.into_iter().map(|(definition, _)| definition).collect())
    }
}

/// Whether `place` is on S3 and not on this machine.
pub(super) fn is_address(place: &str) -> bool {
    place.starts_with("s3://") || place.starts_with("https://")
}

/// A value as hyperparameters, tags and environment variables have it: texts as they are, anything
/// else as JSON.
pub(super) fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Datetime(time) => time.to_string(),
        // JSON has no infinity.
        Value::Float(number) => format!("{number:?}"),
        other => serde_json::to_string(other).unwrap_or_else(|_| other.to_string()),
    }
}
