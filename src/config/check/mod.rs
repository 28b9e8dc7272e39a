//! The rules that a config must keep whatever the model and the data turn out to be: ranges of
//! values, and settings that exclude or need each other. The plan checks the settings whose
//! validity depends on files, the model or the device.

mod data;

use kiln_core::complaint::{Checked, Complaint, MAX_BATCH, at_least, at_most, not_empty, two_ways};
use kiln_core::error::Result;
use kiln_models::LoraConfig;
use kiln_models::lora::MAX_RANK;
use toml::Value;

use super::{DataFormat, EvalStrategy, GenerationSection, LoraSection, RunConfig, Task, TrainingArguments};

impl RunConfig {
    /// Checks the values and how they go together, as far as the config alone can tell.
    ///
    /// # Errors
    /// A config error that names the key, what is expected and what was given.
    pub fn validate(&self) -> Result<()> {
        Ok(check(self)?)
    }
}

/// The first rule that `config` breaks.
pub(super) fn check(config: &RunConfig) -> Checked {
    finite(config)?;
    config.trainer.check()?;
    of_the_data(config)?;
    model(config)?;
    config.lora.as_ref().map_or(Ok(()), |section| lora(section, config))?;
    data::check(&config.data)?;
    data::streaming(config)?;
    tokenizer(config)?;
    evaluation(config)?;
    config.generation.as_ref().map_or(Ok(()), |section| generation(section, config))
}

/// Settings of the data and of samples have one place in a config.
fn of_the_data(config: &RunConfig) -> Checked {
    let default = TrainingArguments::default();
    for (key, data, given) in [
        ("sampler", "data.sampler", config.trainer.sampler != default.sampler),
        ("padding", "data.padding", config.trainer.padding != default.padding),
        ("samples", "[generation]", config.trainer.samples != default.samples),
        ("test", "data.test", config.trainer.test.is_some()),
    ] {
        if given {
            let message = "is set elsewhere in a config";
            return Err(Complaint::new(&format!("trainer.{key}"), message).help(format!("set {data}")));
        }
    }
    Ok(())
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
    let value = match Value::try_from(config) {
        Ok(value) => value,
        Err(error) => {
            // The rule of the key says it better.
            config.trainer.check()?;
            return Err(Complaint::new("config", error.to_string()));
        }
    };
    walk("", &value)
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
        Some(_) if data.task.is_language_model() => {
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
