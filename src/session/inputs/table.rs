//! Tables as training and validation data: columns, labels and lengths are settled with the model, then rows are encoded.

use std::sync::Arc;

use kiln_models::ModelConfig;
use kiln_models::config::Labels;

use super::model::with_pad_id;
use super::opening::Opening;
use super::{Inputs, Splits, Use, shuffle};
use crate::base::error::{Error, Result};
use crate::cache;
use crate::config::Task;
use crate::config::{DataSection, RunConfig};
use crate::data::Dataset;
use crate::data::labels::{LabelNames, LabelRule};
use crate::data::rows::{self, RowStore, Scan};
use crate::data::stream::Streamed;
use crate::data::table::{Columns, Table};
use crate::data::tokenizer::{RowEncoder, RowKind, Tokenizer};

/// Opens the tables, with rows of at most `data.max_length` tokens; the model takes their labels.
pub(super) fn open(mut opening: Opening<'_>) -> Result<Inputs> {
    let tokenizer = opening.tokenizer()?;
    let max_length = opening.max_length(RowEncoder::DEFAULT_MAX_LENGTH)?;
    let data = rows(&mut opening, &tokenizer, max_length)?;
    let pad_id = pad_id(&opening.model, &tokenizer);
    if let (ModelConfig::Gpt2(_), None, Some(pad)) = (&opening.model, opening.model.pad_token_id(), pad_id) {
        // `GPT2ForSequenceClassification` finds the last token of a row by it.
        opening.model = with_pad_id(opening.model, pad)?;
    }
    Ok(Inputs { max_length: Some(max_length), ..opening.inputs(Some(tokenizer), pad_id.unwrap_or(0), data) })
}

/// The rows of training and validation data, encoded.
fn rows(opening: &mut Opening<'_>, tokenizer: &Tokenizer, max_length: usize) -> Result<Splits<Arc<dyn Dataset>>> {
    let Opening { config, used, .. } = *opening;
    let data = &config.data;
    let columns = columns(data);
    let encoder = encoder(tokenizer, data.task, &columns, max_length, &opening.model)?;
    let classes = data.task.has_label_names();
    if data.streaming && used == Use::Training {
        let rule = settle_labels(config, &mut opening.model, "data.streaming", None)?;
        let table = Table::open(&data.train, data.format, columns.clone()).map_err(|error| error.at("data.train"))?;
        let streamed = rows::streamed(table, encoder.clone(), rule.clone());
        let train = Arc::new(Streamed::new(streamed, shuffle(config))?) as Arc<dyn Dataset>;
        let validation = |patterns: &[String]| -> Result<Arc<dyn Dataset>> {
            let table = Table::open(patterns, data.format, columns.clone())?;
            let scan = Scan::new(&table, classes)?;
            let folder = cache::folder_of(cache::ROWS)?;
            Ok(Arc::new(RowStore::build_or_open(&folder, &table, &scan, &encoder, &rule, opening.progress)?))
        };
        return Splits::streamed(config, train, validation);
    }
    // All are read once before any is encoded: what is wrong with the last shows at once.
    let tables = Splits::open(config, used, |patterns| {
        let table = Table::open(patterns, data.format, columns.clone())?;
        let scan = Scan::new(&table, classes)?;
        Ok((table, scan))
    })?;
    let (key, (_, scan)) = tables.first();
    let rule = settle_labels(config, &mut opening.model, key, Some(scan))?;
    let folder = cache::folder_of(cache::ROWS)?;
    let rows = tables.map(|(table, scan)| {
        let store = RowStore::build_or_open(&folder, &table, &scan, &encoder, &rule, opening.progress)?;
        Ok(Arc::new(store) as Arc<dyn Dataset>)
    })?;
    rows.split_rows(config, used)
}

/// The id that pads rows: the model's, else the tokenizer's, else that of its end of text.
pub(crate) fn pad_id(model: &ModelConfig, tokenizer: &Tokenizer) -> Option<u32> {
    model.pad_token_id().or_else(|| tokenizer.pad_id()).or_else(|| tokenizer.eot_id())
}

/// The columns that `data` names, or those of its task.
fn columns(data: &DataSection) -> Columns {
    let (text, label) = data.task.columns();
    let named = |name: &Option<String>, default: &str| name.clone().unwrap_or_else(|| default.into());
    Columns {
        text: named(&data.text_column, text),
        words: data.task == Task::TokenClassification,
        json: false,
        text_pair: data.text_pair_column.clone(),
        choices: data.choice_columns.clone().unwrap_or_default(),
        label: Some(named(&data.label_column, label)),
    }
}

/// The encoder of rows with these columns.
///
/// # Errors
/// As [`Tokenizer::row_encoder`].
pub(crate) fn encoder(
    tokenizer: &Tokenizer,
    task: Task,
    columns: &Columns,
    max_length: usize,
    model: &ModelConfig,
) -> Result<RowEncoder> {
    let kind = match task {
        Task::TokenClassification => RowKind::Words,
        Task::MultipleChoice => RowKind::Choices,
        _ if columns.text_pair.is_some() => RowKind::Pair,
        _ => RowKind::Single,
    };
    let pairs = matches!(kind, RowKind::Pair | RowKind::Choices);
    tokenizer.row_encoder(max_length, kind, pairs && model.type_vocab_size().is_some_and(|types| types > 1))
}

/// Labels come from the config, else from the model, else from the training data, where these were read before.
fn settle_labels(config: &RunConfig, model: &mut ModelConfig, key: &str, scan: Option<&Scan>) -> Result<LabelRule> {
    if config.data.task == Task::Regression {
        *model.labels_mut() = Labels { problem_type: Some("regression".into()), ..Labels::numbered(1) };
        return Ok(LabelRule::Values);
    }
    if config.data.task == Task::MultipleChoice {
        return Ok(LabelRule::Choice);
    }
    let stated = model.labels().num_labels.filter(|_| config.model.fields.contains_key("num_labels"));
    let names = match &config.data.label_names {
        Some(names) => LabelNames::new(names.clone()).map_err(|error| error.at("data.label_names"))?,
        None => match (LabelNames::of_model(model.labels())?, scan) {
            (Some(names), _) => names,
            (None, Some(scan)) => scan.labels.names().map_err(|error| error.at(key))?,
            (None, None) => {
                return Err(Error::config(
                    "data.streaming: which labels there are is not known before the data are read",
                )
                .help("give them in data.label_names, in the order of their ids"));
            }
        },
    };
    if let Some(stated) = stated.filter(|stated| *stated != names.names().len()) {
        return Err(Error::config(format!(
            "model.num_labels = {stated}, but there are {} labels: {:?}",
            names.names().len(),
            names.names()
        ))
        .help("leave model.num_labels out, or give every label in data.label_names"));
    }
    *model.labels_mut() = names.to_model(config.data.task);
    Ok(match config.data.task {
        Task::TokenClassification => LabelRule::Tags(names),
        Task::MultiLabelClassification => LabelRule::Several(names),
        _ => LabelRule::Classes(names),
    })
}
