//! `silu(gate) * up`: an element to a unit.
#![allow(unsafe_code)] // kernels are launched without bounds checks: each says why that is sound

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata, backend_extension};
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::{Inputs, SwigluKernel};
use crate::ops::cube::{Cube, FusedTensor, addresses, buffer, by_element, dims2, element, empty, narrow, rows_of};

impl SwigluKernel for Cube {
    fn forward(Inputs { gate, up, .. }: Inputs<Self>) -> FusedTensor {
        Self::silu_times(gate, up)
    }

    fn backward(Inputs { gate, up, .. }: Inputs<Self>, dy: FusedTensor) -> [FusedTensor; 2] {
        let dy = narrow(dy, gate.dtype());
        let (dgate, dup) = Self::silu_times_backward(gate, up, dy);
        [dgate, dup]
    }
}

/// The kernels, as operations of a backend: all are `[rows, width]` and of one type.
#[backend_extension(Cube, Fusion)]
pub(in crate::ops) trait GateKernels: Backend {
    /// `silu(gate) * up`
    #[fusion(meta = |gate, _up| gate.clone())]
    fn silu_times(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self>;

    /// `(dgate, dup)` of [`silu_times`](Self::silu_times).
    #[fusion(meta = |gate, up, _dy| (gate.clone(), up.clone()))]
    fn silu_times_backward(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        dy: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

impl GateKernels for CubeBackend {
    fn silu_times(gate: CubeTensor, up: CubeTensor) -> CubeTensor {
        let ((gate, gate_pitch), (up, up_pitch)) = (rows_of(gate), rows_of(up));
        let [rows, width] = dims2(&gate);
        let y = empty(&gate, [rows, width]);
        let (count, dim) = by_element(&gate, rows * width);
        // SAFETY: a unit touches its own element, if there is one.
        unsafe {
            silu_times_each::launch_unchecked(
                &gate.client,
                count,
                dim,
                addresses([&gate, &up]),
                buffer(&gate),
                buffer(&up),
                buffer(&y),
                rows * width,
                width,
                gate_pitch,
                up_pitch,
                element(&gate),
            );
        }
        y
    }

    fn silu_times_backward(gate: CubeTensor, up: CubeTensor, dy: CubeTensor) -> (CubeTensor, CubeTensor) {
        let ((gate, gate_pitch), (up, up_pitch), (dy, dpitch)) = (rows_of(gate), rows_of(up), rows_of(dy));
        let [rows, width] = dims2(&gate);
        let (dgate, dup) = (empty(&gate, [rows, width]), empty(&gate, [rows, width]));
        let (count, dim) = by_element(&gate, rows * width);
        // SAFETY: as in `silu_times`.
        unsafe {
            silu_times_backward_each::launch_unchecked(
                &gate.client,
                count,
                dim,
                addresses([&gate, &up, &dy]),
                buffer(&gate),
                buffer(&up),
                buffer(&dy),
                buffer(&dgate),
                buffer(&dup),
                rows * width,
                width,
                gate_pitch,
                up_pitch,
                dpitch,
                element(&gate),
            );
        }
        (dgate, dup)
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn silu_times_each<F: Float>(
    gate: &[F],
    up: &[F],
    y: &mut [F],
    n: usize,
    width: usize,
    gate_pitch: usize,
    up_pitch: usize,
    #[define(F)] _dtype: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i >= n {
        terminate!();
    }
    let row = i / width;
    let column = i % width;
    let gate = f32::cast_from(gate[row * gate_pitch + column]);
    let up = f32::cast_from(up[row * up_pitch + column]);
    y[i] = F::cast_from(gate / (1.0f32 + (-gate).exp()) * up);
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn silu_times_backward_each<F: Float>(
    gate: &[F],
    up: &[F],
    dy: &[F],
    dgate: &mut [F],
    dup: &mut [F],
    n: usize,
    width: usize,
    gate_pitch: usize,
    up_pitch: usize,
    dpitch: usize,
    #[define(F)] _dtype: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i >= n {
        terminate!();
    }
    let row = i / width;
    let column = i % width;
    let gate = f32::cast_from(gate[row * gate_pitch + column]);
    let up = f32::cast_from(up[row * up_pitch + column]);
    let dy = f32::cast_from(dy[row * dpitch + column]);
    let sigmoid = 1.0f32 / (1.0f32 + (-gate).exp());
    let silu = gate * sigmoid;
    dup[i] = F::cast_from(dy * silu);
    dgate[i] = F::cast_from(dy * up * (sigmoid + silu * (1.0f32 - sigmoid)));
}
