//! Matrix products on the CPU: `a b`, `a b + bias` and `c + a b` of factors in f32, bf16 or f16,
//! transposed or not, with operands rounded to the type of the products and sums in f32.
//!
//! Products of bf16 are made by the fastest [`Unit`] of this CPU. The others, and those of f16, are
//! made in f32 on rounded operands: by kernels of AVX-512 or, on a CPU without it, by the `gemm`
//! crate, with which Burn Flex multiplies too. That crate makes products of f32 as well, but for
//! gradients of tall weights, in which the kernel is 1.2 to 1.3 times as fast, those with the
//! transpose of a weight (1.0 to 2 times with 128 rows and more), those with a factor that is
//! packed for several products, and those of few rows, for which AVX-512 has a kernel that reads
//! the right factor as it lies and packs nothing. Packed factors live in memory that every thread
//! keeps and that starts at a page: fresh pages and results that straddle cache lines cost AMX most
//! of its speed.
//!
//! A sum is taken in the order of the inner dimension, whatever blocks and threads there are:
//! blocks say when it is stored and loaded again, in f32. So results do not depend on the number of
//! threads.
#![allow(unsafe_code)] // kernels: vector and tile instructions, memory that is not filled first or written by several threads

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod blocks;
mod destination;
#[cfg(target_arch = "x86_64")]
mod few;
#[cfg(target_arch = "x86_64")]
mod fma;
mod matrix;
#[cfg(target_arch = "x86_64")]
mod pack;
mod packed;
#[cfg(target_arch = "x86_64")]
mod panels;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod tiles;
#[cfg(target_arch = "x86_64")]
mod timing;
mod units;
#[cfg(target_arch = "x86_64")]
mod whole;

use half::{bf16, f16};
use rayon::prelude::*;

use destination::Destination;
pub(super) use destination::{BLOCK_ROWS, Finish, Output, Shared, Sums};
pub(super) use matrix::{Factor, Matrix, Rounding};
pub(super) use packed::Repacked;
pub use packed::{Operands, Packed};
pub use units::{Unit, VARIABLE, peak_gflops, slower_unit, unit};

/// Products with fewer multiplications stay on one thread, as in Burn Flex.
const PARALLEL_FROM: usize = 192 * 192 * 192;

/// `out = a b`, `a b + bias` or `out + a b` over all threads, row-major without gaps, of operands
/// rounded to `rounding`.
pub(super) fn multiply<'a>(
    out: &mut [f32],
    a: impl Into<Factor<'a>>,
    b: impl Into<Factor<'a>>,
    into: Output<'_>,
    rounding: Rounding,
) {
    let (a, b) = (a.into(), b.into());
    let ((rows, _), (_, cols)) = (a.size(), b.size());
    assert_eq!(out.len(), rows * cols, "product of another size than its destination");
    // SAFETY: `out` is exclusively borrowed and holds `rows` rows of `cols` elements.
    unsafe { multiply_into(Destination::new(out.as_mut_ptr(), cols), [a, b], into, None, rounding, true) }
}

/// `out = a b`, `a b + bias` or `out + a b` on this thread alone, of operands rounded to
/// `rounding`, for a destination that starts at `out` and whose rows are `row_stride` apart.
///
/// # Safety
/// The rows of the product at `out` must be valid for writing and accessed by nobody else
/// meanwhile; for [`Output::Add`] they must be initialised.
pub(super) unsafe fn multiply_rows<'a>(
    out: *mut f32,
    row_stride: usize,
    a: impl Into<Factor<'a>>,
    b: impl Into<Factor<'a>>,
    into: Output<'_>,
    rounding: Rounding,
) {
    // SAFETY: the caller's promise.
    unsafe { multiply_into(Destination::new(out, row_stride), [a.into(), b.into()], into, None, rounding, false) }
}

/// `out = x b`, `x b + bias` or `out + x b` on this thread alone, of `x` that has been rounded to
/// `rounding`; otherwise as [`multiply_rows`]. Where `b` has panels of f32, `x` is read as it lies.
///
/// # Panics
/// Where `x` has no rows, and where its slice ends before the last of its rows, counted up to a
/// multiple of 4.
///
/// # Safety
/// The rows of the product at `out` must be valid for writing and accessed by nobody else
/// meanwhile; for [`Output::Add`] they must be initialised.
pub(super) unsafe fn multiply_rounded_rows(
    out: *mut f32,
    row_stride: usize,
    x: Matrix<'_>,
    b: Factor<'_>,
    into: Output<'_>,
    rounding: Rounding,
) {
    let destination = Destination::new(out, row_stride);
    x.assert_rows_in_fours();
    // SAFETY (both): the caller's promise.
    #[cfg(target_arch = "x86_64")]
    if !matches!(into, Output::Bias(_)) {
        let add = matches!(into, Output::Add);
        if unsafe { panels::multiply_as_it_lies(destination, x, b, add) } {
            return;
        }
    }
    unsafe { multiply_into(destination, [x.into(), b], into, None, rounding, false) }
}

/// `a b`, or `a b + bias`, a new row-major matrix; otherwise as [`multiply`].
pub(super) fn product<'a>(
    a: impl Into<Factor<'a>>,
    b: impl Into<Factor<'a>>,
    bias: Option<&[f32]>,
    rounding: Rounding,
) -> Vec<f32> {
    new([a.into(), b.into()], bias, None, rounding)
}

/// `a b + c d`, or `a b + bias + c d`, where `c d` is a product of a small inner dimension:
/// products of panels that take its factors add it while the sums of `a b` are in the caches,
/// others after them. Otherwise as [`product`].
pub(super) fn sum_of_products(
    factors: [Factor<'_>; 2],
    bias: Option<&[f32]>,
    beside: [Factor<'_>; 2],
    rounding: Rounding,
) -> Vec<f32> {
    new(factors, bias, Some(beside), rounding)
}

fn new([a, b]: [Factor<'_>; 2], bias: Option<&[f32]>, beside: Option<[Factor<'_>; 2]>, rounding: Rounding) -> Vec<f32> {
    let ((rows, _), (_, cols)) = (a.size(), b.size());
    // SAFETY: the product overwrites all of its `rows * cols` elements, which are the whole
    // destination.
    unsafe {
        super::flex::written(rows * cols, |out| {
            let into = bias.map_or(Output::Overwrite, Output::Bias);
            multiply_into(Destination::new(out.as_mut_ptr().cast(), cols), [a, b], into, beside, rounding, true);
        })
    }
}

/// Calls `f` with `x`, the left factor of the products with each of `others`, with operands rounded
/// to `rounding`: packed once for all of them, or as it is where these products have no panels of
/// one kind, in f32, where there are few rows, and where its panels are larger than what a thread
/// keeps.
pub(super) fn with_left<R>(
    x: Factor<'_>,
    others: [Factor<'_>; 2],
    rounding: Rounding,
    f: impl FnOnce(Factor<'_>) -> R,
) -> R {
    #[cfg(target_arch = "x86_64")]
    if others.into_iter().any(|other| few::takes(x, other, rounding)) {
        return f(x);
    }
    #[cfg(target_arch = "x86_64")]
    return panels::with_left(x, others, rounding, f);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (others, rounding);
        f(x)
    }
}

/// `a b` over all threads, given to `finish` block by block: products of tiles while the sums are
/// in the caches, others once they are whole. Otherwise as [`multiply`].
pub(super) fn finished<'a>(
    a: impl Into<Factor<'a>>,
    b: impl Into<Factor<'a>>,
    rounding: Rounding,
    finish: &Finish<'_>,
) {
    let (a, b) = (a.into(), b.into());
    let ((rows, inner), (others, cols)) = (a.size(), b.size());
    assert_eq!(inner, others, "inner dimensions of a product");
    if rows == 0 || cols == 0 {
        return;
    }
    #[cfg(target_arch = "x86_64")]
    {
        let threads = is_parallel(rows, inner, cols, rounding);
        if let Some(method @ panels::Method::Tiles { .. }) = panels::Method::of(a, b, rounding, threads) {
            // SAFETY: the method has been asked of the CPU, and no element is written but by
            // `finish`.
            return unsafe { panels::finished(method, a, b, rounding, threads, finish) };
        }
    }
    let mut values = product(a, b, None, rounding);
    values.par_chunks_mut(BLOCK_ROWS * cols).enumerate().for_each(|(block, values)| {
        finish(Sums { row: block * BLOCK_ROWS, col: 0, rows: values.len() / cols, cols, values, stride: cols });
    });
}

/// The product over all threads where it is large enough and `threads` is set, else on this one,
/// and added to it that of the factors `beside`.
///
/// # Safety
/// The rows of the product at `out` must be valid for writing and accessed by nobody else
/// meanwhile; for [`Output::Add`] they must be initialised. The sizes of the factors, those of
/// `beside` among them, are checked here.
unsafe fn multiply_into(
    out: Destination,
    [a, b]: [Factor<'_>; 2],
    into: Output<'_>,
    beside: Option<[Factor<'_>; 2]>,
    rounding: Rounding,
    threads: bool,
) {
    let ((rows, inner), (others, cols)) = (a.size(), b.size());
    assert_eq!(inner, others, "inner dimensions of a product");
    if let Output::Bias(bias) = into {
        assert_eq!(bias.len(), cols, "a bias of a product has a number for each column");
    }
    if let Some([c, d]) = beside {
        assert_eq!((c.size().0, d.size().1), (rows, cols), "products of two sizes cannot be added");
        assert_eq!(c.size().1, d.size().0, "inner dimensions of a product");
    }
    if rows == 0 || cols == 0 {
        return;
    }
    let parallel = threads && is_parallel(rows, inner, cols, rounding);
    let beside = beside.filter(|[c, _]| c.size().1 > 0);
    // SAFETY (all): the caller's promise; the method has been asked of the CPU.
    #[cfg(target_arch = "x86_64")]
    let beside = match panels::Method::of(a, b, rounding, parallel) {
        _ if few::takes(a, b, rounding) => {
            let x = row_major(a, rounding);
            unsafe { few::multiply(out, Matrix::new(&x, rows, inner), b, into, rounding, threads) };
            beside
        }
        Some(method) => {
            let joined = beside.filter(|factors| method.takes(factors));
            unsafe { panels::multiply(method, out, [a, b], into, joined, rounding, parallel) };
            beside.filter(|_| joined.is_none())
        }
        None => {
            unsafe { multiply_by_gemm(out, a, b, into, rounding, parallel) };
            beside
        }
    };
    #[cfg(not(target_arch = "x86_64"))]
    unsafe {
        multiply_by_gemm(out, a, b, into, rounding, parallel);
    }
    if let Some(factors) = beside {
        // SAFETY: the product above has filled the destination.
        unsafe { multiply_into(out, factors, Output::Add, None, rounding, threads) };
    }
}

/// Whether a product is large enough for all threads.
fn is_parallel(rows: usize, inner: usize, cols: usize, rounding: Rounding) -> bool {
    // Panels of bf16 are packed and multiplied whole, whatever is missing of them.
    let whole = |outer: usize| if rounding == Rounding::Bf16 { outer.next_multiple_of(32) } else { outer };
    whole(rows).saturating_mul(whole(cols)).saturating_mul(inner) >= PARALLEL_FROM
}

/// The product by the `gemm` crate, of operands that are rounded before, over all threads if
/// `threads` is set.
///
/// # Safety
/// The rows of the product at `out` must be valid for writing and accessed by nobody else
/// meanwhile; for [`Output::Add`] they must be initialised.
unsafe fn multiply_by_gemm(
    out: Destination,
    a: Factor<'_>,
    b: Factor<'_>,
    into: Output<'_>,
    rounding: Rounding,
    threads: bool,
) {
    let Destination { at, row_stride } = out;
    let ((rows, _), (_, cols)) = (a.size(), b.size());
    if let Output::Bias(bias) = into {
        let at_once = if threads { super::flex::block_rows(cols) } else { rows };
        (0..rows).into_par_iter().with_min_len(at_once).for_each(|row| {
            // SAFETY: every row is `cols` long, as the bias is, and is written by one task.
            unsafe { std::ptr::copy_nonoverlapping(bias.as_ptr(), at.at(row * row_stride), cols) };
        });
    }
    let add = !matches!(into, Output::Overwrite);
    let mut rounded = [Vec::new(), Vec::new()];
    let [of_a, of_b] = &mut rounded;
    let (a, b) = (in_f32(a, rounding, of_a, threads), in_f32(b, rounding, of_b, threads));
    let parallelism = if threads { gemm::Parallelism::Rayon(0) } else { gemm::Parallelism::None };
    // SAFETY: the strides of `a` and `b` stay within their slices (checked when they were made);
    // the caller vouches for the destination, in which the bias has been written. With an inner
    // dimension of 0 the library writes zeros (or leaves what is added to).
    unsafe {
        gemm::gemm(
            rows,
            cols,
            a.cols,
            at.0,
            1,
            row_stride as isize,
            add,
            a.data.as_ptr(),
            a.col_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.col_stride as isize,
            b.row_stride as isize,
            if add { 1.0 } else { 0.0 },
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// `factor` in f32, rounded to `rounding`, row after row without gaps.
#[cfg(target_arch = "x86_64")]
fn row_major(factor: Factor<'_>, rounding: Rounding) -> Vec<f32> {
    let mut memory = Vec::new();
    let x = in_f32(factor, rounding, &mut memory, false);
    let row = |row: usize| (0..x.cols).map(move |col| x.data[row * x.row_stride + col * x.col_stride]);
    (0..x.rows).flat_map(row).collect()
}

/// `factor` in f32, rounded to `rounding`, in `memory` without gaps where it is not so already.
fn in_f32<'a>(factor: Factor<'a>, rounding: Rounding, memory: &'a mut Vec<f32>, threads: bool) -> Matrix<'a> {
    fn converted<'a, T: Copy + Sync>(
        x: Matrix<'_, T>,
        memory: &'a mut Vec<f32>,
        threads: bool,
        f: impl Fn(T) -> f32 + Sync,
    ) -> Matrix<'a> {
        if x.col_stride != 1 {
            return converted(x.t(), memory, threads, f).t();
        }
        let Matrix { data, rows, cols, row_stride, .. } = x;
        memory.resize(rows * cols, 0.0);
        let at_once = if threads { super::flex::block_rows(cols) } else { rows.max(1) };
        memory.par_chunks_exact_mut(cols.max(1)).with_min_len(at_once).enumerate().for_each(|(row, to)| {
            to.iter_mut().zip(&data[row * row_stride..]).for_each(|(to, x)| *to = f(*x));
        });
        Matrix::new(memory, rows, cols)
    }
    match (factor, rounding) {
        (Factor::F32(x), Rounding::F32) => x,
        (Factor::F32(x), Rounding::Bf16) => converted(x, memory, threads, |x| bf16::from_f32(x).to_f32()),
        (Factor::F32(x), Rounding::F16) => converted(x, memory, threads, |x| f16::from_f32(x).to_f32()),
        (Factor::Bf16(x), _) => converted(x, memory, threads, bf16::to_f32),
        (Factor::F16(x), _) => converted(x, memory, threads, f16::to_f32),
        #[cfg(target_arch = "x86_64")]
        (Factor::Packed(_), _) => unreachable!("`Method::of` gives a product of packed panels their own method"),
    }
}
