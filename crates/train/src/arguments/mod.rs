//! The arguments of the [`Trainer`](crate::Trainer), by the names and with the defaults of Hugging
//! Face's `TrainingArguments`: values alone, which know no file. The serialised form of
//! [`TrainingArguments`] is the section `[trainer]` of a config file; its last fields, which have
//! sections of their own there, have none.

mod batch;
mod check;
mod distributed;
mod names;
mod optim;
mod values;

use std::path::PathBuf;

pub use batch::{BatchArguments, BatchScaling, BatchScope, LearningRateScaling, LrScaling, ScaledRate, TrainBatchSize};
pub use distributed::{DdpBackend, DistributedArguments};
use kiln_core::dataset::{PaddingStrategy, Sampler};
use kiln_core::error::Result;
use kiln_core::values::{count, count_or_minus_one, number_or_minus_one, seed, some_count, strings};
use kiln_core::variables;
pub use names::{EvalStrategy, Integration, LogLevel, LoggingStrategy, OnExisting, SERVICES, SaveStrategy};
use serde::{Deserialize, Serialize};
use values::integrations;
pub use values::{ClassWeights, Interval, StepSize};

use crate::distributed::Devices;
use crate::engine::compiler::settings::{TrainingCompilerConfig, Verify};
use crate::engine::settings::{CompilerMode, DeviceArguments, Precision};
use crate::optim::arguments::{OptimArgs, OptimizerName};
use crate::optim::backward::ActivationCheckpointing;
use crate::optim::loss::Accumulation;
use crate::optim::scheduler::{SchedulerKwargs, SchedulerType};

/// How a model is trained. One of `max_steps`, `num_train_epochs` and `max_tokens` is given; it
/// sets the length of the run and of the learning-rate schedule. Beside `max_steps`,
/// `num_train_epochs` has no effect.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrainingArguments {
    /// Length of the run in optimizer steps; -1 means not given, here and in the two below.
    /// Default: not given.
    #[serde(deserialize_with = "count_or_minus_one", skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<usize>,
    /// Length of the run in passes over the training data, with fractions; the length where no
    /// other one is given.
    #[serde(deserialize_with = "number_or_minus_one", skip_serializing_if = "Option::is_none")]
    pub num_train_epochs: Option<f64>,
    /// Length of the run in training tokens. Default: not given.
    #[serde(deserialize_with = "count_or_minus_one", skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Stops the run after this many minutes, counted over all its continuations, if it has not
    /// ended by then; may join any length. The run is `Stopped` then and continues under a higher
    /// limit. The limit does not shape the schedule, so that the learning rate stays a function of
    /// the step. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_minutes: Option<f64>,
    /// Samples per forward pass in training, or `"auto"`: the most that fit on this machine, as
    /// `kiln tune-batch` finds them. Default: 8.
    pub per_device_train_batch_size: TrainBatchSize,
    /// Samples per forward pass in evaluation. Default: 8.
    #[serde(deserialize_with = "count")]
    pub per_device_eval_batch_size: usize,
    /// Forward and backward passes per optimizer step. Default: 1, or what
    /// `batch.global_batch_size` asks for.
    #[serde(deserialize_with = "count")]
    pub gradient_accumulation_steps: usize,
    /// The loss of an optimizer step of several micro-batches. `exact`: one sum over all of them,
    /// divided once by the number of its terms (predicted tokens, rows or spans), so that 4 x 4
    /// trains as 16 x 1 does (in question answering with `data.padding = "max_length"`, since its
    /// softmax takes padding in, as in transformers). `transformers`: what the Trainer of
    /// transformers 5.24 computes, which adds up the means of the micro-batches in classification,
    /// regression and masked language modelling, takes the mean of these means in question
    /// answering, and counts the first token of each row of GPT-2's language model too, which
    /// nothing predicts; in the first three the micro-batch is then part of the run and is not
    /// halved when memory runs out. Default: `exact`.
    pub accumulation: Accumulation,
    /// Peak learning rate, which `[learning_rate]` may scale with the batch. Default: 5e-5.
    pub learning_rate: f64,
    /// The schedule. Default: `linear`.
    pub lr_scheduler_type: SchedulerType,
    /// Steps of warm-up, below 1 a ratio of the run (also written `"10%"`), or `"1000 samples"` or
    /// `"2e6 tokens"`; rounded up. The schedule `constant` has none. Default: 0.
    pub warmup_steps: Interval,
    /// Weight decay, not applied to biases and norms. Decoupled in every optimizer but `adam` and
    /// `sgd`, which add it to the gradient as PyTorch's do. Default: 0.0.
    pub weight_decay: f64,
    /// Decay rate of the first moment: AdamW, Adam, LAMB; in Lion the weight of the past in the
    /// sign. Default: 0.9.
    pub adam_beta1: f64,
    /// Decay rate of the second moment: AdamW, Adam, LAMB; in Lion that of the only one (its paper
    /// takes 0.99). Default: 0.999.
    pub adam_beta2: f64,
    /// Added to the denominator by AdamW, Adam and LAMB. Default: 1e-8.
    pub adam_epsilon: f64,
    /// Parameters that do not learn: patterns of Hugging Face's tensor names, such as
    /// `"*embeddings*"`; a list, or one string. A frozen word embedding is frozen as the output
    /// embedding too. Default: none.
    #[serde(deserialize_with = "strings", skip_serializing_if = "Vec::is_empty")]
    pub freeze: Vec<String>,
    /// The embeddings and this many of the lowest layers do not learn; 0 freezes neither.
    /// Default: 0.
    #[serde(deserialize_with = "count")]
    pub freeze_layers: usize,
    /// Every layer's learning rate is this part of the rate of the layer above it: 1 for the head,
    /// the last LayerNorm and the pooler, this for the top layer, and so on down to the embeddings.
    /// Default: the same rate everywhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer_wise_lr_decay: Option<f64>,
    /// Largest global gradient norm; 0 means no clipping. Default: 1.0.
    pub max_grad_norm: f64,
    /// A step is not applied where its loss has a z-score above this among the losses of the last
    /// 128 steps (`-sl` of llm.c); 0 applies all. A device that works asynchronously is read from
    /// in every step for it. Default: not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip_update_lossz: Option<f64>,
    /// A step is not applied where its gradient norm before clipping has a z-score above this among
    /// those of the last 128 steps (`-sg` of llm.c); 0 applies all. Default: not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip_update_gradz: Option<f64>,
    /// Part of a target's probability that is spread evenly over all classes, in training and in
    /// `eval_loss`: for language models and classification. Default: 0.0.
    pub label_smoothing_factor: f64,
    /// The weights of the classes in the loss of training: a list in the order of the label ids, or
    /// a table by the labels' names; for classification. Default: all 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class_weights: Option<ClassWeights>,
    /// The optimizer. Default: `adamw_torch`.
    pub optim: OptimizerName,
    /// The optimizer's own arguments, a table or `"key=value,key=value"`. Default: none given.
    #[serde(skip_serializing_if = "OptimArgs::is_empty")]
    pub optim_args: OptimArgs,
    /// When to write a log row. Default: `steps`.
    pub logging_strategy: LoggingStrategy,
    /// With `logging_strategy = "steps"`: a log row every so many steps, or a ratio, samples or
    /// tokens as in `warmup_steps`. Default: chosen from the length of the run (at most Hugging
    /// Face's 500, and at least 20 rows).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logging_steps: Option<Interval>,
    /// Logs step 1 too. Default: false.
    pub logging_first_step: bool,
    /// How much `kiln train` says besides rows and errors.
    pub log_level: LogLevel,
    /// Who is told of the rows besides `metrics.jsonl` and stdout: one name, a list, `all` or
    /// `none`. Default: `none`.
    #[serde(deserialize_with = "integrations", skip_serializing_if = "Vec::is_empty")]
    pub report_to: Vec<Integration>,
    /// When to evaluate. Default: `no`.
    pub eval_strategy: EvalStrategy,
    /// With `eval_strategy = "steps"`: every so many steps, or a ratio, samples or tokens. Default:
    /// as `logging_steps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_steps: Option<Interval>,
    /// No evaluation before so many steps (with `eval_strategy = "steps"`) or epochs (with
    /// `"epoch"`) are made. Default: 0.
    pub eval_delay: f64,
    /// Evaluates before step 1 too. Default: false.
    pub eval_on_start: bool,
    /// When to save a checkpoint, from which the run can be continued. Default: `steps`.
    pub save_strategy: SaveStrategy,
    /// With `save_strategy = "steps"`: every so many steps, or a ratio, samples or tokens.
    /// Default: 500.
    pub save_steps: Interval,
    /// Checkpoints hold the model alone, without the optimizer: they are smaller, and no run
    /// continues from them. One that is saved because a signal or `max_minutes` ends the run is
    /// whole. Default: false.
    pub save_only_model: bool,
    /// Keeps this many checkpoints and removes older ones, though never the best one when
    /// `load_best_model_at_end` is set. Default: all are kept; each takes about three times the
    /// room of the model.
    #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
    pub save_total_limit: Option<usize>,
    /// Ends the run with the weights of the checkpoint whose evaluation was best. Default: false.
    pub load_best_model_at_end: bool,
    /// The evaluation figure that says which model is best, with or without `eval_`. Default:
    /// `loss`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric_for_best_model: Option<String>,
    /// Whether more of that figure is better. Default: true unless its name ends in `loss` or
    /// `perplexity`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub greater_is_better: Option<bool>,
    /// Ends the run after this many evaluations in a row that were not better than the best
    /// (`EarlyStoppingCallback`). Default: not given.
    #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
    pub early_stopping_patience: Option<usize>,
    /// By how much an evaluation must be better to count for `early_stopping_patience`. Default:
    /// 0.0.
    pub early_stopping_threshold: f64,
    /// The results that the backward pass computes again to need less memory. Default: `none`.
    pub activation_checkpointing: ActivationCheckpointing,
    /// Seed of the weights, of dropout and of the order of samples; above 2^63 - 1 in quotes.
    /// Default: 42.
    #[serde(with = "seed")]
    pub seed: u64,
    /// Seed of the order of samples alone. Default: `seed`.
    #[serde(with = "seed::some", skip_serializing_if = "Option::is_none")]
    pub data_seed: Option<u64>,
    /// Makes every run of a config the same, bit for bit. On the CPU it always is; on other
    /// devices, where kernels add in an order of their own, this is refused. Default: false.
    pub full_determinism: bool,
    /// Leaves out the last batch of an epoch when it is not full. Default: false.
    pub dataloader_drop_last: bool,
    /// Trains on the examples of the first optimizer step over and over: a model that can learn
    /// learns them by heart. Default: false.
    pub overfit_one_batch: bool,
    /// One optimizer step and one batch of each evaluation, to see that everything works. Default:
    /// false.
    pub fast_dev_run: bool,
    /// Trains. When false, `kiln train` only evaluates (or predicts, with `do_predict`): the model
    /// that `model.from` names, else the one in the run folder, else one with random weights.
    /// Default: true.
    pub do_train: bool,
    /// Evaluates at the end, also with `eval_strategy = "no"`; without training, evaluates.
    /// Default: false.
    pub do_eval: bool,
    /// Predicts the rows of `data.test` at the end, into `predict_results.jsonl` of the run folder.
    /// Default: false.
    pub do_predict: bool,
    /// The schedule's own arguments. Default: none given.
    #[serde(skip_serializing_if = "SchedulerKwargs::is_empty")]
    pub lr_scheduler_kwargs: SchedulerKwargs,
    /// The run folder; `run.output_dir` of a config file.
    #[serde(skip)]
    pub output_dir: PathBuf,
    /// The treatment of a run folder that exists; `run.on_existing` of a config file. Default:
    /// `fail`.
    #[serde(skip)]
    pub on_existing: OnExisting,
    /// A name for people; `run.name` of a config file. Default: none.
    #[serde(skip)]
    pub run_name: Option<String>,
    /// The checkpoint to continue from, with [`OnExisting::Resume`]; `run.resume_from_checkpoint`
    /// of a config file. Default: the newest.
    #[serde(skip)]
    pub resume_from_checkpoint: Option<PathBuf>,
    /// The type of matrix products, in training and evaluation; `precision` of a config file.
    /// Default: `f32`.
    #[serde(skip)]
    pub precision: Precision,
    /// The training compiler; `[compiler]` of a config file. Default: none, which is native.
    #[serde(skip)]
    pub compiler: Option<TrainingCompilerConfig>,
    /// The batch of an optimizer step; `[batch]` of a config file.
    #[serde(skip)]
    pub batch: BatchArguments,
    /// How the learning rate follows the batch; `[learning_rate]` of a config file.
    #[serde(skip)]
    pub learning_rate_scaling: LearningRateScaling,
    /// Where the run computes; `[device]` of a config file.
    #[serde(skip)]
    pub device: DeviceArguments,
    /// How the devices of a run share its work; `[distributed]` of a config file.
    #[serde(skip)]
    pub distributed: DistributedArguments,
    /// The order of the training examples; in a config file it is a setting of the data, and
    /// `RunConfig::arguments` takes it from there. Default: `random`.
    #[serde(skip)]
    pub sampler: Sampler,
    /// The lengths that batches are padded to; in a config file it is a setting of the data, and
    /// `RunConfig::arguments` takes it from there. Default:
    /// `longest`.
    #[serde(skip)]
    pub padding: PaddingStrategy,
    /// When the model writes samples of text; in a config file `[generation]`. Default: never.
    #[serde(skip)]
    pub samples: Samples,
    /// The rows that are predicted at the end, with `do_predict`; in a config file `data.test`.
    #[serde(skip)]
    pub test: Option<String>,
    /// The devices that the run computes on, one process each: as a launcher has started them.
    #[serde(skip)]
    pub devices: Devices,
    /// The settings that have no effect, for people; the plan shows them.
    #[serde(skip)]
    pub no_effect: Vec<String>,
}

impl Default for TrainingArguments {
    fn default() -> Self {
        Self {
            do_train: true,
            do_eval: false,
            do_predict: false,
            max_steps: None,
            num_train_epochs: None,
            max_tokens: None,
            max_minutes: None,
            per_device_train_batch_size: TrainBatchSize::Size(8),
            per_device_eval_batch_size: 8,
            gradient_accumulation_steps: 1,
            accumulation: Accumulation::Exact,
            learning_rate: 5e-5,
            lr_scheduler_type: SchedulerType::Linear,
            warmup_steps: Interval::Steps(0),
            weight_decay: 0.0,
            adam_beta1: 0.9,
            adam_beta2: 0.999,
            adam_epsilon: 1e-8,
            freeze: Vec::new(),
            freeze_layers: 0,
            layer_wise_lr_decay: None,
            max_grad_norm: 1.0,
            skip_update_lossz: None,
            skip_update_gradz: None,
            label_smoothing_factor: 0.0,
            class_weights: None,
            optim: OptimizerName::AdamW,
            optim_args: OptimArgs::default(),
            logging_strategy: LoggingStrategy::Steps,
            logging_steps: None,
            logging_first_step: false,
            log_level: LogLevel::Passive,
            report_to: Vec::new(),
            eval_strategy: EvalStrategy::No,
            eval_steps: None,
            eval_delay: 0.0,
            eval_on_start: false,
            save_strategy: SaveStrategy::Steps,
            save_steps: Interval::Steps(500),
            save_only_model: false,
            save_total_limit: None,
            load_best_model_at_end: false,
            metric_for_best_model: None,
            greater_is_better: None,
            early_stopping_patience: None,
            early_stopping_threshold: 0.0,
            activation_checkpointing: ActivationCheckpointing::None,
            seed: 42,
            data_seed: None,
            full_determinism: false,
            dataloader_drop_last: false,
            overfit_one_batch: false,
            fast_dev_run: false,
            lr_scheduler_kwargs: SchedulerKwargs::default(),
            output_dir: PathBuf::new(),
            on_existing: OnExisting::Fail,
            run_name: None,
            resume_from_checkpoint: None,
            precision: Precision::default(),
            compiler: None,
            batch: BatchArguments::default(),
            learning_rate_scaling: LearningRateScaling::default(),
            device: DeviceArguments::default(),
            distributed: DistributedArguments::default(),
            sampler: Sampler::Random,
            padding: PaddingStrategy::Longest,
            samples: Samples::Never,
            test: None,
            devices: Devices::default(),
            no_effect: Vec::new(),
        }
    }
}

/// When a model writes samples of text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Samples {
    /// Never.
    #[default]
    Never,
    /// At the end.
    AtEnd,
    /// After every so many steps, and at the end.
    Every(usize),
}

/// Passes over the training data when a config names no length, as in Hugging Face's Trainer.
const DEFAULT_NUM_TRAIN_EPOCHS: f64 = 3.0;

/// How long a run is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RunLength {
    /// So many optimizer steps.
    Steps(usize),
    /// So many passes over the training data.
    Epochs(f64),
    /// So many training tokens.
    Tokens(u64),
}

impl TrainingArguments {
    /// The defaults, for a run in the folder `output_dir`.
    pub fn new(output_dir: impl Into<PathBuf>) -> Self {
        Self { output_dir: output_dir.into(), ..Self::default() }
    }

    /// Checks the values and how they go together, as far as the arguments alone can tell.
    ///
    /// # Errors
    /// A config error that names the argument, what is expected and what was given.
    pub fn validate(&self) -> Result<()> {
        Ok(self.check()?)
    }

    /// The training of this run in the folder `output_dir` (new: [`OnExisting::Fail`]) and nothing
    /// else: no evaluation or prediction, checkpoint, limit of time, report to other programs or
    /// check of the compiler, and a log row every `logging_steps` steps. Every weight of every step
    /// is what it was. A caller that needs one of these sets it again.
    #[must_use]
    pub fn training_only(&self, output_dir: impl Into<PathBuf>, logging_steps: usize) -> Self {
        let compiler = |given| TrainingCompilerConfig { verify: Some(Verify::Off), ..given };
        let given = self.clone();
        Self {
            output_dir: output_dir.into(),
            on_existing: OnExisting::Fail,
            resume_from_checkpoint: None,
            compiler: given.compiler.map(compiler),
            no_effect: Vec::new(),
            samples: Samples::Never,
            test: None,
            max_minutes: None,
            logging_strategy: LoggingStrategy::Steps,
            logging_steps: Some(logging_steps.into()),
            report_to: Vec::new(),
            eval_strategy: EvalStrategy::No,
            eval_steps: None,
            eval_delay: 0.0,
            eval_on_start: false,
            save_strategy: SaveStrategy::No,
            save_only_model: false,
            save_total_limit: None,
            load_best_model_at_end: false,
            metric_for_best_model: None,
            greater_is_better: None,
            early_stopping_patience: None,
            early_stopping_threshold: 0.0,
            do_train: true,
            do_eval: false,
            do_predict: false,
            ..given
        }
    }

    /// Switches the training compiler on (its settings stay), off, or to `auto`.
    pub fn set_compiler(&mut self, mode: CompilerMode) {
        match mode {
            CompilerMode::Native => self.compiler.iter_mut().for_each(|compiler| compiler.enabled = mode),
            CompilerMode::Compiled | CompilerMode::Auto => self.compiler.get_or_insert_default().enabled = mode,
        }
    }

    /// Whether the run is compiled; `native` without settings of the compiler.
    pub fn compiler_mode(&self) -> CompilerMode {
        self.compiler.as_ref().map_or(CompilerMode::Native, |compiler| compiler.enabled)
    }

    /// The run folder, with `~` and `${VAR}` expanded.
    ///
    /// # Errors
    /// A path with an environment variable that is not set.
    pub fn expanded_output_dir(&self) -> Result<PathBuf> {
        variables::expand(&self.output_dir.to_string_lossy()).map_err(|error| error.at("run.output_dir"))
    }

    /// The length that was given, or 3 epochs. `max_minutes` may end the run before it.
    pub fn length(&self) -> RunLength {
        match (self.max_steps, self.max_tokens, self.num_train_epochs) {
            (Some(steps), _, _) => RunLength::Steps(steps),
            (None, Some(tokens), _) => RunLength::Tokens(tokens),
            (None, None, epochs) => RunLength::Epochs(epochs.unwrap_or(DEFAULT_NUM_TRAIN_EPOCHS)),
        }
    }

    /// The arguments that keep the run from using all of its data, for people.
    pub fn limits(&self) -> Vec<String> {
        let flag = |name: &str, on: bool| on.then(|| name.to_owned());
        let limits = [
            flag("overfit_one_batch: the examples of the first step over and over", self.overfit_one_batch),
            flag("fast_dev_run: one step and one evaluation batch", self.fast_dev_run),
        ];
        limits.into_iter().flatten().collect()
    }

    /// Whether the run evaluates at all.
    pub fn evaluates(&self) -> bool {
        self.eval_strategy != EvalStrategy::No || self.eval_on_start || self.do_eval
    }

    /// The name in evaluation rows of the figure that says which model is best: `eval_loss`,
    /// `eval_accuracy`.
    pub fn best_metric(&self) -> String {
        let name = self.metric_for_best_model.as_deref().unwrap_or("loss");
        if name.starts_with("eval_") { name.into() } else { format!("eval_{name}") }
    }

    /// Whether more of [`best_metric`](Self::best_metric) is better.
    pub fn best_is_greatest(&self) -> bool {
        let name = self.best_metric();
        self.greater_is_better.unwrap_or(!name.ends_with("loss") && !name.ends_with("perplexity"))
    }

    /// The seed of the order of samples.
    pub fn data_seed(&self) -> u64 {
        self.data_seed.unwrap_or(self.seed)
    }
}
