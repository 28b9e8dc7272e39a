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
use crate::ops::cube::rows::RowKernels;
use crate::ops::cube::{
    Cube, FusedTensor, addresses, buffer, by_cube, dims2, element, empty_in, floats, own_rows, units, vector,
};
use crate::ops::device::bytes_on;

impl CrossEntropyKernel for Cube {
    fn forward(inputs: Inputs<Self>, wanted: Wanted) -> (FusedTensor, Option<Gradient<FusedTensor>>) {
        let Inputs { x, weight, bias, target, row_weight, settings, .. } = inputs;
        let bias = bias.given();
        let ([n, _], [classes, _]) = (x.shape().dims::<2>(), weight.shape().dims::<2>());
        let has_bias = bias.is_some();
        let bias = bias.unwrap_or_else(|| row_weight.clone()); // which is not read
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
        let bytes = bytes_on(&weight.device());
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
            let logits = product(plain(hidden.clone()), transposed(weight.clone()), weight.dtype());
            let smoothing = settings.label_smoothing as f32;
            let row_weight = part(&row_weight);
            let (loss, dlogits) =
                Self::cross_entropy(logits, bias.clone(), target, row_weight, classes, has_bias, smoothing);
            losses.push(Self::float_sum(loss));
            if wanted.any {
                if has_bias {
                    add(&mut dbias, Self::column_sums(dlogits.clone()));
                }
                dx.push(product(plain(dlogits.clone()), plain(weight.clone()), DType::F32));
                if wanted.weight {
                    add(&mut dweight, product(transposed(dlogits), plain(hidden), DType::F32));
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
    /// any type, in place where nobody else holds them. The columns behind the `classes` count for
    /// nothing. Without a bias another tensor stands for `bias [classes]`.
    #[fusion(meta = |logits, _bias, _target, _row_weight, _classes, _has_bias, _smoothing| {
        (floats([logits.shape[0]]), logits.clone())
    })]
    fn cross_entropy(
        logits: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        target: IntTensor<Self>,
        row_weight: FloatTensor<Self>,
        classes: usize,
        has_bias: bool,
        smoothing: f32,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

impl LossKernels for CubeBackend {
    fn cross_entropy(
        logits: CubeTensor,
        bias: CubeTensor,
        target: CubeTensor,
        row_weight: CubeTensor,
        classes: usize,
        has_bias: bool,
        smoothing: f32,
    ) -> (CubeTensor, CubeTensor) {
        let (logits, pitch) = own_rows(logits);
        let [bias, target, row_weight] = [bias, target, row_weight].map(into_contiguous);
        let [rows, columns] = dims2(&logits);
        let losses = empty_in(&logits, [rows], DType::F32);
        let vector = vector(&logits, [columns, pitch]);
        let units = units(&logits, columns / vector);
        let (count, dim) = by_cube(&logits, rows, units);
        // SAFETY: a cube reads and writes its own row, if there is one, whatever the targets are.
        unsafe {
            loss_rows::launch_unchecked(
                &logits.client,
                count,
                dim,
                addresses([&logits]),
                vector,
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
                has_bias,
                units,
                element(&logits),
            );
        }
        (losses, logits)
    }
}

/// The logit of a column behind the classes, which is no part of the sum: its exponential is 0.
const ABSENT: f32 = -3e38;

/// A cube goes twice over its row: once for the largest logit and the sum of exponentials, which is
/// scaled down whenever a larger logit comes (Milakov and Gimelshein 2018), and once for the
/// gradient. Rows of a large vocabulary are long, and the cubes are wide, so that few rows are
/// under way at a time and the second pass finds its row in the cache.
#[cube(launch_unchecked, address_type = "dynamic")]
fn loss_rows<F: Float, N: Size>(
    logits: &mut [Vector<F, N>],
    bias: &[f32],
    target: &[i32],
    row_weight: &[f32],
    losses: &mut [f32],
    rows: usize,
    classes: usize,
    columns: usize,
    pitch: usize,
    smoothing: f32,
    #[comptime] has_bias: bool,
    #[comptime] units: usize,
    #[define(F)] _dtype: ElemType,
) {
    let mut maxima = Shared::<[f32]>::new_slice(units);
    let mut sums = Shared::<[f32]>::new_slice(units);
    let mut shifts = Shared::<[f32]>::new_slice(units);
    let width = N::value().comptime();
    let unit = UNIT_POS as usize;
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let start = row * (pitch / width);
    let vectors = columns / width;
    let right = min(usize::cast_from(target[row]), classes - 1); // no target reads another row, or beyond the last
    let of_right = Vector::<f32, N>::cast_from(logits[start + right / width]);
    let mut right_logit = 0.0f32;
    #[unroll]
    for k in 0..width {
        right_logit = select(right % width == k, of_right.extract(k), right_logit);
    }
    if comptime!(has_bias) {
        right_logit += bias[right];
    }
    let mut largest = right_logit;
    let mut sum = 0.0f32;
    let mut shifted = 0.0f32; // the sum of the logits less the right one, which keeps it small
    let mut values = Array::<f32>::new(width);
    let mut i = unit;
    while i < vectors {
        let vector = Vector::<f32, N>::cast_from(logits[start + i]);
        let mut top = largest;
        #[unroll]
        for k in 0..width {
            let column = i * width + k;
            let mut value = f32::cast_from(ABSENT);
            if column < classes {
                value = vector.extract(k);
                if comptime!(has_bias) {
                    value += bias[column];
                }
                shifted += value - right_logit;
            }
            values[k] = value;
            top = max(top, value);
        }
        sum *= (largest - top).exp();
        largest = top;
        #[unroll]
        for k in 0..width {
            sum += (values[k] - largest).exp();
        }
        i += units;
    }
    maxima[unit] = largest;
    sums[unit] = sum;
    shifts[unit] = shifted;
    #[unroll]
    for level in 0..comptime!(units.ilog2()) {
        sync_cube();
        let half = comptime!(units >> (level + 1));
        if unit < half {
            let (one, other) = (maxima[unit], maxima[unit + half]);
            let top = max(one, other);
            sums[unit] = sums[unit] * (one - top).exp() + sums[unit + half] * (other - top).exp();
            shifts[unit] += shifts[unit + half];
            maxima[unit] = top;
        }
    }
    sync_cube();
    let largest = maxima[0];
    let sum = sums[0];
    let weight = row_weight[row];
    let by = weight / sum;
    let spread = weight * smoothing / f32::cast_from(classes);
    let mut i = unit;
    while i < vectors {
        // The unit's own logits, which nobody else reads any more.
        let vector = Vector::<f32, N>::cast_from(logits[start + i]);
        let mut gradients = Vector::<f32, N>::empty();
        #[unroll]
        for k in 0..width {
            let column = i * width + k;
            let mut gradient = 0.0f32;
            if column < classes {
                let mut value = vector.extract(k);
                if comptime!(has_bias) {
                    value += bias[column];
                }
                gradient = (value - largest).exp() * by - spread;
                if column == right {
                    gradient -= weight * (1.0f32 - smoothing);
                }
            }
            gradients.insert(k, gradient);
        }
        logits[start + i] = Vector::cast_from(gradients);
        i += units;
    }
    if unit == 0 {
        let right_shifted = right_logit - largest;
        let mean = shifts[0] / f32::cast_from(classes) + right_shifted;
        losses[row] = weight * (sum.ln() - (1.0f32 - smoothing) * right_shifted - smoothing * mean);
    }
}
