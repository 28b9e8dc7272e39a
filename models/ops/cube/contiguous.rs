//! Tensors in row-major order, and the kernel that writes one into the memory of another.

use burn::backend::TensorMetadata;
use burn::tensor::{BoolStore, DType};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};
use cubecl::zspace::striding::has_pitched_row_major_strides;
use half::{bf16, f16};

use super::{addresses, by_element, empty};

/// `x` row-major, in its own memory if nobody else holds that.
pub(in crate::ops) fn own(x: CubeTensor) -> CubeTensor {
    if x.is_contiguous() && x.can_mut() { x } else { copied(x) }
}

/// Elements from a row of `x` to the next, where all rows lie in order and equally far apart.
fn pitch(x: &CubeTensor) -> Option<usize> {
    let (shape, strides) = (x.meta.shape(), x.meta.strides());
    has_pitched_row_major_strides(shape, strides).then(|| strides[strides.len() - 2])
}

/// `x` with rows in order, and the elements from one to the next; in its own memory if nobody else
/// holds that.
pub(in crate::ops) fn own_rows(x: CubeTensor) -> (CubeTensor, usize) {
    match pitch(&x) {
        Some(pitch) if x.can_mut() => (x, pitch),
        _ => dense_rows(copied(x)),
    }
}

/// `x` to be read with rows in order, and the elements from one to the next.
pub(in crate::ops) fn rows_of(x: CubeTensor) -> (CubeTensor, usize) {
    match pitch(&x) {
        Some(pitch) => (x, pitch),
        None => dense_rows(into_contiguous(x)),
    }
}

fn dense_rows(x: CubeTensor) -> (CubeTensor, usize) {
    let width = x.shape()[x.shape().num_dims() - 1];
    (x, width)
}

/// `values` in the memory of `target`.
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
fn copied(x: CubeTensor) -> CubeTensor {
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
