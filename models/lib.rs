//! This crate has the models GPT-2, BERT and Llama on [Burn](https://burn.dev). Each model is one
//! module with Hugging Face's names, and the device decides which backend runs it. GPT-Neo is a
//! variant of GPT-2. RoBERTa (with CamemBERT and XLM-RoBERTa), DistilBERT, ELECTRA and ALBERT are
//! variants of BERT. Mistral, Qwen and SmolLM3 are variants of Llama.
//!
//! A model takes token ids `[batch, seq]` and returns logits. The crate has no data, no training
//! loop, and no files but weights. [`ops`] has the operators of the models and of their training,
//! in a plain and a fused form; any Burn module may call them.
//!
//! ```
//! use burn::tensor::{Device, Int, Tensor};
//! use kiln_models::{Head, Model, ModelConfig, ModelInput, ModelType};
//!
//! let mut fields = serde_json::Map::new();
//! fields.insert("n_layer".into(), 2.into());
//! fields.insert("n_head".into(), 2.into());
//! fields.insert("n_embd".into(), 16.into());
//! fields.insert("vocab_size".into(), 100.into());
//! let config = ModelConfig::from_fields(ModelType::Gpt2, &fields)?;
//!
//! let device = Device::default();
//! let model = Model::new(&config, Head::CausalLm, &device)?;
//! let input_ids = Tensor::<2, Int>::from_ints([[1, 2, 3], [4, 5, 6]], &device);
//! let input = ModelInput { input_ids, attention_mask: None, token_type_ids: None, position_ids: None };
//! let logits = model.forward(input, false);
//! assert_eq!(logits.dims(), [6, 100]); // [batch * seq, vocab_size]
//! # Ok::<(), kiln_models::Error>(())
//! ```

#[cfg(all(feature = "compiler", not(any(feature = "wgpu", feature = "cuda"))))]
compile_error!("`compiler` is the compiled engine for a GPU: add the feature `wgpu` or `cuda`; the CPU needs neither");

mod error;
pub mod ops;
pub mod lora;
pub mod layers;
pub mod rows;
mod kv_cache;
pub mod gpt2;
pub mod bert;
pub mod llama;
pub mod weights;
mod model;

pub use error::{AllowedBy, Error, Result};
pub use kiln_core::model_config::{
    Activation, BertConfig, BertVariant, Gpt2Config, Gpt2Variant, Head, LlamaConfig, LlamaVariant, ModelConfig,
    ModelType, RopeParameters,
};
pub use kv_cache::KvCache;
pub use lora::{ADAPTER_CONFIG_NAMES, LoraBias, LoraConfig, LoraInit, Patterns, TokenIndices};
pub use model::{Body, Model, ModelInput, VocabularyProjection};
pub use ops::{Compute, Copies, Operator, Ops, Pass};
pub use rows::Rows;
