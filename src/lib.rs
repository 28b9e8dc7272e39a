//! Kiln trains GPT-2 and BERT on [Burn](https://burn.dev): the models of [`kiln_models`], a [`Trainer`] like Hugging Face's,
//! configs in which nothing is ignored, and one switch between `native` (eager) and `compiled` (fused operators, Burn's
//! fusion, autotune, captured steps).
//!
//! The modules stand in the order in which data flows, and each imports only from those above it. A [`RunConfig`] is what a
//! file says. A [`Session`] opens what it names: model folder, tokenizer, data and device. From the config and these facts
//! follows its [`RunPlan`]: batch arithmetic, steps, learning rate, memory. The [`trainer`] carries the plan out, [`proof`]
//! shows that both modes compute the same, and [`measure`] says what the switch is worth.
//!
//! ```no_run
//! use kiln::{RunConfig, Session, proof};
//!
//! # fn main() -> kiln::Result<()> {
//! let session = Session::open(RunConfig::load("configs/quickstart.toml")?)?;
//! println!("{}", session.plan().describe());
//! let output = proof::trainer(session)?.train()?;
//! println!("{} steps", output.step);
//! # Ok(())
//! # }
//! ```

// The ground floor.
pub mod base;

// The run as it is written, and the world outside.
pub mod config;
pub mod hub;
pub mod cache;

// Examples, and what is learned from them.
pub mod data;
pub mod task;

// How it is computed.
pub mod engine;
pub mod optim;

// The run as it will be, and what it has open.
pub mod plan;
pub mod session;

// Using and training a model.
pub mod inference;
pub mod trainer;

// Evidence and measurement.
pub mod proof;
pub mod measure;

// The guide, which is text, and the command.
pub mod guide;
pub mod cli;

pub use base::error::{Error, ErrorKind, Result};
pub use config::RunConfig;
pub use plan::RunPlan;
pub use session::{Session, TrainingTask};
pub use trainer::Trainer;
