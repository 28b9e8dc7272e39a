//! Values of columns that have types, as parquet and Arrow store them, and the rows that are made
//! of them.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use kiln_core::error::{Error, Result};
use serde_json::Value as Json;

use super::columns::Columns;
use super::features::named;
use super::row::{Cell, Place, Row, Rows, no_json, not_text, words};

/// A value of a column.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Integer(i128),
    Number(f64),
    /// A number of 16 or 32 bits.
    Short(f32),
    /// The digits of a decimal.
    Decimal(String),
    Text(String),
    Bytes(Vec<u8>),
    List(Vec<Value>),
    Object(Vec<(String, Value)>),
    /// A value of another type, as messages show it.
    Other(String),
}

/// A value of each column that is read.
pub(super) type Record = Vec<(String, Value)>;

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Integer(value) => write!(f, "{value}"),
            Self::Number(value) => write!(f, "{value:?}"),
            Self::Short(value) => write!(f, "{value:?}"),
            Self::Decimal(text) | Self::Other(text) => f.write_str(text),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
            Self::List(values) => {
                let values = values.iter().map(Self::to_string).collect::<Vec<_>>();
                write!(f, "[{}]", values.join(", "))
            }
            Self::Object(fields) => {
                let fields = fields.iter().map(|(name, value)| format!("{name:?}: {value}")).collect::<Vec<_>>();
                write!(f, "{{{}}}", fields.join(", "))
            }
        }
    }
}

/// The rows that have these values, of a file with the columns `names`, with labels by the names of
/// their classes.
pub(super) fn of_rows(
    path: Arc<Path>,
    columns: Columns,
    names: Vec<String>,
    class_names: Option<Vec<String>>,
    records: impl Iterator<Item = Result<Record>> + Send + 'static,
) -> Rows {
    let as_json = columns.json;
    Box::new(records.enumerate().map(move |(index, record)| {
        let place = Place { file: path.clone(), unit: "row", number: index as u64 + 1 };
        let record = record?;
        let get = |name: &str| record.iter().find_map(|(column, value)| (column == name).then_some(value));
        let get = |name: &str| get(name).unwrap_or(&Value::Null);
        let text = |name: &str| if as_json { Ok(json(name, get(name))?.to_string()) } else { text(name, get(name)) };
        let label = |name: &str| match (cell(name, get(name))?, &class_names) {
            (cell, Some(names)) => named(cell, names),
            (cell, None) => Ok(cell),
        };
        let row = || {
            let (of_text, mut parts) = if columns.words {
                (String::new(), words(&columns.text, cell(&columns.text, get(&columns.text))?)?)
            } else {
                (text(&columns.text)?, columns.choices.iter().map(|name| text(name)).collect::<Result<_>>()?)
            };
            parts.extend(columns.rest(names.iter().map(String::as_str), |name| json(name, get(name)))?);
            let text_pair = columns.text_pair.as_deref().map(text).transpose()?;
            let label = columns.label.as_deref().map(label).transpose()?;
            Ok(Row { text: of_text, parts, text_pair, label, place: place.clone(), replaced: 0 })
        };
        row().map_err(|error: Error| error.at(&place))
    }))
}

fn text(name: &str, value: &Value) -> Result<String> {
    match value {
        Value::Text(text) => Ok(text.clone()),
        Value::Null => Ok(String::new()),
        Value::Bytes(bytes) => String::from_utf8(bytes.clone())
            .map_err(|_| Error::data(format!("column {name:?}: expected UTF-8 text, got other bytes"))),
        other => Err(not_text(name, &other.to_string())),
    }
}

/// A value as JSON.
///
/// # Errors
/// Bytes that are no UTF-8, and a value that JSON does not have, but for NaN, by which pandas says
/// that there is none.
fn json(name: &str, value: &Value) -> Result<Json> {
    Ok(match value {
        Value::Null => Json::Null,
        Value::Bool(value) => Json::from(*value),
        Value::Integer(value) => match i64::try_from(*value) {
            Ok(value) => Json::from(value),
            Err(_) => u64::try_from(*value).map_or(Json::Null, Json::from),
        },
        Value::Number(value) if value.is_infinite() => return Err(no_json(name, value)),
        Value::Short(value) if value.is_infinite() => return Err(no_json(name, value)),
        Value::Number(value) => Json::from(*value),
        Value::Short(value) => Json::from(*value),
        Value::Decimal(digits) => digits.parse::<f64>().map_or(Json::Null, Json::from),
        Value::Text(text) => Json::from(text.as_str()),
        Value::List(values) => values.iter().map(|value| json(name, value)).collect::<Result<_>>()?,
        Value::Object(fields) => {
            let field = |(of, value): &(String, Value)| Ok((of.clone(), json(name, value)?));
            Json::Object(fields.iter().map(field).collect::<Result<_>>()?)
        }
        Value::Bytes(_) | Value::Other(_) => Json::from(text(name, value)?),
    })
}

fn cell(name: &str, value: &Value) -> Result<Cell> {
    Ok(match value {
        Value::Null => Cell::Null,
        Value::Bool(value) => Cell::Boolean(*value),
        Value::Integer(value) => Cell::Integer(*value),
        // The number that has these digits: 0.1 in 32 bits is 0.1 in a text.
        Value::Short(value) => Cell::Number(value.to_string().parse().unwrap_or_else(|_| (*value).into())),
        Value::Number(value) => Cell::Number(*value),
        Value::Decimal(digits) => match digits.parse() {
            Ok(whole) => Cell::Integer(whole),
            Err(_) => Cell::Number(digits.parse().unwrap_or(f64::NAN)),
        },
        Value::Text(_) | Value::Bytes(_) => Cell::Text(text(name, value)?),
        Value::List(values) if !values.iter().any(|it| matches!(it, Value::List(_))) => {
            Cell::List(values.iter().map(|element| cell(name, element)).collect::<Result<_>>()?)
        }
        other => return Err(Error::data(format!("column {name:?}: expected a name or a number, got {other}"))),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn bytes_are_their_text_and_a_date_is_refused() {
        let object = |value| Value::List(vec![Value::Object(vec![("content".into(), value)])]);
        let text = json("messages", &object(Value::Bytes("Öl".into()))).unwrap();
        assert_eq!(text, serde_json::json!([{"content": "Öl"}]));
        for (value, part) in [(Value::Bytes(vec![0xff]), "UTF-8"), (Value::Other("a date".into()), "a date")] {
            let error = json("messages", &object(value)).unwrap_err().to_string();
            assert!(error.contains("messages") && error.contains(part), "{error}");
        }
    }
}
