//! The names of a `config.json`, a table for each family: which are honoured, which have only one
//! value here, and which change nothing. Second names of honoured fields stand beside them.

use serde_json::json;

use super::{BertVariant, LlamaVariant, ModelType};
use crate::names::{Name, NameTable, Unknown};

/// A table of `config.json`: what a family has of its own, and what all families share.
macro_rules! table {
    ($file:literal, $($own:expr),+ $(,)?) => {
        NameTable {
            file: $file,
            source: "transformers 5.24",
            names: &[
                Name::honoured("model_type", "the family"),
                Name::honoured("architectures", "the class that was saved: its head is the task of an adapter that states none"),
                $($own,)+
                Name::honoured("vocab_size", "the number of tokens"),
                Name::honoured("initializer_range", "the spread of new weights"),
                Name::honoured("pad_token_id", "the id of padding"),
                Name::honoured("tie_word_embeddings", "whether the output of a language model is the embedding again"),
                Name::honoured("num_labels", "the number of labels; `id2label` must have as many"),
                Name::honoured("id2label", "the names of the labels"),
                Name::honoured("label2id", "the same again; it must agree with `id2label`"),
                Name::honoured("problem_type", "the loss of a classification"),
                Name::only("add_cross_attention", || json!(false), "cross-attention is not implemented"),
                Name::only("is_encoder_decoder", || json!(false), "encoder-decoder models are not implemented"),
                Name::only("pruned_heads", || json!({}), "pruned heads are not implemented"),
                Name::refused("quantization_config", "quantised weights are not implemented"),
                Name::told("auto_map", "Kiln runs no code of a model folder"),
                Name::inert("bos_token_id", "the tokenizer's"),
                Name::honoured("eos_token_id", "where a generated text ends when `generation_config.json` does not say it"),
                Name::inert("cls_token_id", "the tokenizer's"),
                Name::inert("sep_token_id", "the tokenizer's"),
                Name::inert("mask_token_id", "the tokenizer's"),
                Name::honoured("tokenizer_class", "the class of the tokenizer when `tokenizer_config.json` names none"),
                Name::inert("_name_or_path", "where the model came from"),
                Name::inert("name_or_path", "where the model came from"),
                Name::inert("transformers_version", "the writer's version"),
                Name::inert("finetuning_task", "a note of the writer"),
                Name::inert("_num_labels", "an old copy of `num_labels`, which `transformers` does not read"),
                Name::inert("keys_to_ignore_at_inference", "what the Trainer leaves out of predictions"),
                Name::inert("task_specific_params", "settings of pipelines"),
                Name::inert("max_length", "a limit of generation, which Kiln takes from `generation_config.json`"),
                Name::inert("dtype", "Kiln keeps weights in f32 and computes as `precision` says"),
                Name::inert("torch_dtype", "the old name of `dtype`"),
                Name::inert("attn_implementation", "Kiln has its own operators"),
                Name::inert("_attn_implementation_autoset", "Kiln has its own operators"),
                Name::inert("chunk_size_feed_forward", "the same sums in parts"),
                Name::inert("gradient_checkpointing", "`trainer.activation_checkpointing` says it"),
                Name::inert("output_attentions", "what a Python class returns"),
                Name::inert("output_hidden_states", "what a Python class returns"),
                Name::inert("output_past", "what a Python class returns"),
                Name::inert("return_dict", "what a Python class returns"),
                Name::inert("use_cache", "what a Python class returns"),
                Name::inert("torchscript", "how a Python class is traced"),
            ],
            unknown: Unknown::Told,
        }
    };
}

/// [`table!`] of GPT-2 and GPT-Neo.
macro_rules! gpt {
    ($file:literal, $($own:expr),+ $(,)?) => {
        table!(
            $file,
            $($own,)+
            Name::honoured("activation_function", "`gelu_new`, `gelu_pytorch_tanh` or `gelu`"),
            Name::honoured("layer_norm_epsilon", "what LayerNorm adds to the variance"),
            Name::inert("is_decoder", "the attention is causal whatever it says"),
            Name::inert("n_ctx", "an old copy of the number of positions"),
            Name::inert("summary_type", "of a head that Kiln does not have"),
            Name::inert("summary_use_proj", "of a head that Kiln does not have"),
            Name::inert("summary_activation", "of a head that Kiln does not have"),
            Name::inert("summary_proj_to_labels", "of a head that Kiln does not have"),
            Name::inert("summary_first_dropout", "of a head that Kiln does not have"),
            Name::inert("reorder_and_upcast_attn", "attention's weights are computed in f32 anyway"),
        )
    };
}

/// [`table!`] of BERT and its variants.
macro_rules! bert {
    ($file:literal, $($own:expr),+ $(,)?) => {
        table!(
            $file,
            $($own,)+
            Name::honoured("max_position_embeddings", "the rows of the position table"),
            Name::only("is_decoder", || json!(false), "a causal encoder is not implemented"),
            Name::only("position_embedding_type", || json!("absolute"), "relative positions are not implemented"),
            Name::inert("directionality", "a note of the writer"),
            Name::inert("pooler_type", "of an older pooler, which no class of `transformers` has"),
            Name::inert("pooler_fc_size", "of an older pooler, which no class of `transformers` has"),
            Name::inert("pooler_num_attention_heads", "of an older pooler, which no class of `transformers` has"),
            Name::inert("pooler_num_fc_layers", "of an older pooler, which no class of `transformers` has"),
            Name::inert("pooler_size_per_head", "of an older pooler, which no class of `transformers` has"),
        )
    };
}

/// [`bert!`] of the variants with BERT's own names.
macro_rules! named_as_bert {
    ($file:literal, $($own:expr),* $(,)?) => {
        bert!(
            $file,
            $($own,)*
            Name::honoured("hidden_size", "the width"),
            Name::honoured("num_hidden_layers", "the number of layers"),
            Name::honoured("num_attention_heads", "the number of heads"),
            Name::honoured("intermediate_size", "the width of the feed-forward block"),
            Name::honoured("hidden_act", "`gelu`, `gelu_new` or `gelu_pytorch_tanh`"),
            Name::honoured("hidden_dropout_prob", "the dropout of embeddings and residual branches"),
            Name::honoured("attention_probs_dropout_prob", "the dropout of attention's weights"),
            Name::honoured("type_vocab_size", "the number of token types"),
            Name::honoured("layer_norm_eps", "what LayerNorm adds to the variance"),
        )
    };
}

/// [`table!`] of Llama and its variants.
macro_rules! llama {
    ($file:literal, $($own:expr),* $(,)?) => {
        table!(
            $file,
            $($own,)*
            Name::honoured("hidden_size", "the width"),
            Name::honoured("intermediate_size", "the width of the feed-forward block"),
            Name::honoured("num_hidden_layers", "the number of layers"),
            Name::honoured("num_attention_heads", "the number of heads of the queries"),
            Name::honoured("num_key_value_heads", "the number of heads of keys and values"),
            Name::honoured("head_dim", "the width of a head"),
            Name::honoured("hidden_act", "`silu`"),
            Name::honoured("max_position_embeddings", "the longest sequence"),
            Name::honoured("rms_norm_eps", "what RMSNorm adds to the mean square"),
            Name::honoured("rope_parameters", "the frequencies of the rotary positions: `default`, `linear`, `llama3` or `yarn`"),
            Name::honoured("rope_theta", "the base of these frequencies, in files of `transformers` before 5"),
            Name::honoured("rope_scaling", "`rope_parameters` in files of `transformers` before 5"),
            Name::refused("original_max_position_embeddings", "its place in these families is `rope_parameters`"),
            Name::refused("partial_rotary_factor", "rotary positions on a part of each head are not implemented"),
            Name::honoured("attention_dropout", "the dropout of attention's weights"),
            Name::honoured("classifier_dropout", "the dropout before the classifier of tokens"),
            Name::refused("hidden_dropout", "the dropout before the classifier of tokens is `classifier_dropout`"),
            Name::refused("token_classification_bias", "the classifier of tokens has a bias"),
            Name::inert("is_decoder", "the attention is causal whatever it says"),
            Name::inert("pretraining_tp", "the same sums in parts"),
            Name::inert("rope_interleaved", "no class of `transformers` reads it"),
            Name::inert("is_llama_config", "no class of `transformers` reads it"),
            Name::inert("use_mrope", "no class of `transformers` for text reads it"),
            Name::inert("transformers.js_config", "settings of another library"),
        )
    };
}

static LLAMA: NameTable = llama!(
    "config.json of llama",
    Name::honoured("attention_bias", "whether the projections of the attention have a bias"),
    Name::honoured("mlp_bias", "whether the projections of the feed-forward block have a bias"),
    Name::refused("sliding_window", "layers with a window are those of Mistral, Qwen and SmolLM3"),
    Name::refused("layer_types", "layers of several kinds are those of Qwen and SmolLM3"),
);

static MISTRAL: NameTable = llama!(
    "config.json of mistral",
    Name::honoured("sliding_window", "how many tokens a layer attends to"),
    Name::refused("layer_types", "layers of several kinds are those of Qwen and SmolLM3"),
    Name::inert("attention_bias", "the projections have none, whatever it says"),
    Name::inert("mlp_bias", "the projections have none, whatever it says"),
);

/// [`llama!`] of Qwen 2 and 3.
macro_rules! qwen {
    ($file:literal, $($own:expr),* $(,)?) => {
        llama!(
            $file,
            $($own,)*
            Name::honoured("use_sliding_window", "whether late layers have a window"),
            Name::honoured("sliding_window", "how many tokens a layer with a window attends to"),
            Name::honoured("max_window_layers", "the first layer with a window"),
            Name::honoured("layer_types", "which layers have a window"),
            Name::inert("mlp_bias", "the projections have none, whatever it says"),
        )
    };
}

static QWEN2: NameTable =
    qwen!("config.json of qwen2", Name::inert("attention_bias", "query, key and value have a bias, whatever it says"),);

static QWEN3: NameTable = qwen!(
    "config.json of qwen3",
    Name::honoured("attention_bias", "whether the projections of the attention have a bias"),
);

static SMOLLM3: NameTable = llama!(
    "config.json of smollm3",
    Name::honoured("attention_bias", "whether the projections of the attention have a bias"),
    Name::honoured("mlp_bias", "whether the projections of the feed-forward block have a bias"),
    Name::honoured("no_rope_layers", "which layers have positions"),
    Name::honoured("no_rope_layer_interval", "how often a layer has none where `no_rope_layers` is left out"),
    Name::honoured("use_sliding_window", "whether layers without positions have a window"),
    Name::honoured("sliding_window", "how many tokens a layer with a window attends to"),
    Name::honoured("layer_types", "which layers have a window"),
    Name::inert("max_window_layers", "no class of `transformers` reads it in this family"),
);

static GPT2: NameTable = gpt!(
    "config.json of gpt2",
    Name::honoured("n_positions", "the longest sequence"),
    Name::honoured("n_embd", "the width"),
    Name::honoured("n_layer", "the number of layers"),
    Name::honoured("n_head", "the number of heads"),
    Name::honoured("n_inner", "the width of the feed-forward block"),
    Name::honoured("resid_pdrop", "the dropout of the residual branches"),
    Name::honoured("embd_pdrop", "the dropout of the embeddings"),
    Name::honoured("attn_pdrop", "the dropout of attention's weights"),
    Name::honoured("scale_attn_weights", "whether scores are divided by the root of their width"),
    Name::honoured("hidden_size", "another name of `n_embd`"),
    Name::honoured("max_position_embeddings", "another name of `n_positions`"),
    Name::honoured("num_attention_heads", "another name of `n_head`"),
    Name::honoured("num_hidden_layers", "another name of `n_layer`"),
    Name::only(
        "scale_attn_by_inverse_layer_idx",
        || json!(false),
        "scaling attention by the layer index is not implemented"
    ),
);

static GPT_NEO: NameTable = gpt!(
    "config.json of gpt_neo",
    Name::honoured("max_position_embeddings", "the longest sequence"),
    Name::honoured("hidden_size", "the width"),
    Name::honoured("num_layers", "the number of layers"),
    Name::honoured("num_heads", "the number of heads"),
    Name::honoured("intermediate_size", "the width of the feed-forward block"),
    Name::honoured("attention_types", "which layers attend to the last tokens only"),
    Name::honoured("window_size", "how many these are"),
    Name::honoured("resid_dropout", "the dropout of the residual branches"),
    Name::honoured("embed_dropout", "the dropout of the embeddings"),
    Name::honoured("attention_dropout", "the dropout of attention's weights"),
    Name::honoured("num_attention_heads", "another name of `num_heads`"),
    Name::honoured("num_hidden_layers", "another name of `num_layers`"),
    Name::honoured("attention_layers", "`attention_types` written out, with which it must agree"),
    Name::inert("classifier_dropout", "of a head that Kiln does not have"),
);

static BERT: NameTable = named_as_bert!(
    "config.json of bert, roberta, camembert and xlm-roberta",
    Name::honoured("classifier_dropout", "the dropout before the classifier"),
);

static ELECTRA: NameTable = named_as_bert!(
    "config.json of electra",
    Name::honoured("embedding_size", "the width of the embeddings"),
    Name::honoured("classifier_dropout", "the dropout before the classifier"),
    Name::only("summary_type", || json!("first"), "multiple choice reads the first token"),
    Name::only("summary_use_proj", || json!(true), "the head of multiple choice has a layer of its own"),
    Name::only("summary_activation", || json!("gelu"), "the head of multiple choice has no other activation function"),
    Name::only(
        "summary_last_dropout",
        || json!(ELECTRA_SUMMARY_DROPOUT),
        "the head of multiple choice has no other dropout"
    ),
    Name::inert("summary_first_dropout", "the head of multiple choice has one dropout, which is the last"),
    Name::inert("summary_proj_to_labels", "the layer of multiple choice has the width of the model"),
);

static ALBERT: NameTable = named_as_bert!(
    "config.json of albert",
    Name::honoured("embedding_size", "the width of the embeddings"),
    Name::honoured("classifier_dropout_prob", "the dropout before the classifier"),
    Name::only("num_hidden_groups", || json!(1), "only layers that all share one set of weights are implemented"),
    Name::only("inner_group_num", || json!(1), "groups of several layers are not implemented"),
    Name::inert("down_scale_factor", "a setting of the first release, which no class of `transformers` reads"),
    Name::inert("gap_size", "a setting of the first release, which no class of `transformers` reads"),
    Name::inert("net_structure_type", "a setting of the first release, which no class of `transformers` reads"),
    Name::inert("num_memory_blocks", "a setting of the first release, which no class of `transformers` reads"),
);

static DISTILBERT: NameTable = bert!(
    "config.json of distilbert",
    Name::honoured("dim", "the width"),
    Name::honoured("n_layers", "the number of layers"),
    Name::honoured("n_heads", "the number of heads"),
    Name::honoured("hidden_dim", "the width of the feed-forward block"),
    Name::honoured("activation", "`gelu`, `gelu_new` or `gelu_pytorch_tanh`"),
    Name::honoured("dropout", "the dropout of embeddings and residual branches"),
    Name::honoured("attention_dropout", "the dropout of attention's weights"),
    Name::honoured("seq_classif_dropout", "the dropout before the classifier of sequences"),
    Name::honoured("qa_dropout", "the dropout before the span head"),
    Name::honoured("hidden_size", "another name of `dim`"),
    Name::honoured("num_attention_heads", "another name of `n_heads`"),
    Name::honoured("num_hidden_layers", "another name of `n_layers`"),
    Name::only("sinusoidal_pos_embds", || json!(false), "fixed sinusoidal positions are not implemented"),
    Name::only("tie_weights_", || json!(true), "its place in files of today is tie_word_embeddings"),
);

/// The dropout of ELECTRA's head of multiple choice (`summary_last_dropout`).
pub const ELECTRA_SUMMARY_DROPOUT: f64 = 0.1;

/// The names of a `config.json`, by family.
pub static CONFIG_NAMES: [&NameTable; 11] =
    [&GPT2, &GPT_NEO, &BERT, &DISTILBERT, &ELECTRA, &ALBERT, &LLAMA, &MISTRAL, &QWEN2, &QWEN3, &SMOLLM3];

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
    /// The names of the family's `config.json`.
    pub(super) fn names(self) -> &'static NameTable {
        match (self.bert_variant(), self.llama_variant()) {
            (Some(BertVariant::DistilBert), _) => &DISTILBERT,
            (Some(BertVariant::Albert), _) => &ALBERT,
            (Some(BertVariant::Electra), _) => &ELECTRA,
            (Some(_), _) => &BERT,
            (_, Some(LlamaVariant::Llama)) => &LLAMA,
            (_, Some(LlamaVariant::Mistral)) => &MISTRAL,
            (_, Some(LlamaVariant::Qwen2)) => &QWEN2,
            (_, Some(LlamaVariant::Qwen3)) => &QWEN3,
            (_, Some(LlamaVariant::SmolLm3)) => &SMOLLM3,
            (None, None) if self == Self::GptNeo => &GPT_NEO,
            (None, None) => &GPT2,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Treatment;

    #[test]
    fn the_honoured_names_of_a_table_are_the_fields_of_the_structs_and_their_aliases() {
        for kind in ModelType::ALL {
            let mut fields = kind.fields();
            fields.extend(kind.aliases().iter().map(|(alias, _)| (*alias).to_owned()));
            fields.extend(["model_type", "architectures", "eos_token_id", "tokenizer_class"].map(String::from));
            fields.extend((kind == ModelType::GptNeo).then(|| "attention_layers".to_owned()));
            let of_llama = ["rope_theta", "rope_scaling"].map(String::from);
            fields.extend(kind.llama_variant().into_iter().flat_map(|_| of_llama.clone()));
            fields.sort();
            fields.dedup();
            let honoured = kind.names().names.iter().filter(|name| matches!(name.treatment, Treatment::Honoured));
            let mut honoured = honoured.map(|name| name.name).collect::<Vec<_>>();
            honoured.sort_unstable();
            assert_eq!(honoured, fields, "{kind}");
        }
    }
}
