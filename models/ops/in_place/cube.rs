//! Kernels that write into a tensor's own memory, whoever else holds it, and give it back as their result.
#![allow(unsafe_code)] // kernels are launched without bounds checks: each says why that is sound

use burn::backend::TensorMetadata;
use burn::backend::tensor::BoolTensor;
use burn::tensor::{BoolStore, DType};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::InPlaceOp;
use crate::ops::cube::{Cube, FusedInts, FusedTensor, Kernels, buffer, by_element};
use crate::ops::list::TensorList;

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
        values: TensorList<Self>,
        exp_avgs: TensorList<Self>,
        exp_avg_sqs: TensorList<Self>,
        grads: TensorList<Self>,
        scale: FusedTensor,
        factors: FusedTensor,
        kinds: Vec<usize>,
    ) -> (TensorList<Self>, TensorList<Self>, TensorList<Self>) {
        <Self as Kernels>::adamw(values, exp_avgs, exp_avg_sqs, grads, scale, factors, kinds, true)
    }

    fn accumulate(sums: TensorList<Self>, values: TensorList<Self>, by: FusedTensor) -> TensorList<Self> {
        <Self as Kernels>::accumulate(sums, values, by)
    }
}

pub(in crate::ops) fn overwrite(target: CubeTensor, values: CubeTensor) -> CubeTensor {
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
