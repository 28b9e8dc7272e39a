//! A text file in chunks, so that it may be larger than memory and a long line is not tokenised at
//! once. A chunk ends where tokenising the chunks one by one gives the ids of the whole. Tokenising
//! and the learning of a vocabulary read text this way; nothing here knows tokenizers beyond where
//! it is safe to cut.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use kiln_core::error::{Error, Result};
use kiln_core::files::{Decoded, FROM_UTF16, MARK, read_error, utf16};
use kiln_core::signals;

use super::utf8::Utf8;
use crate::cache::mapped::interrupted;
use crate::settings::Errors;

/// A document is tokenised in pieces of at most this many bytes; a core works on one at a time.
pub(crate) const PIECE_BYTES: usize = 32 << 10;

/// A part of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextChunk {
    /// The text; may be empty where it ends the document.
    pub text: String,
    /// Nothing of this document follows.
    pub ends_document: bool,
    /// Sequences of bytes that were not UTF-8 and are U+FFFD in the text; those of a file count
    /// where they are read, which may be a chunk earlier.
    pub replaced: u64,
}

/// A part of a document: where it stands, whether the document begins with it, and its text.
pub(crate) type Unit = (u64, bool, TextChunk);

/// Reads one file; an iterator over at least one chunk.
pub struct TextChunks {
    path: PathBuf,
    file: Utf8<Decoded>,
    /// Read, but not handed out yet.
    pending: Vec<u8>,
    /// Bytes handed out.
    offset: usize,
    max_bytes: usize,
    finished: bool,
}

impl TextChunks {
    /// Opens `path`. Chunks have at most `max_bytes` bytes, which is at least 4 (the longest
    /// character).
    ///
    /// # Errors
    /// A file that cannot be opened.
    pub fn open(path: &Path, max_bytes: usize) -> Result<Self> {
        Self::open_at(path, max_bytes, 0, Errors::Strict)
    }

    /// Opens `path` at byte `offset` of the text, at which a chunk begins. Chunks have at most
    /// `max_bytes` bytes, which is at least 4 (the longest character).
    ///
    /// Bytes that are not UTF-8 are treated as `errors` says, and count as what replaces them.
    ///
    /// # Errors
    /// A file that cannot be opened, and damage before byte `offset`.
    pub fn open_at(path: &Path, max_bytes: usize, offset: u64, errors: Errors) -> Result<Self> {
        let opened = match errors {
            Errors::Strict => Decoded::open_at(path, offset).map(|file| Utf8::new(file, errors)),
            Errors::Replace => Decoded::open(path).and_then(|file| {
                let mut file = Utf8::new(file, errors);
                io::copy(&mut (&mut file).take(offset), &mut io::sink())?;
                file.take_replaced();
                Ok(file)
            }),
        };
        let file = opened.map_err(|error| read_error(path, &error))?;
        let (path, offset) = (path.to_owned(), offset as usize);
        Ok(Self { path, file, pending: Vec::new(), offset, max_bytes: max_bytes.max(4), finished: false })
    }

    /// The byte at which the next chunk begins.
    pub fn offset(&self) -> u64 {
        self.offset as u64
    }

    fn read(&mut self) -> Result<TextChunk> {
        if signals::received().is_some() {
            return Err(interrupted());
        }
        let wanted = self.max_bytes.saturating_sub(self.pending.len()) as u64;
        let read = (&mut self.file).take(wanted).read_to_end(&mut self.pending);
        let read = read.map_err(|error| read_error(&self.path, &error))?;
        // A file that ends exactly here shows its end only in the next read, which may then find
        // nothing.
        let at_end = (read as u64) < wanted;
        let text = match std::str::from_utf8(&self.pending) {
            Ok(text) => text,
            // A character that the piece cuts: the rest of it follows.
            Err(error) if error.error_len().is_none() && !at_end => {
                std::str::from_utf8(&self.pending[..error.valid_up_to()]).unwrap_or_default()
            }
            Err(error) => {
                let at = error.valid_up_to();
                return Err(not_utf8(&self.path, self.offset + at, self.pending[at]));
            }
        };
        let mark = if self.offset == 0 && text.starts_with(MARK) { MARK.len_utf8() } else { 0 };
        let cut = if at_end { text.len() } else { seam(text).unwrap_or(text.len()) };
        let text = text[mark..cut].to_string();
        self.pending.drain(..cut);
        self.offset += cut;
        Ok(TextChunk { text, ends_document: at_end, replaced: self.file.take_replaced() })
    }
}

impl Iterator for TextChunks {
    type Item = Result<TextChunk>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.finished {
            return None;
        }
        let piece = self.read();
        self.finished = piece.as_ref().map_or(true, |piece| piece.ends_document);
        Some(piece)
    }
}

/// A document that is in memory, in chunks of at most `max_bytes`, which is at least 4; an error
/// stays what it is.
pub(super) fn cut(document: Result<TextChunk>, max_bytes: usize) -> impl Iterator<Item = Result<TextChunk>> + Send {
    let (mut rest, mut whole, mut replaced) = (String::new(), None, 0);
    match document {
        Ok(piece) if piece.text.len() > max_bytes => (rest, replaced) = (piece.text, piece.replaced),
        short => whole = Some(short),
    }
    let mut at = 0;
    let pieces = std::iter::from_fn(move || {
        let left = &rest[at..];
        if left.is_empty() {
            return None;
        }
        let some = &left[..left.floor_char_boundary(max_bytes)];
        let some = if some.len() == left.len() { some } else { &some[..seam(some).unwrap_or(some.len())] };
        at += some.len();
        let replaced = std::mem::take(&mut replaced);
        Some(Ok(TextChunk { text: some.to_string(), ends_document: at == rest.len(), replaced }))
    });
    whole.into_iter().chain(pieces)
}

/// The last place at which `text` can be cut without changing its tokens: before a single space
/// between two characters that are no white space. GPT-2's pattern and BERT's both end a word
/// there, and a tokenizer that puts a space before a text that has none finds one. Where there is
/// no such space, after a single line feed between two such characters.
pub(super) fn seam(text: &str) -> Option<usize> {
    seams(text, b' ').next_back().or_else(|| seams(text, b'\n').next_back().map(|at| at + 1))
}

/// The first place of which [`seam`] is the last.
pub(super) fn first_seam(text: &str) -> Option<usize> {
    seams(text, b' ').next().or_else(|| seams(text, b'\n').next().map(|at| at + 1))
}

/// Where `byte`, which is white space, stands between two characters that are none.
fn seams(text: &str, byte: u8) -> impl DoubleEndedIterator<Item = usize> {
    let stands_alone = move |at: usize| {
        let solid = |character: Option<char>| character.is_some_and(|character| !character.is_whitespace());
        solid(text[..at].chars().next_back()) && solid(text[at + 1..].chars().next())
    };
    (0..text.len()).filter(move |&at| text.as_bytes()[at] == byte && stands_alone(at))
}

/// The error for a text file that is not UTF-8 from `offset` on.
pub(crate) fn not_utf8(path: &Path, offset: usize, byte: u8) -> Error {
    let error = |got: &str| Error::data(format!("{}: expected UTF-8 text, got {got}", path.display()));
    let help = "convert the file to UTF-8, or leave it out of the pattern";
    match utf16(offset, byte) {
        Some(got) => error(got).help(FROM_UTF16),
        None => error(&format!("the byte 0x{byte:02x} at offset {offset}"))
            .help(format!("{help}; of text and tables data.errors = \"replace\" reads such bytes as U+FFFD")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn pieces(bytes: &[u8], max_bytes: usize) -> Result<Vec<TextChunk>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        std::fs::write(&path, bytes).unwrap();
        TextChunks::open(&path, max_bytes)?.collect()
    }

    #[test]
    fn pieces_are_bounded_and_join_to_the_whole() {
        let text = "let größe = \"日本語 🦀\";\n\n  fn x() {}\tno  seam\nhere aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaé ";
        for max_bytes in 4..text.len() + 3 {
            let pieces = pieces(text.as_bytes(), max_bytes).unwrap();
            assert_eq!(pieces.iter().map(|piece| piece.text.as_str()).collect::<String>(), text, "{max_bytes}");
            assert!(pieces.iter().all(|piece| piece.text.len() <= max_bytes));
            let ends = pieces.iter().map(|piece| piece.ends_document).collect::<Vec<_>>();
            assert!(ends.iter().rev().skip(1).all(|end| !end) && ends[ends.len() - 1], "{max_bytes}: {ends:?}");
        }
    }

    #[test]
    fn what_is_in_memory_is_cut_as_a_file_is() {
        let text = "let größe = \"日本語 🦀\";\n\n  fn x() {}\tno  seam\nhere aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaé ";
        for max_bytes in 4..text.len() + 3 {
            let document = TextChunk { text: text.into(), ends_document: true, replaced: 0 };
            let parts = cut(Ok(document), max_bytes).collect::<Result<Vec<_>>>().unwrap();
            let joined = |pieces: &[TextChunk]| pieces.iter().map(|piece| piece.text.as_str()).collect::<String>();
            assert_eq!(joined(&parts), text, "{max_bytes}");
            assert!(parts.iter().all(|piece| piece.text.len() <= max_bytes));
            let ends = parts.iter().filter(|piece| piece.ends_document).count();
            assert!(ends == 1 && parts[parts.len() - 1].ends_document, "{max_bytes}");
            let of_file = pieces(text.as_bytes(), max_bytes).unwrap();
            // A file whose end is where a piece ends shows it with an empty one.
            let texts = |pieces: &[TextChunk]| pieces.iter().map(|piece| piece.text.clone()).collect::<Vec<_>>();
            let of_file = texts(&of_file).into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>();
            if max_bytes < text.len() {
                assert_eq!(texts(&parts)[0], of_file[0], "{max_bytes}");
            }
        }
        let empty = TextChunk { text: String::new(), ends_document: true, replaced: 0 };
        assert_eq!(cut(Ok(empty.clone()), 8).collect::<Result<Vec<_>>>().unwrap(), [empty]);
        assert!(cut(Err(Error::data("x")), 8).all(|piece| piece.is_err()));
    }

    #[test]
    fn a_byte_order_mark_is_no_text() {
        let whole = pieces("\u{feff}ab cd \u{feff}".as_bytes(), 8).unwrap();
        assert_eq!(whole.iter().map(|piece| piece.text.as_str()).collect::<String>(), "ab cd \u{feff}");
        for (bytes, name) in [(b"\xff\xfea\0", "UTF-16 (little-endian"), (b"\xfe\xff\0a", "UTF-16 (big-endian")] {
            let error = pieces(bytes, 8).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn an_empty_file_is_one_empty_piece() {
        assert_eq!(pieces(b"", 8).unwrap(), [TextChunk { text: String::new(), ends_document: true, replaced: 0 }]);
    }

    #[test]
    fn cuts_are_before_single_spaces_else_after_single_line_feeds() {
        assert_eq!(seam("ab cd  ef"), Some(2));
        assert_eq!(seam("ab cd "), Some(2), "what follows the last space is not known");
        assert_eq!(seam("ab\ncd\n\nef"), Some(3));
        assert_eq!(seam("ab\u{a0} cd"), None, "a no-break space is white space too");
        assert_eq!(seam("abcd"), None);
        assert_eq!(seam(" abcd"), None);
    }

    #[test]
    fn broken_text_is_refused_at_its_offset_in_the_file() {
        for max_bytes in 4..20 {
            let error = pieces(b"ab cd ef \xffgh", max_bytes).unwrap_err().to_string();
            assert!(error.contains("0xff at offset 9"), "{max_bytes}: {error}");
            let error = pieces("ab cd é".as_bytes().split_last().unwrap().1, max_bytes).unwrap_err().to_string();
            assert!(error.contains("0xc3 at offset 6"), "{max_bytes}: {error}");
        }
        assert!(TextChunks::open(Path::new("/no/such/file"), 8).is_err());
    }
}
