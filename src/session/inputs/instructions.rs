//! Instructions as training and validation data: the chat template is found, and rows are encoded and packed.

use std::path::Path;
use std::sync::Arc;

use super::{Splits, Use, shuffle};
use crate::base::error::Result;
use crate::base::variables::expand_text;
use crate::cache;
use crate::config::RunConfig;
use crate::data::Dataset;
use crate::data::instruct::packed::Packed;
use crate::data::instruct::template::ChatTemplate;
use crate::data::instruct::{self, Encoder, InstructionStore};
use crate::data::rows::Scan;
use crate::data::store::OnProgress;
use crate::data::stream::Streamed;
use crate::data::subset::Subset;
use crate::data::table::{Columns, Table};
use crate::data::tokenizer::Tokenizer;

/// Tokens that rows are cut to unless something else is asked for: TRL's.
pub(super) const DEFAULT_MAX_LENGTH: usize = 1024;

type Examples = Splits<Arc<dyn Dataset>>;

/// Opens the tables that `config` names, with rows of at most `max_length` tokens; and the text of a chat template that is not the
/// tokenizer's own.
pub(super) fn open(
    config: &RunConfig,
    used: Use,
    tokenizer: &Arc<Tokenizer>,
    max_length: usize,
    progress: &mut OnProgress<'_>,
) -> Result<(Examples, Option<String>)> {
    let data = &config.data;
    let columns = match (&data.messages_column, &data.completion_column) {
        (Some(messages), _) => Columns { text: messages.clone(), json: true, ..Columns::default() },
        (None, completion) => Columns {
            text: data.prompt_column.clone().unwrap_or_else(|| "prompt".into()),
            text_pair: completion.clone(),
            json: true,
            ..Columns::default()
        },
    };
    let template = match &data.chat_template_path {
        Some(path) => {
            let at = "data.chat_template_path";
            let path = expand_text(path).map_err(|error| error.at(at))?;
            Some(ChatTemplate::read(Path::new(&path), tokenizer).map_err(|error| error.at(at))?)
        }
        None => ChatTemplate::of(tokenizer)?,
    };
    let given = template.as_ref().filter(|_| data.chat_template_path.is_some()).map(|it| it.source().to_owned());
    let encoder = Encoder {
        tokenizer: tokenizer.clone(),
        template,
        max_length,
        completion_only_loss: data.completion_only_loss.unwrap_or(true),
        assistant_only_loss: data.assistant_only_loss,
    };
    let folder = cache::folder_of(cache::ROWS)?;
    if data.streaming && used == Use::Training {
        let validation = |patterns: &[String]| -> Result<Arc<dyn Dataset>> {
            let table = Table::open(patterns, data.format, columns.clone())?;
            let scan = Scan::new(&table, false)?;
            Ok(Arc::new(InstructionStore::build_or_open(&folder, &table, &scan, &encoder, progress)?))
        };
        let table = Table::open(&data.train, data.format, columns.clone()).map_err(|error| error.at("data.train"))?;
        let encoder = encoder.clone();
        let train = Arc::new(Streamed::new(instruct::streamed(table, encoder), shuffle(config))?) as Arc<dyn Dataset>;
        return Ok((Splits::streamed(config, train, validation)?, given));
    }
    let tables = Splits::open(config, used, |patterns| {
        let table = Table::open(patterns, data.format, columns.clone())?;
        let scan = Scan::new(&table, false)?;
        Ok((table, scan))
    })?;
    let rows = tables.map(|(table, scan)| {
        let store = InstructionStore::build_or_open(&folder, &table, &scan, &encoder, progress)?;
        Ok(Arc::new(store) as Arc<dyn Dataset>)
    })?;
    let rows = rows.split(config, used, |rows, share| {
        let (train, validation) = Subset::split(rows, share, config.trainer.seed)?;
        Ok((Arc::new(train) as Arc<dyn Dataset>, Arc::new(validation) as Arc<dyn Dataset>))
    })?;
    let rows = rows.map(|rows| {
        Ok(if data.packing { Arc::new(Packed::new(rows, max_length)) as Arc<dyn Dataset> } else { rows })
    })?;
    Ok((rows, given))
}
