//! Settings that come from outside of any file, as texts under names of their own: the
//! hyperparameters of a training job. Each is read by the key that it sets, so that a wrong one is
//! known by itself and all of them can be told at once.

use kiln_core::error::{Error, Result};
use kiln_models::ModelType;
use serde_json::Value as Json;
use toml::{Table, Value};

use super::ModelSection;
pub use super::document::sections;
use super::document::{self, Document};
use super::hf_args::toml_of;
use super::hugging_face::{ARGUMENTS, Standing, argument};
pub use super::origin::Setting;
use super::scripts::{self, Means};

/// The key above the sections.
pub const PRECISION: &str = "precision";

/// The keys of `[model]` that are no fields of the model's own config.
fn model_keys() -> impl Iterator<Item = &'static str> {
    ModelSection::KEYS.iter().map(|key| key.field)
}

impl Setting {
    /// Reads `given`, a JSON value or a text of one, as the value of the key `path`. None for null,
    /// which asks for nothing.
    ///
    /// # Errors
    /// A config error for a value that the key cannot have.
    pub fn read(path: &str, given: &Json, origin: &str) -> Result<Option<Self>> {
        let mut first = None;
        for value in readings(given) {
            let value = match value {
                // No clipping, as 0 is.
                Json::Null if path == "trainer.max_grad_norm" => 0.0.into(),
                Json::Null => return Ok(None),
                value => value,
            };
            let Some(value) = toml_of(value) else { continue };
            let setting = Self::new(path, value, origin);
            match setting.check() {
                Ok(()) => return Ok(Some(setting)),
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or_else(|| Error::config("expected a value that TOML can hold").at(path).at(origin)))
    }

    /// Reads the setting by itself.
    fn check(&self) -> Result<()> {
        if let [section, key] = &self.path[..]
            && section == "model"
            && !model_keys().any(|name| name == key)
        {
            let value = serde_json::to_value(&self.value).unwrap_or_default();
            let families = ModelType::ALL.into_iter().filter(|kind| kind.knows(key));
            let checked = families.map(|kind| kind.check_type(key, &value)).collect::<Vec<_>>();
            if checked.iter().any(|checked| checked.is_ok()) {
                return Ok(());
            }
            let first = checked.into_iter().collect::<std::result::Result<(), _>>();
            return first.map_err(|error| error.at("[model]").at(&self.origin));
        }
        let only = std::slice::from_ref(self);
        Document::layered("data.task = \"clm\"", "", None, None, only, &[])?.read().map(drop)
    }
}

/// The values that `given` may stand for, the likeliest first. A text is read as JSON, as Python
/// writes it, or as it stands; a text in JSON's quotes is a text.
fn readings(given: &Json) -> Vec<Json> {
    let Json::String(text) = given else { return vec![given.clone()] };
    let trimmed = text.trim();
    let mut readings = Vec::new();
    match (trimmed, serde_json::from_str::<Json>(trimmed)) {
        ("True", _) => readings.push(true.into()),
        ("False", _) => readings.push(false.into()),
        ("None", _) => readings.push(Json::Null),
        (_, Ok(Json::String(inner))) => return self::readings(&Json::String(inner)),
        (_, Ok(value)) => readings.push(value),
        (_, Err(_)) if trimmed.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first)) => {
            // A number that is none in JSON: +5, .5, 1_000.
            let plain = trimmed.replace('_', "");
            let whole = plain.parse::<i64>().ok().map(Json::from);
            let number = || plain.parse::<f64>().ok().filter(|number| number.is_finite()).map(Json::from);
            readings.extend(whole.or_else(number));
        }
        (_, Err(_)) if trimmed.starts_with(['[', '{']) => {
            // A list or a table of TOML's, whose texts may stand in single quotes, as in Python.
            let read = trimmed.parse::<Value>().ok();
            readings.extend(read.and_then(|value| serde_json::to_value(value).ok()));
        }
        _ => {}
    }
    readings.push(text.as_str().into());
    readings
}

/// The keys of `[section]`; none for a section that does not exist. Those of `[model]` are the
/// fields of every family.
pub fn keys_of(section: &str) -> Option<Vec<String>> {
    if section != "model" {
        return Some(document::keys_of(section)?.iter().map(|name| (*name).to_owned()).collect());
    }
    let mut names = model_keys().map(String::from).collect::<Vec<_>>();
    for name in ModelType::ALL.into_iter().flat_map(ModelType::fields) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Some(names)
}

/// The keys that are called `name` without their section; where there is none, the key that an
/// argument of Hugging Face's of that name sets, if it sets one.
pub fn keys_called(name: &str) -> Vec<String> {
    if name == PRECISION {
        return vec![name.to_owned()];
    }
    let is_key = |section: &&str| match *section {
        "model" => model_keys().any(|key| key == name) || is_model_field(name),
        section => document::keys_of(section).is_some_and(|keys| keys.contains(&name)),
    };
    let keys = sections().into_iter().filter(is_key).map(|section| format!("{section}.{name}")).collect::<Vec<_>>();
    if !keys.is_empty() {
        return keys;
    }
    let of_trainer = argument_has_effect(name).filter(|has_effect| *has_effect).map(|_| format!("trainer.{name}"));
    let of_scripts = match scripts::meaning(name) {
        Some(Means::Key(key)) => Some(key.to_owned()),
        _ => None,
    };
    of_trainer.or(of_scripts).into_iter().collect()
}

/// Whether a family of models knows the field `name`.
pub fn is_model_field(name: &str) -> bool {
    ModelType::ALL.into_iter().any(|kind| kind.knows(name))
}

/// Whether `name` is an argument of `TrainingArguments`, and if so, whether it does something here.
pub fn argument_has_effect(name: &str) -> Option<bool> {
    argument(name).map(|argument| argument.standing == Standing::Honoured)
}

/// The arguments of `TrainingArguments`.
pub fn arguments() -> impl Iterator<Item = &'static str> {
    ARGUMENTS.iter().map(|argument| argument.name)
}

/// The value of `section.key` in the table of a config, for whoever looks at a file before it is
/// read.
pub fn value_in<'a>(table: &'a Table, section: &str, key: &str) -> Option<&'a Value> {
    table.get(section)?.as_table()?.get(key)
}
