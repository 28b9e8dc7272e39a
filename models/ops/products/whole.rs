//! All panels of a factor, which are kept.

use super::destination::Shared;
use super::pack::{Buffer, TILE_BYTES, TILE_STEP, TILES};

/// All panels of a right factor in bf16, each with all steps of the inner dimension.
pub(in crate::ops) struct Whole {
    pub(super) at: Shared<u8>,
    pub(super) _memory: Buffer,
    pub(super) inner: usize,
    pub(super) cols: usize,
}

impl Whole {
    pub(super) fn size(&self) -> (usize, usize) {
        (self.inner, self.cols)
    }

    /// The first panel. Nobody writes there.
    pub(super) fn at(&self) -> Shared<u8> {
        self.at
    }

    /// Bytes of a panel.
    pub(super) fn stride(&self) -> usize {
        self.inner.div_ceil(TILE_STEP) * TILE_BYTES
    }

    pub(super) fn bytes(&self) -> usize {
        self.cols.div_ceil(TILES) * self.stride()
    }
}
