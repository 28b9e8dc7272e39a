//! Where a product goes: to memory that several threads write, or block by block to a function.

/// How a product writes its destination.
#[derive(Clone, Copy)]
pub(in crate::ops) enum Output<'a> {
    /// Overwrites it.
    Overwrite,
    /// Is added to it.
    Add,
    /// Overwrites it, with a number for each column added.
    Bias(&'a [f32]),
}

/// Rows of a product that one block of [`Sums`] has at most, the first being a multiple of it.
pub(in crate::ops) const BLOCK_ROWS: usize = 32;

/// A block of a product whose sums are complete.
pub(in crate::ops) struct Sums<'a> {
    /// Its first row and column in the product.
    pub row: usize,
    pub col: usize,
    /// Its size: [`BLOCK_ROWS`] rows or those that are left, and columns.
    pub rows: usize,
    pub cols: usize,
    /// Its rows, `stride` elements each. Those behind the columns are no part of the product.
    pub values: &'a mut [f32],
    pub stride: usize,
}

/// Takes the blocks of a product, each once, on the threads that compute them. It must not wait for
/// other tasks.
pub(in crate::ops) type Finish<'a> = dyn Fn(Sums<'_>) + Sync + 'a;

/// Where a product goes: its first element, and how far its rows are apart.
#[derive(Clone, Copy)]
pub(super) struct Destination {
    pub(super) at: Shared,
    pub(super) row_stride: usize,
}

impl Destination {
    pub(super) fn new(at: *mut f32, row_stride: usize) -> Self {
        Self { at: Shared(at), row_stride }
    }
}

/// A destination that several threads write to, each its own elements.
pub(in crate::ops) struct Shared<T = f32>(pub *mut T);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<T> {}

// SAFETY: it is a pointer and nothing more; whoever writes through it must see to it that no two
// threads touch one element.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// The address of element `index`.
    ///
    /// # Safety
    /// `index` must lie within (or just behind) the buffer.
    pub unsafe fn at(self, index: usize) -> *mut T {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(index) }
    }
}
