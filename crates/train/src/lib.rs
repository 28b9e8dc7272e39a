//! This crate has the Trainer of [Kiln](https://docs.rs/kiln) and reads no config file. It has
//! [arguments] with Hugging Face's names, the [plan] of a run that follows from them, the training
//! loop with checkpoints, both [modes](engine), [optimizers and schedules](optim), and training on
//! several devices ([distributed]). A program that trains a Burn module of its own needs no other
//! crate of Kiln: operators and layers are [`models`], datasets and records [`core`].

// Facts about the build, reads from a device, several processes.
pub mod build_info;
pub mod reads;
pub mod distributed;

// Modes, devices, precision, and the optimizer.
pub mod engine;
pub mod optim;

// The arguments of a run, and the plan that follows from them.
pub mod arguments;
pub mod plan;

// The task, and the open parts and files of a run.
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

// The imports of a program.
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
