//! Model configurations with Hugging Face's field names: read from `config.json`, from a preset or
//! from explicit fields, checked, and written back so that `transformers` opens the folder.
//!
//! A field is one of four things: honoured (it is in the struct), fixed (only one value computes
//! what Kiln computes, any other is refused), inert (it changes nothing here and is kept for the
//! file that is written), or unknown. Nothing that would change the mathematics is ignored.

mod fields;
mod json;
mod llama;
mod validate;
mod variant;

use std::fmt;

pub use fields::{CONFIG_NAMES, ELECTRA_SUMMARY_DROPOUT};
pub use llama::{LlamaConfig, LlamaVariant, RopeParameters};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
pub use variant::{BertVariant, Gpt2Variant};

use crate::error::{Error, Result};

/// The family of a model; Hugging Face's `model_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelType {
    /// GPT-2
    Gpt2,
    /// GPT-Neo
    #[serde(rename = "gpt_neo")]
    GptNeo,
    /// BERT
    Bert,
    /// RoBERTa
    Roberta,
    /// CamemBERT
    Camembert,
    /// XLM-RoBERTa
    #[serde(rename = "xlm-roberta")]
    XlmRoberta,
    /// DistilBERT
    DistilBert,
    /// ELECTRA
    Electra,
    /// ALBERT
    Albert,
    /// Llama 2 and 3, TinyLlama, SmolLM2
    Llama,
    /// Mistral
    Mistral,
    /// Qwen 2 and 2.5
    Qwen2,
    /// Qwen 3
    Qwen3,
    /// SmolLM3
    SmolLm3,
}

/// Which head stands on the body. The names of the classes are Hugging Face's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Head {
    /// Next-token logits (`GPT2LMHeadModel`).
    CausalLm,
    /// Logits of every position's own token (`BertForMaskedLM`).
    MaskedLm,
    /// One vector of `num_labels` logits a sequence (`...ForSequenceClassification`); one label is
    /// regression.
    SequenceClassification,
    /// A start and an end logit a token (`BertForQuestionAnswering`).
    QuestionAnswering,
    /// One vector of `num_labels` logits a token (`BertForTokenClassification`).
    TokenClassification,
    /// One logit a sequence, to be compared with those of the other choices
    /// (`BertForMultipleChoice`).
    MultipleChoice,
}

impl Head {
    /// The task that the head is for, for messages.
    pub fn task(self) -> &'static str {
        match self {
            Self::CausalLm => "clm",
            Self::MaskedLm => "mlm",
            Self::SequenceClassification => "sequence-classification",
            Self::QuestionAnswering => "question-answering",
            Self::TokenClassification => "token-classification",
            Self::MultipleChoice => "multiple-choice",
        }
    }
}

/// The activation of the feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`: Hugging Face's `gelu_new` and
    /// `gelu_pytorch_tanh`.
    GeluTanh,
    /// `0.5 x (1 + erf(x / sqrt(2)))`: Hugging Face's `gelu`.
    GeluErf,
}

impl Activation {
    /// The activation that Hugging Face calls `name`; none for one that Kiln does not have.
    pub fn from_hf(name: &str) -> Option<Self> {
        match name {
            "gelu_new" | "gelu_pytorch_tanh" => Some(Self::GeluTanh),
            "gelu" => Some(Self::GeluErf),
            _ => None,
        }
    }
}

/// The configuration of a model.
#[derive(Debug, Clone, PartialEq)]
#[allow(clippy::large_enum_variant)] // there are few of these in a process
pub enum ModelConfig {
    /// GPT-2 and its variant GPT-Neo ([`Gpt2Variant`])
    Gpt2(Gpt2Config),
    /// BERT and its variants ([`BertVariant`])
    Bert(BertConfig),
    /// Llama and its variants ([`LlamaVariant`])
    Llama(LlamaConfig),
}

/// The fields of GPT-2 and GPT-Neo, by GPT-2's names (GPT-Neo's files call some of them otherwise,
/// see [`Gpt2Variant`]). Defaults are `transformers`' (`GPT2Config`), which are GPT-2 small; those
/// of GPT-Neo are in [`Gpt2Variant::config`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gpt2Config {
    /// Which of the two it is. Not a field of the file, where `model_type` says it.
    #[serde(skip)]
    pub variant: Gpt2Variant,
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
    /// Divide scores by `sqrt(head_dim)`. Default true. GPT-Neo never does.
    pub scale_attn_weights: bool,
    /// `global` or `local` for each layer of GPT-Neo, as a list of such lists and how often each is
    /// repeated. A local layer attends to the last `window_size` tokens. GPT-2 has none.
    pub attention_types: Vec<(Vec<String>, usize)>,
    /// Tokens that a local layer of GPT-Neo attends to, the own among them. Default 256.
    pub window_size: usize,
    /// Whether the output of a language model is the token embedding again. Default true.
    pub tie_word_embeddings: bool,
    /// The id that padding uses, if any.
    pub pad_token_id: Option<u32>,
    /// Labels of a classification head.
    #[serde(flatten)]
    pub labels: Labels,
    /// Inert fields, kept for the file that is written.
    #[serde(skip)]
    pub inert: Map<String, Value>,
}

/// The fields of BERT and its variants, by BERT's names (the files of some variants call some of
/// them otherwise, see [`BertVariant`]). Defaults are `transformers`' (`BertConfig`), which are
/// BERT base uncased; those of the variants are in [`BertVariant::config`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BertConfig {
    /// Which of the family it is. Not a field of the file, where `model_type` says it.
    #[serde(skip)]
    pub variant: BertVariant,
    /// Number of tokens in the vocabulary. Default 30522; RoBERTa 50265, ALBERT 30000.
    pub vocab_size: usize,
    /// Width of the embeddings, which ELECTRA and ALBERT project to `hidden_size`. Default there
    /// 128; `hidden_size` in the others, which have no such field.
    pub embedding_size: Option<usize>,
    /// Width. Default 768; ELECTRA 256, ALBERT 4096.
    pub hidden_size: usize,
    /// Number of layers. Default 12; DistilBERT 6. ALBERT's layers are one set of weights.
    pub num_hidden_layers: usize,
    /// Number of attention heads; must divide `hidden_size`. Default 12; ELECTRA 4, ALBERT 64.
    pub num_attention_heads: usize,
    /// Width of the feed-forward block. Default 3072; ELECTRA 1024, ALBERT 16384.
    pub intermediate_size: usize,
    /// `gelu`, `gelu_new` or `gelu_pytorch_tanh`. Default `gelu`; ALBERT `gelu_new`.
    pub hidden_act: String,
    /// Dropout of embeddings and residual branches. Default 0.1; ALBERT 0.
    pub hidden_dropout_prob: f64,
    /// Dropout of the attention weights. Default 0.1; ALBERT 0.
    pub attention_probs_dropout_prob: f64,
    /// Dropout before the classifier; `classifier_dropout_prob` in ALBERT, `seq_classif_dropout` in
    /// DistilBERT. Default `hidden_dropout_prob`; ALBERT 0.1, DistilBERT 0.2.
    pub classifier_dropout: Option<f64>,
    /// Dropout before the span head, which DistilBERT alone has. Default there 0.1.
    pub qa_dropout: f64,
    /// Rows of the position table: the longest sequence in tokens, except in RoBERTa, CamemBERT and
    /// XLM-RoBERTa, which use the rows that follow `pad_token_id`. Default 512.
    pub max_position_embeddings: usize,
    /// Number of token types. Default 2. DistilBERT has none.
    pub type_vocab_size: usize,
    /// Added to the variance in LayerNorm. Default 1e-12.
    pub layer_norm_eps: f64,
    /// Standard deviation of new weights. Default 0.02.
    pub initializer_range: f64,
    /// Whether the output of a language model is the token embedding again. Default true.
    pub tie_word_embeddings: bool,
    /// The id that padding uses. Default 0; RoBERTa, CamemBERT and XLM-RoBERTa 1.
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
    /// Number of labels, where `id2label` does not name them. Default 2.
    #[serde(skip_serializing)]
    pub num_labels: Option<usize>,
    /// Label names by id (`"0"`, `"1"`, ...).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id2label: Option<Map<String, Value>>,
    /// Ids by label name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label2id: Option<Map<String, Value>>,
    /// `single_label_classification`, `multi_label_classification` or `regression`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem_type: Option<String>,
}

impl Labels {
    /// How many logits the head has.
    pub fn num_labels(&self) -> usize {
        self.id2label.as_ref().map(Map::len).or(self.num_labels).unwrap_or(2)
    }

    /// Checks what a head that classifies goes by: `id2label` names the ids from 0 without a gap,
    /// and `label2id` says the same.
    ///
    /// # Errors
    /// Ids that are others, and a name with two ids.
    pub fn check(&self) -> Result<()> {
        let Some(names) = &self.id2label else { return Ok(()) };
        let expected = (0..names.len()).map(|id| id.to_string());
        if let Some(missing) = expected.into_iter().find(|id| !names.contains_key(id)) {
            let ids = names.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            return Err(Error::config(format!(
                "id2label: expected a name for each id from 0 to {}, got none for {missing}; it has {ids}",
                names.len() - 1
            )));
        }
        let Some(ids) = &self.label2id else { return Ok(()) };
        let differs = names.iter().find(|(id, name)| {
            let stated = name.as_str().and_then(|name| ids.get(name));
            stated.is_none_or(|stated| stated.as_u64() != id.parse().ok())
        });
        let other = ids.iter().find(|(name, id)| names.get(&id.to_string()).and_then(Value::as_str) != Some(name));
        match (differs, other) {
            (None, None) => Ok(()),
            (Some((id, name)), _) => Err(Error::config(format!(
                "id2label calls the label {id} {name}, and label2id gives {name} {}; expected the same in both",
                name.as_str().and_then(|name| ids.get(name)).map_or("no id".into(), |id| format!("the id {id}"))
            ))),
            (_, Some((name, id))) => Err(Error::config(format!(
                "label2id gives {name:?} the id {id}, and id2label does not call it that; expected the same in both"
            ))),
        }
    }

    /// Whether the names are `LABEL_0`, `LABEL_1`, ..., which `transformers` writes for labels that
    /// were given none.
    pub fn are_numbered(&self) -> bool {
        self.id2label.is_some() && self.id2label == Self::numbered(self.num_labels()).id2label
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
            variant: Gpt2Variant::Gpt2,
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
            attention_types: Vec::new(),
            window_size: 256,
            tie_word_embeddings: true,
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
            embedding_size: None,
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
            tie_word_embeddings: true,
            pad_token_id: Some(0),
            labels: Labels::default(),
            inert: Map::new(),
        }
    }
}

impl ModelType {
    /// Every family.
    pub const ALL: [Self; 14] = [
        Self::Gpt2,
        Self::GptNeo,
        Self::Bert,
        Self::Roberta,
        Self::Camembert,
        Self::XlmRoberta,
        Self::DistilBert,
        Self::Electra,
        Self::Albert,
        Self::Llama,
        Self::Mistral,
        Self::Qwen2,
        Self::Qwen3,
        Self::SmolLm3,
    ];

    /// Hugging Face's name of the family.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpt2 => "gpt2",
            Self::GptNeo => "gpt_neo",
            Self::Bert => "bert",
            Self::Roberta => "roberta",
            Self::Camembert => "camembert",
            Self::XlmRoberta => "xlm-roberta",
            Self::DistilBert => "distilbert",
            Self::Electra => "electra",
            Self::Albert => "albert",
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::SmolLm3 => "smollm3",
        }
    }

    /// Which variant of BERT the family is; none for the others.
    pub fn bert_variant(self) -> Option<BertVariant> {
        match self {
            Self::Gpt2 | Self::GptNeo => None,
            Self::Llama | Self::Mistral | Self::Qwen2 | Self::Qwen3 | Self::SmolLm3 => None,
            Self::Bert => Some(BertVariant::Bert),
            Self::Roberta => Some(BertVariant::Roberta),
            Self::Camembert => Some(BertVariant::Camembert),
            Self::XlmRoberta => Some(BertVariant::XlmRoberta),
            Self::DistilBert => Some(BertVariant::DistilBert),
            Self::Electra => Some(BertVariant::Electra),
            Self::Albert => Some(BertVariant::Albert),
        }
    }

    /// The names of all families in quotes, for messages: `"gpt2", "bert" or "roberta"`.
    pub fn listed() -> String {
        let names = Self::ALL.map(|kind| format!("{:?}", kind.name()));
        let (last, others) = names.split_last().expect("ALL is not empty");
        format!("{} or {last}", others.join(", "))
    }

    /// The tasks that the family has heads for, for messages.
    pub fn tasks(self) -> &'static str {
        match self {
            Self::Gpt2 | Self::GptNeo => "clm, sequence-classification, multi-label-classification and regression",
            Self::Llama | Self::Mistral | Self::Qwen2 | Self::Qwen3 | Self::SmolLm3 => {
                "clm, sequence-classification, multi-label-classification, regression and token-classification"
            }
            _ => {
                "mlm, sequence-classification, multi-label-classification, regression, question-answering, \
                 token-classification and multiple-choice"
            }
        }
    }

    /// Whether models of the family can have this head.
    pub fn has_head(self, head: Head) -> bool {
        match (self.bert_variant(), self.llama_variant()) {
            (Some(_), _) => head != Head::CausalLm,
            (_, Some(_)) => matches!(head, Head::CausalLm | Head::SequenceClassification | Head::TokenClassification),
            (None, None) => matches!(head, Head::CausalLm | Head::SequenceClassification),
        }
    }

    /// The preset sizes of the family.
    pub fn sizes(self) -> &'static [&'static str] {
        match self {
            Self::Gpt2 => &["distil", "small", "medium", "large", "xl"],
            Self::GptNeo => &["125m", "1.3b", "2.7b"],
            Self::Bert => &["base", "large", "base-cased", "large-cased"],
            Self::Roberta | Self::Camembert | Self::XlmRoberta => &["base", "large"],
            Self::DistilBert => &["base", "base-cased"],
            Self::Electra => &["small", "base", "large"],
            Self::Albert => &["base", "large", "xlarge", "xxlarge"],
            Self::Llama => &[
                "smollm2-135m",
                "smollm2-360m",
                "smollm2-1.7b",
                "tinyllama-1.1b",
                "llama2-7b",
                "llama3.2-1b",
                "llama3.2-3b",
                "llama3.1-8b",
            ],
            Self::Mistral => &["7b"],
            Self::Qwen2 => &["0.5b", "1.5b", "3b", "7b"],
            Self::Qwen3 => &["0.6b", "1.7b", "4b", "8b"],
            Self::SmolLm3 => &["3b"],
        }
    }

    /// The configuration that `transformers` starts from when nothing is given.
    fn defaults(self) -> ModelConfig {
        match (self.bert_variant(), self.llama_variant()) {
            (Some(variant), _) => ModelConfig::Bert(variant.config()),
            (_, Some(variant)) => ModelConfig::Llama(variant.config()),
            (None, None) => ModelConfig::Gpt2(self.gpt2_variant().config()),
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
        f.write_str(self.name())
    }
}

impl ModelConfig {
    /// A preset: GPT-2 `distil`, `small`, `medium`, `large`, `xl`; GPT-Neo `125m`, `1.3b`, `2.7b`;
    /// BERT `base`, `large` (uncased), `base-cased`, `large-cased`; RoBERTa, CamemBERT and
    /// XLM-RoBERTa `base`, `large`; DistilBERT `base` (uncased), `base-cased`; ELECTRA `small`,
    /// `base`, `large` (the discriminators); ALBERT `base`, `large`, `xlarge`, `xxlarge` (version
    /// 2); Llama's names say the model, such as `smollm2-135m` and `llama3.2-1b`; those of Mistral,
    /// Qwen and SmolLM3 are the numbers of their parameters, such as `0.5b` of Qwen 2.5. Shapes
    /// from the published `config.json` files.
    pub fn preset(kind: ModelType, size: &str) -> Result<Self> {
        let gpt2 =
            |n_layer, n_embd, n_head| Self::Gpt2(Gpt2Config { n_layer, n_embd, n_head, ..Gpt2Config::default() });
        let neo = |n_layer, n_embd, n_head| {
            let attention_types = vec![(vec!["global".into(), "local".into()], n_layer / 2)];
            let base = Gpt2Variant::GptNeo.config();
            Self::Gpt2(Gpt2Config { n_layer, n_embd, n_head, attention_types, ..base })
        };
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
        let roberta = |variant: BertVariant, vocab_size: usize| BertConfig {
            vocab_size,
            max_position_embeddings: 514,
            type_vocab_size: 1,
            layer_norm_eps: 1e-5,
            ..variant.config()
        };
        let electra = |embedding_size: usize, base: BertConfig| {
            Self::Bert(BertConfig { embedding_size: Some(embedding_size), ..base })
        };
        let electra_base = || BertConfig { variant: BertVariant::Electra, ..BertConfig::default() };
        let albert = |hidden_size, num_hidden_layers, num_attention_heads, intermediate_size| {
            let base = BertVariant::Albert.config();
            Self::Bert(BertConfig { hidden_size, num_hidden_layers, num_attention_heads, intermediate_size, ..base })
        };
        let distilbert = || BertVariant::DistilBert.config();
        Ok(match (kind, size) {
            (ModelType::Gpt2, "distil") => gpt2(6, 768, 12),
            (ModelType::Gpt2, "small") => gpt2(12, 768, 12),
            (ModelType::Gpt2, "medium") => gpt2(24, 1024, 16),
            (ModelType::Gpt2, "large") => gpt2(36, 1280, 20),
            (ModelType::Gpt2, "xl") => gpt2(48, 1600, 25),
            (ModelType::GptNeo, "125m") => neo(12, 768, 12),
            (ModelType::GptNeo, "1.3b") => neo(24, 2048, 16),
            (ModelType::GptNeo, "2.7b") => neo(32, 2560, 20),
            (ModelType::Bert, "base") => bert(BertConfig::default(), false),
            (ModelType::Bert, "large") => bert(BertConfig::default(), true),
            (ModelType::Bert, "base-cased") => bert(cased(BertConfig::default()), false),
            (ModelType::Bert, "large-cased") => bert(cased(BertConfig::default()), true),
            (ModelType::Roberta, "base") => bert(roberta(BertVariant::Roberta, 50265), false),
            (ModelType::Roberta, "large") => bert(roberta(BertVariant::Roberta, 50265), true),
            (ModelType::Camembert, "base") => bert(roberta(BertVariant::Camembert, 32005), false),
            (ModelType::Camembert, "large") => bert(roberta(BertVariant::Camembert, 32005), true),
            (ModelType::XlmRoberta, "base") => bert(roberta(BertVariant::XlmRoberta, 250_002), false),
            (ModelType::XlmRoberta, "large") => bert(roberta(BertVariant::XlmRoberta, 250_002), true),
            (ModelType::Electra, "small") => Self::Bert(BertVariant::Electra.config()),
            (ModelType::Electra, "base") => electra(768, electra_base()),
            (ModelType::Electra, "large") => match bert(electra_base(), true) {
                Self::Bert(large) => electra(1024, large),
                other => other,
            },
            (ModelType::Albert, "base") => albert(768, 12, 12, 3072),
            (ModelType::Albert, "large") => albert(1024, 24, 16, 4096),
            (ModelType::Albert, "xlarge") => albert(2048, 24, 16, 8192),
            (ModelType::Albert, "xxlarge") => albert(4096, 12, 64, 16384),
            (ModelType::DistilBert, "base") => Self::Bert(distilbert()),
            (ModelType::DistilBert, "base-cased") => Self::Bert(cased(distilbert())),
            _ => {
                let preset = kind.llama_variant().and_then(|variant| LlamaConfig::preset(variant, size));
                if let Some(config) = preset {
                    return Ok(Self::Llama(config));
                }
                let sizes = kind.sizes().join(", ");
                return Err(Error::config(format!("size: {kind} has no size {size:?}; expected one of {sizes}")));
            }
        })
    }

    /// The family.
    pub fn model_type(&self) -> ModelType {
        match self {
            Self::Gpt2(c) => match c.variant {
                Gpt2Variant::Gpt2 => ModelType::Gpt2,
                Gpt2Variant::GptNeo => ModelType::GptNeo,
            },
            Self::Bert(c) => match c.variant {
                BertVariant::Bert => ModelType::Bert,
                BertVariant::Roberta => ModelType::Roberta,
                BertVariant::Camembert => ModelType::Camembert,
                BertVariant::XlmRoberta => ModelType::XlmRoberta,
                BertVariant::DistilBert => ModelType::DistilBert,
                BertVariant::Electra => ModelType::Electra,
                BertVariant::Albert => ModelType::Albert,
            },
            Self::Llama(c) => match c.variant {
                LlamaVariant::Llama => ModelType::Llama,
                LlamaVariant::Mistral => ModelType::Mistral,
                LlamaVariant::Qwen2 => ModelType::Qwen2,
                LlamaVariant::Qwen3 => ModelType::Qwen3,
                LlamaVariant::SmolLm3 => ModelType::SmolLm3,
            },
        }
    }

    /// Number of tokens in the vocabulary.
    pub fn vocab_size(&self) -> usize {
        match self {
            Self::Gpt2(c) => c.vocab_size,
            Self::Bert(c) => c.vocab_size,
            Self::Llama(c) => c.vocab_size,
        }
    }

    /// Sets the number of tokens in the vocabulary.
    pub fn set_vocab_size(&mut self, size: usize) {
        match self {
            Self::Gpt2(c) => c.vocab_size = size,
            Self::Bert(c) => c.vocab_size = size,
            Self::Llama(c) => c.vocab_size = size,
        }
    }

    /// Whether the output of a language model is the token embedding again.
    pub fn ties_word_embeddings(&self) -> bool {
        match self {
            Self::Gpt2(c) => c.tie_word_embeddings,
            Self::Bert(c) => c.tie_word_embeddings,
            Self::Llama(c) => c.tie_word_embeddings,
        }
    }

    /// Sets whether the output of a language model is the token embedding again.
    pub fn set_tie_word_embeddings(&mut self, ties: bool) {
        match self {
            Self::Gpt2(c) => c.tie_word_embeddings = ties,
            Self::Bert(c) => c.tie_word_embeddings = ties,
            Self::Llama(c) => c.tie_word_embeddings = ties,
        }
    }

    /// Longest sequence in tokens.
    pub fn max_positions(&self) -> usize {
        match self {
            Self::Gpt2(c) => c.n_positions,
            Self::Bert(c) => c.max_position_embeddings - c.position_offset(),
            Self::Llama(c) => c.max_position_embeddings,
        }
    }

    /// Width of the embeddings, and of the vocabulary's weight in a language model.
    pub fn embedding_size(&self) -> usize {
        match self {
            Self::Gpt2(c) => c.n_embd,
            Self::Bert(c) => c.embedding_size(),
            Self::Llama(c) => c.hidden_size,
        }
    }

    /// The number of tokens that a local layer attends to, and how many layers are local; none
    /// where no layer is.
    pub fn window(&self) -> Option<(usize, usize)> {
        let (window, layers) = match self {
            Self::Gpt2(c) => (c.window_size, c.layers_are_local()),
            Self::Llama(c) => (c.window()?, c.layers_are_local()),
            Self::Bert(_) => return None,
        };
        let local = layers.into_iter().filter(|is_local| *is_local).count();
        (local > 0).then_some((window, local))
    }

    /// Width of the hidden states, number of layers, number of heads and width of the feed-forward
    /// block.
    pub fn shape(&self) -> (usize, usize, usize, usize) {
        match self {
            Self::Gpt2(c) => (c.n_embd, c.n_layer, c.n_head, c.inner()),
            Self::Bert(c) => (c.hidden_size, c.num_hidden_layers, c.num_attention_heads, c.intermediate_size),
            Self::Llama(c) => (c.hidden_size, c.num_hidden_layers, c.num_attention_heads, c.intermediate_size),
        }
    }

    /// Width of all queries of a token, and of its keys, which fewer heads may have.
    pub fn attention_widths(&self) -> [usize; 2] {
        match self {
            Self::Llama(c) => [c.num_attention_heads * c.head_dim(), c.kv_heads() * c.head_dim()],
            Self::Gpt2(_) | Self::Bert(_) => [self.shape().0; 2],
        }
    }

    /// The activation of the feed-forward block; none for one with a gate (SwiGLU).
    pub fn activation(&self) -> Option<Activation> {
        match self {
            Self::Gpt2(c) => Some(c.activation()),
            Self::Bert(c) => Some(c.activation()),
            Self::Llama(_) => None,
        }
    }

    /// Whether training drops hidden states, and whether it drops attention's weights.
    pub fn has_dropout(&self) -> [bool; 2] {
        match self {
            Self::Gpt2(c) => [c.resid_pdrop > 0.0, c.attn_pdrop > 0.0],
            Self::Bert(c) => [c.hidden_dropout_prob > 0.0, c.attention_probs_dropout_prob > 0.0],
            Self::Llama(c) => [false, c.attention_dropout > 0.0],
        }
    }

    /// Number of token types; none for a family without them.
    pub fn type_vocab_size(&self) -> Option<usize> {
        match self {
            Self::Gpt2(_) | Self::Llama(_) => None,
            Self::Bert(c) => c.variant.has_token_types().then_some(c.type_vocab_size),
        }
    }

    /// The id that padding uses, if the configuration names one.
    pub fn pad_token_id(&self) -> Option<u32> {
        match self {
            Self::Gpt2(c) => c.pad_token_id,
            Self::Bert(c) => c.pad_token_id,
            Self::Llama(c) => c.pad_token_id,
        }
    }

    /// The ids that end a generated text, as `config.json` names them (one id or a list).
    pub fn eos_token_ids(&self) -> Vec<u32> {
        // validate() has refused anything else, and what set_inert() puts there is an id of a
        // tokenizer.
        eos_token_ids(self.inert().get("eos_token_id"), None).unwrap_or_default()
    }

    /// The class of `transformers` that `config.json` says has saved the model, for example
    /// `BertForMaskedLM`.
    pub fn architecture(&self) -> Option<&str> {
        self.inert().get("architectures")?.get(0)?.as_str()
    }

    /// The labels of a classification head.
    pub fn labels(&self) -> &Labels {
        match self {
            Self::Gpt2(c) => &c.labels,
            Self::Bert(c) => &c.labels,
            Self::Llama(c) => &c.labels,
        }
    }

    /// The labels of a classification head, to change them.
    pub fn labels_mut(&mut self) -> &mut Labels {
        match self {
            Self::Gpt2(c) => &mut c.labels,
            Self::Bert(c) => &mut c.labels,
            Self::Llama(c) => &mut c.labels,
        }
    }

    /// Sets an inert field, for example `bos_token_id`, for the `config.json` that will be written.
    pub fn set_inert(&mut self, name: &str, value: Value) {
        match self {
            Self::Gpt2(c) => c.inert.insert(name.into(), value),
            Self::Bert(c) => c.inert.insert(name.into(), value),
            Self::Llama(c) => c.inert.insert(name.into(), value),
        };
    }

    fn inert(&self) -> &Map<String, Value> {
        match self {
            Self::Gpt2(c) => &c.inert,
            Self::Bert(c) => &c.inert,
            Self::Llama(c) => &c.inert,
        }
    }
}

/// The numbers nearest to `number` that divide `width`: the one below, and the one above it where
/// there is one.
fn near_divisors(width: usize, number: usize) -> String {
    let divides = |candidate: &usize| width.is_multiple_of(*candidate);
    // 1 divides every width.
    let below = (1..number.min(width + 1)).rev().find(divides).unwrap_or(1);
    match (number + 1..=width).find(divides) {
        Some(above) => format!("{below} or {above}"),
        None => below.to_string(),
    }
}

/// The `eos_token_id` of a model, one id or a list, with the name of the field in the error.
///
/// With `vocab_size` every id must be below it, since a generation that ends at another token than
/// the one meant goes on for ever or ends too soon. The id 50256 is let through: `transformers`'
/// `GPT2Config` and its generation settings put it into the files of a model with a smaller
/// vocabulary, and no token of such a model ends anything then; SmolLM3's 128001 likewise.
///
/// # Errors
/// No whole number, a negative one, one that no id can be, and one that is no id of the vocabulary.
pub fn eos_token_ids(value: Option<&Value>, vocab_size: Option<usize>) -> Result<Vec<u32>> {
    let one = |value: &Value| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        let id =
            id.filter(|id| [GPT2_EOS, SMOLLM3_EOS].contains(id) || vocab_size.is_none_or(|size| (*id as usize) < size));
        id.ok_or_else(|| {
            let expected = match vocab_size {
                Some(size) => format!("ids below vocab_size ({size})"),
                None => "ids of tokens, which are whole numbers of at most 32 bits".into(),
            };
            Error::config(format!("eos_token_id: expected {expected}, got {value}"))
        })
    };
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(ids)) => ids.iter().map(one).collect(),
        Some(id) => one(id).map(|id| vec![id]),
    }
}

/// GPT-2's end-of-text, the `eos_token_id` that `transformers`' `GPT2Config` has by default.
const GPT2_EOS: u32 = 50256;

/// SmolLM3's end-of-text, the `eos_token_id` that `transformers`' `SmolLM3Config` has by default.
const SMOLLM3_EOS: u32 = 128_001;

impl Gpt2Config {
    /// Width of the feed-forward block.
    pub fn inner(&self) -> usize {
        self.n_inner.unwrap_or(self.n_embd.saturating_mul(4))
    }

    /// Whether each layer attends to the last tokens only; shorter than the layers where
    /// `attention_types` is.
    pub fn layers_are_local(&self) -> Vec<bool> {
        match self.variant {
            Gpt2Variant::Gpt2 => vec![false; self.n_layer],
            Gpt2Variant::GptNeo => {
                let each = self.attention_types.iter();
                let each = each.flat_map(|(kinds, times)| std::iter::repeat_n(kinds, *times).flatten());
                each.take(self.n_layer.saturating_add(1)).map(|kind| kind == "local").collect()
            }
        }
    }

    /// The factor of the scores.
    pub fn scale(&self) -> f64 {
        if self.scale_attn_weights && self.variant == Gpt2Variant::Gpt2 {
            1.0 / ((self.n_embd / self.n_head) as f64).sqrt()
        } else {
            1.0
        }
    }

    /// The activation of the feed-forward block.
    pub fn activation(&self) -> Activation {
        Activation::from_hf(&self.activation_function).expect("validate() refuses activations that Kiln does not have")
    }
}

impl BertConfig {
    /// The activation of the feed-forward block.
    pub fn activation(&self) -> Activation {
        Activation::from_hf(&self.hidden_act).expect("validate() refuses activations that Kiln does not have")
    }

    /// Width of the embeddings.
    pub fn embedding_size(&self) -> usize {
        self.embedding_size.unwrap_or(self.hidden_size)
    }

    /// Row of the position table that the first token uses: 0, in RoBERTa the one after its padding
    /// row.
    pub(crate) fn position_offset(&self) -> usize {
        match self.padding_idx() {
            Some(padding) if self.variant.counts_from_padding() => padding + 1,
            _ => 0,
        }
    }

    /// Id of the padding token.
    pub fn padding_idx(&self) -> Option<usize> {
        self.pad_token_id.map(|id| id as usize)
    }
}
