//! The driver's end of a contestant: a child process that is asked for turns; see [`super::protocol`].

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use super::protocol::{END, Hello, Turn};
use crate::compare::Failure;
use crate::compare::process::failure;
use crate::error::{Error, Result};
use crate::signals;

/// An answer, or how the contestant ended instead.
pub(crate) type Answer<T> = std::result::Result<T, Failure>;

/// Signals are looked for so often.
const POLL: Duration = Duration::from_millis(50);

/// A contestant that is alive. Dropped, its process ends.
pub(crate) struct Contestant {
    child: Child,
    input: Option<ChildStdin>,
    output: Receiver<io::Result<String>>,
    errors: PathBuf,
    started: Instant,
    active: Duration,
    /// What it said of itself.
    pub(crate) hello: Hello,
}

impl Contestant {
    /// Starts `command` and waits until it is ready. What it says to people goes to `errors`.
    ///
    /// # Errors
    /// A program that cannot be started, and a signal to this process.
    pub(crate) fn start(command: &mut Command, errors: &Path) -> Result<Answer<Self>> {
        let shown = command.get_program().display().to_string();
        let file = File::create(errors).map_err(|error| Error::io(format!("create {}", errors.display()), &error))?;
        let started = Instant::now();
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(file).spawn();
        let mut child = spawned.map_err(|error| Error::io(format!("start {shown}"), &error))?;
        let input = child.stdin.take();
        let output = lines(child.stdout.take().expect("its stdout is a pipe"));
        let hello = Hello { provenance: serde_json::Value::Null, batch: 0, total_steps: 0, padding: None };
        let mut contestant =
            Self { child, input, output, errors: errors.into(), started, active: Duration::ZERO, hello };
        let answer = contestant.answer()?;
        contestant.active = started.elapsed();
        Ok(match answer {
            Ok(hello) => {
                contestant.hello = hello;
                Ok(contestant)
            }
            Err(failure) => Err(failure),
        })
    }

    /// Seconds since the process was started.
    pub(crate) fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Asks for `count` steps, or repeats.
    ///
    /// # Errors
    /// A signal to this process.
    pub(crate) fn run(&mut self, count: usize) -> Result<Answer<Turn>> {
        let began = Instant::now();
        self.tell(&format!("run {count}"));
        let answer = self.answer();
        self.active += began.elapsed();
        answer
    }

    /// Lets it make its last step and waits for its end: the seconds that it was not held up, from its start on.
    ///
    /// # Errors
    /// A signal to this process.
    pub(crate) fn finish(mut self) -> Result<Answer<f64>> {
        let began = Instant::now();
        self.tell(END);
        drop(self.input.take());
        let more = self.line()?;
        if !more.is_empty() {
            let message = format!("expected its end, got {:?} on its stdout", shortened(&more));
            return Ok(Err(Failure { exit_code: 3, message, is_expected: false }));
        }
        let (status, said) = self.end()?;
        let seconds = (self.active + began.elapsed()).as_secs_f64();
        Ok(if status.success() { Ok(seconds) } else { Err(failure(status, &said)) })
    }

    fn answer<T: DeserializeOwned>(&mut self) -> Result<Answer<T>> {
        let line = self.line()?;
        if line.is_empty() {
            let (status, said) = self.end()?;
            return Ok(Err(failure(status, &said)));
        }
        Ok(serde_json::from_str(&line).map_err(|error| {
            let message = format!("expected a line of JSON on its stdout ({error}), got {:?}", shortened(&line));
            Failure { exit_code: 3, message, is_expected: false }
        }))
    }

    /// Writes a line to it. One that has ended cannot be written to; its answer tells why.
    fn tell(&mut self, line: &str) {
        if let Some(input) = &mut self.input {
            let _ = writeln!(input, "{line}").and_then(|()| input.flush());
        }
    }

    /// The next line of its output; empty at the end.
    fn line(&mut self) -> Result<String> {
        loop {
            // A turn may take long, and a signal may be for this process alone.
            if let Some(signal) = signals::received() {
                return Err(signal.error("stopped while measuring; no report is made of what was not complete"));
            }
            match self.output.recv_timeout(POLL) {
                Ok(line) => return line.map_err(|error| Error::io("read from a contestant", &error)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) if signals::received().is_none() => return Ok(String::new()),
                // It has ended by the signal that this process has received, too.
                Err(RecvTimeoutError::Disconnected) => {}
            }
        }
    }

    /// How its process ended, and what it said to people.
    fn end(&mut self) -> Result<(ExitStatus, String)> {
        let status = self.child.wait().map_err(|error| Error::io("wait for a contestant", &error))?;
        let said = fs::read(&self.errors).unwrap_or_default();
        Ok((status, String::from_utf8_lossy(&said).into_owned()))
    }
}

/// The lines of `output` as they come, from a thread that ends with it.
fn lines(output: ChildStdout) -> Receiver<io::Result<String>> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(output).lines() {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

fn shortened(line: &str) -> String {
    line.trim().chars().take(200).collect()
}

impl Drop for Contestant {
    fn drop(&mut self) {
        // Its run folder is the driver's, so nothing of it has to be brought to an end.
        drop(self.input.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
