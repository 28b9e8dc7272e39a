//! The sections of a config file, in the order of the file: where the arguments of the Trainer
//! stand in it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{
    BatchArguments, DataSection, DeviceArguments, DistributedArguments, GenerationSection, LearningRateScaling,
    LoraSection, ModelSection, OnExisting, Precision, RunConfig, TokenizerSection, TrainingArguments,
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

/// `[run]`: where the results go.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct RunSection {
    /// The run folder. Default: `runs/NAME` for a config file `NAME.toml`; required without a file.
    output_dir: PathBuf,
    /// The treatment of a run folder that exists. It belongs to a call and not to the run, so that
    /// plan.toml has the default. Default: `fail`.
    on_existing: OnExisting,
    /// A name for people, shown in the plan and by `kiln describe`. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// The checkpoint to continue from, with `on_existing = "resume"`, also `--resume-from`: one in
    /// this run's folder, such as `runs/x/checkpoints/step-000100`, or for a run folder that does
    /// not exist yet, one of another run, which is copied there. It belongs to a call and not to
    /// the run, so that plan.toml does not repeat it. Default: the newest.
    #[serde(skip_serializing)]
    resume_from_checkpoint: Option<PathBuf>,
}

impl From<&TrainingArguments> for RunSection {
    fn from(trainer: &TrainingArguments) -> Self {
        Self {
            output_dir: trainer.output_dir.clone(),
            on_existing: trainer.on_existing,
            name: trainer.run_name.clone(),
            resume_from_checkpoint: trainer.resume_from_checkpoint.clone(),
        }
    }
}

impl Default for RunSection {
    fn default() -> Self {
        Self::from(&TrainingArguments::default())
    }
}

impl From<RunFile> for RunConfig {
    fn from(file: RunFile) -> Self {
        let trainer = TrainingArguments {
            output_dir: file.run.output_dir,
            on_existing: file.run.on_existing,
            run_name: file.run.name,
            resume_from_checkpoint: file.run.resume_from_checkpoint,
            precision: file.precision,
            compiler: file.compiler,
            batch: file.batch,
            learning_rate_scaling: file.learning_rate,
            device: file.device,
            distributed: file.distributed,
            ..file.trainer
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
