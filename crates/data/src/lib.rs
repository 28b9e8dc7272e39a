//! Data, in the order in which it flows: paths -> corpus -> text chunks -> tokenizer -> tokens ->
//! blocks (or a table -> its rows, windows of SQuAD's contexts, or tokenised rows), all kept in one
//! kind of [store], or kept nowhere ([stream]) -> subset -> sampler -> loader -> collate ->
//! [`Batch`]. Everything here lives on the host; nothing knows tensors or training, and models
//! only by their `config.json`.

pub mod task;
pub mod settings;
pub mod hub;
pub mod cache;
pub mod paths;
pub mod corpus;
pub mod text_lines;
pub mod text_chunks;
mod guard;
pub mod tokenizer;
pub mod learned;
pub mod digest;
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
pub mod subset;
pub mod sampler;
pub mod padding;
pub mod loader;
pub mod collate;
#[doc(hidden)]
pub mod lengths;

use std::any::Any;

pub use kiln_core::error::{Error, ErrorKind, Result};
use sha2::{Digest as _, Sha256};

/// Labels with this value are ignored (PyTorch's `ignore_index`).
pub const IGNORED: i32 = -100;

/// One micro-batch on the host, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// Number of sequences.
    pub rows: usize,
    /// How many of them are examples. Rows that only fill the batch up follow; nothing of them is
    /// attended or counted.
    pub examples: usize,
    /// Tokens of each sequence, padding included.
    pub seq_len: usize,
    /// `[rows * seq_len]`
    pub input_ids: Vec<i32>,
    /// `[rows * seq_len]`, true = attend; none when nothing is padded.
    pub attention_mask: Option<Vec<bool>>,
    /// `[rows * seq_len]`
    pub token_type_ids: Option<Vec<i32>>,
    /// `[rows * seq_len]`, where a row has several documents: each begins at position 0, and
    /// attends to itself alone. None means that a row is one document.
    pub position_ids: Option<Vec<i32>>,
    /// The targets of the loss.
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
    /// One class a sequence, `[rows]`; -100 is ignored.
    Classes(Vec<i32>),
    /// One number a sequence, `[rows]`; 0 in rows that are no examples.
    Values(Vec<f32>),
    /// For every label of a sequence 1 where it applies and 0 where it does not, `[rows * labels]`;
    /// 0 in rows that are no examples.
    Multi(Vec<f32>),
    /// The right one of several sequences, which stand as rows one after the other.
    Choices {
        /// How many choices an example has.
        choices: usize,
        /// `[rows / choices]`; -100 is ignored.
        answers: Vec<i32>,
    },
    /// First and last token of the answer, `[rows]` each; 0 in rows that are no examples.
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
    /// Positions, where the example is several documents: each begins at position 0. None means one
    /// document.
    pub position_ids: Option<Vec<i32>>,
    /// The label that is to be predicted.
    pub label: Label,
}

impl Example {
    /// Tokens of its longest sequence: of the longest choice, where it has several.
    pub fn longest(&self) -> usize {
        match &self.label {
            Label::Choice { lens, .. } => lens.iter().copied().max().unwrap_or(0),
            _ => self.input_ids.len(),
        }
    }

    /// Its sequences, unlabelled: the choices of a multiple choice, else itself.
    pub fn sequences(&self) -> Vec<Self> {
        let Label::Choice { lens, .. } = &self.label else { return vec![self.clone()] };
        let mut begin = 0;
        let sequence = |len: &usize| {
            let range = begin..begin + len;
            begin = range.end;
            Self {
                input_ids: self.input_ids[range.clone()].to_vec(),
                attention_mask: self.attention_mask.as_ref().map(|mask| mask[range.clone()].to_vec()),
                token_type_ids: self.token_type_ids.as_ref().map(|types| types[range].to_vec()),
                position_ids: None,
                label: Label::None,
            }
        };
        lens.iter().map(sequence).collect()
    }
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
    /// For every label, 1 where it applies and 0 where it does not.
    Multi(Vec<f32>),
    /// The right one of several sequences, which stand in the example one after the other.
    Choice {
        /// Tokens of each sequence.
        lens: Vec<usize>,
        /// The number of the right one, from 0; -100 where it is not known.
        answer: i32,
    },
    /// First and last token of the answer.
    Span {
        /// First token.
        start: i32,
        /// Last token.
        end: i32,
    },
}

/// An example of a [`Dataset`], as far as a run that is continued has to know its data again.
pub trait Fingerprint: 'static {
    /// Adds everything in the example to `hash`, with tags and lengths, so that no two examples add
    /// the same.
    fn hash_into(&self, hash: &mut Sha256);
}

macro_rules! fingerprint_of_numbers {
    ($($number:ty),*) => {
        $(
            impl Fingerprint for $number {
                fn hash_into(&self, hash: &mut Sha256) {
                    hash.update(self.to_le_bytes());
                }
            }
        )*
    };
}

fingerprint_of_numbers!(u8, u32, u64, i32, i64, f32, f64);

/// Token ids, for example.
impl<T: Fingerprint> Fingerprint for Vec<T> {
    fn hash_into(&self, hash: &mut Sha256) {
        hash.update((self.len() as u64).to_le_bytes());
        self.iter().for_each(|item| item.hash_into(hash));
    }
}

impl<T: Fingerprint, const N: usize> Fingerprint for [T; N] {
    fn hash_into(&self, hash: &mut Sha256) {
        self.iter().for_each(|item| item.hash_into(hash));
    }
}

impl Fingerprint for String {
    fn hash_into(&self, hash: &mut Sha256) {
        hash.update((self.len() as u64).to_le_bytes());
        hash.update(self);
    }
}

/// An input and its label, for example.
impl<A: Fingerprint, B: Fingerprint> Fingerprint for (A, B) {
    fn hash_into(&self, hash: &mut Sha256) {
        self.0.hash_into(hash);
        self.1.hash_into(hash);
    }
}

impl Batch {
    /// How many labels are valid. For `clm` these are more than the [terms](Self::num_terms) of the
    /// loss: the first token of a row has a label, but nothing before it predicts it.
    pub fn num_labels(&self) -> usize {
        match &self.labels {
            Labels::None => 0,
            Labels::Tokens(labels) | Labels::Classes(labels) | Labels::Choices { answers: labels, .. } => {
                valid_labels(labels)
            }
            Labels::Multi(values) => values.len() / self.rows.max(1) * self.examples,
            Labels::Values(_) | Labels::Spans { .. } => self.examples,
        }
    }

    /// Sequences of an example: the choices of a multiple choice, else 1.
    pub fn sequences(&self) -> usize {
        if let Labels::Choices { choices, .. } = &self.labels { *choices } else { 1 }
    }

    /// How many terms the loss sum of `task` has: predicted tokens, rows or spans.
    pub fn num_terms(&self, task: task::Task) -> usize {
        match (&self.labels, task) {
            (Labels::Tokens(labels), task::Task::Clm) => valid_labels(&shifted(labels, self.seq_len)),
            _ => self.num_labels(),
        }
    }
}

/// How many of `labels` are not ignored.
pub fn valid_labels(labels: &[i32]) -> usize {
    labels.iter().filter(|&&label| label != IGNORED).count()
}

/// Labels moved one position to the left within each row; the last position predicts nothing.
pub fn shifted(labels: &[i32], seq_len: usize) -> Vec<i32> {
    let rows = labels.chunks(seq_len);
    rows.flat_map(|row| row[1..].iter().copied().chain([IGNORED])).collect()
}

/// Examples by index: of tokens and a label, or of what a task of one's own reads. The
/// [evaluator](https://docs.rs/kiln/latest/kiln/trait.TrainingTask.html) of a task may look
/// ([`Any`]) for the dataset that it knows, for example for what is behind its examples.
pub trait Dataset<E: Fingerprint = Example>: Send + Sync + Any {
    /// How many examples there are; at least one.
    fn len(&self) -> usize;

    /// Whether there is no example; such a dataset is refused when a run is opened.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The example at `index`, which is below [`len`](Self::len), as epoch `epoch` sees it. A pure
    /// function of both, so that a run that is continued sees the same.
    ///
    /// # Errors
    /// Data that cannot be read any more.
    fn get(&self, index: usize, epoch: u64) -> Result<E>;

    /// Adds to `hash` everything that the example at `index` is made of in every epoch.
    ///
    /// # Errors
    /// Data that cannot be read any more.
    fn hash_example(&self, index: usize, hash: &mut Sha256) -> Result<()> {
        self.get(index, 0)?.hash_into(hash);
        Ok(())
    }

    /// Tokens of the example at `index`, by which `data.sampler = "group_by_length"` puts examples
    /// together, and of which the plan tells how many there are. By default 0 for all: examples
    /// that are no sequences, or whose lengths nobody tells.
    fn len_of(&self, index: usize) -> usize {
        let _ = index;
        0
    }

    /// Tokens of the longest example; 0 where [`len_of`](Self::len_of) tells none.
    fn max_len(&self) -> usize {
        (0..self.len()).map(|index| self.len_of(index)).max().unwrap_or(0)
    }

    /// Tokens of all examples; 0 where [`len_of`](Self::len_of) tells none.
    fn num_tokens(&self) -> u64 {
        (0..self.len()).map(|index| self.len_of(index) as u64).sum()
    }
}

/// The samples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
