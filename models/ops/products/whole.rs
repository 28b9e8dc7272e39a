//! All panels of a factor, for several products.

use super::blocks::Panels;
use super::destination::Shared;
use super::pack::{Buffer, Side, TILE_BYTES, TILE_STEP, TILES};

/// All panels of a factor in bf16, each with all steps of the inner dimension.
pub(in crate::ops) struct Whole {
    pub(super) at: Shared<u8>,
    pub(super) memory: Buffer,
    pub(super) side: Side,
    /// Rows of a left factor, columns of a right one.
    pub(super) outer: usize,
    pub(super) inner: usize,
}

impl Whole {
    /// Rows and columns.
    pub(super) fn size(&self) -> (usize, usize) {
        match self.side {
            Side::Left => (self.outer, self.inner),
            Side::Right => (self.inner, self.outer),
        }
    }

    /// The panels, all of them.
    pub(super) fn panels(&self) -> Panels {
        let count = self.outer.div_ceil(TILES);
        Panels { at: self.at.0.cast_const(), stride: self.stride(), first: 0, count }
    }

    /// Steps of a panel.
    pub(super) fn steps(&self) -> usize {
        self.inner.div_ceil(TILE_STEP)
    }

    /// The first panel. Nobody writes there.
    pub(super) fn at(&self) -> Shared<u8> {
        self.at
    }

    /// Bytes of a panel.
    pub(super) fn stride(&self) -> usize {
        self.steps() * TILE_BYTES
    }

    pub(super) fn bytes(&self) -> usize {
        self.outer.div_ceil(TILES) * self.stride()
    }
}
