//! The energy that a device takes: a CPU's by the counters of processors and memory (RAPL), an
//! NVIDIA GPU's by its own counter, which NVML reads (`nvmlDeviceGetTotalEnergyConsumption`, of
//! Volta and later).

use kiln_core::energy::Counters;

use super::device::DeviceFacts;
use super::settings::DeviceKind;

/// A counter of the energy of one device, with its last value.
#[derive(Debug)]
pub struct EnergyMeter(Source);

#[derive(Debug)]
enum Source {
    Processors(Counters),
    #[cfg(feature = "cuda")]
    Gpu(nvml::Counter),
}

impl EnergyMeter {
    /// The meter of `device`, from now on.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn open(device: &DeviceFacts) -> Result<Self, String> {
        match device.kind {
            DeviceKind::Cpu => Counters::open().map(Source::Processors).map(Self),
            #[cfg(feature = "cuda")]
            DeviceKind::Cuda => nvml::Counter::open(device.index).map(Source::Gpu).map(Self),
            kind => Err(format!("Kiln reads no counter of a device of kind {kind}")),
        }
    }

    /// The joules since the last call, or since the meter was opened; none where they cannot be
    /// read any more. A GPU renews its counter every 20 to 100 ms, so that long times are exact and
    /// a single step is not.
    pub fn take(&mut self) -> Option<f64> {
        match &mut self.0 {
            Source::Processors(counters) => counters.take(),
            #[cfg(feature = "cuda")]
            Source::Gpu(counter) => counter.take(),
        }
    }

    /// The parts whose energy is counted, for people.
    pub fn about(&self) -> &'static str {
        match self.0 {
            Source::Processors(_) => "processors and memory (RAPL)",
            #[cfg(feature = "cuda")]
            Source::Gpu(_) => "the GPU with its memory (NVML)",
        }
    }
}

/// NVIDIA's management library, which comes with the driver and is loaded when it is needed.
#[cfg(feature = "cuda")]
mod nvml {
    #![allow(unsafe_code)] // foreign functions: see `Counter`

    use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

    use cudarc::driver::result::device;
    use libloading::Library;

    use crate::engine::cuda::start_driver;

    const NAME: &str = "libnvidia-ml.so.1";

    /// `NVML_SUCCESS`
    const SUCCESS: c_int = 0;

    /// The counter of one GPU. The functions have the signatures of `nvml.h`, and its handles stay
    /// valid until the library is shut down, which it is not before the process ends.
    #[derive(Debug)]
    pub struct Counter {
        library: Library,
        /// `nvmlDevice_t`, as a number: any thread may use it.
        handle: usize,
        /// Millijoules.
        last: u64,
    }

    impl Counter {
        /// The counter of the CUDA device `index`.
        pub fn open(index: usize) -> Result<Self, String> {
            start_driver().map_err(|error| error.message().to_owned())?;
            let of_driver = |error| format!("the driver: {error:?}");
            let uuid = device::get(index as i32).and_then(device::get_uuid).map_err(of_driver)?;
            let uuid = name_of(&uuid.bytes.map(|byte| byte as u8));
            // SAFETY: the initialisers of the library do nothing but set it up.
            let library = unsafe { Library::new(NAME) }.map_err(|_| format!("{NAME} is not found"))?;
            let mut handle = std::ptr::null_mut::<c_void>();
            // SAFETY: the functions have these signatures, `uuid` ends with 0, and the handle is
            // written to a local variable.
            unsafe {
                let init = library.get::<unsafe extern "C" fn() -> c_int>(b"nvmlInit_v2\0").map_err(lacks)?;
                checked(&library, init())?;
                let find = library
                    .get::<unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int>(
                        b"nvmlDeviceGetHandleByUUID\0",
                    )
                    .map_err(lacks)?;
                checked(&library, find(uuid.as_ptr(), &raw mut handle))?;
            }
            let mut counter = Self { library, handle: handle as usize, last: 0 };
            counter.last = counter.read()?;
            Ok(counter)
        }

        /// The joules since the last call.
        pub fn take(&mut self) -> Option<f64> {
            let now = self.read().ok()?;
            let last = std::mem::replace(&mut self.last, now);
            // A driver that is loaded anew begins at 0.
            now.checked_sub(last).map(|millijoules| millijoules as f64 / 1e3)
        }

        /// Millijoules since the driver was loaded.
        fn read(&self) -> Result<u64, String> {
            type Read = unsafe extern "C" fn(*mut c_void, *mut u64) -> c_int;
            let mut energy = 0;
            // SAFETY: the function has this signature, the handle is the library's, and the number
            // is written to a local variable.
            unsafe {
                let read = self.library.get::<Read>(b"nvmlDeviceGetTotalEnergyConsumption\0").map_err(lacks)?;
                checked(&self.library, read(self.handle as *mut c_void, &raw mut energy))?;
            }
            Ok(energy)
        }
    }

    fn lacks(error: libloading::Error) -> String {
        format!("{NAME}: {error}")
    }

    /// Whether a function of NVML has ended well.
    fn checked(library: &Library, code: c_int) -> Result<(), String> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: the function has this signature (an enumeration is an unsigned number), and gives
        // a text that lives as long as the library.
        let words = unsafe {
            library
                .get::<unsafe extern "C" fn(c_uint) -> *const c_char>(b"nvmlErrorString\0")
                .ok()
                .map(|words| words(code as c_uint))
                .filter(|words| !words.is_null())
                .map(|words| CStr::from_ptr(words).to_string_lossy().into_owned())
        };
        Err(format!("NVML: {}", words.unwrap_or_else(|| format!("error {code}"))))
    }

    /// NVML's name of a GPU, `GPU-` and the identifier as RFC 9562 writes it.
    fn name_of(uuid: &[u8; 16]) -> CString {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let parts = [&uuid[..4], &uuid[4..6], &uuid[6..8], &uuid[8..10], &uuid[10..]].map(hex);
        CString::new(format!("GPU-{}", parts.join("-"))).expect("digits and hyphens are no 0")
    }

    #[cfg(test)]
    mod tests {
        #[test]
        fn a_gpu_has_the_name_that_nvml_gives_it() {
            let uuid = std::array::from_fn(|i| i as u8 + 0x90);
            let name = super::name_of(&uuid);
            assert_eq!(name.to_str(), Ok("GPU-90919293-9495-9697-9899-9a9b9c9d9e9f"));
        }
    }
}
