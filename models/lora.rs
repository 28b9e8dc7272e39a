//! LoRA (Hu et al. 2021): a linear layer whose weight `W` stays as it is gets a product of two
//! narrow matrices beside it, `y = x W + b + s (drop(x) A) B` with `A [in, r]` and `B [r, out]`, of
//! which only these two learn. Names, defaults and files are those of `peft` (`LoraConfig`,
//! `adapter_config.json`, `adapter_model.safetensors`, of version 0.21).

use std::collections::{BTreeMap, BTreeSet};

use kiln_core::error::{Error, Result};
use kiln_core::model_config::{Head, ModelType};
use kiln_core::names::{Name, NameTable, Unknown};
use kiln_core::schema::Schema;
use kiln_core::words::json_words;
use regex::Regex;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};

/// A tensor of a model: its Hugging Face name, and whether it is the weight of a linear layer.
pub(crate) type Named<'a> = (&'a str, bool);

/// The prefix of Hugging Face's name of a tensor in a file of `peft`.
pub(crate) const PREFIX: &str = "base_model.model.";

/// The one target that stands for all linear layers.
const ALL_LINEAR: &str = "all-linear";

/// The largest rank of an adapter.
pub const MAX_RANK: usize = 1 << 20;

/// The settings of the adapters of a model, as `adapter_config.json` has them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoraConfig {
    /// The model that the adapters stand on: a folder, or an id of the Hub.
    pub base_model_name_or_path: Option<String>,
    /// The revision of that id.
    pub revision: Option<String>,
    /// The rank: columns of `A`, rows of `B`.
    pub r: usize,
    /// The product is scaled by `lora_alpha / r`.
    pub lora_alpha: f64,
    /// Probability with which an element of the input of `A` is dropped out in training.
    pub lora_dropout: f64,
    /// The linear layers, embeddings and outputs with an adapter, by their Hugging Face names:
    /// whole, or the last parts of them.
    pub target_modules: Vec<String>,
    /// The biases that learn.
    pub bias: LoraBias,
    /// Modules that learn and are saved whole: those whose names end so.
    pub modules_to_save: Vec<String>,
    /// The product is scaled by `lora_alpha / sqrt(r)` instead (Kalajdzievski 2023).
    pub use_rslora: bool,
    /// How `A` and `B` begin.
    pub init_lora_weights: LoraInit,
    /// The ranks of layers that differ from `r`.
    #[serde(skip_serializing_if = "Patterns::is_empty")]
    pub rank_pattern: Patterns<usize>,
    /// The values of layers that differ from `lora_alpha`.
    #[serde(skip_serializing_if = "Patterns::is_empty")]
    pub alpha_pattern: Patterns<f64>,
    /// Whether `B` has a bias, which is scaled as the product is.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub lora_bias: bool,
    /// Whether the adapters learn the length of each column of the weight beside its direction
    /// (DoRA, Liu et al. 2024).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub use_dora: bool,
    /// The tokens whose rows of the embedding learn and are saved beside the adapters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trainable_token_indices: Option<TokenIndices>,
    /// `peft`'s name of the task; none for masked language models, for which it has none.
    pub task_type: Option<String>,
}

/// Ids of tokens, as `peft` takes them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TokenIndices {
    /// Rows of the embedding of the input.
    OfInput(Vec<usize>),
    /// Rows of the modules whose names end so.
    OfModules(BTreeMap<String, Vec<usize>>),
}

impl Schema for TokenIndices {
    fn schema() -> Value {
        let indices = json!({ "type": "array", "items": usize::schema() });
        json!({ "anyOf": [indices, { "type": "object", "additionalProperties": indices }] })
    }
}

impl TokenIndices {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Self::OfInput(indices) => indices.len(),
            Self::OfModules(modules) => modules.values().map(Vec::len).sum(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rows of the embedding called `module`, in the order in which a file has them.
    ///
    /// # Errors
    /// Another module, no row, a row of none of `rows` tokens, and one that stands there twice.
    pub(crate) fn rows(&self, module: &str, rows: usize) -> Result<&[usize]> {
        const NAME: &str = "trainable_token_indices";
        let indices = match self {
            Self::OfInput(indices) => indices,
            Self::OfModules(modules) => {
                if let Some(other) = modules.keys().find(|name| !names(name, module)) {
                    let what = format!(
                        "{NAME}: rows of {other:?} cannot learn alone: Kiln trains rows of the embedding of the input, {module}"
                    );
                    return Err(Error::config(what));
                }
                match modules.values().collect::<Vec<_>>()[..] {
                    [indices] => indices,
                    _ => return Err(Error::config(format!("{NAME}: expected one module, {module}, and its rows"))),
                }
            }
        };
        let mut seen = BTreeSet::new();
        if indices.is_empty() {
            return Err(Error::config(format!("{NAME}: expected the id of a token, got none")));
        }
        match indices.iter().find(|index| **index >= rows || !seen.insert(**index)) {
            Some(index) if *index >= rows => {
                Err(Error::config(format!("{NAME}: there is no token {index}: {module} has {rows} rows")))
            }
            Some(index) => Err(Error::config(format!("{NAME}: token {index} stands there twice"))),
            None => Ok(indices),
        }
    }
}

/// Values of layers by patterns of their names, in the order of the file: regular expressions of
/// which the first that the name of a layer, or its last parts, match holds. Reference:
/// `peft.utils.other.get_pattern_key`.
#[derive(Debug, Clone, PartialEq)]
pub struct Patterns<T>(Vec<(String, T)>);

impl<T> Default for Patterns<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Copy> Patterns<T> {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Every pattern and its value.
    pub fn iter(&self) -> impl Iterator<Item = (&str, T)> {
        self.0.iter().map(|(pattern, value)| (pattern.as_str(), *value))
    }

    /// The value of the layer called `module`; none for one that no pattern matches.
    fn of(&self, module: &str) -> Option<T> {
        self.iter()
            .find(|(pattern, _)| regex(pattern).is_ok_and(|regex| regex.is_match(module)))
            .map(|(_, value)| value)
    }

    /// The error of the first pattern, of the setting `name`, that is none.
    fn check(&self, name: &str) -> Result<()> {
        for (pattern, _) in self.iter() {
            if let Err(error) = regex(pattern) {
                // The lines before the last one show the expression.
                let text = error.to_string();
                let what = text.lines().last().unwrap_or(&text).trim_start_matches("error: ");
                return Err(Error::config(format!("{name}: {pattern:?} is no regular expression: {what}")));
            }
        }
        Ok(())
    }
}

/// The expression that a pattern stands for.
fn regex(pattern: &str) -> std::result::Result<Regex, regex::Error> {
    Regex::new(&format!(r"\A(.*\.)?({pattern})\z"))
}

impl<T: Serialize> Serialize for Patterns<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(pattern, value)| (pattern, value)))
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Patterns<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let values = Map::<String, Value>::deserialize(deserializer)?.into_iter();
        let values = values.map(|(pattern, value)| Ok((pattern, serde_json::from_value(value)?)));
        values.collect::<serde_json::Result<_>>().map(Self).map_err(D::Error::custom)
    }
}

/// The biases that learn beside the adapters. They are the model's own, so the base's outputs
/// change with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoraBias {
    /// None.
    #[default]
    None,
    /// All biases of the model, those of normalisations among them.
    All,
    /// The biases of the layers with an adapter.
    LoraOnly,
}

/// The values that adapters begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub enum LoraInit {
    /// `true`: `A` uniform in `±1 / sqrt(in)`, `B` zero, so that the model begins as its base.
    #[default]
    Zero,
    /// `"gaussian"`: `A` normal with standard deviation `1 / r`, `B` zero.
    Gaussian,
    /// `false`: both uniform, in `±1 / sqrt(in)` and `±1 / sqrt(r)`; for tests.
    Random,
}

impl<T: Schema> Schema for Patterns<T> {
    fn schema() -> Value {
        json!({ "type": "object", "additionalProperties": T::schema() })
    }
}

impl Schema for LoraBias {
    fn schema() -> Value {
        json!({ "enum": [Self::None, Self::All, Self::LoraOnly] })
    }
}

impl Schema for LoraInit {
    fn schema() -> Value {
        json!({ "enum": [Self::Zero, Self::Gaussian, Self::Random] })
    }
}

impl Default for LoraConfig {
    /// `peft`'s defaults, without targets.
    fn default() -> Self {
        Self {
            base_model_name_or_path: None,
            revision: None,
            r: 8,
            lora_alpha: 8.0,
            lora_dropout: 0.0,
            target_modules: Vec::new(),
            bias: LoraBias::None,
            modules_to_save: Vec::new(),
            use_rslora: false,
            init_lora_weights: LoraInit::Zero,
            rank_pattern: Patterns::default(),
            alpha_pattern: Patterns::default(),
            lora_bias: false,
            use_dora: false,
            trainable_token_indices: None,
            task_type: None,
        }
    }
}

/// The names of an `adapter_config.json`, as `LoraConfig` of `peft` defines them.
pub static ADAPTER_CONFIG_NAMES: NameTable = NameTable {
    file: "adapter_config.json",
    source: "peft 0.21",
    names: &[
        Name::only("peft_type", || json!("LORA"), "Kiln computes no other kind of adapter"),
        Name::honoured(
            "base_model_name_or_path",
            "the base: a folder, from here or from the adapter's, or an id of the Hub",
        ),
        Name::honoured("revision", "the revision of that id"),
        Name::honoured("task_type", "the head of the model, and the modules that `peft` saves whole for it"),
        Name::honoured("r", "the rank"),
        Name::honoured("lora_alpha", "the scale of the product, before it is divided"),
        Name::honoured("use_rslora", "whether the divisor is the root of the rank"),
        Name::honoured("lora_dropout", "the dropout of a training that goes on"),
        Name::honoured(
            "target_modules",
            "the layers with an adapter; where it is no list they are those of the file's tensors",
        ),
        Name::honoured("exclude_modules", "the layers with an adapter are then those of the file's tensors"),
        Name::honoured("layers_to_transform", "the layers with an adapter are then those of the file's tensors"),
        Name::honoured("layers_pattern", "it goes with `layers_to_transform`"),
        Name::honoured("bias", "the biases that are saved with the adapter"),
        Name::honoured(
            "modules_to_save",
            "the modules that are saved whole; an embedding among them is no longer tied",
        ),
        Name::honoured(
            "init_lora_weights",
            "`pissa`, `pissa_niter_N`, `olora`, `corda` and `loftq` change the base and are refused; the others do not",
        ),
        Name::honoured(
            "ensure_weight_tying",
            "both tensors of a tied pair are then in the file, and Kiln reads both; one adapter for the pair is refused",
        ),
        Name::inert("fan_in_fan_out", "Kiln knows how each layer stores its weight, and `peft` corrects the value"),
        Name::inert("inference_mode", "a command says whether it trains"),
        Name::inert("auto_mapping", "the base's `config.json` names the class"),
        Name::inert("peft_version", "the writer's version"),
        Name::inert("runtime_config", "where tensors lie while DoRA begins"),
        Name::inert("megatron_core", "the module of Megatron, which `megatron_config` switches on"),
        Name::inert("eva_config", "how the first values were found"),
        Name::inert("corda_config", "how the first values were found; `init_lora_weights` says whether they were"),
        Name::inert("lora_ga_config", "how the first values were found"),
        Name::inert("loftq_config", "how the first values were found; `init_lora_weights` says whether they were"),
        Name::inert("qalora_group_size", "a size of QALoRA, which `use_qalora` switches on"),
        Name::inert("merge_weights", "a switch of versions before 0.3, by which evaluation merged the adapter"),
        Name::honoured("rank_pattern", "the ranks of layers that differ from `r`"),
        Name::honoured("alpha_pattern", "the values of layers that differ from `lora_alpha`"),
        Name::honoured("use_dora", "the decomposition of weights (DoRA)"),
        Name::honoured(
            "trainable_token_indices",
            "the rows of the embedding of the input that learn; rows of other modules are refused, and so are those of a tied \
             masked language model",
        ),
        Name::honoured("lora_bias", "a bias of the second matrix"),
        Name::only("use_qalora", || json!(false), "adapters of quantised layers (QALoRA) are not implemented"),
        Name::refused("target_parameters", "adapters of tensors that are no layers are not implemented"),
        Name::refused("layer_replication", "a base with repeated layers is not implemented"),
        Name::refused("alora_invocation_tokens", "adapters that begin at a token (aLoRA) are not implemented"),
        Name::refused("arrow_config", "the routing between adapters (Arrow) is not implemented"),
        Name::refused("use_bdlora", "block-diagonal adapters (BD-LoRA) are not implemented"),
        Name::refused("kasa_config", "KaSA truncates the base's weights and is not implemented"),
        Name::refused("velora_config", "the compressed backward pass of VeLoRA is not implemented"),
        Name::refused("monteclora_config", "the sampled weights of MonteCLoRA are not implemented"),
        Name::refused("megatron_config", "layers of Megatron are not implemented"),
        Name::refused("enable_lora", "adapters of a part of a layer, of versions before 0.3, are not implemented"),
    ],
    unknown: Unknown::Refused,
};

/// The advice for an adapter that Kiln does not compute: `peft` makes a whole model of it.
const MERGE_WITH_PEFT: &str = "let peft make a whole model of it, where its kind allows it, and give that folder: \
                               PeftModel.from_pretrained(base, adapter).merge_and_unload().save_pretrained(folder)";

/// The advice for an adapter whose first values were taken from the base: `peft` makes a whole
/// model of it, or the program that trained it writes a plain one.
const CONVERT_WITH_PEFT: &str = "let peft make a whole model of it, and give that folder: \
                                 PeftModel.from_pretrained(base, adapter).merge_and_unload().save_pretrained(folder); \
                                 or save the adapter anew where it was trained, with \
                                 path_initial_model_for_weight_conversion, which makes a plain one of it";

/// Whether the value of a field is the one by which peft leaves a method out. An empty object is
/// none: it asks for the method with its default settings.
fn is_off(value: &Value) -> bool {
    *value == json!(false) || *value == json!([])
}

impl LoraConfig {
    /// The linear layers that `peft` adapts in a model of this type where `target_modules` is left
    /// out.
    pub fn default_targets(kind: ModelType) -> &'static [&'static str] {
        match kind {
            ModelType::Gpt2 => &["c_attn"],
            ModelType::GptNeo => &["q_proj", "v_proj"],
            // `peft` knows none for SmolLM3; its default is that of the other variants.
            _ if kind.llama_variant().is_some() => &["q_proj", "v_proj"],
            ModelType::DistilBert => &["q_lin", "v_lin"],
            // `peft` knows no default for CamemBERT and ALBERT; theirs is that of the other
            // variants.
            _ => &["query", "value"],
        }
    }

    /// Whether adapters stand on projections to query, key and value alone.
    pub fn adapts_attention_alone(&self) -> bool {
        const ATTENTION: [&str; 10] =
            ["c_attn", "query", "key", "value", "q_lin", "k_lin", "v_lin", "q_proj", "k_proj", "v_proj"];
        self.target_modules.iter().all(|name| name.rsplit('.').next().is_some_and(|last| ATTENTION.contains(&last)))
    }

    /// The modules that learn whole in `peft` whatever `modules_to_save` says: the new layers of a
    /// head. `peft` has no task type for multiple choice; there Kiln names the classifier itself.
    pub fn default_saved(head: Head) -> &'static [&'static str] {
        match head {
            Head::CausalLm | Head::MaskedLm => &[],
            Head::SequenceClassification | Head::TokenClassification => &["classifier", "score"],
            Head::MultipleChoice => &["classifier"],
            Head::QuestionAnswering => &["qa_outputs"],
        }
    }

    /// The one of `classifier` and `score` that a model of this type lacks: a classification lists
    /// both.
    pub fn absent_head(kind: ModelType, head: Head) -> &'static str {
        match (kind, head) {
            (ModelType::Gpt2 | ModelType::GptNeo, Head::SequenceClassification) => "classifier",
            (kind, _) if kind.llama_variant().is_some() => "classifier",
            _ => "score",
        }
    }

    /// `peft`'s name of the task of a head, which has none for masked language models and multiple
    /// choice.
    pub fn task_type_of(head: Head) -> Option<&'static str> {
        match head {
            Head::CausalLm => Some("CAUSAL_LM"),
            Head::MaskedLm | Head::MultipleChoice => None,
            Head::SequenceClassification => Some("SEQ_CLS"),
            Head::QuestionAnswering => Some("QUESTION_ANS"),
            Head::TokenClassification => Some("TOKEN_CLS"),
        }
    }

    /// The rank of the adapter of the layer called `module`.
    pub fn rank(&self, module: &str) -> usize {
        self.rank_pattern.of(module).unwrap_or(self.r)
    }

    /// The factor of the product of the adapter of the layer called `module`.
    pub fn scaling(&self, module: &str) -> f64 {
        self.factor(self.alpha_pattern.of(module).unwrap_or(self.lora_alpha), self.rank(module))
    }

    /// The factor of the product of a layer that no pattern matches.
    pub fn default_scaling(&self) -> f64 {
        self.factor(self.lora_alpha, self.r)
    }

    fn factor(&self, alpha: f64, r: usize) -> f64 {
        alpha / if self.use_rslora { (r as f64).sqrt() } else { r as f64 }
    }

    /// Settings that go together, and patterns that are regular expressions.
    ///
    /// # Errors
    /// The first setting that is wrong, by its name.
    pub fn check(&self) -> Result<()> {
        self.rank_pattern.check("rank_pattern")?;
        self.alpha_pattern.check("alpha_pattern")?;
        if let Some((pattern, r)) = self.rank_pattern.iter().find(|(_, r)| !(1..=MAX_RANK).contains(r)) {
            let message = format!("rank_pattern: {pattern:?}: expected a rank from 1 to {MAX_RANK}, got {r}");
            return Err(Error::config(message));
        }
        if let Some((pattern, alpha)) =
            self.alpha_pattern.iter().find(|(_, alpha)| !(alpha.is_finite() && *alpha >= 0.0))
        {
            let message = format!("alpha_pattern: {pattern:?}: expected a number of 0 or more, got {alpha}");
            return Err(Error::config(message));
        }
        if self.lora_bias && self.use_dora {
            return Err(Error::config("lora_bias: expected false beside use_dora = true, with which PEFT has none"));
        }
        if self.lora_bias && self.init_lora_weights == LoraInit::Gaussian {
            let message = "lora_bias: expected false beside init_lora_weights = \"gaussian\", with which PEFT has none";
            return Err(Error::config(message));
        }
        Ok(())
    }

    /// The first pattern that no layer among `targets` matches.
    pub fn idle_pattern(&self, targets: &BTreeSet<String>) -> Option<(&'static str, &str)> {
        let is_idle =
            |pattern: &str| !regex(pattern).is_ok_and(|regex| targets.iter().any(|module| regex.is_match(module)));
        let ranks = self.rank_pattern.iter().map(|(pattern, _)| ("rank_pattern", pattern));
        let alphas = self.alpha_pattern.iter().map(|(pattern, _)| ("alpha_pattern", pattern));
        ranks.chain(alphas).find(|(_, pattern)| is_idle(pattern))
    }

    /// Whether the layer called `module` has an adapter.
    pub fn adapts(&self, module: &str) -> bool {
        !self.saves_module(module) && self.target_modules.iter().any(|target| names(target, module))
    }

    /// Whether `module`, or a module around it, is one of `modules_to_save`, whose names end as
    /// those do.
    pub(crate) fn saves_module(&self, module: &str) -> bool {
        let around = module.match_indices('.').map(|(end, _)| &module[..end]).chain([module]);
        around.into_iter().any(|module| self.modules_to_save.iter().any(|saved| module.ends_with(saved.as_str())))
    }

    /// The name in `adapter_model.safetensors` of the tensor that Hugging Face's model calls
    /// `name`; none for one of the base, which is frozen.
    pub(crate) fn saved_as(&self, name: &str) -> Option<String> {
        let (module, tensor) = name.rsplit_once('.').unwrap_or(("", name));
        let adapted = self.adapts(module);
        // The modules of BERT's variants whose bias is that of their tied `decoder`.
        const HEADS: [&str; 3] = ["cls.predictions", "lm_head", "predictions"];
        let learns_bias = match self.bias {
            LoraBias::None => false,
            LoraBias::All => true,
            LoraBias::LoraOnly => adapted || (HEADS.contains(&module) && self.adapts(&format!("{module}.decoder"))),
        };
        let is_saved = is_of_adapter(name) || self.saves_module(module) || (tensor == "bias" && learns_bias);
        is_saved.then(|| {
            if adapted && !is_of_adapter(name) {
                format!("{PREFIX}{module}.base_layer.{tensor}")
            } else {
                format!("{PREFIX}{name}")
            }
        })
    }

    /// These settings with the names of all linear layers among `tensors` where the one target is
    /// `all-linear`.
    pub(crate) fn settled(mut self, tensors: &[Named<'_>]) -> Self {
        if matches!(self.target_modules.as_slice(), [one] if one.eq_ignore_ascii_case(ALL_LINEAR)) {
            let all = linear(tensors).filter(|module| !self.saves_module(module)).map(str::to_owned);
            self.target_modules = all.collect();
        }
        self
    }

    /// The names of the layers that get an adapter: of the linear ones and the embeddings among
    /// `tensors`, and of the `output` of a language model.
    ///
    /// # Errors
    /// A target that no layer has, with those that there are.
    pub(crate) fn targets(&self, tensors: &[Named<'_>], output: Option<&str>) -> crate::Result<BTreeSet<String>> {
        let embeddings =
            tensors.iter().filter_map(|(name, _)| name.strip_suffix(".weight").filter(|it| is_embedding(it)));
        let all = linear(tensors).chain(embeddings).chain(output).collect::<BTreeSet<_>>();
        let free = || all.iter().filter(|module| !self.saves_module(module));
        for target in &self.target_modules {
            if self.saves_module(target) {
                let what =
                    format!("target_modules: {target:?} learns whole and is saved whole, so that it gets no adapter");
                return Err(Error::config(what).into());
            }
            if self.lora_bias && all.iter().any(|module| is_embedding(module) && names(target, module)) {
                let what = format!("lora_bias: expected false with an adapter on the embedding {target:?}, as in PEFT");
                return Err(Error::config(what).into());
            }
            if !free().any(|module| names(target, module)) {
                let known = free().map(|module| module.rsplit('.').next().unwrap_or(module)).collect::<BTreeSet<_>>();
                let known = known.into_iter().collect::<Vec<_>>().join(", ");
                return Err(crate::Error::NoSuchTarget { target: target.clone(), known });
            }
        }
        for saved in &self.modules_to_save {
            // Of `classifier` and `score`, which every classification lists, a model has one.
            let is_default = Self::default_saved(Head::SequenceClassification).contains(&saved.as_str());
            let has = |name: &str| {
                let modules = name.match_indices('.').map(|(end, _)| &name[..end]);
                modules.into_iter().any(|module| module.ends_with(saved.as_str()))
            };
            if !is_default && !tensors.iter().any(|(name, _)| has(name)) {
                let known = tensors.iter().filter_map(|(name, _)| name.rsplit('.').nth(1));
                return Err(Error::config(format!(
                    "modules_to_save: the model has no module whose name ends in {saved:?}; it has {}",
                    known.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", ")
                ))
                .into());
            }
        }
        Ok(all.into_iter().filter(|module| self.adapts(module)).map(str::to_owned).collect())
    }

    /// The content of `adapter_config.json` for a model of type `kind`.
    pub fn to_json(&self, kind: ModelType) -> Value {
        let number = |value: f64| if value.fract() == 0.0 { json!(value as i64) } else { json!(value) };
        let saved = if self.modules_to_save.is_empty() { Value::Null } else { json!(self.modules_to_save) };
        json!({
            "auto_mapping": null,
            "alpha_pattern": self.alpha_pattern,
            "base_model_name_or_path": self.base_model_name_or_path,
            "bias": self.bias,
            "fan_in_fan_out": kind == ModelType::Gpt2,
            "inference_mode": true,
            "init_lora_weights": self.init_lora_weights,
            "lora_alpha": number(self.lora_alpha),
            "lora_bias": self.lora_bias,
            "lora_dropout": self.lora_dropout,
            "modules_to_save": saved,
            "peft_type": "LORA",
            "r": self.r,
            "rank_pattern": self.rank_pattern,
            "revision": self.revision,
            "target_modules": self.target_modules,
            "task_type": self.task_type,
            "trainable_token_indices": self.trainable_token_indices,
            "use_dora": self.use_dora,
            "use_rslora": self.use_rslora,
        })
    }

    /// Reads the text of an `adapter_config.json`, of an adapter with these tensors in its file.
    /// Where `target_modules` is no list of names, they are those of the tensors.
    ///
    /// # Errors
    /// A file that is none of LoRA's, and settings that Kiln does not have and that change what an
    /// adapter computes.
    pub fn from_json(text: &str, tensors: &[String]) -> Result<Self> {
        let bad = |message: String| Err(Error::config(message));
        let mut fields: Map<String, Value> = match serde_json::from_str(text) {
            Ok(fields) => fields,
            Err(error) => return bad(format!("not a JSON object: {}", json_words(&error))),
        };
        // A method of peft that is switched off asks for nothing; a name that nobody knows may say
        // anything.
        fields.retain(|name, value| {
            !is_off(value) || ADAPTER_CONFIG_NAMES.get(name).is_none_or(|name| !name.is_refused())
        });
        let given = |name: &str| fields.get(name).filter(|value| !value.is_null());
        let refused = |what: String, help: &str| Err(Error::data(what).help(help));
        // Other kinds have names of their own, of which none would say what the matter is.
        let kind =
            fields.iter().filter(|(name, _)| *name == "peft_type").map(|(name, kind)| (name.clone(), kind.clone()));
        for fields in [&kind.collect(), &fields] {
            if let Err(what) = ADAPTER_CONFIG_NAMES.check(fields) {
                return refused(what, MERGE_WITH_PEFT);
            }
        }
        let positive = |name: &str, default: f64| match given(name) {
            None => Ok(default),
            Some(value) => match value.as_f64().filter(|value| value.is_finite() && *value >= 0.0) {
                Some(value) => Ok(value),
                None => Err(Error::config(format!("{name}: expected a number of 0 or more, got {value}"))),
            },
        };
        let flag = |name: &str| match given(name) {
            None => Ok(false),
            Some(value) => match value.as_bool() {
                Some(flag) => Ok(flag),
                None => Err(Error::config(format!("{name}: expected true or false, got {value}"))),
            },
        };
        let list = |name: &str| match given(name) {
            None => Ok(None),
            Some(value) => match serde_json::from_value::<Vec<String>>(value.clone()) {
                Ok(names) => Ok(Some(names)),
                Err(_) => Err(Error::config(format!("{name}: expected a list of names, got {value}"))),
            },
        };
        if given("ensure_weight_tying") == Some(&json!(true))
            && tensors.iter().any(|name| name.ends_with(".lora_embedding_A"))
        {
            let what = "ensure_weight_tying = true: an adapter that the embedding and its tied output share is not implemented";
            return refused(what.into(), MERGE_WITH_PEFT);
        }
        let default = Self::default();
        let r = match given("r") {
            None => default.r,
            Some(value) => match value.as_u64().filter(|r| (1..=MAX_RANK as u64).contains(r)) {
                Some(r) => r as usize,
                None => return bad(format!("r: expected a whole number of 1 or more, got {value}")),
            },
        };
        let selects = ["layers_to_transform", "exclude_modules"].iter().any(|name| given(name).is_some());
        let target_modules = match given("target_modules") {
            Some(Value::Array(_)) if !selects => list("target_modules")?.unwrap_or_default(),
            _ => {
                let module = |name: &String| {
                    let name = name.strip_prefix(PREFIX)?;
                    let of = name.strip_suffix(".lora_A.weight").or_else(|| name.strip_suffix(".lora_embedding_A"))?;
                    Some(of.to_owned())
                };
                tensors.iter().filter_map(module).collect()
            }
        };
        let named = |name: &str| given(name).and_then(Value::as_str).map(str::to_owned);
        let bias = match given("bias") {
            None => LoraBias::None,
            Some(value) => match serde_json::from_value(value.clone()) {
                Ok(bias) => bias,
                Err(_) => return bad(format!("bias: expected \"none\", \"all\" or \"lora_only\", got {value}")),
            },
        };
        let lora_dropout = positive("lora_dropout", default.lora_dropout)?;
        if lora_dropout >= 1.0 {
            return bad(format!("lora_dropout: expected a number from 0 to below 1, got {lora_dropout}"));
        }
        let init_lora_weights = match given("init_lora_weights").map(Beginning::of) {
            None => LoraInit::default(),
            Some(Beginning::Plain(init)) => init,
            Some(Beginning::ChangesBase) => {
                let what = format!(
                    "init_lora_weights = {}: the adapter stands on a base whose weights its first values were taken from, and \
                     Kiln does not take them",
                    fields["init_lora_weights"]
                );
                return refused(what, CONVERT_WITH_PEFT);
            }
            Some(Beginning::Unknown) => {
                return bad(format!(
                    "init_lora_weights: expected true, false or a name that peft 0.21 knows, got {}",
                    fields["init_lora_weights"]
                ));
            }
        };
        let task_type = named("task_type");
        // `peft` adds them by the task, whatever the file says.
        let of_task: &[&str] = match task_type.as_deref() {
            Some("SEQ_CLS" | "TOKEN_CLS") => Self::default_saved(Head::SequenceClassification),
            Some("QUESTION_ANS") => Self::default_saved(Head::QuestionAnswering),
            _ => &[],
        };
        let mut modules_to_save = list("modules_to_save")?.unwrap_or_default();
        let missing = of_task.iter().filter(|name| !modules_to_save.iter().any(|saved| saved == *name));
        modules_to_save.extend(missing.map(|name| (*name).to_owned()).collect::<Vec<_>>());
        let config = Self {
            base_model_name_or_path: named("base_model_name_or_path"),
            revision: named("revision"),
            r,
            lora_alpha: positive("lora_alpha", default.lora_alpha)?,
            lora_dropout,
            target_modules,
            bias,
            modules_to_save,
            use_rslora: flag("use_rslora")?,
            init_lora_weights,
            rank_pattern: patterns(given("rank_pattern"), "rank_pattern", "whole numbers")?,
            alpha_pattern: patterns(given("alpha_pattern"), "alpha_pattern", "numbers")?,
            lora_bias: flag("lora_bias")?,
            use_dora: flag("use_dora")?,
            trainable_token_indices: match given("trainable_token_indices") {
                None => None,
                Some(value) => match serde_json::from_value(value.clone()) {
                    Ok(indices) => Some(indices),
                    Err(_) => {
                        return bad(format!(
                            "trainable_token_indices: expected a list of ids of tokens, or one for each module, got {value}"
                        ));
                    }
                },
            },
            task_type,
        };
        config.check()?;
        Ok(config)
    }
}

/// The patterns of the field `name` with `value`; none where it is left out.
fn patterns<T: DeserializeOwned>(value: Option<&Value>, name: &str, what: &str) -> Result<Patterns<T>> {
    let Some(value) = value else { return Ok(Patterns::default()) };
    serde_json::from_value(value.clone())
        .map_err(|_| Error::config(format!("{name}: expected an object of {what} by patterns of names, got {value}")))
}

/// How an adapter that is read began, by its `init_lora_weights`. The names are compared as
/// `LoraLayer.update_layer` compares them.
enum Beginning {
    /// Beside the base's own weights, which it computes with.
    Plain(LoraInit),
    /// With values taken from the base's weights, which `peft` takes from them again whenever it
    /// opens the adapter.
    ChangesBase,
    /// In no way that `peft` knows.
    Unknown,
}

impl Beginning {
    fn of(value: &Value) -> Self {
        let name = match value {
            Value::String(name) => name.as_str(),
            other => return other.clone().try_into().map_or(Self::Unknown, Self::Plain),
        };
        match (name, name.to_lowercase().as_str()) {
            (_, "gaussian") => Self::Plain(LoraInit::Gaussian),
            // What was drawn, or computed from data or from the base, is in the adapter's file, and
            // the base is as it was.
            ("eva" | "orthogonal" | "lora_ga", _) | (_, "mica") => Self::Plain(LoraInit::Zero),
            ("loftq", _) | (_, "olora") => Self::ChangesBase,
            _ if name.starts_with("pissa") || name.starts_with("corda") => Self::ChangesBase,
            _ => Self::Unknown,
        }
    }
}

impl From<LoraInit> for Value {
    /// `peft`'s spelling.
    fn from(init: LoraInit) -> Self {
        match init {
            LoraInit::Zero => json!(true),
            LoraInit::Gaussian => json!("gaussian"),
            LoraInit::Random => json!(false),
        }
    }
}

impl TryFrom<Value> for LoraInit {
    type Error = String;

    fn try_from(value: Value) -> std::result::Result<Self, String> {
        match value {
            Value::Bool(true) => Ok(Self::Zero),
            Value::Bool(false) => Ok(Self::Random),
            Value::String(name) if name == "gaussian" => Ok(Self::Gaussian),
            other => Err(format!("expected true, false or \"gaussian\", got {other}")),
        }
    }
}

/// Whether the module called `name` is an embedding.
fn is_embedding(name: &str) -> bool {
    const EMBEDDINGS: [&str; 6] =
        ["wte", "wpe", "word_embeddings", "position_embeddings", "token_type_embeddings", "embed_tokens"];
    EMBEDDINGS.iter().any(|embedding| names(embedding, name))
}

/// The names of the linear layers among `tensors`. The output of a language model is none: its
/// weight may be the embedding's.
fn linear<'a>(tensors: &[Named<'a>]) -> impl Iterator<Item = &'a str> {
    tensors.iter().filter(|(_, in_linear)| *in_linear).filter_map(|(name, _)| name.strip_suffix(".weight"))
}

/// Whether `target` is the name of `module`, or the last parts of it.
fn names(target: &str, module: &str) -> bool {
    module.strip_suffix(target).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// Whether `name` is that of an adapter's own tensor.
pub(crate) fn is_of_adapter(name: &str) -> bool {
    const ENDS: [&str; 7] = [
        ".lora_A.weight",
        ".lora_B.weight",
        ".lora_B.bias",
        ".lora_embedding_A",
        ".lora_embedding_B",
        ".lora_magnitude_vector",
        ".trainable_tokens_delta",
    ];
    ENDS.iter().any(|end| name.ends_with(end))
}
