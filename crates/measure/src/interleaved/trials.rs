//! The driver's end: an arm of a measurement, the process that is asked for its turns, and the
//! turns of several arms that live side by side; see [`super::protocol`].

use std::io::{self, BufRead, BufReader, Read};
use std::process::{ChildStdout, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use kiln_core::error::{Error, Result};
use kiln_core::process::{Child, Exit};
use kiln_core::signals;
use kiln_core::words::{json_words_in_line, shortened};
use serde::de::DeserializeOwned;

use super::protocol::{END, Hello, Turn};
use crate::runner::{Answer, Attempt, Failure, Stop, Work};

/// Signals and the arm's end are looked for so often.
const POLL: Duration = Duration::from_millis(50);

/// After its end an arm's stdout may be held open by what it has started; what it has said
/// itself comes within this.
const REST: Duration = Duration::from_millis(500);

/// The longest line that an arm may answer with, in bytes: some 100,000 steps.
const LONGEST: u64 = 64 << 20;

/// An arm of a measurement: a program that makes turns, before it is started.
#[derive(Debug, Clone)]
pub(crate) struct Arm {
    /// Its name in tables.
    pub(crate) name: String,
    /// The engine of its mode on a config, or another program that speaks the protocol.
    pub(crate) work: Work,
    /// It may be silent for so long.
    pub(crate) patience: Duration,
}

/// The process of an arm. Dropped, it ends.
pub(crate) struct ArmProcess {
    child: Child,
    output: Receiver<io::Result<String>>,
    /// It may be silent for so long.
    patience: Duration,
    started: Instant,
    active: Duration,
    /// Its description of itself.
    pub(crate) hello: Hello,
}

impl Arm {
    /// An arm called `name` that does `work`.
    pub(crate) fn new(name: &str, work: Work, patience: Duration) -> Self {
        Self { name: name.into(), work: Work { stdout: Stdio::piped, ..work }, patience }
    }

    /// Starts the program and waits until it is ready.
    ///
    /// # Errors
    /// A program that cannot be started, one that says nothing for its patience or fails, and a
    /// signal to this process.
    pub(crate) fn start(&self) -> Attempt<ArmProcess> {
        let started = Instant::now();
        let mut child = self.work.start()?;
        let output = lines(child.take_output().expect("its stdout is a pipe"))?;
        let hello = Hello { provenance: serde_json::Value::Null, batch: 0, total_steps: 0, padding: None };
        let mut process = ArmProcess { child, output, patience: self.patience, started, active: Duration::ZERO, hello };
        process.hello = process.answer()?;
        process.active = started.elapsed();
        Ok(process)
    }
}

impl ArmProcess {
    /// Seconds since the process was started.
    pub(crate) fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Asks for `count` steps, or repeats.
    ///
    /// # Errors
    /// The arm's failure, and a signal to this process.
    pub(crate) fn run(&mut self, count: usize) -> Attempt<Turn> {
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
    /// The arm's failure, and a signal to this process.
    pub(crate) fn finish(mut self) -> Attempt<f64> {
        let began = Instant::now();
        self.child.tell(END);
        self.child.close_input();
        match self.line()? {
            Line::Said(more) => {
                Err(Failure::of_data(format!("expected its end, got {:?} on its stdout", shortened(&more.trim())))
                    .into())
            }
            Line::End(exit) => {
                let seconds = (self.active + began.elapsed()).as_secs_f64();
                exit.error().map_or(Ok(seconds), |error| Err(Failure::from(&error).into()))
            }
        }
    }

    fn answer<T: DeserializeOwned>(&mut self) -> Attempt<T> {
        let failure = match self.line()? {
            Line::Said(line) => match serde_json::from_str(&line) {
                Ok(answer) => return Ok(answer),
                Err(error) => {
                    let (why, got) = (json_words_in_line(&error), shortened(&line.trim()));
                    Failure::of_data(format!("expected a line of JSON on its stdout ({why}), got {got:?}"))
                }
            },
            Line::End(exit) => match exit.error() {
                Some(error) => Failure::from(&error),
                None => Failure::of_data("it ended before it had answered".into()),
            },
        };
        Err(failure.into())
    }

    /// The next line of its output, or its end.
    fn line(&mut self) -> Attempt<Line> {
        let asked = Instant::now();
        let (mut exit, mut is_closed) = (None::<(Exit, Instant)>, false);
        loop {
            // A turn may take long, and a signal may be for this process alone.
            if let Some(signal) = signals::received() {
                let stopped = signal.error("stopped while measuring; no report is made of what was not complete");
                return Err(stopped.into());
            }
            if is_closed {
                thread::sleep(POLL / 50);
            } else {
                match self.output.recv_timeout(POLL) {
                    Ok(Ok(line)) => return Ok(Line::Said(line)),
                    Ok(Err(error)) => return Err(Failure::from(&Error::io("read its stdout", &error)).into()),
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
                    return Ok(Line::End(exit));
                }
            }
            if asked.elapsed() > self.patience {
                let seconds = humantime::format_duration(Duration::from_secs(self.patience.as_secs()));
                let silent = Error::device(format!("it was silent for {seconds}, and was ended"));
                return Err(Failure::from(&silent).into());
            }
        }
    }
}

/// Arms that live side by side and take turns, each as long as it does not fail.
pub(crate) struct Interleaved {
    processes: Vec<Answer<ArmProcess>>,
    turns: usize,
}

impl Interleaved {
    /// Starts the arms one after the other, each of which then makes the steps of `begin`.
    ///
    /// # Errors
    /// A program that cannot be started, a signal to this process, and what `begin` refuses.
    pub(crate) fn start(arms: &[Arm], mut begin: impl FnMut(usize, &mut ArmProcess) -> Attempt<()>) -> Result<Self> {
        let processes = arms.iter().enumerate().map(|(index, arm)| {
            let begun = arm.start().and_then(|mut process| begin(index, &mut process).map(|()| process));
            Stop::of_arm(begun)
        });
        Ok(Self { processes: processes.collect::<Result<_>>()?, turns: 0 })
    }

    /// Lets each arm make a turn of as many steps, or repeats, as `count` says, which may be none.
    /// `take` is told who made what; an answer that it refuses is a failure of its arm. The order
    /// is the other way round in every second turn, so that no arm always comes first.
    ///
    /// # Errors
    /// A signal to this process.
    pub(crate) fn turn(
        &mut self,
        count: impl Fn(&Hello) -> usize,
        mut take: impl FnMut(usize, Turn) -> Answer<()>,
    ) -> Result<()> {
        let mut order = self.processes.iter_mut().enumerate().collect::<Vec<_>>();
        if self.turns % 2 == 1 {
            order.reverse();
        }
        self.turns += 1;
        for (index, answer) in order {
            let Ok(process) = answer else { continue };
            let count = count(&process.hello);
            if count > 0
                && let Err(failure) = Stop::of_arm(process.run(count))?.and_then(|turn| take(index, turn))
            {
                *answer = Err(failure);
            }
        }
        Ok(())
    }

    /// The outcome of each arm, in the order in which they were started.
    pub(crate) fn end(self) -> Vec<Answer<ArmProcess>> {
        self.processes
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
    let thread = thread::Builder::new().name("kiln-arm".into()).spawn(read);
    thread.map_err(|error| Error::start("the thread that reads an arm's answers", &error))?;
    Ok(receiver)
}
