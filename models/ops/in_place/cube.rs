//! Kernels that write into a tensor's own memory, whoever else holds it, and give it back as their
//! result.
#![allow(unsafe_code)] // kernels are launched without bounds checks: each says why that is sound

use burn::backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata, backend_extension};
use burn::tensor::{BoolStore, DType};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};
use half::{bf16, f16};

use super::InPlaceOp;
use crate::ops::adamw::cube::{UpdateKernels, updated};
use crate::ops::adamw::{Inputs, State};
use crate::ops::cube::{Cube, FusedInts, FusedTensor, addresses, by_element, empty};
use crate::ops::list::TensorList;

impl InPlaceOp for Cube {
    fn overwrite(target: FusedTensor, values: FusedTensor) -> FusedTensor {
        <Self as WriteKernels>::overwrite(target, values)
    }

    fn overwrite_ints(target: FusedInts, values: FusedInts) -> FusedInts {
        <Self as WriteKernels>::overwrite_ints(target, values)
    }

    fn overwrite_bools(target: BoolTensor<Self>, values: BoolTensor<Self>) -> BoolTensor<Self> {
        <Self as WriteKernels>::overwrite_bools(target, values)
    }

    fn row_major(x: FusedTensor) -> FusedTensor {
        <Self as WriteKernels>::row_major(x)
    }

    fn adamw(inputs: Inputs<Self>) -> State<Self> {
        updated(inputs, true)
    }

    fn accumulate(sums: TensorList<Self>, values: TensorList<Self>, by: FusedTensor) -> TensorList<Self> {
        <Self as UpdateKernels>::accumulate(sums, values, by)
    }
}

/// The kernels, as operations of a backend.
#[backend_extension(Cube, Fusion)]
pub(in crate::ops) trait WriteKernels: Backend {
    /// `x` row-major, in its own memory if it is that already.
    #[fusion(meta = |x| x.clone())]
    fn row_major(x: FloatTensor<Self>) -> FloatTensor<Self>;

    /// `values` in the memory of `target`.
    #[fusion(meta = |target, _values| target.clone())]
    fn overwrite(target: FloatTensor<Self>, values: FloatTensor<Self>) -> FloatTensor<Self>;

    /// `values` in the memory of `target`.
    #[fusion(meta = |target, _values| target.clone())]
    fn overwrite_ints(target: IntTensor<Self>, values: IntTensor<Self>) -> IntTensor<Self>;

    /// `values` in the memory of `target`.
    #[fusion(meta = |target, _values| target.clone())]
    fn overwrite_bools(target: BoolTensor<Self>, values: BoolTensor<Self>) -> BoolTensor<Self>;
}

impl WriteKernels for CubeBackend {
    fn row_major(x: CubeTensor) -> CubeTensor {
        into_contiguous(x)
    }

    fn overwrite(target: CubeTensor, values: CubeTensor) -> CubeTensor {
        overwrite(target, values)
    }

    fn overwrite_ints(target: CubeTensor, values: CubeTensor) -> CubeTensor {
        overwrite(target, values)
    }

    fn overwrite_bools(target: CubeTensor, values: CubeTensor) -> CubeTensor {
        overwrite(target, values)
    }
}

pub(in crate::ops) fn overwrite(target: CubeTensor, values: CubeTensor) -> CubeTensor {
    match target.dtype {
        DType::F32 => write::<f32>(target, values),
        DType::F16 => write::<f16>(target, values),
        DType::BF16 => write::<bf16>(target, values),
        DType::I32 => write::<i32>(target, values),
        DType::Bool(BoolStore::U32) => write::<u32>(target, values),
        DType::Bool(BoolStore::U8) => write::<u8>(target, values),
        other => panic!("tensors of f32, f16, bf16, i32 and bool are overwritten, not of {other:?}"),
    }
}

/// `x` row-major in memory of its own. Burn's copy would have rows with a pitch where the device's
/// allocator gives them one.
pub(in crate::ops) fn copied(x: CubeTensor) -> CubeTensor {
    overwrite(empty(&x, x.shape()), x)
}

fn write<E: Numeric + CubeElement>(target: CubeTensor, values: CubeTensor) -> CubeTensor {
    let n = target.shape().num_elements();
    let (count, dim) = by_element(&target, n);
    // SAFETY: both tensors have `n` elements, which the views find by the strides; a unit touches
    // its own one, if there is one.
    unsafe {
        overwrite_each::launch_unchecked::<E>(
            &target.client,
            count,
            dim,
            addresses([&target, &values]),
            target.clone().into_linear_view(),
            values.into_linear_view(),
            n,
        );
    }
    target
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn overwrite_each<E: Numeric>(mut target: LinearViewMut<'_, E>, values: LinearView<'_, E>, n: usize) {
    if ABSOLUTE_POS >= n {
        terminate!();
    }
    target.write(ABSOLUTE_POS, values.read(ABSOLUTE_POS));
}
