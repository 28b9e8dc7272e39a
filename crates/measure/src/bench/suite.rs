//! The suites: `suites.toml` as Rust values. It says what is measured, not how; [`super::case`]
//! writes a case down for the arms.

use std::collections::BTreeMap;

use kiln::config::{DeviceKind, Precision, Task};
use kiln::engine::device;
use kiln_core::error::{Error, Result, nearest};
use kiln_models::{ModelConfig, ModelType};
use serde::Deserialize;
use serde_json::{Map, Value};

const TEXT: &str = include_str!("suites.toml");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    review_lengths: Vec<usize>,
    suite: BTreeMap<String, Suite>,
}

/// Where a suite is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// The CPU (Flex).
    Cpu,
    /// CUDA, or a wgpu device that is no software.
    Gpu,
}

/// A list of cases and how they are measured.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Suite {
    /// Its description, for people.
    pub about: String,
    /// Where it is measured.
    pub device: Place,
    /// Whether arms live side by side and take turns.
    pub together: bool,
    /// Whether a large matrix product is timed too, as the measure of what a step's arithmetic
    /// should take.
    #[serde(default)]
    pub floor: bool,
    /// Steps of each arm before anything is counted.
    pub warmup: usize,
    /// Turns of each arm.
    pub rounds: usize,
    /// Optimizer steps of a turn.
    pub steps: usize,
    /// The largest batch that a case with `batch = "max"` looks at.
    #[serde(default)]
    pub max_batch: Option<usize>,
    /// The cases.
    #[serde(rename = "case")]
    pub cases: Vec<Case>,
    /// Percentiles of the lengths of real rows, 0 to 100.
    #[serde(skip)]
    pub review_lengths: Vec<usize>,
}

/// How long rows are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lengths {
    /// All as long as is allowed.
    #[default]
    Full,
    /// Lengths drawn from those of movie reviews; see `suites.toml`.
    Reviews,
}

/// The micro-batch of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaseBatch {
    /// So many rows.
    Size(usize),
    /// The most that train, in each mode, as `kiln tune-batch` finds them.
    Max,
}

impl<'de> Deserialize<'de> for CaseBatch {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) if text == "max" => Ok(Self::Max),
            Value::Number(number) => match number.as_u64() {
                Some(size @ 1..) => Ok(Self::Size(size as usize)),
                _ => Err(serde::de::Error::custom("batch: expected a whole number from 1")),
            },
            other => Err(serde::de::Error::custom(format!("batch: expected a number or \"max\", got {other}"))),
        }
    }
}

/// A model, a batch and a task.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Short name.
    pub name: String,
    /// The family of the model.
    pub kind: ModelType,
    /// Its task.
    pub task: Task,
    /// Rows of a batch.
    pub batch: CaseBatch,
    /// The longest row, in tokens.
    pub length: usize,
    /// How long rows are.
    #[serde(default)]
    pub lengths: Lengths,
    /// The type of matrix products.
    #[serde(default)]
    pub precision: Precision,
    /// The published size of the family; none is its default.
    #[serde(default)]
    pub size: Option<String>,
    /// Fields of Hugging Face's `config.json` that are not the defaults of the family or the size.
    #[serde(default)]
    pub model: Map<String, Value>,
    /// The rank of adapters on all linear layers (LoRA), beside frozen weights; none trains the
    /// whole model.
    #[serde(default)]
    pub lora_r: Option<usize>,
}

impl Case {
    /// The model's configuration, without any dropout.
    ///
    /// # Errors
    /// A size that the family does not have, and fields that are no fields of it.
    pub fn model_config(&self) -> Result<ModelConfig> {
        let mut config = match &self.size {
            Some(size) => ModelConfig::preset(self.kind, size)?.with_fields(&self.model)?,
            None => ModelConfig::from_fields(self.kind, &self.model)?,
        };
        without_dropout(&mut config);
        Ok(config)
    }

    /// Its description, in a line.
    ///
    /// # Errors
    /// The errors of [`model_config`](Self::model_config).
    pub fn describe(&self) -> Result<String> {
        let config = self.model_config()?;
        let (width, layers, heads, _) = config.shape();
        let batch = match self.batch {
            CaseBatch::Size(size) => size.to_string(),
            CaseBatch::Max => "the most rows that fit".into(),
        };
        let lengths = match self.lengths {
            Lengths::Full => "",
            Lengths::Reviews => "up to ",
        };
        let (kind, vocabulary, task) = (self.kind, config.vocab_size(), self.task);
        let adapters = self.lora_r.map_or_else(String::new, |r| format!(", LoRA of rank {r} on all linear layers"));
        Ok(format!(
            "{kind} for {task}, {layers} layers x {width} wide x {heads} heads, vocabulary {vocabulary}{adapters}; \
             {batch} x {lengths}{} tokens, {}, no dropout",
            self.length, self.precision
        ))
    }
}

impl Suite {
    /// The suite called `name`.
    ///
    /// # Errors
    /// A name that no suite has, with the nearest.
    pub fn named(name: &str) -> Result<Self> {
        let File { review_lengths, mut suite } =
            toml::from_str(TEXT).map_err(|error| Error::config(format!("suites.toml: {error}")))?;
        match suite.remove(name) {
            Some(found) => Ok(Self { review_lengths, ..found }),
            None => Err(unknown("--suite", "suite", name, suite.keys().map(String::as_str))),
        }
    }

    /// Keeps the cases called `names`; all of them when none is named.
    ///
    /// # Errors
    /// A name that no case of the suite has, with the nearest.
    pub fn only(mut self, names: &[String]) -> Result<Self> {
        for name in names {
            if self.cases.iter().all(|case| case.name != *name) {
                return Err(unknown("--case", "case", name, self.cases.iter().map(|case| case.name.as_str())));
            }
        }
        self.cases.retain(|case| names.is_empty() || names.contains(&case.name));
        Ok(self)
    }

    /// All cases with products in `precision`.
    #[must_use]
    pub fn in_precision(mut self, precision: Precision) -> Self {
        self.cases.iter_mut().for_each(|case| case.precision = precision);
        self
    }

    /// The kind of device that it is measured on.
    ///
    /// # Errors
    /// A suite for GPUs where this build or this machine has none.
    pub fn device(&self) -> Result<DeviceKind> {
        if self.device == Place::Cpu {
            return Ok(DeviceKind::Cpu);
        }
        let found = device::available();
        let gpu = found.iter().find(|device| device.kind != DeviceKind::Cpu && !device.is_software);
        gpu.map(|device| device.kind).ok_or_else(|| {
            let built = if cfg!(any(feature = "cuda", feature = "wgpu")) {
                "this machine has none, or its driver is missing".to_owned()
            } else {
                "this build of kiln is for the CPU alone".to_owned()
            };
            Error::config(format!("--suite: this suite is for a GPU, and {built}"))
                .help("`.cargo/install-engines cuda` builds both engines for one; `--suite cpu` is for this machine")
        })
    }
}

fn unknown<'a>(option: &str, what: &str, given: &str, known: impl Iterator<Item = &'a str>) -> Error {
    let known = known.collect::<Vec<_>>();
    let near = nearest(given, known.iter().copied());
    let near = near.map_or_else(String::new, |near| format!("did you mean `{near}`? "));
    Error::config(format!("{option}: unknown {what} `{given}`"))
        .help(format!("{near}expected one of {}", known.join(", ")))
}

/// Sets every dropout of `config` to 0.
fn without_dropout(config: &mut ModelConfig) {
    match config {
        ModelConfig::Gpt2(config) => (config.resid_pdrop, config.embd_pdrop, config.attn_pdrop) = (0.0, 0.0, 0.0),
        ModelConfig::Bert(config) => {
            (config.hidden_dropout_prob, config.attention_probs_dropout_prob) = (0.0, 0.0);
            (config.classifier_dropout, config.qa_dropout) = (None, 0.0);
        }
        ModelConfig::Llama(config) => (config.attention_dropout, config.classifier_dropout) = (0.0, Some(0.0)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_case_describes_a_model() {
        for name in ["smoke", "cpu", "llama", "gpu", "gpu-tiny"] {
            let suite = Suite::named(name).unwrap();
            let mut names = suite.cases.iter().map(|case| case.name.as_str()).collect::<Vec<_>>();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), suite.cases.len(), "{name}: names are used once");
            assert_eq!(suite.review_lengths.len(), 21);
            for case in &suite.cases {
                assert!(case.describe().unwrap().contains("no dropout"), "{}", case.name);
            }
        }
        // GPT-2 medium has 354.8 million parameters, MiniLM's shape 22.7 million.
        let suite = Suite::named("gpu").unwrap().only(&["gpt2-medium-b8-bf16".into()]).unwrap();
        assert_eq!(suite.cases[0].model_config().unwrap().shape(), (1024, 24, 16, 4096));
    }

    #[test]
    fn slips_are_refused_with_the_nearest_name() {
        let text = Suite::named("cpuu").unwrap_err().to_string();
        assert!(text.contains("did you mean `cpu`?") && text.contains("smoke"), "{text}");
        let text = Suite::named("cpu").unwrap().only(&["minilm-46".into()]).unwrap_err().to_string();
        assert!(text.contains("did you mean `minilm-64`?"), "{text}");
    }
}
