//! MPI, found and loaded when it is needed: nothing of it is linked. One program speaks to the two
//! binary interfaces that there are: that of Open MPI, whose handles are addresses of objects in
//! the library, and that of MPICH (also of Intel MPI, MVAPICH and Cray MPI), whose handles are
//! numbers (the MPICH ABI Compatibility Initiative).
#![allow(unsafe_code)] // foreign functions: see `Mpi`

use std::ffi::{c_char, c_int, c_void};
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, size_of_val};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use kiln_core::error::{CONTINUE, Error, Result};
use kiln_core::host;
use libloading::Library;

use super::environment::{Found, Launcher};
#[cfg(unix)]
use super::pmi::{Line, Meeting};
use super::watchdog::Watched;

/// The variable that names the library.
const VARIABLE: &str = "KILN_MPI";

/// The libraries that are looked for: Open MPI's, then those of MPICH's interface.
const OPEN_MPI: &[&str] = &["libmpi.so.40", "libmpi.so.80", "libmpi.so"];
const MPICH: &[&str] = &["libmpi.so.12", "libmpich.so.12", "libmpi_cray.so.12", "libmpi.so"];

/// More address space than mpirun, or a rank with its library, takes to start: Open MPI 4.1 up to
/// 60 MiB.
const STARTS_IN: usize = 96 << 20;

/// A handle: a pointer in Open MPI, a number of 32 bits in MPICH's interface, which is passed in
/// the same register.
type Handle = usize;

/// An exchange that leaves the processor to others looks so often whether it has ended, and moves
/// on what has come: at 1 Gbit/s some 12 KB, far less than the buffers of a socket.
const PATIENCE: std::time::Duration = std::time::Duration::from_micros(100);

/// `MPI_THREAD_SERIALIZED`: any thread may call, one at a time.
const SERIALIZED: c_int = 2;

/// The names of the levels of threads, from 0.
const LEVELS: [&str; 4] = ["MPI_THREAD_SINGLE", "MPI_THREAD_FUNNELED", "MPI_THREAD_SERIALIZED", "MPI_THREAD_MULTIPLE"];

/// More than any library's name and version take: MPICH has the longest limit, 8192 bytes.
const VERSION_SIZE: usize = 1 << 14;

/// The words by which libraries with MPICH's interface call themselves.
const OF_MPICH: [&str; 4] = ["MPICH", "Intel(R) MPI", "MVAPICH", "ParaStation"];

type LibraryVersion = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;
type InitThread = unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int) -> c_int;
type OfComm = unsafe extern "C" fn(Handle, *mut c_int) -> c_int;
type Exchange = unsafe extern "C" fn(*const c_void, c_int, Handle, *mut c_void, c_int, Handle, Handle) -> c_int;
/// With a request, which it begins.
type BeginExchange =
    unsafe extern "C" fn(*const c_void, c_int, Handle, *mut c_void, c_int, Handle, Handle, *mut Handle) -> c_int;
type Test = unsafe extern "C" fn(*mut Handle, *mut c_int, *mut c_void) -> c_int;
type Gather = unsafe extern "C" fn(*const c_void, c_int, Handle, *mut c_void, c_int, Handle, c_int, Handle) -> c_int;
type Bcast = unsafe extern "C" fn(*mut c_void, c_int, Handle, c_int, Handle) -> c_int;
type Abort = unsafe extern "C" fn(Handle, c_int) -> c_int;
type SetErrhandler = unsafe extern "C" fn(Handle, Handle) -> c_int;
type Finalize = unsafe extern "C" fn() -> c_int;

/// Whether `MPI_Init_thread` is being called.
static IS_STARTING: AtomicBool = AtomicBool::new(false);

/// Whether MPI is starting in this process.
pub(super) fn is_starting() -> bool {
    IS_STARTING.load(Ordering::SeqCst)
}

/// Whether this process has begun to meet the other ranks.
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

/// Whether this process has begun to meet the other ranks: it cannot do so again.
pub(super) fn has_begun() -> bool {
    HAS_BEGUN.load(Ordering::SeqCst)
}

/// The functions and the handles of a library that has been initialised.
///
/// Their signatures are those of the MPI standard (3.1), the same in all libraries, with a handle
/// as a word; the pointers that they are given point to slices of Kiln's that outlive the call, and
/// the counts are those of these slices. One thread calls at a time, the one that holds `calls`:
/// the library has said that this is enough for it (`MPI_THREAD_SERIALIZED`). `MPI_Abort` alone is
/// called besides, since it ends the process.
pub(super) struct Mpi {
    calls: Mutex<()>,
    all_to_all: Exchange,
    all_gather: Exchange,
    begin_all_to_all: BeginExchange,
    begin_all_gather: BeginExchange,
    test: Test,
    gather: Gather,
    broadcast: Bcast,
    abort: Abort,
    finalize: Finalize,
    world: Handle,
    byte: Handle,
    /// `MPI_STATUS_IGNORE`, an address.
    status_ignore: usize,
    /// The library's.
    name: String,
    /// Ranks of the world.
    size: usize,
    /// This is rank 0.
    is_root: bool,
    is_finished: AtomicBool,
    /// To rank 0, where the launcher has started no MPI.
    #[cfg(unix)]
    line: Option<Line>,
    /// Stays loaded as long as the functions may be called.
    _library: ManuallyDrop<Library>,
}

impl std::fmt::Debug for Mpi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mpi")
    }
}

/// The values that ranks exchange: numbers without padding or invalid bit patterns.
pub(super) trait Plain: Copy {}

impl Plain for f32 {}
impl Plain for f64 {}
impl Plain for u8 {}

impl Mpi {
    /// Loads the library and initialises it. The world has to be the one that `found` tells of.
    ///
    /// # Errors
    /// A config error where there is no library, or one that is not the launcher's.
    pub(super) fn start(found: &Found) -> Result<Self> {
        check_memory()?;
        let (name, library) = load(found)?;
        let missing = |what: &str| {
            Error::config(format!(
                "{name} has no {what}: it is no MPI that Kiln knows (Open MPI, or MPICH's interface)"
            ))
            .help(format!("{VARIABLE} names the library, as in {VARIABLE}=/usr/lib/x86_64-linux-gnu/libmpi.so.40"))
        };
        macro_rules! function {
            ($type:ty, $name:literal) => {
                // SAFETY: the type is the signature that the MPI standard gives the function of
                // this name.
                *unsafe { library.get::<$type>($name) }.map_err(|_| missing(&String::from_utf8_lossy($name)))?
            };
        }
        let object = |name: &[u8]| {
            // SAFETY: the symbol is an object; only its address is taken.
            unsafe { library.get::<*mut c_void>(name) }.ok().map(|symbol| *symbol as Handle)
        };
        let (init, size, rank) = (
            function!(InitThread, b"MPI_Init_thread"),
            function!(OfComm, b"MPI_Comm_size"),
            function!(OfComm, b"MPI_Comm_rank"),
        );
        let set_errhandler = function!(SetErrhandler, b"MPI_Comm_set_errhandler");
        let version = version(function!(LibraryVersion, b"MPI_Get_library_version"));
        let (world, byte, errors_return, status_ignore) = match object(b"ompi_mpi_comm_world") {
            Some(world) => {
                let handle = |name: &str| object(name.as_bytes()).ok_or_else(|| missing(name));
                (world, handle("ompi_mpi_byte")?, handle("ompi_mpi_errors_return")?, 0)
            }
            // MPI_COMM_WORLD, MPI_BYTE, MPI_ERRORS_RETURN and MPI_STATUS_IGNORE of MPICH's mpi.h.
            None if OF_MPICH.iter().any(|name| version.contains(name)) => (0x4400_0000, 0x4c00_010d, 0x5400_0001, 1),
            None => {
                return Err(Error::config(format!(
                    "{name} is no MPI that Kiln knows: it calls itself {version:?}, and expected is Open MPI, or one of MPICH's \
                     interface ({})",
                    OF_MPICH.join(", ")
                ))
                .help(install(found)));
            }
        };
        #[cfg(not(unix))]
        if found.launcher == Launcher::Torchrun {
            return Err(Error::config(format!("{}: on this system only an mpirun makes a world", found.variables))
                .help("start with `kiln launch -n N -- train FILE` or mpirun"));
        }
        #[cfg(unix)]
        let (line, variables) = match found.launcher {
            Launcher::Torchrun if status_ignore == 0 => {
                return Err(Error::config(format!(
                    "{} tell of {} ranks, of which {name} ({version}) makes no world",
                    found.variables, found.place.size
                ))
                .help(found.launcher.other_start()));
            }
            Launcher::Torchrun => {
                HAS_BEGUN.store(true, Ordering::SeqCst);
                Line::open(&found.place, &Meeting::find()?).map(|(line, set)| (Some(line), set.to_vec()))?
            }
            _ => (None, Vec::new()),
        };
        let mpi = Self {
            calls: Mutex::new(()),
            all_to_all: function!(Exchange, b"MPI_Alltoall"),
            all_gather: function!(Exchange, b"MPI_Allgather"),
            begin_all_to_all: function!(BeginExchange, b"MPI_Ialltoall"),
            begin_all_gather: function!(BeginExchange, b"MPI_Iallgather"),
            test: function!(Test, b"MPI_Test"),
            gather: function!(Gather, b"MPI_Gather"),
            broadcast: function!(Bcast, b"MPI_Bcast"),
            abort: function!(Abort, b"MPI_Abort"),
            finalize: function!(Finalize, b"MPI_Finalize"),
            world,
            byte,
            status_ignore,
            name: name.clone(),
            size: found.place.size,
            is_root: found.place.rank == 0,
            is_finished: AtomicBool::new(false),
            #[cfg(unix)]
            line,
            // MPI's threads and handlers stay: it cannot be unloaded.
            _library: ManuallyDrop::new(library),
        };
        let begin = || -> Result<()> {
            let (mut provided, mut of_world, mut own) = (0, 0, 0);
            #[cfg(unix)]
            for (name, value) in &variables {
                // SAFETY: no other thread reads the environment but through the standard library,
                // which has a lock for it: those of this process are Kiln's and Burn's, and a
                // driver of a GPU is called by none of them now. They stay: the library has threads
                // then, and the children of this process are none of its ranks
                // (`process::is_child`).
                unsafe { std::env::set_var(name, value) };
            }
            HAS_BEGUN.store(true, Ordering::SeqCst);
            IS_STARTING.store(true, Ordering::SeqCst);
            // SAFETY: see `Mpi`; null stands for the arguments of the program, which MPI does not
            // need.
            let started = mpi.call("MPI_Init_thread", || unsafe {
                init(std::ptr::null_mut(), std::ptr::null_mut(), SERIALIZED, &raw mut provided)
            });
            IS_STARTING.store(false, Ordering::SeqCst);
            started?;
            if provided < SERIALIZED {
                let level = usize::try_from(provided).ok().and_then(|level| LEVELS.get(level)).copied();
                return Err(Error::config(format!(
                    "{name} ({version}) provides {}, and expected is {} or more: Kiln calls it from more than one thread",
                    level.map_or_else(|| format!("the level {provided} of threads"), str::to_owned),
                    LEVELS[SERIALIZED as usize]
                ))
                .help(format!("take an MPI that was built for threads; {VARIABLE} names its library")));
            }
            // SAFETY: see `Mpi`; the numbers outlive the calls.
            unsafe {
                mpi.call("MPI_Comm_set_errhandler", || set_errhandler(world, errors_return))?;
                mpi.call("MPI_Comm_size", || size(world, &raw mut of_world))?;
                mpi.call("MPI_Comm_rank", || rank(world, &raw mut own))?;
            }
            let place = &found.place;
            if (of_world as usize, own as usize) != (place.size, place.rank) {
                let error = Error::config(format!(
                    "{} tell of {} ranks, and {name} finds a world of {of_world}, where this is rank {own}",
                    found.variables, place.size
                ));
                // A process that is alone in its library's world ends alone: its launcher ends the
                // others.
                return Err(error.help(found.launcher.other_start()));
            }
            Ok(())
        };
        let begun = begin();
        #[cfg(unix)]
        if let (Err(error), Some(line)) = (&begun, &mpi.line) {
            line.abort(error.exit_code());
        }
        begun.map(|()| mpi)
    }

    /// Makes a call of a function of this name, one at a time; the watchdog ends a process whose
    /// call does not return.
    fn call(&self, function: &str, make: impl FnOnce() -> c_int) -> Result<()> {
        let _alone = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let _watched = Watched::new();
        check(make(), function)
    }

    /// The name of the library.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Sends the `i`-th of equal parts of `sent` to rank `i`; `received` has the parts that the
    /// ranks have sent to this one.
    pub(super) fn all_to_all<T: Plain>(&self, sent: &[T], received: &mut [T]) -> Result<()> {
        let parts = Parts::of_each(sent, received, self.size)?;
        // SAFETY: see `Mpi` and `Parts`.
        self.call("MPI_Alltoall", || unsafe { parts.exchange(self.all_to_all, self) })
    }

    /// Sends all of `sent` to every rank; `received` has what the ranks have sent, one after the
    /// other.
    pub(super) fn all_gather<T: Plain>(&self, sent: &[T], received: &mut [T]) -> Result<()> {
        let parts = Parts::of_all(sent, received, self.size)?;
        // SAFETY: see `Mpi` and `Parts`.
        self.call("MPI_Allgather", || unsafe { parts.exchange(self.all_gather, self) })
    }

    /// [`all_to_all`](Self::all_to_all), which leaves the processor to others while it waits.
    pub(super) fn all_to_all_patiently<T: Plain>(&self, sent: &[T], received: &mut [T]) -> Result<()> {
        self.patiently("MPI_Ialltoall", self.begin_all_to_all, Parts::of_each(sent, received, self.size)?)
    }

    /// [`all_gather`](Self::all_gather), which leaves the processor to others while it waits.
    pub(super) fn all_gather_patiently<T: Plain>(&self, sent: &[T], received: &mut [T]) -> Result<()> {
        self.patiently("MPI_Iallgather", self.begin_all_gather, Parts::of_all(sent, received, self.size)?)
    }

    /// Begins `exchange` and looks now and then whether it has ended.
    fn patiently(&self, name: &str, exchange: BeginExchange, parts: Parts<'_>) -> Result<()> {
        let (mut request, mut is_done): (Handle, c_int) = (0, 0);
        let Parts { sent, received, count, .. } = parts;
        self.call(name, || {
            // SAFETY: see `Mpi` and `Parts`. MPI uses the memory until the request has ended, and
            // it is borrowed here until then: the loop below ends with it, or with an error after
            // which the process ends.
            let mut code =
                unsafe { exchange(sent, count, self.byte, received, count, self.byte, self.world, &raw mut request) };
            while code == 0 && is_done == 0 {
                let ignored = std::ptr::without_provenance_mut(self.status_ignore);
                // SAFETY: see `Mpi`: the request is the one that was begun, and the status is not
                // wanted.
                code = unsafe { (self.test)(&raw mut request, &raw mut is_done, ignored) };
                if is_done == 0 {
                    std::thread::sleep(PATIENCE);
                }
            }
            code
        })
    }

    /// Sends all of `sent` to rank 0, where `received` has what the ranks have sent, one after the
    /// other; it is left empty on the others.
    pub(super) fn gather<T: Plain>(&self, sent: &[T], received: &mut Vec<T>) -> Result<()> {
        let Parts { sent, received: to, count, .. } = Parts::of_all(sent, received, self.size)?;
        // SAFETY: see `Mpi` and `Parts`.
        self.call("MPI_Gather", || unsafe {
            (self.gather)(sent, count, self.byte, to, count, self.byte, 0, self.world)
        })?;
        if !self.is_root {
            received.clear();
        }
        Ok(())
    }

    /// Gives every rank the bytes of rank 0.
    pub(super) fn broadcast(&self, bytes: &mut [u8]) -> Result<()> {
        let count = count(bytes)?;
        // SAFETY: see `Mpi`: `bytes` has `count` bytes.
        self.call("MPI_Bcast", || unsafe {
            (self.broadcast)(bytes.as_mut_ptr().cast(), count, self.byte, 0, self.world)
        })
    }

    /// Ends MPI in this process, once; waits for the other ranks.
    pub(super) fn finish(&self) -> Result<()> {
        if self.is_finished.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        // SAFETY: see `Mpi`; nothing is called after it.
        self.call("MPI_Finalize", || unsafe { (self.finalize)() })?;
        #[cfg(unix)]
        if let Some(line) = &self.line {
            let _watched = Watched::new();
            line.close();
        }
        Ok(())
    }

    /// Whether MPI has ended in this process.
    pub(super) fn is_finished(&self) -> bool {
        self.is_finished.load(Ordering::SeqCst)
    }

    /// Ends all ranks with the exit code `code`.
    pub(super) fn abort(&self, code: u8) {
        if !self.is_finished() {
            #[cfg(unix)]
            if let Some(line) = &self.line {
                line.abort(code);
            }
            // SAFETY: see `Mpi`.
            unsafe { (self.abort)(self.world, c_int::from(code)) };
        }
    }
}

/// The memory of an exchange in which every rank sends parts of `count` bytes and gets one of each
/// rank: `received` has as many parts as there are ranks, and `sent` has as many or one.
struct Parts<'a> {
    sent: *const c_void,
    received: *mut c_void,
    count: c_int,
    borrowed: PhantomData<&'a mut ()>,
}

impl<'a> Parts<'a> {
    /// A part of `sent` for each of so many ranks.
    fn of_each<T: Plain>(sent: &'a [T], received: &'a mut [T], ranks: usize) -> Result<Self> {
        assert_eq!(sent.len(), received.len(), "an exchange keeps the size");
        Ok(Self::new(sent, received, count(&sent[..sent.len() / ranks])?))
    }

    /// All of `sent` for each of so many ranks.
    fn of_all<T: Plain>(sent: &'a [T], received: &'a mut [T], ranks: usize) -> Result<Self> {
        assert_eq!(sent.len() * ranks, received.len(), "every rank sends as much");
        Ok(Self::new(sent, received, count(sent)?))
    }

    fn new<T: Plain>(sent: &'a [T], received: &'a mut [T], count: c_int) -> Self {
        Self { sent: sent.as_ptr().cast(), received: received.as_mut_ptr().cast(), count, borrowed: PhantomData }
    }

    /// # Safety
    /// `function` is one of `mpi`'s that uses this memory as it is described.
    unsafe fn exchange(&self, function: Exchange, mpi: &Mpi) -> c_int {
        // SAFETY: the caller's.
        unsafe { function(self.sent, self.count, mpi.byte, self.received, self.count, mpi.byte, mpi.world) }
    }
}

/// The bytes of `values`, as MPI counts them.
fn count<T>(values: &[T]) -> Result<c_int> {
    let bytes = size_of_val(values);
    c_int::try_from(bytes).map_err(|_| Error::device(format!("MPI cannot send {bytes} bytes at once")))
}

/// Refuses to start MPI where the system has too little memory for it: MPI itself would end the
/// process, with an exit code of its own.
///
/// # Errors
/// Too little memory.
pub(super) fn check_memory() -> Result<()> {
    if host::refuses(STARTS_IN) {
        Err(no_memory(format_args!("MPI, which takes up to {} MiB, cannot start", STARTS_IN >> 20)))
    } else {
        Ok(())
    }
}

fn no_memory(refused: std::fmt::Arguments<'_>) -> Error {
    Error::out_of_memory(format!("{refused}: the system has no more memory for this process"))
        .help("raise the limit of memory (`ulimit -v`, a container's), and start again with `--resume`")
}

/// The result of an MPI function.
fn check(code: c_int, function: &str) -> Result<()> {
    match code {
        0 => Ok(()),
        code if host::lacks_memory() => Err(no_memory(format_args!("{function} failed with MPI's error {code}"))),
        code => Err(Error::device(format!("{function} failed with MPI's error {code}"))
            .help(format!("another rank has ended, or the network is down; {CONTINUE}"))),
    }
}

/// The library that `KILN_MPI` names, or else the first that there is, the launcher's own kind
/// before the other.
fn load(found: &Found) -> Result<(String, Library)> {
    let named = std::env::var(VARIABLE).ok().filter(|name| !name.is_empty());
    let of_kind = match found.launcher {
        Launcher::Hydra | Launcher::Torchrun => [MPICH, OPEN_MPI],
        Launcher::OpenMpi | Launcher::Slurm => [OPEN_MPI, MPICH],
    };
    let names = match &named {
        Some(name) => vec![name.as_str()],
        None => of_kind.concat(),
    };
    let mut refused = Vec::new();
    for name in names {
        match open(name).map_err(|error| reason(&error)) {
            Ok(library) => return Ok((name.to_owned(), library)),
            Err(reason) if host::lacks_memory() => {
                return Err(no_memory(format_args!("MPI cannot be loaded ({reason})")));
            }
            Err(reason) => refused.push(format!("  {name}: {reason}")),
        }
    }
    let what = named.map_or_else(
        || "no MPI library was found".to_owned(),
        |name| format!("{VARIABLE} = {name:?} cannot be loaded"),
    );
    refused.dedup();
    let looked_for = refused.join("\n");
    Err(Error::config(format!("{} tell of several ranks, and {what}. Looked for\n{looked_for}", found.variables))
        .help(install(found)))
}

/// How the library of the launcher is installed, or named.
fn install(found: &Found) -> String {
    let (debian, red_hat, library) = match found.launcher {
        Launcher::Hydra => ("mpich", "mpich", "libmpi.so.12"),
        Launcher::Torchrun => return Launcher::Torchrun.other_start().into(),
        Launcher::OpenMpi | Launcher::Slurm => ("openmpi-bin", "openmpi", "libmpi.so.40"),
    };
    format!(
        "install the MPI of the launcher on every machine (Debian, Ubuntu: `apt-get install {debian}`; Red Hat: `dnf install \
         {red_hat}`), or name its library: {VARIABLE}=/path/to/{library}"
    )
}

/// Name and version of the library that a launcher of this machine would find; none where there is
/// none.
///
/// # Errors
/// A library that `KILN_MPI` names and that cannot be loaded.
pub fn library() -> Result<Option<String>> {
    let named = std::env::var(VARIABLE).ok().filter(|name| !name.is_empty());
    let names = named.as_deref().map_or_else(|| [OPEN_MPI, MPICH].concat(), |name| vec![name]);
    let mut found = names.into_iter().map(open);
    // It stays loaded: not every library can be unloaded.
    let Some(library) = found.find_map(std::result::Result::ok).map(ManuallyDrop::new) else {
        return named.map_or(Ok(None), |name| {
            Err(Error::config(format!("{VARIABLE} = {name:?} cannot be loaded"))
                .help(format!("let {VARIABLE} name a library of MPI, or unset it")))
        });
    };
    // SAFETY: the type is the signature that the MPI standard gives the function of this name.
    let version_of = unsafe { library.get::<LibraryVersion>(b"MPI_Get_library_version") };
    Ok(version_of.ok().map(|ask| version(*ask)).filter(|version| !version.is_empty()))
}

/// The name and version of a library, one line. The function may be called before MPI is
/// initialised.
fn version(ask: LibraryVersion) -> String {
    let (mut text, mut length) = (vec![0_u8; VERSION_SIZE], 0);
    // SAFETY: see `Mpi`; the text has room for more than any library writes.
    let code = unsafe { ask(text.as_mut_ptr().cast(), &raw mut length) };
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(VERSION_SIZE);
    let text = String::from_utf8_lossy(&text[..if code == 0 { end } else { 0 }]).into_owned();
    let first = text.lines().next().unwrap_or_default();
    first.split(',').next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Loads the library `name`.
fn open(name: &str) -> std::result::Result<Library, libloading::Error> {
    // SAFETY: the initialisers of an MPI library do nothing but set it up.
    #[cfg(not(unix))]
    return unsafe { Library::new(name) };
    #[cfg(unix)]
    {
        use libloading::os::unix::{Library as UnixLibrary, RTLD_GLOBAL, RTLD_NOW};
        // SAFETY: as above. Its plugins look for its symbols, which are global for that.
        unsafe { UnixLibrary::open(Some(name), RTLD_NOW | RTLD_GLOBAL) }.map(Library::from)
    }
}

/// Why a library cannot be loaded, in the words of the loader.
fn reason(error: &libloading::Error) -> String {
    use std::error::Error as _;
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}
