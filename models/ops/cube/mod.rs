//! Building blocks of the fused operators' kernels for wgpu and CUDA, which are written in CubeCL
//! and are in the compiled engine only. The kernels themselves are in `cube.rs` of each operator's
//! folder. Burn's backend is [`Cube`], which is Burn's fusion around CubeCL's backend.
//!
//! A trait `...Kernels` beside them has the kernels of an operator with the shapes they give, which
//! Burn's fusion needs to know before a kernel runs: to fusion a kernel is one operation that it
//! does not look into. Everything is f32 and row-major, but for factors and results of matrix
//! products: kernels that work on those read and write them in their type, and compute in f32.
//! Burn's tensors are not row-major by themselves: CUDA's allocator gives rows a pitch, a multiple
//! of 512 bytes, and views have strides of their own. So a kernel's inputs go through [`own`] or
//! `into_contiguous`, its outputs are made by [`empty`], and what may have a pitch goes through
//! [`own_rows`] or [`rows_of`], which tell the kernel how far a row is from the next.
//!
//! Kernels that work on rows give a row to one cube of [`lanes`] units, or several rows in turn
//! ([`rows`]), which share sums through shared memory, so that no device needs subgroups.
#![allow(unsafe_code)] // kernels are launched without bounds checks: each says why that is sound

mod contiguous;
mod lists;
pub(super) mod product;
pub(super) mod rows;

use burn::backend::TensorMetadata;
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::{DType, FloatDType, Shape};
use burn_backend::cubecl::dtype_to_storage_type;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::device::is_software;
pub(super) use contiguous::{overwrite, own, own_rows, rows_of};

/// Burn's backend for wgpu and CUDA: fusion around CubeCL's.
pub(super) use burn_cubecl::Cube;

/// A tensor of [`Cube`].
pub(super) type FusedTensor = FloatTensor<Cube>;

/// Whole numbers of [`Cube`].
pub(super) type FusedInts = IntTensor<Cube>;

/// A tensor of f32.
pub(super) fn floats<const D: usize>(shape: [usize; D]) -> TensorSpec {
    TensorSpec::new(Shape::from(shape), DType::F32)
}

/// A tensor like `x` with another shape.
pub(super) fn shaped<const D: usize>(x: &TensorSpec, shape: [usize; D]) -> TensorSpec {
    TensorSpec::new(Shape::from(shape), x.dtype)
}

/// `x` in f32, which the kernels compute in.
pub(super) fn wide(x: FusedTensor) -> FusedTensor {
    narrow(x, DType::F32)
}

/// `x` as an operand of a matrix product in `dtype`.
pub(super) fn narrow(x: FusedTensor, dtype: DType) -> FusedTensor {
    if x.dtype() == dtype { x } else { Cube::float_cast(x, FloatDType::from(dtype)) }
}

/// Units in a cube that works on a short row: as many as a plane (warp) has. They exchange values
/// in shared memory, behind barriers, and nothing depends on a plane's units running in step, which
/// those of CUDA do not from capability 7.0 on.
pub(super) fn lanes(x: &CubeTensor) -> usize {
    (x.client.properties().hardware.plane_size_max as usize).clamp(8, 64)
}

/// Units in a cube that works on a row of `loads` loads: a power of two, so that each unit has a
/// few of them, up to the most that a cube has. A software device runs the units of a cube one
/// after another, and gains nothing from more than [`lanes`].
pub(super) fn units(x: &CubeTensor, loads: usize) -> usize {
    let least = lanes(x);
    let most = 1 << x.client.properties().hardware.max_units_per_cube.clamp(least as u32, 1024).ilog2();
    if is_software(&x.device) { least } else { loads.div_ceil(4).next_power_of_two().clamp(least, most) }
}

/// The longest vector that a unit reads at once.
pub(super) const VECTOR_BYTES: usize = 16;

/// Elements of `x` that a unit reads at once: 16 bytes where `sizes`, the widths of rows and the
/// elements from one to the next, allow that every row begins with such a vector and ends with one.
pub(super) fn vector<const N: usize>(x: &CubeTensor, sizes: [usize; N]) -> usize {
    let bytes = x.handle.offset_start.unwrap_or(0) as usize;
    let fits = |vector: &usize| {
        bytes.is_multiple_of(vector * x.dtype.size()) && sizes.iter().all(|size| size.is_multiple_of(*vector))
    };
    let most = if is_software(&x.device) { 1 } else { VECTOR_BYTES / x.dtype.size() };
    let vectors = x.client.io_optimized_vector_sizes(x.dtype.size());
    vectors.filter(|vector| *vector <= most && fits(vector)).max().unwrap_or(1)
}

/// A cube of `units` units for each of `cubes` pieces of work; there may be more cubes than pieces.
pub(super) fn by_cube(x: &CubeTensor, cubes: usize, units: usize) -> (CubeCount, CubeDim) {
    let dim = CubeDim::new_1d(units as u32);
    (cubecl::calculate_cube_count_elemwise(&x.client, cubes * units, dim), dim)
}

/// A cube of [`lanes`] units for each of `rows` rows; there may be more cubes than rows.
pub(super) fn by_row(x: &CubeTensor, rows: usize) -> (CubeCount, CubeDim) {
    by_cube(x, rows, lanes(x))
}

/// A unit for each of `n` elements; there may be more units than elements.
pub(super) fn by_element(x: &CubeTensor, n: usize) -> (CubeCount, CubeDim) {
    let dim = CubeDim::new(&x.client, n);
    (cubecl::calculate_cube_count_elemwise(&x.client, n, dim), dim)
}

/// A row-major tensor without values on the device of `x` and in its type.
pub(super) fn empty(x: &CubeTensor, shape: impl Into<Shape>) -> CubeTensor {
    empty_in(x, shape, x.dtype)
}

/// [`empty`] in another type.
pub(super) fn empty_in(x: &CubeTensor, shape: impl Into<Shape>, dtype: DType) -> CubeTensor {
    empty_device_contiguous_dtype(x.client.clone(), x.device.clone(), shape.into(), dtype)
}

/// The type of the indices of a kernel that works on `tensors`: 32 bits, or 64 where one has so
/// many elements that the number of a unit behind the last could come around to another's.
pub(super) fn addresses<'a>(tensors: impl IntoIterator<Item = &'a CubeTensor>) -> AddressType {
    let of = |x: &CubeTensor| AddressType::from_len_signed(x.handle.size() as usize / x.dtype.size());
    tensors.into_iter().map(of).max().unwrap_or_default()
}

/// The type of the elements of `x`, as a kernel is told it.
pub(super) fn element(x: &CubeTensor) -> ElemType {
    dtype_to_storage_type(x.dtype)
}

/// The two dimensions of a matrix.
pub(super) fn dims2(x: &CubeTensor) -> [usize; 2] {
    x.shape().dims()
}

/// The buffer of a row-major tensor, as an argument of a kernel. It may be longer than the tensor
/// (a slice is a view), so kernels are told sizes and never ask a buffer for its length.
pub(super) fn buffer(x: &CubeTensor) -> BufferArg {
    x.clone().into_buffer_arg()
}

/// The buffer of `x`, or for one that there is not, which the kernel neither reads nor writes, its
/// argument `other` again, which takes none of the device's bindings.
pub(super) fn buffer_or(x: Option<&CubeTensor>, other: usize) -> BufferArg {
    x.map_or_else(|| BufferArg::alias(other, 0), buffer)
}
