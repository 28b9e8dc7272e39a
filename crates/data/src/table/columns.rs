//! The columns of a table that are read.

use std::fmt;

use kiln_core::error::{Error, Result};

/// Which columns are read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Columns {
    /// The text.
    pub text: String,
    /// Whether the text, and so its labels, is a list of words.
    pub words: bool,
    /// Whether the texts are kept as JSON, whatever they are: lists of messages, for example.
    pub json: bool,
    /// The choices of a multiple choice.
    pub choices: Vec<String>,
    /// The second text of a pair.
    pub text_pair: Option<String>,
    /// The label.
    pub label: Option<String>,
    /// Whether ids of the label are read as the names that the features of `datasets` in a file
    /// give them.
    pub class_names: bool,
    /// Columns that a file may have or not. Where there are any, the last part of a row is a JSON
    /// object with their values, in which the other columns of the file stand with null.
    pub beside: Vec<String>,
}

impl Columns {
    /// Every column that is read.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.text).chain(&self.text_pair).chain(&self.choices).chain(&self.label).map(String::as_str)
    }

    /// Whether the column `name` is read.
    pub(super) fn has(&self, name: &str) -> bool {
        self.names().any(|read| read == name) || self.beside.iter().any(|beside| beside == name)
    }

    /// The last part of a row: of the columns `existing` that are not read elsewhere, those of
    /// `beside` with what `value` gives.
    pub(super) fn rest<'a>(
        &self,
        existing: impl Iterator<Item = &'a str>,
        mut value: impl FnMut(&str) -> Result<serde_json::Value>,
    ) -> Result<Option<String>> {
        if self.beside.is_empty() {
            return Ok(None);
        }
        let mut rest = serde_json::Map::new();
        for name in existing.filter(|name| self.names().all(|read| read != *name)) {
            let is_asked_for = self.beside.iter().any(|beside| beside == name);
            rest.insert(name.to_owned(), if is_asked_for { value(name)? } else { serde_json::Value::Null });
        }
        Ok(Some(serde_json::Value::Object(rest).to_string()))
    }

    /// The error of a file that has the columns `existing`, but not the column `name`.
    pub(super) fn missing(&self, name: &str, existing: &[String]) -> Error {
        let quoted = existing.iter().map(|column| format!("{column:?}")).collect::<Vec<_>>().join(", ");
        // Texts that are kept as JSON are those of instructions.
        Error::data(format!("there is no column {name:?}; there are {quoted}")).help(if self.json {
            "name the columns with data.messages_column, or with data.prompt_column and data.completion_column"
        } else if self.choices.iter().any(|choice| choice == name) {
            "name the columns with data.choice_columns"
        } else {
            "name the columns with data.text_column, data.text_pair_column and data.label_column"
        })
    }

    /// Where each column stands among `existing`: text, pair, choices, label.
    pub(super) fn find(&self, existing: &[String], place: impl fmt::Display) -> Result<Found> {
        let find = |name: &str| {
            existing.iter().position(|column| column == name).ok_or_else(|| self.missing(name, existing).at(&place))
        };
        let optional = |name: &Option<String>| name.as_deref().map(&find).transpose();
        let choices = self.choices.iter().map(|name| find(name)).collect::<Result<_>>()?;
        Ok(Found {
            text: find(&self.text)?,
            text_pair: optional(&self.text_pair)?,
            choices,
            label: optional(&self.label)?,
        })
    }
}

/// Where columns stand.
pub(super) struct Found {
    pub(super) text: usize,
    pub(super) text_pair: Option<usize>,
    pub(super) choices: Vec<usize>,
    pub(super) label: Option<usize>,
}
