//! Tensors of any rank in one list, as the operators on many tensors take them and give them back. Burn's macros know single
//! tensors and structs of them; this is what they would have written for a list.

use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Backend, BackendTensor, Dispatch, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind, ExtensionType,
};
use burn::tensor::Tensor;

/// Tensors of any rank, f32, without autodiff, on one device.
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
    pub fn push<const D: usize>(&mut self, tensor: Tensor<D>) {
        self.0.push(tensor.into_dispatch());
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
