//! Tokenised rows on disk: the [store](crate::store) of the columns of each row, and of where it
//! stands in its file.

use std::fs;
use std::path::{Path, PathBuf};

use kiln_core::error::{Error, Result};
use kiln_core::files::read_error;
use sha2::{Digest, Sha256};

use super::limits::Extremes;
use super::read::{self, Found, Unit};
use super::row::own_labels;
use crate::cache::mapped::Kind;
use crate::cache::sources::Sources;
use crate::store::{Column, Format, OnProgress, Store, Writer};
use crate::task::Task;
use crate::{Example, IGNORED, Label};

const FORMAT: Format = Format {
    kind: Kind { magic: b"KILNIDS5", name: "store of tokenized rows", extension: "rows" },
    columns: &["input_ids", "attention_mask", "token_type_ids", "labels", "number", "files", "summary", "position_ids"],
};

const INPUT_IDS: Column = Column(0);
/// An empty list where all tokens are attended.
const ATTENTION_MASK: Column = Column(1);
/// An empty list where the row has no token types.
const TOKEN_TYPE_IDS: Column = Column(2);
/// By task a label for each token, a class, the bits of a number, or first and last token of a
/// span; an empty list where the labels are the ids themselves, and where rows have no labels.
const LABELS: Column = Column(3);
/// The line or the element of its file that the row is, from 1.
const NUMBER: Column = Column(4);
/// For each file its first row, and whether it is an array.
const FILES: Column = Column(5);
/// Attended tokens, whether the rows have labels, and [`Extremes`].
const SUMMARY: Column = Column(6);
/// An empty list where the row is one document.
const POSITION_IDS: Column = Column(7);

/// Progress is told after about so many bytes.
const GROUP_BYTES: u64 = 1 << 20;

/// All rows of some files.
#[derive(Debug)]
pub(super) struct Rows {
    store: Store,
    /// Attended tokens of all rows.
    pub num_tokens: u64,
    /// Whether they have labels. Either all have, or none.
    pub is_labelled: bool,
    /// The largest values in them.
    pub extremes: Extremes,
    /// The kind of examples.
    pub task: Task,
    /// Each file with its first row.
    files: Vec<(PathBuf, usize, Unit)>,
}

impl Rows {
    /// The rows of `files` for `task`: from the cache in `folder`, or read now.
    ///
    /// # Errors
    /// A file without rows, malformed JSON (with the line), a row whose columns do not fit together
    /// or the task, labels in some rows alone; a cache that cannot be written; an interruption.
    pub fn build_or_open(folder: &Path, files: &[PathBuf], task: Task, progress: &mut OnProgress<'_>) -> Result<Self> {
        let sources = Sources::of(files)?;
        let store = FORMAT.build_or_open(folder, key(&sources, task)?, progress, |writer| {
            write(writer, files, task)?;
            sources.are_unchanged()
        })?;
        let starts = files.iter().enumerate().map(|(index, file)| {
            let unit = if store.number(FILES, 2 * index + 1) == 0 { Unit::Line } else { Unit::Row };
            (file.clone(), store.number(FILES, 2 * index) as usize, unit)
        });
        Ok(Self {
            files: starts.collect(),
            num_tokens: store.number(SUMMARY, 0) as u64,
            is_labelled: store.number(SUMMARY, 1) == 1,
            extremes: Extremes::of_numbers(std::array::from_fn(|number| store.number(SUMMARY, 2 + number))),
            task,
            store,
        })
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.store.lists(INPUT_IDS)
    }

    /// Tokens of a row; of a multiple choice those of its longest choice.
    pub fn len_of(&self, row: usize) -> usize {
        match self.task {
            Task::MultipleChoice => self.example(row).longest(),
            _ => self.store.bounds(INPUT_IDS, row).len(),
        }
    }

    /// Attended tokens of a row.
    pub fn attended(&self, row: usize) -> u64 {
        let mask = self.store.some_list(ATTENTION_MASK, row, |attended| attended as u64);
        mask.map_or(self.len_of(row) as u64, |mask| mask.iter().sum())
    }

    /// The class of a row, or the greatest of its tokens', if that is its label; where it has a
    /// number for each label, the last of them.
    pub fn class(&self, row: usize) -> Option<i32> {
        match self.example(row).label {
            Label::Class(class) => Some(class),
            Label::Multi(values) => Some(values.len() as i32 - 1),
            Label::Tokens(classes) if self.task == Task::TokenClassification => {
                classes.into_iter().filter(|class| *class != IGNORED).max()
            }
            _ => None,
        }
    }

    /// A row.
    pub fn example(&self, row: usize) -> Example {
        let input_ids = self.store.list(INPUT_IDS, row, |id| id as i32);
        let attention_mask = self.store.some_list(ATTENTION_MASK, row, |attended| attended == 1);
        let label = self.label(row, &input_ids, attention_mask.as_deref());
        let token_type_ids = self.store.some_list(TOKEN_TYPE_IDS, row, |kind| kind as i32);
        let position_ids = self.store.some_list(POSITION_IDS, row, |position| position as i32);
        Example { input_ids, attention_mask, token_type_ids, position_ids, label }
    }

    /// The label of a row that has these ids and this mask.
    fn label(&self, row: usize, input_ids: &[i32], mask: Option<&[bool]>) -> Label {
        if !self.is_labelled {
            return Label::None;
        }
        let at = self.store.bounds(LABELS, row).start;
        let number = |place: usize| self.store.number(LABELS, at + place);
        match self.task {
            Task::Clm | Task::Mlm => Label::Tokens(
                self.store
                    .some_list(LABELS, row, |label| label as i32)
                    .unwrap_or_else(|| own_labels(input_ids, mask).collect()),
            ),
            Task::TokenClassification => Label::Tokens(self.store.list(LABELS, row, |label| label as i32)),
            Task::SequenceClassification => Label::Class(number(0) as i32),
            Task::MultiLabelClassification => {
                Label::Multi(self.store.list(LABELS, row, |value| f32::from_bits(value as u32)))
            }
            Task::MultipleChoice => {
                let numbers = self.store.list(LABELS, row, |number| number as i32);
                let lens = numbers[1..].iter().map(|len| *len as usize).collect();
                Label::Choice { lens, answer: numbers[0] }
            }
            Task::Regression => Label::Value(f32::from_bits(number(0) as u32)),
            Task::QuestionAnswering => Label::Span { start: number(0) as i32, end: number(1) as i32 },
        }
    }

    /// Where a row stands, for messages.
    pub fn place(&self, row: usize) -> String {
        let after = self.files.partition_point(|(_, first, _)| *first <= row);
        let (file, _, unit) = &self.files[after.saturating_sub(1)];
        unit.place(file, self.store.number(NUMBER, row) as u64)
    }
}

/// The hash of everything the rows depend on.
fn key(sources: &Sources<'_>, task: Task) -> Result<Sha256> {
    let mut hash = FORMAT.key();
    hash.update(task.to_string());
    sources.hash_into(&mut hash)?;
    Ok(hash)
}

/// Writes the rows of `files`.
fn write(writer: &mut Writer<'_, '_>, files: &[PathBuf], task: Task) -> Result<()> {
    for file in files {
        let metadata = fs::metadata(file).map_err(|error| read_error(file, &error))?;
        writer.state.total_bytes += metadata.len();
    }
    let (mut rows, mut attended, mut is_labelled) = (0u64, 0, false);
    let (mut extremes, mut unlabelled, mut told) = (Extremes::NONE, None, 0);
    // How many labels or choices every row has.
    let mut width = None;
    for file in files {
        let (first, before) = (rows, writer.state.done_bytes);
        let unit = read::rows(file, task, &mut |Found { example, unit, number, read }| {
            let here = match &example.label {
                Label::Multi(values) => Some((values.len(), "labels")),
                Label::Choice { lens, .. } => Some((lens.len(), "choices")),
                _ => None,
            };
            if let (Some((first, what)), Some((got, _))) = (width, here)
                && first != got
            {
                let place = unit.place(file, number);
                return Err(Error::data(format!("{place}: expected {first} {what}, as the first row has, got {got}")));
            }
            width = width.or(here);
            extremes.take(&example);
            rows += 1;
            writer.state.tokens += example.input_ids.len() as u64;
            attended += match &example.attention_mask {
                Some(mask) => mask.iter().filter(|attended| **attended).count(),
                None => example.input_ids.len(),
            };
            match example.label {
                Label::None | Label::Choice { answer: IGNORED, .. } => {
                    unlabelled.get_or_insert_with(|| unit.place(file, number));
                }
                _ => is_labelled = true,
            }
            write_row(writer, example, task, number)?;
            // Of a compressed file there is more text than bytes.
            writer.state.done_bytes = (before + read).min(writer.state.total_bytes);
            if writer.state.done_bytes - told >= GROUP_BYTES {
                told = writer.state.done_bytes;
                writer.tell()?;
            }
            Ok(())
        })?;
        if rows == first {
            return Err(Error::data(format!("{}: expected rows, got none", file.display())));
        }
        writer.numbers(FILES, [first as i64, i64::from(unit == Unit::Row)])?;
    }
    // The rest of a file after its last row is read too.
    writer.state.done_bytes = writer.state.total_bytes;
    writer.tell()?;
    if let Some(place) = unlabelled.filter(|_| is_labelled) {
        return Err(Error::data(format!("{place}: the row has no labels, but others have")));
    }
    writer.numbers(SUMMARY, [attended as i64, i64::from(is_labelled)])?;
    writer.numbers(SUMMARY, extremes.numbers())
}

/// Writes a row, which is element or line `number` of its file.
fn write_row(writer: &mut Writer<'_, '_>, example: Example, task: Task, number: u64) -> Result<()> {
    let Example { input_ids, attention_mask, token_type_ids, position_ids, label } = example;
    match label {
        Label::None => writer.list(LABELS, [0; 0]),
        Label::Tokens(labels)
            if task != Task::TokenClassification
                && own_labels(&input_ids, attention_mask.as_deref()).eq(labels.iter().copied()) =>
        {
            writer.list(LABELS, [0; 0])
        }
        Label::Tokens(labels) => writer.list(LABELS, labels),
        Label::Class(class) => writer.list(LABELS, [class]),
        Label::Value(value) => writer.list(LABELS, [value.to_bits()]),
        Label::Span { start, end } => writer.list(LABELS, [start, end]),
        Label::Multi(values) => writer.list(LABELS, values.into_iter().map(f32::to_bits)),
        Label::Choice { lens, answer } => {
            writer.list(LABELS, std::iter::once(answer).chain(lens.into_iter().map(|len| len as i32)))
        }
    }?;
    writer.list(INPUT_IDS, input_ids)?;
    writer.list(ATTENTION_MASK, attention_mask.into_iter().flatten())?;
    writer.list(TOKEN_TYPE_IDS, token_type_ids.into_iter().flatten())?;
    writer.list(POSITION_IDS, position_ids.into_iter().flatten())?;
    writer.numbers(NUMBER, [number as i64])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::ops::ControlFlow;

    use super::*;
    use crate::store::Preparation;

    fn go_on(_: Preparation) -> ControlFlow<()> {
        ControlFlow::Continue(())
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
        let store = Rows::build_or_open(folder.path(), &files, Task::Clm, &mut go_on).unwrap();
        let places = (0..5).map(|row| store.place(row)).collect::<Vec<_>>();
        for (place, end) in places.iter().zip(["a.jsonl line 1", "a.jsonl line 3", "b.json row 1", "b.json row 2"]) {
            assert!(place.ends_with(end), "{place}");
        }
        assert!(places[4].ends_with("c.jsonl line 2"), "{}", places[4]);
        // Where one file ends and the next begins counts, and so does the task.
        let key_of = |files: &[&PathBuf], task| {
            let files = files.iter().copied().cloned().collect::<Vec<_>>();
            key(&Sources::of(&files).unwrap(), task).unwrap().finalize()
        };
        let [a, b, _] = &files;
        assert_ne!(key_of(&[a, b], Task::Clm), key_of(&[b, a], Task::Clm));
        assert_ne!(key_of(&[a], Task::Clm), key_of(&[a], Task::Mlm));
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
            let store = Rows::build_or_open(folder.path(), &[file], Task::Clm, &mut progress).unwrap();
            assert_eq!((store.len(), store.num_tokens), (400, 400_000));
            let bytes = text.len() as u64;
            assert!(told.len() > 2 && told.is_sorted_by_key(|state| state.done_bytes), "{told:?}");
            let whole =
                Preparation { done_bytes: bytes, total_bytes: bytes, tokens: 400_000, ..Preparation::default() };
            assert_eq!(told.last(), Some(&whole));
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
            let error = Rows::build_or_open(&cache, &[file], Task::Clm, &mut go_on).unwrap_err().to_string();
            assert!(error.contains("a.json: expected UTF-8") && error.contains(&format!("at offset {at}")), "{error}");
            assert_eq!(fs::read_dir(&cache).unwrap().count(), 0);
        }
    }
}
