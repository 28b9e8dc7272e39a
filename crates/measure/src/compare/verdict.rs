//! The verdict on two arms: one of four phrases. A difference is called only when the interval
//! leaves out "equal", when it is larger than what two runs of the same arm differed by (the A/A
//! pair), and when it is at least 1 %.

use serde::Serialize;

use crate::stats::Interval;

/// Differences below this are not worth a word, whatever the interval says.
const SMALLEST: f64 = 0.01;

/// A verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Word {
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

impl std::fmt::Display for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::Same => "no measurable difference",
            Self::NotComparable => "not comparable",
        })
    }
}

/// The word for a speed-up, given what the reference differed from itself by (a ratio too), if that
/// was measured.
pub fn word(speedup: Interval, noise: Option<Interval>) -> Word {
    let floor = noise.map_or(0.0, |noise| noise.ratio.ln().abs()).max((1.0 + SMALLEST).ln());
    let beyond = speedup.ratio.ln().abs() > floor;
    match speedup {
        _ if !beyond => Word::Same,
        Interval { low, .. } if low > 1.0 => Word::Faster,
        Interval { high, .. } if high < 1.0 => Word::Slower,
        _ => Word::Same,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(ratio: f64, low: f64, high: f64) -> Interval {
        Interval { ratio, low, high }
    }

    #[test]
    fn a_difference_must_leave_the_interval_the_noise_and_one_percent_behind() {
        assert_eq!(word(interval(1.5, 1.4, 1.6), None), Word::Faster);
        assert_eq!(word(interval(0.8, 0.7, 0.9), None), Word::Slower);
        assert_eq!(word(interval(1.2, 0.9, 1.6), None), Word::Same);
        assert_eq!(word(interval(1.005, 1.004, 1.006), None), Word::Same);
        assert_eq!(word(interval(1.05, 1.04, 1.06), Some(interval(0.93, 0.9, 0.96))), Word::Same);
    }
}
