//! Which size to try next: growing from the start value until something does not fit, or shrinking
//! until something does, then closing the gap, with the memory line as a guide. Knows nothing of
//! processes; the tests give it machines made up.

use kiln::session::batch_sizes::{Outcome, Trial};
use kiln::session::memory_line::MemoryLine;
use kiln_core::error::{Error, Result};

/// Where the search may look.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    /// The first size to try.
    pub start: usize,
    /// The largest size to try.
    pub max: usize,
    /// Sizes are multiples of this.
    pub multiple_of: usize,
    /// The line that an earlier search of the same run has found, perhaps in other memory. Put
    /// through the largest size that ran, it leads until two sizes of this search tell another one.
    pub known: Option<MemoryLine>,
    /// The plan's estimate, which leads likewise where no line is known.
    pub estimate: Option<MemoryLine>,
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// Every trial, in the order in which they ran.
    pub trials: Vec<Trial>,
    /// The largest size that ran; none when none did.
    pub batch: Option<usize>,
    /// The next size was tried and does not fit.
    pub next_fails: bool,
    /// The line through the trials that ran; with the slope that was known where they tell none.
    pub line: Option<MemoryLine>,
}

/// Line-guided trials between a size that fits and one that does not, before the gap is halved
/// instead: the line may be wrong, and halving always ends.
const GUIDED: usize = 3;

impl Range {
    /// Searches; `run` makes a trial. `budget_mib` is what the line is compared with, where there
    /// is a budget.
    ///
    /// # Errors
    /// A range without a size in it, and what `run` cannot call a matter of memory.
    pub fn search(self, budget_mib: Option<f64>, run: &mut dyn FnMut(usize) -> Result<Outcome>) -> Result<Found> {
        let unit = self.multiple_of.max(1);
        let most = self.max / unit;
        if most == 0 {
            return Err(Error::config(format!("--max {}: there is no multiple of {unit} up to it", self.max))
                .help("raise --max or lower --multiple-of"));
        }
        // In units: the largest that fits and the smallest that does not.
        let (mut fits, mut fails) = (0, most + 1);
        let (mut trials, mut guided, mut wrong, mut below) = (Vec::<Trial>::new(), 0, 0u32, 0u32);
        let mut next = (self.start / unit).clamp(1, most);
        loop {
            let outcome = run(next * unit)?;
            trials.push(Trial { batch: next * unit, outcome: outcome.clone() });
            match outcome {
                Outcome::Fits { .. } => fits = fits.max(next),
                Outcome::TooLarge(_) => fails = fails.min(next),
                Outcome::OutOfTime => break,
            }
            if fails - fits <= 1 {
                break;
            }
            let bracketed = fails <= most;
            let line = line_of(&trials, self.known.or(self.estimate));
            let guess = line.zip(budget_mib).map(|(line, budget)| line.largest(budget) / unit);
            next = match (fits, bracketed, guess) {
                (0, _, Some(_)) => {
                    // Only a line that was known leads before anything has run. It was a little too
                    // high: small steps, that grow; or it is of no use.
                    below += 1;
                    if below > 4 { fails / 2 } else { fails.saturating_sub(1 << (below - 1)).max(fails / 2) }
                }
                (0, _, None) => fails / 2,
                (_, false, Some(guess)) if guess <= fits => {
                    // The line has no room left: the next size decides, and where the line is wrong
                    // the steps grow.
                    wrong += 1;
                    (fits + (1 << (wrong - 1))).min(most)
                }
                (_, false, Some(guess)) => guess.min(4 * fits).min(most),
                (_, false, None) => (2 * fits).min(most),
                (_, true, Some(guess)) if guided < GUIDED => {
                    guided += 1;
                    guess.clamp(fits + 1, fails - 1)
                }
                (_, true, _) => fits + (fails - fits) / 2,
            };
        }
        let batch = (fits > 0).then_some(fits * unit);
        let line = line_of(&trials, self.known);
        Ok(Found { trials, batch, next_fails: fails == fits + 1 && fails <= most, line })
    }
}

/// The line through the sizes that ran. Sizes that are close to each other tell the noise of a
/// measurement and no slope, so the slope of a line that is known stays until they differ by a
/// quarter.
fn line_of(trials: &[Trial], known: Option<MemoryLine>) -> Option<MemoryLine> {
    let points = trials.iter().filter_map(|trial| match trial.outcome {
        Outcome::Fits { peak_mib: Some(mib), .. } => Some((trial.batch, mib)),
        _ => None,
    });
    let points = points.collect::<Vec<_>>();
    let sizes = || points.iter().map(|(batch, _)| *batch);
    let tells = known.is_none() || sizes().max() >= sizes().min().map(|least| least + least.div_ceil(4));
    let largest = points.iter().copied().max_by_key(|(batch, _)| *batch);
    let moved = || known.map(|line| largest.map_or(line, |point| line.through(point)));
    MemoryLine::fit(&points).filter(|_| tells).or_else(moved)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A machine on which `limit` samples fit and each takes 10 MiB over 100.
    fn machine(limit: usize) -> impl FnMut(usize) -> Result<Outcome> {
        move |batch| {
            Ok(if batch <= limit {
                Outcome::Fits { peak_mib: Some(100.0 + 10.0 * batch as f64), step_ms: None }
            } else {
                Outcome::TooLarge("too large".into())
            })
        }
    }

    fn range(start: usize) -> Range {
        Range { start, max: 4096, multiple_of: 1, known: None, estimate: None }
    }

    fn sizes(found: &Found) -> Vec<usize> {
        found.trials.iter().map(|trial| trial.batch).collect()
    }

    #[test]
    fn every_limit_is_found_from_every_start() {
        for limit in [1, 2, 3, 7, 8, 9, 31, 100, 777] {
            for start in [1, 2, 8, 50, 4096] {
                for budget in [None, Some(100.0 + 10.0 * limit as f64 + 5.0), Some(1e9), Some(0.0)] {
                    let found = range(start).search(budget, &mut machine(limit)).unwrap();
                    assert_eq!(
                        (found.batch, found.next_fails),
                        (Some(limit), true),
                        "{limit} from {start}, {budget:?}"
                    );
                    assert!(sizes(&found).contains(&limit) && sizes(&found).contains(&(limit + 1)), "both were run");
                    let mut once = sizes(&found);
                    once.sort_unstable();
                    once.dedup();
                    assert_eq!(once.len(), found.trials.len(), "no size twice: {:?}", sizes(&found));
                    assert!(found.trials.len() <= 26, "{limit} from {start}, {budget:?}: {:?}", sizes(&found));
                }
            }
        }
    }

    #[test]
    fn the_line_skips_trials() {
        let budget = 100.0 + 10.0 * 777.0 + 5.0;
        let guided = range(8).search(Some(budget), &mut machine(777)).unwrap();
        assert_eq!(sizes(&guided), [8, 16, 64, 256, 777, 778]);
        assert_eq!(guided.line.unwrap().to_string(), "memory = 100.0 MiB + 10.00 MiB x batch");
        let blind = range(8).search(None, &mut machine(777)).unwrap();
        assert!(blind.trials.len() > guided.trials.len(), "{:?}", sizes(&blind));
    }

    #[test]
    fn a_line_that_is_known_needs_few_trials_and_may_be_wrong() {
        let budget = Some(100.0 + 10.0 * 777.0 + 5.0);
        let known = |fixed_mib, per_sample_mib| {
            let line = MemoryLine { fixed_mib, per_sample_mib };
            Range { known: Some(line), ..range(line.largest(100.0 + 10.0 * 777.0 + 5.0)) }
        };
        let sizes_of = |range: Range| sizes(&range.search(budget, &mut machine(777)).unwrap());
        assert_eq!(sizes_of(known(100.0, 10.0)), [777, 778]);
        assert_eq!(sizes_of(known(85.0, 10.0)), [779, 778, 776, 777]);
        // A tenth too much, as estimates are.
        assert_eq!(sizes_of(known(110.0, 11.0)), [705, 777, 778]);
        assert_eq!(sizes_of(Range { start: 8, ..known(110.0, 11.0) }), [8, 32, 128, 512, 777, 778]);
        for (fixed, by_sample) in [(0.0, 1.0), (0.0, 9.0), (500.0, 11.0), (7000.0, 10.0), (1e9, 10.0)] {
            for limit in [1, 2, 31, 777] {
                let found = known(fixed, by_sample).search(budget, &mut machine(limit)).unwrap();
                assert_eq!((found.batch, found.next_fails), (Some(limit), true), "{fixed} + {by_sample} x batch");
                assert!(found.line.is_some() && found.trials.len() <= 26, "{:?}", sizes(&found));
            }
        }
    }

    #[test]
    fn the_range_is_kept() {
        let found = Range { start: 8, max: 20, multiple_of: 8, known: None, estimate: None }
            .search(None, &mut machine(100))
            .unwrap();
        assert_eq!((found.batch, found.next_fails, sizes(&found)), (Some(16), false, vec![8, 16]));
        let found = Range { start: 3, max: 4096, multiple_of: 8, known: None, estimate: None }
            .search(None, &mut machine(100))
            .unwrap();
        assert_eq!((found.batch, found.next_fails), (Some(96), true));
        assert!(sizes(&found).iter().all(|size| size % 8 == 0), "{:?}", sizes(&found));
        let error = Range { start: 8, max: 7, multiple_of: 8, known: None, estimate: None }
            .search(None, &mut machine(100))
            .unwrap_err();
        assert!(error.to_string().contains("no multiple of 8"), "{error}");
    }

    #[test]
    fn nothing_fits() {
        let found = range(8).search(Some(50.0), &mut machine(0)).unwrap();
        assert_eq!((found.batch, found.next_fails, sizes(&found)), (None, true, vec![8, 4, 2, 1]));
    }

    #[test]
    fn another_failure_ends_the_search() {
        let error = range(8).search(None, &mut |_| Err(Error::data("broken"))).unwrap_err();
        assert_eq!(error.to_string(), "broken");
    }

    #[test]
    fn out_of_time_leaves_what_ran() {
        let mut left = 2;
        let found = range(8).search(None, &mut |batch| {
            left -= 1;
            if left < 0 { Ok(Outcome::OutOfTime) } else { machine(100)(batch) }
        });
        let found = found.unwrap();
        assert_eq!((found.batch, found.next_fails, sizes(&found)), (Some(16), false, vec![8, 16, 32]));
    }
}
