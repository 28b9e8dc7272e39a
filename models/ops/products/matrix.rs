//! The factors of a product, and the type to which they are rounded.

use burn::tensor::FloatDType;
use half::{bf16, f16};

#[cfg(target_arch = "x86_64")]
use super::whole::Whole;

/// A matrix within a slice.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Matrix<'a, T = f32> {
    pub(super) data: &'a [T],
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) row_stride: usize,
    pub(super) col_stride: usize,
}

impl<'a, T> Matrix<'a, T> {
    /// Row-major, without gaps.
    pub fn new(data: &'a [T], rows: usize, cols: usize) -> Self {
        Self::strided(data, rows, cols, cols)
    }

    /// Row-major; a row starts `row_stride` after the one before it.
    ///
    /// # Panics
    /// When `data` is too short.
    pub fn strided(data: &'a [T], rows: usize, cols: usize, row_stride: usize) -> Self {
        assert!(rows == 0 || cols == 0 || (rows - 1) * row_stride + cols <= data.len(), "matrix beyond its data");
        Self { data, rows, cols, row_stride, col_stride: 1 }
    }

    /// Element `(r, c)` is at `r * row_stride + c * col_stride`; one of the strides must be 1.
    ///
    /// # Panics
    /// When `data` is too short, or no stride is 1.
    pub fn with_strides(data: &'a [T], [rows, cols]: [usize; 2], [row_stride, col_stride]: [usize; 2]) -> Self {
        match (row_stride, col_stride) {
            (_, 1) => Self::strided(data, rows, cols, row_stride),
            (1, _) => Self::strided(data, cols, rows, col_stride).t(),
            _ => panic!("a matrix of which neither rows nor columns are contiguous"),
        }
    }

    /// # Panics
    /// Where there are no rows, or the slice ends before the last of them, counted up to a multiple
    /// of 4: kernels read rows in fours, whatever those behind the last one are.
    pub(super) fn assert_rows_in_fours(self) {
        let Self { data, rows, cols, row_stride, col_stride } = self;
        assert!(rows > 0 && cols > 0, "a product of no rows or of no terms");
        let last = (rows.next_multiple_of(4) - 1) * row_stride + (cols - 1) * col_stride;
        assert!(last < data.len(), "rows of a factor that are read in fours");
    }

    /// The transpose, without moving anything.
    pub fn t(self) -> Self {
        let Self { data, rows, cols, row_stride, col_stride } = self;
        Self { data, rows: cols, cols: rows, row_stride: col_stride, col_stride: row_stride }
    }
}

/// A factor of a product.
#[derive(Clone, Copy)]
pub(in crate::ops) enum Factor<'a> {
    F32(Matrix<'a>),
    Bf16(Matrix<'a, bf16>),
    F16(Matrix<'a, f16>),
    /// A factor of which all panels are there: a right one that is kept
    /// ([`Packed`](super::Packed)), or packed for several products of a thread
    /// ([`Repacked`](super::Repacked)), or a left one of several products
    /// ([`with_left`](super::with_left)).
    #[cfg(target_arch = "x86_64")]
    Packed(Whole<'a>),
}

impl<'a> Factor<'a> {
    /// All its panels, where they are there.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn whole(self) -> Option<Whole<'a>> {
        match self {
            Self::Packed(whole) => Some(whole),
            _ => None,
        }
    }

    pub(super) fn size(self) -> (usize, usize) {
        match self {
            Self::F32(x) => (x.rows, x.cols),
            Self::Bf16(x) => (x.rows, x.cols),
            Self::F16(x) => (x.rows, x.cols),
            #[cfg(target_arch = "x86_64")]
            Self::Packed(x) => x.size(),
        }
    }
}

impl Factor<'_> {
    /// The transpose, without moving anything.
    ///
    /// # Panics
    /// For packed panels.
    pub fn t(self) -> Self {
        match self {
            Self::F32(x) => Self::F32(x.t()),
            Self::Bf16(x) => Self::Bf16(x.t()),
            Self::F16(x) => Self::F16(x.t()),
            #[cfg(target_arch = "x86_64")]
            Self::Packed(_) => panic!("packed panels have no transpose"),
        }
    }
}

impl<'a> From<Matrix<'a>> for Factor<'a> {
    fn from(matrix: Matrix<'a>) -> Self {
        Self::F32(matrix)
    }
}

/// The type to which the operands of a product are rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ops) enum Rounding {
    /// None: all is f32.
    F32,
    Bf16,
    F16,
}

impl From<FloatDType> for Rounding {
    fn from(dtype: FloatDType) -> Self {
        match dtype {
            FloatDType::BF16 => Self::Bf16,
            FloatDType::F16 => Self::F16,
            _ => Self::F32,
        }
    }
}
