//! Operators in two forms: the plain composition of Burn operations, which is the reference and
//! what `native` uses, and a fused kernel with one hand-written backward, which `compiled` uses.
//! [`Ops`] chooses, for all operators or one by one ([`Operator`]); both compute the same function.
//!
//! A folder is an operator, but for `cube` (parts of kernels that several share), `in_place`
//! (writing into buffers) and `products` (matrix products on the CPU). Its `mod.rs` has the public
//! function, the plain composition, the operator as Burn's backend extension, its backward and the
//! CPU kernel; `cube.rs` has the kernel for wgpu and CUDA, in CubeCL. `Inputs` are the arguments of
//! an operator as a backend has them, and a trait `...Kernel` names the kernels that a backend must
//! supply. [`compute`] decides in which type an operator reads and writes, by the table of devices
//! in `device`. [`FUSED`] tells which operator has a fused form on which device and in which
//! precision. Every public function checks its arguments (`contract`) before a kernel sees them,
//! and panics where they do not fit together: that is a mistake of the caller's, not of a user's.
//!
//! The functions are building blocks for models of one's own as well: they take tensors of Burn and
//! an [`Ops`], which is the switch between the forms.
//!
//! ```
//! use burn::tensor::{Device, FloatDType, Tensor};
//! use kiln_models::ops::{Ops, linear::linear};
//!
//! let device = Device::default();
//! let [x, weight] = [[4, 8], [8, 2]].map(|shape| Tensor::<2>::ones(shape, &device));
//! let bias = Some(Tensor::<1>::zeros([2], &device));
//! let native = linear(x.clone(), weight.clone(), bias.clone(), FloatDType::F32, Ops::Plain);
//! let compiled = linear(x, weight, bias, FloatDType::F32, Ops::fused(&device)?);
//! assert_eq!(native.dims(), compiled.dims());
//! # Ok::<(), kiln_models::Error>(())
//! ```

pub mod adamw;
pub mod attention;
mod autodiff;
pub mod compute;
mod contract;
pub mod copies;
pub mod cross_entropy;
#[cfg(feature = "compiler")]
mod cube;
#[cfg(feature = "cuda")]
pub mod cuda;
pub(crate) mod device;
pub mod dropout;
pub mod embedding;
mod flex;
mod fused;
pub mod gelu;
#[cfg(feature = "compiler")]
pub mod in_place;
pub mod layer_norm;
pub mod linear;
pub mod list;
pub mod products;
mod simd;
pub mod threads;

use burn::tensor::Device;
pub use compute::{Compute, Operand, Pass};
pub use copies::Copies;
use device::DeviceKernels;
pub use fused::{Availability, DTYPES, FUSED, FusedForm, Target};

use crate::error::Result;

/// The operators that have a fused form, in the order in which a step meets them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// Rows of a table, and the sum of their gradients ([`embedding`]).
    Embedding,
    /// Dropout, alone or with bias and residual ([`dropout`]).
    Dropout,
    /// LayerNorm with its residual ([`layer_norm`]).
    LayerNorm,
    /// Matrix product and bias ([`linear`]).
    Linear,
    /// Attention without stored scores ([`attention`]). Of rows of several documents it is fused on
    /// the CPU alone; elsewhere they have the plain form with a mask.
    Attention,
    /// Bias and GELU or another activation ([`gelu`]).
    Gelu,
    /// Vocabulary projection and cross-entropy without stored logits ([`cross_entropy`]).
    CrossEntropy,
    /// AdamW's update in one pass, and the norm over all gradients ([`adamw`]).
    AdamW,
}

/// Some of the operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Operators(u16);

impl Operators {
    /// Whether `operator` is among them.
    pub fn contains(self, operator: Operator) -> bool {
        self.0 & (1 << operator as u16) != 0
    }
}

impl FromIterator<Operator> for Operators {
    fn from_iter<I: IntoIterator<Item = Operator>>(operators: I) -> Self {
        Self(operators.into_iter().fold(0, |bits, operator| bits | 1 << operator as u16))
    }
}

/// The form in which one operator computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A composition of Burn's operations.
    Plain,
    /// Kiln's fused kernel.
    Fused,
}

/// Which form of the operators computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ops {
    /// Compositions of Burn's operations, on every device and in every type.
    #[default]
    Plain,
    /// Kiln's fused kernels, where [`FUSED`] has them, and in f32; attention and cross-entropy take
    /// narrow factors as well, and on wgpu and CUDA GELU takes a narrow argument. LayerNorm, and on
    /// the CPU GELU and attention of f32, can give a narrow result. Calling one with other tensors
    /// panics: [`Ops::fused`] checks the device, [`Compute::new`](crate::Compute::new) the type.
    Fused,
    /// The fused kernels of these operators, under the conditions of [`Ops::Fused`]; compositions
    /// for the others.
    Chosen(Operators),
}

/// Bytes of attention's scores, and of the logits of cross-entropy, that a fused operator has at a
/// time on `device`: a 64th of its memory, 1 GiB at the most, and 256 MiB where it does not tell
/// how much it has, but no more than one of its buffers holds. The scores of one sequence, and the
/// logits of one row, are there in any case. None without fused kernels, and on the CPU, where
/// blocks are smaller.
pub fn bytes_at_a_time(device: &Device) -> Option<u64> {
    #[cfg(feature = "compiler")]
    if let burn::backend::DispatchDevice::Cube(device) = device.clone().without_autodiff().as_dispatch() {
        return Some(cube::bytes_at_a_time(device));
    }
    let _ = device;
    None
}

/// Bytes from one row of a matrix to the next in the result of a product on CUDA, for rows of
/// `bytes` each.
pub fn pitched(bytes: u64) -> u64 {
    bytes.next_multiple_of(bytes.next_power_of_two().min(512))
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
        if DeviceKernels::on(&inner).are_on_host {
            return Ok(Self::Fused);
        }
        Err(kiln_core::Error::config(format!(
            "this build has Kiln's fused operators for the CPU only, and the device is {inner:?}; they are part of the \
             compiled engine (feature `compiler`)"
        ))
        .into())
    }

    /// These forms, fused for `operators` alone; plain operators stay plain. [`Ops::Plain`] and
    /// [`Ops::Fused`] where that leaves none or all of them.
    #[must_use]
    pub fn only(self, operators: impl IntoIterator<Item = Operator>) -> Self {
        let kept = operators.into_iter().filter(|operator| self.form(*operator) == Form::Fused).collect::<Operators>();
        match Operator::ALL.into_iter().filter(|operator| kept.contains(*operator)).count() {
            0 => Self::Plain,
            all if all == Operator::ALL.len() => Self::Fused,
            _ => Self::Chosen(kept),
        }
    }

    /// The form in which `operator` computes.
    pub fn form(self, operator: Operator) -> Form {
        match self {
            Self::Fused => Form::Fused,
            Self::Chosen(operators) if operators.contains(operator) => Form::Fused,
            Self::Plain | Self::Chosen(_) => Form::Plain,
        }
    }

    /// The operators that compute in the fused form, in the order of [`Operator::ALL`].
    pub fn fused_operators(self) -> Vec<Operator> {
        Operator::ALL.into_iter().filter(|operator| self.form(*operator) == Form::Fused).collect()
    }
}
