//! The driver's end of a contestant: a child process that is asked for turns; see [`super::protocol`].

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use serde::de::DeserializeOwned;

use super::protocol::{Hello, Turn};
use crate::compare::Failure;
use crate::compare::process::failure;
use crate::error::{Error, Result};
use crate::signals;

/// An answer, or how the contestant ended instead.
pub(super) type Answer<T> = std::result::Result<T, Failure>;

/// A contestant that is alive. Dropped, its process ends.
pub(super) struct Contestant {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    errors: PathBuf,
    started: Instant,
    /// What it said of itself.
    pub(super) hello: Hello,
}

impl Contestant {
    /// Starts `command` and waits until it is ready. What it says to people goes to `errors`.
    ///
    /// # Errors
    /// A program that cannot be started, and a signal to this process.
    pub(super) fn start(command: &mut Command, errors: &Path) -> Result<Answer<Self>> {
        let shown = command.get_program().display().to_string();
        let file = File::create(errors).map_err(|error| Error::io(format!("create {}", errors.display()), &error))?;
        let started = Instant::now();
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(file).spawn();
        let mut child = spawned.map_err(|error| Error::io(format!("start {shown}"), &error))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("its stdout is a pipe"));
        let hello = Hello { provenance: serde_json::Value::Null, batch: 0, total_steps: 0, padding: None };
        let mut contestant = Self { child, input, output, errors: errors.into(), started, hello };
        Ok(match contestant.answer()? {
            Ok(hello) => {
                contestant.hello = hello;
                Ok(contestant)
            }
            Err(failure) => Err(failure),
        })
    }

    /// Seconds since the process was started.
    pub(super) fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Asks for `count` steps, or repeats.
    ///
    /// # Errors
    /// A signal to this process.
    pub(super) fn run(&mut self, count: usize) -> Result<Answer<Turn>> {
        // A contestant that has ended cannot be written to; its answer tells why.
        if let Some(input) = &mut self.input {
            let _ = writeln!(input, "run {count}").and_then(|()| input.flush());
        }
        self.answer()
    }

    fn answer<T: DeserializeOwned>(&mut self) -> Result<Answer<T>> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line).map_err(|error| Error::io("read from a contestant", &error))?;
        if let Some(signal) = signals::received() {
            return Err(signal.error("stopped while measuring; cases that were complete are written"));
        }
        if read > 0 {
            let answer = serde_json::from_str(&line);
            return Ok(answer.map_err(|error| {
                let shown = line.trim().chars().take(200).collect::<String>();
                let message = format!("expected a line of JSON on its stdout ({error}), got {shown:?}");
                Failure { exit_code: 3, message, is_expected: false }
            }));
        }
        let status = self.child.wait().map_err(|error| Error::io("wait for a contestant", &error))?;
        let said = fs::read(&self.errors).unwrap_or_default();
        Ok(Err(failure(status, &String::from_utf8_lossy(&said))))
    }
}

impl Drop for Contestant {
    fn drop(&mut self) {
        // Its run folder is the driver's, so nothing of it has to be brought to an end.
        drop(self.input.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
