//! AMX in stable Rust: tiles are clobbers of inline assembly only, so that a block of sums begins
//! and ends within one `asm!`.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;

use super::blocks::Start;

/// Whether the CPU has AMX with bf16 and the operating system permits it to this process. The
/// permission is asked for, which holds for all threads: without it the first instruction of a
/// tile ends the process. A kernel that does not save tiles refuses it.
pub(super) fn is_permitted() -> bool {
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
pub(super) struct Tiles(());

impl Tiles {
    /// # Safety
    /// [`is_permitted`] must have said so.
    pub(super) unsafe fn configured() -> Self {
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
/// All rows and columns are computed.
///
/// # Safety
/// The panels must have `steps` steps, at least one; what `start` names must be readable, and
/// the block at `c` writable; and tiles must be configured.
pub(super) unsafe fn kernel(
    a: *const u8,
    b: *const u8,
    steps: usize,
    _size: (usize, usize),
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
