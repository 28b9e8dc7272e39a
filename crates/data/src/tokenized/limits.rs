//! The ranges of values that a model accepts, and the largest values in the rows. Where the largest
//! values lie within the ranges, no single row has to be checked.

use kiln_core::error::{Error, Result};
use kiln_core::model_config::{Head, ModelConfig};

use crate::task::Task;
use crate::{Example, IGNORED, Label};

/// The range that the model allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Ids are below it.
    pub vocab_size: usize,
    /// Classes are below it.
    pub num_labels: usize,
    /// Labels of tokens are below it, which are ids of the vocabulary, or classes.
    pub token_labels: usize,
    /// Rows are at most as long.
    pub max_positions: usize,
    /// Token types are below it; none when the model has no token types.
    pub type_vocab_size: Option<usize>,
    /// The last token of a row is the one that the head reads, since there is no id by which it
    /// would know padding.
    pub reads_last_token: bool,
}

impl Limits {
    /// The limits of a model for `task`.
    pub fn of(model: &ModelConfig, task: Task) -> Self {
        let (vocab_size, num_labels) = (model.vocab_size(), model.labels().num_labels());
        Self {
            vocab_size,
            num_labels,
            token_labels: if task == Task::TokenClassification { num_labels } else { vocab_size },
            max_positions: model.max_positions(),
            type_vocab_size: model.type_vocab_size(),
            reads_last_token: model.is_decoder()
                && task.head() == Head::SequenceClassification
                && model.pad_token_id().is_none(),
        }
    }

    /// Checks what rows of tables are looked up by and what a loss is computed of: a GPU does not,
    /// and would read beyond the table or take another class.
    ///
    /// # Errors
    /// The value that is out of range, with its position and the range.
    pub fn check(&self, example: &Example) -> Result<()> {
        let len = example.longest();
        if len > self.max_positions {
            return Err(Error::data(format!(
                "the row has {len} tokens, but the model has {} positions",
                self.max_positions
            )));
        }
        if example.token_type_ids.is_some() && self.type_vocab_size.is_none() {
            return Err(Error::data("the row has token_type_ids, but the model has no token types"));
        }
        self.check_ids(example)?;
        if self.reads_last_token && example.attention_mask.as_ref().is_some_and(|mask| mask.last() == Some(&false)) {
            return Err(Error::data(
                "attention_mask: the row ends with padding, and the model has no pad_token_id by which its head would pass \
                 over it",
            )
            .help("set pad_token_id to the id of the padding: in the model's config.json, or model.pad_token_id of a run"));
        }
        match &example.label {
            Label::Tokens(labels) => {
                let why = if self.token_labels == self.vocab_size {
                    "the vocabulary has that many tokens"
                } else {
                    "the model has that many labels"
                };
                in_range("labels", labels, self.token_labels, why, true)
            }
            Label::Multi(values) if values.len() != self.num_labels => {
                Err(Error::data(format!("labels: expected {} numbers, got {}", self.num_labels, values.len()))
                    .help("the model has that many labels, and each needs a number"))
            }
            Label::Class(class) => {
                in_range("labels", &[*class], self.num_labels, "the model has that many labels", false)
            }
            Label::Span { start, end } => {
                in_range("start_positions", &[*start], len, "the row has that many tokens", false)?;
                in_range("end_positions", &[*end], len, "the row has that many tokens", false)
            }
            Label::None | Label::Value(_) | Label::Multi(_) | Label::Choice { .. } => Ok(()),
        }
    }

    fn check_ids(&self, example: &Example) -> Result<()> {
        in_range("input_ids", &example.input_ids, self.vocab_size, "the vocabulary has that many tokens", false)?;
        if let (Some(types), Some(count)) = (&example.token_type_ids, self.type_vocab_size) {
            in_range("token_type_ids", types, count, "the model has that many token types", false)?;
        }
        match &example.position_ids {
            Some(positions) => {
                in_range("position_ids", positions, self.max_positions, "the model has that many positions", false)
            }
            None => Ok(()),
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

/// The least and the greatest of some values; of none, the least is above the greatest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    least: i32,
    greatest: i32,
}

impl Extent {
    const NONE: Self = Self { least: i32::MAX, greatest: i32::MIN };

    fn take(&mut self, values: impl IntoIterator<Item = i32>) {
        for value in values {
            self.least = self.least.min(value);
            self.greatest = self.greatest.max(value);
        }
    }

    fn is_below(self, count: usize) -> bool {
        self == Self::NONE || (self.least >= 0 && (self.greatest as usize) < count)
    }
}

/// The largest values in rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extremes {
    /// Tokens of the longest.
    pub longest: u64,
    ids: Extent,
    types: Extent,
    /// Labels of tokens that are not ignored.
    labels: Extent,
    classes: Extent,
    /// How many answers end beyond their row or begin before it.
    strays: u64,
}

impl Extremes {
    /// How many numbers they are.
    pub const NUMBERS: usize = 10;

    /// The extremes of no row.
    pub const NONE: Self = Self {
        longest: 0,
        ids: Extent::NONE,
        types: Extent::NONE,
        labels: Extent::NONE,
        classes: Extent::NONE,
        strays: 0,
    };

    /// Adds a row.
    pub fn take(&mut self, example: &Example) {
        let len = example.longest();
        self.longest = self.longest.max(len as u64);
        self.ids.take(example.input_ids.iter().copied());
        self.types.take(example.token_type_ids.iter().flatten().copied());
        match &example.label {
            Label::Tokens(labels) => self.labels.take(labels.iter().copied().filter(|label| *label != IGNORED)),
            Label::Class(class) => self.classes.take([*class]),
            Label::Span { start, end } => {
                let strays = |position: i32| usize::try_from(position).map_or(true, |position| position >= len);
                self.strays += u64::from(strays(*start) || strays(*end));
            }
            Label::None | Label::Value(_) | Label::Multi(_) | Label::Choice { .. } => {}
        }
    }

    /// Whether `limits` allow all of the rows.
    pub fn fit(&self, limits: &Limits) -> bool {
        self.longest <= limits.max_positions as u64
            && self.ids.is_below(limits.vocab_size)
            && limits.type_vocab_size.map_or(self.types == Extent::NONE, |count| self.types.is_below(count))
            && self.labels.is_below(limits.token_labels)
            && self.classes.is_below(limits.num_labels)
            && self.strays == 0
    }

    /// Whether a token has a label that is not ignored.
    pub fn has_token_labels(&self) -> bool {
        self.labels != Extent::NONE
    }

    /// The extremes as numbers of a column.
    pub fn numbers(&self) -> [i64; Self::NUMBERS] {
        let [[a, b], [c, d], [e, f], [g, h]] = [self.ids, self.types, self.labels, self.classes]
            .map(|Extent { least, greatest }| [least, greatest].map(i64::from));
        [self.longest as i64, self.strays as i64, a, b, c, d, e, f, g, h]
    }

    /// The extremes that [`numbers`](Self::numbers) gave as these numbers.
    pub fn of_numbers([longest, strays, a, b, c, d, e, f, g, h]: [i64; Self::NUMBERS]) -> Self {
        let extent = |least: i64, greatest: i64| Extent { least: least as i32, greatest: greatest as i32 };
        Self {
            longest: longest as u64,
            ids: extent(a, b),
            types: extent(c, d),
            labels: extent(e, f),
            classes: extent(g, h),
            strays: strays as u64,
        }
    }
}
