//! Sees panics that nobody else reports. Burn runs kernels on threads of its own and catches what
//! panics there, so that a run goes on with values that were never computed (burn#5352). A hook,
//! installed once and in front of the hook that was there, notes every panic of a device's thread,
//! of Kiln's own threads, and of code of the compute stack.

use std::panic::{self, PanicHookInfo};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// Names of threads whose panics count: cubecl's device servers (`DSU-0-0`, `DSD-0-0`), Burn's,
/// Kiln's.
const THREADS: [&str; 4] = ["DSU-", "DSD-", "burn", "kiln-"];

/// Crates whose panics count wherever they happen.
const CRATES: [&str; 6] = ["/burn-", "/cubecl-", "/cubek-", "/wgpu-", "/naga-", "/cudarc-"];

/// More than these are not kept after a watch begins: a device that fails may fail thousands of
/// times.
const KEPT: usize = 64;

/// A panic that was seen.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Panic {
    /// The thread's name.
    pub thread: String,
    /// `FILE:LINE` of the panic.
    pub location: String,
    /// The message of the panic.
    pub message: String,
}

impl std::fmt::Display for Panic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "thread {} panicked at {}: {}", self.thread, self.location, self.message)
    }
}

/// The panics of the process.
struct Seen {
    panics: Vec<Panic>,
    /// How many there were when the latest watch began.
    watched: usize,
}

impl Seen {
    const fn new() -> Self {
        Self { panics: Vec::new(), watched: 0 }
    }

    fn add(&mut self, panic: Panic) {
        if self.panics.len() - self.watched < KEPT {
            self.panics.push(panic);
        }
    }

    fn watch(&mut self) -> usize {
        self.watched = self.panics.len();
        self.watched
    }

    fn of_driver(&self) -> Option<&Panic> {
        self.panics[self.watched..].iter().find(|panic| panic.message.contains(DRIVER_ERROR))
    }
}

static SEEN: Mutex<Seen> = Mutex::new(Seen::new());
static INSTALLED: Once = Once::new();

fn seen() -> MutexGuard<'static, Seen> {
    // A panic while the list was held leaves a list all the same.
    SEEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The panics since the value was made.
#[derive(Debug)]
pub struct Watch {
    from: usize,
}

impl Watch {
    /// Installs the hook, if that has not been done, and looks from now on.
    pub fn start() -> Self {
        INSTALLED.call_once(|| {
            let before = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                note(info);
                before(info);
            }));
        });
        Self { from: seen().watch() }
    }

    /// The panics since then, oldest first.
    pub fn panics(&self) -> Vec<Panic> {
        seen().panics.get(self.from..).unwrap_or_default().to_vec()
    }
}

/// The first panic of the compute stack at an error of the driver since the latest [`Watch`] began:
/// the device has failed. A run begins one, and begins another when it goes on after a failure,
/// whose panics explain nothing that comes later.
pub fn of_driver() -> Option<Panic> {
    seen().of_driver().cloned()
}

/// How a driver's error begins in the words of a panic.
const DRIVER_ERROR: &str = "DriverError(";

fn note(info: &PanicHookInfo<'_>) {
    let current = std::thread::current();
    let thread = current.name().unwrap_or("without a name").to_owned();
    let location = info.location().map_or_else(String::new, |at| format!("{}:{}", at.file(), at.line()));
    if counts(&thread, &location) {
        seen().add(Panic { thread, location, message: message(info.payload()) });
    }
}

fn counts(thread: &str, location: &str) -> bool {
    THREADS.iter().any(|name| thread.starts_with(name)) || is_of_compute_stack(location)
}

/// Whether `location`, `FILE:LINE` of a panic, is in a crate of the compute stack.
pub fn is_of_compute_stack(location: &str) -> bool {
    let location = location.replace('\\', "/");
    CRATES.iter().any(|name| location.contains(name))
}

/// The text that a panic carries.
pub fn message(payload: &dyn std::any::Any) -> String {
    let text = payload.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{KEPT, Panic, Seen, counts};

    #[test]
    fn the_failure_of_a_device_is_the_first_since_the_latest_watch() {
        let panic =
            |message: &str| Panic { thread: "DSD-0-0".into(), location: "a.rs:1".into(), message: message.into() };
        let mut seen = Seen::new();
        (0..2 * KEPT).for_each(|number| seen.add(panic(&format!("DriverError({number})"))));
        assert_eq!((seen.panics.len(), &seen.of_driver().unwrap().message[..]), (KEPT, "DriverError(0)"));
        assert_eq!(seen.watch(), KEPT);
        assert_eq!(seen.of_driver(), None, "a run that goes on after a failure does not fail by it again");
        seen.add(panic("index out of range"));
        assert_eq!(seen.of_driver(), None);
        seen.add(panic("DriverError(later)"));
        assert_eq!(seen.of_driver().unwrap().message, "DriverError(later)");
    }

    #[test]
    fn device_threads_and_the_compute_stack_count_and_others_do_not() {
        assert!(counts("DSD-0-0", "src/main.rs:1"));
        assert!(counts("kiln-loader", "src/main.rs:1"));
        assert!(counts("main", "/home/a/.cargo/registry/src/x/burn-fusion-0.22.1/src/server.rs:7"));
        assert!(counts("main", r"C:\cargo\registry\cubecl-runtime-0.11.3\src\a.rs:7"));
        assert!(!counts("main", "src/main.rs:1"));
        assert!(!counts("tokio-worker", "/home/a/.cargo/registry/src/x/hyper-1.0/src/a.rs:1"));
    }
}
