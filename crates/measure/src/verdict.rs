//! The verdict on two arms: one of four phrases. A difference is called only when the interval
//! leaves out "equal", when it is larger than what two runs of the same arm differed by (the A/A
//! pair), and when it is at least 1 %.

use serde::Serialize;

use crate::stats::Interval;

/// Differences below this are not worth a word, whatever the interval says.
const SMALLEST: f64 = 0.01;

/// A verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Verdict {
    /// It takes less time.
    #[serde(rename = "faster")]
    Faster,
    /// It takes more time.
    #[serde(rename = "slower")]
    Slower,
    /// Neither can be said.
    #[serde(rename = "no measurable difference")]
    Same,
    /// Something forbids to compare; the reason is given with it.
    #[serde(rename = "not comparable")]
    NotComparable,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::Same => "no measurable difference",
            Self::NotComparable => "not comparable",
        })
    }
}

impl Verdict {
    /// The verdict on a speed-up, given what the reference differed from itself by (a ratio too),
    /// if that was measured.
    pub fn of(speedup: Interval, noise: Option<Interval>) -> Self {
        let floor = noise.map_or(0.0, |noise| noise.ratio.ln().abs()).max((1.0 + SMALLEST).ln());
        let beyond = speedup.ratio.ln().abs() > floor;
        match speedup {
            _ if !beyond => Self::Same,
            Interval { low, .. } if low > 1.0 => Self::Faster,
            Interval { high, .. } if high < 1.0 => Self::Slower,
            _ => Self::Same,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::stats::{Random, Samples, ratio_of_medians};

    fn interval(ratio: f64, low: f64, high: f64) -> Interval {
        Interval { ratio, low, high }
    }

    #[test]
    fn a_difference_must_leave_the_interval_the_noise_and_one_percent_behind() {
        assert_eq!(Verdict::of(interval(1.5, 1.4, 1.6), None), Verdict::Faster);
        assert_eq!(Verdict::of(interval(0.8, 0.7, 0.9), None), Verdict::Slower);
        assert_eq!(Verdict::of(interval(1.2, 0.9, 1.6), None), Verdict::Same);
        assert_eq!(Verdict::of(interval(1.005, 1.004, 1.006), None), Verdict::Same);
        assert_eq!(Verdict::of(interval(1.05, 1.04, 1.06), Some(interval(0.93, 0.9, 0.96))), Verdict::Same);
    }

    /// Steady step times of 16 native runs of a GPT-2 of 2 layers on two cores, one line a run:
    /// medians from 102 to 115 ms.
    fn real_runs() -> Samples {
        let text = include_str!("../../../tests/fixtures/compare/native_step_ms.txt");
        text.lines().map(|line| line.split_whitespace().map(|value| value.parse().unwrap()).collect()).collect()
    }

    /// A trial: 7 repeats of native, other, native again, each a block bootstrap of a real run with
    /// that run's own level, so that the noise between runs and within runs is the real one.
    fn trial(runs: &Samples, slow: f64, seed: u64) -> (Verdict, Verdict) {
        let mut random = Random::new(seed);
        let mut arm = |factor: f64| {
            let repeats = (0..7).map(|_| {
                let mut samples = Vec::new();
                let from = random.below(runs.len());
                random.blocks(&runs[from], &mut samples);
                samples.iter().map(|ms| ms * factor).collect::<Vec<_>>()
            });
            repeats.collect::<Samples>()
        };
        let (native, other, again) = (arm(1.0), arm(slow), arm(1.0));
        let noise = ratio_of_medians(&native, &again, seed).unwrap().unwrap();
        let both = native.iter().zip(&again).map(|(a, b)| a.iter().chain(b).copied().collect()).collect::<Samples>();
        let ratio = ratio_of_medians(&both, &other, seed).unwrap().unwrap();
        (Verdict::of(noise, None), Verdict::of(ratio, Some(noise)))
    }

    /// The promise of the report: no difference is called where there is none in at least 19 of 20
    /// trials, and 10 % are called in at least 18 of 20, over 200 trials each.
    #[test]
    fn verdicts_keep_their_promise_on_real_noise() {
        let runs = real_runs();
        assert!(runs.len() >= 8 && runs.iter().all(|run| run.len() >= 8));
        let count = |slow: f64, first: u64, wanted: Verdict| {
            let trials = (0..200).map(|index| trial(&runs, slow, first + index));
            let (mut same, mut called) = (0, 0);
            for (noise, verdict) in trials {
                same += usize::from(noise == Verdict::Same);
                called += usize::from(verdict == wanted);
            }
            (same, called)
        };
        let (same, equal) = count(1.0, 1000, Verdict::Same);
        assert!(same >= 190 && equal >= 190, "A/A pairs {same}, equal arms {equal} of 200");
        let (same, slower) = count(1.1, 2000, Verdict::Slower);
        assert!(same >= 190 && slower >= 180, "A/A pairs {same}, slower arms {slower} of 200");
    }
}
