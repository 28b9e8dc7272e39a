//! Text as documents: a document is a file, a line of one, or a row of a table. They are read as a
//! stream, and files in pieces, so a corpus may be larger than memory.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use kiln_core::dataset::subset::first_of;
use kiln_core::error::{Error, Result};
use kiln_core::files::{Decoded, ending, read_error, without_mark};
use kiln_core::random::{seed_for, uniform};

use super::paths;
use super::table::{Row, Table, has_rows};
use super::text_chunks::{PIECE_BYTES, TextChunk, TextChunks, Unit, cut, not_utf8};
use super::text_lines::TextLines;
use super::utf8::text_of;
use crate::settings::{DataFormat, Documents, Errors};

/// Documents in a fixed order.
#[derive(Debug, Clone, PartialEq)]
pub struct Corpus {
    files: Vec<PathBuf>,
    /// Size in bytes of each file.
    sizes: Vec<u64>,
    documents: Kind,
    /// Whether end-of-text follows every document.
    marks_ends: bool,
    /// How bytes that are not UTF-8 are treated.
    errors: Errors,
    /// The share of the lines or rows that belongs to this corpus; none means all. Files are chosen
    /// one by one.
    part: Option<Part>,
}

/// The unit of text that is a document.
#[derive(Debug, Clone, PartialEq)]
enum Kind {
    File,
    Line,
    /// Each line of a file, blank ones too, with its end or without.
    EveryLine {
        keeps_breaks: bool,
    },
    Row(Table),
}

impl Kind {
    /// The lines of `file` that are documents.
    fn lines(&self, file: &Path, errors: Errors) -> Result<TextLines> {
        let lines = match self {
            Self::EveryLine { keeps_breaks } => TextLines::all(file, *keeps_breaks),
            _ => TextLines::open(file),
        };
        lines.map(|lines| lines.with_errors(errors))
    }
}

/// A part of the documents of a stream, each decided by its number alone.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Part {
    /// A seeded share, or what it leaves.
    Share { seed: u64, share: f64, is_share: bool },
    /// The first so many, or those after them.
    First { count: u64, is_first: bool },
}

impl Part {
    fn has(self, document: u64) -> bool {
        match self {
            Self::Share { seed, share, is_share } => {
                (uniform(seed_for(seed, "validation", document, 0)) < share) == is_share
            }
            Self::First { count, is_first } => (document < count) == is_first,
        }
    }
}

impl Corpus {
    /// The text files that `patterns` name.
    ///
    /// # Errors
    /// Patterns that [`paths::resolve`] refuses; files that are tables; files that are all empty or
    /// blank.
    pub fn open(patterns: &[String], documents: Documents) -> Result<Self> {
        Self::open_with(patterns, documents, Errors::Strict)
    }

    /// [`open`](Self::open) of files whose bytes that are not UTF-8 are treated as `errors` says.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn open_with(patterns: &[String], documents: Documents, errors: Errors) -> Result<Self> {
        let documents = match documents {
            Documents::File => Kind::File,
            Documents::Line => Kind::Line,
            Documents::Row => Kind::EveryLine { keeps_breaks: false },
            Documents::RowWithBreak => Kind::EveryLine { keeps_breaks: true },
        };
        let files = paths::resolve(patterns, DataFormat::Text)?;
        files.iter().try_for_each(|file| check_is_no_table(file))?;
        Self::of(files, documents, errors)
    }

    /// The text column of a table.
    ///
    /// # Errors
    /// Files that cannot be read; a table whose text is all empty or blank.
    pub fn of_table(table: Table) -> Result<Self> {
        let (files, errors) = (table.files().to_vec(), table.errors());
        Self::of(files, Kind::Row(table), errors)
    }

    fn of(files: Vec<PathBuf>, documents: Kind, errors: Errors) -> Result<Self> {
        let size = |file: &PathBuf| {
            let metadata = fs::metadata(file);
            metadata.map(|m| m.len()).map_err(|error| read_error(file, &error))
        };
        let sizes = files.iter().map(size).collect::<Result<Vec<_>>>()?;
        if sizes.iter().sum::<u64>() == 0 {
            return Err(Error::data(format!("{}: expected text, got nothing", all(&files))));
        }
        let marks_ends = !matches!(documents, Kind::Row(_));
        let corpus = Self { files, sizes, documents, marks_ends, errors, part: None };
        if corpus.is_blank()? {
            return Err(Error::data(format!("{}: expected text, got only white space", all(&corpus.files))));
        }
        Ok(corpus)
    }

    /// Sets whether end-of-text follows each document. By default it follows files and lines, and
    /// does not follow rows of a table.
    #[must_use]
    pub fn with_ends(self, marks_ends: bool) -> Self {
        Self { marks_ends, ..self }
    }

    /// Whether end-of-text follows every document.
    pub fn marks_ends(&self) -> bool {
        self.marks_ends
    }

    /// Whether all text is white space. Reads until a character is not: as a rule that is the first
    /// one.
    fn is_blank(&self) -> Result<bool> {
        for piece in self.pieces(4096) {
            if !piece?.text.trim().is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Size of all files in bytes.
    pub fn num_bytes(&self) -> u64 {
        self.sizes.iter().sum()
    }

    /// Distinguishes this corpus from another one of the same files.
    pub fn describe(&self) -> String {
        let documents = match &self.documents {
            Kind::File => "files".into(),
            Kind::Line => "lines".into(),
            Kind::EveryLine { keeps_breaks } => format!("every line {keeps_breaks}"),
            Kind::Row(table) => format!("rows {:?}", table.columns()),
        };
        let errors = if self.errors == Errors::Strict { "" } else { " errors replaced" };
        format!("{documents} {:?} ends {}{errors}", self.part, self.marks_ends)
    }

    /// Splits off `share` (between 0 and 1) of the documents for validation: `(rest, validation)`.
    /// Which ones depends on the seed and the number of documents alone, so it is the same whatever
    /// else changes; of lines and rows, on the seed and each one's number.
    ///
    /// # Errors
    /// Too few files for both sides to have one.
    pub fn split(self, share: f64, seed: u64) -> Result<(Self, Self)> {
        if self.documents != Kind::File {
            let side = |is_share| Self { part: Some(Part::Share { seed, share, is_share }), ..self.clone() };
            return Ok((side(false), side(true)));
        }
        let chosen = split_off(self.files.len(), share, seed).ok_or_else(|| {
            Error::data(format!(
                "data.validation = {share}: {} document(s) cannot be split; a document is a file, and each side needs one",
                self.files.len()
            ))
            .help("name validation files instead, or split the blocks of the text: `Blocks::split`")
        })?;
        let side = |validation: bool| {
            let indices = (0..self.files.len()).filter(|index| chosen[*index] == validation);
            let (files, sizes) = indices.map(|index| (self.files[index].clone(), self.sizes[index])).unzip();
            Self { files, sizes, ..self.clone() }
        };
        Ok((side(false), side(true)))
    }

    /// Splits off the first lines or rows, `percent` of 100, for validation: `(rest, validation)`.
    ///
    /// # Errors
    /// A percentage that leaves one side without a row; text that cannot be read.
    pub fn split_first(self, percent: f64) -> Result<(Self, Self)> {
        let rows = self.streamed().try_fold(0, |rows, row| row.map(|_| rows + 1))?;
        let count = first_of(rows, percent)? as u64;
        let side = |is_first| Self { part: Some(Part::First { count, is_first }), ..self.clone() };
        Ok((side(false), side(true)))
    }

    /// Whether this is one document, which is a file: a share of it can only be a part of its text.
    pub fn is_one_file(&self) -> bool {
        self.documents == Kind::File && self.files.len() == 1
    }

    /// The paths of the files, in order.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// The documents in order, in pieces of at most `max_bytes`, which is at least 4. A signal ends
    /// them with an error.
    pub fn pieces(&self, max_bytes: usize) -> Box<dyn Iterator<Item = Result<TextChunk>> + Send + '_> {
        if self.documents == Kind::File {
            return Box::new((0..self.files.len()).flat_map(move |file| self.pieces_of(file, max_bytes)));
        }
        Box::new(self.streamed().flat_map(move |document| cut(document, max_bytes)))
    }

    /// The lines or rows of this corpus in order, each whole.
    fn streamed(&self) -> Box<dyn Iterator<Item = Result<TextChunk>> + Send + '_> {
        let documents: Box<dyn Iterator<Item = Result<TextChunk>> + Send + '_> = match &self.documents {
            Kind::File => return Box::new(std::iter::empty()),
            Kind::Line | Kind::EveryLine { .. } => {
                Box::new(self.files.iter().flat_map(|file| or_error(self.documents.lines(file, self.errors))))
            }
            Kind::Row(table) => Box::new(table.rows().map(|row| row.map(of_row))),
        };
        let Some(part) = self.part else { return documents };
        Box::new((0..).zip(documents).filter(move |(index, piece)| piece.is_err() || part.has(*index)).map(|(_, p)| p))
    }

    /// The parts of the file numbered `file` that can be read by themselves, whether it belongs to
    /// a share of the documents or not, from place `at` on, each with its place: of a document that
    /// is a file a piece of at most `PIECE_BYTES`, by its byte; else a line or row, by how many are
    /// before it.
    ///
    /// # Errors
    /// A file that cannot be opened.
    pub(super) fn units(&self, file: usize, at: u64) -> Result<Box<dyn Iterator<Item = Result<Unit>> + Send>> {
        let path = &self.files[file];
        let documents: Box<dyn Iterator<Item = Result<TextChunk>> + Send> = match &self.documents {
            Kind::File => {
                let mut chunks = TextChunks::open_at(path, PIECE_BYTES, at, self.errors)?;
                return Ok(Box::new(std::iter::from_fn(move || {
                    let at = chunks.offset();
                    chunks.next().map(|chunk| chunk.map(|chunk| (at, at == 0, chunk)))
                })));
            }
            Kind::Line | Kind::EveryLine { .. } => Box::new(self.documents.lines(path, self.errors)?),
            Kind::Row(table) => Box::new(table.rows_of(file).map(|row| row.map(of_row))),
        };
        let numbered = (0..).zip(documents).filter(move |(number, document)| document.is_err() || *number >= at);
        Ok(Box::new(numbered.map(|(number, document)| document.map(|document| (number, true, document)))))
    }

    fn pieces_of(&self, file: usize, max_bytes: usize) -> impl Iterator<Item = Result<TextChunk>> + Send {
        or_error(TextChunks::open_at(&self.files[file], max_bytes, 0, self.errors))
    }

    /// Pieces of documents drawn from the corpus by `seed`: about `limit` bytes or all of it. Files
    /// come whole, in a seeded order, and it is the caller's to stop; lines and rows come in their
    /// own order, each with the same chance.
    pub fn sample(
        &self,
        limit: u64,
        seed: u64,
        max_bytes: usize,
    ) -> Box<dyn Iterator<Item = Result<TextChunk>> + Send + '_> {
        if self.documents == Kind::File {
            let mut order = (0..self.files.len()).collect::<Vec<_>>();
            order.sort_by_key(|index| (seed_for(seed, "tokenizer", *index as u64, 0), *index));
            return Box::new(order.into_iter().flat_map(move |file| self.pieces_of(file, max_bytes)));
        }
        let chance = limit as f64 / self.num_bytes() as f64;
        let drawn = move |index: u64| uniform(seed_for(seed, "tokenizer", index, 0)) < chance;
        let documents = (0..).zip(self.streamed());
        let documents = documents.filter(move |(index, piece)| piece.is_err() || drawn(*index));
        Box::new(documents.flat_map(move |(_, document)| cut(document, max_bytes)))
    }

    /// The files in order, read whole as they are asked for.
    pub fn documents(&self) -> impl Iterator<Item = Result<String>> {
        (0..self.files.len()).map(|index| self.document(index))
    }

    /// The file at `index`.
    ///
    /// # Errors
    /// A file that cannot be read or is not UTF-8.
    pub fn document(&self, index: usize) -> Result<String> {
        let file = &self.files[index];
        let mut bytes = Vec::new();
        let read = Decoded::open(file).and_then(|mut opened| opened.read_to_end(&mut bytes));
        read.map_err(|error| read_error(file, &error))?;
        let (text, _) = text_of(&bytes, true, self.errors)
            .map_err(|error| not_utf8(file, error.valid_up_to(), bytes[error.valid_up_to()]))?;
        Ok(without_mark(&text).to_owned())
    }
}

/// Refuses a table as a text: its commas, quotes and ids would be learned. JSON is one where it has
/// rows, since settings of programs are written in it, too.
fn check_is_no_table(file: &Path) -> Result<()> {
    let Some(ending) = ending(file) else { return Ok(()) };
    match DataFormat::of_table(&ending) {
        Some(format) if ending != "json" || has_rows(file) => {
            let got = format!("{}: expected a text, got a table by its name (.{ending})", file.display());
            Err(Error::config(got).help(format!(
                "set data.format = \"{format}\", and data.text_column to the column of the text; a table that is to be learned \
                 as it stands must be named .txt"
            )))
        }
        _ => Ok(()),
    }
}

/// The document that a row of a table is.
fn of_row(row: Row) -> TextChunk {
    TextChunk { text: row.text, ends_document: true, replaced: row.replaced }
}

/// The opened file, or the one error that opening it gave.
fn or_error<T: Send, I: Iterator<Item = Result<T>> + Send>(
    opened: Result<I>,
) -> impl Iterator<Item = Result<T>> + Send {
    let (items, error) = match opened {
        Ok(items) => (Some(items), None),
        Err(error) => (None, Some(Err(error))),
    };
    items.into_iter().flatten().chain(error)
}

/// How an error that holds for all of `files` names them: the first, and how many others there are.
fn all(files: &[PathBuf]) -> String {
    let first = files[0].display();
    match files.len() - 1 {
        0 => first.to_string(),
        others => format!("{first} and {others} more"),
    }
}

/// Which of `len` items a share of them takes: those with the smallest hashes, at least one and not
/// all. None when that is impossible.
pub(crate) fn split_off(len: usize, share: f64, seed: u64) -> Option<Vec<bool>> {
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
    use crate::messages::messages;
    use crate::settings::DataFormat;
    use crate::table::Columns;

    fn corpus(folder: &tempfile::TempDir, documents: &[&[u8]]) -> Result<Corpus> {
        for (i, document) in documents.iter().enumerate() {
            fs::write(folder.path().join(format!("{i:03}.txt")), document).unwrap();
        }
        Corpus::open(&[format!("{}/*.txt", folder.path().display())], Documents::File)
    }

    #[test]
    fn a_document_is_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let corpus = corpus(&folder, &[b"one", b"", b"three"]).unwrap();
        assert_eq!(corpus.documents().collect::<Result<Vec<_>>>().unwrap(), ["one", "", "three"]);
        assert_eq!((corpus.files().len(), corpus.num_bytes()), (3, 8));
    }

    #[test]
    fn a_document_is_a_line_or_a_row() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| [folder.path().join(name).display().to_string()];
        let text = (0..100).map(|i| format!("line {i}")).collect::<Vec<_>>();
        fs::write(folder.path().join("a.txt"), text.join("\n\n")).unwrap();
        fs::write(folder.path().join("a.csv"), format!("n,text\n1,{}\n", text.join("\n1,"))).unwrap();
        let lines = Corpus::open(&path("a.txt"), Documents::Line).unwrap();
        let columns = Columns { text: "text".into(), ..Columns::default() };
        let rows = Corpus::of_table(Table::open(&path("a.csv"), DataFormat::Csv, columns).unwrap()).unwrap();
        for corpus in [lines, rows] {
            let texts = |corpus: &Corpus| {
                let pieces = corpus.pieces(4096).collect::<Result<Vec<_>>>().unwrap();
                assert!(pieces.iter().all(|piece| piece.ends_document));
                pieces.into_iter().map(|piece| piece.text).collect::<Vec<_>>()
            };
            assert_eq!(texts(&corpus), text);
            let (train, validation) = corpus.clone().split(0.2, 1).unwrap();
            // 100 draws with the chance 0.2: 20 +- 4 standard deviations of 4.
            assert!((4..=36).contains(&texts(&validation).len()));
            assert_eq!([texts(&train), texts(&validation)].concat().len(), 100);
            assert!(texts(&validation).iter().all(|line| !texts(&train).contains(line)));
            assert_ne!(train.describe(), validation.describe());
            assert!(corpus.pieces(4).count() > 100, "a long one comes in pieces");
            let half = corpus.sample(corpus.num_bytes() / 2, 1, 4096).count();
            assert!((30..=70).contains(&half), "100 draws with the chance 0.5 gave {half}");
        }
    }

    #[test]
    fn the_first_rows_are_split_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        fs::write(&path, (0..20).map(|i| format!("line {i}\n\n")).collect::<String>()).unwrap();
        let all = Corpus::open(&[path.display().to_string()], Documents::RowWithBreak).unwrap();
        let (rest, first) = all.split_first(5.0).unwrap();
        let texts = |corpus: &Corpus| corpus.pieces(4096).map(|piece| piece.unwrap().text).collect::<Vec<_>>();
        assert_eq!((texts(&first), texts(&rest).len()), (vec!["line 0\n".to_owned(), "\n".to_owned()], 38));
        assert_ne!(rest.describe(), first.describe());
    }

    #[test]
    fn empty_and_broken_text_are_refused() {
        let messages = messages!();
        let folder = tempfile::tempdir().unwrap();
        messages.refused("two empty files", corpus(&folder, &[b"", b""]));
        messages.refused("white space", corpus(&folder, &[b" \n", "\u{a0}\t ".repeat(5000).as_bytes()]));
        assert!(corpus(&folder, &[b" \n", b" x"]).is_ok());
        let broken = corpus(&folder, &[b"abc", b"de\xfff"]).unwrap();
        messages.add("documents of which one is no UTF-8", broken.documents().find_map(Result::err).unwrap());
        messages.add("and their pieces", broken.pieces(64).find_map(Result::err).unwrap());
        fs::remove_file(folder.path().join("001.txt")).unwrap();
        messages.add("pieces of a file that is gone", broken.pieces(64).find_map(Result::err).unwrap());
    }

    #[test]
    fn splitting_is_deterministic_and_complete() {
        let folder = tempfile::tempdir().unwrap();
        let texts = (0..100).map(|i| format!("document {i}")).collect::<Vec<_>>();
        let whole = corpus(&folder, &texts.iter().map(|text| text.as_bytes()).collect::<Vec<_>>()).unwrap();
        let (train, validation) = whole.clone().split(0.02, 1).unwrap();
        assert_eq!((train.files.len(), validation.files.len()), (98, 2));
        assert!(validation.files.iter().all(|file| !train.files.contains(file)));
        assert_eq!(whole.clone().split(0.02, 1).unwrap().1, validation);
        assert_ne!(whole.clone().split(0.02, 2).unwrap().1, validation);
        assert_eq!(whole.split(0.0001, 1).unwrap().1.files.len(), 1, "a share is at least one document");
        let one = corpus(&tempfile::tempdir().unwrap(), &[b"all"]);
        assert!(one.unwrap().split(0.5, 1).unwrap_err().to_string().contains("cannot be split"));
    }
}
