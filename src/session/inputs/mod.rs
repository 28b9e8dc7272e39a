//! Opens everything a run reads, before anything is planned: model configuration, tokenizer,
//! training and validation data. The result is facts about these inputs; [`plan`](crate::plan)
//! derives the plan of the run from them and the config.

mod found;
mod instructions;
mod model;
mod opening;
mod splits;
pub(crate) mod squad;
pub(crate) mod table;
mod text;
mod tokenized;

use std::sync::Arc;

pub use found::found;
use kiln_core::error::{Error, Result};
use kiln_core::host::resident_mib;
use kiln_core::model_config::Labels;
use kiln_core::told::tell_once;
use kiln_data::labels::label_names;
use kiln_data::squad::SquadData;
use kiln_data::store::{Doing, OnProgress, Progress};
use kiln_data::stream::{Shuffle, Streamed};
use kiln_data::subset::Subset;
use kiln_data::{Dataset, hub, paths};
use kiln_train::task::{TrainingTask, model_facts};
use opening::{Opening, with_dataset};
pub use splits::Splits;

use crate::config::{DataFormat, RunConfig, Sampler, Task, Validation};
use crate::engine::device::DeviceFacts;
use crate::plan::{
    Architecture, BatchPlan, DataFacts, ExampleFacts, Facts, FoundBatch, LabelledRows, TokenizerFacts, TrainFacts,
};
use crate::session::BuiltIn;
use crate::session::adapter::Adapters;
use crate::session::model_folder::kept_files;
use crate::task::scores::{ENTITY_FIGURES, are_tags};

/// Examples of Kiln's tasks.
type Data = Arc<dyn Dataset>;

/// The inputs of a run, opened.
#[derive(Clone)]
pub struct Inputs {
    /// The model with its task, vocabulary and labels settled, its tokenizer, and the files that
    /// are kept.
    pub task: BuiltIn,
    /// Fields of a pretrained model's `config.json` that Kiln does not know.
    pub unknown_model_fields: Vec<String>,
    /// Block size of packed text; none for data that is tokenised already.
    pub block_size: Option<usize>,
    /// Tokens that rows of a table are cut to; none for other data.
    pub max_length: Option<usize>,
    /// Whether the validation data are the last blocks of the one file of text that there is.
    pub split_at_block: bool,
    /// Sequences of bytes that are not UTF-8 and are read as U+FFFD, in data that are not streamed.
    pub replaced: u64,
    /// Training and validation data.
    pub data: Splits<Arc<dyn Dataset>>,
}

/// The purpose for which inputs are opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// A run: on its training data, with evaluations on its validation data.
    Training,
    /// An evaluation alone. Training data is opened only where it has to be: validation data is a
    /// share of it, or there is no other.
    Evaluation,
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
    /// The training data of these inputs without the examples that `config` does not want, the
    /// validation data likewise, and what a plan has to know of all inputs, of the `device` and of
    /// this process. `batch` is a micro-batch that was found.
    ///
    /// # Errors
    /// A batch that contradicts itself, a model that cannot be built, a prompt that cannot be
    /// encoded, inputs that were opened for an evaluation alone.
    pub(crate) fn facts(
        &self,
        config: &RunConfig,
        device: DeviceFacts,
        batch: Option<FoundBatch>,
    ) -> Result<(Data, Option<Data>, Facts)> {
        let (inputs, arguments) = (self, config.arguments());
        let of_batch = BatchPlan::of(&arguments, batch.as_ref())?;
        let train = inputs.train(config, of_batch.global)?;
        let validation = inputs.validation(config);
        let drawn = of_batch.drawn(&arguments);
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
        let architecture =
            Architecture { unknown_fields: inputs.unknown_model_fields.clone(), ..inputs.task.architecture() };
        let task = config.data.task;
        let labels = inputs.task.model_config.labels();
        let names = if task.has_label_names() { label_names(labels)? } else { Vec::new() };
        let counts = LabelledRows::count(&names, &*train, validation.as_deref())?;
        if arguments.limits().is_empty() {
            counts.warnings(task, config.data.format.is_table()).into_iter().for_each(tell_once);
        }
        let facts = Facts {
            architecture,
            examples: ExampleFacts {
                block_size: inputs.block_size,
                split_at_block: inputs.split_at_block,
                replaced: inputs.replaced,
                pad_id: inputs.task.pad_id,
                version_2_with_negative: SquadData::of(&**validation.as_ref().unwrap_or(&train))
                    .is_some_and(|squad| squad.questions().iter().any(|question| question.may_be_unanswerable)),
                counts,
                sequences: match task {
                    Task::MultipleChoice => train.get(0, 0)?.sequences().len().max(1),
                    _ => 1,
                },
            },
            tokenizer: tokenizer.transpose()?,
            resident: resident(),
            train: TrainFacts {
                model: model_facts(&inputs.task)?,
                data: DataFacts { max_length: inputs.max_length, ..data },
                device,
                batch,
                decision: None,
                loss: inputs.task.loss_options(&arguments)?,
            },
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

    /// Opens what `config` names, as far as it is `used`. `progress` is told what is done, and how
    /// far tokenising has come, and may interrupt that.
    ///
    /// # Errors
    /// Inputs that are missing, cannot be read or do not fit together.
    pub fn open(config: &RunConfig, used: Use, progress: &mut OnProgress<'_>) -> Result<Self> {
        let config = &*with_dataset(config, used)?;
        if let Some(files) = count_files(config, used) {
            // A signal ends reading itself.
            let _ = progress(Progress::begins(Doing::Reading(files)));
        }
        let opening = Opening::new(config, used, progress)?;
        let mut inputs = match config.data.format {
            DataFormat::Tokenized => tokenized::open(opening),
            DataFormat::Squad => squad::open(opening),
            format if format.is_table() && !matches!(config.data.task, Task::Clm | Task::Mlm) => table::open(opening),
            _ if config.data.has_instructions() => instructions::open(opening),
            _ => text::open(opening),
        }?;
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
}

/// The number of files that `config` names, as far as it is `used`; none for files that would have
/// to be downloaded, and where one is missing, which is told when it is opened.
fn count_files(config: &RunConfig, used: Use) -> Option<usize> {
    let (data, mut lists) = (&config.data, Vec::new());
    let validation = match &data.validation {
        Some(Validation::Files(patterns)) => Some(patterns),
        None | Some(Validation::Share(_) | Validation::First(_)) => None,
    };
    lists.extend((used == Use::Training || validation.is_none()).then_some(&data.train));
    lists.extend(validation);
    let is_local = |patterns: &&Vec<String>| !patterns.iter().any(|pattern| hub::is_dataset(pattern));
    let count = |patterns: &Vec<String>| paths::resolve(patterns, data.format).ok().map(|files| files.len());
    lists.iter().all(is_local).then(|| lists.into_iter().map(count).sum()).flatten()
}

/// The first `wanted` examples; of question answering the first so many questions with all their
/// windows, since an answer is looked for in all of them.
fn first(data: &Arc<dyn Dataset>, wanted: usize) -> Arc<dyn Dataset> {
    match SquadData::of(&**data) {
        Some(squad) => Arc::new(squad.first(wanted)),
        None => Arc::new(Subset::first(data.clone(), wanted)),
    }
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
