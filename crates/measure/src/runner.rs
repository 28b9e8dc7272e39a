//! Runs programs in processes of their own: commands of Kiln, and peers. Every measurement starts
//! its processes here ([`Work`]). A process answers in JSON or ends with an error, which is told as
//! that of the work that it was to do, or as the [`Failure`] of an arm.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kiln::config::RunConfig;
use kiln_core::error::{Error, ErrorKind, Result};
use kiln_core::files::write_whole;
use kiln_core::process::{Child, Exit, Kind, scratch};
use kiln_core::signals;
use serde::{Deserialize, Serialize};

/// How an arm ended that did not end well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The exit code that the measurement ends with: 4 out of memory, 5 a loss that is no number, 7
    /// a crash, ...
    pub exit_code: u8,
    /// Its message.
    pub message: String,
    /// The measurement expects that it may fail: a batch that need not fit in this mode.
    pub is_expected: bool,
}

impl Failure {
    /// An answer of its process that is none.
    pub(crate) fn of_data(message: String) -> Self {
        Self::from(&Error::data(message))
    }

    /// The error that the process which started it ends with; `who` failed.
    pub(crate) fn error(&self, who: &str) -> Error {
        let kind = ErrorKind::of_exit_code(self.exit_code.into()).unwrap_or(ErrorKind::Device);
        Error::of_kind(kind, format!("{who}: {}", self.message))
    }
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        let message = error.message().lines().next().unwrap_or_default();
        let message = match error.kind() {
            ErrorKind::OutOfMemory if !message.contains("out of memory") => format!("out of memory: {message}"),
            _ => message.to_owned(),
        };
        Self { exit_code: error.exit_code(), message, is_expected: false }
    }
}

/// Why there is no answer: the whole measurement is stopped, or an arm has failed.
pub(crate) enum Stop {
    All(Error),
    Arm(Failure),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::All(error)
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Arm(failure)
    }
}

impl Stop {
    /// The answer of an arm, or how that ended instead.
    ///
    /// # Errors
    /// The error of a measurement that is stopped.
    pub(crate) fn of_arm<T>(answer: Attempt<T>) -> Result<Answer<T>> {
        match answer {
            Ok(answer) => Ok(Ok(answer)),
            Err(Self::Arm(failure)) => Ok(Err(failure)),
            Err(Self::All(error)) => Err(error),
        }
    }
}

/// An answer, or why there is none.
pub(crate) type Attempt<T> = std::result::Result<T, Stop>;

/// An answer, or how the arm ended instead.
pub(crate) type Answer<T> = std::result::Result<T, Failure>;

/// A program with its arguments, for a process of its own that works for this one.
#[derive(Debug, Clone)]
pub struct Work {
    /// The program.
    pub program: PathBuf,
    /// The arguments of the program.
    pub arguments: Vec<OsString>,
    /// The variables of its environment that are not this process's.
    pub variables: Vec<(&'static str, String)>,
    /// Whether it is a kiln.
    pub kind: Kind,
    /// Its stdout.
    pub stdout: fn() -> Stdio,
    /// The file for all that it says to people.
    pub said: PathBuf,
}

impl Work {
    /// The program `program` without arguments, a kiln whose stdout nobody reads.
    pub fn of(program: impl Into<PathBuf>, said: PathBuf) -> Self {
        let (arguments, variables) = (Vec::new(), Vec::new());
        Self { program: program.into(), arguments, variables, kind: Kind::Kiln, stdout: Stdio::null, said }
    }

    /// The command `command` of `program`, a kiln, on `config`, which is written to `file`; what
    /// it says stays beside that.
    ///
    /// # Errors
    /// The operating system's.
    pub fn on(config: &RunConfig, file: &Path, program: &Path, command: &str) -> Result<Self> {
        write_whole(file, config.to_toml()?.as_bytes())?;
        Ok(Self::of(program, file.with_extension("err")).with([command.as_ref(), file.as_os_str()]))
    }

    /// This with more arguments.
    #[must_use]
    pub fn with<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// Starts it.
    ///
    /// # Errors
    /// A program that cannot be started.
    pub fn start(&self) -> Result<Child> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).envs(self.variables.iter().cloned()).stdout((self.stdout)());
        Child::start(&mut command, &self.said, self.kind)
    }
}

/// Runs a command of `program`, a kiln, on `config` in a process of its own. `more` adds arguments,
/// and lets the child write to stdout where it should. The child's error is returned as that of
/// `what`.
///
/// # Errors
/// The child's, a program that cannot be started, and a signal to this process.
pub fn in_a_process(
    program: &Path,
    command: &str,
    config: &RunConfig,
    what: &str,
    more: impl FnOnce(Work) -> Work,
) -> Result<Exit> {
    signals::install()?;
    let folder = scratch()?;
    let file = folder.path().join("config.toml");
    let work = more(Work::on(config, &file, program, command)?);
    let exit = work.start()?.wait(None, &format!("stopped while {what} was running"))?;
    match exit.error() {
        None => Ok(exit),
        Some(error) => Err(error.in_terms_of(&[(&file.display().to_string(), "FILE")]).at(what)),
    }
}
