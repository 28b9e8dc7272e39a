//! The sections of a config file, in the order of the file: where the arguments of the Trainer
//! stand in it.

use serde::{Deserialize, Serialize};

use super::{
    BatchArguments, DataSection, DeviceArguments, DistributedArguments, GenerationSection, LearningRateScaling,
    LoraSection, ModelSection, Precision, RunConfig, RunSection, TokenizerSection, TrainingArguments,
    TrainingCompilerConfig,
};

/// A config file: one field per section, after the keys that stand above them.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct RunFile {
    /// The type of matrix products, in training and evaluation. Default: `f32`.
    precision: Precision,
    /// Config files whose keys hold where this file does not give them: a path or a list, relative
    /// to the folder of this file. A later one wins over an earlier one, and they may include
    /// others. A table is taken whole, but for sections. Default: none.
    #[serde(skip_serializing)]
    include: Vec<String>,
    run: RunSection,
    model: ModelSection,
    #[serde(skip_serializing_if = "Option::is_none")]
    lora: Option<LoraSection>,
    data: DataSection,
    tokenizer: TokenizerSection,
    /// `[trainer]`: how the model is trained.
    trainer: TrainingArguments,
    batch: BatchArguments,
    learning_rate: LearningRateScaling,
    device: DeviceArguments,
    distributed: DistributedArguments,
    #[serde(skip_serializing_if = "Option::is_none")]
    compiler: Option<TrainingCompilerConfig>,
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<GenerationSection>,
}

impl From<RunFile> for RunConfig {
    fn from(file: RunFile) -> Self {
        let trainer = TrainingArguments {
            precision: file.precision,
            compiler: file.compiler,
            batch: file.batch,
            learning_rate_scaling: file.learning_rate,
            device: file.device,
            distributed: file.distributed,
            ..file.run.laid_on(file.trainer)
        };
        Self {
            model: file.model,
            lora: file.lora,
            data: file.data,
            tokenizer: file.tokenizer,
            trainer,
            generation: file.generation,
            included: Vec::new(),
        }
    }
}

impl From<RunConfig> for RunFile {
    fn from(config: RunConfig) -> Self {
        let trainer = config.trainer;
        Self {
            precision: trainer.precision,
            include: Vec::new(),
            run: RunSection::from(&trainer),
            model: config.model,
            lora: config.lora,
            data: config.data,
            tokenizer: config.tokenizer,
            batch: trainer.batch.clone(),
            learning_rate: trainer.learning_rate_scaling.clone(),
            device: trainer.device.clone(),
            distributed: trainer.distributed,
            compiler: trainer.compiler.clone(),
            generation: config.generation,
            trainer,
        }
    }
}
