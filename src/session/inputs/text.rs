//! Text as training and validation data: documents are encoded and cut into blocks.

use std::sync::Arc;

use kiln_core::error::{Error, Result};
use kiln_data::blocks::Blocks;
use kiln_data::corpus::Corpus;
use kiln_data::learned::learned_bpe;
use kiln_data::masking::{Masked, Masking};
use kiln_data::store::{Doing, OnProgress, Preparation};
use kiln_data::stream::{self, Streamed};
use kiln_data::table::Columns;
use kiln_data::tokenizer::Tokenizer;
use kiln_data::tokens::TokenStore;
use kiln_data::utf8::tell_replaced;
use kiln_data::{Dataset, cache};
use kiln_models::ModelConfig;

use super::opened::Inputs;
use super::opening::{Opening, shuffle};
use super::splits::{Held, Splits, Use};
use crate::config::{DEFAULT_TEXT_COLUMN, DataFormat, RunConfig, Task, Validation};

/// Opens the text in blocks of `data.block_size` tokens; where nothing else names a tokenizer, one
/// is learned from the training text.
pub(super) fn open(mut opening: Opening<'_>) -> Result<Inputs> {
    let Opening { config, used, .. } = opening;
    let seed = config.trainer.seed;
    let corpora = Splits::open(config, used, |patterns| {
        let corpus = if config.data.format.is_table() {
            config.data.open_table(patterns, text_column(config)).and_then(Corpus::of_table)
        } else {
            Corpus::open_with(patterns, config.data.documents, config.data.errors)
        };
        corpus.map(|corpus| corpus.with_ends(config.data.marks_ends()))
    })?;
    // Of one file the last blocks are the validation data; several are split by documents.
    let split_at_block = corpora.train.as_ref().is_some_and(Corpus::is_one_file)
        && matches!(config.data.validation, Some(Validation::Share(_)));
    let corpora = if split_at_block {
        corpora
    } else {
        corpora.split(config, used, |corpus, held| match held {
            Held::Share(share) => corpus.split(share, seed),
            Held::First(percent) => corpus.split_first(percent),
        })?
    };
    let learned_from = corpora.train.as_ref().filter(|_| used == Use::Training || !split_at_block);
    let tokenizer = match opening.optional_tokenizer()? {
        Some(tokenizer) => tokenizer,
        None => match (config.tokenizer.train_vocab_size, learned_from) {
            (Some(size), Some(train)) => Arc::new(trained_tokenizer(train, size, seed, opening.progress)?),
            (Some(_), None) => {
                return Err(Error::data("the model's folder has no tokenizer, and one that is learned now is another")
                    .help("set tokenizer.from to the tokenizer that the model was trained with"));
            }
            (None, _) => {
                let format = config.data.format;
                let learned = ", or tokenizer.train_vocab_size = 4096 to learn one from the training text";
                let learned = if format == DataFormat::Text { learned } else { "" };
                return Err(Error::config(format!(
                    "data.format = \"{format}\" needs a tokenizer, and the config names none"
                ))
                .help(format!("set tokenizer.from to a tokenizer{learned}")));
            }
        },
    };
    opening.settle_vocabulary(&tokenizer)?;
    let positions = opening.model.max_positions();
    let block_size = config.data.block_size.unwrap_or(positions.min(1024));
    if block_size > positions {
        return Err(Error::config(format!(
            "data.block_size = {block_size}: the model has {positions} positions, so a block can have at most as many"
        ))
        .help(match (opening.model_from.is_some(), &opening.model) {
            (true, _) => format!("set data.block_size = {positions}"),
            (false, ModelConfig::Gpt2(_)) => {
                format!("set data.block_size = {positions}, or raise the model's n_positions")
            }
            (false, _) => format!("set data.block_size = {positions}, or raise the model's max_position_embeddings"),
        }));
    }
    let folder = cache::folder_of(cache::TOKENS)?;
    let masking = match config.data.task {
        Task::Mlm => {
            let (probability, whole_words) = (config.data.mlm_probability, config.data.whole_word_mask);
            Some(Arc::new(Masking::new(&tokenizer, probability, whole_words)?))
        }
        _ => None,
    };
    let mut open = |corpus: Corpus| {
        // The cache is looked up by the content of the files.
        let _ = (opening.progress)(Preparation::begins(Doing::Reading(corpus.files().len())));
        let store = TokenStore::build_or_open(&folder, &corpus, &tokenizer, opening.progress)?;
        tell_replaced(corpus.files(), store.replaced());
        opening.replaced += store.replaced();
        Blocks::new(store, block_size)
    };
    let data = match corpora {
        Splits { train: Some(train), validation } if config.data.streaming && used == Use::Training => {
            let validation = validation.map(open).transpose().map_err(|error| error.at("data.validation"))?;
            let validation = validation.map(|blocks| Arc::new(blocks) as Arc<dyn Dataset>);
            let blocks = stream::blocks(train, tokenizer.clone(), block_size)?;
            let train = Streamed::new(blocks, shuffle(config)).map_err(|error| error.at("data.train"))?;
            Splits { train: Some(Arc::new(train) as Arc<dyn Dataset>), validation }
        }
        corpora => {
            let blocks = corpora.map(&mut open).map_err(|error| too_small_a_share(config, error))?;
            let blocks = match split_at_block {
                true => blocks.split(config, used, |blocks, held| blocks.split(held.share()))?,
                false => blocks,
            };
            blocks.map(|blocks| Ok(Arc::new(blocks) as Arc<dyn Dataset>))?
        }
    };
    let masked = |data: Arc<dyn Dataset>| match &masking {
        Some(masking) => Arc::new(Masked::new(data, masking.clone(), seed)) as Arc<dyn Dataset>,
        None => data,
    };
    let pad_id = opening.model.pad_token_id().unwrap_or_else(|| tokenizer.eot_id().unwrap_or(0));
    let data = data.map(|data| Ok(masked(data)))?;
    Ok(Inputs { block_size: Some(block_size), split_at_block, ..opening.inputs(Some(tokenizer), pad_id, data) })
}

/// `error`, with the remedy for a share of the training data that is no block.
fn too_small_a_share(config: &RunConfig, error: Error) -> Error {
    let share = match config.data.validation {
        Some(Validation::Share(share)) => share * 100.0,
        Some(Validation::First(percent)) => percent,
        Some(Validation::Files(_)) | None => return error,
    };
    if !error.message().starts_with("data.validation: the text has ") {
        return error;
    }
    let share = (share * 1e6).round() / 1e6;
    error.help(format!("raise data.validation, which is {share} % of the text, or name validation files"))
}

/// The columns of a table whose rows are documents.
fn text_column(config: &RunConfig) -> Columns {
    let text = config.data.text_column.clone().unwrap_or_else(|| DEFAULT_TEXT_COLUMN.into());
    Columns { text, ..Columns::default() }
}

fn trained_tokenizer(corpus: &Corpus, size: usize, seed: u64, progress: &mut OnProgress<'_>) -> Result<Tokenizer> {
    let tokenizer = learned_bpe(&cache::folder_of(cache::TOKENIZERS)?, corpus, size, seed, progress)?;
    if tokenizer.vocab_size() < size {
        return Err(Error::data(format!(
            "tokenizer.train_vocab_size = {size}: the training text yields only {} tokens",
            tokenizer.vocab_size()
        ))
        .help(format!("set tokenizer.train_vocab_size = {} or train on more text", tokenizer.vocab_size())));
    }
    Ok(tokenizer)
}
