//! Text of bytes. What is not UTF-8 is refused, or read as U+FFFD and counted: each longest
//! beginning of a character, or else each byte, as Python's `errors="replace"` and the standard of
//! Unicode have it.

use std::borrow::Cow;
use std::io::{self, Read};
use std::path::PathBuf;
use std::str::Utf8Error;

use kiln_core::told::tell_once;

use crate::settings::Errors;

/// Bytes are decoded in parts of this many.
const PART: usize = 1 << 16;

/// The text of `bytes`, and how many sequences of them are not UTF-8. A byte-order mark of UTF-16
/// at the beginning of a file says that all of them are none, so they are refused where these bytes
/// are the `first` of their file.
///
/// # Errors
/// Bytes that are not UTF-8 and are not to be replaced.
pub(super) fn text_of(bytes: &[u8], first: bool, errors: Errors) -> Result<(Cow<'_, str>, u64), Utf8Error> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok((text.into(), 0)),
        Err(error) if errors == Errors::Strict || first && has_mark_of_utf16(bytes) => Err(error),
        Err(_) => {
            let replaced = bytes.utf8_chunks().filter(|chunk| !chunk.invalid().is_empty()).count();
            Ok((String::from_utf8_lossy(bytes), replaced as u64))
        }
    }
}

fn has_mark_of_utf16(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff")
}

/// Tells once that `replaced` sequences of bytes of `files` are read as U+FFFD.
pub fn tell_replaced(files: &[PathBuf], replaced: u64) {
    let sequences = match replaced {
        0 => return,
        1 => "1 sequence of bytes that are not UTF-8 is".to_owned(),
        many => format!("{many} sequences of bytes that are not UTF-8 are"),
    };
    let others = if files.len() > 1 { format!(" and {} more", files.len() - 1) } else { String::new() };
    tell_once(format!("{}{others}: {sequences} read as U+FFFD (data.errors = \"replace\")", files[0].display()));
}

/// Tells once of a file that is read as it is needed.
pub(super) fn tell_streamed(file: &std::path::Path) {
    tell_once(format!(
        "{}: bytes that are not UTF-8 are read as U+FFFD (data.errors = \"replace\"), and not counted",
        file.display()
    ));
}

/// A file whose bytes that are not UTF-8 are replaced while they are read, where that is asked for.
pub(super) struct Utf8<R> {
    file: R,
    errors: Errors,
    /// Whether the first bytes have been read.
    has_begun: bool,
    /// Bytes of a character that is not whole yet.
    rest: Vec<u8>,
    /// Bytes to hand out, from `at` on.
    ready: Vec<u8>,
    at: usize,
    /// Sequences that have been replaced.
    replaced: u64,
}

impl<R: Read> Utf8<R> {
    pub fn new(file: R, errors: Errors) -> Self {
        let (rest, ready) = (Vec::new(), Vec::new());
        Self { file, errors, has_begun: false, rest, ready, at: 0, replaced: 0 }
    }

    /// How many sequences have been replaced since this was asked last.
    pub fn take_replaced(&mut self) -> u64 {
        std::mem::take(&mut self.replaced)
    }

    /// Decodes the next part of the file; at its end nothing is ready.
    fn fill(&mut self) -> io::Result<()> {
        self.ready.clear();
        self.at = 0;
        let mut is_over = false;
        while self.ready.is_empty() && !is_over {
            let read = (&mut self.file).take(PART as u64).read_to_end(&mut self.rest)?;
            is_over = read < PART;
            if !std::mem::replace(&mut self.has_begun, true) && has_mark_of_utf16(&self.rest) {
                self.errors = Errors::Strict;
                std::mem::swap(&mut self.ready, &mut self.rest);
                return Ok(());
            }
            let mut taken = 0;
            for chunk in self.rest.utf8_chunks() {
                self.ready.extend(chunk.valid().as_bytes());
                taken += chunk.valid().len();
                let invalid = chunk.invalid();
                let is_cut = !is_over
                    && taken + invalid.len() == self.rest.len()
                    && std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
                if !invalid.is_empty() && !is_cut {
                    self.ready.extend("\u{fffd}".as_bytes());
                    self.replaced += 1;
                    taken += invalid.len();
                }
            }
            self.rest.drain(..taken);
        }
        Ok(())
    }
}

impl<R: Read> Read for Utf8<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.ready.len() {
            if self.errors == Errors::Strict {
                return self.file.read(buffer);
            }
            self.fill()?;
        }
        let read = (&self.ready[self.at..]).read(buffer)?;
        self.at += read;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Bytes, and what `bytes.decode("utf-8", errors="replace")` of Python 3.12 gives.
    const OF_PYTHON: [(&[u8], &str); 9] = [
        (b"plain", "plain"),
        (b"na\xefve caf\xe9", "na\u{fffd}ve caf\u{fffd}"),
        (b"\xe2\x82", "\u{fffd}"),
        (b"\xe2\x82\xe2\x82\xac", "\u{fffd}\u{20ac}"),
        (b"\xf0\x9f\xa6x", "\u{fffd}x"),
        (b"\xed\xa0\x80", "\u{fffd}\u{fffd}\u{fffd}"),
        (b"\xc0\xaf\xf8", "\u{fffd}\u{fffd}\u{fffd}"),
        (b"\x80\xbf\xef\xbf\xbd", "\u{fffd}\u{fffd}\u{fffd}"),
        (b"\xf4\x90\x80\x80,\"", "\u{fffd}\u{fffd}\u{fffd}\u{fffd},\""),
    ];

    /// A file that hands out a byte at a time.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let some = self.0.len().min(buffer.len()).min(1);
            (&mut self.0).take(some as u64).read(buffer)
        }
    }

    #[test]
    fn bytes_are_replaced_as_in_python() {
        for (bytes, expected) in OF_PYTHON {
            // One stands in the bytes themselves.
            let own = bytes.windows(3).filter(|three| *three == b"\xef\xbf\xbd").count();
            let count = (expected.matches('\u{fffd}').count() - own) as u64;
            let (text, replaced) = text_of(bytes, true, Errors::Replace).unwrap();
            assert_eq!((&*text, replaced), (expected, count), "{bytes:?}");
            assert_eq!(text_of(bytes, true, Errors::Strict).is_ok(), count == 0);
            // Wherever the parts of a file end.
            for before in PART - 5..PART + 2 {
                let whole = [&b"a".repeat(before)[..], bytes].concat();
                let mut reader = Utf8::new(Slow(&whole), Errors::Replace);
                let mut text = String::new();
                reader.read_to_string(&mut text).unwrap();
                assert!(text[before..] == *expected, "{bytes:?} after {before}: {:?}", &text[before..]);
                assert_eq!((reader.take_replaced(), reader.take_replaced()), (count, 0));
            }
        }
    }

    #[test]
    fn utf16_is_not_replaced() {
        let bytes = b"\xff\xfea\0\n\0";
        assert_eq!(text_of(bytes, true, Errors::Replace).unwrap_err().valid_up_to(), 0);
        // Within a file these are bytes like any other.
        assert_eq!(text_of(bytes, false, Errors::Replace).unwrap(), ("\u{fffd}\u{fffd}a\0\n\0".into(), 2));
        let mut read = Vec::new();
        Utf8::new(&bytes[..], Errors::Replace).read_to_end(&mut read).unwrap();
        assert_eq!(read, bytes);
    }
}
