//! Data that is tokenised already: rows of `input_ids`, `attention_mask`, `token_type_ids` and `labels` (or
//! `start_positions` and `end_positions`) as a JSON array or as JSON lines; and `batch.json`, the same by column.

use std::fs;
use std::path::{Path, PathBuf};

use kiln_models::ModelConfig;
use serde::Deserialize;
use serde_json::Value;

use super::collate::collate;
use super::corpus::split_off;
use super::{Batch, Dataset, Example, Label};
use crate::error::{Error, Result, plain_words};
use crate::task::{IGNORED, Task};

/// Rows in memory.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenizedData {
    task: Task,
    examples: Vec<Example>,
    /// Where each row stood, for messages.
    places: Vec<String>,
}

/// What the model allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Ids are below it.
    pub vocab_size: usize,
    /// Classes are below it.
    pub num_labels: usize,
    /// Rows are at most as long.
    pub max_positions: usize,
    /// Token types are below it; none when the model has no token types.
    pub type_vocab_size: Option<usize>,
}

/// A row as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    input_ids: Vec<i64>,
    attention_mask: Option<Vec<i64>>,
    token_type_ids: Option<Vec<i64>>,
    labels: Option<Value>,
    start_positions: Option<i64>,
    end_positions: Option<i64>,
}

impl TokenizedData {
    /// Reads `files` for `task`.
    ///
    /// # Errors
    /// A file without rows, malformed JSON (with the line), a row whose columns do not fit together or the task.
    pub fn open(files: &[PathBuf], task: Task) -> Result<Self> {
        let (mut examples, mut places) = (Vec::new(), Vec::new());
        for file in files {
            let text = read_text(file)?;
            let rows: Vec<(String, Value)> = match text.trim_start().starts_with('[') {
                true => {
                    let rows: Vec<Value> = serde_json::from_str(&text).map_err(|error| malformed(file, &error))?;
                    let place = |i| format!("{} row {}", file.display(), i + 1);
                    rows.into_iter().enumerate().map(|(i, row)| (place(i), row)).collect()
                }
                false => {
                    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
                    let parsed = lines.map(|(i, line)| {
                        let place = format!("{} line {}", file.display(), i + 1);
                        match serde_json::from_str(line) {
                            Ok(row) => Ok((place, row)),
                            Err(error) => Err(Error::data(format!("{place}: malformed JSON: {error}"))),
                        }
                    });
                    parsed.collect::<Result<_>>()?
                }
            };
            if rows.is_empty() {
                return Err(Error::data(format!("{}: expected rows, got none", file.display())));
            }
            for (place, row) in rows {
                examples.push(example(row, task).map_err(|error| error.at(&place))?);
                places.push(place);
            }
        }
        let labelled = examples.iter().filter(|example| example.label != Label::None).count();
        if labelled != 0 && labelled != examples.len() {
            let first = examples.iter().position(|example| example.label == Label::None).unwrap_or(0);
            return Err(Error::data(format!("{}: the row has no labels, but others have", places[first])));
        }
        Ok(Self { task, examples, places })
    }

    /// Splits off `share` of the rows for validation: `(rest, validation)`.
    ///
    /// # Errors
    /// Fewer than two rows.
    pub fn split(self, share: f64, seed: u64) -> Result<(Self, Self)> {
        let len = self.examples.len();
        let chosen = split_off(len, share, seed).ok_or_else(|| {
            Error::data(format!("data.validation = {share}: {len} row cannot be split")).help("name a validation file")
        })?;
        let side = |validation: bool| {
            let kept = (0..len).filter(|index| chosen[*index] == validation);
            let (examples, places) =
                kept.map(|index| (self.examples[index].clone(), self.places[index].clone())).unzip();
            Self { task: self.task, examples, places }
        };
        Ok((side(false), side(true)))
    }

    /// Checks every row against what the model allows, and that there is something to learn from.
    ///
    /// # Errors
    /// The first row that does not fit, with its place and the value.
    pub fn validate(&self, limits: &Limits) -> Result<()> {
        for (example, place) in self.examples.iter().zip(&self.places) {
            limits.check(example).map_err(|error| error.at(place))?;
        }
        if self.examples.iter().all(|example| example.label == Label::None) {
            return Err(Error::data(format!("{}: the rows have no labels", self.places[0])).help(match self.task {
                Task::QuestionAnswering => "add the columns start_positions and end_positions",
                _ => "add the column labels",
            }));
        }
        Ok(())
    }

    /// Attended tokens of all rows.
    pub fn num_tokens(&self) -> u64 {
        let attended = |example: &Example| match &example.attention_mask {
            Some(mask) => mask.iter().filter(|&&attended| attended).count(),
            None => example.input_ids.len(),
        };
        self.examples.iter().map(|example| attended(example) as u64).sum()
    }

    /// The largest class, if the rows have classes.
    pub fn max_label(&self) -> Option<usize> {
        let classes = self.examples.iter().filter_map(|example| match example.label {
            Label::Class(class) => usize::try_from(class).ok(),
            _ => None,
        });
        classes.max()
    }
}

impl Dataset for TokenizedData {
    fn len(&self) -> usize {
        self.examples.len()
    }

    fn get(&self, index: usize) -> Result<Example> {
        Ok(self.examples[index].clone())
    }

    fn max_len(&self) -> usize {
        self.examples.iter().map(|example| example.input_ids.len()).max().unwrap_or(0)
    }
}

impl Limits {
    /// The limits of a model.
    pub fn of(model: &ModelConfig) -> Self {
        Self {
            vocab_size: model.vocab_size(),
            num_labels: model.labels().num_labels(),
            max_positions: model.max_positions(),
            type_vocab_size: model.type_vocab_size(),
        }
    }

    /// # Errors
    /// What is out of range, with the position, the value and the range.
    pub fn check(&self, example: &Example) -> Result<()> {
        let len = example.input_ids.len();
        if len > self.max_positions {
            return Err(Error::data(format!(
                "the row has {len} tokens, but the model has {} positions",
                self.max_positions
            )));
        }
        in_range("input_ids", &example.input_ids, self.vocab_size, "the vocabulary has that many tokens", false)?;
        if let Some(types) = &example.token_type_ids {
            match self.type_vocab_size {
                Some(count) => in_range("token_type_ids", types, count, "the model has that many token types", false)?,
                None => return Err(Error::data("the row has token_type_ids, but the model has no token types")),
            }
        }
        match &example.label {
            Label::Tokens(labels) => {
                in_range("labels", labels, self.vocab_size, "the vocabulary has that many tokens", true)
            }
            Label::Class(class) => {
                in_range("labels", &[*class], self.num_labels, "the model has that many labels", false)
            }
            Label::Span { start, end } => {
                in_range("start_positions", &[*start], len, "the row has that many tokens", false)?;
                in_range("end_positions", &[*end], len, "the row has that many tokens", false)
            }
            Label::None | Label::Value(_) => Ok(()),
        }
    }
}

fn in_range(name: &str, values: &[i32], below: usize, why: &str, may_ignore: bool) -> Result<()> {
    let bad = |value: i32| !(may_ignore && value == IGNORED) && usize::try_from(value).map_or(true, |v| v >= below);
    match values.iter().position(|&value| bad(value)) {
        None => Ok(()),
        Some(at) => {
            let or_ignored = if may_ignore { " (or -100, ignored)" } else { "" };
            let place = if values.len() > 1 { format!("[{at}]") } else { String::new() };
            Err(Error::data(format!("{name}{place}: expected 0 to {}{or_ignored}, got {}", below - 1, values[at]))
                .help(format!("{why}: {below}")))
        }
    }
}

/// Reads a `batch.json`: columns as nested lists.
///
/// # Errors
/// A file that cannot be read, columns of different lengths, values that the task does not have.
pub fn read_batch(file: &Path, task: Task, limits: &Limits) -> Result<Batch> {
    let json: Value = serde_json::from_str(&read_text(file)?).map_err(|error| malformed(file, &error))?;
    let at = |error: Error| error.at(file.display());
    let Value::Object(columns) = json else {
        return Err(at(Error::data("expected an object of columns: input_ids, attention_mask, labels, ...")));
    };
    let rows = match columns.get("input_ids") {
        Some(Value::Array(rows)) if !rows.is_empty() => rows.len(),
        _ => return Err(at(Error::data("input_ids: expected a list of rows, each a list of token ids"))),
    };
    for (name, column) in &columns {
        let got = column.as_array().map(Vec::len);
        if got != Some(rows) {
            let got = got.map_or_else(|| "no list".to_string(), |len| format!("{len}"));
            return Err(at(Error::data(format!("{name}: expected {rows} rows, as input_ids has, got {got}"))));
        }
    }
    let mut examples = Vec::with_capacity(rows);
    for row in 0..rows {
        let object = columns.iter().map(|(name, column)| (name.clone(), column[row].clone())).collect();
        let place = |error: Error| error.at(format!("{} row {}", file.display(), row + 1));
        let example = example(Value::Object(object), task).map_err(place)?;
        limits.check(&example).map_err(place)?;
        examples.push(example);
    }
    collate(&examples, 0, None).map_err(at)
}

fn read_text(file: &Path) -> Result<String> {
    let bytes = fs::read(file).map_err(|error| Error::io(format!("read {}", file.display()), &error))?;
    String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        Error::data(format!("{}: expected UTF-8 text, got something else at offset {offset}", file.display()))
    })
}

fn malformed(file: &Path, error: &serde_json::Error) -> Error {
    Error::data(format!("{}: malformed JSON: {error}", file.display()))
}

/// A row as an example of `task`.
fn example(row: Value, task: Task) -> Result<Example> {
    if !row.is_object() {
        return Err(Error::data(format!("expected an object with input_ids, got {}", shortened(&row))));
    }
    let row: Row = serde_path_to_error::deserialize(row).map_err(|error| {
        let (path, problem) = (error.path().to_string(), plain_words(&error.inner().to_string()));
        let problem = if path == "." || problem.contains("field `") { problem } else { format!("{path}: {problem}") };
        Error::data(problem).help(
            "a row has input_ids and, as needed, attention_mask, token_type_ids, labels, start_positions, end_positions",
        )
    })?;
    let len = row.input_ids.len();
    if len == 0 {
        return Err(Error::data("input_ids: expected at least one token, got none"));
    }
    let input_ids = ints("input_ids", &row.input_ids)?;
    let mask = row.attention_mask.as_deref().map(|mask| mask_of(mask, len)).transpose()?;
    let token_type_ids = row.token_type_ids.as_deref().map(|types| {
        same_length("token_type_ids", types.len(), len)?;
        ints("token_type_ids", types)
    });
    let token_type_ids = token_type_ids.transpose()?;
    let label = label(&row, task, &input_ids, mask.as_deref())?;
    Ok(Example { input_ids, attention_mask: mask, token_type_ids, label })
}

fn mask_of(mask: &[i64], len: usize) -> Result<Vec<bool>> {
    same_length("attention_mask", mask.len(), len)?;
    if let Some(value) = mask.iter().find(|value| !matches!(value, 0 | 1)) {
        return Err(Error::data(format!("attention_mask: expected 0 or 1, got {value}")));
    }
    if mask.iter().all(|value| *value == 0) {
        return Err(Error::data("attention_mask: expected at least one attended token, got none"));
    }
    Ok(mask.iter().map(|value| *value == 1).collect())
}

fn label(row: &Row, task: Task, input_ids: &[i32], mask: Option<&[bool]>) -> Result<Label> {
    let has_span = row.start_positions.is_some() || row.end_positions.is_some();
    if task == Task::QuestionAnswering {
        if row.labels.is_some() {
            return Err(Error::data(
                "labels: the task question-answering has start_positions and end_positions instead",
            ));
        }
        return match (row.start_positions, row.end_positions) {
            (Some(start), Some(end)) if start <= end => {
                let [start, end] = ints("start_positions", &[start, end])?[..] else {
                    unreachable!("two positions go in and two come out");
                };
                Ok(Label::Span { start, end })
            }
            (Some(start), Some(end)) => {
                Err(Error::data(format!("end_positions: expected at least start_positions ({start}), got {end}")))
            }
            (None, None) => Ok(Label::None),
            _ => Err(Error::data("start_positions and end_positions: expected both, got one")),
        };
    }
    if has_span {
        return Err(Error::data(format!("start_positions: the task {task} has labels instead")));
    }
    let expected = |what: &str, got: &Value| {
        Err(Error::data(format!("labels: expected {what} for the task {task}, got {}", shortened(got))))
    };
    match (task, &row.labels) {
        // Without labels a causal language model predicts its own input, where it is attended.
        (Task::Clm, None) => Ok(Label::Tokens(match mask {
            Some(mask) => {
                input_ids.iter().zip(mask).map(|(id, attended)| if *attended { *id } else { IGNORED }).collect()
            }
            None => input_ids.to_vec(),
        })),
        (_, None) => Ok(Label::None),
        (Task::Clm | Task::Mlm, Some(value)) => match Vec::<i64>::deserialize(value) {
            Ok(labels) => {
                same_length("labels", labels.len(), input_ids.len())?;
                Ok(Label::Tokens(ints("labels", &labels)?))
            }
            Err(_) => expected("a list of token ids", value),
        },
        (Task::SequenceClassification, Some(value)) => match value.as_i64() {
            Some(class) => Ok(Label::Class(ints("labels", &[class])?[0])),
            None => expected("a whole number", value),
        },
        (_, Some(value)) => match value.as_f64().map(|number| number as f32) {
            Some(number) if number.is_finite() => Ok(Label::Value(number)),
            _ => expected("a finite number", value),
        },
    }
}

fn shortened(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(40) {
        Some((cut, _)) => format!("{}...", &text[..cut]),
        None => text,
    }
}

fn same_length(name: &str, got: usize, expected: usize) -> Result<()> {
    match got == expected {
        true => Ok(()),
        false => Err(Error::data(format!("{name}: expected {expected} values, as input_ids has, got {got}"))),
    }
}

fn ints(name: &str, values: &[i64]) -> Result<Vec<i32>> {
    let narrow = values.iter().map(|&value| {
        i32::try_from(value).map_err(|_| Error::data(format!("{name}: expected a 32-bit number, got {value}")))
    });
    narrow.collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const LIMITS: Limits = Limits { vocab_size: 10, num_labels: 2, max_positions: 4, type_vocab_size: Some(2) };

    fn open(text: &str, task: Task) -> Result<TokenizedData> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("data.json");
        fs::write(&file, text).unwrap();
        TokenizedData::open(&[file], task)
    }

    #[test]
    fn arrays_and_lines_are_the_same() {
        let rows = [r#"{"input_ids": [1, 2], "labels": 1}"#, r#"{"input_ids": [3], "labels": 0}"#];
        let array = open(&format!("[{}]", rows.join(",")), Task::SequenceClassification).unwrap();
        let lines = open(&rows.join("\n"), Task::SequenceClassification).unwrap();
        assert_eq!(array.examples, lines.examples);
        assert_eq!((array.len(), array.max_len(), array.num_tokens()), (2, 2, 3));
        assert_eq!(array.max_label(), Some(1));
        array.validate(&LIMITS).unwrap();
    }

    #[test]
    fn a_causal_model_needs_no_labels() {
        let data = open(r#"[{"input_ids": [1, 2, 0], "attention_mask": [1, 1, 0]}]"#, Task::Clm).unwrap();
        assert_eq!(data.get(0).unwrap().label, Label::Tokens(vec![1, 2, -100]));
        assert_eq!(data.num_tokens(), 2);
    }

    #[test]
    fn bad_rows_are_refused_with_their_place() {
        use Task::{Clm, Mlm, QuestionAnswering, Regression, SequenceClassification};
        for (text, task, says) in [
            ("", Clm, "expected rows, got none"),
            ("[]", Clm, "expected rows, got none"),
            ("[{]", Clm, "malformed JSON"),
            ("{\"input_ids\": [1]}\n{\"input_ids\": [1", Clm, "line 2: malformed JSON"),
            (r#"[{"input_ids": []}]"#, Clm, "at least one token"),
            (r#"[{"input_ids": ["a"]}]"#, Clm, "input_ids[0]: expected a whole number"),
            (r#"[{"ids": [1]}]"#, Clm, "unknown field `ids`"),
            (r#"[{"input_ids": [1], "labels": [1, 2]}]"#, Mlm, "expected 1 values"),
            (r#"[{"input_ids": [1], "labels": 3}]"#, Mlm, "expected a list of token ids"),
            (r#"[{"input_ids": [1], "labels": [3]}]"#, SequenceClassification, "expected a whole number"),
            (r#"[{"input_ids": [1], "labels": null}, {"input_ids": [1], "labels": 1}]"#, Regression, "row 1"),
            (r#"[{"input_ids": [1], "labels": "NaN"}]"#, Regression, "a finite number"),
            (r#"[{"input_ids": [1], "start_positions": 0}]"#, QuestionAnswering, "expected both"),
            (r#"[{"input_ids": [1, 2], "start_positions": 1, "end_positions": 0}]"#, QuestionAnswering, "at least"),
            (r#"[{"input_ids": [1], "attention_mask": [2]}]"#, Clm, "expected 0 or 1"),
            (r#"[{"input_ids": [1], "attention_mask": [0]}]"#, Clm, "at least one attended"),
            (r#"[{"input_ids": [99999999999]}]"#, Clm, "32-bit"),
        ] {
            let error = open(text, task).expect_err(text).to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn values_out_of_range_are_refused_with_the_range() {
        use Task::{Clm, QuestionAnswering, SequenceClassification};
        for (text, task, says) in [
            (r#"[{"input_ids": [1, 10]}]"#, Clm, "input_ids[1]: expected 0 to 9, got 10"),
            (r#"[{"input_ids": [-1]}]"#, Clm, "got -1"),
            (r#"[{"input_ids": [1, 2], "labels": [1, 12]}]"#, Clm, "labels[1]"),
            (r#"[{"input_ids": [1, 1, 1, 1, 1]}]"#, Clm, "5 tokens, but the model has 4 positions"),
            (r#"[{"input_ids": [1], "labels": 2}]"#, SequenceClassification, "labels: expected 0 to 1, got 2"),
            (r#"[{"input_ids": [1], "token_type_ids": [2], "labels": 1}]"#, SequenceClassification, "token_type_ids"),
            (
                r#"[{"input_ids": [1], "start_positions": 0, "end_positions": 1}]"#,
                QuestionAnswering,
                "end_positions: expected 0 to 0, got 1",
            ),
            (r#"[{"input_ids": [1]}]"#, SequenceClassification, "the rows have no labels"),
        ] {
            let error = open(text, task).unwrap().validate(&LIMITS).expect_err(text).to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn a_batch_file_is_columns() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("batch.json");
        let read = |text: &str, task| {
            fs::write(&file, text).unwrap();
            read_batch(&file, task, &LIMITS)
        };
        let text = r#"{"input_ids": [[1, 2], [3, 0]], "attention_mask": [[1, 1], [1, 0]], "labels": [1, 0]}"#;
        let batch = read(text, Task::SequenceClassification).unwrap();
        assert_eq!((batch.rows, batch.seq_len, batch.num_tokens), (2, 2, 3));
        assert_eq!(batch.labels, super::super::Labels::Classes(vec![1, 0]));
        for (text, says) in [
            ("[]", "an object of columns"),
            (r#"{"labels": [1]}"#, "input_ids"),
            (r#"{"input_ids": [[1]], "labels": [1, 2]}"#, "expected 1 rows"),
            (r#"{"input_ids": [[77]], "labels": [1]}"#, "row 1"),
        ] {
            let error = read(text, Task::SequenceClassification).expect_err(text).to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
