//! A [`TensorList`] as the input or output of an operation of Burn's fusion: what its macro writes
//! for structs of tensors.

use burn::backend::Backend;
use burn::backend::fusion::custom::{
    ExtensionMetadata, Float, FusionValueAdapter, HandleContainer, OutputTensor, TensorId, TensorIr, TensorSpec,
};
use burn::backend::fusion::{ExecutionError, Fusion, FusionBackend, FusionRuntime, FusionTensor};

use super::super::list::TensorList;

impl<B: Backend> ExtensionMetadata for TensorList<B> {
    type Metadata = Vec<TensorSpec>;
    type Input = Vec<TensorIr>;
    type Output = Vec<OutputTensor>;
}

impl<B: FusionBackend> FusionValueAdapter<B> for TensorList<B> {
    type Metadata = Vec<TensorSpec>;
    type Input = Vec<TensorIr>;
    type Output = Vec<OutputTensor>;
    type Inner = Self;
    type Fused = TensorList<Fusion<B>>;

    fn to_metadata(value: &Self::Fused) -> Self::Metadata {
        value.0.iter().map(<Float as FusionValueAdapter<B>>::to_metadata).collect()
    }

    fn visit_fused_tensors(value: &Self::Fused, visit: &mut impl FnMut(&FusionTensor<B::FusionRuntime>)) {
        value.0.iter().for_each(visit);
    }

    fn tensor_count(meta: &Self::Metadata) -> usize {
        meta.len()
    }

    fn append_input_ir(value: Self::Fused, inputs: &mut Vec<TensorIr>) -> Self::Input {
        value.0.into_iter().map(|tensor| <Float as FusionValueAdapter<B>>::append_input_ir(tensor, inputs)).collect()
    }

    fn resolve_inputs(
        input: &Self::Input,
        handles: &mut HandleContainer<<B::FusionRuntime as FusionRuntime>::FusionHandle>,
    ) -> Self {
        Self(input.iter().map(|tensor| <Float as FusionValueAdapter<B>>::resolve_inputs(tensor, handles)).collect())
    }

    fn append_output_ir(
        meta: &Self::Metadata,
        out: &mut Vec<TensorIr>,
        create: &mut impl FnMut() -> TensorId,
    ) -> Self::Output {
        meta.iter().map(|spec| <Float as FusionValueAdapter<B>>::append_output_ir(spec, out, create)).collect()
    }

    fn validate_outputs(value: &Self, output: &Self::Output, device: Option<&B::Device>) -> Result<(), ExecutionError> {
        if value.0.len() != output.len() {
            let (given, described) = (value.0.len(), output.len());
            return Err(ExecutionError::generic(format!("a list of {given} tensors where {described} were described")));
        }
        value
            .0
            .iter()
            .zip(output)
            .try_for_each(|(tensor, output)| <Float as FusionValueAdapter<B>>::validate_outputs(tensor, output, device))
    }

    fn register_output_handles(
        value: Self,
        output: &Self::Output,
        handles: &mut HandleContainer<<B::FusionRuntime as FusionRuntime>::FusionHandle>,
    ) {
        for (tensor, output) in value.0.into_iter().zip(output) {
            <Float as FusionValueAdapter<B>>::register_output_handles(tensor, output, handles);
        }
    }

    fn build_fused_output(
        meta: &Self::Metadata,
        tensors: &mut std::vec::IntoIter<FusionTensor<B::FusionRuntime>>,
    ) -> Self::Fused {
        let build = |spec| <Float as FusionValueAdapter<B>>::build_fused_output(spec, tensors);
        TensorList(meta.iter().map(build).collect())
    }
}
