//! Hugging Face weights in and out. `names` maps parameters to Hugging Face's tensor names, `files`
//! reads checkpoints of every layout `transformers` writes, `load` fits one to a model and reports
//! what did not, `save` writes one that `transformers` opens.

mod files;
mod load;
mod names;
mod save;

pub use files::{adapter_tensors, safetensors_words};
pub use load::{ALL_WIDE, LoadOptions, LoadReport, Misshaped, Narrow, load, load_adapted, load_saved, load_with};
pub(crate) use names::TRANSPOSED;
pub use names::{Depth, Parameter, StateDict, parameters};
pub use save::{ADAPTER_FILE, MODEL_FILE, NamedTensor, export, export_saved, save, to_hf_layout, write_safetensors};
