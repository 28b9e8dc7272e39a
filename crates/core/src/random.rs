//! Random numbers without a state: the seed of any moment of a run is computed from the run's seed.

/// The increment of the state of SplitMix64 (Steele, Lea & Flood 2014) with every number.
pub const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// The number that SplitMix64 draws in the state `state`.
pub fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(STEP);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A seed for one use of randomness, independent of the others: `purpose` names the use, `step` and
/// `part` the place in the run. Nothing of a generator's state needs to be saved: the seed of any
/// moment can be computed again. (The mixer is SplitMix64's output function.)
pub fn seed_for(run_seed: u64, purpose: &str, step: u64, part: u64) -> u64 {
    let purpose = purpose.bytes().fold(0, |hash, byte| mix(hash ^ u64::from(byte)));
    [purpose, step, part].into_iter().fold(mix(run_seed), |hash, value| mix(hash ^ value))
}

/// A hash as a number from 0 to below 1, with the 53 bits that an f64 has room for.
pub fn uniform(hash: u64) -> f64 {
    (hash >> 11) as f64 / (1u64 << 53) as f64
}

/// A rank from 0 to below `count` by Zipf's law, as the words of a text have them: rank `k` has a
/// share of about `1 / (k + 1)` (the inverse of `ln(k + 1) / ln(count + 1)`, of the ranks below
/// `k`). `at` is from 0 to below 1.
pub fn zipf(at: f64, count: u64) -> u64 {
    let rank = (count as f64 + 1.0).powf(at) as u64;
    rank.saturating_sub(1).min(count.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn seeds_differ_by_every_argument() {
        let all = [
            seed_for(1, "dropout", 0, 0),
            seed_for(2, "dropout", 0, 0),
            seed_for(1, "init", 0, 0),
            seed_for(1, "dropout", 1, 0),
            seed_for(1, "dropout", 0, 1),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|b| a != b));
        }
        assert_eq!(seed_for(1, "dropout", 3, 4), seed_for(1, "dropout", 3, 4));
    }

    #[test]
    fn ranks_have_the_shares_of_zipfs_law() {
        let drawn = (0..100_000).map(|i| zipf(uniform(mix(i)), 50_257)).collect::<Vec<_>>();
        let share = |rank: u64| drawn.iter().filter(|drawn| **drawn == rank).count() as f64 / 1e5;
        // ln((k + 2) / (k + 1)) / ln(50258); a share has a standard error of sqrt(0.06 / 1e5).
        for (rank, expected) in [(0, 0.0640), (1, 0.0375), (9, 0.0088)] {
            assert!((share(rank) - expected).abs() < 0.004, "{rank}: {}", share(rank));
        }
        assert!(drawn.iter().all(|rank| *rank < 50_257) && drawn.iter().any(|rank| *rank > 40_000));
        assert_eq!((zipf(0.999_999, 1), zipf(0.0, 7)), (0, 0));
    }
}
