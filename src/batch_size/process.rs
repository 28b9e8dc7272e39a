//! A trial as a process of its own: started, watched and, when it takes more memory than its budget, ended before the
//! machine feels it. How it ended is told apart here: it trained, it ran out of memory, time was up, or something else
//! failed, which is an error with the process's own message.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::search::Outcome;
use super::trial::TrialReport;
use crate::error::{Error, ErrorKind, Result};
use crate::host::peak_mib_of;
use crate::signals;

/// What a trial must keep within.
#[derive(Debug, Clone, Copy)]
pub struct Watch {
    /// Memory that the process may have resident, in MiB; none where memory is the device's.
    pub budget_mib: Option<f64>,
    /// When the search must end.
    pub deadline: Option<Instant>,
}

/// How often the memory of the process is looked at. At 4 GB/s, which a processor can touch, that is 20 MB.
const EVERY: Duration = Duration::from_millis(5);

/// Runs `command`, which writes a [`TrialReport`] to `report`, and says how it ended.
///
/// # Errors
/// A process that cannot be started, one that failed for another reason than memory, and a signal to this process.
pub fn run(command: &mut Command, folder: &Path, report: &Path, watch: Watch) -> Result<Outcome> {
    let _ = fs::remove_file(report);
    let messages = folder.join("stderr");
    let io = |error: &std::io::Error| Error::io(format!("write {}", messages.display()), error);
    let stderr = File::create(&messages).map_err(|error| io(&error))?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
    let mut child = command.spawn().map_err(|error| {
        Error::io(format!("start a trial with {}", command.get_program().to_string_lossy()), &error)
    })?;
    let ended = watch_over(&mut child, watch);
    let killed = !matches!(ended, Ok(Ended::Itself(_)));
    if killed {
        // It may have ended meanwhile; either way it is waited for, so that its memory is free again.
        let _ = child.kill();
        let _ = child.wait();
    }
    match ended? {
        Ended::OverBudget(outcome) => Ok(outcome),
        Ended::OutOfTime => Ok(Outcome::OutOfTime),
        Ended::Itself(status) => {
            let text = fs::read(&messages).unwrap_or_default();
            judge(status, &String::from_utf8_lossy(&text), report, watch)
        }
    }
}

enum Ended {
    Itself(ExitStatus),
    OverBudget(Outcome),
    OutOfTime,
}

fn watch_over(child: &mut Child, watch: Watch) -> Result<Ended> {
    let started = Instant::now();
    loop {
        let status = child.try_wait().map_err(|error| Error::io("wait for a trial", &error))?;
        if let Some(signal) = signals::received() {
            return Err(signal.error("stopped while looking for the batch size"));
        }
        if let Some(status) = status {
            return Ok(Ended::Itself(status));
        }
        if let (Some(budget), Some(peak)) = (watch.budget_mib, peak_mib_of(child.id()))
            && peak > budget
        {
            let seconds = started.elapsed().as_secs_f64();
            return Ok(Ended::OverBudget(Outcome::TooLarge(format!("over the budget after {seconds:.1} s"))));
        }
        if watch.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Ok(Ended::OutOfTime);
        }
        std::thread::sleep(EVERY);
    }
}

/// What an exit says.
fn judge(status: ExitStatus, messages: &str, report: &Path, watch: Watch) -> Result<Outcome> {
    if status.success() {
        let text = fs::read_to_string(report).map_err(|error| Error::io("read the report of a trial", &error))?;
        let report: TrialReport =
            serde_json::from_str(&text).map_err(|error| Error::data(format!("the report of a trial: {error}")))?;
        let peak_mib = watch.budget_mib.and(report.peak_mib);
        return Ok(match (watch.budget_mib, peak_mib) {
            (Some(budget), Some(peak)) if peak > budget => Outcome::TooLarge(format!("over the budget: {peak:.1} MiB")),
            _ => Outcome::Fits { peak_mib, step_ms: report.step_ms },
        });
    }
    let last = messages.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
    if status.code() == Some(i32::from(Error::out_of_memory("").exit_code())) {
        return Ok(Outcome::TooLarge(message_of(messages).0));
    }
    #[cfg(unix)]
    {
        use std::os::unix::process::ExitStatusExt;
        const SIGKILL: i32 = 9;
        if status.signal() == Some(SIGKILL) {
            // Nobody else ends a trial in this way: this process does so only when it reports something else.
            return Ok(Outcome::TooLarge("ended by the kernel (SIGKILL)".into()));
        }
    }
    // Rust's allocator says "memory allocation of 8 bytes failed" and aborts; drivers have their own words, in a panic.
    let ran_out = messages.lines().find(|line| {
        let line = line.to_lowercase();
        line.contains("memory allocation of") || line.contains("out of memory") || line.contains("outofmemory")
    });
    match ran_out {
        Some(line) => Ok(Outcome::TooLarge(line.trim().into())),
        None => {
            let (message, help) = message_of(messages);
            let message = if message.is_empty() { last.to_owned() } else { message };
            let error = Error::of_kind(kind_of(status), format!("a trial failed ({status}): {message}"));
            Err(match help {
                Some(help) => error.help(help),
                None => error,
            })
        }
    }
}

/// The kind of failure that an exit code stands for; what no code says is the device's.
fn kind_of(status: ExitStatus) -> ErrorKind {
    let kinds = [ErrorKind::Io, ErrorKind::Config, ErrorKind::Data, ErrorKind::NonFinite, ErrorKind::Differs];
    let code = status.code();
    let code_of = |kind: ErrorKind| i32::from(Error::of_kind(kind, "").exit_code());
    kinds.into_iter().find(|kind| code == Some(code_of(*kind))).unwrap_or(ErrorKind::Device)
}

/// What follows `error: ` in the words of a trial, and its help.
fn message_of(messages: &str) -> (String, Option<String>) {
    let text = messages.rsplit_once("error: ").map_or("", |(_, text)| text).trim_end();
    match text.split_once("\n  help: ") {
        Some((message, help)) => (message.to_owned(), Some(help.to_owned())),
        None => (text.to_owned(), None),
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn shell(script: &str, budget_mib: Option<f64>, seconds: u64) -> Result<Outcome> {
        let folder = tempfile::tempdir().unwrap();
        let report = folder.path().join("report.json");
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).env("REPORT", &report);
        let deadline = Some(Instant::now() + Duration::from_secs(seconds));
        run(&mut command, folder.path(), &report, Watch { budget_mib, deadline })
    }

    fn too_large(outcome: Result<Outcome>) -> String {
        match outcome.unwrap() {
            Outcome::TooLarge(why) => why,
            other => panic!("{other:?}"),
        }
    }

    const GOOD: &str = r#"echo '{"peak_mib": 90.0, "step_ms": 5.0, "loss": 2.0}' > "$REPORT""#;

    #[test]
    fn what_trained_fits_unless_it_was_over_the_budget() {
        let fits = Outcome::Fits { peak_mib: Some(90.0), step_ms: Some(5.0) };
        assert_eq!(shell(GOOD, Some(100.0), 60).unwrap(), fits);
        assert_eq!(too_large(shell(GOOD, Some(80.0), 60)), "over the budget: 90.0 MiB");
        assert_eq!(shell(GOOD, None, 60).unwrap(), Outcome::Fits { peak_mib: None, step_ms: Some(5.0) });
    }

    #[test]
    fn running_out_of_memory_has_many_faces() {
        let hog = "a=$(head -c 60000000 /dev/zero | tr '\\0' x); sleep 60";
        assert!(too_large(shell(hog, Some(40.0), 60)).starts_with("over the budget after"));
        assert_eq!(too_large(shell("kill -9 $$", None, 60)), "ended by the kernel (SIGKILL)");
        let abort = "echo 'memory allocation of 99 bytes failed' >&2; kill -ABRT $$";
        assert_eq!(too_large(shell(abort, None, 60)), "memory allocation of 99 bytes failed");
        let device = "echo 'error: the device ran out of memory: 7' >&2; echo '  help: less' >&2; exit 4";
        assert_eq!(too_large(shell(device, None, 60)), "the device ran out of memory: 7");
        let panic = "echo 'thread panicked: CUDA_ERROR_OUT_OF_MEMORY, Out of memory' >&2; exit 101";
        assert!(too_large(shell(panic, None, 60)).contains("CUDA_ERROR"));
    }

    #[test]
    fn every_other_failure_is_an_error_with_its_message() {
        let error = shell("echo 'error: no such file' >&2; echo '  help: look' >&2; exit 3", None, 60).unwrap_err();
        assert_eq!((error.kind(), error.exit_code()), (ErrorKind::Data, 3));
        assert!(error.to_string().ends_with("no such file\n  help: look"), "{error}");
        let error = shell("echo 'thread main panicked: index 7' >&2; exit 101", None, 60).unwrap_err();
        assert!(error.kind() == ErrorKind::Device && error.to_string().contains("index 7"), "{error}");
        let error = shell("kill -SEGV $$", None, 60).unwrap_err().to_string();
        assert!(error.contains("no message") && error.contains("signal"), "{error}");
        assert!(shell("true", None, 60).unwrap_err().to_string().contains("report of a trial"));
    }

    #[test]
    fn time_can_be_up() {
        assert_eq!(shell("sleep 60", None, 0).unwrap(), Outcome::OutOfTime);
    }
}
