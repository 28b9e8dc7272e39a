//! The config of a run: the file as serde structs, read, checked and written back. It mirrors the
//! file and derives nothing: steps, shapes and devices are the plan's. A component receives its own
//! section, never [`RunConfig`].
//!
//! Defaults are Hugging Face's and stand in the `Default` implementations of the sections. Every
//! mistake is one error with the file, the line, the key, what was expected and what was given.

mod builder;
mod check;
mod document;
mod file;
mod generate;
mod hf_args;
mod hugging_face;
mod includes;
mod layers;
mod load;
mod lora;
mod origin;
mod run_config;
mod schema;
pub mod scripts;
mod sections;
pub mod settings;
pub mod toml_words;
mod values;

#[cfg(test)]
mod tests;

pub use builder::RunConfigBuilder;
pub use check::CheckedConfig;
pub use document::{field_names, quoted};
pub use generate::GenerateOptions;
pub use hugging_face::hugging_face_arguments;
pub use includes::movable;
pub use kiln_data::settings::{Buckets, DataFormat, DocumentEnd, Documents, Errors, PaddingStrategy, Sampler};
pub use kiln_data::task::{DEFAULT_LABEL_COLUMN, DEFAULT_TEXT_COLUMN, Task};
pub use load::read;
pub use lora::LoraSection;
pub use run_config::RunConfig;
pub use schema::{SCHEMA_FILE, SCHEMA_LINE, json_schema};
pub use sections::{DataSection, GenerationSection, ModelKind, ModelSection, TokenizerSection};
pub use values::Validation;

pub use crate::arguments::{
    BatchArguments, BatchScaling, BatchScope, ClassWeights, DataArguments, DdpBackend, DistributedArguments,
    EvalStrategy, HubStrategy, Integration, Interval, LearningRateScaling, LogLevel, LoggingStrategy, LrScaling,
    OnExisting, RunLength, RunSection, Samples, SaveStrategy, ScaledRate, StepSize, TrainBatchSize, TrainingArguments,
};
pub use crate::engine::compiler::settings::{FusedOps, TrainingCompilerConfig, Verify};
pub use crate::engine::settings::{AutotuneLevel, CompilerMode, DeviceArguments, DeviceKind, Precision, Switch};
pub use crate::optim::arguments::{AdjustLr, OptimArgs, OptimizerName};
pub use crate::optim::backward::ActivationCheckpointing;
pub use crate::optim::loss::Accumulation;
pub use crate::optim::scheduler::{Ramp, SchedulerKwargs, SchedulerType};
