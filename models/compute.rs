//! How a model computes: in which form its operators are, and in which type its matrix products are.
//!
//! Mixed precision has one rule, and it is this file's: weights, activations between operators, and everything that adds up
//! many terms (norms, softmax, activation functions, sums of gradients) are in f32; the two operands of a matrix product are
//! rounded to the compute type, and its result is of that type before it is widened again. That is what PyTorch's autocast
//! does to these models. The gradient of a weight is widened to f32 before it is added to anything. Fused attention and
//! cross-entropy round less on the CPU, where scores, weights and logits, which stay within the operator, are f32.

use burn::module::Param;
use burn::tensor::{FloatDType, Tensor};

use crate::copies::narrowed;
use crate::ops::{Operator, Ops, linear};

/// The form of the operators and the type of matrix products. Default: plain operators in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compute {
    ops: Ops,
    dtype: FloatDType,
}

impl Default for Compute {
    fn default() -> Self {
        Self { ops: Ops::Plain, dtype: FloatDType::F32 }
    }
}

impl Compute {
    /// `ops` and `dtype`; in a narrow type without the fused linear operator, which knows f32 alone, and in f16 without the
    /// fused cross-entropy, which takes gradients in the forward pass, before the loss scale has lifted them into f16's range.
    pub fn new(ops: Ops, dtype: FloatDType) -> Self {
        let fused = |operator: &Operator| match operator {
            Operator::Linear => false,
            Operator::CrossEntropy => dtype != FloatDType::F16,
            _ => true,
        };
        let ops = if dtype == FloatDType::F32 { ops } else { ops.only(Operator::ALL.into_iter().filter(fused)) };
        Self { ops, dtype }
    }

    /// The form.
    pub fn ops(self) -> Ops {
        self.ops
    }

    /// The compute type.
    pub fn dtype(self) -> FloatDType {
        self.dtype
    }

    /// Whether everything is f32, so that nothing is cast.
    pub fn is_f32(self) -> bool {
        self.dtype == FloatDType::F32
    }

    /// `x` as an operand of a matrix product.
    pub fn narrow<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        cast(x, self.dtype)
    }

    /// `weight` as an operand of a matrix product, as it is stored; see [`Copies`](crate::copies::Copies).
    pub fn weight(self, weight: &Param<Tensor<2>>) -> Tensor<2> {
        if self.is_f32() { weight.val() } else { narrowed(weight, self.dtype) }
    }

    /// `x W` with a weight as it is stored, in the form of the linear operator: `[n, in]`, `[in, out]` -> `[n, out]`, f32.
    pub fn projection(self, x: Tensor<2>, weight: &Param<Tensor<2>>) -> Tensor<2> {
        match self.is_f32() {
            true => linear::product(x, weight.val(), self.ops),
            false => self.product(x, self.weight(weight)),
        }
    }

    /// `x y` of operands in the compute type, the result in f32: `[n, k]`, `[k, m]` -> `[n, m]`.
    pub fn product(self, x: Tensor<2>, y: Tensor<2>) -> Tensor<2> {
        widen(self.narrow(x).matmul(self.narrow(y)))
    }
}

/// `x` in f32.
pub fn widen<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    cast(x, FloatDType::F32)
}

fn cast<const D: usize>(x: Tensor<D>, dtype: FloatDType) -> Tensor<D> {
    if FloatDType::from(x.dtype()) == dtype { x } else { x.cast(dtype) }
}
