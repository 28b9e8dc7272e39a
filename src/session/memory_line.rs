//! The memory line: `memory = a + b x batch`, fitted to the trials that ran. It says which sizes
//! are worth trying; what it predicts is never reported as measured.

use std::fmt;

use serde::{Deserialize, Serialize};

/// `fixed + per_sample * batch`, in MiB.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MemoryLine {
    /// Memory that does not depend on the batch: weights, gradients, optimizer, program.
    pub fixed_mib: f64,
    /// Memory that each sample of a batch adds.
    pub per_sample_mib: f64,
}

impl MemoryLine {
    /// The line of least squares through `(batch, peak in MiB)`, or that through the smallest and
    /// the largest batch where the first says that a run without examples has less than no memory;
    /// none for fewer than two sizes, or when memory does not grow with the batch.
    pub fn fit(points: &[(usize, f64)]) -> Option<Self> {
        let n = points.len() as f64;
        let (mean_x, mean_y) =
            points.iter().fold((0.0, 0.0), |(x, y), (batch, mib)| (x + *batch as f64 / n, y + mib / n));
        let (mut covariance, mut variance) = (0.0, 0.0);
        for (batch, mib) in points {
            let dx = *batch as f64 - mean_x;
            covariance += dx * (mib - mean_y);
            variance += dx * dx;
        }
        let per_sample_mib = covariance / variance;
        let fitted = Self { fixed_mib: mean_y - per_sample_mib * mean_x, per_sample_mib };
        if fitted.fixed_mib < 0.0
            && let Some((smallest, low)) = points.iter().min_by_key(|(batch, _)| batch)
            && let Some((largest, high)) = points.iter().max_by_key(|(batch, _)| batch)
        {
            let per_sample_mib = (high - low) / (largest - smallest) as f64;
            return Some(Self { fixed_mib: low - per_sample_mib * *smallest as f64, per_sample_mib });
        }
        (per_sample_mib.is_finite() && per_sample_mib > 0.0).then_some(fitted)
    }

    /// The memory of a batch, in MiB.
    pub fn mib(&self, batch: usize) -> f64 {
        self.fixed_mib + self.per_sample_mib * batch as f64
    }

    /// The line through a measured `(batch, peak in MiB)`, in the proportions of this one; this one
    /// where it needs no memory there.
    #[must_use]
    pub fn through(self, (batch, peak): (usize, f64)) -> Self {
        let ratio = peak / self.mib(batch);
        if !(ratio.is_finite() && ratio > 0.0) {
            return self;
        }
        Self { fixed_mib: ratio * self.fixed_mib, per_sample_mib: ratio * self.per_sample_mib }
    }

    /// The largest batch that the line has room for in `budget_mib`.
    pub fn largest(&self, budget_mib: f64) -> usize {
        // A negative quotient becomes 0: nothing fits.
        ((budget_mib - self.fixed_mib) / self.per_sample_mib) as usize
    }
}

impl fmt::Display for MemoryLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory = {:.1} MiB + {:.2} MiB x batch", self.fixed_mib, self.per_sample_mib)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_line_through_two_points_and_the_best_through_three() {
        let line = MemoryLine::fit(&[(2, 120.0), (4, 140.0)]).unwrap();
        assert_eq!(line, MemoryLine { fixed_mib: 100.0, per_sample_mib: 10.0 });
        assert_eq!(line.to_string(), "memory = 100.0 MiB + 10.00 MiB x batch");
        assert_eq!([50.0, 105.0, 200.0, 209.9].map(|budget| line.largest(budget)), [0, 0, 10, 10]);
        // By hand: means 2 and 40/3; slope (20 - 10) / 2.
        let line = MemoryLine::fit(&[(1, 10.0), (2, 10.0), (3, 20.0)]).unwrap();
        assert!((line.per_sample_mib - 5.0).abs() < 1e-12 && (line.fixed_mib - 10.0 / 3.0).abs() < 1e-12, "{line}");
    }

    /// A tiny model, whose process has its 59 MiB before the first example; the best line would
    /// begin at -41.
    #[test]
    fn no_run_has_less_than_no_memory() {
        let line = MemoryLine::fit(&[(2, 60.0), (256, 60.0), (512, 70.0), (1026, 572.0)]).unwrap();
        assert_eq!(line, MemoryLine { fixed_mib: 59.0, per_sample_mib: 0.5 });
    }

    #[test]
    fn a_line_is_put_through_a_point() {
        let line = MemoryLine { fixed_mib: 100.0, per_sample_mib: 10.0 };
        assert_eq!(line.mib(10), 200.0);
        assert_eq!(line.through((10, 180.0)), MemoryLine { fixed_mib: 90.0, per_sample_mib: 9.0 });
        for no_memory in [(10, 0.0), (10, f64::NAN)] {
            assert_eq!(line.through(no_memory), line);
        }
        let below = MemoryLine { fixed_mib: -200.0, per_sample_mib: 10.0 };
        assert_eq!([below.through((10, 50.0)), below.through((20, 50.0))], [below; 2]);
    }

    #[test]
    fn what_is_no_growing_line_is_none() {
        for points in [&[][..], &[(4, 10.0)], &[(4, 10.0), (4, 12.0)], &[(2, 10.0), (4, 9.0)], &[(2, 10.0), (4, 10.0)]]
        {
            assert_eq!(MemoryLine::fit(points), None, "{points:?}");
        }
    }
}
