//! Building blocks of the CPU kernels: access to the values of Flex tensors, new tensors that are not filled first, matrix
//! products by the library that Burn Flex multiplies with, and splitting rows over threads.
//!
//! Work is split into blocks whose size depends on the shapes alone, and partial sums are added in the order of the
//! blocks, so results do not depend on the number of threads.
#![allow(unsafe_code)] // kernel: memory is written without being filled first, or by several threads at once

use std::mem::MaybeUninit;

use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{DType, FloatDType, Shape, TensorData};
use rayon::prelude::*;

/// The CPU backend's tensor, of any kind.
pub(super) type FlexTensor = FloatTensor<Flex>;

/// `tensor` in row-major order and f32.
///
/// # Panics
/// For another type than f32: those operators that take narrow types widen them first ([`widened`]).
pub(super) fn row_major(tensor: FlexTensor) -> FlexTensor {
    assert_eq!(tensor.dtype(), DType::F32, "Kiln's fused operators take f32 tensors");
    if tensor.as_slice::<f32>().is_some() { tensor } else { tensor.to_contiguous() }
}

/// `tensor` in row-major order, widened to f32 if it is narrower.
pub(super) fn widened(tensor: FlexTensor) -> FlexTensor {
    row_major(cast(tensor, FloatDType::F32))
}

/// `tensor` in the type `dtype`.
pub(super) fn cast(tensor: FlexTensor, dtype: FloatDType) -> FlexTensor {
    if tensor.dtype() == dtype.into() { tensor } else { Flex::float_cast(tensor, dtype) }
}

/// The values of a tensor that [`row_major`] has returned.
pub(super) fn values(tensor: &FlexTensor) -> &[f32] {
    tensor.as_slice().expect("row_major() has made it contiguous and f32")
}

/// Rows and columns of a matrix.
pub(super) fn dims2(tensor: &FlexTensor) -> [usize; 2] {
    let shape = tensor.shape();
    [shape[0], shape[1]]
}

/// Ids or labels as they are stored on the CPU: i32, Burn's default, or i64.
pub(super) fn integers(tensor: &FlexTensor) -> Vec<i64> {
    let tensor = tensor.to_contiguous();
    match tensor.dtype() {
        DType::I64 => tensor.as_slice::<i64>().map(<[i64]>::to_vec),
        _ => tensor.as_slice::<i32>().map(|values| values.iter().map(|&value| i64::from(value)).collect()),
    }
    .expect("integer tensors on the CPU are i32 or i64")
}

/// True where a Boolean tensor is.
pub(super) fn booleans(tensor: &FlexTensor) -> Vec<bool> {
    let tensor = tensor.to_contiguous();
    let start = tensor.layout().start_offset();
    let count = tensor.layout().num_elements();
    tensor.storage::<u8>()[start..start + count].iter().map(|&value| value != 0).collect()
}

/// A tensor of `shape` with these values.
pub(super) fn tensor(values: Vec<f32>, shape: impl Into<Shape>) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape))
}

/// `n` values that `write` writes, all of them.
///
/// # Safety
/// `write` must initialise every element.
pub(super) unsafe fn written(n: usize, write: impl FnOnce(&mut [MaybeUninit<f32>])) -> Vec<f32> {
    let mut values = Vec::with_capacity(n);
    write(&mut values.spare_capacity_mut()[..n]);
    // SAFETY: the capacity is at least `n`, and the caller promises that `write` has initialised the first `n` elements.
    unsafe { values.set_len(n) };
    values
}

/// The values of a [`row_major`] tensor to overwrite: its own storage when nobody else holds it, a copy of its own otherwise.
pub(super) fn writable(tensor: &mut FlexTensor) -> &mut [f32] {
    let n = tensor.layout().num_elements();
    let owns_all = tensor.layout().start_offset() == 0 && tensor.storage::<f32>().len() == n;
    if !owns_all || !tensor.is_unique() {
        *tensor = self::tensor(values(tensor).to_vec(), tensor.shape());
    }
    tensor.storage_mut()
}

/// `tensor` with its values overwritten by `write`, in place when nobody else holds them.
pub(super) fn overwritten(tensor: FlexTensor, write: impl FnOnce(&mut [f32])) -> FlexTensor {
    let mut tensor = row_major(tensor);
    write(writable(&mut tensor));
    tensor
}

/// How many rows of `width` elements one block of work has: about 16,384 elements, at least one row.
pub(super) fn block_rows(width: usize) -> usize {
    (16_384 / width.max(1)).max(1)
}

/// Adds up the blocks' partial column sums, in order.
pub(super) fn add_up(parts: Vec<Vec<f32>>, width: usize) -> Vec<f32> {
    let mut sums = vec![0.0; width];
    for part in parts {
        for (sum, value) in sums.iter_mut().zip(part) {
            *sum += value;
        }
    }
    sums
}

/// Sum over the rows of `x`, `[rows, width] -> [width]`.
pub(super) fn column_sums(x: &[f32], width: usize) -> Vec<f32> {
    let parts = x.par_chunks(block_rows(width) * width.max(1)).map(|block| {
        let mut sums = vec![0.0; width];
        add_rows(block, &mut sums);
        sums
    });
    add_up(parts.collect(), width)
}

super::simd::vectorised! {
    /// Adds every row of `x` to `sums`.
    pub(super) fn add_rows(x: &[f32], sums: &mut [f32]) {
        for row in x.chunks_exact(sums.len()) {
            for (sum, x) in sums.iter_mut().zip(row) {
                *sum += *x;
            }
        }
    }
}

/// A matrix within a slice.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Row-major, without gaps.
    pub fn new(data: &'a [f32], rows: usize, cols: usize) -> Self {
        Self::strided(data, rows, cols, cols)
    }

    /// Row-major; a row starts `row_stride` after the one before it.
    ///
    /// # Panics
    /// When `data` is too short.
    pub fn strided(data: &'a [f32], rows: usize, cols: usize, row_stride: usize) -> Self {
        assert!(rows == 0 || cols == 0 || (rows - 1) * row_stride + cols <= data.len(), "matrix beyond its data");
        Self { data, rows, cols, row_stride, col_stride: 1 }
    }

    /// The transpose, without moving anything.
    pub fn t(self) -> Self {
        let Self { data, rows, cols, row_stride, col_stride } = self;
        Self { data, rows: cols, cols: rows, row_stride: col_stride, col_stride: row_stride }
    }
}

/// How a product writes its destination.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Output {
    /// Overwrites it.
    Overwrite,
    /// Is added to it.
    Add,
}

/// Products with fewer multiplications stay on one thread, as in Burn Flex.
const PARALLEL_FROM: usize = 192 * 192 * 192;

/// `out = a b` or `out += a b` over all threads, row-major without gaps.
pub(super) fn multiply(out: &mut [f32], a: Matrix<'_>, b: Matrix<'_>, into: Output) {
    assert_eq!(out.len(), a.rows * b.cols, "product of another size than its destination");
    // SAFETY: `out` is exclusively borrowed and holds `a.rows` rows of `b.cols` elements.
    unsafe { multiply_raw(out.as_mut_ptr(), b.cols, a, b, 1.0, into, true) }
}

/// `a b`, a new row-major matrix.
pub(super) fn product(a: Matrix<'_>, b: Matrix<'_>) -> Vec<f32> {
    // SAFETY: the product overwrites all of its `a.rows * b.cols` elements, which are the whole destination.
    unsafe {
        written(a.rows * b.cols, |out| {
            multiply_raw(out.as_mut_ptr().cast(), b.cols, a, b, 1.0, Output::Overwrite, true);
        })
    }
}

/// `out = scale a b` or `out += scale a b` for a destination that starts at `out` and whose rows are `row_stride` apart.
///
/// # Safety
/// The `a.rows` rows of `b.cols` elements at `out` must be valid for writing and accessed by nobody else meanwhile; for
/// [`Output::Add`] they must be initialised.
pub(super) unsafe fn multiply_raw(
    out: *mut f32,
    row_stride: usize,
    a: Matrix<'_>,
    b: Matrix<'_>,
    scale: f32,
    into: Output,
    threads: bool,
) {
    assert_eq!(a.cols, b.rows, "inner dimensions of a product");
    let work = a.rows.saturating_mul(b.cols).saturating_mul(a.cols);
    let keep = if into == Output::Add { 1.0 } else { 0.0 };
    let parallelism = match threads && work >= PARALLEL_FROM {
        true => gemm::Parallelism::Rayon(0),
        false => gemm::Parallelism::None,
    };
    // SAFETY: the strides of `a` and `b` stay within their slices (checked when they were made); the caller vouches for
    // the destination. With an inner dimension of 0 the library writes zeros (or leaves what is added to).
    unsafe {
        gemm::gemm(
            a.rows,
            b.cols,
            a.cols,
            out,
            1,
            row_stride as isize,
            into == Output::Add,
            a.data.as_ptr(),
            a.col_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.col_stride as isize,
            b.row_stride as isize,
            keep,
            scale,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// A destination that several threads write to, each its own elements.
#[derive(Clone, Copy)]
pub(super) struct Shared(pub *mut f32);

// SAFETY: it is a pointer and nothing more; whoever writes through it must see to it that no two threads touch one element.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// The address of element `index`.
    ///
    /// # Safety
    /// `index` must lie within (or just behind) the buffer.
    pub unsafe fn at(self, index: usize) -> *mut f32 {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(index) }
    }
}
