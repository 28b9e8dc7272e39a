//! The names that a program needs to train a model of its own: `use kiln_train::prelude::*`.

pub use kiln_core::error::Result;
pub use kiln_core::fingerprint;
pub use kiln_models::weights::{StateDict, load_saved};
pub use kiln_models::{Compute, Pass};

pub use crate::arguments::{EvalStrategy, OnExisting, SaveStrategy, TrainingArguments};
pub use crate::engine::settings::CompilerMode;
pub use crate::task::{Figures, TensorBatch, TokenBatch, TrainingTask};
pub use crate::trainer::{StopAfter, Trainer};
