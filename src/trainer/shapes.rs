//! The shapes of the training batches of a run, counted.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::data::Batch;

/// The shape of a batch, as far as it decides what is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shape {
    /// Sequences.
    pub(super) rows: usize,
    /// Tokens of each.
    pub(super) seq_len: usize,
    /// Some of it is padding, which brings a mask with it.
    pub(super) padded: bool,
}

impl Shape {
    /// The shape of `batch`.
    pub(super) fn of(batch: &Batch) -> Self {
        Self { rows: batch.rows, seq_len: batch.seq_len, padded: batch.attention_mask.is_some() }
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let padding = if self.padded { " with padding" } else { "" };
        write!(f, "{} x {}{padding}", self.rows, self.seq_len)
    }
}

/// Counts shapes.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    seen: BTreeMap<Shape, u64>,
}

impl Shapes {
    /// Counts a batch.
    pub(super) fn see(&mut self, shape: Shape) {
        *self.seen.entry(shape).or_insert(0) += 1;
    }

    /// The counts.
    pub(super) fn to_json(&self) -> Value {
        let one = |(shape, batches): (&Shape, &u64)| {
            let Shape { rows, seq_len, padded } = shape;
            json!({ "rows": rows, "tokens": seq_len, "padded": padded, "batches": batches })
        };
        self.seen.iter().map(one).collect()
    }
}
