//! SQuAD's files as training and validation data.

use std::sync::Arc;

use kiln_models::ModelConfig;

use super::{Splits, Use};
use crate::base::error::Result;
use crate::cache;
use crate::config::RunConfig;
use crate::data::squad::{SpanOptions, SquadData, WindowEncoder};
use crate::data::store::OnProgress;
use crate::data::tokenizer::Tokenizer;
use crate::data::{Dataset, paths};

/// Opens the files that `config` names, in windows of at most `max_length` tokens.
pub(super) fn open(
    config: &RunConfig,
    used: Use,
    model: &ModelConfig,
    tokenizer: &Tokenizer,
    max_length: usize,
    progress: &mut OnProgress<'_>,
) -> Result<Splits<Arc<dyn Dataset>>> {
    let stride = config.data.doc_stride.unwrap_or(WindowEncoder::default_stride(max_length));
    let encoder =
        tokenizer.window_encoder(max_length, stride, model.type_vocab_size().is_some_and(|types| types > 1))?;
    let options = span_options(config);
    let folder = cache::folder_of(cache::WINDOWS)?;
    let data = Splits::open(config, used, |patterns| {
        SquadData::open(&folder, &paths::resolve(patterns, config.data.format)?, &encoder, options, progress)
    })?;
    let data = data.split(config, used, |data, share| data.split(share, config.trainer.seed))?;
    data.map(|data| Ok(Arc::new(data) as Arc<dyn Dataset>))
}

/// How answers are looked for.
fn span_options(config: &RunConfig) -> SpanOptions {
    let (data, default) = (&config.data, SpanOptions::default());
    SpanOptions {
        n_best_size: data.n_best_size.unwrap_or(default.n_best_size),
        max_answer_length: data.max_answer_length.unwrap_or(default.max_answer_length),
        null_score_diff_threshold: data.null_score_diff_threshold.unwrap_or(default.null_score_diff_threshold),
    }
}
