//! Kernels that a run launches for the first time after its warm-up: something was compiled, or
//! tuned, in the middle of training. They are counted from log row to log row and told with what
//! brought them.

use crate::engine::launches::NewKernels;

/// Counts them; nothing in a run without a warm-up, where every kernel is new once.
#[derive(Debug, Default)]
pub(super) struct Kernels {
    seen: Option<NewKernels>,
    /// Log windows that had some.
    windows: u64,
    /// Recordings of captured steps, until now and until the last row.
    recordings: [usize; 2],
}

/// Kernels that were launched for the first time since the last log row.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct News {
    pub(super) kernels: u64,
    /// The fields of a log row about them.
    pub(super) said: Option<String>,
}

impl Kernels {
    /// The warm-up is over; what it launched, `seen` has seen.
    pub(super) fn after_warmup(mut seen: NewKernels) -> Self {
        seen.count();
        Self { seen: Some(seen), ..Self::default() }
    }

    /// So many steps, micro-batches and updates have been recorded.
    pub(super) fn recorded(&mut self, recordings: usize) {
        self.recordings[0] = recordings;
    }

    /// The kernels that came up since the last row, at `step`, with `new_shapes` shapes of batches;
    /// none without a warm-up.
    pub(super) fn since_last_row(&mut self, step: u64, new_shapes: u64) -> Option<News> {
        let kernels = self.seen.as_mut()?.count();
        let [now, before] = self.recordings;
        self.recordings[1] = now;
        // Burn may fuse a step once more when it is recorded, and that it is recorded has been
        // said.
        let is_told = now > before && new_shapes == 0;
        let said = if is_told { None } else { self.tell(kernels, step, new_shapes) };
        Some(News { kernels, said })
    }

    /// The first window with news is told, and then, as a warning, whenever their number has
    /// doubled.
    fn tell(&mut self, kernels: u64, step: u64, new_shapes: u64) -> Option<String> {
        if kernels == 0 {
            return None;
        }
        self.windows += 1;
        let because = match new_shapes {
            0 => "no batch shape is new: Burn tuned or fused anew".to_owned(),
            1 => "for a new batch shape".to_owned(),
            shapes => format!("for {shapes} new batch shapes"),
        };
        match self.windows {
            1 => Some(format!(
                "kernels that the warm-up did not launch were compiled or tuned by step {step}: {kernels} ({because})"
            )),
            windows if windows.is_power_of_two() => Some(format!(
                "warning: in {windows} log windows since the warm-up kernels were compiled or tuned, the last {kernels} by step \
                 {step} ({because}); the times of those steps are not steady"
            )),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn news_are_told_once_with_their_cause_and_repeats_are_loud() {
        let mut kernels = Kernels::default();
        assert_eq!(kernels.since_last_row(1, 0), None, "without a warm-up nothing is news");
        assert_eq!(kernels.tell(0, 10, 0), None);
        let told = (1..=8).filter_map(|window| kernels.tell(3, 10 * window, window % 3)).collect::<Vec<_>>();
        assert_eq!(told.len(), 4, "at 1, 2, 4 and 8: {told:?}");
        assert!(told[0].contains("by step 10: 3 (for a new batch shape)"), "{told:?}");
        assert!(told[1..].iter().all(|line| line.starts_with("warning: ")));
        assert!(told[3].contains("step 80 (for 2 new batch shapes)"), "{told:?}");
        assert!(kernels.tell(1, 90, 0).is_none() && kernels.windows == 9);
    }

    #[test]
    fn what_the_warm_up_launched_is_known() {
        let mut kernels = Kernels::after_warmup(NewKernels::start());
        assert_eq!(kernels.since_last_row(1, 0), Some(News { kernels: 0, said: None }));
    }
}
