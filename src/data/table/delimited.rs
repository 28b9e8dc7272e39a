//! CSV and TSV rows.

use std::path::Path;
use std::sync::Arc;

use csv::{ByteRecord, ErrorKind, ReaderBuilder};

use super::{Cell, Columns, Place, Row, Rows};
use crate::error::{Error, Result};

/// The rows of `file`, whose fields `delimiter` separates. Quotes mean something only in CSV.
pub(super) fn rows(file: &Path, delimiter: u8, columns: &Columns) -> Result<Rows> {
    let path: Arc<Path> = file.into();
    let opened = std::fs::File::open(file).map_err(|error| Error::io(format!("read {}", file.display()), &error))?;
    let mut reader = ReaderBuilder::new().delimiter(delimiter).quoting(delimiter == b',').from_reader(opened);
    let header = reader.byte_headers().map_err(|error| malformed(&path, &error))?.clone();
    if header.is_empty() {
        return Err(Error::data(format!("{}: expected a first row with column names, got nothing", file.display())));
    }
    let place = Place { file: path.clone(), unit: "line", number: 1 };
    let names = (0..header.len()).map(|index| text(&header, index, "the column names").map_err(|e| e.at(&place)));
    let names = names.collect::<Result<Vec<_>>>()?;
    let (text_at, pair_at, label_at) = columns.find(&names, file.display())?;
    Ok(Box::new(reader.into_byte_records().map(move |record| {
        let record = record.map_err(|error| malformed(&path, &error))?;
        let number = record.position().map_or(0, csv::Position::line);
        let place = Place { file: path.clone(), unit: "line", number };
        let get = |index: usize| {
            text(&record, index, &format!("column {:?}", names[index])).map_err(|error| error.at(&place))
        };
        let label = label_at.map(&get).transpose()?;
        let label = label.map(|label| if label.is_empty() { Cell::Null } else { Cell::Text(label) });
        Ok(Row { text: get(text_at)?, text_pair: pair_at.map(&get).transpose()?, label, place })
    })))
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

fn malformed(file: &Arc<Path>, error: &csv::Error) -> Error {
    match error.kind() {
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
