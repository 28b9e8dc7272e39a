//! A config written in Rust: the arguments of the Trainer and one method per section, checked at
//! the end like a file. All are plain structs with defaults, so a script sets the fields it means
//! and leaves the rest to `..Default::default()`.

use kiln_core::error::Result;

use super::{
    CheckedConfig, DataSection, GenerationSection, LoraSection, ModelSection, RunConfig, TokenizerSection,
    TrainingArguments,
};

/// Builds a [`CheckedConfig`] section by section.
///
/// ```
/// use kiln::config::{DataSection, ModelKind, ModelSection, RunConfig, TokenizerSection, TrainingArguments, Validation};
/// use kiln::config::Task;
///
/// let arguments = TrainingArguments { max_steps: Some(300), learning_rate: 1e-3, ..TrainingArguments::new("runs/readme") };
/// let config = RunConfig::builder(arguments)
///     .model(ModelSection::new(ModelKind::Gpt2).with("n_layer", 4).with("n_head", 4).with("n_embd", 256))
///     .data(DataSection {
///         block_size: Some(128),
///         validation: Some(Validation::Share(0.02)),
///         ..DataSection::text(Task::Clm, ["src/**/*.rs"])
///     })
///     .tokenizer(TokenizerSection::train(4096))
///     .build()?;
/// assert_eq!(config.trainer.per_device_train_batch_size, 8);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct RunConfigBuilder {
    config: RunConfig,
}

impl RunConfig {
    /// Starts a config for people who write scripts; see [`RunConfigBuilder`].
    pub fn builder(arguments: TrainingArguments) -> RunConfigBuilder {
        RunConfigBuilder { config: Self { trainer: arguments, ..Self::default() } }
    }
}

impl RunConfigBuilder {
    /// The model. Required.
    pub fn model(mut self, model: ModelSection) -> Self {
        self.config.model = model;
        self
    }

    /// The data and the task. Required. How batches are made of them, such as `sampler` and
    /// `padding`, is among the arguments.
    pub fn data(mut self, data: DataSection) -> Self {
        self.config.data = data;
        self
    }

    /// The tokenizer. Default: the pretrained model's own.
    pub fn tokenizer(mut self, tokenizer: TokenizerSection) -> Self {
        self.config.tokenizer = tokenizer;
        self
    }

    /// Adapters beside frozen weights. Default: the whole model learns.
    pub fn lora(mut self, lora: LoraSection) -> Self {
        self.config.lora = Some(lora);
        self
    }

    /// A sample of text at the end. Default: none.
    pub fn generation(mut self, generation: GenerationSection) -> Self {
        self.config.generation = Some(generation);
        self
    }

    /// The config, checked as a file would be.
    ///
    /// # Errors
    /// A config error that names the key, what is expected and what was given.
    pub fn build(self) -> Result<CheckedConfig> {
        Ok(self.config.checked()?)
    }
}
