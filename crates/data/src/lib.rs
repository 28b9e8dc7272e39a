//! This crate turns files into batches of token ids on the host. It has no tensors and no training,
//! and it reads no file of a model but `config.json`. The modules have the order of the data flow:
//!
//! 1. Text: paths -> corpus -> text chunks -> tokenizer -> tokens -> blocks. Other formats: table,
//!    then rows, windows of SQuAD's contexts, or tokenised rows.
//! 2. Tokenised examples: a [store] on disk, or a [stream] that reads the files again.
//! 3. Batches: subset -> sampler -> loader -> collate -> [`PaddedBatch`]. These modules are in
//!    [`kiln_core::dataset`].

pub mod task;
pub mod settings;
pub mod hub;
pub mod cache;
pub mod paths;
pub mod corpus;
pub mod utf8;
pub mod text_lines;
pub mod text_chunks;
mod guard;
pub mod tokenizer;
pub mod learned;
pub mod store;
pub mod tokens;
pub mod blocks;
pub mod masking;
pub mod labels;
pub mod table;
pub mod rows;
pub mod instruct;
pub mod squad;
pub mod tokenized;
pub mod stream;

#[doc(hidden)]
pub use kiln_core::dataset::lengths;
pub use kiln_core::dataset::{
    BatchLabels, Dataset, Example, Fingerprint, IGNORED, Label, PaddedBatch, collate, digest, loader, padding, sampler,
    shifted, subset, valid_labels,
};
pub use kiln_core::error::{Error, ErrorKind, Result};

#[cfg(test)]
mod mutations;
#[cfg(test)]
#[path = "../../../tests/common/messages.rs"]
mod messages;

/// The samples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
