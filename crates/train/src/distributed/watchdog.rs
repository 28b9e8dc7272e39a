//! Ends a process that waits for the other ranks for too long: a rank that is gone without its
//! launcher knowing, or a link that is down, would hold it for ever. Kiln's own work between two
//! exchanges is not limited, only the wait for the others; a rank that works for long while others
//! wait tells them that it does.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kiln_core::error::{CONTINUE, Error, ErrorKind, Result};

/// The variable that sets how many seconds a rank waits for the others.
pub(super) const VARIABLE: &str = "KILN_MPI_TIMEOUT";

/// Ten minutes: the steps of ranks take unequal time, and so do loading data and saving.
const LIMIT: u64 = 600;

/// Since when this process waits, in milliseconds after [`start`] and 1; 0 while it does not wait.
/// One call of MPI is made at a time.
static WAITS_SINCE: AtomicU64 = AtomicU64::new(0);

/// When the watchdog began.
static BEGAN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();

fn now() -> u64 {
    BEGAN.get().map_or(0, |began| began.elapsed().as_millis() as u64 + 1)
}

/// A wait for the other ranks: from when it is made to when it is dropped.
pub(super) struct Watched;

impl Watched {
    pub(super) fn new() -> Self {
        WAITS_SINCE.store(now(), Ordering::Relaxed);
        Self
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        WAITS_SINCE.store(0, Ordering::Relaxed);
    }
}

/// Whether a call of MPI is being made.
pub(super) fn waits() -> bool {
    WAITS_SINCE.load(Ordering::Relaxed) != 0
}

/// How many seconds a rank waits for the others.
///
/// # Errors
/// A variable that is no number of seconds.
pub(super) fn limit() -> Result<u64> {
    match std::env::var(VARIABLE) {
        Err(_) => Ok(LIMIT),
        Ok(text) => text
            .parse::<u64>()
            .ok()
            .filter(|seconds| *seconds > 0)
            .ok_or_else(|| Error::config(format!("{VARIABLE}: expected a number of seconds above 0, got {text:?}"))),
    }
}

/// Begins to watch.
///
/// # Errors
/// A limit that is no number of seconds, and a thread that cannot be started.
pub(super) fn start() -> Result<()> {
    let limit = limit()?;
    BEGAN.get_or_init(Instant::now);
    let watch = move || loop {
        std::thread::sleep(Duration::from_millis(200));
        let since = WAITS_SINCE.load(Ordering::Relaxed);
        if since != 0 && now().saturating_sub(since) > limit * 1000 {
            let _ = writeln!(
                std::io::stderr(),
                "error: the other ranks have not answered for {limit} s: one of them hangs, or the network is down\n  help: \
                 {CONTINUE}; {VARIABLE} sets how long a rank waits"
            );
            // Nothing that runs at an exit may wait for MPI, which hangs.
            signal_hook::low_level::exit(i32::from(ErrorKind::Device.exit_code()));
        }
    };
    let started = std::thread::Builder::new().name("kiln-watchdog".into()).spawn(watch);
    started.map(drop).map_err(|error| Error::start("the thread that watches the other ranks", &error))
}
