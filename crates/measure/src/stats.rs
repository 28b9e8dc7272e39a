//! The statistics of a comparison: the ratio of medians of two arms with an interval, from
//! raw samples. Nothing here knows what was measured.
//!
//! The arms run alternately, so the samples come in pairs of runs ("repeats") that were neighbours
//! in time. The estimate is the geometric mean, over the repeats, of the ratio of the two runs'
//! medians: what slows the machine down for a while slows both runs of a repeat and cancels. Its
//! standard error is that of a bootstrap of the repeats, which are drawn whole: what steps of a run
//! differ by is in them already, and drawing within them too would count it twice (Davison &
//! Hinkley 1997, section 3.8, strategy 1). Where there is one repeat, its samples are drawn in
//! circular blocks, so that neighbouring steps stay together (Politis & Romano 1992). Few repeats
//! underestimate a spread, so the interval is `estimate +- t(n - 1) x sqrt(n / (n - 1)) x standard
//! error` on the logarithm (Hesterberg 2015, section 3.3) and not the percentiles themselves, which
//! would be too narrow.

use kiln_core::error::Result;
use kiln_core::random::{STEP, mix};
use kiln_core::signals;
use kiln_core::stats::{mean, median};

/// Samples of an arm: one list a repeat.
pub type Samples = Vec<Vec<f64>>;

/// A ratio with its 98 % interval.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Interval {
    /// The estimate.
    pub ratio: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// How often the bootstrap draws.
const DRAWS: u64 = 2000;

/// The ratio of the medians of `a` to those of `b` with its 98 % interval; none when a repeat lacks
/// samples or there are no pairs. With one repeat the interval knows nothing of how runs differ
/// from one another: only of the steps of one run.
///
/// # Errors
/// A signal, since many samples take long.
pub fn ratio_of_medians(a: &[Vec<f64>], b: &[Vec<f64>], seed: u64) -> Result<Option<Interval>> {
    let pairs = a.iter().zip(b).filter(|(a, b)| !a.is_empty() && !b.is_empty()).collect::<Vec<_>>();
    let n = pairs.len();
    if n == 0 {
        return Ok(None);
    }
    let log_ratio = |a: &[f64], b: &[f64]| (median(a) / median(b)).ln();
    let logs = pairs.iter().map(|(a, b)| log_ratio(a, b)).collect::<Vec<_>>();
    let estimate = mean(&logs);
    let mut random = Random::new(seed);
    let (mut left, mut right) = (Vec::new(), Vec::new());
    let draws = (0..DRAWS).map(|_| {
        if let Some(signal) = signals::received() {
            return Err(signal
                .error("stopped while the runs were compared")
                .help("`kiln report FOLDER` compares them"));
        }
        if let [(a, b)] = pairs[..] {
            random.blocks(a, &mut left);
            random.blocks(b, &mut right);
            return Ok(log_ratio(&left, &right));
        }
        Ok((0..n).map(|_| logs[random.below(n)]).sum::<f64>() / n as f64)
    });
    let error = standard_deviation(&draws.collect::<Result<Vec<_>>>()?);
    // With one repeat the runs' samples are what is drawn from.
    let size = if n > 1 { n } else { pairs[0].0.len().min(pairs[0].1.len()) };
    let wide = if size > 1 { t_99(size - 1) * (size as f64 / (size - 1) as f64).sqrt() * error } else { f64::INFINITY };
    Ok(Some(Interval { ratio: estimate.exp(), low: (estimate - wide).exp(), high: (estimate + wide).exp() }))
}

fn standard_deviation(values: &[f64]) -> f64 {
    let center = mean(values);
    (values.iter().map(|value| (value - center).powi(2)).sum::<f64>() / (values.len() - 1) as f64).sqrt()
}

/// The 99 % quantile of Student's t with `df` degrees of freedom: tabulated up to 30, then the
/// expansion `z + (z^3 + z) / (4 df)` (Abramowitz & Stegun 26.7.5), which is right to 0.01 there.
#[allow(clippy::approx_constant)] // 2.718 is a quantile here
fn t_99(df: usize) -> f64 {
    const TABLE: [f64; 30] = [
        31.821, 6.965, 4.541, 3.747, 3.365, 3.143, 2.998, 2.896, 2.821, 2.764, 2.718, 2.681, 2.650, 2.624, 2.602,
        2.583, 2.567, 2.552, 2.539, 2.528, 2.518, 2.508, 2.500, 2.492, 2.485, 2.479, 2.473, 2.467, 2.462, 2.457,
    ];
    let z = 2.326_348_f64;
    TABLE.get(df - 1).copied().unwrap_or(z + (z.powi(3) + z) / (4.0 * df as f64))
}

/// SplitMix64 (Steele, Lea & Flood 2014): the same draws for the same seed, everywhere.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A generator from its seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        let number = mix(self.0);
        self.0 = self.0.wrapping_add(STEP);
        number
    }

    /// A number from 0 to below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Fills `into` with a block bootstrap sample of `from`: equally many values, drawn in circular
    /// blocks of about the cube root of their number.
    pub fn blocks(&mut self, from: &[f64], into: &mut Vec<f64>) {
        let n = from.len();
        let length = (n as f64).cbrt().round().max(1.0) as usize;
        into.clear();
        while into.len() < n {
            let start = self.below(n);
            into.extend((0..length.min(n - into.len())).map(|offset| from[(start + offset) % n]));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn students_t_meets_its_expansion() {
        assert_eq!(t_99(4), 3.747);
        assert!((t_99(31) - 2.4528).abs() < 1e-2 && (t_99(1000) - 2.3301).abs() < 1e-3);
    }

    #[test]
    fn a_known_ratio_without_noise_is_exact_and_seeds_repeat() {
        let (a, b) = (vec![vec![12.0; 9]; 3], vec![vec![8.0; 9]; 3]);
        let interval = ratio_of_medians(&a, &b, 1).unwrap().unwrap();
        assert!((interval.ratio - 1.5).abs() < 1e-12 && (interval.high - interval.low) < 1e-12);
        let mut random = Random::new(5);
        let noisy = |random: &mut Random| {
            (0..4).map(|_| (0..9).map(|_| 10.0 + random.below(1000) as f64 / 1000.0).collect()).collect::<Samples>()
        };
        let (a, b) = (noisy(&mut random), noisy(&mut random));
        let ratio = |a: &[Vec<f64>], b: &[Vec<f64>]| ratio_of_medians(a, b, 3).unwrap();
        assert_eq!(ratio(&a, &b), ratio(&a, &b));
        assert!(ratio(&[], &b).is_none() && ratio(&[vec![]], &b).is_none());
        // One repeat of one sample says nothing: the interval is everything.
        assert_eq!(ratio(&[vec![2.0]], &[vec![1.0]]).unwrap().low, 0.0);
    }
}
