//! Products in f32 by fused multiply-add: 12 x 32 of the result in 24 registers of AVX-512.
//!
//! A panel of 32 columns of the right factor, up to 384 of the inner dimension deep, stays in the
//! caches while panels of 12 rows of the left one stream by. The inner loop is assembly: of a tile
//! of 24 registers a compiler spills some as soon as it cannot unroll everything. Another kernel
//! reads a left factor as it lies, for one that lies in a cache and is multiplied by few columns.

use std::arch::asm;

use super::blocks::{Beside, Panels, Start, Target};
use super::pack::{F32_STEP, View, has_avx512};
use super::timing::Count;

/// Rows of a block of the result.
pub(super) const ROWS: usize = 12;
/// Columns of a block of the result.
pub(super) const COLS: usize = 32;
/// Bytes of one step of a panel of the left and of the right factor.
pub(super) const STEP_BYTES: [usize; 2] = [ROWS * F32_STEP * 4, COLS * F32_STEP * 4];
/// Steps of a panel of the right factor, 48 KiB, most of which stay in the first-level cache.
pub(super) const INNER: usize = 96;

macro_rules! clear {
    ($lo:literal, $hi:literal) => {
        concat!("vpxord zmm", $lo, ", zmm", $lo, ", zmm", $lo, "\nvpxord zmm", $hi, ", zmm", $hi, ", zmm", $hi)
    };
}
macro_rules! begin {
    ($lo:literal, $hi:literal) => {
        concat!("vmovups zmm", $lo, ", [{i}]\nvmovups zmm", $hi, ", [{i} + 64]\nadd {i}, {is}")
    };
}
/// The lines of the block below, which is the next one, come while this one is computed.
macro_rules! ahead {
    ($lo:literal, $hi:literal) => {
        "prefetchw [{p}]\nprefetchw [{p} + 64]\nadd {p}, {cs}"
    };
}
macro_rules! store {
    ($lo:literal, $hi:literal) => {
        concat!("vmovups [{c}], zmm", $lo, "\nvmovups [{c} + 64], zmm", $hi, "\nadd {c}, {cs}")
    };
}
/// Two registers of sums get one element of a panel of the left factor times 32 of the right one.
macro_rules! row {
    ($x:literal, $lo:literal, $hi:literal, $k:literal, $at:literal) => {
        product!($x, $lo, $hi, "{a}", concat!(" + ", $k, " + ", $at))
    };
}
/// Two registers of sums get the element of the left factor at `base` and `further` times 32 of the
/// right one.
macro_rules! product {
    ($x:literal, $lo:literal, $hi:literal, $base:literal, $further:expr) => {
        concat!(
            "vbroadcastss zmm",
            $x,
            ", dword ptr [",
            $base,
            $further,
            "]\n",
            "vfmadd231ps zmm",
            $lo,
            ", zmm24, zmm",
            $x,
            "\n",
            "vfmadd231ps zmm",
            $hi,
            ", zmm25, zmm",
            $x
        )
    };
}
macro_rules! columns {
    ($k:literal) => {
        concat!("vmovaps zmm24, [{b} + ", $k, "]\nvmovaps zmm25, [{b} + ", $k, " + 64]")
    };
}
macro_rules! four_rows {
    (0, $k:literal) => {
        concat!(
            row!(28, 0, 1, $k, 0),
            "\n",
            row!(29, 2, 3, $k, 4),
            "\n",
            row!(30, 4, 5, $k, 8),
            "\n",
            row!(31, 6, 7, $k, 12)
        )
    };
    (4, $k:literal) => {
        concat!(
            row!(28, 8, 9, $k, 16),
            "\n",
            row!(29, 10, 11, $k, 20),
            "\n",
            row!(30, 12, 13, $k, 24),
            "\n",
            row!(31, 14, 15, $k, 28)
        )
    };
    (8, $k:literal) => {
        concat!(
            row!(28, 16, 17, $k, 32),
            "\n",
            row!(29, 18, 19, $k, 36),
            "\n",
            row!(30, 20, 21, $k, 40),
            "\n",
            row!(31, 22, 23, $k, 44)
        )
    };
}
macro_rules! each_four {
    ($what:ident, 0) => {
        concat!($what!(0, 1), "\n", $what!(2, 3), "\n", $what!(4, 5), "\n", $what!(6, 7))
    };
    ($what:ident, 4) => {
        concat!($what!(8, 9), "\n", $what!(10, 11), "\n", $what!(12, 13), "\n", $what!(14, 15))
    };
    ($what:ident, 8) => {
        concat!($what!(16, 17), "\n", $what!(18, 19), "\n", $what!(20, 21), "\n", $what!(22, 23))
    };
}

/// Defines the kernel for blocks of 4, 8 or 12 rows, given as their first rows in fours.
macro_rules! kernel {
    ($(#[$attr:meta])* $name:ident, $($rows:tt),+) => {
        $(#[$attr])*
        ///
        /// # Safety
        /// The panels must have `steps` steps, at least one; what `start` names must be readable,
        /// and the block at `c`, whose rows are `c_stride` elements apart, writable; and the CPU
        /// must have AVX-512 F.
        #[target_feature(enable = "avx512f")]
        unsafe fn $name(a: *const u8, b: *const u8, steps: usize, start: Start, c: *mut f32, c_stride: usize) {
            // SAFETY: the caller's promise; all registers that are written are named.
            unsafe {
                asm!(
                    "test {i}, {i}",
                    "jz 3f",
                    $(each_four!(begin, $rows),)+
                    "jmp 2f",
                    "3:",
                    $(each_four!(clear, $rows),)+
                    "2:",
                    $(each_four!(ahead, $rows),)+
                    ".p2align 5",
                    "4:",
                    columns!(0), $(four_rows!($rows, 0),)+
                    columns!(128), $(four_rows!($rows, 48),)+
                    columns!(256), $(four_rows!($rows, 96),)+
                    columns!(384), $(four_rows!($rows, 144),)+
                    "add {a}, 192",
                    "add {b}, 512",
                    "dec {n}",
                    "jnz 4b",
                    $(each_four!(store, $rows),)+
                    a = inout(reg) a => _, b = inout(reg) b => _, n = inout(reg) steps => _,
                    i = inout(reg) start.at => _, is = in(reg) start.stride * 4,
                    p = inout(reg) c.wrapping_add(ROWS * c_stride) => _,
                    c = inout(reg) c => _, cs = in(reg) c_stride * 4,
                    out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("zmm4") _, out("zmm5") _,
                    out("zmm6") _, out("zmm7") _, out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _,
                    out("zmm12") _, out("zmm13") _, out("zmm14") _, out("zmm15") _, out("zmm16") _, out("zmm17") _,
                    out("zmm18") _, out("zmm19") _, out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _,
                    out("zmm24") _, out("zmm25") _, out("zmm28") _, out("zmm29") _, out("zmm30") _, out("zmm31") _,
                    options(nostack)
                );
            }
        }
    };
}
kernel! {
    /// 12 x 32 of the result.
    twelve, 0, 4, 8
}
kernel! {
    /// 8 x 32 of the result, of a panel of 12 rows.
    eight, 0, 4
}
kernel! {
    /// 4 x 32 of the result, of a panel of 12 rows.
    four, 0
}

/// Four rows of the left factor where they lie: at the first of them, and 1, 2 and 3 rows further.
macro_rules! four_lying_rows {
    (0) => {
        four_lying_rows!("{a}", 0, 1, 2, 3, 4, 5, 6, 7)
    };
    (4) => {
        four_lying_rows!("{i}", 8, 9, 10, 11, 12, 13, 14, 15)
    };
    (8) => {
        four_lying_rows!("{is}", 16, 17, 18, 19, 20, 21, 22, 23)
    };
    ($at:literal, $c0:literal, $c1:literal, $c2:literal, $c3:literal, $c4:literal, $c5:literal, $c6:literal, $c7:literal) => {
        concat!(
            product!(28, $c0, $c1, $at, ""),
            "\n",
            product!(29, $c2, $c3, $at, " + {rs}"),
            "\n",
            product!(30, $c4, $c5, $at, " + 2 * {rs}"),
            "\n",
            product!(31, $c6, $c7, $at, " + {t}"),
            "\n",
            "add ",
            $at,
            ", {ks}"
        )
    };
}

/// Defines the kernel for blocks of 4, 8 or 12 rows, given as their first rows in fours, of a left
/// factor that lies as it does.
macro_rules! kernel_as_it_lies {
    ($(#[$attr:meta])* $name:ident, $($rows:tt),+) => {
        $(#[$attr])*
        ///
        /// # Safety
        /// All of the 4, 8 or 12 rows at `a`, which are `strides[0]` elements apart, must have
        /// `inner` readable elements, at least one, `strides[1]` apart, and the panel so many rows;
        /// what `start` names must be readable, and the block at `c`, whose rows are `c_stride`
        /// elements apart, writable; and the CPU must have AVX-512 F.
        #[target_feature(enable = "avx512f")]
        unsafe fn $name(
            (a, strides): (*const f32, [usize; 2]),
            b: *const u8,
            inner: usize,
            start: Start,
            c: *mut f32,
            c_stride: usize,
        ) {
            // SAFETY: the caller's promise; all registers that are written are named.
            unsafe {
                asm!(
                    "test {i}, {i}",
                    "jz 3f",
                    $(each_four!(begin, $rows),)+
                    "jmp 2f",
                    "3:",
                    $(each_four!(clear, $rows),)+
                    "2:",
                    "lea {i}, [{a} + 4 * {rs}]",
                    "lea {is}, [{i} + 4 * {rs}]",
                    "lea {t}, [{rs} + 2 * {rs}]",
                    ".p2align 5",
                    "4:",
                    columns!(0),
                    $(four_lying_rows!($rows),)+
                    "add {b}, 128",
                    "dec {n}",
                    "jnz 4b",
                    $(each_four!(store, $rows),)+
                    a = inout(reg) a => _, b = inout(reg) b => _, n = inout(reg) inner => _,
                    rs = in(reg) strides[0] * 4, ks = in(reg) strides[1] * 4, t = out(reg) _,
                    i = inout(reg) start.at => _, is = inout(reg) start.stride * 4 => _,
                    c = inout(reg) c => _, cs = in(reg) c_stride * 4,
                    out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("zmm4") _, out("zmm5") _,
                    out("zmm6") _, out("zmm7") _, out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _,
                    out("zmm12") _, out("zmm13") _, out("zmm14") _, out("zmm15") _, out("zmm16") _, out("zmm17") _,
                    out("zmm18") _, out("zmm19") _, out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _,
                    out("zmm24") _, out("zmm25") _, out("zmm28") _, out("zmm29") _, out("zmm30") _, out("zmm31") _,
                    options(nostack)
                );
            }
        }
    };
}
kernel_as_it_lies! {
    /// 12 x 32 of the result.
    twelve_as_they_lie, 0, 4, 8
}
kernel_as_it_lies! {
    /// 8 x 32 of the result.
    eight_as_they_lie, 0, 4
}
kernel_as_it_lies! {
    /// 4 x 32 of the result.
    four_as_they_lie, 0
}

/// A block of at most 12 x 32.
///
/// # Safety
/// The panels must have `steps` steps, at least one; what `start` names must be readable, and the
/// block at `c`, whose rows are `stride` elements apart, writable; and the CPU must have AVX-512 F.
/// The rows beyond `rows`, filled up to 4, 8 or 12, are neither read nor written.
#[inline(always)]
unsafe fn kernel(a: *const u8, b: *const u8, steps: usize, start: Start, (c, stride): (*mut f32, usize), rows: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match rows {
            9.. => twelve(a, b, steps, start, c, stride),
            5.. => eight(a, b, steps, start, c, stride),
            _ => four(a, b, steps, start, c, stride),
        }
    }
}

#[repr(align(64))]
struct Block([f32; ROWS * COLS]);

/// `a` by `b` over `steps`, and after them the product `beside`; `is_first` tells whether they are
/// the first of the inner dimension.
///
/// # Safety
/// The panels must have `steps` steps, and those of `beside` must be of factors with as many rows
/// and columns as the target. The blocks of the target that `a` and `b` give must be this call's
/// alone, and the CPU must have AVX-512 F.
pub(super) unsafe fn run(target: &Target, a: Panels, b: Panels, steps: usize, is_first: bool, beside: Option<Beside>) {
    let mut edge = Block([0.0; ROWS * COLS]);
    // The steps `n` of two panels are added to the block of panels `i` and `j`.
    let mut add = |(i, j): (usize, usize), [block_a, block_b]: [*const u8; 2], n: usize, is_first: bool| {
        let (row, col) = ((a.first + i) * ROWS, (b.first + j) * COLS);
        let (rows, cols) = ((target.rows - row).min(ROWS), (target.cols - col).min(COLS));
        let whole = cols == COLS && rows % 4 == 0;
        // SAFETY: the caller's promise; blocks at the edges go through a buffer of their own.
        unsafe {
            target.block((row, col), (rows, cols), whole, is_first, &mut edge.0, COLS, |start, c| {
                kernel(block_a, block_b, n, start, c, rows);
            });
        }
    };
    for s in (0..steps).step_by(INNER) {
        let (n, is_first) = (INNER.min(steps - s), is_first && s == 0);
        let beside = beside.filter(|_| s + n == steps);
        for j in 0..b.count {
            for i in 0..a.count {
                let block_a = a.at.wrapping_add(i * a.stride + s * STEP_BYTES[0]);
                let block_b = b.at.wrapping_add(j * b.stride + s * STEP_BYTES[1]);
                add((i, j), [block_a, block_b], n, is_first);
                if let Some(Beside { a: left, b: right, steps }) = beside {
                    let block_a = left.at.wrapping_add((a.first + i) * left.stride);
                    let block_b = right.at.wrapping_add((b.first + j) * right.stride);
                    add((i, j), [block_a, block_b], steps, false);
                }
            }
        }
    }
}

/// `x` as it lies by `b`.
///
/// # Safety
/// `x` must have the rows of the target, at least one, and `inner` columns, at least one; its rows,
/// counted up to a multiple of 4, must be readable. The panels, all of the target's columns, must
/// have `inner` rows. The target must be this call's alone, and the CPU must have AVX-512 F.
pub(super) unsafe fn run_as_it_lies(target: &Target, x: View<f32>, inner: usize, b: Panels) {
    let View { at, outer: rows, outer_step, inner_step } = x;
    let mut edge = Block([0.0; ROWS * COLS]);
    for k in (0..inner).step_by(INNER * F32_STEP) {
        let n = (INNER * F32_STEP).min(inner - k);
        for j in 0..b.count {
            let panel = b.at.wrapping_add(j * b.stride + k * COLS * 4);
            let col = j * COLS;
            let cols = (target.cols - col).min(COLS);
            for row in (0..rows).step_by(ROWS) {
                let rows = (rows - row).min(ROWS);
                let whole = cols == COLS && rows % 4 == 0;
                let a = (at.wrapping_add(row * outer_step + k * inner_step), [outer_step, inner_step]);
                // SAFETY: the caller's promise; blocks at the edges go through a buffer of their
                // own.
                unsafe {
                    target.block((row, col), (rows, cols), whole, k == 0, &mut edge.0, COLS, |start, (c, stride)| {
                        match rows {
                            9.. => twelve_as_they_lie(a, panel, n, start, c, stride),
                            5.. => eight_as_they_lie(a, panel, n, start, c, stride),
                            _ => four_as_they_lie(a, panel, n, start, c, stride),
                        }
                    });
                }
            }
        }
    }
}

/// Gives `count` a product of 12 x 32 x 256 whose operands are in the first-level cache. The CPU
/// must have AVX-512.
pub(super) fn with_product(count: &mut Count<'_>) {
    const STEPS: usize = 64;
    #[repr(align(64))]
    struct Operand<const N: usize>([f32; N]);
    assert!(has_avx512());
    let (a, b) = (Operand([1.0; ROWS * F32_STEP * STEPS]), Operand([1.0; COLS * F32_STEP * STEPS]));
    let mut c = Block([0.0; ROWS * COLS]);
    let (a, b, c) = (a.0.as_ptr().cast(), b.0.as_ptr().cast(), c.0.as_mut_ptr());
    // SAFETY: both panels have so many steps, and `c` is whole.
    count(2 * ROWS * COLS * F32_STEP * STEPS, &mut || unsafe { twelve(a, b, STEPS, Start::ZERO, c, COLS) });
}
