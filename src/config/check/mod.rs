//! The rules that a config must keep whatever the model and the data turn out to be: ranges of
//! values, and settings that exclude or need each other. The plan checks the settings whose
//! validity depends on files, the model or the device.

mod data;

use kiln_models::LoraConfig;
use toml::Value;

use super::document::Complaint;
use super::{
    BatchScaling, BatchScope, ClassWeights, CompilerMode, DataFormat, DataSection, DdpBackend, DistributedSection,
    EvalStrategy, GenerationSection, Interval, LoraSection, LrScaling, ModelSection, OnExisting, RunConfig, RunSection,
    SaveStrategy, SchedulerType, TokenizerSection, TrainBatchSize, TrainerSection,
};
use crate::config::Task;

type Checked = Result<(), Complaint>;

/// The first rule that `config` breaks.
pub(super) fn check(config: &RunConfig) -> Checked {
    of_the_run(config)?;
    model(config)?;
    config.lora.as_ref().map_or(Ok(()), |section| lora(section, config))?;
    data::check(&config.data)?;
    data::streaming(config)?;
    tokenizer(config)?;
    of_the_training(config)?;
    evaluation(config)?;
    saving(&config.trainer)?;
    config.generation.as_ref().map_or(Ok(()), |section| generation(section, config))
}

/// The first rule that `config` breaks where a program brings model, data and loss along.
pub(super) fn check_own(config: &RunConfig) -> Checked {
    of_the_run(config)?;
    let data = DataSection { sampler: config.data.sampler, ..DataSection::default() };
    let given = [
        ("model", config.model != ModelSection::default()),
        ("data", config.data != data),
        ("tokenizer", config.tokenizer != TokenizerSection::default()),
        ("generation", config.generation.is_some()),
        ("lora", config.lora.is_some()),
        ("trainer.do_predict", config.trainer.do_predict),
        ("trainer.do_train", !config.trainer.do_train),
    ];
    if let Some((key, _)) = given.into_iter().find(|(_, given)| *given) {
        let message = "has no effect on a run whose model, data and loss the program brings along";
        return Err(Complaint::new(key, message).help("remove it"));
    }
    if config.trainer.per_device_train_batch_size == TrainBatchSize::Auto {
        let message = "\"auto\" is for models that Kiln knows";
        return Err(Complaint::new("trainer.per_device_train_batch_size", message).help("set a number"));
    }
    of_the_training(config)?;
    saving(&config.trainer)
}

fn of_the_run(config: &RunConfig) -> Checked {
    tokens(config)?;
    finite(config)?;
    if config.run.output_dir.as_os_str().is_empty() {
        return Err(Complaint::new("run.output_dir", "required: the folder that the run writes to"));
    }
    run(&config.run)
}

fn of_the_training(config: &RunConfig) -> Checked {
    trainer(&config.trainer)?;
    batch(config)?;
    learning_rate(config)?;
    let DistributedSection { optimizer_sharding, overlap_communication, ddp_backend } = config.distributed;
    if optimizer_sharding && overlap_communication {
        let message =
            "has no effect with distributed.optimizer_sharding = true, which sums the gradients of all blocks at once";
        return Err(Complaint::new("distributed.overlap_communication", message).help("set one of them"));
    }
    if ddp_backend == Some(DdpBackend::Nccl) && (optimizer_sharding || overlap_communication) {
        let message = "\"nccl\" sums all gradients at once and on every device, so that neither distributed.optimizer_sharding nor \
                       distributed.overlap_communication can be true";
        return Err(
            Complaint::new("distributed.ddp_backend", message).help("set it to \"mpi\", or the other key to false")
        );
    }
    Ok(())
}

/// TOML's whole numbers are signed: more could not be written to plan.toml.
fn tokens(config: &RunConfig) -> Checked {
    match config.trainer.max_tokens.filter(|tokens| i64::try_from(*tokens).is_err()) {
        Some(tokens) => {
            Err(Complaint::new("trainer.max_tokens", format!("expected at most {}, got {tokens}", i64::MAX)))
        }
        None => Ok(()),
    }
}

/// Refuses NaN and infinities wherever they stand.
fn finite(config: &RunConfig) -> Checked {
    fn walk(key: &str, value: &Value) -> Checked {
        match value {
            Value::Float(number) if !number.is_finite() => {
                Err(Complaint::new(key, format!("expected a finite number, got {number}")))
            }
            Value::Array(values) => {
                values.iter().enumerate().try_for_each(|(index, value)| walk(&format!("{key}[{index}]"), value))
            }
            Value::Table(table) => table.iter().try_for_each(|(name, value)| {
                walk(&if key.is_empty() { name.clone() } else { format!("{key}.{name}") }, value)
            }),
            _ => Ok(()),
        }
    }
    let value = Value::try_from(config).map_err(|error| Complaint::new("config", error.to_string()))?;
    walk("", &value)
}

fn run(run: &RunSection) -> Checked {
    not_empty("run.name", run.name.as_deref())?;
    if run.name.iter().any(|name| name.chars().any(char::is_control)) {
        return Err(Complaint::new("run.name", "expected one line of text without control characters"));
    }
    match run.resume_from_checkpoint {
        Some(_) if run.on_existing != OnExisting::Resume => {
            let message = format!("has no effect with run.on_existing = \"{}\"", run.on_existing);
            Err(Complaint::new("run.resume_from_checkpoint", message).help("set run.on_existing = \"resume\""))
        }
        _ => Ok(()),
    }
}

fn model(config: &RunConfig) -> Checked {
    let model = &config.model;
    if model.kind.is_none() && model.from.is_none() {
        return Err(Complaint::new(
            "model",
            "expected `kind` (a model family, such as gpt2 or bert) or `from` (a pretrained folder or hub id), got neither",
        ));
    }
    if model.from.is_some() && model.size.is_some() {
        return Err(two_ways(
            "model.size",
            "model.from",
            "the folder's config.json gives the size; explicit fields override it",
        ));
    }
    let of_pretrained = [
        ("model.ignore_mismatched_sizes", model.ignore_mismatched_sizes),
        ("model.resize_token_embeddings", model.resize_token_embeddings),
    ];
    if let Some((key, _)) = of_pretrained.into_iter().find(|(_, asked)| *asked && model.from.is_none()) {
        return Err(Complaint::new(key, "is about pretrained weights, and model.from names none")
            .help("remove it: a new model takes its size from the tokenizer and the labels"));
    }
    if let Some(multiple) = model.pad_to_multiple_of {
        if !model.resize_token_embeddings {
            return Err(Complaint::new(
                "model.pad_to_multiple_of",
                "has no effect without model.resize_token_embeddings",
            )
            .help("set model.resize_token_embeddings = true, or remove it"));
        }
        at_least("model.pad_to_multiple_of", multiple, 1)?;
        at_most("model.pad_to_multiple_of", multiple, MAX_BATCH)?;
    }
    not_empty("model.from", model.from.as_deref())?;
    not_empty("model.size", model.size.as_deref())
}

fn lora(section: &LoraSection, config: &RunConfig) -> Checked {
    if config.model.from.is_none() {
        let message =
            "adapters stand on pretrained weights, and model.from names none: random ones would stay as they are";
        return Err(Complaint::new("lora", message).help("set model.from, or remove [lora]"));
    }
    at_least("lora.r", section.r, 1)?;
    at_most("lora.r", section.r, MAX_RANK)?;
    if section.lora_alpha <= 0.0 {
        let message = format!("expected a number above 0, got {}", section.lora_alpha);
        return Err(Complaint::new("lora.lora_alpha", message));
    }
    if !(0.0..1.0).contains(&section.lora_dropout) {
        let message = format!("expected a probability from 0 to below 1, got {}", section.lora_dropout);
        return Err(Complaint::new("lora.lora_dropout", message));
    }
    if section.use_dora {
        return Err(Complaint::new("lora.use_dora", "Kiln has no weight decomposition (DoRA)").help("leave it out"));
    }
    for (key, names) in
        [("lora.target_modules", &section.target_modules), ("lora.modules_to_save", &section.modules_to_save)]
    {
        names.iter().try_for_each(|name| not_empty(key, Some(name)))?;
    }
    match section.task_type.as_deref() {
        Some(given) if Some(given) != LoraConfig::task_type_of(config.data.task.head()) => {
            let message = format!("{given:?} is not the task {} of data.task", config.data.task);
            Err(Complaint::new("lora.task_type", message).help("leave it out"))
        }
        _ => Ok(()),
    }
}

/// A byte-level BPE starts from the 256 bytes, so that it can write any text.
const BYTE_ALPHABET: usize = 256;

/// No vocabulary that is learned is larger: published ones have up to 256,000 tokens.
const LARGEST_VOCABULARY: usize = 1 << 24;

fn tokenizer(config: &RunConfig) -> Checked {
    let tokenizer = &config.tokenizer;
    if tokenizer.from.is_some() && tokenizer.train_vocab_size.is_some() {
        return Err(two_ways(
            "tokenizer.train_vocab_size",
            "tokenizer.from",
            "use a tokenizer that exists, or learn one",
        ));
    }
    not_empty("tokenizer.from", tokenizer.from.as_deref())?;
    match tokenizer.train_vocab_size {
        Some(size) if size <= BYTE_ALPHABET => Err(Complaint::new(
            "tokenizer.train_vocab_size",
            format!("expected more than the {BYTE_ALPHABET} bytes that a byte-level BPE starts from, got {size}"),
        )),
        Some(size) if size > LARGEST_VOCABULARY => Err(Complaint::new(
            "tokenizer.train_vocab_size",
            format!("expected at most {LARGEST_VOCABULARY} tokens, got {size}"),
        )),
        Some(_) if config.data.format == DataFormat::Tokenized => Err(Complaint::new(
            "tokenizer.train_vocab_size",
            "there is no text to learn a tokenizer from: data.format is `tokenized`",
        )
        .help("remove it; the vocabulary is the model's vocab_size")),
        Some(_)
            if config.data.format == DataFormat::Squad
                || config.data.format.is_table() && !config.data.task.is_language_model() =>
        {
            Err(Complaint::new(
                "tokenizer.train_vocab_size",
                format!("a tokenizer is learned from `text`, and data.format is `{}`", config.data.format),
            )
            .help("set tokenizer.from"))
        }
        None if config.data.format != DataFormat::Tokenized
            && tokenizer.from.is_none()
            && config.model.from.is_none() =>
        {
            Err(Complaint::new(
                "tokenizer",
                "text needs a tokenizer: expected `from` or (with the format `text`) `train_vocab_size`, got neither",
            ))
        }
        _ => Ok(()),
    }
}

fn trainer(trainer: &TrainerSection) -> Checked {
    let lengths = [
        ("trainer.max_steps", trainer.max_steps.is_some()),
        // As in Hugging Face's Trainer, steps win over epochs.
        ("trainer.num_train_epochs", trainer.num_train_epochs.is_some() && trainer.max_steps.is_none()),
        ("trainer.max_tokens", trainer.max_tokens.is_some()),
    ];
    let mut given = lengths.iter().filter_map(|(key, given)| given.then_some(*key));
    if let (Some(first), Some(second)) = (given.next(), given.next()) {
        let help = "both set the length of the run; -1 takes one back, also by --set (max_minutes may join either)";
        return Err(two_ways(second, first, help));
    }
    if let Some(steps) = trainer.max_steps {
        at_least("trainer.max_steps", steps, 1).map_err(|complaint| {
            complaint.help(
                "-1, or no such key, leaves the length to num_train_epochs; with 0 transformers makes one idle step",
            )
        })?;
        at_most("trainer.max_steps", steps, MAX_STEPS)?;
    }
    if trainer.max_tokens == Some(0) {
        return Err(Complaint::new("trainer.max_tokens", "expected 1 or more, got 0"));
    }
    let positive = |v: f64| v > 0.0;
    let not_negative = |v: f64| v >= 0.0;
    let decay_rate = |v: f64| (0.0..1.0).contains(&v);
    for (key, value, expected, ok) in [
        (
            "trainer.num_train_epochs",
            trainer.num_train_epochs.unwrap_or(1.0),
            "above 0",
            &positive as &dyn Fn(f64) -> bool,
        ),
        ("trainer.max_minutes", trainer.max_minutes.unwrap_or(1.0), "above 0", &positive),
        ("trainer.learning_rate", trainer.learning_rate, "above 0", &positive),
        ("trainer.weight_decay", trainer.weight_decay, "of 0 or more", &not_negative),
        ("trainer.adam_beta1", trainer.adam_beta1, "from 0 to below 1", &decay_rate),
        ("trainer.adam_beta2", trainer.adam_beta2, "from 0 to below 1", &decay_rate),
        ("trainer.adam_epsilon", trainer.adam_epsilon, "above 0", &positive),
        ("trainer.label_smoothing_factor", trainer.label_smoothing_factor, "from 0 to below 1", &|v: f64| {
            (0.0..1.0).contains(&v)
        }),
        (
            "trainer.layer_wise_lr_decay",
            trainer.layer_wise_lr_decay.unwrap_or(1.0),
            "above 0 and at most 1",
            &|v: f64| v > 0.0 && v <= 1.0,
        ),
        ("trainer.max_grad_norm", trainer.max_grad_norm, "of 0 or more (0 means no clipping)", &not_negative),
        (
            "trainer.skip_update_lossz",
            trainer.skip_update_lossz.unwrap_or(0.0),
            "of 0 or more (0 applies all steps)",
            &not_negative,
        ),
        (
            "trainer.skip_update_gradz",
            trainer.skip_update_gradz.unwrap_or(0.0),
            "of 0 or more (0 applies all steps)",
            &not_negative,
        ),
        ("trainer.eval_delay", trainer.eval_delay, "of 0 or more", &not_negative),
    ] {
        if !ok(value) {
            return Err(Complaint::new(key, format!("expected a number {expected}, got {value}")));
        }
    }
    for (key, value) in
        [("trainer.num_train_epochs", trainer.num_train_epochs), ("trainer.max_minutes", trainer.max_minutes)]
    {
        if let Some(value) = value.filter(|value| *value > MAX_STEPS as f64) {
            return Err(Complaint::new(key, format!("expected at most {MAX_STEPS}, got {value}")));
        }
    }
    for (key, value) in [
        ("trainer.per_device_train_batch_size", trainer.per_device_train_batch_size.size().unwrap_or(1)),
        ("trainer.per_device_eval_batch_size", trainer.per_device_eval_batch_size),
        ("trainer.gradient_accumulation_steps", trainer.gradient_accumulation_steps),
    ] {
        at_least(key, value, 1)?;
        at_most(key, value, MAX_BATCH)?;
    }
    for (key, value, least) in [
        ("trainer.warmup_steps", Some(trainer.warmup_steps), 0),
        ("trainer.logging_steps", trainer.logging_steps, 1),
        ("trainer.eval_steps", trainer.eval_steps, 1),
        ("trainer.save_steps", Some(trainer.save_steps), 1),
    ] {
        match value {
            Some(Interval::Steps(steps)) => at_least(key, steps, least)?,
            Some(interval @ (Interval::Samples(0) | Interval::Tokens(0))) if least > 0 => {
                return Err(Complaint::new(key, format!("expected more than {interval}")));
            }
            Some(ratio) if !ratio.is_valid() => {
                return Err(Complaint::new(key, format!("expected a ratio between 0 and 1, got {ratio}")));
            }
            _ => {}
        }
    }
    if let (Some(total), Interval::Steps(warmup)) = (trainer.max_steps, trainer.warmup_steps)
        && warmup > total
    {
        return Err(Complaint::new(
            "trainer.warmup_steps",
            format!("the warm-up of {warmup} steps is longer than the run of {total} steps (trainer.max_steps)"),
        )
        .help("lower warmup_steps, or give it as a ratio below 1"));
    }
    if trainer.lr_scheduler_type == SchedulerType::Constant && trainer.warmup_steps != Interval::Steps(0) {
        return Err(Complaint::new("trainer.warmup_steps", "the schedule `constant` has no warm-up")
            .help("use lr_scheduler_type = \"constant_with_warmup\""));
    }
    if let Some(weight) = trainer.class_weights.iter().flat_map(ClassWeights::numbers).find(|weight| *weight <= 0.0) {
        return Err(Complaint::new("trainer.class_weights", format!("expected numbers above 0, got {weight}")));
    }
    trainer.freeze.iter().try_for_each(|pattern| not_empty("trainer.freeze", Some(pattern)))?;
    // A default may stand, since plan.toml writes them all.
    let default = TrainerSection::default();
    for (key, value, default) in [
        ("adam_beta1", trainer.adam_beta1, default.adam_beta1),
        ("adam_beta2", trainer.adam_beta2, default.adam_beta2),
        ("adam_epsilon", trainer.adam_epsilon, default.adam_epsilon),
    ] {
        if value != default && !trainer.optim.adam_settings().contains(&key) {
            let message = format!("the optimizer `{}` does not use it, got {value}", trainer.optim);
            return Err(Complaint::new(&format!("trainer.{key}"), message).help("remove it"));
        }
    }
    trainer.optim_args.check(trainer.optim).map_err(|error| Complaint::of("trainer.optim_args", error))?;
    trainer
        .lr_scheduler_kwargs
        .check(trainer.lr_scheduler_type, trainer.learning_rate)
        .map_err(|error| Complaint::of("trainer.lr_scheduler_kwargs", error))
}

/// `[batch]`, and how it goes with the micro-batch.
fn batch(config: &RunConfig) -> Checked {
    let (batch, size) = (&config.batch, config.trainer.per_device_train_batch_size);
    let stated = batch.global_batch_size;
    at_least("batch.global_batch_size", stated.unwrap_or(1), 1)?;
    at_most("batch.global_batch_size", stated.unwrap_or(1), MAX_BATCH)?;
    if size == TrainBatchSize::Auto && config.compiler_mode() == CompilerMode::Auto {
        return Err(Complaint::new(
            "trainer.per_device_train_batch_size",
            "with compiler.enabled = \"auto\", it is not known for which mode \"auto\" would be the size",
        )
        .help("set one of the two; `kiln tune-batch FILE --mode both` finds the sizes of both modes"));
    }
    match (batch.scaling, size, stated) {
        (BatchScaling::Grow, _, Some(global)) => Err(Complaint::new(
            "batch.global_batch_size",
            format!("{global} is a batch that stays, and batch.scaling = \"grow\" lets it grow"),
        )
        .help("leave one of the two out")),
        (BatchScaling::Fixed, TrainBatchSize::Auto, None) => Err(Complaint::new(
            "trainer.per_device_train_batch_size",
            "with \"auto\", what an optimizer step sees would depend on the memory of the machine",
        )
        .help("set batch.global_batch_size to the examples of a step, or batch.scaling = \"grow\" to let it follow")),
        (BatchScaling::Fixed, TrainBatchSize::Auto, Some(_)) if config.trainer.gradient_accumulation_steps != 1 => {
            Err(Complaint::new(
                "trainer.gradient_accumulation_steps",
                "it follows from batch.global_batch_size and the size that fits",
            )
            .help("leave it out"))
        }
        _ => Ok(()),
    }
}

/// `[learning_rate]`.
fn learning_rate(config: &RunConfig) -> Checked {
    let section = &config.learning_rate;
    at_least("learning_rate.reference_batch", section.reference_batch.unwrap_or(1), 1)?;
    match (section.scaling, section.reference_batch) {
        (LrScaling::None, Some(_)) => {
            Err(Complaint::new("learning_rate.reference_batch", "has no effect with learning_rate.scaling = \"none\"")
                .help("remove it, or set learning_rate.scaling to \"linear\" or \"sqrt\""))
        }
        (LrScaling::None, None) if section.scope != BatchScope::Global => {
            Err(Complaint::new("learning_rate.scope", "has no effect with learning_rate.scaling = \"none\"")
                .help("remove it, or set learning_rate.scaling to \"linear\" or \"sqrt\""))
        }
        (LrScaling::Linear | LrScaling::Sqrt, None) => Err(Complaint::new(
            "learning_rate.reference_batch",
            format!("required with learning_rate.scaling = \"{}\", and not given", section.scaling),
        )
        .help("set it to the batch that trainer.learning_rate was chosen for, for example 32")),
        _ => Ok(()),
    }
}

fn evaluation(config: &RunConfig) -> Checked {
    let trainer = &config.trainer;
    prediction(config)?;
    // Whether a dataset of the Hub has validation data shows when it is opened.
    if config.data.validation.is_some() || config.data.dataset_name.is_some() {
        return Ok(());
    }
    let help = "set data.validation to files, or to a share such as \"2%\"";
    if !trainer.do_train && !trainer.do_predict {
        let message = "without training there is only evaluation, which needs validation data, and there is none";
        return Err(Complaint::new("trainer.do_train", message).help(help));
    }
    if trainer.do_eval {
        return Err(Complaint::new("trainer.do_eval", "needs validation data, and there is none").help(help));
    }
    if trainer.eval_strategy != EvalStrategy::No {
        let message = format!("`{}` needs validation data, and there is none", trainer.eval_strategy);
        return Err(Complaint::new("trainer.eval_strategy", message).help(help));
    }
    if trainer.eval_on_start {
        return Err(Complaint::new("trainer.eval_on_start", "needs validation data, and there is none").help(help));
    }
    Ok(())
}

/// The settings that `trainer.do_predict` needs.
fn prediction(config: &RunConfig) -> Checked {
    let (data, wanted) = (&config.data, config.trainer.do_predict);
    not_empty("data.test", data.test.as_deref())?;
    match &data.test {
        Some(_) if !wanted => {
            Err(Complaint::new("data.test", "its rows are predicted with trainer.do_predict = true alone")
                .help("set trainer.do_predict = true, or leave it out"))
        }
        None if wanted => Err(Complaint::new("trainer.do_predict", "needs rows to predict, and there are none")
            .help("set data.test to a file")),
        Some(_) if matches!(data.task, Task::Clm | Task::Mlm) => {
            Err(Complaint::new("trainer.do_predict", format!("the task {} has no prediction for a row", data.task))
                .help("leave it out; [generation] writes a sample at the end"))
        }
        Some(_) if !data.format.is_table() && data.format != DataFormat::Squad => {
            Err(Complaint::new("data.test", format!("`{}` rows are not predicted", data.format))
                .help("use `csv`, `tsv`, `jsonl`, `parquet` or `squad`"))
        }
        _ => Ok(()),
    }
}

/// When the best model can be known, and when it is on disk. The rules are those of
/// `TrainingArguments`.
fn saving(trainer: &TrainerSection) -> Checked {
    let limits = [
        ("trainer.save_total_limit", trainer.save_total_limit),
        ("trainer.early_stopping_patience", trainer.early_stopping_patience),
    ];
    for (key, value) in limits {
        at_least(key, value.unwrap_or(1), 1)?;
    }
    if let Some(metric) = &trainer.metric_for_best_model {
        not_empty("trainer.metric_for_best_model", Some(metric))?;
    }
    if trainer.early_stopping_threshold < 0.0 {
        let message = format!("expected a number of 0 or more, got {}", trainer.early_stopping_threshold);
        return Err(Complaint::new("trainer.early_stopping_threshold", message));
    }
    if trainer.early_stopping_threshold > 0.0 && trainer.early_stopping_patience.is_none() {
        return Err(Complaint::new("trainer.early_stopping_threshold", "says nothing without early_stopping_patience")
            .help("set trainer.early_stopping_patience, or remove it"));
    }
    let best = trainer.save_strategy == SaveStrategy::Best;
    let needs = [
        ("trainer.save_strategy", best),
        ("trainer.load_best_model_at_end", trainer.load_best_model_at_end),
        ("trainer.early_stopping_patience", trainer.early_stopping_patience.is_some()),
        ("trainer.metric_for_best_model", trainer.metric_for_best_model.is_some()),
        ("trainer.greater_is_better", trainer.greater_is_better.is_some()),
    ];
    if trainer.eval_strategy == EvalStrategy::No {
        return match needs.into_iter().find(|(_, asked)| *asked) {
            Some((key, _)) => {
                Err(Complaint::new(key, "the best model is found by evaluating, and eval_strategy is `no`")
                    .help("set trainer.eval_strategy = \"steps\" or \"epoch\""))
            }
            None => Ok(()),
        };
    }
    if !trainer.load_best_model_at_end || best {
        return Ok(());
    }
    // The best model must be on disk: every saved step is an evaluated one.
    let (save, eval) = (trainer.save_strategy, trainer.eval_strategy);
    if save.as_str() != eval.as_str() {
        let message = format!("saves by `{save}` and evaluates by `{eval}`; the best model would not be on disk");
        return Err(Complaint::new("trainer.load_best_model_at_end", message)
            .help(format!("set trainer.save_strategy = \"best\" or \"{eval}\"")));
    }
    Ok(())
}

fn generation(section: &GenerationSection, config: &RunConfig) -> Checked {
    if config.data.task != Task::Clm {
        let message = format!("only a causal language model writes text, and data.task is {}", config.data.task);
        return Err(Complaint::new("generation", message).help("remove [generation]"));
    }
    if config.tokenizer.from.is_none() && config.tokenizer.train_vocab_size.is_none() && config.model.from.is_none() {
        return Err(Complaint::new("generation", "writing text needs a tokenizer, and there is none")
            .help("set tokenizer.from"));
    }
    if section.prompt.is_empty() || section.prompt.iter().any(String::is_empty) {
        return Err(Complaint::new("generation.prompt", "required: the text to continue"));
    }
    at_least("generation.max_new_tokens", section.max_new_tokens, 1)?;
    at_most("generation.min_new_tokens", section.min_new_tokens, section.max_new_tokens)?;
    if let Some(every) = section.every {
        at_least("generation.every", every, 1)?;
    }
    if section.repetition_penalty <= 0.0 {
        let message = format!("expected a number above 0, got {}", section.repetition_penalty);
        return Err(Complaint::new("generation.repetition_penalty", message));
    }
    if section.stop_strings.iter().any(String::is_empty) {
        return Err(Complaint::new("generation.stop_strings", "expected texts, got an empty string"));
    }
    if section.temperature < 0.0 {
        let message = format!("expected a number of 0 or more, got {}", section.temperature);
        return Err(Complaint::new("generation.temperature", message));
    }
    if !(section.top_p > 0.0 && section.top_p <= 1.0) {
        let message = format!("expected a number above 0 and at most 1, got {}", section.top_p);
        return Err(Complaint::new("generation.top_p", message));
    }
    Ok(())
}

/// Far above any use, and small enough that steps, samples and bytes can be multiplied in 64 bits.
const MAX_STEPS: usize = 1 << 31;
const MAX_BATCH: usize = 1 << 20;
const MAX_RANK: usize = 1 << 20;

fn at_most(key: &str, value: usize, most: usize) -> Checked {
    if value > most { Err(Complaint::new(key, format!("expected at most {most}, got {value}"))) } else { Ok(()) }
}

fn at_least(key: &str, value: usize, least: usize) -> Checked {
    if value < least { Err(Complaint::new(key, format!("expected {least} or more, got {value}"))) } else { Ok(()) }
}

fn not_empty(key: &str, value: Option<&str>) -> Checked {
    match value {
        Some(text) if text.trim().is_empty() => {
            Err(Complaint::new(key, "expected a name or path, got an empty string"))
        }
        _ => Ok(()),
    }
}

fn two_ways(key: &str, other: &str, help: &str) -> Complaint {
    Complaint::new(key, format!("`{other}` and `{key}` are two ways of stating the same thing"))
        .help(format!("keep one: {help}"))
}
