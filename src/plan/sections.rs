//! The sections of a plan, as `plan.json` has them. Each says what will happen in one respect,
//! resolved; what follows from fields is a method, so that nothing is said twice.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use kiln_core::error::{Error, Result};
use kiln_core::variables;
use kiln_data::padding::{Batches, Padding, PaddingCost};
use kiln_data::sampler::Order;
use kiln_models::{Compute, LoraConfig, ModelConfig, ModelType, Ops};
use serde::{Deserialize, Serialize};

use super::memory::{MemoryEstimate, Values};
use super::{BatchPlan, NotCaptured, Part};
use crate::config::{
    Accumulation, ActivationCheckpointing, CompilerMode, EvalStrategy, GenerateOptions, Integration, LogLevel,
    LoggingStrategy, OnExisting, OptimizerName, PaddingStrategy, RunConfig, Sampler, SaveStrategy, ScaledRate,
    StepSize, Task, TrainingArguments, Verify,
};
use crate::engine::compiler::decision::Decision;
use crate::engine::device::DeviceFacts;
use crate::engine::precision::PrecisionPlan;
use crate::optim::outliers::OutlierLimits;
use crate::optim::schedule::Schedule;
use crate::optim::{OptimizerConfig, ParameterGroups};
use crate::task::LossOptions;

/// The run's name, its folder, and its work besides training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunSettings {
    /// Its name, for people.
    pub name: Option<String>,
    /// The run folder, as the config has it.
    pub output_dir: PathBuf,
    /// How a run folder that exists already is treated.
    pub on_existing: OnExisting,
    /// The checkpoint to continue from; none is the newest.
    pub resume_from_checkpoint: Option<PathBuf>,
    /// The seed of everything that is drawn but the order of the data.
    pub seed: u64,
    /// Whether it trains.
    pub trains: bool,
    /// Rows that are predicted at the end.
    pub test: Option<String>,
    /// The level of the messages that the run prints.
    pub log_level: LogLevel,
    /// The settings of the config that have no effect.
    pub no_effect: Vec<String>,
}

impl RunSettings {
    /// The settings that `config` has for its run.
    pub fn of(config: &RunConfig) -> Self {
        let trainer = &config.trainer;
        Self {
            name: trainer.run_name.clone(),
            output_dir: trainer.output_dir.clone(),
            on_existing: trainer.on_existing,
            resume_from_checkpoint: trainer.resume_from_checkpoint.clone(),
            seed: trainer.seed,
            trains: trainer.do_train,
            test: config.data.test.clone(),
            log_level: trainer.log_level,
            no_effect: config.trainer.no_effect.clone(),
        }
    }
}

/// The model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelPlan {
    /// The name of the kind of model, such as `gpt2`.
    pub kind: String,
    /// The task that the model learns; none for a model with a loss of its own.
    pub task: Option<Task>,
    /// Its configuration, in the form of `config.json`; none for a model that is not Kiln's.
    #[serde(with = "model_config")]
    pub config: Option<ModelConfig>,
    /// The folder of the pretrained model, if any.
    pub from: Option<PathBuf>,
    /// The adapters on it, if there are any; the rest of the model is frozen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<LoraConfig>,
    /// The folder of the adapters that are trained on; none for new ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<PathBuf>,
    /// Fields of a pretrained model's `config.json` that Kiln does not know.
    pub unknown_fields: Vec<String>,
    /// Parameters, tied ones counted once.
    pub num_parameters: usize,
    /// Parameters that learn, tied ones counted once.
    pub num_trainable: usize,
    /// Whether a step of it can be recorded once and replayed.
    pub can_be_captured: bool,
}

impl ModelPlan {
    /// Configuration and task of a model of Kiln's.
    ///
    /// # Errors
    /// Another model.
    pub fn built_in(&self) -> Result<(&ModelConfig, Task)> {
        self.config.as_ref().zip(self.task).ok_or_else(|| {
            Error::config(format!("expected one of Kiln's models, got a model of its own kind, {}", self.kind))
        })
    }

    /// Floating-point operations of forward and backward for one token of sequences of `seq_len`:
    /// `6 x` the weights that it is multiplied with, `4 x` where these are frozen under adapters
    /// (linear layers and, for language models, the output matrix; embeddings are looked up, not
    /// multiplied) `+ 12 x layers x width x sequence length` for attention, all positions counted,
    /// also where a causal mask leaves half of them out (the convention of PaLM, Chowdhery et al.
    /// 2022, appendix B, without its embedding term). Recomputation counts as nothing, and what the
    /// compiled mode leaves out (`models/rows.rs`) as if it were computed. None for a model that
    /// Kiln does not know.
    pub fn flops_per_token(&self, seq_len: usize) -> Option<f64> {
        let (config, task) = (self.config.as_ref()?, self.task?);
        let (width, layers, _, inner) = config.shape();
        let [width, layers, inner] = [width, layers, inner].map(|size| size as f64);
        let (embedding, vocabulary) = (config.embedding_size() as f64, config.vocab_size() as f64);
        let head = match task {
            Task::Clm => embedding * vocabulary,
            Task::Mlm => embedding * (width + vocabulary),
            _ => 0.0, // one row of logits for a sequence, or two columns: nothing beside the layers
        };
        let head = head + if embedding == width { 0.0 } else { embedding * width };
        // A frozen weight takes no part in the third product, that of its gradient.
        let products = if self.lora.is_some() { 4.0 } else { 6.0 };
        let products = products * (layers * (4.0 * width * width + 2.0 * width * inner) + head);
        Some(products + 12.0 * layers * width * seq_len as f64)
    }

    /// Whether training drops anything; taken to be so for a model that Kiln does not know.
    pub fn has_dropout(&self) -> bool {
        if self.lora.as_ref().is_some_and(|lora| lora.lora_dropout > 0.0) {
            return true;
        }
        match &self.config {
            None => true,
            Some(ModelConfig::Gpt2(c)) => [c.resid_pdrop, c.embd_pdrop, c.attn_pdrop].iter().any(|p| *p > 0.0),
            Some(config @ ModelConfig::Bert(c)) => {
                let head = match self.task {
                    Some(
                        Task::SequenceClassification
                        | Task::MultiLabelClassification
                        | Task::Regression
                        | Task::TokenClassification
                        | Task::MultipleChoice,
                    ) => c.classifier_dropout.unwrap_or(0.0),
                    Some(Task::QuestionAnswering) if config.model_type() == ModelType::DistilBert => c.qa_dropout,
                    _ => 0.0,
                };
                [c.hidden_dropout_prob, c.attention_probs_dropout_prob, head].iter().any(|p| *p > 0.0)
            }
        }
    }
}

/// A model's configuration as its `config.json`, without the name of a class.
pub(super) mod model_config {
    use kiln_models::ModelConfig;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use serde_json::Value;

    pub(super) fn serialize<S: Serializer>(config: &Option<ModelConfig>, serializer: S) -> Result<S::Ok, S::Error> {
        let json = config.as_ref().map(|config| {
            let mut json = config.to_json("");
            if let Value::Object(fields) = &mut json {
                fields.shift_remove("architectures");
            }
            json
        });
        json.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ModelConfig>, D::Error> {
        let json = Option::<Value>::deserialize(deserializer)?;
        let read = json.map(|json| ModelConfig::from_json(&json.to_string()).map(|(config, _)| own(config)));
        read.transpose().map_err(|error| serde::de::Error::custom(format_args!("model config: {error}")))
    }

    /// `config` without the fields of its file that are written anew whatever they were.
    pub(in crate::plan) fn own(mut config: ModelConfig) -> ModelConfig {
        let inert = match &mut config {
            ModelConfig::Gpt2(config) => &mut config.inert,
            ModelConfig::Bert(config) => &mut config.inert,
        };
        for written in ["architectures", "model_type", "dtype", "torch_dtype"] {
            inert.shift_remove(written);
        }
        config
    }
}

/// The training and validation data, their order and their padding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataPlan {
    /// Examples of the training data.
    pub train_examples: usize,
    /// Tokens of the training data; 0 where the data tells no lengths.
    pub train_tokens: u64,
    /// Examples of the validation data, if any.
    pub validation_examples: Option<usize>,
    /// Block size of packed text; none for data that is tokenised already.
    pub block_size: Option<usize>,
    /// Tokens that rows of a table are cut to; none for other data.
    pub max_length: Option<usize>,
    /// How documents are joined, for people; none where examples are rows.
    pub documents: Option<String>,
    /// The settings that keep the run from using all of its data, for people.
    pub limits: Vec<String>,
    /// The kind of order of the training examples.
    pub sampler: Sampler,
    /// The seed of that order.
    pub seed: u64,
    /// A last batch of an epoch that is smaller is left out.
    pub drop_last: bool,
    /// The id that padding uses.
    pub pad_id: u32,
    /// Sequences of an example: the choices of a multiple choice, else one.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub sequences: usize,
    /// Whether a sequence is several documents.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub packing: bool,
    /// Whether "no answer" may be the answer to the questions that an evaluation asks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub version_2_with_negative: bool,
    /// How lengths are chosen.
    pub padding_strategy: PaddingStrategy,
    /// The lengths that batches are padded to.
    pub padding: Padding,
    /// The cost of padding in training.
    pub padding_cost: PaddingCost,
}

fn one() -> usize {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_one(count: &usize) -> bool {
    *count == 1
}

/// How many steps the run has, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepPlan {
    /// Optimizer steps of the run.
    pub total: usize,
    /// Optimizer steps a pass over the training data, the last of them possibly smaller.
    pub per_epoch: usize,
    /// Tokens that the run will see, to within the last batches of each epoch.
    pub tokens: u64,
    /// The arithmetic, for people.
    pub because: String,
    /// The run ends after this much time, whatever else is planned.
    pub max_duration: Option<Duration>,
    /// How intervals that are not written in steps became steps, for people.
    pub intervals: Vec<String>,
}

impl StepPlan {
    /// The samples and the mean number of tokens of an optimizer step of `batch`, over data with
    /// `train_tokens` tokens.
    pub fn step_size(&self, batch: &BatchPlan, train_tokens: u64) -> StepSize {
        let tokens = train_tokens as f64 / self.per_epoch as f64;
        StepSize { total_steps: self.total, samples: batch.global, tokens }
    }
}

/// How gradients become new weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OptimizerPlan {
    /// Its name, as it is written in configs.
    pub name: OptimizerName,
    /// Its settings, the same for all steps.
    pub config: OptimizerConfig,
    /// Which parameters learn, and how fast.
    pub groups: ParameterGroups,
    /// The peak learning rate, and what the batch has to do with it.
    pub learning_rate: ScaledRate,
    /// Learning rate by step.
    pub schedule: Schedule,
    /// The norm to which gradients are clipped.
    pub max_grad_norm: Option<f64>,
    /// The steps that are not applied; none where all are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outliers: Option<OutlierLimits>,
    /// How the micro-batches of a step become its loss.
    pub accumulation: Accumulation,
    /// The loss of training.
    pub loss: LossOptions,
}

/// Where and in which form it computes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EnginePlan {
    /// The device.
    pub device: DeviceFacts,
    /// The mode: the one that a trial has chosen, or else the config's. `auto` where the trial has
    /// not been made yet.
    pub mode: CompilerMode,
    /// The choice of the mode by a trial and what it rests on, where the config asks for one; none
    /// before it was made.
    pub decision: Option<Decision>,
    /// In which form model and optimizer compute: the names of the operators that are fused.
    #[serde(with = "fused_operators", rename = "fused_operators")]
    pub ops: Ops,
    /// The names of the other operators, with the reason why each is not fused.
    pub plain_operators: BTreeMap<String, String>,
    /// In which type they compute.
    pub precision: PrecisionPlan,
    /// The activations that the backward pass computes again.
    pub activation_checkpointing: ActivationCheckpointing,
    /// Why steps are not captured; none where they are.
    pub not_captured: Option<NotCaptured>,
    /// Whether Burn's fusion is held off in the compiled engine, which rows are marked with.
    pub unfused: bool,
    /// Whether every batch shape is computed once before step 1.
    pub warmup: bool,
    /// When the run is checked against native.
    pub verify: Verify,
    /// Whether the report of `compiler.debug` is written.
    pub debug: bool,
    /// The parts of the training compiler, and what has become of each.
    pub parts: Vec<Part>,
}

impl EnginePlan {
    /// Whether a trial has to choose the mode yet.
    pub fn is_undecided(&self) -> bool {
        self.mode == CompilerMode::Auto
    }

    /// How the model computes.
    pub fn compute(&self) -> Compute {
        Compute::new(self.ops, self.precision.dtype())
    }
}

/// Operators in their form as a list of those that are fused.
mod fused_operators {
    use kiln_models::{Operator, Ops};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(ops: &Ops, serializer: S) -> Result<S::Ok, S::Error> {
        ops.fused_operators().into_iter().map(Operator::name).collect::<Vec<_>>().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Ops, D::Error> {
        let names = Vec::<String>::deserialize(deserializer)?;
        let operator = |name: &String| Operator::ALL.into_iter().find(|operator| operator.name() == name);
        let operators = names.iter().map(|name| {
            operator(name).ok_or_else(|| serde::de::Error::custom(format!("there is no operator `{name}`")))
        });
        Ok(Ops::Fused.only(operators.collect::<Result<Vec<_>, _>>()?))
    }
}

/// When and how it evaluates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvaluationPlan {
    /// After what.
    pub strategy: EvalStrategy,
    /// Optimizer steps between evaluations.
    pub steps: usize,
    /// Steps or epochs before the first.
    pub delay: f64,
    /// Before the first step.
    pub on_start: bool,
    /// At the end, also where the strategy says nothing of it.
    pub at_end: bool,
    /// Examples of a batch.
    pub batch_size: usize,
}

impl EvaluationPlan {
    /// Whether there is any.
    pub fn is_on(&self) -> bool {
        self.strategy != EvalStrategy::No || self.on_start || self.at_end
    }
}

/// When rows are written, and where else to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoggingPlan {
    /// After what.
    pub strategy: LoggingStrategy,
    /// Optimizer steps between rows.
    pub steps: usize,
    /// After the first step, too.
    pub first_step: bool,
    /// Where else to.
    pub report_to: Vec<Integration>,
}

/// When checkpoints are written, which of them stay, and which is the best.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SavingPlan {
    /// After what.
    pub strategy: SaveStrategy,
    /// Optimizer steps between checkpoints.
    pub steps: usize,
    /// Without what continues the run.
    pub only_model: bool,
    /// How many stay; none is all.
    pub total_limit: Option<usize>,
    /// The weights of the best are loaded at the end.
    pub load_best_at_end: bool,
    /// The figure of an evaluation that says which is the best: `eval_loss`, for example.
    pub metric: String,
    /// Whether more of it is better.
    pub greater_is_better: bool,
    /// The run ends after so many evaluations in a row without a better one.
    pub early_stopping_patience: Option<usize>,
    /// By how much a better one has to be better.
    pub early_stopping_threshold: f64,
}

impl SavingPlan {
    /// The plan of saving that `[trainer]` asks for, with `steps` optimizer steps between
    /// checkpoints.
    pub fn of(trainer: &TrainingArguments, steps: usize) -> Self {
        Self {
            strategy: trainer.save_strategy,
            steps,
            only_model: trainer.save_only_model,
            total_limit: trainer.save_total_limit,
            load_best_at_end: trainer.load_best_model_at_end,
            metric: trainer.best_metric(),
            greater_is_better: trainer.best_is_greatest(),
            early_stopping_patience: trainer.early_stopping_patience,
            early_stopping_threshold: trainer.early_stopping_threshold,
        }
    }
}

/// The text samples that a run writes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SamplePlan {
    /// The texts that the model continues.
    pub prompts: Vec<String>,
    /// After every so many steps, besides the end; none for the end alone.
    pub every: Option<usize>,
    /// How it continues.
    pub sampling: GenerateOptions,
}

/// Memory, by arithmetic.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryPlan {
    /// How many values model and optimizer keep, and what the process has resident already.
    pub values: Values,
    /// The estimate; none for a model whose activations are not known.
    pub estimate: Option<MemoryEstimate>,
}

impl DataPlan {
    /// The examples that an epoch of micro-batches of `batch` has.
    pub fn examples_of_epoch(&self, batch: &BatchPlan) -> usize {
        let left_out = if self.drop_last { self.train_examples % batch.micro } else { 0 };
        self.train_examples - left_out
    }

    /// How training data is drawn in micro-batches of `batch`.
    pub fn drawn(&self, batch: &BatchPlan) -> Batches {
        let order = Order { sampler: self.sampler, seed: self.seed, step: batch.global };
        Batches { size: batch.micro, order, drop_last: self.drop_last }
    }
}

impl RunSettings {
    /// The run folder, with `~` and `${VAR}` expanded.
    ///
    /// # Errors
    /// A path with an environment variable that is not set.
    pub fn expanded_output_dir(&self) -> Result<PathBuf> {
        variables::expand(&self.output_dir.to_string_lossy()).map_err(|error| error.at("run.output_dir"))
    }
}
