//! A row of tokenized data as it is written, and the example that it is. Used by the reader of
//! files and by `batch.json`.

use kiln_core::error::{Error, Result};
use kiln_core::words::{json_words, shortened};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::table::malformed;
use crate::task::Task;
use crate::{Example, IGNORED, Label};

/// A row as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    input_ids: Vec<i64>,
    attention_mask: Option<Vec<i64>>,
    token_type_ids: Option<Vec<i64>>,
    position_ids: Option<Vec<i64>>,
    labels: Option<Value>,
    start_positions: Option<i64>,
    end_positions: Option<i64>,
}

/// A row of a multiple choice as it is written: each column has a list for each choice.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Choices {
    input_ids: Vec<Vec<i64>>,
    attention_mask: Option<Vec<Vec<i64>>>,
    token_type_ids: Option<Vec<Vec<i64>>>,
    labels: Option<i64>,
}

/// A line as an example of `task`.
///
/// # Errors
/// Malformed JSON; columns that are missing, unknown, of another type or length, or that the task
/// does not have.
pub(super) fn of_line(line: &str, task: Task) -> Result<Example> {
    // Most rows are right and are read at once. Of the others a tree of values tells best what is
    // wrong. A list would pass for a row whose columns come in order.
    if task != Task::MultipleChoice
        && line.trim_start().starts_with('{')
        && let Ok(row) = serde_json::from_str(line)
    {
        return example(row, task);
    }
    let value = serde_json::from_str(line).map_err(|error| {
        malformed(line, None, &error).help("a file has a row on every line, or one JSON array of rows")
    })?;
    of_value(value, task)
}

/// A row as an example of `task`.
///
/// # Errors
/// Columns that are missing, unknown, of another type or length, or that the task does not have.
pub(super) fn of_value(row: Value, task: Task) -> Result<Example> {
    if !row.is_object() {
        return Err(Error::data(format!("expected an object with input_ids, got {}", shortened(&row))));
    }
    if task == Task::MultipleChoice {
        return choices(read(row)?);
    }
    example(read(row)?, task)
}

fn read<T: DeserializeOwned>(row: Value) -> Result<T> {
    serde_path_to_error::deserialize(row).map_err(|error| {
        let (path, problem) = (error.path().to_string(), json_words(error.inner()));
        let problem = if path == "." || problem.contains("field `") { problem } else { format!("{path}: {problem}") };
        Error::data(problem).help(
            "a row has input_ids and, as needed, attention_mask, token_type_ids, position_ids, labels, start_positions, \
             end_positions",
        )
    })
}

/// The example that has the tokens of all choices one after the other.
fn choices(row: Choices) -> Result<Example> {
    let count = row.input_ids.len();
    if count < 2 {
        return Err(Error::data(format!("input_ids: expected a list for each of two choices or more, got {count}")));
    }
    let [masks, types] =
        [("attention_mask", row.attention_mask), ("token_type_ids", row.token_type_ids)].map(|(name, column)| {
            match column {
                Some(lists) if lists.len() != count => {
                    Err(Error::data(format!("{name}: expected {count} lists, as input_ids has, got {}", lists.len())))
                }
                Some(lists) => Ok(lists.into_iter().map(Some).collect::<Vec<_>>()),
                None => Ok(vec![None; count]),
            }
        });
    let (mut all, mut lens) = (None::<Example>, Vec::with_capacity(count));
    for ((choice, input_ids), (attention_mask, token_type_ids)) in
        row.input_ids.into_iter().enumerate().zip(masks?.into_iter().zip(types?))
    {
        let (position_ids, labels, start_positions, end_positions) = (None, None, None, None);
        let row =
            Row { input_ids, attention_mask, token_type_ids, position_ids, labels, start_positions, end_positions };
        let own = example(row, Task::MultipleChoice).map_err(|error| error.at(format_args!("choice {choice}")))?;
        lens.push(own.input_ids.len());
        match &mut all {
            None => all = Some(own),
            Some(all) => {
                all.input_ids.extend(own.input_ids);
                extend(&mut all.attention_mask, own.attention_mask);
                extend(&mut all.token_type_ids, own.token_type_ids);
            }
        }
    }
    let all = all.expect("there are two choices or more");
    let answer = match row.labels {
        None => IGNORED,
        Some(answer) if (0..count as i64).contains(&answer) => answer as i32,
        Some(answer) => {
            return Err(Error::data(format!("labels: expected a choice from 0 to {}, got {answer}", count - 1)));
        }
    };
    Ok(Example { label: Label::Choice { lens, answer }, ..all })
}

/// Either all choices have a column, or none.
fn extend<T>(column: &mut Option<Vec<T>>, more: Option<Vec<T>>) {
    if let (Some(column), Some(more)) = (column, more) {
        column.extend(more);
    }
}

fn example(row: Row, task: Task) -> Result<Example> {
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
    let position_ids = row.position_ids.as_deref().map(|positions| positions_of(positions, len, task)).transpose()?;
    if position_ids.is_some() && mask.as_ref().is_some_and(|mask| !mask.iter().all(|shown| *shown)) {
        return Err(Error::data("position_ids: expected a row without padding, got zeros in its attention_mask")
            .help("leave the padding and the mask out of a row of several documents"));
    }
    let mut label = label(&row, task, &input_ids, mask.as_deref())?;
    if let (Some(positions), Label::Tokens(labels), None) = (&position_ids, &mut label, &row.labels) {
        // Nothing before it predicts the first token of a document.
        labels.iter_mut().zip(positions).filter(|(_, at)| **at == 0).for_each(|(label, _)| *label = IGNORED);
    }
    Ok(Example { input_ids, attention_mask: mask, token_type_ids, position_ids, label })
}

/// The positions of several documents in a row, each of which counts from 0.
fn positions_of(positions: &[i64], len: usize, task: Task) -> Result<Vec<i32>> {
    same_length("position_ids", positions.len(), len)?;
    if task != Task::Clm {
        return Err(Error::data(format!("position_ids: the task {task} has one text a row"))
            .help("they are for several documents in a row of the task clm; leave them out"));
    }
    let before = std::iter::once(-1).chain(positions.iter().copied());
    if let Some((place, (_, got))) =
        before.zip(positions).enumerate().find(|(_, (before, at))| **at != 0 && **at != before + 1)
    {
        return Err(Error::data(format!(
            "position_ids[{place}]: expected the number after the one before, or 0, got {got}"
        )));
    }
    ints("position_ids", positions)
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
        (Task::Clm, None) => Ok(Label::Tokens(own_labels(input_ids, mask).collect())),
        (_, None) => Ok(Label::None),
        (Task::Clm | Task::Mlm | Task::TokenClassification, Some(value)) => match Vec::<i64>::deserialize(value) {
            Ok(labels) => {
                same_length("labels", labels.len(), input_ids.len())?;
                Ok(Label::Tokens(ints("labels", &labels)?))
            }
            Err(_) if task == Task::TokenClassification => expected("a list of classes", value),
            Err(_) => expected("a list of token ids", value),
        },
        (Task::MultiLabelClassification, Some(value)) => match Vec::<f32>::deserialize(value) {
            Ok(values) if !values.is_empty() && values.iter().all(|value| (0.0..=1.0).contains(value)) => {
                Ok(Label::Multi(values))
            }
            _ => expected("a list of numbers from 0 to 1, one for each label,", value),
        },
        (Task::SequenceClassification, Some(value)) => match whole(value) {
            Some(class) => Ok(Label::Class(ints("labels", &[class])?[0])),
            None => expected("a whole number", value),
        },
        (_, Some(value)) => match value.as_f64().map(|number| number as f32) {
            Some(number) if number.is_finite() => Ok(Label::Value(number)),
            _ => expected("a finite number", value),
        },
    }
}

/// A whole number, which pandas writes as 1.0 where a column has had a gap.
fn whole(value: &Value) -> Option<i64> {
    let number = || value.as_f64().filter(|number| number.fract() == 0.0 && number.abs() < 1e15);
    value.as_i64().or_else(|| number().map(|number| number as i64))
}

/// The labels that are the ids themselves, where they are attended.
pub(super) fn own_labels(input_ids: &[i32], mask: Option<&[bool]>) -> impl Iterator<Item = i32> {
    let attended = move |at: usize| mask.is_none_or(|mask| mask[at]);
    input_ids.iter().enumerate().map(move |(at, id)| if attended(at) { *id } else { IGNORED })
}

fn same_length(name: &str, got: usize, expected: usize) -> Result<()> {
    if got == expected {
        Ok(())
    } else {
        Err(Error::data(format!("{name}: expected {expected} values, as input_ids has, got {got}")))
    }
}

fn ints(name: &str, values: &[i64]) -> Result<Vec<i32>> {
    let narrow = values.iter().map(|&value| {
        i32::try_from(value).map_err(|_| Error::data(format!("{name}: expected a 32-bit number, got {value}")))
    });
    narrow.collect()
}
