//! Which versions of CUDA's driver, of NVRTC and of a device fit together. Nothing here touches any
//! of them.

use std::fmt;

use kiln_core::error::{Error, Result};

/// A version as CUDA counts them: 13000 is 13.0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(pub(super) i32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// A compute capability x 10.
pub(super) struct Capability(pub(super) i32);

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 10, self.0 % 10)
    }
}

/// NVIDIA's compiler of kernels.
#[derive(Debug, Clone)]
pub(super) struct Nvrtc {
    pub(super) version: Version,
    /// The capabilities x 10 that it compiles for, ascending.
    pub(super) capabilities: Vec<i32>,
}

impl Nvrtc {
    /// Whether a driver of CUDA `driver` loads what it compiles for a device of capability x 10
    /// `capability`.
    ///
    /// # Errors
    /// One of the two does not fit.
    pub(super) fn check(&self, driver: Version, capability: i32) -> Result<()> {
        let Self { version, capabilities } = self;
        if !capabilities.contains(&capability) {
            let range = match (capabilities.first(), capabilities.last()) {
                (Some(first), Some(last)) => format!("{} to {}", Capability(*first), Capability(*last)),
                _ => "none".into(),
            };
            return Err(Error::config(format!(
                "device.kind = \"cuda\": the device has compute capability {}, and NVRTC {version} compiles for {range}",
                Capability(capability)
            ))
            .help("install another version of NVRTC: older ones know older devices, and later ones later devices"));
        }
        // A driver loads the PTX of its own version of CUDA and of earlier ones.
        if driver < *version {
            return Err(Error::config(format!(
                "device.kind = \"cuda\": the driver is one of CUDA {driver}, and cannot load what the later NVRTC {version} compiles"
            ))
            .help(format!("install a newer driver of NVIDIA's, or NVRTC {driver}")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn driver_compiler_and_device_must_fit() {
        let nvrtc = Nvrtc { version: Version(13000), capabilities: vec![75, 80, 90] };
        assert!(nvrtc.check(Version(13010), 80).is_ok());
        let told = |driver, capability| nvrtc.check(Version(driver), capability).unwrap_err().to_string();
        assert!(
            told(13000, 61).contains("capability 6.1, and NVRTC 13.0 compiles for 7.5 to 9.0"),
            "{}",
            told(13000, 61)
        );
        assert!(told(12090, 90).contains("one of CUDA 12.9"), "{}", told(12090, 90));
    }
}
