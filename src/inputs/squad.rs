//! SQuAD's files as training and validation data.

use kiln_models::ModelConfig;

use crate::config::{RunConfig, Validation};
use crate::data::paths;
use crate::data::tokenizer::Tokenizer;
use crate::error::{Error, Result};
use crate::squad::{SpanOptions, SquadData};

/// Windows are this long unless the config says otherwise, as in `run_qa.py`.
const DEFAULT_MAX_LENGTH: usize = 384;

/// Neighbouring windows share so many tokens unless the config says otherwise, as in `run_qa.py`.
const DEFAULT_DOC_STRIDE: usize = 128;

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
    pub(super) fn open(config: &RunConfig, model: &ModelConfig, tokenizer: &Tokenizer) -> Result<Self> {
        let data = &config.data;
        let positions = model.max_positions();
        let max_length = data.max_length.unwrap_or(positions.min(DEFAULT_MAX_LENGTH));
        if max_length > positions {
            return Err(Error::config(format!("data.max_length = {max_length}: the model has {positions} positions"))
                .help(format!("set data.max_length to at most {positions}")));
        }
        // Left out, it follows a model that is too short for it.
        let stride = data.doc_stride.unwrap_or(DEFAULT_DOC_STRIDE.min(max_length / 3));
        let encoder = tokenizer.window_encoder(max_length, stride, model.type_vocab_size().is_some())?;
        let options = span_options(config);
        let open = |key: &str, patterns: &[String]| {
            let files = paths::resolve(patterns).map_err(|error| error.at(key))?;
            SquadData::open(&files, &encoder, options).map_err(|error| error.at(key))
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
