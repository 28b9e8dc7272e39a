//! Model configurations with Hugging Face's field names: read from `config.json`, from a preset or from explicit fields,
//! checked, and written back so that `transformers` opens the folder.
//!
//! A field is one of four things: honoured (it is in the struct), fixed (only one value computes what Kiln computes, any
//! other is refused), inert (it changes nothing here and is kept for the file that is written), or unknown. Nothing that
//! would change the mathematics is ignored.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::layers::Activation;
use crate::variant::BertVariant;

/// The family of a model; Hugging Face's `model_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelType {
    /// GPT-2
    Gpt2,
    /// BERT
    Bert,
    /// RoBERTa
    Roberta,
    /// DistilBERT
    DistilBert,
}

/// The configuration of a model.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelConfig {
    /// GPT-2
    Gpt2(Gpt2Config),
    /// BERT and its variants: RoBERTa, DistilBERT
    Bert(BertConfig),
}

/// GPT-2's fields. Defaults are `transformers`' (`GPT2Config`), which are GPT-2 small.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gpt2Config {
    /// Number of tokens in the vocabulary. Default 50257.
    pub vocab_size: usize,
    /// Longest sequence in tokens. Default 1024.
    pub n_positions: usize,
    /// Width. Default 768.
    pub n_embd: usize,
    /// Number of blocks. Default 12.
    pub n_layer: usize,
    /// Number of attention heads; must divide `n_embd`. Default 12.
    pub n_head: usize,
    /// Width of the feed-forward block. Default `4 * n_embd`.
    pub n_inner: Option<usize>,
    /// `gelu_new`, `gelu_pytorch_tanh` or `gelu`. Default `gelu_new`.
    pub activation_function: String,
    /// Dropout of the two residual branches. Default 0.1.
    pub resid_pdrop: f64,
    /// Dropout of the embeddings. Default 0.1.
    pub embd_pdrop: f64,
    /// Dropout of the attention weights. Default 0.1.
    pub attn_pdrop: f64,
    /// Added to the variance in LayerNorm. Default 1e-5.
    pub layer_norm_epsilon: f64,
    /// Standard deviation of new weights. Default 0.02.
    pub initializer_range: f64,
    /// Divide scores by `sqrt(head_dim)`. Default true.
    pub scale_attn_weights: bool,
    /// The id that padding uses, if any.
    pub pad_token_id: Option<u32>,
    /// Labels of a classification head.
    #[serde(flatten)]
    pub labels: Labels,
    /// Inert fields, kept for the file that is written.
    #[serde(skip)]
    pub inert: Map<String, Value>,
}

/// The fields of BERT and its variants, by BERT's names (DistilBERT's files call some of them otherwise, see
/// [`BertVariant`]). Defaults are `transformers`' (`BertConfig`), which are BERT base uncased; those of the variants are in
/// [`BertVariant::config`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BertConfig {
    /// Which of the family it is. Not a field of the file, where `model_type` says it.
    #[serde(skip)]
    pub variant: BertVariant,
    /// Number of tokens in the vocabulary. Default 30522.
    pub vocab_size: usize,
    /// Width. Default 768.
    pub hidden_size: usize,
    /// Number of layers. Default 12.
    pub num_hidden_layers: usize,
    /// Number of attention heads; must divide `hidden_size`. Default 12.
    pub num_attention_heads: usize,
    /// Width of the feed-forward block. Default 3072.
    pub intermediate_size: usize,
    /// `gelu`, `gelu_new` or `gelu_pytorch_tanh`. Default `gelu`.
    pub hidden_act: String,
    /// Dropout of embeddings and residual branches. Default 0.1.
    pub hidden_dropout_prob: f64,
    /// Dropout of the attention weights. Default 0.1.
    pub attention_probs_dropout_prob: f64,
    /// Dropout before the classifier. Default `hidden_dropout_prob`.
    pub classifier_dropout: Option<f64>,
    /// Dropout before the span head, which DistilBERT alone has. Default 0.
    pub qa_dropout: f64,
    /// Rows of the position table: the longest sequence in tokens, except in RoBERTa, which uses the rows that follow
    /// `pad_token_id`. Default 512.
    pub max_position_embeddings: usize,
    /// Number of token types. Default 2. DistilBERT has none.
    pub type_vocab_size: usize,
    /// Added to the variance in LayerNorm. Default 1e-12.
    pub layer_norm_eps: f64,
    /// Standard deviation of new weights. Default 0.02.
    pub initializer_range: f64,
    /// The id that padding uses. Default 0.
    pub pad_token_id: Option<u32>,
    /// Labels of a classification head.
    #[serde(flatten)]
    pub labels: Labels,
    /// Inert fields, kept for the file that is written.
    #[serde(skip)]
    pub inert: Map<String, Value>,
}

/// The labels of a classification or regression head, as Hugging Face writes them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Labels {
    /// Number of labels; `id2label` wins when both are given, as in `transformers`. Default 2.
    #[serde(skip_serializing)]
    pub num_labels: Option<usize>,
    /// Label names by id (`"0"`, `"1"`, ...).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id2label: Option<Map<String, Value>>,
    /// Ids by label name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label2id: Option<Map<String, Value>>,
    /// `single_label_classification` or `regression`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem_type: Option<String>,
}

impl Labels {
    /// How many logits the head has.
    pub fn num_labels(&self) -> usize {
        self.id2label.as_ref().map(Map::len).or(self.num_labels).unwrap_or(2)
    }

    /// Labels named `LABEL_0`, `LABEL_1`, ..., as `transformers` names them by default.
    pub fn numbered(count: usize) -> Self {
        let name = |id: usize| format!("LABEL_{id}");
        Self {
            num_labels: None,
            id2label: Some((0..count).map(|id| (id.to_string(), name(id).into())).collect()),
            label2id: Some((0..count).map(|id| (name(id), id.into())).collect()),
            problem_type: None,
        }
    }
}

impl Default for Gpt2Config {
    fn default() -> Self {
        Self {
            vocab_size: 50257,
            n_positions: 1024,
            n_embd: 768,
            n_layer: 12,
            n_head: 12,
            n_inner: None,
            activation_function: "gelu_new".into(),
            resid_pdrop: 0.1,
            embd_pdrop: 0.1,
            attn_pdrop: 0.1,
            layer_norm_epsilon: 1e-5,
            initializer_range: 0.02,
            scale_attn_weights: true,
            pad_token_id: None,
            labels: Labels::default(),
            inert: Map::new(),
        }
    }
}

impl Default for BertConfig {
    fn default() -> Self {
        Self {
            variant: BertVariant::Bert,
            vocab_size: 30522,
            hidden_size: 768,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            intermediate_size: 3072,
            hidden_act: "gelu".into(),
            hidden_dropout_prob: 0.1,
            attention_probs_dropout_prob: 0.1,
            classifier_dropout: None,
            qa_dropout: 0.0,
            max_position_embeddings: 512,
            type_vocab_size: 2,
            layer_norm_eps: 1e-12,
            initializer_range: 0.02,
            pad_token_id: Some(0),
            labels: Labels::default(),
            inert: Map::new(),
        }
    }
}

/// The families, for messages.
const MODEL_TYPES: &str = "\"gpt2\", \"bert\", \"roberta\" or \"distilbert\"";

/// Fields that only one value computes what Kiln computes: anything else is refused. `(name, that value, why)`.
type Fixed = (&'static str, fn() -> Value, &'static str);

const GPT2_FIXED: &[Fixed] = &[
    ("add_cross_attention", || json!(false), "cross-attention is not implemented"),
    ("is_encoder_decoder", || json!(false), "encoder-decoder models are not implemented"),
    ("scale_attn_by_inverse_layer_idx", || json!(false), "scaling attention by the layer index is not implemented"),
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
const INERT: &[&str] = &[
    "_attn_implementation_autoset",
    "_name_or_path",
    "architectures",
    "attn_implementation",
    "bos_token_id",
    "chunk_size_feed_forward",
    "cls_token_id",
    "directionality",
    "dtype",
    "eos_token_id",
    "finetuning_task",
    "gradient_checkpointing",
    "is_decoder",
    "keys_to_ignore_at_inference",
    "mask_token_id",
    "max_length",
    "model_type",
    "n_ctx",
    "name_or_path",
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

/// Hugging Face's generic names for DistilBERT's fields (`DistilBertConfig.attribute_map`).
const DISTILBERT_ALIASES: &[(&str, &str)] =
    &[("hidden_size", "dim"), ("num_attention_heads", "n_heads"), ("num_hidden_layers", "n_layers")];

impl ModelType {
    const ALL: [Self; 4] = [Self::Gpt2, Self::Bert, Self::Roberta, Self::DistilBert];

    /// The heads of the family, for messages.
    pub(crate) fn heads(self) -> &'static str {
        match self {
            Self::Gpt2 => "CausalLm or SequenceClassification",
            Self::Bert | Self::Roberta | Self::DistilBert => "MaskedLm, SequenceClassification or QuestionAnswering",
        }
    }

    /// The preset sizes of the family.
    pub fn sizes(self) -> &'static [&'static str] {
        match self {
            Self::Gpt2 => &["distil", "small", "medium", "large", "xl"],
            Self::Bert => &["base", "large", "base-cased", "large-cased"],
            Self::Roberta => &["base", "large"],
            Self::DistilBert => &["base", "base-cased"],
        }
    }

    fn fixed(self) -> &'static [Fixed] {
        match self {
            Self::Gpt2 => GPT2_FIXED,
            Self::Bert | Self::Roberta => BERT_FIXED,
            Self::DistilBert => DISTILBERT_FIXED,
        }
    }

    fn aliases(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Gpt2 => GPT2_ALIASES,
            Self::DistilBert => DISTILBERT_ALIASES,
            Self::Bert | Self::Roberta => &[],
        }
    }

    /// The configuration that `transformers` starts from when nothing is given.
    fn defaults(self) -> ModelConfig {
        match self {
            Self::Gpt2 => ModelConfig::Gpt2(Gpt2Config::default()),
            Self::Bert => ModelConfig::Bert(BertConfig::default()),
            Self::Roberta => ModelConfig::Bert(BertVariant::Roberta.config()),
            Self::DistilBert => ModelConfig::Bert(BertVariant::DistilBert.config()),
        }
    }

    /// The honoured field names of the family, for suggestions.
    pub fn fields(self) -> Vec<String> {
        let mut names: Vec<String> = self.defaults().honoured_json().into_iter().map(|(name, _)| name).collect();
        names.extend(["num_labels", "id2label", "label2id", "problem_type"].map(String::from));
        names
    }
}

impl fmt::Display for ModelType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gpt2 => "gpt2",
            Self::Bert => "bert",
            Self::Roberta => "roberta",
            Self::DistilBert => "distilbert",
        })
    }
}

impl ModelConfig {
    /// A preset: GPT-2 `distil`, `small`, `medium`, `large`, `xl`; BERT `base`, `large` (uncased), `base-cased`,
    /// `large-cased`; RoBERTa `base`, `large`; DistilBERT `base` (uncased), `base-cased`. Shapes from the published
    /// `config.json` files.
    pub fn preset(kind: ModelType, size: &str) -> Result<Self> {
        let gpt2 =
            |n_layer, n_embd, n_head| Self::Gpt2(Gpt2Config { n_layer, n_embd, n_head, ..Gpt2Config::default() });
        let bert = |base: BertConfig, large: bool| {
            Self::Bert(if large {
                BertConfig {
                    hidden_size: 1024,
                    num_hidden_layers: 24,
                    num_attention_heads: 16,
                    intermediate_size: 4096,
                    ..base
                }
            } else {
                base
            })
        };
        let cased = |base: BertConfig| BertConfig { vocab_size: 28996, ..base };
        // The published RoBERTa models differ from the defaults of their configuration class.
        let roberta = || BertConfig {
            max_position_embeddings: 514,
            type_vocab_size: 1,
            layer_norm_eps: 1e-5,
            ..BertVariant::Roberta.config()
        };
        let distilbert = || BertVariant::DistilBert.config();
        Ok(match (kind, size) {
            (ModelType::Gpt2, "distil") => gpt2(6, 768, 12),
            (ModelType::Gpt2, "small") => gpt2(12, 768, 12),
            (ModelType::Gpt2, "medium") => gpt2(24, 1024, 16),
            (ModelType::Gpt2, "large") => gpt2(36, 1280, 20),
            (ModelType::Gpt2, "xl") => gpt2(48, 1600, 25),
            (ModelType::Bert, "base") => bert(BertConfig::default(), false),
            (ModelType::Bert, "large") => bert(BertConfig::default(), true),
            (ModelType::Bert, "base-cased") => bert(cased(BertConfig::default()), false),
            (ModelType::Bert, "large-cased") => bert(cased(BertConfig::default()), true),
            (ModelType::Roberta, "base") => bert(roberta(), false),
            (ModelType::Roberta, "large") => bert(roberta(), true),
            (ModelType::DistilBert, "base") => Self::Bert(distilbert()),
            (ModelType::DistilBert, "base-cased") => Self::Bert(cased(distilbert())),
            _ => {
                let sizes = kind.sizes().join(", ");
                return Err(Error::Config(format!("size: {kind} has no size {size:?}; expected one of {sizes}")));
            }
        })
    }

    /// Reads the text of a `config.json`. Returns the names of fields that Kiln does not know (kept, not honoured) beside
    /// the configuration, so that the caller can show them.
    pub fn from_json(text: &str) -> Result<(Self, Vec<String>)> {
        let value: Value = serde_json::from_str(text).map_err(|e| Error::Config(format!("not JSON: {e}")))?;
        let Value::Object(map) = value else {
            return Err(Error::Config("expected a JSON object at the top".into()));
        };
        let kind = match map.get("model_type") {
            Some(Value::String(name)) => ModelType::ALL.into_iter().find(|kind| kind.to_string() == *name),
            Some(other) => return Err(Error::Config(format!("model_type: expected a string, got {other}"))),
            None => return Err(Error::Config(format!("model_type is missing; expected {MODEL_TYPES}"))),
        };
        let Some(kind) = kind else {
            return Err(Error::Config(format!(
                "model_type: expected {MODEL_TYPES}, got {}; other families are not supported",
                map["model_type"]
            )));
        };
        let mut unknown = Vec::new();
        let config = kind.defaults().merge(&map, |name, _| {
            unknown.push(name.to_string());
            Ok(())
        })?;
        Ok((config, unknown))
    }

    /// The family's defaults with explicit `fields` on top; a name that Kiln does not honour is refused.
    pub fn from_fields(kind: ModelType, fields: &Map<String, Value>) -> Result<Self> {
        kind.defaults().with_fields(fields)
    }

    /// This configuration with explicit `fields` on top; a name that Kiln does not honour is refused, and so are two names
    /// for one thing.
    pub fn with_fields(mut self, fields: &Map<String, Value>) -> Result<Self> {
        let pairs = self.model_type().aliases().iter().copied();
        for (one, other) in pairs.chain([("num_labels", "id2label")]) {
            if fields.contains_key(one) && fields.contains_key(other) {
                return Err(Error::Config(format!(
                    "{one} and {other} are two ways of stating the same thing; keep one of them"
                )));
            }
        }
        if fields.contains_key("num_labels") {
            // The names of the labels that were there would win over the number.
            let labels = self.labels_mut();
            (labels.id2label, labels.label2id) = (None, None);
        }
        self.merge(fields, |name, kind| {
            let known = kind.fields();
            let near = known
                .iter()
                .map(|candidate| (strsim::jaro_winkler(name, candidate), candidate))
                .max_by(|a, b| a.0.total_cmp(&b.0))
                .filter(|(score, _)| *score > 0.75)
                .map_or_else(|| ".".into(), |(_, candidate)| format!("; did you mean {candidate:?}?"));
            Err(Error::Config(format!("unknown field {name:?} for {kind}{near} Known fields: {}", known.join(", "))))
        })
    }

    /// Sets every field of `fields`; `unknown` decides about names that are in none of the tables.
    fn merge(
        self,
        fields: &Map<String, Value>,
        mut unknown: impl FnMut(&str, ModelType) -> Result<()>,
    ) -> Result<Self> {
        let kind = self.model_type();
        let honoured = kind.fields();
        let mut inert = self.inert().clone();
        let mut merged = self.honoured_json();
        let defaults = kind.defaults().honoured_json();
        for (name, value) in fields {
            let name = kind.aliases().iter().find(|(alias, _)| alias == name).map_or(&**name, |(_, to)| to);
            if honoured.iter().any(|known| known == name) {
                // A null means "not set" in Hugging Face's files: the default stands, unless null is a value of the field.
                let value = match (value, defaults.get(name)) {
                    (Value::Null, Some(default)) if name != "pad_token_id" => default,
                    _ => value,
                };
                merged.insert(name.into(), value.clone());
            } else if let Some((_, only, why)) = kind.fixed().iter().find(|(fixed, ..)| *fixed == name) {
                if *value != only() && !value.is_null() {
                    return Err(Error::Config(format!("{name}: expected {}, got {value}: {why}", only())));
                }
            } else {
                if !INERT.contains(&name) {
                    unknown(name, kind)?;
                }
                inert.insert(name.into(), value.clone());
            }
        }
        merged.retain(|name, value| !value.is_null() || name == "pad_token_id");
        let bad = |error: serde_json::Error| Error::Config(error.to_string());
        // Field by field first, so that a wrong type names its field.
        let variant = self.variant();
        let plain = |name: &str| variant.map_or(name, |variant| variant.bert_field(name)).to_string();
        for (name, value) in &merged {
            let one = Value::Object(Map::from_iter([(plain(name), value.clone())]));
            let result = match variant {
                None => Gpt2Config::deserialize(&one).map(|_| ()),
                Some(_) => BertConfig::deserialize(&one).map(|_| ()),
            };
            result.map_err(|error| Error::Config(wrong_type(name, value, &error)))?;
        }
        let merged = Value::Object(merged.into_iter().map(|(name, value)| (plain(&name), value)).collect());
        let config = match variant {
            None => Self::Gpt2(Gpt2Config { inert, ..Gpt2Config::deserialize(&merged).map_err(bad)? }),
            Some(variant) => {
                Self::Bert(BertConfig { variant, inert, ..BertConfig::deserialize(&merged).map_err(bad)? })
            }
        };
        config.validate()?;
        Ok(config)
    }

    /// Checks what the types cannot say: sizes, divisibility, ranges, known activations and labels.
    pub fn validate(&self) -> Result<()> {
        let (width, heads, names) = match self {
            Self::Gpt2(c) => (c.n_embd, c.n_head, ("n_embd", "n_head")),
            Self::Bert(c) => {
                let names = (c.variant.field("hidden_size"), c.variant.field("num_attention_heads"));
                (c.hidden_size, c.num_attention_heads, names)
            }
        };
        for (name, size) in self.sizes() {
            if size == 0 {
                return Err(Error::Config(format!("{name}: expected a positive number, got 0")));
            }
            let largest = largest(name);
            if size > largest {
                return Err(Error::Config(format!("{name}: expected at most {largest}, got {size}")));
            }
        }
        if width % heads != 0 {
            let (width_name, heads_name) = names;
            return Err(Error::Config(format!(
                "{width_name} ({width}) is not divisible by {heads_name} ({heads}); every head takes an equal share"
            )));
        }
        for (name, value, below) in self.reals() {
            if !value.is_finite() || value < 0.0 || value >= below {
                return Err(Error::Config(format!("{name}: expected a number in [0, {below}), got {value}")));
            }
        }
        let (name, activation) = match self {
            Self::Gpt2(c) => ("activation_function", &c.activation_function),
            Self::Bert(c) => (c.variant.field("hidden_act"), &c.hidden_act),
        };
        if Activation::from_hf(activation).is_none() {
            return Err(Error::Config(format!(
                "{name}: expected \"gelu_new\", \"gelu_pytorch_tanh\" or \"gelu\", got {activation:?}; other activations \
                 are not implemented"
            )));
        }
        let labels = self.labels();
        if labels.num_labels() == 0 {
            return Err(Error::Config("num_labels: expected at least 1, got 0".into()));
        }
        match labels.problem_type.as_deref() {
            None | Some("single_label_classification" | "regression") => {}
            Some(other) => {
                return Err(Error::Config(format!(
                    "problem_type: expected \"single_label_classification\" or \"regression\", got {other:?}"
                )));
            }
        }
        if let Some(pad) = self.pad_token_id()
            && pad as usize >= self.vocab_size()
        {
            return Err(Error::Config(format!(
                "pad_token_id: expected an id below vocab_size ({}), got {pad}",
                self.vocab_size()
            )));
        }
        match self {
            Self::Bert(c) if c.variant == BertVariant::Roberta && c.pad_token_id.is_none() => Err(Error::Config(
                "pad_token_id: expected an id, got null: RoBERTa counts its positions from it".into(),
            )),
            Self::Bert(c) if c.max_position_embeddings <= c.position_offset() => Err(Error::Config(format!(
                "max_position_embeddings: expected more than pad_token_id + 1 = {}, where RoBERTa's first position is, got \
                 {}",
                c.position_offset(),
                c.max_position_embeddings
            ))),
            _ => Ok(()),
        }
    }

    fn sizes(&self) -> Vec<(&'static str, usize)> {
        match self {
            Self::Gpt2(c) => vec![
                ("vocab_size", c.vocab_size),
                ("n_positions", c.n_positions),
                ("n_embd", c.n_embd),
                ("n_layer", c.n_layer),
                ("n_head", c.n_head),
                ("n_inner", c.inner()),
            ],
            Self::Bert(c) => [
                ("vocab_size", c.vocab_size),
                ("hidden_size", c.hidden_size),
                ("num_hidden_layers", c.num_hidden_layers),
                ("num_attention_heads", c.num_attention_heads),
                ("intermediate_size", c.intermediate_size),
                ("max_position_embeddings", c.max_position_embeddings),
                ("type_vocab_size", c.type_vocab_size),
            ]
            .map(|(name, size)| (c.variant.field(name), size))
            .to_vec(),
        }
    }

    /// Real-valued fields with the bound that they must stay below.
    fn reals(&self) -> Vec<(&'static str, f64, f64)> {
        match self {
            Self::Gpt2(c) => vec![
                ("resid_pdrop", c.resid_pdrop, 1.0),
                ("embd_pdrop", c.embd_pdrop, 1.0),
                ("attn_pdrop", c.attn_pdrop, 1.0),
                ("layer_norm_epsilon", c.layer_norm_epsilon, 1.0),
                ("initializer_range", c.initializer_range, 1e3),
            ],
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
        }
    }

    /// The family.
    pub fn model_type(&self) -> ModelType {
        match self {
            Self::Gpt2(_) => ModelType::Gpt2,
            Self::Bert(c) => match c.variant {
                BertVariant::Bert => ModelType::Bert,
                BertVariant::Roberta => ModelType::Roberta,
                BertVariant::DistilBert => ModelType::DistilBert,
            },
        }
    }

    fn variant(&self) -> Option<BertVariant> {
        match self {
            Self::Gpt2(_) => None,
            Self::Bert(c) => Some(c.variant),
        }
    }

    /// Number of tokens in the vocabulary.
    pub fn vocab_size(&self) -> usize {
        match self {
            Self::Gpt2(c) => c.vocab_size,
            Self::Bert(c) => c.vocab_size,
        }
    }

    /// Longest sequence in tokens.
    pub fn max_positions(&self) -> usize {
        match self {
            Self::Gpt2(c) => c.n_positions,
            Self::Bert(c) => c.max_position_embeddings - c.position_offset(),
        }
    }

    /// Width of the hidden states, number of layers, number of heads and width of the feed-forward block.
    pub fn shape(&self) -> (usize, usize, usize, usize) {
        match self {
            Self::Gpt2(c) => (c.n_embd, c.n_layer, c.n_head, c.inner()),
            Self::Bert(c) => (c.hidden_size, c.num_hidden_layers, c.num_attention_heads, c.intermediate_size),
        }
    }

    /// Number of token types; none for a family without them.
    pub fn type_vocab_size(&self) -> Option<usize> {
        match self {
            Self::Gpt2(_) => None,
            Self::Bert(c) => c.variant.has_token_types().then_some(c.type_vocab_size),
        }
    }

    /// The id that padding uses, if the configuration names one.
    pub fn pad_token_id(&self) -> Option<u32> {
        match self {
            Self::Gpt2(c) => c.pad_token_id,
            Self::Bert(c) => c.pad_token_id,
        }
    }

    /// The ids that end a generated text, as `config.json` names them (one id or a list).
    pub fn eos_token_ids(&self) -> Vec<u32> {
        match self.inert().get("eos_token_id") {
            Some(Value::Number(id)) => id.as_u64().map(|id| id as u32).into_iter().collect(),
            Some(Value::Array(ids)) => ids.iter().filter_map(|id| id.as_u64().map(|id| id as u32)).collect(),
            _ => Vec::new(),
        }
    }

    /// The labels of a classification head.
    pub fn labels(&self) -> &Labels {
        match self {
            Self::Gpt2(c) => &c.labels,
            Self::Bert(c) => &c.labels,
        }
    }

    /// The labels of a classification head, to change them.
    pub fn labels_mut(&mut self) -> &mut Labels {
        match self {
            Self::Gpt2(c) => &mut c.labels,
            Self::Bert(c) => &mut c.labels,
        }
    }

    /// Sets an inert field, for example `bos_token_id`, for the `config.json` that will be written.
    pub fn set_inert(&mut self, name: &str, value: Value) {
        match self {
            Self::Gpt2(c) => c.inert.insert(name.into(), value),
            Self::Bert(c) => c.inert.insert(name.into(), value),
        };
    }

    fn inert(&self) -> &Map<String, Value> {
        match self {
            Self::Gpt2(c) => &c.inert,
            Self::Bert(c) => &c.inert,
        }
    }

    /// Every honoured field with its value.
    pub fn honoured_json(&self) -> Map<String, Value> {
        let value = match self {
            Self::Gpt2(c) => serde_json::to_value(c),
            Self::Bert(c) => serde_json::to_value(c),
        };
        match value {
            Ok(Value::Object(mut map)) => {
                if let Some(variant) = self.variant() {
                    let fields = map.into_iter().filter(|(name, _)| variant.has_field(name));
                    map = fields.map(|(name, value)| (variant.field(&name).to_string(), value)).collect();
                }
                if let Some(count) = self.labels().num_labels.filter(|_| self.labels().id2label.is_none()) {
                    map.insert("num_labels".into(), count.into());
                }
                map
            }
            _ => unreachable!("a struct of plain fields serialises to an object"),
        }
    }

    /// The `config.json` of a model with this configuration and `architecture` (a class name of `transformers`).
    pub fn to_json(&self, architecture: &str) -> Value {
        let mut map = Map::new();
        map.insert("architectures".into(), json!([architecture]));
        map.insert("model_type".into(), json!(self.model_type().to_string()));
        map.insert("dtype".into(), json!("float32"));
        map.extend(self.honoured_json());
        for (name, value) in self.inert() {
            if !matches!(name.as_str(), "architectures" | "model_type" | "dtype" | "torch_dtype") {
                map.insert(name.clone(), value.clone());
            }
        }
        for (name, only, _) in self.model_type().fixed() {
            if !matches!(*name, "quantization_config" | "pruned_heads") {
                map.insert((*name).into(), only());
            }
        }
        Value::Object(map)
    }
}

/// The largest value of a size. Far above any model, and small enough that the number of parameters and of their bytes
/// fits in 64 bits.
fn largest(name: &str) -> usize {
    match name {
        "n_layer" | "num_hidden_layers" | "n_layers" => 1 << 12,
        "n_embd" | "hidden_size" | "dim" | "n_head" | "num_attention_heads" | "n_heads" => 1 << 20,
        "n_inner" | "intermediate_size" | "hidden_dim" => 1 << 22,
        _ => 1 << 24,
    }
}

/// A value of a type that its field does not have; `error` is serde's, which names the type in Rust's words.
fn wrong_type(name: &str, value: &Value, error: &serde_json::Error) -> String {
    let error = error.to_string();
    let expected = match error.rsplit_once("expected ").map_or(error.as_str(), |(_, expected)| expected) {
        "usize" | "u32" => "a whole number that is not negative",
        "f64" => "a number",
        "a boolean" => "true or false",
        other => other,
    };
    format!("{name}: expected {expected}, got {value}")
}

impl Gpt2Config {
    /// Width of the feed-forward block.
    pub fn inner(&self) -> usize {
        self.n_inner.unwrap_or(self.n_embd.saturating_mul(4))
    }

    pub(crate) fn activation(&self) -> Activation {
        Activation::from_hf(&self.activation_function).expect("validate() refuses activations that Kiln does not have")
    }
}

impl BertConfig {
    pub(crate) fn activation(&self) -> Activation {
        Activation::from_hf(&self.hidden_act).expect("validate() refuses activations that Kiln does not have")
    }

    /// Row of the position table that the first token uses: 0, in RoBERTa the one after its padding row.
    pub(crate) fn position_offset(&self) -> usize {
        match (self.variant, self.padding_idx()) {
            (BertVariant::Roberta, Some(padding)) => padding + 1,
            _ => 0,
        }
    }

    pub(crate) fn padding_idx(&self) -> Option<usize> {
        self.pad_token_id.map(|id| id as usize)
    }
}
