//! A run as a config file describes it.

use std::path::PathBuf;

use serde::Serialize;

use super::file::RunFile;
use super::lora::LoraSection;
use super::sections::{DataSection, GenerationSection, ModelSection, TokenizerSection};
use crate::arguments::{Samples, TrainingArguments};

/// A run as a config file describes it: the arguments of the Trainer, and the model, the data and
/// the tokenizer that it trains with. Its serialised form is the file.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(into = "RunFile")]
pub struct RunConfig {
    /// `[model]`: which model, and where its weights come from.
    pub model: ModelSection,
    /// `[lora]`: adapters beside frozen weights. None: the whole model learns.
    pub lora: Option<LoraSection>,
    /// `[data]`: what is learned from. The keys of the section that say how batches are made of it
    /// and which rows are predicted are among the arguments of the Trainer
    /// ([`DataArguments`](super::DataArguments)).
    pub data: DataSection,
    /// `[tokenizer]`: how text becomes ids.
    pub tokenizer: TokenizerSection,
    /// The arguments of the Trainer: `[trainer]`, the sections that say where, how and in which
    /// folder it computes, and those keys of `[data]`.
    pub trainer: TrainingArguments,
    /// `[generation]`: a sample of text at the end, if any.
    pub generation: Option<GenerationSection>,
    /// The files that the config file includes, a later one over an earlier one and the file over
    /// all; for people, the plan shows them.
    pub included: Vec<String>,
}

impl RunConfig {
    /// The arguments of the Trainer, with the samples of text that `generation` asks for.
    pub fn arguments(&self) -> TrainingArguments {
        let samples = match self.generation.as_ref().map(|generation| generation.every) {
            None => Samples::Never,
            Some(None) => Samples::AtEnd,
            Some(Some(steps)) => Samples::Every(steps),
        };
        TrainingArguments { samples, ..self.trainer.clone() }
    }

    /// This config with other `arguments` of the Trainer.
    pub(crate) fn with_arguments(&self, arguments: &TrainingArguments) -> Self {
        let trainer = TrainingArguments { samples: Samples::Never, ..arguments.clone() };
        let mut config = Self { trainer, ..self.clone() };
        config.generation = config.generation.filter(|_| arguments.samples != Samples::Never);
        if let Some(generation) = &mut config.generation {
            generation.every = arguments.samples.every();
        }
        config
    }

    /// The training of this run in the folder `output_dir` and nothing else
    /// ([`TrainingArguments::training_only`]), without a sample of text.
    #[must_use]
    pub fn training_only(&self, output_dir: impl Into<PathBuf>, logging_steps: usize) -> Self {
        let trainer = self.trainer.training_only(output_dir, logging_steps);
        Self { trainer, generation: None, ..self.clone() }
    }
}
