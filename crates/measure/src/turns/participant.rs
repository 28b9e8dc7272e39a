//! The driver's end of a participant: how its process is started, the process that is asked for
//! turns, and the turns of several that live side by side; see [`super::protocol`].

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use kiln::config::RunConfig;
use kiln_core::error::{Error, ErrorKind, Result};
use kiln_core::files::write_whole;
use kiln_core::process::{Child, Exit};
use kiln_core::signals;
use kiln_core::words::{json_words_in_line, shortened};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::protocol::{END, Hello, Turn};

/// How a participant ended that did not end well.
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

/// An answer, or how the participant ended instead.
pub(crate) type Answer<T> = std::result::Result<T, Failure>;

/// Signals and the participant's end are looked for so often.
const POLL: Duration = Duration::from_millis(50);

/// After its end a participant's stdout may be held open by what it has started; what it has said
/// itself comes within this.
const REST: Duration = Duration::from_millis(500);

/// The longest line that a participant may answer with, in bytes: some 100,000 steps.
const LONGEST: u64 = 64 << 20;

/// Whose program a participant is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    /// Kiln.
    Kiln,
    /// Another one that speaks the protocol.
    Peer,
}

/// A participant of a measurement: a program that makes turns, before it is started.
#[derive(Debug, Clone)]
pub(crate) struct Participant {
    /// Its name in tables.
    pub(crate) name: String,
    /// Whose the program is.
    pub(crate) whose: Program,
    /// The engine of its mode, or another program that speaks the protocol.
    pub(crate) program: PathBuf,
    /// The arguments of the program.
    pub(crate) arguments: Vec<OsString>,
    /// The file for all that it says to people.
    pub(crate) errors: PathBuf,
    /// It may be silent for so long.
    pub(crate) patience: Duration,
}

/// The process of a participant. Dropped, it ends.
pub(crate) struct Running {
    child: Child,
    output: Receiver<io::Result<String>>,
    /// It may be silent for so long.
    patience: Duration,
    started: Instant,
    active: Duration,
    /// Its description of itself.
    pub(crate) hello: Hello,
}

impl Participant {
    /// A run of `config` by `program`, a kiln. The config goes to `file`, and what the process says
    /// stays beside it.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) fn kiln(
        name: &str,
        program: &Path,
        config: &RunConfig,
        file: PathBuf,
        patience: Duration,
    ) -> Result<Self> {
        write_whole(&file, config.to_toml()?.as_bytes())?;
        Ok(Self {
            name: name.into(),
            whose: Program::Kiln,
            program: program.into(),
            errors: file.with_extension("err"),
            arguments: vec!["worker".into(), file.into()],
            patience,
        })
    }

    /// Starts the program and waits until it is ready. One that says nothing for its patience has
    /// failed.
    ///
    /// # Errors
    /// A program that cannot be started, and a signal to this process.
    pub(crate) fn start(&self) -> Result<Answer<Running>> {
        let started = Instant::now();
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdout(Stdio::piped());
        let mut child = match self.whose {
            Program::Kiln => Child::start(&mut command, &self.errors)?,
            Program::Peer => Child::start_foreign(&mut command, &self.errors)?,
        };
        let output = lines(child.take_output().expect("its stdout is a pipe"))?;
        let hello = Hello { provenance: serde_json::Value::Null, batch: 0, total_steps: 0, padding: None };
        let patience = self.patience;
        let mut running = Running { child, output, patience, started, active: Duration::ZERO, hello };
        let answer = running.answer()?;
        running.active = started.elapsed();
        Ok(answer.map(|hello| {
            running.hello = hello;
            running
        }))
    }
}

impl Running {
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
        self.child.tell(&format!("run {count}"));
        let answer = self.answer();
        self.active += began.elapsed();
        answer
    }

    /// Lets it make its last step and waits for its end: the seconds that it was not held up, from
    /// its start on.
    ///
    /// # Errors
    /// A signal to this process.
    pub(crate) fn finish(mut self) -> Result<Answer<f64>> {
        let began = Instant::now();
        self.child.tell(END);
        self.child.close_input();
        match self.line()? {
            Ok(Line::Said(more)) => {
                Ok(Err(Failure::of_data(format!("expected its end, got {:?} on its stdout", shortened(&more.trim())))))
            }
            Ok(Line::End(exit)) => {
                let seconds = (self.active + began.elapsed()).as_secs_f64();
                Ok(exit.error().map_or(Ok(seconds), |error| Err(Failure::from(&error))))
            }
            Err(failure) => Ok(Err(failure)),
        }
    }

    fn answer<T: DeserializeOwned>(&mut self) -> Result<Answer<T>> {
        let line = match self.line()? {
            Ok(Line::Said(line)) => line,
            Ok(Line::End(exit)) => {
                let early = || Error::data("it ended before it had answered");
                return Ok(Err(Failure::from(&exit.error().unwrap_or_else(early))));
            }
            Err(failure) => return Ok(Err(failure)),
        };
        Ok(serde_json::from_str(&line).map_err(|error| {
            let got = shortened(&line.trim());
            Failure::of_data(format!(
                "expected a line of JSON on its stdout ({}), got {got:?}",
                json_words_in_line(&error)
            ))
        }))
    }

    /// The next line of its output, or its end.
    fn line(&mut self) -> Result<Answer<Line>> {
        let asked = Instant::now();
        let (mut exit, mut is_closed) = (None::<(Exit, Instant)>, false);
        loop {
            // A turn may take long, and a signal may be for this process alone.
            if let Some(signal) = signals::received() {
                return Err(signal.error("stopped while measuring; no report is made of what was not complete"));
            }
            if is_closed {
                thread::sleep(POLL / 50);
            } else {
                match self.output.recv_timeout(POLL) {
                    Ok(line) => {
                        let failed = |error| Failure::from(&Error::io("read its stdout", &error));
                        return Ok(line.map(Line::Said).map_err(failed));
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => is_closed = true,
                }
            }
            if exit.is_none() {
                exit = self.child.try_exit()?.map(|exit| (exit, Instant::now()));
            }
            if let Some((exit, _)) = exit.take_if(|(_, ended)| is_closed || ended.elapsed() > REST) {
                if exit.error().is_some() {
                    // It may have ended by a signal that this process is about to receive, too.
                    thread::sleep(POLL);
                }
                if signals::received().is_none() {
                    return Ok(Ok(Line::End(exit)));
                }
            }
            if asked.elapsed() > self.patience {
                let seconds = humantime::format_duration(Duration::from_secs(self.patience.as_secs()));
                let message = format!("it was silent for {seconds}, and was ended");
                return Ok(Err(Failure::from(&Error::device(message))));
            }
        }
    }
}

/// Participants that live side by side and take turns, each as long as it does not fail.
#[derive(Default)]
pub(crate) struct Group {
    members: Vec<Answer<Running>>,
    turns: usize,
}

impl Group {
    /// Adds one that has been started.
    pub(crate) fn join(&mut self, member: Answer<Running>) {
        self.members.push(member);
    }

    /// Lets each make a turn of as many steps, or repeats, as `count` says, which may be none.
    /// `take` is told who made what; an answer that it refuses is a failure of its participant.
    ///
    /// # Errors
    /// A signal to this process.
    pub(crate) fn turn(
        &mut self,
        count: impl Fn(&Hello) -> usize,
        mut take: impl FnMut(usize, Turn) -> Answer<()>,
    ) -> Result<()> {
        let mut order = self.members.iter_mut().enumerate().collect::<Vec<_>>();
        // Nothing always comes first.
        if self.turns % 2 == 1 {
            order.reverse();
        }
        self.turns += 1;
        for (index, member) in order {
            let Ok(running) = member else { continue };
            let count = count(&running.hello);
            if count > 0
                && let Err(failure) = running.run(count)?.and_then(|turn| take(index, turn))
            {
                *member = Err(failure);
            }
        }
        Ok(())
    }

    /// The outcome of each, in the order in which they joined.
    pub(crate) fn end(self) -> Vec<Answer<Running>> {
        self.members
    }
}

enum Line {
    Said(String),
    End(Exit),
}

/// The lines of `output` as they come, from a thread that ends with it.
fn lines(output: ChildStdout) -> Result<Receiver<io::Result<String>>> {
    let (sender, receiver) = sync_channel(16);
    let read = move || {
        let mut output = BufReader::new(output);
        loop {
            let mut line = Vec::new();
            let read = output.by_ref().take(LONGEST).read_until(b'\n', &mut line);
            let is_whole = line.len() as u64 != LONGEST;
            let line = match read {
                Ok(0) => return,
                Ok(_) if is_whole => Ok(String::from_utf8_lossy(&line).into_owned()),
                Ok(_) => {
                    Err(io::Error::new(io::ErrorKind::InvalidData, format!("a line of more than {LONGEST} bytes")))
                }
                Err(error) => Err(error),
            };
            if sender.send(line).is_err() || !is_whole {
                return;
            }
        }
    };
    let thread = thread::Builder::new().name("kiln-participant".into()).spawn(read);
    thread.map_err(|error| Error::start("the thread that reads a participant's answers", &error))?;
    Ok(receiver)
}
