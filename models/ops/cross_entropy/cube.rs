//! Cross-entropy in chunks of rows: matrix products around one kernel that turns a chunk's logits
//! into losses and, in the same memory, into their gradient. Rows that are ignored are computed
//! too, with weight 0: which they are is known on the device only.
//!
//! The logits are computed and read in the type of the products. A large vocabulary is padded
//! ([`padded`]).
#![allow(unsafe_code)] // kernels are launched without bounds checks: each says why that is sound

use burn::backend::ops::{FloatTensorOps, IntTensorOps};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata, backend_extension};
use burn::tensor::{DType, FloatDType, Shape, Slice};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::{CrossEntropyKernel, Gradient, Inputs, Wanted, padded};
use crate::ops::cube::product::{plain, product, transposed};
use crate::ops::cube::rows::{RowKernels, cube_max, cube_sum};
use crate::ops::cube::{
    Cube, FusedTensor, addresses, buffer, by_row, bytes_at_a_time, dims2, element, empty_in, floats, lanes, own_rows,
    wide,
};

impl CrossEntropyKernel for Cube {
    fn forward(inputs: Inputs<Self>, wanted: Wanted) -> (FusedTensor, Option<Gradient<FusedTensor>>) {
        let Inputs { x, weight, bias, target, row_weight, settings } = inputs;
        let bias = bias.given();
        let ([n, _], [classes, _]) = (x.shape().dims::<2>(), weight.shape().dims::<2>());
        let has_bias = bias.is_some();
        let bias = bias.unwrap_or_else(|| Self::float_zeros(Shape::from([classes]), &weight.device(), FloatDType::F32));
        let columns = padded(classes);
        let weight = match columns - classes {
            0 => weight,
            more => {
                let zeros = Shape::from([more, weight.shape()[1]]);
                let zeros = Self::float_zeros(zeros, &weight.device(), FloatDType::from(weight.dtype()));
                Self::float_cat(vec![weight, zeros], 0)
            }
        };
        let of_classes = |x: FusedTensor| match columns - classes {
            0 => x,
            _ => Self::float_slice(x, &[Slice::from(..classes)]),
        };
        let bytes = bytes_at_a_time(&weight.device());
        let chunk = (bytes as usize / (columns * weight.dtype().size())).clamp(1, n.max(1));
        let mut losses = Vec::new();
        let mut dx = Vec::new();
        let (mut dweight, mut dbias) = (None, None);
        let add = |sum: &mut Option<FusedTensor>, part: FusedTensor| {
            *sum = Some(match sum.take() {
                None => part,
                Some(sum) => Self::float_add(sum, part),
            });
        };
        for start in (0..n).step_by(chunk) {
            let rows = Slice::from(start..(start + chunk).min(n));
            let whole = chunk >= n;
            let part = |x: &FusedTensor| if whole { x.clone() } else { Self::float_slice(x.clone(), &[rows]) };
            let hidden = part(&x);
            let target = if whole { target.clone() } else { Self::int_slice(target.clone(), &[rows]) };
            let logits = product(plain(hidden.clone()), transposed(weight.clone()));
            let (loss, dlogits) =
                Self::cross_entropy(logits, bias.clone(), target, part(&row_weight), settings.label_smoothing as f32);
            losses.push(Self::float_sum(loss));
            if wanted.any {
                if has_bias {
                    add(&mut dbias, Self::column_sums(dlogits.clone()));
                }
                dx.push(wide(product(plain(dlogits.clone()), plain(weight.clone()))));
                if wanted.weight {
                    add(&mut dweight, wide(product(transposed(dlogits), plain(hidden))));
                }
            }
        }
        let mut losses = losses.into_iter();
        let first =
            losses.next().unwrap_or_else(|| Self::float_zeros(Shape::from([1]), &weight.device(), FloatDType::F32));
        let total = losses.fold(first, Self::float_add);
        let gradient = (!dx.is_empty()).then(|| Gradient {
            x: if dx.len() == 1 { dx.remove(0) } else { Self::float_cat(dx, 0) },
            weight: dweight.map(of_classes),
            bias: dbias.map(of_classes),
        });
        (total, gradient)
    }

    fn scale(gradient: FusedTensor, upstream: FusedTensor) -> FusedTensor {
        let ones = Shape::from(vec![1; gradient.shape().num_dims()]);
        Self::float_mul(gradient, Self::float_reshape(upstream, ones))
    }
}

/// The loss of a row, times its weight; its logits become their gradient,
/// `weight * (softmax(logits) - (1 - s) onehot(target) - s / classes)`, and 0 behind the classes.
/// The kernel, as an operation of a backend.
#[backend_extension(Cube, Fusion)]
pub(in crate::ops) trait LossKernels: Backend {
    /// `(losses [rows], dlogits)`: the cross-entropy of each row of `logits [rows, columns]`, of
    /// any type, in place where nobody else holds them. There are as many classes as `bias
    /// [classes]` has; the columns behind them count for nothing.
    #[fusion(meta = |logits, _bias, _target, _row_weight, _smoothing| (floats([logits.shape[0]]), logits.clone()))]
    fn cross_entropy(
        logits: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        target: IntTensor<Self>,
        row_weight: FloatTensor<Self>,
        smoothing: f32,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

impl LossKernels for CubeBackend {
    fn cross_entropy(
        logits: CubeTensor,
        bias: CubeTensor,
        target: CubeTensor,
        row_weight: CubeTensor,
        smoothing: f32,
    ) -> (CubeTensor, CubeTensor) {
        let (logits, pitch) = own_rows(logits);
        let [bias, target, row_weight] = [bias, target, row_weight].map(into_contiguous);
        let ([rows, columns], classes) = (dims2(&logits), bias.shape()[0]);
        let losses = empty_in(&logits, [rows], DType::F32);
        let (count, dim) = by_row(&logits, rows);
        // SAFETY: a cube reads and writes its own row, if there is one, whatever the targets are.
        unsafe {
            loss_rows::launch_unchecked(
                &logits.client,
                count,
                dim,
                addresses([&logits]),
                buffer(&logits),
                buffer(&bias),
                buffer(&target),
                buffer(&row_weight),
                buffer(&losses),
                rows,
                classes,
                columns,
                pitch,
                smoothing,
                lanes(&logits),
                element(&logits),
            );
        }
        (losses, logits)
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn loss_rows<F: Float>(
    logits: &mut [F],
    bias: &[f32],
    target: &[i32],
    row_weight: &[f32],
    losses: &mut [f32],
    rows: usize,
    classes: usize,
    columns: usize,
    pitch: usize,
    smoothing: f32,
    #[comptime] lanes: usize,
    #[define(F)] _dtype: ElemType,
) {
    let mut scratch = Shared::<[f32]>::new_slice(lanes);
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let start = row * pitch;
    let end = start + classes;
    let first = start + UNIT_POS as usize;
    let right = start + min(usize::cast_from(target[row]), classes - 1); // no target reads another row, or beyond the last
    let right_logit = f32::cast_from(logits[right]) + bias[right - start];
    let mut largest = right_logit;
    let mut i = first;
    while i < end {
        largest = max(largest, f32::cast_from(logits[i]) + bias[i - start]);
        i += lanes;
    }
    let largest = cube_max(largest, &mut scratch, lanes);
    let mut sum = 0.0f32;
    let mut sum_shifted = 0.0f32;
    let mut i = first;
    while i < end {
        let shifted = f32::cast_from(logits[i]) + bias[i - start] - largest;
        sum += shifted.exp();
        sum_shifted += shifted;
        i += lanes;
    }
    let sum = cube_sum(sum, &mut scratch, lanes);
    let mean = cube_sum(sum_shifted, &mut scratch, lanes) / f32::cast_from(classes);
    let weight = row_weight[row];
    let by = weight / sum;
    let spread = weight * smoothing / f32::cast_from(classes);
    let mut i = first;
    while i < end {
        let mut gradient = (f32::cast_from(logits[i]) + bias[i - start] - largest).exp() * by - spread;
        if i == right {
            gradient -= weight * (1.0f32 - smoothing);
        }
        logits[i] = F::cast_from(gradient); // of the unit's own logit, which nobody else reads any more
        i += lanes;
    }
    while i < start + columns {
        logits[i] = F::cast_from(0.0f32);
        i += lanes;
    }
    if UNIT_POS == 0 {
        losses[row] = weight * (sum.ln() - (1.0f32 - smoothing) * (right_logit - largest) - smoothing * mean);
    }
}
