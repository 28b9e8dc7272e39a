//! A text file whose lines are documents of their own. A line is held in memory whole; blank lines
//! are left out, as `run_mlm --line_by_line` leaves them out. Used by the corpus and for JSON
//! lines.

use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use kiln_core::error::{Error, Result};
use kiln_core::files::{Decoded, read_error, without_mark};
use kiln_core::signals;

use super::text_chunks::{TextChunk, not_utf8};
use super::utf8::text_of;
use crate::cache::mapped::interrupted;
use crate::settings::Errors;

/// The most bytes of a line or of a row of a table. A longer one comes from a file of another kind
/// or from a quote that is not closed, and would take all memory.
pub(super) const MAX_ROW_BYTES: usize = 64 << 20;

/// Appends the next line with its end to `bytes`, or as much of it as shows that it is longer than
/// [`MAX_ROW_BYTES`]; how many bytes.
pub(super) fn read_line(file: &mut impl BufRead, bytes: &mut Vec<u8>) -> io::Result<usize> {
    file.by_ref().take(MAX_ROW_BYTES as u64 + 1).read_until(b'\n', bytes)
}

/// The error for a line or row at `place` that has more than [`MAX_ROW_BYTES`].
pub(super) fn too_long(place: impl std::fmt::Display) -> Error {
    Error::data(format!("{place}: expected at most {} MiB, got more", MAX_ROW_BYTES >> 20))
        .help("a row is held in memory whole: cut it, or train on plain text with data.documents = \"file\"")
}

/// Which lines are read, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lines {
    /// The lines that are not blank, without their ends.
    NotBlank,
    /// All of them, without their ends.
    All,
    /// All of them, with a line feed where they have an end.
    WithBreaks,
}

/// Reads one file; an iterator over its lines.
pub struct TextLines {
    path: PathBuf,
    file: BufReader<Decoded>,
    lines: Lines,
    errors: Errors,
    /// Bytes read.
    offset: usize,
    /// Lines read.
    number: u64,
    finished: bool,
}

impl TextLines {
    /// The lines of `path` that are not blank, without their ends.
    ///
    /// # Errors
    /// A file that cannot be opened.
    pub fn open(path: &Path) -> Result<Self> {
        Self::of(path, Lines::NotBlank)
    }

    /// All lines of `path`, as `load_dataset("text")` reads them: with `keeps_breaks` each has the
    /// line feed that ends it.
    ///
    /// # Errors
    /// A file that cannot be opened.
    pub fn all(path: &Path, keeps_breaks: bool) -> Result<Self> {
        Self::of(path, if keeps_breaks { Lines::WithBreaks } else { Lines::All })
    }

    fn of(path: &Path, lines: Lines) -> Result<Self> {
        let file = Decoded::open(path).map_err(|error| read_error(path, &error))?;
        Ok(Self {
            path: path.to_owned(),
            file: BufReader::with_capacity(1 << 18, file),
            lines,
            errors: Errors::Strict,
            offset: 0,
            number: 0,
            finished: false,
        })
    }

    /// Treats bytes that are not UTF-8 as `errors` says; else they are an error.
    #[must_use]
    pub fn with_errors(self, errors: Errors) -> Self {
        Self { errors, ..self }
    }

    /// Bytes of the file that have been read.
    pub fn offset(&self) -> u64 {
        self.offset as u64
    }

    /// The number of the line that was handed out last, from 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The next line; none at the end.
    fn read(&mut self) -> Result<Option<TextChunk>> {
        let mut bytes = Vec::new();
        loop {
            if signals::received().is_some() {
                return Err(interrupted());
            }
            bytes.clear();
            let read = read_line(&mut self.file, &mut bytes).map_err(|error| read_error(&self.path, &error))?;
            if read > MAX_ROW_BYTES {
                return Err(too_long(format_args!("{} line {}", self.path.display(), self.number + 1)));
            }
            if read == 0 {
                return Ok(None);
            }
            let start = self.offset;
            self.offset += read;
            self.number += 1;
            let (text, replaced) = text_of(&bytes, start == 0, self.errors)
                .map_err(|error| not_utf8(&self.path, start + error.valid_up_to(), bytes[error.valid_up_to()]))?;
            let text = if start == 0 { without_mark(&text) } else { &*text };
            let line = text.strip_suffix('\n').unwrap_or(text);
            let line = line.strip_suffix('\r').unwrap_or(line);
            let text = match self.lines {
                Lines::NotBlank if line.trim().is_empty() => continue,
                Lines::WithBreaks if text.ends_with('\n') => format!("{line}\n"),
                _ => line.to_string(),
            };
            return Ok(Some(TextChunk { text, ends_document: true, replaced }));
        }
    }
}

impl Iterator for TextLines {
    type Item = Result<TextChunk>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.finished {
            return None;
        }
        let line = self.read().transpose();
        self.finished = !matches!(line, Some(Ok(_)));
        line
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn lines(bytes: &[u8]) -> Result<Vec<String>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        std::fs::write(&path, bytes).unwrap();
        TextLines::open(&path)?.map(|line| line.map(|piece| piece.text)).collect()
    }

    #[test]
    fn all_lines_are_the_rows_of_load_dataset() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        std::fs::write(&path, "\u{feff}one\r\n\n two \nend").unwrap();
        let all = |keeps_breaks| -> Vec<String> {
            TextLines::all(&path, keeps_breaks).unwrap().map(|line| line.unwrap().text).collect()
        };
        assert_eq!(all(false), ["one", "", " two ", "end"]);
        assert_eq!(all(true), ["one\n", "\n", " two \n", "end"]);
    }

    #[test]
    fn blank_lines_and_line_ends_are_left_out() {
        assert_eq!(lines(b" one \r\n\n \t\ntwo\n\nthree").unwrap(), [" one ", "two", "three"]);
        assert_eq!(lines(b"\n\n").unwrap(), [""; 0]);
        assert_eq!(lines(b"\xef\xbb\xbfone\n\xef\xbb\xbftwo").unwrap(), ["one", "\u{feff}two"]);
    }

    #[test]
    fn blank_lines_count() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        std::fs::write(&path, "one\n\ntwo\r\n").unwrap();
        let mut lines = TextLines::open(&path).unwrap();
        let mut places = Vec::new();
        while lines.next().is_some() {
            places.push((lines.number(), lines.offset()));
        }
        assert_eq!(places, [(1, 4), (3, 10)]);
    }

    #[test]
    fn a_line_that_is_too_long_is_refused_before_it_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        // A hole of the file system: nothing of it is on the disk.
        let mut file = std::fs::File::create(&path).unwrap();
        io::Write::write_all(&mut file, b"one\n").unwrap();
        file.set_len(3 << 30).unwrap();
        let mut lines = TextLines::open(&path).unwrap();
        assert_eq!(lines.next().unwrap().unwrap().text, "one");
        let error = lines.next().unwrap().unwrap_err().to_string();
        assert!(error.contains("a.txt line 2: expected at most 64 MiB"), "{error}");
        assert!(lines.next().is_none());
    }

    #[test]
    fn broken_text_is_refused_at_its_offset_in_the_file() {
        let error = lines(b"one\ntw\xffo\n").unwrap_err().to_string();
        assert!(error.contains("a.txt") && error.contains("0xff at offset 6"), "{error}");
        assert!(TextLines::open(Path::new("/no/such/file")).is_err());
    }
}
