//! Kiln trains GPT-2 and BERT on [Burn](https://burn.dev): the models of [`kiln_models`], a
//! [`Trainer`] like Hugging Face's, configs in which nothing is ignored, and one switch between
//! `native` (eager) and `compiled` (fused operators, Burn's fusion, autotune, captured steps).
//!
//! The modules stand in the order in which data flows, and each imports only from those above it. A
//! [`RunConfig`] is what a file says. A [`Session`] opens what it names: model folder, tokenizer,
//! data and device. From the config and these facts follows its [`RunPlan`]: batch arithmetic,
//! steps, learning rate, memory. The [`Trainer`] of [`kiln_train`], which knows no file, carries
//! the plan out.
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
//! The crate stands on [`kiln_core`], [`kiln_data`], [`kiln_models`] and [`kiln_train`]. The crate
//! `kiln-measure` shows that both modes compute the same and measures what the switch is worth;
//! `kiln-cli` is the program.

// The run as it is written, and what is learned.
pub mod config;
pub mod task;

// The run as it will be, and what it has open.
pub mod plan;
pub mod session;

// Using a model, and training one from a file.
pub mod inference;
pub mod mlflow;
pub mod entry;

// All that a script needs.
pub mod prelude;

// The guide, which is text.
pub mod guide;

pub use config::RunConfig;
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
pub type Trainer<T = session::BuiltIn> = trainer::Trainer<T>;

#[cfg(test)]
#[path = "../tests/common/messages.rs"]
mod messages;
