//! `generation_config.json`: how a model's texts are continued, as `transformers` keeps it beside
//! `config.json`.

use std::path::Path;

use kiln_core::error::{Error, Result};
use kiln_core::files::malformed;
use kiln_core::model_config::eos_token_ids;
use kiln_core::names::{Name, NameTable, Unknown};
use kiln_core::words::json_words;
use kiln_data::tokenizer::{NamedFile, Tokenizer, read_file};
use kiln_models::ModelConfig;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::config::{GenerateOptions, GenerationSection};
use crate::session::model_folder::ModelFolder;

/// The file of a model folder.
pub(crate) const GENERATION_CONFIG: &str = "generation_config.json";

/// The names of the file. A name that is told may change which tokens `transformers` chooses with
/// the same model.
pub static GENERATION_CONFIG_NAMES: NameTable = NameTable {
    file: GENERATION_CONFIG,
    source: "transformers 5.24",
    names: &[
        Name::honoured("max_new_tokens", "how many tokens at most"),
        Name::honoured("min_new_tokens", "how many tokens at least"),
        Name::honoured("do_sample", "whether tokens are drawn, or the likeliest are taken"),
        Name::honoured("temperature", "the temperature of drawing"),
        Name::honoured("top_k", "the likeliest tokens that are drawn from"),
        Name::honoured("top_p", "the share of probability that is drawn from"),
        Name::honoured("repetition_penalty", "the penalty of tokens that were there"),
        Name::honoured("no_repeat_ngram_size", "the length of what is not repeated"),
        Name::honoured("stop_strings", "texts before which generation ends"),
        Name::honoured("eos_token_id", "ids before which generation ends"),
        Name::inert("_from_model_config", "the origin of the file"),
        Name::inert("transformers_version", "the origin of the file"),
        Name::inert("bos_token_id", "a causal model does not choose by it"),
        Name::inert("pad_token_id", "a causal model does not choose by it"),
        Name::inert("decoder_start_token_id", "a causal model does not choose by it"),
        Name::inert("output_attentions", "the form of a Python result"),
        Name::inert("output_hidden_states", "the form of a Python result"),
        Name::inert("output_logits", "the form of a Python result"),
        Name::inert("output_scores", "the form of a Python result"),
        Name::inert("return_dict_in_generate", "the form of a Python result"),
        Name::inert("return_legacy_cache", "the form of a Python result"),
        Name::inert("use_cache", "caches change no token"),
        Name::inert("cache_config", "caches change no token"),
        Name::inert("cache_implementation", "caches change no token"),
        Name::inert("max_cache_len", "caches change no token"),
        Name::inert("low_memory", "caches change no token"),
        Name::inert("prefill_chunk_size", "caches change no token"),
        Name::inert("compile_config", "compilation changes no token"),
        Name::inert("disable_compile", "compilation changes no token"),
        Name::inert("continuous_batching_config", "compilation changes no token"),
        Name::inert("remove_invalid_values", "Kiln's scores are finite and in order"),
        Name::inert("renormalize_logits", "Kiln's scores are finite and in order"),
        Name::inert("is_assistant", "a helper's guesses change no token"),
        Name::inert("assistant_confidence_threshold", "a helper's guesses change no token"),
        Name::inert("assistant_early_exit", "a helper's guesses change no token"),
        Name::inert("assistant_ensemble_weight", "a helper's guesses change no token"),
        Name::inert("assistant_lookbehind", "a helper's guesses change no token"),
        Name::inert("target_lookbehind", "a helper's guesses change no token"),
        Name::inert("num_assistant_tokens", "a helper's guesses change no token"),
        Name::inert("num_assistant_tokens_schedule", "a helper's guesses change no token"),
        Name::inert("max_matching_ngram_size", "a helper's guesses change no token"),
        Name::inert("prompt_lookup_num_tokens", "a helper's guesses change no token"),
        Name::inert("speculation_type", "a helper's guesses change no token"),
        Name::inert("use_mtp", "a helper's guesses change no token"),
        Name::told_unless("min_p", || json!(0), "Kiln's drawing has no such limit"),
        Name::told_unless("epsilon_cutoff", || json!(0), "Kiln's drawing has no such limit"),
        Name::told_unless("eta_cutoff", || json!(0), "Kiln's drawing has no such limit"),
        Name::told_unless("penalty_alpha", || json!(0), "contrastive search is not implemented"),
        Name::told_unless("diversity_penalty", || json!(0), "groups of beams are not implemented"),
        Name::told_unless("encoder_no_repeat_ngram_size", || json!(0), "the prompt is no encoder's"),
        Name::told_unless("min_length", || json!(0), "Kiln counts new tokens, with `min_new_tokens`"),
        Name::told_unless("num_beams", || json!(1), "beams are not implemented"),
        Name::told_unless("num_beam_groups", || json!(1), "beams are not implemented"),
        Name::told_unless("length_penalty", || json!(1), "beams are not implemented"),
        Name::told_unless("num_return_sequences", || json!(1), "Kiln continues each prompt once"),
        Name::told_unless("typical_p", || json!(1), "Kiln's drawing has no such limit"),
        Name::told_unless("top_h", || json!(1), "Kiln's drawing has no such limit"),
        Name::told_unless("guidance_scale", || json!(1), "guidance is not implemented"),
        Name::told_unless("encoder_repetition_penalty", || json!(1), "the prompt is no encoder's"),
        Name::told_unless("early_stopping", || json!(false), "beams are not implemented"),
        Name::told_unless("token_healing", || json!(false), "prompts are taken as they are"),
        Name::told_unless("suppress_tokens", || json!([]), "Kiln suppresses no tokens"),
        Name::told_unless("begin_suppress_tokens", || json!([]), "Kiln suppresses no tokens"),
        Name::told_unless("bad_words_ids", || json!([]), "Kiln suppresses no tokens"),
        Name::told_unless("force_words_ids", || json!([]), "constraints are not implemented"),
        Name::told_unless("constraints", || json!([]), "constraints are not implemented"),
        Name::told("max_length", "Kiln counts new tokens, with `max_new_tokens`"),
        Name::told("max_time", "Kiln has no limit of time"),
        Name::told("forced_bos_token_id", "Kiln forces no tokens"),
        Name::told("forced_eos_token_id", "Kiln forces no tokens"),
        Name::told("exponential_decay_length_penalty", "no penalty grows with the length"),
        Name::told("sequence_bias", "biases of sequences are not implemented"),
        Name::told("dola_layers", "contrasts of layers (DoLa) are not implemented"),
        Name::told("watermarking_config", "watermarks are not implemented"),
    ],
    unknown: Unknown::Told,
};

/// The `generation_config.json` of a model folder.
struct File<'a> {
    path: String,
    keys: Map<String, Value>,
    folder: &'a ModelFolder,
}

impl<'a> File<'a> {
    /// Reads the file of `folder`, or of the base of an adapter; empty where there is none.
    fn read(folder: &'a ModelFolder) -> Result<Self> {
        let at = |path: &Path| {
            Ok::<_, Error>(read_file(path, GENERATION_CONFIG)?.map(|(_, bytes)| (path.to_owned(), bytes)))
        };
        let found = match at(&folder.path)? {
            None if folder.base != folder.path => at(&folder.base)?,
            found => found,
        };
        let Some((path, bytes)) = found else { return Ok(Self { path: String::new(), keys: Map::new(), folder }) };
        let path = path.join(GENERATION_CONFIG);
        let keys = serde_json::from_slice(&bytes).map_err(|error| malformed(&path, &error))?;
        Ok(Self { path: path.display().to_string(), keys, folder })
    }

    /// The value of `key`, if there is one.
    fn get<V: DeserializeOwned>(&self, key: &str) -> Result<Option<V>> {
        match self.keys.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match V::deserialize(value) {
                Ok(value) => Ok(Some(value)),
                Err(error) => Err(Error::data(format!("{}: {key}: {}", self.path, json_words(&error)))),
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

/// How the model of `folder` continues texts when nobody says otherwise: as its
/// `generation_config.json` says, and where that says nothing, as Kiln does by default
/// ([`GenerationSection`]). The second value are the keys of the file that may have an effect in
/// `transformers` and have none here.
///
/// Generation ends before the `eos_token_id` of that file, else of `config.json`; without either
/// before the id that ends a document of `tokenizer`.
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
    let told =
        GENERATION_CONFIG_NAMES.check(&file.keys).map_err(|what| Error::data(format!("{}: {what}", file.path)))?;
    let unused = told.into_iter().map(|line| format!("{}: {line}", file.path)).collect();
    Ok((GenerateOptions::of(&section, file.stop_ids(tokenizer)?), unused))
}

/// The file of a model of `config` without one: its special tokens, as `save_pretrained` takes them
/// from the model's configuration. `eot` is the token that ends a document of its tokenizer.
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
        let told = |key: &str, value: &Value| GENERATION_CONFIG_NAMES.check_one(key, value).expect("none is refused");
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
            assert!(told(key, &value).is_some(), "{key} = {value}");
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
            assert_eq!(told(key, &value), None, "{key} = {value}");
        }
    }
}
