//! NCCL, found and loaded when it is needed: nothing of it is linked. It sums the gradients of CUDA devices where they lie; all else
//! that ranks tell one another goes by MPI, which also brings the ranks together here.
//!
//! The order in which NCCL adds is its own. With two ranks there is only one, so that sums have the bits of those by MPI.
//!
//! NCCL works on a stream of its own, and the order of that and CubeCL's is kept by this thread: it waits for CubeCL before it begins a
//! sum, and for the sum before it goes on.
#![allow(unsafe_code)] // foreign functions: see `Nccl`

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Tensor};
use cudarc::driver::{DriverError, result, sys};
use kiln_models::ops::cuda_memory::CudaMemory;
use libloading::Library;

use super::gradients::any_of_ranks;
use super::watchdog::Watched;
use super::{PIECE, World};
use crate::base::error::{Error, Result};
use crate::base::reads::{device_error, without_autodiff};

/// The variable that names the library.
pub(super) const VARIABLE: &str = "KILN_NCCL";

/// The libraries that are looked for.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// How often it is looked whether an exchange has ended.
const PATIENCE: Duration = Duration::from_micros(50);

/// `ncclFloat32` and `ncclSum`.
const FLOAT32: c_int = 7;
const SUM: c_int = 0;

/// The first version with `ncclCommAbort` and `ncclCommGetAsyncError`: 2.4.
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
type OfComm = unsafe extern "C" fn(Comm) -> c_int;
type GetErrorString = unsafe extern "C" fn(c_int) -> *const c_char;

/// The functions of a library, whose signatures are those of NCCL 2 (nccl.h).
struct Functions {
    name: String,
    version: c_int,
    get_unique_id: GetUniqueId,
    comm_init_rank: CommInitRank,
    all_reduce: AllReduce,
    get_async_error: GetAsyncError,
    abort: OfComm,
    get_error_string: GetErrorString,
    /// NCCL has threads: it stays loaded.
    _library: ManuallyDrop<Library>,
}

/// What this rank is to the others in NCCL.
///
/// The communicator and the stream are NCCL's and the driver's own, made for the context that CubeCL computes in, the primary one of the
/// device. One thread uses them at a time, the one that holds `calls`, with that context; they live as long as this.
pub(super) struct Nccl {
    calls: Mutex<()>,
    functions: Functions,
    comm: Comm,
    context: sys::CUcontext,
    stream: sys::CUstream,
}

// SAFETY: see `Nccl`: the pointers are used by whoever holds the lock, and neither NCCL nor the driver bind them to a thread.
unsafe impl Send for Nccl {}
// SAFETY: as above.
unsafe impl Sync for Nccl {}

impl std::fmt::Debug for Nccl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name())
    }
}

impl Functions {
    /// Those of the library `name`; a sentence of it that fails.
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
            abort: function!(OfComm, b"ncclCommAbort"),
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
            "install NVIDIA's NCCL on every machine (Debian, Ubuntu: `apt-get install libnccl2`; PyPI: nvidia-nccl-cu12 or -cu13), or \
             name its library: {VARIABLE}=/path/to/libnccl.so.2; with distributed.ddp_backend = \"mpi\", MPI sums gradients in the \
             memory of the machine"
        )))
    }

    /// The result of the function `name`.
    fn check(&self, code: c_int, name: &str) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the text is a constant of the library's.
        let text = unsafe { CStr::from_ptr((self.get_error_string)(code)) }.to_string_lossy();
        Err(Error::device(format!("{name} of {} failed: {text} ({code})", self.name)).help(
            "NCCL_DEBUG=INFO tells more; a rank that has ended, a network that is down, and two ranks on one device end so too; a run that \
             has made steps continues with `kiln train FILE --resume`",
        ))
    }
}

fn refused(error: DriverError) -> Error {
    Error::device(format!("the driver refuses NCCL a stream: {error:?}"))
}

impl Nccl {
    /// Brings the ranks of `world` together, of which this one computes on CUDA device `index`; all of them call it.
    ///
    /// # Errors
    /// A config error where there is no NCCL; NCCL's, MPI's and the driver's.
    pub(super) fn start(world: &World, index: usize) -> Result<Self> {
        let functions = Functions::find()?;
        let id = world.made_by_root(|| {
            let mut id = UniqueId([0; 128]);
            // SAFETY: the function fills the id.
            functions.check(unsafe { (functions.get_unique_id)(&raw mut id) }, "ncclGetUniqueId")?;
            Ok(id.0.to_vec())
        })?;
        let id = UniqueId(id.try_into().map_err(|_| Error::device("rank 0 has sent no id of NCCL's"))?);
        let (ranks, rank) = (world.size() as c_int, world.rank() as c_int);
        result::init().map_err(refused)?;
        let device = result::device::get(index as c_int).map_err(refused)?;
        // SAFETY: `device` is one of the driver's. The context is retained for the life of the process, and becomes this thread's.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(refused)?;
        // SAFETY: as above.
        unsafe { result::ctx::set_current(context) }.map_err(refused)?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking).map_err(refused)?;
        let mut comm = std::ptr::null_mut();
        let watched = Watched::new();
        // SAFETY: all ranks call it with the id of rank 0, each with its own number.
        let code = unsafe { (functions.comm_init_rank)(&raw mut comm, ranks, id, rank) };
        drop(watched);
        functions.check(code, "ncclCommInitRank")?;
        Ok(Self { calls: Mutex::new(()), functions, comm, context, stream })
    }

    /// `NCCL 2.27.3 (libnccl.so.2)`
    pub(super) fn name(&self) -> String {
        let Functions { version, name, .. } = &self.functions;
        format!("NCCL {} ({name})", Version(*version))
    }

    /// Adds up `memory` over the ranks, in its place.
    fn all_reduce(&self, memory: &CudaMemory) -> Result<()> {
        let _alone = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let _watched = Watched::new();
        let Functions { all_reduce, get_async_error, .. } = &self.functions;
        let address = std::ptr::with_exposed_provenance_mut::<c_void>(memory.address() as usize);
        // SAFETY: see `Nccl`. `memory` has as many f32 as are told, on the device of the context, and nothing else uses it until the
        // stream has ended, which is waited for below.
        let code = unsafe {
            result::ctx::set_current(self.context).map_err(refused)?;
            all_reduce(address.cast_const(), address, memory.len(), FLOAT32, SUM, self.comm, self.stream)
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
                failed => return Err(device_error(&format!("{:?}", DriverError(failed)))),
            }
        }
    }

    /// [`sum_gradients`](super::sum_gradients) on the device. The gradients are copied into buffers of their own, one after the other.
    pub(super) fn sum_gradients<M: Module>(
        &self,
        world: &World,
        model: &M,
        grads: GradientsParams,
        loss: Option<Tensor<1>>,
        device: &Device,
    ) -> Result<(GradientsParams, Tensor<1>)> {
        let mut has = Has { grads: &grads, has: Vec::new() };
        model.visit(&mut has);
        let has_any = any_of_ranks(world, has.has.into_iter())?;
        let mut fill =
            Fill { grads, has_any: has_any.clone().into(), device, parts: Vec::new(), size: 0, full: Vec::new() };
        model.visit(&mut fill);
        fill.push(1, loss.map(without_autodiff));
        fill.close();
        let buffers = fill.full;
        for buffer in &buffers {
            self.all_reduce(&CudaMemory::of(buffer).map_err(|error| device_error(&error))?)?;
        }
        let mut take =
            Take { has_any: has_any.into(), buffers: buffers.into(), used: 0, grads: GradientsParams::new() };
        model.visit(&mut take);
        let loss = take.next(1);
        Ok((take.grads, loss))
    }
}

impl Drop for Nccl {
    /// Leaves the other ranks without waiting for them: where this one ends with an error they may be in the middle of a sum. All sums
    /// that this rank has begun have ended, and after each the ranks have met in an exchange by MPI.
    fn drop(&mut self) {
        // SAFETY: see `Nccl`; nothing uses them after this.
        unsafe {
            if result::ctx::set_current(self.context).is_ok() {
                (self.functions.abort)(self.comm);
                let _ = result::stream::destroy(self.stream);
            }
        }
    }
}

/// Whether each parameter that learns has a gradient.
struct Has<'a> {
    grads: &'a GradientsParams,
    has: Vec<bool>,
}

impl ModuleVisitor for Has<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.val().is_require_grad() {
            self.has.push(self.grads.get::<D>(param.id).is_some());
        }
    }
}

/// Puts gradients one after the other into buffers.
struct Fill<'a> {
    grads: GradientsParams,
    has_any: VecDeque<bool>,
    device: &'a Device,
    /// The parts of the next buffer.
    parts: Vec<Tensor<1>>,
    /// Their values.
    size: usize,
    full: Vec<Tensor<1>>,
}

impl Fill<'_> {
    /// `values`, or so many that add nothing to any value, a zero of either sign included.
    fn push(&mut self, len: usize, values: Option<Tensor<1>>) {
        self.parts.push(values.unwrap_or_else(|| Tensor::full([len], -0.0, self.device)));
        self.size += len;
        if self.size >= PIECE {
            self.close();
        }
    }

    fn close(&mut self) {
        if std::mem::take(&mut self.size) > 0 {
            // Of one part alone there would be no copy.
            self.parts.push(Tensor::zeros([1], self.device));
            self.full.push(Tensor::cat(std::mem::take(&mut self.parts), 0));
        }
    }
}

impl ModuleVisitor for Fill<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.val().is_require_grad() || self.has_any.pop_front() != Some(true) {
            return;
        }
        let len = param.shape().num_elements();
        let grad = self.grads.remove::<D>(param.id);
        self.push(len, grad.map(|grad| grad.reshape([len]).cast(DType::F32)));
    }
}

/// Gives parameters the gradients that lie in buffers as [`Fill`] has put them there.
struct Take {
    has_any: VecDeque<bool>,
    buffers: VecDeque<Tensor<1>>,
    /// Values of the first buffer that have been taken.
    used: usize,
    grads: GradientsParams,
}

impl Take {
    fn next(&mut self, len: usize) -> Tensor<1> {
        let buffer = self.buffers.front().expect("there is a buffer for all that was put there").clone();
        let values = buffer.narrow(0, self.used, len);
        self.used += len;
        if self.used >= PIECE {
            self.buffers.pop_front();
            self.used = 0;
        }
        values
    }
}

impl ModuleVisitor for Take {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.val().is_require_grad() || self.has_any.pop_front() != Some(true) {
            return;
        }
        let shape = param.shape();
        let values = self.next(shape.num_elements());
        self.grads.register::<D>(param.id, values.reshape(shape));
    }
}
