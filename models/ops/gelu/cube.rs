//! Bias and GELU: an element to a unit.
#![allow(unsafe_code)] // kernels are launched without bounds checks: each says why that is sound

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata, backend_extension};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::{Activation, CUBIC, GeluKernel, Inputs, SQRT_2_OVER_PI};
use crate::ops::cube::rows::RowKernels;
use crate::ops::cube::{Cube, FusedTensor, addresses, buffer, by_element, dims2, element, empty, narrow, rows_of};

impl GeluKernel for Cube {
    fn forward(Inputs { x, bias, kind, .. }: Inputs<Self>) -> FusedTensor {
        Self::gelu(x, bias, kind)
    }

    fn backward(Inputs { x, bias, kind, .. }: Inputs<Self>, dy: FusedTensor) -> (FusedTensor, FusedTensor) {
        let dy = narrow(dy, x.dtype());
        let dx = Self::gelu_backward(x, bias, dy, kind);
        (dx.clone(), Self::column_sums(dx))
    }
}

/// The kernels, as operations of a backend: `x` is `[rows, width]`, `bias` is `[width]`.
#[backend_extension(Cube, Fusion)]
pub(in crate::ops) trait ActivationKernels: Backend {
    /// `gelu(x + bias)` in the type of `x`.
    #[fusion(meta = |x, _bias, _kind| x.clone())]
    fn gelu(x: FloatTensor<Self>, bias: FloatTensor<Self>, kind: Activation) -> FloatTensor<Self>;

    /// `dx` of [`gelu`](Self::gelu).
    #[fusion(meta = |x, _bias, _dy, _kind| x.clone())]
    fn gelu_backward(
        x: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        kind: Activation,
    ) -> FloatTensor<Self>;
}

impl ActivationKernels for CubeBackend {
    fn gelu(x: CubeTensor, bias: CubeTensor, kind: Activation) -> CubeTensor {
        let ((x, pitch), bias) = (rows_of(x), into_contiguous(bias));
        let [rows, width] = dims2(&x);
        let y = empty(&x, [rows, width]);
        let (count, dim) = by_element(&x, rows * width);
        // SAFETY: a unit touches its own element, if there is one, and the bias of its column.
        unsafe {
            gelu_each::launch_unchecked(
                &x.client,
                count,
                dim,
                addresses([&x]),
                buffer(&x),
                buffer(&bias),
                buffer(&y),
                rows * width,
                width,
                pitch,
                kind == Activation::GeluTanh,
                element(&x),
            );
        }
        y
    }

    fn gelu_backward(x: CubeTensor, bias: CubeTensor, dy: CubeTensor, kind: Activation) -> CubeTensor {
        let ((x, pitch), bias, (dy, dpitch)) = (rows_of(x), into_contiguous(bias), rows_of(dy));
        let [rows, width] = dims2(&x);
        let dx = empty(&x, [rows, width]);
        let (count, dim) = by_element(&x, rows * width);
        // SAFETY: as in `gelu`.
        unsafe {
            gelu_backward_each::launch_unchecked(
                &x.client,
                count,
                dim,
                addresses([&x, &dy]),
                buffer(&x),
                buffer(&bias),
                buffer(&dy),
                buffer(&dx),
                rows * width,
                width,
                pitch,
                dpitch,
                kind == Activation::GeluTanh,
                element(&x),
            );
        }
        dx
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn gelu_each<F: Float>(
    x: &[F],
    bias: &[f32],
    y: &mut [F],
    n: usize,
    width: usize,
    pitch: usize,
    #[comptime] tanh: bool,
    #[define(F)] _dtype: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i >= n {
        terminate!();
    }
    let column = i % width;
    let x = f32::cast_from(x[i / width * pitch + column]) + bias[column];
    y[i] = F::cast_from(x * cdf(x, tanh));
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn gelu_backward_each<F: Float>(
    x: &[F],
    bias: &[f32],
    dy: &[F],
    dx: &mut [F],
    n: usize,
    width: usize,
    pitch: usize,
    dpitch: usize,
    #[comptime] tanh: bool,
    #[define(F)] _dtype: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i >= n {
        terminate!();
    }
    let row = i / width;
    let column = i % width;
    let x = f32::cast_from(x[row * pitch + column]) + bias[column];
    let dy = f32::cast_from(dy[row * dpitch + column]);
    let cdf = cdf(x, tanh);
    dx[i] = F::cast_from(dy * (cdf + x * density(x, cdf, tanh)));
}

/// The factor of `x` in GELU: the normal distribution function, or its approximation `1 / (1 +
/// e^(-2u))`, which is `0.5 (1 + tanh u)` without its cancellation for negative `u`.
#[cube]
fn cdf(x: f32, #[comptime] tanh: bool) -> f32 {
    if comptime!(tanh) {
        let inner = x * (x * x * (SQRT_2_OVER_PI * CUBIC) + SQRT_2_OVER_PI);
        1.0f32 / (1.0f32 + (-2.0f32 * inner).exp())
    } else {
        // The formula of `simd::normal_cdf_pdf`, which says where it is from.
        let t = 1.0f32 / (x.abs() * 0.353_553_4f32 + 1.0f32);
        let q = -0.059_386_633f32;
        let q = q * t + 0.286_124_75f32;
        let q = q * t - 0.490_407_85f32;
        let q = q * t + 0.281_734_82f32;
        let q = q * t - 0.029_149_467f32;
        let q = q * t + 0.203_752_86f32;
        let q = q * t + 0.242_834_99f32;
        let q = q * t + 0.282_412_1f32;
        let q = q * t + 0.282_084_35f32;
        let tail = 0.5f32 * (-0.5f32 * x * x).exp() * (t * q);
        select(x < 0.0f32, tail, 1.0f32 - tail)
    }
}

/// The derivative of [`cdf`].
#[cube]
fn density(x: f32, cdf: f32, #[comptime] tanh: bool) -> f32 {
    if comptime!(tanh) {
        cdf * (1.0f32 - cdf) * (x * x * (6.0f32 * SQRT_2_OVER_PI * CUBIC) + 2.0f32 * SQRT_2_OVER_PI)
    } else {
        (-0.5f32 * x * x).exp() * 0.398_942_3f32 // 1 / sqrt(2 pi)
    }
}
