//! Operators in two forms: the plain composition of Burn operations, which is the reference and what `native` uses, and a
//! fused kernel with one hand-written backward, which `compiled` uses. [`Ops`] chooses; both compute the same function.
//!
//! One file is one operator: its public function, the plain composition, the operator as Burn's backend extension (which
//! ties the kernel into autodiff), and the CPU kernel. A trait `...Kernel` names what a backend must supply: Flex, and in
//! the compiled engine wgpu and CUDA, whose kernels are in `cube`.

pub mod adamw;
pub mod attention;
pub mod cross_entropy;
#[cfg(feature = "compiler")]
mod cube;
pub mod dropout;
pub mod embedding;
mod flex;
pub mod gelu;
pub mod layer_norm;
pub mod linear;
mod simd;

use burn::tensor::Device;

use crate::error::{Error, Result};

/// Which form of the operators computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ops {
    /// Compositions of Burn's operations, on every device and in every type.
    #[default]
    Plain,
    /// Kiln's fused kernels: on the CPU (Flex), in the compiled engine (feature `compiler`) on wgpu and CUDA too, and in
    /// f32. Calling one with other tensors panics; [`Ops::fused`] is the way to ask first.
    Fused,
}

impl Ops {
    /// The fused form, if `device` has it.
    ///
    /// # Errors
    /// A device without fused kernels in this build.
    pub fn fused(device: &Device) -> Result<Self> {
        let inner = device.clone().without_autodiff();
        #[cfg(feature = "compiler")]
        if matches!(inner.as_dispatch(), burn::backend::DispatchDevice::Cube(_)) {
            return Ok(Self::Fused);
        }
        if inner == Device::flex() {
            return Ok(Self::Fused);
        }
        Err(Error::Config(format!(
            "this build has Kiln's fused operators for the CPU only, and the device is {inner:?}; they are part of the \
             compiled engine (feature `compiler`)"
        )))
    }
}
