//! The facts that a plan follows from, besides the config: what is known of model, data, tokenizer,
//! device and this machine. They are gathered before anything is planned; nothing here opens a
//! file.

use std::path::PathBuf;

use kiln_data::padding::{Batches, Surveyed, survey};
use kiln_data::{Dataset, Fingerprint};
use kiln_models::weights::{Parameter, StateDict, parameters};
use kiln_models::{LoraConfig, ModelConfig};

use crate::config::Task;
use crate::engine::compiler::decision::Decision;
use crate::engine::device::DeviceFacts;

/// All of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// The model.
    pub model: ModelFacts,
    /// The data.
    pub data: DataFacts,
    /// The tokenizer, where there is one.
    pub tokenizer: Option<TokenizerFacts>,
    /// The device.
    pub device: DeviceFacts,
    /// The micro-batch, where the config leaves it to what has been found.
    pub batch: Option<FoundBatch>,
    /// The mode of the compiler that a trial has chosen, where the config leaves it to one.
    pub decision: Option<Decision>,
    /// Bytes that the process has resident before it trains.
    pub resident: u64,
}

/// Facts about the model that a plan is derived from.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelFacts {
    /// The name of the kind of model, such as `gpt2`.
    pub kind: String,
    /// The configuration, vocabulary and labels settled, and the task of a model of Kiln's own.
    pub built_in: Option<(ModelConfig, Task)>,
    /// The figures of an evaluation that can say which model is best, without their `eval_`.
    pub metrics: &'static [&'static str],
    /// Whether its steps can be recorded once and replayed.
    pub can_be_captured: bool,
    /// Whether the backward pass can compute its blocks again.
    pub has_blocks: bool,
    /// Its parameters.
    pub parameters: Vec<Parameter>,
    /// The local folder of the pretrained model, if any.
    pub from: Option<PathBuf>,
    /// The adapters on it, if there are any.
    pub lora: Option<LoraConfig>,
    /// The folder of the adapters that are trained on; none for new ones.
    pub adapter: Option<PathBuf>,
    /// Fields of a pretrained model's `config.json` that Kiln does not know.
    pub unknown_fields: Vec<String>,
}

impl ModelFacts {
    /// The facts about `model`, a `kind` of which nothing else is known.
    pub fn of<M: StateDict>(kind: &str, model: &M) -> Self {
        let parameters = parameters(model);
        Self {
            kind: kind.into(),
            built_in: None,
            metrics: &["loss"],
            has_blocks: false,
            can_be_captured: false,
            parameters,
            from: None,
            lora: None,
            adapter: None,
            unknown_fields: Vec::new(),
        }
    }
}

/// Facts about the data that a plan is derived from. Examples that the config leaves out are not
/// counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataFacts {
    /// Training data.
    pub train: SplitFacts,
    /// Its tokens.
    pub tokens: u64,
    /// Validation data, if any.
    pub validation: Option<SplitFacts>,
    /// The training batches of the first epoch, or its first 4096.
    pub batches: Vec<Surveyed>,
    /// Block size of packed text; none for data that is tokenised already.
    pub block_size: Option<usize>,
    /// Tokens that rows of a table are cut to; none for other data.
    pub max_length: Option<usize>,
    /// The id that padding uses.
    pub pad_id: u32,
    /// Sequences of an example: the choices of a multiple choice, else one.
    pub sequences: usize,
    /// Whether "no answer" may be the answer to the questions that an evaluation asks.
    pub version_2_with_negative: bool,
}

/// The number of examples of the training or validation data, and the length of the longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitFacts {
    /// Examples.
    pub examples: usize,
    /// Tokens of the longest example.
    pub max_len: usize,
}

impl SplitFacts {
    fn of<E: Fingerprint>(data: &dyn Dataset<E>) -> Self {
        Self { examples: data.len(), max_len: data.max_len() }
    }
}

impl DataFacts {
    /// The facts about `train`, which is drawn in `batches`, and about `validation`.
    pub fn new<E: Fingerprint>(train: &dyn Dataset<E>, validation: Option<&dyn Dataset<E>>, batches: Batches) -> Self {
        Self {
            train: SplitFacts::of(train),
            tokens: train.num_tokens(),
            validation: validation.map(SplitFacts::of),
            batches: survey(train, batches),
            block_size: None,
            max_length: None,
            pad_id: 0,
            sequences: 1,
            version_2_with_negative: false,
        }
    }

    /// Counts the examples of `train` and `validation`, if any, which are a selection of the
    /// examples that were counted before. `batches`, from which the padding is derived, still
    /// describes all examples.
    pub(crate) fn choose<E: Fingerprint>(&mut self, train: &dyn Dataset<E>, validation: Option<&dyn Dataset<E>>) {
        self.train.examples = train.len();
        self.tokens = train.num_tokens();
        if let (Some(split), Some(validation)) = (&mut self.validation, validation) {
            split.examples = validation.len();
        }
    }
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

/// A micro-batch that was found before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundBatch {
    /// Examples of a forward pass.
    pub micro: usize,
    /// Where the number comes from, for people.
    pub because: String,
}
