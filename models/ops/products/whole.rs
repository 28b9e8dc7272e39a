//! All panels of a factor, for several products.

use super::blocks::Panels;
use super::destination::Shared;
use super::pack::{Buffer, Side};
use super::panels::Method;

/// All panels of a factor, each with all steps of the inner dimension.
pub(in crate::ops) struct Whole {
    /// The method that they are for.
    pub(super) method: Method,
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
        Panels { at: self.at.0.cast_const(), stride: self.stride(), first: 0, count: self.count() }
    }

    fn count(&self) -> usize {
        self.outer.div_ceil(self.method.block()[self.side.place()])
    }

    /// Steps of a panel.
    pub(super) fn steps(&self) -> usize {
        self.inner.div_ceil(self.method.step())
    }

    /// The first panel. Nobody writes there.
    pub(super) fn at(&self) -> Shared<u8> {
        self.at
    }

    /// Bytes of a panel.
    pub(super) fn stride(&self) -> usize {
        self.steps() * self.method.bytes()[self.side.place()]
    }

    pub(super) fn bytes(&self) -> usize {
        self.count() * self.stride()
    }
}
