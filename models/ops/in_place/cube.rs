//! Kernels that write into a tensor's own memory, whoever else holds it, and give it back as their
//! result.

use burn::backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn::backend::{Backend, backend_extension};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

use super::InPlaceOp;
use crate::ops::adamw::cube::{UpdateKernels, updated};
use crate::ops::adamw::{Inputs, State};
use crate::ops::cube::{Cube, FusedInts, FusedTensor, overwrite};
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
