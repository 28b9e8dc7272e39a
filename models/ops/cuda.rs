//! CUDA devices beside CubeCL: where the values of a tensor lie, for libraries that work on
//! addresses, and the thread that calls the driver.

use burn::backend::{Backend, BackendTensor, DispatchTensorKind};
use burn::tensor::{DType, Device, Tensor};
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
// The trait has no other name among the crates that Kiln depends on.
use cubecl::__private::Runtime;
use cubecl::cuda::CudaRuntime;

/// The memory of a tensor on a CUDA device. It stays where it is, and the tensor's, for as long as
/// this lives.
pub struct CudaMemory {
    address: u64,
    len: usize,
    // Keeps the memory from being freed or moved.
    _held: Box<dyn std::any::Any>,
}

impl CudaMemory {
    /// The memory of `values` (f32, without autodiff), when the device has computed them.
    ///
    /// # Errors
    /// A tensor on another device or of another type, one whose values have gaps between them, and
    /// what the device says.
    pub fn of(values: &Tensor<1>) -> Result<Self, String> {
        let tensor = cube_tensor(values.clone())?;
        let len = values.dims()[0];
        if tensor.dtype != DType::F32 || !tensor.is_contiguous() {
            return Err("expected values in f32 that lie one after the other".into());
        }
        let resource = tensor.client.get_resource::<<CudaRuntime as Runtime>::Server>(tensor.handle.clone());
        let resource = resource.map_err(|error| error.to_string())?;
        // Work of other streams on the tensor precedes this one's since its resource was asked for.
        CubeBackend::sync(&tensor.device).map_err(|error| error.to_string())?;
        Ok(Self { address: resource.resource().ptr, len, _held: Box::new((resource, tensor)) })
    }

    /// The address of the first value, an f32.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Runs `task` on the thread that calls the driver for `device`, a CUDA device, and waits for it.
///
/// # Errors
/// Another device, or one whose thread has ended.
pub fn on_driver_thread<R: Send + 'static>(device: &Device, task: impl FnOnce() -> R + Send) -> Result<R, String> {
    let tensor = cube_tensor(Tensor::<1>::zeros([1], device))?;
    tensor.client.exclusive(task).map_err(|error| error.to_string())
}

/// The tensor as CubeCL has it.
fn cube_tensor(values: Tensor<1>) -> Result<CubeTensor, String> {
    let DispatchTensorKind::Cube(BackendTensor::Float(tensor)) = values.into_dispatch().kind else {
        return Err("expected a tensor on a CUDA device, without autodiff".into());
    };
    #[cfg(feature = "compiler")]
    let tensor = tensor.client.clone().resolve_tensor_float::<CubeBackend>(tensor);
    Ok(tensor)
}

impl std::fmt::Debug for CudaMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} values at {:#x}", self.len, self.address)
    }
}
