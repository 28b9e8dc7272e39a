//! Products of few rows, such as those of a token that is generated, in f32 on rounded operands.
//! The right factor is read as it lies, each element once from memory, where packing it would take
//! longer than multiplying it. A sum is taken in the order of the inner dimension, so that a row is
//! to the bit what [`fma`](super::fma) makes of it among many.

use std::arch::x86_64::*;

use half::{bf16, f16};
use rayon::prelude::*;

use super::destination::{Destination, Output};
use super::matrix::{Factor, Matrix, Rounding};
use super::pack::{Exact, Side, ToBf16, ToF16, View, Wide, has_avx512, lowest, transpose};
use super::panels::{inner_is_contiguous, unit_of, view};
use super::units::Unit;

/// Rows of a product, at most, with a right factor whose columns are contiguous, and with another
/// one: with more of them packing pays.
const ROWS: [usize; 2] = [8, 2];
/// Elements of the right factor from which all threads multiply: what one of them reads in about 10
/// microseconds.
const PARALLEL_FROM: usize = 1 << 16;
/// Columns of a register.
const LANES: usize = 16;
/// Columns of a task, at most: their sums stay in the first-level cache.
const TASK: usize = 1024;
/// How many rows of the right factor ahead of their use it is fetched.
const AHEAD: usize = 4;

/// Whether `a b` is a product for [`multiply`]: of few rows, and in f32.
///
/// # Panics
/// Where the environment asks for a unit that is not permitted, which
/// [`Ops::fused`](crate::Ops::fused) refuses.
pub(super) fn takes(a: Factor<'_>, b: Factor<'_>, rounding: Rounding) -> bool {
    has_few_rows(a, b)
        && [a, b].into_iter().all(|factor| factor.whole().is_none())
        && has_avx512()
        && unit_of(a, b, rounding) == Unit::F32
}

/// Whether `a` has no more rows than are multiplied so by a factor that lies as `b` does.
pub(super) fn has_few_rows(a: Factor<'_>, b: Factor<'_>) -> bool {
    a.size().0 <= ROWS[usize::from(!inner_is_contiguous(b, Side::Right))]
}

/// `x b` to `out`, over all threads where `b` is large and `threads` is set, of `b` rounded to
/// `rounding` and of `x` as it is, row after row without gaps.
///
/// # Panics
/// For no rows, more of them than [`has_few_rows`] allows, factors or a bias of other sizes, gaps
/// in `x`, and a packed `b`.
///
/// # Safety
/// The rows of the product at `out` must be valid for writing and accessed by nobody else
/// meanwhile; for [`Output::Add`] they must be initialised. The CPU must have AVX-512 (F and BW).
pub(super) unsafe fn multiply(
    out: Destination,
    x: Matrix<'_>,
    b: Factor<'_>,
    into: Output<'_>,
    rounding: Rounding,
    threads: bool,
) {
    let (rows, inner, (others, cols)) = (x.rows, x.cols, b.size());
    assert!(x.data.len() == rows * inner && x.col_stride == 1, "the left factor has gaps");
    assert!(rows > 0 && has_few_rows(x.into(), b), "a product of no rows, or of more than the kernels hold");
    assert_eq!(inner, others, "inner dimensions of a product");
    if let Output::Bias(bias) = into {
        assert_eq!(bias.len(), cols, "a bias of a product has a number for each column");
    }
    let parallel = threads && inner * cols >= PARALLEL_FROM;
    let registers = cols.div_ceil(LANES);
    let threads = if parallel { rayon::current_num_threads() } else { 1 };
    let tasks = cols.div_ceil(TASK).next_multiple_of(threads).min(registers);
    let task = |task: usize| {
        let start = |task: usize| (registers * task / tasks * LANES).min(cols);
        let columns = Columns { first: start(task), end: start(task + 1) };
        let product = Product { out, into, x: x.data, rows };
        // SAFETY: the caller's promise; the columns are this task's alone, and lie within `b`.
        unsafe {
            match (b, rounding) {
                (Factor::F32(b), Rounding::F32) => product.run::<Exact>(view(b, Side::Right), inner, columns),
                (Factor::F32(b), Rounding::Bf16) => product.run::<ToBf16>(view(b, Side::Right), inner, columns),
                (Factor::F32(b), Rounding::F16) => product.run::<ToF16>(view(b, Side::Right), inner, columns),
                (Factor::Bf16(b), _) => product.run::<bf16>(view(b, Side::Right), inner, columns),
                (Factor::F16(b), _) => product.run::<f16>(view(b, Side::Right), inner, columns),
                (Factor::Packed(_), _) => unreachable!("`takes` refuses packed panels"),
            }
        }
    };
    if parallel { (0..tasks).into_par_iter().with_max_len(1).for_each(task) } else { (0..tasks).for_each(task) }
}

/// The columns from `first` to `end` of the product.
#[derive(Clone, Copy)]
struct Columns {
    first: usize,
    end: usize,
}

/// A product without its right factor.
#[derive(Clone, Copy)]
struct Product<'a> {
    out: Destination,
    into: Output<'a>,
    /// The left factor: `rows` rows, one after the other.
    x: &'a [f32],
    rows: usize,
}

impl Product<'_> {
    /// `columns` of the product with `b`, which has `inner` rows.
    ///
    /// # Safety
    /// All that [`multiply`] asks for; `columns`, which nobody else accesses, must lie within `b`.
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn run<E: Wide>(self, b: View<E::Of>, inner: usize, columns: Columns) {
        // SAFETY: the caller's promise.
        unsafe {
            match (b.outer_step == 1, self.rows) {
                (true, 1) => self.rows_of::<E, 1>(b, inner, columns),
                (true, _) => self.rows_of::<E, { ROWS[1] }>(b, inner, columns),
                (false, 1) => self.columns_of::<E, 1>(b, inner, columns),
                (false, 2) => self.columns_of::<E, 2>(b, inner, columns),
                (false, 3..=4) => self.columns_of::<E, 4>(b, inner, columns),
                (false, _) => self.columns_of::<E, { ROWS[0] }>(b, inner, columns),
            }
        }
    }

    /// The beginning of the sums of row `row`, in the columns of `mask` from `col`.
    ///
    /// # Safety
    /// These columns must be fit for [`run`](Self::run).
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn start(self, row: usize, col: usize, mask: u16) -> __m512 {
        match self.into {
            Output::Overwrite => _mm512_setzero_ps(),
            // SAFETY (both): the caller's promise; a bias has a number for each column.
            Output::Add => unsafe { _mm512_maskz_loadu_ps(mask, self.out.at.at(row * self.out.row_stride + col)) },
            Output::Bias(bias) => unsafe { _mm512_maskz_loadu_ps(mask, bias.as_ptr().wrapping_add(col)) },
        }
    }

    /// # Safety
    /// The columns of `mask` from `col` must be fit for [`run`](Self::run).
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn store(self, row: usize, col: usize, mask: u16, sums: __m512) {
        // SAFETY: the caller's promise.
        unsafe { _mm512_mask_storeu_ps(self.out.at.at(row * self.out.row_stride + col), mask, sums) };
    }

    /// The product of `HELD` rows with `b`, whose rows are contiguous: their parts of up to 256
    /// columns, one below the other, are added up in registers.
    ///
    /// # Safety
    /// All that [`run`](Self::run) asks for.
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn rows_of<E: Wide, const HELD: usize>(
        self,
        b: View<E::Of>,
        inner: usize,
        Columns { mut first, end }: Columns,
    ) {
        while first < end {
            // SAFETY: the caller's promise; whole registers of columns lie within `columns`.
            first += unsafe {
                match (end - first) / LANES {
                    16.. if HELD == 1 => self.strip::<E, HELD, 16>(b, inner, first, end),
                    8.. => self.strip::<E, HELD, 8>(b, inner, first, end),
                    4.. => self.strip::<E, HELD, 4>(b, inner, first, end),
                    2.. => self.strip::<E, HELD, 2>(b, inner, first, end),
                    _ => self.strip::<E, HELD, 1>(b, inner, first, end),
                }
            };
        }
    }

    /// The columns from `col` that `REGISTERS` registers hold; how many they are.
    ///
    /// # Safety
    /// These columns must be fit for [`run`](Self::run), and lie before `end` unless there is one
    /// register.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn strip<E: Wide, const HELD: usize, const REGISTERS: usize>(
        self,
        b: View<E::Of>,
        inner: usize,
        col: usize,
        end: usize,
    ) -> usize {
        let mask = lowest(end - col) as u16;
        let mut sums = [[_mm512_setzero_ps(); REGISTERS]; HELD];
        for (row, sums) in sums.iter_mut().enumerate() {
            for (i, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the caller's promise.
                *sum = unsafe { self.start(row, col + i * LANES, mask) };
            }
        }
        for k in 0..inner {
            let from = b.at.wrapping_add(k * b.inner_step + col);
            for line in (0..REGISTERS * LANES).step_by(64 / size_of::<E::Of>()) {
                let ahead = from.wrapping_add(AHEAD * b.inner_step + line);
                _mm_prefetch::<_MM_HINT_T1>(ahead.cast()); // of any address, which does not fault
            }
            let x: [__m512; HELD] = std::array::from_fn(|row| _mm512_set1_ps(self.x[row * inner + k]));
            for i in 0..REGISTERS {
                // SAFETY: the caller's promise.
                let y = unsafe { E::load16(from.wrapping_add(i * LANES), mask) };
                for (sums, x) in sums.iter_mut().zip(x) {
                    sums[i] = _mm512_fmadd_ps(x, y, sums[i]);
                }
            }
        }
        for (row, sums) in sums.into_iter().enumerate() {
            for (i, sum) in sums.into_iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe { self.store(row, col + i * LANES, mask, sum) };
            }
        }
        REGISTERS * LANES
    }

    /// The product of at most `HELD` rows with `b`, whose columns are contiguous: 16 of them, which
    /// are transposed 16 elements at a time, are a register of sums for each row.
    ///
    /// # Safety
    /// All that [`run`](Self::run) asks for.
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn columns_of<E: Wide, const HELD: usize>(
        self,
        b: View<E::Of>,
        inner: usize,
        Columns { first, end }: Columns,
    ) {
        for col in (first..end).step_by(LANES) {
            let mask = lowest(end - col) as u16;
            let mut sums = [_mm512_setzero_ps(); HELD];
            for (row, sum) in sums.iter_mut().enumerate().take(self.rows) {
                // SAFETY: the caller's promise.
                *sum = unsafe { self.start(row, col, mask) };
            }
            for k in (0..inner).step_by(LANES) {
                let mut square = [_mm512_setzero_si512(); LANES];
                for (i, column) in square.iter_mut().enumerate() {
                    let elements = if col + i < end { lowest(inner - k) as u16 } else { 0 };
                    let at = b.at.wrapping_add((col + i) * b.outer_step + k);
                    // SAFETY: a prefetch of any address does not fault; the caller's promise, with
                    // elements beyond the factor masked.
                    unsafe {
                        _mm_prefetch::<_MM_HINT_T1>(at.wrapping_add(LANES * b.outer_step).cast());
                        *column = _mm512_castps_si512(E::load16(at, elements));
                    }
                }
                transpose(&mut square);
                for (row, sum) in sums.iter_mut().enumerate().take(self.rows) {
                    for (x, y) in self.x[row * inner + k..(row + 1) * inner].iter().zip(square) {
                        *sum = _mm512_fmadd_ps(_mm512_set1_ps(*x), _mm512_castsi512_ps(y), *sum);
                    }
                }
            }
            for (row, sum) in sums.into_iter().enumerate().take(self.rows) {
                // SAFETY: the caller's promise.
                unsafe { self.store(row, col, mask, sum) };
            }
        }
    }
}
