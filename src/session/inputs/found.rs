//! The inputs of a config that exist, for the plan of a run whose data may not be there.

use kiln_core::error::{Error, ErrorKind};
use kiln_core::model_config::Labels;
use kiln_data::labels::LabelNames;
use kiln_data::paths;
use kiln_train::task::model_facts;

use super::model::{model_config, with_vocabulary};
use super::opening::{optional_tokenizer, with_dataset};
use super::splits::Use;
use crate::config::{RunConfig, Task, Validation};
use crate::plan::{Architecture, Found};
use crate::session::TransformerTask;
use crate::session::adapter::Adapters;
use crate::task::model_task;

/// Finds the inputs of `config` that exist, without opening the data.
pub fn found(config: &RunConfig) -> Found {
    let mut found = Found::default();
    let mut lacks = |key: &str, error: Error| found.lacks.push(error.at(key).message().to_owned());
    // A mistake in [model] is nothing that lacks: it ends the plan by itself.
    let model = model_config(config)
        .map_err(|error| {
            if error.kind() != ErrorKind::Config {
                lacks("model", error)
            }
        })
        .ok();
    let from = model.as_ref().and_then(|(_, from, _)| from.clone());
    let tokenizer = optional_tokenizer(config, from.as_ref()).map_err(|error| lacks("tokenizer", error)).ok().flatten();
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
    let task =
        TransformerTask { model_from: from, ..TransformerTask::new(model_task(task), model) }.with_adapters(adapters);
    let architecture = Architecture { unknown_fields, ..task.architecture() };
    found.model = model_facts(&task).ok().map(|facts| (facts, architecture));
    found
}
