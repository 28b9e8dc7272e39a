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
}
