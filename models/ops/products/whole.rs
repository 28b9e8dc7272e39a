//! All panels of a factor, for several products.

use std::marker::PhantomData;

use super::blocks::Panels;
use super::destination::Shared;
use super::pack::{Buffer, Side};
use super::panels::Method;

/// All panels of a factor, or those of its first rows or columns, each with the steps of the inner
/// dimension one after the other.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Whole<'a> {
    /// The method that they are for.
    pub(super) method: Method,
    pub(super) side: Side,
    /// Rows of a left factor, columns of a right one.
    pub(super) outer: usize,
    pub(super) inner: usize,
    /// The first panel. Nobody writes there while the panels are borrowed.
    pub(super) at: Shared<u8>,
    /// How many bytes panels are apart.
    pub(super) stride: usize,
    pub(super) memory: PhantomData<&'a Buffer>,
}

impl Whole<'_> {
    /// Rows and columns.
    pub(super) fn size(&self) -> (usize, usize) {
        match self.side {
            Side::Left => (self.outer, self.inner),
            Side::Right => (self.inner, self.outer),
        }
    }

    /// The panels, all of them.
    pub(super) fn panels(&self) -> Panels {
        let count = self.outer.div_ceil(self.method.block()[self.side.place()]);
        Panels { at: self.at.0.cast_const(), stride: self.stride, first: 0, count }
    }

    /// Steps of a panel.
    pub(super) fn steps(&self) -> usize {
        self.inner.div_ceil(self.method.step())
    }

    /// The first `outer` of the outer dimension and the first `inner` of the inner one. A product
    /// by tiles takes all of the last step, and multiplies what is behind `inner` by zeros: that
    /// must be finite, unless `inner` ends with a step or with the factor.
    ///
    /// # Panics
    /// For more than there are.
    pub(super) fn first(self, outer: usize, inner: usize) -> Self {
        assert!(outer <= self.outer && inner <= self.inner, "more of a factor than was packed");
        Self { outer, inner, ..self }
    }
}

/// All panels of a factor, and their memory.
pub(in crate::ops) struct Kept {
    method: Method,
    side: Side,
    outer: usize,
    inner: usize,
    at: Shared<u8>,
    memory: Buffer,
}

impl Kept {
    /// Panels in `memory`, whose values are any, of a factor of `outer` rows, or columns of a right
    /// one.
    pub(super) fn new(method: Method, side: Side, (outer, inner): (usize, usize), memory: Buffer) -> Self {
        let mut kept = Self { method, side, outer, inner, at: Shared(std::ptr::null_mut()), memory };
        kept.at = Shared(kept.memory.at_least(kept.bytes()));
        kept
    }

    /// The panels, while the memory is borrowed.
    pub(super) fn whole(&self) -> Whole<'_> {
        let Self { method, side, outer, inner, at, .. } = *self;
        let stride = inner.div_ceil(method.step()) * method.bytes()[side.place()];
        Whole { method, side, outer, inner, at, stride, memory: PhantomData }
    }

    pub(super) fn bytes(&self) -> usize {
        let whole = self.whole();
        whole.panels().count * whole.stride
    }

    /// The memory, for other panels.
    pub(super) fn into_memory(self) -> Buffer {
        self.memory
    }
}
