//! Inputs while they are opened: the model that the config names is settled step by step by the
//! tokenizer and the data.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use kiln_core::error::{Error, Result};
use kiln_core::variables::expand_text;
use kiln_data::Dataset;
use kiln_data::hub::{self, Split, Wanted};
use kiln_data::store::OnProgress;
use kiln_data::stream::Shuffle;
use kiln_data::tokenizer::Tokenizer;
use kiln_models::ModelConfig;

use super::model::{model_config, with_vocabulary};
use super::opened::Inputs;
use super::splits::{Splits, Use};
use crate::config::{RunConfig, Sampler, Validation};
use crate::session::TransformerTask;
use crate::task::model_task;

/// Opens the inputs of one form of data; each module of a form makes [`Inputs`] of it.
pub(super) struct Opening<'a> {
    pub config: &'a RunConfig,
    pub used: Use,
    /// Is told how far tokenising has come, and may interrupt it.
    pub progress: &'a mut OnProgress<'a>,
    /// The model's configuration; vocabulary, padding and labels are settled on the way.
    pub model: ModelConfig,
    /// The folder of pretrained weights.
    pub model_from: Option<PathBuf>,
    /// Sequences of bytes that are not UTF-8 and are read as U+FFFD, in the data so far.
    pub replaced: u64,
    unknown_model_fields: Vec<String>,
}

impl<'a> Opening<'a> {
    /// The inputs of `config`, of which the model's configuration has been read.
    pub fn new(config: &'a RunConfig, used: Use, progress: &'a mut OnProgress<'a>) -> Result<Self> {
        let (model, model_from, unknown_model_fields) = model_config(config)?;
        Ok(Self { config, used, progress, model, model_from, replaced: 0, unknown_model_fields })
    }

    /// The tokenizer that the config or the model's folder has, if any.
    pub fn optional_tokenizer(&self) -> Result<Option<Arc<Tokenizer>>> {
        optional_tokenizer(self.config, self.model_from.as_ref())
    }

    /// The tokenizer of data that is text and does not train one; the model takes its vocabulary.
    pub fn tokenizer(&mut self) -> Result<Arc<Tokenizer>> {
        let tokenizer = self.optional_tokenizer()?.ok_or_else(|| {
            let format = self.config.data.format;
            Error::config(format!("data.format = \"{format}\" needs a tokenizer, and there is none in model.from"))
                .help("set tokenizer.from")
        })?;
        self.settle_vocabulary(&tokenizer)?;
        Ok(tokenizer)
    }

    /// Fits the model's vocabulary and the tokenizer's.
    pub fn settle_vocabulary(&mut self, tokenizer: &Tokenizer) -> Result<()> {
        self.model = with_vocabulary(self.model.clone(), tokenizer, self.config, self.model_from.is_some())?;
        Ok(())
    }

    /// The tokens that rows or windows are cut to: `data.max_length`, else `default` or the model's
    /// positions.
    pub fn max_length(&self, default: usize) -> Result<usize> {
        let positions = self.model.max_positions();
        let length = self.config.data.max_length.unwrap_or(positions.min(default));
        if length > positions {
            return Err(Error::config(format!("data.max_length = {length}: the model has {positions} positions"))
                .help(format!("set data.max_length to at most {positions}")));
        }
        Ok(length)
    }

    /// The inputs with `data`, which have no length of their own yet.
    pub fn inputs(self, tokenizer: Option<Arc<Tokenizer>>, pad_id: u32, data: Splits<Arc<dyn Dataset>>) -> Inputs {
        let task = TransformerTask::new(model_task(self.config.data.task), self.model);
        Inputs {
            task: TransformerTask { pad_id, tokenizer, model_from: self.model_from, ..task },
            unknown_model_fields: self.unknown_model_fields,
            block_size: None,
            max_length: None,
            split_at_block: false,
            replaced: self.replaced,
            data,
        }
    }
}

/// The order in which data are streamed.
pub(super) fn shuffle(config: &RunConfig) -> Shuffle {
    let buffer = match config.trainer.sampler {
        Sampler::Sequential => 1,
        Sampler::Random | Sampler::GroupByLength => config.data.shuffle_buffer_size,
    };
    Shuffle { buffer, seed: config.trainer.data_seed() }
}

/// `config` with the files of the dataset that `data.dataset_name` names, as far as it is `used`.
///
/// # Errors
/// A dataset that is not found, has several configurations of which none is named, or lacks a split
/// that is needed.
pub(super) fn with_dataset(config: &RunConfig, used: Use) -> Result<Cow<'_, RunConfig>> {
    let Some(name) = &config.data.dataset_name else { return Ok(Cow::Borrowed(config)) };
    let mut config = config.clone();
    let data = &config.data;
    let files = |split: Split| -> Result<Vec<String>> {
        let files = hub::dataset_split(name, data.dataset_config_name.as_deref(), split, data.format.endings());
        let files = files.map_err(|error| error.at("data.dataset_name"))?;
        let text = |file: PathBuf| {
            file.into_os_string().into_string().map_err(|file| {
                Error::config(format!("data.dataset_name: {}: expected a path in UTF-8", file.to_string_lossy()))
                    .help("set HF_HOME to such a folder")
            })
        };
        files.into_iter().map(text).collect()
    };
    let validation = match &data.validation {
        Some(given) => Some(given.clone()),
        None => Some(files(Split::Validation)?).filter(|files| !files.is_empty()).map(Validation::Files),
    };
    if validation.is_none() && (config.trainer.do_eval || config.trainer.eval_on_start) {
        return Err(Error::config(format!("trainer.do_eval: {name} has no split `validation`"))
            .help("set data.validation to files, or to a share such as \"2%\""));
    }
    let needed = used == Use::Training || !matches!(validation, Some(Validation::Files(_)));
    let train = if needed { files(Split::Train)? } else { Vec::new() };
    if needed && train.is_empty() {
        return Err(
            Error::data(format!("data.dataset_name: {name} has no split `train`")).help("name files in data.train")
        );
    }
    (config.data.train, config.data.validation) = (train, validation);
    Ok(Cow::Owned(config))
}

/// The tokenizer that the config names, else the one in the model's folder; none where one is to be
/// learned.
pub(super) fn optional_tokenizer(config: &RunConfig, model_from: Option<&PathBuf>) -> Result<Option<Arc<Tokenizer>>> {
    if let Some(from) = &config.tokenizer.from {
        let from = expand_text(from).map_err(|error| error.at("tokenizer.from"))?;
        let path = hub::resolve(&from, &Wanted::TOKENIZER)?;
        return Ok(Some(Arc::new(Tokenizer::load(&path)?)));
    }
    if config.tokenizer.train_vocab_size.is_some() {
        return Ok(None);
    }
    match model_from {
        Some(folder) if Tokenizer::is_in(folder) => Ok(Some(Arc::new(Tokenizer::load(folder)?))),
        _ => Ok(None),
    }
}
