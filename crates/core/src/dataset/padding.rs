//! To which length batches are padded, and what that costs. Lengths are chosen once, from the
//! lengths of the data, so that a run has few shapes; the plan prints them with the share of
//! positions that is padding.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::sampler::Order;
use super::{Dataset, Fingerprint};
use crate::choices;
use crate::complaint::{Checked, Complaint, MAX_BATCH, at_least, at_most};
use crate::error::Error;
use crate::schema::{self, Schema, Value};

/// `buckets` chooses at most so many lengths, unless it is told how many.
const BUCKETS: usize = 4;

/// More lengths than this are no few shapes.
const MAX_BUCKETS: usize = 64;

/// Lengths of buckets are multiples of this, where the data allows it: matrix units like it, and
/// few lengths remain.
const MULTIPLE: usize = 8;

/// Batches that are looked at: more say nothing new.
const MAX_BATCHES: usize = 4096;

choices! {
    /// To which length the rows of a batch are padded.
    PaddingStrategy("padding", no_padding) {
        /// The longest row of the batch.
        Longest = "longest",
        /// `max_length` for tables, else the longest example of the data: every batch has one
        /// shape.
        MaxLength = "max_length",
        /// The next of a few lengths that are chosen from the data.
        Buckets = "buckets",
    }
}

fn no_padding(given: &str) -> Option<Error> {
    (given == "do_not_pad").then(|| {
        Error::config("`do_not_pad` is not available: the rows of a batch have one length").help("`longest` pads least")
    })
}

/// The lengths of `padding = "buckets"`, as they are given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number of lengths, or a list of lengths")]
pub enum Buckets {
    /// At most so many lengths, which are chosen from the data.
    Number(usize),
    /// These lengths, ascending.
    Lengths(Vec<usize>),
}

impl Schema for Buckets {
    fn schema() -> Value {
        json!({ "anyOf": [schema::whole(), { "type": "array", "items": schema::whole() }] })
    }
}

/// The lengths that are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PaddingRule<'a> {
    /// `data.padding`
    pub strategy: PaddingStrategy,
    /// `data.pad_to_multiple_of`
    pub pad_to_multiple_of: Option<usize>,
    /// `data.buckets`
    pub buckets: Option<&'a Buckets>,
}

impl PaddingRule<'_> {
    /// The first rule that the settings break.
    ///
    /// # Errors
    /// The rule, with the key of a config file.
    pub fn check(&self) -> Checked {
        if let Some(multiple) = self.pad_to_multiple_of {
            at_least("data.pad_to_multiple_of", multiple, 1)?;
            at_most("data.pad_to_multiple_of", multiple, MAX_BATCH)?;
        }
        const BUCKETS: &str = "data.buckets";
        let Some(buckets) = self.buckets else { return Ok(()) };
        if self.strategy != PaddingStrategy::Buckets {
            let message = format!("has no effect with data.padding = \"{}\"", self.strategy);
            return Err(Complaint::new(BUCKETS, message).help("set data.padding = \"buckets\", or remove it"));
        }
        match buckets {
            Buckets::Number(number) => {
                at_least(BUCKETS, *number, 1)?;
                at_most(BUCKETS, *number, MAX_BUCKETS)
            }
            Buckets::Lengths(lengths) => {
                if lengths.is_empty() || lengths.len() > MAX_BUCKETS {
                    let message = format!("expected 1 to {MAX_BUCKETS} lengths, got {}", lengths.len());
                    return Err(Complaint::new(BUCKETS, message));
                }
                if lengths[0] == 0 || lengths.windows(2).any(|pair| pair[0] >= pair[1]) {
                    let message = format!("expected lengths above 0 in ascending order, got {lengths:?}");
                    return Err(Complaint::new(BUCKETS, message));
                }
                let multiple = self.pad_to_multiple_of.unwrap_or(1);
                match lengths.iter().find(|length| **length % multiple != 0) {
                    Some(length) => {
                        let message = format!("{length} is no multiple of data.pad_to_multiple_of = {multiple}");
                        Err(Complaint::new(BUCKETS, message).help("change one of the two"))
                    }
                    None => Ok(()),
                }
            }
        }
    }
}

/// The lengths that batches are padded to, ascending; none: the longest row of each batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub struct Padding {
    lengths: Vec<usize>,
    /// The length of a row that is longer than all of them is a multiple of this.
    multiple: usize,
}

/// A [`Padding`] in `plan.json`.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Lengths(Vec<usize>),
    Multiple { pad_to_multiple_of: usize },
}

impl From<Padding> for Written {
    fn from(padding: Padding) -> Self {
        match padding.multiple {
            // Few lengths are multiples already.
            multiple if multiple > 1 && padding.lengths.is_empty() => Self::Multiple { pad_to_multiple_of: multiple },
            _ => Self::Lengths(padding.lengths),
        }
    }
}

impl From<Written> for Padding {
    fn from(written: Written) -> Self {
        match written {
            Written::Lengths(lengths) => Self { lengths, multiple: 1 },
            Written::Multiple { pad_to_multiple_of } => {
                Self { lengths: Vec::new(), multiple: pad_to_multiple_of.max(1) }
            }
        }
    }
}

impl Default for Padding {
    fn default() -> Self {
        Self::of(&[])
    }
}

/// The cost of padding.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PaddingCost {
    /// Share of all positions that is padding.
    pub waste: f64,
    /// How many lengths batches have.
    pub shapes: usize,
}

/// How batches are drawn, as far as their lengths go.
#[derive(Debug, Clone, Copy)]
pub struct Batches {
    /// Examples a batch.
    pub size: usize,
    /// Order of the examples.
    pub order: Order,
    /// A last batch that is smaller is left out.
    pub drop_last: bool,
}

impl Padding {
    /// The padding by `rule` of batches like the `surveyed` ones. `longest` is how long a row may
    /// be in all.
    pub fn new(rule: PaddingRule<'_>, longest: usize, surveyed: &[Surveyed]) -> Self {
        let multiple = rule.pad_to_multiple_of.unwrap_or(1).max(1);
        let longest = longest.next_multiple_of(multiple);
        let lengths = match (rule.strategy, rule.buckets) {
            (PaddingStrategy::Longest, _) => return Self { lengths: Vec::new(), multiple },
            (PaddingStrategy::MaxLength, _) => vec![longest],
            (PaddingStrategy::Buckets, Some(Buckets::Lengths(lengths))) => {
                let holds_all = lengths.iter().position(|length| *length >= longest);
                match holds_all {
                    Some(last) => lengths[..=last].to_vec(),
                    None => lengths.iter().copied().chain([longest]).collect(),
                }
            }
            (PaddingStrategy::Buckets, number) => {
                let number = if let Some(Buckets::Number(number)) = number { *number } else { BUCKETS };
                let multiple = rule.pad_to_multiple_of.unwrap_or(MULTIPLE).max(1);
                let round = |length: usize| length.next_multiple_of(multiple).min(longest);
                let mut counts = std::collections::BTreeMap::from([(longest, 0)]);
                for batch in surveyed {
                    *counts.entry(round(batch.longest)).or_insert(0) += batch.rows;
                }
                buckets(&counts.into_iter().collect::<Vec<_>>(), number)
            }
        };
        Self { lengths, multiple: 1 }
    }

    /// Padding to the first of `lengths` (ascending) that holds a batch.
    pub fn of(lengths: &[usize]) -> Self {
        Self { lengths: lengths.into(), multiple: 1 }
    }

    /// Whether batches have one of few lengths. Then a last batch that is not full is filled up
    /// too.
    pub fn is_fixed(&self) -> bool {
        !self.lengths.is_empty()
    }

    /// The length of a batch whose longest row has `longest` tokens.
    pub fn length(&self, longest: usize) -> usize {
        let fits = self.lengths.iter().copied().find(|length| *length >= longest);
        fits.unwrap_or_else(|| longest.next_multiple_of(self.multiple))
    }

    /// The lengths of rows that are longer than all of [`lengths`](Self::lengths) are multiples of
    /// this.
    pub fn multiple(&self) -> usize {
        self.multiple
    }

    /// The lengths, ascending; none where each batch has its own.
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// The cost of this padding in the `surveyed` batches, each of `size` rows where it is filled
    /// up.
    pub fn cost(&self, surveyed: &[Surveyed], size: usize) -> PaddingCost {
        let (mut tokens, mut positions, mut shapes) = (0, 0, std::collections::BTreeSet::new());
        for batch in surveyed {
            let length = self.length(batch.longest);
            let rows = if self.is_fixed() { size } else { batch.rows };
            tokens += batch.tokens;
            positions += length * rows;
            shapes.insert((length, rows));
        }
        // Examples without lengths have no positions.
        let waste = if positions == 0 { 0.0 } else { 1.0 - tokens as f64 / positions as f64 };
        PaddingCost { waste, shapes: shapes.len() }
    }
}

/// The lengths of one batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Surveyed {
    /// Its examples.
    pub rows: usize,
    /// Tokens of all of them.
    pub tokens: usize,
    /// Tokens of the longest.
    pub longest: usize,
}

impl Batches {
    /// The indices of the examples of each batch of the first epoch over `data`, in order, or of
    /// its first 4096.
    pub fn of_first_epoch<E: Fingerprint>(self, data: &dyn Dataset<E>) -> impl Iterator<Item = Vec<usize>> {
        let len = data.len();
        let count = if self.drop_last { len / self.size } else { len.div_ceil(self.size) };
        let mut walk = self.order.walk();
        (0..count.min(MAX_BATCHES)).map(move |batch| {
            let places = batch * self.size..((batch + 1) * self.size).min(len);
            places.map(|place| walk.index(data, 0, place as u64)).collect()
        })
    }
}

/// The batches of the first epoch over `data`, in order, or its first 4096.
pub fn survey<E: Fingerprint>(data: &dyn Dataset<E>, batches: Batches) -> Vec<Surveyed> {
    let surveyed = batches.of_first_epoch(data).map(|examples| {
        let lengths = examples.iter().map(|index| data.len_of(*index));
        Surveyed { rows: examples.len(), tokens: lengths.clone().sum(), longest: lengths.max().unwrap_or(0) }
    });
    surveyed.collect()
}

/// At most `number` of the lengths in `counts` (ascending, each with its number of rows) that pad
/// least, the last among them. Dynamic programming over how many buckets cover the first lengths.
fn buckets(counts: &[(usize, usize)], number: usize) -> Vec<usize> {
    let n = counts.len();
    // Rows up to each length, so that the cost of a bucket is known at once.
    let rows = counts.iter().scan(0, |sum, (_, rows)| {
        *sum += rows;
        Some(*sum)
    });
    let rows = rows.collect::<Vec<usize>>();
    // best[end]: positions of the lengths up to `end`, of which `end` is a bucket, and the buckets.
    let mut best = (0..n).map(|end| (counts[end].0 * rows[end], vec![end])).collect::<Vec<_>>();
    for _ in 1..number {
        let with_one_more = (0..n).map(|end| {
            let splits = (0..end).map(|last| (best[last].0 + counts[end].0 * (rows[end] - rows[last]), last));
            match splits.min() {
                Some((positions, last)) if positions < best[end].0 => {
                    let mut chosen = best[last].1.clone();
                    chosen.push(end);
                    (positions, chosen)
                }
                _ => best[end].clone(),
            }
        });
        best = with_one_more.collect();
    }
    best.pop().map_or_else(Vec::new, |(_, chosen)| chosen.into_iter().map(|index| counts[index].0).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::dataset::lengths::Lengths;

    const BATCHES: Batches = Batches { size: 2, order: Order::SEQUENTIAL, drop_last: false };

    fn rule(strategy: PaddingStrategy) -> PaddingRule<'static> {
        PaddingRule { strategy, pad_to_multiple_of: None, buckets: None }
    }

    fn padding(strategy: PaddingStrategy, lengths: &[usize]) -> (Padding, PaddingCost) {
        padding_by(rule(strategy), lengths)
    }

    fn padding_by(rule: PaddingRule<'_>, lengths: &[usize]) -> (Padding, PaddingCost) {
        let data = Lengths(lengths.to_vec());
        let surveyed = survey(&data, BATCHES);
        let padding = Padding::new(rule, 64, &surveyed);
        let cost = padding.cost(&surveyed, BATCHES.size);
        (padding, cost)
    }

    #[test]
    fn the_longest_row_of_each_batch() {
        let (padding, cost) = padding(PaddingStrategy::Longest, &[3, 5, 10, 10, 7]);
        assert_eq!((padding.length(5), padding.is_fixed()), (5, false));
        // 5 + 5, 10 + 10 and 7 positions for 35 tokens; shapes 2 x 5, 2 x 10 and 1 x 7.
        assert_eq!(cost, PaddingCost { waste: 1.0 - 35.0 / 37.0, shapes: 3 });
    }

    #[test]
    fn one_shape_for_all() {
        let (padding, cost) = padding(PaddingStrategy::MaxLength, &[3, 5, 10, 10, 7]);
        assert_eq!((padding.lengths(), padding.length(5)), (&[64][..], 64));
        assert_eq!(cost, PaddingCost { waste: 1.0 - 35.0 / (64.0 * 6.0), shapes: 1 });
    }

    #[test]
    fn buckets_fit_the_data_and_hold_the_longest() {
        let lengths = [vec![10; 40], vec![30; 30], vec![31; 30], vec![50; 10]].concat();
        let (padding, cost) = padding(PaddingStrategy::Buckets, &lengths);
        assert_eq!(padding.lengths(), [16, 32, 56, 64]);
        assert_eq!([1, 16, 17, 50, 64, 70].map(|length| padding.length(length)), [16, 16, 32, 56, 64, 70]);
        assert_eq!(cost.shapes, 3);
    }

    #[test]
    fn lengths_are_multiples_where_that_is_asked_for() {
        let lengths = [3, 5, 10, 10, 33];
        let by = |strategy, multiple| {
            let rule = PaddingRule { pad_to_multiple_of: Some(multiple), ..rule(strategy) };
            padding_by(rule, &lengths).0
        };
        let longest = by(PaddingStrategy::Longest, 8);
        assert_eq!([5, 8, 10, 33, 65].map(|length| longest.length(length)), [8, 8, 16, 40, 72]);
        assert!(!longest.is_fixed(), "a batch that is not full is not filled up");
        assert_eq!(by(PaddingStrategy::MaxLength, 24).lengths(), [72]);
        assert_eq!(by(PaddingStrategy::Buckets, 24).lengths(), [24, 48, 72]);
        assert_eq!(by(PaddingStrategy::Buckets, 1).lengths(), [5, 10, 33, 64]);
        for (padding, written) in
            [(longest, r#"{"pad_to_multiple_of":8}"#), (by(PaddingStrategy::MaxLength, 24), "[72]")]
        {
            assert_eq!(serde_json::to_string(&padding).unwrap(), written);
            assert_eq!(serde_json::from_str::<Padding>(written).unwrap(), padding);
        }
        assert_eq!(serde_json::to_string(&Padding::default()).unwrap(), "[]", "the form of earlier versions");
    }

    #[test]
    fn buckets_have_the_number_or_the_lengths_that_are_given() {
        let lengths = [vec![10; 40], vec![30; 30], vec![31; 30], vec![50; 10]].concat();
        let given = |buckets: &Buckets| {
            let rule = PaddingRule { buckets: Some(buckets), ..rule(PaddingStrategy::Buckets) };
            rule.check().unwrap();
            padding_by(rule, &lengths).0.lengths().to_vec()
        };
        assert_eq!(given(&Buckets::Number(1)), [64]);
        // 16 x 40 + 64 x 70 = 5120 and 32 x 100 + 64 x 10 = 3840 positions.
        assert_eq!(given(&Buckets::Number(2)), [32, 64]);
        assert_eq!(given(&Buckets::Number(64)), [16, 32, 56, 64]);
        // The longest row that may come has a length, and lengths that no row needs are left out.
        assert_eq!(given(&Buckets::Lengths(vec![20, 40])), [20, 40, 64]);
        assert_eq!(given(&Buckets::Lengths(vec![20, 64, 128])), [20, 64]);
        assert_eq!(given(&Buckets::Lengths(vec![20, 100, 128])), [20, 100]);
    }

    #[test]
    fn buckets_are_the_best_of_all_choices() {
        let counts = [(8, 5), (16, 1), (24, 9), (32, 2), (40, 7), (48, 1), (56, 3), (64, 2)];
        let positions = |chosen: &[usize]| {
            let length = |wanted: usize| chosen.iter().copied().find(|length| *length >= wanted).unwrap();
            counts.iter().map(|(wanted, rows)| length(*wanted) * rows).sum::<usize>()
        };
        let mut least = usize::MAX;
        for set in 0..1u32 << 7 {
            let mut chosen = (0..7).filter(|bit| set >> bit & 1 == 1).map(|bit| counts[bit].0).collect::<Vec<_>>();
            chosen.push(64);
            if chosen.len() <= BUCKETS {
                least = least.min(positions(&chosen));
            }
        }
        let chosen = buckets(&counts, BUCKETS);
        assert_eq!((positions(&chosen), chosen.len()), (least, BUCKETS));
        assert_eq!(buckets(&[(12, 5)], BUCKETS), [12]);
    }
}
