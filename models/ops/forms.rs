//! The switch between the plain and the fused form of the operators.

use burn::tensor::{Device, FloatDType, Tensor};

use super::autodiff::Left;
use super::device::{DeviceKernels, has_kernels};
use super::fused::{Operator, Operators};
use crate::error::Result;

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
    /// Kiln's fused kernels, where [`FUSED`](super::FUSED) has them, and in f32; linear layers,
    /// attention and cross-entropy take narrow factors as well, and on wgpu and CUDA GELU, SwiGLU,
    /// rotary positions and dropout with a residual take narrow arguments. LayerNorm and RMSNorm,
    /// and on the CPU GELU, SwiGLU and attention of f32, can give a narrow result.
    /// Calling one with other tensors panics: [`Ops::fused`] checks the device,
    /// [`Compute::new`](crate::Compute::new) the type.
    Fused,
    /// The fused kernels of these operators, under the conditions of [`Ops::Fused`]; compositions
    /// for the others.
    Chosen(Operators),
}

impl Ops {
    /// The fused form, if `device` has it.
    ///
    /// # Errors
    /// A device without fused kernels in this build.
    pub fn fused(device: &Device) -> Result<Self> {
        if has_kernels(device) {
            return Ok(Self::Fused);
        }
        Err(kiln_core::Error::config(format!(
            "this build has Kiln's fused operators for the CPU only, and the device is {:?}; they are part of the \
             compiled engine (feature `compiler`)",
            device.clone().without_autodiff()
        ))
        .into())
    }

    /// These forms for an operator that writes its result in `dtype`.
    pub fn writing(self, dtype: FloatDType) -> Writing {
        Writing { dtype: Some(dtype), ..self.into() }
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

/// In which form an operator computes, and in which type it writes its result, which a matrix
/// product may read.
#[derive(Debug, Clone)]
pub struct Writing {
    pub(super) ops: Ops,
    /// The type of the result; none for the type that it has by itself.
    dtype: Option<FloatDType>,
    /// A gradient that the fused form of a normalisation adds to that of its `x`.
    pub(super) left: Option<Left>,
}

impl From<Ops> for Writing {
    fn from(ops: Ops) -> Self {
        Self { ops, dtype: None, left: None }
    }
}

impl Writing {
    /// This, for a normalisation that adds the gradient that is `left`.
    pub(super) fn adding(self, left: Option<Left>) -> Self {
        Self { left, ..self }
    }

    /// The type in which the kernel of `operator` on `device` writes, of values of the type `of_x`.
    pub(super) fn by_kernel(&self, operator: Operator, of_x: FloatDType, device: &Device) -> FloatDType {
        DeviceKernels::on(device).written(operator, of_x, self.dtype.unwrap_or(of_x))
    }

    /// The result `y` in the type that is asked for.
    pub(super) fn cast(&self, y: Tensor<2>) -> Tensor<2> {
        match self.dtype {
            Some(dtype) if y.dtype() != dtype.into() => y.cast(dtype),
            _ => y,
        }
    }
}
