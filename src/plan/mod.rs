//! What will happen: the config and the facts about its inputs become numbers, checked against one another, printed and
//! saved before step 1. Deriving a plan trains nothing and writes nothing.

pub mod memory;
pub mod batch;
mod captured;
mod inputs;
mod parts;
mod print;

use std::path::PathBuf;
use std::time::Duration;

use burn::tensor::Device;
use kiln_models::weights::parameters;
use kiln_models::{Compute, Model, ModelConfig, Ops};

use crate::base::error::{Error, Result, nearest};
use crate::base::host::resident_mib;
use crate::config::GenerateOptions;
use crate::config::Task;
use crate::config::{CompilerMode, TrainingCompilerConfig};
use crate::config::{
    DEFAULT_LABEL_COLUMN, DEFAULT_TEXT_COLUMN, DeviceKind, EvalStrategy, Interval, LoggingStrategy, RunConfig,
    RunLength, SaveStrategy, ScaledRate, StepSize, TrainerSection,
};
use crate::data::padding::{Padding, PaddingCost};
use crate::data::paths;
use crate::engine::compiler::checks;
use crate::engine::compiler::decision::Decision;
use crate::engine::device;
use crate::engine::device::DeviceFacts;
use crate::optim::schedule::Schedule;
use crate::optim::{OptimizerConfig, ParameterGroups};
use crate::plan::memory::{Host, MemoryEstimate, MemoryInputs, Values};
use crate::precision::PrecisionPlan;
use crate::task::LossOptions;
pub(crate) use batch::NUM_DEVICES;

pub use batch::BatchPlan;
pub use captured::NotCaptured;
pub use inputs::Inputs;
pub use parts::{Part, parts};

/// A run, resolved.
#[derive(Clone)]
pub struct RunPlan {
    /// The config with every default and derived value made explicit; saved as `plan.toml`.
    pub config: RunConfig,
    /// The task.
    pub task: Task,
    /// Where it runs.
    pub device: DeviceFacts,
    /// In which form the model and the optimizer compute.
    pub ops: Ops,
    /// In which type they compute.
    pub precision: PrecisionPlan,
    /// The choice of the mode by a trial, where the config asks for one; none before it was made.
    pub decision: Option<Decision>,
    /// The model.
    pub model_config: ModelConfig,
    /// The folder of the pretrained model, if any.
    pub model_from: Option<PathBuf>,
    /// Fields of a pretrained model's `config.json` that Kiln does not know.
    pub unknown_model_fields: Vec<String>,
    /// Parameters of the model, tied ones counted once.
    pub num_parameters: usize,
    /// The id that padding uses.
    pub pad_id: u32,
    /// Examples of the validation data, if any.
    pub validation_examples: Option<usize>,
    /// Batch arithmetic.
    pub batch: BatchPlan,
    /// Where a micro-batch comes from that the config does not state.
    pub batch_note: Option<String>,
    /// The lengths that batches are padded to.
    pub padding: Padding,
    /// What padding costs in training.
    pub padding_cost: PaddingCost,
    /// Step arithmetic.
    pub steps: StepPlan,
    /// The loss of training.
    pub loss: LossOptions,
    /// The optimizer.
    pub optimizer: OptimizerConfig,
    /// Which parameters learn, and how fast.
    pub groups: ParameterGroups,
    /// Parameters that learn, tied ones counted once.
    pub num_trainable: usize,
    /// The peak learning rate, and what the batch has to do with it.
    pub learning_rate: ScaledRate,
    /// Learning rate by step.
    pub schedule: Schedule,
    /// Optimizer steps between evaluations.
    pub eval_steps: usize,
    /// Optimizer steps between checkpoints.
    pub save_steps: usize,
    /// Optimizer steps between log rows.
    pub logging_steps: usize,
    /// How intervals that are not written in steps became steps, for people.
    pub intervals: Vec<String>,
    /// The text sample at the end, if any.
    pub generation: Option<SamplePlan>,
    /// How many values the model and the optimizer keep, and what the process has resident already.
    pub values: Values,
    /// Memory, by arithmetic.
    pub memory: MemoryEstimate,
}

/// How many steps the run has, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct StepPlan {
    /// Optimizer steps of the run.
    pub total: usize,
    /// Optimizer steps a pass over the training data, the last of them possibly smaller.
    pub per_epoch: usize,
    /// Examples of the training data.
    pub train_examples: usize,
    /// Tokens of the training data.
    pub train_tokens: u64,
    /// Tokens that the run will see, to within the last batches of each epoch.
    pub tokens: u64,
    /// The arithmetic, for people.
    pub because: String,
    /// The run ends after this much time, whatever else is planned.
    pub max_duration: Option<Duration>,
}

impl StepPlan {
    /// What an optimizer step of `batch` sees.
    pub fn step_size(&self, batch: BatchPlan) -> StepSize {
        let tokens = self.train_tokens as f64 / self.per_epoch as f64;
        StepSize { total_steps: self.total, samples: batch.global, tokens }
    }
}

/// The text sample that a run writes at its end.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplePlan {
    /// The text that the model continues.
    pub prompt: String,
    /// How it continues.
    pub sampling: GenerateOptions,
}

impl RunConfig {
    /// The run folder, with `~` and `${VAR}` expanded.
    ///
    /// # Errors
    /// A path with an environment variable that is not set.
    pub fn output_dir(&self) -> Result<PathBuf> {
        paths::expand(&self.run.output_dir.to_string_lossy())
    }
}

impl RunPlan {
    /// The compiler's settings, with the mode that was chosen where the config leaves that to a trial.
    pub fn compiler(&self) -> Option<TrainingCompilerConfig> {
        let mut compiler = self.config.compiler.clone()?;
        if let Some(decision) = &self.decision {
            compiler.enabled = decision.mode;
        }
        Some(compiler)
    }

    /// The plan of the mode that `decision` names.
    #[must_use]
    pub fn decided(mut self, decision: Decision) -> Self {
        self.ops = if decision.mode == CompilerMode::Compiled { self.ops } else { Ops::Plain };
        self.decision = Some(decision);
        self.memory = self.estimated_memory();
        self
    }
}

impl RunPlan {
    /// The plan that follows from `config` and what its inputs are. Pure: reads nothing but how much memory this process has
    /// by now, for the estimate of what it will have, and writes nothing.
    ///
    /// # Errors
    /// Settings that contradict one another or the inputs.
    pub fn derive(mut config: RunConfig, inputs: &Inputs, device: DeviceFacts) -> Result<Self> {
        let task = config.data.task;
        let mut batch = BatchPlan::of(&config)?;
        // Built for its shapes only: nothing is drawn until a parameter is used.
        let model = Model::new(&inputs.model_config, task.head(), &Device::flex())?;
        let parameters = parameters(&model);
        let num_parameters = parameters.iter().map(|parameter| parameter.num_elements()).sum();
        let groups = ParameterGroups::of(&config.trainer, &parameters)?;
        let loss = LossOptions::of(&config.trainer, task, inputs.model_config.labels())?;
        let optimizer = OptimizerConfig::from(&config.trainer);
        let learning = || parameters.iter().filter(|parameter| groups.learns(parameter));
        let num_trainable = learning().map(|parameter| parameter.num_elements()).sum();
        let values = Values {
            parameters: num_parameters,
            trained: num_trainable,
            largest: learning().map(|parameter| parameter.num_elements()).max().unwrap_or(0),
            state: learning().flat_map(|parameter| optimizer.state(parameter)).map(|(_, n)| n).sum(),
            resident: (resident_mib().unwrap_or(0.0) * f64::from(1 << 20)) as u64,
        };
        let trainer = &config.trainer;
        let batches = batch.drawn(&config);
        let validation = inputs.validation.as_ref().map_or(0, |data| data.max_len());
        let longest = inputs.max_length.unwrap_or(inputs.train.max_len().max(validation));
        let padding = Padding::new(config.data.padding, longest, &*inputs.train, batches);
        let padding_cost = padding.cost(&*inputs.train, batches);
        batch.seq_len = padding.length(inputs.train.max_len());
        let steps = step_plan(&config, batch, inputs.train.len(), inputs.train_tokens)?;
        let step_size = steps.step_size(batch);
        let learning_rate = config.learning_rate.scaled(trainer.learning_rate, batch.global / NUM_DEVICES, NUM_DEVICES);
        let schedule = Schedule::new(
            trainer.lr_scheduler_type,
            learning_rate.rate,
            if trainer.fast_dev_run { 0 } else { trainer.warmup_steps.resolve(step_size) },
            steps.total,
            &trainer.lr_scheduler_kwargs,
        )
        .map_err(|error| error.at("[trainer]"))?;
        if trainer.eval_strategy != EvalStrategy::No && inputs.validation.is_none() {
            return Err(Error::config(format!(
                "trainer.eval_strategy = \"{}\", but there is no validation data",
                trainer.eval_strategy
            ))
            .help("set data.validation to files or to a share such as \"2%\", or trainer.eval_strategy = \"no\""));
        }
        check_metric(trainer, task)?;
        // Automatic: at least 20 rows a run, at most 500 steps apart.
        let resolve = |interval: Interval| interval.resolve(step_size).max(1);
        let logging_steps = trainer.logging_steps.map_or((steps.total / 20).clamp(1, 500), resolve);
        let eval_steps = trainer.eval_steps.map_or(logging_steps, resolve);
        let save_steps = resolve(trainer.save_steps);
        if trainer.load_best_model_at_end
            && trainer.save_strategy == SaveStrategy::Steps
            && !save_steps.is_multiple_of(eval_steps)
        {
            return Err(Error::config(format!(
                "trainer.save_steps is {save_steps} steps and eval_steps is {eval_steps}: with load_best_model_at_end \
                 every saved step must be an evaluated one"
            ))
            .help(format!(
                "set trainer.save_steps to a multiple of {eval_steps}, or trainer.save_strategy = \"best\""
            )));
        }
        if trainer.full_determinism && device.kind != DeviceKind::Cpu {
            return Err(Error::config(format!(
                "trainer.full_determinism = true: on {} kernels add in an order of their own, so two runs may differ in \
                 their last bits",
                device.kind
            ))
            .help("set device.kind = \"cpu\", where every run is deterministic, or leave it out"));
        }
        let ops = device::ops(config.compiler.as_ref(), &device)?;
        checks::allowed(config.compiler.as_ref(), device.kind)?;
        let precision = PrecisionPlan::new(config.precision, &device)?;
        let ops = precision.ops(ops);
        optimizer.check_precision(&precision, config.trainer.optim.as_str())?;
        let generation = sample_plan(&config, inputs)?;
        let intervals = interval_notes(&config, step_size);
        config.trainer.gradient_accumulation_steps = batch.accumulation;
        config.precision = precision.precision;
        config.trainer.logging_steps = Some(logging_steps.into());
        if config.trainer.eval_strategy == EvalStrategy::Steps {
            config.trainer.eval_steps = Some(eval_steps.into());
        }
        config.trainer.save_steps = save_steps.into();
        config.data.block_size = inputs.block_size.or(config.data.block_size);
        config.data.max_length = inputs.max_length;
        if config.data.format.is_table() {
            config.data.text_column.get_or_insert_with(|| DEFAULT_TEXT_COLUMN.into());
            if !matches!(task, Task::Clm | Task::Mlm) {
                config.data.label_column.get_or_insert_with(|| DEFAULT_LABEL_COLUMN.into());
            }
        }
        let mut plan = Self {
            task,
            device,
            ops,
            precision,
            decision: None,
            num_parameters,
            model_config: inputs.model_config.clone(),
            model_from: inputs.model_from.clone(),
            unknown_model_fields: inputs.unknown_model_fields.clone(),
            pad_id: inputs.pad_id,
            validation_examples: inputs.validation.as_ref().map(|data| data.len()),
            batch,
            batch_note: None,
            padding,
            padding_cost,
            steps,
            loss,
            optimizer,
            groups,
            num_trainable,
            learning_rate,
            schedule,
            eval_steps,
            save_steps,
            logging_steps,
            intervals,
            generation,
            values,
            memory: MemoryEstimate::default(),
            config,
        };
        plan.check_graph()?;
        plan.memory = plan.estimated_memory();
        Ok(plan)
    }

    /// The run folder.
    ///
    /// # Errors
    /// A path with an environment variable that is not set.
    pub fn output_dir(&self) -> Result<PathBuf> {
        self.config.output_dir()
    }

    /// What it will need in memory, as the plan now stands.
    pub fn estimated_memory(&self) -> MemoryEstimate {
        let trainer = &self.config.trainer;
        let examples = self.validation_examples.filter(|_| trainer.evaluates()).unwrap_or(0);
        let saves = match trainer.save_strategy {
            SaveStrategy::No => false,
            SaveStrategy::Steps => self.save_steps < self.steps.total,
            SaveStrategy::Epoch | SaveStrategy::Best => self.steps.per_epoch < self.steps.total,
        };
        let host = Host { saves };
        MemoryEstimate::new(&MemoryInputs {
            model: &self.model_config,
            task: self.task,
            values: self.values,
            batch: self.batch,
            eval_batch: trainer.per_device_eval_batch_size.min(examples),
            compute: self.compute(),
            checkpointing: trainer.activation_checkpointing,
            skips: self.precision.scales_loss(),
            host: (self.device.kind == DeviceKind::Cpu).then_some(host),
        })
    }

    /// Floating-point operations of forward and backward for one token: `6 x` the weights that it is multiplied with (linear
    /// layers and, for language models, the output matrix; embeddings are looked up, not multiplied) `+ 12 x layers x width x
    /// sequence length` for attention, all positions counted, also where a causal mask leaves half of them out (the
    /// convention of PaLM, Chowdhery et al. 2022, appendix B, without its embedding term). Recomputation counts as nothing, and what
    /// the compiled mode leaves out (`models/rows.rs`) as if it were computed.
    pub fn flops_per_token(&self) -> f64 {
        let (width, layers, _, inner) = self.model_config.shape();
        let [width, layers, inner] = [width, layers, inner].map(|size| size as f64);
        let head = match self.task {
            Task::Clm => width * self.model_config.vocab_size() as f64,
            Task::Mlm => width * (width + self.model_config.vocab_size() as f64),
            _ => 0.0, // one row of logits for a sequence, or two columns: nothing beside the layers
        };
        6.0 * (layers * (4.0 * width * width + 2.0 * width * inner) + head)
            + 12.0 * layers * width * self.batch.seq_len as f64
    }

    /// Whether training drops anything.
    pub fn has_dropout(&self) -> bool {
        match (&self.model_config, self.task) {
            (ModelConfig::Gpt2(c), _) => [c.resid_pdrop, c.embd_pdrop, c.attn_pdrop].iter().any(|p| *p > 0.0),
            (ModelConfig::Bert(c), task) => {
                let head = match task {
                    Task::SequenceClassification | Task::Regression => c.classifier_dropout.unwrap_or(0.0),
                    Task::QuestionAnswering if self.model_config.model_type() == kiln_models::ModelType::DistilBert => {
                        c.qa_dropout
                    }
                    _ => 0.0,
                };
                [c.hidden_dropout_prob, c.attention_probs_dropout_prob, head].iter().any(|p| *p > 0.0)
            }
        }
    }

    /// How the model computes.
    pub fn compute(&self) -> Compute {
        Compute::new(self.ops, self.precision.dtype)
    }
}

/// `warm-up 1000 samples / 16 a step = 63`, for what is neither steps nor automatic.
fn interval_notes(config: &RunConfig, step: StepSize) -> Vec<String> {
    let trainer = &config.trainer;
    let eval_steps = trainer.eval_steps.filter(|_| trainer.eval_strategy == EvalStrategy::Steps);
    let save_steps = Some(trainer.save_steps).filter(|_| trainer.save_strategy == SaveStrategy::Steps);
    [
        ("warm-up", Some(trainer.warmup_steps).filter(|_| !trainer.fast_dev_run)),
        ("logging", trainer.logging_steps.filter(|_| trainer.logging_strategy == LoggingStrategy::Steps)),
        ("evaluation", eval_steps),
        ("saving", save_steps),
    ]
    .into_iter()
    .filter_map(|(name, interval)| {
        let interval = interval?;
        let least = usize::from(name != "warm-up");
        Some(format!("{name} {} = {}", interval.arithmetic(step)?, interval.resolve(step).max(least)))
    })
    .collect()
}

/// The figure that says which model is best has to be one of the task's.
fn check_metric(trainer: &TrainerSection, task: Task) -> Result<()> {
    let (metric, figures) = (trainer.best_metric(), task.figures());
    let name = metric.trim_start_matches("eval_");
    if figures.contains(&name) {
        return Ok(());
    }
    let error = Error::config(format!("trainer.metric_for_best_model: an evaluation of {task} has no `{name}`"));
    let known = format!("it has {}", figures.join(", "));
    Err(error.help(match nearest(name, figures.iter().copied()) {
        Some(near) => format!("did you mean `{near}`? {known}"),
        None => known,
    }))
}

/// Hugging Face's arithmetic: the last batch of an epoch may be smaller (unless dropped), and so may the last window of
/// accumulated batches; epochs may have fractions.
fn step_plan(config: &RunConfig, batch: BatchPlan, examples: usize, train_tokens: u64) -> Result<StepPlan> {
    let trainer = &config.trainer;
    let batches = match trainer.dataloader_drop_last {
        true => examples / batch.micro,
        false => examples.div_ceil(batch.micro),
    };
    if batches == 0 {
        return Err(Error::config(format!(
            "trainer.dataloader_drop_last = true: {examples} examples do not fill one batch of {}",
            batch.micro
        ))
        .help("lower trainer.per_device_train_batch_size or set trainer.dataloader_drop_last = false"));
    }
    let per_epoch = batches.div_ceil(batch.accumulation);
    let tokens_per_step = train_tokens as f64 / per_epoch as f64;
    let (total, because) = match trainer.length() {
        _ if trainer.fast_dev_run => (1, "fast_dev_run".into()),
        RunLength::Steps(steps) => (steps, format!("max_steps = {steps}")),
        RunLength::Tokens(tokens) => {
            let total = (tokens as f64 / tokens_per_step).ceil() as usize;
            (total, format!("{tokens} tokens / {tokens_per_step:.0} tokens a step, rounded up"))
        }
        RunLength::Epochs(epochs) => {
            ((epochs * per_epoch as f64).ceil() as usize, format!("{epochs} epochs x {per_epoch} steps"))
        }
    };
    let max_duration = trainer.max_minutes.map(|minutes| Duration::from_secs_f64(minutes * 60.0));
    let tokens = (total as f64 * tokens_per_step).round() as u64;
    Ok(StepPlan {
        total: total.max(1),
        per_epoch,
        train_examples: examples,
        train_tokens,
        tokens,
        because,
        max_duration,
    })
}

fn sample_plan(config: &RunConfig, inputs: &Inputs) -> Result<Option<SamplePlan>> {
    let Some(section) = &config.generation else { return Ok(None) };
    if config.data.task != Task::Clm {
        return Err(Error::config(format!("[generation]: task {} does not generate text", config.data.task))
            .help("remove the section, or set data.task = \"clm\""));
    }
    let Some(tokenizer) = &inputs.tokenizer else {
        return Err(Error::config("[generation] needs a tokenizer, and this run has none")
            .help("set tokenizer.from, or remove the section"));
    };
    let sampling = GenerateOptions {
        max_new_tokens: section.max_new_tokens,
        temperature: section.temperature,
        top_k: section.top_k,
        top_p: section.top_p,
        seed: section.seed,
        stop: tokenizer.eot_id().into_iter().collect(),
    };
    sampling.validate().map_err(|error| error.at("[generation]"))?;
    let (tokens, positions) = (tokenizer.encode(&section.prompt)?.len(), inputs.model_config.max_positions());
    if tokens == 0 || tokens >= positions {
        return Err(Error::config(format!(
            "generation.prompt: expected 1 to {} tokens, since the model has {positions} positions and the answer needs \
             one, got {tokens}",
            positions - 1
        ))
        .help("shorten the prompt, or give the model more positions"));
    }
    Ok(Some(SamplePlan { prompt: section.prompt.clone(), sampling }))
}
