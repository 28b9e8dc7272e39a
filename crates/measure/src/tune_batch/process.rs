//! A trial as a process of its own: started, watched and, when it takes more memory than its
//! budget, ended before the machine feels it. How it ended is told apart here: it trained, it ran
//! out of memory, time was up, or something else failed, which is an error with the process's own
//! message.

use std::time::Instant;

use kiln::session::batch_sizes::Outcome;
use kiln_core::error::{ErrorKind, Result};
use kiln_core::host::peak_mib_of;
use kiln_core::process::{Child, Exit, OnSignal};

use super::trial::TrialReport;
use crate::runner::Work;

/// The limits of a trial.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Memory that the process may have resident, in MiB; none where memory is the device's.
    pub budget_mib: Option<f64>,
    /// When the search must end.
    pub deadline: Option<Instant>,
}

/// Does `work`, which answers with a [`TrialReport`], and says how it ended.
///
/// # Errors
/// A process that cannot be started, one that failed for another reason than memory, and a signal
/// to this process.
pub fn run(work: &Work, limits: Limits) -> Result<Outcome> {
    let child = work.start()?;
    let started = Instant::now();
    let is_over = |child: &Child| match (limits.budget_mib, peak_mib_of(child.id()), limits.deadline) {
        (Some(budget), Some(peak), _) if peak > budget => {
            let seconds = started.elapsed().as_secs_f64();
            Some(Outcome::TooLarge(format!("over the budget after {seconds:.1} s")))
        }
        (.., Some(deadline)) if Instant::now() >= deadline => Some(Outcome::OutOfTime),
        _ => None,
    };
    match child.watch(OnSignal::Stop, "stopped while looking for the batch size", is_over)? {
        Ok(exit) => judge(&exit, limits),
        Err(outcome) => Ok(outcome),
    }
}

/// The outcome of a trial by its exit. Nobody but the kernel kills a trial that still runs: this
/// process does so only when it reports something else.
fn judge(exit: &Exit, limits: Limits) -> Result<Outcome> {
    let report = match exit.answer::<TrialReport>() {
        Ok(report) => report,
        Err(error) if error.kind() == ErrorKind::OutOfMemory => return Ok(Outcome::TooLarge(error.message().into())),
        Err(error) => return Err(error.at("a trial failed")),
    };
    let peak_mib = limits.budget_mib.and(report.peak_mib);
    Ok(match (limits.budget_mib, peak_mib) {
        (Some(budget), Some(peak)) if peak > budget => Outcome::TooLarge(format!("over the budget: {peak:.1} MiB")),
        _ => Outcome::Fits { peak_mib, step_ms: report.step_ms },
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;

    fn shell(script: &str, budget_mib: Option<f64>, seconds: u64) -> Result<Outcome> {
        let folder = tempfile::tempdir().unwrap();
        let work = Work::of("/bin/sh", folder.path().join("said")).with(["-c", script]);
        let deadline = Some(Instant::now() + Duration::from_secs(seconds));
        run(&work, Limits { budget_mib, deadline })
    }

    fn too_large(outcome: Result<Outcome>) -> String {
        match outcome.unwrap() {
            Outcome::TooLarge(why) => why,
            other => panic!("{other:?}"),
        }
    }

    const GOOD: &str = r#"echo '{"answer": {"peak_mib": 90.0, "step_ms": 5.0, "loss": 2.0}}' > "$KILN_ANSWER""#;

    /// A script that ends with an error.
    fn failing(exit_code: u8, message: &str, help: &str) -> String {
        let error = format!(r#"{{"exit_code": {exit_code}, "message": "{message}", "help": "{help}"}}"#);
        format!(r#"echo '{{"error": {error}}}' > "$KILN_ANSWER"; exit {exit_code}"#)
    }

    #[test]
    fn what_trained_fits_unless_it_was_over_the_budget() {
        let fits = Outcome::Fits { peak_mib: Some(90.0), step_ms: Some(5.0) };
        assert_eq!(shell(GOOD, Some(100.0), 60).unwrap(), fits);
        assert_eq!(too_large(shell(GOOD, Some(80.0), 60)), "over the budget: 90.0 MiB");
        assert_eq!(shell(GOOD, None, 60).unwrap(), Outcome::Fits { peak_mib: None, step_ms: Some(5.0) });
    }

    #[test]
    fn a_trial_that_needs_more_memory_is_too_large() {
        let hog = "a=$(head -c 60000000 /dev/zero | tr '\\0' x); sleep 60";
        assert!(too_large(shell(hog, Some(40.0), 60)).starts_with("over the budget after"));
        assert_eq!(too_large(shell("kill -9 $$", None, 60)), "the kernel killed its process (SIGKILL)");
        let device = failing(4, "the device ran out of memory: 7", "less");
        assert_eq!(too_large(shell(&device, None, 60)), "the device ran out of memory: 7");
    }

    #[test]
    fn every_other_failure_is_an_error_with_its_message() {
        let error = shell(&failing(3, "no such file", "look"), None, 60).unwrap_err();
        assert_eq!((error.kind(), error.exit_code()), (ErrorKind::Data, 3));
        assert_eq!(error.to_string(), "a trial failed: no such file\n  help: look");
        let lost = shell("true", None, 60).unwrap_err();
        assert_eq!(lost.to_string(), "a trial failed: it ended before it had answered");
    }

    #[test]
    fn time_can_be_up() {
        assert_eq!(shell("sleep 60", None, 0).unwrap(), Outcome::OutOfTime);
    }
}
