//! Reads the weight files of a Hugging Face folder: `model.safetensors` or `pytorch_model.bin`, single or sharded with an
//! index. Headers are checked before anything is trusted; values come out as f32, whatever the file stores.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use memmap2::Mmap;
use pytorch_reader::PytorchReader;
use safetensors::tensor::Metadata;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use crate::error::{Error, Result};

/// An opened checkpoint: every tensor's name, and where to read it.
pub(super) struct Checkpoint {
    /// The folder, for messages.
    pub(super) folder: PathBuf,
    shards: Vec<Shard>,
    /// Tensor name -> index of its shard.
    index: BTreeMap<String, usize>,
}

enum Shard {
    Safetensors { path: PathBuf, map: Mmap, data_start: usize, metadata: Metadata },
    Pytorch { path: PathBuf, reader: PytorchReader },
}

/// A tensor's values in row-major order, with the shape that the file gives.
pub(super) struct Values {
    pub(super) shape: Vec<usize>,
    pub(super) data: Vec<f32>,
}

impl Checkpoint {
    /// Opens the weights of `folder`, in the order of preference of `transformers`.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let names =
            ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"];
        let Some(found) = names.into_iter().map(|name| folder.join(name)).find(|path| path.is_file()) else {
            return Err(Error::Weights {
                path: folder.into(),
                problem: format!("no weights found; expected one of {}", names.join(", ")),
            });
        };
        let mut checkpoint = Self { folder: folder.into(), shards: Vec::new(), index: BTreeMap::new() };
        if found.extension().is_some_and(|extension| extension == "json") {
            checkpoint.open_sharded(&found)?;
        } else {
            let shard = Shard::open(&found)?;
            checkpoint.index = shard.names().into_iter().map(|name| (name, 0)).collect();
            checkpoint.shards.push(shard);
        }
        Ok(checkpoint)
    }

    fn open_sharded(&mut self, index: &Path) -> Result<()> {
        let bad = |problem: String| Error::Weights { path: index.into(), problem };
        let text = std::fs::read_to_string(index).map_err(|source| io(index, source))?;
        let json: Value = serde_json::from_str(&text).map_err(|error| bad(format!("not JSON: {error}")))?;
        let Some(map) = json.get("weight_map").and_then(Value::as_object) else {
            return Err(bad("expected an object \"weight_map\" from tensor names to files".into()));
        };
        let (mut files, mut positions) = (Vec::<&str>::new(), HashMap::new());
        for (name, file) in map {
            let Some(file) = file.as_str().filter(|file| is_plain_name(file)) else {
                return Err(bad(format!(
                    "weight_map.{name}: expected the name of a file beside the index, got {file}"
                )));
            };
            let position = *positions.entry(file).or_insert_with(|| {
                files.push(file);
                files.len() - 1
            });
            self.index.insert(name.clone(), position);
        }
        for file in &files {
            self.shards.push(Shard::open(&index.with_file_name(file))?);
        }
        for (name, &shard) in &self.index {
            if !self.shards[shard].holds(name) {
                return Err(bad(format!("says that {name} is in {}, which does not hold it", files[shard])));
            }
        }
        Ok(())
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.index.contains_key(name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.index.keys()
    }

    /// The shape of a tensor, without reading its values.
    pub(super) fn shape(&self, name: &str) -> Option<Vec<usize>> {
        match &self.shards[*self.index.get(name)?] {
            Shard::Safetensors { metadata, .. } => metadata.info(name).map(|info| info.shape.clone()),
            Shard::Pytorch { reader, .. } => reader.get(name).map(|tensor| tensor.shape().to_vec()),
        }
    }

    /// Reads a tensor that [`contains`](Self::contains) knows.
    pub(super) fn read(&self, name: &str) -> Result<Values> {
        match &self.shards[self.index[name]] {
            Shard::Safetensors { path, map, data_start, metadata } => {
                let info = metadata.info(name).expect("the index lists only names that the shard holds");
                let bytes = &map[data_start + info.data_offsets.0..data_start + info.data_offsets.1];
                let data = match info.dtype {
                    Dtype::F32 => decode(bytes, f32::from_le_bytes),
                    Dtype::F64 => decode(bytes, |b| f64::from_le_bytes(b) as f32),
                    Dtype::F16 => decode(bytes, |b| f16::from_le_bytes(b).to_f32()),
                    Dtype::BF16 => decode(bytes, |b| bf16::from_le_bytes(b).to_f32()),
                    other => return Err(not_float(path, name, &format!("{other:?}"))),
                };
                Ok(Values { shape: info.shape.clone(), data })
            }
            Shard::Pytorch { path, reader } => {
                let tensor = reader.get(name).expect("the index lists only names that the shard holds");
                let bytes = tensor
                    .read()
                    .map_err(|error| Error::Weights { path: path.clone(), problem: format!("{name}: {error}") })?;
                let data = match tensor.dtype() {
                    pytorch_reader::DType::F32 => decode(&bytes, f32::from_ne_bytes),
                    pytorch_reader::DType::F64 => decode(&bytes, |b| f64::from_ne_bytes(b) as f32),
                    pytorch_reader::DType::F16 => decode(&bytes, |b| f16::from_ne_bytes(b).to_f32()),
                    pytorch_reader::DType::BF16 => decode(&bytes, |b| bf16::from_ne_bytes(b).to_f32()),
                    other => return Err(not_float(path, name, &format!("{other:?}"))),
                };
                Ok(Values { shape: tensor.shape().to_vec(), data })
            }
        }
    }
}

/// Whether `name` is one plain component of a path, which stays in the folder that it is joined to on every system: not empty,
/// no `.` or `..`, no separator, no drive, no control character. For names that come from files and servers.
pub fn is_plain_name(name: &str) -> bool {
    let has_drive =
        name.as_bytes().first().is_some_and(u8::is_ascii_alphabetic) && name.as_bytes().get(1) == Some(&b':');
    !matches!(name, "" | "." | "..") && !has_drive && !name.contains(|c: char| c == '/' || c == '\\' || c.is_control())
}

impl Shard {
    fn open(path: &Path) -> Result<Self> {
        if !path.is_file() {
            return Err(Error::Weights { path: path.into(), problem: "no such file; the index names it".into() });
        }
        if path.extension().is_some_and(|extension| extension == "bin") {
            let reader = PytorchReader::new(path).map_err(|error| Error::Weights {
                path: path.into(),
                problem: format!("not a readable PyTorch checkpoint: {error}"),
            })?;
            return Ok(Self::Pytorch { path: path.into(), reader });
        }
        let file = File::open(path).map_err(|source| io(path, source))?;
        // SAFETY: the map is read-only. As with every reader of mapped files, whoever truncates the file while it is being
        // read stops this process; nothing here writes to it.
        #[allow(unsafe_code)]
        let map = unsafe { Mmap::map(&file) }.map_err(|source| io(path, source))?;
        // Checks the header's length, that it is JSON, that the offsets are contiguous, fit dtype times shape, and end
        // where the file ends.
        let (header, metadata) = SafeTensors::read_metadata(&map).map_err(|error| Error::Weights {
            path: path.into(),
            problem: format!("not a valid safetensors file ({} bytes): {error}", map.len()),
        })?;
        Ok(Self::Safetensors { path: path.into(), data_start: 8 + header, map, metadata })
    }

    fn names(&self) -> Vec<String> {
        match self {
            Self::Safetensors { metadata, .. } => metadata.tensors().into_keys().collect(),
            Self::Pytorch { reader, .. } => reader.keys(),
        }
    }

    fn holds(&self, name: &str) -> bool {
        match self {
            Self::Safetensors { metadata, .. } => metadata.info(name).is_some(),
            Self::Pytorch { reader, .. } => reader.get(name).is_some(),
        }
    }
}

fn decode<const N: usize>(bytes: &[u8], element: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    bytes.as_chunks::<N>().0.iter().map(|&chunk| element(chunk)).collect()
}

fn not_float(path: &Path, name: &str, dtype: &str) -> Error {
    Error::Weights { path: path.into(), problem: format!("{name}: expected F32, F16, BF16 or F64, got {dtype}") }
}

fn io(path: &Path, source: std::io::Error) -> Error {
    Error::Io { action: "read", path: path.into(), source }
}
