//! The signals that ask a process to stop, by their names, numbers and exit codes.

#[cfg(unix)]
use signal_hook::consts::SIGHUP;
use signal_hook::consts::{SIGINT, SIGTERM};

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
}
