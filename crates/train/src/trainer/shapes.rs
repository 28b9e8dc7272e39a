//! The shapes of the training batches of a run, counted; and those that come up after the warm-up
//! has seen what the plan can produce, which cost a tuning in the middle of training.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::task::BatchSize;

/// The shape of a batch, as far as it decides what is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    /// Sequences.
    pub(crate) rows: usize,
    /// Tokens of each.
    pub(crate) seq_len: usize,
    /// Some of it is padding, which brings a mask with it.
    pub(crate) padded: bool,
}

impl Shape {
    /// The shape of a batch of this size.
    pub(crate) fn of(size: &BatchSize) -> Self {
        Self { rows: size.rows, seq_len: size.seq_len, padded: size.padded }
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let padding = if self.padded { " with padding" } else { "" };
        write!(f, "{} x {}{padding}", self.rows, self.seq_len)
    }
}

/// The record of a shape.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    batches: u64,
    /// The step of the first batch, from 1; 0 when it came in the warm-up.
    first_step: u64,
}

/// Counts shapes.
#[derive(Debug, Default)]
pub struct Shapes {
    seen: BTreeMap<Shape, Seen>,
    /// Shapes that the warm-up saw, when there was one.
    warmed: Option<usize>,
    /// Shapes that came up first in training.
    new: u64,
    /// Shapes that came up first in training and that a log row has told.
    told: u64,
}

impl Shapes {
    /// The warm-up has seen `shapes`: from now on others are news.
    pub(crate) fn warmed(&mut self, shapes: &[Shape]) {
        self.warmed = Some(shapes.len());
        self.seen.extend(shapes.iter().map(|shape| (*shape, Seen::default())));
    }

    /// Counts a batch of step `step` (from 1). After a warm-up, what is to be said of a shape that
    /// nobody has seen: the first one, and then, as a warning, whenever their number has doubled.
    pub(crate) fn see(&mut self, shape: Shape, step: u64) -> Option<String> {
        let seen = self.seen.entry(shape).or_insert(Seen { batches: 0, first_step: step });
        seen.batches += 1;
        if seen.batches > 1 || seen.first_step == 0 {
            return None;
        }
        self.new += 1;
        let warmed = self.warmed?;
        match self.new {
            1 => Some(format!("step {step}: a batch of {shape}, which is none of the {warmed} shapes of the warm-up")),
            new if new.is_power_of_two() => Some(format!(
                "warning: {new} new batch shapes since the warm-up, the last of them {shape} in step {step}: each is compiled \
                 and tuned when it comes; data.padding = \"buckets\" or \"max_length\" has few"
            )),
            _ => None,
        }
    }

    /// Shapes that came up first since this was last asked; none without a warm-up, when every
    /// shape is new once.
    pub(crate) fn new_since_last_row(&mut self) -> Option<u64> {
        let before = std::mem::replace(&mut self.told, self.new);
        self.warmed.map(|_| self.new - before)
    }

    /// The counts, with the step of each shape's first batch (0: the warm-up's).
    pub(crate) fn to_json(&self) -> Value {
        let one = |(shape, seen): (&Shape, &Seen)| {
            let Shape { rows, seq_len, padded } = shape;
            let Seen { batches, first_step } = seen;
            json!({ "rows": rows, "tokens": seq_len, "padded": padded, "batches": batches, "first_step": first_step })
        };
        self.seen.iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(seq_len: usize) -> Shape {
        Shape { rows: 4, seq_len, padded: false }
    }

    #[test]
    fn after_the_warm_up_a_new_shape_is_told_once_and_repeats_are_loud() {
        let mut shapes = Shapes::default();
        shapes.warmed(&[shape(8)]);
        assert_eq!(shapes.see(shape(8), 1), None);
        let told = (0..8).filter_map(|i| shapes.see(shape(10 + i), 2)).collect::<Vec<_>>();
        assert_eq!(told.len(), 4, "at 1, 2, 4 and 8: {told:?}");
        assert!(told[0].starts_with("step 2: a batch of 4 x 10, which is none of the 1 shapes"));
        assert!(told[1..].iter().all(|line| line.starts_with("warning: ")));
        assert_eq!(shapes.new_since_last_row(), Some(8));
        assert_eq!((shapes.see(shape(10), 3), shapes.new_since_last_row()), (None, Some(0)));
    }

    #[test]
    fn without_a_warm_up_nothing_is_news() {
        let mut shapes = Shapes::default();
        assert_eq!((shapes.see(shape(8), 1), shapes.see(shape(9), 2)), (None, None));
        assert_eq!(shapes.new_since_last_row(), None);
        assert_eq!(shapes.to_json()[1]["first_step"], 2);
    }
}
