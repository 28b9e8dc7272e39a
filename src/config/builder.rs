//! A config written in Rust: one method per section, checked at the end like a file. Sections are
//! plain structs with defaults, so a script sets the fields it means and leaves the rest to
//! `..Default::default()`.

use std::path::PathBuf;

use kiln_core::error::Result;

use super::{
    BatchSection, DataSection, DeviceKind, DeviceSection, DistributedSection, GenerationSection, LearningRateSection,
    LoraSection, ModelSection, OnExisting, Precision, RunConfig, TokenizerSection, TrainerSection,
    TrainingCompilerConfig,
};

/// Builds a [`RunConfig`] section by section.
///
/// ```
/// use kiln::config::{DataSection, ModelKind, ModelSection, RunConfig, TokenizerSection, TrainerSection, Validation};
/// use kiln::config::Task;
///
/// let config = RunConfig::builder("runs/readme")
///     .model(ModelSection::new(ModelKind::Gpt2).with("n_layer", 4).with("n_head", 4).with("n_embd", 256))
///     .data(DataSection {
///         block_size: Some(128),
///         validation: Some(Validation::Share(0.02)),
///         ..DataSection::text(Task::Clm, ["src/**/*.rs"])
///     })
///     .tokenizer(TokenizerSection::train(4096))
///     .trainer(TrainerSection { max_steps: Some(300), learning_rate: 1e-3, ..Default::default() })
///     .build()?;
/// assert_eq!(config.trainer.per_device_train_batch_size, 8);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct RunConfigBuilder {
    config: RunConfig,
}

impl RunConfigBuilder {
    pub(super) fn new(output_dir: impl Into<PathBuf>) -> Self {
        let mut config = RunConfig::default();
        config.run.output_dir = output_dir.into();
        Self { config }
    }

    /// How to treat a run folder that exists already. Default: an error.
    pub fn on_existing(mut self, on_existing: OnExisting) -> Self {
        self.config.run.on_existing = on_existing;
        self
    }

    /// The model. Required.
    pub fn model(mut self, model: ModelSection) -> Self {
        self.config.model = model;
        self
    }

    /// The data and the task. Required.
    pub fn data(mut self, data: DataSection) -> Self {
        self.config.data = data;
        self
    }

    /// The tokenizer. Default: the pretrained model's own.
    pub fn tokenizer(mut self, tokenizer: TokenizerSection) -> Self {
        self.config.tokenizer = tokenizer;
        self
    }

    /// The hyperparameters. Default: Hugging Face's.
    pub fn trainer(mut self, trainer: TrainerSection) -> Self {
        self.config.trainer = trainer;
        self
    }

    /// The batch of an optimizer step. Default: micro-batch x accumulation.
    pub fn batch(mut self, batch: BatchSection) -> Self {
        self.config.batch = batch;
        self
    }

    /// How the learning rate follows the batch. Default: not at all.
    pub fn learning_rate(mut self, learning_rate: LearningRateSection) -> Self {
        self.config.learning_rate = learning_rate;
        self
    }

    /// The first device of this kind. Default: the best there is.
    pub fn device(mut self, kind: DeviceKind) -> Self {
        self.config.device = DeviceSection { kind, ..DeviceSection::default() };
        self
    }

    /// How the devices of a run share its work. Default: each has the whole optimizer.
    pub fn distributed(mut self, distributed: DistributedSection) -> Self {
        self.config.distributed = distributed;
        self
    }

    /// The type of matrix products. Default: f32.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.config.precision = precision;
        self
    }

    /// The training compiler. Default: the run is native.
    pub fn compiler(mut self, compiler: TrainingCompilerConfig) -> Self {
        self.config.compiler = Some(compiler);
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

    /// The config of a run whose model, data and loss the program brings along
    /// ([`Session::new`](crate::Session::new)): without model, data and tokenizer.
    ///
    /// # Errors
    /// A config error with the first rule that is broken.
    pub fn build_own(self) -> Result<RunConfig> {
        self.config.validate_own()?;
        Ok(self.config)
    }

    /// The config, checked as a file would be.
    ///
    /// # Errors
    /// A config error that names the key, what is expected and what was given.
    pub fn build(self) -> Result<RunConfig> {
        self.config.validate()?;
        Ok(self.config)
    }
}
