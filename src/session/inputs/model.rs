//! The configuration of the model that a config names, and its fit with a tokenizer.

use std::path::PathBuf;

use kiln_core::error::{Error, Result};
use kiln_core::variables::expand_text;
use kiln_data::tokenizer::Tokenizer;
use kiln_models::{BertVariant, ModelConfig, ModelType};
use serde_json::{Map, Value};

use crate::config::{ModelKind, RunConfig};
use crate::session::adapter::Source;

/// The model's configuration: a folder's or the Hub's `config.json`, a preset, or the family's
/// defaults, with the explicit fields on top.
pub(super) fn model_config(config: &RunConfig) -> Result<(ModelConfig, Option<PathBuf>, Vec<String>)> {
    let section = &config.model;
    let fields = fields(&section.fields)?;
    let named = |error: Error| error.at("[model]");
    if let Some(from) = &section.from {
        let from = expand_text(from).map_err(|error| error.at("model.from"))?;
        let source = Source::resolve(&from)?;
        let (found, unknown) = source.config()?;
        if let Some(kind) = section.kind.filter(|kind| model_type(*kind) != found.model_type()) {
            let (found, path) = (found.model_type(), source.folder().join("config.json"));
            return Err(Error::config(format!("model.kind = \"{kind}\", but {} is a {found} model", path.display()))
                .help(format!("set model.kind = \"{found}\" or leave it out")));
        }
        let merged = found.with_fields(&fields).map_err(named)?;
        return Ok((merged, Some(source.base), unknown));
    }
    let kind = match section.kind {
        Some(kind) => model_type(kind),
        None => {
            return Err(Error::config(format!(
                "model.kind: expected {}, since there is no model.from",
                ModelType::listed()
            )));
        }
    };
    let base = match &section.size {
        Some(size) => ModelConfig::preset(kind, size).map_err(named)?,
        None => ModelConfig::from_fields(kind, &Map::new()).map_err(named)?,
    };
    Ok((base.with_fields(&fields).map_err(named)?, None, Vec::new()))
}

fn model_type(kind: ModelKind) -> ModelType {
    match kind {
        ModelKind::Gpt2 => ModelType::Gpt2,
        ModelKind::GptNeo => ModelType::GptNeo,
        ModelKind::Bert => ModelType::Bert,
        ModelKind::Roberta => ModelType::Roberta,
        ModelKind::Camembert => ModelType::Camembert,
        ModelKind::XlmRoberta => ModelType::XlmRoberta,
        ModelKind::DistilBert => ModelType::DistilBert,
        ModelKind::Electra => ModelType::Electra,
        ModelKind::Albert => ModelType::Albert,
        ModelKind::Llama => ModelType::Llama,
        ModelKind::Mistral => ModelType::Mistral,
        ModelKind::Qwen2 => ModelType::Qwen2,
        ModelKind::Qwen3 => ModelType::Qwen3,
        ModelKind::SmolLm3 => ModelType::SmolLm3,
    }
}

/// TOML values as JSON; the model's fields are described once, by their Hugging Face form.
fn fields(table: &toml::Table) -> Result<Map<String, Value>> {
    match serde_json::to_value(table) {
        Ok(Value::Object(map)) => Ok(map),
        _ => Err(Error::config("[model]: expected plain values, as in Hugging Face's config.json")),
    }
}

/// The model's vocabulary and the tokenizer's must fit: a new model takes the tokenizer's, an
/// explicit or pretrained one must be at least as large.
pub(super) fn with_vocabulary(
    mut model: ModelConfig,
    tokenizer: &Tokenizer,
    config: &RunConfig,
    pretrained: bool,
) -> Result<ModelConfig> {
    let size = tokenizer.vocab_size();
    let stated = pretrained || config.model.fields.contains_key("vocab_size");
    // A new model pads as its tokenizer does. RoBERTa counts positions from its padding, so there
    // the model decides.
    let decided = pretrained || config.model.fields.contains_key("pad_token_id");
    let counts_from_padding = model.model_type().bert_variant().is_some_and(BertVariant::counts_from_padding);
    let pad = if decided || counts_from_padding { None } else { new_pad_id(&model, tokenizer) };
    if !stated {
        // Both at once: the default of the padding may be no id of the tokenizer's vocabulary.
        let pad = pad.clone().map(|pad| ("pad_token_id".to_string(), pad));
        let fields = [("vocab_size".to_string(), Value::from(size))].into_iter().chain(pad).collect();
        model = model.with_fields(&fields).map_err(|error| error.at("the tokenizer's vocabulary"))?;
        if let Some(id) = tokenizer.eot_id() {
            model.set_inert("bos_token_id", id.into());
            model.set_inert("eos_token_id", id.into());
        }
    }
    if size > model.vocab_size() && config.model.resize_token_embeddings {
        let size = size.next_multiple_of(config.model.pad_to_multiple_of.unwrap_or(1));
        let field = Map::from_iter([("vocab_size".to_string(), Value::from(size))]);
        model = model.with_fields(&field).map_err(|error| error.at("the tokenizer's vocabulary"))?;
    }
    if size > model.vocab_size() {
        let last = size as u32 - 1;
        return Err(Error::config(format!(
            "the tokenizer has {size} tokens, but the model's vocabulary has {}; every token needs a row, and {:?} has the \
             id {last}",
            model.vocab_size(),
            tokenizer.token(last).unwrap_or_default()
        ))
        .help(if pretrained {
            "set model.resize_token_embeddings = true to append rows to the model's embedding, or use the tokenizer \
             that belongs to the model"
                .into()
        } else {
            format!("set model.vocab_size = {size}, or use the tokenizer that belongs to the model")
        }));
    }
    match pad {
        Some(pad) => with_pad_id(model, pad),
        None => Ok(model),
    }
}

/// The `pad_token_id` of a new model by its tokenizer; none where the model's own stands. In
/// Llama's family it is null where the tokenizer pads with its end of text, which is to be learnt:
/// the row of the padding is zero and stays so.
fn new_pad_id(model: &ModelConfig, tokenizer: &Tokenizer) -> Option<Value> {
    let pad = tokenizer.pad_id();
    match model.model_type().llama_variant() {
        Some(_) => Some(pad.filter(|_| pad != tokenizer.eot_id()).into()),
        None => pad.map(Value::from),
    }
}

pub(super) fn with_pad_id(model: ModelConfig, pad: impl Into<Value>) -> Result<ModelConfig> {
    let field = Map::from_iter([("pad_token_id".to_string(), pad.into())]);
    model.with_fields(&field).map_err(|error| error.at("the tokenizer's padding"))
}
