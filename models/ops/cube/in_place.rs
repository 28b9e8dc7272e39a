//! Kernels that write into a tensor's own memory, whoever else holds it, and give it back as their result.

use burn::backend::TensorMetadata;
use burn::backend::tensor::BoolTensor;
use burn::tensor::{BoolStore, DType};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::super::in_place::InPlaceOp;
use super::adamw::updated;
use super::{Cube, FusedInts, FusedTensor, Kernels, buffer, by_element};

impl InPlaceOp for Cube {
    fn overwrite(target: FusedTensor, values: FusedTensor) -> FusedTensor {
        <Self as Kernels>::overwrite(target, values)
    }

    fn overwrite_ints(target: FusedInts, values: FusedInts) -> FusedInts {
        <Self as Kernels>::overwrite_ints(target, values)
    }

    fn overwrite_bools(target: BoolTensor<Self>, values: BoolTensor<Self>) -> BoolTensor<Self> {
        <Self as Kernels>::overwrite_bools(target, values)
    }

    fn adamw(
        value: FusedTensor,
        exp_avg: FusedTensor,
        exp_avg_sq: FusedTensor,
        grad: FusedTensor,
        scale: FusedTensor,
        factors: FusedTensor,
    ) -> (FusedTensor, FusedTensor, FusedTensor) {
        Self::adamw_in_place(value, exp_avg, exp_avg_sq, grad, scale, factors)
    }
}

pub(super) fn overwrite(target: CubeTensor, values: CubeTensor) -> CubeTensor {
    match target.dtype {
        DType::F32 => write::<f32>(target, values),
        DType::I32 => write::<i32>(target, values),
        DType::Bool(BoolStore::U32) => write::<u32>(target, values),
        DType::Bool(BoolStore::U8) => write::<u8>(target, values),
        other => panic!("tensors of f32, i32 and bool are overwritten, not of {other:?}"),
    }
}

fn write<E: Numeric + CubeElement>(target: CubeTensor, values: CubeTensor) -> CubeTensor {
    let values = into_contiguous(values);
    assert!(target.is_contiguous(), "what is overwritten is row-major");
    let n = target.shape().num_elements();
    let (count, dim) = by_element(&target, n);
    // SAFETY: both tensors have `n` elements, row-major; a unit touches its own one, if there is one.
    unsafe {
        overwrite_each::launch_unchecked::<E>(&target.client, count, dim, buffer(&target), buffer(&values), n);
    }
    target
}

#[cube(launch_unchecked)]
fn overwrite_each<E: Numeric>(target: &mut [E], values: &[E], n: usize) {
    if ABSOLUTE_POS >= n {
        terminate!();
    }
    target[ABSOLUTE_POS] = values[ABSOLUTE_POS];
}

pub(super) fn adamw(
    value: CubeTensor,
    exp_avg: CubeTensor,
    exp_avg_sq: CubeTensor,
    grad: CubeTensor,
    scale: CubeTensor,
    factors: CubeTensor,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let [grad, scale, factors] = [grad, scale, factors].map(into_contiguous);
    assert!(value.is_contiguous(), "weights are row-major");
    let n = value.shape().num_elements();
    let (count, dim) = by_element(&value, n);
    // SAFETY: as in `write` for the first four; `factors` has eight elements.
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
            buffer(&factors),
            n,
        );
    }
    (value, exp_avg, exp_avg_sq)
}

/// `factors` are those of [`Factors`](super::super::adamw::Factors), in its order.
#[cube(launch_unchecked)]
fn update_each(
    value: &mut [f32],
    exp_avg: &mut [f32],
    exp_avg_sq: &mut [f32],
    grad: &[f32],
    scale: &[f32],
    factors: &[f32],
    n: usize,
) {
    let i = ABSOLUTE_POS;
    if i >= n {
        terminate!();
    }
    let grad = grad[i] * scale[0];
    let m = exp_avg[i] * factors[1] + grad * factors[2];
    let v = exp_avg_sq[i] * factors[3] + grad * grad * factors[4];
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    value[i] = updated(value[i], m, v, factors[0], factors[5], factors[6], factors[7]);
}
