//! Plans of runs. A plan is derived from the config and the facts about the run's inputs: it holds
//! every number of the run, checked against the others, and is printed and saved before step 1. A
//! plan is a value: deriving it reads and writes nothing, and it is not changed afterwards. Another
//! config or other facts have another plan.

pub mod facts;
pub mod memory;
pub mod batch;
mod captured;
mod outline;
mod parts;
mod print;
mod sections;

use std::path::PathBuf;
use std::time::Duration;

pub use batch::BatchPlan;
pub use captured::NotCaptured;
pub use facts::{DataFacts, Facts, FoundBatch, ModelFacts, TokenizerFacts};
use kiln_core::error::{Error, Result, nearest};
use kiln_data::padding::Padding;
use kiln_models::ops::Form;
use kiln_models::{Operator, Ops};
pub use outline::{Found, outline};
pub use parts::Part;
use sections::model_config;
pub use sections::{
    DataPlan, EnginePlan, EvaluationPlan, LoggingPlan, MemoryPlan, ModelPlan, OptimizerPlan, RunSettings, SamplePlan,
    SavingPlan, StepPlan,
};
use serde::{Deserialize, Serialize};

use crate::config::{
    ActivationCheckpointing, BatchScaling, CompilerMode, DataFormat, DdpBackend, DeviceKind, DistributedArguments,
    Documents, EvalStrategy, GenerateOptions, Interval, LoggingStrategy, RunConfig, RunLength, Sampler, SaveStrategy,
    StepSize, Task, TrainingArguments, TrainingCompilerConfig,
};
use crate::engine::compiler::decision::Decision;
use crate::engine::compiler::{checks, warms_up};
use crate::engine::device::DeviceFacts;
use crate::engine::precision::PrecisionPlan;
use crate::engine::{device, handover, operators};
use crate::optim::outliers::OutlierLimits;
use crate::optim::schedule::Schedule;
use crate::optim::{OptimizerConfig, ParameterGroups};
use crate::plan::memory::{Host, MemoryEstimate, MemoryInputs, Values};
use crate::task::{LossOptions, Reduction};

/// The file in a run folder that holds the plan.
pub const FILE: &str = "plan.json";

/// The form of that file. A file of another form, which another build of Kiln has written, is as
/// good as none.
pub const SCHEMA: &str = "kiln.plan/2";

/// A run, resolved. `plan.json` in its folder holds it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunPlan {
    /// [`SCHEMA`]
    pub schema: String,
    /// The version of Kiln that made it.
    pub kiln: String,
    /// The run's name, its folder, and its work besides training.
    pub run: RunSettings,
    /// The model.
    pub model: ModelPlan,
    /// The training and validation data, their order and their padding.
    pub data: DataPlan,
    /// Batch arithmetic.
    pub batch: BatchPlan,
    /// How the devices share the work.
    #[serde(default)]
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
    /// The text samples, if any.
    pub generation: Option<SamplePlan>,
    /// Memory, by arithmetic.
    pub memory: MemoryPlan,
}

impl RunPlan {
    /// The plan that follows from `config` and `facts`. Pure: the same config and facts have the
    /// same plan.
    ///
    /// # Errors
    /// Settings that contradict one another or the facts.
    pub fn derive(config: &RunConfig, facts: &Facts) -> Result<Self> {
        let trainer = &config.trainer;
        let mut batch = BatchPlan::of(config, facts.batch.as_ref())?;
        let groups = ParameterGroups::of(trainer, &facts.model.parameters)?;
        let loss = match &facts.model.built_in {
            Some((model, task)) => LossOptions::of(trainer, *task, model)?,
            None => LossOptions::of_own(trainer)?,
        };
        let update = OptimizerConfig::from(trainer);
        let values = values(facts, &groups, &update);
        let model = facts.model.plan(values.parameters, values.trained);
        let mut data = data_plan(config, &facts.data, &batch, facts.device.kind);
        if model.task.is_none() {
            data.documents = None;
        }
        if trainer.activation_checkpointing == ActivationCheckpointing::Blocks && !facts.model.has_blocks {
            return Err(Error::config(format!(
                "trainer.activation_checkpointing = \"blocks\": Kiln does not know the blocks of a {}",
                model.kind
            ))
            .help("set \"balanced\" or \"none\", or let the task have stages (TrainingTask::stages)"));
        }
        batch.seq_len = data.padding.length(facts.data.train.max_len);
        check_tokens(trainer, data.train_tokens)?;
        let mut steps = step_plan(config, &batch, &data)?;
        let step_size = steps.step_size(&batch, data.train_tokens);
        steps.intervals = interval_notes(config, step_size);
        let learning_rate = config.trainer.learning_rate_scaling.scaled(
            trainer.learning_rate,
            batch.global / batch.devices.count,
            batch.devices,
        );
        let schedule = Schedule::new(
            trainer.lr_scheduler_type,
            learning_rate.rate,
            if trainer.fast_dev_run { 0 } else { trainer.warmup_steps.resolve(step_size) },
            steps.total,
            &trainer.lr_scheduler_kwargs,
        )
        .map_err(|error| error.at("[trainer]"))?;
        if trainer.eval_strategy != EvalStrategy::No && data.validation_examples.is_none() {
            return Err(Error::config(format!(
                "trainer.eval_strategy = \"{}\", but there is no validation data",
                trainer.eval_strategy
            ))
            .help(
                "set data.validation to files or to a share such as \"2%\" (a task of your own gets its validation data from \
                 Session::new), or trainer.eval_strategy = \"no\"",
            ));
        }
        check_metric(trainer, &facts.model)?;
        let (evaluation, logging, saving) = work(config, step_size)?;
        let engine = EnginePlan::of(config, &facts.device, facts.decision.clone())?;
        update.check_precision(&engine.precision, trainer.optim.as_str())?;
        if config.trainer.distributed.optimizer_sharding {
            update.check_sharding(trainer.optim.as_str())?;
        }
        if config.trainer.distributed.ddp_backend == Some(DdpBackend::Nccl)
            && batch.devices.count > 1
            && facts.device.kind != DeviceKind::Cuda
        {
            return Err(Error::config(format!(
                "distributed.ddp_backend = \"nccl\": NCCL sums the gradients of CUDA devices, and this run computes on {}",
                facts.device.kind
            ))
            .help("leave it out, or set it to \"mpi\""));
        }
        let generation = sample_plan(config, facts)?;
        let optimizer = OptimizerPlan {
            name: trainer.optim,
            config: update,
            groups,
            learning_rate,
            schedule,
            max_grad_norm: (trainer.max_grad_norm > 0.0).then_some(trainer.max_grad_norm),
            outliers: OutlierLimits::of(trainer),
            accumulation: trainer.accumulation,
            loss,
        };
        let compiler = compiler(config, facts.decision.as_ref());
        let shared = (batch.devices.count > 1).then_some(config.trainer.distributed);
        let captured = engine.can_capture(compiler.as_ref(), &model, &optimizer, shared);
        let engine = engine.with_capture(compiler.as_ref(), captured.err());
        let plan = Self {
            schema: SCHEMA.into(),
            kiln: env!("CARGO_PKG_VERSION").into(),
            run: RunSettings::of(config),
            model,
            data,
            batch,
            distributed: config.trainer.distributed,
            steps,
            optimizer,
            engine,
            evaluation,
            logging,
            saving,
            generation,
            memory: MemoryPlan { values, estimate: None },
        };
        plan.check_graph(compiler.as_ref())?;
        let memory = MemoryPlan { values, estimate: plan.estimated_memory() };
        Ok(Self { memory, ..plan })
    }

    /// The run folder, with `~` and `${VAR}` expanded.
    ///
    /// # Errors
    /// A path with an environment variable that is not set.
    pub fn output_dir(&self) -> Result<PathBuf> {
        self.run.expanded_output_dir()
    }

    /// `config`, of which this is the plan, with every derived value made explicit: `plan.toml`
    /// repeats the run from it.
    #[must_use]
    pub fn resolved(&self, config: &RunConfig) -> RunConfig {
        let mut config = config.clone();
        let trainer = &mut config.trainer;
        trainer.per_device_train_batch_size = self.batch.micro.into();
        trainer.gradient_accumulation_steps = self.batch.accumulation;
        let can_state =
            trainer.batch.scaling == BatchScaling::Fixed && self.optimizer.loss.reduction == Reduction::Exact;
        if self.batch.devices.count > 1 && can_state {
            // The same run on any number of devices: the accumulation follows.
            trainer.gradient_accumulation_steps = 1;
            trainer.batch.global_batch_size = Some(self.batch.global);
        }
        trainer.logging_steps = Some(self.logging.steps.into());
        if trainer.eval_strategy == EvalStrategy::Steps {
            trainer.eval_steps = Some(self.evaluation.steps.into());
        }
        trainer.save_steps = self.saving.steps.into();
        config.trainer.precision = self.engine.precision.precision;
        config.data.block_size = self.data.block_size.or(config.data.block_size);
        config.data.max_length = self.data.max_length;
        config.data.version_2_with_negative = self.data.version_2_with_negative;
        if config.data.format.is_table() {
            let (text, label) = config.data.task.columns();
            if !config.data.has_instructions() {
                config.data.text_column.get_or_insert_with(|| text.into());
            }
            if !config.data.task.is_language_model() {
                config.data.label_column.get_or_insert_with(|| label.into());
            }
        }
        config
    }

    /// The estimated memory of the same run with micro-batches of `micro` examples.
    pub fn estimated_memory_of(&self, micro: usize) -> Option<MemoryEstimate> {
        let mut plan = self.clone();
        plan.batch.micro = micro;
        plan.estimated_memory()
    }

    fn estimated_memory(&self) -> Option<MemoryEstimate> {
        let (model, task) = self.model.built_in().ok()?;
        let examples = self.data.validation_examples.filter(|_| self.evaluation.is_on()).unwrap_or(0);
        let saves = match self.saving.strategy {
            SaveStrategy::No => false,
            SaveStrategy::Steps => self.saving.steps < self.steps.total,
            SaveStrategy::Epoch | SaveStrategy::Best => self.steps.per_epoch < self.steps.total,
        };
        let host = Host { saves };
        Some(MemoryEstimate::new(&MemoryInputs {
            model,
            task,
            values: self.memory.values,
            batch: &self.batch,
            sequences: self.data.sequences,
            documents: self.data.packing,
            eval_batch: self.evaluation.batch_size.min(examples),
            compute: self.engine.compute(),
            checkpointing: self.engine.activation_checkpointing,
            skips: self.engine.precision.scales_loss(),
            sharded: self.distributed.optimizer_sharding,
            bytes_at_a_time: self.engine.device.bytes_at_a_time,
            host: (self.engine.device.kind == DeviceKind::Cpu).then_some(host),
        }))
    }
}

impl EnginePlan {
    /// Where and in which form a run of `config` computes on `device`, with the mode that
    /// `decision` names. Whether steps are captured depends on more.
    ///
    /// # Errors
    /// A setting that needs something that the device or this build does not have.
    pub fn of(config: &RunConfig, device: &DeviceFacts, decision: Option<Decision>) -> Result<Self> {
        if config.trainer.full_determinism && device.kind != DeviceKind::Cpu {
            return Err(Error::config(format!(
                "trainer.full_determinism = true: on {} {}",
                device.kind,
                parts::NOT_DETERMINISTIC
            ))
            .help("set device.kind = \"cpu\", where every run is deterministic, or leave it out"));
        }
        let ops = device::ops(config.trainer.compiler.as_ref(), device)?;
        checks::allowed(config.trainer.compiler.as_ref(), device.kind)?;
        let chosen_native = decision.as_ref().is_some_and(|decision| decision.mode != CompilerMode::Compiled);
        let ops = if chosen_native { Ops::Plain } else { ops };
        let precision = PrecisionPlan::new(config.trainer.precision, device, ops)?;
        let ops = precision.ops(ops, device.kind);
        let settings = compiler(config, decision.as_ref());
        let mode = settings.as_ref().map_or(CompilerMode::Native, |settings| settings.enabled);
        let why = |operator| match &settings {
            Some(_) if chosen_native => "the trial of compiler.enabled = \"auto\" chose native".into(),
            Some(settings) if mode != CompilerMode::Native => {
                operators::plain_because(operator, &settings.fused_ops, device.kind, precision.dtype())
                    .unwrap_or_else(|| operators::NATIVE_GPU.into())
            }
            _ => "the run is native".into(),
        };
        let plain = Operator::ALL.into_iter().filter(|operator| ops.form(*operator) == Form::Plain);
        let asked = config.trainer.compiler.as_ref().filter(|compiler| compiler.enabled != CompilerMode::Native);
        let plan = Self {
            device: device.clone(),
            mode,
            decision,
            ops,
            plain_operators: plain.map(|operator| (operator.name().to_owned(), why(operator))).collect(),
            precision,
            activation_checkpointing: config.trainer.activation_checkpointing,
            not_captured: None,
            unfused: handover::is_unfused(settings.as_ref(), device.kind),
            warmup: mode == CompilerMode::Compiled
                && settings.as_ref().is_some_and(|settings| warms_up(settings.warmup, device.kind)),
            verify: checks::of(settings.as_ref()),
            debug: asked.is_some_and(|compiler| compiler.debug),
            parts: Vec::new(),
        };
        let not_captured = NotCaptured::yet(device.kind, config.trainer.compiler_mode() == CompilerMode::Native);
        Ok(plan.with_capture(settings.as_ref(), Some(not_captured)))
    }

    /// This plan with `not_captured`, and the parts of the compiler, of which captured steps are
    /// one, under `compiler`.
    fn with_capture(self, compiler: Option<&TrainingCompilerConfig>, not_captured: Option<NotCaptured>) -> Self {
        let dtype = self.precision.dtype();
        let parts = parts::parts(compiler, &self.device, dtype, self.ops, not_captured.as_ref());
        Self { not_captured, parts, ..self }
    }
}

/// The compiler's settings in `config`, with the mode that was chosen where they leave that to a
/// trial; none in a run without.
fn compiler(config: &RunConfig, decision: Option<&Decision>) -> Option<TrainingCompilerConfig> {
    let compiler = config.trainer.compiler.clone()?;
    let enabled = decision.map_or(compiler.enabled, |decision| decision.mode);
    Some(TrainingCompilerConfig { enabled, ..compiler })
}

fn values(facts: &Facts, groups: &ParameterGroups, optimizer: &OptimizerConfig) -> Values {
    let parameters = &facts.model.parameters;
    let learning = || parameters.iter().filter(|parameter| groups.learns(parameter));
    Values {
        parameters: parameters.iter().map(|parameter| parameter.num_elements()).sum(),
        trained: learning().map(|parameter| parameter.num_elements()).sum(),
        multiplying: match facts.model.lora {
            Some(_) => {
                parameters.iter().filter(|it| it.in_linear && !groups.learns(it)).map(|it| it.num_elements()).sum()
            }
            None => 0,
        },
        largest: learning().map(|parameter| parameter.num_elements()).max().unwrap_or(0),
        state: learning().flat_map(|parameter| optimizer.state(parameter)).map(|(_, n)| n).sum(),
        resident: facts.resident,
    }
}

impl ModelFacts {
    /// The plan of a model of which so many parameters there are, and so many learn.
    fn plan(&self, num_parameters: usize, num_trainable: usize) -> ModelPlan {
        let (config, task) = self.built_in.clone().unzip();
        ModelPlan {
            kind: self.kind.clone(),
            task,
            config: config.map(model_config::own),
            from: self.from.clone(),
            lora: self.lora.clone(),
            adapter: self.adapter.clone(),
            unknown_fields: self.unknown_fields.clone(),
            num_parameters,
            num_trainable,
            can_be_captured: self.can_be_captured,
        }
    }
}

fn data_plan(config: &RunConfig, facts: &DataFacts, batch: &BatchPlan, device: DeviceKind) -> DataPlan {
    let data = &config.data;
    let validation = facts.validation.map_or(0, |split| split.max_len);
    let longest = facts.max_length.unwrap_or(facts.train.max_len.max(validation));
    let padding = Padding::new(data.padding, longest, &facts.batches);
    let padding_cost = padding.cost(&facts.batches, batch.micro);
    DataPlan {
        train_examples: facts.train.examples,
        train_tokens: facts.tokens,
        validation_examples: facts.validation.map(|split| split.examples),
        block_size: facts.block_size,
        max_length: facts.max_length,
        documents: documents(config, device),
        limits: limits(config),
        sampler: data.sampler,
        seed: config.trainer.data_seed(),
        drop_last: config.trainer.dataloader_drop_last,
        pad_id: facts.pad_id,
        sequences: facts.sequences,
        packing: data.packing,
        version_2_with_negative: facts.version_2_with_negative,
        padding_strategy: data.padding,
        padding,
        padding_cost,
    }
}

/// How documents are joined; none where examples are rows.
fn documents(config: &RunConfig, device: DeviceKind) -> Option<String> {
    let data = &config.data;
    if data.has_instructions() {
        return data.packing.then(|| {
            let attention = match device {
                DeviceKind::Cpu => "",
                _ => "; their attention is the plain operator, since the kernel of this device knows no documents",
            };
            format!(
                "several rows stand in a sample, each with attention and positions of its own (data.packing){attention}"
            )
        });
    }
    let script = match data.task {
        Task::Clm => "run_clm.py",
        Task::Mlm => "run_mlm.py",
        _ => return None,
    };
    let unit = match data.format {
        DataFormat::Tokenized | DataFormat::Squad => return None,
        DataFormat::Text if data.documents == Documents::File => "file",
        DataFormat::Text => "line",
        _ => "row",
    };
    Some(if data.marks_ends() {
        format!("a {unit} is a document, and end-of-text follows each (data.document_end)")
    } else {
        format!("{unit}s are joined without end-of-text, as {script} joins rows (data.document_end)")
    })
}

/// The settings that keep the run from using all of its data as they stand.
fn limits(config: &RunConfig) -> Vec<String> {
    let (data, trainer) = (&config.data, &config.trainer);
    let limit = |name: &str, limit: Option<usize>| limit.map(|limit| format!("{name} = {limit}"));
    let flag = |name: &str, on: bool| on.then(|| name.to_owned());
    let streaming = data.streaming.then(|| match data.sampler {
        Sampler::Sequential => "streaming: read in order as needed, over and over".to_owned(),
        _ => format!(
            "streaming: read in order as needed, over and over, and shuffled among {}",
            data.shuffle_buffer_size
        ),
    });
    let limits = [
        streaming,
        limit("max_train_samples", data.max_train_samples),
        limit("max_eval_samples", data.max_eval_samples),
        flag("overfit_one_batch: the examples of the first step over and over", trainer.overfit_one_batch),
        flag("fast_dev_run: one step and one evaluation batch", trainer.fast_dev_run),
    ];
    limits.into_iter().flatten().collect()
}

/// Steps between log rows where the config states none: at least 20 rows a run, at most 500 steps
/// apart.
fn automatic_logging(total_steps: usize) -> usize {
    (total_steps / 20).clamp(1, 500)
}

/// When the run evaluates, logs and saves.
fn work(config: &RunConfig, step_size: StepSize) -> Result<(EvaluationPlan, LoggingPlan, SavingPlan)> {
    let trainer = &config.trainer;
    let resolve = |interval: Interval| interval.resolve(step_size).max(1);
    let logging_steps = trainer.logging_steps.map_or(automatic_logging(step_size.total_steps), resolve);
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
        .help(format!("set trainer.save_steps to a multiple of {eval_steps}, or trainer.save_strategy = \"best\"")));
    }
    let evaluation = EvaluationPlan {
        strategy: trainer.eval_strategy,
        steps: eval_steps,
        delay: trainer.eval_delay,
        on_start: trainer.eval_on_start,
        at_end: trainer.do_eval,
        batch_size: trainer.per_device_eval_batch_size,
    };
    let logging = LoggingPlan {
        strategy: trainer.logging_strategy,
        steps: logging_steps,
        first_step: trainer.logging_first_step,
        report_to: trainer.report_to.clone(),
    };
    Ok((evaluation, logging, SavingPlan::of(trainer, save_steps)))
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

/// The figure that says which model is best has to be one of the evaluation's.
fn check_metric(trainer: &TrainingArguments, model: &ModelFacts) -> Result<()> {
    let (metric, figures) = (trainer.best_metric(), model.metrics);
    let task = model.built_in.as_ref().map_or(model.kind.as_str(), |(_, task)| task.name());
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

/// Lengths that are counted in tokens need data that tells how long its examples are.
fn check_tokens(trainer: &TrainingArguments, train_tokens: u64) -> Result<()> {
    let in_tokens = |interval: Option<Interval>| matches!(interval, Some(Interval::Tokens(_)));
    let lengths = [
        ("max_tokens", matches!(trainer.length(), RunLength::Tokens(_))),
        ("warmup_steps", in_tokens(Some(trainer.warmup_steps))),
        ("logging_steps", in_tokens(trainer.logging_steps)),
        ("eval_steps", in_tokens(trainer.eval_steps)),
        ("save_steps", in_tokens(Some(trainer.save_steps))),
    ];
    match lengths.into_iter().find(|(_, is_in_tokens)| *is_in_tokens && train_tokens == 0) {
        Some((name, _)) => {
            Err(Error::config(format!("trainer.{name} counts tokens, and the training data tells no lengths"))
                .help("count steps or samples, or let the dataset tell its lengths: `Dataset::len_of`"))
        }
        None => Ok(()),
    }
}

/// Hugging Face's arithmetic: the last batch of an epoch may be smaller (unless dropped), and so
/// may the last window of accumulated batches; epochs may have fractions.
fn step_plan(config: &RunConfig, batch: &BatchPlan, data: &DataPlan) -> Result<StepPlan> {
    let (trainer, examples) = (&config.trainer, data.train_examples);
    let batches = if trainer.dataloader_drop_last { examples / batch.micro } else { examples.div_ceil(batch.micro) };
    if batches == 0 {
        return Err(Error::config(format!(
            "trainer.dataloader_drop_last = true: {examples} examples do not fill one batch of {}",
            batch.micro
        ))
        .help("lower trainer.per_device_train_batch_size or set trainer.dataloader_drop_last = false"));
    }
    let per_epoch = batches.div_ceil(batch.micro_batches());
    let tokens_per_step = data.train_tokens as f64 / per_epoch as f64;
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
    Ok(StepPlan { total: total.max(1), per_epoch, tokens, because, max_duration, intervals: Vec::new() })
}

fn sample_plan(config: &RunConfig, facts: &Facts) -> Result<Option<SamplePlan>> {
    let Some(section) = &config.generation else { return Ok(None) };
    if config.data.task != Task::Clm {
        return Err(Error::config(format!("[generation]: task {} does not generate text", config.data.task))
            .help("remove the section, or set data.task = \"clm\""));
    }
    let (Some((model, _)), Some(tokenizer)) = (&facts.model.built_in, &facts.tokenizer) else {
        return Err(Error::config("[generation] needs a tokenizer, and this run has none")
            .help("set tokenizer.from, or remove the section"));
    };
    let sampling = GenerateOptions::of(section, tokenizer.eot_id.into_iter().collect());
    sampling.validate().map_err(|error| error.at("[generation]"))?;
    let positions = model.max_positions();
    if let Some(&tokens) = tokenizer.prompt_tokens.iter().find(|tokens| **tokens == 0 || **tokens >= positions) {
        return Err(Error::config(format!(
            "generation.prompt: expected 1 to {} tokens, since the model has {positions} positions and the answer needs \
             one, got {tokens}",
            positions - 1
        ))
        .help("shorten the prompt, or give the model more positions"));
    }
    Ok(Some(SamplePlan { prompts: section.prompt.clone(), every: section.every, sampling }))
}
