//! NCCL, found and loaded when it is needed: nothing of it is linked. It sums the gradients of CUDA
//! devices where they lie; all else that ranks tell one another goes by MPI, which also brings the
//! ranks together here.
//!
//! The order in which NCCL adds is its own. With two ranks there is only one, so that sums have the
//! bits of those by MPI.
//!
//! NCCL works on a stream of its own, and the order of that and CubeCL's is kept by this thread: it
//! waits for CubeCL before it begins a sum, and for the sum before it goes on.
#![allow(unsafe_code)] // foreign functions: see `Nccl`

use std::collections::{HashSet, VecDeque};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Tensor};
use cudarc::driver::{DriverError, result, sys};
use kiln_core::device_error::device_error;
use kiln_core::error::{CONTINUE, Error, Result, says_out_of_memory};
use kiln_models::ops::cuda::CudaMemory;
use libloading::Library;

use super::gradients::any_of_ranks;
use super::watchdog::Watched;
use super::{PIECE, World};
use crate::reads::without_autodiff;

/// The variable that names the library.
pub(super) const VARIABLE: &str = "KILN_NCCL";

/// The libraries that are looked for.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// How often it is looked whether an exchange has ended.
const PATIENCE: Duration = Duration::from_micros(50);

/// `ncclFloat32` and `ncclSum`.
const FLOAT32: c_int = 7;
const SUM: c_int = 0;

/// `ncclUnhandledCudaError`, `ncclSystemError`, `ncclRemoteError` and `ncclInProgress`.
const CUDA_ERROR: c_int = 1;
const SYSTEM_ERROR: c_int = 2;
const REMOTE_ERROR: c_int = 6;
const IN_PROGRESS: c_int = 7;

/// NCCL does not say whether an error of CUDA is one for want of memory: it is taken for that where
/// less than this is free.
const FEW_BYTES: usize = 256 << 20;

/// How long a rank waits with an error that another rank may be the cause of. Within this time a
/// rank besides 0 says why it ends, MPI tells the launcher, and that ends this process.
const CAUSE_FIRST: Duration = Duration::from_secs(4);

/// The first version with `ncclCommGetAsyncError`: 2.4.
const OLDEST: c_int = 2400;

/// `NCCL_VERSION_CODE`
struct Version(c_int);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Until 2.8 the code had a digit less.
        let unit = if self.0 < 10_000 { 1000 } else { 10_000 };
        write!(f, "{}.{}.{}", self.0 / unit, self.0 % unit / 100, self.0 % 100)
    }
}

/// `ncclUniqueId`
#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([u8; 128]);

/// `ncclComm_t`
type Comm = *mut c_void;
type GetVersion = unsafe extern "C" fn(*mut c_int) -> c_int;
type GetUniqueId = unsafe extern "C" fn(*mut UniqueId) -> c_int;
type CommInitRank = unsafe extern "C" fn(*mut Comm, c_int, UniqueId, c_int) -> c_int;
type AllReduce = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, sys::CUstream) -> c_int;
type GetAsyncError = unsafe extern "C" fn(Comm, *mut c_int) -> c_int;
type GetErrorString = unsafe extern "C" fn(c_int) -> *const c_char;

/// The functions of a library, whose signatures are those of NCCL 2 (nccl.h).
struct Functions {
    name: String,
    version: c_int,
    get_unique_id: GetUniqueId,
    comm_init_rank: CommInitRank,
    all_reduce: AllReduce,
    get_async_error: GetAsyncError,
    get_error_string: GetErrorString,
    /// NCCL has threads: it stays loaded.
    _library: ManuallyDrop<Library>,
}

/// This rank as a member of NCCL's communicator.
///
/// The communicator and the stream are NCCL's and the driver's own, made for the context that
/// CubeCL computes in, the primary one of the device. One thread uses them at a time, the one that
/// holds `calls`, with that context. They are left to the end of the process: a rank that fails
/// would break the sums of the others, who are to hear of its error by MPI, and could hang there
/// itself.
pub(super) struct Nccl {
    calls: Mutex<()>,
    functions: Functions,
    comm: Comm,
    context: sys::CUcontext,
    stream: sys::CUstream,
}

// SAFETY: see `Nccl`: the pointers are used by whoever holds the lock, and neither NCCL nor the
// driver bind them to a thread.
unsafe impl Send for Nccl {}
// SAFETY: as above.
unsafe impl Sync for Nccl {}

impl std::fmt::Debug for Nccl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name())
    }
}

impl Functions {
    /// The functions of the library `name`, or a clause that says why it cannot be used.
    fn load(name: &str) -> std::result::Result<Self, String> {
        // SAFETY: the initialisers of NCCL do nothing but set it up.
        let library = unsafe { Library::new(name) }.map_err(|error| {
            use std::error::Error as _;
            error.source().map_or_else(|| error.to_string(), ToString::to_string)
        })?;
        macro_rules! function {
            ($type:ty, $name:literal) => {
                // SAFETY: the type is the signature that nccl.h gives the function of this name.
                *unsafe { library.get::<$type>($name) }
                    .map_err(|_| format!("it has no {}", String::from_utf8_lossy($name)))?
            };
        }
        let get_version = function!(GetVersion, b"ncclGetVersion");
        let mut version = 0;
        // SAFETY: the function writes one number.
        if unsafe { get_version(&raw mut version) } != 0 {
            return Err("it does not tell its version".into());
        }
        if version < OLDEST {
            return Err(format!("it is NCCL {}, and expected is {} or later", Version(version), Version(OLDEST)));
        }
        Ok(Self {
            name: name.to_owned(),
            version,
            get_unique_id: function!(GetUniqueId, b"ncclGetUniqueId"),
            comm_init_rank: function!(CommInitRank, b"ncclCommInitRank"),
            all_reduce: function!(AllReduce, b"ncclAllReduce"),
            get_async_error: function!(GetAsyncError, b"ncclCommGetAsyncError"),
            get_error_string: function!(GetErrorString, b"ncclGetErrorString"),
            _library: ManuallyDrop::new(library),
        })
    }

    /// The library that `KILN_NCCL` names, or else the first that there is.
    ///
    /// # Errors
    /// None of them can be used.
    fn find() -> Result<Self> {
        let named = std::env::var(VARIABLE).ok().filter(|name| !name.is_empty());
        let names = named.as_deref().map_or_else(|| NAMES.to_vec(), |name| vec![name]);
        let mut refused = Vec::new();
        for name in names {
            match Self::load(name) {
                Ok(found) => return Ok(found),
                Err(why) => refused.push(format!("  {name}: {why}")),
            }
        }
        let what = named.map_or_else(
            || "no NCCL was found, which sums the gradients of CUDA devices".to_owned(),
            |name| format!("{VARIABLE} = {name:?} cannot be used"),
        );
        Err(Error::config(format!("{what}. Looked for\n{}", refused.join("\n"))).help(format!(
            "install NVIDIA's NCCL on every machine (Debian, Ubuntu: `apt-get install libnccl2`), or name its library, as that of \
             PyPI's nvidia-nccl-cu12 or -cu13 has to be: {VARIABLE}=/path/to/libnccl.so.2; with distributed.ddp_backend = \"mpi\", MPI \
             sums gradients in the memory of the machine"
        )))
    }

    /// The result of the function `name`, which was called with the context of the device.
    fn check(&self, code: c_int, name: &str) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        if code == IN_PROGRESS {
            return Err(Error::config(format!("{name} of {} goes on in the background", self.name)).help(
                "set NCCL_COMM_BLOCKING=1: the environment or nccl.conf has it as 0, and Kiln's calls are to wait",
            ));
        }
        // SAFETY: the text is a constant of the library's.
        let text = unsafe { CStr::from_ptr((self.get_error_string)(code)) }.to_string_lossy();
        let message = format!("{name} of {} failed: {text} ({code})", self.name);
        match code {
            CUDA_ERROR => {
                // A device that has failed does not tell.
                if let Some((free, _)) = result::mem_get_info().ok().filter(|(free, _)| *free < FEW_BYTES) {
                    let message =
                        format!("the device ran out of memory, of which {} MiB are free: {message}", free >> 20);
                    return Err(no_memory(message));
                }
            }
            SYSTEM_ERROR | REMOTE_ERROR => std::thread::sleep(CAUSE_FIRST),
            _ => {}
        }
        Err(Error::device(message).help(format!(
            "NCCL_DEBUG=INFO tells more; a rank that has ended, a network that is down, and two ranks on one device end so too; {CONTINUE}"
        )))
    }
}

fn refused(error: DriverError) -> Error {
    let message = format!("the driver refuses what NCCL needs (a context, a stream, memory): {error}");
    if says_out_of_memory(&message) { no_memory(message) } else { Error::device(message) }
}

fn no_memory(message: String) -> Error {
    Error::out_of_memory(message)
        .help("lower trainer.per_device_train_batch_size and raise trainer.gradient_accumulation_steps by as much")
}

impl Nccl {
    /// Brings the ranks of `world` together, of which this one computes on CUDA device `index`; all
    /// of them call it.
    ///
    /// # Errors
    /// A config error where there is no NCCL; NCCL's, MPI's and the driver's.
    pub(super) fn start(world: &World, index: usize) -> Result<Self> {
        let functions = Functions::find()?;
        let (ranks, rank) = (world.size() as c_int, world.rank() as c_int);
        result::init().map_err(refused)?;
        let device = result::device::get(index as c_int).map_err(refused)?;
        // SAFETY: `device` is one of the driver's. The context is retained for the life of the
        // process, and becomes this thread's.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(refused)?;
        // SAFETY: as above.
        unsafe { result::ctx::set_current(context) }.map_err(refused)?;
        let id = world.made_by_root(|| {
            let mut id = UniqueId([0; 128]);
            // SAFETY: the function fills the id.
            functions.check(unsafe { (functions.get_unique_id)(&raw mut id) }, "ncclGetUniqueId")?;
            Ok(id.0.to_vec())
        })?;
        let id = UniqueId(id.try_into().map_err(|_| Error::device("rank 0 has sent no id of NCCL's"))?);
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking).map_err(refused)?;
        let mut comm = std::ptr::null_mut();
        let watched = Watched::new();
        // SAFETY: all ranks call it with the id of rank 0, each with its own number.
        let code = unsafe { (functions.comm_init_rank)(&raw mut comm, ranks, id, rank) };
        drop(watched);
        functions.check(code, "ncclCommInitRank")?;
        let nccl = Self { calls: Mutex::new(()), functions, comm, context, stream };
        // With its first sum NCCL connects the ranks and takes its memory: before training takes
        // the rest. SAFETY: the memory is one f32, set to zero by the stream before the sum, and
        // freed after it, or never where it fails.
        unsafe {
            let address = result::malloc_sync(size_of::<f32>()).map_err(refused)?;
            result::memset_d8_async(address, 0, size_of::<f32>(), stream).map_err(refused)?;
            nccl.all_reduce(address, 1)?;
            result::free_sync(address).map_err(refused)?;
        }
        Ok(nccl)
    }

    /// `NCCL 2.27.3 (libnccl.so.2)`
    pub(super) fn name(&self) -> String {
        let Functions { version, name, .. } = &self.functions;
        format!("NCCL {} ({name})", Version(*version))
    }

    /// Adds up `values` over the ranks, in their place.
    fn all_reduce_tensor(&self, values: &Tensor<1>) -> Result<()> {
        let memory = CudaMemory::of(values).map_err(|error| device_error(&error))?;
        // SAFETY: the memory is that of so many f32 on the device that the model and the
        // communicator have. CubeCL, whose work on it has ended, gives it to nothing else while
        // `memory` lives, which is until the sum has ended, or for ever.
        let result = unsafe { self.all_reduce(memory.address(), memory.len()) };
        if result.is_err() {
            std::mem::forget(memory);
        }
        result
    }

    /// Adds up `len` f32 at `address` over the ranks, in their place, after what the stream does
    /// already.
    ///
    /// # Safety
    /// The values lie on the device of the context, and nothing else uses their memory until this
    /// returns. After an error NCCL may go on with it until the process ends.
    unsafe fn all_reduce(&self, address: u64, len: usize) -> Result<()> {
        let _alone = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let _watched = Watched::new();
        let Functions { all_reduce, get_async_error, .. } = &self.functions;
        let address = std::ptr::with_exposed_provenance_mut::<c_void>(address as usize);
        // SAFETY: see `Nccl`, and the caller's.
        let code = unsafe {
            result::ctx::set_current(self.context).map_err(refused)?;
            all_reduce(address.cast_const(), address, len, FLOAT32, SUM, self.comm, self.stream)
        };
        self.functions.check(code, "ncclAllReduce")?;
        loop {
            let mut code = 0;
            // SAFETY: see `Nccl`.
            let asked = unsafe { get_async_error(self.comm, &raw mut code) };
            self.functions.check(asked, "ncclCommGetAsyncError")?;
            self.functions.check(code, "ncclAllReduce")?;
            // SAFETY: see `Nccl`.
            match unsafe { sys::cuStreamQuery(self.stream) } {
                sys::CUresult::CUDA_SUCCESS => return Ok(()),
                sys::CUresult::CUDA_ERROR_NOT_READY => std::thread::sleep(PATIENCE),
                failed => return Err(device_error(&DriverError(failed))),
            }
        }
    }

    /// [`sum_gradients`](super::sum_gradients) on the device. Each gradient is freed when it has
    /// been copied into a buffer, of which there is one at a time that does not hold sums yet.
    pub(super) fn sum_gradients<M: Module>(
        &self,
        world: &World,
        model: &M,
        grads: GradientsParams,
        loss: Option<Tensor<1>>,
        device: &Device,
    ) -> Result<(GradientsParams, Tensor<1>)> {
        let mut has = Has { grads: &grads, has: Vec::new(), seen: HashSet::new() };
        model.visit(&mut has);
        let has_any = any_of_ranks(world, has.has.into_iter())?.into();
        let summed = (GradientsParams::new(), None);
        let mut sums = Sums { nccl: self, grads, has_any, device, parts: Vec::new(), size: 0, summed, result: Ok(()) };
        model.visit(&mut sums);
        std::mem::replace(&mut sums.result, Ok(()))?;
        sums.push(1, loss.map(without_autodiff), |summed, loss| summed.1 = Some(loss))?;
        sums.sum()?;
        let (grads, loss) = sums.summed;
        Ok((grads, loss.expect("a loss was the last part")))
    }
}

/// Whether each parameter that learns has a gradient; one that the model visits again has it the
/// first time.
struct Has<'a> {
    grads: &'a GradientsParams,
    has: Vec<bool>,
    seen: HashSet<ParamId>,
}

impl ModuleVisitor for Has<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.val().is_require_grad() {
            self.has.push(self.seen.insert(param.id) && self.grads.get::<D>(param.id).is_some());
        }
    }
}

/// The sums of gradients, and of a loss.
type Summed = (GradientsParams, Option<Tensor<1>>);

/// Puts the sums of a part where they belong.
type Place = Box<dyn FnOnce(&mut Summed, Tensor<1>)>;

/// Puts gradients one after the other into a buffer, which is summed when it has [`PIECE`] values
/// or more: then the next begins.
struct Sums<'a> {
    nccl: &'a Nccl,
    grads: GradientsParams,
    has_any: VecDeque<bool>,
    device: &'a Device,
    /// The parts of the buffer.
    parts: Vec<(Tensor<1>, Place)>,
    /// Their values.
    size: usize,
    summed: Summed,
    result: Result<()>,
}

impl Sums<'_> {
    /// Adds `values`, or so many that add nothing to any value, a zero of either sign included.
    fn push(
        &mut self,
        len: usize,
        values: Option<Tensor<1>>,
        place: impl FnOnce(&mut Summed, Tensor<1>) + 'static,
    ) -> Result<()> {
        let values = values.unwrap_or_else(|| Tensor::full([len], -0.0, self.device));
        self.parts.push((values, Box::new(place)));
        self.size += len;
        if self.size >= PIECE { self.sum() } else { Ok(()) }
    }

    /// Sums the buffer over the ranks.
    fn sum(&mut self) -> Result<()> {
        if std::mem::take(&mut self.size) == 0 {
            return Ok(());
        }
        let (mut values, places): (Vec<_>, Vec<_>) = std::mem::take(&mut self.parts).into_iter().unzip();
        let lengths = values.iter().map(|values| values.dims()[0]).collect::<Vec<_>>();
        // Of one part alone there would be no copy.
        values.push(Tensor::zeros([1], self.device));
        let buffer = Tensor::cat(values, 0);
        self.nccl.all_reduce_tensor(&buffer)?;
        let mut used = 0;
        for (len, place) in lengths.into_iter().zip(places) {
            place(&mut self.summed, buffer.clone().narrow(0, used, len));
            used += len;
        }
        Ok(())
    }
}

impl ModuleVisitor for Sums<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.val().is_require_grad() || self.has_any.pop_front() != Some(true) || self.result.is_err() {
            return;
        }
        let (id, shape) = (param.id, param.shape());
        let len = shape.num_elements();
        let grad = self.grads.remove::<D>(id).map(|grad| grad.reshape([len]).cast(DType::F32));
        self.result = self.push(len, grad, move |(grads, _), sums| grads.register::<D>(id, sums.reshape(shape)));
    }
}
