//! Instructions as training and validation data: the chat template is found, and rows are encoded
//! and packed.

use std::path::Path;
use std::sync::Arc;

use kiln_core::error::Result;
use kiln_core::variables::expand_text;
use kiln_data::instruct::packed::Packed;
use kiln_data::instruct::template::ChatTemplate;
use kiln_data::instruct::{self, Encoder, InstructionStore};
use kiln_data::rows::Scan;
use kiln_data::stream::Streamed;
use kiln_data::utf8::tell_replaced;
use kiln_data::{Dataset, cache};

use super::opened::Inputs;
use super::opening::{Opening, shuffle};
use super::splits::{Splits, Use};

/// Tokens that rows are cut to unless something else is asked for: TRL's.
const DEFAULT_MAX_LENGTH: usize = 1024;

/// Opens the tables, with rows of at most `data.max_length` tokens. A chat template that is not the
/// tokenizer's own is kept with the model.
pub(super) fn open(mut opening: Opening<'_>) -> Result<Inputs> {
    let Opening { config, used, .. } = opening;
    let tokenizer = opening.tokenizer()?;
    let max_length = opening.max_length(DEFAULT_MAX_LENGTH)?;
    let data = &config.data;
    let columns = match (&data.messages_column, &data.completion_column) {
        (Some(messages), _) => instruct::columns(messages.clone(), None),
        (None, completion) => {
            instruct::columns(data.prompt_column.clone().unwrap_or_else(|| "prompt".into()), completion.clone())
        }
    };
    let template = match &data.chat_template_path {
        Some(path) => {
            let at = "data.chat_template_path";
            let path = expand_text(path).map_err(|error| error.at(at))?;
            Some(ChatTemplate::read(Path::new(&path), &tokenizer).map_err(|error| error.at(at))?)
        }
        None => ChatTemplate::of(&tokenizer)?,
    };
    let template_for_tools = match data.chat_template_path {
        Some(_) => None,
        None => ChatTemplate::for_tools(&tokenizer)?,
    };
    let given = template.as_ref().filter(|_| data.chat_template_path.is_some()).map(|it| it.source().to_owned());
    let encoder = Encoder {
        tokenizer: tokenizer.clone(),
        template,
        template_for_tools,
        max_length,
        completion_only_loss: data.completion_only_loss.unwrap_or(true),
        assistant_only_loss: data.assistant_only_loss,
        told: Arc::default(),
    };
    let folder = cache::folder_of(cache::ROWS)?;
    let rows = if data.streaming && used == Use::Training {
        let validation = |patterns: &[String]| -> Result<Arc<dyn Dataset>> {
            let table = data.open_table(patterns, columns.clone())?;
            let scan = Scan::new(&table, false)?;
            tell_replaced(table.files(), scan.replaced);
            opening.replaced += scan.replaced;
            Ok(Arc::new(InstructionStore::build_or_open(&folder, &table, &scan, &encoder, opening.progress)?))
        };
        let table = data.open_table(&data.train, columns.clone()).map_err(|error| error.at("data.train"))?;
        let encoder = encoder.clone();
        let train = Arc::new(Streamed::new(instruct::streamed(table, encoder), shuffle(config))?) as Arc<dyn Dataset>;
        Splits::streamed(config, train, validation)?
    } else {
        let tables = Splits::open(config, used, |patterns| {
            let table = data.open_table(patterns, columns.clone())?;
            let scan = Scan::new(&table, false)?;
            tell_replaced(table.files(), scan.replaced);
            opening.replaced += scan.replaced;
            Ok((table, scan))
        })?;
        let rows = tables.map(|(table, scan)| {
            let store = InstructionStore::build_or_open(&folder, &table, &scan, &encoder, opening.progress)?;
            Ok(Arc::new(store) as Arc<dyn Dataset>)
        })?;
        let rows = rows.split_rows(config, used)?;
        rows.map(|rows| {
            Ok(if data.packing { Arc::new(Packed::new(rows, max_length)) as Arc<dyn Dataset> } else { rows })
        })?
    };
    let pad_id = opening.model.pad_token_id().or_else(|| tokenizer.pad_id()).or_else(|| tokenizer.eot_id());
    let mut inputs = opening.inputs(Some(tokenizer), pad_id.unwrap_or(0), rows);
    inputs.task.chat_template = given;
    Ok(Inputs { max_length: Some(max_length), ..inputs })
}
