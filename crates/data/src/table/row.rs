//! A row of a table and its values.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use kiln_core::error::{Error, Result};

/// One row, only with the columns asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Where it stands.
    pub place: Place,
    /// The text.
    pub text: String,
    /// The second text, when a column was named for it.
    pub text_pair: Option<String>,
    /// Its words, where the text is a list of them; else its choices, when columns were named for
    /// them. See [`Columns::beside`](super::Columns::beside).
    pub parts: Vec<String>,
    /// The label, when a column was named for it.
    pub label: Option<Cell>,
    /// Sequences of bytes that were not UTF-8 and are U+FFFD in the row.
    pub replaced: u64,
}

impl Row {
    /// Its texts.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.text).chain(&self.text_pair).chain(&self.parts).map(String::as_str)
    }
}

#[cfg(test)]
impl Row {
    /// The row of one or two texts, from no file.
    pub(crate) fn of(text: &str, pair: Option<&str>) -> Self {
        Self {
            place: Place::of_row(1),
            text: text.into(),
            text_pair: pair.map(String::from),
            parts: Vec::new(),
            label: None,
            replaced: 0,
        }
    }
}

/// Where a row stands, for messages.
#[derive(Debug, Clone, PartialEq)]
pub struct Place {
    pub(super) file: Arc<Path>,
    /// `line` or `row`.
    pub(super) unit: &'static str,
    pub(super) number: u64,
}

#[cfg(test)]
impl Place {
    /// A row of no file.
    pub(crate) fn of_row(number: u64) -> Self {
        Self { file: Path::new("rows").into(), unit: "row", number }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.file.display(), self.unit, self.number)
    }
}

/// A value of a table.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// Nothing, or JSON's and parquet's null.
    Null,
    /// Text; in CSV and TSV every value is.
    Text(String),
    /// True or false.
    Boolean(bool),
    /// A whole number.
    Integer(i128),
    /// Another number.
    Number(f64),
    /// Several values, of JSON and parquet, and of words in CSV and TSV.
    List(Vec<Cell>),
}

impl fmt::Display for Cell {
    /// Writes the cell as messages show it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("nothing"),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Boolean(value) => f.write_str(if *value { "True" } else { "False" }),
            Self::Integer(number) => number.fmt(f),
            Self::Number(number) => number.fmt(f),
            Self::List(cells) => write!(f, "a list of {}", cells.len()),
        }
    }
}

/// The column `name` as a list of words.
pub(super) fn words(name: &str, cell: Cell) -> Result<Vec<String>> {
    let got = match cell {
        Cell::List(cells) => {
            let word =
                |cell| if let Cell::Text(text) = cell { Ok(text) } else { Err(not_text(name, &cell.to_string())) };
            return cells.into_iter().map(word).collect();
        }
        Cell::Text(text) => format!("{text:?}"),
        other => other.to_string(),
    };
    Err(Error::data(format!("column {name:?}: expected a list of words, got {got}"))
        .help("words are a list in JSON and parquet; in CSV and TSV they are separated by spaces"))
}

/// The words of a field of CSV or TSV, or their labels. A list that another program has written as
/// text stays text.
pub(super) fn spaced(text: String) -> Cell {
    if written_list(text.trim()) {
        Cell::Text(text)
    } else {
        Cell::List(text.split_whitespace().map(|word| Cell::Text(word.into())).collect())
    }
}

/// Whether `text` is a list or an object as Python or JSON writes it, such as `['a', 'b']`, and no
/// name or word in brackets.
pub(crate) fn written_list(text: &str) -> bool {
    let inner = |open, close| text.strip_prefix(open).and_then(|rest| rest.strip_suffix(close)).map(str::trim_start);
    let begins =
        |inner: &str, more: &str| inner.starts_with(|first: char| more.contains(first) || first.is_ascii_digit());
    inner('[', ']').is_some_and(|inner| inner.is_empty() || begins(inner, "'\"[{(-"))
        || inner('{', '}').is_some_and(|inner| inner.is_empty() || begins(inner, "'\""))
        || inner('(', ')').is_some_and(|inner| begins(inner, "'\""))
}

pub(crate) type Rows = Box<dyn Iterator<Item = Result<Row>> + Send>;

pub(super) fn no_json(name: &str, got: impl fmt::Display) -> Error {
    Error::data(format!("column {name:?}: expected values of JSON, got {got}"))
}

pub(super) fn not_text(name: &str, got: &str) -> Error {
    Error::data(format!("column {name:?}: expected text, got {got}"))
}
