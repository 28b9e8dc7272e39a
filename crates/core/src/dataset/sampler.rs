//! The order in which examples are seen. A random order is a permutation computed element by
//! element, so any position of any epoch can be reached at once and nothing of a generator has to
//! be saved. An order by length sorts stretches of that permutation, which are found again in the
//! same way.

use std::cmp::Reverse;

use super::{Dataset, Fingerprint};
use crate::choices;
use crate::random::seed_for;

choices! {
    /// The order in which training samples are drawn.
    Sampler("sampler") {
        /// A new seeded permutation in every epoch.
        Random = "random",
        /// The order of the files.
        Sequential = "sequential",
        /// A random order in which the examples of a step have similar lengths, so that little is
        /// padding.
        GroupByLength = "group_by_length",
    }
}

/// Groups are of so many batches at the most, as in transformers' `LengthGroupedSampler`.
const MOST_BATCHES: u64 = 50;

/// How examples are put in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// The kind of order.
    pub sampler: Sampler,
    /// Its seed.
    pub seed: u64,
    /// Examples of an optimizer step, which [`Sampler::GroupByLength`] gives similar lengths.
    pub step: usize,
}

impl Order {
    /// The order of the files.
    pub const SEQUENTIAL: Self = Self { sampler: Sampler::Sequential, seed: 0, step: 1 };

    /// A walk through the examples in this order.
    pub fn walk(self) -> Walk {
        Walk { order: self, group: None }
    }
}

/// Finds examples by their place in an [`Order`]. It remembers where it was: places that follow one
/// another cost little.
#[derive(Debug, Clone)]
pub struct Walk {
    order: Order,
    group: Option<Group>,
}

/// A stretch of an epoch in order.
#[derive(Debug, Clone)]
struct Group {
    epoch: u64,
    number: u64,
    examples: Vec<u64>,
}

impl Walk {
    /// The example of `data` at `position` of epoch `epoch`. For each epoch a bijection of
    /// `0..data.len()`.
    pub fn index<E: Fingerprint>(&mut self, data: &dyn Dataset<E>, epoch: u64, position: u64) -> usize {
        let (Order { sampler, seed, .. }, len) = (self.order, data.len() as u64);
        let index = match sampler {
            // A stream has its own order.
            _ if data.stream().is_some() => position,
            Sampler::Sequential => position,
            Sampler::Random => shuffled(seed, epoch, len, position),
            Sampler::GroupByLength => self.by_length(data, epoch, position),
        };
        index as usize
    }

    /// Groups of up to 50 steps of the random order, each sorted by length, the longest first, and
    /// cut into steps: what is similar in length is together, and which examples are together is
    /// still drawn. The steps of a group come in a random order, except for a last one that is not
    /// full. The grouping is that of transformers' `get_length_grouped_indices`
    /// (`trainer_pt_utils.py`), which leaves the steps of a group sorted and begins with the
    /// longest example of all.
    fn by_length<E: Fingerprint>(&mut self, data: &dyn Dataset<E>, epoch: u64, position: u64) -> u64 {
        let (Order { seed, step, .. }, len) = (self.order, data.len() as u64);
        let step = step.max(1) as u64;
        let size = (len / (4 * step)).clamp(1, MOST_BATCHES) * step;
        let (number, place) = (position / size, position % size);
        let known = self.group.take().filter(|group| (group.epoch, group.number) == (epoch, number));
        let group = self.group.insert(known.unwrap_or_else(|| {
            let places = number * size..((number + 1) * size).min(len);
            let mut examples = places.map(|place| shuffled(seed, epoch, len, place)).collect::<Vec<_>>();
            examples.sort_by_key(|example| Reverse(data.len_of(*example as usize)));
            Group { epoch, number, examples }
        }));
        let full = group.examples.len() as u64 / step;
        let place = match place / step {
            at if at < full => shuffled(seed_for(seed, "steps", number, 0), epoch, full, at) * step + place % step,
            _ => place,
        };
        group.examples[place as usize]
    }
}

/// The element at `position` of the permutation of `0..len` that `seed` draws for `epoch`.
pub fn shuffled(seed: u64, epoch: u64, len: u64, position: u64) -> u64 {
    permute(seed_for(seed, "shuffle", epoch, 0), len, position)
}

const ROUNDS: u64 = 6;

/// A pseudo-random permutation of `0..len`: a balanced Feistel network (Luby & Rackoff 1988) on the
/// smallest even number of bits that holds `len`, walked until the value falls into the range
/// (cycle walking, Black & Rogaway 2002). Fewer than four steps are expected, since the network's
/// range is less than four times `len`.
fn permute(key: u64, len: u64, position: u64) -> u64 {
    let bits = (u64::BITS - len.saturating_sub(1).leading_zeros()).max(2);
    let half = bits.div_ceil(2);
    let mask = (1u64 << half) - 1;
    let mut value = position;
    loop {
        let (mut left, mut right) = (value >> half, value & mask);
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ (seed_for(key, "feistel", round, right) & mask));
        }
        value = (left << half) | right;
        if value < len {
            return value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::lengths::Lengths;

    #[test]
    fn every_epoch_is_a_permutation() {
        for len in (1..70).chain([127, 128, 129, 1000, 4096, 10_007]) {
            let data = Lengths((0..len).map(|i| i * 7 % 23 + 1).collect());
            for (sampler, step) in [(Sampler::Random, 1), (Sampler::GroupByLength, 1), (Sampler::GroupByLength, 6)] {
                let mut walk = Order { sampler, seed: 3, step }.walk();
                for epoch in 0..2 {
                    let mut seen = (0..len as u64).map(|at| walk.index(&data, epoch, at)).collect::<Vec<_>>();
                    seen.sort_unstable();
                    assert!(seen.iter().copied().eq(0..len), "{sampler}, len {len} epoch {epoch}");
                }
            }
        }
    }

    #[test]
    fn seeds_and_epochs_differ_and_repeat() {
        let order = |seed, epoch| (0..100).map(|i| shuffled(seed, epoch, 100, i)).collect::<Vec<_>>();
        assert_eq!(order(1, 0), order(1, 0));
        assert_ne!(order(1, 0), order(2, 0));
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 0), (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn positions_are_spread_evenly() {
        // Where does position 0 go over 8000 keys? Each of 8 cells expects 1000; 5 standard
        // deviations are 148.
        let mut cells = [0i32; 8];
        for seed in 0..8000 {
            cells[shuffled(seed, 0, 8, 0) as usize] += 1;
        }
        assert!(cells.iter().all(|count| (count - 1000).abs() < 148), "{cells:?}");
    }

    #[test]
    fn sequential_is_the_identity() {
        assert_eq!(Order::SEQUENTIAL.walk().index(&Lengths(vec![1; 100]), 9, 42), 42);
    }

    #[test]
    fn examples_of_a_step_have_similar_lengths() {
        let data = Lengths((0..2003).map(|i| i * 37 % 61 + 4).collect());
        let steps = |seed: u64, epoch: u64| {
            let mut walk = Order { sampler: Sampler::GroupByLength, seed, step: 8 }.walk();
            let all = (0..2003).map(|at| walk.index(&data, epoch, at)).collect::<Vec<_>>();
            all.chunks(8).map(<[usize]>::to_vec).collect::<Vec<_>>()
        };
        let spread = |step: &Vec<usize>| {
            let lengths = step.iter().map(|index| data.0[*index]).collect::<Vec<_>>();
            lengths.iter().max().unwrap_or(&0) - lengths.iter().min().unwrap_or(&0)
        };
        let (all, again) = (steps(1, 0), steps(1, 0));
        // 400 examples of 61 lengths in steps of 8: most steps hold two lengths or three.
        let mean = all.iter().map(spread).sum::<usize>() as f64 / all.len() as f64;
        assert!(mean < 3.0, "{mean}");
        assert_eq!((all.len(), all.last().map(Vec::len)), (251, Some(3)), "the last step is the one that is not full");
        assert_eq!(all, again);
        assert_ne!(all, steps(2, 0));
        assert_ne!(all, steps(1, 1));
        // The steps of a group are not sorted themselves.
        let longest = |step: &Vec<usize>| step.iter().map(|index| data.0[*index]).max().unwrap_or(0);
        let rises = all[..50].windows(2).filter(|pair| longest(&pair[0]) < longest(&pair[1])).count();
        assert!((10..40).contains(&rises), "{rises}");
        // Wherever a walk begins, the order is the same.
        let mut late = Order { sampler: Sampler::GroupByLength, seed: 1, step: 8 }.walk();
        assert_eq!(late.index(&data, 0, 1203), all[150][3]);
        assert_eq!(late.index(&data, 0, 3), all[0][3]);
    }
}
