//! Data, in the order in which it flows: paths -> corpus -> text chunks -> tokenizer -> tokens ->
//! blocks (or a table -> its rows, windows of SQuAD's contexts, or tokenised rows), all kept in one
//! kind of [store], or kept nowhere ([stream]) -> subset -> sampler -> loader -> collate ->
//! [`PaddedBatch`]. From the subset on the modules are those of [`kiln_core::dataset`]. Everything
//! here lives on the host; nothing knows tensors or training, and models only by their
//! `config.json`.

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
