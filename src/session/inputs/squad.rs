//! SQuAD's files as training and validation data.

use std::sync::Arc;

use kiln_core::error::Result;
use kiln_core::model_config::Labels;
use kiln_data::squad::{SpanOptions, SquadData, WindowEncoder};
use kiln_data::{Dataset, cache, paths};
use kiln_models::ModelConfig;

use super::opened::Inputs;
use super::opening::Opening;
use super::splits::Splits;
use crate::config::DataSection;

/// Opens the files in windows of at most `data.max_length` tokens.
pub(super) fn open(mut opening: Opening<'_>) -> Result<Inputs> {
    let Opening { config, used, .. } = opening;
    let tokenizer = opening.tokenizer()?;
    let max_length = opening.max_length(WindowEncoder::DEFAULT_MAX_LENGTH)?;
    let stride = config.data.doc_stride.unwrap_or(WindowEncoder::default_stride(max_length));
    let types = opening.model.type_vocab_size().is_some_and(|types| types > 1);
    let encoder = tokenizer.window_encoder(max_length, stride, types)?;
    let options = span_options(&config.data);
    let folder = cache::folder_of(cache::WINDOWS)?;
    let data = Splits::open(config, used, |patterns| {
        SquadData::open(&folder, &paths::resolve(patterns, config.data.format)?, &encoder, options, opening.progress)
    })?;
    let data = data.split(config, used, |data, held| data.split(held.share(), config.trainer.seed))?;
    let data = data.map(|data| Ok(Arc::new(data) as Arc<dyn Dataset>))?;
    span_labels(&mut opening.model);
    let pad_id = opening.model.pad_token_id().unwrap_or(0);
    Ok(Inputs { max_length: Some(max_length), ..opening.inputs(Some(tokenizer), pad_id, data) })
}

/// A span has two logits a token, which `transformers` gives the head of a model with two labels.
pub(super) fn span_labels(model: &mut ModelConfig) {
    if model.labels().num_labels() != 2 {
        *model.labels_mut() = Labels::default();
    }
}

/// How `data` has answers looked for.
pub(crate) fn span_options(data: &DataSection) -> SpanOptions {
    let default = SpanOptions::default();
    SpanOptions {
        n_best_size: data.n_best_size.unwrap_or(default.n_best_size),
        max_answer_length: data.max_answer_length.unwrap_or(default.max_answer_length),
        null_score_diff_threshold: data.null_score_diff_threshold.unwrap_or(default.null_score_diff_threshold),
        version_2_with_negative: data.version_2_with_negative,
    }
}
