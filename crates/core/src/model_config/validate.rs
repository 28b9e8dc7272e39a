//! Checks of a configuration that its types cannot express: sizes, divisibility, ranges, known
//! activations and labels.

use super::{Activation, LlamaVariant, ModelConfig, eos_token_ids, near_divisors};
use crate::error::{Error, Result};

/// The activations of GPT-2 and BERT, for messages.
const GELUS: &str = "\"gelu_new\", \"gelu_pytorch_tanh\" or \"gelu\"";

impl ModelConfig {
    /// Checks what the types cannot say: sizes, divisibility, ranges, known activations and labels.
    pub fn validate(&self) -> Result<()> {
        let (width, heads, names) = match self {
            Self::Gpt2(c) => (c.n_embd, c.n_head, (c.variant.field("n_embd"), c.variant.field("n_head"))),
            Self::Bert(c) => {
                let names = (c.variant.field("hidden_size"), c.variant.field("num_attention_heads"));
                (c.hidden_size, c.num_attention_heads, names)
            }
            Self::Llama(c) => (c.hidden_size, c.num_attention_heads, ("hidden_size", "num_attention_heads")),
        };
        let has_own_width = matches!(self, Self::Llama(c) if c.head_dim.is_some() && c.variant != LlamaVariant::Llama);
        for (name, size) in self.sizes() {
            if size == 0 {
                return Err(Error::config(format!("{name}: expected a positive number, got 0")));
            }
            let largest = largest(name);
            if size > largest {
                return Err(Error::config(format!("{name}: expected at most {largest}, got {size}")));
            }
        }
        if width % heads != 0 && !has_own_width {
            let (width_name, heads_name) = names;
            return Err(Error::config(format!(
                "{width_name} ({width}) is not divisible by {heads_name} ({heads}); every head takes an equal share"
            ))
            .help(format!("set {heads_name} = {}", near_divisors(width, heads))));
        }
        for (name, value, below) in self.reals() {
            if !value.is_finite() || value < 0.0 || value >= below {
                return Err(Error::config(format!("{name}: expected a number in [0, {below}), got {value}")));
            }
        }
        let (name, activation, expected) = match self {
            Self::Gpt2(c) => ("activation_function", &c.activation_function, GELUS),
            Self::Bert(c) => (c.variant.field("hidden_act"), &c.hidden_act, GELUS),
            Self::Llama(c) => ("hidden_act", &c.hidden_act, "\"silu\""),
        };
        let is_known = match self {
            Self::Gpt2(_) | Self::Bert(_) => Activation::from_hf(activation).is_some(),
            Self::Llama(_) => matches!(activation.as_str(), "silu" | "swish"),
        };
        if !is_known {
            return Err(Error::config(format!(
                "{name}: expected {expected}, got {activation:?}; other activations are not implemented"
            )));
        }
        let labels = self.labels();
        if labels.num_labels() == 0 {
            return Err(Error::config("num_labels: expected at least 1, got 0"));
        }
        match labels.problem_type.as_deref() {
            None | Some("single_label_classification" | "multi_label_classification" | "regression") => {}
            Some(other) => {
                return Err(Error::config(format!(
                    "problem_type: expected \"single_label_classification\", \"multi_label_classification\" or \
                     \"regression\", got {other:?}"
                )));
            }
        }
        if let Some(pad) = self.pad_token_id()
            && pad as usize >= self.vocab_size()
        {
            let (kind, size) = (self.model_type(), self.vocab_size());
            let error = Error::config(format!("pad_token_id: expected an id below vocab_size ({size}), got {pad}"));
            return Err(match kind.llama_variant() {
                Some(variant) if variant.config().pad_token_id == Some(pad) => error.help(format!(
                    "{pad} is the default of {kind}, whose vocabulary is larger: set pad_token_id too, to an id that no \
                     text has and whose embedding learns nothing"
                )),
                _ => error,
            });
        }
        // Only a decoder generates; what an encoder's file says is never used as an id.
        eos_token_ids(self.inert().get("eos_token_id"), self.is_decoder().then(|| self.vocab_size()))?;
        match self {
            Self::Gpt2(c) if c.layers_are_local().len() != c.n_layer => Err(Error::config(format!(
                "attention_types: expected as many layers as num_layers ({}), got {:?}",
                c.n_layer, c.attention_types
            ))),
            Self::Gpt2(c)
                if c.attention_types
                    .iter()
                    .flat_map(|(kinds, _)| kinds)
                    .any(|kind| kind != "global" && kind != "local") =>
            {
                Err(Error::config(format!(
                    "attention_types: expected \"global\" and \"local\", got {:?}",
                    c.attention_types
                )))
            }
            Self::Bert(c) if c.variant.counts_from_padding() && c.pad_token_id.is_none() => Err(Error::config(
                format!("pad_token_id: expected an id, got null: {} counts its positions from it", self.model_type()),
            )),
            Self::Bert(c) if c.max_position_embeddings <= c.position_offset() => Err(Error::config(format!(
                "max_position_embeddings: expected more than pad_token_id + 1 = {}, where the first position of {} is, \
                 got {}",
                c.position_offset(),
                self.model_type(),
                c.max_position_embeddings
            ))),
            Self::Llama(c) => c.check_attention(),
            _ => Ok(()),
        }
    }

    fn sizes(&self) -> Vec<(&'static str, usize)> {
        match self {
            Self::Gpt2(c) => [
                ("vocab_size", c.vocab_size),
                ("n_positions", c.n_positions),
                ("n_embd", c.n_embd),
                ("n_layer", c.n_layer),
                ("n_head", c.n_head),
                ("n_inner", c.inner()),
                ("window_size", c.window_size),
            ]
            .map(|(name, size)| (c.variant.field(name), size))
            .to_vec(),
            Self::Bert(c) => [
                ("vocab_size", c.vocab_size),
                ("embedding_size", c.embedding_size()),
                ("hidden_size", c.hidden_size),
                ("num_hidden_layers", c.num_hidden_layers),
                ("num_attention_heads", c.num_attention_heads),
                ("intermediate_size", c.intermediate_size),
                ("max_position_embeddings", c.max_position_embeddings),
                ("type_vocab_size", c.type_vocab_size),
            ]
            .map(|(name, size)| (c.variant.field(name), size))
            .to_vec(),
            Self::Llama(c) => {
                let mut sizes = vec![
                    ("vocab_size", c.vocab_size),
                    ("hidden_size", c.hidden_size),
                    ("num_hidden_layers", c.num_hidden_layers),
                    ("num_attention_heads", c.num_attention_heads),
                    ("num_key_value_heads", c.kv_heads()),
                    ("intermediate_size", c.intermediate_size),
                    ("max_position_embeddings", c.max_position_embeddings),
                    ("no_rope_layer_interval", c.no_rope_layer_interval),
                ];
                sizes.extend(c.head_dim.map(|size| ("head_dim", size)));
                sizes.extend(c.window().map(|size| ("sliding_window", size)));
                sizes
            }
        }
    }

    /// Real-valued fields with the bound that they must stay below.
    fn reals(&self) -> Vec<(&'static str, f64, f64)> {
        match self {
            Self::Gpt2(c) => [
                ("resid_pdrop", c.resid_pdrop, 1.0),
                ("embd_pdrop", c.embd_pdrop, 1.0),
                ("attn_pdrop", c.attn_pdrop, 1.0),
                ("layer_norm_epsilon", c.layer_norm_epsilon, 1.0),
                ("initializer_range", c.initializer_range, 1e3),
            ]
            .map(|(name, value, below)| (c.variant.field(name), value, below))
            .to_vec(),
            Self::Bert(c) => [
                ("hidden_dropout_prob", c.hidden_dropout_prob, 1.0),
                ("attention_probs_dropout_prob", c.attention_probs_dropout_prob, 1.0),
                ("classifier_dropout", c.classifier_dropout.unwrap_or(0.0), 1.0),
                ("qa_dropout", c.qa_dropout, 1.0),
                ("layer_norm_eps", c.layer_norm_eps, 1.0),
                ("initializer_range", c.initializer_range, 1e3),
            ]
            .map(|(name, value, below)| (c.variant.field(name), value, below))
            .to_vec(),
            Self::Llama(c) => vec![
                ("attention_dropout", c.attention_dropout, 1.0),
                ("classifier_dropout", c.classifier_dropout.unwrap_or(0.0), 1.0),
                ("rms_norm_eps", c.rms_norm_eps, 1.0),
                ("initializer_range", c.initializer_range, 1e3),
            ],
        }
    }
}

/// The largest value of a size. Far above any model, and small enough that the number of parameters
/// and of their bytes fits in 64 bits.
fn largest(name: &str) -> usize {
    match name {
        "n_layer" | "num_hidden_layers" | "n_layers" | "num_layers" => 1 << 12,
        "n_embd"
        | "hidden_size"
        | "embedding_size"
        | "dim"
        | "head_dim"
        | "num_key_value_heads"
        | "n_head"
        | "num_attention_heads"
        | "n_heads"
        | "num_heads" => 1 << 20,
        "n_inner" | "intermediate_size" | "hidden_dim" => 1 << 22,
        _ => 1 << 24,
    }
}
