//! The facts that the plan of a run follows from, besides the config: those about training, and
//! what is known of architecture, examples, tokenizer and this machine. They are gathered before
//! anything is planned; nothing here opens a file.

use kiln_train::plan::TrainFacts;

use super::{Architecture, LabelledRows};

/// All of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// Model, data and device, as training sees them.
    pub train: TrainFacts,
    /// The model's architecture, vocabulary and labels settled, its task, and its weights' origin.
    pub architecture: Architecture,
    /// How examples are made.
    pub examples: ExampleFacts,
    /// The tokenizer, where there is one.
    pub tokenizer: Option<TokenizerFacts>,
    /// Bytes that the process has resident before it trains.
    pub resident: u64,
}

/// Facts about the examples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExampleFacts {
    /// Block size of packed text; none for data that is tokenised already.
    pub block_size: Option<usize>,
    /// Whether the validation data are the last blocks of the one file of text that there is.
    pub split_at_block: bool,
    /// Sequences of bytes that are not UTF-8 and are read as U+FFFD, in data that are not streamed.
    pub replaced: u64,
    /// The id that padding uses.
    pub pad_id: u32,
    /// Sequences of an example: the choices of a multiple choice, else one.
    pub sequences: usize,
    /// Whether "no answer" may be the answer to the questions that an evaluation asks.
    pub version_2_with_negative: bool,
    /// Labels and rows, counted.
    pub counts: LabelledRows,
}

/// Facts about the tokenizer that a plan is derived from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenizerFacts {
    /// Ids of its vocabulary.
    pub vocab_size: usize,
    /// The id that ends a document.
    pub eot_id: Option<u32>,
    /// Tokens of each text of `generation.prompt`.
    pub prompt_tokens: Vec<usize>,
}
