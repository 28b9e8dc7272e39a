//! Products of bf16 operands on packed tiles: 32 x 32 of the result from a panel of each factor, by
//! AMX (`TDPBF16PS`) or by AVX512_BF16 (`VDPBF16PS`), which read the same panels.
//!
//! Measured on an Intel Xeon with AMX (4 GHz), one thread, GFLOP/s: 1,330 to 1,550 for forward
//! products of GPT-2's sizes against 170 in f32. Tiles from the first-level cache give 2,760; each
//! block costs another 50 to 100 ns for its stores. `TILELOADDT1` for the factor that streams by
//! leaves the other one in the first-level cache; software prefetches only slow the kernel down.

use std::arch::x86_64::*;

use super::amx;
use super::blocks::{Beside, Panels, Start, Target, even};
use super::destination::{BLOCK_ROWS, Finish, Sums};
use super::pack::{Buffer, TILE_BYTES, TILE_STEP, TILES};
use super::timing::Count;
use super::units::Unit;

/// Steps whose part of a left panel (40 KiB) stays in the first-level cache while right panels
/// stream by.
const INNER: usize = 20;
/// Bytes of the right factor that stay in the second-level cache while the left one streams by.
const CHUNK: usize = 768 << 10;

#[repr(align(64))]
struct Block([f32; TILES * TILES]);

/// `a` by `b` over `steps` by `kernel`, and after them the product `beside`; `is_first` tells
/// whether they are the first of the inner dimension. The result is written along its rows, which
/// keeps to few pages.
///
/// # Safety
/// The panels must have `steps` steps, and those of `beside` must be of factors with as many rows
/// and columns as the target. The blocks of the target that `a` and `b` give must be this call's
/// alone, and `kernel` must be permitted, within [`amx::Tiles`] where it is of AMX.
pub(super) unsafe fn run(
    kernel: Kernel,
    target: &Target,
    a: Panels,
    b: Panels,
    steps: usize,
    is_first: bool,
    beside: Option<Beside>,
) {
    let mut edge = Block([0.0; TILES * TILES]);
    // The steps `n` of two panels are added to the block of panels `i` and `j`.
    let mut add = |(i, j): (usize, usize), [block_a, block_b]: [*const u8; 2], n: usize, is_first: bool| {
        let (row, col) = ((a.first + i) * TILES, (b.first + j) * TILES);
        let size = ((target.rows - row).min(TILES), (target.cols - col).min(TILES));
        let whole = size == (TILES, TILES);
        // SAFETY: the caller's promise; blocks at the edges go through a buffer of their own.
        unsafe {
            target.block((row, col), size, whole, is_first, &mut edge.0, TILES, |start, (c, stride)| {
                kernel(block_a, block_b, n, size, start, c, stride);
            });
        }
    };
    let inner = even(steps, INNER);
    let chunk = even(b.count, (CHUNK / (steps * TILE_BYTES)).max(2));
    for j0 in (0..b.count).step_by(chunk) {
        for i in 0..a.count {
            for s in (0..steps).step_by(inner) {
                let n = inner.min(steps - s);
                let block_a = a.at.wrapping_add(i * a.stride + s * TILE_BYTES);
                for j in j0..(j0 + chunk).min(b.count) {
                    let block_b = b.at.wrapping_add(j * b.stride + s * TILE_BYTES);
                    add((i, j), [block_a, block_b], n, is_first && s == 0);
                }
            }
            if let Some(Beside { a: left, b: right, steps }) = beside {
                let block_a = left.at.wrapping_add((a.first + i) * left.stride);
                for j in j0..(j0 + chunk).min(b.count) {
                    add((i, j), [block_a, right.at.wrapping_add((b.first + j) * right.stride)], steps, false);
                }
            }
        }
    }
}

const _: () = assert!(TILES == BLOCK_ROWS);

/// `a` by `b`, which are of a product of `size`, over all its `steps` by `kernel`: each block is
/// given to `finish`. Where the steps do not stay in the first-level cache, the sums of a row of
/// blocks wait for those of the others in the second-level one.
///
/// # Safety
/// The panels must have `steps` steps, at least one, and `kernel` must be permitted, within
/// [`amx::Tiles`] where it is of AMX.
pub(super) unsafe fn finish(
    kernel: Kernel,
    size: (usize, usize),
    a: Panels,
    b: Panels,
    steps: usize,
    finish: &Finish<'_>,
) {
    const BLOCK: usize = TILES * TILES;
    let inner = even(steps, INNER);
    let chunk = even(b.count, (CHUNK / (steps * TILE_BYTES)).max(2));
    let waiting = if inner < steps { chunk } else { 1 };
    let mut memory = Buffer::new();
    let sums = memory.at_least(waiting * BLOCK * size_of::<f32>()).cast::<f32>();
    for j0 in (0..b.count).step_by(chunk) {
        for i in 0..a.count {
            for s in (0..steps).step_by(inner) {
                let n = inner.min(steps - s);
                let block_a = a.at.wrapping_add(i * a.stride + s * TILE_BYTES);
                for j in j0..(j0 + chunk).min(b.count) {
                    let block_b = b.at.wrapping_add(j * b.stride + s * TILE_BYTES);
                    let (row, col) = ((a.first + i) * TILES, (b.first + j) * TILES);
                    let (rows, cols) = ((size.0 - row).min(TILES), (size.1 - col).min(TILES));
                    let at = sums.wrapping_add((j - j0) % waiting * BLOCK);
                    let start = if s == 0 { Start::ZERO } else { Start { at, stride: TILES } };
                    // SAFETY: the caller's promise; the memory has so many blocks, which a kernel
                    // writes whole but for rows that are not wanted, of which a slice of the others
                    // has none.
                    let values = unsafe {
                        kernel(block_a, block_b, n, (rows, cols), start, at, TILES);
                        std::slice::from_raw_parts_mut(at, rows * TILES)
                    };
                    if s + n == steps {
                        finish(Sums { row, col, rows, cols, values, stride: TILES });
                    }
                }
            }
        }
    }
}

/// A kernel: a panel of each factor, how many steps, how many of the 32 rows and columns are wanted
/// (rows after them may be left out, columns after them may have any number), what the sums begin
/// with, the block of 32 x 32 and how far its rows are apart.
pub(super) type Kernel = unsafe fn(*const u8, *const u8, usize, (usize, usize), Start, *mut f32, usize);

/// The kernel of `unit`.
///
/// # Panics
/// For f32, which has panels of its own.
pub(super) fn kernel(unit: Unit) -> Kernel {
    match unit {
        Unit::AmxBf16 => amx::kernel,
        Unit::Avx512Bf16 => avx512_of,
        Unit::F32 => unreachable!("products in f32 have panels of their own"),
    }
}

/// [`avx512`] of 32 columns, or of 16 where no more are wanted.
///
/// # Safety
/// The panels must have `steps` steps; there must be 32 rows and columns at most; what `start`
/// names must be readable, and the block at `c` writable; and the CPU must have AVX-512 F, BW and
/// BF16.
unsafe fn avx512_of(
    a: *const u8,
    b: *const u8,
    steps: usize,
    (rows, cols): (usize, usize),
    start: Start,
    c: *mut f32,
    c_stride: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match (rows, cols > TILES / 2) {
            (1, true) => avx512::<1, 2>(a, b, steps, rows, start, c, c_stride),
            (2, true) => avx512::<2, 2>(a, b, steps, rows, start, c, c_stride),
            (3..=4, true) => avx512::<4, 2>(a, b, steps, rows, start, c, c_stride),
            (_, true) => avx512::<8, 2>(a, b, steps, rows, start, c, c_stride),
            (_, false) => avx512::<8, 1>(a, b, steps, rows, start, c, c_stride),
        }
    }
}

/// `ROWS` x 16 `HALVES` of the result at a time, `ROWS` being a divisor of 32, each pair of the
/// left factor broadcast from memory. The other half of the columns is 0, and rows are filled up to
/// a multiple of `ROWS`.
///
/// # Safety
/// The panels must have `steps` steps; `rows` must be 32 at most; what `start` names must be
/// readable, and the block at `c` writable; and the CPU must have AVX-512 F, BW and BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn avx512<const ROWS: usize, const HALVES: usize>(
    a: *const u8,
    b: *const u8,
    steps: usize,
    rows: usize,
    start: Start,
    c: *mut f32,
    c_stride: usize,
) {
    for group in 0..rows.div_ceil(ROWS) {
        let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
        if !start.at.is_null() {
            for (r, sums) in sums.iter_mut().enumerate() {
                let from = start.at.wrapping_add((group * ROWS + r) * start.stride);
                for (half, sum) in sums.iter_mut().enumerate().take(HALVES) {
                    // SAFETY: the caller's promise.
                    *sum = unsafe { _mm512_loadu_ps(from.wrapping_add(half * 16)) };
                }
            }
        }
        for step in 0..steps {
            let (a, b) = (a.wrapping_add(step * TILE_BYTES + group * 64 * ROWS), b.wrapping_add(step * TILE_BYTES));
            for pair in 0..16 {
                // SAFETY: within the panels; the types are 64 bytes.
                unsafe {
                    let mut columns = [std::mem::transmute::<__m512i, __m512bh>(_mm512_setzero_si512()); HALVES];
                    for (half, column) in columns.iter_mut().enumerate() {
                        let x = _mm512_load_si512(b.wrapping_add(half * 1024 + pair * 64).cast());
                        *column = std::mem::transmute::<__m512i, __m512bh>(x);
                    }
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let x = _mm512_set1_epi32(a.wrapping_add(r * 64 + pair * 4).cast::<i32>().read());
                        let x = std::mem::transmute::<__m512i, __m512bh>(x);
                        for (sum, column) in sums.iter_mut().zip(columns) {
                            *sum = _mm512_dpbf16_ps(*sum, x, column);
                        }
                    }
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            let to = c.wrapping_add((group * ROWS + r) * c_stride);
            // SAFETY: the caller's promise.
            unsafe {
                _mm512_storeu_ps(to, sums[0]);
                _mm512_storeu_ps(to.wrapping_add(16), sums[1]);
            }
        }
    }
}

/// Gives `count` a product of 32 x 32 x 256 by `unit`, which must be permitted, whose operands are
/// in the first-level cache.
pub(super) fn with_product(unit: Unit, count: &mut Count<'_>) {
    const STEPS: usize = 8;
    #[repr(align(64))]
    struct Operand([u16; STEPS * TILE_BYTES / 2]);
    // Numbers, since tiles of zeros are multiplied faster.
    let (a, b) = (Operand([0x3f80; STEPS * TILE_BYTES / 2]), Operand([0x3f80; STEPS * TILE_BYTES / 2]));
    let mut c = Block([0.0; TILES * TILES]);
    let (a, b, c) = (a.0.as_ptr().cast(), b.0.as_ptr().cast(), c.0.as_mut_ptr());
    // SAFETY (all): the caller has asked whether the unit is permitted; both panels have so many
    // steps, and `c` is whole.
    if unit == Unit::AmxBf16 {
        // Without the stores of a result, which take as long as three steps.
        let _tiles = unsafe { amx::Tiles::configured() };
        return count(2 * TILES * TILES * TILE_STEP * 64, &mut || unsafe { amx::multiply_tiles(a, b, 64) });
    }
    let kernel = kernel(unit);
    let size = (TILES, TILES);
    count(2 * TILES * TILES * STEPS * TILE_STEP, &mut || unsafe { kernel(a, b, STEPS, size, Start::ZERO, c, TILES) });
}
