//! Kiln trains GPT-2 and BERT on [Burn](https://burn.dev): the models of [`kiln_models`], a Trainer with Hugging Face's
//! names, and config files that say everything a run does.

pub mod config;
pub mod error;
pub mod optim;
pub mod task;

pub use error::{Error, ErrorKind, Result};
