//! Opens everything a run reads, before anything is planned: model configuration, tokenizer,
//! training and validation data. The result is facts about these inputs; [`plan`](crate::plan)
//! derives the plan of the run from them and the config.

mod found;
mod instructions;
mod model;
mod opened;
mod opening;
mod splits;
pub(crate) mod squad;
pub(crate) mod table;
mod text;
mod tokenized;

pub use found::found;
use kiln_core::error::{Error, Result};
use kiln_core::model_config::Labels;
use kiln_data::labels::label_names;
use kiln_data::store::{Doing, OnProgress, Preparation};
use kiln_data::{hub, paths};
pub use opened::Inputs;
use opening::{Opening, with_dataset};
pub use splits::{Splits, Use};

use crate::config::{DataFormat, RunConfig, Task, Validation};
use crate::session::adapter::Adapters;
use crate::session::model_folder::kept_files;
use crate::task::scores::{ENTITY_FIGURES, are_tags};

impl Inputs {
    /// Opens what `config` names, as far as it is `used`. `progress` is told what is done, and how
    /// far tokenising has come, and may interrupt that.
    ///
    /// # Errors
    /// Inputs that are missing, cannot be read or do not fit together.
    pub fn open(config: &RunConfig, used: Use, progress: &mut OnProgress<'_>) -> Result<Self> {
        let config = &*with_dataset(config, used)?;
        if let Some(files) = count_files(config, used) {
            // A signal ends reading itself.
            let _ = progress(Preparation::begins(Doing::Reading(files)));
        }
        let opening = Opening::new(config, used, progress)?;
        let mut inputs = match config.data.format {
            DataFormat::Tokenized => tokenized::open(opening),
            DataFormat::Squad => squad::open(opening),
            format if format.is_table() && !config.data.task.is_language_model() => table::open(opening),
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
