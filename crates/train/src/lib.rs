//! The Trainer of [Kiln](https://docs.rs/kiln), which knows no config file: [arguments] by Hugging
//! Face's names, the [plan] of a run that follows from them, the training loop with checkpoints and
//! resume, both [engine]s, [optimizers and schedules](optim), and the work of several devices
//! ([distributed]). A program that trains a module of its own depends on this crate alone: Kiln's
//! operators and layers are [`models`], datasets and records [`core`].

// The ground floor: what was built, reads from a device, several processes.
pub mod build_info;
pub mod reads;
pub mod distributed;

// How it is computed.
pub mod engine;
pub mod optim;

// The run as it is asked for, and as it will be.
pub mod arguments;
pub mod plan;

// What is learned, and what a run has open.
pub mod confusion;
pub mod description;
pub mod task;
pub mod evaluation;
pub mod session;
pub mod provenance;
pub mod run_folder;

// Training, and the choice of the mode by a trial.
pub mod trainer;
pub mod trial;

// All that a program needs.
pub mod prelude;

pub use arguments::TrainingArguments;
pub use kiln_core as core;
pub use kiln_core::error::{Error, ErrorKind, Result};
pub use kiln_models as models;
pub use plan::TrainPlan;
pub use session::Session;
pub use task::{Batch, TensorBatch, TokenBatch, TrainingTask};
pub use trainer::Trainer;

/// The samples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
