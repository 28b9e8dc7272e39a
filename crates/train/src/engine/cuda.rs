//! The CUDA installation of this machine: driver, NVRTC (NVIDIA's compiler of kernels), its
//! headers, and the device. It is looked at before anything computes, because CubeCL panics without
//! a library, and its measurements of the device never end where no kernel can be compiled.
#![allow(unsafe_code)] // foreign functions; each call says why it may be made

use std::fmt;

#[cfg(feature = "compiler")]
use burn::tensor::Device;
use cudarc::driver::result::device;
use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{DriverError, result, sys};
use kiln_core::error::{Error, Result};
#[cfg(feature = "compiler")]
use kiln_models::ops::cuda::on_driver_thread;

use super::cuda_versions::{Capability, Nvrtc, Version};

/// The oldest driver that has every function that is called: `cuEventElapsedTime_v2`, which
/// bindings of CUDA 13 call, came with 12.8.
const OLDEST_DRIVER: Version = Version(if sys::CUDA_VERSION >= 13000 { 12080 } else { 12000 });

/// The parts that CUDA needs on a machine, and one device. Everything is asked of the driver and of
/// NVRTC; nothing is computed.
#[derive(Debug, Clone)]
pub struct Installation {
    driver: Version,
    /// The NVRTC that compiles kernels; none in a build whose kernels are compiled by LLVM.
    nvrtc: Option<Nvrtc>,
    /// Compute capability x 10.
    capability: i32,
    memory: usize,
    multiprocessors: i32,
}

impl Installation {
    /// The parts that CUDA needs on this machine, and device `index`.
    ///
    /// # Errors
    /// The driver's; a library or headers that are missing; a driver that is too old; a device that
    /// NVRTC does not compile for.
    pub fn check(index: usize) -> Result<Self> {
        let refused = |error: DriverError| Error::config(format!("device.kind = \"cuda\": the driver: {error:?}"));
        start_driver()?;
        let mut driver = 0;
        // SAFETY: the driver library is there, and writes the version to a local integer.
        unsafe { sys::cuDriverGetVersion(&mut driver) }.result().map_err(refused)?;
        let driver = Version(driver);
        let device = device::get(index as i32).map_err(refused)?;
        let capability = capability(device).map_err(refused)?;
        // SAFETY: `device` is one of the driver's, which has been initialised.
        let multiprocessors =
            unsafe { device::get_attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) }
                .map_err(refused)?;
        // SAFETY: as above.
        let memory = unsafe { device::total_mem(device) }.map_err(refused)?;
        if driver < OLDEST_DRIVER {
            return Err(Error::config(format!(
                "device.kind = \"cuda\": the driver is one of CUDA {driver}; expected {OLDEST_DRIVER} or later"
            ))
            .help("install a newer driver of NVIDIA's"));
        }
        let nvrtc = if cfg!(feature = "cuda-nvrtc") { Some(Nvrtc::find()?) } else { None };
        if let Some(nvrtc) = &nvrtc {
            nvrtc.check(driver, capability)?;
        }
        Ok(Self { driver, nvrtc, capability, memory, multiprocessors })
    }
}

impl Installation {
    /// Whether the device has arithmetic in bf16. Before capability 8.0 NVIDIA's headers imitate
    /// it, in f32 and without tensor cores, which CubeCL does not tell apart.
    pub fn computes_in_bf16(&self) -> bool {
        self.capability >= 80
    }
}

impl fmt::Display for Installation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { driver, nvrtc, capability, memory, multiprocessors } = self;
        write!(f, "driver of CUDA {driver}, ")?;
        if let Some(nvrtc) = nvrtc {
            write!(f, "NVRTC {}, ", nvrtc.version)?;
        }
        let gib = *memory as f64 / f64::from(1 << 30);
        let capability = Capability(*capability);
        write!(f, "compute capability {capability}, {multiprocessors} multiprocessors, {gib:.1} GiB of memory")
    }
}

/// Name and capability of the first device, as part of a file's name: `nvidia-h200-9.0`. None where
/// there is none.
pub fn model() -> Option<String> {
    start_driver().ok()?;
    let first = device::get(0).ok()?;
    let name = device::get_name(first).ok()?.to_lowercase();
    let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    Some(format!("{}-{}", words.collect::<Vec<_>>().join("-"), Capability(capability(first).ok()?)))
}

/// The compute capability x 10.
fn capability(device: sys::CUdevice) -> std::result::Result<i32, DriverError> {
    // SAFETY: `device` is one of the driver's, which has been initialised.
    let attribute = |attribute| unsafe { device::get_attribute(device, attribute) };
    Ok(10 * attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?
        + attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?)
}

/// Permits the calls that may be made while a stream is not captured, those that load kernels and
/// get memory among them, also while the thread that calls the driver for `device` captures one:
/// CubeCL captures in the global mode, in which the driver refuses them and ends the capture. A
/// recording may need a kernel that no run before it needed, since CubeCL lets an operation write
/// into its input only if nobody else holds that, and the driver's thread holds each new tensor for
/// a moment.
///
/// # Errors
/// The driver's, and those of [`on_driver_thread`].
#[cfg(feature = "compiler")]
pub fn permit_loading_while_capturing(device: &Device) -> Result<()> {
    let relaxed = || {
        let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the device has started the driver. The mode before, which the call leaves in the
        // local variable, is not needed again: the thread has no other purpose than the device.
        // Kernels and memory that it gets are no part of the recording, and stay.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) }.result()
    };
    let refused = |what: String| Error::device(format!("captured steps on CUDA: {what}"));
    on_driver_thread(device, relaxed).map_err(refused)?.map_err(|error| refused(format!("the driver: {error:?}")))
}

/// Loads and initialises the driver.
///
/// # Errors
/// It is missing, or says why it does not work.
pub fn start_driver() -> Result<()> {
    // SAFETY: the library, if there is one, is NVIDIA's driver, which has no conditions on being
    // loaded.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::config("device.kind = \"cuda\": there is no driver: libcuda.so.1 is not found")
            .help("install NVIDIA's driver; in a container, start it with the GPU (`docker run --gpus all`)"));
    }
    result::init().map_err(|error| {
        let name = error.error_name().map_or_else(|_| "an error".into(), |name| name.to_string_lossy().into_owned());
        Error::config(format!("device.kind = \"cuda\": the driver does not start: {name} ({})", error.0 as u32))
            .help("`nvidia-smi` tells more; set device.kind = \"cpu\" to go without a GPU")
    })
}

impl Nvrtc {
    /// The library that CubeCL finds.
    #[cfg(feature = "cuda-nvrtc")]
    fn find() -> Result<Self> {
        use cudarc::nvrtc::sys;
        // SAFETY: the library, if there is one, is NVIDIA's compiler, which has no conditions on
        // being loaded.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::config(
                "device.kind = \"cuda\": NVRTC, which compiles kernels, is missing: libnvrtc.so is not found",
            )
            .help("install the CUDA toolkit, or its package cuda-nvrtc, and name its folder in LD_LIBRARY_PATH"));
        }
        let refused = |error| Error::config(format!("device.kind = \"cuda\": NVRTC: {error:?}"));
        let (mut major, mut minor, mut count) = (0, 0, 0);
        // SAFETY: the library is there, and writes to local integers.
        unsafe { sys::nvrtcVersion(&mut major, &mut minor) }.result().map_err(refused)?;
        // SAFETY: as above.
        unsafe { sys::nvrtcGetNumSupportedArchs(&mut count) }.result().map_err(refused)?;
        let mut capabilities = vec![0; count.max(0) as usize];
        // SAFETY: the list has room for as many integers as the library has said.
        unsafe { sys::nvrtcGetSupportedArchs(capabilities.as_mut_ptr()) }.result().map_err(refused)?;
        let headers = std::panic::catch_unwind(cubecl::cuda::install::cuda_path).ok().flatten();
        let include = headers.clone().unwrap_or_default().join("include");
        if let Some(missing) = ["cuda_fp16.h", "cuda_bf16.h", "mma.h"].iter().find(|name| !include.join(name).is_file())
        {
            let place = headers.map_or("/usr/local/cuda".into(), |path| path.display().to_string());
            return Err(Error::config(format!(
                "device.kind = \"cuda\": CUDA's headers, which kernels include, are missing: no include/{missing} in {place}"
            ))
            .help("install the CUDA toolkit, or its package cuda-cudart-dev, and name its folder in CUDA_PATH"));
        }
        Ok(Self { version: Version(1000 * major + 10 * minor), capabilities })
    }

    #[cfg(not(feature = "cuda-nvrtc"))]
    fn find() -> Result<Self> {
        Err(Error::config("this build of kiln compiles kernels by LLVM"))
    }
}
