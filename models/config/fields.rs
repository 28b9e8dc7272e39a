//! The known fields of a `config.json`: which have only one value here, which change nothing, and which have a
//! second name. The honoured ones are the structs' own.

use serde_json::{Value, json};

use super::{BertVariant, ModelType};

/// Fields that only one value computes what Kiln computes: anything else is refused. `(name, that value, why)`.
pub(super) type Fixed = (&'static str, fn() -> Value, &'static str);

const GPT2_FIXED: &[Fixed] = &[
    ("add_cross_attention", || json!(false), "cross-attention is not implemented"),
    ("is_encoder_decoder", || json!(false), "encoder-decoder models are not implemented"),
    ("scale_attn_by_inverse_layer_idx", || json!(false), "scaling attention by the layer index is not implemented"),
    ("tie_word_embeddings", || json!(true), "the output embedding is always the input embedding"),
    ("pruned_heads", || json!({}), "pruned heads are not implemented"),
    ("quantization_config", || Value::Null, "quantised weights are not implemented"),
];

const GPT_NEO_FIXED: &[Fixed] = &[
    ("add_cross_attention", || json!(false), "cross-attention is not implemented"),
    ("is_encoder_decoder", || json!(false), "encoder-decoder models are not implemented"),
    ("tie_word_embeddings", || json!(true), "the output embedding is always the input embedding"),
    ("pruned_heads", || json!({}), "pruned heads are not implemented"),
    ("quantization_config", || Value::Null, "quantised weights are not implemented"),
];

const BERT_FIXED: &[Fixed] = &[
    ("add_cross_attention", || json!(false), "cross-attention is not implemented"),
    ("is_encoder_decoder", || json!(false), "encoder-decoder models are not implemented"),
    ("is_decoder", || json!(false), "causal BERT is not implemented"),
    ("position_embedding_type", || json!("absolute"), "relative positions are not implemented"),
    ("tie_word_embeddings", || json!(true), "the output embedding is always the input embedding"),
    ("pruned_heads", || json!({}), "pruned heads are not implemented"),
    ("quantization_config", || Value::Null, "quantised weights are not implemented"),
];

const ELECTRA_FIXED: &[Fixed] = &[
    ("summary_type", || json!("first"), "multiple choice reads the first token"),
    ("summary_use_proj", || json!(true), "the head of multiple choice has a layer of its own"),
    ("summary_activation", || json!("gelu"), "the head of multiple choice has no other activation function"),
    ("summary_last_dropout", || json!(ELECTRA_SUMMARY_DROPOUT), "the head of multiple choice has no other dropout"),
    ("add_cross_attention", || json!(false), "cross-attention is not implemented"),
    ("is_encoder_decoder", || json!(false), "encoder-decoder models are not implemented"),
    ("is_decoder", || json!(false), "causal ELECTRA is not implemented"),
    ("position_embedding_type", || json!("absolute"), "relative positions are not implemented"),
    ("tie_word_embeddings", || json!(true), "the output embedding is always the input embedding"),
    ("pruned_heads", || json!({}), "pruned heads are not implemented"),
    ("quantization_config", || Value::Null, "quantised weights are not implemented"),
];

/// The dropout of ELECTRA's head of multiple choice (`summary_last_dropout`).
pub(crate) const ELECTRA_SUMMARY_DROPOUT: f64 = 0.1;

const ALBERT_FIXED: &[Fixed] = &[
    ("num_hidden_groups", || json!(1), "only layers that all share one set of weights are implemented"),
    ("inner_group_num", || json!(1), "groups of several layers are not implemented"),
    ("add_cross_attention", || json!(false), "cross-attention is not implemented"),
    ("is_encoder_decoder", || json!(false), "encoder-decoder models are not implemented"),
    ("is_decoder", || json!(false), "causal ALBERT is not implemented"),
    ("position_embedding_type", || json!("absolute"), "relative positions are not implemented"),
    ("tie_word_embeddings", || json!(true), "the output embedding is always the input embedding"),
    ("pruned_heads", || json!({}), "pruned heads are not implemented"),
    ("quantization_config", || Value::Null, "quantised weights are not implemented"),
];

const DISTILBERT_FIXED: &[Fixed] = &[
    ("add_cross_attention", || json!(false), "cross-attention is not implemented"),
    ("is_encoder_decoder", || json!(false), "encoder-decoder models are not implemented"),
    ("is_decoder", || json!(false), "causal DistilBERT is not implemented"),
    ("sinusoidal_pos_embds", || json!(false), "fixed sinusoidal positions are not implemented"),
    ("tie_weights_", || json!(true), "the output embedding is always the input embedding"),
    ("tie_word_embeddings", || json!(true), "the output embedding is always the input embedding"),
    ("pruned_heads", || json!({}), "pruned heads are not implemented"),
    ("quantization_config", || Value::Null, "quantised weights are not implemented"),
];

/// Fields that change nothing in what Kiln computes: identity, special tokens of the tokenizer, generation defaults,
/// output switches of the Python classes, storage hints, and numerics switches whose safe side Kiln always takes.
pub(super) const INERT: &[&str] = &[
    "_attn_implementation_autoset",
    "_name_or_path",
    "architectures",
    "attention_layers",
    "attn_implementation",
    "bos_token_id",
    "chunk_size_feed_forward",
    "cls_token_id",
    "directionality",
    "down_scale_factor",
    "dtype",
    "eos_token_id",
    "finetuning_task",
    "gap_size",
    "gradient_checkpointing",
    "is_decoder",
    "keys_to_ignore_at_inference",
    "mask_token_id",
    "max_length",
    "model_type",
    "n_ctx",
    "name_or_path",
    "net_structure_type",
    "num_memory_blocks",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
    "reorder_and_upcast_attn",
    "return_dict",
    "sep_token_id",
    "summary_activation",
    "summary_first_dropout",
    "summary_last_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "task_specific_params",
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "use_cache",
];

/// Hugging Face's generic names for GPT-2's fields (`GPT2Config.attribute_map`).
const GPT2_ALIASES: &[(&str, &str)] = &[
    ("hidden_size", "n_embd"),
    ("max_position_embeddings", "n_positions"),
    ("num_attention_heads", "n_head"),
    ("num_hidden_layers", "n_layer"),
];

/// Hugging Face's generic names for GPT-Neo's fields (`GPTNeoConfig.attribute_map`).
const GPT_NEO_ALIASES: &[(&str, &str)] = &[("num_attention_heads", "num_heads"), ("num_hidden_layers", "num_layers")];

/// Hugging Face's generic names for DistilBERT's fields (`DistilBertConfig.attribute_map`).
const DISTILBERT_ALIASES: &[(&str, &str)] =
    &[("hidden_size", "dim"), ("num_attention_heads", "n_heads"), ("num_hidden_layers", "n_layers")];

impl ModelType {
    pub(super) fn fixed(self) -> &'static [Fixed] {
        match self.bert_variant() {
            None if self == Self::GptNeo => GPT_NEO_FIXED,
            None => GPT2_FIXED,
            Some(BertVariant::DistilBert) => DISTILBERT_FIXED,
            Some(BertVariant::Albert) => ALBERT_FIXED,
            Some(BertVariant::Electra) => ELECTRA_FIXED,
            Some(_) => BERT_FIXED,
        }
    }

    pub(super) fn aliases(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Gpt2 => GPT2_ALIASES,
            Self::GptNeo => GPT_NEO_ALIASES,
            Self::DistilBert => DISTILBERT_ALIASES,
            _ => &[],
        }
    }
}
