//! Root mean square normalisation: a row to a cube.
#![allow(unsafe_code)] // kernels are launched without bounds checks: each says why that is sound

use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, backend_extension};
use burn::tensor::FloatDType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::{Inputs, RmsNormKernel, Saved};
use crate::ops::cube::rows::{RowKernels, cube_sum};
use crate::ops::cube::{
    Cube, FusedTensor, addresses, buffer, by_element, by_row, dims2, element, empty, empty_in, lanes, shaped,
};

impl RmsNormKernel for Cube {
    fn forward(Inputs { x, weight, epsilon, dtype }: Inputs<Self>) -> (FusedTensor, Saved<FusedTensor>) {
        let (y, reciprocals) = Self::rms(x.clone(), weight.clone(), epsilon as f32, dtype);
        (y, Saved { x, weight, reciprocals })
    }

    fn backward(saved: Saved<FusedTensor>, dy: FusedTensor) -> [FusedTensor; 2] {
        let Saved { x, weight, reciprocals } = saved;
        let (dx, dweight) = Self::rms_backward(x, weight, reciprocals, dy);
        [dx, dweight]
    }
}

/// Rows over which one unit sums the gradient of the weight.
const PART: usize = 128;

/// The kernels, as operations of a backend: `x` is `[rows, width]`, `weight` is `[width]`.
#[backend_extension(Cube, Fusion)]
pub(in crate::ops) trait RmsKernels: Backend {
    /// `(y, reciprocals)`: the normalised rows in `dtype`, and the reciprocal root of the mean
    /// square of each, `[rows]`.
    #[fusion(meta = |x, _weight, _epsilon, dtype| {
        (TensorSpec::new(x.shape.clone(), (*dtype).into()), shaped(x, [x.shape[0]]))
    })]
    fn rms(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        epsilon: f32,
        dtype: FloatDType,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// `(dx, dweight)` of [`rms`](Self::rms), `dy` being in the type of its result.
    #[fusion(meta = |x, weight, _reciprocals, _dy| (x.clone(), weight.clone()))]
    fn rms_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        reciprocals: FloatTensor<Self>,
        dy: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

impl RmsKernels for CubeBackend {
    fn rms(x: CubeTensor, weight: CubeTensor, epsilon: f32, dtype: FloatDType) -> (CubeTensor, CubeTensor) {
        let [x, weight] = [x, weight].map(into_contiguous);
        let [rows, width] = dims2(&x);
        let (y, reciprocals) = (empty_in(&x, [rows, width], dtype.into()), empty(&x, [rows]));
        let (count, dim) = by_row(&x, rows);
        // SAFETY: a cube reads and writes its own row, if there is one, at columns below `width`.
        unsafe {
            rms_rows::launch_unchecked(
                &x.client,
                count,
                dim,
                addresses([&x]),
                buffer(&x),
                buffer(&weight),
                buffer(&y),
                buffer(&reciprocals),
                rows,
                width,
                epsilon,
                lanes(&x),
                element(&y),
            );
        }
        (y, reciprocals)
    }

    fn rms_backward(
        x: CubeTensor,
        weight: CubeTensor,
        reciprocals: CubeTensor,
        dy: CubeTensor,
    ) -> (CubeTensor, CubeTensor) {
        let [x, weight, reciprocals, dy] = [x, weight, reciprocals, dy].map(into_contiguous);
        let [rows, width] = dims2(&x);
        let dx = empty(&x, [rows, width]);
        let (count, dim) = by_row(&x, rows);
        // SAFETY: as in `rms`.
        unsafe {
            rms_backward_rows::launch_unchecked(
                &x.client,
                count,
                dim,
                addresses([&x, &dy]),
                buffer(&x),
                buffer(&weight),
                buffer(&reciprocals),
                buffer(&dy),
                buffer(&dx),
                rows,
                width,
                lanes(&x),
                element(&dy),
            );
        }
        let parts = rows.div_ceil(PART).max(1);
        let dweights = empty(&x, [parts, width]);
        let (count, dim) = by_element(&x, parts * width);
        // SAFETY: a unit reads rows below `rows` of its column and writes its own element, if
        // there is one.
        unsafe {
            weight_backward::launch_unchecked(
                &x.client,
                count,
                dim,
                addresses([&x, &dy]),
                buffer(&x),
                buffer(&reciprocals),
                buffer(&dy),
                buffer(&dweights),
                parts,
                rows,
                width,
                PART,
                element(&dy),
            );
        }
        (dx, Self::column_sums(dweights))
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn rms_rows<F: Float>(
    x: &[f32],
    weight: &[f32],
    y: &mut [F],
    reciprocals: &mut [f32],
    rows: usize,
    width: usize,
    epsilon: f32,
    #[comptime] lanes: usize,
    #[define(F)] _dtype: ElemType,
) {
    let mut scratch = Shared::<[f32]>::new_slice(lanes);
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let start = row * width;
    let end = start + width;
    let first = start + UNIT_POS as usize;
    let mut squares = 0.0f32;
    let mut i = first;
    while i < end {
        squares += x[i] * x[i];
        i += lanes;
    }
    let mean = cube_sum(squares, &mut scratch, lanes) / f32::cast_from(width);
    let reciprocal = 1.0f32 / (mean + epsilon).sqrt();
    let mut i = first;
    while i < end {
        y[i] = F::cast_from(x[i] * reciprocal * weight[i - start]);
        i += lanes;
    }
    if UNIT_POS == 0 {
        reciprocals[row] = reciprocal;
    }
}

/// `dx = r (g - n mean(g n))` with `r` the reciprocal, `n = r x` and `g = dy * weight`.
#[cube(launch_unchecked, address_type = "dynamic")]
fn rms_backward_rows<F: Float>(
    x: &[f32],
    weight: &[f32],
    reciprocals: &[f32],
    dy: &[F],
    dx: &mut [f32],
    rows: usize,
    width: usize,
    #[comptime] lanes: usize,
    #[define(F)] _dtype: ElemType,
) {
    let mut scratch = Shared::<[f32]>::new_slice(lanes);
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let reciprocal = reciprocals[row];
    let start = row * width;
    let end = start + width;
    let first = start + UNIT_POS as usize;
    let mut sum = 0.0f32;
    let mut i = first;
    while i < end {
        sum += f32::cast_from(dy[i]) * weight[i - start] * (x[i] * reciprocal);
        i += lanes;
    }
    let mean = cube_sum(sum, &mut scratch, lanes) / f32::cast_from(width);
    let mut i = first;
    while i < end {
        let g = f32::cast_from(dy[i]) * weight[i - start];
        dx[i] = reciprocal * (g - x[i] * reciprocal * mean);
        i += lanes;
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn weight_backward<F: Float>(
    x: &[f32],
    reciprocals: &[f32],
    dy: &[F],
    dweights: &mut [f32],
    parts: usize,
    rows: usize,
    width: usize,
    part: usize,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= parts * width {
        terminate!();
    }
    let column = ABSOLUTE_POS % width;
    let first = ABSOLUTE_POS / width * part;
    let end = min(first + part, rows);
    let mut dweight = 0.0f32;
    for row in first..end {
        dweight += f32::cast_from(dy[row * width + column]) * x[row * width + column] * reciprocals[row];
    }
    dweights[ABSOLUTE_POS] = dweight;
}
