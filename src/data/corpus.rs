//! Plain text: a document is a file. Documents are read in pieces, so a corpus, and each document of it, may be larger than
//! memory.

use std::fs;
use std::path::PathBuf;

use super::paths;
use super::pieces::{Piece, Pieces, not_utf8};
use crate::error::{Error, Result};
use crate::execution::seed_for;

/// Text files in a fixed order.
#[derive(Debug, Clone, PartialEq)]
pub struct Corpus {
    files: Vec<PathBuf>,
    /// Size in bytes of each file.
    sizes: Vec<u64>,
}

impl Corpus {
    /// The files that `patterns` name.
    ///
    /// # Errors
    /// As [`paths::resolve`]; files that are all empty or blank.
    pub fn open(patterns: &[String]) -> Result<Self> {
        let files = paths::resolve(patterns)?;
        let size = |file: &PathBuf| {
            let metadata = fs::metadata(file);
            metadata.map(|m| m.len()).map_err(|error| Error::io(format!("read {}", file.display()), &error))
        };
        let sizes = files.iter().map(size).collect::<Result<Vec<_>>>()?;
        if sizes.iter().sum::<u64>() == 0 {
            return Err(Error::data(format!("{}: expected text, got nothing", all(&files))));
        }
        let corpus = Self { files, sizes };
        if corpus.is_blank()? {
            return Err(Error::data(format!("{}: expected text, got only white space", all(&corpus.files))));
        }
        Ok(corpus)
    }

    /// Whether all text is white space. Reads until a character is not: as a rule that is the first one.
    fn is_blank(&self) -> Result<bool> {
        for piece in self.pieces(4096) {
            if !piece?.text.trim().is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Number of documents.
    pub fn num_documents(&self) -> usize {
        self.files.len()
    }

    /// Size of all documents in bytes.
    pub fn num_bytes(&self) -> u64 {
        self.sizes.iter().sum()
    }

    /// Splits off `share` (between 0 and 1) of the documents for validation: `(rest, validation)`. Which ones depends on
    /// the seed and the number of documents alone, so it is the same whatever else changes.
    ///
    /// # Errors
    /// Too few documents for both sides to have one.
    pub fn split(self, share: f64, seed: u64) -> Result<(Self, Self)> {
        let chosen = split_off(self.files.len(), share, seed).ok_or_else(|| {
            Error::data(format!(
                "data.validation = {share}: {} document(s) cannot be split; a document is a file, and each side needs one",
                self.files.len()
            ))
            .help("name validation files instead, or split the text into more files")
        })?;
        let side = |validation: bool| {
            let indices = (0..self.files.len()).filter(|index| chosen[*index] == validation);
            let (files, sizes) = indices.map(|index| (self.files[index].clone(), self.sizes[index])).unzip();
            Self { files, sizes }
        };
        Ok((side(false), side(true)))
    }

    /// The paths of the documents, in order.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// The documents in order, each in pieces of at most `max_bytes`.
    pub fn pieces(&self, max_bytes: usize) -> impl Iterator<Item = Result<Piece>> {
        self.pieces_in(0..self.files.len(), max_bytes)
    }

    /// The documents in the order of `indices`, each in pieces of at most `max_bytes`.
    pub fn pieces_in(
        &self,
        indices: impl IntoIterator<Item = usize>,
        max_bytes: usize,
    ) -> impl Iterator<Item = Result<Piece>> {
        indices.into_iter().flat_map(move |index| {
            let (pieces, error) = match self.pieces_of(index, max_bytes) {
                Ok(pieces) => (Some(pieces), None),
                Err(error) => (None, Some(Err(error))),
            };
            pieces.into_iter().flatten().chain(error)
        })
    }

    /// The document at `index` in pieces of at most `max_bytes`.
    ///
    /// # Errors
    /// A file that cannot be opened; reading it, one that cannot be read or is not UTF-8.
    pub fn pieces_of(&self, index: usize, max_bytes: usize) -> Result<Pieces<'_>> {
        Pieces::open(&self.files[index], max_bytes)
    }

    /// The documents in order, read whole as they are asked for.
    pub fn documents(&self) -> impl Iterator<Item = Result<String>> {
        (0..self.files.len()).map(|index| self.document(index))
    }

    /// The document at `index`.
    ///
    /// # Errors
    /// A file that cannot be read or is not UTF-8.
    pub fn document(&self, index: usize) -> Result<String> {
        let file = &self.files[index];
        let bytes = fs::read(file).map_err(|error| Error::io(format!("read {}", file.display()), &error))?;
        String::from_utf8(bytes).map_err(|error| {
            let offset = error.utf8_error().valid_up_to();
            not_utf8(file, offset, error.as_bytes()[offset])
        })
    }
}

/// How an error that holds for all of `files` names them: the first, and how many others there are.
fn all(files: &[PathBuf]) -> String {
    let first = files[0].display();
    match files.len() - 1 {
        0 => first.to_string(),
        others => format!("{first} and {others} more"),
    }
}

/// Which of `len` items a share of them takes: those with the smallest hashes, at least one and not all. None when that is
/// impossible.
pub(super) fn split_off(len: usize, share: f64, seed: u64) -> Option<Vec<bool>> {
    if len < 2 {
        return None;
    }
    let count = ((len as f64 * share).round() as usize).clamp(1, len - 1);
    let mut order = (0..len).collect::<Vec<_>>();
    order.sort_by_key(|index| (seed_for(seed, "validation", *index as u64, 0), *index));
    let mut chosen = vec![false; len];
    order[..count].iter().for_each(|index| chosen[*index] = true);
    Some(chosen)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn corpus(folder: &tempfile::TempDir, documents: &[&[u8]]) -> Result<Corpus> {
        for (i, document) in documents.iter().enumerate() {
            fs::write(folder.path().join(format!("{i:03}.txt")), document).unwrap();
        }
        Corpus::open(&[format!("{}/*.txt", folder.path().display())])
    }

    #[test]
    fn a_document_is_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let corpus = corpus(&folder, &[b"one", b"", b"three"]).unwrap();
        assert_eq!(corpus.documents().collect::<Result<Vec<_>>>().unwrap(), ["one", "", "three"]);
        assert_eq!((corpus.num_documents(), corpus.num_bytes()), (3, 8));
    }

    #[test]
    fn empty_and_broken_text_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(corpus(&folder, &[b"", b""]).unwrap_err().to_string().contains("got nothing"));
        let blank = corpus(&folder, &[b" \n", "\u{a0}\t ".repeat(5000).as_bytes()]).unwrap_err().to_string();
        assert!(blank.contains("000.txt and 1 more") && blank.contains("only white space"), "{blank}");
        assert!(corpus(&folder, &[b" \n", b" x"]).is_ok());
        let broken = corpus(&folder, &[b"abc", b"de\xfff"]).unwrap();
        let error = broken.documents().find_map(Result::err).unwrap().to_string();
        assert!(error.contains("001.txt") && error.contains("0xff at offset 2"), "{error}");
        assert_eq!(broken.pieces(64).find_map(Result::err).unwrap().to_string(), error);
        fs::remove_file(folder.path().join("001.txt")).unwrap();
        assert!(broken.pieces(64).find_map(Result::err).unwrap().to_string().contains("cannot read"));
    }

    #[test]
    fn splitting_is_deterministic_and_complete() {
        let folder = tempfile::tempdir().unwrap();
        let texts = (0..100).map(|i| format!("document {i}")).collect::<Vec<_>>();
        let whole = corpus(&folder, &texts.iter().map(|text| text.as_bytes()).collect::<Vec<_>>()).unwrap();
        let (train, validation) = whole.clone().split(0.02, 1).unwrap();
        assert_eq!((train.num_documents(), validation.num_documents()), (98, 2));
        assert!(validation.files.iter().all(|file| !train.files.contains(file)));
        assert_eq!(whole.clone().split(0.02, 1).unwrap().1, validation);
        assert_ne!(whole.clone().split(0.02, 2).unwrap().1, validation);
        assert_eq!(whole.split(0.0001, 1).unwrap().1.num_documents(), 1, "a share is at least one document");
        let one = corpus(&tempfile::tempdir().unwrap(), &[b"all"]);
        assert!(one.unwrap().split(0.5, 1).unwrap_err().to_string().contains("cannot be split"));
    }
}
