//! Configurations from JSON and back: `config.json`, explicit fields on top of defaults, and the
//! file that `transformers` opens.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{BertConfig, Gpt2Config, Gpt2Variant, LlamaConfig, ModelConfig, ModelType};
use crate::error::{Error, Result};
use crate::names::{Name, Treatment};
use crate::words::json_words;

/// The field of GPT-Neo that `transformers` goes by, where a file has it.
const ATTENTION_LAYERS: &str = "attention_layers";

impl ModelConfig {
    /// Reads the text of a `config.json`. Returns the names of fields that Kiln does not know
    /// (kept, not honoured) beside the configuration, so that the caller can show them.
    pub fn from_json(text: &str) -> Result<(Self, Vec<String>)> {
        let value: Value =
            serde_json::from_str(text).map_err(|error| Error::config(format!("not JSON: {}", json_words(&error))))?;
        let Value::Object(map) = value else {
            return Err(Error::config("expected a JSON object at the top"));
        };
        let kind = match map.get("model_type") {
            Some(Value::String(name)) => ModelType::ALL.into_iter().find(|kind| kind.to_string() == *name),
            Some(other) => return Err(Error::config(format!("model_type: expected a string, got {other}"))),
            None => {
                return Err(Error::config(format!(
                    "model_type is missing; expected {}: add \"model_type\": \"bert\" to config.json, or whichever family the model is",
                    ModelType::listed()
                )));
            }
        };
        let Some(kind) = kind else {
            return Err(Error::config(format!(
                "model_type: expected {}, got {}; other families are not supported",
                ModelType::listed(),
                map["model_type"]
            )));
        };
        if let (Some(count), Some(Value::Object(names))) =
            (map.get("num_labels").and_then(Value::as_u64), map.get("id2label"))
            && count != names.len() as u64
        {
            let names = names.len();
            return Err(Error::config(format!(
                "num_labels is {count} and id2label names {names}; expected one number of labels"
            )));
        }
        let mut unknown = Vec::new();
        let config = kind.defaults().merge(&map, |name, _| {
            unknown.push(name.to_string());
            Ok(())
        })?;
        Ok((config, unknown))
    }

    /// The family's defaults with explicit `fields` on top; a name that Kiln does not honour is
    /// refused.
    pub fn from_fields(kind: ModelType, fields: &Map<String, Value>) -> Result<Self> {
        kind.defaults().with_fields(fields)
    }

    /// This configuration with explicit `fields` on top; a name that Kiln does not honour is
    /// refused, and so are two names for one thing.
    pub fn with_fields(mut self, fields: &Map<String, Value>) -> Result<Self> {
        let pairs = self.model_type().aliases().iter().copied();
        let others = [("num_labels", "id2label"), ("rope_scaling", "rope_parameters")];
        for (one, other) in pairs.chain(others) {
            if fields.contains_key(one) && fields.contains_key(other) {
                return Err(Error::config(format!(
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
            Err(Error::config(format!("unknown field {name:?} for {kind}{near} Known fields: {}", known.join(", "))))
        })
    }

    /// Sets every field of `fields`; `unknown` decides about names that are in none of the tables.
    fn merge(
        self,
        fields: &Map<String, Value>,
        mut unknown: impl FnMut(&str, ModelType) -> Result<()>,
    ) -> Result<Self> {
        let kind = self.model_type();
        let fields = match &self {
            Self::Llama(config) => &config.with_rope_parameters(fields)?,
            Self::Gpt2(_) | Self::Bert(_) => fields,
        };
        let honoured = kind.fields();
        let mut inert = self.inert().clone();
        let mut merged = self.honoured_json();
        let defaults = kind.defaults().honoured_json();
        for (name, value) in fields {
            let name = kind.aliases().iter().find(|(alias, _)| alias == name).map_or(&**name, |(_, to)| to);
            if honoured.iter().any(|known| known == name) {
                // A null means "not set" in Hugging Face's files: the default stands, unless null
                // is a value of the field.
                let value = match (value, defaults.get(name)) {
                    (Value::Null, Some(default)) if !kind.has_null(name) => default,
                    _ => value,
                };
                merged.insert(name.into(), value.clone());
            } else {
                let told = kind.names().check_one(name, value).map_err(Error::config)?;
                if told.is_some() {
                    unknown(name, kind)?;
                }
                let is_derived = |name| name == ATTENTION_LAYERS && kind == ModelType::GptNeo;
                if !kind.names().get(name).is_some_and(Name::has_one_value) && !is_derived(name) {
                    inert.insert(name.into(), value.clone());
                }
            }
        }
        merged.retain(|name, value| !value.is_null() || kind.has_null(name));
        let bad = |error: serde_json::Error| Error::config(json_words(&error));
        // Field by field first, so that a wrong type names its field.
        merged.iter().try_for_each(|(name, value)| check_type(kind, name, value))?;
        let plain = merged.into_iter().map(|(name, value)| (kind.plain_field(&name).to_string(), value));
        let merged = Value::Object(plain.collect());
        let config = match &self {
            Self::Gpt2(Gpt2Config { variant, .. }) => {
                Self::Gpt2(Gpt2Config { variant: *variant, inert, ..Gpt2Config::deserialize(&merged).map_err(bad)? })
            }
            Self::Bert(BertConfig { variant, .. }) => {
                Self::Bert(BertConfig { variant: *variant, inert, ..BertConfig::deserialize(&merged).map_err(bad)? })
            }
            Self::Llama(LlamaConfig { variant, .. }) => {
                Self::Llama(LlamaConfig { variant: *variant, inert, ..LlamaConfig::deserialize(&merged).map_err(bad)? })
            }
        };
        config.validate()?;
        let stated = fields.get(ATTENTION_LAYERS).filter(|stated| !stated.is_null());
        match (stated, config.attention_layers()) {
            (Some(stated), Some(layers)) if *stated != layers => Err(Error::config(format!(
                "attention_types says that attention_layers are {layers}, and the file says {stated}; expected the same in both"
            ))),
            _ => Ok(config),
        }
    }

    /// `global` or `local` for each layer of GPT-Neo, as its files write `attention_types` out;
    /// none for the other families.
    fn attention_layers(&self) -> Option<Value> {
        let Self::Gpt2(config @ Gpt2Config { variant: Gpt2Variant::GptNeo, .. }) = self else { return None };
        let named = |is_local| if is_local { "local" } else { "global" };
        Some(config.layers_are_local().into_iter().map(named).collect::<Vec<_>>().into())
    }

    /// Every honoured field with its value.
    pub fn honoured_json(&self) -> Map<String, Value> {
        let value = match self {
            Self::Gpt2(c) => serde_json::to_value(c),
            Self::Bert(c) => serde_json::to_value(c),
            Self::Llama(c) => serde_json::to_value(c),
        };
        match value {
            Ok(Value::Object(map)) => {
                let kind = self.model_type();
                let fields = map.into_iter().filter(|(name, _)| kind.has_field(name));
                let mut map = fields.map(|(name, value)| (kind.field(&name).to_string(), value)).collect::<Map<_, _>>();
                if let Some(count) = self.labels().num_labels.filter(|_| self.labels().id2label.is_none()) {
                    map.insert("num_labels".into(), count.into());
                }
                map
            }
            _ => unreachable!("a struct of plain fields serialises to an object"),
        }
    }

    /// The `config.json` of a model with this configuration and `architecture` (a class name of
    /// `transformers`; empty where it describes no file).
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
        if let Self::Gpt2(config @ Gpt2Config { variant: Gpt2Variant::Gpt2, .. }) = self
            && !architecture.is_empty()
        {
            // llama.cpp's converter needs it, and the files of OpenAI's models have it.
            map.insert("n_ctx".into(), config.n_positions.into());
        }
        map.extend(self.attention_layers().map(|layers| (ATTENTION_LAYERS.to_owned(), layers)));
        if let Self::Llama(config) = self {
            // Some of the classes take no null here.
            map.insert("num_key_value_heads".into(), config.kv_heads().into());
            map.insert("head_dim".into(), config.head_dim().into());
        }
        for Name { name, treatment, .. } in self.model_type().names().names {
            if let (Treatment::Only(only), false) = (treatment, *name == "pruned_heads") {
                map.insert((*name).into(), only());
            }
        }
        Value::Object(map)
    }
}

impl ModelType {
    /// The family's own name of a field that it honours; none for any other.
    fn honoured(self, name: &str) -> Option<&str> {
        let own = self.aliases().iter().find(|(alias, _)| *alias == name).map_or(name, |(_, to)| to);
        self.fields().iter().any(|known| known == own).then_some(own)
    }

    /// Whether the family knows a field of this name: it honours it, has one value for it, or the
    /// field changes nothing.
    pub fn knows(self, name: &str) -> bool {
        self.names().get(name).is_some()
    }

    /// The names of the fields that the family [`knows`](Self::knows), and other spellings of them.
    pub fn known_names(self) -> impl Iterator<Item = &'static str> {
        let names = self.names().names.iter().map(|name| name.name);
        names.chain(self.aliases().iter().map(|(alias, _)| *alias))
    }

    /// Checks the type of the value of a field that the family [`knows`](Self::knows). Its
    /// agreement with other fields is checked by [`ModelConfig::from_fields`].
    ///
    /// # Errors
    /// A value of another type.
    pub fn check_type(self, name: &str, value: &Value) -> Result<()> {
        let own = self.honoured(name);
        own.map_or(Ok(()), |own| check_type(self, own, value))
    }
}

/// Checks the type of one honoured field.
fn check_type(kind: ModelType, name: &str, value: &Value) -> Result<()> {
    let one = Value::Object(Map::from_iter([(kind.plain_field(name).to_string(), value.clone())]));
    let result = match (kind.bert_variant(), kind.llama_variant()) {
        (Some(_), _) => BertConfig::deserialize(&one).map(|_| ()),
        (_, Some(_)) => LlamaConfig::deserialize(&one).map(|_| ()),
        (None, None) => Gpt2Config::deserialize(&one).map(|_| ()),
    };
    result.map_err(|error| Error::config(wrong_type(name, value, &error)))
}

/// A value of a type that its field does not have; `error` is serde's, which names the type in
/// Rust's words.
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
