//! One repeat of a comparison: every arm trains once, each in a process of its own. Where memory
//! has room for all of them they live side by side and train by turns of a few steps, so that what
//! happens to the machine happens to every arm; else one after the other.

use std::time::{Duration, Instant};

use kiln_core::error::Result;
use kiln_core::host;

use crate::interleaved::{Arm, ArmProcess, Interleaved};
use crate::runner::{Answer, Attempt, Stop};

/// Steps of a turn side by side: few enough that the machine is the same for all arms. The first of
/// them finds caches and threads cold and is left out of the figures ([`super::measured`]).
pub(super) const TURN: usize = 5;

/// Steps of a turn of an arm that has the machine for itself: it answers now and then, for signals.
const TURN_ALONE: usize = 50;

/// Where the steps of a run are not given: as many as take this long in the first arm, at least so
/// many on the CPU, and at least so many on a device, whose warm-up is longer and which is waited
/// for every ten steps only. Time for longer runs is better spent on more repeats: they narrow the
/// interval twice, as runs and as degrees of freedom.
const SECONDS: f64 = 2.5;
const LEAST_CPU: usize = 16;
const LEAST_DEVICE: usize = 80;

/// How much of the free memory arms that live side by side may take, by what their plans expect.
const SHARE: f64 = 0.8;

/// An arm that is silent for so long hangs: warm-up and tuning of a large model on a slow device
/// take less.
pub(super) const PATIENCE: Duration = Duration::from_secs(3600);

/// Trains every arm for `steps` steps, or to the end of its plan where that comes first:
/// the seconds of its process, or how it failed. The output of a process is kept in its file of
/// errors until it has ended well.
///
/// # Errors
/// A program that cannot be started, and a signal to this process.
pub(super) fn repeat(arms: &[Arm], steps: usize, together: bool) -> Result<Vec<Answer<f64>>> {
    if together {
        return take_turns(arms, steps, TURN);
    }
    let alone = arms.chunks(1).map(|arm| take_turns(arm, steps, TURN_ALONE));
    Ok(alone.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}

/// The time that a few steps of an arm take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Steps of a run, where no number is asked for.
    pub(super) steps: usize,
    /// The warm-up steps.
    warmup: usize,
    /// Seconds of the start and the warm-up, and of a later step; none where the arm failed.
    seconds: Option<(f64, f64)>,
}

impl Pace {
    /// About how long `runs` runs of `steps` steps take.
    pub(super) fn time_of(&self, runs: usize, steps: usize) -> Option<Duration> {
        let (start, step) = self.seconds?;
        let seconds = runs as f64 * (start + step * steps.saturating_sub(self.warmup) as f64);
        // A length that nobody takes for exact.
        let unit = if seconds < 100.0 { 5.0 } else { 60.0 };
        Duration::try_from_secs_f64((seconds / unit).ceil() * unit).ok()
    }
}

/// How many steps a run should have, and how long it takes, by what a few steps of `arm` take.
///
/// # Errors
/// A program that cannot be started, and a signal to this process.
pub(super) fn pace(arm: &Arm, is_cpu: bool) -> Result<Pace> {
    let (least, warmup) = if is_cpu { (LEAST_CPU, TURN) } else { (LEAST_DEVICE, LEAST_DEVICE / 4) };
    // A run that fails here will fail as an arm, and then it will be told.
    let timed = || -> Attempt<(f64, f64)> {
        let began = Instant::now();
        let mut process = arm.start()?;
        process.run(warmup)?;
        let start = began.elapsed().as_secs_f64();
        let before = Instant::now();
        process.run(warmup)?;
        Ok((start, before.elapsed().as_secs_f64() / warmup as f64))
    };
    let seconds = Stop::of_arm(timed())?.ok();
    let steps = seconds.map_or(least, |(_, step)| least.max((SECONDS / step).ceil() as usize));
    Ok(Pace { steps, warmup, seconds })
}

fn take_turns(arms: &[Arm], steps: usize, turn: usize) -> Result<Vec<Answer<f64>>> {
    let mut group = Interleaved::start(arms, |_, _| Ok(()))?;
    // The last step is made at the end.
    for made in (0..steps.saturating_sub(1)).step_by(turn) {
        let left = |total: u64| steps.min(total as usize).saturating_sub(made + 1).min(turn);
        group.turn(|hello| left(hello.total_steps), |_, _| Ok(()))?;
    }
    let ends = arms.iter().zip(group.end()).map(|(arm, end)| {
        let end = Stop::of_arm(end.map_err(Stop::Arm).and_then(ArmProcess::finish))?;
        if end.is_ok() {
            let _ = std::fs::remove_file(&arm.work.said);
        }
        Ok(end)
    });
    ends.collect()
}

/// Whether arms whose plans expect these many bytes can live side by side, and what to tell the
/// reader of it.
pub(super) fn side_by_side(expected: &[u64], is_cpu: bool) -> (bool, String) {
    if !is_cpu {
        return (false, "the arms ran one after the other: each had the device for itself".into());
    }
    let needed = expected.iter().map(|bytes| *bytes as f64).sum::<f64>() / f64::from(1 << 20);
    match host::available_mib() {
        Some(free) if needed <= SHARE * free => (
            true,
            format!(
                "the arms of a repeat lived side by side and trained by turns of {TURN} steps, whose first is left out of \
                 the figures; while one waits, up to two of its batches are made ready"
            ),
        ),
        Some(free) => (
            false,
            format!(
                "the arms ran one after the other: side by side they need about {needed:.0} MiB, {SHARE} of the {free:.0} \
                 that were free is allowed"
            ),
        ),
        None => (false, "the arms ran one after the other: this system does not tell what memory is free".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_all_runs_counts_starts_and_steps() {
        let of = |seconds, runs, steps| Pace { steps: 16, warmup: 5, seconds }.time_of(runs, steps);
        assert_eq!(of(Some((1.0, 0.1)), 30, 25), Some(Duration::from_secs(90)));
        assert_eq!(of(Some((1.0, 0.1)), 30, 26), Some(Duration::from_secs(95)));
        assert_eq!(of(Some((2.0, 0.1)), 30, 25), Some(Duration::from_secs(120)));
        assert_eq!(of(None, 30, 25), None, "an arm that failed has no time");
    }

    #[test]
    fn arms_live_side_by_side_where_memory_has_room() {
        assert!(!side_by_side(&[1], false).0, "a device is one arm's at a time");
        let (together, note) = side_by_side(&[u64::MAX / 2, u64::MAX / 2], true);
        assert!(!together && note.contains("one after the other"), "{note}");
        if host::available_mib().is_some() {
            let (together, note) = side_by_side(&[1 << 20, 1 << 20], true);
            assert!(together && note.contains("turns of 5 steps"), "{note}");
        }
    }
}
