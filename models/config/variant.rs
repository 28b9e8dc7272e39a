//! The differences of RoBERTa (Liu et al. 2019) and DistilBERT (Sanh et al. 2019) from BERT, in one place: defaults, the
//! spelling of configuration fields and of tensor names. The mathematics is BERT's, in `bert.rs` and `model.rs`; the few
//! points where it differs ask [`BertVariant`] there. References: `modeling_roberta.py`, `modeling_distilbert.py` and
//! their configuration classes in `transformers` 5.23.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::BertConfig;

/// Which model of the family it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BertVariant {
    /// BERT itself.
    #[default]
    Bert,
    /// Positions count from `pad_token_id + 1` and over tokens that are no padding.
    Roberta,
    /// No token types, no pooler; a ReLU layer of its own before the classifier.
    DistilBert,
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

/// Starts of tensor names, BERT's and the variant's; the first that fits is replaced.
const ROBERTA_STARTS: &[(&str, &str)] = &[
    ("cls.predictions.transform.LayerNorm.", "lm_head.layer_norm."),
    ("cls.predictions.transform.dense.", "lm_head.dense."),
    ("cls.predictions.", "lm_head."),
    ("bert.", "roberta."),
];

/// Those of RoBERTa's classification of sequences, whose head has a layer of its own in place of a pooler.
const ROBERTA_SEQUENCE_STARTS: &[(&str, &str)] =
    &[("bert.pooler.dense.", "classifier.dense."), ("classifier.", "classifier.out_proj.")];

const DISTILBERT_STARTS: &[(&str, &str)] = &[
    ("cls.predictions.transform.LayerNorm.", "vocab_layer_norm."),
    ("cls.predictions.transform.dense.", "vocab_transform."),
    ("cls.predictions.bias", "vocab_projector.bias"),
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

impl BertVariant {
    /// The defaults of `transformers`' configuration class.
    pub fn config(self) -> BertConfig {
        let bert = BertConfig { variant: self, ..BertConfig::default() };
        match self {
            Self::Bert => bert,
            Self::Roberta => {
                let ids = [("bos_token_id".to_string(), Value::from(0)), ("eos_token_id".to_string(), Value::from(2))];
                BertConfig { vocab_size: 50265, pad_token_id: Some(1), inert: Map::from_iter(ids), ..bert }
            }
            Self::DistilBert => {
                BertConfig { num_hidden_layers: 6, qa_dropout: 0.1, classifier_dropout: Some(0.2), ..bert }
            }
        }
    }

    /// Whether tokens have types.
    pub fn has_token_types(self) -> bool {
        self != Self::DistilBert
    }

    /// The variant's own name of BERT's configuration field `name`.
    pub(crate) fn field(self, name: &str) -> &str {
        match self {
            Self::Bert | Self::Roberta => name,
            Self::DistilBert => DISTILBERT_FIELDS.iter().find(|(bert, _)| *bert == name).map_or(name, |(_, own)| own),
        }
    }

    /// BERT's name of the variant's configuration field `name`.
    pub(crate) fn bert_field(self, name: &str) -> &str {
        match self {
            Self::Bert | Self::Roberta => name,
            Self::DistilBert => DISTILBERT_FIELDS.iter().find(|(_, own)| *own == name).map_or(name, |(bert, _)| bert),
        }
    }

    /// Whether the variant's `config.json` has BERT's field `name`.
    pub(crate) fn has_field(self, name: &str) -> bool {
        match self {
            Self::Bert | Self::Roberta => name != "qa_dropout",
            Self::DistilBert => !matches!(name, "type_vocab_size" | "layer_norm_eps"),
        }
    }

    /// The variant's own name of BERT's tensor `name`, in a model that `classifies_sequences` or one with another head.
    pub(crate) fn tensor(self, name: String, classifies_sequences: bool) -> String {
        let (starts, parts): (&[_], &[_]) = match self {
            Self::Bert => return name,
            Self::Roberta => (ROBERTA_STARTS, &[]),
            Self::DistilBert => (DISTILBERT_STARTS, DISTILBERT_PARTS),
        };
        let of_head = match classifies_sequences && self == Self::Roberta {
            true => ROBERTA_SEQUENCE_STARTS,
            false => &[],
        };
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
