//! Opens everything a run reads, before anything is planned: model configuration, tokenizer, training and validation data.
//! The result is facts about these inputs; [`plan`](crate::plan) derives the plan of the run from them and the config.

mod instructions;
mod squad;
pub(crate) mod table;

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use kiln_models::config::Labels;
use kiln_models::{BertVariant, ModelConfig, ModelType};
use serde_json::{Map, Value};

use crate::base::error::{Error, Result};
use crate::base::host::resident_mib;
use crate::base::variables::expand_text;
use crate::cache;
use crate::config::Task;
use crate::config::{DEFAULT_TEXT_COLUMN, DataFormat, ModelKind, RunConfig, Sampler, Validation};
use crate::data::blocks::Blocks;
use crate::data::corpus::Corpus;
use crate::data::labels::{LabelNames, label_names, problem_type};
use crate::data::learned::learned_bpe;
use crate::data::masking::{Masked, Masking};
use crate::data::squad::{SquadData, WindowEncoder};
use crate::data::store::Progress;
use crate::data::stream::{self, Shuffle, Streamed};
use crate::data::subset::Subset;
use crate::data::table::{Columns, Table};
use crate::data::tokenized::{Limits, TokenizedData};
use crate::data::tokenizer::{RowEncoder, Tokenizer};
use crate::data::tokens::TokenStore;
use crate::data::{Dataset, paths};
use crate::engine::device::DeviceFacts;
use crate::hub::{self, Split, Wanted};
use crate::plan::{BatchPlan, DataFacts, Facts, Found, FoundBatch, ModelFacts, TokenizerFacts};
use crate::session::BuiltIn;
use crate::session::adapter::{Adapters, Source};
use crate::session::model_folder::kept_files;
use crate::task::scores::{ENTITY_FIGURES, are_tags};

/// Examples of Kiln's tasks.
type Data = Arc<dyn Dataset>;

/// The inputs of a run, opened.
#[derive(Clone)]
pub struct Inputs {
    /// The model with its task, vocabulary and labels settled, its tokenizer, and the files that are kept.
    pub task: BuiltIn,
    /// Fields of a pretrained model's `config.json` that Kiln does not know.
    pub unknown_model_fields: Vec<String>,
    /// Block size of packed text; none for data that is tokenised already.
    pub block_size: Option<usize>,
    /// Tokens that rows of a table are cut to; none for other data.
    pub max_length: Option<usize>,
    /// Training and validation data.
    pub data: Splits<Arc<dyn Dataset>>,
}

/// The purpose for which inputs are opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// A run: on its training data, with evaluations on its validation data.
    Training,
    /// An evaluation alone. Training data is opened only where it has to be: validation data is a share of it, or there is
    /// no other.
    Evaluation,
}

/// Training and validation data, in one of the forms that they have on their way from files to examples. At least one of the
/// two is there.
#[derive(Clone)]
pub struct Splits<D> {
    /// Training data; none for an evaluation that needs none.
    pub train: Option<D>,
    /// Validation data, if any.
    pub validation: Option<D>,
}

impl<D> Splits<D> {
    /// The files that `config` names, each list of them opened by `open`. A share of the training data is still in it:
    /// [`split`](Self::split) splits it off.
    fn open(config: &RunConfig, used: Use, mut open: impl FnMut(&[String]) -> Result<D>) -> Result<Self> {
        let data = &config.data;
        let mut open = |key: &str, patterns: &[String]| open(patterns).map_err(|error| error.at(key));
        Ok(match (&data.validation, used) {
            (Some(Validation::Files(patterns)), Use::Evaluation) => {
                Self { train: None, validation: Some(open("data.validation", patterns)?) }
            }
            (Some(Validation::Files(patterns)), Use::Training) => {
                let train = open("data.train", &data.train)?;
                Self { train: Some(train), validation: Some(open("data.validation", patterns)?) }
            }
            (None | Some(Validation::Share(_)), _) => {
                Self { train: Some(open("data.train", &data.train)?), validation: None }
            }
        })
    }

    /// The training data `train`, which are read as they are needed, and the validation files that `config` names, opened by
    /// `open`.
    fn streamed(config: &RunConfig, train: D, mut open: impl FnMut(&[String]) -> Result<D>) -> Result<Self> {
        let validation = match &config.data.validation {
            Some(Validation::Files(patterns)) => Some(open(patterns).map_err(|error| error.at("data.validation"))?),
            Some(Validation::Share(_)) | None => None,
        };
        Ok(Self { train: Some(train), validation })
    }

    /// With the share of the training data that `config` asks for as validation data, split off by `split`; any other as it
    /// is.
    fn split(self, config: &RunConfig, used: Use, split: impl FnOnce(D, f64) -> Result<(D, D)>) -> Result<Self> {
        match (&config.data.validation, self.train) {
            (Some(Validation::Share(share)), Some(all)) => {
                let (train, validation) = split(all, *share)?;
                Ok(Self { train: (used == Use::Training).then_some(train), validation: Some(validation) })
            }
            (_, train) => Ok(Self { train, ..self }),
        }
    }

    /// With what `change` makes of each; its errors name the key of the config.
    fn map<E>(self, mut change: impl FnMut(D) -> Result<E>) -> Result<Splits<E>> {
        let mut change = |key: &str, data: Option<D>| data.map(&mut change).transpose().map_err(|error| error.at(key));
        Ok(Splits { train: change("data.train", self.train)?, validation: change("data.validation", self.validation)? })
    }

    /// The data that says what an input does not state, such as the labels: the training data, or else the validation data,
    /// with its key.
    fn first(&self) -> (&'static str, &D) {
        let train = self.train.as_ref().map(|data| ("data.train", data));
        let first = train.or(self.validation.as_ref().map(|data| ("data.validation", data)));
        first.expect("`open` opens one of the two, and no step drops both")
    }
}

/// The order in which data are streamed.
fn shuffle(config: &RunConfig) -> Shuffle {
    let buffer = match config.data.sampler {
        Sampler::Sequential => 1,
        Sampler::Random | Sampler::GroupByLength => config.data.shuffle_buffer_size,
    };
    Shuffle { buffer, seed: config.trainer.data_seed() }
}

/// Bytes that this process has resident.
pub(super) fn resident() -> u64 {
    (resident_mib().unwrap_or(0.0) * f64::from(1 << 20)) as u64
}

impl Inputs {
    /// The training data of these inputs without the examples that `config` does not want, the validation data likewise, and
    /// what a plan has to know of all inputs, of the `device` and of this process. `batch` is a micro-batch that was found.
    ///
    /// # Errors
    /// A batch that contradicts itself, a model that cannot be built, a prompt that cannot be encoded, inputs that were opened
    /// for an evaluation alone.
    pub(crate) fn facts(
        &self,
        config: &RunConfig,
        device: DeviceFacts,
        batch: Option<FoundBatch>,
    ) -> Result<(Data, Option<Data>, Facts)> {
        let (inputs, of_batch) = (self, BatchPlan::of(config, batch.as_ref())?);
        let train = inputs.train(config, of_batch.global)?;
        let validation = inputs.validation(config);
        let drawn = of_batch.drawn(config);
        let data = DataFacts::new(&*train, validation.as_deref(), drawn);
        let tokenizer = inputs.task.tokenizer.as_ref().map(|tokenizer| {
            let prompts = config.generation.iter().flat_map(|generation| &generation.prompt);
            let tokens = prompts.map(|prompt| tokenizer.encode(prompt).map(|ids| ids.len())).collect::<Result<_>>()?;
            Ok::<_, Error>(TokenizerFacts {
                vocab_size: tokenizer.vocab_size(),
                eot_id: tokenizer.eot_id(),
                prompt_tokens: tokens,
            })
        });
        let facts = Facts {
            model: ModelFacts { unknown_fields: inputs.unknown_model_fields.clone(), ..inputs.task.facts()? },
            data: DataFacts {
                block_size: inputs.block_size,
                max_length: inputs.max_length,
                pad_id: inputs.task.pad_id,
                sequences: match config.data.task {
                    Task::MultipleChoice => train.get(0, 0)?.sequences().len().max(1),
                    _ => 1,
                },
                ..data
            },
            tokenizer: tokenizer.transpose()?,
            device,
            batch,
            decision: None,
            resident: resident(),
        };
        Ok((train, validation, facts))
    }

    /// The training data that `config` wants; a step has `step` examples.
    fn train(&self, config: &RunConfig, step: usize) -> Result<Arc<dyn Dataset>> {
        let trainer = &config.trainer;
        let train = self.data.train.clone();
        let train = train
            .ok_or_else(|| Error::data("data.train: it was not opened, since the inputs are for an evaluation"))?;
        if let Some(streamed) = Streamed::of(&*train) {
            streamed.set_len(trainer.max_steps.unwrap_or(1).saturating_mul(step));
        }
        let one_step = trainer.overfit_one_batch || trainer.fast_dev_run;
        let wanted = if one_step { Some(step) } else { config.data.max_train_samples };
        Ok(match wanted.filter(|wanted| *wanted < train.len()) {
            Some(wanted) => first(&train, wanted),
            None => train,
        })
    }

    /// The validation data that `config` wants, if any.
    pub(super) fn validation(&self, config: &RunConfig) -> Option<Arc<dyn Dataset>> {
        let (trainer, validation) = (&config.trainer, self.data.validation.clone()?);
        let one_batch = trainer.fast_dev_run.then_some(trainer.per_device_eval_batch_size);
        Some(match one_batch.or(config.data.max_eval_samples) {
            Some(wanted) => first(&validation, wanted),
            None => validation,
        })
    }

    /// Opens what `config` names, as far as it is `used`. `progress` is told how far tokenising has come and may interrupt
    /// it.
    ///
    /// # Errors
    /// Inputs that are missing, cannot be read or do not fit together.
    pub fn open(config: &RunConfig, used: Use, progress: &mut dyn FnMut(Progress) -> ControlFlow<()>) -> Result<Self> {
        let mut inputs = Self::found(config, used, progress)?;
        let task = &mut inputs.task;
        if let Some(folder) = &task.model_from {
            task.kept_files = kept_files(folder, task.tokenizer.is_none())?;
        }
        if config.data.task == Task::TokenClassification {
            check_tags(config, inputs.task.model_config.labels())?;
        }
        let adapters = Adapters::of(config, &inputs.task.model_config)?;
        Ok(Self { task: inputs.task.with_adapters(adapters), ..inputs })
    }

    fn found(config: &RunConfig, used: Use, progress: &mut dyn FnMut(Progress) -> ControlFlow<()>) -> Result<Self> {
        let config = &*with_dataset(config, used)?;
        let (mut model_config, model_from, unknown_model_fields) = model_config(config)?;
        match config.data.format {
            DataFormat::Tokenized => {
                let data = tokenized(config, used, &mut model_config, progress)?;
                let tokenizer = optional_tokenizer(config, &model_from)?;
                let pad_id = model_config.pad_token_id().unwrap_or(0);
                let task = BuiltIn::new(config.data.task, model_config);
                Ok(Self {
                    task: BuiltIn { pad_id, tokenizer, model_from, ..task },
                    unknown_model_fields,
                    block_size: None,
                    max_length: None,
                    data,
                })
            }
            DataFormat::Squad => {
                Self::open_squad(config, used, model_config, model_from, unknown_model_fields, progress)
            }
            DataFormat::Csv | DataFormat::Tsv | DataFormat::Jsonl | DataFormat::Parquet
                if !matches!(config.data.task, Task::Clm | Task::Mlm) =>
            {
                Self::open_table(config, used, model_config, model_from, unknown_model_fields, progress)
            }
            _ if config.data.has_instructions() => {
                Self::open_instructions(config, used, model_config, model_from, unknown_model_fields, progress)
            }
            _ => Self::open_text(config, used, model_config, model_from, unknown_model_fields, progress),
        }
    }

    fn open_squad(
        config: &RunConfig,
        used: Use,
        model_config: ModelConfig,
        model_from: Option<PathBuf>,
        unknown_model_fields: Vec<String>,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Self> {
        let tokenizer = required_tokenizer(config, &model_from)?;
        let model_config = with_vocabulary(model_config, &tokenizer, config, model_from.is_some())?;
        let max_length = max_length(config, &model_config, WindowEncoder::DEFAULT_MAX_LENGTH)?;
        let data = squad::open(config, used, &model_config, &tokenizer, max_length, progress)?;
        let pad_id = model_config.pad_token_id().unwrap_or(0);
        let task = BuiltIn::new(config.data.task, model_config);
        Ok(Self {
            task: BuiltIn { pad_id, tokenizer: Some(tokenizer), model_from, ..task },
            unknown_model_fields,
            block_size: None,
            max_length: Some(max_length),
            data,
        })
    }

    fn open_instructions(
        config: &RunConfig,
        used: Use,
        model_config: ModelConfig,
        model_from: Option<PathBuf>,
        unknown_model_fields: Vec<String>,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Self> {
        let tokenizer = required_tokenizer(config, &model_from)?;
        let model_config = with_vocabulary(model_config, &tokenizer, config, model_from.is_some())?;
        let max_length = max_length(config, &model_config, instructions::DEFAULT_MAX_LENGTH)?;
        let (data, template) = instructions::open(config, used, &tokenizer, max_length, progress)?;
        let pad_id = model_config.pad_token_id().or_else(|| tokenizer.pad_id()).or_else(|| tokenizer.eot_id());
        let task = BuiltIn::new(config.data.task, model_config);
        Ok(Self {
            task: BuiltIn {
                pad_id: pad_id.unwrap_or(0),
                tokenizer: Some(tokenizer),
                model_from,
                chat_template: template,
                ..task
            },
            unknown_model_fields,
            block_size: None,
            max_length: Some(max_length),
            data,
        })
    }

    fn open_table(
        config: &RunConfig,
        used: Use,
        model_config: ModelConfig,
        model_from: Option<PathBuf>,
        unknown_model_fields: Vec<String>,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Self> {
        let tokenizer = required_tokenizer(config, &model_from)?;
        let mut model_config = with_vocabulary(model_config, &tokenizer, config, model_from.is_some())?;
        let max_length = max_length(config, &model_config, RowEncoder::DEFAULT_MAX_LENGTH)?;
        let data = table::open(config, used, &mut model_config, &tokenizer, max_length, progress)?;
        let pad_id = model_config.pad_token_id().or_else(|| tokenizer.pad_id()).or_else(|| tokenizer.eot_id());
        if let (ModelConfig::Gpt2(_), None, Some(pad)) = (&model_config, model_config.pad_token_id(), pad_id) {
            // `GPT2ForSequenceClassification` finds the last token of a row by it.
            model_config = with_pad_id(model_config, pad)?;
        }
        let pad_id = pad_id.unwrap_or(0);
        let task = BuiltIn::new(config.data.task, model_config);
        Ok(Self {
            task: BuiltIn { pad_id, tokenizer: Some(tokenizer), model_from, ..task },
            unknown_model_fields,
            block_size: None,
            max_length: Some(max_length),
            data,
        })
    }

    fn open_text(
        config: &RunConfig,
        used: Use,
        model_config: ModelConfig,
        model_from: Option<PathBuf>,
        unknown_model_fields: Vec<String>,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Self> {
        let seed = config.trainer.seed;
        let corpora = Splits::open(config, used, |patterns| {
            let corpus = match config.data.format.is_table() {
                true => Table::open(patterns, config.data.format, text_column(config)).and_then(Corpus::of_table),
                false => Corpus::open(patterns, config.data.documents),
            };
            corpus.map(|corpus| corpus.with_ends(config.data.marks_ends()))
        })?;
        let corpora = corpora.split(config, used, |corpus, share| corpus.split(share, seed))?;
        let tokenizer = match optional_tokenizer(config, &model_from)? {
            Some(tokenizer) => tokenizer,
            None => match (config.tokenizer.train_vocab_size, &corpora.train) {
                (Some(size), Some(train)) => Arc::new(trained_tokenizer(train, size, seed)?),
                (Some(_), None) => {
                    return Err(Error::data(
                        "the model's folder has no tokenizer, and one that is learned now is another",
                    )
                    .help("set tokenizer.from to the tokenizer that the model was trained with"));
                }
                (None, _) => {
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
        let masking = match config.data.task {
            Task::Mlm => {
                let (probability, whole_words) = (config.data.mlm_probability, config.data.whole_word_mask);
                Some(Arc::new(Masking::new(&tokenizer, probability, whole_words)?))
            }
            _ => None,
        };
        let mut open = |corpus: Corpus| -> Result<Arc<dyn Dataset>> {
            let store = TokenStore::build_or_open(&folder, &corpus, &tokenizer, progress)?;
            Ok(Arc::new(Blocks::new(store, block_size)?))
        };
        let data = match corpora {
            Splits { train: Some(train), validation } if config.data.streaming && used == Use::Training => {
                let validation = validation.map(open).transpose().map_err(|error| error.at("data.validation"))?;
                let blocks = stream::blocks(train, tokenizer.clone(), block_size)?;
                let train = Streamed::new(blocks, shuffle(config)).map_err(|error| error.at("data.train"))?;
                Splits { train: Some(Arc::new(train) as Arc<dyn Dataset>), validation }
            }
            corpora => corpora.map(&mut open)?,
        };
        let masked = |data: Arc<dyn Dataset>| match &masking {
            Some(masking) => Arc::new(Masked::new(data, masking.clone(), seed)) as Arc<dyn Dataset>,
            None => data,
        };
        let pad_id = model_config.pad_token_id().unwrap_or_else(|| tokenizer.eot_id().unwrap_or(0));
        let task = BuiltIn::new(config.data.task, model_config);
        Ok(Self {
            task: BuiltIn { pad_id, tokenizer: Some(tokenizer), model_from, ..task },
            unknown_model_fields,
            block_size: Some(block_size),
            max_length: None,
            data: data.map(|data| Ok(masked(data)))?,
        })
    }
}

/// The first `wanted` examples; of question answering the first so many questions with all their windows, since an answer
/// is looked for in all of them.
fn first(data: &Arc<dyn Dataset>, wanted: usize) -> Arc<dyn Dataset> {
    match SquadData::of(&**data) {
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
    let resolve = |patterns: &[String]| paths::resolve(patterns, config.data.format).map(drop);
    if config.data.dataset_name.is_some() {
        if let Err(error) = with_dataset(config, Use::Training) {
            lacks("data", error);
        }
    } else if let Err(error) = resolve(&config.data.train) {
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
        (task, Some(names)) if task.has_label_names() => *model.labels_mut() = names.to_model(task),
        (task, None)
            if task.has_label_names() && model.labels().id2label.is_none() && model.labels().num_labels.is_none() =>
        {
            found.unsettled = Some("the labels of the data");
        }
        _ => {}
    }
    let Ok(adapters) = Adapters::of(config, &model) else { return found };
    let task = BuiltIn { model_from: from, ..BuiltIn::new(task, model) }.with_adapters(adapters);
    let facts = task.facts().ok();
    found.model = facts.map(|facts| ModelFacts { unknown_fields, ..facts });
    found
}

/// `config` with the files of the dataset that `data.dataset_name` names, as far as it is `used`.
///
/// # Errors
/// A dataset that is not found, has several configurations of which none is named, or lacks a split that is needed.
fn with_dataset(config: &RunConfig, used: Use) -> Result<Cow<'_, RunConfig>> {
    let Some(name) = &config.data.dataset_name else { return Ok(Cow::Borrowed(config)) };
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
    let mut config = config.clone();
    (config.data.train, config.data.validation) = (train, validation);
    Ok(Cow::Owned(config))
}

/// The columns of a table whose rows are documents.
fn text_column(config: &RunConfig) -> Columns {
    let text = config.data.text_column.clone().unwrap_or_else(|| DEFAULT_TEXT_COLUMN.into());
    Columns { text, ..Columns::default() }
}

/// The model's configuration: a folder's or the Hub's `config.json`, a preset, or the family's defaults, with the explicit
/// fields on top.
fn model_config(config: &RunConfig) -> Result<(ModelConfig, Option<PathBuf>, Vec<String>)> {
    let section = &config.model;
    let fields = fields(&section.fields)?;
    let named = |error: kiln_models::Error| Error::from(error).at("[model]");
    if let Some(from) = &section.from {
        let from = expand_text(from).map_err(|error| error.at("model.from"))?;
        let source = Source::resolve(&from)?;
        let (found, unknown) = source.config()?;
        if let Some(kind) = section.kind.filter(|kind| model_type(*kind) != found.model_type()) {
            let (found, path) = (found.model_type(), source.folder().join("config.json"));
            return Err(Error::config(format!("model.kind = \"{kind}\", but {} is a {found} model", path.display()))
                .help(format!("set model.kind = \"{found}\" or leave it out")));
        }
        let merged = found.with_fields(&fields).map_err(named)?;
        return Ok((merged, Some(source.base), unknown));
    }
    let kind = match section.kind {
        Some(kind) => model_type(kind),
        None => {
            return Err(Error::config(format!(
                "model.kind: expected {}, since there is no model.from",
                ModelType::listed()
            )));
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
        ModelKind::GptNeo => ModelType::GptNeo,
        ModelKind::Bert => ModelType::Bert,
        ModelKind::Roberta => ModelType::Roberta,
        ModelKind::Camembert => ModelType::Camembert,
        ModelKind::XlmRoberta => ModelType::XlmRoberta,
        ModelKind::DistilBert => ModelType::DistilBert,
        ModelKind::Electra => ModelType::Electra,
        ModelKind::Albert => ModelType::Albert,
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
    let counts_from_padding = model.model_type().bert_variant().is_some_and(BertVariant::counts_from_padding);
    if let (false, Some(pad)) = (decided || counts_from_padding, tokenizer.pad_id()) {
        model = with_pad_id(model, pad)?;
    }
    Ok(model)
}

fn with_pad_id(model: ModelConfig, pad: u32) -> Result<ModelConfig> {
    let field = Map::from_iter([("pad_token_id".to_string(), Value::from(pad))]);
    model.with_fields(&field).map_err(|error| Error::from(error).at("the tokenizer's padding"))
}

fn tokenized(
    config: &RunConfig,
    used: Use,
    model: &mut ModelConfig,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Splits<Arc<dyn Dataset>>> {
    let task = config.data.task;
    let folder = cache::folder_of(cache::TOKENIZED)?;
    if config.tokenizer.train_vocab_size.is_some() {
        return Err(Error::config("tokenizer.train_vocab_size with data.format = \"tokenized\": the data has no text")
            .help("leave it out; give model.vocab_size"));
    }
    let data = Splits::open(config, used, |patterns| {
        TokenizedData::open(&folder, &paths::resolve(patterns, config.data.format)?, task, progress)
    })?;
    let data = data.split(config, used, |data, share| data.split(share, config.trainer.seed))?;
    settle_labels(task, model, config, data.first())?;
    let limits = Limits::of(model, task);
    data.map(|data| {
        data.validate(&limits)?;
        Ok(Arc::new(data) as Arc<dyn Dataset>)
    })
}

/// Says that there will be no figures of entities where no label is the tag of one.
///
/// # Errors
/// Such a figure decides which evaluation is the best.
fn check_tags(config: &RunConfig, labels: &Labels) -> Result<()> {
    if are_tags(&label_names(labels)?) {
        return Ok(());
    }
    let message = "no label has the form of a tag such as \"B-PER\" or \"I-PER\", so evaluation leaves out precision, recall and F1 \
                   of entities";
    let key = if config.data.format == DataFormat::Tokenized { "model.id2label" } else { "data.label_names" };
    let help = format!("give the names of the labels, in the order of their ids, in {key}");
    let best = config.trainer.best_metric();
    if ENTITY_FIGURES.iter().any(|figure| best.strip_prefix("eval_") == Some(figure)) {
        return Err(Error::config(format!("trainer.metric_for_best_model: {message}")).help(help));
    }
    tracing::warn!("{message}; {help}");
    Ok(())
}

/// A classification head can have as many labels as the vocabularies of language models have tokens, and not many more.
const MAX_STATED_CLASSES: usize = 1_000_000;

/// A classification head has as many labels as the config or the pretrained model states, else as the data shows.
/// Regression has one.
fn settle_labels(
    task: Task,
    model: &mut ModelConfig,
    config: &RunConfig,
    (key, data): (&str, &TokenizedData),
) -> Result<()> {
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
        task if task.has_label_names() && !stated => {
            let count = data.num_classes().map_err(|error| error.at(key))?;
            *model.labels_mut() = Labels::numbered(count.max(2));
        }
        task if task.has_label_names() && model.labels().id2label.is_none() => {
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
    if task == Task::MultiLabelClassification {
        // The class of `transformers` reads its loss from it.
        model.labels_mut().problem_type = problem_type(task).map(str::to_owned);
    }
    Ok(())
}
