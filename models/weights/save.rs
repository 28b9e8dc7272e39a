//! Writes weights as `transformers` does: `model.safetensors`, f32, Hugging Face's names and
//! layout. A file appears under its name only when it is whole and on disk.

use std::collections::HashMap;
use std::path::Path;

use burn::module::{ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;
use kiln_core::whole_file;
use safetensors::tensor::{Dtype, TensorView};

use super::names::{Parameter, StateDict, parameters};
use crate::error::{Error, Result};

/// The weights of a model.
pub const MODEL_FILE: &str = "model.safetensors";

/// The weights of the adapters of a model.
pub const ADAPTER_FILE: &str = "adapter_model.safetensors";

/// A tensor on the host, f32, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedTensor {
    /// Its name in the file.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its values.
    pub data: Vec<f32>,
}

/// Every parameter of `model` under its Hugging Face name, in Hugging Face's layout.
///
/// # Errors
/// The device's message when a value cannot be read back.
pub fn export<M: StateDict>(model: &M) -> std::result::Result<Vec<NamedTensor>, String> {
    let parameters = parameters(model).into_iter().map(|parameter| (parameter.id, parameter)).collect();
    Export { parameters, exported: Vec::new(), error: None }.of(model)
}

/// The saved parameters of `model`, under the names of its file: every parameter but those of a
/// frozen base, in Hugging Face's layout.
///
/// # Errors
/// The device's message when a value cannot be read back.
pub fn export_saved<M: StateDict>(model: &M) -> std::result::Result<Vec<NamedTensor>, String> {
    let saved = |parameter: Parameter| {
        let name = parameter.saved_as.clone()?;
        Some((parameter.id, Parameter { name, ..parameter }))
    };
    let all = parameters(model);
    let also = |parameter: &Parameter| Some((parameter.saved_as.clone()?, model.also_saved_as(&parameter.name)?));
    let twice = all.iter().filter_map(also).collect::<Vec<_>>();
    let parameters = all.into_iter().filter_map(saved).collect();
    let mut exported = Export { parameters, exported: Vec::new(), error: None }.of(model)?;
    for (name, also) in twice {
        let copy = exported.iter().find(|tensor| tensor.name == name).cloned();
        exported.extend(copy.map(|tensor| NamedTensor { name: also, ..tensor }));
    }
    Ok(exported)
}

/// A parameter's value or gradient on the host, turned into Hugging Face's layout.
///
/// # Errors
/// The device's message when the value cannot be read back.
pub fn to_hf_layout<const D: usize>(
    parameter: &Parameter,
    tensor: Tensor<D>,
) -> std::result::Result<NamedTensor, String> {
    let tensor = if parameter.transposed { tensor.swap_dims(0, 1) } else { tensor };
    let shape = tensor.dims().to_vec();
    let data = tensor.try_into_vec_as::<f32>().map_err(|error| format!("{}: {error}", parameter.name))?;
    Ok(NamedTensor { name: parameter.name.clone(), shape, data })
}

/// Writes what is saved of `model` into its [file](StateDict::file) in `folder`.
///
/// # Errors
/// A value that cannot be read from the device, or a folder that cannot be written.
pub fn save<M: StateDict>(model: &M, folder: &Path) -> Result<()> {
    let path = folder.join(model.file());
    let tensors = export_saved(model).map_err(|problem| Error::Weights { path: path.clone(), problem })?;
    write_safetensors(&path, &tensors)
}

/// Writes `tensors` to `path` as one safetensors file, as a
/// [`WholeFile`](kiln_core::whole_file::WholeFile).
///
/// # Errors
/// The operating system's, for example a full disk; `path` is then as it was before.
pub fn write_safetensors(path: &Path, tensors: &[NamedTensor]) -> Result<()> {
    let io = |source| Error::Io { action: "write", path: path.into(), source };
    let bytes = tensors
        .iter()
        .map(|tensor| tensor.data.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())
        .collect::<Vec<_>>();
    let views = tensors.iter().zip(&bytes).map(|(tensor, bytes)| {
        let view = TensorView::new(Dtype::F32, tensor.shape.clone(), bytes)
            .expect("four bytes a value and the shape of the tensor they came from");
        (tensor.name.as_str(), view)
    });
    let header = HashMap::from([("format".to_string(), "pt".to_string())]);
    let serialized = safetensors::serialize(views, Some(header)).map_err(|error| io(std::io::Error::other(error)))?;
    whole_file::write(path, &serialized).map_err(io)
}

struct Export {
    parameters: HashMap<ParamId, Parameter>,
    exported: Vec<NamedTensor>,
    error: Option<String>,
}

impl Export {
    fn of<M: StateDict>(mut self, model: &M) -> std::result::Result<Vec<NamedTensor>, String> {
        model.visit(&mut self);
        match self.error {
            Some(error) => Err(error),
            None => Ok(self.exported),
        }
    }
}

impl ModuleVisitor for Export {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(parameter) = self.parameters.get(&param.id) else { return };
        match to_hf_layout(parameter, param.val()) {
            Ok(tensor) => self.exported.push(tensor),
            Err(error) => self.error = Some(error),
        }
    }
}
