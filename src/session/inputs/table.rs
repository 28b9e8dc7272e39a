//! Tables as training and validation data: columns, labels and lengths are settled with the model,
//! then rows are encoded.

use std::sync::Arc;

use kiln_core::error::{Error, Result};
use kiln_core::model_config::Labels;
use kiln_data::labels::{LabelNames, LabelReader, LabelRule};
use kiln_data::rows::{self, RowStore, Scan};
use kiln_data::stream::Streamed;
use kiln_data::table::{Columns, Table};
use kiln_data::tokenizer::{RowEncoder, RowKind, Tokenizer};
use kiln_data::utf8::tell_replaced;
use kiln_data::{Dataset, cache};
use kiln_models::{Head, ModelConfig};

use super::model::with_pad_id;
use super::opened::Inputs;
use super::opening::{Opening, shuffle};
use super::splits::{Splits, Use};
use crate::config::{DataSection, RunConfig, Task};

/// Opens the tables, with rows of at most `data.max_length` tokens; the model takes their labels.
pub(super) fn open(mut opening: Opening<'_>) -> Result<Inputs> {
    let tokenizer = opening.tokenizer()?;
    let max_length = opening.max_length(RowEncoder::DEFAULT_MAX_LENGTH)?;
    let data = rows(&mut opening, &tokenizer, max_length)?;
    let pad_id = pad_id(&opening.model, &tokenizer);
    let reads_last = opening.model.is_decoder() && opening.config.data.task.head() == Head::SequenceClassification;
    if let (true, None, Some(pad)) = (reads_last, opening.model.pad_token_id(), pad_id) {
        // `GPT2ForSequenceClassification` and Llama's find the last token of a row by it. The
        // embedding of a Llama is made without it, as under the Trainer of `transformers`.
        opening.model = with_pad_id(opening.model, pad)?;
        if let ModelConfig::Llama(config) = &mut opening.model {
            config.learns_padding = true;
        }
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
    let open_table = |patterns: &[String]| data.open_table(patterns, columns.clone());
    if data.streaming && used == Use::Training {
        let table = open_table(&data.train).map_err(|error| error.at("data.train"))?;
        let labels = settle_labels(config, used, &mut opening.model, ("data.train", &table), None)?;
        let streamed = rows::streamed(table, encoder.clone(), labels.clone());
        let train = Arc::new(Streamed::new(streamed, shuffle(config))?) as Arc<dyn Dataset>;
        let validation = |patterns: &[String]| -> Result<Arc<dyn Dataset>> {
            let table = open_table(patterns)?;
            let scan = Scan::new(&table, classes)?;
            let folder = cache::folder_of(cache::ROWS)?;
            let rows = RowStore::build_or_open(&folder, &table, &scan, &encoder, &labels, opening.progress)?;
            tell_left_out(&table, &scan, &rows, &labels);
            opening.replaced += scan.replaced;
            Ok(Arc::new(rows))
        };
        return Splits::streamed(config, train, validation);
    }
    // All are read once before any is encoded: what is wrong with the last shows at once.
    let tables = Splits::open(config, used, |patterns| {
        let table = open_table(patterns)?;
        let scan = Scan::new(&table, classes)?;
        Ok((table, scan))
    })?;
    let (key, (table, scan)) = tables.first();
    let labels = settle_labels(config, used, &mut opening.model, (key, table), Some(scan))?;
    let folder = cache::folder_of(cache::ROWS)?;
    let rows = tables.map(|(table, scan)| {
        let store = RowStore::build_or_open(&folder, &table, &scan, &encoder, &labels, opening.progress)?;
        tell_left_out(&table, &scan, &store, &labels);
        opening.replaced += scan.replaced;
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
        beside: Vec::new(),
        text_pair: data.text_pair_column.clone(),
        choices: data.choice_columns.clone().unwrap_or_default(),
        label: Some(named(&data.label_column, label)),
        // The ids of choices are their places, whatever SWAG and others call them.
        class_names: data.task != Task::MultipleChoice,
    }
}

/// The encoder of rows with these columns.
///
/// # Errors
/// A length that has no room for a token of each text beside the special ones.
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

/// Tells how many rows, and words of rows, `labels` leaves out, how many have no text, and how much
/// of them is not UTF-8.
fn tell_left_out(table: &Table, scan: &Scan, rows: &RowStore, labels: &LabelReader) {
    tell_replaced(table.files(), scan.replaced);
    let file = table.files()[0].display();
    match scan.rows - rows.len() as u64 {
        0 => {}
        left => tracing::warn!("{file}: {left} of {} rows have no label and are left out", scan.rows),
    }
    if let (blank, Some(place)) = &scan.blank {
        tracing::warn!(
            "{file}: {blank} of {} rows have no text, the first at {place}; they are special tokens alone",
            scan.rows
        );
    }
    if let LabelRule::Tags(names) = &labels.rule
        && let ignored @ 1.. = scan.labels.missing(names)
    {
        tracing::warn!("{file}: labels of {ignored} words say that there is none, and these words are ignored");
    }
}

/// How the labels of the training data, or else of the validation data, are read: `table` with its
/// key, and its `scan` where it was read before. The model takes the labels.
fn settle_labels(
    config: &RunConfig,
    used: Use,
    model: &mut ModelConfig,
    (key, table): (&str, &Table),
    scan: Option<&Scan>,
) -> Result<LabelReader> {
    let task = config.data.task;
    let reader = |rule| LabelReader { rule, skip_unlabeled: config.data.skip_unlabeled };
    if task == Task::Regression {
        *model.labels_mut() = Labels { problem_type: Some("regression".into()), ..Labels::numbered(1) };
        return Ok(reader(LabelRule::Values));
    }
    if task == Task::MultipleChoice {
        return Ok(reader(LabelRule::Choice));
    }
    let stated = model.labels().num_labels.filter(|_| config.model.fields.contains_key("num_labels"));
    let names = label_names(config, used, model, (key, table), scan)?;
    if let Some(stated) = stated.filter(|stated| *stated != names.names().len()) {
        return Err(Error::config(format!(
            "model.num_labels = {stated}, but there are {} labels: {:?}",
            names.names().len(),
            names.names()
        ))
        .help("leave model.num_labels out, or give every label in data.label_names"));
    }
    *model.labels_mut() = names.to_model(task);
    Ok(reader(match task {
        Task::TokenClassification => LabelRule::Tags(names),
        Task::MultiLabelClassification => LabelRule::Several(names),
        _ => LabelRule::Classes(names),
    }))
}

/// The names of the labels of a pretrained model, where they are those of the data. None where the
/// model was never given names or labels, and where its labels are to be replaced.
fn names_of_model(
    config: &RunConfig,
    used: Use,
    labels: &Labels,
    key: &str,
    scan: Option<&Scan>,
) -> Result<Option<LabelNames>> {
    let (unnamed, replaced) = (labels.are_numbered(), config.model.ignore_mismatched_sizes);
    // `transformers` gives a language model labels too; gpt2-large has one.
    if labels.id2label.is_none() || (labels.num_labels() < 2 && (unnamed || replaced)) {
        return Ok(None);
    }
    let given =
        "give the names that the data have for the model's labels, in the order of the ids, in data.label_names";
    let help = match used {
        Use::Training => format!(
            "set model.ignore_mismatched_sizes = true to put the labels of the data in place of the model's (a head of the same \
             size keeps its weights); or {given}"
        ),
        Use::Evaluation => given.to_owned(),
    };
    let names = LabelNames::of_model(labels)
        .map_err(|error| error.at("id2label in config.json of model.from").help(help.clone()))?;
    let stated = config.model.from.is_none() || config.model.fields.contains_key("id2label");
    let (Some(names), Some(scan), false) = (&names, scan, stated) else { return Ok(names) };
    match scan.labels.outside(names) {
        (0, _) => Ok(Some(names.clone())),
        _ if unnamed || replaced => Ok(None),
        (outside, all) if outside == all => {
            let data = scan.labels.names(config.data.skip_unlabeled).map_err(|error| error.at(key))?;
            Err(Error::data(format!(
                "{key}: none of the labels ({}) is one of the model's, which are {} (id2label in config.json of model.from)",
                data.listed(),
                names.listed()
            ))
            .help(help))
        }
        // The row is named when it is read.
        _ => Ok(Some(names.clone())),
    }
}

/// The names of labels are those of the config, else of the model, else of the ClassLabel of the
/// file, else those that the data show. Where the file names classes, the names that come first
/// must have all of them, in whatever order.
fn label_names(
    config: &RunConfig,
    used: Use,
    model: &ModelConfig,
    (key, table): (&str, &Table),
    scan: Option<&Scan>,
) -> Result<LabelNames> {
    let given = config.data.label_names.clone().map(LabelNames::new).transpose();
    let given = given.map_err(|error| error.at("data.label_names"))?;
    let of_model = if given.is_none() { names_of_model(config, used, model.labels(), key, scan)? } else { None };
    let of_file = table.class_names().map_err(|error| error.at(key))?;
    let (source, first) = match (given, of_model) {
        (Some(names), _) => ("data.label_names", Some(names)),
        // Nobody has named the labels of such a model, or they are to be replaced.
        (None, Some(names))
            if of_file.as_ref().is_some_and(|others| {
                model.labels().are_numbered() || (config.model.ignore_mismatched_sizes && names.lacks(others).is_some())
            }) =>
        {
            ("", None)
        }
        (None, of_model) => ("the id2label of the model", of_model),
    };
    match (first, of_file) {
        (Some(names), Some(others)) => match names.lacks(&others) {
            None => Ok(names),
            Some(lacking) => Err(Error::config(format!(
                "{source} has {:?}, but the ClassLabel of {} has {others:?}: {lacking:?} is not among the first",
                names.names(),
                table.files()[0].display()
            ))
            .help(format!("set data.label_names = {others:?}, in the order of the ids that you want"))),
        },
        (Some(names), None) => Ok(names),
        (None, Some(names)) => LabelNames::new(names).map_err(|error| error.at(key)),
        (None, None) => match scan {
            Some(scan) => {
                scan.labels.remarks().iter().for_each(|remark| tracing::warn!("{key}: {remark}"));
                scan.labels.names(config.data.skip_unlabeled).map_err(|error| error.at(key))
            }
            None => Err(Error::config("data.streaming: which labels there are is not known before the data are read")
                .help("give them in data.label_names, in the order of their ids")),
        },
    }
}
