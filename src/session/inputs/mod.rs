//! Opens everything a run reads, before anything is planned: model configuration, tokenizer, training and validation data.
//! The result is facts about these inputs; [`plan`](crate::plan) derives the plan of the run from them and the config.

mod squad;
mod table;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use kiln_models::config::Labels;
use kiln_models::{ModelConfig, ModelType};
use serde_json::{Map, Value};

use crate::base::error::{Error, Result};
use crate::base::host::resident_mib;
use crate::cache;
use crate::config::Task;
use crate::config::{DEFAULT_TEXT_COLUMN, DataFormat, ModelKind, RunConfig, Validation};
use crate::data::blocks::Blocks;
use crate::data::corpus::Corpus;
use crate::data::labels::LabelNames;
use crate::data::learned::learned_bpe;
use crate::data::masking::{Masked, Masking};
use crate::data::store::Progress;
use crate::data::subset::Subset;
use crate::data::table::{Columns, Table};
use crate::data::tokenized::{Limits, TokenizedData};
use crate::data::tokenizer::{NamedFile, Tokenizer};
use crate::data::tokens::TokenStore;
use crate::data::{Dataset, paths};
use crate::engine::device::DeviceFacts;
use crate::hub::{self, Wanted};
use crate::plan::{BatchPlan, DataFacts, Facts, Found, FoundBatch, ModelFacts, TokenizerFacts};
use crate::session::model_folder::kept_files;
use crate::session::model_folder::read_config;

use squad::SquadInputs;
use table::TableData;

/// The inputs of a run, opened.
#[derive(Clone)]
pub struct Inputs {
    /// The model, with vocabulary and labels settled.
    pub model_config: ModelConfig,
    /// The local folder of the pretrained model, if any.
    pub model_from: Option<PathBuf>,
    /// Files of the pretrained model's folder that stand beside the weights and are saved as they came.
    pub kept_files: Vec<NamedFile>,
    /// Fields of a pretrained model's `config.json` that Kiln does not know.
    pub unknown_model_fields: Vec<String>,
    /// The tokenizer, where there is one.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// Block size of packed text; none for data that is tokenised already.
    pub block_size: Option<usize>,
    /// Tokens that rows of a table are cut to; none for other data.
    pub max_length: Option<usize>,
    /// The id that padding uses.
    pub pad_id: u32,
    /// Training data.
    pub train: Arc<dyn Dataset>,
    /// Tokens of the training data.
    pub train_tokens: u64,
    /// Validation data, if any.
    pub validation: Option<Arc<dyn Dataset>>,
}

/// Bytes that this process has resident.
pub(super) fn resident() -> u64 {
    (resident_mib().unwrap_or(0.0) * f64::from(1 << 20)) as u64
}

impl Inputs {
    /// These inputs without the examples that `config` does not want, and what a plan has to know of them, of the `device`
    /// and of this process. `batch` is a micro-batch that was found.
    ///
    /// # Errors
    /// A batch that contradicts itself, a model that cannot be built, a prompt that cannot be encoded.
    pub(crate) fn facts(
        self,
        config: &RunConfig,
        device: DeviceFacts,
        batch: Option<FoundBatch>,
    ) -> Result<(Self, Facts)> {
        let of_batch = BatchPlan::of(config, batch.as_ref())?;
        let inputs = self.limited(config, of_batch.global);
        let model = ModelFacts::built_in(&inputs.model_config, config.data.task)?;
        let drawn = of_batch.drawn(config);
        let data = DataFacts::new(&*inputs.train, inputs.train_tokens, inputs.validation.as_deref(), drawn);
        let tokenizer = inputs.tokenizer.as_ref().map(|tokenizer| {
            let prompt = config.generation.as_ref().map(|generation| tokenizer.encode(&generation.prompt));
            Ok::<_, Error>(TokenizerFacts {
                vocab_size: tokenizer.vocab_size(),
                eot_id: tokenizer.eot_id(),
                prompt_tokens: prompt.transpose()?.map(|ids| ids.len()),
            })
        });
        let facts = Facts {
            model: ModelFacts {
                from: inputs.model_from.clone(),
                unknown_fields: inputs.unknown_model_fields.clone(),
                ..model
            },
            data: DataFacts {
                block_size: inputs.block_size,
                max_length: inputs.max_length,
                pad_id: inputs.pad_id,
                ..data
            },
            tokenizer: tokenizer.transpose()?,
            device,
            batch,
            decision: None,
            resident: resident(),
        };
        Ok((inputs, facts))
    }

    /// Without the examples that `config` does not want; a step has so many.
    fn limited(mut self, config: &RunConfig, step: usize) -> Self {
        let trainer = &config.trainer;
        let only = |given: Option<usize>, one: bool, size: usize| if one { Some(size) } else { given };
        let one_step = trainer.overfit_one_batch || trainer.fast_dev_run;
        let train = only(config.data.max_train_samples, one_step, step);
        let eval = only(config.data.max_eval_samples, trainer.fast_dev_run, trainer.per_device_eval_batch_size);
        if let Some(wanted) = train.filter(|wanted| *wanted < self.train.len()) {
            let view = first(&self.train, wanted);
            self.train_tokens = (0..view.len()).map(|index| view.len_of(index) as u64).sum();
            self.train = view;
        }
        if let (Some(wanted), Some(validation)) = (eval, &self.validation) {
            self.validation = Some(first(validation, wanted));
        }
        self
    }

    /// Opens what `config` names. `progress` is told how far tokenising has come and may interrupt it.
    ///
    /// # Errors
    /// Whatever is missing, unreadable or does not fit together.
    pub fn open(config: &RunConfig, progress: &mut dyn FnMut(Progress) -> ControlFlow<()>) -> Result<Self> {
        let inputs = Self::found(config, progress)?;
        let kept = inputs.model_from.as_deref().map(|folder| kept_files(folder, inputs.tokenizer.is_none()));
        Ok(Self { kept_files: kept.transpose()?.unwrap_or_default(), ..inputs })
    }

    fn found(config: &RunConfig, progress: &mut dyn FnMut(Progress) -> ControlFlow<()>) -> Result<Self> {
        let (mut model_config, model_from, unknown_model_fields) = model_config(config)?;
        match config.data.format {
            DataFormat::Tokenized => {
                tokenized(config, &mut model_config, progress).and_then(|(train, train_tokens, validation)| {
                    let tokenizer = optional_tokenizer(config, &model_from)?;
                    let pad_id = model_config.pad_token_id().unwrap_or(0);
                    Ok(Self {
                        model_config,
                        kept_files: Vec::new(),
                        model_from,
                        unknown_model_fields,
                        tokenizer,
                        block_size: None,
                        max_length: None,
                        pad_id,
                        train,
                        train_tokens,
                        validation,
                    })
                })
            }
            DataFormat::Squad => Self::open_squad(config, model_config, model_from, unknown_model_fields, progress),
            DataFormat::Csv | DataFormat::Tsv | DataFormat::Jsonl | DataFormat::Parquet
                if !matches!(config.data.task, Task::Clm | Task::Mlm) =>
            {
                Self::open_table(config, model_config, model_from, unknown_model_fields, progress)
            }
            _ => Self::open_text(config, model_config, model_from, unknown_model_fields, config.trainer.seed, progress),
        }
    }

    fn open_squad(
        config: &RunConfig,
        model_config: ModelConfig,
        model_from: Option<PathBuf>,
        unknown_model_fields: Vec<String>,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Self> {
        let tokenizer = required_tokenizer(config, &model_from)?;
        let model_config = with_vocabulary(model_config, &tokenizer, config, model_from.is_some())?;
        let squad = SquadInputs::open(config, &model_config, &tokenizer, progress)?;
        Ok(Self {
            pad_id: model_config.pad_token_id().unwrap_or(0),
            model_config,
            kept_files: Vec::new(),
            model_from,
            unknown_model_fields,
            tokenizer: Some(tokenizer),
            block_size: None,
            max_length: Some(squad.max_length),
            train_tokens: (0..squad.train.len()).map(|index| squad.train.len_of(index) as u64).sum(),
            train: Arc::new(squad.train),
            validation: squad.validation.map(|data| Arc::new(data) as Arc<dyn Dataset>),
        })
    }

    fn open_table(
        config: &RunConfig,
        model_config: ModelConfig,
        model_from: Option<PathBuf>,
        unknown_model_fields: Vec<String>,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Self> {
        let tokenizer = required_tokenizer(config, &model_from)?;
        let mut model_config = with_vocabulary(model_config, &tokenizer, config, model_from.is_some())?;
        let tables = TableData::open(config, &mut model_config, &tokenizer, progress)?;
        let pad_id = model_config.pad_token_id().or_else(|| tokenizer.pad_id()).or_else(|| tokenizer.eot_id());
        if let (ModelType::Gpt2, None, Some(pad)) = (model_config.model_type(), model_config.pad_token_id(), pad_id) {
            // `GPT2ForSequenceClassification` finds the last token of a row by it.
            model_config = with_pad_id(model_config, pad)?;
        }
        Ok(Self {
            pad_id: pad_id.unwrap_or(0),
            model_config,
            kept_files: Vec::new(),
            model_from,
            unknown_model_fields,
            tokenizer: Some(tokenizer),
            block_size: None,
            max_length: Some(tables.max_length),
            train_tokens: (0..tables.train.len()).map(|index| tables.train.len_of(index) as u64).sum(),
            train: tables.train,
            validation: tables.validation,
        })
    }

    fn open_text(
        config: &RunConfig,
        model_config: ModelConfig,
        model_from: Option<PathBuf>,
        unknown_model_fields: Vec<String>,
        seed: u64,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Self> {
        let open = |key: &str, patterns: &[String]| {
            let corpus = match config.data.format.is_table() {
                true => Table::open(patterns, config.data.format, text_column(config)).and_then(Corpus::of_table),
                false => Corpus::open(patterns, config.data.documents),
            };
            corpus.map(|corpus| corpus.with_ends(config.data.marks_ends())).map_err(|error| error.at(key))
        };
        let corpus = open("data.train", &config.data.train)?;
        let (train, validation) = match &config.data.validation {
            None => (corpus, None),
            Some(Validation::Files(patterns)) => (corpus, Some(open("data.validation", patterns)?)),
            Some(Validation::Share(share)) => {
                let (train, validation) = corpus.split(*share, seed)?;
                (train, Some(validation))
            }
        };
        let tokenizer = match optional_tokenizer(config, &model_from)? {
            Some(tokenizer) => tokenizer,
            None => match config.tokenizer.train_vocab_size {
                Some(size) => Arc::new(trained_tokenizer(&train, size, seed)?),
                None => {
                    let format = config.data.format;
                    return Err(Error::config(format!(
                        "data.format = \"{format}\" needs a tokenizer, and the config names none"
                    ))
                    .help(
                        "set tokenizer.from to a tokenizer, or tokenizer.train_vocab_size = 4096 to learn one from the \
                         training text",
                    ));
                }
            },
        };
        let model_config = with_vocabulary(model_config, &tokenizer, config, model_from.is_some())?;
        let positions = model_config.max_positions();
        let block_size = config.data.block_size.unwrap_or(positions.min(1024));
        if block_size > positions {
            return Err(Error::config(format!(
                "data.block_size = {block_size}: the model has {positions} positions, so a block can have at most as many"
            ))
            .help(format!("set data.block_size = {positions}, or raise the model's n_positions")));
        }
        let folder = cache::folder_of(cache::TOKENS)?;
        let open = |corpus: &Corpus, progress: &mut dyn FnMut(Progress) -> ControlFlow<()>| {
            Blocks::new(TokenStore::build_or_open(&folder, corpus, &tokenizer, progress)?, block_size)
        };
        let train = open(&train, progress).map_err(|error| error.at("data.train"))?;
        let validation = validation.map(|corpus| open(&corpus, progress)).transpose();
        let validation = validation.map_err(|error| error.at("data.validation"))?;
        let masking = match config.data.task {
            Task::Mlm => {
                let (probability, whole_words) = (config.data.mlm_probability, config.data.whole_word_mask);
                Some(Arc::new(Masking::new(&tokenizer, probability, whole_words)?))
            }
            _ => None,
        };
        let masked = |blocks: Blocks| -> Arc<dyn Dataset> {
            match &masking {
                Some(masking) => Arc::new(Masked::new(Arc::new(blocks), masking.clone(), seed)),
                None => Arc::new(blocks),
            }
        };
        Ok(Self {
            pad_id: model_config.pad_token_id().unwrap_or_else(|| tokenizer.eot_id().unwrap_or(0)),
            model_config,
            kept_files: Vec::new(),
            model_from,
            unknown_model_fields,
            tokenizer: Some(tokenizer),
            block_size: Some(block_size),
            max_length: None,
            train_tokens: (train.len() * block_size) as u64,
            train: masked(train),
            validation: validation.map(masked),
        })
    }
}

/// The first `wanted` examples; of question answering the first so many questions with all their windows, since an answer
/// is looked for in all of them.
fn first(data: &Arc<dyn Dataset>, wanted: usize) -> Arc<dyn Dataset> {
    match data.squad() {
        Some(squad) => Arc::new(squad.first(wanted)),
        None => Arc::new(Subset::first(data.clone(), wanted)),
    }
}

/// Finds the inputs of `config` that exist, without opening the data.
pub(crate) fn found(config: &RunConfig) -> Found {
    let mut found = Found::default();
    let mut lacks = |key: &str, error: Error| found.lacks.push(error.at(key).message().to_owned());
    let model = model_config(config).map_err(|error| lacks("model", error)).ok();
    let from = model.as_ref().and_then(|(_, from, _)| from.clone());
    let tokenizer = optional_tokenizer(config, &from).map_err(|error| lacks("tokenizer", error)).ok().flatten();
    let resolve = |patterns: &[String]| paths::resolve(patterns).map(drop);
    if let Err(error) = resolve(&config.data.train) {
        lacks("data.train", error);
    }
    if let Some(Validation::Files(patterns)) = &config.data.validation
        && let Err(error) = resolve(patterns)
    {
        lacks("data.validation", error);
    }
    let Some((mut model, from, unknown_fields)) = model else { return found };
    let task = config.data.task;
    let has_vocabulary = from.is_some() || config.model.fields.contains_key("vocab_size");
    match &tokenizer {
        Some(tokenizer) => match with_vocabulary(model.clone(), tokenizer, config, from.is_some()) {
            Ok(settled) => model = settled,
            Err(_) => found.unsettled = Some("the tokenizer"),
        },
        None if !has_vocabulary => found.unsettled = Some("the tokenizer"),
        None => {}
    }
    let names = config.data.label_names.as_ref().and_then(|names| LabelNames::new(names.clone()).ok());
    match (task, names) {
        (Task::Regression, _) => *model.labels_mut() = Labels::numbered(1),
        (Task::SequenceClassification, Some(names)) => *model.labels_mut() = names.to_model(),
        (Task::SequenceClassification, None)
            if model.labels().id2label.is_none() && model.labels().num_labels.is_none() =>
        {
            found.unsettled = Some("the labels of the data");
        }
        _ => {}
    }
    let facts = ModelFacts::built_in(&model, task).ok();
    found.model = facts.map(|facts| ModelFacts { from, unknown_fields, ..facts });
    found
}

/// The columns of a table whose rows are documents.
fn text_column(config: &RunConfig) -> Columns {
    let text = config.data.text_column.clone().unwrap_or_else(|| DEFAULT_TEXT_COLUMN.into());
    Columns { text, text_pair: None, label: None }
}

/// The model's configuration: a folder's or the Hub's `config.json`, a preset, or the family's defaults, with the explicit
/// fields on top.
fn model_config(config: &RunConfig) -> Result<(ModelConfig, Option<PathBuf>, Vec<String>)> {
    let section = &config.model;
    let fields = fields(&section.fields)?;
    let named = |error: kiln_models::Error| Error::from(error).at("[model]");
    if let Some(from) = &section.from {
        let folder = hub::resolve(from, &Wanted::MODEL)?;
        let (found, unknown) = read_config(&folder)?;
        if let Some(kind) = section.kind.filter(|kind| model_type(*kind) != found.model_type()) {
            let (found, path) = (found.model_type(), folder.join("config.json"));
            return Err(Error::config(format!("model.kind = \"{kind}\", but {} is a {found} model", path.display()))
                .help(format!("set model.kind = \"{found}\" or leave it out")));
        }
        let merged = found.with_fields(&fields).map_err(named)?;
        return Ok((merged, Some(folder), unknown));
    }
    let kind = match section.kind {
        Some(kind) => model_type(kind),
        None => {
            return Err(Error::config(
                "model.kind: expected \"gpt2\", \"bert\", \"roberta\" or \"distilbert\", since there is no model.from",
            ));
        }
    };
    let base = match &section.size {
        Some(size) => ModelConfig::preset(kind, size).map_err(named)?,
        None => ModelConfig::from_fields(kind, &Map::new()).map_err(named)?,
    };
    Ok((base.with_fields(&fields).map_err(named)?, None, Vec::new()))
}

fn model_type(kind: ModelKind) -> ModelType {
    match kind {
        ModelKind::Gpt2 => ModelType::Gpt2,
        ModelKind::Bert => ModelType::Bert,
        ModelKind::Roberta => ModelType::Roberta,
        ModelKind::DistilBert => ModelType::DistilBert,
    }
}

/// TOML values as JSON; the model's fields are described once, by their Hugging Face form.
fn fields(table: &toml::Table) -> Result<Map<String, Value>> {
    match serde_json::to_value(table) {
        Ok(Value::Object(map)) => Ok(map),
        _ => Err(Error::config("[model]: expected plain values, as in Hugging Face's config.json")),
    }
}

fn optional_tokenizer(config: &RunConfig, model_from: &Option<PathBuf>) -> Result<Option<Arc<Tokenizer>>> {
    if let Some(from) = &config.tokenizer.from {
        let path = hub::resolve(from, &Wanted::TOKENIZER)?;
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

/// The tokens that rows or windows are cut to: `data.max_length`, else `default` or the model's positions.
fn max_length(config: &RunConfig, model: &ModelConfig, default: usize) -> Result<usize> {
    let positions = model.max_positions();
    let length = config.data.max_length.unwrap_or(positions.min(default));
    if length > positions {
        return Err(Error::config(format!("data.max_length = {length}: the model has {positions} positions"))
            .help(format!("set data.max_length to at most {positions}")));
    }
    Ok(length)
}

/// The tokenizer of data that is labelled text: one that exists.
fn required_tokenizer(config: &RunConfig, model_from: &Option<PathBuf>) -> Result<Arc<Tokenizer>> {
    optional_tokenizer(config, model_from)?.ok_or_else(|| {
        let format = config.data.format;
        Error::config(format!("data.format = \"{format}\" needs a tokenizer, and there is none in model.from"))
            .help("set tokenizer.from")
    })
}

fn trained_tokenizer(corpus: &Corpus, size: usize, seed: u64) -> Result<Tokenizer> {
    let tokenizer = learned_bpe(&cache::folder_of(cache::TOKENIZERS)?, corpus, size, seed)?;
    if tokenizer.vocab_size() < size {
        return Err(Error::data(format!(
            "tokenizer.train_vocab_size = {size}: the training text yields only {} tokens",
            tokenizer.vocab_size()
        ))
        .help(format!("set tokenizer.train_vocab_size = {} or train on more text", tokenizer.vocab_size())));
    }
    Ok(tokenizer)
}

/// The model's vocabulary and the tokenizer's must fit: a new model takes the tokenizer's, an explicit or pretrained one
/// must be at least as large.
fn with_vocabulary(
    mut model: ModelConfig,
    tokenizer: &Tokenizer,
    config: &RunConfig,
    pretrained: bool,
) -> Result<ModelConfig> {
    let size = tokenizer.vocab_size();
    let stated = pretrained || config.model.fields.contains_key("vocab_size");
    if !stated {
        let field = Map::from_iter([("vocab_size".to_string(), Value::from(size))]);
        model = model.with_fields(&field).map_err(|error| Error::from(error).at("the tokenizer's vocabulary"))?;
        if let Some(id) = tokenizer.eot_id() {
            model.set_inert("bos_token_id", id.into());
            model.set_inert("eos_token_id", id.into());
        }
    }
    if size > model.vocab_size() {
        let last = size as u32 - 1;
        return Err(Error::config(format!(
            "the tokenizer has {size} tokens, but the model's vocabulary has {}; every token needs a row, and {:?} has the \
             id {last}",
            model.vocab_size(),
            tokenizer.token(last).unwrap_or_default()
        ))
        .help(format!("set model.vocab_size = {size}, or use the tokenizer that belongs to the model")));
    }
    // A new model pads as its tokenizer does. RoBERTa counts positions from its padding, so there the model decides.
    let decided = pretrained || config.model.fields.contains_key("pad_token_id");
    if let (false, Some(pad)) = (decided || model.model_type() == ModelType::Roberta, tokenizer.pad_id()) {
        model = with_pad_id(model, pad)?;
    }
    Ok(model)
}

fn with_pad_id(model: ModelConfig, pad: u32) -> Result<ModelConfig> {
    let field = Map::from_iter([("pad_token_id".to_string(), Value::from(pad))]);
    model.with_fields(&field).map_err(|error| Error::from(error).at("the tokenizer's padding"))
}

type Rows = (Arc<dyn Dataset>, u64, Option<Arc<dyn Dataset>>);

fn tokenized(
    config: &RunConfig,
    model: &mut ModelConfig,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Rows> {
    let task = config.data.task;
    let folder = cache::folder_of(cache::TOKENIZED)?;
    let mut open = |key: &str, patterns: &[String]| {
        let files = paths::resolve(patterns).map_err(|error| error.at(key))?;
        TokenizedData::open(&folder, &files, task, progress).map_err(|error| error.at(key))
    };
    if config.tokenizer.train_vocab_size.is_some() {
        return Err(Error::config("tokenizer.train_vocab_size with data.format = \"tokenized\": the data has no text")
            .help("leave it out; give model.vocab_size"));
    }
    let all = open("data.train", &config.data.train)?;
    let (train, validation) = match &config.data.validation {
        None => (all, None),
        Some(Validation::Files(patterns)) => (all, Some(open("data.validation", patterns)?)),
        Some(Validation::Share(share)) => {
            let (train, validation) = all.split(*share, config.trainer.seed)?;
            (train, Some(validation))
        }
    };
    settle_labels(task, model, config, &train)?;
    let limits = Limits::of(model);
    let both = [("data.train", Some(&train)), ("data.validation", validation.as_ref())];
    for (key, data) in both.into_iter().filter_map(|(key, data)| Some((key, data?))) {
        data.validate(&limits).map_err(|error| error.at(key))?;
    }
    let tokens = train.num_tokens();
    Ok((Arc::new(train), tokens, validation.map(|data| Arc::new(data) as Arc<dyn Dataset>)))
}

/// A classification head can have as many labels as the vocabularies of language models have tokens, and not many more.
const MAX_STATED_CLASSES: usize = 1_000_000;

/// A classification head has as many labels as the config or the pretrained model states, else as the data shows.
/// Regression has one.
fn settle_labels(task: Task, model: &mut ModelConfig, config: &RunConfig, train: &TokenizedData) -> Result<()> {
    let stated = model.labels().id2label.is_some() || model.labels().num_labels.is_some();
    match task {
        Task::Regression => {
            if stated && model.labels().num_labels() != 1 && config.model.from.is_none() {
                return Err(Error::config(format!(
                    "data.task = \"regression\" predicts one number, but the model has {} labels",
                    model.labels().num_labels()
                ))
                .help("set model.num_labels = 1 or leave it out"));
            }
            *model.labels_mut() = Labels { problem_type: Some("regression".into()), ..Labels::numbered(1) };
        }
        Task::SequenceClassification if !stated => {
            let count = train.num_classes().map_err(|error| error.at("data.train"))?;
            *model.labels_mut() = Labels::numbered(count.max(2));
        }
        Task::SequenceClassification if model.labels().id2label.is_none() => {
            let count = model.labels().num_labels();
            // Each label gets a name in memory, and a row of the head.
            if count > MAX_STATED_CLASSES {
                return Err(Error::config(format!(
                    "model.num_labels: expected at most {MAX_STATED_CLASSES}, got {count}"
                )));
            }
            *model.labels_mut() = Labels::numbered(count);
        }
        _ => {}
    }
    Ok(())
}
