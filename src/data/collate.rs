//! Examples become a batch: padded on the right to the longest of them (or to a fixed length), labels of padding ignored.

use super::{Batch, Example, Label, Labels};
use crate::error::{Error, Result};
use crate::task::IGNORED;

/// Pads `examples` to the longest of them, or to `pad_to` where that is longer, with `pad_id`.
///
/// # Errors
/// Examples with labels of different kinds.
pub fn collate(examples: &[Example], pad_id: u32, pad_to: Option<usize>) -> Result<Batch> {
    let rows = examples.len();
    let longest = examples.iter().map(|example| example.input_ids.len()).max().unwrap_or(0);
    let seq_len = longest.max(pad_to.unwrap_or(0));
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
    let num_tokens = mask.iter().filter(|&&attended| attended).count();
    Ok(Batch {
        rows,
        seq_len,
        input_ids,
        attention_mask: (num_tokens < rows * seq_len).then_some(mask),
        token_type_ids: has_types.then_some(types),
        labels: labels(examples, |values| padded(values, IGNORED))?,
        num_tokens,
    })
}

fn labels(examples: &[Example], padded: impl Fn(&[i32]) -> Vec<i32>) -> Result<Labels> {
    let mixed = || Error::data("examples of one batch have labels of different kinds");
    let Some(first) = examples.first() else { return Err(Error::data("a batch needs at least one example")) };
    let all = examples.iter().map(|example| &example.label);
    match &first.label {
        Label::None => Ok(Labels::None),
        Label::Tokens(_) => {
            let rows = all.map(|label| match label {
                Label::Tokens(values) => Ok(padded(values)),
                _ => Err(mixed()),
            });
            Ok(Labels::Tokens(rows.collect::<Result<Vec<_>>>()?.concat()))
        }
        Label::Class(_) => {
            let classes = all.map(|label| if let Label::Class(class) = label { Ok(*class) } else { Err(mixed()) });
            Ok(Labels::Classes(classes.collect::<Result<_>>()?))
        }
        Label::Value(_) => {
            let values = all.map(|label| if let Label::Value(value) = label { Ok(*value) } else { Err(mixed()) });
            Ok(Labels::Values(values.collect::<Result<_>>()?))
        }
        Label::Span { .. } => {
            let spans = all.map(|label| match label {
                Label::Span { start, end } => Ok((*start, *end)),
                _ => Err(mixed()),
            });
            let (start, end) = spans.collect::<Result<Vec<_>>>()?.into_iter().unzip();
            Ok(Labels::Spans { start, end })
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn example(ids: &[i32], label: Label) -> Example {
        Example { input_ids: ids.to_vec(), attention_mask: None, token_type_ids: None, label }
    }

    #[test]
    fn shorter_rows_are_padded_and_masked() {
        let rows = [example(&[1, 2, 3], Label::Tokens(vec![1, 2, 3])), example(&[4], Label::Tokens(vec![4]))];
        let batch = collate(&rows, 9, None).unwrap();
        assert_eq!((batch.rows, batch.seq_len, batch.num_tokens), (2, 3, 4));
        assert_eq!(batch.input_ids, [1, 2, 3, 4, 9, 9]);
        assert_eq!(batch.attention_mask.unwrap(), [true, true, true, true, false, false]);
        assert_eq!(batch.labels, Labels::Tokens(vec![1, 2, 3, 4, -100, -100]));
    }

    #[test]
    fn equal_rows_have_no_mask_and_a_fixed_length_pads() {
        let rows = [example(&[1, 2], Label::Class(0)), example(&[3, 4], Label::Class(1))];
        assert_eq!(collate(&rows, 0, None).unwrap().attention_mask, None);
        let batch = collate(&rows, 0, Some(4)).unwrap();
        assert_eq!((batch.seq_len, batch.num_tokens), (4, 4));
        assert_eq!(batch.labels, Labels::Classes(vec![0, 1]));
    }

    #[test]
    fn token_types_of_padding_are_zero() {
        let mut rows = [example(&[1, 2], Label::None), example(&[3], Label::None)];
        rows[0].token_type_ids = Some(vec![0, 1]);
        rows[1].token_type_ids = Some(vec![1]);
        assert_eq!(collate(&rows, 0, None).unwrap().token_type_ids.unwrap(), [0, 1, 1, 0]);
    }

    #[test]
    fn labels_of_two_kinds_are_refused() {
        let rows = [example(&[1], Label::Class(0)), example(&[1], Label::Value(0.5))];
        assert!(collate(&rows, 0, None).is_err());
    }
}
