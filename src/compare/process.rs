//! The processes of a comparison: the program of a mode, a plan made by it, and what a process's end means.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use super::Failure;
use crate::config::CompilerMode;
use crate::error::{Error, Result};

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
