//! The facts that a plan follows from, besides the config: the model's configuration and what is known of tokenizer and data.
//! They are gathered before anything is planned; nothing here opens a file.

use std::path::PathBuf;
use std::sync::Arc;

use kiln_models::ModelConfig;

use crate::data::Dataset;
use crate::data::tokenizer::{NamedFile, Tokenizer};

/// What a run reads.
#[derive(Clone)]
pub struct Inputs {
    /// The model, with vocabulary and labels settled.
    pub model_config: ModelConfig,
    /// The local folder of the pretrained model, if any.
    pub model_from: Option<PathBuf>,
    /// Files of the pretrained model's folder that stand beside the weights and are saved as they came.
    pub kept_files: Vec<NamedFile>,
    /// Fields of a pretrained model's `config.json` that Kiln does not know.
    pub unknown_model_fields: Vec<String>,
    /// The tokenizer, where there is one.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// Block size of packed text; none for data that is tokenised already.
    pub block_size: Option<usize>,
    /// Tokens that rows of a table are cut to; none for other data.
    pub max_length: Option<usize>,
    /// The id that padding uses.
    pub pad_id: u32,
    /// Training data.
    pub train: Arc<dyn Dataset>,
    /// Tokens of the training data.
    pub train_tokens: u64,
    /// Validation data, if any.
    pub validation: Option<Arc<dyn Dataset>>,
}
