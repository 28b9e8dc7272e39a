//! The names that a script needs: `use kiln::prelude::*`.

pub use kiln_core::error::Result;
pub use kiln_train::arguments::{OnExisting, TrainingArguments};
pub use kiln_train::engine::settings::CompilerMode;
pub use kiln_train::trainer::{Callback, Control, Progress};

pub use crate::Trainer;
pub use crate::config::{DataSection, ModelKind, ModelSection, RunConfig, Task, TokenizerSection};
pub use crate::entry::FromConfig;
pub use crate::session::{OpenSession, Session};
