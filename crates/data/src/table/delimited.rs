//! CSV and TSV rows.

use std::cell::Cell as Slot;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::sync::Arc;

use kiln_core::error::{Error, Result};
use kiln_core::files::{Decoded, MARK_BYTES, read_error, utf16};
use kiln_core::told::tell_once;

use super::columns::Columns;
use super::row::{Cell, Place, Row, Rows, spaced};
use crate::settings::Errors;
use crate::text_chunks::not_utf8;
use crate::text_lines::{MAX_ROW_BYTES, too_long};
use crate::utf8::text_of;

/// The rows of `file`, whose fields `delimiter` separates. Quotes mean something only in CSV.
pub(super) fn rows(file: &Path, delimiter: u8, columns: &Columns, errors: Errors) -> Result<Rows> {
    let path: Arc<Path> = file.into();
    let mut records = Records { errors, ..Records::open(path.clone(), delimiter)? };
    if !records.read()? {
        return Err(Error::data(format!("{}: expected a first row with column names, got nothing", file.display())));
    }
    if let Some(byte) = records.bytes.first().filter(|byte| utf16(0, **byte).is_some()) {
        return Err(not_utf8(file, 0, *byte));
    }
    let names = (0..records.ends.len()).map(|index| records.text(index, "the column names"));
    let names = names.collect::<Result<Vec<_>>>().map_err(|error| error.at(records.place()))?;
    let found = columns.find(&names, file.display()).map_err(|error| match other_delimiter(&names, delimiter) {
        Some(help) => error.help(help),
        None => error,
    })?;
    let columns = columns.clone();
    let (words, json) = (columns.words, columns.json);
    let of_kind = move |text: String| if json { value(text).to_string() } else { text };
    let has_quotes = Slot::new(false);
    Ok(Box::new(std::iter::from_fn(move || {
        match records.read() {
            Ok(false) => return None,
            Ok(true) => {}
            Err(error) => return Some(Err(error)),
        }
        let place = records.place();
        records.replaced.set(0);
        let row = || {
            let (expected, got) = (names.len(), records.ends.len());
            if got != expected {
                return Err(Error::data(format!("expected {expected} columns, as the first row names, got {got}"))
                    .help("a CSV field that holds a comma stands in double quotes; a TSV field cannot hold a tab"));
            }
            if expected > 1 && (0..expected).all(|index| records.field(index) == names[index].as_bytes()) {
                return Err(Error::data("expected a row, got the column names once more").help(
                    "files were joined, each with its first row: delete this line, or name the files one by one",
                ));
            }
            let get = |index: usize| {
                let text = records.text(index, &format!("column {:?}", names[index]))?;
                let is_quoted = delimiter == b'\t' && text.len() > 1 && text.starts_with('"') && text.ends_with('"');
                if is_quoted && !has_quotes.replace(true) {
                    tell_once(format!(
                        "{place}: column {:?} stands in quotes, which are part of the text in data.format = \"tsv\"; write the table \
                         as csv where they are not",
                        names[index]
                    ));
                }
                Ok(text)
            };
            let label = found.label.map(&get).transpose()?.map(|label| match label.trim().is_empty() {
                true if words || label.is_empty() => Cell::Null,
                _ if words => spaced(label),
                _ => Cell::Text(label),
            });
            let text = of_kind(get(found.text)?);
            let (text, mut parts) = if words {
                (String::new(), super::row::words(&names[found.text], spaced(text))?)
            } else {
                (text, found.choices.iter().map(|at| get(*at).map(of_kind)).collect::<Result<_>>()?)
            };
            parts.extend(columns.rest(names.iter().map(String::as_str), |name| {
                let index = names.iter().position(|other| other == name).expect("the name is one of them");
                get(index).map(value)
            })?);
            let text_pair = found.text_pair.map(&get).transpose()?.map(of_kind);
            Ok(Row { text, text_pair, parts, label, place: place.clone(), replaced: records.replaced.get() })
        };
        Some(row().map_err(|error| error.at(&place)))
    })))
}

/// The value of JSON that a field has; CSV and TSV write null as nothing.
fn value(text: String) -> serde_json::Value {
    if text.is_empty() { serde_json::Value::Null } else { serde_json::Value::String(text) }
}

/// The names in the first row of `file`; none where it cannot be read.
pub(super) fn names(file: &Path, delimiter: u8) -> Vec<String> {
    let names = Records::open(file.into(), delimiter).and_then(|mut records| {
        records.read()?;
        (0..records.ends.len()).map(|index| records.text(index, "the column names")).collect()
    });
    names.unwrap_or_default()
}

/// Advice for a table whose `names` are one name that holds another delimiter.
fn other_delimiter(names: &[String], delimiter: u8) -> Option<&'static str> {
    let [name] = names else { return None };
    let has = |byte: u8| byte != delimiter && name.as_bytes().contains(&byte);
    [
        (b'\t', "tabs separate the names of the first row: set data.format = \"tsv\""),
        (b',', "commas separate the names of the first row: set data.format = \"csv\""),
        (b';', "semicolons separate the names of the first row: write the table with commas or tabs between columns"),
    ]
    .into_iter()
    .find_map(|(byte, help)| has(byte).then_some(help))
}

/// Splits a file into records as RFC 4180 says and pandas reads them, where `\n`, `\r\n` and `\r`
/// end a line, and counts lines as an editor does. Parsers of other crates accept a quote that is
/// not closed, and count the lines of records in other ways.
struct Records {
    path: Arc<Path>,
    file: BufReader<Decoded>,
    delimiter: u8,
    /// The line of the next byte, from 1.
    line: u64,
    /// The last byte was a carriage return: a line feed after it ends the same line.
    is_after_return: bool,
    /// The line at which the record begins.
    start: u64,
    /// The fields of the record, one after another, and where each ends.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    /// Whether one of them stands in quotes.
    is_quoted: bool,
    /// How bytes that are not UTF-8 are treated, and how many sequences of them were replaced in
    /// the texts since this was set to 0.
    errors: Errors,
    replaced: Slot<u64>,
}

/// The part of a record to which its next byte belongs.
#[derive(Clone, Copy, PartialEq)]
enum State {
    /// No record yet.
    Between,
    /// The first byte of a field.
    Begin,
    /// A field, or the rest of one after its quotes.
    Plain,
    /// Text between quotes.
    Quoted,
    /// A quote within quotes: it ends them unless another one follows.
    Quote,
}

impl Records {
    fn open(path: Arc<Path>, delimiter: u8) -> Result<Self> {
        let file = Decoded::open(&path).map_err(|error| read_error(&path, &error))?;
        let file = BufReader::with_capacity(1 << 16, file);
        let (bytes, ends) = (Vec::new(), Vec::new());
        Ok(Self {
            path,
            file,
            delimiter,
            line: 1,
            is_after_return: false,
            start: 1,
            bytes,
            ends,
            is_quoted: false,
            errors: Errors::Strict,
            replaced: Slot::new(0),
        })
    }

    /// Reads the next record; false at the end. Lines of white space alone are passed over, as
    /// pandas passes them over.
    fn read(&mut self) -> Result<bool> {
        while self.read_one()? {
            let is_blank = self.ends.len() == 1 && self.bytes.iter().all(u8::is_ascii_whitespace);
            if self.is_quoted || !is_blank {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn read_one(&mut self) -> Result<bool> {
        self.bytes.clear();
        self.ends.clear();
        self.is_quoted = false;
        let (mut state, mut read, mut quote) = (State::Between, 0, 0);
        loop {
            let buffer = self.file.fill_buf().map_err(|error| read_error(&self.path, &error))?;
            if buffer.is_empty() {
                return match state {
                    State::Between => Ok(false),
                    State::Quoted => Err(self.not_closed(quote)),
                    State::Begin | State::Plain | State::Quote => {
                        self.ends.push(self.bytes.len());
                        Ok(true)
                    }
                };
            }
            let (mut taken, mut is_whole) = (0, false);
            while let (false, Some(&byte)) = (is_whole, buffer.get(taken)) {
                taken += 1;
                let ends_line = byte == b'\n' || byte == b'\r';
                let line = self.line;
                // The line feed of `\r\n` was counted with the carriage return.
                self.line += u64::from(ends_line && !(byte == b'\n' && self.is_after_return));
                self.is_after_return = byte == b'\r';
                if state == State::Between {
                    if ends_line {
                        continue;
                    }
                    (self.start, state) = (line, State::Begin);
                }
                state = match (state, byte) {
                    (State::Begin, b'"') if self.delimiter == b',' => {
                        (quote, self.is_quoted) = (line, true);
                        State::Quoted
                    }
                    (State::Quoted, b'"') => State::Quote,
                    (State::Quoted, _) | (State::Quote, b'"') => {
                        self.bytes.push(byte);
                        State::Quoted
                    }
                    (_, byte) if byte == self.delimiter => {
                        self.ends.push(self.bytes.len());
                        State::Begin
                    }
                    _ if ends_line => {
                        self.ends.push(self.bytes.len());
                        is_whole = true;
                        state
                    }
                    _ => {
                        self.bytes.push(byte);
                        // A byte-order mark before a record, of a file or of one that was joined to
                        // it, is no part of the field.
                        let is_mark = byte == 0xbf && self.ends.is_empty() && self.bytes == MARK_BYTES;
                        if is_mark {
                            self.bytes.clear();
                        }
                        if is_mark { State::Begin } else { State::Plain }
                    }
                };
            }
            self.file.consume(taken);
            if is_whole {
                return Ok(true);
            }
            read += taken;
            if read > MAX_ROW_BYTES {
                let error = too_long(self.place());
                let open = matches!(state, State::Quoted);
                return Err(if open {
                    error.help(format!("a quote opens in line {quote} and is not closed"))
                } else {
                    error
                });
            }
        }
    }

    /// The error of a quote that opens in `line` and is open at the end of the file.
    fn not_closed(&self, line: u64) -> Error {
        Error::data(format!(
            "{} line {line}: expected the quote that opens column {} to be closed, got the end of the file",
            self.path.display(),
            self.ends.len() + 1
        ))
        .help("a quote within a field in quotes is written twice; a field that begins with a quote stands in quotes")
    }

    fn place(&self) -> Place {
        Place { file: self.path.clone(), unit: "line", number: self.start }
    }

    fn field(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[start..self.ends[index]]
    }

    fn text(&self, index: usize, what: &str) -> Result<String> {
        let bytes = self.field(index);
        let (text, replaced) = text_of(bytes, self.start == 1 && index == 0, self.errors).map_err(|error| {
            let at = error.valid_up_to();
            let byte = bytes[at];
            Error::data(format!("{what}: expected UTF-8 text, got the byte 0x{byte:02x} at byte {at} of the field"))
                .help("convert the file to UTF-8; a run with data.errors = \"replace\" reads such bytes as U+FFFD")
        })?;
        self.replaced.set(self.replaced.get() + replaced);
        Ok(text.into_owned())
    }
}
