//! Reads the weight files of a Hugging Face folder: `model.safetensors` or `pytorch_model.bin`,
//! single or sharded with an index. Headers are checked before anything is trusted; values come out
//! as f32, whatever the file stores.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use kiln_core::files::is_plain_name;
use kiln_core::words::json_words;
use memmap2::Mmap;
use pytorch_reader::PytorchReader;
use safetensors::tensor::Metadata;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde_json::Value;

use super::save::{ADAPTER_FILE, MODEL_FILE};
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
    Safetensors { path: PathBuf, file: File, data_start: usize, metadata: Metadata },
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
        let names = [MODEL_FILE, "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"];
        Self::open_one_of(folder, &names)
    }

    /// Opens the weights of the adapter in `folder`.
    pub(super) fn open_adapter(folder: &Path) -> Result<Self> {
        Self::open_one_of(folder, &[ADAPTER_FILE, "adapter_model.bin"])
    }

    fn open_one_of(folder: &Path, names: &[&str]) -> Result<Self> {
        let Some(found) = names.iter().map(|name| folder.join(name)).find(|path| path.is_file()) else {
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
        let json: Value =
            serde_json::from_str(&text).map_err(|error| bad(format!("not JSON: {}", json_words(&error))))?;
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

    /// Reads a tensor that [`contains`](Self::contains) knows; one of two dimensions is `turned`
    /// meanwhile, from `[rows, columns]` into `[columns, rows]`.
    ///
    /// A file of safetensors is read by parts, so that nothing besides the values themselves takes
    /// as much memory as the tensor.
    pub(super) fn read(&self, name: &str, turned: bool) -> Result<Values> {
        match &self.shards[self.index[name]] {
            Shard::Safetensors { path, file, data_start, metadata } => {
                let info = metadata.info(name).expect("the index lists only names that the shard holds");
                let decode: Decode = match info.dtype {
                    Dtype::F32 => |bytes, onto| decode(bytes, f32::from_le_bytes, onto),
                    Dtype::F64 => |bytes, onto| decode(bytes, |b| f64::from_le_bytes(b) as f32, onto),
                    Dtype::F16 => |bytes, onto| decode(bytes, |b| f16::from_le_bytes(b).to_f32(), onto),
                    Dtype::BF16 => |bytes, onto| decode(bytes, |b| bf16::from_le_bytes(b).to_f32(), onto),
                    other => return Err(not_float(path, name, &format!("{other:?}"))),
                };
                let bytes = info.data_offsets.1 - info.data_offsets.0;
                let mut values = Reading::new(&info.shape, turned, bytes, decode);
                // Read and not mapped: the pages of a map count as memory of this process.
                let mut file = file;
                let start = SeekFrom::Start((data_start + info.data_offsets.0) as u64);
                file.seek(start).map_err(|source| io(path, source))?;
                let (mut left, mut part) = (bytes, vec![0; values.part]);
                while left > 0 {
                    part.truncate(left);
                    file.read_exact(&mut part).map_err(|source| io(path, source))?;
                    values.take(&part);
                    left -= part.len();
                }
                Ok(values.values)
            }
            Shard::Pytorch { path, reader } => {
                let tensor = reader.get(name).expect("the index lists only names that the shard holds");
                let bytes = tensor
                    .read()
                    .map_err(|error| Error::Weights { path: path.clone(), problem: format!("{name}: {error}") })?;
                let decode: Decode = match tensor.dtype() {
                    pytorch_reader::DType::F32 => |bytes, onto| decode(bytes, f32::from_ne_bytes, onto),
                    pytorch_reader::DType::F64 => |bytes, onto| decode(bytes, |b| f64::from_ne_bytes(b) as f32, onto),
                    pytorch_reader::DType::F16 => |bytes, onto| decode(bytes, |b| f16::from_ne_bytes(b).to_f32(), onto),
                    pytorch_reader::DType::BF16 => |bytes, onto| {
                        decode(bytes, |b| bf16::from_ne_bytes(b).to_f32(), onto);
                    },
                    other => return Err(not_float(path, name, &format!("{other:?}"))),
                };
                let mut values = Reading::new(tensor.shape(), turned, bytes.len(), decode);
                bytes.chunks(values.part.max(1)).for_each(|part| values.take(part));
                Ok(values.values)
            }
        }
    }
}

/// Puts the values of bytes onto others.
type Decode = fn(&[u8], &mut Vec<f32>);

/// Bytes of a tensor that are read at a time, where a row is shorter: so few that they are in the
/// cache when they are turned.
const PART: usize = 1 << 19;

/// A tensor that is read by parts.
struct Reading {
    values: Values,
    decode: Decode,
    /// Bytes of a part: of whole rows, where the tensor is turned.
    part: usize,
    turned: Option<Turned>,
}

/// The state of a tensor that is turned.
struct Turned {
    rows: usize,
    columns: usize,
    /// Rows that have been taken.
    taken: usize,
    /// The values of a part.
    values: Vec<f32>,
}

impl Reading {
    /// Begins with a tensor of `shape`, which has so many `bytes` in the file.
    fn new(shape: &[usize], turned: bool, bytes: usize, decode: Decode) -> Self {
        let len = shape.iter().product::<usize>();
        match *shape {
            [rows, columns] if turned => {
                let row = bytes / rows.max(1);
                Self {
                    values: Values { shape: vec![columns, rows], data: vec![0.0; len] },
                    decode,
                    part: bytes.min(row * (PART / row.max(1)).max(1)),
                    turned: Some(Turned { rows, columns, taken: 0, values: Vec::new() }),
                }
            }
            _ => Self {
                values: Values { shape: shape.to_vec(), data: Vec::with_capacity(len) },
                decode,
                part: bytes.min(PART),
                turned: None,
            },
        }
    }

    /// Takes the next part.
    fn take(&mut self, bytes: &[u8]) {
        let data = &mut self.values.data;
        let Some(Turned { rows, columns, taken, values }) = &mut self.turned else {
            return (self.decode)(bytes, data);
        };
        values.clear();
        (self.decode)(bytes, values);
        let count = values.len() / *columns;
        for column in 0..*columns {
            let to = &mut data[column * *rows + *taken..][..count];
            to.iter_mut().enumerate().for_each(|(row, to)| *to = values[row * *columns + column]);
        }
        *taken += count;
    }
}

/// The names and shapes of the tensors of the adapter in `folder`.
///
/// # Errors
/// A file that is missing or is no file of weights.
pub fn adapter_tensors(folder: &Path) -> Result<Vec<(String, Vec<usize>)>> {
    let checkpoint = Checkpoint::open_adapter(folder)?;
    Ok(checkpoint.names().map(|name| (name.clone(), checkpoint.shape(name).unwrap_or_default())).collect())
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
        // SAFETY: the map is read-only, and only the header is read through it. As with every
        // reader of mapped files, whoever truncates the file meanwhile stops this process; nothing
        // here writes to it.
        #[allow(unsafe_code)]
        let map = unsafe { Mmap::map(&file) }.map_err(|source| io(path, source))?;
        // Checks the header's length, that it is JSON, that the offsets are contiguous, fit dtype
        // times shape, and end where the file ends.
        let (header, metadata) = SafeTensors::read_metadata(&map).map_err(|error| Error::Weights {
            path: path.into(),
            problem: format!("not a valid safetensors file ({} bytes): {}", map.len(), safetensors_words(&error)),
        })?;
        Ok(Self::Safetensors { path: path.into(), data_start: 8 + header, file, metadata })
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

fn decode<const N: usize>(bytes: &[u8], element: impl Fn([u8; N]) -> f32, onto: &mut Vec<f32>) {
    onto.extend(bytes.as_chunks::<N>().0.iter().map(|&chunk| element(chunk)));
}

fn not_float(path: &Path, name: &str, dtype: &str) -> Error {
    Error::Weights { path: path.into(), problem: format!("{name}: expected F32, F16, BF16 or F64, got {dtype}") }
}

fn io(path: &Path, source: std::io::Error) -> Error {
    Error::Io { action: "read", path: path.into(), source }
}

/// Describes the fault of a file that is no safetensors file.
pub fn safetensors_words(error: &SafeTensorError) -> String {
    let words = match error {
        SafeTensorError::HeaderTooSmall => "it ends before its header",
        SafeTensorError::HeaderTooLarge => "its first 8 bytes state a header of more than 100 MB",
        SafeTensorError::InvalidHeaderLength => "its first 8 bytes state a header that is longer than the file",
        SafeTensorError::InvalidHeader(_) => "its header is not UTF-8 text",
        SafeTensorError::InvalidHeaderDeserialization(error) | SafeTensorError::JsonError(error) => {
            return format!("its header is not the JSON of tensors: {}", json_words(error));
        }
        SafeTensorError::InvalidOffset(name) => {
            return format!("the bytes of the tensor {name} do not begin where those before it end");
        }
        SafeTensorError::MetadataIncompleteBuffer => {
            "its tensors do not fill it: bytes are missing or left over at its end"
        }
        SafeTensorError::TensorInvalidInfo => "the shape of a tensor and the number of its bytes do not agree",
        SafeTensorError::ValidationOverflow => "the shape of a tensor is too large to be counted",
        other => return other.to_string(),
    };
    words.to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn files_that_are_no_safetensors() {
        let words = |bytes: &[u8]| safetensors_words(&SafeTensors::read_metadata(bytes).unwrap_err());
        assert_eq!(words(b"x"), "it ends before its header");
        assert_eq!(words(&200u64.to_le_bytes()), "its first 8 bytes state a header that is longer than the file");
        let header = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
        assert!(words(&header("{\"a\": 1}")).starts_with("its header is not the JSON of tensors: line 1, column "));
        assert_eq!(
            words(&header("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}")),
            "its tensors do not fill it: bytes are missing or left over at its end"
        );
    }
}
