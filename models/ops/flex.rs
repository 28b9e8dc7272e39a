//! Building blocks of the CPU kernels: access to the values of Flex tensors, new tensors that are
//! not filled first, and splitting rows over threads.
//!
//! Work is split into blocks whose size depends on the shapes alone, and partial sums are added in
//! the order of the blocks, so results do not depend on the number of threads.
#![allow(unsafe_code)] // kernel: memory is written without being filled first

use std::mem::MaybeUninit;

use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{DType, FloatDType, Shape, TensorData};
use half::bf16;
use rayon::prelude::*;

use super::products::{Factor, Matrix, Operands};

/// The CPU backend's tensor, of any kind.
pub(super) type FlexTensor = FloatTensor<Flex>;

/// `tensor` in row-major order and f32.
///
/// # Panics
/// For another type than f32: those operators that take narrow types widen them first
/// ([`widened`]).
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

/// `tensor` with rows or columns that are contiguous, as products take it.
pub(super) fn strided(tensor: FlexTensor) -> FlexTensor {
    let is_strided =
        matches!(tensor.layout().strides(), [row, col] if *row >= 1 && *col >= 1 && (*row == 1 || *col == 1));
    if is_strided { tensor } else { tensor.to_contiguous() }
}

/// A matrix that [`strided`] has returned, of f32, bf16 or f16, as a factor of a product.
pub(super) fn factor(tensor: &FlexTensor) -> Factor<'_> {
    fn matrix<'a, T>(storage: &'a [T], tensor: &FlexTensor) -> Matrix<'a, T> {
        let strides = [0, 1].map(|axis| tensor.layout().strides()[axis].unsigned_abs());
        Matrix::with_strides(&storage[tensor.layout().start_offset()..], dims2(tensor), strides)
    }
    match tensor.dtype() {
        DType::BF16 => Factor::Bf16(matrix(tensor.storage(), tensor)),
        DType::F16 => Factor::F16(matrix(tensor.storage(), tensor)),
        _ => Factor::F32(matrix(tensor.storage(), tensor)),
    }
}

/// A matrix that [`strided`] has returned, as the right factor of a product: packed where
/// `operands` keep it so.
pub(super) fn right_factor<'a>(tensor: &'a FlexTensor, operands: &'a Operands) -> Factor<'a> {
    match &operands.packed {
        Some(packed) => packed.right(factor(tensor), operands.dtype.into()),
        None => factor(tensor),
    }
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

/// A tensor `[rows, width]` in `dtype`, f32 or bf16, of which `write` computes a block of rows at a
/// time in f32: it is given the block's number and its elements. There are [`block_rows`] rows in a
/// block, fewer in the last one.
///
/// # Safety
/// `write` must initialise every element of its block.
///
/// # Panics
/// For another type.
pub(super) unsafe fn written_in(
    dtype: FloatDType,
    [rows, width]: [usize; 2],
    write: impl Fn(usize, &mut [MaybeUninit<f32>]) + Sync,
) -> FlexTensor {
    let block = block_rows(width) * width;
    // SAFETY (both): every block of the result is written, by `write` as the caller promises, or by
    // `narrow` from what `write` wrote.
    match dtype {
        FloatDType::F32 => tensor(
            unsafe {
                written(rows * width, |out| {
                    out.par_chunks_mut(block).enumerate().for_each(|(i, out)| write(i, out));
                })
            },
            [rows, width],
        ),
        FloatDType::BF16 => {
            let values = unsafe {
                written(rows * width, |out| {
                    let blocks = out.par_chunks_mut(block).enumerate();
                    blocks.for_each_init(
                        || Vec::with_capacity(block),
                        |wide, (i, out)| {
                            write(i, &mut wide.spare_capacity_mut()[..out.len()]);
                            wide.set_len(out.len());
                            narrow(out, wide);
                            wide.clear();
                        },
                    );
                })
            };
            FlexTensor::from_data(TensorData::new(values, [rows, width]))
        }
        other => panic!("a kernel of the CPU gives f32 or bf16, not {other:?}"),
    }
}

super::simd::vectorised! {
    /// `x` rounded to bf16, ties to even, as the operands of products are. `out` is as long as `x`.
    pub(super) fn narrow(out: &mut [MaybeUninit<bf16>], x: &[f32]) {
        for (out, x) in out.iter_mut().zip(x) {
            out.write(to_bf16(*x));
        }
    }
}

#[inline(always)]
fn to_bf16(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    // The bits that are cut off may be all that tells a NaN from infinity.
    let nan = (bits >> 16) | 0x40;
    bf16::from_bits(if bits & 0x7fff_ffff > 0x7f80_0000 { nan } else { rounded } as u16)
}

/// `x` rounded to bf16, ties to even, in f32.
#[inline(always)]
pub(super) fn rounded_to_bf16(x: f32) -> f32 {
    f32::from_bits(u32::from(to_bf16(x).to_bits()) << 16)
}

super::simd::vectorised! {
    /// Rounds `x` to bf16 where it is: as many elements of bf16 then fill the first half of its
    /// memory ([`narrowed_rows`]).
    pub(super) fn narrow_in_place(x: &mut [f32]) {
        const LANES: usize = 32;
        let (len, from) = (x.len(), x.as_mut_ptr());
        let to = from.cast::<MaybeUninit<bf16>>();
        for start in (0..len).step_by(LANES) {
            let n = LANES.min(len - start);
            let mut wide = [0.0f32; LANES];
            let mut rounded = [MaybeUninit::<bf16>::uninit(); LANES];
            // SAFETY: both ranges lie within the memory of `x`. The elements that are written over,
            // which end 2 (start + n) bytes behind its start, have been read: those that have not
            // begin 4 (start + n) bytes behind it.
            unsafe {
                std::ptr::copy_nonoverlapping(from.add(start), wide.as_mut_ptr(), n);
                for (rounded, x) in rounded.iter_mut().zip(&wide) {
                    rounded.write(to_bf16(*x));
                }
                std::ptr::copy_nonoverlapping(rounded.as_ptr(), to.add(start), n);
            }
        }
    }
}

/// The rows, `width` elements each, that [`narrow_in_place`] has rounded one by one.
pub(super) fn narrowed_rows(x: &[f32], width: usize) -> Matrix<'_, bf16> {
    Matrix::strided(halves(x), x.len() / width, width, 2 * width)
}

/// The memory of `x` as twice as many elements of bf16.
fn halves(x: &[f32]) -> &[bf16] {
    // SAFETY: the same memory, all of it initialised: a bf16 is any 16 bits, and is aligned where
    // an f32 is.
    unsafe { std::slice::from_raw_parts(x.as_ptr().cast::<bf16>(), 2 * x.len()) }
}

/// `n` values that `write` writes, all of them.
///
/// # Safety
/// `write` must initialise every element.
pub(super) unsafe fn written<T>(n: usize, write: impl FnOnce(&mut [MaybeUninit<T>])) -> Vec<T> {
    let mut values = Vec::with_capacity(n);
    write(&mut values.spare_capacity_mut()[..n]);
    // SAFETY: the capacity is at least `n`, and the caller promises that `write` has initialised
    // the first `n` elements.
    unsafe { values.set_len(n) };
    values
}

/// The values of a [`row_major`] tensor to overwrite: its own storage when nobody else holds it, a
/// copy of its own otherwise.
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

/// How many rows of `width` elements one block of work has: about 16,384 elements, at least one
/// row.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_that_of_bf16() {
        let ties =
            [1.0f32, 1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, f32::MAX, f32::MIN_POSITIVE / 3.0, f32::INFINITY, -0.0];
        let mut x = [ties.to_vec(), vec![f32::NAN, f32::from_bits(0x7f80_0001), f32::from_bits(0xff80_0001)]].concat();
        x.extend((0..10_007u32).map(|i| f32::from_bits(i.wrapping_mul(2_654_435_761))));
        let mut out = Vec::with_capacity(x.len());
        narrow(&mut out.spare_capacity_mut()[..x.len()], &x);
        // SAFETY: `narrow` has written every element.
        unsafe { out.set_len(x.len()) };
        for (x, out) in x.iter().zip(&out) {
            assert_eq!(out.to_bits(), bf16::from_f32(*x).to_bits(), "{x:?}");
        }
        let width = x.len();
        let mut twice = [x.clone(), x].concat();
        twice.chunks_exact_mut(width).for_each(narrow_in_place);
        for row in halves(&twice).chunks_exact(2 * width) {
            assert!(row[..width].iter().zip(&out).all(|(row, out)| row.to_bits() == out.to_bits()));
        }
    }
}
