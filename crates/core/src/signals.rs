//! SIGINT, SIGTERM and SIGHUP: the first one is remembered, and the work that runs asks for it at
//! places where it can stop and leave everything whole; a second one ends the process at once.
//! Signals belong to the process, so this is the one piece of global state; a library user who
//! installs nothing is never stopped.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

#[cfg(unix)]
use signal_hook::consts::SIGHUP;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::error::{Error, Result};

static RECEIVED: OnceLock<Arc<AtomicUsize>> = OnceLock::new();

/// A signal that asks the process to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Ctrl-C.
    Interrupt,
    /// The signal that `kill` and job schedulers send.
    Terminate,
    /// The terminal, or the connection to it, is gone.
    #[cfg(unix)]
    Hangup,
}

impl Signal {
    /// Every signal that is watched for.
    pub const ALL: &[Self] = &[
        Self::Interrupt,
        Self::Terminate,
        #[cfg(unix)]
        Self::Hangup,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
            #[cfg(unix)]
            Self::Hangup => "SIGHUP",
        }
    }

    /// Its number.
    pub fn number(self) -> i32 {
        match self {
            Self::Interrupt => SIGINT,
            Self::Terminate => SIGTERM,
            #[cfg(unix)]
            Self::Hangup => SIGHUP,
        }
    }

    /// The number of the signal by which an mpirun passes this one on to its processes and works
    /// on; of this one it would end them, and no longer read what they say. SIGUSR1 stands for
    /// SIGTERM and SIGHUP, SIGUSR2 for SIGINT.
    #[cfg(unix)]
    pub fn number_for_ranks(self) -> i32 {
        match self {
            Self::Interrupt => signal_hook::consts::SIGUSR2,
            Self::Terminate | Self::Hangup => signal_hook::consts::SIGUSR1,
        }
    }

    /// The exit code of a process that it stopped, 128 and its number, as shells have it: 129 for
    /// SIGHUP, 130 for SIGINT, 143 for SIGTERM.
    pub fn exit_code(self) -> u8 {
        128 + self.number() as u8
    }

    /// The signal that a process with this exit code was stopped by, if any.
    pub fn of_exit_code(code: i32) -> Option<Self> {
        Self::ALL.iter().copied().find(|signal| i32::from(signal.exit_code()) == code)
    }

    /// The error that ends the work which it stopped; `message` says how far that work came.
    pub fn error(self, message: impl std::fmt::Display) -> Error {
        Error::interrupted(self, format!("{}: {message}", self.name()))
    }
}

/// From now on the first SIGINT, SIGTERM or SIGHUP is remembered and the second ends the process. A
/// SIGHUP that is ignored, as `nohup` has it, stays ignored. Installing twice is harmless.
///
/// # Errors
/// The operating system's.
pub fn install() -> Result<()> {
    if RECEIVED.get().is_some() {
        return Ok(());
    }
    let failed = |error: &std::io::Error| Error::io("watch for signals", error);
    let received = RECEIVED.get_or_init(|| Arc::new(AtomicUsize::new(0)));
    let again = Arc::new(AtomicBool::new(false));
    for signal in Signal::ALL.iter().copied().filter(|signal| !is_nohup(*signal)) {
        let (number, code) = (signal.number(), i32::from(signal.exit_code()));
        // In this order: the shutdown looks at the flag that the first signal sets after it.
        signal_hook::flag::register_conditional_shutdown(number, code, again.clone()).map_err(|e| failed(&e))?;
        signal_hook::flag::register(number, again.clone()).map_err(|e| failed(&e))?;
        signal_hook::flag::register_usize(number, received.clone(), code as usize).map_err(|e| failed(&e))?;
    }
    Ok(())
}

/// From now on the signals that [`Signal::number_for_ranks`] names are taken as those that they
/// stand for, in a process of a launcher.
///
/// # Errors
/// The operating system's.
#[cfg(unix)]
pub fn take_user_signals() -> Result<()> {
    install()?;
    let Some(received) = RECEIVED.get() else { return Ok(()) };
    for signal in [Signal::Terminate, Signal::Interrupt] {
        let code = usize::from(signal.exit_code());
        let registered = signal_hook::flag::register_usize(signal.number_for_ranks(), received.clone(), code);
        registered.map_err(|error| Error::io("watch for signals", &error))?;
    }
    Ok(())
}

/// There are no such signals.
#[cfg(not(unix))]
pub fn take_user_signals() -> Result<()> {
    Ok(())
}

/// The signal that has been received, if any. Costs one atomic read.
pub fn received() -> Option<Signal> {
    Signal::of_exit_code(RECEIVED.get()?.load(Ordering::Relaxed) as i32)
}

/// Does `work`, which nothing can stop, in a thread of its own: a signal leaves the thread behind,
/// and the process that ends takes it along. Panics with `work`.
///
/// # Errors
/// The signal.
pub fn leaving<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> std::result::Result<T, Signal> {
    const LOOK: Duration = Duration::from_millis(5);
    let worker = thread::spawn(work);
    while !worker.is_finished() {
        if let Some(signal) = received() {
            return Err(signal);
        }
        thread::sleep(LOOK);
    }
    Ok(worker.join().unwrap_or_else(|panic| resume_unwind(panic)))
}

/// Whether this process was started to outlive its terminal.
#[cfg(unix)]
fn is_nohup(signal: Signal) -> bool {
    // SAFETY: the structure is plain data of C, for which zeroes are a value, and outlives the
    // call; without a new action the call only writes the present one into it.
    #[allow(unsafe_code)]
    let (status, action) = unsafe {
        let mut action = std::mem::zeroed::<libc::sigaction>();
        (libc::sigaction(signal.number(), std::ptr::null(), &mut action), action)
    };
    signal == Signal::Hangup && status == 0 && action.sa_sigaction == libc::SIG_IGN
}

#[cfg(not(unix))]
fn is_nohup(_signal: Signal) -> bool {
    false
}
