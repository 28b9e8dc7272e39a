//! A text file whose lines are documents of their own. A line is held in memory whole; blank lines are left out, as
//! `run_mlm --line_by_line` leaves them out. Used by the corpus and for JSON lines.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use super::pieces::{Piece, not_utf8, read_error};
use crate::error::Result;

/// Reads one file; an iterator over its lines that are not blank, without their ends.
pub struct Lines<'a> {
    path: &'a Path,
    file: BufReader<File>,
    /// Bytes read.
    offset: usize,
    /// Lines read.
    number: u64,
    finished: bool,
}

impl<'a> Lines<'a> {
    /// Opens `path`.
    ///
    /// # Errors
    /// A file that cannot be opened.
    pub fn open(path: &'a Path) -> Result<Self> {
        let file = File::open(path).map_err(|error| read_error(path, &error))?;
        Ok(Self { path, file: BufReader::with_capacity(1 << 18, file), offset: 0, number: 0, finished: false })
    }

    /// Bytes of the file that have been read.
    pub fn offset(&self) -> u64 {
        self.offset as u64
    }

    /// The number of the line that was handed out last, from 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The next line that is not blank; none at the end.
    fn read(&mut self) -> Result<Option<Piece>> {
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            let read = self.file.read_until(b'\n', &mut bytes).map_err(|error| read_error(self.path, &error))?;
            if read == 0 {
                return Ok(None);
            }
            let start = self.offset;
            self.offset += read;
            self.number += 1;
            let text = std::str::from_utf8(&bytes)
                .map_err(|error| not_utf8(self.path, start + error.valid_up_to(), bytes[error.valid_up_to()]))?;
            let line = text.strip_suffix('\n').unwrap_or(text);
            let line = line.strip_suffix('\r').unwrap_or(line);
            if !line.trim().is_empty() {
                return Ok(Some(Piece { text: line.to_string(), ends_document: true }));
            }
        }
    }
}

impl Iterator for Lines<'_> {
    type Item = Result<Piece>;

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
        Lines::open(&path)?.map(|line| line.map(|piece| piece.text)).collect()
    }

    #[test]
    fn blank_lines_and_line_ends_are_left_out() {
        assert_eq!(lines(b" one \r\n\n \t\ntwo\n\nthree").unwrap(), [" one ", "two", "three"]);
        assert_eq!(lines(b"\n\n").unwrap(), [""; 0]);
    }

    #[test]
    fn blank_lines_count() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        std::fs::write(&path, "one\n\ntwo\r\n").unwrap();
        let mut lines = Lines::open(&path).unwrap();
        let mut places = Vec::new();
        while lines.next().is_some() {
            places.push((lines.number(), lines.offset()));
        }
        assert_eq!(places, [(1, 4), (3, 10)]);
    }

    #[test]
    fn broken_text_is_refused_at_its_offset_in_the_file() {
        let error = lines(b"one\ntw\xffo\n").unwrap_err().to_string();
        assert!(error.contains("a.txt") && error.contains("0xff at offset 6"), "{error}");
        assert!(Lines::open(Path::new("/no/such/file")).is_err());
    }
}
