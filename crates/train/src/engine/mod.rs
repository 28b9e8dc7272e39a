//! Devices, the two engines and the hand-over between them, the settings of the training compiler,
//! the choice of fused operators and of the precision, kernel launches.

pub mod compiler;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(any(feature = "cuda", test))]
mod cuda_versions;
pub mod device;
pub mod energy;
pub mod handover;
pub mod launches;
pub mod operators;
pub mod precision;
pub mod settings;
