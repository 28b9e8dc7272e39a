//! The rows of a file, one after another: of JSON lines a line at a time, of a JSON array an
//! element at a time. Nothing holds more than a row.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io::{self, BufReader, Read};
use std::path::Path;

use kiln_core::error::{Error, Result};
use kiln_core::files::{Decoded, MARK_BYTES, read_error};
use serde::Deserializer;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde_json::Value;

use super::row;
use crate::Example;
use crate::task::Task;
use crate::text_chunks::TextChunks;
use crate::text_lines::{MAX_ROW_BYTES, TextLines, too_long};

/// An array is checked to be text in pieces of this many bytes.
const PIECE_BYTES: usize = 1 << 16;

/// The unit in which rows are numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// Lines of the file.
    Line,
    /// Elements of its array.
    Row,
}

/// A row and where it stands.
pub(super) struct Found {
    pub example: Example,
    /// The unit of `number`.
    pub unit: Unit,
    /// From 1.
    pub number: u64,
    /// Bytes of the file that are read.
    pub read: u64,
}

impl Unit {
    /// Where row `number` of `file` stands, for messages.
    pub(super) fn place(self, file: &Path, number: u64) -> String {
        let unit = match self {
            Self::Line => "line",
            Self::Row => "row",
        };
        format!("{} {unit} {number}", file.display())
    }
}

/// Hands the rows of `file` to `take` as examples of `task`.
///
/// # Errors
/// A file that cannot be read or is not UTF-8, malformed JSON, a row that is no example, each with
/// its place; those of `take`.
pub(super) fn rows(file: &Path, task: Task, take: &mut dyn FnMut(Found) -> Result<()>) -> Result<Unit> {
    if is_array(file).map_err(|error| read_error(file, &error))? {
        array(file, task, take).map(|()| Unit::Row)
    } else {
        lines(file, task, take).map(|()| Unit::Line)
    }
}

/// Whether the first character that is not white space opens an array.
fn is_array(file: &Path) -> io::Result<bool> {
    for (at, byte) in BufReader::new(Decoded::open(file)?).bytes().enumerate() {
        let byte = byte?;
        let is_mark = MARK_BYTES.get(at) == Some(&byte);
        if !is_mark && !byte.is_ascii_whitespace() {
            return Ok(byte == b'[');
        }
    }
    Ok(false)
}

fn lines(file: &Path, task: Task, take: &mut dyn FnMut(Found) -> Result<()>) -> Result<()> {
    let mut lines = TextLines::open(file)?;
    while let Some(line) = lines.next() {
        let (line, number) = (line?.text, lines.number());
        let example = row::of_line(&line, task).map_err(|error| error.at(Unit::Line.place(file, number)))?;
        take(Found { example, unit: Unit::Line, number, read: lines.offset() })?;
    }
    Ok(())
}

fn array(file: &Path, task: Task, take: &mut dyn FnMut(Found) -> Result<()>) -> Result<()> {
    let state = State::default();
    let text = Text { file, pieces: TextChunks::open(file, PIECE_BYTES)?, piece: Vec::new(), at: 0, state: &state };
    let mut element = |value| {
        let number = state.rows.get() + 1;
        state.rows.set(number);
        state.row_start.set(state.read.get());
        let example = row::of_value(value, task).map_err(|error| error.at(Unit::Row.place(file, number)))?;
        take(Found { example, unit: Unit::Row, number, read: state.read.get() })
    };
    let mut json = serde_json::Deserializer::from_reader(BufReader::new(text));
    let elements = Elements { take: &mut element, state: &state };
    let parsed = json.deserialize_seq(elements).and_then(|()| json.end());
    parsed.map_err(|error| state.failure.take().unwrap_or_else(|| malformed(file, &error)))
}

/// The progress of the parser of an array, and the error that stopped it: the parser's own errors
/// cannot carry these.
#[derive(Default)]
struct State {
    /// Bytes that the parser was given.
    read: Cell<u64>,
    /// Rows that the parser has handed on.
    rows: Cell<u64>,
    /// Bytes that were read when it handed on the last one.
    row_start: Cell<u64>,
    /// Why it was stopped.
    failure: RefCell<Option<Error>>,
}

/// A file as a stream of bytes that are known to be UTF-8.
struct Text<'a> {
    file: &'a Path,
    pieces: TextChunks,
    piece: Vec<u8>,
    /// Bytes of the piece that are read.
    at: usize,
    state: &'a State,
}

impl Read for Text<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let state = self.state;
        if state.read.get() - state.row_start.get() > MAX_ROW_BYTES as u64 {
            state.failure.replace(Some(too_long(Unit::Row.place(self.file, state.rows.get() + 1))));
            return Err(io::Error::other("too long"));
        }
        while self.at == self.piece.len() {
            match self.pieces.next() {
                None => return Ok(0),
                Some(Ok(piece)) => (self.piece, self.at) = (piece.text.into_bytes(), 0),
                Some(Err(error)) => {
                    self.state.failure.replace(Some(error));
                    return Err(io::Error::other("no text"));
                }
            }
        }
        let read = (&self.piece[self.at..]).read(buffer)?;
        self.at += read;
        self.state.read.set(self.state.read.get() + read as u64);
        Ok(read)
    }
}

/// Takes the elements of an array as they are parsed.
struct Elements<'a> {
    take: &'a mut dyn FnMut(Value) -> Result<()>,
    state: &'a State,
}

impl<'de> Visitor<'de> for Elements<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of rows")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> std::result::Result<(), A::Error> {
        while let Some(element) = elements.next_element()? {
            (self.take)(element).map_err(|error| {
                self.state.failure.replace(Some(error));
                A::Error::custom("stopped")
            })?;
        }
        Ok(())
    }
}

/// The error for a file that is no JSON.
pub(super) fn malformed(file: &Path, error: &serde_json::Error) -> Error {
    let place = format!("{}: malformed JSON: line {} column {}", file.display(), error.line(), error.column());
    if error.is_eof() {
        Error::data(format!("{place}: expected JSON that is closed, got the end of the file"))
            .help("a download or an export that was cut short must be made again")
    } else {
        Error::data(format!("{place}: expected JSON, got something else"))
            .help("JSON has no NaN, no comma before a bracket and nothing after its value")
    }
}
