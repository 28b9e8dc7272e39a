//! CSV and TSV rows.

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use csv::{ByteRecord, ErrorKind, ReaderBuilder};

use super::{Cell, Columns, MAX_ROW_BYTES, Place, Row, Rows, spaced, too_long};
use crate::base::error::{Error, Result};
use crate::base::files::{Decoded, read_error};
use crate::data::text_chunks::{not_utf8, utf16};

/// The rows of `file`, whose fields `delimiter` separates. Quotes mean something only in CSV.
pub(super) fn rows(file: &Path, delimiter: u8, columns: &Columns) -> Result<Rows> {
    let path: Arc<Path> = file.into();
    let opened = Decoded::open(file).map_err(|error| read_error(file, &error))?;
    let left = Arc::new(AtomicUsize::new(MAX_ROW_BYTES));
    let limited = Limited { file: opened, left: left.clone() };
    let mut reader = ReaderBuilder::new().delimiter(delimiter).quoting(delimiter == b',').from_reader(limited);
    let header = reader.byte_headers().map_err(|error| malformed(&path, 1, &error))?.clone();
    if header.is_empty() {
        return Err(Error::data(format!("{}: expected a first row with column names, got nothing", file.display())));
    }
    // The reader takes a mark of UTF-8 away itself.
    if let Some(byte) = header[0].first().filter(|byte| utf16(0, **byte).is_some()) {
        return Err(not_utf8(file, 0, *byte));
    }
    let place = Place { file: path.clone(), unit: "line", number: 1 };
    let names = (0..header.len()).map(|index| text(&header, index, "the column names").map_err(|e| e.at(&place)));
    let names = names.collect::<Result<Vec<_>>>()?;
    let found = columns.find(&names, file.display())?;
    let (words, json) = (columns.words, columns.json);
    let of_kind = move |text: String| if json { serde_json::Value::from(text).to_string() } else { text };
    let mut records = reader.into_byte_records();
    let records = std::iter::from_fn(move || {
        left.store(MAX_ROW_BYTES, Ordering::Relaxed);
        let line = records.reader().position().line();
        records.next().map(|record| (line, record))
    });
    Ok(Box::new(records.map(move |(line, record)| {
        let record = record.map_err(|error| malformed(&path, line, &error))?;
        let number = record.position().map_or(line, csv::Position::line);
        let place = Place { file: path.clone(), unit: "line", number };
        let get = |index: usize| {
            text(&record, index, &format!("column {:?}", names[index])).map_err(|error| error.at(&place))
        };
        let label = found.label.map(&get).transpose()?.map(|label| match label.trim().is_empty() {
            true => Cell::Null,
            false if words => spaced(label),
            false => Cell::Text(label),
        });
        let text = of_kind(get(found.text)?);
        let (text, parts) = match words {
            true => (String::new(), super::words(&names[found.text], spaced(text)).map_err(|error| error.at(&place))?),
            false => (text, found.choices.iter().map(|at| get(*at)).collect::<Result<_>>()?),
        };
        Ok(Row { text, text_pair: found.text_pair.map(&get).transpose()?.map(of_kind), parts, label, place })
    })))
}

/// The names in the first row of `file`; none where it cannot be read.
pub(super) fn names(file: &Path, delimiter: u8) -> Vec<String> {
    let Ok(opened) = Decoded::open(file) else { return Vec::new() };
    let mut reader = ReaderBuilder::new().delimiter(delimiter).quoting(delimiter == b',').from_reader(opened);
    let names = reader.headers().map(|header| header.iter().map(str::to_owned).collect());
    names.unwrap_or_default()
}

fn text(record: &ByteRecord, index: usize, what: &str) -> Result<String> {
    let bytes = &record[index];
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        Error::data(format!("{what}: expected UTF-8 text, got the byte 0x{:02x} at byte {at} of the field", bytes[at]))
            .help("convert the file to UTF-8")
    });
    text.map(str::to_string)
}

/// A file of which no more is read than a row may have: the parser holds a row in memory whole.
struct Limited {
    file: Decoded,
    /// Bytes that may still be read for this row.
    left: Arc<AtomicUsize>,
}

impl Read for Limited {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.left.load(Ordering::Relaxed);
        if left == 0 {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let most = buffer.len().min(left);
        let read = self.file.read(&mut buffer[..most])?;
        self.left.store(left - read, Ordering::Relaxed);
        Ok(read)
    }
}

/// The error for `file`, whose row at `line` cannot be read.
fn malformed(file: &Arc<Path>, line: u64, error: &csv::Error) -> Error {
    match error.kind() {
        ErrorKind::Io(error) if error.kind() == io::ErrorKind::FileTooLarge => {
            too_long(Place { file: file.clone(), unit: "line", number: line })
        }
        ErrorKind::Io(error) => Error::io(format!("read {}", file.display()), error),
        ErrorKind::UnequalLengths { pos, expected_len, len } => {
            let number = pos.as_ref().map_or(0, csv::Position::line);
            let place = Place { file: file.clone(), unit: "line", number };
            Error::data(format!("{place}: expected {expected_len} columns, as the first row names, got {len}"))
                .help("a CSV field that holds a comma stands in double quotes; a TSV field cannot hold a tab")
        }
        _ => Error::data(format!("{}: {error}", file.display())),
    }
}
