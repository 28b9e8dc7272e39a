//! A right factor that is packed once for many products, such as a weight that does not learn.

use std::fmt;
use std::sync::Arc;
#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::FloatDType;

use super::matrix::{Factor, Matrix, Rounding};

/// How products take their operands, and in which types they give results.
#[derive(Debug, Clone)]
pub struct Operands {
    /// The type that they are rounded to.
    pub dtype: FloatDType,
    /// Where the right factor is kept packed, for products of bf16 on the CPU; none to pack it for
    /// every one.
    pub packed: Option<Packed>,
    /// The type of the result of a fused linear layer or feed-forward block on wgpu and CUDA: f32
    /// or `dtype`, which the layers of this crate alone ask for. On the CPU it is f32.
    #[cfg_attr(not(feature = "compiler"), expect(dead_code))]
    pub(crate) result: FloatDType,
    /// The type of the gradient of the left factor there: f32 or `dtype`; none for the type of that
    /// factor. On the CPU it is f32.
    pub(crate) gradient: Option<FloatDType>,
}

impl From<FloatDType> for Operands {
    fn from(dtype: FloatDType) -> Self {
        Self { dtype, packed: None, result: FloatDType::F32, gradient: None }
    }
}

impl Operands {
    /// Operands of bf16 whose right factor is kept in `packed`.
    pub fn packed(packed: Packed) -> Self {
        Self { packed: Some(packed), ..FloatDType::BF16.into() }
    }

    /// The type of the gradient of the left factor `x`.
    pub(in crate::ops) fn gradient_of<B: Backend>(&self, x: &FloatTensor<B>) -> FloatDType {
        self.gradient.unwrap_or_else(|| x.dtype().into())
    }
}

/// One matrix, packed as the right factor of products of bf16 by the first of them. It must not
/// change meanwhile. Clones share the memory.
#[derive(Clone, Default)]
pub struct Packed(Arc<Panels>);

#[cfg(target_arch = "x86_64")]
type Panels = OnceLock<super::whole::Kept>;
#[cfg(not(target_arch = "x86_64"))]
type Panels = ();

impl fmt::Debug for Packed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packed").field("bytes", &self.bytes()).finish()
    }
}

impl Packed {
    /// Bytes that are packed: 0 before the first product, and where the products of this CPU have
    /// no packed form.
    pub fn bytes(&self) -> usize {
        #[cfg(target_arch = "x86_64")]
        return self.0.get().map_or(0, super::whole::Kept::bytes);
        #[cfg(not(target_arch = "x86_64"))]
        return 0;
    }

    /// `matrix` as the right factor of a product with operands rounded to `rounding`: packed, or as
    /// it is where such products have no packed form.
    ///
    /// # Panics
    /// For a matrix of another size than the one that is packed.
    pub(in crate::ops) fn right<'a>(&'a self, matrix: Factor<'a>, rounding: Rounding) -> Factor<'a> {
        #[cfg(target_arch = "x86_64")]
        if let Some(packed) = super::panels::packed(&self.0, matrix, rounding) {
            return Factor::Packed(packed);
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = rounding;
        matrix
    }
}

/// A matrix that one thread packs as the right factor of several of its products, in memory that it
/// uses again for the next one.
#[derive(Default)]
pub(in crate::ops) struct Repacked {
    #[cfg(target_arch = "x86_64")]
    kept: Option<super::whole::Kept>,
}

impl Repacked {
    /// Packs `matrix` for products with operands rounded to `rounding`, where they have panels.
    pub(in crate::ops) fn pack(&mut self, matrix: Matrix<'_>, rounding: Rounding) {
        #[cfg(target_arch = "x86_64")]
        {
            self.kept = super::panels::repacked(self.kept.take(), matrix.into(), rounding);
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (matrix, rounding);
    }

    /// `matrix`, which has the first rows and columns of the one that was packed last: in its
    /// panels if `packed` is set and it has some, or as it is. Its rows are a multiple of 32 or all
    /// of them where a product by tiles must not see later ones
    /// ([`Whole::first`](super::whole::Whole::first)).
    ///
    /// # Panics
    /// For a matrix with more rows or columns than the one that was packed.
    pub(in crate::ops) fn first<'a>(&'a self, matrix: Matrix<'a>, packed: bool) -> Factor<'a> {
        #[cfg(target_arch = "x86_64")]
        if let Some(kept) = self.kept.as_ref().filter(|_| packed) {
            return Factor::Packed(kept.whole().first(matrix.cols, matrix.rows));
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = packed;
        matrix.into()
    }
}
