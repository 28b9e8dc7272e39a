//! Examples become a batch: padded on the right to a common length, and with rows below to a full
//! batch where its shape is fixed. Labels of padding are ignored.

use std::borrow::Cow;

use crate::error::{Error, Result};

use super::padding::Padding;
use super::{BatchLabels, Example, IGNORED, Label, PaddedBatch};

/// Makes batches of tokens, as a [`Loader`](super::loader::Loader) wants them.
#[derive(Debug, Clone, PartialEq)]
pub struct Collator {
    /// The id that padding uses.
    pub pad_id: u32,
    /// The lengths that batches are padded to. Where they are fixed, a batch that is not full is
    /// filled up.
    pub padding: Padding,
    /// Rows of a full batch.
    pub rows: usize,
}

impl Collator {
    /// The batch of `examples`.
    ///
    /// # Errors
    /// Examples with labels of different kinds.
    pub fn collate(&self, examples: &[Example]) -> Result<PaddedBatch> {
        collate(examples, self.pad_id, &self.padding, if self.padding.is_fixed() { self.rows } else { 0 })
    }
}

/// Pads `examples` with `pad_id` to the length that `padding` has for the longest of them, and to
/// `rows` rows where there are fewer.
///
/// # Errors
/// Examples with labels of different kinds.
pub fn collate(examples: &[Example], pad_id: u32, padding: &Padding, rows: usize) -> Result<PaddedBatch> {
    let of_examples = labels(examples)?;
    // The choices of a multiple choice are rows of the batch.
    let choices = if let BatchLabels::Choices { choices, .. } = &of_examples { *choices } else { 1 };
    let sequences = match choices {
        1 => Cow::Borrowed(examples),
        _ => Cow::Owned(examples.iter().flat_map(Example::sequences).collect()),
    };
    let (rows, examples) = (rows.max(examples.len()) * choices, &*sequences);
    let longest = examples.iter().map(|example| example.input_ids.len()).max().unwrap_or(0);
    let seq_len = padding.length(longest);
    let padded = |values: &[i32], padding: i32| {
        let mut row = values.to_vec();
        row.resize(seq_len, padding);
        row
    };
    let mut input_ids = Vec::with_capacity(rows * seq_len);
    let mut mask = Vec::with_capacity(rows * seq_len);
    let mut types = Vec::new();
    let has_types = examples.iter().any(|example| example.token_type_ids.is_some());
    for example in examples {
        let len = example.input_ids.len();
        input_ids.extend(padded(&example.input_ids, pad_id as i32));
        match &example.attention_mask {
            Some(attended) => mask.extend_from_slice(attended),
            None => mask.extend(std::iter::repeat_n(true, len)),
        }
        mask.extend(std::iter::repeat_n(false, seq_len - len));
        if has_types {
            let own = example.token_type_ids.as_deref();
            types.extend(own.map_or_else(|| vec![0; seq_len], |own| padded(own, 0)));
        }
    }
    input_ids.resize(rows * seq_len, pad_id as i32);
    mask.resize(rows * seq_len, false);
    if has_types {
        types.resize(rows * seq_len, 0);
    }
    let position_ids = examples.iter().any(|example| example.position_ids.is_some()).then(|| {
        // Padding is a document of its own, and so are the first token of a row that fills the
        // batch, which is attended to, and the rest of it: no document is masked in part but those
        // that are given so.
        let row = |example: &Example| {
            let len = example.input_ids.len() as i32;
            let own = example.position_ids.clone().unwrap_or_else(|| (0..len).collect());
            own.into_iter().chain(0..seq_len as i32 - len)
        };
        let filler = || std::iter::once(0).chain(0..seq_len as i32 - 1);
        let filler = (examples.len()..rows).flat_map(|_| filler());
        examples.iter().flat_map(row).chain(filler).collect()
    });
    let num_tokens = mask.iter().filter(|&&attended| attended).count();
    // A row that only fills the batch has a token to attend to: what reads first tokens need not
    // compute its padding.
    mask.iter_mut().step_by(seq_len.max(1)).skip(examples.len()).for_each(|first| *first = true);
    Ok(PaddedBatch {
        rows,
        examples: examples.len(),
        seq_len,
        input_ids,
        attention_mask: (num_tokens < rows * seq_len).then_some(mask),
        token_type_ids: has_types.then_some(types),
        position_ids,
        labels: of_examples.padded(examples, rows, seq_len),
        num_tokens,
    })
}

/// The labels of `examples`, those of tokens not padded yet.
fn labels(examples: &[Example]) -> Result<BatchLabels> {
    let mixed = || Error::data("examples of one batch have labels of different kinds");
    let Some(first) = examples.first() else { return Err(Error::data("a batch needs at least one example")) };
    let all = examples.iter().map(|example| &example.label);
    match &first.label {
        Label::None => Ok(BatchLabels::None),
        Label::Tokens(_) => {
            let rows = all.map(|label| match label {
                Label::Tokens(values) => Ok(values.as_slice()),
                _ => Err(mixed()),
            });
            Ok(BatchLabels::Tokens(rows.collect::<Result<Vec<_>>>()?.concat()))
        }
        Label::Multi(first) => {
            let rows = all.map(|label| match label {
                Label::Multi(values) if values.len() == first.len() => Ok(values.as_slice()),
                _ => Err(mixed()),
            });
            Ok(BatchLabels::Multi(rows.collect::<Result<Vec<_>>>()?.concat()))
        }
        Label::Choice { lens: first, .. } => {
            let answers = all.map(|label| match label {
                Label::Choice { lens, answer } if lens.len() == first.len() => Ok(*answer),
                _ => Err(mixed()),
            });
            Ok(BatchLabels::Choices { choices: first.len(), answers: answers.collect::<Result<_>>()? })
        }
        Label::Class(_) => {
            let classes = all.map(|label| if let Label::Class(class) = label { Ok(*class) } else { Err(mixed()) });
            Ok(BatchLabels::Classes(classes.collect::<Result<_>>()?))
        }
        Label::Value(_) => {
            let values = all.map(|label| if let Label::Value(value) = label { Ok(*value) } else { Err(mixed()) });
            Ok(BatchLabels::Values(values.collect::<Result<_>>()?))
        }
        Label::Span { .. } => {
            let spans = all.map(|label| match label {
                Label::Span { start, end } => Ok((*start, *end)),
                _ => Err(mixed()),
            });
            let (start, end) = spans.collect::<Result<Vec<_>>>()?.into_iter().unzip();
            Ok(BatchLabels::Spans { start, end })
        }
    }
}

impl BatchLabels {
    /// With those of padding in `examples`, whose labels they are, and of rows that are no
    /// examples, up to `rows`.
    fn padded(mut self, examples: &[Example], rows: usize, seq_len: usize) -> Self {
        match &mut self {
            Self::None => {}
            Self::Tokens(labels) => {
                let mut rest = &labels[..];
                let mut padded = Vec::with_capacity(rows * seq_len);
                for (row, example) in examples.iter().enumerate() {
                    let (own, after) = rest.split_at(example.input_ids.len());
                    padded.extend_from_slice(own);
                    padded.resize((row + 1) * seq_len, IGNORED);
                    rest = after;
                }
                padded.resize(rows * seq_len, IGNORED);
                *labels = padded;
            }
            Self::Multi(values) => values.resize(values.len() / examples.len() * rows, 0.0),
            Self::Choices { choices, answers } => answers.resize(rows / *choices, IGNORED),
            Self::Classes(classes) => classes.resize(rows, IGNORED),
            Self::Values(values) => values.resize(rows, 0.0),
            Self::Spans { start, end } => [start, end].into_iter().for_each(|positions| positions.resize(rows, 0)),
        }
        self
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;
    use crate::dataset::PaddingRule;

    fn example(ids: &[i32], label: Label) -> Example {
        Example { input_ids: ids.to_vec(), attention_mask: None, token_type_ids: None, position_ids: None, label }
    }

    #[test]
    fn shorter_rows_are_padded_and_masked() {
        let rows = [example(&[1, 2, 3], Label::Tokens(vec![1, 2, 3])), example(&[4], Label::Tokens(vec![4]))];
        let batch = collate(&rows, 9, &Padding::default(), 2).unwrap();
        assert_eq!((batch.rows, batch.seq_len, batch.num_tokens), (2, 3, 4));
        assert_eq!(batch.input_ids, [1, 2, 3, 4, 9, 9]);
        assert_eq!(batch.attention_mask.unwrap(), [true, true, true, true, false, false]);
        assert_eq!(batch.labels, BatchLabels::Tokens(vec![1, 2, 3, 4, -100, -100]));
    }

    #[test]
    fn equal_rows_have_no_mask_and_a_fixed_length_pads() {
        let rows = [example(&[1, 2], Label::Class(0)), example(&[3, 4], Label::Class(1))];
        assert_eq!(collate(&rows, 0, &Padding::default(), 2).unwrap().attention_mask, None);
        let batch = collate(&rows, 0, &Padding::of(&[4]), 2).unwrap();
        assert_eq!((batch.seq_len, batch.num_tokens), (4, 4));
        assert_eq!(batch.labels, BatchLabels::Classes(vec![0, 1]));
    }

    /// `make_padding.py` has written what collators of transformers make of the same rows.
    #[test]
    fn batches_are_those_of_the_collators_of_transformers() {
        let text = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/padding.json"));
        let file: Value = serde_json::from_str(text).unwrap();
        let whole = |value: &Value| value.as_u64().map(|value| value as usize);
        let flat = |value: &Value| {
            let rows = value.as_array().unwrap().iter();
            rows.flat_map(|row| serde_json::from_value::<Vec<i32>>(row.clone()).unwrap()).collect::<Vec<_>>()
        };
        let cases = file["cases"].as_array().unwrap();
        assert_eq!(cases.len(), 45);
        for case in cases {
            let rule = PaddingRule {
                strategy: case["padding"].as_str().unwrap().parse().unwrap(),
                pad_to_multiple_of: whole(&case["pad_to_multiple_of"]),
                buckets: None,
            };
            let padding = Padding::new(rule, whole(&file["max_length"]).unwrap(), &[]);
            let ids = serde_json::from_value::<Vec<Vec<i32>>>(case["rows"].clone()).unwrap();
            for (name, theirs) in case["batches"].as_object().unwrap() {
                let rows = ids.iter().enumerate().map(|(at, ids)| {
                    let label = match name.as_str() {
                        "classes" => Label::Class(at as i32),
                        _ => Label::Tokens(ids.clone()),
                    };
                    let types = (0..ids.len() as i32).map(|at| at % 2).collect();
                    Example { token_type_ids: Some(types), ..example(ids, label) }
                });
                let rows = rows.collect::<Vec<_>>();
                let batch = collate(&rows, file["pad_id"].as_u64().unwrap() as u32, &padding, rows.len()).unwrap();
                let about = format!("{rule:?} {name} {ids:?}");
                assert_eq!(batch.input_ids, flat(&theirs["input_ids"]), "{about}");
                assert_eq!(batch.token_type_ids.unwrap(), flat(&theirs["token_type_ids"]), "{about}");
                let mask = batch.attention_mask.unwrap_or_else(|| vec![true; batch.input_ids.len()]);
                assert_eq!(
                    mask.into_iter().map(i32::from).collect::<Vec<_>>(),
                    flat(&theirs["attention_mask"]),
                    "{about}"
                );
                match batch.labels {
                    BatchLabels::Classes(classes) => assert_eq!(json!(classes), theirs["labels"], "{about}"),
                    BatchLabels::Tokens(labels) => assert_eq!(labels, flat(&theirs["labels"]), "{about}"),
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    #[test]
    fn rows_that_fill_a_batch_are_ignored() {
        let filled = |label: Label| collate(&[example(&[1, 2], label)], 9, &Padding::of(&[3]), 2).unwrap();
        let batch = filled(Label::Tokens(vec![1, 2]));
        assert_eq!((batch.rows, batch.examples, batch.num_tokens), (2, 1, 2));
        assert_eq!(batch.input_ids, [1, 2, 9, 9, 9, 9]);
        assert_eq!(batch.attention_mask.unwrap(), [true, true, false, true, false, false]);
        assert_eq!(batch.labels, BatchLabels::Tokens(vec![1, 2, -100, -100, -100, -100]));
        assert_eq!(filled(Label::Class(1)).labels, BatchLabels::Classes(vec![1, -100]));
        assert_eq!(filled(Label::Value(0.5)).labels, BatchLabels::Values(vec![0.5, 0.0]));
        let spans = BatchLabels::Spans { start: vec![1, 0], end: vec![1, 0] };
        assert_eq!(filled(Label::Span { start: 1, end: 1 }).labels, spans);
    }

    #[test]
    fn token_types_of_padding_are_zero() {
        let mut rows = [example(&[1, 2], Label::None), example(&[3], Label::None)];
        rows[0].token_type_ids = Some(vec![0, 1]);
        rows[1].token_type_ids = Some(vec![1]);
        assert_eq!(collate(&rows, 0, &Padding::default(), 2).unwrap().token_type_ids.unwrap(), [0, 1, 1, 0]);
    }

    #[test]
    fn labels_of_two_kinds_are_refused() {
        let rows = [example(&[1], Label::Class(0)), example(&[1], Label::Value(0.5))];
        assert!(collate(&rows, 0, &Padding::default(), 2).is_err());
    }
}
