//! The sizes of the kernels, and their variants.

/// Units of a cube: four planes of 32.
pub(super) const UNITS: usize = 128;
/// Queries of a cube, or keys: 16 for each plane.
pub(super) const ROWS: usize = 64;
/// Numbers of 16 bits that a unit loads at once.
pub(super) const LOAD: usize = 8;
/// Numbers that lie side by side in a register of a matrix instruction.
pub(super) const PAIR: usize = 2;
/// Stands for the score of a key that is not seen, as in `transformers`: where no key is seen, all
/// are weighted alike. Not the most negative number itself, which WGSL's compilers may not read.
pub(in crate::ops::attention) const HIDDEN: f32 = -3.0e38;

/// The variant of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::ops) struct Form {
    pub(super) head_dim: usize,
    pub(super) causal: bool,
    pub(super) padded: bool,
    pub(super) drops: bool,
}

impl Form {
    /// Keys that the kernel of the queries' gradient takes at a time: registers for the products of
    /// a long head leave room for few.
    pub(super) fn keys_at_a_time(self) -> usize {
        if self.head_dim <= 64 { 64 } else { 32 }
    }
}
