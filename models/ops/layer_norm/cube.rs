//! Layer normalisation: a row to a cube, mean first and then the variance around it, as on the CPU.
//! In the backward a cube takes a strip of rows, and sums over its columns while it goes over them.
//! Root mean square normalisation is the same around 0 and without a bias.
#![allow(unsafe_code)] // kernels are launched without bounds checks: each says why that is sound
#![allow(clippy::assign_op_pattern)] // vectors of kernels have no other form

use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, backend_extension};
use burn::tensor::FloatDType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::{Inputs, LayerNormKernel, Saved};
use crate::ops::cube::rows::{Strip, Strips, cube_sum, group_sums, write_strip};
use crate::ops::cube::{
    Cube, FusedTensor, addresses, buffer, by_row, dims2, element, empty, empty_in, lanes, shaped, vector,
};

impl LayerNormKernel for Cube {
    fn forward(inputs: Inputs<Self>) -> (FusedTensor, Saved<FusedTensor>) {
        let Inputs { x, residual, weight, bias, eps, dtype, .. } = inputs;
        let (y, normalised, statistics) = match residual.given() {
            Some(residual) => Self::add_norm(x, residual, weight.clone(), bias, eps as f32),
            None => {
                let (y, statistics) = Self::norm(x.clone(), weight.clone(), bias, eps as f32, dtype);
                (y, x, statistics)
            }
        };
        (y, Saved { normalised, weight, statistics })
    }

    fn backward(saved: Saved<FusedTensor>, dy: FusedTensor, added: Option<FusedTensor>) -> [FusedTensor; 3] {
        let Saved { normalised, weight, statistics } = saved;
        let (adds, added) = (added.is_some(), added.unwrap_or_else(|| normalised.clone())); // else not read
        let (dx, dweight, dbias) = Self::norm_backward(normalised, weight, statistics, dy, added, adds);
        [dx, dweight, dbias]
    }
}

/// The kernels, as operations of a backend: `x` is `[rows, width]`, `weight` and `bias` are
/// `[width]`.
#[backend_extension(Cube, Fusion)]
pub(in crate::ops) trait NormKernels: Backend {
    /// `(y, statistics)`: the normalised rows in `dtype`, and mean and reciprocal deviation of
    /// each, `[rows, 2]`.
    #[fusion(meta = |x, _weight, _bias, _eps, dtype| {
        (TensorSpec::new(x.shape.clone(), (*dtype).into()), shaped(x, [x.shape[0], 2]))
    })]
    fn norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        eps: f32,
        dtype: FloatDType,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// `(y, sum, statistics)`: [`norm`](Self::norm) of the sum of `x` and `residual`.
    #[fusion(meta = |x, _residual, _weight, _bias, _eps| (x.clone(), x.clone(), shaped(x, [x.shape[0], 2])))]
    fn add_norm(
        x: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        eps: f32,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// `(dx, dweight, dbias)` of [`norm`](Self::norm), `dy` being in the type of its result and
    /// `dx` with `added`, if it `adds` that.
    #[fusion(meta = |x, weight, _statistics, _dy, _added, _adds| (x.clone(), weight.clone(), weight.clone()))]
    fn norm_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        statistics: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        added: FloatTensor<Self>,
        adds: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

impl NormKernels for CubeBackend {
    fn norm(
        x: CubeTensor,
        weight: CubeTensor,
        bias: CubeTensor,
        eps: f32,
        dtype: FloatDType,
    ) -> (CubeTensor, CubeTensor) {
        normalised(x, weight, Some(bias), eps, dtype)
    }

    fn add_norm(
        x: CubeTensor,
        residual: CubeTensor,
        weight: CubeTensor,
        bias: CubeTensor,
        eps: f32,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        let [x, residual, weight, bias] = [x, residual, weight, bias].map(into_contiguous);
        let [rows, width] = dims2(&x);
        let (y, sum, statistics) = (empty(&x, [rows, width]), empty(&x, [rows, width]), empty(&x, [rows, 2]));
        let (count, dim) = by_row(&x, rows);
        // SAFETY: as in `normalised`.
        unsafe {
            add_norm_rows::launch_unchecked(
                &x.client,
                count,
                dim,
                addresses([&x]),
                buffer(&x),
                buffer(&residual),
                buffer(&weight),
                buffer(&bias),
                buffer(&y),
                buffer(&sum),
                buffer(&statistics),
                rows,
                width,
                eps,
                lanes(&x),
            );
        }
        (y, sum, statistics)
    }

    fn norm_backward(
        x: CubeTensor,
        weight: CubeTensor,
        statistics: CubeTensor,
        dy: CubeTensor,
        added: CubeTensor,
        adds: bool,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        backward(x, weight, statistics, dy, adds.then_some(added), true)
    }
}

/// `(y, statistics)`, as [`NormKernels::norm`] has them; without a bias the mean is taken for 0.
pub(in crate::ops) fn normalised(
    x: CubeTensor,
    weight: CubeTensor,
    bias: Option<CubeTensor>,
    eps: f32,
    dtype: FloatDType,
) -> (CubeTensor, CubeTensor) {
    let [x, weight] = [x, weight].map(into_contiguous);
    let (has_bias, bias) = (bias.is_some(), bias.map_or_else(|| weight.clone(), into_contiguous));
    let [rows, width] = dims2(&x);
    let (y, statistics) = (empty_in(&x, [rows, width], dtype.into()), empty(&x, [rows, 2]));
    let (count, dim) = by_row(&x, rows);
    // SAFETY: a cube reads and writes its own row, if there is one, at columns below `width`.
    unsafe {
        norm_rows::launch_unchecked(
            &x.client,
            count,
            dim,
            addresses([&x]),
            buffer(&x),
            buffer(&weight),
            buffer(&bias),
            buffer(&y),
            buffer(&statistics),
            rows,
            width,
            eps,
            has_bias,
            lanes(&x),
            element(&y),
        );
    }
    (y, statistics)
}

/// `(dx, dweight, dbias)` of [`normalised`], the first with `added`; without a bias its gradient
/// has one element, which is not written.
pub(in crate::ops) fn backward(
    x: CubeTensor,
    weight: CubeTensor,
    statistics: CubeTensor,
    dy: CubeTensor,
    added: Option<CubeTensor>,
    has_bias: bool,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let [x, weight, statistics, dy] = [x, weight, statistics, dy].map(into_contiguous);
    let (adds, added) = (added.is_some(), added.map_or_else(|| x.clone(), into_contiguous));
    let [rows, width] = dims2(&x);
    let dx = empty(&x, [rows, width]);
    let vector =
        [&weight, &dy, &added, &dx].iter().map(|other| vector(other, [width])).fold(vector(&x, [width]), usize::min);
    let strips = Strips::new(&x, rows, width / vector);
    let sums = if has_bias { 2 } else { 1 };
    let parts = empty(&x, [strips.strips, sums * width]);
    // SAFETY: a group reads and writes rows of its strip below `rows`, at vectors below `width`;
    // the cube of a strip, if there is one, writes that strip's sums.
    unsafe {
        norm_backward_strips::launch_unchecked(
            &x.client,
            strips.count.clone(),
            strips.dim,
            addresses([&x, &dy]),
            vector,
            buffer(&x),
            buffer(&weight),
            buffer(&statistics),
            buffer(&dy),
            buffer(&added),
            buffer(&dx),
            buffer(&parts),
            rows,
            width / vector,
            strips.strips,
            adds,
            has_bias,
            strips.form,
            element(&dy),
        );
    }
    let [dweight, dbias] = strips.total(parts, width, sums);
    (dx, dweight, dbias)
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn norm_rows<F: Float>(
    x: &[f32],
    weight: &[f32],
    bias: &[f32],
    y: &mut [F],
    statistics: &mut [f32],
    rows: usize,
    width: usize,
    eps: f32,
    #[comptime] has_bias: bool,
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
    let mut mean = 0.0f32;
    if comptime!(has_bias) {
        let mut i = first;
        while i < end {
            mean += x[i];
            i += lanes;
        }
        mean = cube_sum(mean, &mut scratch, lanes) / f32::cast_from(width);
    }
    let mut squares = 0.0f32;
    let mut i = first;
    while i < end {
        let centred = x[i] - mean;
        squares += centred * centred;
        i += lanes;
    }
    let variance = cube_sum(squares, &mut scratch, lanes) / f32::cast_from(width);
    let rstd = 1.0f32 / (variance + eps).sqrt();
    let mut i = first;
    while i < end {
        let mut value = (x[i] - mean) * rstd * weight[i - start];
        if comptime!(has_bias) {
            value += bias[i - start];
        }
        y[i] = F::cast_from(value);
        i += lanes;
    }
    if UNIT_POS == 0 {
        statistics[2 * row] = mean;
        statistics[2 * row + 1] = rstd;
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn add_norm_rows(
    x: &[f32],
    residual: &[f32],
    weight: &[f32],
    bias: &[f32],
    y: &mut [f32],
    sums: &mut [f32],
    statistics: &mut [f32],
    rows: usize,
    width: usize,
    eps: f32,
    #[comptime] lanes: usize,
) {
    let mut scratch = Shared::<[f32]>::new_slice(lanes);
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let start = row * width;
    let end = start + width;
    let first = start + UNIT_POS as usize;
    let mut sum = 0.0f32;
    let mut i = first;
    while i < end {
        let value = x[i] + residual[i];
        sums[i] = value; // a unit reads back only what it wrote itself
        sum += value;
        i += lanes;
    }
    let mean = cube_sum(sum, &mut scratch, lanes) / f32::cast_from(width);
    let mut squares = 0.0f32;
    let mut i = first;
    while i < end {
        let centred = sums[i] - mean;
        squares += centred * centred;
        i += lanes;
    }
    let variance = cube_sum(squares, &mut scratch, lanes) / f32::cast_from(width);
    let rstd = 1.0f32 / (variance + eps).sqrt();
    let mut i = first;
    while i < end {
        y[i] = (sums[i] - mean) * rstd * weight[i - start] + bias[i - start];
        i += lanes;
    }
    if UNIT_POS == 0 {
        statistics[2 * row] = mean;
        statistics[2 * row + 1] = rstd;
    }
}

/// `dx = rstd (g - mean(g) - n mean(g n))` with `n` the normalised row and `g = dy * weight`;
/// around 0, without a bias, `mean(g)` is none of it. `added` may be added to it. A strip's sums
/// over columns of `dy n`, and with a bias those of `dy` behind them, are a row of `parts`. Each
/// number is read once: a unit holds those of its row in registers.
#[cube(launch_unchecked, address_type = "dynamic")]
fn norm_backward_strips<F: Float, N: Size>(
    x: &[Vector<f32, N>],
    weight: &[Vector<f32, N>],
    statistics: &[f32],
    dy: &[Vector<F, N>],
    added: &[Vector<f32, N>],
    dx: &mut [Vector<f32, N>],
    parts: &mut [Vector<f32, N>],
    rows: usize,
    vectors: usize,
    strips: usize,
    #[comptime] adds: bool,
    #[comptime] has_bias: bool,
    #[comptime] form: Strip,
    #[define(F)] _dtype: ElemType,
) {
    let units = comptime!(form.lanes * form.groups);
    let lanes = N::value().comptime();
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(2 * units));
    let mut columns = Shared::<[Vector<f32, N>]>::new_slice(units);
    let strip = CUBE_POS;
    if strip >= strips {
        terminate!();
    }
    let lane = UNIT_POS as usize % form.lanes;
    let group = UNIT_POS as usize / form.lanes;
    let zero = Vector::<f32, N>::new(0.0f32);
    let mut weights = Array::<Vector<f32, N>>::new(form.each);
    let mut normalised = Array::<Vector<f32, N>>::new(form.each);
    let mut gradients = Array::<Vector<f32, N>>::new(form.each);
    let mut of_weight = Array::<Vector<f32, N>>::new(form.each);
    let mut of_bias = Array::<Vector<f32, N>>::new(form.each);
    #[unroll]
    for j in 0..form.each {
        let at = lane + comptime!(j * form.lanes);
        let mut load = zero;
        if at < vectors {
            load = weight[at];
        }
        weights[j] = load;
        of_weight[j] = zero;
        of_bias[j] = zero;
    }
    let width = f32::cast_from(vectors * lanes);
    for round in 0..comptime!(form.rounds()) {
        let row = strip * comptime!(form.rows()) + round * form.groups + group;
        let is_row = row < rows;
        let mut mean = 0.0f32;
        let mut rstd = 0.0f32;
        if is_row {
            mean = statistics[2 * row];
            rstd = statistics[2 * row + 1];
        }
        let start = row * vectors;
        let mut sums_g = zero;
        let mut sums_gn = zero;
        #[unroll]
        for j in 0..form.each {
            let at = lane + comptime!(j * form.lanes);
            let mut normal = zero;
            let mut g = zero;
            if is_row && at < vectors {
                normal = (x[start + at] - Vector::<f32, N>::new(mean)) * Vector::<f32, N>::new(rstd);
                g = Vector::<f32, N>::cast_from(dy[start + at]);
            }
            of_weight[j] = of_weight[j] + g * normal;
            of_bias[j] = of_bias[j] + g;
            g = g * weights[j];
            sums_g = sums_g + g;
            sums_gn = sums_gn + g * normal;
            normalised[j] = normal;
            gradients[j] = g;
        }
        let mut sum_g = 0.0f32;
        let mut sum_gn = 0.0f32;
        #[unroll]
        for k in 0..lanes {
            sum_g += sums_g.extract(k);
            sum_gn += sums_gn.extract(k);
        }
        let (sum_g, sum_gn) = group_sums(sum_g, sum_gn, &mut scratch, form);
        let mut mean_g = 0.0f32;
        if comptime!(has_bias) {
            mean_g = sum_g / width;
        }
        let mean_gn = sum_gn / width;
        if is_row {
            #[unroll]
            for j in 0..form.each {
                let at = lane + comptime!(j * form.lanes);
                if at < vectors {
                    let centred = gradients[j] - Vector::<f32, N>::new(mean_g);
                    let mut gradient =
                        Vector::<f32, N>::new(rstd) * (centred - normalised[j] * Vector::<f32, N>::new(mean_gn));
                    if comptime!(adds) {
                        gradient = gradient + added[start + at];
                    }
                    dx[start + at] = gradient;
                }
            }
        }
    }
    let sums = comptime!(if has_bias { 2usize } else { 1usize });
    let start = strip * sums * vectors;
    write_strip::<N>(&of_weight, parts, start, vectors, &mut columns, form);
    if comptime!(has_bias) {
        write_strip::<N>(&of_bias, parts, start + vectors, vectors, &mut columns, form);
    }
}
