//! `kiln watch RUN` and `kiln train --watch`: the page on the screen, and the run behind it.
//!
//! The page reads the run folder alone. With `train --watch` the run is a process of its own, so
//! that nothing that ends it, a lack of memory for example, leaves the terminal in the page's
//! state; what it says is held back while the page is shown.

use std::collections::VecDeque;
use std::io::{IsTerminal, Read, Write, stdin, stdout};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kiln_core::error::{Error, Result};
use kiln_core::process::this_program;
use kiln_core::{clock, metrics, signals};
use kiln_train::run_folder::runs;
use ratatui::Terminal;
use ratatui::backend::TermionBackend;
use ratatui::termion::event::Key;
use ratatui::termion::input::TermRead;
use ratatui::termion::raw::{IntoRawMode, RawTerminal};
use ratatui::termion::screen::{ToAlternateScreen, ToMainScreen};
use ratatui::termion::{clear, cursor};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::follow::{Followed, runs_in};
use super::page::Page;

/// How often the folder is read.
const TICK: Duration = Duration::from_millis(500);

/// A terminal in the page's state: the other screen, no cursor, and every key comes at once.
/// Dropped, by a panic too, it is as it was.
struct Screen<W: Write + AsFd> {
    raw: RawTerminal<W>,
}

impl<W: Write + AsFd> Screen<W> {
    fn open(terminal: W) -> std::io::Result<Self> {
        let mut screen = Self { raw: terminal.into_raw_mode()? };
        write!(screen.raw, "{ToAlternateScreen}{}{}", clear::All, cursor::Hide)?;
        screen.raw.flush()?;
        Ok(screen)
    }
}

impl<W: Write + AsFd> Drop for Screen<W> {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = write!(self.raw, "{}{ToMainScreen}", cursor::Show).and_then(|()| self.raw.flush());
    }
}

/// Refuses to show a page without a terminal.
fn check_terminal(what: &str) -> Result<()> {
    if stdin().is_terminal() && stdout().is_terminal() {
        Ok(())
    } else {
        Err(Error::config(format!("{what}: expected a terminal on stdin and stdout"))
            .help("`kiln describe RUN` tells without a terminal how a run stands"))
    }
}

/// The keys that are pressed from now on. The thread that reads them ends with the process.
fn keys() -> Receiver<Key> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for key in stdin().keys() {
            let Ok(key) = key else { break };
            if sender.send(key).is_err() {
                break;
            }
        }
    });
    receiver
}

/// Shows `page` until somebody leaves it or `is_over` says so, which is asked at every tick and may
/// change the page.
fn show(page: &mut Page, since: Option<f64>, is_over: &mut dyn FnMut(&mut Page) -> bool) -> Result<()> {
    let io = |error: &std::io::Error| Error::io("show the page", error);
    let screen = Screen::open(stdout()).map_err(|error| io(&error))?;
    let mut terminal = Terminal::new(TermionBackend::new(stdout())).map_err(|error| io(&error))?;
    let keys = keys();
    while !is_over(page) {
        page.read(since);
        terminal.draw(|frame| page.draw(frame)).map_err(|error| io(&error))?;
        match keys.recv_timeout(TICK) {
            Ok(Key::Char('q' | 'Q') | Key::Esc | Key::Ctrl('c')) | Err(RecvTimeoutError::Disconnected) => break,
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
        }
    }
    // Before the screen, so that nothing is written after it is left.
    drop(terminal);
    drop(screen);
    Ok(())
}

fn page(folder: &Path) -> Page {
    Page {
        title: folder.display().to_string(),
        runs: runs_in(folder).into_iter().map(|(name, path)| Followed::new(name, &path)).collect(),
        said: Vec::new(),
        has_colors: console::colors_enabled(),
    }
}

/// The run in the folder `runs` that wrote last.
///
/// # Errors
/// There is none.
pub(crate) fn newest() -> Result<PathBuf> {
    let runs = Path::new("runs");
    let found = if runs.is_dir() { runs::list(runs)? } else { Vec::new() };
    let newest = found.into_iter().max_by_key(|(folder, _)| {
        let written =
            ["status.json", metrics::FILE].map(|file| folder.join(file).metadata().and_then(|it| it.modified()).ok());
        written.into_iter().max().flatten()
    });
    newest.map(|(folder, _)| folder).ok_or_else(|| {
        Error::config("watch: there is no run in the folder runs").help("name the run folder: `kiln watch FOLDER`")
    })
}

/// Shows the page of the run or the comparison in `folder`.
///
/// # Errors
/// No terminal, no run, and a signal.
pub(crate) fn watch(folder: &Path) -> Result<()> {
    check_terminal("kiln watch")?;
    let mut page = page(folder);
    page.read(None);
    if page.runs.iter().all(|run| run.status.is_none()) {
        return Err(Error::data(format!("{}: there is no run of Kiln's in this folder", folder.display()))
            .help("give a run folder, or that of a comparison or a search; `kiln runs FOLDER` lists the runs in a folder; a run begins with its first step"));
    }
    signals::install()?;
    // A comparison begins runs while it is watched.
    let mut is_over = |page: &mut Page| {
        let runs = runs_in(folder);
        if runs.iter().any(|(_, path)| page.runs.iter().all(|run| run.folder() != path)) {
            page.runs = runs.into_iter().map(|(name, path)| Followed::new(name, &path)).collect();
        }
        signals::received().is_some()
    };
    let shown = show(&mut page, None, &mut is_over);
    match signals::received() {
        // A terminal that is gone cannot be drawn on either.
        Some(signal) => Err(signal.error("the page was left; the run is not touched")),
        None => shown,
    }
}

/// The most bytes of a run's output that are held back; run.log has all of it.
const HELD: usize = 1 << 20;

/// The output of the run, which is held back while the page covers the terminal.
#[derive(Default)]
struct Said {
    /// Output is held back.
    is_held: bool,
    /// The output that is held back, in pieces: whether it is for stderr, and its bytes.
    held: VecDeque<(bool, Vec<u8>)>,
    /// The bytes of all that is held back.
    size: usize,
    /// The oldest pieces have been dropped.
    is_cut: bool,
}

impl Said {
    fn pass(is_error: bool, bytes: &[u8]) {
        // A stream that cannot be written to misses the output: run.log has it.
        let _ = if is_error {
            std::io::stderr().write_all(bytes)
        } else {
            stdout().write_all(bytes).and_then(|()| stdout().flush())
        };
    }

    /// Takes a piece of the run's output: holds it back, or passes it on.
    fn take(&mut self, is_error: bool, bytes: &[u8]) {
        if !self.is_held {
            return Self::pass(is_error, bytes);
        }
        self.held.push_back((is_error, bytes.to_vec()));
        self.size += bytes.len();
        while self.size > HELD
            && let Some((_, first)) = self.held.pop_front()
        {
            self.size -= first.len();
            self.is_cut = true;
        }
    }

    /// Prints the output that was held back, and passes on later output at once.
    fn release(&mut self) {
        self.is_held = false;
        if self.is_cut {
            Self::pass(false, b"... (run.log in the run folder has all lines)\n");
        }
        self.held.drain(..).for_each(|(is_error, bytes)| Self::pass(is_error, &bytes));
    }

    /// The last `count` lines that are held back.
    fn last(&self, count: usize) -> Vec<String> {
        let recent = self.held.iter().skip(self.held.len().saturating_sub(count));
        let bytes = recent.flat_map(|(_, bytes)| bytes).copied().collect::<Vec<_>>();
        let text = console::strip_ansi_codes(&String::from_utf8_lossy(&bytes)).into_owned();
        let lines = text.lines().map(str::to_owned).collect::<Vec<_>>();
        lines[lines.len().saturating_sub(count)..].to_vec()
    }
}

fn locked(said: &Mutex<Said>) -> MutexGuard<'_, Said> {
    said.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes what comes out of `stream`, a stream of the run's, until it ends.
fn listen(
    mut stream: impl Read + Send + 'static,
    is_error: bool,
    said: Arc<Mutex<Said>>,
) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut bytes = [0; 8192];
        while let Ok(count @ 1..) = stream.read(&mut bytes) {
            locked(&said).take(is_error, &bytes[..count]);
        }
    })
}

/// Passes on to the run the signals that this process gets, so that they stop it as they would
/// without a page.
fn forward(signals: &mut Signals, child: &Child) {
    for signal in signals.pending() {
        let found = rustix::process::Signal::from_named_raw(signal);
        if let (Some(signal), Some(child)) = (found, rustix::process::Pid::from_raw(child.id().cast_signed())) {
            // One that has just ended needs no signal.
            let _ = rustix::process::kill_process(child, signal);
        }
    }
}

/// Trains with the page of the run in `folder` on the screen: this command again, without
/// `--watch`, in a process of its own. Returns its exit code.
///
/// # Errors
/// No terminal, and a process that cannot be started.
pub(crate) fn train(folder: &Path, has_format: bool) -> Result<u8> {
    check_terminal("--watch")?;
    let failed = |error: std::io::Error| Error::io("watch a run", &error);
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(failed)?;
    let since = clock::seconds();
    let program = this_program()?;
    let mut command = Command::new(&program);
    command.args(std::env::args_os().skip(1).filter(|argument| argument != "--watch"));
    if !has_format {
        command.args(["--log-format", "table"]);
    }
    if console::colors_enabled() {
        command.env("CLICOLOR_FORCE", "1");
    }
    // Keys of the terminal are for the page: it passes on what is meant for the run.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| Error::start(program.display(), &error))?;
    let said = Arc::new(Mutex::new(Said { is_held: true, ..Said::default() }));
    let listeners = [
        child.stdout.take().map(|stream| listen(stream, false, said.clone())),
        child.stderr.take().map(|stream| listen(stream, true, said.clone())),
    ];
    let mut page = page(folder);
    let mut is_over = |page: &mut Page| {
        forward(&mut signals, &child);
        page.said = locked(&said).last(40);
        !matches!(child.try_wait(), Ok(None))
    };
    let shown = show(&mut page, Some(since), &mut is_over);
    locked(&said).release();
    if let Err(error) = shown {
        // The run needs no page.
        tracing::warn!("{error}");
    }
    if matches!(child.try_wait(), Ok(None)) {
        let line = "the page is left, and the run goes on here; Ctrl-C now stops it with a checkpoint";
        // A terminal that is gone needs no line.
        let _ = writeln!(std::io::stderr(), "{line}");
    }
    let status = loop {
        forward(&mut signals, &child);
        if let Some(status) = child.try_wait().map_err(failed)? {
            break status;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    for listener in listeners.into_iter().flatten() {
        let _ = listener.join();
    }
    Ok(exit_code(status))
}

/// The exit code of a process, as shells have it.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs::File;
    use std::os::fd::{AsRawFd, FromRawFd};

    use super::*;

    /// Whether a terminal shows what is typed and waits for whole lines.
    fn is_cooked(terminal: &File) -> bool {
        // SAFETY: the structure is plain data of C, for which zeroes are a value, and outlives the
        // call that writes to it.
        #[allow(unsafe_code)]
        let settings = unsafe {
            let mut settings = std::mem::zeroed::<libc::termios>();
            assert_eq!(libc::tcgetattr(terminal.as_raw_fd(), &mut settings), 0);
            settings
        };
        settings.c_lflag & (libc::ECHO | libc::ICANON) == libc::ECHO | libc::ICANON
    }

    #[test]
    fn what_is_held_back_has_an_end() {
        let mut said = Said { is_held: true, ..Said::default() };
        (0..300_000).for_each(|at| said.take(at % 2 == 0, format!("\u{1b}[1mline {at}\u{1b}[0m\n").as_bytes()));
        assert!(
            said.size <= HELD
                && said.is_cut
                && said.held.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() == said.size
        );
        assert_eq!(said.last(2), ["line 299998", "line 299999"]);
    }

    #[test]
    fn a_panic_restores_the_terminal() {
        let (mut master, mut slave) = (-1, -1);
        // SAFETY: the two numbers outlive the call, which writes to them alone; what it opens
        // belongs to nobody else.
        #[allow(unsafe_code)]
        let (mut master, slave) = unsafe {
            let none = std::ptr::null_mut();
            assert_eq!(libc::openpty(&mut master, &mut slave, none, std::ptr::null_mut(), std::ptr::null_mut()), 0);
            (File::from_raw_fd(master), File::from_raw_fd(slave))
        };
        let terminal = slave.try_clone().unwrap();
        let panicked = std::panic::catch_unwind(|| {
            let screen = Screen::open(terminal).unwrap();
            assert!(!is_cooked(&slave));
            std::panic::resume_unwind(Box::new(screen.raw.as_fd().as_raw_fd()));
        });
        assert!(panicked.is_err() && is_cooked(&slave));
        let (mut said, mut bytes) = (String::new(), [0; 64]);
        while !said.ends_with("\u{1b}[?25h\u{1b}[?1049l") {
            let count = master.read(&mut bytes).unwrap();
            assert!(count > 0, "{said:?}");
            said += std::str::from_utf8(&bytes[..count]).unwrap();
        }
        assert!(said.starts_with("\u{1b}[?1049h"), "{said:?}");
    }
}
