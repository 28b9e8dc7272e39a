//! Data, in the order in which it flows: paths -> corpus -> pieces -> tokenizer -> token store -> blocks (or tokenized rows)
//! -> sampler -> loader -> collate -> [`Batch`]. Everything here lives on the host; nothing knows models or the trainer.

pub mod blocks;
pub mod collate;
pub mod corpus;
pub mod loader;
pub mod paths;
pub mod pieces;
pub mod sampler;
pub mod store;
pub mod tokenized;
pub mod tokenizer;

use crate::error::Result;

/// One micro-batch on the host, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// Number of sequences.
    pub rows: usize,
    /// Tokens of each sequence, padding included.
    pub seq_len: usize,
    /// `[rows * seq_len]`
    pub input_ids: Vec<i32>,
    /// `[rows * seq_len]`, true = attend; none when nothing is padded.
    pub attention_mask: Option<Vec<bool>>,
    /// `[rows * seq_len]`
    pub token_type_ids: Option<Vec<i32>>,
    /// What the loss compares with.
    pub labels: Labels,
    /// Attended tokens.
    pub num_tokens: usize,
}

/// The labels of a batch.
#[derive(Debug, Clone, PartialEq)]
pub enum Labels {
    /// No labels.
    None,
    /// One a token, `[rows * seq_len]`; -100 is ignored.
    Tokens(Vec<i32>),
    /// One class a sequence, `[rows]`.
    Classes(Vec<i32>),
    /// One number a sequence, `[rows]`.
    Values(Vec<f32>),
    /// First and last token of the answer, `[rows]` each.
    Spans {
        /// First token.
        start: Vec<i32>,
        /// Last token.
        end: Vec<i32>,
    },
}

/// One example, unpadded.
#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    /// Token ids.
    pub input_ids: Vec<i32>,
    /// True = attend; none means all.
    pub attention_mask: Option<Vec<bool>>,
    /// Token types, where the data has them.
    pub token_type_ids: Option<Vec<i32>>,
    /// What is to be predicted.
    pub label: Label,
}

/// The label of an example.
#[derive(Debug, Clone, PartialEq)]
pub enum Label {
    /// No label.
    None,
    /// One a token, as long as the example; -100 is ignored.
    Tokens(Vec<i32>),
    /// One class.
    Class(i32),
    /// One number.
    Value(f32),
    /// First and last token of the answer.
    Span {
        /// First token.
        start: i32,
        /// Last token.
        end: i32,
    },
}

/// Examples by index.
pub trait Dataset: Send + Sync {
    /// How many examples there are; at least one.
    fn len(&self) -> usize;

    /// Always false: a dataset without examples is refused when it is opened.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The example at `index`, which is below [`len`](Self::len).
    ///
    /// # Errors
    /// Data that cannot be read any more.
    fn get(&self, index: usize) -> Result<Example>;

    /// Tokens of the longest example.
    fn max_len(&self) -> usize;
}
