//! Kiln trains GPT-2 and BERT on [Burn](https://burn.dev): the models of [`kiln_models`], a Trainer with Hugging Face's
//! names, and config files that say everything a run does.

pub mod batch_size;
pub mod bench;
pub mod cache;
pub mod cli;
pub mod compare;
pub mod compiler;
pub mod config;
pub mod data;
pub mod engine;
pub mod error;
pub mod evaluate_folder;
pub mod execution;
pub mod export;
pub mod forward;
pub mod generate;
pub mod host;
pub mod hub;
pub mod init;
pub mod inputs;
pub mod launches;
pub mod memory;
pub mod metrics;
pub mod model_folder;
pub mod optim;
pub mod plan;
pub mod precision;
pub mod predict;
pub mod process;
pub mod provenance;
pub mod report;
pub mod runs;
pub mod scores;
pub mod signals;
pub mod squad;
pub mod step_closures;
pub mod task;
pub mod trainer;
pub mod turns;
pub mod verify_resume;

pub use config::RunConfig;
pub use error::{Error, ErrorKind, Result};
pub use plan::RunPlan;
pub use trainer::Trainer;
