//! Packing: a factor as panels of its outer dimension (rows of the left factor, columns of the
//! right one), each a sequence of steps of the inner dimension, so that a kernel reads memory in
//! order. Operands are rounded on the way. Elements beyond the edges are 0.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::arch::x86_64::*;

use half::{bf16, f16};

/// Whether the CPU has AVX-512 and the operating system saves its registers.
pub(super) fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")
}

/// Memory that starts at a page and grows when it must; never filled.
pub(super) struct Buffer {
    at: *mut u8,
    bytes: usize,
}

// SAFETY: it owns its memory, as a `Vec` does.
unsafe impl Send for Buffer {}
// SAFETY: it gives its memory to whoever holds it alone.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub(super) const fn new() -> Self {
        Self { at: std::ptr::null_mut(), bytes: 0 }
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, 4096).expect("the sizes of a matrix in memory do not overflow")
    }

    /// At least `bytes` bytes; whatever was written before may be gone.
    pub(super) fn at_least(&mut self, bytes: usize) -> *mut u8 {
        if self.bytes < bytes {
            *self = Self::new();
            let bytes = bytes.next_multiple_of(4096);
            // SAFETY: `bytes` is not 0.
            self.at = unsafe { alloc(Self::layout(bytes)) };
            if self.at.is_null() {
                handle_alloc_error(Self::layout(bytes));
            }
            self.bytes = bytes;
        }
        self.at
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: allocated with this layout.
            unsafe { dealloc(self.at, Self::layout(self.bytes)) };
        }
    }
}

/// A factor as outer x inner; one of the steps is 1. It is read while the factor it was made of is
/// borrowed.
#[derive(Clone, Copy)]
pub(super) struct View<T> {
    pub at: *const T,
    pub outer: usize,
    pub outer_step: usize,
    pub inner_step: usize,
}

// SAFETY: only read, and the elements are numbers.
unsafe impl<T> Send for View<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for View<T> {}

/// A range of panels, and one of the inner dimension that begins with a step.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub panels: (usize, usize),
    pub inner: (usize, usize),
}

/// The lowest `count` bits.
#[inline(always)]
pub(super) fn lowest(count: usize) -> u32 {
    if count >= 32 { u32::MAX } else { (1u32 << count) - 1 }
}

// -------------------------------------------------------------------------------------------------
// Panels of f32

/// Elements in memory, as a product in f32 sees them.
pub(super) trait Wide: Copy + 'static {
    /// The type in memory.
    type Of: Copy + 'static;

    /// 16 elements as f32; those not in `mask` are 0, and their memory is not touched.
    ///
    /// # Safety
    /// The elements in `mask` must be readable, and the CPU must have AVX-512 (F and BW).
    unsafe fn load16(at: *const Self::Of, mask: u16) -> __m512;
}

/// f32 as it is.
#[derive(Clone, Copy)]
pub(super) struct Exact;
/// f32 rounded to bf16, ties to even.
#[derive(Clone, Copy)]
pub(super) struct ToBf16;
/// f32 rounded to f16, ties to even.
#[derive(Clone, Copy)]
pub(super) struct ToF16;

impl Wide for Exact {
    type Of = f32;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn load16(at: *const f32, mask: u16) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_maskz_loadu_ps(mask, at) }
    }
}

impl Wide for ToBf16 {
    type Of = f32;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn load16(at: *const f32, mask: u16) -> __m512 {
        // SAFETY: the caller's promise.
        let x = unsafe { _mm512_maskz_loadu_ps(mask, at) };
        let bits = _mm512_castps_si512(x);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
        let rounded = _mm512_and_si512(up, _mm512_set1_epi32(0xffff_0000_u32 as i32));
        // The bits that are cut off may be all that tells a NaN from infinity.
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
        _mm512_castsi512_ps(_mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x0040_0000)))
    }
}

impl Wide for ToF16 {
    type Of = f32;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn load16(at: *const f32, mask: u16) -> __m512 {
        // SAFETY: the caller's promise.
        let x = unsafe { _mm512_maskz_loadu_ps(mask, at) };
        _mm512_cvtph_ps(_mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x))
    }
}

impl Wide for bf16 {
    type Of = Self;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn load16(at: *const Self, mask: u16) -> __m512 {
        // SAFETY: the caller's promise; a bf16 is 16 bits.
        let x = unsafe { _mm512_castsi512_si256(_mm512_maskz_loadu_epi16(u32::from(mask), at.cast())) };
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(x)))
    }
}

impl Wide for f16 {
    type Of = Self;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn load16(at: *const Self, mask: u16) -> __m512 {
        // SAFETY: the caller's promise; an f16 is 16 bits.
        let x = unsafe { _mm512_castsi512_si256(_mm512_maskz_loadu_epi16(u32::from(mask), at.cast())) };
        _mm512_cvtph_ps(x)
    }
}

/// How much of the inner dimension one step of a panel of f32 has.
pub(super) const F32_STEP: usize = 4;

/// `part` of `view` to `to`, where panels of `WIDTH` (12 or 32) are `stride` bytes apart: `WIDTH`
/// elements, one after the other, for each of the inner dimension, which is filled up to whole
/// steps.
///
/// # Safety
/// `part` must lie within `view`, its panels within the memory at `to`; and the CPU must have
/// AVX-512 (F and BW).
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn pack_f32<E: Wide, const WIDTH: usize>(
    view: View<E::Of>,
    Part { panels: (p0, p1), inner: (k0, k1) }: Part,
    to: *mut u8,
    stride: usize,
) {
    let whole = lowest(WIDTH.min(16)) as u16;
    let end = k0 + (k1 - k0).next_multiple_of(F32_STEP);
    let to_panel = |p: usize, k: usize| to.wrapping_add((p - p0) * stride).cast::<f32>().wrapping_add((k - k0) * WIDTH);
    if view.outer_step == 1 {
        for k in (k0..end).step_by(F32_STEP) {
            for p in p0..p1 {
                let (outer, missing) = (p * WIDTH, view.outer - p * WIDTH);
                for k in k..k + F32_STEP {
                    let mask = if k < k1 { lowest(missing.min(WIDTH)) } else { 0 };
                    let (from, to) = (view.at.wrapping_add(k * view.inner_step + outer), to_panel(p, k));
                    // SAFETY: `mask` keeps loads within the factor; the stores are within the
                    // panel.
                    unsafe {
                        _mm512_mask_storeu_ps(to, whole, E::load16(from, mask as u16));
                        if WIDTH > 16 {
                            let from = from.wrapping_add(16);
                            _mm512_storeu_ps(to.wrapping_add(16), E::load16(from, (mask >> 16) as u16));
                        }
                    }
                }
            }
        }
        return;
    }
    for p in p0..p1 {
        for k in (k0..k1).step_by(16) {
            for half in 0..WIDTH.div_ceil(16) {
                let mut v = [_mm512_setzero_si512(); 16];
                for (r, v) in v.iter_mut().enumerate().take(WIDTH - half * 16) {
                    let row = p * WIDTH + half * 16 + r;
                    let mask = if row < view.outer { lowest(k1 - k) as u16 } else { 0 };
                    // SAFETY: as above.
                    *v = _mm512_castps_si512(unsafe {
                        E::load16(view.at.wrapping_add(row * view.outer_step + k), mask)
                    });
                }
                transpose(&mut v);
                for (i, v) in v.iter().enumerate().take(end - k) {
                    let to = to_panel(p, k + i).wrapping_add(half * 16);
                    // SAFETY: as above.
                    unsafe { _mm512_mask_storeu_ps(to, whole, _mm512_castsi512_ps(*v)) };
                }
            }
        }
    }
}

// -------------------------------------------------------------------------------------------------
// Tiles of bf16

/// Elements in memory, as a product of bf16 sees them.
pub(super) trait Narrow: Copy + 'static {
    /// 32 elements as bf16; those not in `mask` are 0, and their memory is not touched.
    ///
    /// # Safety
    /// The elements in `mask` must be readable, and the CPU must have AVX-512 F, BW and BF16.
    unsafe fn load32(at: *const Self, mask: u32) -> __m512i;
}

impl Narrow for f32 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn load32(at: *const Self, mask: u32) -> __m512i {
        // SAFETY: the caller's promise; both types are 64 bytes.
        unsafe {
            let low = _mm512_maskz_loadu_ps(mask as u16, at);
            let high = _mm512_maskz_loadu_ps((mask >> 16) as u16, at.wrapping_add(16));
            std::mem::transmute(_mm512_cvtne2ps_pbh(high, low))
        }
    }
}

impl Narrow for bf16 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn load32(at: *const Self, mask: u32) -> __m512i {
        // SAFETY: the caller's promise; a bf16 is 16 bits.
        unsafe { _mm512_maskz_loadu_epi16(mask, at.cast()) }
    }
}

/// Rows of the left factor, or columns of the right one, in a panel of tiles: two tiles side by
/// side.
pub(super) const TILES: usize = 32;
/// How much of the inner dimension a tile has.
pub(super) const TILE_STEP: usize = 32;
/// Bytes of one step of a panel.
pub(super) const TILE_BYTES: usize = 2048;

/// Which factor, which decides what a tile looks like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    /// 16 rows x 32 of the inner dimension.
    Left,
    /// 16 pairs of the inner dimension x 16 columns x 2.
    Right,
}

impl Side {
    /// Its place among the factors of a product.
    pub(super) fn place(self) -> usize {
        usize::from(self == Self::Right)
    }
}

/// `part` of `view` as tiles to `to`, where panels are `stride` bytes apart.
///
/// # Safety
/// `part` must lie within `view`, its panels within the memory at `to`, which starts at a cache
/// line; and the CPU must have AVX-512 F, BW and BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn pack_tiles<T: Narrow>(view: View<T>, side: Side, part: Part, to: *mut u8, stride: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match (view.outer_step == 1, side) {
            (false, Side::Left) => runs_of_rows::<T, false>(view, part, to, stride),
            (false, Side::Right) => runs_of_rows::<T, true>(view, part, to, stride),
            (true, Side::Right) => pairs_of_rows::<T, false>(view, part, to, stride),
            (true, Side::Left) => pairs_of_rows::<T, true>(view, part, to, stride),
        }
    }
}

/// Steps, or panels, of one row that are read one after the other: 32 rows of them are 32 KiB of
/// tiles, which stay in the caches until they are full. Measured on an AMD EPYC (Zen 4) on factors
/// that no cache has: 0.24 to 0.39 ns an element of f32 where reading 32 rows tile by tile takes
/// 0.41 to 0.57, since a CPU foresees what it reads of a few rows alone.
const RUN: usize = 16;

/// How far ahead elements of a row are fetched, more than what a CPU foresees by itself. It gains
/// on a Zen 5 and nothing on a Zen 4.
const AHEAD: usize = 2 * TILE_STEP;

/// Has the 128 bytes at `at`, which may lie beyond the factor, fetched into the first-level cache.
#[inline(always)]
fn fetch<T>(at: *const T) {
    const LINE: usize = 64;
    // SAFETY (both): a prefetch of any address does not fault.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast::<u8>().wrapping_add(LINE).cast()) };
}

/// Left tiles from rows that are contiguous: converted and put where they belong. With `TRANSPOSE`,
/// right tiles from columns that are: 16 x 16 pairs are transposed.
///
/// # Safety
/// `part` must lie within `view`, its panels within the memory at `to`, which starts at a cache
/// line; and the CPU must have AVX-512 F, BW and BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn runs_of_rows<T: Narrow, const TRANSPOSE: bool>(view: View<T>, part: Part, to: *mut u8, stride: usize) {
    let Part { panels: (p0, p1), inner: (k0, k1) } = part;
    for p in p0..p1 {
        for run in (k0..k1).step_by(RUN * TILE_STEP) {
            let end = (run + RUN * TILE_STEP).min(k1);
            let to = to.wrapping_add((p - p0) * stride + (run - k0) / TILE_STEP * TILE_BYTES);
            for r in 0..TILES {
                let row = p * TILES + r;
                let from = view.at.wrapping_add(row * view.outer_step);
                fetch(from.wrapping_add(view.outer_step + run)); // where the next row begins
                for (s, k) in (run..end).step_by(TILE_STEP).enumerate() {
                    let mask = if row < view.outer { lowest(k1 - k) } else { 0 };
                    let to = to.wrapping_add(s * TILE_BYTES + r * 64);
                    fetch(from.wrapping_add(k + AHEAD));
                    // SAFETY: `mask` keeps loads within the factor; the store is within the panel.
                    unsafe { _mm512_store_si512(to.cast(), T::load32(from.wrapping_add(k), mask)) };
                }
            }
            if TRANSPOSE {
                // SAFETY: these tiles have just been written.
                unsafe { transpose_tiles(to, (end - run).div_ceil(TILE_STEP), TILE_BYTES) };
            }
        }
    }
}

/// Right tiles from rows that are contiguous: two rows are interleaved. With `TRANSPOSE`, left
/// tiles from columns that are.
///
/// # Safety
/// `part` must lie within `view`, its panels within the memory at `to`, which starts at a cache
/// line; and the CPU must have AVX-512 F, BW and BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn pairs_of_rows<T: Narrow, const TRANSPOSE: bool>(view: View<T>, part: Part, to: *mut u8, stride: usize) {
    const LOW: [u16; 32] = interleaving(0);
    const HIGH: [u16; 32] = interleaving(16);
    let Part { panels: (p0, p1), inner: (k0, k1) } = part;
    // SAFETY: 64 bytes each.
    let (low, high) = unsafe { (_mm512_loadu_si512(LOW.as_ptr().cast()), _mm512_loadu_si512(HIGH.as_ptr().cast())) };
    for (s, k) in (k0..k1).step_by(TILE_STEP).enumerate() {
        for run in (p0..p1).step_by(RUN) {
            let end = (run + RUN).min(p1);
            let tiles = to.wrapping_add((run - p0) * stride + s * TILE_BYTES);
            for i in 0..16 {
                let [even, odd] = [k + 2 * i, k + 2 * i + 1];
                let row = |k: usize| view.at.wrapping_add(k * view.inner_step);
                [odd + 1, odd + 2].into_iter().for_each(|next| fetch(row(next).wrapping_add(run * TILES)));
                for p in run..end {
                    let columns = lowest(view.outer - p * TILES);
                    let load = |k: usize| {
                        let mask = if k < k1 { columns } else { 0 };
                        fetch(row(k).wrapping_add(p * TILES + AHEAD));
                        // SAFETY: as in `runs_of_rows`.
                        unsafe { T::load32(row(k).wrapping_add(p * TILES), mask) }
                    };
                    let (even, odd) = (load(even), load(odd));
                    let to = tiles.wrapping_add((p - run) * stride + i * 64);
                    // SAFETY (both): as in `runs_of_rows`.
                    unsafe {
                        _mm512_store_si512(to.cast(), _mm512_permutex2var_epi16(even, low, odd));
                        _mm512_store_si512(to.wrapping_add(1024).cast(), _mm512_permutex2var_epi16(even, high, odd));
                    }
                }
            }
            if TRANSPOSE {
                // SAFETY: these tiles have just been written.
                unsafe { transpose_tiles(tiles, end - run, stride) };
            }
        }
    }
}

/// Indices of the elements `from..from + 16` of two vectors by turns.
const fn interleaving(from: u16) -> [u16; 32] {
    let mut index = [0; 32];
    let mut i = 0;
    while i < 16 {
        index[2 * i] = from + i as u16;
        index[2 * i + 1] = 32 + from + i as u16;
        i += 1;
    }
    index
}

/// Transposes both halves of `count` steps, `stride` bytes apart, where they are.
///
/// # Safety
/// Each step at `at`, which starts at a cache line, must be initialised and writable.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn transpose_tiles(at: *mut u8, count: usize, stride: usize) {
    for tile in (0..count).flat_map(|step| [step * stride, step * stride + TILE_BYTES / 2]) {
        let row = |r: usize| at.wrapping_add(tile + r * 64);
        let mut v = [_mm512_setzero_si512(); 16];
        for (r, v) in v.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *v = unsafe { _mm512_load_si512(row(r).cast()) };
        }
        transpose(&mut v);
        for (r, v) in v.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { _mm512_store_si512(row(r).cast(), *v) };
        }
    }
}

/// Transposes 16 x 16 elements of 32 bits: 64 shuffles.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn transpose(r: &mut [__m512i; 16]) {
    let (mut t, mut u) = (*r, *r);
    for i in 0..8 {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for i in 0..4 {
        u[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        u[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        u[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        u[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    // The 128 bits in lane l of u[4 g + c] are column 4 l + c of rows 4 g to 4 g + 3.
    for c in 0..4 {
        let a = _mm512_shuffle_i32x4::<0x88>(u[c], u[4 + c]);
        let b = _mm512_shuffle_i32x4::<0xdd>(u[c], u[4 + c]);
        let d = _mm512_shuffle_i32x4::<0x88>(u[8 + c], u[12 + c]);
        let e = _mm512_shuffle_i32x4::<0xdd>(u[8 + c], u[12 + c]);
        r[c] = _mm512_shuffle_i32x4::<0x88>(a, d);
        r[8 + c] = _mm512_shuffle_i32x4::<0xdd>(a, d);
        r[4 + c] = _mm512_shuffle_i32x4::<0x88>(b, e);
        r[12 + c] = _mm512_shuffle_i32x4::<0xdd>(b, e);
    }
}
