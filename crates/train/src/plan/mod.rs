//! Plans of training. A plan is derived from the arguments and the facts about the run's inputs: it
//! holds every number of the training, checked against the others, before step 1. A plan is a
//! value: deriving it reads and writes nothing, and it is not changed afterwards. Other arguments
//! or other facts have another plan.

pub mod batch;
mod captured;
mod facts;
mod memory;
mod parts;
mod print;
mod sections;

use std::path::PathBuf;
use std::time::Duration;

pub use batch::BatchPlan;
pub use captured::NotCaptured;
pub use facts::{DataFacts, FoundBatch, ModelFacts, SplitFacts, TrainFacts};
use kiln_core::dataset::padding::Padding;
use kiln_core::error::{Error, Result, nearest};
use kiln_models::ops::Form;
use kiln_models::{Operator, Ops};
pub use memory::KnownMemory;
pub(crate) use memory::shown;
pub use parts::Part;
pub use print::{Lines, Remarks, update};
pub use sections::{
    DataPlan, EnginePlan, EvaluationPlan, LoggingPlan, ModelPlan, OptimizerPlan, PushPlan, RunSettings, SavingPlan,
    StepPlan, TrainPlan,
};

use crate::arguments::{
    BatchScaling, CheckedArguments, DdpBackend, EvalStrategy, Interval, LoggingStrategy, RunLength, SaveStrategy,
    StepSize, TrainingArguments,
};
use crate::engine::compiler::decision::Decision;
use crate::engine::compiler::settings::TrainingCompilerConfig;
use crate::engine::compiler::{checks, warms_up};
use crate::engine::device::DeviceFacts;
use crate::engine::precision::PrecisionPlan;
use crate::engine::settings::{CompilerMode, DeviceKind};
use crate::engine::{device, handover, operators};
use crate::optim::backward::ActivationCheckpointing;
use crate::optim::loss::Reduction;
use crate::optim::outliers::OutlierLimits;
use crate::optim::schedule::Schedule;
use crate::optim::{OptimizerConfig, OwnOptimizer, ParameterGroups};

/// The file in a run folder that holds the plan.
pub const FILE: &str = "plan.json";

/// The form of that file. A file of another form, which another build of Kiln has written, is as
/// good as none.
pub const SCHEMA: &str = "kiln.plan/2";

impl TrainPlan {
    /// The plan that follows from `trainer` and `facts`. Pure: the same arguments and facts have
    /// the same plan.
    ///
    /// # Errors
    /// Arguments that contradict the facts.
    pub fn derive(trainer: &CheckedArguments, facts: &TrainFacts) -> Result<Self> {
        let mut batch = BatchPlan::of(trainer, facts.batch.as_ref())?;
        let groups = ParameterGroups::of(trainer, &facts.model.parameters)?;
        let update = optimizer(trainer, &facts.model)?;
        let model = facts.model.plan(Some(&groups));
        let data = data_plan(trainer, &facts.data, &batch);
        if trainer.activation_checkpointing == ActivationCheckpointing::Blocks && !facts.model.has_blocks {
            return Err(Error::config(format!(
                "trainer.activation_checkpointing = \"blocks\": Kiln does not know the blocks of a {}",
                model.kind
            ))
            .help("set \"balanced\" or \"none\", or let the task have stages (TrainingTask::stages)"));
        }
        batch.seq_len = data.padding.length(facts.data.train.max_len);
        check_tokens(trainer, data.train_tokens)?;
        let mut steps = step_plan(trainer, &batch, &data)?;
        check_profile(trainer, steps.total)?;
        let step_size = steps.step_size(&batch, data.train_tokens);
        steps.intervals = interval_notes(trainer, step_size);
        let learning_rate = trainer.learning_rate_scaling.scaled(
            trainer.learning_rate,
            batch.global / batch.devices.count,
            batch.devices,
        );
        let schedule = schedule(trainer, &facts.model, learning_rate.rate, step_size)?;
        // Those that the first evaluation names are looked for when training begins.
        if let Some(figures) = facts.model.metrics {
            check_metric(&trainer.best_metric(), figures, &facts.model.task)?;
        }
        let (evaluation, logging, saving) = work(trainer, step_size)?;
        let engine = EnginePlan::of(trainer, &facts.device, facts.decision.clone())?;
        let name = facts.model.optimizer.as_ref().map_or(trainer.optim.as_str(), OwnOptimizer::name);
        update.check_precision(&engine.precision, name)?;
        if trainer.distributed.optimizer_sharding {
            update.check_sharding(name)?;
        }
        if trainer.distributed.ddp_backend == Some(DdpBackend::Nccl)
            && batch.devices.count > 1
            && facts.device.kind != DeviceKind::Cuda
        {
            return Err(Error::config(format!(
                "distributed.ddp_backend = \"nccl\": NCCL sums the gradients of CUDA devices, and this run computes on {}",
                facts.device.kind
            ))
            .help("leave it out, or set it to \"mpi\""));
        }
        let learning = facts.model.parameters.iter().filter(|parameter| groups.learns(parameter));
        let state_values = learning.flat_map(|parameter| update.state(parameter)).map(|(_, n)| n).sum();
        let optimizer = OptimizerPlan {
            name: trainer.optim,
            config: update,
            groups,
            learning_rate,
            schedule,
            max_grad_norm: (trainer.max_grad_norm > 0.0).then_some(trainer.max_grad_norm),
            outliers: OutlierLimits::of(trainer),
            accumulation: trainer.accumulation,
            loss: facts.loss.clone(),
            neftune_noise_alpha: trainer.neftune_noise_alpha.filter(|alpha| *alpha > 0.0),
            state_values,
        };
        let compiler = compiler(trainer, facts.decision.as_ref());
        let shared = (batch.devices.count > 1).then_some(trainer.distributed);
        let captured = engine.can_capture(compiler.as_ref(), &facts.model, &optimizer, shared);
        let engine = engine.with_capture(compiler.as_ref(), captured.err());
        let plan = Self {
            run: RunSettings::of(trainer),
            model,
            data,
            batch,
            distributed: trainer.distributed,
            steps,
            optimizer,
            engine,
            evaluation,
            logging,
            saving,
            samples: trainer.samples,
        };
        plan.check_graph(compiler.as_ref())?;
        Ok(plan)
    }

    /// Refuses a run that is to evaluate and has no validation data.
    ///
    /// # Errors
    /// The argument that asks for evaluations.
    pub fn check_evaluation(&self) -> Result<()> {
        if self.data.validation_examples.is_some() || !self.evaluation.is_on() {
            return Ok(());
        }
        let asked = match self.evaluation.strategy {
            EvalStrategy::No => {
                "trainer.do_eval, trainer.eval_on_start: they need validation data, and there is none".into()
            }
            strategy => format!("trainer.eval_strategy = \"{strategy}\", but there is no validation data"),
        };
        Err(Error::config(asked).help(
            "set data.validation to files or to a share such as \"2%\" (a program gives Trainer::with_validation its \
             examples), or leave the argument out",
        ))
    }

    /// The run folder, with `~` and `${VAR}` expanded.
    ///
    /// # Errors
    /// A path with an environment variable that is not set.
    pub fn output_dir(&self) -> Result<PathBuf> {
        self.run.expanded_output_dir()
    }

    /// `trainer`, of which this is the plan, with every derived value made explicit.
    #[must_use]
    pub fn resolved(&self, trainer: &TrainingArguments) -> TrainingArguments {
        let mut trainer = trainer.clone();
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
        trainer.precision = self.engine.precision.precision;
        trainer
    }

    /// The batch with the next smaller micro-batch with which the run trains the same; none at a
    /// micro-batch of 1, and where the loss depends on how a step is cut.
    pub fn smaller_batch(&self) -> Option<BatchPlan> {
        if self.optimizer.loss.reduction != Reduction::Exact {
            return None;
        }
        // The examples that an epoch leaves out must stay the same too.
        let mut smaller = self.batch.halved()?;
        while self.data.examples_of_epoch(&smaller) != self.data.examples_of_epoch(&self.batch) {
            smaller = smaller.halved()?;
        }
        Some(smaller)
    }
}

impl EnginePlan {
    /// Where and in which form a run of `arguments` computes on `device`, with the mode that
    /// `decision` names. Whether steps are captured depends on more.
    ///
    /// # Errors
    /// A setting that needs something that the device or this build does not have.
    pub fn of(arguments: &TrainingArguments, device: &DeviceFacts, decision: Option<Decision>) -> Result<Self> {
        if arguments.full_determinism && device.kind != DeviceKind::Cpu {
            return Err(Error::config(format!(
                "trainer.full_determinism = true: on {} {}",
                device.kind,
                parts::NOT_DETERMINISTIC
            ))
            .help("set device.kind = \"cpu\", where every run is deterministic, or leave it out"));
        }
        let ops = device::ops(arguments.compiler.as_ref(), device)?;
        checks::allowed(arguments.compiler.as_ref(), device.kind)?;
        let chosen_native = decision.as_ref().is_some_and(|decision| decision.mode != CompilerMode::Compiled);
        let ops = if chosen_native { Ops::Plain } else { ops };
        let precision = PrecisionPlan::new(arguments.precision, device, ops)?;
        let ops = precision.ops(ops, device.kind);
        let settings = compiler(arguments, decision.as_ref());
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
        let asked = arguments.compiler.as_ref().filter(|compiler| compiler.enabled != CompilerMode::Native);
        let plan = Self {
            device: device.clone(),
            mode,
            decision,
            ops,
            plain_operators: plain.map(|operator| (operator.name().to_owned(), why(operator))).collect(),
            precision,
            activation_checkpointing: arguments.activation_checkpointing,
            not_captured: None,
            unfused: handover::is_unfused(settings.as_ref(), device.kind),
            warmup: mode == CompilerMode::Compiled
                && settings.as_ref().is_some_and(|settings| warms_up(settings.warmup, device.kind)),
            verify: checks::of(settings.as_ref()),
            debug: asked.is_some_and(|compiler| compiler.debug),
            parts: Vec::new(),
        };
        let not_captured = NotCaptured::yet(device.kind, arguments.compiler_mode() == CompilerMode::Native);
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

/// The compiler's settings in `arguments`, with the mode that was chosen where they leave that to a
/// trial; none in a run without.
fn compiler(arguments: &TrainingArguments, decision: Option<&Decision>) -> Option<TrainingCompilerConfig> {
    let compiler = arguments.compiler.clone()?;
    let enabled = decision.map_or(compiler.enabled, |decision| decision.mode);
    Some(TrainingCompilerConfig { enabled, ..compiler })
}

impl ModelFacts {
    /// The plan of this model, of which the parameters that are in `groups` learn; all, where these
    /// are not known.
    pub fn plan(&self, groups: Option<&ParameterGroups>) -> ModelPlan {
        let count = |learns: &dyn Fn(&_) -> bool| {
            self.parameters.iter().filter(|parameter| learns(parameter)).map(|it| it.num_elements()).sum()
        };
        ModelPlan {
            kind: self.kind.clone(),
            num_parameters: count(&|_| true),
            num_trainable: count(&|parameter| groups.is_none_or(|groups| groups.learns(parameter))),
            can_be_captured: self.can_be_captured,
        }
    }
}

fn data_plan(trainer: &TrainingArguments, facts: &DataFacts, batch: &BatchPlan) -> DataPlan {
    let validation = facts.validation.map_or(0, |split| split.max_len);
    let longest = facts.max_length.unwrap_or(facts.train.max_len.max(validation));
    let padding = Padding::new(trainer.padding_rule(), longest, &facts.batches);
    let padding_cost = padding.cost(&facts.batches, batch.micro);
    DataPlan {
        train_examples: facts.train.examples,
        train_tokens: facts.tokens,
        validation_examples: facts.validation.map(|split| split.examples),
        sampler: trainer.sampler,
        seed: trainer.data_seed(),
        drop_last: trainer.dataloader_drop_last,
        padding_strategy: trainer.padding,
        padding,
        padding_cost,
    }
}

/// Steps between log rows where the arguments state none: at least 20 rows a run, at most 500 steps
/// apart.
pub fn automatic_logging(total_steps: usize) -> usize {
    (total_steps / 20).clamp(1, 500)
}

/// The optimizer of `trainer`, or the one that the program brings along.
fn optimizer(trainer: &TrainingArguments, model: &ModelFacts) -> Result<OptimizerConfig> {
    let Some(own) = &model.optimizer else { return Ok(OptimizerConfig::from(trainer)) };
    let default = TrainingArguments::default();
    let given = [
        ("optim", trainer.optim != default.optim),
        ("optim_args", trainer.optim_args != default.optim_args),
        ("adam_beta1", trainer.adam_beta1 != default.adam_beta1),
        ("adam_beta2", trainer.adam_beta2 != default.adam_beta2),
        ("adam_epsilon", trainer.adam_epsilon != default.adam_epsilon),
    ];
    no_effect(&given, &format!("the program brings the optimizer `{}` along", own.name()))?;
    Ok(OptimizerConfig::Own(own.clone()))
}

/// The schedule of `trainer` with a peak of `rate`, or the one that the program brings along.
fn schedule(trainer: &TrainingArguments, model: &ModelFacts, rate: f64, step_size: StepSize) -> Result<Schedule> {
    let Some(own) = &model.schedule else {
        let warmup_steps = if trainer.fast_dev_run { 0 } else { trainer.warmup_steps.resolve(step_size) };
        let (kind, kwargs) = (trainer.lr_scheduler_type, &trainer.lr_scheduler_kwargs);
        let schedule = Schedule::new(kind, rate, warmup_steps, step_size.total_steps, kwargs);
        return schedule.map_err(|error| error.at("[trainer]"));
    };
    let default = TrainingArguments::default();
    let given = [
        ("lr_scheduler_type", trainer.lr_scheduler_type != default.lr_scheduler_type),
        ("lr_scheduler_kwargs", trainer.lr_scheduler_kwargs != default.lr_scheduler_kwargs),
        ("warmup_steps", trainer.warmup_steps != default.warmup_steps),
    ];
    no_effect(&given, &format!("the program brings the schedule `{}` along", own.name()))?;
    Schedule::own(own.clone(), rate, step_size.total_steps)
}

/// Refuses the first argument of `[trainer]` that is `given` and has no effect, for a reason.
fn no_effect(given: &[(&str, bool)], because: &str) -> Result<()> {
    match given.iter().find(|(_, given)| *given) {
        Some((key, _)) => {
            Err(Error::config(format!("trainer.{key}: has no effect, since {because}")).help("remove it"))
        }
        None => Ok(()),
    }
}

/// When the run evaluates, logs and saves.
fn work(trainer: &TrainingArguments, step_size: StepSize) -> Result<(EvaluationPlan, LoggingPlan, SavingPlan)> {
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
        profile_steps: trainer.profile_steps,
    };
    Ok((evaluation, logging, SavingPlan::of(trainer, save_steps)))
}

/// `warm-up 1000 samples / 16 a step = 63`, for what is neither steps nor automatic.
fn interval_notes(trainer: &TrainingArguments, step: StepSize) -> Vec<String> {
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
pub(crate) fn check_metric(metric: &str, figures: &[&str], task: &str) -> Result<()> {
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

/// Steps whose time is to be shown are steps of the run.
fn check_profile(trainer: &TrainingArguments, total: usize) -> Result<()> {
    match trainer.profile_steps {
        Some([first, _]) if first > total as u64 => Err(Error::config(format!(
            "trainer.profile_steps: expected steps of the run, which ends after step {total}, got step {first}"
        ))
        .help("name earlier steps, or leave it out")),
        _ => Ok(()),
    }
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
fn step_plan(trainer: &TrainingArguments, batch: &BatchPlan, data: &DataPlan) -> Result<StepPlan> {
    let examples = data.train_examples;
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
