//! Rotary positions: a pair of elements to a unit, in place.
#![allow(unsafe_code)] // kernels are launched without bounds checks: each says why that is sound

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, backend_extension};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::{Inputs, RotaryKernel};
use crate::ops::cube::{Cube, FusedTensor, addresses, buffer, by_element, dims2, element, own_rows};

impl RotaryKernel for Cube {
    fn turned(Inputs { x, cos, sin }: Inputs<Self>, back: bool) -> FusedTensor {
        Self::turn_heads(x, cos, sin, back)
    }
}

/// The kernel, as an operation of a backend.
#[backend_extension(Cube, Fusion)]
pub(in crate::ops) trait RotaryKernels: Backend {
    /// `x [n, heads * head_dim]`, of any type, turned by the angles of `cos` and `sin [rows,
    /// head_dim / 2]`, or `back` by the negative angles, in place where nobody else holds it.
    #[fusion(meta = |x, _cos, _sin, _back| x.clone())]
    fn turn_heads(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        back: bool,
    ) -> FloatTensor<Self>;
}

impl RotaryKernels for CubeBackend {
    fn turn_heads(x: CubeTensor, cos: CubeTensor, sin: CubeTensor, back: bool) -> CubeTensor {
        let ((x, pitch), [cos, sin]) = (own_rows(x), [cos, sin].map(into_contiguous));
        let ([n, width], [positions, half]) = (dims2(&x), dims2(&cos));
        let (count, dim) = by_element(&x, n * width / 2);
        // SAFETY: a unit touches its own pair of elements, if there is one, and reads an angle of
        // one of the positions.
        unsafe {
            turn_each::launch_unchecked(
                &x.client,
                count,
                dim,
                addresses([&x, &cos]),
                buffer(&x),
                buffer(&cos),
                buffer(&sin),
                n * width / 2,
                width / 2,
                half,
                positions,
                pitch,
                if back { -1.0 } else { 1.0 },
                element(&x),
            );
        }
        x
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn turn_each<F: Float>(
    x: &mut [F],
    cos: &[f32],
    sin: &[f32],
    pairs: usize,
    pairs_of_row: usize,
    half: usize,
    positions: usize,
    pitch: usize,
    sign: f32,
    #[define(F)] _dtype: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i >= pairs {
        terminate!();
    }
    let row = i / pairs_of_row;
    let pair = i % pairs_of_row;
    let column = pair % half;
    let first = row * pitch + pair / half * 2 * half + column;
    let angle = row % positions * half + column;
    let cos = cos[angle];
    let sin = sign * sin[angle];
    let a = f32::cast_from(x[first]);
    let b = f32::cast_from(x[first + half]);
    x[first] = F::cast_from(a * cos - b * sin);
    x[first + half] = F::cast_from(b * cos + a * sin);
}
