//! The rows in one memory-mapped file. Kept and guarded as the [token store](crate::data::store): written as a stream under a
//! key of everything they depend on, and in the cache only when the file is whole.
//!
//! Layout: the header (`cache::mapped`) with `KILNIDS2`, the number of rows, of their bytes, of attended tokens and of
//! rows with labels, and what stands in them at most; the [rows](super::layout); the index, an entry a row, and then for
//! every file its first row (u64) and whether it is an array (u64).

use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::layout::{ENTRY, Entry};
use super::limits::Extremes;
use super::read::{self, Found, Unit};
use crate::base::error::{Error, Result};
use crate::cache::mapped::{Key, Kind, Mapped, Sources, Writer, damaged, hash_files, u64_at};
use crate::config::Task;
use crate::data::Example;
use crate::data::store::{OnProgress, Progress, tell};

const KIND: Kind<10> = Kind { magic: b"KILNIDS2", name: "store of tokenized rows" };

/// Bytes of a file's entry in the index.
const FILE: usize = 16;

/// Progress is told after about so many bytes.
const GROUP_BYTES: u64 = 1 << 20;

/// All rows.
#[derive(Debug)]
pub(super) struct Store {
    map: Mapped<10>,
    /// How many there are.
    pub len: usize,
    /// Where the index starts.
    index: usize,
    /// How many have labels.
    pub labelled: u64,
    /// What stands in them at most.
    pub extremes: Extremes,
    /// What they are examples of.
    pub task: Task,
    /// Each file with its first row.
    files: Vec<(PathBuf, usize, Unit)>,
}

impl Store {
    /// The rows of `files` for `task`: from the cache in `folder`, or read now.
    ///
    /// # Errors
    /// As [`TokenizedData::open`](super::TokenizedData::open).
    pub fn build_or_open(folder: &Path, files: &[PathBuf], task: Task, progress: &mut OnProgress<'_>) -> Result<Self> {
        let sources = Sources::of(files)?;
        let open = |path: &Path| Self::open(path, files, task);
        KIND.build_or_open(folder, &key(files, task)?, "rows", open, |writer| {
            let numbers = write(writer, files, task, progress)?;
            sources.are_unchanged().map(|()| numbers)
        })
    }

    /// Opens the rows of `files` for `task` that are on disk.
    fn open(path: &Path, files: &[PathBuf], task: Task) -> Result<Self> {
        let map = KIND.open(path)?;
        let [len, bytes, attended, labelled, extremes @ ..] = map.numbers;
        let index = len.checked_mul(ENTRY as u64).and_then(|entries| entries.checked_add((files.len() * FILE) as u64));
        map.has_bytes(index.and_then(|index| index.checked_add(bytes)), path)?;
        let (len, index) = (len as usize, bytes as usize);
        let mut store =
            Self { map, len, index, labelled, extremes: Extremes::of_numbers(extremes), task, files: Vec::new() };
        // Rows follow one another without gaps; a damaged index does not get past this.
        let (mut at, mut tokens) = (0, 0);
        for row in 0..len {
            let entry = store.entry(row);
            at = match entry.bytes().filter(|_| entry.offset == at) {
                Some(bytes) if bytes <= index as u64 - at => at + bytes,
                _ => return Err(damaged(path, format!("damaged index at row {row}"))),
            };
            tokens += u64::from(entry.attended);
        }
        for (number, file) in files.iter().enumerate() {
            let entry = index + len * ENTRY + number * FILE;
            let unit = if u64_at(&store.map, entry + 8) == 0 { Unit::Line } else { Unit::Row };
            store.files.push((file.clone(), u64_at(&store.map, entry) as usize, unit));
        }
        let ordered = store.files.is_sorted_by_key(|(_, first, _)| *first);
        if at != index as u64 || tokens != attended || !ordered || store.files.iter().any(|(_, first, _)| *first >= len)
        {
            return Err(damaged(path, "damaged index"));
        }
        Ok(store)
    }

    /// SHA-256 of the rows and where they stand in their files.
    pub fn digest(&self) -> [u8; 32] {
        self.map.digest()
    }

    /// Attended tokens of all rows.
    pub fn num_tokens(&self) -> u64 {
        self.map.numbers[2]
    }

    /// The entry of a row.
    pub fn entry(&self, row: usize) -> Entry {
        Entry::of_bytes(&self.map, self.index + row * ENTRY)
    }

    /// A row.
    pub fn example(&self, row: usize) -> Example {
        self.entry(row).read(&self.map)
    }

    /// Where a row stands, for messages.
    pub fn place(&self, row: usize) -> String {
        let after = self.files.partition_point(|(_, first, _)| *first <= row);
        let (file, _, unit) = &self.files[after.saturating_sub(1)];
        unit.place(file, self.entry(row).number)
    }
}

/// SHA-256 over everything the rows depend on.
fn key(files: &[PathBuf], task: Task) -> Result<Key> {
    let mut hash = Sha256::new();
    hash.update(KIND.magic);
    hash.update(task.to_string());
    hash_files(&mut hash, files)?;
    Ok(hash.finalize().into())
}

/// Writes the rows and their index; the numbers of the header.
fn write(writer: &mut Writer<'_>, files: &[PathBuf], task: Task, progress: &mut OnProgress<'_>) -> Result<[u64; 10]> {
    let mut total_bytes = 0;
    for file in files {
        let metadata = fs::metadata(file).map_err(|error| Error::io(format!("read {}", file.display()), &error))?;
        total_bytes += metadata.len();
    }
    let mut state = Progress { done_bytes: 0, total_bytes, tokens: 0 };
    let (mut rows, mut offset, mut attended, mut labelled) = (0u64, 0, 0, 0);
    let (mut extremes, mut starts, mut unlabelled, mut told) = (Extremes::NONE, Vec::new(), None, 0);
    let mut bytes = Vec::new();
    for file in files {
        let (first, before) = (rows, state.done_bytes);
        let unit = read::rows(file, task, &mut |Found { example, unit, number, read }| {
            let place = || unit.place(file, number);
            bytes.clear();
            let entry = Entry::write(&example, offset, number, &mut bytes).map_err(|error| error.at(place()))?;
            writer.write(&bytes)?;
            writer.index(&entry.to_bytes())?;
            extremes.take(&example);
            rows += 1;
            offset += bytes.len() as u64;
            attended += u64::from(entry.attended);
            match entry.is_labelled() {
                true => labelled += 1,
                false if unlabelled.is_none() => unlabelled = Some(place()),
                false => {}
            }
            state.tokens += u64::from(entry.tokens);
            state.done_bytes = before + read;
            if state.done_bytes - told >= GROUP_BYTES {
                told = state.done_bytes;
                tell(progress, state)?;
            }
            Ok(())
        })?;
        if rows == first {
            return Err(Error::data(format!("{}: expected rows, got none", file.display())));
        }
        starts.push((first, unit));
    }
    // What follows the last row of a file is read too.
    state.done_bytes = total_bytes;
    tell(progress, state)?;
    if let Some(place) = unlabelled.filter(|_| labelled > 0) {
        return Err(Error::data(format!("{place}: the row has no labels, but others have")));
    }
    for (first, unit) in starts {
        writer.index(&first.to_le_bytes())?;
        writer.index(&u64::from(unit == Unit::Row).to_le_bytes())?;
    }
    let [longest, ids, types, labels, classes, strays] = extremes.numbers();
    Ok([rows, offset, attended, labelled, longest, ids, types, labels, classes, strays])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::ops::ControlFlow;

    use super::*;

    fn go_on(_: Progress) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn examples(store: &Store) -> Vec<Example> {
        (0..store.len).map(|row| store.example(row)).collect()
    }

    #[test]
    fn places_are_those_of_each_file() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let file = folder.path().join(name);
            fs::write(&file, text).unwrap();
            file
        };
        let files = [
            write("a.jsonl", "{\"input_ids\": [1]}\n\n{\"input_ids\": [2]}\n"),
            write("b.json", r#"[{"input_ids": [3]}, {"input_ids": [4]}]"#),
            write("c.jsonl", "\n{\"input_ids\": [5]}"),
        ];
        let store = Store::build_or_open(folder.path(), &files, Task::Clm, &mut go_on).unwrap();
        let places = (0..5).map(|row| store.place(row)).collect::<Vec<_>>();
        for (place, end) in places.iter().zip(["a.jsonl line 1", "a.jsonl line 3", "b.json row 1", "b.json row 2"]) {
            assert!(place.ends_with(end), "{place}");
        }
        assert!(places[4].ends_with("c.jsonl line 2"), "{}", places[4]);
        // Where one file ends and the next begins counts, and so does the task.
        let key_of = |files: &[&PathBuf], task| key(&files.iter().copied().cloned().collect::<Vec<_>>(), task).unwrap();
        let [a, b, _] = &files;
        assert_ne!(key_of(&[a, b], Task::Clm), key_of(&[b, a], Task::Clm));
        assert_ne!(key_of(&[a], Task::Clm), key_of(&[a], Task::Mlm));
    }

    #[test]
    fn the_cache_is_used_and_a_damaged_one_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let (file, cache) = (folder.path().join("a.jsonl"), folder.path().join("cache"));
        let row = |i: usize| format!("{{\"input_ids\": {:?}, \"labels\": {i}}}\n", vec![i; 1 + i % 3]);
        fs::write(&file, (0..20).map(row).collect::<String>()).unwrap();
        let files = [file.clone()];
        let open = |flow| Store::build_or_open(&cache, &files, Task::SequenceClassification, &mut |_| flow);
        assert!(open(ControlFlow::Break(())).unwrap_err().to_string().contains("interrupted"));
        assert_eq!(fs::read_dir(&cache).unwrap().count(), 0, "an interruption leaves nothing");
        let expected = examples(&open(ControlFlow::Continue(())).unwrap());
        // Whoever is interrupted at once can only have read the cache.
        assert_eq!(examples(&open(ControlFlow::Break(())).unwrap()), expected);
        let stored = fs::read_dir(&cache).unwrap().next().unwrap().unwrap().path();
        let whole = fs::read(&stored).unwrap();
        let index = whole.len() - FILE - 20 * ENTRY;
        // In the header; of the first entry the offset, the tokens, those attended and the form of the ids; of the second
        // the form of the mask; the file's first row.
        for at in [20, index, index + 16, index + 20, index + 32, index + ENTRY + 33, whole.len() - FILE] {
            let mut lying = whole.clone();
            lying[at] ^= 0x40;
            fs::write(&stored, &lying).unwrap();
            let error = Store::open(&stored, &files, Task::SequenceClassification).unwrap_err().to_string();
            assert!(error.contains("damaged"), "byte {at}: {error}");
            assert_eq!(examples(&open(ControlFlow::Continue(())).unwrap()), expected);
        }
        for len in [0, 50, whole.len() - 1] {
            fs::write(&stored, &whole[..len]).unwrap();
            assert_eq!(examples(&open(ControlFlow::Continue(())).unwrap()), expected);
        }
        assert!(fs::read(&stored).unwrap() == whole);
        fs::write(&file, row(7)).unwrap();
        assert_eq!(open(ControlFlow::Continue(())).unwrap().len, 1, "other content is another file of the cache");
        let taken = Store::build_or_open(&file, &files, Task::Clm, &mut go_on).unwrap_err().to_string();
        assert!(taken.contains("cannot write the cache") && taken.contains("KILN_CACHE"), "{taken}");
    }

    #[test]
    fn progress_counts_bytes_and_ends_at_the_whole() {
        let folder = tempfile::tempdir().unwrap();
        let row = format!("{{\"input_ids\": {:?}}}", vec![12345; 1000]);
        let rows = vec![row; 400];
        for (name, text) in [("a.jsonl", rows.join("\n\n")), ("a.json", format!("[{}]  \n", rows.join(", ")))] {
            let (file, mut told) = (folder.path().join(name), Vec::new());
            fs::write(&file, &text).unwrap();
            let mut progress = |state| {
                told.push(state);
                ControlFlow::Continue(())
            };
            let store = Store::build_or_open(folder.path(), &[file], Task::Clm, &mut progress).unwrap();
            assert_eq!((store.len, store.num_tokens()), (400, 400_000));
            let bytes = text.len() as u64;
            assert!(told.len() > 2 && told.is_sorted_by_key(|state| state.done_bytes), "{told:?}");
            assert_eq!(told.last(), Some(&Progress { done_bytes: bytes, total_bytes: bytes, tokens: 400_000 }));
        }
    }

    #[test]
    fn broken_text_is_refused_at_its_offset() {
        let folder = tempfile::tempdir().unwrap();
        for (bytes, at) in [
            (&b"{\"input_ids\": [1]}\n{\"input_ids\": [\xff]}"[..], 34),
            (b"[{\"input_ids\": [1]}, {\"input_\xc3\": [2]}]", 29),
            (b"[{\"input_ids\": [1]}]\xe9", 20),
        ] {
            let file = folder.path().join("a.json");
            fs::write(&file, bytes).unwrap();
            let cache = folder.path().join("cache");
            let error = Store::build_or_open(&cache, &[file], Task::Clm, &mut go_on).unwrap_err().to_string();
            assert!(error.contains("a.json: expected UTF-8") && error.contains(&format!("at offset {at}")), "{error}");
            assert_eq!(fs::read_dir(&cache).unwrap().count(), 0);
        }
    }
}
