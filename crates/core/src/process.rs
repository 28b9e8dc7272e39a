//! Processes that work for this one (a driver and its children) and the temporary folders that they
//! share. Every command that measures or proves something in processes of its own starts them here,
//! so that there is one answer to each of these questions: what a child says to people, what its
//! exit means, and what happens when the driver is stopped.
//!
//! A child ends when its driver ends, however that happens. A kiln reads its stdin, whose
//! other end only the driver holds, and ends where that ends ([`end_with_driver`]). Another program
//! ([`Kind::Foreign`]) is ended with all that it started when the driver drops it; on Linux the
//! kernel ends it besides when the driver is killed.
//!
//! A child answers its driver with a line of JSON in a file that the driver names: the value that
//! it was asked for ([`answer`]), or the error that ends it, by exit code, message and help
//! ([`tell`]). A program that knows nothing of the file, and ranks on other machines, tell an error
//! by a line on stderr that begins with `error: `.
//!
//! A temporary folder ([`scratch`]) is removed by the process that made it. The folder of a killed
//! process is removed by its children when they end, and by the next process that makes such a
//! folder: no process then holds the lock on the file beside it. That file is made and locked
//! before the folder and removed after it, so no folder is ever without its lock.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf, absolute};
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use tempfile::{NamedTempFile, TempDir};

use crate::error::{Error, ErrorKind, Result, says_out_of_memory};
use crate::signal::Signal;
use crate::signals;
use crate::words::json_words_in_line;

/// `word` as one word of a command that people paste into a POSIX shell, in single quotes where the
/// shell would read it otherwise; what stays bare is what Python's `shlex.quote` leaves bare.
pub fn shell_quoted(word: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "@%+=:,./-_".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.into();
    }
    format!("'{}'", word.replace('\'', r#"'"'"'"#)).into()
}

/// The variable that tells a kiln that its stdin is its driver's.
const CHILD: &str = "KILN_CHILD";

/// The variable with the path of the file for the child's answer.
const ANSWER: &str = "KILN_ANSWER";

/// The last line of a driver to a child that takes orders: what follows on stdin, its end too,
/// means nothing.
pub const END: &str = "end";

/// How often a child that is waited for is looked at. A child that touches memory at 4 GB/s, as a
/// processor can, takes 20 MB meanwhile.
const POLL: Duration = Duration::from_millis(5);

/// So much of the end of what a child says is read.
const SAID: u64 = 1 << 16;

/// This program.
///
/// # Errors
/// The operating system's.
pub fn this_program() -> Result<PathBuf> {
    std::env::current_exe().map_err(|error| Error::io("find this program", &error))
}

/// The answer of a child: what it was asked for, or the error that ended it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer<T> {
    Answer(T),
    Error(Told),
}

/// An error on its way from a child to its driver. The exit code stands for the kind.
#[derive(Debug, Serialize, Deserialize)]
struct Told {
    exit_code: u8,
    message: String,
    #[serde(default)]
    help: Option<String>,
}

/// Answers the driver of this process with `value`. A process without a driver prints it.
///
/// # Errors
/// A value that JSON cannot hold, and the operating system's.
pub fn answer<T: Serialize>(value: &T) -> Result<()> {
    let text = serde_json::to_string(&Answer::Answer(value)).map_err(|error| Error::data(format!("{error}")))?;
    let written = match std::env::var_os(ANSWER) {
        Some(file) => fs::write(file, text),
        None => writeln!(std::io::stdout(), "{text}"),
    };
    written.map_err(|error| Error::io("answer the driver", &error))
}

/// Tells the driver of this process, if there is one, the error that ends it. The exit code tells
/// the kind to a driver that cannot be told more.
pub fn tell(error: &Error) {
    let told = Told {
        exit_code: error.exit_code(),
        message: error.message().into(),
        help: error.help_line().map(str::to_owned),
    };
    if let (Some(file), Ok(text)) = (std::env::var_os(ANSWER), serde_json::to_string(&Answer::<()>::Error(told))) {
        let _ = fs::write(file, text);
    }
}

/// The file for the answer to the driver, for [`tell_without_memory`].
#[cfg(unix)]
static ANSWER_FILE: OnceLock<Option<std::ffi::CString>> = OnceLock::new();

/// [`tell`] of an error that is written down as JSON already. It allocates nothing and takes no
/// lock.
#[cfg(unix)]
pub fn tell_without_memory(text: &str) {
    use rustix::fs::{Mode, OFlags, open};

    if let Some(Some(file)) = ANSWER_FILE.get()
        && let Ok(file) =
            open(file.as_c_str(), OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY, Mode::RUSR | Mode::WUSR)
    {
        let _ = rustix::io::write(file, text.as_bytes());
    }
}

/// A process that works for this one. Dropped, it is killed.
#[derive(Debug)]
pub struct Child {
    child: std::process::Child,
    input: Option<ChildStdin>,
    said: PathBuf,
    answer: PathBuf,
    is_foreign: bool,
    /// Passes on what it says to people, as it says it.
    aloud: Option<std::thread::JoinHandle<()>>,
}

impl Child {
    /// Starts `command`. Its messages for people go to the file `said`; its stdout is as `command`
    /// sets it.
    ///
    /// # Errors
    /// A program that cannot be started; a file `said` that cannot be created.
    pub fn start(command: &mut Command, said: &Path, kind: Kind) -> Result<Self> {
        match kind {
            Kind::Foreign => command.env_remove(CHILD),
            Kind::Kiln | Kind::Apart | Kind::Aloud => command.env(CHILD, "1"),
        };
        if kind != Kind::Kiln {
            apart(command);
        }
        let mut answer = absolute(said).map_err(|error| Error::io("find the current folder", &error))?.into_os_string();
        answer.push(".json");
        // One that an earlier child left is not this one's.
        let _ = fs::remove_file(&answer);
        let file = File::create(said).map_err(|error| Error::io(format!("create {}", said.display()), &error))?;
        let (stderr, copy) = match kind {
            Kind::Aloud => (Stdio::piped(), Some(file)),
            Kind::Kiln | Kind::Apart | Kind::Foreign => (file.into(), None),
        };
        let spawned = command.env(ANSWER, &answer).stdin(Stdio::piped()).stderr(stderr).spawn();
        let mut child = spawned.map_err(|error| Error::start(command.get_program().display(), &error))?;
        let (input, stderr) = (child.stdin.take(), child.stderr.take());
        let is_foreign = kind == Kind::Foreign;
        let mut child = Self { child, input, said: said.into(), answer: answer.into(), is_foreign, aloud: None };
        if let (Some(mut stream), Some(mut file)) = (stderr, copy) {
            let listen = move || {
                let mut bytes = [0; 8192];
                while let Ok(count @ 1..) = stream.read(&mut bytes) {
                    // Whoever cannot be written to misses it.
                    let _ = std::io::stderr().write_all(&bytes[..count]);
                    let _ = file.write_all(&bytes[..count]);
                }
            };
            let listener = std::thread::Builder::new().spawn(listen);
            child.aloud = Some(listener.map_err(|error| Error::start("a thread", &error))?);
        }
        Ok(child)
    }

    /// Sends it a signal. One that has just ended needs none.
    #[cfg(unix)]
    pub fn signal(&self, signal: Signal) {
        let signal = rustix::process::Signal::from_named_raw(signal.number());
        if let (Some(signal), Some(child)) = (signal, rustix::process::Pid::from_raw(self.child.id().cast_signed())) {
            let _ = rustix::process::kill_process(child, signal);
        }
    }

    /// There are no signals to send.
    #[cfg(not(unix))]
    pub fn signal(&self, _: Signal) {}

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its stdout, where the command made that a pipe.
    pub fn take_output(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Writes a line to it. One that has ended cannot be written to; its exit tells why.
    pub fn tell(&mut self, line: &str) {
        if let Some(input) = &mut self.input {
            let _ = writeln!(input, "{line}").and_then(|()| input.flush());
        }
    }

    /// Closes its stdin. A kiln that has not been told [`END`] ends there.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// How it ended; none while it runs.
    ///
    /// # Errors
    /// The operating system's.
    pub fn try_exit(&mut self) -> Result<Option<Exit>> {
        let status = self.child.try_wait().map_err(|error| Error::io("wait for a process", &error))?;
        if let Some(listener) = self.aloud.take_if(|_| status.is_some()) {
            let _ = listener.join();
        }
        Ok(status.map(|status| {
            let answer = fs::read_to_string(&self.answer).ok();
            let _ = fs::remove_file(&self.answer);
            Exit { status, answer, said: tail(&self.said), is_foreign: self.is_foreign }
        }))
    }

    /// Waits until it ends; `stopped` says what a signal to this process has stopped.
    ///
    /// # Errors
    /// A signal to this process, and one that has not ended at the deadline.
    pub fn wait(self, deadline: Option<Instant>, stopped: &str) -> Result<Exit> {
        let is_over = |_: &Self| deadline.filter(|deadline| Instant::now() >= *deadline);
        let exit = self.watch(OnSignal::Stop, stopped, is_over)?;
        exit.map_err(|_| Error::device("it did not end in time"))
    }

    /// Watches it until it ends: its exit; or until `look`, which is asked again and again, has
    /// something to say of it, which ends it. `stopped` says what a signal to this process has
    /// stopped.
    ///
    /// # Errors
    /// A signal to this process.
    pub fn watch<T>(
        mut self,
        on_signal: OnSignal,
        stopped: &str,
        mut look: impl FnMut(&Self) -> Option<T>,
    ) -> Result<std::result::Result<Exit, T>> {
        let mut is_passed_on = false;
        loop {
            let exit = self.try_exit()?;
            if let Some(signal) = signals::received() {
                if on_signal == OnSignal::Stop || exit.is_some() {
                    return Err(signal.error(stopped));
                }
                if !is_passed_on {
                    self.signal(signal);
                    is_passed_on = true;
                }
            }
            if let Some(exit) = exit {
                return Ok(Ok(exit));
            }
            if let Some(seen) = look(&self) {
                return Ok(Err(seen));
            }
            std::thread::sleep(POLL);
        }
    }
}

/// The kinds of processes that work for this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A kiln.
    Kiln,
    /// A kiln to which a terminal's signals do not go: they reach this process alone, which passes
    /// them on.
    Apart,
    /// A kiln to which a terminal's signals do not go and that people listen to: its stderr is this
    /// process's, and goes to the file of its messages besides.
    Aloud,
    /// A program that is no kiln, or is yet to show that it is one. A terminal's signals do not go
    /// to it.
    Foreign,
}

/// The effect of a signal to this process on a child that it watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnSignal {
    /// The child is ended.
    Stop,
    /// The child gets the signal too, and its end is waited for.
    PassOn,
}

impl Drop for Child {
    fn drop(&mut self) {
        let has_ended = matches!(self.child.try_wait(), Ok(Some(_)));
        #[cfg(unix)]
        if self.is_foreign
            && let Some(group) = rustix::process::Pid::from_raw(self.child.id().cast_signed())
        {
            // Its children end with it: the group is gone when none of them is left.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        if !has_ended {
            // Its folders are the driver's or are swept, so nothing of it has to be brought to an
            // end.
            let _ = self.child.kill();
            let _ = self.child.wait();
            sweep();
        }
    }
}

/// The process that `command` starts has a process group of its own, and is killed when this thread
/// ends, where the system can do that.
#[cfg_attr(not(unix), allow(unused_variables))]
fn apart(command: &mut Command) {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    #[cfg(target_os = "linux")]
    end_with_parent(command, rustix::process::Signal::KILL);
}

/// Has the kernel send `signal` to the process that `command` starts when the thread that started
/// it ends.
#[cfg(target_os = "linux")]
pub fn end_with_parent(command: &mut Command, signal: rustix::process::Signal) {
    use std::os::unix::process::CommandExt;

    let driver = rustix::process::getpid();
    let ask = move || {
        rustix::process::set_parent_process_death_signal(Some(signal))?;
        // It may have ended before it was asked for.
        if rustix::process::getppid() == Some(driver) { Ok(()) } else { Err(rustix::io::Errno::SRCH.into()) }
    };
    // SAFETY: between fork and exec only what is safe in a signal handler may be called: the
    // closure makes two system calls and neither allocates nor takes a lock.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(ask);
    }
}

/// The end of the file `said`, as text.
fn tail(said: &Path) -> String {
    let mut bytes = Vec::new();
    let read = File::open(said).and_then(|mut file| {
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(SAID)))?;
        file.take(SAID).read_to_end(&mut bytes)
    });
    // A message that cannot be read counts as none: the exit code still tells what happened.
    let _ = read;
    String::from_utf8_lossy(&bytes).into_owned()
}

/// How a process ended, its answer, and the end of what it said to people.
#[derive(Debug, Clone)]
pub struct Exit {
    status: ExitStatus,
    answer: Option<String>,
    said: String,
    /// Its exit code means nothing here unless it tells as a kiln does.
    is_foreign: bool,
}

impl Exit {
    /// The process's failure as an error of this one; none when it ended well. This is the one
    /// place that says what an exit means. A kiln tells by its exit code and its answer. Of any
    /// other end, memory that ran out is told by the signal with which the kernel ends a process
    /// then (SIGKILL), or by the words of an allocator or a driver; what nothing tells is the
    /// device's failure.
    pub fn error(&self) -> Option<Error> {
        if self.status.success() {
            return None;
        }
        let told = self.told();
        let code = self.status.code().filter(|_| !self.is_foreign || told.is_some());
        let kind = code.and_then(ErrorKind::of_exit_code);
        let signal = signal_of(self.status);
        let mut lines = self.said.lines().map(str::trim).filter(|line| !line.is_empty());
        let last = lines.clone().next_back();
        let out_of_memory = lines.find(|line| says_out_of_memory(line));
        Some(match (kind, told) {
            (Some(kind), Some(error)) if kind != ErrorKind::Device || out_of_memory.is_none() => error.into_kind(kind),
            (_, Some(error)) if out_of_memory.is_some() => error.into_kind(ErrorKind::OutOfMemory),
            // A launcher whose rank was ended by a signal has said so.
            (_, Some(error)) if signal.is_none() => error.into_kind(kind.unwrap_or(ErrorKind::Device)),
            _ if signal == Some(SIGKILL) => Error::out_of_memory("the kernel killed its process (SIGKILL)"),
            _ => match (out_of_memory, Signal::ALL.iter().copied().find(|one| Some(one.number()) == signal)) {
                (Some(words), _) => Error::out_of_memory(words),
                (None, Some(signal)) => {
                    Error::interrupted(signal, format!("its process was ended by {}", signal.name()))
                }
                (None, None) => {
                    let said = last.map_or_else(|| ", and said nothing".to_owned(), |last| format!(": {last}"));
                    let how = if kind.is_some() { "failed" } else { "crashed" };
                    Error::of_kind(kind.unwrap_or(ErrorKind::Device), format!("it {how} ({}){said}", self.status))
                }
            },
        })
    }

    /// The answer of a process that ended well.
    ///
    /// # Errors
    /// The process's failure, as [`error`](Self::error) tells it; none or another answer.
    pub fn answer<T: DeserializeOwned>(&self) -> Result<T> {
        match (self.error(), self.answer.as_deref().map(serde_json::from_str::<Answer<T>>)) {
            (Some(error), _) => Err(error),
            (None, Some(Ok(Answer::Answer(value)))) => Ok(value),
            (None, Some(Err(error))) => Err(Error::data(format!("its answer: {}", json_words_in_line(&error)))),
            (None, _) => Err(Error::data("it ended before it had answered")),
        }
    }

    /// The error that the process told last, with its help.
    pub fn told(&self) -> Option<Error> {
        match self.answer.as_deref().map(serde_json::from_str::<Answer<IgnoredAny>>) {
            Some(Ok(Answer::Error(Told { message, help, .. }))) => {
                let error = Error::of_kind(ErrorKind::Device, message);
                Some(match help {
                    Some(help) => error.help(help),
                    None => error,
                })
            }
            _ => self.told_on_stderr(),
        }
    }

    /// The last `error: ` on stderr: of a program that does not answer in JSON, or of a rank on
    /// another machine, which the launcher passes on.
    fn told_on_stderr(&self) -> Option<Error> {
        const BEGIN: &str = "error: ";
        let begin = self.said.rmatch_indices(BEGIN).map(|(at, _)| at);
        let begin = begin.into_iter().find(|at| *at == 0 || self.said.as_bytes()[at - 1] == b'\n')?;
        let text = self.said[begin + BEGIN.len()..].trim_end();
        (!text.is_empty()).then(|| Error::of_text(ErrorKind::Device, text))
    }
}

const SIGKILL: i32 = 9;

#[cfg(unix)]
fn signal_of(status: ExitStatus) -> Option<i32> {
    std::os::unix::process::ExitStatusExt::signal(&status)
}

#[cfg(not(unix))]
fn signal_of(_: ExitStatus) -> Option<i32> {
    None
}

/// The process that `command` starts has no driver: neither its stdin nor its output is for this
/// process. It may be a rank of this one, and then tells the driver of this one an error.
pub fn without_driver(command: &mut Command) {
    command.env_remove(CHILD);
}

/// Whether the variable `name` tells a process of its driver.
pub fn is_drivers(name: &str) -> bool {
    [CHILD, ANSWER].contains(&name)
}

/// Whether a driver has started this process, and reads what it says.
pub fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Called by a kiln when it starts: where a driver has started it, it ends with that driver from
/// now on.
///
/// # Errors
/// No thread can be started.
pub fn end_with_driver() -> Result<()> {
    #[cfg(unix)]
    ANSWER_FILE.get_or_init(|| {
        use std::os::unix::ffi::OsStringExt;
        std::ffi::CString::new(std::env::var_os(ANSWER)?.into_vec()).ok()
    });
    match std::env::var_os(CHILD) {
        None => Ok(()),
        Some(state) if state == GONE => sweep_and_end(),
        Some(_) => orders().map(drop),
    }
}

/// Called where a child meets its driver's end before it has been told: the thread that listens to
/// the driver ends the process, after it has removed what the two leave. Returns where the driver
/// has merely closed what was written to.
pub fn await_end() {
    std::thread::sleep(Duration::from_secs(3));
}

/// Ends this process, whose driver has gone, and removes the folders that the two leave. The
/// program is begun anew for that: nothing of it computes or writes then, and its own locks are
/// released.
#[cfg_attr(not(unix), allow(unused_variables))]
fn clear_up(driver: Option<u32>) -> ! {
    #[cfg(unix)]
    if let Ok(program) = this_program() {
        use std::os::unix::process::CommandExt;
        // Its locks are released after its pipes, and before its children have another parent.
        let asked = Instant::now();
        while driver == parent() && asked.elapsed() < Duration::from_secs(3) {
            std::thread::sleep(POLL);
        }
        // Any command will do: it is not run.
        let _ = Command::new(program).arg("devices").env(CHILD, GONE).exec();
    }
    sweep_and_end()
}

/// The process that has started this one, as long as it lives.
fn parent() -> Option<u32> {
    #[cfg(unix)]
    return Some(std::os::unix::process::parent_id());
    #[cfg(not(unix))]
    None
}

fn sweep_and_end() -> ! {
    // Other processes of the same driver end at the same time.
    for _ in 0..40 {
        sweep();
        std::thread::sleep(POLL);
    }
    std::process::exit(i32::from(ErrorKind::Io.exit_code()))
}

/// The lines that the driver of this process writes to its stdin, as they come. Where they end
/// without [`END`], the driver is gone, and so is this process: nobody is left who would use what
/// it computes.
///
/// # Errors
/// No thread can be started.
pub fn orders() -> Result<&'static Mutex<Receiver<String>>> {
    static ORDERS: OnceLock<Mutex<Receiver<String>>> = OnceLock::new();
    if let Some(orders) = ORDERS.get() {
        return Ok(orders);
    }
    let (sender, receiver) = sync_channel(16);
    let driver = parent();
    let listen = move || {
        for line in BufReader::new(std::io::stdin()).lines() {
            let Ok(line) = line else { break };
            let is_end = line.trim() == END;
            if sender.send(line).is_err() || is_end {
                return;
            }
        }
        tracing::error!("the driver of this process has ended");
        clear_up(driver)
    };
    let thread = std::thread::Builder::new().name("kiln-driver".into()).spawn(listen);
    thread.map_err(|error| Error::start("the thread that listens to the driver", &error))?;
    Ok(ORDERS.get_or_init(|| Mutex::new(receiver)))
}

/// How the names of temporary folders begin.
const PREFIX: &str = "kiln-scratch-";

/// The ending of the file beside a temporary folder that is locked as long as somebody uses the
/// folder.
const LOCK: &str = "lock";

/// The ending of a folder that somebody is removing, and the state of a child whose driver has
/// gone.
const GONE: &str = "gone";

/// A temporary folder; dropped, it is removed.
#[derive(Debug)]
pub struct Scratch {
    /// Dropped first: without its file it would stay.
    folder: TempDir,
    _in_use: NamedTempFile,
}

impl Scratch {
    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Makes a temporary folder, after those that killed processes have left are removed.
///
/// # Errors
/// The operating system's.
pub fn scratch() -> Result<Scratch> {
    sweep();
    let failed = |error: std::io::Error| Error::io("make a temporary folder", &error);
    loop {
        let in_use = tempfile::Builder::new().prefix(PREFIX).suffix(&format!(".{LOCK}")).tempfile().map_err(failed)?;
        // In a file system without locks nobody else can lock it either, and so nobody removes the
        // folder.
        let _ = in_use.as_file().lock();
        // Another process may have taken it for one that is left, in the moment without a lock.
        if !in_use.path().exists() {
            continue;
        }
        let folder = in_use.path().with_extension("");
        let (parent, name) = (folder.parent().unwrap_or(Path::new(".")), folder.file_name().unwrap_or_default());
        match tempfile::Builder::new().prefix(name).rand_bytes(0).tempdir_in(parent) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            folder => return Ok(Scratch { folder: folder.map_err(failed)?, _in_use: in_use }),
        }
    }
}

/// Removes temporary folders that no process uses any more. A folder that cannot be removed is left
/// to the next process.
fn sweep() {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let path = entry.path();
        let ending = path.extension().unwrap_or_default();
        if ending == GONE {
            remove(&path);
        } else if ending == LOCK
            && let Ok(in_use) = File::options().write(true).open(&path)
            && in_use.try_lock().is_ok()
        {
            // The file last, and its lock until then.
            let folder = path.with_extension("");
            remove(&folder);
            if !folder.exists() {
                let _ = fs::remove_file(&path);
            }
        }
    }
}

/// Removes a temporary folder, first under another name, so that what has not ended yet does not
/// find it any more.
fn remove(folder: &Path) {
    let gone = folder.with_extension(GONE);
    if folder != gone && fs::rename(folder, &gone).is_err() {
        return;
    }
    // A file that was being made when the name changed, or another process that removes the same,
    // makes it fail once.
    for _ in 0..20 {
        let _ = fs::remove_dir_all(&gone);
        if !gone.exists() {
            return;
        }
        std::thread::sleep(POLL);
    }
}

#[cfg(all(test, unix))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn shell(script: &str) -> Exit {
        let folder = tempfile::tempdir().unwrap();
        let child = Child::start(Command::new("/bin/sh").args(["-c", script]), &folder.path().join("said"), Kind::Kiln)
            .unwrap();
        child.wait(None, "stopped").unwrap()
    }

    fn foreign(script: &str) -> (u8, String) {
        let folder = tempfile::tempdir().unwrap();
        let child =
            Child::start(Command::new("/bin/sh").args(["-c", script]), &folder.path().join("said"), Kind::Foreign);
        let error = child.unwrap().wait(None, "stopped").unwrap().error().unwrap();
        (error.exit_code(), error.to_string())
    }

    fn error(script: &str) -> (u8, String) {
        let error = shell(script).error().unwrap();
        (error.exit_code(), error.to_string())
    }

    /// The right-hand sides are those of Python's `shlex.quote`.
    #[test]
    fn a_word_of_a_command_is_quoted_as_python_quotes_it() {
        for (word, quoted) in [
            ("runs/a-b_1.5/plan.toml", "runs/a-b_1.5/plan.toml"),
            ("run.output_dir=runs/a", "run.output_dir=runs/a"),
            ("", "''"),
            ("my runs", "'my runs'"),
            ("~/runs", "'~/runs'"),
            ("$HOME;*", "'$HOME;*'"),
            ("größer", "'größer'"),
            ("ann's", r#"'ann'"'"'s'"#),
        ] {
            assert_eq!(shell_quoted(word), quoted);
        }
    }

    #[test]
    fn a_kiln_tells_by_its_exit_code_and_message() {
        assert!(shell("echo 'error: none' >&2").error().is_none());
        for code in (1..=7).chain([130, 143]) {
            let told = format!(r#"{{"error": {{"exit_code": {code}, "message": "b", "help": "c"}}}}"#);
            let script = format!("echo 'error: a' >&2; echo '{told}' > \"$KILN_ANSWER\"; exit {code}");
            assert_eq!(error(&script), (code, "b\n  help: c".into()));
        }
        assert_eq!(error("exit 3"), (3, "it failed (exit status: 3), and said nothing".into()));
        let told = r#"{"error": {"exit_code": 3, "message": "a file: out of memory", "help": null}}"#;
        assert_eq!(error(&format!("echo '{told}' | tee \"$KILN_ANSWER\" >&2; exit 3")).0, 3);
        let answer = |text: &str| shell(&format!("echo '{text}' > \"$KILN_ANSWER\"")).answer::<u32>();
        assert_eq!(answer(r#"{"answer": 7}"#).unwrap(), 7);
        for (text, what) in [(r#"{"answer": -7}"#, "its answer: "), (told, "it ended before it had answered")] {
            assert!(answer(text).unwrap_err().message().starts_with(what), "{text}");
        }
        let lost = shell("true").answer::<u32>().unwrap_err();
        assert_eq!((lost.exit_code(), lost.message()), (3, "it ended before it had answered"));
    }

    #[test]
    fn memory_that_ran_out_has_many_faces() {
        assert_eq!(error("kill -9 $$"), (4, "the kernel killed its process (SIGKILL)".into()));
        let abort = "echo 'memory allocation of 99 bytes failed' >&2; kill -ABRT $$";
        assert_eq!(error(abort), (4, "memory allocation of 99 bytes failed".into()));
        let panic = "echo 'thread panicked: CUDA_ERROR_OUT_OF_MEMORY' >&2; echo 'note: backtrace' >&2; exit 101";
        assert_eq!(error(panic), (4, "thread panicked: CUDA_ERROR_OUT_OF_MEMORY".into()));
        let told = "error: no luck, out of memory\nthen nothing";
        assert_eq!(foreign(&format!("echo '{told}' >&2; exit 7")), (4, "no luck, out of memory\nthen nothing".into()));
    }

    #[test]
    fn every_other_end_is_told_too() {
        assert_eq!(error("exit 101"), (7, "it crashed (exit status: 101), and said nothing".into()));
        let launcher = "echo 'error: rank 1 was ended by SIGKILL' >&2; echo '  help: go on' >&2; exit 137";
        assert_eq!(foreign(launcher), (7, "rank 1 was ended by SIGKILL\n  help: go on".into()));
        assert_eq!(error("echo a >&2; echo b >&2; exit 9"), (7, "it crashed (exit status: 9): b".into()));
        let (code, message) = error("kill -SEGV $$");
        assert!(code == 7 && message.starts_with("it crashed (signal: 11"), "{message}");
        assert_eq!(error("kill -TERM $$"), (143, "its process was ended by SIGTERM".into()));
        let much = "i=0; while [ $i -lt 3000 ]; do echo 'a line of thirty bytes or more' >&2; i=$((i+1)); done; exit 8";
        assert!(error(much).1.ends_with(": a line of thirty bytes or more"));
    }

    #[test]
    fn a_folder_goes_with_its_last_user() {
        let (mine, left) = (scratch().unwrap(), scratch().unwrap());
        fs::write(left.path().join("file"), "x").unwrap();
        // As a killed process leaves it: there, and locked by nobody.
        let path = left.path().to_owned();
        left._in_use.as_file().unlock().unwrap();
        sweep();
        assert!(!path.exists() && !path.with_extension(LOCK).exists() && mine.path().exists());
        let path = mine.path().to_owned();
        assert!(path.with_extension(LOCK).exists());
        drop(mine);
        assert!(!path.exists() && !path.with_extension(LOCK).exists());
    }

    /// Between any two steps of [`scratch`] its process may be killed.
    #[test]
    fn a_process_that_is_killed_while_it_makes_a_folder_leaves_none_for_ever() {
        let in_use = tempfile::Builder::new().prefix(PREFIX).suffix(&format!(".{LOCK}")).tempfile().unwrap();
        let path = in_use.into_temp_path().keep().unwrap();
        sweep();
        assert!(!path.exists());
    }

    #[test]
    fn what_another_program_has_started_ends_with_it() {
        let folder = scratch().unwrap();
        let script = format!("sleep 60 & echo $! > {}/pid; wait", folder.path().display());
        let child =
            Child::start(Command::new("/bin/sh").args(["-c", &script]), &folder.path().join("said"), Kind::Foreign);
        let pid = || fs::read_to_string(folder.path().join("pid")).unwrap_or_default().trim().to_owned();
        while pid().is_empty() {
            std::thread::sleep(POLL);
        }
        drop(child.unwrap());
        let gone = || !fs::read_to_string(format!("/proc/{}/stat", pid())).is_ok_and(|stat| !stat.contains(") Z "));
        let asked = Instant::now();
        while !gone() {
            assert!(asked.elapsed() < Duration::from_secs(5), "it is still there");
            std::thread::sleep(POLL);
        }
    }
}
