//! The AdamW update of one parameter, and the sum of squares for the global norm.

use burn::backend::TensorMetadata;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::super::adamw::{AdamWOp, Factors};
use super::rows::cube_sum;
use super::{Cube, FusedTensor, Kernels, buffer, by_element, empty, lanes, own};

impl AdamWOp for Cube {
    fn update(
        value: FusedTensor,
        exp_avg: FusedTensor,
        exp_avg_sq: FusedTensor,
        grad: FusedTensor,
        scale: FusedTensor,
        factors: Factors,
    ) -> (FusedTensor, FusedTensor, FusedTensor) {
        Self::adamw(value, exp_avg, exp_avg_sq, grad, scale, factors)
    }

    fn sum_of_squares(x: FusedTensor) -> FusedTensor {
        Self::squares(x)
    }
}

pub(super) fn update(
    value: CubeTensor,
    exp_avg: CubeTensor,
    exp_avg_sq: CubeTensor,
    grad: CubeTensor,
    scale: CubeTensor,
    by: Factors,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let (grad, scale) = (into_contiguous(grad), into_contiguous(scale));
    let [value, exp_avg, exp_avg_sq] = [value, exp_avg, exp_avg_sq].map(own);
    let n = value.shape().num_elements();
    let (count, dim) = by_element(&value, n);
    // SAFETY: the five tensors have the same number of elements; a unit touches its own one, if there is one.
    unsafe {
        update_each::launch_unchecked(
            &value.client,
            count,
            dim,
            buffer(&value),
            buffer(&exp_avg),
            buffer(&exp_avg_sq),
            buffer(&grad),
            buffer(&scale),
            n,
            by.keep,
            by.beta1,
            by.rest1,
            by.beta2,
            by.rest2,
            by.root,
            by.epsilon,
            by.rate,
        );
    }
    (value, exp_avg, exp_avg_sq)
}

#[cube(launch_unchecked)]
fn update_each(
    value: &mut [f32],
    exp_avg: &mut [f32],
    exp_avg_sq: &mut [f32],
    grad: &[f32],
    scale: &[f32],
    n: usize,
    keep: f32,
    beta1: f32,
    rest1: f32,
    beta2: f32,
    rest2: f32,
    root: f32,
    epsilon: f32,
    rate: f32,
) {
    let i = ABSOLUTE_POS;
    if i >= n {
        terminate!();
    }
    let grad = grad[i] * scale[0];
    let m = exp_avg[i] * beta1 + grad * rest1;
    let v = exp_avg_sq[i] * beta2 + grad * grad * rest2;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    value[i] = updated(value[i], m, v, keep, root, epsilon, rate);
}

/// A weight after the update that the moments `m` and `v` ask for.
#[cube]
pub(super) fn updated(value: f32, m: f32, v: f32, keep: f32, root: f32, epsilon: f32, rate: f32) -> f32 {
    value * keep - m / (v.sqrt() * root + epsilon) * rate
}

/// Elements that a unit takes at the least, and cubes at the most: one cube adds up what is left of the others.
const SHARE: usize = 32;
const MOST_CUBES: usize = 256;

pub(super) fn squares(x: CubeTensor) -> CubeTensor {
    let x = into_contiguous(x);
    let lanes = lanes(&x);
    let cubes = x.shape().num_elements().div_ceil(lanes * SHARE).clamp(1, MOST_CUBES);
    let parts = add_up(&x, cubes, true);
    if cubes == 1 { parts } else { add_up(&parts, 1, false) }
}

/// What `cubes` cubes get when they add up `x`, or its squares: `[cubes]`.
fn add_up(x: &CubeTensor, cubes: usize, squared: bool) -> CubeTensor {
    let (sums, lanes) = (empty(x, [cubes]), lanes(x));
    let (count, dim) = (CubeCount::Static(cubes as u32, 1, 1), CubeDim::new_1d(lanes as u32));
    // SAFETY: units read below the `n` elements of `x`, and there is an element of `sums` for every cube.
    unsafe {
        sum_of::launch_unchecked(
            &x.client,
            count,
            dim,
            buffer(x),
            buffer(&sums),
            x.shape().num_elements(),
            cubes,
            squared,
            lanes,
        );
    }
    sums
}

#[cube(launch_unchecked)]
fn sum_of(x: &[f32], sums: &mut [f32], n: usize, cubes: usize, #[comptime] squared: bool, #[comptime] lanes: usize) {
    let mut scratch = Shared::<[f32]>::new_slice(lanes);
    let mut i = ABSOLUTE_POS;
    let mut sum = 0.0f32;
    while i < n {
        let value = x[i];
        if comptime!(squared) {
            sum += value * value;
        } else {
            sum += value;
        }
        i += cubes * lanes;
    }
    let sum = cube_sum(sum, &mut scratch, lanes);
    if UNIT_POS == 0 {
        sums[CUBE_POS] = sum;
    }
}
