//! The order in which examples are seen. A random order is a permutation computed element by element, so any position of
//! any epoch can be reached at once and nothing of a generator has to be saved.

pub use crate::config::Sampler;
use crate::execution::seed_for;

impl Sampler {
    /// The example at `position` of epoch `epoch`, among `len`. For each epoch a bijection of `0..len`.
    pub fn index(self, seed: u64, epoch: u64, len: u64, position: u64) -> u64 {
        match self {
            Self::Sequential => position,
            Self::Random => permute(seed_for(seed, "shuffle", epoch, 0), len, position),
        }
    }
}

const ROUNDS: u64 = 6;

/// A pseudo-random permutation of `0..len`: a balanced Feistel network (Luby & Rackoff 1988) on the smallest even number
/// of bits that holds `len`, walked until the value falls into the range (cycle walking, Black & Rogaway 2002). Fewer than
/// four steps are expected, since the network's range is less than four times `len`.
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

    #[test]
    fn every_epoch_is_a_permutation() {
        for len in (1..70).chain([127, 128, 129, 1000, 4096, 10_007]) {
            for epoch in 0..2 {
                let mut seen = (0..len).map(|i| Sampler::Random.index(3, epoch, len, i)).collect::<Vec<_>>();
                seen.sort_unstable();
                assert!(seen.iter().copied().eq(0..len), "len {len} epoch {epoch}");
            }
        }
    }

    #[test]
    fn seeds_and_epochs_differ_and_repeat() {
        let order = |seed, epoch| (0..100).map(|i| Sampler::Random.index(seed, epoch, 100, i)).collect::<Vec<_>>();
        assert_eq!(order(1, 0), order(1, 0));
        assert_ne!(order(1, 0), order(2, 0));
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 0), (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn positions_are_spread_evenly() {
        // Where does position 0 go over 8000 keys? Each of 8 cells expects 1000; 5 standard deviations are 148.
        let mut cells = [0i32; 8];
        for seed in 0..8000 {
            cells[Sampler::Random.index(seed, 0, 8, 0) as usize] += 1;
        }
        assert!(cells.iter().all(|count| (count - 1000).abs() < 148), "{cells:?}");
    }

    #[test]
    fn sequential_is_the_identity() {
        assert_eq!(Sampler::Sequential.index(9, 9, 100, 42), 42);
    }
}
