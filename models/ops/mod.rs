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
mod forms;
mod fused;
pub mod gelu;
#[cfg(feature = "compiler")]
pub mod in_place;
pub mod layer_norm;
pub mod linear;
pub mod list;
pub mod products;
pub mod rms_norm;
pub mod rotary;
mod simd;
pub mod swiglu;
pub mod threads;
pub mod trace;

pub use compute::{Compute, Operand, Pass, PostNorm, Reader, SharedOperand};
pub use copies::Copies;
pub use device::{bytes_at_a_time, flash_head_dims, pitched};
pub use forms::{Form, Ops, Writing};
pub use fused::{Availability, DTYPES, FUSED, FusedForm, Operator, Operators, Target};
