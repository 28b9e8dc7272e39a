//! Sees panics that nobody else reports. Burn runs kernels on threads of its own and catches what panics there, so that a
//! run goes on with values that were never computed (burn#5352). A hook, installed once and in front of the hook that was
//! there, notes every panic of a device's thread, of Kiln's own threads, and of code of the compute stack.

use std::panic::{self, PanicHookInfo};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// Names of threads whose panics count: cubecl's device servers (`DSU-0-0`, `DSD-0-0`), Burn's, Kiln's.
const THREADS: [&str; 4] = ["DSU-", "DSD-", "burn", "kiln-"];

/// Crates whose panics count wherever they happen.
const CRATES: [&str; 6] = ["/burn-", "/cubecl-", "/cubek-", "/wgpu-", "/naga-", "/cudarc-"];

/// More than these are not kept: a device that fails may fail thousands of times.
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

static SEEN: Mutex<Vec<Panic>> = Mutex::new(Vec::new());
static INSTALLED: Once = Once::new();

fn seen() -> MutexGuard<'static, Vec<Panic>> {
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
        Self { from: seen().len() }
    }

    /// The panics since then, oldest first.
    pub fn panics(&self) -> Vec<Panic> {
        seen().get(self.from..).unwrap_or_default().to_vec()
    }
}

/// The first panic of the compute stack at an error of the driver, in the whole process: the device has failed.
pub(crate) fn of_driver() -> Option<Panic> {
    seen().iter().find(|panic| panic.message.contains(DRIVER_ERROR)).cloned()
}

/// How a driver's error begins in the words of a panic.
const DRIVER_ERROR: &str = "DriverError(";

fn note(info: &PanicHookInfo<'_>) {
    let current = std::thread::current();
    let thread = current.name().unwrap_or("without a name").to_owned();
    let location = info.location().map_or_else(String::new, |at| format!("{}:{}", at.file(), at.line()));
    if counts(&thread, &location) {
        let mut seen = seen();
        if seen.len() < KEPT {
            seen.push(Panic { thread, location, message: message(info.payload()) });
        }
    }
}

fn counts(thread: &str, location: &str) -> bool {
    THREADS.iter().any(|name| thread.starts_with(name)) || is_of_compute_stack(location)
}

/// Whether `location`, `FILE:LINE` of a panic, is in a crate of the compute stack.
pub(crate) fn is_of_compute_stack(location: &str) -> bool {
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
    use super::counts;

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
