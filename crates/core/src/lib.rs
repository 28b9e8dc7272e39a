//! This crate has what all other crates of [Kiln](https://docs.rs/kiln) use, without tensors and
//! training: [errors](error) with their exit codes, [`files`] that are written atomically,
//! [records](metrics) of metrics, random seeds, signals, processes, facts about the machine,
//! [tables](names) of the names in files of other programs, [configurations](model_config) of
//! models, and [datasets](dataset) with the sampling and batching of their examples.
//!
//! ```
//! use kiln_core::model_config::{ModelConfig, ModelType};
//!
//! let mut fields = serde_json::Map::new();
//! fields.insert("n_layer".into(), 2.into());
//! let config = ModelConfig::from_fields(ModelType::Gpt2, &fields)?;
//! assert_eq!(config.model_type(), ModelType::Gpt2);
//!
//! fields.insert("n_head".into(), 7.into());
//! let error = ModelConfig::from_fields(ModelType::Gpt2, &fields).unwrap_err();
//! assert_eq!(error.exit_code(), 2); // n_embd = 768 is no multiple of 7
//! # Ok::<(), kiln_core::Error>(())
//! ```

pub mod words;
pub mod signal;
pub mod error;
pub mod signals;
pub mod schema;
pub mod choices;
pub mod complaint;
pub mod ranges;
pub mod keys;
pub mod values;
pub mod names;
pub mod whole_file;
pub mod panics;
mod caught;
pub mod clock;
pub mod cache;
pub mod device_error;
pub mod energy;
pub mod files;
pub mod host;
pub mod metrics;
pub mod process;
pub mod random;
pub mod told;
pub mod saved_dataset;
pub mod stats;
pub mod variables;
pub mod dataset;
pub mod model_config;

pub use caught::caught;
pub use error::{Error, ErrorKind, Result};

/// The samples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
