//! Dropout: an element or a vector to a unit, which decides alone what is kept. Where the result is
//! summed over its rows, a cube takes a strip of those.
//!
//! The generator is the CPU's with 32 bits for a row instead of 64, since WGSL has no 64-bit
//! integers: the masks of the two devices differ, those of forward and backward do not.
#![allow(unsafe_code)] // kernels are launched without bounds checks: each says why that is sound
#![allow(clippy::assign_op_pattern)] // vectors of kernels have no other form

use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, backend_extension};
use burn::tensor::FloatDType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::{DropoutKernel, Inputs};
use crate::ops::cube::rows::{RowKernels, Strip, Strips, write_strip};
use crate::ops::cube::{
    Cube, FusedTensor, addresses, buffer, by_element, dims2, element, empty, empty_in, floats, narrow, rows_of, vector,
};

impl DropoutKernel for Cube {
    fn masked(x: FusedTensor, seed: FusedTensor, p: f64) -> FusedTensor {
        Self::drop(x, seed, p, FloatDType::F32)
    }

    fn gradients(
        dy: FusedTensor,
        seed: FusedTensor,
        p: f64,
        dtype: FloatDType,
        wanted: bool,
    ) -> (FusedTensor, Option<FusedTensor>) {
        let is_written = p > 0.0 || dtype != FloatDType::F32;
        if wanted && is_written {
            let (dx, dbias) = Self::drop_and_sum(dy, seed, p, dtype);
            return (dx, Some(dbias));
        }
        let dx = if p > 0.0 { Self::drop(dy, seed, p, dtype) } else { narrow(dy, dtype.into()) };
        (dx.clone(), wanted.then(|| Self::column_sums(dx)))
    }

    fn bias_drop_add(Inputs { x, bias, has_bias, residual, seed, p, .. }: Inputs<Self>) -> FusedTensor {
        <Self as DropKernels>::bias_drop_add(x, bias, has_bias, residual, seed, p)
    }
}

/// The kernels, as operations of a backend: `x` is `[rows, width]`, `bias` is `[width]`.
#[backend_extension(Cube, Fusion)]
pub(in crate::ops) trait DropKernels: Backend {
    /// `x`, in f32, with every element zeroed or scaled, as `seed [2]` decides, in `dtype`.
    #[fusion(meta = |x, _seed, _p, dtype| TensorSpec::new(x.shape.clone(), (*dtype).into()))]
    fn drop(x: FloatTensor<Self>, seed: IntTensor<Self>, p: f64, dtype: FloatDType) -> FloatTensor<Self>;

    /// [`drop`](Self::drop), and the sums over rows of its result, in f32.
    #[fusion(meta = |x, _seed, _p, dtype| {
        (TensorSpec::new(x.shape.clone(), (*dtype).into()), floats([x.shape[1]]))
    })]
    fn drop_and_sum(
        x: FloatTensor<Self>,
        seed: IntTensor<Self>,
        p: f64,
        dtype: FloatDType,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// `residual + drop(x + bias)`, of `x` of any type, in f32; without `has_bias` the bias is not
    /// read.
    #[fusion(meta = |_x, _bias, _has_bias, residual, _seed, _p| residual.clone())]
    fn bias_drop_add(
        x: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        has_bias: bool,
        residual: FloatTensor<Self>,
        seed: IntTensor<Self>,
        p: f64,
    ) -> FloatTensor<Self>;
}

impl DropKernels for CubeBackend {
    fn drop(x: CubeTensor, seed: CubeTensor, p: f64, dtype: FloatDType) -> CubeTensor {
        let [x, seed] = [x, seed].map(into_contiguous);
        let [rows, width] = dims2(&x);
        let y = empty_in(&x, [rows, width], dtype.into());
        let (count, dim) = by_element(&x, rows * width);
        // SAFETY: a unit touches its own element, if there is one; a seed is two numbers.
        unsafe {
            drop_each::launch_unchecked(
                &x.client,
                count,
                dim,
                addresses([&x]),
                buffer(&x),
                buffer(&seed),
                buffer(&y),
                rows * width,
                width,
                threshold(p),
                scale(p),
                element(&y),
            );
        }
        y
    }

    fn drop_and_sum(x: CubeTensor, seed: CubeTensor, p: f64, dtype: FloatDType) -> (CubeTensor, CubeTensor) {
        let [x, seed] = [x, seed].map(into_contiguous);
        let [rows, width] = dims2(&x);
        let y = empty_in(&x, [rows, width], dtype.into());
        let vector = vector(&x, [width]);
        let strips = Strips::new(&x, rows, width / vector);
        let parts = empty(&x, [strips.strips, width]);
        // SAFETY: a group reads and writes rows of its strip below `rows`, at vectors below
        // `width`; the cube of a strip, if there is one, writes that strip's sums; a seed is two
        // numbers.
        unsafe {
            drop_strips::launch_unchecked(
                &x.client,
                strips.count.clone(),
                strips.dim,
                addresses([&x]),
                vector,
                buffer(&x),
                buffer(&seed),
                buffer(&y),
                buffer(&parts),
                rows,
                width / vector,
                strips.strips,
                threshold(p),
                scale(p),
                p > 0.0,
                strips.form,
                element(&y),
            );
        }
        let [sums, ..] = strips.total(parts, width, 1);
        (y, sums)
    }

    fn bias_drop_add(
        x: CubeTensor,
        bias: CubeTensor,
        has_bias: bool,
        residual: CubeTensor,
        seed: CubeTensor,
        p: f64,
    ) -> CubeTensor {
        let [bias, residual, seed] = [bias, residual, seed].map(into_contiguous);
        let (x, pitch) = rows_of(x);
        let [rows, width] = dims2(&x);
        let y = empty(&residual, [rows, width]);
        let vector = vector(&x, [width, pitch]).min(vector(&residual, [width]));
        let n = rows * width / vector;
        let (count, dim) = by_element(&x, n);
        // SAFETY: a unit touches its own vector, if there is one, and the bias of its columns; a
        // seed is two numbers.
        unsafe {
            bias_drop_add_each::launch_unchecked(
                &x.client,
                count,
                dim,
                addresses([&x, &residual]),
                vector,
                buffer(&x),
                buffer(&bias),
                buffer(&residual),
                buffer(&seed),
                buffer(&y),
                n,
                width / vector,
                pitch / vector,
                threshold(p),
                scale(p),
                p > 0.0,
                has_bias,
                element(&x),
            );
        }
        y
    }
}

/// An element is kept if its bits are at least this.
pub(in crate::ops) fn threshold(p: f64) -> u32 {
    (p * 4_294_967_296.0).round().min(f64::from(u32::MAX)) as u32
}

/// The factor of a kept element, `1 / (1 - p)`.
pub(in crate::ops) fn scale(p: f64) -> f32 {
    (1.0 / (1.0 - p)) as f32
}

/// The factor of element `column` of row `row`: 0 or `scale`.
#[cube]
pub(in crate::ops) fn factor(seed: &[i32], row: u32, column: u32, threshold: u32, scale: f32) -> f32 {
    let a = mix(u32::cast_from(seed[0]) ^ mix(row + 0x9E37_79B9u32));
    let b = mix(u32::cast_from(seed[1]) + row * 0x85EB_CA6Bu32);
    let bits = mix(mix(column ^ a) + b);
    select(bits >= threshold, scale, 0.0f32)
}

/// A 32-bit finaliser of low bias (C. Wellons 2018, "lowbias32").
#[cube]
fn mix(x: u32) -> u32 {
    let x = (x ^ (x >> 16u32)) * 0x7FEB_352Du32;
    let x = (x ^ (x >> 15u32)) * 0x846C_A68Bu32;
    x ^ (x >> 16u32)
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn drop_each<F: Float>(
    x: &[f32],
    seed: &[i32],
    y: &mut [F],
    n: usize,
    width: usize,
    threshold: u32,
    scale: f32,
    #[define(F)] _dtype: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i >= n {
        terminate!();
    }
    let factor = factor(seed, u32::cast_from(i / width), u32::cast_from(i % width), threshold, scale);
    y[i] = F::cast_from(x[i] * factor);
}

/// [`drop_each`], where it `drops`, and a row of `parts` for each strip: its sums over columns of
/// what is written, which may be rounded.
#[cube(launch_unchecked, address_type = "dynamic")]
fn drop_strips<F: Float, N: Size>(
    x: &[Vector<f32, N>],
    seed: &[i32],
    y: &mut [Vector<F, N>],
    parts: &mut [Vector<f32, N>],
    rows: usize,
    vectors: usize,
    strips: usize,
    threshold: u32,
    scale: f32,
    #[comptime] drops: bool,
    #[comptime] form: Strip,
    #[define(F)] _dtype: ElemType,
) {
    let lanes = N::value().comptime();
    let mut columns = Shared::<[Vector<f32, N>]>::new_slice(comptime!(form.lanes * form.groups));
    let strip = CUBE_POS;
    if strip >= strips {
        terminate!();
    }
    let lane = UNIT_POS as usize % form.lanes;
    let group = UNIT_POS as usize / form.lanes;
    let mut sums = Array::<Vector<f32, N>>::new(form.each);
    #[unroll]
    for j in 0..form.each {
        sums[j] = Vector::<f32, N>::new(0.0f32);
    }
    for round in 0..comptime!(form.rounds()) {
        let row = strip * comptime!(form.rows()) + round * form.groups + group;
        if row < rows {
            #[unroll]
            for j in 0..form.each {
                let at = lane + comptime!(j * form.lanes);
                if at < vectors {
                    let mut values = x[row * vectors + at];
                    if comptime!(drops) {
                        #[unroll]
                        for k in 0..lanes {
                            let column = u32::cast_from(at * lanes + k);
                            let factor = factor(seed, u32::cast_from(row), column, threshold, scale);
                            values.insert(k, values.extract(k) * factor);
                        }
                    }
                    let rounded = Vector::<F, N>::cast_from(values);
                    y[row * vectors + at] = rounded;
                    sums[j] = sums[j] + Vector::<f32, N>::cast_from(rounded);
                }
            }
        }
    }
    write_strip::<N>(&sums, parts, strip * vectors, vectors, &mut columns, form);
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn bias_drop_add_each<F: Float, N: Size>(
    x: &[Vector<F, N>],
    bias: &[f32],
    residual: &[Vector<f32, N>],
    seed: &[i32],
    y: &mut [Vector<f32, N>],
    count: usize,
    width: usize,
    pitch: usize,
    threshold: u32,
    scale: f32,
    #[comptime] drops: bool,
    #[comptime] has_bias: bool,
    #[define(F)] _dtype: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i >= count {
        terminate!();
    }
    let lanes = N::value().comptime();
    let row = i / width;
    let at = i % width;
    let values = Vector::<f32, N>::cast_from(x[row * pitch + at]);
    let residual = residual[i];
    let mut sum = Vector::<f32, N>::empty();
    #[unroll]
    for k in 0..lanes {
        let column = at * lanes + k;
        let mut value = values.extract(k);
        if comptime!(has_bias) {
            value += bias[column];
        }
        if comptime!(drops) {
            value *= factor(seed, u32::cast_from(row), u32::cast_from(column), threshold, scale);
        }
        sum.insert(k, value + residual.extract(k));
    }
    y[i] = sum;
}
