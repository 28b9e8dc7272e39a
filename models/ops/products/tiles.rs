//! Products of bf16 operands on packed tiles: 32 x 32 of the result from a panel of each factor, by
//! AMX (`TDPBF16PS`) or by AVX512_BF16 (`VDPBF16PS`), which read the same panels.
//!
//! Measured on an Intel Xeon with AMX (4 GHz), one thread, GFLOP/s: 1,330 to 1,550 for forward
//! products of GPT-2's sizes against 170 in f32. Tiles from the first-level cache give 2,760; each
//! block costs another 50 to 100 ns for its stores. `TILELOADDT1` for the factor that streams by
//! leaves the other one in the first-level cache; software prefetches only slow the kernel down.

use std::arch::x86_64::*;

use super::pack::{Buffer, TILE_BYTES, TILE_STEP, TILES};
use super::panels::{Panels, Start, Target, even};
use super::units::Count;
use super::{BLOCK_ROWS, Finish, Sums, Unit};

/// Steps whose part of a left panel (40 KiB) stays in the first-level cache while right panels
/// stream by.
const INNER: usize = 20;
/// Bytes of the right factor that stay in the second-level cache while the left one streams by.
const CHUNK: usize = 768 << 10;

#[repr(align(64))]
struct Block([f32; TILES * TILES]);

/// `a` by `b` over `steps` by `kernel`; `is_first` tells whether they are the first of the inner
/// dimension. The result is written along its rows, which keeps to few pages.
///
/// # Safety
/// The panels must have `steps` steps, the blocks of the target that they give must be this call's
/// alone, and `kernel` must be permitted, within [`amx::Tiles`] where it is of AMX.
pub(super) unsafe fn run(kernel: Kernel, target: &Target, a: Panels, b: Panels, steps: usize, is_first: bool) {
    let mut edge = Block([0.0; TILES * TILES]);
    let inner = even(steps, INNER);
    let chunk = even(b.count, (CHUNK / (steps * TILE_BYTES)).max(2));
    for j0 in (0..b.count).step_by(chunk) {
        for i in 0..a.count {
            for s in (0..steps).step_by(inner) {
                let n = inner.min(steps - s);
                let block_a = a.at.wrapping_add(i * a.stride + s * TILE_BYTES);
                for j in j0..(j0 + chunk).min(b.count) {
                    let block_b = b.at.wrapping_add(j * b.stride + s * TILE_BYTES);
                    let (row, col) = ((a.first + i) * TILES, (b.first + j) * TILES);
                    let size = ((target.rows - row).min(TILES), (target.cols - col).min(TILES));
                    let (whole, is_first) = (size == (TILES, TILES), is_first && s == 0);
                    // SAFETY: the caller's promise; blocks at the edges go through a buffer of
                    // their own.
                    unsafe {
                        target.block((row, col), size, whole, is_first, &mut edge.0, TILES, |start, (c, stride)| {
                            kernel(block_a, block_b, n, size.0, start, c, stride);
                        });
                    }
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
                        kernel(block_a, block_b, n, rows, start, at, TILES);
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

/// A kernel: a panel of each factor, how many steps, how many of the 32 rows are wanted (those
/// after them may be left out), what the sums begin with, the block of 32 x 32 and how far its rows
/// are apart.
pub(super) type Kernel = unsafe fn(*const u8, *const u8, usize, usize, Start, *mut f32, usize);

/// The kernel of `unit`.
///
/// # Panics
/// For f32, which has panels of its own.
pub(super) fn kernel(unit: Unit) -> Kernel {
    match unit {
        Unit::AmxBf16 => amx::kernel,
        Unit::Avx512Bf16 => avx512,
        Unit::F32 => unreachable!("products in f32 have panels of their own"),
    }
}

/// 8 x 32 of the result at a time: 16 sums, each pair of the left factor broadcast from memory.
///
/// # Safety
/// The panels must have `steps` steps; `rows` must be 32 at most; what `start` names must be
/// readable, and the block at `c` writable; and the CPU must have AVX-512 F, BW and BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn avx512(a: *const u8, b: *const u8, steps: usize, rows: usize, start: Start, c: *mut f32, c_stride: usize) {
    for quarter in 0..rows.div_ceil(8) {
        let mut sums = [[_mm512_setzero_ps(); 2]; 8];
        if !start.at.is_null() {
            for (r, sums) in sums.iter_mut().enumerate() {
                let from = start.at.wrapping_add((quarter * 8 + r) * start.stride);
                // SAFETY: the caller's promise.
                *sums = unsafe { [_mm512_loadu_ps(from), _mm512_loadu_ps(from.wrapping_add(16))] };
            }
        }
        for step in 0..steps {
            let (a, b) = (a.wrapping_add(step * TILE_BYTES + quarter * 512), b.wrapping_add(step * TILE_BYTES));
            for pair in 0..16 {
                // SAFETY: within the panels; the types are 64 bytes.
                unsafe {
                    let column = |at: usize| {
                        let x = _mm512_load_si512(b.wrapping_add(at + pair * 64).cast());
                        std::mem::transmute::<__m512i, __m512bh>(x)
                    };
                    let (b0, b1) = (column(0), column(1024));
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let x = _mm512_set1_epi32(a.wrapping_add(r * 64 + pair * 4).cast::<i32>().read());
                        let x = std::mem::transmute::<__m512i, __m512bh>(x);
                        sums[0] = _mm512_dpbf16_ps(sums[0], x, b0);
                        sums[1] = _mm512_dpbf16_ps(sums[1], x, b1);
                    }
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            let to = c.wrapping_add((quarter * 8 + r) * c_stride);
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
    count(2 * TILES * TILES * STEPS * TILE_STEP, &mut || unsafe { kernel(a, b, STEPS, TILES, Start::ZERO, c, TILES) });
}

/// AMX in stable Rust: tiles are clobbers of inline assembly only, so that a block of sums begins
/// and ends within one `asm!`.
pub(super) mod amx {
    use std::arch::asm;
    use std::arch::x86_64::__cpuid_count;

    use super::Start;

    /// Whether the CPU has AMX with bf16 and the operating system permits it to this process. The
    /// permission is asked for, which holds for all threads: without it the first instruction of a
    /// tile ends the process. A kernel that does not save tiles refuses it.
    pub(in super::super) fn is_permitted() -> bool {
        let edx = __cpuid_count(7, 0).edx; // leaf 7 is there: it has told of AVX-512
        let (bf16, tile) = (edx >> 22 & 1, edx >> 24 & 1); // `is_x86_feature_detected!("amx-bf16")` is unstable
        bf16 & tile == 1 && request_permission()
    }

    /// `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`
    #[cfg(target_os = "linux")]
    fn request_permission() -> bool {
        let result: isize;
        // SAFETY: a system call that reads and writes no memory of this process.
        unsafe {
            asm!("syscall", inlateout("rax") 158isize => result, in("rdi") 0x1023, in("rsi") 18,
                 lateout("rcx") _, lateout("r11") _, options(nostack));
        }
        result == 0
    }

    #[cfg(not(target_os = "linux"))]
    fn request_permission() -> bool {
        false
    }

    /// 64 bytes, which LDTILECFG reads. A static, never a local: an operand of `asm!` that is a
    /// pointer does not tell how many bytes are read, so a compiler may drop stores to a local.
    #[repr(C, align(64))]
    struct Config {
        palette: u8,
        start_row: u8,
        reserved: [u8; 14],
        bytes_per_row: [u16; 16],
        rows: [u8; 16],
    }

    /// All eight tiles whole: 16 rows of 64 bytes. Edges are padded in memory instead.
    static WHOLE: Config = Config {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        bytes_per_row: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
        rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
    };

    /// Tiles that are configured on this thread until this is dropped. TILERELEASE then puts their
    /// state back to the initial one, so that context switches need not save 8 KiB and the core may
    /// sleep.
    pub(in super::super) struct Tiles(());

    impl Tiles {
        /// # Safety
        /// [`is_permitted`] must have said so.
        pub(in super::super) unsafe fn configured() -> Self {
            // SAFETY: permitted, and the 64 bytes are there.
            unsafe {
                asm!("ldtilecfg [{}]", in(reg) &raw const WHOLE, out("tmm0") _, out("tmm1") _, out("tmm2") _,
                     out("tmm3") _, out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                     options(nostack, preserves_flags));
            }
            Self(())
        }
    }

    impl Drop for Tiles {
        fn drop(&mut self) {
            // SAFETY: who made it has vouched for the permission.
            unsafe {
                asm!("tilerelease", out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                     out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _, options(nostack, preserves_flags));
            }
        }
    }

    /// 2 x 2 tiles of sums of the first step of two panels, `times` times: nothing but the
    /// instruction that multiplies.
    ///
    /// # Safety
    /// The panels must have a step, `times` must not be 0, and tiles must be configured.
    pub(super) unsafe fn multiply_tiles(a: *const u8, b: *const u8, times: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            asm!(
                "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                "tileloadd tmm4, [{a} + {s}]", "tileloadd tmm5, [{a} + {s} + 1024]",
                "tileloadd tmm6, [{b} + {s}]", "tileloadd tmm7, [{b} + {s} + 1024]",
                ".p2align 5",
                "2:",
                "tdpbf16ps tmm0, tmm4, tmm6", "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6", "tdpbf16ps tmm3, tmm5, tmm7",
                "dec {n}",
                "jnz 2b",
                a = in(reg) a, b = in(reg) b, s = in(reg) 64usize, n = inout(reg) times => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack)
            );
        }
    }

    /// tmm0-3 are 2 x 2 tiles of the result, tmm4-5 of the left factor, tmm6-7 of the right one.
    /// All rows are computed.
    ///
    /// # Safety
    /// The panels must have `steps` steps, at least one; what `start` names must be readable, and
    /// the block at `c` writable; and tiles must be configured.
    pub(super) unsafe fn kernel(
        a: *const u8,
        b: *const u8,
        steps: usize,
        _rows: usize,
        start: Start,
        c: *mut f32,
        c_stride: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            asm!(
                "test {i0}, {i0}",
                "jz 3f",
                "tileloadd tmm0, [{i0} + {is}]", "tileloadd tmm1, [{i0} + {is} + 64]",
                "tileloadd tmm2, [{i1} + {is}]", "tileloadd tmm3, [{i1} + {is} + 64]",
                "jmp 2f",
                "3:",
                "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                ".p2align 5",
                "2:",
                "tileloaddt1 tmm6, [{b} + {s}]",
                "tileloaddt1 tmm7, [{b} + {s} + 1024]",
                "tileloadd tmm4, [{a} + {s}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{a} + {s} + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a}, 2048",
                "add {b}, 2048",
                "dec {n}",
                "jnz 2b",
                "tilestored [{c0} + {cs}], tmm0", "tilestored [{c0} + {cs} + 64], tmm1",
                "tilestored [{c1} + {cs}], tmm2", "tilestored [{c1} + {cs} + 64], tmm3",
                a = inout(reg) a => _, b = inout(reg) b => _, n = inout(reg) steps => _, s = in(reg) 64usize,
                i0 = in(reg) start.at, i1 = in(reg) start.at.wrapping_add(16 * start.stride), is = in(reg) start.stride * 4,
                c0 = in(reg) c, c1 = in(reg) c.wrapping_add(16 * c_stride), cs = in(reg) c_stride * 4,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack)
            );
        }
    }
}
