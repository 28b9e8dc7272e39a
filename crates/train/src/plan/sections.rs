//! The sections of a plan. Each says what will happen in one respect, resolved; what follows from
//! fields is a method, so that nothing is said twice.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use kiln_core::dataset::padding::{Batches, Padding, PaddingCost};
use kiln_core::dataset::sampler::Order;
use kiln_core::dataset::{PaddingStrategy, Sampler};
use kiln_core::error::Result;
use kiln_core::variables;
use kiln_models::{Compute, Ops};
use serde::{Deserialize, Serialize};

use super::{BatchPlan, NotCaptured, Part};
use crate::arguments::{
    DistributedArguments, EvalStrategy, HubStrategy, Integration, LogLevel, LoggingStrategy, OnExisting, Samples,
    SaveStrategy, ScaledRate, StepSize, TrainingArguments,
};
use crate::engine::compiler::decision::Decision;
use crate::engine::compiler::settings::Verify;
use crate::engine::device::DeviceFacts;
use crate::engine::precision::PrecisionPlan;
use crate::engine::settings::CompilerMode;
use crate::optim::arguments::OptimizerName;
use crate::optim::backward::ActivationCheckpointing;
use crate::optim::loss::{Accumulation, LossOptions};
use crate::optim::outliers::OutlierLimits;
use crate::optim::schedule::Schedule;
use crate::optim::{OptimizerConfig, ParameterGroups};

/// The training of a run, resolved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainPlan {
    /// The run's name, its folder, and its work besides training.
    pub run: RunSettings,
    /// The model.
    pub model: ModelPlan,
    /// The training and validation data, their order and their padding.
    pub data: DataPlan,
    /// Batch arithmetic.
    pub batch: BatchPlan,
    /// How the devices share the work.
    pub distributed: DistributedArguments,
    /// Step arithmetic.
    pub steps: StepPlan,
    /// How gradients become new weights.
    pub optimizer: OptimizerPlan,
    /// Where and in which form it computes.
    pub engine: EnginePlan,
    /// When and how it evaluates.
    pub evaluation: EvaluationPlan,
    /// When rows are written, and where else to.
    pub logging: LoggingPlan,
    /// When checkpoints are written, which of them stay, and which is the best.
    pub saving: SavingPlan,
    /// When the model writes samples of text.
    #[serde(skip)]
    pub samples: Samples,
}

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
    /// The settings that `trainer` has for its run.
    pub fn of(trainer: &TrainingArguments) -> Self {
        Self {
            name: trainer.run_name.clone(),
            output_dir: trainer.output_dir.clone(),
            on_existing: trainer.on_existing,
            resume_from_checkpoint: trainer.resume_from_checkpoint.clone(),
            seed: trainer.seed,
            trains: trainer.do_train,
            test: trainer.test.clone(),
            log_level: trainer.log_level,
            no_effect: trainer.no_effect.clone(),
        }
    }
}

/// The model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelPlan {
    /// The name of the kind of model, such as `gpt2`.
    pub kind: String,
    /// Parameters, tied ones counted once.
    pub num_parameters: usize,
    /// Parameters that learn, tied ones counted once.
    pub num_trainable: usize,
    /// Whether a step of it can be recorded once and replayed.
    pub can_be_captured: bool,
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
    /// The kind of order of the training examples.
    pub sampler: Sampler,
    /// The seed of that order.
    pub seed: u64,
    /// A last batch of an epoch that is smaller is left out.
    pub drop_last: bool,
    /// How lengths are chosen.
    pub padding_strategy: PaddingStrategy,
    /// The lengths that batches are padded to.
    pub padding: Padding,
    /// The cost of padding in training.
    pub padding_cost: PaddingCost,
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
    /// The strength of the noise on the output of the token embedding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub neftune_noise_alpha: Option<f64>,
    /// Values of its state, over all parameters that learn; 0 in plans of an earlier Kiln.
    #[serde(default)]
    pub state_values: usize,
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
    /// The first and the last step that a profile shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile_steps: Option<[u64; 2]>,
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
    /// The upload to the Hub; none for nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub push: Option<PushPlan>,
}

/// The part of a run that is uploaded to the Hub, and its place there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushPlan {
    /// The repository: `org/name`, or `name`.
    pub id: String,
    /// The branch; none is `main`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Whether a repository that is made is private; none is the Hub's own default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub private: Option<bool>,
    /// What, and when.
    pub strategy: HubStrategy,
}

impl PushPlan {
    /// The upload that `[trainer]` asks for; none for a run of one step that is only tried.
    pub fn of(trainer: &TrainingArguments) -> Option<Self> {
        (trainer.push_to_hub && !trainer.fast_dev_run).then(|| Self {
            id: trainer.hub_id(),
            revision: trainer.hub_revision.clone(),
            private: trainer.hub_private_repo,
            strategy: trainer.hub_strategy,
        })
    }

    /// A line for people.
    pub fn describe(&self) -> String {
        let branch = self.revision.as_ref().map_or_else(String::new, |branch| format!(", branch {branch}"));
        let private = match self.private {
            Some(true) => ", private where it is new",
            Some(false) => ", public where it is new",
            None => "",
        };
        let when = match self.strategy {
            HubStrategy::End => "the model at the end",
            HubStrategy::EverySave => "the model of checkpoints and at the end",
            HubStrategy::Checkpoint => "the newest checkpoint as last-checkpoint/, its model, and the model at the end",
        };
        format!("{}{branch}{private}: {when}", self.id)
    }
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
            push: PushPlan::of(trainer),
        }
    }
}
