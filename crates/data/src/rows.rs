//! A table as encoded rows on disk: the [store](super::store) of ids, token types and label of
//! every row, cut to the maximum length.

use std::any::Any;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use kiln_core::dataset::subset::Subset;
use kiln_core::error::{Error, Result};
use sha2::{Digest, Sha256};

use super::labels::{LabelReader, LabelRule, SeenLabels};
use super::store::{Column, Format, OnProgress, Store, Writer};
use super::stream::{self, Made};
use super::table::{Place, Row, Table};
use super::tokenizer::{Encoded, RowEncoder};
use super::{Dataset, Example, IGNORED, Label};
use crate::cache::mapped::Kind;
use crate::cache::sources::changed;

const FORMAT: Format = Format {
    kind: Kind { magic: b"KILNROW6", name: "row store", extension: "rows" },
    columns: &["input_ids", "token_type_ids", "label", "remark"],
};

const INPUT_IDS: Column = Column(0);

/// Empty lists where rows have no token types.
const TOKEN_TYPE_IDS: Column = Column(1);

/// The class; the bits of the number, or of one for each label; a class for each token; or the
/// right choice and the tokens of each.
const LABEL: Column = Column(2);

/// The sum of [`IS_CUT`] and [`IS_BLANK`], where they hold of the row.
const REMARK: Column = Column(3);

/// Tokens of the row were cut off.
const IS_CUT: i64 = 1;

/// The row has no text.
const IS_BLANK: i64 = 2;

/// Rows are handed to the tokenizer in groups of about this many bytes.
const GROUP_BYTES: usize = 1 << 20;

/// Encoded rows.
#[derive(Debug)]
pub struct RowStore {
    store: Store,
    rule: LabelRule,
    max_len: usize,
}

/// The result of a first reading of a table.
#[derive(Debug, Clone)]
pub struct Scan {
    /// Bytes of text.
    pub bytes: u64,
    /// Rows.
    pub rows: u64,
    /// The values of the label column.
    pub labels: SeenLabels,
    /// How many rows have no text, and the place of the first.
    pub blank: (u64, Option<Place>),
    /// Sequences of bytes that were not UTF-8 and are read as U+FFFD.
    pub replaced: u64,
    hash: [u8; 32],
}

impl Scan {
    /// Reads all of `table` once; `classes` says whether the label column holds classes.
    ///
    /// # Errors
    /// A row of the table that cannot be read; a table without rows.
    pub fn new(table: &Table, classes: bool) -> Result<Self> {
        let (mut bytes, mut rows, mut labels, mut hash) = (0, 0, SeenLabels::default(), Sha256::new());
        let (mut blank, mut replaced) = ((0, None), 0);
        for row in table.rows() {
            let row = row?;
            rows += 1;
            replaced += row.replaced;
            bytes += size(&row) as u64;
            add(&mut hash, &row);
            if is_blank(&row) {
                blank = (blank.0 + 1, blank.1.or_else(|| Some(row.place.clone())));
            }
            if let Some(cell) = row.label.as_ref().filter(|_| classes) {
                labels.add(cell, &row.place);
            }
        }
        if rows == 0 {
            let files = table.files();
            let more = if files.len() > 1 { format!(" and {} more file(s)", files.len() - 1) } else { String::new() };
            return Err(Error::data(format!("{}{more}: expected rows, got none", files[0].display())));
        }
        Ok(Self { bytes, rows, labels, blank, replaced, hash: hash.finalize().into() })
    }
}

impl Scan {
    /// The hash of all rows.
    pub(super) fn hash(&self) -> [u8; 32] {
        self.hash
    }

    /// Hands the rows of `table` to `write` in groups of about [`GROUP_BYTES`], and tells of the
    /// bytes done after each.
    ///
    /// # Errors
    /// An error of `write`; a row that cannot be read; rows that differ from those of the first
    /// reading; an interruption.
    pub(super) fn write_groups(
        &self,
        table: &Table,
        writer: &mut Writer<'_, '_>,
        mut write: impl FnMut(&mut Writer<'_, '_>, &[Row]) -> Result<()>,
    ) -> Result<()> {
        writer.state.total_bytes = self.bytes;
        let mut flush = |group: &mut Vec<Row>, bytes: usize| -> Result<()> {
            write(writer, group)?;
            group.clear();
            writer.state.done_bytes += bytes as u64;
            writer.tell()
        };
        let (mut group, mut bytes, mut hash) = (Vec::new(), 0, Sha256::new());
        for row in table.rows() {
            let row = row?;
            add(&mut hash, &row);
            bytes += size(&row);
            group.push(row);
            if bytes >= GROUP_BYTES {
                flush(&mut group, std::mem::take(&mut bytes))?;
            }
        }
        flush(&mut group, bytes)?;
        // Labels were settled by the first reading, and the key is made of it.
        if <[u8; 32]>::from(hash.finalize()) == self.hash { Ok(()) } else { Err(changed(&table.files()[0])) }
    }
}

impl RowStore {
    /// The rows of `table` under `encoder`, with labels by `labels`: from the cache in `folder`, or
    /// encoded now.
    ///
    /// # Errors
    /// Rows that cannot be read or are no longer those of `scan`; labels that `labels` refuses,
    /// with their place; no row that has a label; a cache that cannot be written; an interruption.
    pub fn build_or_open(
        folder: &Path,
        table: &Table,
        scan: &Scan,
        encoder: &RowEncoder,
        labels: &LabelReader,
        progress: &mut OnProgress<'_>,
    ) -> Result<Self> {
        let key = key(scan, encoder, labels);
        let fill = |writer: &mut Writer<'_, '_>| {
            scan.write_groups(table, writer, |writer, rows| write(writer, rows, encoder, labels))
        };
        let store = FORMAT.build_or_open(folder, key, progress, fill)?;
        let rows = Self { max_len: store.longest(INPUT_IDS), store, rule: labels.rule.clone() };
        if rows.len() == 0 {
            return Err(Error::data(format!("{}: no row has a label", table.files()[0].display()))
                .help("name the right column with data.label_column"));
        }
        Ok(match labels.rule {
            LabelRule::Choice => {
                Self { max_len: (0..rows.len()).map(|row| rows.tokens(row).0).max().unwrap_or(0), ..rows }
            }
            _ => rows,
        })
    }
}

impl Dataset for RowStore {
    fn len(&self) -> usize {
        self.store.lists(INPUT_IDS)
    }

    fn get(&self, index: usize, _epoch: u64) -> Result<Example> {
        Ok(Example {
            input_ids: self.store.list(INPUT_IDS, index, |id| id as i32),
            attention_mask: None,
            token_type_ids: self.store.some_list(TOKEN_TYPE_IDS, index, |kind| kind as i32),
            position_ids: None,
            label: self.label(index),
        })
    }

    fn max_len(&self) -> usize {
        self.max_len
    }

    fn len_of(&self, index: usize) -> usize {
        self.tokens(index).0
    }

    fn num_tokens(&self) -> u64 {
        (0..self.len()).map(|index| self.tokens(index).1 as u64).sum()
    }
}

impl RowStore {
    /// The rows that the example at `index` of `data` is one of, and its number among them; none
    /// for other data.
    pub fn of(data: &dyn Dataset, index: usize) -> Option<(&Self, usize)> {
        let any = data as &dyn Any;
        match any.downcast_ref::<Subset>() {
            Some(subset) => {
                let (data, index) = subset.origin(index);
                Self::of(data, index)
            }
            None => Some((any.downcast_ref()?, index)),
        }
    }

    /// The label of the row `index`.
    pub fn label(&self, index: usize) -> Label {
        let numbers = self.store.list(LABEL, index, |number| number);
        let float = |bits: i64| f32::from_bits(bits as u32);
        match self.rule {
            LabelRule::Nothing => Label::None,
            LabelRule::Classes(_) => Label::Class(numbers[0] as i32),
            LabelRule::Values => Label::Value(float(numbers[0])),
            LabelRule::Tags(_) => Label::Tokens(numbers.into_iter().map(|number| number as i32).collect()),
            LabelRule::Several(_) => Label::Multi(numbers.into_iter().map(float).collect()),
            LabelRule::Choice => Label::Choice {
                lens: numbers[1..].iter().map(|len| *len as usize).collect(),
                answer: numbers[0] as i32,
            },
        }
    }

    /// Whether tokens of the row `index` were cut off.
    pub fn is_cut(&self, index: usize) -> bool {
        self.store.number(REMARK, index) & IS_CUT != 0
    }

    /// Whether the row `index` has no text.
    pub fn is_blank(&self, index: usize) -> bool {
        self.store.number(REMARK, index) & IS_BLANK != 0
    }

    /// Tokens of the longest sequence of a row, and of all of them.
    fn tokens(&self, index: usize) -> (usize, usize) {
        let all = self.store.bounds(INPUT_IDS, index).len();
        let longest = match self.rule {
            LabelRule::Choice => self.store.list(LABEL, index, |len| len as usize)[1..].iter().copied().max(),
            _ => None,
        };
        (longest.unwrap_or(all), all)
    }
}

/// The hash of everything the rows depend on.
fn key(scan: &Scan, encoder: &RowEncoder, labels: &LabelReader) -> Sha256 {
    let mut hash = FORMAT.key();
    hash.update(scan.hash);
    hash.update(encoder.content_hash());
    hash.update(labels.describe().as_bytes());
    hash
}

/// Adds what the rows depend on of a row to the hash of a scan.
fn add(hash: &mut Sha256, row: &Row) {
    for text in row.texts() {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    }
    if let Some(cell) = &row.label {
        hash.update(format!("{cell:?}\n").as_bytes());
    }
}

/// The example of `row`, which `encoder` has encoded, with its label by `labels`; none where the
/// row is left out.
///
/// # Errors
/// A row without a text, and a label that `labels` refuses, with the place of the row.
fn example(row: &Row, encoded: Encoded, encoder: &RowEncoder, labels: &LabelReader) -> Result<Option<Example>> {
    let at = |error: Error| error.at(&row.place);
    let Encoded { ids, types, words, lens, .. } = encoded;
    let Some(label) = labels.read(row.label.as_ref()).map_err(at)? else { return Ok(None) };
    if ids.is_empty() || row.parts.is_empty() && matches!(labels.rule, LabelRule::Tags(_)) {
        return Err(at(Error::data("the text is empty: it has no tokens").help("leave the row out")));
    }
    let label = match label {
        Label::Class(answer) if labels.rule == LabelRule::Choice => {
            if usize::try_from(answer).map_or(true, |answer| answer >= lens.len()) {
                let last = lens.len() - 1;
                return Err(at(Error::data(format!("label: expected a choice from 0 to {last}, got {answer}"))));
            }
            Label::Choice { lens, answer }
        }
        Label::Tokens(tags) if tags.len() != row.parts.len() => {
            let (words, tags) = (row.parts.len(), tags.len());
            return Err(at(Error::data(format!("expected a label for each of the {words} words, got {tags}"))));
        }
        Label::Tokens(tags) => Label::Tokens(on_first_pieces(&tags, &words).collect()),
        label => label,
    };
    Ok(Some(Example {
        input_ids: ids.into_iter().map(|id| id as i32).collect(),
        attention_mask: None,
        token_type_ids: encoder.has_types().then(|| types.into_iter().map(i32::from).collect()),
        position_ids: None,
        label,
    }))
}

/// The rows of `table` under `encoder`, with labels by `labels`, as a stream.
pub fn streamed(table: Table, encoder: RowEncoder, labels: LabelReader) -> Made {
    let mut settings = Sha256::new_with_prefix("table");
    settings.update(encoder.content_hash());
    settings.update(labels.describe().as_bytes());
    let longest = encoder.max_length();
    // How many there are is not known before the end.
    let told = AtomicBool::new(false);
    let encode = move |rows: &[Row]| {
        let examples = rows.iter().zip(encoder.encode(rows)?);
        let examples = examples.map(|(row, encoded)| {
            let example = example(row, encoded, &encoder, &labels)?;
            if example.is_none() && !told.swap(true, Ordering::Relaxed) {
                tracing::warn!("{}: the row has no label and is left out, and so is every other such row", row.place);
            }
            Ok(example)
        });
        examples.collect()
    };
    stream::rows(table, Box::new(encode), longest, settings)
}

/// Appends `rows`.
fn write(writer: &mut Writer<'_, '_>, rows: &[Row], encoder: &RowEncoder, labels: &LabelReader) -> Result<()> {
    for (row, encoded) in rows.iter().zip(encoder.encode(rows)?) {
        let remark = i64::from(encoded.is_cut) * IS_CUT + i64::from(is_blank(row)) * IS_BLANK;
        let Some(example) = example(row, encoded, encoder, labels)? else { continue };
        let label = match example.label {
            Label::Choice { lens, answer } => {
                std::iter::once(i64::from(answer)).chain(lens.iter().map(|len| *len as i64)).collect()
            }
            Label::Class(class) => vec![i64::from(class)],
            Label::Value(value) => vec![i64::from(value.to_bits())],
            Label::Multi(values) => values.into_iter().map(|value| i64::from(value.to_bits())).collect(),
            Label::Tokens(tags) => tags.into_iter().map(i64::from).collect(),
            Label::None | Label::Span { .. } => Vec::new(),
        };
        writer.state.tokens += example.input_ids.len() as u64;
        writer.list(INPUT_IDS, example.input_ids)?;
        writer.list(TOKEN_TYPE_IDS, example.token_type_ids.into_iter().flatten())?;
        writer.list(LABEL, label)?;
        writer.numbers(REMARK, [remark])?;
    }
    Ok(())
}

/// The labels of tokens whose words are `words`: that of the word for its first token, as `run_ner`
/// gives them by default; none for its others and for tokens of no word.
fn on_first_pieces<'a>(tags: &'a [i32], words: &'a [Option<u32>]) -> impl Iterator<Item = i32> + 'a {
    let before = std::iter::once(&None).chain(words);
    words.iter().zip(before).map(|(word, before)| match word {
        Some(index) if word != before => tags[*index as usize],
        _ => IGNORED,
    })
}

/// Whether all texts of `row` are white space.
fn is_blank(row: &Row) -> bool {
    row.texts().all(|text| text.trim().is_empty())
}

fn size(row: &Row) -> usize {
    row.texts().map(str::len).sum()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::ops::ControlFlow;

    use super::*;
    use crate::labels::LabelNames;
    use crate::settings::DataFormat;
    use crate::table::Columns;
    use crate::tokenizer::{RowKind, Tokenizer};

    struct Fixture {
        folder: tempfile::TempDir,
        table: Table,
        tokenizer: Tokenizer,
    }

    fn fixture() -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("vocab.txt"), "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\n").unwrap();
        let tokenizer = Tokenizer::load(folder.path()).unwrap();
        let file = folder.path().join("a.csv");
        fs::write(&file, "one,two,label\na b c a b,c,neg\na,b b b b b,pos\n,a,pos\n").unwrap();
        let columns = Columns {
            text: "one".into(),
            text_pair: Some("two".into()),
            label: Some("label".into()),
            ..Columns::default()
        };
        let table = Table::open(&[file.display().to_string()], DataFormat::Csv, columns).unwrap();
        Fixture { folder, table, tokenizer }
    }

    fn rule() -> LabelReader {
        let rule = LabelRule::Classes(LabelNames::new(vec!["neg".into(), "pos".into()]).unwrap());
        LabelReader { rule, skip_unlabeled: false }
    }

    fn store(fixture: &Fixture, cache: &Path, max_length: usize) -> Result<RowStore> {
        let encoder = fixture.tokenizer.row_encoder(max_length, RowKind::Pair, true)?;
        let scan = Scan::new(&fixture.table, true)?;
        RowStore::build_or_open(cache, &fixture.table, &scan, &encoder, &rule(), &mut |_| ControlFlow::Continue(()))
    }

    #[test]
    fn pairs_have_types_and_the_longest_side_is_cut() {
        let fixture = fixture();
        let store = store(&fixture, fixture.folder.path(), 7).unwrap();
        assert_eq!((store.len(), store.max_len()), (3, 7));
        let first = store.get(0, 0).unwrap();
        assert_eq!(first.input_ids, [2, 5, 6, 7, 3, 7, 3]);
        assert_eq!(first.token_type_ids.unwrap(), [0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(first.label, Label::Class(0));
        let second = store.get(1, 0).unwrap();
        assert_eq!(second.input_ids, [2, 5, 3, 6, 6, 6, 3]);
        assert_eq!(second.token_type_ids.unwrap(), [0, 0, 0, 1, 1, 1, 1]);
        let third = store.get(2, 0).unwrap();
        assert_eq!((third.input_ids, third.label, store.len_of(2)), (vec![2, 3, 5, 3], Label::Class(1), 4));
        assert_eq!([0, 1, 2].map(|row| store.is_cut(row)), [true, true, false]);
        let error = fixture.tokenizer.row_encoder(3, RowKind::Pair, true).unwrap_err().to_string();
        assert!(error.contains("data.max_length = 3"), "{error}");
    }

    #[test]
    fn rows_that_are_not_those_of_the_scan_are_refused() {
        let fixture = fixture();
        let encoder = fixture.tokenizer.row_encoder(9, RowKind::Pair, true).unwrap();
        let scan = Scan::new(&fixture.table, true).unwrap();
        fs::write(fixture.folder.path().join("a.csv"), "one,two,label\na b c a b,c,pos\na,b b b b b,pos\n,a,pos\n")
            .unwrap();
        let cache = fixture.folder.path().join("cache");
        let mut go_on = |_| ControlFlow::Continue(());
        let error = RowStore::build_or_open(&cache, &fixture.table, &scan, &encoder, &rule(), &mut go_on);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("a.csv: the file changed while it was read"), "{error}");
        assert_eq!(fs::read_dir(&cache).unwrap().count(), 0);
    }

    #[test]
    fn of_a_long_text_the_beginning_is_what_the_whole_gives() {
        let fixture = fixture();
        // Words, then so many spaces that the first thousands of bytes have few tokens, then words
        // again.
        let long = ["a b c ".repeat(700), " ".repeat(5000), "c b ".repeat(9000)];
        let texts = [long.concat(), long[1].clone() + &long[2], "x".repeat(70_000) + &long[0], long[2].clone()];
        let file = fixture.folder.path().join("long.csv");
        for (max_length, text) in
            [5, 40, 300].into_iter().flat_map(|length| texts.iter().map(move |text| (length, text)))
        {
            fs::write(&file, format!("one\n\"{text}\"\n")).unwrap();
            let columns = Columns { text: "one".into(), ..Columns::default() };
            let table = Table::open(&[file.display().to_string()], DataFormat::Csv, columns).unwrap();
            let rows = table.rows().collect::<Result<Vec<_>>>().unwrap();
            let ids = fixture.tokenizer.encode_pieces(&[text]).unwrap().remove(0);
            let expected = [&[2], &ids[..max_length - 2], &[3]].concat();
            let encoder = fixture.tokenizer.row_encoder(max_length, RowKind::Single, false).unwrap();
            let encoded = encoder.encode(&rows).unwrap().remove(0);
            assert_eq!((encoded.ids, encoded.is_cut), (expected, true));
        }
    }

    #[test]
    fn other_lengths_and_labels_are_other_keys() {
        let fixture = fixture();
        let scan = Scan::new(&fixture.table, true).unwrap();
        let encoder = |length| fixture.tokenizer.row_encoder(length, RowKind::Pair, true).unwrap();
        let key = |length, rule: &LabelReader| key(&scan, &encoder(length), rule).finalize();
        assert_ne!(key(8, &rule()), key(9, &rule()));
        assert_ne!(key(8, &rule()), key(8, &LabelReader { rule: LabelRule::Values, ..rule() }));
    }
}
