//! Kiln trains GPT-2, BERT, Llama and their relatives on [Burn](https://burn.dev). It has a
//! [`Trainer`] like Hugging Face's, configs in which no key is silently ignored, and one switch
//! between the modes `native` (Burn's operations) and `compiled` (fused operators and, on a GPU,
//! Burn's fusion, autotuning and captured steps).
//!
//! The modules stand in the order in which data flows, and each imports only from those above it.
//! [`RunConfig`] is a config file. [`Session`] opens the model folder, the tokenizer, the data and
//! the device that the config names. [`RunPlan`] has the numbers that follow: the batch, the steps,
//! the learning rate, the memory. The [`Trainer`] of [`kiln_train`] executes the plan.
//!
//! ```no_run
//! use kiln::prelude::*;
//!
//! # fn main() -> Result<()> {
//! let mut trainer = Trainer::from_config("configs/quickstart.toml")?;
//! print!("{}", trainer.describe()?);
//! let output = trainer.train()?;
//! println!("{} steps", output.step);
//! # Ok(())
//! # }
//! ```
//!
//! This crate uses [`kiln_core`], [`kiln_data`], [`kiln_models`] and [`kiln_train`]. The crate
//! `kiln-measure` checks that both modes compute the same and measures how much faster compiled is.
//! The crate `kiln-cli` is the program.

// Config files, and the tasks.
pub mod config;
pub mod task;

// The plan of a run, and its open parts.
pub mod plan;
pub mod session;

// The use of a trained model, the reporter of MLflow, and the training of a config file.
pub mod inference;
pub mod mlflow;
pub mod push;
pub mod entry;

// The imports of a program.
pub mod prelude;

// The guide.
pub mod guide;

pub use config::{CheckedConfig, RunConfig};
pub use entry::FromConfig;
pub use kiln_core as core;
pub use kiln_core::error::{Error, ErrorKind, Result};
pub use kiln_data as data;
pub use kiln_models as models;
pub use kiln_train::{
    TrainingArguments, TrainingTask, arguments, build_info, distributed, engine, optim, reads, run_folder, trainer,
};
pub use plan::RunPlan;
pub use session::{OpenSession, Session};

/// The Trainer, by default of a task of Kiln's.
pub type Trainer<T = session::TransformerTask> = trainer::Trainer<T>;

#[cfg(test)]
#[path = "../tests/common/messages.rs"]
mod messages;
