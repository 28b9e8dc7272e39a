//! A right factor that is packed once for many products, such as a weight that does not learn.

use std::fmt;
use std::sync::Arc;
#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::FloatDType;

use super::matrix::{Factor, Rounding};

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
type Panels = OnceLock<super::whole::Whole>;
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
        return self.0.get().map_or(0, super::whole::Whole::bytes);
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
