//! The rules that a config must keep whatever the model and the data turn out to be: settings that
//! exclude or need each other. The range of a value stands in the entry of its key. The plan checks
//! the settings whose validity depends on files, the model or the device.

mod data;

use std::ops::Deref;

use kiln_core::complaint::{Checked, Complaint, at_most, two_ways};
use kiln_core::error::Result;
use kiln_models::LoraConfig;
use kiln_train::arguments::CheckedArguments;
use toml::Value;

use super::origin::full_key;
use super::{DataFormat, EvalStrategy, GenerationSection, LoraSection, RunConfig, Samples, Task};

/// A config that keeps the rules. A session opens no other, and [`RunConfig::checked`] is the only
/// way to it; files are read and configs are built through it.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckedConfig {
    config: RunConfig,
    arguments: CheckedArguments,
}

impl Deref for CheckedConfig {
    type Target = RunConfig;

    fn deref(&self) -> &RunConfig {
        &self.config
    }
}

impl From<CheckedConfig> for RunConfig {
    fn from(checked: CheckedConfig) -> Self {
        checked.config
    }
}

impl CheckedConfig {
    /// This config with `change` made to it, which is checked again.
    ///
    /// # Errors
    /// The error of [`RunConfig::checked`].
    pub fn with(self, change: impl FnOnce(&mut RunConfig)) -> Result<Self> {
        let mut config = self.config;
        change(&mut config);
        Ok(config.checked()?)
    }

    /// The arguments of the Trainer ([`RunConfig::arguments`]).
    pub(crate) fn checked_arguments(&self) -> &CheckedArguments {
        &self.arguments
    }
}

impl RunConfig {
    /// This config, if its values are in their ranges and go together, as far as the config alone
    /// can tell.
    ///
    /// # Errors
    /// The first rule that it breaks, with the key, what is expected and what was given.
    pub fn checked(self) -> std::result::Result<CheckedConfig, Complaint> {
        let arguments = check(&self)?;
        Ok(CheckedConfig { config: self, arguments })
    }
}

/// The arguments of the Trainer, or the first rule that `config` breaks.
fn check(config: &RunConfig) -> std::result::Result<CheckedArguments, Complaint> {
    let arguments = config.arguments().checked()?;
    if config.trainer.samples != Samples::Never {
        return Err(Complaint::new("trainer.samples", "is set elsewhere in a config").help("set [generation]"));
    }
    model(config)?;
    config.lora.as_ref().map_or(Ok(()), |section| lora(section, config))?;
    data::check(&config.data)?;
    data::streaming(config)?;
    tokenizer(config)?;
    evaluation(config)?;
    config.generation.as_ref().map_or(Ok(()), |section| generation(section, config))?;
    Ok(arguments)
}

/// Refuses NaN and infinities in the value of `key`.
pub(super) fn finite(key: &str, value: &Value) -> Checked {
    match value {
        Value::Float(number) if !number.is_finite() => {
            Err(Complaint::new(key, format!("expected a finite number, got {number}")))
        }
        Value::Array(values) => {
            values.iter().enumerate().try_for_each(|(index, value)| finite(&format!("{key}[{index}]"), value))
        }
        Value::Table(table) => table.iter().try_for_each(|(name, value)| finite(&full_key(key, name), value)),
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
    let of_pretrained = model.first_given(&["ignore_mismatched_sizes", "resize_token_embeddings"]);
    if let Some(key) = of_pretrained.filter(|_| model.from.is_none()) {
        return Err(Complaint::new(key, "is about pretrained weights, and model.from names none")
            .help("remove it: a new model takes its size from the tokenizer and the labels"));
    }
    if model.pad_to_multiple_of.is_some() && !model.resize_token_embeddings {
        return Err(Complaint::new("model.pad_to_multiple_of", "has no effect without model.resize_token_embeddings")
            .help("set model.resize_token_embeddings = true, or remove it"));
    }
    model.check_ranges()?;
    model.fields.iter().try_for_each(|(name, value)| finite(&full_key("model", name), value))
}

fn lora(section: &LoraSection, config: &RunConfig) -> Checked {
    if config.model.from.is_none() {
        let message =
            "adapters stand on pretrained weights, and model.from names none: random ones would stay as they are";
        return Err(Complaint::new("lora", message).help("set model.from, or remove [lora]"));
    }
    section.check_ranges()?;
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
    tokenizer.check_ranges()?;
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
    match &config.trainer.test {
        Some(_) if !wanted => {
            Err(Complaint::new("data.test", "its rows are predicted with trainer.do_predict = true alone")
                .help("set trainer.do_predict = true, or leave it out"))
        }
        None if wanted => Err(Complaint::new("trainer.do_predict", "needs rows to predict, and there are none")
            .help("set data.test to a file")),
        Some(_) if data.task.is_language_model() => {
            let message = format!("rows of the task {} are not predicted at the end of a training", data.task);
            let help = match data.task {
                Task::Clm => "leave it out; `kiln predict` scores texts, and [generation] writes a sample at the end",
                _ => "leave it out; `kiln predict` fills masks in texts",
            };
            Err(Complaint::new("trainer.do_predict", message).help(help))
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
    section.check_ranges()?;
    at_most("generation.min_new_tokens", section.min_new_tokens, section.max_new_tokens)?;
    if section.stop_strings.iter().any(String::is_empty) {
        return Err(Complaint::new("generation.stop_strings", "expected texts, got an empty string"));
    }
    Ok(())
}
