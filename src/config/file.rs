//! The sections of a config file, in the order of the file: where the arguments of the Trainer
//! stand in it.

use serde::{Deserialize, Serialize};

use super::{
    BatchArguments, DataArguments, DataSection, DeviceArguments, DistributedArguments, GenerationSection,
    LearningRateScaling, LoraSection, ModelSection, Precision, RunConfig, RunSection, TokenizerSection,
    TrainingArguments, TrainingCompilerConfig,
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
    data: DataTable,
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

/// `[data]`, which two structs share.
#[derive(Default, Serialize, Deserialize)]
#[serde(from = "DataSection")]
pub(super) struct DataTable {
    #[serde(flatten)]
    section: DataSection,
    /// `[data]` is read a second time for these keys: serde's `flatten` would lose the key of a
    /// mistake.
    #[serde(flatten)]
    arguments: DataArguments,
}

impl From<DataSection> for DataTable {
    fn from(section: DataSection) -> Self {
        Self { section, arguments: DataArguments::default() }
    }
}

impl RunFile {
    /// The config, with the arguments of the Trainer that stand in `[data]`.
    pub(super) fn config(self, data: DataArguments) -> RunConfig {
        let trainer = TrainingArguments {
            precision: self.precision,
            compiler: self.compiler,
            batch: self.batch,
            learning_rate_scaling: self.learning_rate,
            device: self.device,
            distributed: self.distributed,
            ..data.laid_on(self.run.laid_on(self.trainer))
        };
        RunConfig {
            model: self.model,
            lora: self.lora,
            data: self.data.section,
            tokenizer: self.tokenizer,
            trainer,
            generation: self.generation,
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
            data: DataTable { arguments: DataArguments::from(&trainer), section: config.data },
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
