//! Writes weights as `transformers` does: `model.safetensors`, f32, Hugging Face's names and
//! layout. A file appears under its name only when it is whole and on disk.

use std::collections::HashMap;
use std::io::{BufWriter, Write};
use std::path::Path;

use burn::module::{ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;
use kiln_core::whole_file::WholeFile;
use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};

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

/// Writes `tensors` to `path` as one safetensors file, as a [`WholeFile`]. The values go to the
/// file as they lie there: the file never stands in memory as a whole.
///
/// # Errors
/// The operating system's, for example a full disk; `path` is then as it was before.
pub fn write_safetensors(path: &Path, tensors: &[NamedTensor]) -> Result<()> {
    let io = |source| Error::Io { action: "write", path: path.into(), source };
    let mut tensors = tensors.iter().collect::<Vec<_>>();
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let header = header(&tensors).map_err(|error| io(std::io::Error::other(error)))?;
    let write = || {
        let whole = WholeFile::create(path)?;
        let mut file = BufWriter::with_capacity(1 << 20, whole.file());
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        for value in tensors.iter().flat_map(|tensor| &tensor.data) {
            file.write_all(&value.to_le_bytes())?;
        }
        file.flush()?;
        drop(file);
        whole.commit()
    };
    write().map_err(io)
}

/// The header of a file of `tensors`, which stand in it in this order, padded to the alignment that
/// the format recommends.
fn header(tensors: &[&NamedTensor]) -> std::result::Result<Vec<u8>, SafeTensorError> {
    let mut offset = 0;
    let infos = tensors.iter().map(|tensor| {
        let begin = offset;
        offset += size_of_val(&tensor.data[..]);
        let (dtype, shape) = (Dtype::F32, tensor.shape.clone());
        (tensor.name.clone(), TensorInfo { dtype, shape, data_offsets: (begin, offset) })
    });
    let format = HashMap::from([("format".to_string(), "pt".to_string())]);
    let mut header = serde_json::to_vec(&Metadata::new(Some(format), infos.collect())?)?;
    header.resize(header.len().next_multiple_of(size_of::<u64>()), b' ');
    Ok(header)
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_file_is_the_one_that_the_format_s_own_library_makes() {
        use safetensors::tensor::TensorView;

        let tensor = |name: &str, shape: &[usize]| NamedTensor {
            name: name.into(),
            shape: shape.into(),
            data: (0..shape.iter().product()).map(|i| i as f32 / 3.0).collect(),
        };
        let tensors =
            [tensor("h.10.bias", &[5]), tensor("h.2.weight", &[3, 7]), tensor("a", &[1, 1, 2]), tensor("z", &[0])];
        let path = tempfile::tempdir().unwrap();
        let path = path.path().join(MODEL_FILE);
        write_safetensors(&path, &tensors).unwrap();
        let bytes = tensors.iter().map(|it| it.data.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>());
        let bytes = bytes.collect::<Vec<_>>();
        let view = |(it, bytes)| {
            let NamedTensor { name, shape, .. }: &NamedTensor = it;
            (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
        };
        let views = tensors.iter().zip(bytes.iter().map(|bytes| &bytes[..])).map(view);
        let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        assert_eq!(std::fs::read(&path).unwrap(), safetensors::serialize(views, Some(format)).unwrap());
        // Values that are no number of the shape leave what is there.
        let error = write_safetensors(&path, &[NamedTensor { shape: vec![4], ..tensor("a", &[3]) }]).unwrap_err();
        assert!(matches!(error, Error::Io { action: "write", .. }), "{error}");
        assert_eq!(std::fs::read(&path).unwrap().len() % 4, 0);
    }
}
