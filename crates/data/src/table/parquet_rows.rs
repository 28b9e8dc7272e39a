//! Rows of a parquet file. Only the named columns are decoded.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use kiln_core::caught;
use kiln_core::error::{Error, Result};
use kiln_core::files::{FileKind, read_error};
use parquet::basic::{Compression, ConvertedType, LogicalType, Type as PhysicalType};
use parquet::file::metadata::FileMetaData;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use parquet::schema::types::{Type, TypePtr};

use super::columns::Columns;
use super::features::{METADATA, check, features};
use super::row::Rows;
use super::typed::{Record, Value, of_rows};

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
        let kind = FileKind::at(file).filter(|kind| !kind.what.contains("Parquet"));
        let (why, help) = match kind {
            Some(kind) => (format!("it is {kind}"), kind.help),
            None => (
                "the index at its end cannot be read".to_owned(),
                "a download that was cut short must be made again; of another table, set its format in data.format",
            ),
        };
        Error::data(format!("{}: not a whole parquet file: {why}", file.display())).help(help)
    })?;
    let metadata = reader.metadata().file_metadata();
    let class_names = names_of_classes(file, metadata, columns)?;
    let schema = metadata.schema();
    let names = schema.get_fields().iter().map(|field| field.name().to_string()).collect::<Vec<_>>();
    columns.find(&names, file.display())?;
    // Of a column that is named twice, once as text and once as label, one copy is decoded.
    let wanted = schema.get_fields().iter().filter(|field| columns.has(field.name()));
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
    let file = path.clone();
    Ok(of_rows(
        path,
        columns.clone(),
        names,
        class_names,
        rows.map(move |row| Ok(record(&row.map_err(|_| damaged(&file))?))),
    ))
}

/// The names of the label's classes in the file at `path`, if it has any.
pub(super) fn class_names(path: &Path, columns: &Columns) -> Result<Option<Vec<String>>> {
    let opened = File::open(path).map_err(|error| read_error(path, &error))?;
    // What is wrong with the file, the rows tell.
    let Ok(Ok(reader)) = caught(|| SerializedFileReader::new(opened)) else { return Ok(None) };
    names_of_classes(path, reader.metadata().file_metadata(), columns)
}

fn names_of_classes(path: &Path, metadata: &FileMetaData, columns: &Columns) -> Result<Option<Vec<String>>> {
    let entries = metadata.key_value_metadata().into_iter().flatten();
    let text = entries.filter(|entry| entry.key == METADATA).find_map(|entry| entry.value.as_deref());
    match text.map(|text| features(path, text)).transpose()?.flatten() {
        Some(features) => check(columns, &features).map_err(|error| error.at(path.display())),
        None => Ok(None),
    }
}

/// Checks that the values of the column `name` are of types that are read. Others would be numbers
/// without their unit, or make the library panic.
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
        if columns.has(root) {
            return Err(Error::data(format!("column {root:?}: expected a codec such as snappy, zstd or lz4, got lzo"))
                .help("write the file again with the codec zstd"));
        }
    }
    Ok(())
}

/// A value of the library's as one of a table's.
fn value(field: &Field) -> Value {
    match field {
        Field::Null => Value::Null,
        Field::Bool(value) => Value::Bool(*value),
        Field::Byte(value) => Value::Integer((*value).into()),
        Field::Short(value) => Value::Integer((*value).into()),
        Field::Int(value) => Value::Integer((*value).into()),
        Field::Long(value) => Value::Integer((*value).into()),
        Field::UByte(value) => Value::Integer((*value).into()),
        Field::UShort(value) => Value::Integer((*value).into()),
        Field::UInt(value) => Value::Integer((*value).into()),
        Field::ULong(value) => Value::Integer((*value).into()),
        Field::Float16(value) => Value::Short(value.to_f32()),
        Field::Float(value) => Value::Short(*value),
        Field::Double(value) => Value::Number(*value),
        Field::Decimal(_) => Value::Decimal(field.to_string()),
        Field::Str(text) => Value::Text(text.clone()),
        Field::Bytes(bytes) => Value::Bytes(bytes.data().to_vec()),
        Field::ListInternal(list) => Value::List(list.elements().iter().map(value).collect()),
        Field::Group(row) => Value::Object(record(row)),
        other => Value::Other(other.to_string()),
    }
}

fn record(row: &parquet::record::Row) -> Record {
    row.get_column_iter().map(|(name, field)| (name.clone(), value(field))).collect()
}

fn damaged(file: &Path) -> Error {
    Error::data(format!("{}: damaged parquet file: its columns cannot be decoded", file.display()))
        .help("make the download or the export again")
}
