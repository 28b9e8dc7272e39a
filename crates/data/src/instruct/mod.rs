//! Instruction data: rows of a prompt with its completion, or of the messages of a conversation,
//! each a sequence of its own whose loss may count the answers alone. Names and rules are those of
//! TRL's `SFTTrainer`: a completion ends with end-of-text, text from a chat template gets no more
//! special tokens, and a row that is too long loses its end.

pub mod packed;
mod python;
mod jinja;
pub mod rows;
pub mod template;
mod tojson;

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use kiln_core::error::{Error, Result};
use kiln_core::words::json_words_in_line;
use rows::{Arguments, Beside, Message};
use serde_json::Value;
use sha2::{Digest, Sha256};
use template::ChatTemplate;
use tokenizers::parallelism::MaybeParallelIterator;

use super::rows::Scan;
use super::store::{Column, Format, OnProgress, Store, Writer};
use super::stream::{self, Made};
use super::table::{Columns, Row, Table};
use super::tokenizer::Tokenizer;
use super::{Dataset, Example, IGNORED, Label};
use crate::cache::mapped::Kind;

const FORMAT: Format = Format {
    kind: Kind { magic: b"KILNSFT2", name: "store of instructions", extension: "rows" },
    columns: &["input_ids", "counts"],
};

const INPUT_IDS: Column = Column(0);

/// For each token 1 where its loss counts, else 0.
const COUNTS: Column = Column(1);

/// How rows become tokens.
#[derive(Debug, Clone)]
pub struct Encoder {
    /// The tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// The template of conversations, if there is one.
    pub template: Option<ChatTemplate>,
    /// The template of conversations with tools, if it is another one.
    pub template_for_tools: Option<ChatTemplate>,
    /// Tokens that a row is cut to.
    pub max_length: usize,
    /// Whether the loss counts the completion alone, of rows that have one.
    pub completion_only_loss: bool,
    /// Whether the loss counts the words of the assistant alone, in conversations.
    pub assistant_only_loss: bool,
    /// Lines about the rows that were told before.
    pub told: Arc<Mutex<BTreeSet<String>>>,
}

/// The columns of rows whose texts stand in `text`, or in `text` and `text_pair`.
pub fn columns(text: String, text_pair: Option<String>) -> Columns {
    let beside = rows::COLUMNS.names.iter().map(|name| name.name.to_owned()).collect();
    Columns { text, text_pair, json: true, beside, ..Columns::default() }
}

/// Tokens, and whether the loss of each counts.
struct Encoded {
    ids: Vec<u32>,
    counts: Vec<bool>,
}

impl Encoder {
    /// The hash of everything that decides the tokens, besides the rows.
    fn hash_into(&self, hash: &mut Sha256) {
        // Every field is named, so that a new one is not forgotten.
        let Self {
            tokenizer,
            template,
            template_for_tools,
            max_length,
            completion_only_loss,
            assistant_only_loss,
            told: _,
        } = self;
        hash.update(tokenizer.content_hash());
        hash.update(format!("{max_length} {completion_only_loss} {assistant_only_loss}"));
        for template in [template, template_for_tools] {
            let content = template.as_ref().map(|template| (template.source(), template.tokens()));
            hash.update(format!("{content:?}"));
        }
    }

    /// The tokens of a row, whose texts are values of JSON: a prompt and its completion, or
    /// messages.
    fn encode(&self, row: &Row) -> Result<Encoded> {
        let value = |text: &str| -> Result<Value> {
            serde_json::from_str(text)
                .map_err(|error| Error::data(format!("malformed JSON: {}", json_words_in_line(&error))))
        };
        let beside = match row.parts.first().map(|text| value(text)).transpose()? {
            Some(Value::Object(columns)) => Beside::read(columns)?,
            _ => Beside::default(),
        };
        self.tell(&beside.told);
        let mut encoded = match (value(&row.text)?, row.text_pair.as_deref().map(value).transpose()?) {
            (Value::String(prompt), Some(Value::String(completion))) => {
                if beside.is_for_a_template() {
                    return Err(Error::data(
                        "the row has a column system, tools, documents or chat_template_kwargs, and its prompt is a text, \
                         which no chat template writes",
                    )
                    .help("write prompt and completion as lists of messages, or leave the column out"));
                }
                self.texts(&prompt, completion)?
            }
            (prompt @ Value::Array(_), Some(completion @ Value::Array(_))) => {
                self.turns(&prompt, &completion, &beside)?
            }
            (_, Some(_)) => {
                return Err(Error::data("expected prompt and completion to be two texts, or two lists of messages"));
            }
            (messages, None) => self.conversation(&messages, &beside)?,
        };
        encoded.ids.truncate(self.max_length);
        encoded.counts.truncate(self.max_length);
        if encoded.ids.is_empty() {
            Err(Error::data("the row has no token").help("leave the row out"))
        } else {
            Ok(encoded)
        }
    }

    /// Says each of `lines` that was not said before, those of one row together: rows are read on
    /// several threads.
    fn tell(&self, lines: &[String]) {
        // A row that could not be read has left the set whole.
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        for line in lines {
            if told.insert(line.clone()) {
                tracing::warn!("rows: {line}");
            }
        }
    }

    /// The messages of `value`, after the system message that stands beside them.
    fn messages(&self, value: &Value, beside: &Beside, template: &ChatTemplate) -> Result<Vec<Message>> {
        let (mut read, mut told) = rows::messages(value, |key| template.names(key))?;
        let Arguments { tools, documents, variables } = &beside.arguments;
        let columns = [("tools", tools), ("documents", documents)].into_iter().filter(|(_, value)| !value.is_null());
        let names = columns.map(|(name, _)| name).chain(variables.keys().map(String::as_str));
        let unread = names.filter(|name| !template.names(name));
        told.extend(
            unread.map(|name| format!("{name} of the rows is not learned: the chat template does not name it")),
        );
        self.tell(&told);
        let Some(system) = &beside.system else { return Ok(read) };
        match &read[0].keys["role"] {
            role if role != "system" => {
                let value = serde_json::json!([{ "role": "system", "content": system }]);
                let (mut whole, _) = rows::messages(&value, |_| true)?;
                whole.append(&mut read);
                Ok(whole)
            }
            _ if read[0].keys.get("content").is_some_and(|content| content == system) => Ok(read),
            _ => Err(Error::data("the column system and the first message are two system messages, and they differ")
                .help("leave one of them out")),
        }
    }

    fn texts(&self, prompt: &str, mut completion: String) -> Result<Encoded> {
        let end = self.tokenizer.eot_id().and_then(|id| self.tokenizer.token(id));
        if let Some(end) = end.filter(|end| !completion.ends_with(end.as_str())) {
            completion.push_str(&end);
        }
        let before = self.tokenizer.around()?.0;
        let whole = format!("{prompt}{completion}");
        let of_prompt = [before.clone(), self.ids(prompt)?].concat();
        let ids = [before, self.ids(&whole)?].concat();
        Ok(self.after_prompt(ids, &of_prompt))
    }

    fn turns(&self, prompt: &Value, completion: &Value, beside: &Beside) -> Result<Encoded> {
        let template = self.template(beside)?;
        let prompt = self.messages(prompt, beside, template).map_err(|error| error.at("prompt"))?;
        let completion = self.messages(completion, &Beside::default(), template).map_err(|e| e.at("completion"))?;
        let mut whole = prompt.clone();
        whole.extend(completion);
        if let Some(index) = whole.iter().position(|message| message.counts == Some(false)) {
            return Err(Error::data(format!(
                "message {}: it says that it does not count in the loss, and a completion counts whole",
                index + 1
            ))
            .help(
                "write the row as one list of messages, with data.messages_column and data.assistant_only_loss = true",
            ));
        }
        let of_prompt = self.ids(&template.render(&list(&prompt), &beside.arguments, true)?)?;
        let ids = self.ids(&template.render(&list(&whole), &beside.arguments, false)?)?;
        Ok(self.after_prompt(ids, &of_prompt))
    }

    /// All of `ids`, of which those of the prompt count where the loss is not that of the
    /// completion alone. A completion begins where the tokens are no longer those of the prompt by
    /// itself, as in TRL.
    fn after_prompt(&self, ids: Vec<u32>, of_prompt: &[u32]) -> Encoded {
        let of_prompt = ids.iter().zip(of_prompt).take_while(|(one, other)| one == other).count();
        let counts = (0..ids.len()).map(|place| !self.completion_only_loss || place >= of_prompt).collect();
        Encoded { ids, counts }
    }

    fn conversation(&self, value: &Value, beside: &Beside) -> Result<Encoded> {
        let template = self.template(beside)?;
        let messages = self.messages(value, beside, template)?;
        let (list, arguments) = (list(&messages), &beside.arguments);
        if !self.assistant_only_loss {
            if let Some(index) = messages.iter().position(|message| message.counts == Some(false)) {
                return Err(Error::data(format!(
                    "message {}: it says that it does not count in the loss, and here the whole text counts",
                    index + 1
                ))
                .help("set data.assistant_only_loss = true"));
            }
            let ids = self.ids(&template.render(&list, arguments, false)?)?;
            return Ok(Encoded { counts: vec![true; ids.len()], ids });
        }
        let (text, answers) = template.render_answers(&list, arguments)?;
        let answers = without_uncounted(answers, &messages)?;
        let (ids, places) = self.tokenizer.encode_with_offsets(&text)?;
        let overlaps = |a: &Range<usize>, b: &Range<usize>| a.start < b.end && b.start < a.end;
        let counts = places.iter().map(|place| answers.iter().any(|answer| overlaps(place, answer))).collect();
        Ok(Encoded { ids, counts })
    }

    fn ids(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.tokenizer.encode_pieces(&[text])?.swap_remove(0))
    }

    /// The template of a row with `beside`: `get_chat_template` of `transformers`.
    fn template(&self, beside: &Beside) -> Result<&ChatTemplate> {
        let for_tools = self.template_for_tools.as_ref().filter(|_| !beside.arguments.tools.is_null());
        for_tools.or(self.template.as_ref()).ok_or_else(|| {
            Error::data("the row has messages, and the tokenizer has no chat template")
                .help("name a Jinja template with data.chat_template_path")
        })
    }
}

/// The messages as `apply_chat_template` takes them.
fn list(messages: &[Message]) -> Value {
    messages.iter().map(|message| Value::Object(message.keys.clone())).collect()
}

/// The places of `answers` but for those of messages that say that they do not count.
fn without_uncounted(answers: Vec<Range<usize>>, messages: &[Message]) -> Result<Vec<Range<usize>>> {
    if let Some(index) = messages.iter().position(|message| message.counts == Some(true) && !message.is_answer()) {
        return Err(Error::data(format!(
            "message {}: it says that it counts in the loss, and data.assistant_only_loss counts the assistant alone",
            index + 1
        ))
        .help("leave the flag out of messages that are no answers"));
    }
    let of_answers = messages.iter().filter(|message| message.is_answer()).map(|message| message.counts != Some(false));
    let of_answers = of_answers.collect::<Vec<_>>();
    if of_answers.iter().all(|counts| *counts) {
        return Ok(answers);
    }
    if of_answers.len() != answers.len() {
        return Err(Error::data(format!(
            "the chat template marks {} parts of the text by {{% generation %}}, and there are {} answers, so the ones that \
             do not count cannot be told",
            answers.len(),
            of_answers.len()
        ))
        .help("mark each answer once in the template"));
    }
    Ok(answers.into_iter().zip(of_answers).filter_map(|(place, counts)| counts.then_some(place)).collect())
}

/// Encoded rows on disk.
#[derive(Debug)]
pub struct InstructionStore {
    store: Store,
    max_len: usize,
}

impl InstructionStore {
    /// The rows of `table` under `encoder`: from the cache in `folder`, or encoded now. Rows of a
    /// template that writes the time are not kept.
    ///
    /// # Errors
    /// Rows that cannot be read or encoded, with their place, or are no longer those of `scan`;
    /// rows none of whose tokens counts; a cache that cannot be written; an interruption.
    pub fn build_or_open(
        folder: &Path,
        table: &Table,
        scan: &Scan,
        encoder: &Encoder,
        progress: &mut OnProgress<'_>,
    ) -> Result<Self> {
        let mut key = FORMAT.key();
        key.update(scan.hash());
        encoder.hash_into(&mut key);
        let fill = |writer: &mut Writer<'_, '_>| write(writer, table, scan, encoder);
        let mut templates = [&encoder.template, &encoder.template_for_tools].into_iter().flatten();
        let store = if templates.any(ChatTemplate::reads_clock) {
            let line = "the chat template writes the time, so that the rows are encoded at every start and not kept";
            encoder.tell(&[line.to_owned()]);
            FORMAT.temporary(progress, fill)?
        } else {
            FORMAT.build_or_open(folder, key, progress, fill)?
        };
        Ok(Self { max_len: store.longest(INPUT_IDS), store })
    }
}

/// How many tokens of a row have a loss: its first one is predicted by nothing.
fn counted_tokens(counts: &[bool]) -> usize {
    counts.iter().skip(1).filter(|counts| **counts).count()
}

/// The example of a row.
fn example(input_ids: Vec<i32>, counts: Vec<bool>) -> Example {
    let labels = input_ids.iter().zip(counts).map(|(id, counts)| if counts { *id } else { IGNORED });
    let label = Label::Tokens(labels.collect());
    Example { input_ids, attention_mask: None, token_type_ids: None, position_ids: None, label }
}

/// The rows of `table` under `encoder` as a stream. Those none of whose tokens counts are left out.
pub fn streamed(table: Table, encoder: Encoder) -> Made {
    let mut settings = Sha256::new_with_prefix("instructions");
    encoder.hash_into(&mut settings);
    let longest = encoder.max_length;
    let encode = move |rows: &[Row]| {
        let encoded = rows.into_maybe_par_iter().map(|row| {
            let Encoded { ids, counts } = encoder.encode(row).map_err(|error| error.at(&row.place))?;
            let has_loss = counted_tokens(&counts) > 0;
            Ok(has_loss.then(|| example(ids.into_iter().map(|id| id as i32).collect(), counts)))
        });
        encoded.collect::<Vec<_>>().into_iter().collect()
    };
    stream::rows(table, Box::new(encode), longest, settings)
}

fn write(writer: &mut Writer<'_, '_>, table: &Table, scan: &Scan, encoder: &Encoder) -> Result<()> {
    let (mut counted, mut left_out) = (0, 0_usize);
    scan.write_groups(table, writer, |writer, rows| {
        let encoded = rows.into_maybe_par_iter().map(|row| encoder.encode(row).map_err(|error| error.at(&row.place)));
        // The first of several bad rows is told, whichever thread comes to its own first.
        for encoded in encoded.collect::<Vec<_>>() {
            let Encoded { ids, counts } = encoded?;
            let counted_of_row = counted_tokens(&counts);
            counted += counted_of_row;
            if counted_of_row == 0 {
                left_out += 1;
                continue;
            }
            writer.state.tokens += ids.len() as u64;
            writer.list(INPUT_IDS, ids)?;
            writer.list(COUNTS, counts)?;
        }
        Ok(())
    })?;
    if counted > 0 && left_out > 0 {
        tracing::warn!(
            "{}: {left_out} rows are left out, since none of their tokens has a loss: their prompts are longer than \
             data.max_length, or their answers are empty or have the weight 0",
            table.files()[0].display()
        );
    }
    match counted {
        0 => Err(Error::data(format!("{}: no token of the rows has a loss", table.files()[0].display()))
            .help("their prompts are longer than data.max_length, or their answers are empty or have the weight 0")),
        _ => Ok(()),
    }
}

impl Dataset for InstructionStore {
    fn len(&self) -> usize {
        self.store.lists(INPUT_IDS)
    }

    fn get(&self, index: usize, _epoch: u64) -> Result<Example> {
        let input_ids = self.store.list(INPUT_IDS, index, |id| id as i32);
        let counts = self.store.list(COUNTS, index, |counts| counts == 1);
        Ok(example(input_ids, counts))
    }

    fn max_len(&self) -> usize {
        self.max_len
    }

    fn len_of(&self, index: usize) -> usize {
        self.store.bounds(INPUT_IDS, index).len()
    }
}
