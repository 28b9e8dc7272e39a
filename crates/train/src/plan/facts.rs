//! The facts that a plan follows from, besides the arguments: what is known of model, data and
//! device. They are gathered before anything is planned.

use kiln_core::dataset::padding::{Batches, Surveyed, survey};
use kiln_core::dataset::{Dataset, Fingerprint};
use kiln_models::weights::{Parameter, StateDict, parameters};

use crate::engine::compiler::decision::Decision;
use crate::engine::device::DeviceFacts;
use crate::optim::loss::LossOptions;
use crate::optim::{LambdaLr, OwnOptimizer};

/// All of them.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainFacts {
    /// The model.
    pub model: ModelFacts,
    /// The data.
    pub data: DataFacts,
    /// The device.
    pub device: DeviceFacts,
    /// The micro-batch, where the arguments leave it to what has been found.
    pub batch: Option<FoundBatch>,
    /// The mode of the compiler that a trial has chosen, where the arguments leave it to one.
    pub decision: Option<Decision>,
    /// The loss of training, as the task has it under the arguments.
    pub loss: LossOptions,
}

/// Facts about the model that a plan is derived from.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelFacts {
    /// The name of the kind of model, such as `gpt2`.
    pub kind: String,
    /// The name of what it learns, for messages about evaluations.
    pub task: String,
    /// The figures of an evaluation that can say which model is best, without their `eval_`; none
    /// where the first evaluation names them.
    pub metrics: Option<&'static [&'static str]>,
    /// Whether its steps can be recorded once and replayed.
    pub can_be_captured: bool,
    /// Whether the backward pass can compute its blocks again.
    pub has_blocks: bool,
    /// Whether training drops anything; taken to be so where nothing is known.
    pub drops: bool,
    /// Its parameters.
    pub parameters: Vec<Parameter>,
    /// The optimizer that the program brings along, if any.
    pub optimizer: Option<OwnOptimizer>,
    /// The schedule that the program brings along, if any.
    pub schedule: Option<LambdaLr>,
}

impl ModelFacts {
    /// The facts about `model`, a `kind` of which nothing else is known.
    pub fn of<M: StateDict>(kind: &str, model: &M) -> Self {
        Self {
            kind: kind.into(),
            task: kind.into(),
            metrics: None,
            has_blocks: false,
            can_be_captured: false,
            drops: true,
            parameters: parameters(model),
            optimizer: None,
            schedule: None,
        }
    }
}

/// Facts about the data that a plan is derived from. Examples that are left out are not counted.
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
    /// Tokens that examples are cut to; none where they are as long as they are.
    pub max_length: Option<usize>,
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
    /// The facts about `data`.
    pub fn of<E: Fingerprint>(data: &dyn Dataset<E>) -> Self {
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
            max_length: None,
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

/// A micro-batch that was found before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundBatch {
    /// Examples of a forward pass.
    pub micro: usize,
    /// Where the number comes from, for people.
    pub because: String,
}
