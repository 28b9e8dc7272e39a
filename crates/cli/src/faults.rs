//! The last nets of the command: memory that runs out where nothing can return an error, and a
//! panic, which is a defect of Kiln's. Either ends the process with one message and its exit code
//! (4 and 7); a process that trains becomes one with half its micro-batch before it ends with 4.
//! This module also shows the messages of the library ([`tracing`]) on stderr; a stderr that is
//! full or closed ends nothing.

use std::alloc::{GlobalAlloc, Layout, System};
#[cfg(unix)]
use std::ffi::CString;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
#[cfg(unix)]
use std::os::unix::ffi::OsStringExt;
use std::panic;
use std::path::PathBuf;
#[cfg(unix)]
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use console::style;
use kiln::distributed::World;
#[cfg(unix)]
use kiln::run_folder::Status;
use kiln::trainer::run_log::RunLog;
use kiln_core::device_error::device_error;
#[cfg(unix)]
use kiln_core::error::says_out_of_memory;
use kiln_core::error::{Error, Result, printable, says_no_thread};
#[cfg(unix)]
use kiln_core::host;
use kiln_core::{files, panics, process, signals};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::terminal::above_bar;

/// The system's allocator, with an end where it has no more memory: nothing that asks for a block
/// has another way to go on ([`files`] alone are read with one), and Rust's own end would print a
/// line of its own before it aborts the process.
#[derive(Debug, Clone, Copy)]
pub struct Allocator;

/// Requests below this many bytes are small. No code can go on without a small block: even an error
/// that names a file needs one.
const SMALL: usize = 1 << 16;

impl Allocator {
    fn checked(block: *mut u8, size: usize) -> *mut u8 {
        #[cfg(unix)]
        if block.is_null() && (size < SMALL || !files::may_lack_memory()) {
            out_of_memory(Lacking::Block);
        }
        block
    }
}

/// Whether a thread is saying with what error the process ends. Memory runs out for all threads at
/// once, and one says so.
static ENDING: AtomicBool = AtomicBool::new(false);

/// How long a thread without memory waits for the one that ends the process.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

/// The error of an end that leaves no memory or no time to make one, for people and for a driver.
#[cfg(unix)]
struct LastWords {
    text: &'static str,
    answer: &'static str,
}

/// [`LastWords`] of an exit code, a message and a help without a quote.
#[cfg(unix)]
macro_rules! last_words {
    ($exit_code:literal, $message:literal, $help:literal) => {
        LastWords {
            text: concat!("error: ", $message, "\n  help: ", $help, "\n"),
            answer: concat!(
                "{\"error\": {\"exit_code\": ",
                $exit_code,
                ", \"message\": \"",
                $message,
                "\", \"help\": \"",
                $help,
                "\"}}"
            ),
        }
    };
}

/// The run that this process trains.
#[cfg(unix)]
struct Restart {
    folder: Option<PathBuf>,
    /// The program that begins the run again with half its micro-batch.
    again: Option<Program>,
    /// Memory that is given back before the folder is told, which takes some.
    reserve: AtomicPtr<Reserve>,
}

#[cfg(unix)]
type Reserve = [u8; 1 << 16];

/// A program with its arguments, as the system takes them, and the address space in bytes that it
/// needs before its first step.
#[cfg(unix)]
struct Program {
    path: CString,
    _words: Vec<CString>,
    arguments: Vec<*const libc::c_char>,
    needs: u64,
}

#[cfg(unix)]
static RESTART: AtomicPtr<Restart> = AtomicPtr::new(std::ptr::null_mut());

/// From now on this process trains the run in `folder`; refused memory it begins again with
/// `arguments`.
#[cfg(unix)]
pub(super) fn begins_again(folder: Option<PathBuf>, arguments: Option<Vec<OsString>>) {
    let again = arguments.and_then(Program::new);
    let reserve = AtomicPtr::new(Box::into_raw(Box::new([0; size_of::<Reserve>()])));
    // One that was there stays in memory: a thread that ends the process may be reading it.
    RESTART.store(Box::into_raw(Box::new(Restart { folder, again, reserve })), Ordering::SeqCst);
}

/// The training has ended with `error`. Where that is a lack of memory of a process whose address
/// space is limited, this process becomes one with half its micro-batch, whose memory is all free:
/// a smaller batch in this one has only what the larger one gives back. A thread that the system
/// refuses is such a lack.
#[cfg(unix)]
pub(super) fn begin_again_after(error: &Error) {
    if error.kind() != kiln::ErrorKind::OutOfMemory || !(is_limited() || host::lacks_memory()) {
        return;
    }
    if let Some(program) = Restart::of_this_process().and_then(|training| training.again.as_ref())
        && !ENDING.swap(true, Ordering::SeqCst)
    {
        let _ = std::io::stdout().flush();
        program.begin();
        ENDING.store(false, Ordering::SeqCst);
    }
}

/// Whether the address space of this process is limited so that it may be refused some: a limit
/// above the machine's memory and the heaps of all threads, of which glibc reserves 64 MiB each and
/// up to eight a core, binds nobody.
#[cfg(unix)]
#[allow(unsafe_code)]
fn is_limited() -> bool {
    // SAFETY: the limit is plain data, which the call fills.
    let limit = unsafe {
        let mut limit = std::mem::zeroed::<libc::rlimit>();
        let is_told = libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) == 0;
        is_told.then_some(limit.rlim_cur).filter(|limit| *limit != libc::RLIM_INFINITY)
    };
    let heaps = (8 * 64 * host::threads()) as f64;
    let most = host::memory_mib().map_or(f64::INFINITY, |all| all + heaps);
    limit.is_some_and(|limit| (limit as f64) < most * f64::from(1 << 20))
}

/// The training is over.
#[cfg(unix)]
pub(super) fn trains_no_more() {
    RESTART.store(std::ptr::null_mut(), Ordering::SeqCst);
}

#[cfg(not(unix))]
pub(super) fn begins_again(_: Option<PathBuf>, _: Option<Vec<OsString>>) {}

#[cfg(not(unix))]
pub(super) fn begin_again_after(_: &Error) {}

#[cfg(not(unix))]
pub(super) fn trains_no_more() {}

#[cfg(unix)]
impl Restart {
    #[allow(unsafe_code)]
    fn of_this_process() -> Option<&'static Self> {
        // SAFETY: null, or a box that nobody frees.
        unsafe { RESTART.load(Ordering::SeqCst).as_ref() }
    }

    /// Writes into the run folder that the run has ended, and why. It takes some memory, little of
    /// it in one piece.
    #[allow(unsafe_code)]
    fn tell(&self, why: &str) {
        let Some(folder) = &self.folder else { return };
        let reserve = self.reserve.swap(std::ptr::null_mut(), Ordering::SeqCst);
        if !reserve.is_null() {
            // SAFETY: it came from a box, and whoever swaps it out is its one owner.
            drop(unsafe { Box::from_raw(reserve) });
        }
        let error = Error::out_of_memory(why);
        RunLog::new(folder).say(format_args!("ended: {error}"));
        if let Ok(Some(mut status)) = Status::read(folder) {
            status.end(Some(&error));
            let _ = status.write(folder);
        }
    }
}

#[cfg(unix)]
impl Program {
    /// This program with `arguments`; none where the system does not tell what it needs.
    fn new(arguments: Vec<OsString>) -> Option<Self> {
        let word = |word: OsString| CString::new(word.into_vec()).ok();
        let path = word(process::this_program().ok()?.into_os_string())?;
        let words = arguments.into_iter().map(word).collect::<Option<Vec<_>>>()?;
        let arguments = words.iter().map(|word| word.as_ptr()).chain([std::ptr::null()]).collect();
        let needs = (host::addresses_mib()? * f64::from(1 << 20)) as u64;
        Some(Self { path, _words: words, arguments, needs })
    }

    /// This process becomes the program, without allocating or taking a lock. It returns where the
    /// limit has become too low for that.
    #[allow(unsafe_code)]
    fn begin(&self) {
        const SAID: &str =
            "out of memory: the system has no more for this process, which begins again with half the micro-batch\n";
        // A run that is told to stop ends.
        if signals::received().is_some() {
            return;
        }
        // SAFETY: all are calls of the system; the limit and the set of signals are plain data that
        // the calls fill, and the arguments end with a null pointer.
        unsafe {
            let mut limit = std::mem::zeroed::<libc::rlimit>();
            if libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) != 0 || limit.rlim_cur < self.needs {
                return;
            }
            let _ = rustix::io::write(rustix::stdio::stderr(), SAID.as_bytes());
            let mut none = std::mem::zeroed::<libc::sigset_t>();
            libc::sigemptyset(&raw mut none);
            // The signal whose handler this is may come to the new program.
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
            libc::execv(self.path.as_ptr(), self.arguments.as_ptr());
        }
    }
}

/// The end of a process that the allocator has refused a block, or of one that was interrupted
/// where it may hold locks.
#[cfg(unix)]
#[derive(Clone, Copy)]
enum Lacking {
    Block,
    Interrupted,
}

/// Begins the run again with half its micro-batch, or ends the process with exit code 4, without
/// allocating or taking a lock; the run folder is told where no lock is held.
#[cfg(unix)]
fn out_of_memory(lacking: Lacking) -> ! {
    end_as_told();
    const BEGIN: &str = "error: ";
    const SAID: LastWords = last_words!(
        4,
        "out of memory: the system has no more for this process",
        "lower trainer.per_device_train_batch_size, data.block_size or the model's sizes, or raise the limit of memory \
         (`ulimit -v`, a container's)"
    );
    if ENDING.swap(true, Ordering::SeqCst) {
        std::thread::sleep(ENDS_WITHIN);
    } else {
        let training = Restart::of_this_process();
        if let Some(program) = training.and_then(|training| training.again.as_ref()) {
            program.begin();
        }
        process::tell_without_memory(SAID.answer);
        let _ = rustix::io::write(rustix::stdio::stderr(), SAID.text.as_bytes());
        // That of a rank is its log.
        if let Some((stderr, rank)) = super::ranks::stderr() {
            let parts = [BEGIN, rank, &SAID.text[BEGIN.len()..]];
            let _ = rustix::io::writev(stderr, &parts.map(|part| std::io::IoSlice::new(part.as_bytes())));
        }
        if let (Lacking::Block, Some(training)) = (lacking, training) {
            training.tell("out of memory: the system has no more for this process");
        }
    }
    signal_hook::low_level::exit(i32::from(kiln::ErrorKind::OutOfMemory.exit_code()))
}

/// Rust's handler of a fault, which tells a stack that has overflowed.
#[cfg(unix)]
static BEFORE: std::sync::OnceLock<libc::sigaction> = std::sync::OnceLock::new();

/// A fault at a stack while the system has no more memory is a stack that could not grow. Any other
/// comes again, to the handler before: a signal that a process has sent is sent again for that.
#[cfg(unix)]
#[allow(unsafe_code)]
extern "C" fn on_fault(signal: libc::c_int, info: *const libc::siginfo_t, context: *const libc::c_void) {
    // SAFETY: the system gives a handler with SA_SIGINFO a description of the signal and the state
    // that it has interrupted.
    let (is_sent, is_of_stack) = unsafe { ((*info).si_code <= 0, is_of_stack(info, context)) };
    if !is_sent && is_of_stack && host::lacks_memory() {
        out_of_memory(Lacking::Interrupted);
    }
    if let Some(before) = BEFORE.get() {
        // SAFETY: the action is one that the system gave. The signal is held back until this
        // handler returns.
        unsafe {
            libc::sigaction(signal, before, std::ptr::null_mut());
            if is_sent {
                libc::raise(signal);
            }
        }
    }
}

/// Whether the address of a fault is within 1 MiB of the stack pointer; true where the pointer is
/// not known.
///
/// # Safety
/// Both are what the system gives the handler of a fault.
#[cfg(unix)]
#[allow(unsafe_code)]
#[cfg_attr(not(all(target_os = "linux", target_arch = "x86_64")), allow(unused_variables))]
unsafe fn is_of_stack(info: *const libc::siginfo_t, context: *const libc::c_void) -> bool {
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    {
        // SAFETY: the caller's.
        let (at, registers) =
            unsafe { ((*info).si_addr() as usize, (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs) };
        at.abs_diff(registers[libc::REG_RSP as usize] as usize) < 1 << 20
    }
    #[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
    true
}

/// The exit code of the error that ends the process and all ranks; 0 before.
#[cfg(unix)]
static ENDS_WITH: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

/// MPI's time to end all ranks, in seconds.
#[cfg(unix)]
const ENDS_ALL_WITHIN: u32 = 5;

/// From now on the process ends with the exit code of `error`, whatever MPI makes of its end:
/// without memory it ends a process with another code, or not at all.
#[cfg(unix)]
#[allow(unsafe_code)]
pub(super) fn ends_with(error: &Error) {
    ENDS_WITH.store(error.exit_code(), Ordering::SeqCst);
    // SAFETY: the handler ends the process, and does nothing else.
    let _ = unsafe { signal_hook::low_level::register(libc::SIGALRM, end_as_told) };
    // SAFETY: it has no conditions.
    unsafe { libc::alarm(ENDS_ALL_WITHIN) };
}

#[cfg(not(unix))]
pub(super) fn ends_with(_: &Error) {}

/// Ends the process with the exit code that [`ends_with`] has told, if it has.
#[cfg(unix)]
fn end_as_told() {
    let code = ENDS_WITH.load(Ordering::SeqCst);
    if code != 0 {
        signal_hook::low_level::exit(i32::from(code));
    }
}

/// The process exits. Where a library does it in the middle of an exchange, which is how MPI ends
/// when it cannot start, and the system has no more memory, that is why; otherwise it is not the
/// MPI of the launcher.
#[cfg(unix)]
extern "C" fn on_exit() {
    end_as_told();
    if !World::waits() {
        return;
    }
    if host::lacks_memory() {
        out_of_memory(Lacking::Interrupted);
    }
    if World::is_starting() {
        process::tell_without_memory(NOT_STARTED.answer);
        let _ = rustix::io::write(rustix::stdio::stderr(), NOT_STARTED.text.as_bytes());
        signal_hook::low_level::exit(i32::from(kiln::ErrorKind::Config.exit_code()));
    }
}

#[cfg(unix)]
const NOT_STARTED: LastWords = last_words!(
    2,
    "the MPI library has ended this process while it started, with the words above",
    "it has to be the MPI of the launcher: KILN_MPI names another library; under Slurm `srun --mpi=pmix` starts Open MPI \
     and `srun --mpi=pmi2` MPICH, as far as they were built for it"
);

/// In this time a launcher, or rank 0, tells a rank that another one is gone.
#[cfg(unix)]
const RANK_IS_GONE: Duration = Duration::from_secs(1);

/// An abort, a fault or an exit of a library where the system has no more memory is one for want of
/// it: libraries in C (MPI, drivers) and Rust's runtime, which ask without Kiln's allocator, know
/// no other end. Any other stays one.
#[cfg(unix)]
#[allow(unsafe_code)]
fn end_aborts() {
    let aborted = || {
        if host::lacks_memory() {
            out_of_memory(Lacking::Interrupted);
        }
        // The transport of an MPI library aborts where a rank is gone; that the rank is gone is
        // told on another way, and ends this process with the exit code for it.
        if World::waits() {
            std::thread::sleep(RANK_IS_GONE);
        }
        let _ = signal_hook::low_level::emulate_default_handler(libc::SIGABRT);
    };
    // SAFETY: what runs in the handler makes system calls and looks at atomics, and nothing else.
    // Without it an abort is one.
    let _ = unsafe { signal_hook::low_level::register(libc::SIGABRT, aborted) };
    // SAFETY: the handler runs at the end of the process and unwinds nowhere.
    unsafe { libc::atexit(on_exit) };
    let handler: extern "C" fn(libc::c_int, *const libc::siginfo_t, *const libc::c_void) = on_fault;
    // SAFETY: all zero is an action; the handler is as above, on the stack for signals that Rust
    // gives its threads, and it is installed once it knows the one before.
    unsafe {
        let mut action = std::mem::zeroed::<libc::sigaction>();
        if libc::sigaction(libc::SIGSEGV, std::ptr::null(), &raw mut action) == 0 {
            let _ = BEFORE.set(action);
            action.sa_sigaction = handler as libc::sighandler_t;
            action.sa_flags = libc::SA_ONSTACK | libc::SA_SIGINFO;
            libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut());
        }
    }
}

// SAFETY: every call is the system allocator's with the same arguments, and its answer is returned
// as it is. Whether a file is being read is in a thread-local `Cell` that is initialised at compile
// time and needs no destructor, so reading it never allocates; the end of the process is an atomic
// flag and two system calls.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        Self::checked(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        Self::checked(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        Self::checked(unsafe { System.realloc(block, layout, size) }, size)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Makes the C library keep memory that is freed, up to 2 GiB at the end of the heap, for what is
/// asked for next. By default it gives it back to the system as soon as twice the largest block is
/// free there, and a step that computes in bf16 then finds 60 to 160 MiB of its tensors in pages
/// that the system has to clear again, every step (benches/results/2026-11-23-cpu-step-parts.md).
/// Blocks of 32 MiB or more are the system's as before: the library has no higher limit for them.
/// Under a limit of the address space (`ulimit -v`) all threads share one heap: the library would
/// reserve 64 MiB of addresses for each thread, and a run would fit under a low limit, where that
/// is refused, and not under a higher one.
#[allow(unsafe_code)]
pub(super) fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // The largest that the library takes; setting either ends the adaption of both.
        const MAPPED_FROM: libc::c_int = 32 << 20;
        // SAFETY: settings of the C library's allocator, which may be changed at any time. One
        // that it refuses stays as it is.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM);
            libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX);
            if is_limited() {
                libc::mallopt(libc::M_ARENA_MAX, 1);
            }
        }
    }
}

/// The panic of the main thread that was last seen, with its place, and whether it is one of the
/// compute stack.
static PANIC: Mutex<Option<(String, bool)>> = Mutex::new(None);

/// Whether it has been said that a thread of the device has failed.
static FAILED: AtomicBool = AtomicBool::new(false);

fn place_of(info: &panic::PanicHookInfo<'_>) -> String {
    info.location().map_or_else(String::new, |at| format!("{}:{}", at.file(), at.line()))
}

/// Puts the nets up, once.
pub(super) fn install() {
    #[cfg(unix)]
    end_aborts();
    let others = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        // A panic of the main thread is reported where it ends, which is here at the latest; others
        // keep Rust's message.
        if std::thread::current().name() != Some("main") {
            let (message, place) = (panics::message(info.payload()), place_of(info));
            // Whoever asked for a pool of threads that the system refuses panics of it in turn, and
            // ends with one message.
            if says_no_thread(&message) {
                return;
            }
            // A thread for which there is no memory panics as it begins, and aborts the process
            // then.
            #[cfg(unix)]
            if says_out_of_memory(&message) && host::lacks_memory() {
                out_of_memory(Lacking::Interrupted);
            }
            // A device that has failed panics at everything that it is asked for afterwards, and
            // whoever reads from it ends with the error: the first of these panics is enough.
            if !panics::is_of_compute_stack(&place) {
                others(info);
            } else if !FAILED.swap(true, Ordering::SeqCst) {
                tracing::warn!("a thread of the device has failed: {message} ({place})");
            }
            return;
        }
        let (message, place) = (panics::message(info.payload()), place_of(info));
        let backtrace = std::backtrace::Backtrace::capture();
        let is_of_device = panics::is_of_compute_stack(&place);
        let mut text = if is_of_device { message } else { format!("{message} ({place})") };
        if !is_of_device && backtrace.status() == std::backtrace::BacktraceStatus::Captured {
            let _ = write!(text, "\n{backtrace}");
        }
        *PANIC.lock().unwrap_or_else(PoisonError::into_inner) = Some((text, is_of_device));
    }));
    // Panics of the device's threads are noted from now on.
    panics::Watch::start();
    // Only the first call can fail to be the first.
    let _ = tracing::subscriber::set_global_default(Stderr);
}

/// Runs the command; a panic in it becomes an error.
pub(super) fn caught(run: impl FnOnce() -> Result<()>) -> Result<()> {
    panic::catch_unwind(panic::AssertUnwindSafe(run)).unwrap_or_else(|payload| {
        let seen = PANIC.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (message, is_of_device) = seen.unwrap_or_else(|| (panics::message(&*payload), false));
        // A panic of a thread of the device that goes on in this one comes without a call of the
        // hook.
        if is_of_device || panics::of_driver().is_some() {
            return Err(device_error(&message));
        }
        let error = Error::panicked("kiln", &message);
        Err(match error.kind() {
            kiln::ErrorKind::OutOfMemory => error,
            _ => error.help("this is a defect of Kiln's: please report it with the command line and the config"),
        })
    })
}

/// Writes a line to stderr, where that can be written to.
pub(super) fn complain(line: impl std::fmt::Display) {
    complain_styled(printable(&line.to_string()));
}

/// [`complain`] of a line that may hold styles.
fn complain_styled(line: impl std::fmt::Display) {
    let _ = above_bar(|| writeln!(std::io::stderr(), "{line}"));
}

/// Says with what error the process ends, to people and to a driver, unless a thread that has no
/// memory is ending it already: then that ends it.
pub(super) fn complain_last(error: &Error) {
    last_words(&error.to_string(), Some(error));
}

/// [`complain_last`] of an error that somebody else tells the driver.
pub(super) fn complain_last_to_people(text: &str) {
    last_words(text, None);
}

fn last_words(text: &str, told: Option<&Error>) {
    // Writing it takes no more memory, so that this thread does not wait for itself.
    let line = format!("{} {}", style("error:").red().bold().for_stderr(), printable(text));
    if ENDING.swap(true, Ordering::SeqCst) {
        std::thread::sleep(ENDS_WITHIN);
    } else {
        told.into_iter().for_each(process::tell);
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}

/// The end of the process after `error`. A device that has failed may keep the destructors of its
/// tensors and threads waiting for ever, so they are not run then; all files are written by now.
pub(super) fn end(error: &Error) -> std::process::ExitCode {
    use kiln::ErrorKind::{Device, OutOfMemory};
    #[cfg(unix)]
    if matches!(error.kind(), Device | OutOfMemory) {
        let _ = std::io::stdout().flush();
        signal_hook::low_level::exit(i32::from(error.exit_code()));
    }
    std::process::ExitCode::from(error.exit_code())
}

/// Shows what the library says, as lines on stderr: warnings and errors under that name, news as
/// they are.
struct Stderr;

/// The message of an event.
#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            let _ = write!(self.0, "{value:?}");
        }
    }
}

impl Subscriber for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("kiln") && *metadata.level() <= Level::INFO
    }

    fn event(&self, event: &Event<'_>) {
        let mut message = Message::default();
        event.record(&mut message);
        let begin = match *event.metadata().level() {
            Level::ERROR => style("error: ").red(),
            Level::WARN => style("warning: ").yellow(),
            _ => style(""),
        };
        complain_styled(format_args!("{}{}", begin.bold().for_stderr(), printable(&message.0)));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1) // no span is enabled
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
