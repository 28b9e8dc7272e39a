//! SQuAD's files as training and validation data.

use kiln_models::ModelConfig;

use crate::base::error::Result;
use crate::cache;
use crate::config::{RunConfig, Validation};
use crate::data::paths;
use crate::data::squad::{SpanOptions, SquadData, WindowEncoder};
use crate::data::store::OnProgress;
use crate::data::tokenizer::Tokenizer;

/// Encoded questions.
pub(super) struct SquadInputs {
    /// Training questions.
    pub train: SquadData,
    /// Validation questions, if any.
    pub validation: Option<SquadData>,
    /// Tokens of the longest window.
    pub max_length: usize,
}

impl SquadInputs {
    /// Opens the files that `config` names.
    pub(super) fn open(
        config: &RunConfig,
        model: &ModelConfig,
        tokenizer: &Tokenizer,
        progress: &mut OnProgress<'_>,
    ) -> Result<Self> {
        let data = &config.data;
        let max_length = super::max_length(config, model, WindowEncoder::DEFAULT_MAX_LENGTH)?;
        let stride = data.doc_stride.unwrap_or(WindowEncoder::default_stride(max_length));
        let encoder = tokenizer.window_encoder(max_length, stride, model.type_vocab_size().is_some())?;
        let options = span_options(config);
        let folder = cache::folder_of(cache::WINDOWS)?;
        let mut open = |key: &str, patterns: &[String]| {
            let files = paths::resolve(patterns).map_err(|error| error.at(key))?;
            SquadData::open(&folder, &files, &encoder, options, progress).map_err(|error| error.at(key))
        };
        let all = open("data.train", &data.train)?;
        let (train, validation) = match &data.validation {
            None => (all, None),
            Some(Validation::Files(patterns)) => (all, Some(open("data.validation", patterns)?)),
            Some(Validation::Share(share)) => {
                let (train, validation) = all.split(*share, config.trainer.seed)?;
                (train, Some(validation))
            }
        };
        Ok(Self { train, validation, max_length })
    }
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
