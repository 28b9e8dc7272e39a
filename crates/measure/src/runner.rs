//! Runs a command of Kiln in a process of its own. The process answers in JSON or ends with an
//! error, which is told as that of the work that it was to do.

use std::path::Path;
use std::process::{Command, Stdio};

use kiln::config::RunConfig;
use kiln_core::error::Result;
use kiln_core::files::write_whole;
use kiln_core::process::{Child, Exit, scratch};
use kiln_core::signals;

/// Runs a command of `program`, a kiln, on `config`, written to a file, in a process of its own.
/// `arguments` adds the arguments, and lets the child write to stdout where it should. The child's
/// error is returned as that of `what`.
///
/// # Errors
/// The child's, a program that cannot be started, and a signal to this process.
pub fn in_a_process(
    program: &Path,
    config: &RunConfig,
    what: &str,
    arguments: impl FnOnce(&mut Command, &Path),
) -> Result<Exit> {
    signals::install()?;
    let folder = scratch()?;
    let file = folder.path().join("config.toml");
    write_whole(&file, config.to_toml()?.as_bytes())?;
    let mut command = Command::new(program);
    command.stdout(Stdio::null());
    arguments(&mut command, &file);
    let child = Child::start(&mut command, &folder.path().join("stderr"))?;
    let exit = child.wait(None, &format!("stopped while {what} was running"))?;
    match exit.error() {
        None => Ok(exit),
        Some(error) => Err(error.in_terms_of(&[(&file.display().to_string(), "FILE")]).at(what)),
    }
}
