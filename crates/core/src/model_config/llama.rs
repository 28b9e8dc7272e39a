//! The fields of the Llama family: Llama itself, Mistral, Qwen 2 and 3, and SmolLM3. A variant is
//! told by its `model_type`; what it does otherwise is said by methods here.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Labels, ModelConfig, ModelType, near_divisors};
use crate::error::{Error, Result};

/// Which model of Llama's family it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LlamaVariant {
    /// Llama 2 and 3, TinyLlama, SmolLM2.
    #[default]
    Llama,
    /// All layers attend to the last tokens only, where there is a window.
    Mistral,
    /// Query, key and value have a bias; late layers may have a window. Qwen 2 and 2.5.
    Qwen2,
    /// Query and key are normalised head by head; late layers may have a window.
    Qwen3,
    /// Some layers have no positions.
    SmolLm3,
}

/// The fields of Llama, Mistral, Qwen 2, Qwen 3 and SmolLM3. Defaults are `transformers`'
/// (`LlamaConfig`); those of the variants are in [`LlamaVariant::config`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LlamaConfig {
    /// Which of the family it is. Not a field of the file, where `model_type` says it.
    #[serde(skip)]
    pub variant: LlamaVariant,
    /// Number of tokens in the vocabulary. Default 32000; Qwen 151936, SmolLM3 128256.
    pub vocab_size: usize,
    /// Width. Default 4096; SmolLM3 2048.
    pub hidden_size: usize,
    /// Width of the feed-forward block. Default 11008; Mistral 14336, Qwen 22016.
    pub intermediate_size: usize,
    /// Number of layers. Default 32; SmolLM3 36.
    pub num_hidden_layers: usize,
    /// Number of heads of the queries. Default 32; SmolLM3 16.
    pub num_attention_heads: usize,
    /// Number of heads of keys and values, which divides that of the queries. Default as many;
    /// Mistral 8, Qwen 32, SmolLM3 4.
    pub num_key_value_heads: Option<usize>,
    /// Width of a head. Default `hidden_size / num_attention_heads`; Qwen 3 128.
    pub head_dim: Option<usize>,
    /// `silu`, which Hugging Face also calls `swish`.
    pub hidden_act: String,
    /// Longest sequence in tokens. Default 2048; Mistral 131072, Qwen and SmolLM3 32768.
    pub max_position_embeddings: usize,
    /// Standard deviation of new weights. Default 0.02.
    pub initializer_range: f64,
    /// Added to the mean square in RMSNorm. Default 1e-6.
    pub rms_norm_eps: f64,
    /// The frequencies of the rotary positions.
    pub rope_parameters: RopeParameters,
    /// Whether the projections of the attention have a bias, in Llama, Qwen 3 and SmolLM3. Default
    /// false.
    pub attention_bias: bool,
    /// Dropout of the attention weights. Default 0.
    pub attention_dropout: f64,
    /// Whether the projections of the feed-forward block have a bias, in Llama and SmolLM3. Default
    /// false.
    pub mlp_bias: bool,
    /// Dropout before the classifier of tokens. Default 0.1.
    pub classifier_dropout: Option<f64>,
    /// Tokens that a layer with a window attends to, the own among them. Default 4096; SmolLM3
    /// none. Llama has none.
    pub sliding_window: Option<usize>,
    /// Whether layers of Qwen and SmolLM3 have the window. Default false.
    pub use_sliding_window: bool,
    /// The first layer of Qwen that has the window. Default 28.
    pub max_window_layers: usize,
    /// `full_attention` or `sliding_attention` for each layer of Qwen and SmolLM3. Default: the
    /// layers from `max_window_layers` on, or those without positions, have the window.
    pub layer_types: Option<Vec<String>>,
    /// 1 for each layer of SmolLM3 with positions, 0 for one without. Default: every
    /// `no_rope_layer_interval`-th has none.
    pub no_rope_layers: Option<Vec<u32>>,
    /// How often a layer of SmolLM3 has no positions where `no_rope_layers` does not say it.
    /// Default 4.
    pub no_rope_layer_interval: usize,
    /// Whether the output of a language model is the token embedding again. Default false; SmolLM3
    /// true.
    pub tie_word_embeddings: bool,
    /// The id that padding uses, whose embedding gets no gradient from being looked up. Default
    /// none; SmolLM3 128004.
    pub pad_token_id: Option<u32>,
    /// Whether the embedding of `pad_token_id` learns from being looked up. Not a field of the
    /// file: the Trainer of `transformers` gives a model its tokenizer's padding once the embedding
    /// is made without one, and the file that it writes has the id.
    #[serde(skip)]
    pub learns_padding: bool,
    /// Labels of a classification head.
    #[serde(flatten)]
    pub labels: Labels,
    /// Inert fields, kept for the file that is written.
    #[serde(skip)]
    pub inert: Map<String, Value>,
}

/// The frequencies of rotary positions, as `rope_parameters` of `transformers` 5 states them. Files
/// of earlier versions have `rope_theta` and `rope_scaling` instead.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RopeParameters {
    /// `default`, `linear`, `llama3` or `yarn`.
    pub rope_type: String,
    /// The base of the wavelengths. Default 10000; SmolLM3 2000000.
    pub rope_theta: f64,
    /// How many times longer sequences are than those of the pre-training; of every type but
    /// `default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
    /// The longest sequence of the pre-training, of `llama3` and `yarn`. Default:
    /// `max_position_embeddings`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub original_max_position_embeddings: Option<usize>,
    /// For `llama3`: wavelengths longer than the original length over this are scaled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low_freq_factor: Option<f64>,
    /// For `llama3`: wavelengths shorter than the original length over this are not scaled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high_freq_factor: Option<f64>,
    /// For `yarn`: the factor of the rotated values. Default by `factor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_factor: Option<f64>,
    /// For `yarn`: dimensions with more rotations are not scaled. Default 32.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta_fast: Option<f64>,
    /// For `yarn`: dimensions with fewer rotations are scaled in full. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta_slow: Option<f64>,
    /// For `yarn`: its part in the default of `attention_factor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mscale: Option<f64>,
    /// For `yarn`: its part in the default of `attention_factor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mscale_all_dim: Option<f64>,
    /// For `yarn`: whether the bounds of the dimensions are whole numbers. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncate: Option<bool>,
}

impl Default for RopeParameters {
    fn default() -> Self {
        Self {
            rope_type: "default".into(),
            rope_theta: 10_000.0,
            factor: None,
            original_max_position_embeddings: None,
            low_freq_factor: None,
            high_freq_factor: None,
            attention_factor: None,
            beta_fast: None,
            beta_slow: None,
            mscale: None,
            mscale_all_dim: None,
            truncate: None,
        }
    }
}

impl Default for LlamaConfig {
    fn default() -> Self {
        Self {
            variant: LlamaVariant::Llama,
            vocab_size: 32000,
            hidden_size: 4096,
            intermediate_size: 11008,
            num_hidden_layers: 32,
            num_attention_heads: 32,
            num_key_value_heads: None,
            head_dim: None,
            hidden_act: "silu".into(),
            max_position_embeddings: 2048,
            initializer_range: 0.02,
            rms_norm_eps: 1e-6,
            rope_parameters: RopeParameters::default(),
            attention_bias: false,
            attention_dropout: 0.0,
            mlp_bias: false,
            classifier_dropout: None,
            sliding_window: Some(4096),
            use_sliding_window: false,
            max_window_layers: 28,
            layer_types: None,
            no_rope_layers: None,
            no_rope_layer_interval: 4,
            tie_word_embeddings: false,
            pad_token_id: None,
            learns_padding: false,
            labels: Labels::default(),
            inert: Map::new(),
        }
    }
}

/// The spellings of the rotary frequencies in files of `transformers` before version 5, and one
/// field that they share.
const ROPE_THETA: &str = "rope_theta";
const ROPE_SCALING: &str = "rope_scaling";
const ROPE_PARAMETERS: &str = "rope_parameters";
const PARTIAL: &str = "partial_rotary_factor";

impl LlamaVariant {
    /// The defaults of `transformers`' configuration class.
    pub fn config(self) -> LlamaConfig {
        let llama = LlamaConfig { variant: self, ..LlamaConfig::default() };
        let ids = |bos: u32, eos: u32| {
            Map::from_iter([("bos_token_id".into(), bos.into()), ("eos_token_id".into(), eos.into())])
        };
        let qwen = |llama| LlamaConfig {
            vocab_size: 151_936,
            intermediate_size: 22016,
            num_key_value_heads: Some(32),
            max_position_embeddings: 32768,
            ..llama
        };
        match self {
            Self::Llama => LlamaConfig { inert: ids(1, 2), ..llama },
            Self::Mistral => LlamaConfig {
                intermediate_size: 14336,
                num_key_value_heads: Some(8),
                max_position_embeddings: 4096 * 32,
                inert: ids(1, 2),
                ..llama
            },
            Self::Qwen2 => qwen(llama),
            Self::Qwen3 => LlamaConfig { head_dim: Some(128), ..qwen(llama) },
            Self::SmolLm3 => LlamaConfig {
                vocab_size: 128_256,
                hidden_size: 2048,
                num_hidden_layers: 36,
                num_attention_heads: 16,
                num_key_value_heads: Some(4),
                max_position_embeddings: 32768,
                rope_parameters: RopeParameters { rope_theta: 2e6, ..RopeParameters::default() },
                sliding_window: None,
                tie_word_embeddings: true,
                pad_token_id: Some(128_004),
                inert: ids(128_000, 128_001),
                ..llama
            },
        }
    }

    /// The part of `transformers`' class names that names the family.
    pub fn class(self) -> &'static str {
        match self {
            Self::Llama => "Llama",
            Self::Mistral => "Mistral",
            Self::Qwen2 => "Qwen2",
            Self::Qwen3 => "Qwen3",
            Self::SmolLm3 => "SmolLM3",
        }
    }

    /// Whether query and key are normalised head by head.
    pub fn has_head_norms(self) -> bool {
        self == Self::Qwen3
    }

    /// Whether the variant's `config.json` has the field `name`.
    pub(crate) fn has_field(self, name: &str) -> bool {
        match name {
            "attention_bias" => matches!(self, Self::Llama | Self::Qwen3 | Self::SmolLm3),
            "mlp_bias" => matches!(self, Self::Llama | Self::SmolLm3),
            "sliding_window" => self != Self::Llama,
            "use_sliding_window" | "layer_types" => matches!(self, Self::Qwen2 | Self::Qwen3 | Self::SmolLm3),
            "max_window_layers" => matches!(self, Self::Qwen2 | Self::Qwen3),
            "no_rope_layers" | "no_rope_layer_interval" => self == Self::SmolLm3,
            _ => true,
        }
    }
}

impl LlamaConfig {
    /// Number of heads of keys and values.
    pub fn kv_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    /// Width of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads.max(1))
    }

    /// Whether the projections to query, key and value have a bias, and whether the one after the
    /// attention has.
    pub fn attention_biases(&self) -> [bool; 2] {
        match self.variant {
            LlamaVariant::Qwen2 => [true, false],
            LlamaVariant::Mistral => [false, false],
            LlamaVariant::Llama | LlamaVariant::Qwen3 | LlamaVariant::SmolLm3 => [self.attention_bias; 2],
        }
    }

    /// The id whose embedding gets no gradient from being looked up (`padding_idx`).
    pub fn padding_row(&self) -> Option<u32> {
        self.pad_token_id.filter(|_| !self.learns_padding)
    }

    /// Whether the projections of the feed-forward block have a bias.
    pub fn has_mlp_bias(&self) -> bool {
        self.mlp_bias && self.variant.has_field("mlp_bias")
    }

    /// Tokens that a layer with a window attends to; none where the configuration has no window.
    pub fn window(&self) -> Option<usize> {
        match self.variant {
            LlamaVariant::Llama => None,
            LlamaVariant::Mistral | LlamaVariant::SmolLm3 => self.sliding_window,
            LlamaVariant::Qwen2 | LlamaVariant::Qwen3 => self.sliding_window.filter(|_| self.use_sliding_window),
        }
    }

    /// Whether each layer attends to the last tokens only.
    pub fn layers_are_local(&self) -> Vec<bool> {
        let has_window = self.window().is_some();
        let stated = self.layer_types.as_ref().filter(|_| self.variant.has_field("layer_types"));
        let is_local = |layer: usize| match (self.variant, stated) {
            (_, Some(types)) => types.get(layer).is_some_and(|kind| kind == SLIDING),
            (LlamaVariant::Llama, None) => false,
            (LlamaVariant::Mistral, None) => has_window,
            (LlamaVariant::Qwen2 | LlamaVariant::Qwen3, None) => has_window && layer >= self.max_window_layers,
            (LlamaVariant::SmolLm3, None) => has_window && self.use_sliding_window && !self.has_positions(layer),
        };
        (0..self.num_hidden_layers).map(is_local).collect()
    }

    /// Whether query and key of the layer are rotated by their positions.
    pub fn has_positions(&self, layer: usize) -> bool {
        match (self.variant, &self.no_rope_layers) {
            (LlamaVariant::SmolLm3, Some(layers)) => layers.get(layer).is_some_and(|has| *has != 0),
            (LlamaVariant::SmolLm3, None) => !(layer + 1).is_multiple_of(self.no_rope_layer_interval.max(1)),
            _ => true,
        }
    }

    /// The longest sequence of the pre-training, by which `llama3` and `yarn` scale.
    pub fn original_positions(&self) -> usize {
        self.rope_parameters.original_max_position_embeddings.unwrap_or(self.max_position_embeddings)
    }

    /// `fields` with the rotary frequencies under one name: `rope_theta`, and `rope_scaling`, which
    /// stands before `rope_parameters` as in `transformers`, lie on top of this configuration's. A
    /// null of either takes the scaling away.
    ///
    /// # Errors
    /// Values of another type, and positions on a part of each head.
    pub(super) fn with_rope_parameters(&self, fields: &Map<String, Value>) -> Result<Map<String, Value>> {
        let is_null = |name: &str| fields.get(name).is_some_and(Value::is_null);
        let is_removed = is_null(ROPE_SCALING) || is_null(ROPE_PARAMETERS);
        let mut fields = fields.clone();
        let mut take = |name: &str| fields.shift_remove(name).filter(|value| !value.is_null());
        let [theta, scaling, parameters, partial] = [ROPE_THETA, ROPE_SCALING, ROPE_PARAMETERS, PARTIAL].map(&mut take);
        whole(partial.as_ref())?;
        let stated = [(ROPE_SCALING, scaling), (ROPE_PARAMETERS, parameters)];
        // An empty object says nothing, as in Python.
        let stated = stated.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let stated = stated.into_iter().find(|(_, value)| value.as_object().is_none_or(|map| !map.is_empty()));
        let mut rope = match stated {
            None if is_removed => Map::new(),
            None if theta.is_none() => return Ok(fields),
            None => match serde_json::to_value(&self.rope_parameters) {
                Ok(Value::Object(mut rope)) => {
                    rope.shift_remove(ROPE_THETA);
                    rope
                }
                _ => unreachable!("a struct of plain fields serialises to an object"),
            },
            Some((_, Value::Object(rope))) => rope,
            Some((name, other)) => {
                return Err(Error::config(format!("{name}: expected an object with rope_type, got {other}")));
            }
        };
        let truncates_null = rope.get("truncate").is_some_and(Value::is_null);
        rope.retain(|_, value| !value.is_null());
        whole(rope.shift_remove(PARTIAL).as_ref())?;
        // Its name in the first files that had it.
        if let Some(old) = rope.shift_remove("type") {
            rope.entry("rope_type").or_insert(old);
        }
        rope.entry(ROPE_THETA).or_insert_with(|| theta.unwrap_or_else(|| self.rope_parameters.rope_theta.into()));
        let rope_type = rope.get("rope_type").and_then(Value::as_str).unwrap_or_default();
        let (is_yarn, is_llama3) = (rope_type == "yarn", rope_type == "llama3");
        if is_yarn && truncates_null {
            rope.insert("truncate".into(), false.into()); // Python takes the null that is stated
        }
        if is_yarn || is_llama3 {
            // From the same file: a longer sequence that is set later has the same pre-training.
            let stated = fields.get("max_position_embeddings").filter(|value| !value.is_null());
            let longest = stated.cloned().unwrap_or_else(|| self.max_position_embeddings.into());
            rope.entry("original_max_position_embeddings").or_insert(longest);
        }
        fields.insert(ROPE_PARAMETERS.into(), rope.into());
        Ok(fields)
    }

    /// Checks what the types cannot say of the attention and its positions.
    pub(super) fn check_attention(&self) -> Result<()> {
        let (heads, kv_heads, layers) = (self.num_attention_heads, self.kv_heads(), self.num_hidden_layers);
        if !heads.is_multiple_of(kv_heads) {
            return Err(Error::config(format!(
                "num_attention_heads ({heads}) is not divisible by num_key_value_heads ({kv_heads}); as many heads of \
                 queries share each head of keys"
            ))
            .help(format!("set num_key_value_heads = {}", near_divisors(heads, kv_heads))));
        }
        if !self.head_dim().is_multiple_of(2) {
            return Err(Error::config(format!(
                "head_dim: expected an even number, whose halves rotary positions turn, got {}",
                self.head_dim()
            )));
        }
        if let Some(types) = self.layer_types.as_ref().filter(|_| self.variant.has_field("layer_types")) {
            if types.len() != layers {
                return Err(Error::config(format!(
                    "layer_types: expected as many as num_hidden_layers ({layers}), got {}",
                    types.len()
                )));
            }
            if let Some(other) = types.iter().find(|kind| *kind != SLIDING && *kind != FULL) {
                return Err(Error::config(format!("layer_types: expected {FULL:?} and {SLIDING:?}, got {other:?}")));
            }
        }
        if self.window().is_none() && self.layers_are_local().contains(&true) {
            return Err(Error::config(format!(
                "layer_types: expected no {SLIDING:?} without a window, which sliding_window and use_sliding_window state"
            )));
        }
        if self.variant == LlamaVariant::SmolLm3
            && let Some(stated) = &self.no_rope_layers
            && stated.len() < layers
        {
            return Err(Error::config(format!(
                "no_rope_layers: expected as many as num_hidden_layers ({layers}), got {}",
                stated.len()
            )));
        }
        self.rope_parameters.check()
    }

    /// The preset `size` of `kind`; none for a name that the family does not have.
    pub(super) fn preset(kind: LlamaVariant, size: &str) -> Option<Self> {
        let base = kind.config();
        let of = |base: Self, [hidden_size, intermediate_size, layers, heads, kv_heads]: [usize; 5]| Self {
            hidden_size,
            intermediate_size,
            num_hidden_layers: layers,
            num_attention_heads: heads,
            num_key_value_heads: Some(kv_heads),
            ..base
        };
        let theta = |base: Self, rope_theta: f64| {
            let rope_parameters = RopeParameters { rope_theta, ..base.rope_parameters.clone() };
            Self { rope_parameters, ..base }
        };
        let tied = |base: Self| Self { tie_word_embeddings: true, ..base };
        let smol = |base: Self, rope: f64| {
            let base = Self { vocab_size: 49152, max_position_embeddings: 8192, rms_norm_eps: 1e-5, ..base };
            tied(theta(base, rope))
        };
        let llama3 = |base: Self, factor: f64| Self {
            vocab_size: 128_256,
            max_position_embeddings: 131_072,
            rms_norm_eps: 1e-5,
            rope_parameters: RopeParameters {
                rope_type: "llama3".into(),
                rope_theta: 500_000.0,
                factor: Some(factor),
                original_max_position_embeddings: Some(8192),
                low_freq_factor: Some(1.0),
                high_freq_factor: Some(4.0),
                ..RopeParameters::default()
            },
            inert: Map::from_iter([("bos_token_id".into(), 128_000.into()), ("eos_token_id".into(), 128_001.into())]),
            ..base
        };
        let qwen = |base: Self| theta(Self { max_position_embeddings: 32768, ..base }, 1e6);
        let qwen3 = |base: Self| Self { max_position_embeddings: 40960, ..qwen(base) };
        Some(match (kind, size) {
            (LlamaVariant::Llama, "smollm2-135m") => {
                let base = Self { initializer_range: 0.041_666_666_666_666_664, ..smol(base, 100_000.0) };
                of(base, [576, 1536, 30, 9, 3])
            }
            (LlamaVariant::Llama, "smollm2-360m") => of(smol(base, 100_000.0), [960, 2560, 32, 15, 5]),
            (LlamaVariant::Llama, "smollm2-1.7b") => of(smol(base, 130_000.0), [2048, 8192, 24, 32, 32]),
            (LlamaVariant::Llama, "tinyllama-1.1b") => of(Self { rms_norm_eps: 1e-5, ..base }, [2048, 5632, 22, 32, 4]),
            (LlamaVariant::Llama, "llama2-7b") => Self { rms_norm_eps: 1e-5, max_position_embeddings: 4096, ..base },
            (LlamaVariant::Llama, "llama3.2-1b") => of(tied(llama3(base, 32.0)), [2048, 8192, 16, 32, 8]),
            (LlamaVariant::Llama, "llama3.2-3b") => of(tied(llama3(base, 32.0)), [3072, 8192, 28, 24, 8]),
            (LlamaVariant::Llama, "llama3.1-8b") => of(llama3(base, 8.0), [4096, 14336, 32, 32, 8]),
            // Version 0.3 of the published model has no window.
            (LlamaVariant::Mistral, "7b") => theta(
                Self {
                    vocab_size: 32768,
                    max_position_embeddings: 32768,
                    rms_norm_eps: 1e-5,
                    sliding_window: None,
                    ..base
                },
                1e6,
            ),
            (LlamaVariant::Qwen2, "0.5b") => of(tied(qwen(base)), [896, 4864, 24, 14, 2]),
            (LlamaVariant::Qwen2, "1.5b") => of(tied(qwen(base)), [1536, 8960, 28, 12, 2]),
            (LlamaVariant::Qwen2, "3b") => of(tied(qwen(base)), [2048, 11008, 36, 16, 2]),
            (LlamaVariant::Qwen2, "7b") => of(Self { vocab_size: 152_064, ..qwen(base) }, [3584, 18944, 28, 28, 4]),
            (LlamaVariant::Qwen3, "0.6b") => of(tied(qwen3(base)), [1024, 3072, 28, 16, 8]),
            (LlamaVariant::Qwen3, "1.7b") => of(tied(qwen3(base)), [2048, 6144, 28, 16, 8]),
            (LlamaVariant::Qwen3, "4b") => of(tied(qwen3(base)), [2560, 9728, 36, 32, 8]),
            (LlamaVariant::Qwen3, "8b") => of(qwen3(base), [4096, 12288, 36, 32, 8]),
            (LlamaVariant::SmolLm3, "3b") => theta(Self { max_position_embeddings: 65536, ..base }, 5e6),
            _ => return None,
        })
    }
}

/// The layers of `layer_types`.
const SLIDING: &str = "sliding_attention";
const FULL: &str = "full_attention";

/// Asks that positions turn all of a head.
fn whole(partial: Option<&Value>) -> Result<()> {
    match partial {
        Some(value) if value.as_f64() != Some(1.0) => Err(Error::config(format!(
            "{PARTIAL}: expected 1.0, got {value}: rotary positions on a part of each head are not implemented"
        ))),
        _ => Ok(()),
    }
}

impl RopeParameters {
    fn check(&self) -> Result<()> {
        let bad = |what: String| Err(Error::config(format!("{ROPE_PARAMETERS}: {what}")));
        let needed = match self.rope_type.as_str() {
            "default" => vec![],
            "linear" | "yarn" => vec![("factor", self.factor)],
            "llama3" => vec![
                ("factor", self.factor),
                ("low_freq_factor", self.low_freq_factor),
                ("high_freq_factor", self.high_freq_factor),
            ],
            other => {
                return bad(format!(
                    "expected the rope_type \"default\", \"linear\", \"llama3\" or \"yarn\", got {other:?}; other \
                     scalings of positions are not implemented"
                ));
            }
        };
        let read_by: [(_, _, &[&str]); 10] = [
            ("factor", self.factor.is_some(), &["linear", "llama3", "yarn"]),
            ("original_max_position_embeddings", self.original_max_position_embeddings.is_some(), &["llama3", "yarn"]),
            ("low_freq_factor", self.low_freq_factor.is_some(), &["llama3"]),
            ("high_freq_factor", self.high_freq_factor.is_some(), &["llama3"]),
            ("attention_factor", self.attention_factor.is_some(), &["yarn"]),
            ("beta_fast", self.beta_fast.is_some(), &["yarn"]),
            ("beta_slow", self.beta_slow.is_some(), &["yarn"]),
            ("mscale", self.mscale.is_some(), &["yarn"]),
            ("mscale_all_dim", self.mscale_all_dim.is_some(), &["yarn"]),
            ("truncate", self.truncate.is_some(), &["yarn"]),
        ];
        let is_foreign = |types: &[&str]| !types.contains(&self.rope_type.as_str());
        if let Some((name, _, types)) = read_by.into_iter().find(|(_, stated, types)| *stated && is_foreign(types)) {
            let types = types.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(" or ");
            return bad(format!("the rope_type {:?} does not read {name}", self.rope_type)).map_err(|error| {
                error.help(format!(
                    "leave {name} out, or set rope_type, which is \"default\" where it is left out, to {types}"
                ))
            });
        }
        let is_above_0 = |value: f64| value.is_finite() && value > 0.0;
        if !(self.rope_theta.is_finite() && self.rope_theta > 1.0) {
            return bad(format!("rope_theta: expected a number above 1, got {}", self.rope_theta));
        }
        for (name, value) in needed {
            match value {
                Some(value) if is_above_0(value) => {}
                Some(value) => return bad(format!("{name}: expected a number above 0, got {value}")),
                None => return bad(format!("{name} is missing, which the rope_type {:?} needs", self.rope_type)),
            }
        }
        let optional = [
            ("attention_factor", self.attention_factor),
            ("beta_fast", self.beta_fast),
            ("beta_slow", self.beta_slow),
            ("mscale", self.mscale),
            ("mscale_all_dim", self.mscale_all_dim),
        ];
        if let Some((name, value)) =
            optional.into_iter().find(|(_, value)| value.is_some_and(|it| !it.is_finite() || it < 0.0))
        {
            return bad(format!("{name}: expected a number of 0 or more, got {}", value.unwrap_or_default()));
        }
        if self.original_max_position_embeddings == Some(0) {
            return bad("original_max_position_embeddings: expected a positive number, got 0".into());
        }
        match (self.rope_type.as_str(), self.low_freq_factor, self.high_freq_factor) {
            ("llama3", Some(low), Some(high)) if low >= high => {
                bad(format!("high_freq_factor: expected a number above low_freq_factor ({low}), got {high}"))
            }
            _ => Ok(()),
        }
    }
}

impl ModelType {
    /// Which variant of Llama the family is; none for GPT-2's and BERT's.
    pub fn llama_variant(self) -> Option<LlamaVariant> {
        match self {
            Self::Llama => Some(LlamaVariant::Llama),
            Self::Mistral => Some(LlamaVariant::Mistral),
            Self::Qwen2 => Some(LlamaVariant::Qwen2),
            Self::Qwen3 => Some(LlamaVariant::Qwen3),
            Self::SmolLm3 => Some(LlamaVariant::SmolLm3),
            _ => None,
        }
    }
}

impl ModelConfig {
    /// Whether a token attends to those before it alone, and a head that reads one token of a
    /// sequence reads the last.
    pub fn is_decoder(&self) -> bool {
        !matches!(self, Self::Bert(_))
    }
}
