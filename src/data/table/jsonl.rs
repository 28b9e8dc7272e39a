//! JSON lines: an object a line.

use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::{Cell, Columns, MAX_ROW_BYTES, Place, Row, Rows, missing, not_text, too_long, words};
use crate::base::error::{Error, Result};
use crate::base::files::{Decoded, read_error};
use crate::data::text_chunks::{MARK, utf16};
use crate::data::text_lines::{TextLines, read_line};

/// The rows of `file`; empty lines are skipped.
pub(super) fn rows(file: &Path, columns: &Columns) -> Result<Rows> {
    let path: Arc<Path> = file.into();
    let opened = Decoded::open(file).map_err(|error| read_error(file, &error))?;
    let columns = columns.clone();
    let mut reader = BufReader::new(opened);
    let lines = std::iter::from_fn(move || {
        let mut line = Vec::new();
        read_line(&mut reader, &mut line).map(|read| (read > 0).then_some(line)).transpose()
    });
    Ok(Box::new(lines.enumerate().filter_map(move |(index, line)| {
        let place = Place { file: path.clone(), unit: "line", number: index as u64 + 1 };
        match line {
            Err(error) => Some(Err(read_error(&path, &error))),
            Ok(line) if line.len() > MAX_ROW_BYTES => Some(Err(too_long(place))),
            Ok(line) if line.iter().all(u8::is_ascii_whitespace) => None,
            Ok(line) => Some(row(&line, &columns, &place).map_err(|error| error.at(&place))),
        }
    })))
}

/// The names in the first row of `file`; none where it cannot be read.
pub(super) fn names(file: &Path) -> Vec<String> {
    let first = TextLines::open(file).ok().and_then(|mut lines| lines.next()?.ok());
    let row = first.and_then(|line| serde_json::from_str::<Map<String, Value>>(&line.text).ok());
    row.into_iter().flat_map(|row| row.into_iter().map(|(name, _)| name)).collect()
}

fn row(line: &[u8], columns: &Columns, place: &Place) -> Result<Row> {
    let first = place.number == 1;
    let line = std::str::from_utf8(line).map_err(|error| {
        let at = error.valid_up_to();
        let got = utf16(at, line[at]).filter(|_| first);
        Error::data(format!(
            "expected UTF-8 text, got {}",
            got.map_or(format!("other bytes at byte {at}"), str::to_owned)
        ))
        .help("convert the file to UTF-8")
    })?;
    let line = if first { line.trim_start_matches(MARK) } else { line };
    let value = serde_json::from_str(line).map_err(|error| Error::data(format!("malformed JSON: {error}")))?;
    let Value::Object(mut object) = value else {
        return Err(Error::data("expected an object with the columns of the row, got another JSON value"));
    };
    if let Some(name) = columns.names().find(|name| !object.contains_key(*name)) {
        return Err(missing(name, &object.keys().cloned().collect::<Vec<_>>()));
    }
    let text = |object: &_, name: &_| if columns.json { json(object, name) } else { text(object, name) };
    let text_pair = columns.text_pair.as_deref().map(|name| text(&object, name)).transpose()?;
    let (text, parts) = match columns.words {
        true => (String::new(), words(&columns.text, cell(&columns.text, object[&columns.text].clone())?)?),
        false => {
            let choices = columns.choices.iter().map(|name| text(&object, name));
            (text(&object, &columns.text)?, choices.collect::<Result<_>>()?)
        }
    };
    let label = columns.label.as_ref().map(|name| cell(name, object.remove(name).unwrap_or_default())).transpose()?;
    Ok(Row { place: place.clone(), text, text_pair, parts, label })
}

fn json(object: &Map<String, Value>, name: &str) -> Result<String> {
    Ok(object[name].to_string())
}

fn text(object: &Map<String, Value>, name: &str) -> Result<String> {
    match &object[name] {
        Value::String(text) => Ok(text.clone()),
        // A field of CSV has no other way to say it.
        Value::Null => Ok(String::new()),
        other => Err(not_text(name, &other.to_string())),
    }
}

fn cell(name: &str, value: Value) -> Result<Cell> {
    match value {
        Value::Null => Ok(Cell::Null),
        Value::Bool(value) => Ok(Cell::Boolean(value)),
        Value::String(text) => Ok(Cell::Text(text)),
        Value::Number(number) => match number.as_i128() {
            Some(integer) => Ok(Cell::Integer(integer)),
            None => Ok(Cell::Number(number.as_f64().unwrap_or(f64::NAN))),
        },
        Value::Array(values) if !values.iter().any(Value::is_array) => {
            Ok(Cell::List(values.into_iter().map(|value| cell(name, value)).collect::<Result<_>>()?))
        }
        other => Err(Error::data(format!("column {name:?}: expected a name or a number, got {other}"))),
    }
}
