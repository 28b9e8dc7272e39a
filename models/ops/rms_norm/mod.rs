//! Root mean square normalisation with its weight in one pass forward and one backward.
//!
//! The forward saves its input and one number a row, the reciprocal root of the mean square.
#![allow(unsafe_code)] // kernel: memory is written without being filled first, or by several threads at once

#[cfg(feature = "compiler")]
pub(super) mod cube;

use std::mem::MaybeUninit;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, ExtensionType, Flex, autodiff::Autodiff, backend_extension};
use burn::tensor::{DType, FloatDType, Tensor};
use rayon::prelude::*;

use super::autodiff::{Call, Differentiate, Left};
use super::contract::Contract;
use super::flex::{self, FlexTensor};
use super::products::Shared;
use super::simd::{fma, sum, sum_pairs, vectorised};
use super::{Form, Operator, Writing};

/// Root mean square normalisation over the last dimension (Zhang & Sennrich 2019): `weight x /
/// sqrt(mean(x^2) + epsilon)`, statistics in f32, and what is normalised rounded to the type of `x`
/// before the product with the weight, as in `LlamaRMSNorm` of `transformers`. The result is in the
/// type of `x`, unless `ops` names another ([`Ops::writing`](super::Ops::writing)).
///
/// `x`: `[n, features]`; `weight`: `[features]`. The heads of a projection are rows of `head_dim`
/// features.
///
/// # Panics
/// For tensors of other shapes; in the fused form for another type than f32 and for tensors on
/// different devices.
pub fn rms_norm(x: Tensor<2>, weight: Tensor<1>, epsilon: f64, ops: impl Into<Writing>) -> Tensor<2> {
    let written = ops.into();
    let form = written.ops.form(Operator::RmsNorm);
    let contract = Contract::new("rms_norm", form, x.device());
    let [rows, width] = contract.matrix("x", &x);
    contract.floats("x", &x, [rows, width], DType::F32);
    contract.floats("weight", &weight, [width], DType::F32);
    written.cast(match form {
        Form::Plain => plain(x, weight, epsilon),
        Form::Fused => {
            let dtype = written.by_kernel(Operator::RmsNorm, x.dtype().into(), &x.device());
            let (x, weight, left) = (x.into_dispatch(), weight.into_dispatch(), written.left.clone());
            Tensor::from_dispatch(<Dispatch as RmsNormOp>::rms_norm(Inputs { x, weight, epsilon, dtype, left }))
        }
    })
}

fn plain(x: Tensor<2>, weight: Tensor<1>, epsilon: f64) -> Tensor<2> {
    let dtype = FloatDType::from(x.dtype());
    let x = if dtype == FloatDType::F32 { x } else { x.cast(FloatDType::F32) };
    let normalised = x.clone() * (x.square().mean_dim(1) + epsilon).sqrt().recip();
    match dtype {
        FloatDType::F32 => normalised * weight.unsqueeze(),
        dtype => normalised.cast(dtype) * weight.cast(dtype).unsqueeze(),
    }
}

/// The operator's inputs as a backend has them.
#[derive(Debug, Clone, ExtensionType)]
pub(super) struct Inputs<B: Backend> {
    pub x: FloatTensor<B>,
    pub weight: FloatTensor<B>,
    pub epsilon: f64,
    /// The type of the result: f32 or bf16 on the CPU.
    pub dtype: FloatDType,
    /// A gradient of `x` that the backward adds to its own.
    pub left: Option<Left>,
}

#[backend_extension(Flex, Cube: cfg(feature = "compiler"), Autodiff)]
trait RmsNormOp: Backend {
    fn rms_norm(#[extension_type] inputs: Inputs<Self>) -> FloatTensor<Self>;
}

/// The values that the backward needs.
#[derive(Debug, Clone)]
pub(super) struct Saved<T> {
    pub x: T,
    pub weight: T,
    /// The reciprocal root of the mean square of each row, `[n]`.
    pub reciprocals: T,
}

/// The kernels that a backend supplies.
pub(super) trait RmsNormKernel: Backend {
    /// The result, and what is saved.
    fn forward(inputs: Inputs<Self>) -> (FloatTensor<Self>, Saved<FloatTensor<Self>>);

    /// `(dx, dweight)`, the first of them with `added`.
    fn backward(
        saved: Saved<FloatTensor<Self>>,
        dy: FloatTensor<Self>,
        added: Option<FloatTensor<Self>>,
    ) -> [FloatTensor<Self>; 2];
}

/// Without autodiff the operator is its kernel's forward.
impl<B: RmsNormKernel> RmsNormOp for B {
    fn rms_norm(inputs: Inputs<B>) -> FloatTensor<B> {
        B::forward(inputs).0
    }
}

impl<B: RmsNormKernel, C: CheckpointStrategy> RmsNormOp for Autodiff<B, C> {
    fn rms_norm(inputs: Inputs<Self>) -> FloatTensor<Self> {
        let mut call = Call::<B, C>::new();
        let Inputs { x, weight, epsilon, dtype, left } = inputs;
        let left = left.map(Left::awaited);
        let inputs = Inputs { x: call.input(x), weight: call.input(weight), epsilon, dtype, left: None };
        call.record(|_| {
            let (y, saved) = B::forward(inputs);
            (y, (saved, left))
        })
    }
}

impl<B: RmsNormKernel> Differentiate<B> for (Saved<FloatTensor<B>>, Option<Left>) {
    fn gradients(self, dy: FloatTensor<B>, _: &[bool]) -> Vec<Option<FloatTensor<B>>> {
        let (saved, left) = self;
        B::backward(saved, dy, left.and_then(|left| left.take::<B>())).map(Some).into()
    }
}

impl RmsNormKernel for Flex {
    fn forward(Inputs { x, weight, epsilon, dtype, .. }: Inputs<Self>) -> (FlexTensor, Saved<FlexTensor>) {
        let (x, weight) = (flex::row_major(x), flex::row_major(weight));
        let [rows, width] = flex::dims2(&x);
        let block = flex::block_rows(width);
        let mut reciprocals = vec![0.0; rows];
        let reciprocals_at = Shared(reciprocals.as_mut_ptr());
        // SAFETY: `forward_rows` writes every element of its block, which `x` has as well; every
        // block has the reciprocals of its own rows.
        let y = unsafe {
            flex::written_in(dtype, [rows, width], |i, out| {
                let x = &flex::values(&x)[i * block * width..][..out.len()];
                let reciprocals = std::slice::from_raw_parts_mut(reciprocals_at.at(i * block), out.len() / width);
                forward_rows(out, x, reciprocals, flex::values(&weight), epsilon as f32);
            })
        };
        (y, Saved { x, weight, reciprocals: flex::tensor(reciprocals, [rows]) })
    }

    fn backward(saved: Saved<FlexTensor>, dy: FlexTensor, added: Option<FlexTensor>) -> [FlexTensor; 2] {
        let Saved { x, weight, reciprocals } = saved;
        let [_, width] = flex::dims2(&x);
        let block = flex::block_rows(width);
        let mut parts = Vec::new();
        let dx = flex::overwritten(flex::widened(dy), |dy| {
            let blocks = dy
                .par_chunks_mut(block * width)
                .zip(flex::values(&x).par_chunks(block * width))
                .zip(flex::values(&reciprocals).par_chunks(block));
            let sums = blocks.map(|((dy, x), reciprocals)| {
                let mut dweight = vec![0.0; width];
                backward_rows(dy, x, reciprocals, flex::values(&weight), &mut dweight);
                dweight
            });
            parts = sums.collect();
        });
        let dx = match added {
            Some(added) => Self::float_add(dx, added),
            None => dx,
        };
        [dx, flex::tensor(flex::add_up(parts, width), [width])]
    }
}

vectorised! {
    fn forward_rows(
        out: &mut [MaybeUninit<f32>],
        x: &[f32],
        reciprocals: &mut [f32],
        weight: &[f32],
        epsilon: f32,
    ) {
        let width = weight.len();
        let rows = out.chunks_exact_mut(width).zip(x.chunks_exact(width)).zip(reciprocals);
        for ((out, x), reciprocal) in rows {
            *reciprocal = 1.0 / (sum(x, |x| x * x) / width as f32 + epsilon).sqrt();
            for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
                out.write(x * *reciprocal * weight);
            }
        }
    }
}

vectorised! {
    /// `dx = r (g - n mean(g n))` with `r` the reciprocal, `n = r x` and `g = dy * weight`;
    /// overwrites `dy`.
    fn backward_rows(dy: &mut [f32], x: &[f32], reciprocals: &[f32], weight: &[f32], dweight: &mut [f32]) {
        let width = weight.len();
        let rows = dy.chunks_exact_mut(width).zip(x.chunks_exact(width)).zip(reciprocals);
        for ((dy, x), &reciprocal) in rows {
            for (((dy, x), weight), dweight) in dy.iter_mut().zip(x).zip(weight).zip(dweight.iter_mut()) {
                *dweight = fma::<FMA>(*dy, x * reciprocal, *dweight);
                *dy *= *weight;
            }
            let mean = sum_pairs(dy, x, |g, x| g * (x * reciprocal)) / width as f32;
            for (dy, x) in dy.iter_mut().zip(x) {
                *dy = reciprocal * fma::<FMA>(-(x * reciprocal), mean, *dy);
            }
        }
    }
}
