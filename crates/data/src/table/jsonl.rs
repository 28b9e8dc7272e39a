//! JSON rows: an object a line, or a file that is one list of objects, or one object whose `data`
//! is that list.

use std::borrow::Cow;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::sync::Arc;

use kiln_core::error::{Error, Result};
use kiln_core::files::{Decoded, FROM_UTF16, MARK_BYTES, read_error, utf16, without_mark};
use kiln_core::words::shortened;
use serde_json::{Map, Value};

use super::columns::Columns;
use super::row::{Cell, Place, Row, Rows, no_json, not_text, words};
use crate::settings::Errors;
use crate::text_lines::{MAX_ROW_BYTES, TextLines, read_line, too_long};
use crate::utf8::text_of;

/// The rows of `file`; empty lines are skipped.
pub(super) fn rows(file: &Path, columns: &Columns, errors: Errors) -> Result<Rows> {
    let path: Arc<Path> = file.into();
    match List::open(&path, columns)? {
        Some(list) => Ok(of_list(list, columns.clone(), errors)),
        None => of_lines(path, columns.clone(), errors),
    }
}

fn open(path: &Path) -> Result<BufReader<Decoded>> {
    Ok(BufReader::new(Decoded::open(path).map_err(|error| read_error(path, &error))?))
}

fn of_lines(path: Arc<Path>, columns: Columns, errors: Errors) -> Result<Rows> {
    let mut reader = open(&path)?;
    let lines = std::iter::from_fn(move || {
        let mut line = Vec::new();
        read_line(&mut reader, &mut line).map(|read| (read > 0).then_some(line)).transpose()
    });
    Ok(Box::new(lines.enumerate().filter_map(move |(index, line)| {
        let place = Place { file: path.clone(), unit: "line", number: index as u64 + 1 };
        match line {
            Err(error) => Some(Err(read_error(&path, &error))),
            Ok(line) if line.len() > MAX_ROW_BYTES => Some(Err(too_long(place))),
            // A byte-order mark begins the file, or one that was joined to it.
            Ok(line) => match line.strip_prefix(&MARK_BYTES).unwrap_or(&line) {
                line if line.iter().all(u8::is_ascii_whitespace) => None,
                line => {
                    let read = value(line, None, index == 0, errors);
                    let row = read.and_then(|(value, replaced)| row(value, &columns, &place, replaced));
                    Some(row.map_err(|error| error.at(&place)))
                }
            },
        }
    })))
}

/// The names in the first row of `file`; none where it cannot be read.
pub(super) fn names(file: &Path) -> Vec<String> {
    let first = match List::open(&file.into(), &Columns::default()) {
        Ok(Some(mut list)) => list.next().ok().flatten().and_then(|(bytes, _)| String::from_utf8(bytes).ok()),
        _ => TextLines::open(file).ok().and_then(|mut lines| Some(lines.next()?.ok()?.text)),
    };
    let row = first.and_then(|text| serde_json::from_str::<Map<String, Value>>(&text).ok());
    row.into_iter().flat_map(|row| row.into_iter().map(|(name, _)| name)).collect()
}

fn of_list(mut list: List, columns: Columns, errors: Errors) -> Rows {
    let mut is_over = false;
    Box::new(std::iter::from_fn(move || {
        if is_over {
            return None;
        }
        let place = Place { file: list.path.clone(), unit: "row", number: list.rows + 1 };
        let row = list.next().transpose()?.and_then(|(bytes, line)| {
            let (value, replaced) = value(&bytes, Some(line), false, errors)?;
            let value = match value {
                // `datasets` makes rows of a list of texts.
                Value::String(text) => Value::Object(Map::from_iter([("text".to_owned(), text.into())])),
                value => value,
            };
            row(value, &columns, &place, replaced)
        });
        is_over = row.is_err();
        Some(row.map_err(|error| error.at(&place)))
    }))
}

/// Whether the JSON in `file` is rows: a list of objects, or an object in each of its first two
/// lines.
pub(crate) fn has_rows(file: &Path) -> bool {
    let is_row = |text: &[u8]| serde_json::from_slice::<Map<String, Value>>(text).is_ok();
    if let Ok(Some(mut list)) = List::open(&file.into(), &Columns::default()) {
        return matches!(list.next(), Ok(Some((row, _))) if is_row(&row));
    }
    let lines = TextLines::open(file).into_iter().flatten().take(2);
    lines.filter(|line| line.as_ref().is_ok_and(|line| is_row(line.text.as_bytes()))).count() == 2
}

/// The value that is written in `bytes`, and how many sequences of them are replaced as `errors`
/// says; of an element of a list, with the line at which it begins.
fn value(bytes: &[u8], line: Option<u64>, is_first: bool, errors: Errors) -> Result<(Value, u64)> {
    let (text, replaced) = text_of(bytes, is_first, errors).map_err(|error| {
        let at = error.valid_up_to();
        let got = utf16(at, bytes[at]).filter(|_| is_first);
        Error::data(format!(
            "expected UTF-8 text, got {}",
            got.map_or(format!("other bytes at byte {at}"), str::to_owned)
        ))
        .help(match got {
            Some(_) => FROM_UTF16,
            None => "convert the file to UTF-8; a run with data.errors = \"replace\" reads such bytes as U+FFFD",
        })
    })?;
    // The parser would count the end of the line as the beginning of another one.
    let text = text.trim_end();
    let parsed = serde_json::from_str(text);
    let parsed = parsed.or_else(|error| serde_json::from_str(&with_marks(text).ok_or(error)?));
    parsed.map(|value| (value, replaced)).map_err(|error| malformed(text, line, &error))
}

/// The error of a `text` that is no JSON.
pub(crate) fn malformed(text: &str, line: Option<u64>, error: &serde_json::Error) -> Error {
    let within = line.map_or(String::new(), |line| format!("line {} ", line + error.line() as u64 - 1));
    let rest = text.split('\n').nth(error.line() - 1).unwrap_or_default();
    let at = rest.char_indices().map(|(at, _)| at).find(|at| at + 1 >= error.column()).unwrap_or(rest.len());
    // From the beginning of the word that is wrong.
    let before = rest[..at].char_indices().rev().find(|(_, char)| !char.is_alphanumeric());
    let rest = &rest[before.map_or(0, |(at, char)| at + char.len_utf8())..];
    let shown = rest.trim_end().chars().take(24).collect::<String>();
    let got =
        if error.is_eof() || shown.is_empty() { "a value that is not closed".to_owned() } else { format!("{shown:?}") };
    let error = Error::data(format!("malformed JSON: {within}column {}: expected JSON, got {got}", error.column()));
    error.help("a row is an object in one line, or an element of a file that is one list of objects")
}

/// The numbers that Python writes and JSON does not have, with marks that stand for them in a
/// [`Value`].
const NO_JSON: [(&str, &str, f64); 3] = [
    ("NaN", "\0NaN", f64::NAN),
    ("-Infinity", "\0-Infinity", f64::NEG_INFINITY),
    ("Infinity", "\0Infinity", f64::INFINITY),
];

/// `text` with marks in place of the numbers that JSON does not have; none where it has none of
/// them.
fn with_marks(text: &str) -> Option<String> {
    let (mut marked, mut rest, mut is_any) = (String::with_capacity(text.len() + 16), text, false);
    let (mut in_text, mut is_escaped) = (false, false);
    while let Some(next) = rest.chars().next() {
        if let Some((name, ..)) = NO_JSON.iter().find(|(name, ..)| !in_text && rest.starts_with(name)) {
            marked += &format!("\"\\u0000{name}\"");
            (rest, is_any) = (&rest[name.len()..], true);
            continue;
        }
        in_text ^= next == '"' && !is_escaped;
        is_escaped = in_text && next == '\\' && !is_escaped;
        marked.push(next);
        rest = &rest[next.len_utf8()..];
    }
    is_any.then_some(marked)
}

/// The number that `text` is a mark of.
fn number_of(text: &str) -> Option<(&'static str, f64)> {
    NO_JSON.iter().find(|(_, mark, _)| *mark == text).map(|(name, _, number)| (*name, *number))
}

fn row(value: Value, columns: &Columns, place: &Place, replaced: u64) -> Result<Row> {
    let Value::Object(mut object) = value else {
        return Err(Error::data(format!("expected an object with the columns of the row, got {}", shortened(&value))));
    };
    // Writers leave out what is null, so a column of labels is one that the first row has.
    let may_lack = |name: &str| {
        let is_label =
            columns.label.as_deref() == Some(name) && columns.names().filter(|other| *other == name).count() == 1;
        is_label && place.number > 1
    };
    if let Some(name) = columns.names().find(|name| !object.contains_key(*name) && !may_lack(name)) {
        return Err(columns.missing(name, &object.keys().cloned().collect::<Vec<_>>()));
    }
    let text = |object: &Map<String, Value>, name: &str| {
        if columns.json { Ok(json(name, &object[name])?.to_string()) } else { text(object, name) }
    };
    let text_pair = columns.text_pair.as_deref().map(|name| text(&object, name)).transpose()?;
    let (text, mut parts) = if columns.words {
        (String::new(), words(&columns.text, cell(&columns.text, object[&columns.text].clone())?)?)
    } else {
        let choices = columns.choices.iter().map(|name| text(&object, name));
        (text(&object, &columns.text)?, choices.collect::<Result<_>>()?)
    };
    let keys = object.keys().map(String::as_str);
    parts.extend(columns.rest(keys, |name| json(name, &object[name]))?);
    let label = columns.label.as_ref().map(|name| cell(name, object.remove(name).unwrap_or_default())).transpose()?;
    Ok(Row { place: place.clone(), text, text_pair, parts, label, replaced })
}

/// `value` of the column `name` with null for NaN, by which Python says that there is none.
///
/// # Errors
/// Another number that JSON does not have.
fn json(name: &str, value: &Value) -> Result<Value> {
    Ok(match value {
        Value::String(text) => match number_of(text) {
            Some((_, number)) if number.is_nan() => Value::Null,
            Some((number, _)) => return Err(no_json(name, number)),
            None => value.clone(),
        },
        Value::Array(values) => values.iter().map(|value| json(name, value)).collect::<Result<_>>()?,
        Value::Object(fields) => {
            let field = |(key, value): (&String, &Value)| Ok((key.clone(), json(name, value)?));
            Value::Object(fields.iter().map(field).collect::<Result<_>>()?)
        }
        other => other.clone(),
    })
}

fn text(object: &Map<String, Value>, name: &str) -> Result<String> {
    match &object[name] {
        Value::String(text) => match number_of(text) {
            Some((number, _)) => Err(not_text(name, number)),
            None => Ok(text.clone()),
        },
        // A field of CSV has no other way to say it.
        Value::Null => Ok(String::new()),
        other => Err(with_help(not_text(name, &shortened(other)), other)),
    }
}

/// `error` of a `value` that is no cell, with the way to one where the value is of a kind that
/// tools of annotation write.
fn with_help(error: Error, value: &Value) -> Error {
    match value {
        Value::Object(_) => error.help(
            "write the text and the label into columns of their own; Label Studio's exports JSON-MIN and CSV have them so",
        ),
        Value::Array(values) if values.iter().any(Value::is_array) => error.help(
            "spans of characters, as doccano writes them, are no labels here: write a list of words, and beside it a list with \
             a label for each word, for the task token-classification",
        ),
        _ => error,
    }
}

/// `value` of the column `name` as a cell.
///
/// # Errors
/// An object, and a list of lists.
pub(crate) fn cell(name: &str, value: Value) -> Result<Cell> {
    match value {
        Value::Null => Ok(Cell::Null),
        Value::Bool(value) => Ok(Cell::Boolean(value)),
        Value::String(text) => match number_of(&text) {
            Some((_, number)) => Ok(Cell::Number(number)),
            None => Ok(Cell::Text(text)),
        },
        Value::Number(number) => match number.as_i128() {
            Some(integer) => Ok(Cell::Integer(integer)),
            None => Ok(Cell::Number(number.as_f64().unwrap_or(f64::NAN))),
        },
        Value::Array(values) if !values.iter().any(Value::is_array) => {
            Ok(Cell::List(values.into_iter().map(|value| cell(name, value)).collect::<Result<_>>()?))
        }
        other => {
            let error = Error::data(format!("column {name:?}: expected a name or a number, got {}", shortened(&other)));
            Err(with_help(error, &other))
        }
    }
}

/// A list of rows as it is read, of which nothing but a row is held in memory.
struct List {
    path: Arc<Path>,
    file: BufReader<Decoded>,
    /// The line of the next byte, from 1.
    line: u64,
    /// Rows that are read.
    rows: u64,
    /// Whether the list is the whole file, so that nothing may follow it.
    is_file: bool,
    is_over: bool,
}

impl List {
    /// The list that the file at `path` is, or that its `data` is; none for lines, and for what is
    /// neither.
    fn open(path: &Arc<Path>, columns: &Columns) -> Result<Option<Self>> {
        let mut list = Self { path: path.clone(), file: open(path)?, line: 1, rows: 0, is_file: true, is_over: false };
        let head = list.file.fill_buf().map_err(|error| read_error(path, &error))?;
        if head.starts_with(&MARK_BYTES) {
            list.file.consume(MARK_BYTES.len());
        }
        match list.after_space()? {
            Some(b'[') => {
                list.take();
                return Ok(Some(list));
            }
            Some(b'{') if list.begins_with_rows(columns)? => return Ok(None),
            Some(b'{') => {}
            _ => return Ok(None),
        }
        // What cannot be read this way is told as a line that cannot be read.
        let has_data = list.find_data().unwrap_or(false);
        Ok(has_data.then_some(Self { is_file: false, ..list }))
    }

    /// Whether the first line is a row of its own.
    fn begins_with_rows(&self, columns: &Columns) -> Result<bool> {
        let (mut reader, mut line) = (open(&self.path)?, Vec::new());
        for _ in 0..self.line {
            line.clear();
            read_line(&mut reader, &mut line).map_err(|error| read_error(&self.path, &error))?;
        }
        let text = String::from_utf8_lossy(&line);
        let text = without_mark(&text);
        let text = with_marks(text).map_or(Cow::Borrowed(text), Cow::Owned);
        Ok(serde_json::from_str::<Map<String, Value>>(&text).is_ok_and(|object| {
            let is_row = |value: &Value| value.is_object();
            let has_list = object.get("data").and_then(Value::as_array).is_some_and(|list| list.iter().all(is_row));
            !has_list || columns.names().all(|name| object.contains_key(name))
        }))
    }

    /// Goes on to the first row of `data`, of an object that is the file; false where it has none.
    fn find_data(&mut self) -> Result<bool> {
        self.take();
        loop {
            self.after_space()?;
            let key = self.value()?;
            if self.after_space()? != Some(b':') {
                return Ok(false);
            }
            self.take();
            if self.after_space()? == Some(b'[') && key == b"\"data\"" {
                self.take();
                return Ok(true);
            }
            self.value()?;
            if self.after_space()? != Some(b',') {
                return Ok(false);
            }
            self.take();
        }
    }

    /// The next row and the line at which it begins.
    fn next(&mut self) -> Result<Option<(Vec<u8>, u64)>> {
        if self.is_over {
            return Ok(None);
        }
        let wrong = |list: &Self, expected: &str, got: Option<u8>| {
            let got = got.map_or("the end of the file".to_owned(), |byte| format!("{:?}", char::from(byte)));
            Error::data(format!("malformed JSON: line {}: expected {expected}, got {got}", list.line))
        };
        let mut next = self.after_space()?;
        if self.rows > 0 && next == Some(b',') {
            self.take();
            next = self.after_space()?;
            if next == Some(b']') {
                return Err(wrong(self, "a row after the comma", next));
            }
        } else if self.rows > 0 && next != Some(b']') {
            return Err(wrong(self, "a comma or the end of the list after a row", next));
        }
        if next == Some(b']') {
            self.take();
            self.is_over = true;
            return match self.after_space()?.filter(|_| self.is_file) {
                Some(byte) => Err(wrong(self, "nothing after the list", Some(byte))),
                None => Ok(None),
            };
        }
        let line = self.line;
        let value = self.value()?;
        if value.is_empty() {
            return Err(wrong(self, "a row", next));
        }
        self.rows += 1;
        Ok(Some((value, line)))
    }

    /// The next byte that is not white space, which is not taken; none at the end.
    fn after_space(&mut self) -> Result<Option<u8>> {
        loop {
            let next = self.peek()?;
            match next {
                Some(byte) if byte.is_ascii_whitespace() => self.take(),
                _ => return Ok(next),
            }
            self.line += u64::from(next == Some(b'\n'));
        }
    }

    fn peek(&mut self) -> Result<Option<u8>> {
        self.file.fill_buf().map(|buffer| buffer.first().copied()).map_err(|error| read_error(&self.path, &error))
    }

    fn take(&mut self) {
        self.file.consume(1);
    }

    /// The bytes of the value that begins here, which need not be one: brackets and quotes tell
    /// where it ends.
    fn value(&mut self) -> Result<Vec<u8>> {
        let (mut bytes, mut depth, mut in_text, mut is_escaped) = (Vec::new(), 0usize, false, false);
        while let Some(byte) = self.peek()? {
            if depth == 0 && !in_text && (b",:]}".contains(&byte) || byte.is_ascii_whitespace()) {
                break;
            }
            self.take();
            self.line += u64::from(byte == b'\n');
            bytes.push(byte);
            if bytes.len() > MAX_ROW_BYTES {
                return Err(too_long("the row"));
            }
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' if in_text => is_escaped = true,
                b'"' => in_text = !in_text,
                _ if in_text => {}
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                _ => {}
            }
        }
        Ok(bytes)
    }
}
