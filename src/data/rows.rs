//! A table as encoded rows in one memory-mapped file: ids, token types and label of every row, cut to the maximum length.
//! Kept and guarded as the [token store](super::store): written as a stream under a key of everything it depends on, and
//! in the cache only when it is whole.
//!
//! Layout: the header (`cache::mapped`) with `KILNROW2`, the width of an id in bytes (2 or 4; with bit 32 set if rows
//! have token types), the number of rows and the number of their bytes; the rows, each its ids and then its token types (a
//! byte each); the index, 16 bytes a row: offset (u64), number of tokens (u32), label (u32: the class, or the bits of the
//! f32).

use std::path::Path;

use sha2::{Digest, Sha256};

use super::labels::{LabelRule, SeenLabels};
use super::store::{OnProgress, Progress, tell};
use super::table::{Row, Table};
use super::tokenizer::{Encoded, RowEncoder};
use super::{Dataset, Example, Label};
use crate::base::error::{Error, Result};
use crate::cache;
use crate::cache::mapped::{Key, Kind, Mapped, Writer, changed, damaged, ids, u32_at, u64_at};

const KIND: Kind<3> = Kind { magic: b"KILNROW2", name: "row store" };
const INDEX: usize = 16;

/// Rows are handed to the tokenizer in groups of about this many bytes.
const GROUP_BYTES: usize = 1 << 20;

/// Encoded rows.
#[derive(Debug)]
pub struct RowStore {
    map: Mapped<3>,
    width: usize,
    has_types: bool,
    len: usize,
    /// Where the index starts.
    index: usize,
    rule: LabelRule,
    max_len: usize,
}

/// What a first reading of a table shows.
#[derive(Debug, Clone)]
pub struct Scan {
    /// Bytes of text.
    pub bytes: u64,
    /// Rows.
    pub rows: u64,
    /// The values of the label column.
    pub labels: SeenLabels,
    hash: [u8; 32],
}

impl Scan {
    /// Reads all of `table` once; `classes` says whether the label column holds classes.
    ///
    /// # Errors
    /// Whatever is wrong with the table; a table without rows; labels that cannot be classes.
    pub fn new(table: &Table, classes: bool) -> Result<Self> {
        let (mut bytes, mut rows, mut labels, mut hash) = (0, 0, SeenLabels::default(), Sha256::new());
        for row in table.rows() {
            let row = row?;
            rows += 1;
            bytes += size(&row) as u64;
            add(&mut hash, &row);
            if let Some(cell) = row.label.as_ref().filter(|_| classes) {
                labels.add(cell).map_err(|error| error.at(&row.place))?;
            }
        }
        if rows == 0 {
            let files = table.files();
            let more = if files.len() > 1 { format!(" and {} more file(s)", files.len() - 1) } else { String::new() };
            return Err(Error::data(format!("{}{more}: expected rows, got none", files[0].display())));
        }
        Ok(Self { bytes, rows, labels, hash: hash.finalize().into() })
    }
}

impl RowStore {
    /// The rows of `table` under `encoder`, with labels by `rule`: from the cache, or encoded now.
    ///
    /// # Errors
    /// Rows that cannot be read or are no longer those of `scan`; labels that `rule` refuses, with their place; a cache that
    /// cannot be written; an interruption.
    pub fn build_or_open(
        table: &Table,
        scan: &Scan,
        encoder: &RowEncoder,
        rule: &LabelRule,
        progress: &mut OnProgress<'_>,
    ) -> Result<Self> {
        Self::build_or_open_in(&cache::folder()?.join(cache::ROWS), table, scan, encoder, rule, progress)
    }

    /// As [`build_or_open`](Self::build_or_open), with the cache in `folder`.
    ///
    /// # Errors
    /// As [`build_or_open`](Self::build_or_open).
    pub fn build_or_open_in(
        folder: &Path,
        table: &Table,
        scan: &Scan,
        encoder: &RowEncoder,
        rule: &LabelRule,
        progress: &mut OnProgress<'_>,
    ) -> Result<Self> {
        let key = key(scan, encoder, rule);
        let open = |path: &Path| Self::open(path, rule);
        KIND.build_or_open(folder, &key, "rows", open, |writer| write(writer, table, scan, encoder, rule, progress))
    }

    /// Opens a store that is on disk and whose labels `rule` has made.
    ///
    /// # Errors
    /// A file that is no row store, is cut short, has another's name, or does not match its digests.
    pub fn open(path: &Path, rule: &LabelRule) -> Result<Self> {
        let map = KIND.open(path)?;
        let [width, len, index] = map.numbers;
        let (width, has_types) = ((width & 0xffff_ffff) as usize, width >> 32 != 0);
        map.has_bytes(len.checked_mul(INDEX as u64).and_then(|bytes| bytes.checked_add(index)), path)?;
        let (len, index) = (len as usize, index as usize);
        let mut store = Self { map, width, has_types, len, index, rule: rule.clone(), max_len: 0 };
        // Rows follow one another without gaps; a damaged index does not get past this.
        let mut expected = 0;
        for row in 0..len {
            let (offset, tokens, _) = store.entry(row);
            if offset != expected {
                return Err(damaged(path, format!("damaged index at row {row}")));
            }
            expected += tokens * store.bytes_per_token();
            store.max_len = store.max_len.max(tokens);
        }
        if expected != index {
            return Err(damaged(path, "damaged index"));
        }
        Ok(store)
    }

    /// SHA-256 of the rows and their labels.
    pub fn digest(&self) -> [u8; 32] {
        self.map.digest()
    }

    fn bytes_per_token(&self) -> usize {
        self.width + usize::from(self.has_types)
    }

    /// Offset, number of tokens and label of a row.
    fn entry(&self, row: usize) -> (usize, usize, u32) {
        let at = self.index + row * INDEX;
        let number = |at| u32_at(&self.map, at);
        (u64_at(&self.map, at) as usize, number(at + 8) as usize, number(at + 12))
    }
}

impl Dataset for RowStore {
    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize, _epoch: u64) -> Result<Example> {
        let (offset, tokens, label) = self.entry(index);
        let types = offset + tokens * self.width;
        let input_ids = ids(&self.map[offset..types], self.width);
        let types =
            self.has_types.then(|| self.map[types..types + tokens].iter().map(|kind| i32::from(*kind)).collect());
        let label = match self.rule {
            LabelRule::Nothing => Label::None,
            LabelRule::Classes(_) => Label::Class(label as i32),
            LabelRule::Values => Label::Value(f32::from_bits(label)),
        };
        Ok(Example { input_ids, attention_mask: None, token_type_ids: types, label })
    }

    fn max_len(&self) -> usize {
        self.max_len
    }

    fn len_of(&self, index: usize) -> usize {
        self.entry(index).1
    }
}

/// SHA-256 over everything the rows depend on.
fn key(scan: &Scan, encoder: &RowEncoder, rule: &LabelRule) -> Key {
    let mut hash = Sha256::new();
    hash.update(KIND.magic);
    hash.update(scan.hash);
    hash.update(encoder.content_hash());
    hash.update(rule.describe().as_bytes());
    hash.finalize().into()
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

/// Writes the rows and their index; the numbers of the header.
fn write(
    writer: &mut Writer<'_>,
    table: &Table,
    scan: &Scan,
    encoder: &RowEncoder,
    rule: &LabelRule,
    progress: &mut OnProgress<'_>,
) -> Result<[u64; 3]> {
    let width: usize = if encoder.vocab_size() <= 1 << 16 { 2 } else { 4 };
    let has_types = encoder.has_types();
    let mut state = Progress { done_bytes: 0, total_bytes: scan.bytes, tokens: 0 };
    let (mut offset, mut rows) = (0u64, 0u64);
    let mut flush = |group: &mut Vec<Row>, state: &mut Progress| -> Result<()> {
        for (row, encoded) in group.iter().zip(encoder.encode(group)?) {
            let at = |error: Error| error.at(&row.place);
            let Encoded { ids, types } = encoded;
            if ids.is_empty() {
                return Err(at(Error::data("the text is empty: it has no tokens").help("leave the row out")));
            }
            let label = match rule.apply(row.label.as_ref()).map_err(at)? {
                Label::Class(class) => class as u32,
                Label::Value(value) => value.to_bits(),
                _ => 0,
            };
            for id in &ids {
                writer.write(&id.to_le_bytes()[..width])?;
            }
            if has_types {
                writer.write(&types)?;
            }
            let mut entry = offset.to_le_bytes().to_vec();
            entry.extend((ids.len() as u32).to_le_bytes());
            entry.extend(label.to_le_bytes());
            writer.index(&entry)?;
            offset += (ids.len() * (width + usize::from(has_types))) as u64;
            rows += 1;
            state.tokens += ids.len() as u64;
        }
        state.done_bytes += group.iter().map(size).sum::<usize>() as u64;
        group.clear();
        tell(progress, *state)
    };
    let (mut group, mut group_bytes, mut hash) = (Vec::<Row>::new(), 0, Sha256::new());
    for row in table.rows() {
        let row = row?;
        add(&mut hash, &row);
        group_bytes += size(&row);
        group.push(row);
        if group_bytes >= GROUP_BYTES {
            flush(&mut group, &mut state)?;
            group_bytes = 0;
        }
    }
    flush(&mut group, &mut state)?;
    // Labels were settled by the first reading, and the key is made of it.
    if <[u8; 32]>::from(hash.finalize()) != scan.hash {
        return Err(changed(&table.files()[0]));
    }
    Ok([width as u64 | u64::from(has_types) << 32, rows, offset])
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
    use crate::config::DataFormat;
    use crate::data::labels::LabelNames;
    use crate::data::table::Columns;
    use crate::data::tokenizer::Tokenizer;

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
        let columns = Columns { text: "one".into(), text_pair: Some("two".into()), label: Some("label".into()) };
        let table = Table::open(&[file.display().to_string()], DataFormat::Csv, columns).unwrap();
        Fixture { folder, table, tokenizer }
    }

    fn rule() -> LabelRule {
        LabelRule::Classes(LabelNames::new(vec!["neg".into(), "pos".into()]).unwrap())
    }

    fn store(fixture: &Fixture, cache: &Path, max_length: usize) -> Result<RowStore> {
        let encoder = fixture.tokenizer.row_encoder(max_length, true, true)?;
        let scan = Scan::new(&fixture.table, true)?;
        RowStore::build_or_open_in(cache, &fixture.table, &scan, &encoder, &rule(), &mut |_| ControlFlow::Continue(()))
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
        let error = fixture.tokenizer.row_encoder(3, true, true).unwrap_err().to_string();
        assert!(error.contains("data.max_length = 3"), "{error}");
    }

    #[test]
    fn a_damaged_cache_is_made_again_and_an_interruption_leaves_nothing() {
        let fixture = fixture();
        let cache = fixture.folder.path().join("cache");
        let expected = store(&fixture, &cache, 9).unwrap().get(1, 0).unwrap();
        let file = fs::read_dir(&cache).unwrap().next().unwrap().unwrap().path();
        let whole = fs::read(&file).unwrap();
        let body = Kind::<3>::HEADER;
        for (at, says) in [(17, "damaged header"), (whole.len() - INDEX, "not those that"), (body, "not those that")] {
            let mut lying = whole.clone();
            lying[at] ^= 1;
            fs::write(&file, &lying).unwrap();
            assert!(RowStore::open(&file, &rule()).unwrap_err().to_string().contains(says));
            assert_eq!(store(&fixture, &cache, 9).unwrap().get(1, 0).unwrap(), expected);
        }
        fs::write(&file, &whole[..whole.len() - 1]).unwrap();
        assert!(RowStore::open(&file, &rule()).is_err());
        fs::remove_file(&file).unwrap();
        let encoder = fixture.tokenizer.row_encoder(9, true, true).unwrap();
        let scan = Scan::new(&fixture.table, true).unwrap();
        let stopped = RowStore::build_or_open_in(&cache, &fixture.table, &scan, &encoder, &rule(), &mut |_| {
            ControlFlow::Break(())
        });
        assert!(stopped.unwrap_err().to_string().contains("interrupted"));
        assert_eq!(fs::read_dir(&cache).unwrap().count(), 0);
    }

    #[test]
    fn rows_that_are_not_those_of_the_scan_are_refused() {
        let fixture = fixture();
        let encoder = fixture.tokenizer.row_encoder(9, true, true).unwrap();
        let scan = Scan::new(&fixture.table, true).unwrap();
        fs::write(fixture.folder.path().join("a.csv"), "one,two,label\na b c a b,c,pos\na,b b b b b,pos\n,a,pos\n")
            .unwrap();
        let cache = fixture.folder.path().join("cache");
        let mut go_on = |_| ControlFlow::Continue(());
        let error = RowStore::build_or_open_in(&cache, &fixture.table, &scan, &encoder, &rule(), &mut go_on);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("a.csv: the file changed while it was read"), "{error}");
        assert_eq!(fs::read_dir(&cache).unwrap().count(), 0);
    }

    #[test]
    fn of_a_long_text_the_beginning_is_what_the_whole_gives() {
        let fixture = fixture();
        // Words, then so many spaces that the first thousands of bytes have few tokens, then words again.
        let long = ["a b c ".repeat(700), " ".repeat(5000), "c b ".repeat(9000)];
        let texts = [long.concat(), long[1].clone() + &long[2], "x".repeat(70_000) + &long[0], long[2].clone()];
        let file = fixture.folder.path().join("long.csv");
        for (max_length, text) in
            [5, 40, 300].into_iter().flat_map(|length| texts.iter().map(move |text| (length, text)))
        {
            fs::write(&file, format!("one\n\"{text}\"\n")).unwrap();
            let columns = Columns { text: "one".into(), text_pair: None, label: None };
            let table = Table::open(&[file.display().to_string()], DataFormat::Csv, columns).unwrap();
            let rows = table.rows().collect::<Result<Vec<_>>>().unwrap();
            let ids = fixture.tokenizer.encode_pieces(&[text]).unwrap().remove(0);
            let expected = [&[2], &ids[..max_length - 2], &[3]].concat();
            let encoder = fixture.tokenizer.row_encoder(max_length, false, false).unwrap();
            assert_eq!(encoder.encode(&rows).unwrap()[0].ids, expected);
        }
    }

    #[test]
    fn other_lengths_and_labels_are_other_keys() {
        let fixture = fixture();
        let scan = Scan::new(&fixture.table, true).unwrap();
        let encoder = |length| fixture.tokenizer.row_encoder(length, true, true).unwrap();
        assert_ne!(key(&scan, &encoder(8), &rule()), key(&scan, &encoder(9), &rule()));
        assert_ne!(key(&scan, &encoder(8), &rule()), key(&scan, &encoder(8), &LabelRule::Values));
    }
}
