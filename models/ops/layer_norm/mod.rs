//! Layer normalisation of `x`, of `x + residual`, or of `residual + dropout(x + bias)`, with its
//! affine map, in one pass forward and one backward.
//!
//! The forward saves what was normalised and two numbers a row (mean and reciprocal standard
//! deviation).
#![allow(unsafe_code)] // kernel: memory is written without being filled first, or by several threads at once

#[cfg(feature = "compiler")]
pub(super) mod cube;

use std::mem::MaybeUninit;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{AutodiffBackend, Backend, Dispatch, ExtensionType, Flex, autodiff::Autodiff, backend_extension};
use burn::tensor::{DType, FloatDType, Tensor};
use rayon::prelude::*;

use super::autodiff::{Call, Differentiate, Left};
use super::contract::Contract;
use super::dropout::{self, DropoutKernel, Stream};
use super::flex::{self, FlexTensor};
use super::list::Optional;
use super::products::Shared;
use super::simd::{fma, sum, sum_pairs, vectorised};
use super::{Form, Operator, Writing, trace};

/// Layer normalisation over the last dimension (Ba et al. 2016) of `x`, plus `residual` if there is
/// one, statistics in f32 and the biased variance, as torch's.
///
/// `x`, `residual`: `[n, features]`; `weight`, `bias`: `[features]`; `eps` is added to the
/// variance. A sum that `x` stands for is made with its normalisation where both are fused. The
/// result is in the type of `x`, unless `ops` names another
/// ([`Ops::writing`](super::Ops::writing)).
///
/// # Panics
/// For tensors of other shapes; in the fused form for another type than f32 and for tensors on
/// different devices.
pub fn layer_norm(
    x: impl Into<Stream>,
    residual: Option<Tensor<2>>,
    weight: Tensor<1>,
    bias: Tensor<1>,
    eps: f64,
    ops: impl Into<Writing>,
) -> Tensor<2> {
    let (x, written) = (x.into(), ops.into());
    let (form, left) = (written.ops.form(Operator::LayerNorm), written.left.clone());
    if let Some(sum) = x.pending().filter(|_| form == Form::Fused && residual.is_none()) {
        let dtype = written.by_kernel(Operator::LayerNorm, FloatDType::F32, &x.device());
        let (y, rows) = normalised_sum(dtype, sum, weight, bias, eps, left, HandsOn::Sum);
        x.hand_on(rows);
        return written.cast(y);
    }
    let x = x.rows(); // nobody else holds them, so that the sum may be made in their place
    let _time = trace::call("layer_norm");
    let contract = Contract::new("layer_norm", form, x.device());
    let [rows, width] = contract.matrix("x", &x);
    contract.floats("x", &x, [rows, width], DType::F32);
    if let Some(residual) = &residual {
        contract.floats("residual", residual, [rows, width], DType::F32);
    }
    contract.floats("weight", &weight, [width], DType::F32);
    contract.floats("bias", &bias, [width], DType::F32);
    written.cast(match (form, residual) {
        (Form::Plain, None) => plain(x, weight, bias, eps),
        (Form::Plain, Some(residual)) => plain(x + residual, weight, bias, eps),
        (Form::Fused, residual) => {
            let dtype = match residual {
                Some(_) => FloatDType::F32,
                None => written.by_kernel(Operator::LayerNorm, x.dtype().into(), &x.device()),
            };
            let (x, weight, bias) = (x.into_dispatch(), weight.into_dispatch(), bias.into_dispatch());
            let inputs = Inputs { x, residual: residual.into(), weight, bias, eps, dtype, left };
            Tensor::from_dispatch(<Dispatch as LayerNormOp>::layer_norm(inputs))
        }
    })
}

/// The normalised rows of `sum` in `dtype`, and the rows that it `hands_on`, whose gradient is
/// `left`.
pub(super) fn normalised_sum(
    dtype: FloatDType,
    sum: dropout::Inputs<Dispatch>,
    weight: Tensor<1>,
    bias: Tensor<1>,
    eps: f64,
    left: Option<Left>,
    hands_on: HandsOn,
) -> (Tensor<2>, Tensor<2>) {
    let _time = trace::call("layer_norm");
    let x = Tensor::<2>::from_dispatch(sum.x.clone());
    let contract = Contract::new("layer_norm", Form::Fused, x.device());
    let [_, width] = contract.matrix("x", &x);
    contract.floats("weight", &weight, [width], DType::F32);
    contract.floats("bias", &bias, [width], DType::F32);
    let (weight, bias) = (weight.into_dispatch(), bias.into_dispatch());
    let inputs = OfSum { sum, weight, bias, eps, dtype, left, hands_on };
    let (y, rows) = <Dispatch as LayerNormOp>::layer_norm_of_sum(inputs);
    (Tensor::from_dispatch(y), Tensor::from_dispatch(rows))
}

fn plain(x: Tensor<2>, weight: Tensor<1>, bias: Tensor<1>, eps: f64) -> Tensor<2> {
    let dtype = FloatDType::from(x.dtype());
    let x = if dtype == FloatDType::F32 { x } else { x.cast(FloatDType::F32) };
    let centred = x.clone() - x.mean_dim(1);
    let variance = centred.clone().square().mean_dim(1); // biased, as torch's
    let normalised = centred * (variance + eps).sqrt().recip();
    let y = normalised * weight.unsqueeze() + bias.unsqueeze();
    if dtype == FloatDType::F32 { y } else { y.cast(dtype) }
}

/// The operator's inputs as a backend has them.
#[derive(Debug, Clone, ExtensionType)]
pub(super) struct Inputs<B: Backend> {
    pub x: FloatTensor<B>,
    #[extension_type]
    pub residual: Optional<B>,
    pub weight: FloatTensor<B>,
    pub bias: FloatTensor<B>,
    pub eps: f64,
    /// The type of the result: f32 where there is a residual, and f32 or bf16 on the CPU.
    pub dtype: FloatDType,
    /// A gradient of `x` that the backward adds to its own.
    pub left: Option<Left>,
}

/// The inputs of the normalisation of a sum as a backend has them.
#[derive(Debug, Clone, ExtensionType)]
pub(super) struct OfSum<B: Backend> {
    /// `residual + dropout(x + bias)`
    #[extension_type]
    pub sum: dropout::Inputs<B>,
    pub weight: FloatTensor<B>,
    pub bias: FloatTensor<B>,
    pub eps: f64,
    /// The type of the result.
    pub dtype: FloatDType,
    /// Which rows it gives beside its result.
    pub hands_on: HandsOn,
    /// The gradient of these rows, which the backward adds where it belongs.
    pub left: Option<Left>,
}

/// The rows in f32 that the normalisation of a sum gives beside its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HandsOn {
    /// The sum, as a branch of a pre-norm model goes around its normalisation.
    Sum,
    /// The result, as a branch of a post-norm model goes around what reads it.
    Result,
}

#[backend_extension(Flex, Cube: cfg(feature = "compiler"), Autodiff)]
trait LayerNormOp: Backend {
    fn layer_norm(#[extension_type] inputs: Inputs<Self>) -> FloatTensor<Self>;

    /// The result, and the rows that are handed on, which have no gradient of their own.
    fn layer_norm_of_sum(#[extension_type] inputs: OfSum<Self>) -> (FloatTensor<Self>, FloatTensor<Self>);
}

/// The values that the backward needs.
#[derive(Debug, Clone)]
pub(super) struct Saved<T> {
    /// The input of the normalisation: `x`, or `x + residual`, `[n, features]`.
    pub normalised: T,
    pub weight: T,
    /// Mean and reciprocal standard deviation of each row, `[n, 2]`.
    pub statistics: T,
}

/// The kernels that a backend supplies.
pub(super) trait LayerNormKernel: DropoutKernel {
    /// The result, and what is saved.
    fn forward(inputs: Inputs<Self>) -> (FloatTensor<Self>, Saved<FloatTensor<Self>>);

    /// The result for a sum, the rows that are handed on, and what is saved. The CPU makes a sum
    /// before it is normalised; this composition is for a backend without a kernel of its own.
    fn forward_of_sum(inputs: OfSum<Self>) -> (FloatTensor<Self>, FloatTensor<Self>, Saved<FloatTensor<Self>>) {
        let OfSum { sum, weight, bias, eps, dtype, hands_on, .. } = inputs;
        let x = Self::bias_drop_add(sum);
        let of_kernel = if hands_on == HandsOn::Sum { dtype } else { FloatDType::F32 };
        let inputs = Inputs { x, residual: Optional::Missing, weight, bias, eps, dtype: of_kernel, left: None };
        let (y, saved) = Self::forward(inputs);
        match hands_on {
            HandsOn::Sum => (y, saved.normalised.clone(), saved),
            HandsOn::Result => (Self::float_cast(y.clone(), dtype), y, saved),
        }
    }

    /// The gradients of [`backward`](Self::backward), `added` being that of the rows that are
    /// handed on, and those of the `x` and the bias of the sum, by its own `of_sum`.
    fn backward_of_sum(
        saved: Saved<FloatTensor<Self>>,
        dy: FloatTensor<Self>,
        added: Option<FloatTensor<Self>>,
        hands_on: HandsOn,
        of_sum: &dropout::Saved<IntTensor<Self>>,
    ) -> ([FloatTensor<Self>; 3], FloatTensor<Self>, Option<FloatTensor<Self>>) {
        let (dy, added) = match (added, hands_on) {
            (Some(added), HandsOn::Result) => (Self::float_add(Self::float_cast(dy, FloatDType::F32), added), None),
            (added, _) => (dy, added),
        };
        let gradients = Self::backward(saved, dy, added);
        let (dx, dbias) = Self::gradients(gradients[0].clone(), of_sum.seed.clone(), of_sum.p, of_sum.dtype, true);
        (gradients, dx, dbias)
    }

    /// `(d normalised, dweight, dbias)`, the first of them with `added`.
    fn backward(
        saved: Saved<FloatTensor<Self>>,
        dy: FloatTensor<Self>,
        added: Option<FloatTensor<Self>>,
    ) -> [FloatTensor<Self>; 3];
}

/// Without autodiff the operator is its kernel's forward.
impl<B: LayerNormKernel> LayerNormOp for B {
    fn layer_norm(inputs: Inputs<B>) -> FloatTensor<B> {
        B::forward(inputs).0
    }

    fn layer_norm_of_sum(inputs: OfSum<B>) -> (FloatTensor<B>, FloatTensor<B>) {
        let (y, rows, _) = B::forward_of_sum(inputs);
        (y, rows)
    }
}

impl<B: LayerNormKernel, C: CheckpointStrategy> LayerNormOp for Autodiff<B, C> {
    fn layer_norm(inputs: Inputs<Self>) -> FloatTensor<Self> {
        let mut call = Call::<B, C>::new();
        let left = inputs.left.map(Left::awaited);
        let normalised = Inputs {
            weight: call.input(inputs.weight),
            bias: call.input(inputs.bias),
            x: call.input(inputs.x),
            residual: inputs.residual.map(|residual| call.input(residual)),
            eps: inputs.eps,
            dtype: inputs.dtype,
            left: None,
        };
        call.record(|_| {
            let (y, saved) = B::forward(normalised);
            (y, (saved, left))
        })
    }

    fn layer_norm_of_sum(inputs: OfSum<Self>) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let mut call = Call::<B, C>::new();
        let OfSum { sum, weight, bias, eps, dtype, hands_on, left } = inputs;
        let left = left.map(Left::awaited);
        let (weight, bias) = (call.input(weight), call.input(bias));
        let (sum, of_sum) = sum.of_call(&mut call);
        let (y, rows, saved) = B::forward_of_sum(OfSum { sum, weight, bias, eps, dtype, hands_on, left: None });
        let left = left.map(|left| (left, hands_on));
        (call.record(|_| (y, (saved, left, of_sum))), <Self as AutodiffBackend>::from_inner(rows))
    }
}

impl<B: LayerNormKernel> Differentiate<B> for (Saved<FloatTensor<B>>, Option<Left>) {
    /// The gradients of the weight, the bias, `x`, and `residual` if there is one; the last two are
    /// the same.
    fn gradients(self, dy: FloatTensor<B>, tracked: &[bool]) -> Vec<Option<FloatTensor<B>>> {
        let (saved, left) = self;
        let [dx, dweight, dbias] = B::backward(saved, dy, left.and_then(|left| left.take::<B>()));
        let mut gradients = vec![Some(dweight), Some(dbias)];
        gradients.resize(tracked.len(), Some(dx));
        gradients
    }
}

impl<B: LayerNormKernel> Differentiate<B>
    for (Saved<FloatTensor<B>>, Option<(Left, HandsOn)>, dropout::Saved<IntTensor<B>>)
{
    /// The gradients of the weight and the bias of the normalisation, of the `x` and the bias of
    /// the sum, and of its residual unless that is left.
    fn gradients(self, dy: FloatTensor<B>, _: &[bool]) -> Vec<Option<FloatTensor<B>>> {
        let (saved, left, of_sum) = self;
        let (added, hands_on) = left.map_or((None, HandsOn::Sum), |(left, rows)| (left.take::<B>(), rows));
        let ([dsum, dweight, dnorm_bias], dx, dbias) = B::backward_of_sum(saved, dy, added, hands_on, &of_sum);
        let mut gradients = vec![Some(dweight), Some(dnorm_bias)];
        gradients.extend(of_sum.with_residual::<B>(Some(dx), dbias, dsum));
        gradients
    }
}

impl LayerNormKernel for Flex {
    fn forward(inputs: Inputs<Self>) -> (FlexTensor, Saved<FlexTensor>) {
        let Inputs { x, residual, weight, bias, eps, dtype, .. } = inputs;
        let [rows, width] = flex::dims2(&x);
        let (weight, bias) = (flex::row_major(weight), flex::row_major(bias));
        let normalised = match residual.given() {
            None => flex::row_major(x),
            Some(residual) => {
                let residual = flex::row_major(residual);
                let block = flex::block_rows(width) * width;
                flex::overwritten(x, |x| {
                    x.par_chunks_mut(block)
                        .zip(flex::values(&residual).par_chunks(block))
                        .for_each(|(x, residual)| add(x, residual));
                })
            }
        };
        let block = flex::block_rows(width) * width;
        let mut statistics = vec![0.0; 2 * rows];
        let statistics_at = Shared(statistics.as_mut_ptr());
        // SAFETY: `forward_rows` writes every element of its block, which `x` has as well; every
        // block has the statistics of its own rows.
        let y = unsafe {
            flex::written_in(dtype, [rows, width], |i, out| {
                let x = &flex::values(&normalised)[i * block..][..out.len()];
                let first = 2 * i * flex::block_rows(width);
                let statistics = std::slice::from_raw_parts_mut(statistics_at.at(first), 2 * (out.len() / width));
                forward_rows(out, x, statistics, flex::values(&weight), flex::values(&bias), eps as f32);
            })
        };
        let statistics = flex::tensor(statistics, [rows, 2]);
        (y, Saved { normalised, weight, statistics })
    }

    fn backward(saved: Saved<FlexTensor>, dy: FlexTensor, added: Option<FlexTensor>) -> [FlexTensor; 3] {
        let Saved { normalised, weight, statistics } = saved;
        let [_, width] = flex::dims2(&normalised);
        let block = flex::block_rows(width);
        let mut parts = Vec::new();
        let dx = flex::overwritten(flex::widened(dy), |dy| {
            let blocks = dy
                .par_chunks_mut(block * width)
                .zip(flex::values(&normalised).par_chunks(block * width))
                .zip(flex::values(&statistics).par_chunks(2 * block));
            let sums = blocks.map(|((dy, x), statistics)| {
                let mut sums = vec![0.0; 2 * width];
                let (dweight, dbias) = sums.split_at_mut(width);
                backward_rows(dy, x, statistics, flex::values(&weight), dweight, dbias);
                sums
            });
            parts = sums.collect();
        });
        let mut dweight = flex::add_up(parts, 2 * width);
        let dbias = dweight.split_off(width);
        let dx = match added {
            Some(added) => Self::float_add(dx, added),
            None => dx,
        };
        [dx, flex::tensor(dweight, [width]), flex::tensor(dbias, [width])]
    }
}

vectorised! {
    fn add(x: &mut [f32], residual: &[f32]) {
        for (x, residual) in x.iter_mut().zip(residual) {
            *x += *residual;
        }
    }
}

vectorised! {
    fn forward_rows(
        out: &mut [MaybeUninit<f32>],
        x: &[f32],
        statistics: &mut [f32],
        weight: &[f32],
        bias: &[f32],
        eps: f32,
    ) {
        let width = weight.len();
        let rows = out.chunks_exact_mut(width).zip(x.chunks_exact(width)).zip(statistics.chunks_exact_mut(2));
        for ((out, x), statistics) in rows {
            let mean = sum(x, |x| x) / width as f32;
            let variance = sum(x, |x| (x - mean) * (x - mean)) / width as f32;
            let rstd = 1.0 / (variance + eps).sqrt();
            statistics.copy_from_slice(&[mean, rstd]);
            for (((out, x), weight), bias) in out.iter_mut().zip(x).zip(weight).zip(bias) {
                out.write(fma::<FMA>((x - mean) * rstd, *weight, *bias));
            }
        }
    }
}

vectorised! {
    /// `dx = rstd (g - mean(g) - n mean(g n))` with `n` the normalised row and `g = dy * weight`;
    /// overwrites `dy`.
    fn backward_rows(
        dy: &mut [f32],
        x: &[f32],
        statistics: &[f32],
        weight: &[f32],
        dweight: &mut [f32],
        dbias: &mut [f32],
    ) {
        let width = weight.len();
        let rows = dy.chunks_exact_mut(width).zip(x.chunks_exact(width)).zip(statistics.as_chunks::<2>().0);
        for ((dy, x), &[mean, rstd]) in rows {
            for (((dy, x), weight), (dweight, dbias)) in
                dy.iter_mut().zip(x).zip(weight).zip(dweight.iter_mut().zip(dbias.iter_mut()))
            {
                *dbias += *dy;
                *dweight = fma::<FMA>(*dy, (x - mean) * rstd, *dweight);
                *dy *= *weight;
            }
            let mean_g = sum(dy, |g| g) / width as f32;
            let mean_gn = sum_pairs(dy, x, |g, x| g * ((x - mean) * rstd)) / width as f32;
            for (dy, x) in dy.iter_mut().zip(x) {
                *dy = rstd * (*dy - mean_g - (x - mean) * rstd * mean_gn);
            }
        }
    }
}
