//! The JSON Schema of config files, from the entries of their keys, for editors and for whoever
//! checks a file without Kiln. It has what one key alone can tell: rules between keys are
//! [`RunConfig::checked`]'s.

use kiln_core::schema::{Schema, unlinked};
use kiln_models::ModelType;
use serde_json::{Map, Value, json};

use super::document::INCLUDE;
use super::hugging_face::{ARGUMENTS, Kind};
use super::settings::PRECISION;
use super::{
    BatchArguments, DataArguments, DataSection, DeviceArguments, DistributedArguments, GenerationSection,
    LearningRateScaling, LoraSection, ModelSection, Precision, RunConfig, RunSection, TokenizerSection,
    TrainingArguments, TrainingCompilerConfig,
};

/// The name under which a schema lies beside a config file, for its first line.
pub const SCHEMA_FILE: &str = "kiln.schema.json";

/// The first line of a config file that has the schema beside it, as editors of TOML read it.
pub const SCHEMA_LINE: &str = "#:schema ./kiln.schema.json";

/// The JSON Schema (draft 7) of a config file.
pub fn json_schema() -> Value {
    let mut properties = Map::from_iter([
        (PRECISION.to_owned(), precision()),
        (INCLUDE.to_owned(), include()),
        ("run".to_owned(), RunSection::schema()),
        ("model".to_owned(), model()),
        ("lora".to_owned(), LoraSection::schema()),
        ("data".to_owned(), data()),
        ("tokenizer".to_owned(), TokenizerSection::schema()),
        ("trainer".to_owned(), trainer()),
        ("batch".to_owned(), BatchArguments::schema()),
        ("learning_rate".to_owned(), LearningRateScaling::schema()),
        ("device".to_owned(), DeviceArguments::schema()),
        ("distributed".to_owned(), DistributedArguments::schema()),
        ("compiler".to_owned(), TrainingCompilerConfig::schema()),
        ("generation".to_owned(), GenerationSection::schema()),
    ]);
    add_defaults(&mut properties);
    add_spellings(&mut properties);
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Config file of Kiln",
        "description": "Made by `kiln schema` from the entries of the keys; `kiln help config-reference` shows the same.",
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    })
}

fn precision() -> Value {
    let mut schema = Precision::schema();
    let choices = schema["description"].as_str().unwrap_or_default();
    schema["description"] =
        format!("The type of matrix products, in training and evaluation. Default: `f32`.\n\n{choices}").into();
    schema
}

fn include() -> Value {
    let mut schema = Vec::<String>::schema();
    schema["description"] = "Config files whose keys hold where this file does not give them: a path or a list, \
                             relative to the folder of this file. A later one wins over an earlier one."
        .into();
    schema
}

/// `[model]`, whose further keys are the fields of all families.
fn model() -> Value {
    let mut schema = ModelSection::schema();
    for kind in ModelType::ALL {
        for name in kind.known_names().map(str::to_owned).chain(kind.fields()) {
            if schema["properties"].get(&name).is_none() {
                schema["properties"][&name] = model_field(&name);
            }
        }
    }
    schema
}

/// A field of a model's `config.json`, whose type is the values that one of the families takes.
fn model_field(name: &str) -> Value {
    let families = ModelType::ALL.into_iter().filter(|kind| kind.fields().iter().any(|field| field == name));
    let families = families.collect::<Vec<_>>();
    let takes = |value: Value| families.iter().any(|kind| kind.check_type(name, &value).is_ok());
    let mut schema = json!({ "description": format!("The field `{name}` of the model's `config.json`.") });
    let values = [json!(true), json!(1), json!("text"), json!([]), json!({})];
    let types = ["boolean", "number", "string", "array", "object"].into_iter().zip(values);
    let types = types.filter(|(_, value)| takes(value.clone())).map(|(name, _)| name).collect::<Vec<_>>();
    if !types.is_empty() {
        schema["type"] = json!(types);
    }
    if types.contains(&"number") && !takes(json!(0.5)) {
        schema["multipleOf"] = 1.into();
    }
    if types.contains(&"number") && !takes(json!(-1)) {
        schema["minimum"] = 0.into();
    }
    schema
}

/// `[data]`, which two structs share.
fn data() -> Value {
    let [mut schema, mut arguments] = [DataSection::schema(), DataArguments::schema()];
    if let [Value::Object(keys), Value::Object(more)] = [&mut schema, &mut arguments].map(|it| &mut it["properties"]) {
        keys.append(more);
    }
    schema
}

/// `[trainer]`, which takes every argument of `TrainingArguments`.
fn trainer() -> Value {
    let mut schema = TrainingArguments::schema();
    for argument in ARGUMENTS.iter() {
        match schema["properties"].get_mut(argument.name) {
            // A switch of `TrainingArguments` whose key here has more values.
            Some(key) if argument.takes_a(Kind::Flag) && key["type"] != "boolean" => {
                let description = key["description"].clone();
                *key = json!({ "anyOf": [key.take(), { "type": "boolean" }], "description": description });
            }
            Some(_) => {}
            None => {
                let about = format!("Hugging Face's `{}`: {}.", argument.name, unlinked(&argument.note));
                schema["properties"][argument.name] = json!({ "description": about });
            }
        }
    }
    schema
}

/// Adds the values that keys have where a file does not give them.
fn add_defaults(sections: &mut Map<String, Value>) {
    let compiler = Some(TrainingCompilerConfig::default());
    let defaults = RunConfig {
        trainer: TrainingArguments { compiler, ..TrainingArguments::default() },
        generation: Some(GenerationSection::default()),
        lora: Some(LoraSection::default()),
        ..RunConfig::default()
    };
    let defaults = serde_json::to_value(defaults).unwrap_or_default();
    for (section, schema) in sections {
        let Some(Value::Object(keys)) = schema.get_mut("properties") else { continue };
        for (key, schema) in keys {
            // A key that is required has an empty value, or none.
            let default = &defaults[section.as_str()][key.as_str()];
            if !default.is_null() && *default != json!("") && *default != json!([]) {
                schema["default"] = default.clone();
            }
        }
    }
}

/// Adds the spellings that are put in another form before a file is read.
fn add_spellings(sections: &mut Map<String, Value>) {
    for (name, key) in [("alpha", "lora_alpha"), ("dropout", "lora_dropout")] {
        let keys = &mut sections["lora"]["properties"];
        keys[name] = keys[key].clone();
    }
    if let Some(backends) = sections["distributed"]["properties"]["ddp_backend"]["enum"].as_array_mut() {
        backends.push("gloo".into());
    }
}

#[cfg(test)]
mod tests {
    use super::json_schema;
    use crate::config::document::{field_names, keys_of, sections};
    use crate::config::file::RunFile;

    #[test]
    fn every_key_of_a_file_is_in_the_schema_with_its_documentation() {
        let schema = json_schema();
        let names = schema["properties"].as_object().expect("an object has properties").keys().collect::<Vec<_>>();
        assert_eq!(names, field_names::<RunFile>(), "in the order of a file");
        for section in sections() {
            let keys = &schema["properties"][section]["properties"];
            for key in keys_of(section).unwrap_or(&["kind", "from", "size", "n_layer", "hidden_size"]) {
                let about = keys[*key]["description"].as_str().unwrap_or_default();
                assert!(about.len() > 10 && !about.contains("]("), "{section}.{key}: {about:?}");
            }
        }
    }
}
