//! Which trial goes on: asynchronous successive halving for one worker (Li et al. 2020, algorithm
//! 2).

/// How a trial stands.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Standing {
    /// Its score at each rung that it has reached; less is better.
    pub scores: Vec<f64>,
    /// It has come to its end.
    pub is_complete: bool,
    /// It has failed.
    pub has_failed: bool,
}

impl Standing {
    fn can_go_on(&self) -> bool {
        !self.is_complete && !self.has_failed
    }
}

/// The trial that goes on by a rung, and none where the search is at its end. A trial of the best
/// `1 / factor` at its rung goes on before another one begins, those of higher rungs first. When
/// all have begun and none has come to its end, the best of those that came farthest goes on to it.
/// Without `factor` each trial has one rung.
pub(super) fn next(trials: &[Standing], factor: Option<u64>) -> Option<usize> {
    let begin = || trials.iter().position(|trial| trial.scores.is_empty() && trial.can_go_on());
    let Some(factor) = factor else { return begin() };
    let highest = trials.iter().map(|trial| trial.scores.len()).max().unwrap_or(0);
    let ranked = |rung: usize| {
        let mut there = (0..trials.len()).filter(|trial| trials[*trial].scores.len() > rung).collect::<Vec<_>>();
        there.sort_by(|a, b| trials[*a].scores[rung].total_cmp(&trials[*b].scores[rung]));
        there
    };
    let waits =
        |rung: usize| move |trial: &usize| trials[*trial].scores.len() == rung + 1 && trials[*trial].can_go_on();
    let promoted = (0..highest).rev().find_map(|rung| {
        let there = ranked(rung);
        let best = usize::try_from(there.len() as u64 / factor).unwrap_or(0);
        there.into_iter().take(best).find(waits(rung))
    });
    let farthest = || {
        let is_needed = !trials.iter().any(|trial| trial.is_complete);
        (0..highest).rev().filter(|_| is_needed).find_map(|rung| ranked(rung).into_iter().find(waits(rung)))
    };
    promoted.or_else(begin).or_else(farthest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_of_every_rung_go_on_and_one_comes_to_its_end() {
        // Trial `i` has the score of its place here at every rung; the third rung is the end.
        let quality = [5.0, 3.0, 9.0, 1.0, 4.0, 8.0, 2.0, 7.0, 6.0];
        let mut trials = vec![Standing::default(); quality.len()];
        let mut order = Vec::new();
        while let Some(trial) = next(&trials, Some(3)) {
            order.push(trial);
            trials[trial].scores.push(quality[trial]);
            trials[trial].is_complete = trials[trial].scores.len() == 3;
        }
        // The best of 0 1 2 goes on when three are there, and so on; of three at the second rung
        // the best goes to the end.
        assert_eq!(order, [0, 1, 2, 1, 3, 3, 4, 5, 6, 6, 3, 7, 8]);
        assert_eq!(trials.iter().map(|trial| trial.scores.len()).collect::<Vec<_>>(), [1, 2, 1, 3, 1, 1, 2, 1, 1]);
    }

    #[test]
    fn few_trials_and_failures_still_end_with_one_that_is_complete() {
        let mut trials = vec![Standing::default(); 2];
        let mut order = Vec::new();
        while let Some(trial) = next(&trials, Some(3)) {
            order.push(trial);
            if trial == 0 && trials[0].scores.len() == 1 {
                trials[0].has_failed = true;
                continue;
            }
            trials[trial].scores.push(trial as f64);
            trials[trial].is_complete = trials[trial].scores.len() == 3;
        }
        assert_eq!(order, [0, 1, 0, 1, 1]);
        let failed = vec![Standing { has_failed: true, ..Standing::default() }];
        assert_eq!((next(&failed, Some(3)), next(&failed, None)), (None, None));
    }

    #[test]
    fn without_halving_every_trial_is_made_once() {
        let mut trials = vec![Standing::default(); 3];
        for expected in [Some(0), Some(1), Some(2), None] {
            let trial = next(&trials, None);
            assert_eq!(trial, expected);
            if let Some(trial) = trial {
                trials[trial].scores.push(0.0);
            }
        }
    }
}
