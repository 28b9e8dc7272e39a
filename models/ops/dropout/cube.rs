//! Dropout: an element to a unit, which decides alone whether it is kept.
//!
//! The generator is the CPU's with 32 bits for a row instead of 64, since WGSL has no 64-bit
//! integers: the masks of the two devices differ, those of forward and backward do not.
#![allow(unsafe_code)] // kernels are launched without bounds checks: each says why that is sound

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, backend_extension};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{DropoutKernel, Inputs};
use crate::ops::cube::rows::RowKernels;
use crate::ops::cube::{Cube, FusedTensor, addresses, buffer, by_element, dims2, empty};

impl DropoutKernel for Cube {
    fn masked(x: FusedTensor, seed: FusedTensor, p: f64) -> FusedTensor {
        Self::drop(x, seed, p)
    }

    fn bias_drop_add(Inputs { x, bias, residual, seed, p }: Inputs<Self>) -> FusedTensor {
        <Self as DropKernels>::bias_drop_add(x, bias, residual, seed, p)
    }

    fn bias_gradient(dx: FusedTensor) -> FusedTensor {
        Self::column_sums(dx)
    }
}

/// The kernels, as operations of a backend: `x` is `[rows, width]`, `bias` is `[width]`.
#[backend_extension(Cube, Fusion)]
pub(in crate::ops) trait DropKernels: Backend {
    /// `x` with every element zeroed or scaled, as `seed [2]` decides.
    #[fusion(meta = |x, _seed, _p| x.clone())]
    fn drop(x: FloatTensor<Self>, seed: IntTensor<Self>, p: f64) -> FloatTensor<Self>;

    /// `residual + drop(x + bias)`
    #[fusion(meta = |x, _bias, _residual, _seed, _p| x.clone())]
    fn bias_drop_add(
        x: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        seed: IntTensor<Self>,
        p: f64,
    ) -> FloatTensor<Self>;
}

impl DropKernels for CubeBackend {
    fn drop(x: CubeTensor, seed: CubeTensor, p: f64) -> CubeTensor {
        let [x, seed] = [x, seed].map(into_contiguous);
        let [rows, width] = dims2(&x);
        let y = empty(&x, [rows, width]);
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
            );
        }
        y
    }

    fn bias_drop_add(x: CubeTensor, bias: CubeTensor, residual: CubeTensor, seed: CubeTensor, p: f64) -> CubeTensor {
        let [x, bias, residual, seed] = [x, bias, residual, seed].map(into_contiguous);
        let [rows, width] = dims2(&x);
        let y = empty(&x, [rows, width]);
        let (count, dim) = by_element(&x, rows * width);
        // SAFETY: as in `drop`, and a unit reads the bias of its column.
        unsafe {
            bias_drop_add_each::launch_unchecked(
                &x.client,
                count,
                dim,
                addresses([&x, &residual]),
                buffer(&x),
                buffer(&bias),
                buffer(&residual),
                buffer(&seed),
                buffer(&y),
                rows * width,
                width,
                threshold(p),
                scale(p),
                p > 0.0,
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
fn drop_each(x: &[f32], seed: &[i32], y: &mut [f32], n: usize, width: usize, threshold: u32, scale: f32) {
    let i = ABSOLUTE_POS;
    if i >= n {
        terminate!();
    }
    y[i] = x[i] * factor(seed, u32::cast_from(i / width), u32::cast_from(i % width), threshold, scale);
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn bias_drop_add_each(
    x: &[f32],
    bias: &[f32],
    residual: &[f32],
    seed: &[i32],
    y: &mut [f32],
    n: usize,
    width: usize,
    threshold: u32,
    scale: f32,
    #[comptime] drops: bool,
) {
    let i = ABSOLUTE_POS;
    if i >= n {
        terminate!();
    }
    let value = x[i] + bias[i % width];
    if comptime!(drops) {
        let factor = factor(seed, u32::cast_from(i / width), u32::cast_from(i % width), threshold, scale);
        y[i] = value * factor + residual[i];
    } else {
        y[i] = value + residual[i];
    }
}
