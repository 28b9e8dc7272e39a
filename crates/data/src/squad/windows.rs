//! A question with a piece of its context, as `run_qa.py` of `transformers` cuts it: the question
//! whole, the context in windows that overlap by `doc_stride` tokens, and the answer as the first
//! and last token of it, or the first token of the sequence (`[CLS]`) where the window does not
//! hold it.

use kiln_core::error::{Error, Result};
use sha2::{Digest, Sha256};
use tokenizers::{Encoding, PostProcessor, PostProcessorWrapper, TruncationDirection};

use super::read::Question;
use crate::guard::guarded;
use crate::tokenizer::Tokenizer;

/// One question with one piece of its context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// Index of the question.
    pub question: usize,
    /// `[CLS] question [SEP] context [SEP]`, or what the tokenizer makes of a pair.
    pub input_ids: Vec<i32>,
    /// 1 for the context, for models that tell the two apart.
    pub token_type_ids: Option<Vec<i32>>,
    /// First token of the context.
    pub context_start: usize,
    /// First and one past the last character of each of its tokens in the context.
    pub offsets: Vec<(usize, usize)>,
    /// First token of the answer.
    pub start: i32,
    /// Last token of the answer.
    pub end: i32,
}

/// Cuts questions into windows.
#[derive(Debug, Clone)]
pub struct WindowEncoder {
    tokenizer: tokenizers::Tokenizer,
    /// The tokenizer without its post-processor, which moves offsets past leading spaces each time
    /// that it is applied: questions and contexts go through it once, together.
    bare: tokenizers::Tokenizer,
    max_length: usize,
    doc_stride: usize,
    direction: TruncationDirection,
    token_types: bool,
    hash: [u8; 32],
}

impl WindowEncoder {
    /// Tokens of a window unless something else is asked for, as in `run_qa.py`.
    pub const DEFAULT_MAX_LENGTH: usize = 384;

    /// Tokens that windows of `max_length` share unless something else is asked for: `run_qa.py`'s
    /// 128, or less for a model that is too short for it.
    pub fn default_stride(max_length: usize) -> usize {
        128.min(max_length / 3)
    }

    /// SHA-256 of everything that decides the windows of a question.
    pub fn content_hash(&self) -> [u8; 32] {
        self.hash
    }

    /// Whether windows have token types.
    pub fn has_types(&self) -> bool {
        self.token_types
    }

    /// The windows of `question`, which has index `index`; at least one.
    ///
    /// # Errors
    /// A question that leaves no room for its context.
    pub fn windows(&self, index: usize, question: &Question) -> Result<Vec<Window>> {
        let no_room = |why: String| {
            Error::data(format!(
                "question {}: it leaves too little room for its context in {} tokens: {why}",
                question.id, self.max_length
            ))
            .help("raise data.max_length or lower data.doc_stride")
        };
        // The tokenizer's own truncation stops reading where the first window is full, so the
        // context is cut here.
        let encode = |text: &str| {
            guarded(|| self.bare.encode_char_offsets(text, false).map_err(|error| no_room(error.to_string())))
        };
        let asked = encode(question.text.trim_start())?;
        let mut context = encode(&question.context)?;
        let special = self.tokenizer.get_post_processor().map_or(0, |post| post.added_tokens(true));
        let room = self.max_length.saturating_sub(asked.len() + special);
        if room <= self.doc_stride {
            return Err(no_room(format!("the question has {}, the overlap is {}", asked.len(), self.doc_stride)));
        }
        context.set_type_ids(vec![1; context.len()]);
        context.truncate(room, self.doc_stride, self.direction);
        let together = || self.tokenizer.post_process(asked, Some(context), true);
        let mut first = guarded(|| together().map_err(|error| no_room(error.to_string())))?;
        let overflowing = first.take_overflowing();
        let window = |encoding: &Encoding| {
            let sequence = encoding.get_sequence_ids();
            let of_context = |id: &Option<usize>| *id == Some(1);
            let context_start = sequence.iter().position(of_context).unwrap_or(sequence.len());
            let length = sequence.iter().filter(|id| of_context(id)).count();
            let offsets = encoding.get_offsets()[context_start..context_start + length].to_vec();
            let (start, end) = span(question, context_start, &offsets);
            let signed = |ids: &[u32]| ids.iter().map(|id| *id as i32).collect::<Vec<_>>();
            Window {
                question: index,
                input_ids: signed(encoding.get_ids()),
                token_type_ids: self.token_types.then(|| signed(encoding.get_type_ids())),
                context_start,
                offsets,
                start,
                end,
            }
        };
        Ok(std::iter::once(&first).chain(&overflowing).map(window).collect())
    }
}

impl Tokenizer {
    /// Cuts questions and their contexts into windows of at most `max_length` tokens of which
    /// `doc_stride` are those of the window before; counted from the end of the context where the
    /// tokenizer cuts the left side, as that of `transformers` does; with token types if the model
    /// has them.
    ///
    /// # Errors
    /// A stride that leaves nothing new for a window.
    pub fn window_encoder(&self, max_length: usize, doc_stride: usize, token_types: bool) -> Result<WindowEncoder> {
        if doc_stride >= max_length {
            return Err(Error::config(format!(
                "data.doc_stride = {doc_stride}: expected less than data.max_length = {max_length}"
            ))
            .help("a window must be longer than what it shares with the one before"));
        }
        let mut all = Sha256::new();
        all.update(self.content_hash());
        all.update(
            format!("windows of {max_length} with offsets moved once, overlap {doc_stride}, types {token_types}")
                .as_bytes(),
        );
        let direction = self.truncation;
        if direction == TruncationDirection::Left {
            all.update(b", from the end");
        }
        let mut bare = self.inner.clone();
        bare.with_post_processor(None::<PostProcessorWrapper>);
        let (tokenizer, hash) = (self.inner.clone(), all.finalize().into());
        Ok(WindowEncoder { tokenizer, bare, max_length, doc_stride, direction, token_types, hash })
    }
}

/// First and last token of the first answer, or 0 and 0 when the window does not hold all of it.
fn span(question: &Question, context_start: usize, offsets: &[(usize, usize)]) -> (i32, i32) {
    let Some(answer) = question.answers.first() else { return (0, 0) };
    let (from, to) = (answer.start, answer.start + answer.text.chars().count());
    let holds = offsets.first().is_some_and(|first| first.0 <= from) && offsets.last().is_some_and(|last| last.1 >= to);
    if !holds {
        return (0, 0);
    }
    let start = offsets.iter().take_while(|(begin, _)| *begin <= from).count() - 1;
    let end = offsets.len() - offsets.iter().rev().take_while(|(_, end)| *end >= to).count();
    ((context_start + start) as i32, (context_start + end) as i32)
}
