//! The arguments of the [`Trainer`](crate::Trainer), by the names and with the defaults of Hugging
//! Face's `TrainingArguments`: values alone, which know no file. They are read from the names of
//! the fields of [`TrainingArguments`], and a name that is none is refused. Their serialised form
//! is the section `[trainer]` of a config file, without the last fields, which have other places
//! there: [`RunSection`] and [`DataArguments`] are read from their sections.

mod batch;
mod check;
mod distributed;
mod names;
mod optim;
mod program;
mod ranges;
mod values;

use std::path::PathBuf;

pub use batch::{BatchArguments, BatchScaling, BatchScope, LearningRateScaling, LrScaling, ScaledRate, TrainBatchSize};
pub use check::CheckedArguments;
pub use distributed::{DdpBackend, DistributedArguments};
use kiln_core::complaint::MAX_BATCH;
use kiln_core::dataset::{Buckets, PaddingRule, PaddingStrategy, Sampler};
use kiln_core::error::Result;
pub use kiln_core::keys::{Key, Resume};
use kiln_core::ranges::{
    ABOVE_0, ABOVE_0_TO_1, FROM_0, FROM_0_TO_1, Section, Seed, Spelled, any, number, text, texts, whole,
};
use kiln_core::schema::{Schema, Value};
use kiln_core::values::{count, count_or_minus_one, seed, some_count, strings};
use kiln_core::variables;
pub use names::{
    EvalStrategy, HubStrategy, Integration, LogLevel, LoggingStrategy, OnExisting, SERVICES, SaveStrategy,
};
pub(crate) use program::Feature;
use ranges::{AtLeast, Duration, Steps, Window, folder, line, weights};
use serde::{Deserialize, Serialize};
use serde_json::json;
use values::integrations;
pub use values::{ClassWeights, Interval, StepSize};

use crate::distributed::Devices;
use crate::engine::compiler::settings::{TrainingCompilerConfig, Verify};
use crate::engine::settings::{CompilerMode, DeviceArguments, Precision};
use crate::optim::arguments::{OptimArgs, OptimizerName};
use crate::optim::backward::ActivationCheckpointing;
use crate::optim::loss::Accumulation;
use crate::optim::scheduler::{SchedulerKwargs, SchedulerType};

kiln_core::keys! {
    /// How a model is trained. One of `max_steps`, `num_train_epochs` and `max_tokens` is given; it
    /// sets the length of the run and of the learning-rate schedule. Beside `max_steps`,
    /// `num_train_epochs` has no effect.
    #[serde(default, deny_unknown_fields)]
    pub struct TrainingArguments in "trainer" {
        /// Length of the run in optimizer steps; -1 means not given, here and in the two below.
        /// Default: not given.
        #[serde(deserialize_with = "count_or_minus_one", skip_serializing_if = "Option::is_none")]
        max_steps: Option<usize> = None, Derived hf, Spelled(Steps, minus_one);
        /// Length of the run in passes over the training data, with fractions; the length where no
        /// other one is given.
        #[serde(skip_serializing_if = "Option::is_none")]
        num_train_epochs: Option<f64> = None, Derived hf, Duration;
        /// Length of the run in training tokens. Default: not given.
        #[serde(deserialize_with = "count_or_minus_one", skip_serializing_if = "Option::is_none")]
        max_tokens: Option<u64> = None, Derived, Spelled(whole(1..=i64::MAX as u64), minus_one);
        /// Stops the run after this many minutes, counted over all its continuations, if it has not
        /// ended by then; may join any length. The run is `Stopped` then and continues under a
        /// higher limit. The limit does not shape the schedule, so that the learning rate stays a
        /// function of the step. Default: no limit.
        #[serde(skip_serializing_if = "Option::is_none")]
        max_minutes: Option<f64> = None, Free, Duration;
        /// Samples per forward pass in training, or `"auto"`: the most that fit on this machine, as
        /// `kiln tune-batch` finds them. Default: 8.
        per_device_train_batch_size: TrainBatchSize = TrainBatchSize::Size(8), Derived hf, whole(1..=MAX_BATCH);
        /// Samples per forward pass in evaluation. Default: 8.
        #[serde(deserialize_with = "count")]
        per_device_eval_batch_size: usize = 8, Free hf, whole(1..=MAX_BATCH);
        /// Forward and backward passes per optimizer step. Default: 1, or what
        /// `batch.global_batch_size` asks for.
        #[serde(deserialize_with = "count")]
        gradient_accumulation_steps: usize = 1, Derived hf, whole(1..=MAX_BATCH);
        /// The loss of an optimizer step of several micro-batches. `exact`: one sum over all of
        /// them, divided once by the number of its terms (predicted tokens, rows or spans), so that
        /// 4 x 4 trains as 16 x 1 does (in question answering with `data.padding = "max_length"`,
        /// since its softmax takes padding in, as in transformers). `transformers`: what the
        /// Trainer of transformers 5.24 computes, which adds up the means of the micro-batches in
        /// classification, regression and masked language modelling, takes the mean of these means
        /// in question answering, and counts the first token of each row of GPT-2's language model
        /// too, which nothing predicts; in the first three the micro-batch is then part of the run
        /// and is not halved when memory runs out. Default: `exact`.
        accumulation: Accumulation = Accumulation::Exact, Derived;
        /// Peak learning rate, which `[learning_rate]` may scale with the batch. Default: 5e-5.
        learning_rate: f64 = 5e-5, Derived hf, ABOVE_0;
        /// The schedule. Default: `linear`.
        lr_scheduler_type: SchedulerType = SchedulerType::Linear, Bound hf;
        /// Steps of warm-up, below 1 a ratio of the run (also written `"10%"`), or `"1000 samples"`
        /// or `"2e6 tokens"`; rounded up. The schedule `constant` has none. Default: 0.
        warmup_steps: Interval = Interval::Steps(0), Derived hf, AtLeast(0);
        /// Weight decay, not applied to biases and norms. Decoupled in every optimizer but `adam`
        /// and `sgd`, which add it to the gradient as PyTorch's do. Default: 0.0.
        weight_decay: f64 = 0.0, Bound hf, FROM_0;
        /// Decay rate of the first moment: AdamW, Adam, LAMB; in Lion the weight of the past in the
        /// sign. Default: 0.9.
        adam_beta1: f64 = 0.9, Bound hf, FROM_0_TO_1;
        /// Decay rate of the second moment: AdamW, Adam, LAMB; in Lion that of the only one (its
        /// paper takes 0.99). Default: 0.999.
        adam_beta2: f64 = 0.999, Bound hf, FROM_0_TO_1;
        /// Added to the denominator by AdamW, Adam and LAMB. Default: 1e-8.
        adam_epsilon: f64 = 1e-8, Bound hf, ABOVE_0;
        /// Parameters that do not learn: patterns of Hugging Face's tensor names, such as
        /// `"*embeddings*"`; a list, or one string. A frozen word embedding is frozen as the output
        /// embedding too. Default: none.
        #[serde(deserialize_with = "strings", skip_serializing_if = "Vec::is_empty")]
        freeze: Vec<String> = Vec::new(), Bound, texts;
        /// The embeddings and this many of the lowest layers do not learn; 0 freezes neither.
        /// Default: 0.
        #[serde(deserialize_with = "count")]
        freeze_layers: usize = 0, Bound;
        /// Every layer's learning rate is this part of the rate of the layer above it: 1 for the
        /// head, the last LayerNorm and the pooler, this for the top layer, and so on down to the
        /// embeddings. Default: the same rate everywhere.
        #[serde(skip_serializing_if = "Option::is_none")]
        layer_wise_lr_decay: Option<f64> = None, Bound, ABOVE_0_TO_1;
        /// Largest global gradient norm; 0 means no clipping. Default: 1.0.
        max_grad_norm: f64 = 1.0, Bound hf, number("a number of 0 or more (0 means no clipping)", 0.0..);
        /// A step is not applied where its loss has a z-score above this among the losses of the
        /// last 128 steps (`-sl` of llm.c); 0 applies all. A device that works asynchronously is
        /// read from in every step for it. Default: not given.
        #[serde(skip_serializing_if = "Option::is_none")]
        skip_update_lossz: Option<f64> = None, Bound, number("a number of 0 or more (0 applies all steps)", 0.0..);
        /// A step is not applied where its gradient norm before clipping has a z-score above this
        /// among those of the last 128 steps (`-sg` of llm.c); 0 applies all. Default: not given.
        #[serde(skip_serializing_if = "Option::is_none")]
        skip_update_gradz: Option<f64> = None, Bound, number("a number of 0 or more (0 applies all steps)", 0.0..);
        /// Part of a target's probability that is spread evenly over all classes, in training and
        /// in `eval_loss`: for language models and classification. Default: 0.0.
        label_smoothing_factor: f64 = 0.0, Bound hf, FROM_0_TO_1;
        /// Noise on the output of the token embedding in training: drawn evenly from 0 to this
        /// number over the square root of a row's tokens times the width, either way (NEFTune).
        /// Default: none.
        #[serde(skip_serializing_if = "Option::is_none")]
        neftune_noise_alpha: Option<f64> = None, Bound hf, FROM_0;
        /// The weights of the classes in the loss of training: a list in the order of the label
        /// ids, or a table by the labels' names; for classification. Default: all 1.
        #[serde(skip_serializing_if = "Option::is_none")]
        class_weights: Option<ClassWeights> = None, Bound, weights;
        /// The optimizer. Default: `adamw_torch`.
        optim: OptimizerName = OptimizerName::AdamW, Bound hf;
        /// The optimizer's own arguments, a table or `"key=value,key=value"`. Default: none given.
        #[serde(skip_serializing_if = "OptimArgs::is_empty")]
        optim_args: OptimArgs = OptimArgs::default(), Bound hf, Spelled(any, String::schema);
        /// When to write a log row. Default: `steps`.
        logging_strategy: LoggingStrategy = LoggingStrategy::Steps, Free hf;
        /// With `logging_strategy = "steps"`: a log row every so many steps, or a ratio, samples or
        /// tokens as in `warmup_steps`. Default: chosen from the length of the run (at most Hugging
        /// Face's 500, and at least 20 rows).
        #[serde(skip_serializing_if = "Option::is_none")]
        logging_steps: Option<Interval> = None, Free hf, AtLeast(1);
        /// Logs step 1 too. Default: false.
        logging_first_step: bool = false, Free hf;
        /// How much `kiln train` says besides rows and errors.
        log_level: LogLevel = LogLevel::Passive, Free hf;
        /// Who is told of the rows besides `metrics.jsonl` and stdout: one name, a list, `all` or
        /// `none`. Default: `none`.
        #[serde(deserialize_with = "integrations", skip_serializing_if = "Vec::is_empty")]
        report_to: Vec<Integration> = Vec::new(), Free hf, Spelled(any, all_or_none);
        /// The first and the last step whose time is shown part by part and operator by operator in
        /// `trace.json` of the run folder, for chrome://tracing or Perfetto: `[10, 12]`. Looking
        /// takes a little time of these steps. Default: none.
        #[serde(skip_serializing_if = "Option::is_none")]
        profile_steps: Option<[u64; 2]> = None, Free, Window;
        /// When to evaluate. Default: `no`.
        eval_strategy: EvalStrategy = EvalStrategy::No, Free hf;
        /// With `eval_strategy = "steps"`: every so many steps, or a ratio, samples or tokens.
        /// Default: as `logging_steps`.
        #[serde(skip_serializing_if = "Option::is_none")]
        eval_steps: Option<Interval> = None, Free hf, AtLeast(1);
        /// No evaluation before so many steps (with `eval_strategy = "steps"`) or epochs (with
        /// `"epoch"`) are made. Default: 0.
        eval_delay: f64 = 0.0, Free hf, FROM_0;
        /// Evaluates before step 1 too. Default: false.
        eval_on_start: bool = false, Free hf;
        /// When to save a checkpoint, from which the run can be continued. Default: `steps`.
        save_strategy: SaveStrategy = SaveStrategy::Steps, Free hf;
        /// With `save_strategy = "steps"`: every so many steps, or a ratio, samples or tokens.
        /// Default: 500.
        save_steps: Interval = Interval::Steps(500), Free hf, AtLeast(1);
        /// Checkpoints hold the model alone, without the optimizer: they are smaller, and no run
        /// continues from them. One that is saved because a signal or `max_minutes` ends the run is
        /// whole. Default: false.
        save_only_model: bool = false, Free hf;
        /// Keeps this many checkpoints and removes older ones, though never the best one when
        /// `load_best_model_at_end` is set. Default: all are kept; each takes about three times the
        /// room of the model.
        #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
        save_total_limit: Option<usize> = None, Free hf, whole(1..=usize::MAX);
        /// Ends the run with the weights of the checkpoint whose evaluation was best. Default:
        /// false.
        load_best_model_at_end: bool = false, Free hf;
        /// The evaluation figure that says which model is best, with or without `eval_`. Default:
        /// `loss`.
        #[serde(skip_serializing_if = "Option::is_none")]
        metric_for_best_model: Option<String> = None, Free hf, text;
        /// Whether more of that figure is better. Default: true unless its name ends in `loss` or
        /// `perplexity`.
        #[serde(skip_serializing_if = "Option::is_none")]
        greater_is_better: Option<bool> = None, Free hf;
        /// Ends the run after this many evaluations in a row that were not better than the best
        /// (`EarlyStoppingCallback`). Default: not given.
        #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
        early_stopping_patience: Option<usize> = None, Free, whole(1..=usize::MAX);
        /// By how much an evaluation must be better to count for `early_stopping_patience`.
        /// Default: 0.0.
        early_stopping_threshold: f64 = 0.0, Free, FROM_0;
        /// The results that the backward pass computes again to need less memory. Default: `none`.
        activation_checkpointing: ActivationCheckpointing = ActivationCheckpointing::None, Bound;
        /// Seed of the weights, of dropout and of the order of samples; above 2^63 - 1 in quotes.
        /// Default: 42.
        #[serde(with = "seed")]
        seed: u64 = 42, Bound hf, Seed;
        /// Seed of the order of samples alone. Default: `seed`.
        #[serde(with = "seed::some", skip_serializing_if = "Option::is_none")]
        data_seed: Option<u64> = None, Derived hf, Seed;
        /// Makes every run of a config the same, bit for bit. On the CPU it always is; on other
        /// devices, where kernels add in an order of their own, this is refused. Default: false.
        full_determinism: bool = false, Free hf;
        /// Leaves out the last batch of an epoch when it is not full. Default: false.
        dataloader_drop_last: bool = false, Bound hf;
        /// Trains on the examples of the first optimizer step over and over: a model that can learn
        /// learns them by heart. Default: false.
        overfit_one_batch: bool = false, Bound;
        /// One optimizer step and one batch of each evaluation, to see that everything works.
        /// Default: false.
        fast_dev_run: bool = false, Bound;
        /// Trains. When false, `kiln train` only evaluates (or predicts, with `do_predict`): the
        /// model that `model.from` names, else the one in the run folder, else one with random
        /// weights. Default: true.
        do_train: bool = true, Free hf;
        /// Evaluates at the end, also with `eval_strategy = "no"`; without training, evaluates.
        /// Default: false.
        do_eval: bool = false, Free hf;
        /// Predicts the rows of `data.test` at the end, into `predict_results.jsonl` of the run
        /// folder. Default: false.
        do_predict: bool = false, Free hf;
        /// Uploads the model to the Hub, by a thread of its own; an upload that fails is told and
        /// ends no run. The token is that of `HF_TOKEN` or of `hf auth login`. A build without the
        /// Cargo feature `push` refuses it. Default: false.
        push_to_hub: bool = false, Free hf;
        /// The repository, `org/name`, or `name` for the account of the token; it is made where it
        /// is not there. Default: the name of the run folder.
        #[serde(skip_serializing_if = "Option::is_none")]
        hub_model_id: Option<String> = None, Free hf, text;
        /// Whether a repository that is made is private. Default: the Hub's own, which is public
        /// unless an organization has set it otherwise.
        #[serde(skip_serializing_if = "Option::is_none")]
        hub_private_repo: Option<bool> = None, Free hf;
        /// Content and time of the uploads. A checkpoint that is due while another one is on its
        /// way waits for it, and is left out where a newer one comes meanwhile. Default:
        /// `every_save`.
        hub_strategy: HubStrategy = HubStrategy::EverySave, Free hf;
        /// The branch of the repository; it is made where it is not there. Default: `main`.
        #[serde(skip_serializing_if = "Option::is_none")]
        hub_revision: Option<String> = None, Free hf, text;
        /// The schedule's own arguments. Default: none given.
        #[serde(skip_serializing_if = "SchedulerKwargs::is_empty")]
        lr_scheduler_kwargs: SchedulerKwargs = SchedulerKwargs::default(), Bound hf;
        /// The type of matrix products, in training and evaluation; `precision` of a config file.
        /// Default: `f32`.
        #[serde(skip_serializing)]
        precision: Precision = Precision::default(), Derived @ "precision";
        /// The training compiler; `[compiler]` of a config file. Default: none, which is native.
        #[serde(skip_serializing)]
        compiler: Option<TrainingCompilerConfig> = None, Free @ "compiler", Section(TrainingCompilerConfig::check_ranges);
        /// The batch of an optimizer step; `[batch]` of a config file.
        #[serde(skip_serializing)]
        batch: BatchArguments = BatchArguments::default(), Free @ "batch", Section(BatchArguments::check_ranges);
        /// How the learning rate follows the batch; `[learning_rate]` of a config file.
        #[serde(skip_serializing)]
        learning_rate_scaling: LearningRateScaling = LearningRateScaling::default(), Derived @ "learning_rate",
            Section(LearningRateScaling::check_ranges);
        /// Where the run computes; `[device]` of a config file.
        #[serde(skip_serializing)]
        device: DeviceArguments = DeviceArguments::default(), Derived @ "device", Section(DeviceArguments::check_ranges);
        /// How the devices of a run share its work; `[distributed]` of a config file.
        #[serde(skip_serializing)]
        distributed: DistributedArguments = DistributedArguments::default(), Free @ "distributed",
            Section(DistributedArguments::check_ranges);
        /// When the model writes samples of text; in a config file `[generation]`. Default: never.
        #[serde(skip)]
        samples: Samples = Samples::Never, Free @ "generation";
        /// The devices that the run computes on, one process each: as a launcher has started them.
        #[serde(skip)]
        devices: Devices = Devices::default();
        /// The settings that have no effect, for people; the plan shows them.
        #[serde(skip)]
        no_effect: Vec<String> = Vec::new();
    }

    /// `[run]`: where the results go.
    #[serde(default)]
    pub struct RunSection in "run" {
        /// The run folder. Default: `runs/NAME` for a config file `NAME.toml`; required without a
        /// file.
        output_dir: PathBuf = PathBuf::new(), Free hf @ "run.output_dir", folder;
        /// The treatment of a run folder that exists. It belongs to a call and not to the run, so
        /// that plan.toml has the default. Default: `fail`.
        on_existing: OnExisting = OnExisting::Fail, Free @ "run.on_existing";
        /// A name for people, shown in the plan and by `kiln describe`. Default: none.
        #[serde(rename = "name", skip_serializing_if = "Option::is_none")]
        run_name: Option<String> = None, Free hf @ "run.name", line;
        /// The checkpoint to continue from, with `on_existing = "resume"`, also `--resume-from`:
        /// one in this run's folder, such as `runs/x/checkpoints/step-000100`, or for a run folder
        /// that does not exist yet, one of another run, which is copied there. It belongs to a call
        /// and not to the run, so that plan.toml does not repeat it. Default: the newest.
        #[serde(skip_serializing)]
        resume_from_checkpoint: Option<PathBuf> = None, Free @ "run.resume_from_checkpoint";
    }

    /// `[data]`, besides what is learned from: how batches are made of the examples, and the rows
    /// that are predicted.
    #[serde(default)]
    pub struct DataArguments in "data" {
        /// The file with the rows that `trainer.do_predict` predicts, written as the training data
        /// are, though without labels. Default: none.
        #[serde(skip_serializing_if = "Option::is_none")]
        test: Option<String> = None, Free @ "data.test", text;
        /// The order of training samples; evaluation always keeps the order of the files. Default:
        /// `random`.
        sampler: Sampler = Sampler::Random, Bound @ "data.sampler";
        /// To which length the rows of a batch are padded. Default: `longest`.
        padding: PaddingStrategy = PaddingStrategy::Longest, Bound @ "data.padding";
        /// The lengths that rows are padded to are multiples of this, as `pad_to_multiple_of` of
        /// the collators of `transformers`. With `padding = "max_length"` the length is rounded up
        /// too, and with `"buckets"` those that are chosen. Default: none; 8 for `"buckets"`, but
        /// for the longest one.
        #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
        pad_to_multiple_of: Option<usize> = None, Bound @ "data.pad_to_multiple_of";
        /// With `padding = "buckets"`: a number, at most so many lengths that are chosen from the
        /// data, or a list, these lengths in ascending order; where rows may be longer than the
        /// last of them, the longest length is added. Default: 4.
        #[serde(skip_serializing_if = "Option::is_none")]
        buckets: Option<Buckets> = None, Bound @ "data.buckets";
    }
}

/// No length, as Hugging Face writes it.
fn minus_one() -> Value {
    json!({ "enum": [-1] })
}

/// The names that stand for several integrations.
fn all_or_none() -> Value {
    json!({ "enum": ["all", "none"] })
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

impl Schema for Samples {
    /// It is no value of a file: `[generation]` is.
    fn schema() -> Value {
        json!({})
    }
}

impl Samples {
    /// The steps between samples.
    pub fn every(self) -> Option<usize> {
        match self {
            Self::Every(steps) => Some(steps),
            Self::Never | Self::AtEnd => None,
        }
    }
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

    /// The training of this run in the folder `output_dir` (new: [`OnExisting::Fail`]) and nothing
    /// else: no evaluation or prediction, checkpoint, limit of time, report to other programs or
    /// check of the compiler, and a log row every `logging_steps` steps. Every weight of every step
    /// is what it was. A caller that needs one of these sets it again.
    #[must_use]
    pub fn training_only(&self, output_dir: impl Into<PathBuf>, logging_steps: usize) -> Self {
        // Free keys change no weight. These change no more than is wanted here, either.
        const KEPT: [&str; 9] = [
            "batch",
            "compiler",
            "distributed",
            "full_determinism",
            "log_level",
            "logging_first_step",
            "per_device_eval_batch_size",
            "run_name",
            "save_steps",
        ];
        let compiler = |given| TrainingCompilerConfig { verify: Some(Verify::Off), ..given };
        Self {
            output_dir: output_dir.into(),
            compiler: self.compiler.clone().map(compiler),
            no_effect: Vec::new(),
            logging_steps: Some(logging_steps.into()),
            save_strategy: SaveStrategy::No,
            ..self.clone().without(|key| key.resume == Resume::Free && !KEPT.contains(&key.field))
        }
    }

    /// Switches the training compiler on (its settings stay), off, or to `auto`.
    pub fn set_compiler(&mut self, mode: CompilerMode) {
        match mode {
            CompilerMode::Native => self.compiler.iter_mut().for_each(|compiler| compiler.enabled = mode),
            CompilerMode::Compiled | CompilerMode::Auto => self.compiler.get_or_insert_default().enabled = mode,
        }
    }

    /// The lengths that batches are padded to.
    pub fn padding_rule(&self) -> PaddingRule<'_> {
        let (pad_to_multiple_of, buckets) = (self.pad_to_multiple_of, self.buckets.as_ref());
        PaddingRule { strategy: self.padding, pad_to_multiple_of, buckets }
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

    /// The repository that the run is uploaded to: the one that was given, or the name of the run
    /// folder. Empty where that has none.
    pub fn hub_id(&self) -> String {
        let of_folder = || Some(self.expanded_output_dir().ok()?.file_name()?.to_string_lossy().into_owned());
        self.hub_model_id.clone().or_else(of_folder).unwrap_or_default()
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A program may have them in a file of its own.
    #[test]
    fn arguments_are_read_by_the_names_of_their_fields_and_no_others() {
        let read = toml::from_str::<TrainingArguments>;
        let given = read("output_dir = \"runs/a\"\non_existing = \"resume\"\nmax_steps = 3").unwrap();
        let on_existing = OnExisting::Resume;
        let expected = TrainingArguments { on_existing, max_steps: Some(3), ..TrainingArguments::new("runs/a") };
        assert_eq!(given, expected);
        let error = read("max_stepz = 3").unwrap_err();
        assert!(error.message().starts_with("unknown field `max_stepz`, expected one of `max_steps`"), "{error}");
        for table in
            ["batch", "learning_rate_scaling", "distributed", "device", "compiler", "optim_args", "lr_scheduler_kwargs"]
        {
            let error = toml::from_str::<TrainingArguments>(&format!("[{table}]\nno_such_name = 1")).unwrap_err();
            assert!(error.message().starts_with("unknown field `no_such_name`"), "{table}: {error}");
        }
    }

    #[test]
    fn a_setting_has_the_entry_of_its_key_its_table_or_its_section() {
        for (setting, name, resume) in [
            ("trainer.optim", "trainer.optim", Resume::Bound),
            ("trainer.optim_args.momentum", "trainer.optim_args", Resume::Bound),
            ("trainer.warmup_steps", "trainer.warmup_steps", Resume::Derived),
            ("run.name", "run.name", Resume::Free),
            ("device.kind", "device", Resume::Derived),
            ("learning_rate.scope", "learning_rate", Resume::Derived),
            ("generation.top_p", "generation", Resume::Free),
        ] {
            let found = TrainingArguments::KEYS.iter().filter(|key| key.has(setting)).collect::<Vec<_>>();
            assert_eq!(found.len(), 1, "{setting}: {found:?}");
            assert_eq!((found[0].name, found[0].resume), (name, resume));
        }
        assert!(!TrainingArguments::KEYS.iter().any(|key| key.has("data.train") || key.has("model.n_layer")));
    }
}
