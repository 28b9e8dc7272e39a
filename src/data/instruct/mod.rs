//! Instruction data: rows of a prompt with its completion, or of the messages of a conversation, each a sequence of its own whose
//! loss may count the answers alone. Names and rules are those of TRL's `SFTTrainer`: a completion ends with end-of-text, text
//! from a chat template gets no more special tokens, and a row that is too long loses its end.

pub mod packed;
pub mod template;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use sha2::{Digest, Sha256};
use tokenizers::parallelism::MaybeParallelIterator;

use super::rows::Scan;
use super::store::{Column, Format, OnProgress, Store, Writer};
use super::stream::{self, Made};
use super::table::{Row, Table};
use super::tokenizer::Tokenizer;
use super::{Dataset, Example, IGNORED, Label};
use crate::base::error::{Error, Result};
use crate::cache::mapped::Kind;
use template::ChatTemplate;

const FORMAT: Format = Format {
    kind: Kind { magic: b"KILNSFT1", name: "store of instructions", extension: "rows" },
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
    /// Tokens that a row is cut to.
    pub max_length: usize,
    /// Whether the loss counts the completion alone, of rows that have one.
    pub completion_only_loss: bool,
    /// Whether the loss counts the words of the assistant alone, in conversations.
    pub assistant_only_loss: bool,
}

/// Tokens, and whether the loss of each counts.
struct Encoded {
    ids: Vec<u32>,
    counts: Vec<bool>,
}

impl Encoder {
    /// The hash of everything that decides the tokens, besides the rows.
    fn hash_into(&self, hash: &mut Sha256) {
        hash.update(self.tokenizer.content_hash());
        let Self { max_length, completion_only_loss, assistant_only_loss, .. } = self;
        let template = self.template.as_ref().map(ChatTemplate::source);
        hash.update(format!("{max_length} {completion_only_loss} {assistant_only_loss} {template:?}"));
    }

    /// The tokens of a row, whose texts are values of JSON: a prompt and its completion, or messages.
    fn encode(&self, row: &Row) -> Result<Encoded> {
        let value = |text: &str| -> Result<Value> {
            serde_json::from_str(text).map_err(|error| Error::data(format!("malformed JSON: {error}")))
        };
        let mut encoded = match (value(&row.text)?, row.text_pair.as_deref().map(value).transpose()?) {
            (Value::String(prompt), Some(Value::String(completion))) => self.texts(&prompt, completion)?,
            (prompt @ Value::Array(_), Some(completion @ Value::Array(_))) => self.turns(&prompt, &completion)?,
            (_, Some(_)) => {
                return Err(Error::data("expected prompt and completion to be two texts, or two lists of messages"));
            }
            (messages, None) => self.conversation(&messages)?,
        };
        encoded.ids.truncate(self.max_length);
        encoded.counts.truncate(self.max_length);
        match encoded.ids.is_empty() {
            true => Err(Error::data("the row has no token").help("leave the row out")),
            false => Ok(encoded),
        }
    }

    fn texts(&self, prompt: &str, mut completion: String) -> Result<Encoded> {
        let end = self.tokenizer.eot_id().and_then(|id| self.tokenizer.token(id));
        if let Some(end) = end.filter(|end| !completion.ends_with(end.as_str())) {
            completion.push_str(&end);
        }
        let before = self.tokenizer.around()?.0;
        let whole = format!("{prompt}{completion}");
        let of_prompt = self.ids(prompt)?.len() + before.len();
        let ids = [before, self.ids(&whole)?].concat();
        Ok(self.after_prompt(ids, of_prompt))
    }

    fn turns(&self, prompt: &Value, completion: &Value) -> Result<Encoded> {
        let template = self.template()?;
        let (prompt, completion) = (messages(prompt)?, messages(completion)?);
        let whole = Value::from([prompt, completion].concat());
        let of_prompt = self.ids(&template.render(&Value::from(prompt), true)?)?.len();
        let ids = self.ids(&template.render(&whole, false)?)?;
        Ok(self.after_prompt(ids, of_prompt))
    }

    /// All of `ids`, of which those of the prompt count where the loss is not that of the completion alone.
    fn after_prompt(&self, ids: Vec<u32>, of_prompt: usize) -> Encoded {
        let counts = (0..ids.len()).map(|place| !self.completion_only_loss || place >= of_prompt).collect();
        Encoded { ids, counts }
    }

    fn conversation(&self, value: &Value) -> Result<Encoded> {
        let template = self.template()?;
        messages(value)?;
        if !self.assistant_only_loss {
            let ids = self.ids(&template.render(value, false)?)?;
            return Ok(Encoded { counts: vec![true; ids.len()], ids });
        }
        let (text, answers) = template.render_answers(value)?;
        let (ids, places) = self.tokenizer.encode_with_offsets(&text)?;
        let overlaps = |a: &Range<usize>, b: &Range<usize>| a.start < b.end && b.start < a.end;
        let counts = places.iter().map(|place| answers.iter().any(|answer| overlaps(place, answer))).collect();
        Ok(Encoded { ids, counts })
    }

    fn ids(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.tokenizer.encode_pieces(&[text])?.swap_remove(0))
    }

    fn template(&self) -> Result<&ChatTemplate> {
        self.template.as_ref().ok_or_else(|| {
            Error::data("the row has messages, and the tokenizer has no chat template")
                .help("name a Jinja template with data.chat_template_path")
        })
    }
}

fn messages(value: &Value) -> Result<&[Value]> {
    match value.as_array() {
        Some(messages) if !messages.is_empty() && messages.iter().all(Value::is_object) => Ok(messages),
        _ => Err(Error::data("expected a list of messages, each an object with role and content")),
    }
}

/// Encoded rows on disk.
#[derive(Debug)]
pub struct InstructionStore {
    store: Store,
    max_len: usize,
}

impl InstructionStore {
    /// The rows of `table` under `encoder`: from the cache in `folder`, or encoded now.
    ///
    /// # Errors
    /// Rows that cannot be read or encoded, with their place, or are no longer those of `scan`; rows none of whose tokens
    /// counts; a cache that cannot be written; an interruption.
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
        let store = FORMAT.build_or_open(folder, key, progress, |writer| write(writer, table, scan, encoder))?;
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
        // Of several bad rows the first is told, whichever thread comes to its own first.
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
             data.max_length, or their answers are empty",
            table.files()[0].display()
        );
    }
    match counted {
        0 => Err(Error::data(format!("{}: no token of the rows has a loss", table.files()[0].display()))
            .help("are the prompts longer than data.max_length, or the answers empty?")),
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
