//! Arguments of operators that are no single tensors: tensors of any rank in one list, as the
//! operators on many tensors take them and give them back, and a tensor that may be missing. Burn's
//! macros know single tensors, structs and enums of them; for a list this is what they would have
//! written.

use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Backend, BackendTensor, Dispatch, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind, ExtensionType,
    TensorMetadata,
};
#[cfg(feature = "compiler")]
use burn::tensor::Shape;
use burn::tensor::{DType, Tensor};

/// Tensors of any rank, f32 or in the type of copies, on one device.
#[derive(Debug, Clone)]
pub struct TensorList<B: Backend = Dispatch>(pub(super) Vec<FloatTensor<B>>);

impl<B: Backend> Default for TensorList<B> {
    /// None.
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl TensorList {
    /// Appends `tensor`.
    ///
    /// # Panics
    /// For another type than f32, and for a tensor on another device than those before it.
    pub fn push<const D: usize>(&mut self, tensor: Tensor<D>) {
        self.push_in(DType::F32, tensor);
    }

    /// Appends `tensor`, which is in `dtype`.
    ///
    /// # Panics
    /// For another type, and for a tensor on another device than those before it.
    pub(super) fn push_in<const D: usize>(&mut self, expected: DType, tensor: Tensor<D>) {
        let dtype = tensor.dtype();
        assert!(dtype == expected, "list of tensors: expected {expected:?}, got {dtype:?}");
        let tensor = tensor.into_dispatch();
        if let Some(first) = self.0.first() {
            let (expected, got) = (first.device(), tensor.device());
            assert!(got == expected, "list of tensors: expected a tensor on {expected:?}, got one on {got:?}");
        }
        self.0.push(tensor);
    }

    /// The shape of each.
    #[cfg(feature = "compiler")]
    pub(super) fn shapes(&self) -> Vec<Shape> {
        self.0.iter().map(TensorMetadata::shape).collect()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<B: Backend> ExtensionType<B> for TensorList<B> {
    type Target = TensorList;

    fn map_to_dispatch<F>(self, map_kind: F, autodiff: DispatchAutodiffContext) -> Self::Target
    where
        F: Fn(BackendTensor<B>) -> DispatchTensorKind,
    {
        let wrap = |tensor| DispatchTensor { kind: map_kind(BackendTensor::Float(tensor)), autodiff };
        TensorList(self.0.into_iter().map(wrap).collect())
    }

    fn map_from_dispatch<F>(target: Self::Target, unwrap_kind: F) -> Self
    where
        F: Fn(DispatchTensor) -> BackendTensor<B>,
    {
        Self(target.0.into_iter().map(|tensor| unwrap_kind(tensor).float()).collect())
    }

    fn routing_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        target.0.first()
    }

    fn routing_float_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        target.0.first()
    }

    fn autodiff_context(target: &Self::Target) -> DispatchAutodiffContext {
        target.0.iter().fold(DispatchAutodiffContext::Disabled, |context, tensor| context.merge(tensor.autodiff))
    }
}

/// A tensor that a call may be without.
#[derive(Debug, Clone, ExtensionType)]
pub(super) enum Optional<B: Backend> {
    Given(FloatTensor<B>),
    Missing,
}

impl<B: Backend> Optional<B> {
    /// The tensor, if there is one.
    pub(super) fn given(self) -> Option<FloatTensor<B>> {
        match self {
            Self::Given(tensor) => Some(tensor),
            Self::Missing => None,
        }
    }

    /// The result of `each` for the tensor, if there is one.
    pub(super) fn map<A: Backend>(self, each: impl FnOnce(FloatTensor<B>) -> FloatTensor<A>) -> Optional<A> {
        self.given().map_or(Optional::Missing, |tensor| Optional::Given(each(tensor)))
    }
}

impl<const D: usize> From<Option<Tensor<D>>> for Optional<Dispatch> {
    fn from(tensor: Option<Tensor<D>>) -> Self {
        tensor.map_or(Self::Missing, |tensor| Self::Given(tensor.into_dispatch()))
    }
}
