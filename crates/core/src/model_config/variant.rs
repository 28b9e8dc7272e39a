//! The differences of the variants from GPT-2 and BERT, in one place: defaults, the spelling of
//! configuration fields and of tensor names. GPT-2's is GPT-Neo (Black et al. 2021), whose
//! differences `gpt2.rs` asks of [`Gpt2Variant`]. BERT's are RoBERTa (Liu et al. 2019), which
//! CamemBERT (Martin et al. 2020) and XLM-RoBERTa (Conneau et al. 2020) are with other
//! vocabularies, DistilBERT (Sanh et al. 2019), ELECTRA's discriminator (Clark et al. 2020) and
//! ALBERT (Lan et al. 2020). The mathematics is BERT's, in `bert.rs` and `model.rs`; the few points
//! where it differs ask [`BertVariant`] there. References: `modeling_roberta.py` and its like, and
//! their configuration classes in `transformers` 5.23.

use std::borrow::Cow;

use serde_json::Map;

use super::{BertConfig, Gpt2Config, ModelType};

/// Which model of GPT-2's family it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Gpt2Variant {
    /// GPT-2 itself.
    #[default]
    Gpt2,
    /// Scores that are not scaled, three projections without a bias before the attention, layers
    /// that attend to the last tokens only, weights stored as those of `torch.nn.Linear`.
    GptNeo,
}

/// `(GPT-2's name, GPT-Neo's)` of the configuration fields that differ.
const GPT_NEO_FIELDS: &[(&str, &str)] = &[
    ("n_positions", "max_position_embeddings"),
    ("n_embd", "hidden_size"),
    ("n_layer", "num_layers"),
    ("n_head", "num_heads"),
    ("n_inner", "intermediate_size"),
    ("resid_pdrop", "resid_dropout"),
    ("embd_pdrop", "embed_dropout"),
    ("attn_pdrop", "attention_dropout"),
];

impl Gpt2Variant {
    /// The defaults of `transformers`' configuration class.
    pub fn config(self) -> Gpt2Config {
        let gpt2 = Gpt2Config { variant: self, ..Gpt2Config::default() };
        match self {
            Self::Gpt2 => gpt2,
            Self::GptNeo => Gpt2Config {
                n_positions: 2048,
                n_embd: 2048,
                n_layer: 24,
                n_head: 16,
                resid_pdrop: 0.0,
                embd_pdrop: 0.0,
                attn_pdrop: 0.0,
                attention_types: vec![(vec!["global".into(), "local".into()], 12)],
                ..gpt2
            },
        }
    }

    /// The variant's own name of GPT-2's configuration field `name`.
    pub(crate) fn field(self, name: &str) -> &str {
        match self {
            Self::Gpt2 => name,
            Self::GptNeo => GPT_NEO_FIELDS.iter().find(|(gpt2, _)| *gpt2 == name).map_or(name, |(_, own)| own),
        }
    }

    /// GPT-2's name of the variant's configuration field `name`.
    fn gpt2_field(self, name: &str) -> &str {
        match self {
            Self::Gpt2 => name,
            Self::GptNeo => GPT_NEO_FIELDS.iter().find(|(_, own)| *own == name).map_or(name, |(gpt2, _)| gpt2),
        }
    }

    /// Whether the variant's `config.json` has GPT-2's field `name`.
    fn has_field(self, name: &str) -> bool {
        match self {
            Self::Gpt2 => !matches!(name, "attention_types" | "window_size"),
            Self::GptNeo => name != "scale_attn_weights",
        }
    }

    /// The variant's own name of GPT-2's tensor `name`.
    pub fn tensor(self, name: String) -> String {
        match self {
            Self::Gpt2 => name,
            Self::GptNeo => {
                name.replacen(".attn.c_proj.", ".attn.out_proj.", 1).replacen(".attn.", ".attn.attention.", 1)
            }
        }
    }
}

impl ModelType {
    pub(super) fn gpt2_variant(self) -> Gpt2Variant {
        match self {
            Self::GptNeo => Gpt2Variant::GptNeo,
            _ => Gpt2Variant::Gpt2,
        }
    }

    /// The family's own name of the field that its configuration's struct calls `name`.
    pub(crate) fn field(self, name: &str) -> &str {
        match (self.bert_variant(), self.llama_variant()) {
            (Some(variant), _) => variant.field(name),
            (None, Some(_)) => name,
            (None, None) => self.gpt2_variant().field(name),
        }
    }

    /// The struct's name of the family's field `name`.
    pub(crate) fn plain_field(self, name: &str) -> &str {
        match (self.bert_variant(), self.llama_variant()) {
            (Some(variant), _) => variant.bert_field(name),
            (None, Some(_)) => name,
            (None, None) => self.gpt2_variant().gpt2_field(name),
        }
    }

    /// Whether null is a value of the field, which elsewhere means that it is not set.
    pub(crate) fn has_null(self, name: &str) -> bool {
        let is_llama = self.llama_variant().is_some();
        name == "pad_token_id" || (is_llama && matches!(name, "sliding_window" | "num_key_value_heads"))
    }

    /// Whether the family's `config.json` has the field that the struct calls `name`.
    pub(crate) fn has_field(self, name: &str) -> bool {
        match (self.bert_variant(), self.llama_variant()) {
            (Some(variant), _) => variant.has_field(name),
            (None, Some(variant)) => variant.has_field(name),
            (None, None) => self.gpt2_variant().has_field(name),
        }
    }
}

/// Which model of BERT's family it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BertVariant {
    /// BERT itself.
    #[default]
    Bert,
    /// Positions count from `pad_token_id + 1` and over tokens that are no padding.
    Roberta,
    /// RoBERTa.
    Camembert,
    /// RoBERTa.
    XlmRoberta,
    /// No token types, no pooler; a ReLU layer of its own before the classifier.
    DistilBert,
    /// Embeddings of a width of their own where `embedding_size` is another than `hidden_size`; a
    /// GELU layer of its own before the classifier.
    Electra,
    /// Embeddings of a width of their own; all layers are one.
    Albert,
}

/// `(BERT's name, DistilBERT's)` of the configuration fields that differ.
const DISTILBERT_FIELDS: &[(&str, &str)] = &[
    ("hidden_size", "dim"),
    ("num_hidden_layers", "n_layers"),
    ("num_attention_heads", "n_heads"),
    ("intermediate_size", "hidden_dim"),
    ("hidden_act", "activation"),
    ("hidden_dropout_prob", "dropout"),
    ("attention_probs_dropout_prob", "attention_dropout"),
    ("classifier_dropout", "seq_classif_dropout"),
];

/// `(BERT's name, ALBERT's)` of the configuration fields that differ.
const ALBERT_FIELDS: &[(&str, &str)] = &[("classifier_dropout", "classifier_dropout_prob")];

/// Starts of tensor names, BERT's and the variant's; the first that fits is replaced.
const ROBERTA_STARTS: &[(&str, &str)] = &[
    ("cls.predictions.transform.LayerNorm.", "lm_head.layer_norm."),
    ("cls.predictions.transform.dense.", "lm_head.dense."),
    ("cls.predictions.", "lm_head."),
    ("bert.", "roberta."),
];

/// Starts of tensor names, BERT's and the variant's, for sequence classification in RoBERTa and
/// ELECTRA: their head has a layer of its own in place of a pooler.
const SEQUENCE_HEAD_STARTS: &[(&str, &str)] =
    &[("bert.pooler.dense.", "classifier.dense."), ("classifier.", "classifier.out_proj.")];

const ELECTRA_STARTS: &[(&str, &str)] = &[
    ("bert.pooler.dense.", "sequence_summary.summary."), // of multiple choice; the classification of sequences comes first
    ("cls.predictions.transform.", "generator_predictions."),
    ("cls.predictions.bias", "generator_lm_head.bias"),
    ("cls.predictions.decoder.", "generator_lm_head."),
    ("bert.", "electra."),
];

const ALBERT_STARTS: &[(&str, &str)] = &[
    ("cls.predictions.transform.", "predictions."),
    ("cls.predictions.", "predictions."),
    ("bert.pooler.dense.", "albert.pooler."),
    ("bert.embeddings_project.", "albert.encoder.embedding_hidden_mapping_in."),
    ("bert.encoder.layer.0.", "albert.encoder.albert_layer_groups.0.albert_layers.0."),
    ("bert.", "albert."),
];

const DISTILBERT_STARTS: &[(&str, &str)] = &[
    ("cls.predictions.transform.LayerNorm.", "vocab_layer_norm."),
    ("cls.predictions.transform.dense.", "vocab_transform."),
    ("cls.predictions.bias", "vocab_projector.bias"),
    ("cls.predictions.decoder.", "vocab_projector."),
    ("bert.pooler.dense.", "pre_classifier."),
    ("bert.encoder.layer.", "distilbert.transformer.layer."),
    ("bert.", "distilbert."),
];

/// Parts of the tensor names inside a layer of DistilBERT; the first that is there is replaced.
const DISTILBERT_PARTS: &[(&str, &str)] = &[
    (".attention.self.query.", ".attention.q_lin."),
    (".attention.self.key.", ".attention.k_lin."),
    (".attention.self.value.", ".attention.v_lin."),
    (".attention.output.dense.", ".attention.out_lin."),
    (".attention.output.LayerNorm.", ".sa_layer_norm."),
    (".intermediate.dense.", ".ffn.lin1."),
    (".output.dense.", ".ffn.lin2."),
    (".output.LayerNorm.", ".output_layer_norm."),
];

/// Parts of the tensor names inside the layer of ALBERT; the first that is there is replaced.
const ALBERT_PARTS: &[(&str, &str)] = &[
    (".attention.self.", ".attention."),
    (".attention.output.", ".attention."),
    (".intermediate.dense.", ".ffn."),
    (".output.dense.", ".ffn_output."),
    (".output.LayerNorm.", ".full_layer_layer_norm."),
];

impl BertVariant {
    /// The defaults of `transformers`' configuration class.
    pub fn config(self) -> BertConfig {
        let bert = BertConfig { variant: self, ..BertConfig::default() };
        let ids = |bos: u32, eos: u32| {
            Map::from_iter([("bos_token_id".into(), bos.into()), ("eos_token_id".into(), eos.into())])
        };
        match self {
            Self::Bert => bert,
            Self::Roberta => BertConfig { vocab_size: 50265, pad_token_id: Some(1), inert: ids(0, 2), ..bert },
            Self::Camembert | Self::XlmRoberta => BertConfig { pad_token_id: Some(1), inert: ids(0, 2), ..bert },
            Self::DistilBert => {
                BertConfig { num_hidden_layers: 6, qa_dropout: 0.1, classifier_dropout: Some(0.2), ..bert }
            }
            Self::Electra => BertConfig {
                embedding_size: Some(128),
                hidden_size: 256,
                num_attention_heads: 4,
                intermediate_size: 1024,
                ..bert
            },
            Self::Albert => BertConfig {
                vocab_size: 30000,
                embedding_size: Some(128),
                hidden_size: 4096,
                num_attention_heads: 64,
                intermediate_size: 16384,
                hidden_act: "gelu_new".into(),
                hidden_dropout_prob: 0.0,
                attention_probs_dropout_prob: 0.0,
                classifier_dropout: Some(0.1),
                inert: ids(2, 3),
                ..bert
            },
        }
    }

    /// Whether positions count from the padding's row of the table and over tokens that are no
    /// padding, as in RoBERTa.
    pub fn counts_from_padding(self) -> bool {
        matches!(self, Self::Roberta | Self::Camembert | Self::XlmRoberta)
    }

    /// Whether all layers have the same weights.
    pub fn shares_layers(self) -> bool {
        self == Self::Albert
    }

    /// Whether the head that classifies sequences has a layer of its own in place of a pooler, with
    /// dropout before it.
    pub fn has_layer_in_head(self) -> bool {
        self.counts_from_padding() || self == Self::Electra
    }

    /// The part of `transformers`' class names that names the family.
    pub fn class(self) -> &'static str {
        match self {
            Self::Bert => "Bert",
            Self::Roberta => "Roberta",
            Self::Camembert => "Camembert",
            Self::XlmRoberta => "XLMRoberta",
            Self::DistilBert => "DistilBert",
            Self::Electra => "Electra",
            Self::Albert => "Albert",
        }
    }

    /// Whether tokens have types.
    pub fn has_token_types(self) -> bool {
        self != Self::DistilBert
    }

    /// The configuration fields that have another name than BERT's: `(BERT's name, the variant's)`.
    fn renamed(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::DistilBert => DISTILBERT_FIELDS,
            Self::Albert => ALBERT_FIELDS,
            _ => &[],
        }
    }

    /// The variant's own name of BERT's configuration field `name`.
    pub(crate) fn field(self, name: &str) -> &str {
        self.renamed().iter().find(|(bert, _)| *bert == name).map_or(name, |(_, own)| own)
    }

    /// BERT's name of the variant's configuration field `name`.
    pub(crate) fn bert_field(self, name: &str) -> &str {
        self.renamed().iter().find(|(_, own)| *own == name).map_or(name, |(bert, _)| bert)
    }

    /// Whether the variant's `config.json` has BERT's field `name`.
    pub(crate) fn has_field(self, name: &str) -> bool {
        match self {
            Self::DistilBert => !matches!(name, "type_vocab_size" | "layer_norm_eps" | "embedding_size"),
            Self::Electra | Self::Albert => name != "qa_dropout",
            Self::Bert | Self::Roberta | Self::Camembert | Self::XlmRoberta => {
                !matches!(name, "qa_dropout" | "embedding_size")
            }
        }
    }

    /// The variant's own name of BERT's tensor `name`, in a model that `classifies_sequences` or
    /// one with another head.
    pub fn tensor(self, name: String, classifies_sequences: bool) -> String {
        let (starts, parts): (&[_], &[_]) = match self {
            Self::Bert => return name,
            Self::Roberta | Self::Camembert | Self::XlmRoberta => (ROBERTA_STARTS, &[]),
            Self::DistilBert => (DISTILBERT_STARTS, DISTILBERT_PARTS),
            Self::Electra => (ELECTRA_STARTS, &[]),
            Self::Albert => (ALBERT_STARTS, ALBERT_PARTS),
        };
        let of_head = if classifies_sequences && self.has_layer_in_head() { SEQUENCE_HEAD_STARTS } else { &[] };
        let started =
            of_head.iter().chain(starts).find_map(|(bert, own)| Some(format!("{own}{}", name.strip_prefix(bert)?)));
        let name = started.map_or(Cow::Borrowed(name.as_str()), Cow::Owned);
        match parts.iter().find(|(bert, _)| name.contains(bert)) {
            Some((bert, own)) => name.replacen(bert, own, 1),
            None => name.into_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_have_the_names_of_the_variant() {
        for (bert, roberta, distilbert) in [
            (
                "bert.embeddings.LayerNorm.weight",
                "roberta.embeddings.LayerNorm.weight",
                "distilbert.embeddings.LayerNorm.weight",
            ),
            (
                "bert.encoder.layer.3.attention.self.key.bias",
                "roberta.encoder.layer.3.attention.self.key.bias",
                "distilbert.transformer.layer.3.attention.k_lin.bias",
            ),
            (
                "bert.encoder.layer.3.attention.output.LayerNorm.bias",
                "roberta.encoder.layer.3.attention.output.LayerNorm.bias",
                "distilbert.transformer.layer.3.sa_layer_norm.bias",
            ),
            (
                "bert.encoder.layer.3.output.dense.weight",
                "roberta.encoder.layer.3.output.dense.weight",
                "distilbert.transformer.layer.3.ffn.lin2.weight",
            ),
            ("cls.predictions.bias", "lm_head.bias", "vocab_projector.bias"),
            ("classifier.bias", "classifier.out_proj.bias", "classifier.bias"),
            ("qa_outputs.bias", "qa_outputs.bias", "qa_outputs.bias"),
        ] {
            assert_eq!(BertVariant::Bert.tensor(bert.into(), true), bert);
            assert_eq!(BertVariant::Roberta.tensor(bert.into(), true), roberta);
            assert_eq!(BertVariant::DistilBert.tensor(bert.into(), true), distilbert);
        }
    }

    #[test]
    fn heads_on_tokens_and_choices_have_one_layer_in_every_variant() {
        for variant in [BertVariant::Bert, BertVariant::Roberta, BertVariant::DistilBert] {
            assert_eq!(variant.tensor("classifier.bias".into(), false), "classifier.bias");
        }
        assert_eq!(BertVariant::Roberta.tensor("bert.pooler.dense.bias".into(), false), "roberta.pooler.dense.bias");
    }

    #[test]
    fn fields_go_there_and_back() {
        for (bert, own) in DISTILBERT_FIELDS {
            assert_eq!(BertVariant::DistilBert.field(bert), *own);
            assert_eq!(BertVariant::DistilBert.bert_field(own), *bert);
            assert_eq!(BertVariant::Roberta.field(bert), *bert);
        }
    }
}
