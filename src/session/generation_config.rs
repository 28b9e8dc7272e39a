//! `generation_config.json`: how a model's texts are continued, as `transformers` keeps it beside `config.json`.

use std::path::Path;

use kiln_models::ModelConfig;
use kiln_models::config::eos_token_ids;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::base::error::{Error, Result};
use crate::config::{GenerateOptions, GenerationSection};
use crate::data::tokenizer::{NamedFile, Tokenizer, read_file};
use crate::session::model_folder::ModelFolder;

/// The file of a model folder.
pub(crate) const GENERATION_CONFIG: &str = "generation_config.json";

/// Keys that Kiln reads.
const READ: [&str; 10] = [
    "max_new_tokens",
    "temperature",
    "do_sample",
    "top_k",
    "top_p",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "min_new_tokens",
    "stop_strings",
    "eos_token_id",
];

/// Keys that do not change which tokens `transformers` 4.57 and 5.23 choose with one model: ids of tokens that a causal model does not choose by or that
/// encoder-decoders begin with, the form of the result, caches, compilation, and helpers of a second model.
const HARMLESS: [&str; 34] = [
    "_from_model_config",
    "transformers_version",
    "bos_token_id",
    "pad_token_id",
    "decoder_start_token_id",
    "output_attentions",
    "output_hidden_states",
    "output_logits",
    "output_scores",
    "return_dict_in_generate",
    "return_legacy_cache",
    "use_cache",
    "cache_config",
    "cache_implementation",
    "max_cache_len",
    "compile_config",
    "disable_compile",
    "continuous_batching_config",
    "low_memory",
    "prefill_chunk_size",
    "remove_invalid_values",
    "renormalize_logits",
    "is_assistant",
    "assistant_confidence_threshold",
    "assistant_early_exit",
    "assistant_ensemble_weight",
    "assistant_lookbehind",
    "target_lookbehind",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "max_matching_ngram_size",
    "prompt_lookup_num_tokens",
    "speculation_type",
    "use_mtp",
];

/// Keys whose number 0 changes nothing.
const OFF_AT_0: [&str; 7] = [
    "min_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "penalty_alpha",
    "diversity_penalty",
    "encoder_no_repeat_ngram_size",
    "min_length",
];

/// Keys whose number 1 changes nothing.
const OFF_AT_1: [&str; 8] = [
    "num_beams",
    "num_beam_groups",
    "num_return_sequences",
    "length_penalty",
    "typical_p",
    "top_h",
    "guidance_scale",
    "encoder_repetition_penalty",
];

/// Whether `key` = `value` is without effect in `transformers`, or has its effect in Kiln.
fn is_heeded(key: &str, value: &Value) -> bool {
    READ.contains(&key)
        || HARMLESS.contains(&key)
        || match value {
            Value::Null | Value::Bool(false) => true,
            Value::Array(values) => values.is_empty(),
            Value::Object(values) => values.is_empty(),
            value if value.as_f64() == Some(0.0) => OFF_AT_0.contains(&key),
            value if value.as_f64() == Some(1.0) => OFF_AT_1.contains(&key),
            _ => false,
        }
}

/// The `generation_config.json` of a model folder.
struct File<'a> {
    path: String,
    keys: Map<String, Value>,
    folder: &'a ModelFolder,
}

impl<'a> File<'a> {
    /// That of `folder`, or of the base of an adapter; empty where there is none.
    fn read(folder: &'a ModelFolder) -> Result<Self> {
        let at = |path: &Path| {
            Ok::<_, Error>(read_file(path, GENERATION_CONFIG)?.map(|(_, bytes)| (path.to_owned(), bytes)))
        };
        let found = match at(&folder.path)? {
            None if folder.base != folder.path => at(&folder.base)?,
            found => found,
        };
        let Some((path, bytes)) = found else { return Ok(Self { path: String::new(), keys: Map::new(), folder }) };
        let path = path.join(GENERATION_CONFIG).display().to_string();
        match serde_json::from_slice(&bytes) {
            Ok(keys) => Ok(Self { path, keys, folder }),
            Err(error) => Err(Error::data(format!("{path}: {error}"))),
        }
    }

    /// The value of `key`, if there is one.
    fn get<V: DeserializeOwned>(&self, key: &str) -> Result<Option<V>> {
        match self.keys.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match V::deserialize(value) {
                Ok(value) => Ok(Some(value)),
                Err(error) => Err(Error::data(format!("{}: {key}: {error}", self.path))),
            },
        }
    }

    fn stop_ids(&self, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
        let config = &self.folder.config;
        let stated = eos_token_ids(self.keys.get("eos_token_id"), Some(config.vocab_size()))
            .map_err(|error| Error::data(format!("{}: {error}", self.path)))?;
        let stated = if stated.is_empty() { config.eos_token_ids() } else { stated };
        Ok(if stated.is_empty() { tokenizer.eot_id().into_iter().collect() } else { stated })
    }
}

/// How the model of `folder` continues texts when nobody says otherwise: as its `generation_config.json` says, and where that
/// says nothing, as Kiln does by default ([`GenerationSection`]). The second value are the keys of the file that may have an effect
/// in `transformers` and have none here.
///
/// Generation ends before the `eos_token_id` of that file, else of `config.json`; without either before the id that ends a
/// document of `tokenizer`.
///
/// # Errors
/// A file that cannot be read, values of another type, ids that are none of the model's.
pub fn defaults(folder: &ModelFolder, tokenizer: &Tokenizer) -> Result<(GenerateOptions, Vec<String>)> {
    let (file, default) = (File::read(folder)?, GenerationSection::default());
    let temperature = file.get("temperature")?.unwrap_or(default.temperature);
    let strings = match file.get::<Value>("stop_strings")? {
        None => Vec::new(),
        Some(Value::String(text)) => vec![text],
        Some(_) => file.get("stop_strings")?.unwrap_or_default(),
    };
    let section = GenerationSection {
        max_new_tokens: file.get("max_new_tokens")?.unwrap_or(default.max_new_tokens),
        temperature: if file.get("do_sample")? == Some(false) { 0.0 } else { temperature },
        top_k: file.get("top_k")?.unwrap_or(default.top_k),
        top_p: file.get("top_p")?.unwrap_or(default.top_p),
        repetition_penalty: file.get("repetition_penalty")?.unwrap_or(default.repetition_penalty),
        no_repeat_ngram_size: file.get("no_repeat_ngram_size")?.unwrap_or(default.no_repeat_ngram_size),
        min_new_tokens: file.get("min_new_tokens")?.unwrap_or(default.min_new_tokens),
        stop_strings: strings,
        ..default
    };
    let unused = file.keys.iter().filter(|(key, value)| !is_heeded(key, value));
    let unused = unused.map(|(key, value)| format!("{}: {key} = {value} has no effect in Kiln", file.path)).collect();
    Ok((GenerateOptions::of(&section, file.stop_ids(tokenizer)?), unused))
}

/// The file of a model of `config` without one: its special tokens, as `save_pretrained` takes them from the model's
/// configuration. `eot` is the token that ends a document of its tokenizer.
pub(crate) fn file(config: &ModelConfig, eot: Option<u32>) -> NamedFile {
    let model = config.to_json("");
    let mut keys = Map::from_iter([("_from_model_config".to_owned(), json!(true))]);
    for key in ["bos_token_id", "eos_token_id", "pad_token_id"] {
        let stated = model.get(key).filter(|id| !id.is_null()).cloned();
        let id = stated.or_else(|| eot.filter(|_| key == "eos_token_id").map(Value::from));
        keys.extend(id.map(|id| (key.to_owned(), id)));
    }
    let text = serde_json::to_string_pretty(&keys).expect("a JSON value has a text");
    (GENERATION_CONFIG.into(), format!("{text}\n").into_bytes().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_told_unless_it_is_known_to_change_nothing() {
        for (key, value) in [
            ("max_time", json!(1)),
            ("watermarking_config", json!({"bias": 2.5})),
            ("forced_eos_token_id", json!(1)),
            ("forced_bos_token_id", json!(0)),
            ("suppress_tokens", json!([0])),
            ("token_healing", json!(true)),
            ("diversity_penalty", json!(0.5)),
            ("min_p", json!(1.0)),
            ("num_beams", json!(4)),
            ("a_key_of_tomorrow", json!("on")),
        ] {
            assert!(!is_heeded(key, &value), "{key} = {value}");
        }
        for (key, value) in [
            ("max_time", Value::Null),
            ("token_healing", json!(false)),
            ("min_p", json!(0.0)),
            ("num_beams", json!(1)),
            ("typical_p", json!(1.0)),
            ("suppress_tokens", json!([])),
            ("use_cache", json!(true)),
            ("bos_token_id", json!(50256)),
            ("transformers_version", json!("5.23.0")),
            ("temperature", json!(0.7)),
        ] {
            assert!(is_heeded(key, &value), "{key} = {value}");
        }
    }
}
