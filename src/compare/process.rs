//! One run of an arm: `kiln train` in a process of its own, and what its end means.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::Failure;
use crate::config::CompilerMode;
use crate::error::{Error, Result};
use crate::signals;

/// The program of a mode: `$KILN_NATIVE` or `$KILN_COMPILED` where that is set (the two engines of a GPU are two builds),
/// else this one.
pub(crate) fn program(mode: CompilerMode) -> Result<PathBuf> {
    let name = match mode {
        CompilerMode::Native => "KILN_NATIVE",
        CompilerMode::Compiled | CompilerMode::Auto => "KILN_COMPILED",
    };
    let this = || std::env::current_exe().map_err(|error| Error::io("find this program", &error));
    std::env::var_os(name).map_or_else(this, |given| Ok(given.into()))
}

/// Trains `config` for `steps` steps. Seconds of the process, or how it failed. What it prints is kept as `LOG`.
///
/// # Errors
/// A program that cannot be started, and a signal to this process.
pub(super) fn train(
    program: &Path,
    config: &Path,
    steps: usize,
    log: &Path,
) -> Result<std::result::Result<f64, Failure>> {
    let file =
        |path: &Path| File::create(path).map_err(|error| Error::io(format!("create {}", path.display()), &error));
    let errors = log.with_extension("err");
    let started = Instant::now();
    let child = Command::new(program)
        .arg("train")
        .arg(config)
        .args(["--step-times", "--stop-after", &steps.to_string()])
        .stdin(Stdio::null())
        .stdout(file(log)?)
        .stderr(file(&errors)?)
        .spawn();
    let mut child = child.map_err(|error| Error::io(format!("start {}", program.display()), &error))?;
    let status = loop {
        let done = child.try_wait().map_err(|error| Error::io("wait for an arm's process", &error))?;
        if let Some(status) = done {
            break status;
        }
        if let Some(signal) = signals::received() {
            // It has a checkpoint to save only where the run was the user's; this one is ours, so it may end at once.
            let _ = child.kill();
            let _ = child.wait();
            return Err(signal.error("stopped while comparing; no report was made"));
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let seconds = started.elapsed().as_secs_f64();
    if status.success() {
        let _ = fs::remove_file(&errors);
        return Ok(Ok(seconds));
    }
    let said = fs::read(&errors).unwrap_or_default();
    Ok(Err(failure(status, &String::from_utf8_lossy(&said))))
}

/// Plans `config` with `program`, for its refusals; `arm` is the name of whose it is.
///
/// # Errors
/// What the program says, under the name of the arm; a program that cannot be started.
pub(super) fn plan(program: &Path, config: &Path, arm: &str) -> Result<()> {
    let output = Command::new(program).arg("plan").arg(config).stdin(Stdio::null()).output();
    let output = output.map_err(|error| Error::io(format!("start {}", program.display()), &error))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failure(output.status, &String::from_utf8_lossy(&output.stderr)).error(&format!("arm {arm}"))),
    }
}

/// What a failed process means. Memory that ran out is told from other failures: Kiln's own exit code, Rust's message when
/// an allocation fails, and the signal that the kernel ends a process with.
pub(crate) fn failure(status: ExitStatus, said: &str) -> Failure {
    let line = |begin: &str| said.lines().find_map(|line| line.strip_prefix(begin)).map(str::to_owned);
    let killed = killed_by(status) == Some(9);
    let (exit_code, message) = match status.code() {
        _ if said.contains("memory allocation of") => (4, "out of memory: an allocation failed".into()),
        _ if killed => (4, "out of memory: the kernel killed its process".into()),
        Some(code @ 1..=7) => {
            let message = line("error: ").unwrap_or_else(|| format!("it ended with exit code {code}"));
            let message = if code == 4 { format!("out of memory: {message}") } else { message };
            (code as u8, message)
        }
        _ => {
            let last =
                said.lines().rev().find(|line| !line.trim().is_empty()).map_or(String::new(), |l| format!(": {l}"));
            (7, format!("it crashed ({status}){last}"))
        }
    };
    Failure { exit_code, message, is_expected: false }
}

#[cfg(unix)]
fn killed_by(status: ExitStatus) -> Option<i32> {
    std::os::unix::process::ExitStatusExt::signal(&status)
}

#[cfg(not(unix))]
fn killed_by(_: ExitStatus) -> Option<i32> {
    None
}
