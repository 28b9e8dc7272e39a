//! Whether two arms with the same batch, data and seed learn the same: their losses at
//! equal steps. A speed-up of something that learns differently is none.

use serde::Serialize;

use kiln::config::Precision;

/// Relative difference at any of the first [`STEPS`] steps that rounding in another order may make
/// in f32, with the same masks of dropout. The fused operators stay within 1e-5 over 14 steps
/// (`tests/command/compiler.rs`); the rest is room for the growth of small differences through the
/// updates.
const LIMIT: f64 = 1e-3;

/// Relative difference of a loss that is allowed, with the same masks, with matrix products in f16
/// (in bf16: [`LIMIT_BF16`]). Their last digits are 2^-11 and 2^-8 of a number; a loss is a mean
/// over many numbers, so a few last digits are enough.
const LIMIT_F16: f64 = 5e-3;

/// See [`LIMIT_F16`].
const LIMIT_BF16: f64 = 2e-2;

/// Where each mode draws masks of its own, on a GPU, only the mean loss can be compared, and it
/// differs by their noise. This finds gross faults, no more.
const LIMIT_OWN_MASKS: f64 = 2e-2;

/// Steps within which single losses are compared: training is chaotic, so later ones drift apart by
/// themselves.
const STEPS: usize = 50;

/// See the top of this file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Parity {
    /// Largest |difference| of the losses at equal steps, over the repeats.
    pub max_delta: f64,
    /// The figure that is compared with the limit: the largest relative difference of single
    /// losses, or of their means where each mode draws masks of its own.
    pub relative: f64,
    /// The limit.
    pub limit: f64,
    /// Losses that were compared, of all repeats.
    pub losses: usize,
    /// Each mode drew masks of its own, so means were compared.
    pub by_mean: bool,
    /// Whether the limit was kept.
    pub passed: bool,
}

/// `(step, loss)` of one side and of the other.
type Losses = (Vec<(u64, f64)>, Vec<(u64, f64)>);

impl Parity {
    /// Compares the losses of two arms, a pair of lists a repeat; `by_mean` where each
    /// draws masks of dropout of its own. The widest limit of `precisions` holds. None when there
    /// is no step that both have.
    pub(crate) fn of(repeats: &[Losses], by_mean: bool, precisions: impl Iterator<Item = Precision>) -> Option<Self> {
        let (mut max_delta, mut worst, mut losses) = (0.0f64, 0.0f64, 0);
        for (a, b) in repeats {
            let equal = a.iter().flat_map(|a| b.iter().find(|b| b.0 == a.0).map(|b| (a.1, b.1)));
            let pairs = equal.take(STEPS).collect::<Vec<_>>();
            losses += pairs.len();
            for (a, b) in &pairs {
                // NaN on one side only is a difference like no other.
                let delta = if a.is_nan() != b.is_nan() { f64::INFINITY } else { (a - b).abs() };
                max_delta = max_delta.max(delta);
                if !by_mean {
                    worst = worst.max(delta / a.abs().max(1e-12));
                }
            }
            if by_mean && !pairs.is_empty() {
                let (left, right) = pairs.iter().fold((0.0, 0.0), |sums, pair| (sums.0 + pair.0, sums.1 + pair.1));
                let relative = (left / right - 1.0).abs();
                worst = worst.max(if relative.is_nan() { f64::INFINITY } else { relative });
            }
        }
        let rounding = precisions.fold(LIMIT, |limit, precision| match precision {
            Precision::F16 => limit.max(LIMIT_F16),
            Precision::Bf16 => limit.max(LIMIT_BF16),
            Precision::F32 | Precision::Auto => limit,
        });
        let limit = if by_mean { LIMIT_OWN_MASKS.max(rounding) } else { rounding };
        (losses > 0).then_some(Self { max_delta, relative: worst, limit, losses, by_mean, passed: worst <= limit })
    }
}
