//! Bias and GELU: an element to a unit, and in the backward a strip of rows to a cube, which sums
//! over its columns.
#![allow(unsafe_code)] // kernels are launched without bounds checks: each says why that is sound
#![allow(clippy::assign_op_pattern)] // vectors of kernels have no other form

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata, backend_extension};
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::{Activation, CUBIC, GeluKernel, Inputs, SQRT_2_OVER_PI};
use crate::ops::cube::rows::{Strip, Strips, write_strip};
use crate::ops::cube::{
    Cube, FusedTensor, addresses, buffer, by_element, dims2, element, empty, empty_in, narrow, rows_of, vector,
};

impl GeluKernel for Cube {
    fn forward(Inputs { x, bias, kind, .. }: Inputs<Self>) -> FusedTensor {
        Self::gelu(x, bias, kind)
    }

    fn backward(Inputs { x, bias, kind, .. }: Inputs<Self>, dy: FusedTensor) -> (FusedTensor, FusedTensor) {
        let dy = narrow(dy, x.dtype());
        Self::gelu_backward(x, bias, dy, kind)
    }
}

/// The kernels, as operations of a backend: `x` is `[rows, width]`, `bias` is `[width]`.
#[backend_extension(Cube, Fusion)]
pub(in crate::ops) trait ActivationKernels: Backend {
    /// `gelu(x + bias)` in the type of `x`.
    #[fusion(meta = |x, _bias, _kind| x.clone())]
    fn gelu(x: FloatTensor<Self>, bias: FloatTensor<Self>, kind: Activation) -> FloatTensor<Self>;

    /// `dx` of [`gelu`](Self::gelu), in the type of `x`, and its sums over rows, in f32.
    #[fusion(meta = |x, bias, _dy, _kind| (x.clone(), bias.clone()))]
    fn gelu_backward(
        x: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        kind: Activation,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

impl ActivationKernels for CubeBackend {
    fn gelu(x: CubeTensor, bias: CubeTensor, kind: Activation) -> CubeTensor {
        let y = empty(&x, x.shape());
        activate(x, bias, &y, kind);
        y
    }

    fn gelu_backward(x: CubeTensor, bias: CubeTensor, dy: CubeTensor, kind: Activation) -> (CubeTensor, CubeTensor) {
        let ((x, pitch), bias, (dy, dpitch)) = (rows_of(x), into_contiguous(bias), rows_of(dy));
        let [rows, width] = dims2(&x);
        let dx = empty(&x, [rows, width]);
        let vector = vector(&x, [width, pitch]).min(vector(&dy, [width, dpitch])).min(vector(&bias, [width]));
        let strips = Strips::new(&x, rows, width / vector);
        let parts = empty_in(&x, [strips.strips, width], DType::F32);
        // SAFETY: a group reads and writes rows of its strip below `rows`, at vectors below
        // `width`; the cube of a strip, if there is one, writes that strip's sums.
        unsafe {
            gelu_backward_strips::launch_unchecked(
                &x.client,
                strips.count.clone(),
                strips.dim,
                addresses([&x, &dy]),
                vector,
                buffer(&x),
                buffer(&bias),
                buffer(&dy),
                buffer(&dx),
                buffer(&parts),
                rows,
                width / vector,
                pitch / vector,
                dpitch / vector,
                strips.strips,
                kind == Activation::GeluTanh,
                strips.form,
                element(&x),
            );
        }
        let [dbias, ..] = strips.total(parts, width, 1);
        (dx, dbias)
    }
}

/// `gelu(x + bias)` in `y`, which is row-major and of the type of `x`.
pub(in crate::ops) fn activate(x: CubeTensor, bias: CubeTensor, y: &CubeTensor, kind: Activation) {
    let ((x, pitch), bias) = (rows_of(x), into_contiguous(bias));
    let [rows, width] = dims2(&x);
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
            buffer(y),
            rows * width,
            width,
            pitch,
            kind == Activation::GeluTanh,
            element(&x),
        );
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

/// The gradient of `x`, and a row of `parts` for each strip: its sums over columns of what is
/// written, which is rounded.
#[cube(launch_unchecked, address_type = "dynamic")]
fn gelu_backward_strips<F: Float, N: Size>(
    x: &[Vector<F, N>],
    bias: &[Vector<f32, N>],
    dy: &[Vector<F, N>],
    dx: &mut [Vector<F, N>],
    parts: &mut [Vector<f32, N>],
    rows: usize,
    vectors: usize,
    pitch: usize,
    dpitch: usize,
    strips: usize,
    #[comptime] tanh: bool,
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
    let zero = Vector::<f32, N>::new(0.0f32);
    let mut sums = Array::<Vector<f32, N>>::new(form.each);
    #[unroll]
    for j in 0..form.each {
        sums[j] = zero;
    }
    for round in 0..comptime!(form.rounds()) {
        let row = strip * comptime!(form.rows()) + round * form.groups + group;
        if row < rows {
            #[unroll]
            for j in 0..form.each {
                let at = lane + comptime!(j * form.lanes);
                if at < vectors {
                    let x = Vector::<f32, N>::cast_from(x[row * pitch + at]) + bias[at];
                    let dy = Vector::<f32, N>::cast_from(dy[row * dpitch + at]);
                    let mut gradient = Vector::<f32, N>::empty();
                    #[unroll]
                    for k in 0..lanes {
                        let x = x.extract(k);
                        let cdf = cdf(x, tanh);
                        gradient.insert(k, dy.extract(k) * (cdf + x * density(x, cdf, tanh)));
                    }
                    let rounded = Vector::<F, N>::cast_from(gradient);
                    dx[row * vectors + at] = rounded;
                    sums[j] = sums[j] + Vector::<f32, N>::cast_from(rounded);
                }
            }
        }
    }
    write_strip::<N>(&sums, parts, strip * vectors, vectors, &mut columns, form);
}

/// The factor of `x` in GELU: the normal distribution function, or its approximation `1 / (1 +
/// e^(-2u))`, which is `0.5 (1 + tanh u)` without its cancellation for negative `u`.
#[cube]
pub(in crate::ops) fn cdf(x: f32, #[comptime] tanh: bool) -> f32 {
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
pub(in crate::ops) fn density(x: f32, cdf: f32, #[comptime] tanh: bool) -> f32 {
    if comptime!(tanh) {
        cdf * (1.0f32 - cdf) * (x * x * (6.0f32 * SQRT_2_OVER_PI * CUBIC) + 2.0f32 * SQRT_2_OVER_PI)
    } else {
        (-0.5f32 * x * x).exp() * 0.398_942_3f32 // 1 / sqrt(2 pi)
    }
}
