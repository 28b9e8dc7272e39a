//! Rows of a parquet file. Only the named columns are decoded.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, ConvertedType, LogicalType, Type as PhysicalType};
use parquet::file::metadata::FileMetaData;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use parquet::schema::types::{Type, TypePtr};

use serde_json::Value;

use super::features::{check, features, named};
use super::{Cell, Columns, Place, Row, Rows, not_text, words};
use crate::base::caught;
use crate::base::error::{Error, Result};
use crate::base::files::read_error;

/// The rows of `file`. Values that do not fit together make the library panic.
pub(super) fn rows(file: &Path, columns: &Columns) -> Result<Rows> {
    let path: Arc<Path> = file.into();
    let mut rows = Some(caught(|| open(&path, columns)).unwrap_or_else(|_| Err(damaged(&path)))?);
    Ok(Box::new(std::iter::from_fn(move || {
        let row = caught(|| rows.as_mut()?.next()).unwrap_or_else(|_| Some(Err(damaged(&path))));
        // A reader that has panicked is not used again.
        if !matches!(row, Some(Ok(_))) {
            rows = None;
        }
        row
    })))
}

/// The names of the columns of `file`; none where it cannot be read.
pub(super) fn names(file: &Path) -> Vec<String> {
    let Ok(opened) = File::open(file) else { return Vec::new() };
    let read = caught(|| SerializedFileReader::new(opened));
    let Ok(Ok(reader)) = read else { return Vec::new() };
    let fields = reader.metadata().file_metadata().schema().get_fields();
    fields.iter().map(|field| field.name().to_owned()).collect()
}

fn open(path: &Arc<Path>, columns: &Columns) -> Result<Rows> {
    let (file, path) = (&**path, path.clone());
    let opened = File::open(file).map_err(|error| read_error(file, &error))?;
    let reader = SerializedFileReader::new(opened).map_err(|_| {
        Error::data(format!("{}: not a whole parquet file: the index at its end cannot be read", file.display()))
            .help("a download that was cut short must be made again")
    })?;
    let metadata = reader.metadata().file_metadata();
    let class_names = names_of_classes(file, metadata, columns)?;
    let schema = metadata.schema();
    let names = schema.get_fields().iter().map(|field| field.name().to_string()).collect::<Vec<_>>();
    columns.find(&names, file.display())?;
    // Of a column that is named twice, once as text and once as label, one copy is decoded.
    let wanted = schema.get_fields().iter().filter(|field| {
        columns.names().any(|name| name == field.name()) || columns.beside.iter().any(|name| name == field.name())
    });
    let wanted = wanted.cloned().collect::<Vec<_>>();
    let as_json = columns.json;
    let is_list = |field: &TypePtr| field.get_basic_info().converted_type() == ConvertedType::LIST;
    if let Some(nested) = wanted.iter().find(|field| !as_json && !field.is_primitive() && !is_list(field)) {
        let message =
            format!("{}: column {:?}: expected text or numbers, got a nested type", path.display(), nested.name());
        return Err(Error::data(message));
    }
    for field in &wanted {
        check_types(field.name(), field).map_err(|error| error.at(file.display()))?;
    }
    check_codecs(&reader, columns).map_err(|error| error.at(file.display()))?;
    let projection = Type::group_type_builder(schema.name()).with_fields(wanted).build();
    let rows = projection.and_then(|projection| reader.into_iter().project(Some(projection)));
    let rows = rows.map_err(|_| damaged(&path))?;
    let columns = columns.clone();
    Ok(Box::new(rows.enumerate().map(move |(index, record)| {
        let place = Place { file: path.clone(), unit: "row", number: index as u64 + 1 };
        let record = record.map_err(|_| damaged(&path))?;
        let get = |name: &str| record.get_column_iter().find_map(|(column, field)| (column == name).then_some(field));
        let get = |name: &str| get(name).unwrap_or(&Field::Null);
        let text = |name: &str| {
            let text = if as_json { Ok(json(get(name)).to_string()) } else { text(name, get(name)) };
            text.map_err(|error| error.at(&place))
        };
        let label = |name: &str| match (cell(name, get(name))?, &class_names) {
            (cell, Some(names)) => named(cell, names),
            (cell, None) => Ok(cell),
        };
        let (of_text, mut parts) = match columns.words {
            true => {
                let name = &columns.text;
                let words = cell(name, get(name)).and_then(|cell| words(name, cell));
                (String::new(), words.map_err(|error| error.at(&place))?)
            }
            false => (text(&columns.text)?, columns.choices.iter().map(|name| text(name)).collect::<Result<_>>()?),
        };
        parts.extend(columns.rest(names.iter().map(String::as_str), |name| Ok(json(get(name))))?);
        Ok(Row {
            text: of_text,
            parts,
            text_pair: columns.text_pair.as_deref().map(text).transpose()?,
            label: columns.label.as_ref().map(|name| label(name)).transpose().map_err(|e| e.at(&place))?,
            place,
        })
    })))
}

/// The names of the label's classes in the file at `path`, if it has any.
pub(super) fn class_names(path: &Path, columns: &Columns) -> Result<Option<Vec<String>>> {
    let opened = File::open(path).map_err(|error| read_error(path, &error))?;
    // What is wrong with the file, the rows tell.
    let Ok(Ok(reader)) = caught(|| SerializedFileReader::new(opened)) else { return Ok(None) };
    names_of_classes(path, reader.metadata().file_metadata(), columns)
}

fn names_of_classes(path: &Path, metadata: &FileMetaData, columns: &Columns) -> Result<Option<Vec<String>>> {
    match features(path, metadata)? {
        Some(features) => check(columns, &features).map_err(|error| error.at(path.display())),
        None => Ok(None),
    }
}

/// Checks that the values of the column `name` are of types that are read. Others would be numbers without their unit, or make the
/// library panic.
fn check_types(name: &str, field: &Type) -> Result<()> {
    if field.is_group() {
        return field.get_fields().iter().try_for_each(|inner| check_types(name, inner));
    }
    let info = field.get_basic_info();
    let kind = match (info.logical_type_ref(), info.converted_type()) {
        (Some(LogicalType::Timestamp(_)), _)
        | (_, ConvertedType::TIMESTAMP_MILLIS | ConvertedType::TIMESTAMP_MICROS) => "timestamp",
        (Some(LogicalType::Time(_)), _) | (_, ConvertedType::TIME_MILLIS | ConvertedType::TIME_MICROS) => "time of day",
        (Some(LogicalType::Date), _) | (_, ConvertedType::DATE) => "date",
        (_, ConvertedType::INTERVAL) => "interval",
        _ if field.get_physical_type() == PhysicalType::INT96 => "timestamp (int96)",
        _ => return Ok(()),
    };
    Err(Error::data(format!("column {name:?}: expected text or numbers, got values of the type {kind}"))
        .help("write the column as text or as a number, for example with `astype(str)` of pandas"))
}

/// Checks that the columns that are read are compressed by a codec that Kiln has.
fn check_codecs(reader: &SerializedFileReader<File>, columns: &Columns) -> Result<()> {
    let metadata = reader.metadata();
    let chunks = metadata.row_groups().iter().flat_map(|group| group.columns());
    for chunk in chunks.filter(|chunk| chunk.compression() == Compression::LZO) {
        let root = chunk.column_path().parts().first().map(String::as_str).unwrap_or_default();
        if columns.names().any(|name| name == root) {
            return Err(Error::data(format!("column {root:?}: expected a codec such as snappy, zstd or lz4, got lzo"))
                .help("write the file again with the codec zstd"));
        }
    }
    Ok(())
}

fn text(name: &str, field: &Field) -> Result<String> {
    match field {
        Field::Str(text) => Ok(text.clone()),
        Field::Null => Ok(String::new()),
        Field::Bytes(bytes) => String::from_utf8(bytes.data().to_vec())
            .map_err(|_| Error::data(format!("column {name:?}: expected UTF-8 text, got other bytes"))),
        other => Err(not_text(name, &other.to_string())),
    }
}

/// A field of any type as JSON.
fn json(field: &Field) -> Value {
    match field {
        Field::Str(text) => Value::from(text.as_str()),
        Field::Bool(value) => Value::from(*value),
        Field::Byte(value) => Value::from(*value),
        Field::Short(value) => Value::from(*value),
        Field::Int(value) => Value::from(*value),
        Field::Long(value) => Value::from(*value),
        Field::UByte(value) => Value::from(*value),
        Field::UShort(value) => Value::from(*value),
        Field::UInt(value) => Value::from(*value),
        Field::ULong(value) => Value::from(*value),
        Field::Float16(value) => Value::from(value.to_f64()),
        Field::Float(value) => Value::from(*value),
        Field::Double(value) => Value::from(*value),
        Field::Decimal(_) => field.to_string().parse::<f64>().map_or(Value::Null, Value::from),
        Field::Null => Value::Null,
        Field::ListInternal(list) => list.elements().iter().map(json).collect(),
        Field::Group(row) => {
            Value::Object(row.get_column_iter().map(|(name, field)| (name.clone(), json(field))).collect())
        }
        other => Value::from(other.to_string()),
    }
}

fn cell(name: &str, field: &Field) -> Result<Cell> {
    Ok(match field {
        Field::Null => Cell::Null,
        Field::Bool(value) => Cell::Boolean(*value),
        Field::Byte(value) => Cell::Integer((*value).into()),
        Field::Short(value) => Cell::Integer((*value).into()),
        Field::Int(value) => Cell::Integer((*value).into()),
        Field::Long(value) => Cell::Integer((*value).into()),
        Field::UByte(value) => Cell::Integer((*value).into()),
        Field::UShort(value) => Cell::Integer((*value).into()),
        Field::UInt(value) => Cell::Integer((*value).into()),
        Field::ULong(value) => Cell::Integer((*value).into()),
        Field::Float16(value) => Cell::Number(value.to_string().parse().unwrap_or_else(|_| value.to_f64())),
        Field::Decimal(_) => match field.to_string().parse() {
            Ok(whole) => Cell::Integer(whole),
            Err(_) => Cell::Number(field.to_string().parse().unwrap_or(f64::NAN)),
        },
        // The number that has these digits: 0.1 in 32 bits is 0.1 in a text.
        Field::Float(value) => Cell::Number(value.to_string().parse().unwrap_or_else(|_| (*value).into())),
        Field::Double(value) => Cell::Number(*value),
        Field::Str(_) | Field::Bytes(_) => Cell::Text(text(name, field)?),
        Field::ListInternal(list) if !list.elements().iter().any(|it| matches!(it, Field::ListInternal(_))) => {
            Cell::List(list.elements().iter().map(|element| cell(name, element)).collect::<Result<_>>()?)
        }
        other => return Err(Error::data(format!("column {name:?}: expected a name or a number, got {other}"))),
    })
}

fn damaged(file: &Path) -> Error {
    Error::data(format!("{}: damaged parquet file: its columns cannot be decoded", file.display()))
        .help("make the download or the export again")
}
