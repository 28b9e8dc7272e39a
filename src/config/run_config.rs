//! A run as a config file describes it.

use std::path::PathBuf;

use kiln_core::complaint::{Checked, Complaint};
use serde::{Deserialize, Serialize};

use super::file::RunFile;
use super::lora::LoraSection;
use super::sections::{DataSection, GenerationSection, ModelSection, TokenizerSection};
use crate::arguments::{Key, Samples, TrainingArguments};

/// A run as a config file describes it: the arguments of the Trainer, and the model, the data and
/// the tokenizer that it trains with. Its serialised form is the file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "RunFile", into = "RunFile")]
pub struct RunConfig {
    /// `[model]`: which model, and where its weights come from.
    pub model: ModelSection,
    /// `[lora]`: adapters beside frozen weights. None: the whole model learns.
    pub lora: Option<LoraSection>,
    /// `[data]`: what is learned from.
    pub data: DataSection,
    /// `[tokenizer]`: how text becomes ids.
    pub tokenizer: TokenizerSection,
    /// The arguments of the Trainer: `[trainer]`, and the sections that say where, how and in which
    /// folder it computes.
    pub trainer: TrainingArguments,
    /// `[generation]`: a sample of text at the end, if any.
    pub generation: Option<GenerationSection>,
    /// The files that the config file includes, a later one over an earlier one and the file over
    /// all; for people, the plan shows them.
    pub included: Vec<String>,
}

/// Whether `key` of the Trainer's arguments is among the settings of the data and of samples.
fn stands_elsewhere(key: &Key) -> bool {
    key.name.starts_with("data.") || key.name == "generation"
}

impl RunConfig {
    /// The arguments of the Trainer, with those that a config has among the settings of the data.
    pub fn arguments(&self) -> TrainingArguments {
        let samples = match self.generation.as_ref().map(|generation| generation.every) {
            None => Samples::Never,
            Some(None) => Samples::AtEnd,
            Some(Some(steps)) => Samples::Every(steps),
        };
        let DataSection { sampler, padding, pad_to_multiple_of, buckets, test, .. } = self.data.clone();
        TrainingArguments { sampler, padding, pad_to_multiple_of, buckets, test, samples, ..self.trainer.clone() }
    }

    /// This config with other `arguments` of the Trainer.
    pub(crate) fn with_arguments(&self, arguments: &TrainingArguments) -> Self {
        let mut config = Self { trainer: arguments.clone().without(stands_elsewhere), ..self.clone() };
        (config.data.sampler, config.data.padding) = (arguments.sampler, arguments.padding);
        config.data.pad_to_multiple_of = arguments.pad_to_multiple_of;
        config.data.buckets.clone_from(&arguments.buckets);
        config.data.test.clone_from(&arguments.test);
        config.generation = config.generation.filter(|_| arguments.samples != Samples::Never);
        if let Some(generation) = &mut config.generation {
            generation.every = arguments.samples.every();
        }
        config
    }

    /// Whether every setting of the data and of samples stands in its one place.
    pub(super) fn check_places(&self) -> Checked {
        let Some(key) = self.trainer.given().find(|key| stands_elsewhere(key)) else { return Ok(()) };
        let place = if key.name.contains('.') { key.name.to_owned() } else { format!("[{}]", key.name) };
        Err(Complaint::new(&format!("trainer.{}", key.field), "is set elsewhere in a config")
            .help(format!("set {place}")))
    }

    /// The training of this run in the folder `output_dir` and nothing else
    /// ([`TrainingArguments::training_only`]), without a sample of text.
    #[must_use]
    pub fn training_only(&self, output_dir: impl Into<PathBuf>, logging_steps: usize) -> Self {
        let trainer = self.trainer.training_only(output_dir, logging_steps);
        // The validation data stay: a part of the training data may be held out for them.
        let data = DataSection { test: None, ..self.data.clone() };
        Self { trainer, data, generation: None, ..self.clone() }
    }
}
