//! SIGINT, SIGTERM and SIGHUP: the first one is remembered, and the work that runs asks for it at
//! places where it can stop and leave everything whole; a second one ends the process at once.
//! Signals belong to the process, so this is the one piece of global state; a library user who
//! installs nothing is never stopped.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::error::{Error, Result};
pub use crate::signal::Signal;

static RECEIVED: OnceLock<Arc<AtomicUsize>> = OnceLock::new();

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

/// A thread that waits for the first signal. Dropped, it waits no longer.
#[derive(Debug)]
pub struct Waiting {
    is_over: Arc<AtomicBool>,
    waiter: Option<JoinHandle<()>>,
}

/// Hands the first signal to `told` at once, from a thread of its own, whatever the work does
/// meanwhile. Where the system has no thread for it, nobody is told.
pub fn on_first(told: impl FnOnce(Signal) + Send + 'static) -> Waiting {
    const LOOK: Duration = Duration::from_millis(20);
    const STACK: usize = 1 << 18;
    let is_over = Arc::new(AtomicBool::new(false));
    let over = is_over.clone();
    let wait = move || {
        while !over.load(Ordering::Acquire) {
            if let Some(signal) = received() {
                return told(signal);
            }
            thread::park_timeout(LOOK);
        }
    };
    let waiter = thread::Builder::new().stack_size(STACK).spawn(wait).ok();
    Waiting { is_over, waiter }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(waiter) = self.waiter.take() {
            waiter.thread().unpark();
            // A panic of it has been shown, and ends nothing else.
            let _ = waiter.join();
        }
    }
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
