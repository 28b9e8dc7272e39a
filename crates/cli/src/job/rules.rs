//! The rules of Hugging Face's scripts for what hyperparameters leave open: columns, labels,
//! lengths and the validation data, as `run_glue.py`, `run_classification.py`, `run_ner.py`,
//! `run_qa.py`, `run_clm.py` and `run_mlm.py` of transformers 4.57 and 5 have them.

use std::collections::BTreeSet;
use std::path::PathBuf;

use kiln::config::settings::{Setting, value_in};
use kiln::config::{DataFormat, Task};
use kiln::session::model_folder::read_config;
use kiln_core::error::{Error, Result};
use kiln_data::labels::{MAX_CLASSES, MISSING, label_names};
use kiln_data::paths;
use kiln_data::table::{Cell, Columns, Table as Rows, column_names};
use kiln_data::tokenizer::tokenizer_config;
use toml::{Table, Value};

use super::contract::Contract;
use super::scripts::{Glue, Script};

/// The tokens to which `run_glue.py` and `run_classification.py` cut a row.
const MAX_SEQ_LENGTH: i64 = 128;

/// The windows of `run_qa.py`.
const WINDOW: i64 = 384;

/// The percentage of the training data that `run_clm.py` and `run_mlm.py` evaluate on where there
/// are no validation data.
const SPLIT_PERCENTAGE: f64 = 5.0;

/// The settings so far: the hyperparameters and channels of a job over its config file.
pub(super) struct Known<'a> {
    pub(super) contract: &'a Contract,
    pub(super) base: &'a Table,
    pub(super) given: Vec<Setting>,
}

impl Known<'_> {
    pub(super) fn setting(&self, section: &str, key: &str) -> Option<&Setting> {
        self.given.iter().rev().find(|setting| setting.path == [section, key])
    }

    pub(super) fn value(&self, section: &str, key: &str) -> Option<&Value> {
        self.setting(section, key).map(|setting| &setting.value).or_else(|| value_in(self.base, section, key))
    }

    pub(super) fn is_set(&self, section: &str, key: &str) -> bool {
        self.value(section, key).is_some()
    }

    pub(super) fn is_true(&self, section: &str, key: &str) -> bool {
        self.value(section, key).and_then(Value::as_bool) == Some(true)
    }

    /// A text, or the first of a list of them.
    fn text(&self, section: &str, key: &str) -> Option<&str> {
        match self.value(section, key)? {
            Value::Array(values) => values.first().and_then(Value::as_str),
            value => value.as_str(),
        }
    }

    pub(super) fn task(&self) -> Option<Task> {
        Task::from_name(self.text("data", "task")?).ok()
    }

    fn format(&self) -> Option<DataFormat> {
        self.text("data", "format")?.parse().ok()
    }

    /// The place of the training data on this machine; none for those of the Hub.
    pub(super) fn train(&self) -> Result<Option<PathBuf>> {
        let pattern = self.text("data", "train").filter(|pattern| !pattern.starts_with("hf://"));
        pattern.map(|pattern| self.contract.expand(&self.contract.relocated(pattern))).transpose()
    }

    /// The training files on this machine, where they can be read; that they cannot is told when
    /// they are trained on.
    fn files(&self, format: DataFormat) -> Result<Vec<PathBuf>> {
        let Some(path) = self.train()? else { return Ok(Vec::new()) };
        Ok(paths::resolve(&[path.display().to_string()], format).unwrap_or_default())
    }

    /// The folder of the pretrained model, where it is on this machine.
    fn folder(&self, section: &str) -> Result<Option<PathBuf>> {
        let from = self.text(section, "from").map(|from| self.contract.expand(&self.contract.relocated(from)));
        Ok(from.transpose()?.filter(|folder| folder.is_dir()))
    }

    /// The longest sequence that the model can read, where its config is on this machine.
    fn positions(&self) -> Result<Option<i64>> {
        if let Some(folder) = self.folder("model")? {
            let config = read_config(&folder).ok();
            return Ok(config.and_then(|(config, ..)| i64::try_from(config.max_positions()).ok()));
        }
        let named = ["n_positions", "max_position_embeddings"].map(|key| self.value("model", key));
        Ok(named.into_iter().flatten().find_map(Value::as_integer))
    }

    /// `model_max_length` of the tokenizer's `tokenizer_config.json`, where it is on this machine;
    /// without one it has no limit.
    fn model_max_length(&self) -> Result<Option<i64>> {
        let folder = match self.folder("tokenizer")? {
            Some(folder) => Some(folder),
            None => self.folder("model")?,
        };
        let config = folder.map(|folder| tokenizer_config(&folder)).transpose()?;
        // Tokenizers without a limit have 10 to the power of 30.
        Ok(config.and_then(|config| config.get("model_max_length")?.as_i64()))
    }
}

/// The labels of a column, by the type that `datasets` gives it.
#[derive(Debug, PartialEq)]
enum Kind {
    /// `float64`.
    Numbers,
    /// Classes, in the order of their ids.
    Classes(Vec<String>),
    /// Lists of labels.
    Lists,
    /// There is none, or it cannot be read.
    Unknown,
}

/// The settings that `script` makes where neither hyperparameters nor config have them, and lines
/// for people.
///
/// # Errors
/// A feature of the script that Kiln does not have.
pub(super) fn settings(
    script: Script,
    glue: Option<&Glue>,
    mut known: Known<'_>,
) -> Result<(Vec<Setting>, Vec<String>)> {
    let given = known.given.len();
    let mut said = Vec::new();
    match script {
        Script::Glue | Script::Classification => {
            classification(script, glue, &mut known)?;
            default(&mut known, script, "data.max_length", MAX_SEQ_LENGTH);
            default(&mut known, script, "data.padding", "max_length");
        }
        Script::Qa => {
            default(&mut known, script, "data.max_length", WINDOW);
            default(&mut known, script, "data.padding", "max_length");
        }
        Script::Ner => tags(&mut known)?,
        Script::Clm | Script::Mlm => language_model(script, &mut known)?,
        Script::Swag => {}
    }
    shorten(script, &mut known, &mut said)?;
    Ok((known.given.split_off(given), said))
}

fn default(known: &mut Known<'_>, script: Script, key: &str, value: impl Into<Value>) {
    let (section, name) = key.split_once('.').unwrap_or(("", key));
    if !known.is_set(section, name) {
        known.given.push(Setting::new(key, value, script.file()));
    }
}

/// The scripts cut rows to what the model can read.
fn shorten(script: Script, known: &mut Known<'_>, said: &mut Vec<String>) -> Result<()> {
    let key = if script.task().is_language_model() { "block_size" } else { "max_length" };
    let limits = [known.positions()?, known.model_max_length()?];
    let Some(limit) = limits.into_iter().flatten().min() else { return Ok(()) };
    let Some(length) = known.value("data", key).and_then(Value::as_integer).filter(|length| *length > limit) else {
        return Ok(());
    };
    if length != MAX_SEQ_LENGTH && length != WINDOW {
        said.push(format!("data.{key} = {length}: {} takes {limit}, the most that the model reads", script.file()));
    }
    known.given.push(Setting::new(&format!("data.{key}"), limit, script.file()));
    Ok(())
}

/// Columns and labels of `run_glue.py` and `run_classification.py`.
fn classification(script: Script, glue: Option<&Glue>, known: &mut Known<'_>) -> Result<()> {
    let (file, is_glue) = (script.file(), script == Script::Glue);
    let format = known.format().filter(|format| format.is_table());
    let files = format.map(|format| known.files(format)).transpose()?.unwrap_or_default();
    let names = format.zip(files.first()).map(|(format, file)| column_names(file, format)).unwrap_or_default();
    let label = known.text("data", "label_column").unwrap_or("label").to_owned();
    let texts = match glue {
        Some(glue) => glue.text.to_vec(),
        None if is_glue => texts_of(&names, &label),
        None => ["sentence"].into_iter().filter(|name| names.iter().any(|it| it == name)).collect(),
    };
    if ["text_column", "text_pair_column"].iter().all(|key| !known.is_set("data", key)) {
        for (key, name) in ["data.text_column", "data.text_pair_column"].into_iter().zip(texts) {
            known.given.push(Setting::new(key, name, file));
        }
    }
    if let Some(glue) = glue {
        if !glue.labels.is_empty() && known.task() == Some(Task::SequenceClassification) {
            check_order(glue, known)?;
            let labels = glue.labels.iter().map(|name| Value::from(*name)).collect::<Vec<_>>();
            default(known, script, "data.label_names", labels);
        }
        return Ok(());
    }
    // The task of the script is what its labels say, but for one that is named.
    let is_of_script =
        known.setting("data", "task").is_some_and(|setting| setting.value.as_str() == Some(script.task().name()));
    let is_told =
        known.given.iter().any(|setting| setting.path == ["data", "task"] && setting.origin.contains("do_regression"));
    if !is_of_script || is_told || known.is_set("data", "label_names") {
        return Ok(());
    }
    let text = known.text("data", "text_column").or(names.iter().find(|name| **name != label).map(String::as_str));
    let Some((text, format)) = text.zip(format).filter(|_| names.contains(&label) && !files.is_empty()) else {
        return Ok(());
    };
    let columns = Columns { text: text.to_owned(), label: Some(label), class_names: true, ..Columns::default() };
    let rows = Rows::of(files, format, columns);
    // A ClassLabel has an order of its own.
    if rows.class_names().is_ok_and(|names| names.is_some()) {
        return Ok(());
    }
    match kind_of(rows, format, script) {
        Kind::Numbers => known.given.push(Setting::new("data.task", Task::Regression.name(), file)),
        Kind::Lists if !is_glue => {
            known.given.push(Setting::new("data.task", Task::MultiLabelClassification.name(), file));
        }
        Kind::Classes(names) if names.iter().any(|name| name == "-1") => {
            return Err(Error::data(format!(
                "{file}: the training data have the label -1, by which the script marks rows without one"
            ))
            .help("leave such rows out of the training data"));
        }
        Kind::Classes(names) if names.len() > 1 => known.given.push(Setting::new("data.label_names", names, file)),
        Kind::Classes(_) | Kind::Lists | Kind::Unknown => {}
    }
    Ok(())
}

/// The columns of text in the rows of one's own files by the rule of `run_glue.py`.
fn texts_of<'a>(names: &'a [String], label: &str) -> Vec<&'a str> {
    let texts = names.iter().map(String::as_str).filter(|name| *name != label).collect::<Vec<_>>();
    let pair = ["sentence1", "sentence2"];
    if pair.iter().all(|name| texts.contains(name)) { pair.to_vec() } else { texts.into_iter().take(2).collect() }
}

/// Refuses a model whose labels are those of the task in another order: `run_glue.py` gives the
/// rows their numbers.
fn check_order(glue: &Glue, known: &Known<'_>) -> Result<()> {
    let Some((config, ..)) = known.folder("model")?.and_then(|folder| read_config(&folder).ok()) else { return Ok(()) };
    if config.labels().id2label.is_none() || known.is_set("data", "label_names") {
        return Ok(());
    }
    let names = label_names(config.labels())?.iter().map(|name| name.to_lowercase()).collect::<Vec<_>>();
    let is_same_set =
        names.iter().map(String::as_str).collect::<BTreeSet<_>>() == glue.labels.iter().copied().collect();
    if !is_same_set || names == glue.labels {
        return Ok(());
    }
    Err(Error::config(format!(
        "task_name = {}: the model has the labels {}, and GLUE has them as {}: run_glue.py gives the rows the model's numbers, and Kiln \
         does not",
        glue.task,
        names.join(", "),
        glue.labels.join(", ")
    ))
    .help("train on files whose labels are names, with data.label_names in the order of the model"))
}

/// The labels of `rows`, as `datasets` and `pandas` take them.
fn kind_of(rows: Rows, format: DataFormat, script: Script) -> Kind {
    let is_text = matches!(format, DataFormat::Csv | DataFormat::Tsv);
    let (mut values, mut texts) = (BTreeSet::new(), 0_usize);
    let (mut is_missing, mut has_number, mut has_fraction) = (false, false, false);
    for row in rows.rows() {
        let Ok(row) = row else { return Kind::Unknown };
        match row.label {
            None | Some(Cell::Null) => is_missing = true,
            Some(Cell::List(_)) => return Kind::Lists,
            Some(Cell::Integer(value)) => {
                has_number = true;
                values.insert(value.to_string());
            }
            Some(Cell::Boolean(value)) => {
                texts += 1;
                values.insert(if value { "True" } else { "False" }.to_owned());
            }
            Some(Cell::Number(_)) => (has_number, has_fraction) = (true, true),
            Some(Cell::Text(text)) if is_text && MISSING.contains(&text.as_str()) => is_missing = true,
            Some(Cell::Text(text)) => {
                match text.trim() {
                    number if !is_text || number.parse::<f64>().is_err() => texts += 1,
                    number => {
                        has_number = true;
                        has_fraction |= number.parse::<i64>().is_err();
                    }
                }
                values.insert(text);
            }
        }
        if values.len() > MAX_CLASSES && texts > 0 {
            return Kind::Unknown;
        }
    }
    // Whole numbers of which some are missing are floats in pandas.
    if texts == 0 && has_number && (has_fraction || (is_missing && is_text)) {
        return Kind::Numbers;
    }
    if values.len() > MAX_CLASSES || is_missing {
        return Kind::Unknown;
    }
    let mut names = values.into_iter().collect::<Vec<_>>();
    if texts == 0 && script == Script::Glue {
        names.sort_by_key(|name| name.trim().parse::<i64>().ok());
    }
    Kind::Classes(names)
}

/// The columns of words and of their labels by the rule of `run_ner.py`: `tokens` and `ner_tags`
/// where there are such, else the first and the second.
fn tags(known: &mut Known<'_>) -> Result<()> {
    let Some(format) = known.format().filter(|format| format.is_table()) else { return Ok(()) };
    let names = known.files(format)?.first().map(|file| column_names(file, format)).unwrap_or_default();
    let (text, label) = Task::TokenClassification.columns();
    for ((key, usual), name) in [("data.text_column", text), ("data.label_column", label)].into_iter().zip(&names) {
        if !names.iter().any(|name| name == usual) {
            default(known, Script::Ner, key, name.as_str());
        }
    }
    Ok(())
}

/// The rows, blocks and validation data of `run_clm.py` and `run_mlm.py`.
fn language_model(script: Script, known: &mut Known<'_>) -> Result<()> {
    let format = known.format().unwrap_or(DataFormat::Text);
    if format == DataFormat::Text && known.train()?.is_some() {
        let rows = if known.keeps_breaks(script) { "row_with_break" } else { "row" };
        default(known, script, "data.documents", rows);
        default(known, script, "data.document_end", "none");
    }
    if format.is_table() {
        let names = known.files(format)?.first().map(|file| column_names(file, format)).unwrap_or_default();
        if let Some(first) = names.first().filter(|_| names.iter().all(|name| name != "text")) {
            default(known, script, "data.text_column", first.as_str());
        }
    }
    // A stream has no first rows.
    let has_rows = known.train()?.is_some()
        && (format.is_table() || known.text("data", "documents").is_some_and(|it| it != "file"));
    if has_rows && !known.is_true("data", "streaming") {
        default(known, script, "data.validation", format!("train[:{SPLIT_PERCENTAGE}%]"));
    }
    if let Some(block_size) = block_size(script, known.model_max_length()?, known.positions()?) {
        default(known, script, "data.block_size", block_size);
    }
    Ok(())
}

/// The tokens of a block where none are given, for a tokenizer and a model with these limits; none
/// where Kiln's own default is that of the script.
fn block_size(script: Script, model_max_length: Option<i64>, positions: Option<i64>) -> Option<i64> {
    let positions = positions?;
    let block_size = match (script, model_max_length) {
        (Script::Clm, Some(length)) if length <= positions => length,
        (_, Some(length)) => length.min(1024),
        (_, None) => 1024,
    };
    Some(block_size.min(positions))
}

impl Known<'_> {
    /// Whether rows of text keep their line breaks: `load_dataset` leaves them out for
    /// `run_mlm.py`, and `run_clm.py` asks for them unless `keep_linebreaks` is false.
    fn keeps_breaks(&self, script: Script) -> bool {
        let given = self.contract.hyperparameters.iter().find(|(name, _)| name == "keep_linebreaks");
        let is_off = given.is_some_and(|(_, value)| super::hyperparameters::flag(value) == Some(false));
        script == Script::Clm && !is_off
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_as_long_as_the_scripts_make_them() {
        // `model_max_length` of the tokenizer, positions of the model, and the block: run_clm.py
        // and run_mlm.py.
        for (length, positions, clm, mlm) in [
            (Some(1024), 1024, 1024, 1024),
            (Some(2048), 2048, 2048, 1024),
            (None, 2048, 1024, 1024),
            (Some(512), 1024, 512, 512),
        ] {
            assert_eq!(block_size(Script::Clm, length, Some(positions)), Some(clm), "{length:?} {positions}");
            assert_eq!(block_size(Script::Mlm, length, Some(positions)), Some(mlm), "{length:?} {positions}");
        }
        assert_eq!(block_size(Script::Clm, Some(1024), None), None);
    }
}
