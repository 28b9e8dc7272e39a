//! Data that is tokenised already: rows of `input_ids`, `attention_mask`, `token_type_ids` and
//! `labels` (or `start_positions` and `end_positions`) as a JSON array or as JSON lines; and
//! `batch.json`, the same by column. The rows are kept in one memory-mapped file of the cache, and
//! a part of them is a list of their numbers.

mod batch_file;
mod limits;
mod read;
mod row;
mod store;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use batch_file::read_batch;
use kiln_core::error::{Error, Result};
pub use limits::Limits;
use store::Rows;

use super::corpus::split_off;
use super::labels::MAX_CLASSES;
use super::store::OnProgress;
use super::{Dataset, Example};
use crate::task::Task;

/// Rows on disk, or a part of them.
#[derive(Debug, Clone)]
pub struct TokenizedData {
    store: Arc<Rows>,
    /// The rows of this part; none means all.
    part: Option<Arc<[usize]>>,
    num_tokens: u64,
    max_len: usize,
}

impl TokenizedData {
    /// The rows of `files` for `task`: from the cache in `folder`, or read now. `progress` is told
    /// how far reading has come and may interrupt it.
    ///
    /// # Errors
    /// A file without rows, malformed JSON (with the line), a row whose columns do not fit together
    /// or the task, labels in some rows alone; a cache that cannot be written; an interruption.
    pub fn open(folder: &Path, files: &[PathBuf], task: Task, progress: &mut OnProgress<'_>) -> Result<Self> {
        let store = Rows::build_or_open(folder, files, task, progress)?;
        let (num_tokens, max_len) = (store.num_tokens, store.extremes.longest as usize);
        Ok(Self { store: Arc::new(store), part: None, num_tokens, max_len })
    }

    /// Splits off `share` of the rows for validation: `(rest, validation)`.
    ///
    /// # Errors
    /// Fewer than two rows.
    pub fn split(self, share: f64, seed: u64) -> Result<(Self, Self)> {
        let len = self.len();
        let chosen = split_off(len, share, seed).ok_or_else(|| {
            Error::data(format!("data.validation = {share}: {len} row cannot be split")).help("name a validation file")
        })?;
        let side = |validation: bool| {
            let rows = (0..len).filter(|index| chosen[*index] == validation).map(|index| self.row(index));
            let rows = rows.collect::<Arc<[_]>>();
            let (mut num_tokens, mut max_len) = (0, 0);
            for row in rows.iter() {
                num_tokens += self.store.attended(*row);
                max_len = max_len.max(self.store.len_of(*row));
            }
            Self { store: self.store.clone(), part: Some(rows), num_tokens, max_len }
        };
        Ok((side(false), side(true)))
    }

    /// Checks every row against what the model allows, and that there is something to learn from.
    ///
    /// # Errors
    /// The first row that does not fit, with its place and the value.
    pub fn validate(&self, limits: &Limits) -> Result<()> {
        if limits.reads_last_token || !self.store.extremes.fit(limits) {
            for row in (0..self.len()).map(|index| self.row(index)) {
                limits.check(&self.store.example(row)).map_err(|error| error.at(self.store.place(row)))?;
            }
        }
        // All rows have as many labels or choices as the first.
        limits.check(&self.store.example(self.row(0))).map_err(|error| error.at(self.store.place(self.row(0))))?;
        let place = || self.store.place(self.row(0));
        if !self.store.is_labelled {
            return Err(Error::data(format!("{}: the rows have no labels", place())).help(match self.store.task {
                Task::QuestionAnswering => "add the columns start_positions and end_positions",
                _ => "add the column labels",
            }));
        }
        let on_tokens = matches!(self.store.task, Task::Clm | Task::Mlm | Task::TokenClassification);
        if on_tokens && !self.store.extremes.has_token_labels() {
            return Err(Error::data(format!("{}: every label of the rows is -100 (ignored)", place()))
                .help("a token that is to be predicted has its id as the label"));
        }
        Ok(())
    }

    /// How many classes the rows show: one more than the largest; none when they have no classes.
    ///
    /// # Errors
    /// A class that is not below [`MAX_CLASSES`], with its place: a mistake would cost the memory
    /// of a head of that size.
    pub fn num_classes(&self) -> Result<usize> {
        let classes = (0..self.len()).filter_map(|index| Some((self.store.class(self.row(index))?, index)));
        let Some((class, index)) = classes.max() else { return Ok(0) };
        match usize::try_from(class) {
            Ok(class) if class < MAX_CLASSES => Ok(class + 1),
            _ => Err(Error::data(format!(
                "{}: labels: expected 0 to {}, got {class}",
                self.store.place(self.row(index)),
                MAX_CLASSES - 1
            ))
            .help("correct the row, or state how many classes there are with model.num_labels")),
        }
    }

    /// The row of the store at `index`.
    fn row(&self, index: usize) -> usize {
        self.part.as_ref().map_or(index, |part| part[index])
    }
}

impl Dataset for TokenizedData {
    fn len(&self) -> usize {
        self.part.as_ref().map_or(self.store.len(), |part| part.len())
    }

    fn get(&self, index: usize, _epoch: u64) -> Result<Example> {
        Ok(self.store.example(self.row(index)))
    }

    fn len_of(&self, index: usize) -> usize {
        self.store.len_of(self.row(index))
    }

    fn max_len(&self) -> usize {
        self.max_len
    }

    /// Attended tokens.
    fn num_tokens(&self) -> u64 {
        self.num_tokens
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::ops::ControlFlow;

    use super::limits::Extremes;
    use super::*;
    use crate::Label;
    use crate::messages::messages;
    use crate::store::Preparation;

    const LIMITS: Limits = Limits {
        vocab_size: 10,
        num_labels: 2,
        token_labels: 10,
        max_positions: 4,
        type_vocab_size: Some(2),
        reads_last_token: false,
    };

    fn open(text: &str, task: Task) -> Result<TokenizedData> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("data.json");
        fs::write(&file, text).unwrap();
        TokenizedData::open(&folder.path().join("cache"), &[file], task, &mut go_on)
    }

    fn go_on(_: Preparation) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn examples(data: &TokenizedData) -> Vec<Example> {
        (0..data.len()).map(|index| data.get(index, 0).unwrap()).collect()
    }

    #[test]
    fn arrays_and_lines_are_the_same() {
        let rows = [r#"{"input_ids": [1, 2], "labels": 1}"#, r#"{"input_ids": [3], "labels": 0}"#];
        let array = open(&format!("[{}]", rows.join(",")), Task::SequenceClassification).unwrap();
        let lines = open(&rows.join("\n"), Task::SequenceClassification).unwrap();
        assert_eq!(examples(&array), examples(&lines));
        let floats = rows.map(|row| row.replace("\"labels\": 1", "\"labels\": 1.0")).join("\n");
        assert_eq!(examples(&open(&floats, Task::SequenceClassification).unwrap()), examples(&lines));
        assert_eq!((array.len(), array.max_len(), array.num_tokens()), (2, 2, 3));
        assert_eq!(array.num_classes().unwrap(), 2);
        assert_eq!(open("{\"input_ids\": [1]}", Task::Clm).unwrap().num_classes().unwrap(), 0);
        array.validate(&LIMITS).unwrap();
    }

    #[test]
    fn a_class_that_is_none_is_refused_with_its_row() {
        let messages = messages!();
        for label in [i32::MAX, 1000, -7] {
            let rows = format!("[{{\"input_ids\": [1], \"labels\": -7}}, {{\"input_ids\": [1], \"labels\": {label}}}]");
            messages.refused(&rows, open(&rows, Task::SequenceClassification).unwrap().num_classes());
        }
    }

    #[test]
    fn a_row_of_an_array_that_is_too_long_is_refused_before_it_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("data.json");
        fs::write(&file, "[{\"input_ids\": [1]},\n").unwrap();
        // Spaces make a row of more than 64 MiB that is cheap to parse.
        let spaces = vec![b' '; 1 << 20];
        let mut append = fs::File::options().append(true).open(&file).unwrap();
        (0..70).for_each(|_| std::io::Write::write_all(&mut append, &spaces).unwrap());
        let error = TokenizedData::open(&folder.path().join("cache"), &[file], Task::Clm, &mut go_on);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("data.json row 2: expected at most 64 MiB"), "{error}");
    }

    #[test]
    fn a_causal_model_needs_no_labels() {
        let data = open(r#"[{"input_ids": [1, 2, 0], "attention_mask": [1, 1, 0]}]"#, Task::Clm).unwrap();
        assert_eq!(data.get(0, 0).unwrap().label, Label::Tokens(vec![1, 2, -100]));
        assert_eq!(data.num_tokens(), 2);
    }

    #[test]
    fn bad_rows_are_refused_with_their_place() {
        use Task::{Clm, Mlm, QuestionAnswering, Regression, SequenceClassification};
        let messages = messages!();
        for (text, task) in [
            ("", Clm),
            ("[]", Clm),
            ("[{]", Clm),
            (r#"[{"input_ids": [1]}"#, Clm),
            (r#"[{"input_ids": [1]}] x"#, Clm),
            ("[[[1]]]", Clm),
            (r#"[{"input_ids": [1]}, 3]"#, Clm),
            (r#"{"input_ids": [1]} {"input_ids": [1]}"#, Clm),
            ("{\"input_ids\": [1]}\n{\"input_ids\": [1", Clm),
            (r#"[{"input_ids": []}]"#, Clm),
            (r#"[{"input_ids": ["a"]}]"#, Clm),
            (r#"[{"ids": [1]}]"#, Clm),
            (r#"[{"input_ids": [1], "labels": [1, 2]}]"#, Mlm),
            (r#"[{"input_ids": [1], "labels": 3}]"#, Mlm),
            (r#"[{"input_ids": [1], "labels": [3]}]"#, SequenceClassification),
            (r#"[{"input_ids": [1], "labels": null}, {"input_ids": [1], "labels": 1}]"#, Regression),
            (r#"[{"input_ids": [1], "labels": "NaN"}]"#, Regression),
            (r#"[{"input_ids": [1], "start_positions": 0}]"#, QuestionAnswering),
            (r#"[{"input_ids": [1, 2], "start_positions": 1, "end_positions": 0}]"#, QuestionAnswering),
            (r#"[{"input_ids": [1], "attention_mask": [2]}]"#, Clm),
            (r#"[{"input_ids": [1], "attention_mask": [0]}]"#, Clm),
            (r#"[{"input_ids": [99999999999]}]"#, Clm),
        ] {
            messages.refused(format!("{task:?}: {text}"), open(text, task));
        }
    }

    #[test]
    fn values_out_of_range_are_refused_with_the_range() {
        use Task::{Clm, QuestionAnswering, SequenceClassification};
        let messages = messages!();
        for (text, task) in [
            (r#"[{"input_ids": [1, 10]}]"#, Clm),
            (r#"[{"input_ids": [-1]}]"#, Clm),
            (r#"[{"input_ids": [1, 2], "labels": [1, 12]}]"#, Clm),
            (r#"[{"input_ids": [1, 1, 1, 1, 1]}]"#, Clm),
            (r#"[{"input_ids": [1], "labels": 2}]"#, SequenceClassification),
            (r#"[{"input_ids": [1], "token_type_ids": [2], "labels": 1}]"#, SequenceClassification),
            (r#"[{"input_ids": [1], "start_positions": 0, "end_positions": 1}]"#, QuestionAnswering),
            (r#"[{"input_ids": [1]}]"#, SequenceClassification),
            (r#"[{"input_ids": [1], "labels": [-100]}]"#, Clm),
        ] {
            messages.refused(format!("{task:?}: {text}"), open(text, task).unwrap().validate(&LIMITS));
        }
    }

    /// Rows with every kind of label, mask and width that a file can have.
    const ROWS: [(Task, &str, &str); 8] = [
        (Task::Clm, r#"{"input_ids": [1, 255, 3]}"#, r#"{"input_ids": [70000, 2, -1], "attention_mask": [0, 1, 1]}"#),
        (
            Task::Mlm,
            r#"{"input_ids": [1, 256], "labels": [-100, 155], "token_type_ids": [0, 1]}"#,
            r#"{"input_ids": [2147483647, -2147483648], "labels": [65436, -101], "token_type_ids": [300, -1]}"#,
        ),
        (Task::SequenceClassification, r#"{"input_ids": [65535], "labels": 2}"#, r#"{"input_ids": [7], "labels": -9}"#),
        (Task::Regression, r#"{"input_ids": [1], "labels": -0.1}"#, r#"{"input_ids": [65536, 1], "labels": 3e38}"#),
        (
            Task::QuestionAnswering,
            r#"{"input_ids": [1, 2], "start_positions": 0, "end_positions": 1, "attention_mask": [1, 1]}"#,
            r#"{"input_ids": [1], "start_positions": -7, "end_positions": 9}"#,
        ),
        (
            Task::TokenClassification,
            r#"{"input_ids": [1, 2], "labels": [1, 2]}"#,
            r#"{"input_ids": [3, 70000, 5], "labels": [-100, 65536, 0]}"#,
        ),
        (
            Task::MultiLabelClassification,
            r#"{"input_ids": [1], "labels": [0, 1, 0.25]}"#,
            r#"{"input_ids": [2, 3], "labels": [1, 1.0, 0.0]}"#,
        ),
        (
            Task::MultipleChoice,
            r#"{"input_ids": [[1, 2, 3], [4]], "attention_mask": [[1, 0, 1], [1]], "labels": 1}"#,
            r#"{"input_ids": [[70000], [5, 6]], "labels": 0}"#,
        ),
    ];

    #[test]
    fn rows_come_back_as_they_were_written() {
        for (task, first, second) in ROWS {
            let unlabelled = r#"{"input_ids": [4, 4, 4, 4, 300], "token_type_ids": [0, 0, 0, 0, 65536]}"#;
            let texts = if task == Task::Clm { vec![first, second, unlabelled] } else { vec![first, second] };
            let expected = texts.iter().map(|text| row::of_line(text, task).unwrap()).collect::<Vec<_>>();
            for text in [texts.join("\n\n"), format!(" [{}]", texts.join(",\n"))] {
                let data = open(&text, task).unwrap();
                assert_eq!(examples(&data), expected);
                let lengths = (0..data.len()).map(|index| data.len_of(index));
                assert!(lengths.eq(expected.iter().map(Example::longest)));
            }
        }
        let none = open(r#"{"input_ids": [4, 5]}"#, Task::Regression).unwrap();
        assert_eq!(none.get(0, 0).unwrap().label, Label::None);
    }

    #[test]
    fn what_stands_in_the_rows_at_most_tells_whether_they_fit() {
        let row = |task| ROWS.iter().find(|(of, ..)| *of == task).map(|(_, first, second)| [*first, *second]).unwrap();
        // That all rows have as many labels as the model is looked at apart.
        for task in Task::ALL.into_iter().filter(|task| *task != Task::MultiLabelClassification) {
            for text in row(task) {
                let example = row::of_line(text, task).unwrap();
                let mut extremes = Extremes::NONE;
                extremes.take(&example);
                assert_eq!(Extremes::of_numbers(extremes.numbers()), extremes);
                for (vocab_size, num_labels, max_positions) in
                    [(256, 3, 3), (255, 2, 2), (257, 3, 1), (1 << 31, 1, 3), (70001, 9, 3), (65536, 3, 1)]
                {
                    for type_vocab_size in [None, Some(1), Some(2)] {
                        let token_labels = vocab_size;
                        let limits =
                            Limits { vocab_size, num_labels, token_labels, max_positions, type_vocab_size, ..LIMITS };
                        assert_eq!(extremes.fit(&limits), limits.check(&example).is_ok(), "{text} {limits:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn both_sides_of_a_split_know_their_rows() {
        let row = |i: usize| format!("{{\"input_ids\": {:?}, \"labels\": {i}}}\n", vec![i; 1 + i % 5]);
        let text = (0..40).map(row).collect::<String>();
        let whole = open(&text, Task::SequenceClassification).unwrap();
        let (rest, validation) = whole.clone().split(0.25, 3).unwrap();
        assert_eq!((rest.len(), validation.len()), (30, 10));
        let mut all = [examples(&rest), examples(&validation)].concat();
        all.sort_by_key(|example| example.input_ids[0]);
        assert_eq!(all, examples(&whole));
        assert_eq!(rest.num_tokens() + validation.num_tokens(), whole.num_tokens());
        for side in [&rest, &validation] {
            let ids = examples(side).iter().map(|example| example.input_ids.clone()).collect::<Vec<_>>();
            assert_eq!(side.max_len(), ids.iter().map(Vec::len).max().unwrap());
            assert_eq!(side.num_tokens(), ids.iter().map(Vec::len).sum::<usize>() as u64);
            assert_eq!(side.num_classes().unwrap(), 1 + ids.iter().map(|ids| ids[0] as usize).max().unwrap());
            // Rows come in their order, and each knows its line.
            let largest = side.num_classes().unwrap() - 1;
            let limits = Limits {
                vocab_size: 50,
                num_labels: largest,
                token_labels: 50,
                max_positions: 9,
                type_vocab_size: None,
                ..LIMITS
            };
            let error = side.validate(&limits).unwrap_err().to_string();
            assert!(error.contains(&format!("data.json line {}: labels", largest + 1)), "{error}");
            side.validate(&Limits { num_labels: 40, ..limits }).unwrap();
        }
        assert!(open(&row(1), Task::SequenceClassification).unwrap().split(0.5, 1).is_err());
    }

    #[test]
    fn a_batch_file_is_columns() {
        let messages = messages!();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("batch.json");
        let read = |text: &str, task| {
            fs::write(&file, text).unwrap();
            read_batch(&file, task, &LIMITS)
        };
        let text = r#"{"input_ids": [[1, 2], [3, 0]], "attention_mask": [[1, 1], [1, 0]], "labels": [1, 0]}"#;
        let batch = read(text, Task::SequenceClassification).unwrap();
        assert_eq!((batch.rows, batch.seq_len, batch.num_tokens), (2, 2, 3));
        assert_eq!(batch.labels, super::super::BatchLabels::Classes(vec![1, 0]));
        for text in [
            "[]",
            r#"{"labels": [1]}"#,
            r#"{"input_ids": [[1]], "labels": [1, 2]}"#,
            r#"{"input_ids": [[77]], "labels": [1]}"#,
        ] {
            messages.refused(text, read(text, Task::SequenceClassification));
        }
    }
}
