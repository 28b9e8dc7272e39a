//! `gelu(x + bias)` in one pass, both forms of GELU with their exact derivatives, for the
//! feed-forward block.
//!
//! The forward saves `x` and `bias` and nothing else; the backward gives the gradients of both in
//! one pass.
#![allow(unsafe_code)] // kernel: memory is written without being filled first, or by several threads at once

#[cfg(feature = "compiler")]
pub(super) mod cube;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, ExtensionType, Flex, TensorMetadata, autodiff::Autodiff, backend_extension};
use burn::tensor::{DType, FloatDType, Tensor, TensorData};
use kiln_core::model_config::Activation;
use rayon::prelude::*;

use super::autodiff::{Call, Differentiate};
use super::contract::Contract;
use super::flex::{self, FlexTensor};
use super::simd::{exp, fma, normal_cdf_pdf, vectorised};
use super::{Form, Operator, Writing, trace};

/// Element-wise, any shape (Hendrycks & Gimpel 2016, both forms). Written out, because the
/// derivative that Burn 0.22.1 uses by default for its own erf GELU is that of the tanh form.
pub fn activate<const D: usize>(x: Tensor<D>, kind: Activation) -> Tensor<D> {
    match kind {
        Activation::GeluTanh => {
            let sqrt_2_over_pi = (2.0 / std::f64::consts::PI).sqrt();
            let cubic = x.clone() * x.clone() * x.clone();
            let inner = (x.clone() + cubic * 0.044715) * sqrt_2_over_pi;
            x * 0.5 * (inner.tanh() + 1.0)
        }
        Activation::GeluErf => x.clone() * 0.5 * ((x * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0),
    }
}

/// `gelu(x + bias)`: `x [n, features]`, `bias [features]` in f32, the form of GELU that `kind`
/// names. The result is in the type of `x`, unless `ops` names another
/// ([`Ops::writing`](super::Ops::writing)). In the fused form on wgpu and CUDA `x` may be in the
/// type of the products: the result is computed in f32.
///
/// # Panics
/// For tensors of other shapes; in the fused form on the CPU for another type than f32, and for
/// tensors on different devices.
pub fn bias_gelu(x: Tensor<2>, bias: Tensor<1>, kind: Activation, ops: impl Into<Writing>) -> Tensor<2> {
    let written = ops.into();
    let form = written.ops.form(Operator::Gelu);
    let _time = trace::call("gelu");
    let contract = Contract::new("bias_gelu", form, x.device());
    let [rows, width] = contract.matrix("x", &x);
    let of_x = contract.operand("x", &x);
    contract.floats("x", &x, [rows, width], of_x);
    contract.floats("bias", &bias, [width], DType::F32);
    written.cast(match form {
        Form::Plain => activate(x + bias.unsqueeze(), kind),
        Form::Fused => {
            let dtype = written.by_kernel(Operator::Gelu, x.dtype().into(), &x.device());
            let inputs = Inputs { x: x.into_dispatch(), bias: bias.into_dispatch(), kind, dtype };
            Tensor::from_dispatch(<Dispatch as GeluOp>::bias_gelu(inputs))
        }
    })
}

/// The operator's inputs as a backend has them: all that the backward needs.
#[derive(Debug, Clone, ExtensionType)]
pub(super) struct Inputs<B: Backend> {
    pub x: FloatTensor<B>,
    pub bias: FloatTensor<B>,
    pub kind: Activation,
    /// The type of the result and of the gradient of `x`: elsewhere than on the CPU that of `x`.
    pub dtype: FloatDType,
}

#[backend_extension(Flex, Cube: cfg(feature = "compiler"), Autodiff)]
trait GeluOp: Backend {
    fn bias_gelu(#[extension_type] inputs: Inputs<Self>) -> FloatTensor<Self>;
}

/// The kernels that a backend supplies.
pub(super) trait GeluKernel: Backend {
    fn forward(inputs: Inputs<Self>) -> FloatTensor<Self>;

    /// `(dx, dbias)`
    fn backward(inputs: Inputs<Self>, dy: FloatTensor<Self>) -> (FloatTensor<Self>, FloatTensor<Self>);
}

/// Without autodiff the operator is its kernel's forward.
impl<B: GeluKernel> GeluOp for B {
    fn bias_gelu(inputs: Inputs<B>) -> FloatTensor<B> {
        B::forward(inputs)
    }
}

impl<B: GeluKernel, C: CheckpointStrategy> GeluOp for Autodiff<B, C> {
    fn bias_gelu(inputs: Inputs<Self>) -> FloatTensor<Self> {
        let mut call = Call::<B, C>::new();
        let Inputs { x, bias, kind, dtype } = inputs;
        let inputs = Inputs { x: call.input(x), bias: call.input(bias), kind, dtype };
        call.record(|_| (B::forward(inputs.clone()), inputs))
    }
}

impl<B: GeluKernel> Differentiate<B> for Inputs<B> {
    fn gradients(self, dy: FloatTensor<B>, _: &[bool]) -> Vec<Option<FloatTensor<B>>> {
        let (dx, dbias) = B::backward(self, dy);
        vec![Some(dx), Some(dbias)]
    }
}

impl GeluKernel for Flex {
    fn forward(Inputs { x, bias, kind, dtype }: Inputs<Self>) -> FlexTensor {
        let (x, bias) = (flex::row_major(x), flex::row_major(bias));
        let [rows, width] = flex::dims2(&x);
        let block = flex::block_rows(width) * width;
        // SAFETY: `forward_rows` writes every element of its block, which `x` has as well and whose
        // rows are as long as the bias (`bias_gelu` has asked).
        unsafe {
            flex::written_in(dtype, [rows, width], |i, out| {
                let x = &flex::values(&x)[i * block..][..out.len()];
                forward_rows(out, x, flex::values(&bias), kind);
            })
        }
    }

    fn backward(Inputs { x, bias, kind, dtype }: Inputs<Self>, dy: FlexTensor) -> (FlexTensor, FlexTensor) {
        let (x, bias) = (flex::row_major(x), flex::row_major(bias));
        let [rows, width] = flex::dims2(&x);
        let block = flex::block_rows(width) * width;
        let mut dy = flex::widened(dy);
        let dbias_of = |dy: &mut [f32], x: &[f32]| {
            let mut dbias = vec![0.0; width];
            backward_rows(dy, x, flex::values(&bias), &mut dbias, kind);
            dbias
        };
        let blocks = flex::writable(&mut dy).par_chunks_mut(block).zip(flex::values(&x).par_chunks(block));
        let (dx, parts) = match dtype {
            FloatDType::F32 => {
                let parts: Vec<_> = blocks.map(|(dy, x)| dbias_of(dy, x)).collect();
                (dy, parts)
            }
            dtype => {
                assert_eq!(dtype, FloatDType::BF16, "a kernel of the CPU gives f32 or bf16");
                let mut parts = Vec::new();
                // SAFETY: the blocks pair up, and `narrow` writes every element of its block.
                let dx = unsafe {
                    flex::written(rows * width, |out| {
                        let blocks = out.par_chunks_mut(block).zip(blocks);
                        let each = blocks.map(|(out, (dy, x))| {
                            let dbias = dbias_of(dy, x);
                            flex::narrow(out, dy);
                            dbias
                        });
                        parts = each.collect();
                    })
                };
                (FlexTensor::from_data(TensorData::new(dx, [rows, width])), parts)
            }
        };
        (dx, flex::tensor(flex::add_up(parts, width), bias.shape()))
    }
}

pub(super) const SQRT_2_OVER_PI: f32 = 0.797_884_6;
pub(super) const CUBIC: f32 = 0.044_715;

/// `1 / (1 + e^(-2u))`, which is `0.5 (1 + tanh u)` without its cancellation for negative `u`; `u`
/// is the tanh form's inner polynomial.
#[inline(always)]
fn gate<const FMA: bool>(x: f32) -> f32 {
    let inner = x * fma::<FMA>(x * x, SQRT_2_OVER_PI * CUBIC, SQRT_2_OVER_PI);
    1.0 / (1.0 + exp::<FMA>(-2.0 * inner))
}

#[inline(always)]
fn derivative_tanh<const FMA: bool>(x: f32) -> f32 {
    let gate = gate::<FMA>(x);
    let twice_inner_derivative = fma::<FMA>(x * x, 6.0 * SQRT_2_OVER_PI * CUBIC, 2.0 * SQRT_2_OVER_PI);
    fma::<FMA>(x * gate * (1.0 - gate), twice_inner_derivative, gate)
}

vectorised! {
    /// `gelu(x + bias)` of rows as long as the bias. `out` is as long as `x`.
    pub(super) fn forward_rows(out: &mut [std::mem::MaybeUninit<f32>], x: &[f32], bias: &[f32], kind: Activation) {
        let rows = out.chunks_exact_mut(bias.len()).zip(x.chunks_exact(bias.len()));
        match kind {
            Activation::GeluTanh => {
                for (out, x) in rows {
                    for ((out, x), bias) in out.iter_mut().zip(x).zip(bias) {
                        let x = x + bias;
                        out.write(x * gate::<FMA>(x));
                    }
                }
            }
            Activation::GeluErf => {
                for (out, x) in rows {
                    for ((out, x), bias) in out.iter_mut().zip(x).zip(bias) {
                        let x = x + bias;
                        out.write(x * normal_cdf_pdf::<FMA>(x).0);
                    }
                }
            }
        }
    }
}

vectorised! {
    /// Turns the gradients `dy` of `gelu(x + bias)` into those of `x`, and adds those of rows to
    /// `dbias`. All rows are as long as the bias.
    pub(super) fn backward_rows(dy: &mut [f32], x: &[f32], bias: &[f32], dbias: &mut [f32], kind: Activation) {
        let rows = dy.chunks_exact_mut(bias.len()).zip(x.chunks_exact(bias.len()));
        match kind {
            Activation::GeluTanh => {
                for (dy, x) in rows {
                    for (((dy, x), bias), dbias) in dy.iter_mut().zip(x).zip(bias).zip(dbias.iter_mut()) {
                        *dy *= derivative_tanh::<FMA>(x + bias);
                        *dbias += *dy;
                    }
                }
            }
            Activation::GeluErf => {
                for (dy, x) in rows {
                    for (((dy, x), bias), dbias) in dy.iter_mut().zip(x).zip(bias).zip(dbias.iter_mut()) {
                        let x = x + bias;
                        let (cdf, pdf) = normal_cdf_pdf::<FMA>(x);
                        *dy *= fma::<FMA>(x, pdf, cdf);
                        *dbias += *dy;
                    }
                }
            }
        }
    }
}
