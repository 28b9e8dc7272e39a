//! MPI, found and loaded when it is needed: nothing of it is linked. One program speaks to the two binary interfaces that there
//! are: that of Open MPI, whose handles are addresses of objects in the library, and that of MPICH (also of Intel MPI,
//! MVAPICH and Cray MPI), whose handles are numbers (the MPICH ABI Compatibility Initiative).
#![allow(unsafe_code)] // foreign functions: see `Mpi`

use std::ffi::{c_char, c_int, c_void};
use std::mem::{ManuallyDrop, size_of_val};
use std::sync::atomic::{AtomicBool, Ordering};

use libloading::Library;

use super::environment::{Found, Launcher};
use crate::base::error::{Error, Result};

/// The variable that names the library.
const VARIABLE: &str = "KILN_MPI";

/// The libraries that are looked for: Open MPI's, then those of MPICH's interface.
const OPEN_MPI: &[&str] = &["libmpi.so.40", "libmpi.so.80", "libmpi.so"];
const MPICH: &[&str] = &["libmpi.so.12", "libmpich.so.12", "libmpi_cray.so.12", "libmpi.so"];

/// A handle: a pointer in Open MPI, a number of 32 bits in MPICH's interface, which is passed in the same register.
type Handle = usize;

/// `MPI_THREAD_SERIALIZED`: any thread may call, one at a time.
const SERIALIZED: c_int = 2;

type InitThread = unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int) -> c_int;
type OfComm = unsafe extern "C" fn(Handle, *mut c_int) -> c_int;
type Exchange = unsafe extern "C" fn(*const c_void, c_int, Handle, *mut c_void, c_int, Handle, Handle) -> c_int;
type Bcast = unsafe extern "C" fn(*mut c_void, c_int, Handle, c_int, Handle) -> c_int;
type WithComm = unsafe extern "C" fn(Handle) -> c_int;
type Abort = unsafe extern "C" fn(Handle, c_int) -> c_int;
type SetErrhandler = unsafe extern "C" fn(Handle, Handle) -> c_int;
type Finalize = unsafe extern "C" fn() -> c_int;

/// The functions and the handles of a library that has been initialised.
///
/// Their signatures are those of the MPI standard (3.1), the same in all libraries, with a handle as a word; the pointers that
/// they are given point to slices of Kiln's that outlive the call, and the counts are those of these slices. One thread calls at
/// a time: the training thread, which owns the world.
pub(super) struct Mpi {
    all_to_all: Exchange,
    all_gather: Exchange,
    broadcast: Bcast,
    barrier: WithComm,
    abort: Abort,
    finalize: Finalize,
    world: Handle,
    byte: Handle,
    /// The library's.
    name: String,
    /// Ranks of the world.
    size: usize,
    is_finished: AtomicBool,
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
        let (name, library) = load(found)?;
        let missing = |what: &str| {
            Error::config(format!(
                "{name} has no {what}: it is no MPI that Kiln knows (Open MPI, or MPICH's interface)"
            ))
            .help(format!("{VARIABLE} names the library, as in {VARIABLE}=/usr/lib/x86_64-linux-gnu/libmpi.so.40"))
        };
        macro_rules! function {
            ($type:ty, $name:literal) => {
                // SAFETY: the type is the signature that the MPI standard gives the function of this name.
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
        let (world, byte, errors_return) = match object(b"ompi_mpi_comm_world") {
            Some(world) => {
                let handle = |name: &str| object(name.as_bytes()).ok_or_else(|| missing(name));
                (world, handle("ompi_mpi_byte")?, handle("ompi_mpi_errors_return")?)
            }
            // MPI_COMM_WORLD, MPI_BYTE and MPI_ERRORS_RETURN of MPICH's mpi.h.
            None => (0x4400_0000, 0x4c00_010d, 0x5400_0001),
        };
        let mpi = Self {
            all_to_all: function!(Exchange, b"MPI_Alltoall"),
            all_gather: function!(Exchange, b"MPI_Allgather"),
            broadcast: function!(Bcast, b"MPI_Bcast"),
            barrier: function!(WithComm, b"MPI_Barrier"),
            abort: function!(Abort, b"MPI_Abort"),
            finalize: function!(Finalize, b"MPI_Finalize"),
            world,
            byte,
            name: name.clone(),
            size: found.place.size,
            is_finished: AtomicBool::new(false),
            // MPI's threads and handlers stay: it cannot be unloaded.
            _library: ManuallyDrop::new(library),
        };
        let (mut provided, mut of_world, mut own) = (0, 0, 0);
        // SAFETY: see `Mpi`; null stands for the arguments of the program, which MPI does not need.
        let codes = unsafe {
            let started = init(std::ptr::null_mut(), std::ptr::null_mut(), SERIALIZED, &raw mut provided);
            [started, set_errhandler(world, errors_return), size(world, &raw mut of_world), rank(world, &raw mut own)]
        };
        for (code, what) in
            codes.into_iter().zip(["MPI_Init_thread", "MPI_Comm_set_errhandler", "MPI_Comm_size", "MPI_Comm_rank"])
        {
            check(code, what)?;
        }
        let place = &found.place;
        if (of_world as usize, own as usize) != (place.size, place.rank) {
            let error = Error::config(format!(
                "{} tell of {} ranks, and {name} finds a world of {of_world}, where this is rank {own}",
                found.variables, place.size
            ));
            // A process that is alone in its library's world ends alone: its launcher ends the others.
            return Err(error.help(match found.launcher {
                Launcher::Torchrun => {
                    "torchrun starts no MPI: start with `kiln launch -n N -- train FILE`, mpirun or srun".to_owned()
                }
                Launcher::Slurm => format!(
                    "start with `srun --mpi=pmix` (or pmi2, by what this MPI was built for: `srun --mpi=list`); {VARIABLE} names \
                     another library"
                ),
                Launcher::OpenMpi | Launcher::Hydra => {
                    format!("the library is not that of this mpirun: {VARIABLE} names the right one")
                }
            }));
        }
        Ok(mpi)
    }

    /// The name of the library.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Sends the `i`-th of equal parts of `sent` to rank `i`; `received` has the parts that the ranks have sent to this one.
    pub(super) fn all_to_all<T: Plain>(&self, sent: &[T], received: &mut [T]) -> Result<()> {
        assert_eq!(sent.len(), received.len(), "an exchange keeps the size");
        let count = count(&sent[..sent.len() / self.size])?;
        // SAFETY: see `Mpi`: both slices have `size` parts of `count` bytes.
        let code = unsafe {
            (self.all_to_all)(
                sent.as_ptr().cast(),
                count,
                self.byte,
                received.as_mut_ptr().cast(),
                count,
                self.byte,
                self.world,
            )
        };
        check(code, "MPI_Alltoall")
    }

    /// Sends all of `sent` to every rank; `received` has what the ranks have sent, one after the other.
    pub(super) fn all_gather<T: Plain>(&self, sent: &[T], received: &mut [T]) -> Result<()> {
        assert_eq!(sent.len() * self.size, received.len(), "every rank sends as much");
        let count = count(sent)?;
        // SAFETY: see `Mpi`: `sent` has `count` bytes, and `received` `size` times as many.
        let code = unsafe {
            (self.all_gather)(
                sent.as_ptr().cast(),
                count,
                self.byte,
                received.as_mut_ptr().cast(),
                count,
                self.byte,
                self.world,
            )
        };
        check(code, "MPI_Allgather")
    }

    /// Gives every rank the bytes of rank 0.
    pub(super) fn broadcast(&self, bytes: &mut [u8]) -> Result<()> {
        let count = count(bytes)?;
        // SAFETY: see `Mpi`: `bytes` has `count` bytes.
        check(unsafe { (self.broadcast)(bytes.as_mut_ptr().cast(), count, self.byte, 0, self.world) }, "MPI_Bcast")
    }

    /// Waits until all ranks are here.
    pub(super) fn barrier(&self) -> Result<()> {
        // SAFETY: see `Mpi`.
        check(unsafe { (self.barrier)(self.world) }, "MPI_Barrier")
    }

    /// Ends MPI in this process, once; waits for the other ranks.
    pub(super) fn finish(&self) -> Result<()> {
        if self.is_finished.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        // SAFETY: see `Mpi`; nothing is called after it.
        check(unsafe { (self.finalize)() }, "MPI_Finalize")
    }

    /// Ends all ranks with the exit code `code`.
    pub(super) fn abort(&self, code: u8) {
        if !self.is_finished.load(Ordering::SeqCst) {
            // SAFETY: see `Mpi`.
            unsafe { (self.abort)(self.world, c_int::from(code)) };
        }
    }
}

/// The bytes of `values`, as MPI counts them.
fn count<T>(values: &[T]) -> Result<c_int> {
    let bytes = size_of_val(values);
    c_int::try_from(bytes).map_err(|_| Error::device(format!("MPI cannot send {bytes} bytes at once")))
}

/// The result of an MPI function.
fn check(code: c_int, function: &str) -> Result<()> {
    match code {
        0 => Ok(()),
        code => Err(Error::device(format!("{function} failed with MPI's error {code}"))
            .help("another rank has ended, or the network is down; continue with `kiln train FILE --resume`")),
    }
}

/// The library that `KILN_MPI` names, or else the first that there is, the launcher's own kind before the other.
fn load(found: &Found) -> Result<(String, Library)> {
    let named = std::env::var(VARIABLE).ok().filter(|name| !name.is_empty());
    let of_kind = match found.launcher {
        Launcher::Hydra => [MPICH, OPEN_MPI],
        Launcher::OpenMpi | Launcher::Slurm | Launcher::Torchrun => [OPEN_MPI, MPICH],
    };
    let names = match &named {
        Some(name) => vec![name.as_str()],
        None => of_kind.concat(),
    };
    let mut refused = Vec::new();
    for name in names {
        match open(name) {
            Ok(library) => return Ok((name.to_owned(), library)),
            Err(error) => refused.push(format!("  {name}: {}", reason(&error))),
        }
    }
    let what = named.map_or_else(
        || "no MPI library was found".to_owned(),
        |name| format!("{VARIABLE} = {name:?} cannot be loaded"),
    );
    refused.dedup();
    Err(Error::config(format!("{} tell of several ranks, and {what}. Looked for\n{}", found.variables, refused.join("\n"))).help(
        format!(
            "install the MPI of the launcher on every machine (Debian, Ubuntu: `apt-get install openmpi-bin`; Red Hat: `dnf \
             install openmpi`), or name its library: {VARIABLE}=/path/to/libmpi.so.40"
        ),
    ))
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
