//! How a row stands in the file: its columns one after another, each value in as many bytes as the row needs, and an entry of
//! the index that says which. Any bytes of a column are values; what could be wrong is in the entry, and is checked there.
//!
//! An entry is 36 bytes: where the row starts (u64), the number of the row or line in its file (u64), tokens and attended
//! tokens (u32 each), the label (2 x u32: a class, the bits of an f32, or first and last token of a span), and a byte each
//! for the form of ids, mask, token types and labels.

use super::row::own_labels;
use crate::base::error::{Error, Result};
use crate::cache::mapped::{u32_at, u64_at};
use crate::data::IGNORED;
use crate::data::{Example, Label};

/// Bytes of an entry.
pub(super) const ENTRY: usize = 36;

/// A column that the row does not have. Others have 1, 2 or 4 bytes a token, and that is their form.
const ABSENT: u8 = 0;

/// Labels of tokens that are the ids themselves, where they are attended: not written.
const OWN: u8 = 5;

/// The label is a class; it is in the entry.
const CLASS: u8 = 6;

/// The label is a number; it is in the entry.
const VALUE: u8 = 7;

/// The label is a span; it is in the entry.
const SPAN: u8 = 8;

/// Entry of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    /// Where the row starts.
    pub offset: u64,
    /// Where it stands in its file.
    pub number: u64,
    /// Its tokens.
    pub tokens: u32,
    /// Those that are attended.
    pub attended: u32,
    label: [u32; 2],
    ids: u8,
    mask: u8,
    types: u8,
    labels: u8,
}

impl Entry {
    /// The entry of `example`, whose columns are appended to `bytes`.
    ///
    /// # Errors
    /// More tokens than 32 bits count.
    pub(super) fn write(example: &Example, offset: u64, number: u64, bytes: &mut Vec<u8>) -> Result<Self> {
        let Example { input_ids, attention_mask, token_type_ids, label } = example;
        let tokens = u32::try_from(input_ids.len())
            .map_err(|_| Error::data(format!("expected at most {} tokens, got {}", u32::MAX, input_ids.len())))?;
        let attended = attention_mask.iter().flatten().filter(|attended| **attended).count() as u32;
        let ids = put(input_ids, 0, bytes);
        bytes.extend(attention_mask.iter().flatten().map(|attended| u8::from(*attended)));
        let types = token_type_ids.as_deref().map_or(ABSENT, |types| put(types, 0, bytes));
        let (labels, label) = match label {
            Label::None => (ABSENT, [0; 2]),
            Label::Tokens(labels) if own_labels(input_ids, attention_mask.as_deref()).eq(labels.iter().copied()) => {
                (OWN, [0; 2])
            }
            Label::Tokens(labels) => (put(labels, IGNORED, bytes), [0; 2]),
            Label::Class(class) => (CLASS, [*class as u32, 0]),
            Label::Value(value) => (VALUE, [value.to_bits(), 0]),
            Label::Span { start, end } => (SPAN, [*start as u32, *end as u32]),
        };
        let mask = u8::from(attention_mask.is_some());
        let attended = if attention_mask.is_some() { attended } else { tokens };
        Ok(Self { offset, number, tokens, attended, label, ids, mask, types, labels })
    }

    /// The example whose columns stand in `rows`.
    pub(super) fn read(&self, rows: &[u8]) -> Example {
        let mut at = self.offset as usize;
        let mut column = |form: u8| {
            let bytes = &rows[at..at + self.tokens as usize * usize::from(form)];
            at += bytes.len();
            bytes
        };
        let input_ids = values(column(self.ids), self.ids, 0);
        let mask = column(self.mask).iter().map(|attended| *attended != 0).collect::<Vec<_>>();
        let attention_mask = (self.mask != ABSENT).then_some(mask);
        let types = values(column(self.types), self.types, 0);
        let token_type_ids = (self.types != ABSENT).then_some(types);
        let [first, second] = self.label;
        let label = match self.labels {
            ABSENT => Label::None,
            OWN => Label::Tokens(own_labels(&input_ids, attention_mask.as_deref()).collect()),
            CLASS => Label::Class(first as i32),
            VALUE => Label::Value(f32::from_bits(first)),
            SPAN => Label::Span { start: first as i32, end: second as i32 },
            form => Label::Tokens(values(column(form), form, IGNORED)),
        };
        Example { input_ids, attention_mask, token_type_ids, label }
    }

    /// Whether the row has a label.
    pub(super) fn is_labelled(&self) -> bool {
        self.labels != ABSENT
    }

    /// The class, if that is the label.
    pub(super) fn class(&self) -> Option<i32> {
        (self.labels == CLASS).then_some(self.label[0] as i32)
    }

    /// Bytes of the row's columns; none when there is no such entry.
    pub(super) fn bytes(&self) -> Option<u64> {
        let width = |form: u8| matches!(form, 1 | 2 | 4).then_some(u64::from(form));
        let optional = |form: u8| if form == ABSENT { Some(0) } else { width(form) };
        let labels = if matches!(self.labels, OWN | CLASS | VALUE | SPAN) { Some(0) } else { optional(self.labels) };
        let counts = self.tokens > 0 && self.attended <= self.tokens && self.mask <= 1;
        let width = width(self.ids)? + u64::from(self.mask) + optional(self.types)? + labels?;
        counts.then_some(width * u64::from(self.tokens))
    }

    /// As it stands in the index.
    pub(super) fn to_bytes(self) -> [u8; ENTRY] {
        let mut bytes = [0; ENTRY];
        bytes[..8].copy_from_slice(&self.offset.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        for (at, number) in [self.tokens, self.attended, self.label[0], self.label[1]].into_iter().enumerate() {
            bytes[16 + 4 * at..20 + 4 * at].copy_from_slice(&number.to_le_bytes());
        }
        bytes[32..].copy_from_slice(&[self.ids, self.mask, self.types, self.labels]);
        bytes
    }

    /// The entry that stands at byte `at` of `index`.
    pub(super) fn of_bytes(index: &[u8], at: usize) -> Self {
        let number = |place: usize| u32_at(index, at + 16 + 4 * place);
        let form = |place: usize| index[at + 32 + place];
        Self {
            offset: u64_at(index, at),
            number: u64_at(index, at + 8),
            tokens: number(0),
            attended: number(1),
            label: [number(2), number(3)],
            ids: form(0),
            mask: form(1),
            types: form(2),
            labels: form(3),
        }
    }
}

/// Appends `values` as what they are above `base`, in as few bytes as hold the largest; how many.
fn put(values: &[i32], base: i32, bytes: &mut Vec<u8>) -> u8 {
    // One below the base becomes a large number, and comes back as it was.
    let above = |value: &i32| value.wrapping_sub(base) as u32;
    let width = match values.iter().map(above).max().unwrap_or(0) {
        0..=0xff => 1,
        0x100..=0xffff => 2,
        _ => 4,
    };
    bytes.extend(values.iter().flat_map(|value| above(value).to_le_bytes().into_iter().take(width)));
    width as u8
}

/// The values that [`put`] wrote.
fn values(bytes: &[u8], width: u8, base: i32) -> Vec<i32> {
    let value = |above: u32| (above as i32).wrapping_add(base);
    match width {
        1 => bytes.iter().map(|above| value(u32::from(*above))).collect(),
        2 => bytes.as_chunks().0.iter().map(|above| value(u32::from(u16::from_le_bytes(*above)))).collect(),
        _ => bytes.as_chunks().0.iter().map(|above| value(u32::from_le_bytes(*above))).collect(),
    }
}
