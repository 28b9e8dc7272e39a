//! Rows of tokens as training and validation data.

use std::path::PathBuf;
use std::sync::Arc;

use kiln_core::error::{Error, Result};
use kiln_core::model_config::Labels;
use kiln_data::labels::problem_type;
use kiln_data::tokenized::{Limits, TokenizedData};
use kiln_data::tokenizer::Tokenizer;
use kiln_data::{Dataset, cache, paths};
use kiln_models::ModelConfig;

use super::opened::Inputs;
use super::opening::Opening;
use super::splits::{Splits, Use};
use super::squad::span_labels;
use crate::config::{RunConfig, Task};

/// Opens the files; a model without stated labels takes as many as the data show.
pub(super) fn open(mut opening: Opening<'_>) -> Result<Inputs> {
    let Opening { config, used, .. } = opening;
    let task = config.data.task;
    let folder = cache::folder_of(cache::TOKENIZED)?;
    if config.tokenizer.train_vocab_size.is_some() {
        return Err(Error::config("tokenizer.train_vocab_size with data.format = \"tokenized\": the data has no text")
            .help("leave it out; give model.vocab_size"));
    }
    let data = Splits::open(config, used, |patterns| {
        TokenizedData::open(&folder, &paths::resolve(patterns, config.data.format)?, task, opening.progress)
    })?;
    // Rows that are tokenized need no tokenizer: one of a class that is not implemented is kept as
    // it is.
    let has_other = |folder: &PathBuf| Tokenizer::is_in(folder) && !Tokenizer::is_read(folder);
    let tokenizer = if config.tokenizer.from.is_none() && opening.model_from.as_ref().is_some_and(has_other) {
        None
    } else {
        opening.optional_tokenizer()?
    };
    if let Some(tokenizer) = tokenizer.as_ref().filter(|_| config.model.resize_token_embeddings) {
        opening.settle_vocabulary(tokenizer)?;
    }
    let data = data.split(config, used, |data, held| data.split(held.share(), config.trainer.seed))?;
    settle_labels(task, used, &mut opening.model, config, data.first())?;
    let limits = Limits::of(&opening.model, task);
    let data = data.map(|data| {
        data.validate(&limits)?;
        Ok(Arc::new(data) as Arc<dyn Dataset>)
    })?;
    let pad_id = opening.model.pad_token_id().unwrap_or(0);
    Ok(opening.inputs(tokenizer, pad_id, data))
}

/// A classification head can have as many labels as the vocabularies of language models have
/// tokens, and not many more.
const MAX_STATED_CLASSES: usize = 1_000_000;

/// A classification head has as many labels as the config or the pretrained model states, else as
/// the data shows. Regression has one.
fn settle_labels(
    task: Task,
    used: Use,
    model: &mut ModelConfig,
    config: &RunConfig,
    (key, data): (&str, &TokenizedData),
) -> Result<()> {
    let stated = model.labels().id2label.is_some() || model.labels().num_labels.is_some();
    // Names that say nothing and labels that are to be replaced give way to what the data shows.
    let explicit = ["num_labels", "id2label"].iter().any(|name| config.model.fields.contains_key(*name));
    let gives_way = !explicit && (model.labels().are_numbered() || config.model.ignore_mismatched_sizes);
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
        task if task.has_label_names() && (!stated || gives_way) => {
            let count = data.num_classes().map_err(|error| error.at(key))?.max(2);
            if !stated || count > model.labels().num_labels() {
                *model.labels_mut() = Labels::numbered(count);
            }
        }
        task if task.has_label_names()
            && config.model.from.is_some()
            && !explicit
            && model.labels().id2label.is_some() =>
        {
            let (count, labels) = (data.num_classes().map_err(|error| error.at(key))?, model.labels().num_labels());
            if count > labels {
                return Err(Error::data(format!(
                    "{key}: the rows have {count} classes, but the model has {labels} labels (id2label in config.json of \
                     model.from)"
                ))
                .help(match used {
                    Use::Training => {
                        "set model.ignore_mismatched_sizes = true to give the model a new head for the classes of the rows"
                    }
                    Use::Evaluation => "evaluate a model with as many labels as the rows have classes",
                }));
            }
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
        Task::QuestionAnswering => span_labels(model),
        _ => {}
    }
    if task == Task::MultiLabelClassification || model.labels().problem_type.is_some() {
        // The class of `transformers` reads its loss from it.
        model.labels_mut().problem_type = problem_type(task).map(str::to_owned);
    }
    Ok(())
}
