//! The arguments of the kernels of a product: panels of its factors, and blocks of its destination.

use super::destination::Destination;

/// The values that sums begin with: 0 where `at` is null, else those at `at`, in rows `stride`
/// elements apart; a stride of 0 repeats one row (a bias).
#[derive(Clone, Copy)]
pub(super) struct Start {
    pub at: *const f32,
    pub stride: usize,
}

impl Start {
    pub const ZERO: Self = Self { at: std::ptr::null(), stride: 0 };
}

/// Panels next to each other: where the first of them starts, how far apart they are, which they
/// are.
#[derive(Clone, Copy)]
pub(super) struct Panels {
    pub at: *const u8,
    pub stride: usize,
    pub first: usize,
    pub count: usize,
}

/// A product of a few steps of the inner dimension that is added to another one of its size: all
/// panels of both factors.
#[derive(Clone, Copy)]
pub(super) struct Beside {
    pub a: Panels,
    pub b: Panels,
    pub steps: usize,
}

// SAFETY: panels are only read, and outlive the product.
unsafe impl Send for Beside {}
// SAFETY: as above.
unsafe impl Sync for Beside {}

/// Where a product goes, and what its sums begin with.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub(super) out: Destination,
    pub rows: usize,
    pub cols: usize,
    /// Whether it is added to what is there.
    pub(super) add: bool,
    /// The bias, with as many numbers as whole panels have columns, or null.
    pub(super) bias: *const f32,
}

// SAFETY: the bias is only read, and `out` is shared as `Shared` says.
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

impl Target {
    /// Calls `kernel` for the block of `size` at `(row, col)` with what its sums begin with, its
    /// address and how far its rows are apart. A block that is not `whole` for the kernel is one in
    /// `edge`, whose rows are `width` long.
    ///
    /// # Safety
    /// The block must lie within the target and be accessed by nobody else, and be initialised
    /// unless it `is_first` and nothing is added to.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    pub(super) unsafe fn block(
        &self,
        (row, col): (usize, usize),
        (rows, cols): (usize, usize),
        whole: bool,
        is_first: bool,
        edge: &mut [f32],
        width: usize,
        kernel: impl FnOnce(Start, (*mut f32, usize)),
    ) {
        let fresh = is_first && !self.add;
        let bias = if self.bias.is_null() { Start::ZERO } else { Start { at: self.bias.wrapping_add(col), stride: 0 } };
        let Destination { at, row_stride } = self.out;
        // SAFETY: the caller's promise.
        unsafe {
            let c = at.at(row * row_stride + col);
            if whole {
                let start = if fresh { bias } else { Start { at: c, stride: row_stride } };
                kernel(start, (c, row_stride));
                return;
            }
            let sums = edge.as_mut_ptr();
            if !fresh {
                for r in 0..rows {
                    std::ptr::copy_nonoverlapping(c.add(r * row_stride), sums.add(r * width), cols);
                }
            }
            kernel(if fresh { bias } else { Start { at: sums, stride: width } }, (sums, width));
            for r in 0..rows {
                std::ptr::copy_nonoverlapping(sums.add(r * width), c.add(r * row_stride), cols);
            }
        }
    }
}

/// Parts of about the same size, at most `most`, that `count` is split into.
pub(super) fn even(count: usize, most: usize) -> usize {
    count.div_ceil(count.div_ceil(most))
}
