//! The one store of examples: columns of whole numbers in one memory-mapped entry (`cache::mapped`)
//! of the cache. Ids of a text, rows of a table, windows of SQuAD and tokenised rows are each a
//! `Format`, which says what columns they have.
//!
//! A column holds a number for every example, or a list of numbers for every example. It is written
//! in chunks of 16,384 numbers as they come, so memory does not grow with the data; a chunk stands
//! as the differences from its smallest number, each in as few bytes as the largest of them needs
//! (none when all are equal).
//!
//! Body of the entry, little-endian: the chunks of all columns, in the order in which they became
//! full; then the directory, for each column three u64 for each of its chunks, which are the
//! smallest number, the byte of the body at which the chunk begins and the bytes of a number; then
//! for each column how many numbers it has (u64). A column of lists is two columns here: the
//! numbers of all lists, and where each list ends among them.

use std::iter::repeat_n;
use std::ops::{ControlFlow, Range};
use std::path::Path;

use kiln_core::error::Result;
use kiln_core::signals;
use sha2::{Digest, Sha256};

use crate::cache::mapped::{Body, Key, Kind, Mapped, damaged, interrupted};

/// A column is written in chunks of so many numbers.
const CHUNK: usize = 1 << 14;

/// Bytes of a chunk in the directory.
const ENTRY: usize = 24;

/// The work while data are opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Doing {
    /// So many files are read: counted, or looked up in the cache.
    Reading(usize),
    /// A tokenizer of so many tokens is learned.
    Learning(usize),
    /// Text is tokenised.
    #[default]
    Tokenising,
}

/// How far the preparation of data has come: the figures are those of tokenising.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Preparation {
    /// The work at hand.
    pub doing: Doing,
    /// Bytes of text done.
    pub done_bytes: u64,
    /// Bytes of text in all.
    pub total_bytes: u64,
    /// Tokens so far.
    pub tokens: u64,
}

impl Preparation {
    /// The beginning of other work than tokenising.
    pub fn begins(doing: Doing) -> Self {
        Self { doing, ..Self::default() }
    }
}

/// Told about progress; may interrupt.
pub type OnProgress<'a> = dyn FnMut(Preparation) -> ControlFlow<()> + 'a;

/// Goes on unless a signal has come; for what shows no progress.
pub(super) fn until_signalled(_: Preparation) -> ControlFlow<()> {
    if signals::received().is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// A column of a format, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Column(pub usize);

impl Column {
    /// The numbers of this column among the columns of the file.
    const fn numbers(self) -> usize {
        2 * self.0
    }

    /// The ends of its lists, if it has lists.
    const fn ends(self) -> usize {
        2 * self.0 + 1
    }
}

/// Examples of one sort: the kind of their entries, and the names of their columns in the order of
/// their numbers.
pub(super) struct Format {
    pub kind: Kind,
    pub columns: &'static [&'static str],
}

impl Format {
    /// The hash of a key, to which everything else is added that the examples depend on.
    pub fn key(&self) -> Sha256 {
        let mut hash = Sha256::new_with_prefix(self.kind.magic);
        hash.update(self.columns.join(" "));
        hash
    }

    /// The examples that `folder` keeps under `key`. If there are none or unusable ones, `fill`
    /// writes them first, and `progress` is told about it and may interrupt.
    ///
    /// # Errors
    /// An error of `fill`; a cache that cannot be written; an interruption. The cache then keeps
    /// nothing.
    pub fn build_or_open(
        &self,
        folder: &Path,
        key: Sha256,
        progress: &mut OnProgress<'_>,
        fill: impl FnOnce(&mut Writer<'_, '_>) -> Result<()>,
    ) -> Result<Store> {
        let open = |map, path: &Path| Store::open(map, self.columns.len(), path);
        let key = Key::from(key.finalize());
        self.kind.build_or_open(folder, &key, open, |body| self.write(body, progress, fill))
    }

    /// Examples that `fill` writes to a file that goes away with them.
    ///
    /// # Errors
    /// An error of `fill` or of the operating system; an interruption.
    pub fn temporary(
        &self,
        progress: &mut OnProgress<'_>,
        fill: impl FnOnce(&mut Writer<'_, '_>) -> Result<()>,
    ) -> Result<Store> {
        let map = self.kind.temporary(|body| self.write(body, progress, fill))?;
        Store::open(map, self.columns.len(), Path::new("a temporary file"))
    }

    fn write(
        &self,
        body: &mut Body<'_>,
        progress: &mut OnProgress<'_>,
        fill: impl FnOnce(&mut Writer<'_, '_>) -> Result<()>,
    ) -> Result<()> {
        let columns = (0..2 * self.columns.len()).map(|_| Pending::default()).collect();
        let mut writer = Writer { body, columns, state: Preparation::default(), progress };
        fill(&mut writer)?;
        writer.finish()
    }
}

/// Takes examples one after another.
pub(super) struct Writer<'a, 'b> {
    body: &'a mut Body<'b>,
    columns: Vec<Pending>,
    /// How far writing has come, for the one who fills to keep.
    pub state: Preparation,
    progress: &'a mut OnProgress<'a>,
}

/// A column that is being written.
#[derive(Default)]
struct Pending {
    /// The numbers of the chunk that is not full yet.
    chunk: Vec<i64>,
    /// Numbers in all.
    len: u64,
    /// The directory so far.
    directory: Vec<u8>,
}

impl Writer<'_, '_> {
    /// Appends `numbers` to `column`, a number for each example.
    ///
    /// # Errors
    /// The operating system's.
    pub fn numbers<N: Into<i64>>(&mut self, column: Column, numbers: impl IntoIterator<Item = N>) -> Result<()> {
        self.append(column.numbers(), numbers)
    }

    /// Appends the list `numbers` to `column`, a list for each example.
    ///
    /// # Errors
    /// The operating system's.
    pub fn list<N: Into<i64>>(&mut self, column: Column, numbers: impl IntoIterator<Item = N>) -> Result<()> {
        self.append(column.numbers(), numbers)?;
        let end = self.columns[column.numbers()].len as i64;
        self.append(column.ends(), [end])
    }

    /// Tells how far writing has come.
    ///
    /// # Errors
    /// Whoever is told interrupts.
    pub fn tell(&mut self) -> Result<()> {
        match (self.progress)(self.state) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(interrupted()),
        }
    }

    fn append<N: Into<i64>>(&mut self, column: usize, numbers: impl IntoIterator<Item = N>) -> Result<()> {
        let pending = &mut self.columns[column];
        for number in numbers {
            pending.chunk.push(number.into());
            pending.len += 1;
            if pending.chunk.len() == CHUNK {
                pending.flush(self.body)?;
            }
        }
        Ok(())
    }

    /// Writes the chunks that are not full, the directory and the lengths.
    fn finish(self) -> Result<()> {
        let Self { body, mut columns, .. } = self;
        columns.iter_mut().try_for_each(|column| column.flush(body))?;
        columns.iter().try_for_each(|column| body.write(&column.directory))?;
        columns.iter().try_for_each(|column| body.write(&column.len.to_le_bytes()))
    }
}

impl Pending {
    /// Writes the numbers of the last chunk.
    fn flush(&mut self, body: &mut Body<'_>) -> Result<()> {
        let (Some(&least), Some(&greatest)) = (self.chunk.iter().min(), self.chunk.iter().max()) else {
            return Ok(());
        };
        // The difference of two i64 fits into a u64, and wraps to it.
        let above = |number: i64| number.wrapping_sub(least) as u64;
        let width = match above(greatest) {
            0 => 0,
            1..=0xff => 1,
            0x100..=0xffff => 2,
            0x1_0000..=0xffff_ffff => 4,
            _ => 8,
        };
        for number in [least as u64, body.len(), width as u64] {
            self.directory.extend(number.to_le_bytes());
        }
        let bytes = self.chunk.iter().flat_map(|number| above(*number).to_le_bytes().into_iter().take(width));
        body.write(&bytes.collect::<Vec<_>>())?;
        self.chunk.clear();
        Ok(())
    }
}

/// Examples on disk.
#[derive(Debug)]
pub(super) struct Store {
    map: Mapped,
    /// Two for each column of the format: its numbers, and the ends of its lists.
    columns: Vec<Extent>,
}

/// Where a column stands.
#[derive(Debug, Clone, Copy)]
struct Extent {
    /// Its numbers.
    len: usize,
    /// Where its part of the directory begins.
    directory: usize,
}

impl Store {
    /// The `columns` columns of `map`, which messages call `path`.
    ///
    /// # Errors
    /// Columns, chunks or lists that do not lie where they can.
    fn open(map: Mapped, columns: usize, path: &Path) -> Result<Self> {
        let store = Self::laid_out(map, columns).ok_or_else(|| damaged(path, "damaged directory"))?;
        for column in (0..columns).map(Column) {
            let (mut end, len) = (0, store.columns[column.numbers()].len as i64);
            let mut ordered = true;
            let ends = store.columns[column.ends()].len;
            store.each(column.ends(), 0..ends, |next| {
                ordered &= (end..=len).contains(&next);
                end = next;
            });
            if !ordered || ends > 0 && end != len {
                return Err(damaged(path, format!("the lists of column {} do not lie one after another", column.0)));
            }
        }
        Ok(store)
    }

    /// The columns of `map`, if the directory describes chunks that are there.
    fn laid_out(map: Mapped, columns: usize) -> Option<Self> {
        let lengths = map.len().checked_sub(2 * columns * 8)?;
        let mut end = lengths;
        let mut found = Vec::new();
        // The last column's part of the directory stands directly before the lengths.
        for column in (0..2 * columns).rev() {
            let len = usize::try_from(u64_at(&map, lengths + 8 * column)).ok()?;
            end = end.checked_sub(len.div_ceil(CHUNK).checked_mul(ENTRY)?)?;
            found.push(Extent { len, directory: end });
        }
        found.reverse();
        for Extent { len, directory } in &found {
            for chunk in 0..len.div_ceil(CHUNK) {
                let [begin, width] = [8, 16].map(|field| u64_at(&map, directory + chunk * ENTRY + field));
                let bytes = width.checked_mul(CHUNK.min(len - chunk * CHUNK) as u64)?;
                if !matches!(width, 0 | 1 | 2 | 4 | 8) || begin.checked_add(bytes)? > end as u64 {
                    return None;
                }
            }
        }
        Some(Self { map, columns: found })
    }

    /// How many numbers `column` has.
    pub fn len(&self, column: Column) -> usize {
        self.columns[column.numbers()].len
    }

    /// How many lists `column` has.
    pub fn lists(&self, column: Column) -> usize {
        self.columns[column.ends()].len
    }

    /// The number at `index` of `column`.
    pub fn number(&self, column: Column, index: usize) -> i64 {
        self.at(column.numbers(), index)
    }

    /// The numbers of `range` of `column`, as `convert` makes them.
    pub fn numbers<T>(&self, column: Column, range: Range<usize>, convert: impl Fn(i64) -> T) -> Vec<T> {
        let mut numbers = Vec::with_capacity(range.len());
        self.each(column.numbers(), range, |number| numbers.push(convert(number)));
        numbers
    }

    /// Where list `index` of `column` stands among the numbers.
    pub fn bounds(&self, column: Column, index: usize) -> Range<usize> {
        let end = |index| self.at(column.ends(), index) as usize;
        index.checked_sub(1).map_or(0, end)..end(index)
    }

    /// List `index` of `column`, as `convert` makes its numbers.
    pub fn list<T>(&self, column: Column, index: usize, convert: impl Fn(i64) -> T) -> Vec<T> {
        self.numbers(column, self.bounds(column, index), convert)
    }

    /// List `index` of `column`, as `convert` makes its numbers; none for an empty list.
    pub fn some_list<T>(&self, column: Column, index: usize, convert: impl Fn(i64) -> T) -> Option<Vec<T>> {
        Some(self.list(column, index, convert)).filter(|list| !list.is_empty())
    }

    /// The length of the longest list of `column`.
    pub fn longest(&self, column: Column) -> usize {
        let (mut start, mut longest) = (0, 0);
        self.each(column.ends(), 0..self.lists(column), |end| {
            longest = longest.max(end - start);
            start = end;
        });
        longest as usize
    }

    fn at(&self, column: usize, index: usize) -> i64 {
        let mut number = 0;
        self.each(column, index..index + 1, |found| number = found);
        number
    }

    /// Hands the numbers of `range` of a column of the file to `take`.
    fn each(&self, column: usize, range: Range<usize>, mut take: impl FnMut(i64)) {
        let Extent { len, directory } = self.columns[column];
        assert!(range.end <= len, "{range:?} is beyond the {len} numbers of column {column}");
        let mut at = range.start;
        while at < range.end {
            let [least, begin, width] =
                [0, 8, 16].map(|field| u64_at(&self.map, directory + at / CHUNK * ENTRY + field));
            let (first, width) = (at % CHUNK, width as usize);
            let last = CHUNK.min(first + range.end - at);
            let bytes = &self.map[begin as usize..][first * width..last * width];
            let mut above = |above: u64| take((least as i64).wrapping_add(above as i64));
            match width {
                0 => repeat_n(0, last - first).for_each(above),
                1 => bytes.iter().for_each(|number| above(u64::from(*number))),
                2 => bytes.as_chunks().0.iter().for_each(|number| above(u64::from(u16::from_le_bytes(*number)))),
                4 => bytes.as_chunks().0.iter().for_each(|number| above(u64::from(u32::from_le_bytes(*number)))),
                _ => bytes.as_chunks().0.iter().for_each(|number| above(u64::from_le_bytes(*number))),
            }
            at += last - first;
        }
    }
}

/// The u64 at byte `at`.
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].as_chunks().0[0])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use kiln_core::random::seed_for;

    use super::*;

    const NUMBERS: Column = Column(0);
    const LISTS: Column = Column(1);
    const FORMAT: Format =
        Format { kind: Kind { magic: b"KILNTST1", name: "test", extension: "test" }, columns: &["numbers", "lists"] };

    fn go_on(_: Preparation) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// Three chunks and a bit of numbers that need `bits` bits, negative ones among them.
    fn numbers(bits: u32) -> Vec<i64> {
        let number = |i: u64| (seed_for(1, "numbers", i, 0) as i64).checked_shr(64 - bits).unwrap_or(-7);
        (0..3 * CHUNK as u64 + 5).map(number).collect()
    }

    #[test]
    fn numbers_of_every_width_come_back() {
        for bits in [0, 1, 7, 8, 9, 16, 17, 32, 33, 64] {
            let expected = numbers(bits);
            let fill = |writer: &mut Writer<'_, '_>| writer.numbers(NUMBERS, expected.iter().copied());
            let store = FORMAT.temporary(&mut go_on, fill).unwrap();
            assert_eq!((store.len(NUMBERS), store.len(LISTS), store.lists(LISTS)), (expected.len(), 0, 0));
            for range in [0..0, 5..9, CHUNK - 1..CHUNK + 1, 7..3 * CHUNK + 1, 0..expected.len()] {
                assert_eq!(store.numbers(NUMBERS, range.clone(), |number| number), expected[range], "{bits} bits");
            }
            assert_eq!(store.number(NUMBERS, CHUNK), expected[CHUNK]);
        }
        let extremes = [i64::MIN, i64::MAX, 0, -1];
        let store = FORMAT.temporary(&mut go_on, |writer| writer.numbers(NUMBERS, extremes)).unwrap();
        assert_eq!(store.numbers(NUMBERS, 0..4, |number| number), extremes);
    }

    #[test]
    fn numbers_take_no_more_bytes_than_they_need() {
        for (bits, bytes) in [(0, 0), (8, 1), (16, 2), (32, 4), (64, 8)] {
            let fill = |writer: &mut Writer<'_, '_>| writer.numbers(NUMBERS, numbers(bits));
            let store = FORMAT.temporary(&mut go_on, fill).unwrap();
            assert_eq!(store.map.len(), numbers(bits).len() * bytes + 4 * ENTRY + 4 * 8, "{bits} bits");
        }
    }

    #[test]
    fn lists_keep_their_bounds() {
        let some = numbers(16);
        let expected = (0..CHUNK + 9).map(|i| some[i..i + i % 5].to_vec()).collect::<Vec<_>>();
        let many = (0..CHUNK as i64 + 3).map(|i| vec![i; 2]).collect::<Vec<_>>();
        for expected in [expected, many, vec![vec![], vec![]]] {
            let fill = |writer: &mut Writer<'_, '_>| {
                expected.iter().try_for_each(|list| writer.list(LISTS, list.iter().copied()))
            };
            let store = FORMAT.temporary(&mut go_on, fill).unwrap();
            assert_eq!(store.lists(LISTS), expected.len());
            for (index, list) in expected.iter().enumerate() {
                assert_eq!(store.list(LISTS, index, |number| number), *list);
                assert_eq!(store.some_list(LISTS, index, |_| ()).is_none(), list.is_empty());
            }
            assert_eq!(store.longest(LISTS), expected.iter().map(Vec::len).max().unwrap());
        }
    }

    #[test]
    fn what_describes_nothing_is_refused() {
        let refused = |bytes: &[u8]| {
            let map = FORMAT.kind.temporary(|body| body.write(bytes)).unwrap();
            Store::open(map, 2, Path::new("a.test")).unwrap_err().to_string()
        };
        let body = |numbers: &[u64]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>();
        for (numbers, says) in [
            (&[][..], "damaged directory"),
            (&[0, 0, 0], "damaged directory"),
            // One number more than the directory has, more than there can be, of three bytes,
            // beyond the end.
            (&[1, 0, 0, 0], "damaged directory"),
            (&[u64::MAX, 0, 0, 0], "damaged directory"),
            (&[0, 0, 0, 3, 1, 0, 0, 0], "damaged directory"),
            (&[0, 0, 1, 8, 1, 0, 0, 0], "damaged directory"),
            (&[0, 0, u64::MAX, 8, 1, 0, 0, 0], "damaged directory"),
            // A list that ends where there is no number; two numbers of which the list has one.
            (&[1, 0, 0, 0, 0, 0, 1], "the lists of column 1"),
            (&[0, 0, 0, 1, 0, 0, 0, 0, 2, 1], "the lists of column 1"),
        ] {
            assert!(refused(&body(numbers)).contains(says), "{numbers:?}: {}", refused(&body(numbers)));
        }
    }

    #[test]
    fn an_entry_is_used_again_and_a_damaged_one_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut made = 0;
        let mut open = |flow: ControlFlow<()>| {
            FORMAT.build_or_open(folder.path(), FORMAT.key(), &mut |_| flow, |writer| {
                made += 1;
                writer.list(LISTS, [1, 2])?;
                writer.tell()
            })
        };
        assert!(open(ControlFlow::Break(())).unwrap_err().to_string().contains("interrupted"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "an interruption leaves nothing");
        open(ControlFlow::Continue(())).unwrap();
        // Whoever is interrupted at once can only have read the cache.
        assert_eq!(open(ControlFlow::Break(())).unwrap().list(LISTS, 0, |number| number), [1, 2]);
        let path = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
        let whole = fs::read(&path).unwrap();
        for at in [0, 50, whole.len() / 2, whole.len() - 1] {
            let mut flipped = whole.clone();
            flipped[at] ^= 0x40;
            fs::write(&path, flipped).unwrap();
            open(ControlFlow::Continue(())).unwrap();
            assert!(fs::read(&path).unwrap() == whole, "byte {at}");
        }
        assert_eq!(made, 6);
        let taken = FORMAT.build_or_open(&path, FORMAT.key(), &mut go_on, |_| Ok(())).unwrap_err().to_string();
        assert!(taken.contains("cannot write the cache") && taken.contains("KILN_CACHE"), "{taken}");
    }
}
