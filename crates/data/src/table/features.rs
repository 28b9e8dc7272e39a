//! Features of `datasets`: what the columns of a table are, by the metadata that `datasets` and the
//! Hub write into parquet and Arrow files, and by `dataset_info.json`.

use std::path::Path;

use kiln_core::error::{Error, Result};
use kiln_core::names::{Answer, Name, NameTable, Unknown};
use serde_json::{Map, Value};

use super::columns::Columns;
use super::row::Cell;

/// The types of features, for columns that are read; the features of other columns change nothing.
pub static FEATURES: NameTable = NameTable {
    file: "features of datasets",
    source: "datasets 5.2",
    names: &[
        Name::honoured("Value", "text, numbers and booleans are read as the file stores them"),
        Name::honoured("ClassLabel", "an id of a label is read as its name, and the names become id2label"),
        Name::honoured("Sequence", "an older name of List"),
        Name::honoured("List", "words, their labels and messages are lists"),
        Name::honoured("LargeList", "it is a List with wider offsets"),
        Name::refused("Translation", "no task reads a text in several languages; name a column with one text"),
        Name::refused("TranslationVariableLanguages", "no task reads a text in several languages"),
        Name::refused("Array2D", "no task reads an array of numbers"),
        Name::refused("Array3D", "no task reads an array of numbers"),
        Name::refused("Array4D", "no task reads an array of numbers"),
        Name::refused("Array5D", "no task reads an array of numbers"),
        Name::refused("Audio", "no model of Kiln hears"),
        Name::refused("Image", "no model of Kiln sees"),
        Name::refused("Mesh", "no model of Kiln sees"),
        Name::refused("Video", "no model of Kiln sees"),
        Name::refused("Pdf", "the file stores a document and not its text"),
        Name::refused("Nifti", "no model of Kiln sees"),
        Name::refused("BioSequence", "the file stores records and not a text"),
        Name::refused("BioStructure", "the file stores records and not a text"),
        Name::refused("Json", "the file stores an object as text, which a prompt would show with its quotes"),
    ],
    unknown: Unknown::Refused,
};

/// The metadata in which `datasets` writes the features of a table.
pub(super) const METADATA: &str = "huggingface";

/// The features in the `text` of the metadata [`METADATA`] of the file at `path`.
///
/// # Errors
/// Metadata that are no features.
pub(super) fn features(path: &Path, text: &str) -> Result<Option<Map<String, Value>>> {
    let info = serde_json::from_str::<Value>(text).map_err(|_| {
        Error::data(format!(
            "{}: the metadata huggingface: expected JSON with features, got other text",
            path.display()
        ))
        .help("write the file again with `to_parquet` of datasets")
    })?;
    Ok(info.pointer("/info/features").and_then(Value::as_object).cloned())
}

/// Checks the types of the features of the columns that are read, and returns the names of the
/// label's classes.
///
/// # Errors
/// A type that is refused, and a ClassLabel without names.
pub(super) fn check(columns: &Columns, features: &Map<String, Value>) -> Result<Option<Vec<String>>> {
    for name in columns.names() {
        let mut types = Vec::new();
        features.get(name).into_iter().for_each(|feature| types_of(feature, &mut types));
        for found in types {
            let why = match FEATURES.answer(found, &found.into()) {
                Answer::Taken | Answer::Told(_) => continue,
                Answer::Refused(entry) => entry.why,
                Answer::Unknown => "Kiln does not know it",
            };
            return Err(Error::data(format!("column {name:?}: the type {found} of datasets is refused: {why}"))
                .help("name another column with data.text_column, data.text_pair_column or data.label_column"));
        }
    }
    let label = columns.label.as_ref().filter(|_| columns.class_names).and_then(|name| features.get(name));
    match label.and_then(class_label) {
        None => Ok(None),
        Some(feature) => {
            let names = feature.get("names").and_then(Value::as_array);
            let names = names.map(|names| names.iter().map(|name| name.as_str().map(str::to_owned)).collect());
            match names {
                Some(Some(names)) => Ok(Some(names)),
                _ => Err(Error::data(format!(
                    "column {:?}: expected a ClassLabel with names, got {feature}",
                    columns.label
                ))),
            }
        }
    }
}

/// The types within a feature; a dictionary of features has none of its own.
fn types_of<'a>(feature: &'a Value, types: &mut Vec<&'a str>) {
    match feature {
        Value::Object(object) => match object.get("_type") {
            Some(Value::String(name)) => {
                types.push(name);
                object.get("feature").into_iter().for_each(|inner| types_of(inner, types));
            }
            _ => object.values().for_each(|inner| types_of(inner, types)),
        },
        Value::Array(inner) => inner.iter().for_each(|inner| types_of(inner, types)),
        _ => {}
    }
}

/// The ClassLabel that a feature is, or that the elements of a list are.
fn class_label(feature: &Value) -> Option<&Value> {
    match feature {
        Value::Array(inner) => inner.first().and_then(class_label),
        Value::Object(object) if object.get("_type").is_some_and(|name| name == "ClassLabel") => Some(feature),
        Value::Object(object) => object.get("feature").and_then(class_label),
        _ => None,
    }
}

/// The label in `cell` by its name.
///
/// # Errors
/// An id without a name; -1 stays, which is none.
pub(super) fn named(cell: Cell, names: &[String]) -> Result<Cell> {
    match cell {
        Cell::List(cells) => Ok(Cell::List(cells.into_iter().map(|cell| named(cell, names)).collect::<Result<_>>()?)),
        Cell::Integer(-1) => Ok(cell),
        Cell::Integer(id) => match usize::try_from(id).ok().and_then(|id| names.get(id)) {
            Some(name) => Ok(Cell::Text(name.clone())),
            None => Err(Error::data(format!(
                "the label {id} has no name: the ClassLabel of the column has {}",
                names.len()
            ))
            .help("expected an id from 0; correct the row, or write the file again with datasets")),
        },
        other => Ok(other),
    }
}
