//! SIGINT and SIGTERM: the first one is remembered, and the work that runs asks for it at places where it can stop and
//! leave everything whole; a second one ends the process at once. Signals belong to the process, so this is the one
//! piece of global state; a library user who installs nothing is never stopped.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::error::{Error, Result};

static RECEIVED: OnceLock<Arc<AtomicUsize>> = OnceLock::new();

/// A signal that asks the process to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Ctrl-C.
    Interrupt,
    /// What `kill` and job schedulers send.
    Terminate,
}

impl Signal {
    /// Every signal that is watched for.
    pub const ALL: [Self; 2] = [Self::Interrupt, Self::Terminate];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
        }
    }

    /// Its number.
    pub fn number(self) -> i32 {
        match self {
            Self::Interrupt => SIGINT,
            Self::Terminate => SIGTERM,
        }
    }

    /// The exit code of a process that it stopped: 130 or 143.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
        }
    }

    /// The error that ends the work which it stopped; `message` says how far that work came.
    pub fn error(self, message: impl std::fmt::Display) -> Error {
        Error::interrupted(self, format!("{}: {message}", self.name()))
    }
}

/// From now on the first SIGINT or SIGTERM is remembered and the second ends the process. Installing twice is harmless.
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
    for signal in Signal::ALL {
        let number = signal.number();
        let code = i32::from(signal.exit_code());
        // In this order: the shutdown looks at the flag that the first signal sets after it.
        signal_hook::flag::register_conditional_shutdown(number, code, again.clone()).map_err(|e| failed(&e))?;
        signal_hook::flag::register(number, again.clone()).map_err(|e| failed(&e))?;
        signal_hook::flag::register_usize(number, received.clone(), code as usize).map_err(|e| failed(&e))?;
    }
    Ok(())
}

/// The signal that has been received, if any. Costs one atomic read.
pub fn received() -> Option<Signal> {
    let code = RECEIVED.get()?.load(Ordering::Relaxed);
    Signal::ALL.into_iter().find(|signal| usize::from(signal.exit_code()) == code)
}
