//! `batch.json`: one batch of tokenized rows by column, for `kiln forward`. Read whole.

use std::path::Path;

use kiln_core::error::{Error, Result};
use kiln_core::files::{read_error, read_given, without_mark};
use serde_json::Value;

use super::read::malformed;
use super::{Limits, row};
use crate::PaddedBatch;
use crate::collate::collate;
use crate::padding::Padding;
use crate::task::Task;
use crate::text_chunks::not_utf8;

/// A batch that fits on a device has fewer.
const MAX_BATCH_BYTES: u64 = 1 << 28;

/// Reads a `batch.json`: columns as nested lists.
///
/// # Errors
/// A file that cannot be read, columns of different lengths, values that the task does not have.
pub fn read_batch(file: &Path, task: Task, limits: &Limits) -> Result<PaddedBatch> {
    let bytes = read_given(file, MAX_BATCH_BYTES).map_err(|error| read_error(file, &error))?;
    let text =
        std::str::from_utf8(&bytes).map_err(|error| not_utf8(file, error.valid_up_to(), bytes[error.valid_up_to()]))?;
    let json: Value = serde_json::from_str(without_mark(text)).map_err(|error| malformed(file, &error))?;
    let at = |error: Error| error.at(file.display());
    let Value::Object(columns) = json else {
        return Err(at(Error::data("expected an object of columns: input_ids, attention_mask, labels, ...")));
    };
    let rows = match columns.get("input_ids") {
        Some(Value::Array(rows)) if !rows.is_empty() => rows.len(),
        _ => return Err(at(Error::data("input_ids: expected a list of rows, each a list of token ids"))),
    };
    for (name, column) in &columns {
        let got = column.as_array().map(Vec::len);
        if got != Some(rows) {
            let got = got.map_or_else(|| "no list".to_string(), |len| format!("{len}"));
            return Err(at(Error::data(format!("{name}: expected {rows} rows, as input_ids has, got {got}"))));
        }
    }
    let mut examples = Vec::with_capacity(rows);
    for number in 0..rows {
        let object = columns.iter().map(|(name, column)| (name.clone(), column[number].clone())).collect();
        let place = |error: Error| error.at(format!("{} row {}", file.display(), number + 1));
        let example = row::of_value(Value::Object(object), task).map_err(place)?;
        limits.check(&example).map_err(place)?;
        examples.push(example);
    }
    collate(&examples, 0, &Padding::default(), 0).map_err(at)
}
