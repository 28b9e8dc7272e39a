//! Rows of one or two texts, of words or of choices as ids, cut to a length.

use kiln_core::error::{Error, Result};
use sha2::{Digest, Sha256};
use tokenizers::parallelism::MaybeParallelIterator;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{EncodeInput, Encoding, PostProcessor, TruncationDirection, TruncationParams, truncate_encodings};

use super::error::failed;
use super::ids::{Tokenizer, vocab_size};
use crate::guard::guarded;
use crate::table::Row;
use crate::text_chunks::{first_seam, seam};

/// A row as ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// Token ids, special ones included.
    pub ids: Vec<u32>,
    /// Token types, one a token.
    pub types: Vec<u8>,
    /// Index of the word of each token in a list of words; none for special tokens. Empty for other
    /// rows.
    pub words: Vec<Option<u32>>,
    /// Number of tokens of each choice of a multiple choice, whose tokens stand one choice after
    /// the other. Empty for other rows.
    pub lens: Vec<usize>,
    /// Whether tokens of the row were cut off.
    pub is_cut: bool,
}

/// The texts that a row is encoded from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowKind {
    /// One text.
    Single,
    /// Two texts.
    Pair,
    /// One text as a list of words. A byte-level tokenizer puts a space before each, as `run_ner`
    /// has it do.
    Words,
    /// For each choice a pair of the text and the choice, before which the second text stands where
    /// there is one.
    Choices,
}

/// Encodes rows of one or two texts up to a length. Longer ones are cut as `transformers` cuts them
/// (`truncation="longest_first"`: tokens go from the end of the longer text).
#[derive(Debug, Clone)]
pub struct RowEncoder {
    /// Without truncation.
    inner: tokenizers::Tokenizer,
    max_length: usize,
    direction: TruncationDirection,
    hash: [u8; 32],
    has_types: bool,
    kind: RowKind,
}

impl RowEncoder {
    /// Tokens that a row is cut to.
    pub fn max_length(&self) -> usize {
        self.max_length
    }

    /// Tokens that a row is cut to unless something else is asked for: what BERT was made for.
    pub const DEFAULT_MAX_LENGTH: usize = 512;

    /// The ids of `rows`, on all cores.
    ///
    /// # Errors
    /// The tokenizer's.
    pub fn encode(&self, rows: &[Row]) -> Result<Vec<Encoded>> {
        let encoded = rows.into_maybe_par_iter().map(|row| guarded(|| self.row(row).map_err(failed)));
        encoded.collect()
    }

    fn row(&self, row: &Row) -> tokenizers::Result<Encoded> {
        let (ids, types, words, lens) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut all = Encoded { ids, types, words, lens, is_cut: false };
        let mut add = |(encoding, is_cut): &(Encoding, bool)| {
            all.is_cut |= is_cut;
            all.ids.extend_from_slice(encoding.get_ids());
            all.types.extend(encoding.get_type_ids().iter().map(|kind| *kind as u8));
        };
        match (self.kind, &row.text_pair) {
            (RowKind::Words, _) => {
                // The fast form does not tell words.
                let words = EncodeInput::Single(row.parts.clone().into());
                let encoding = self.cut(self.inner.encode(words, false)?, None)?;
                add(&encoding);
                all.words = encoding.0.get_word_ids().to_vec();
            }
            (RowKind::Choices, before) => {
                let mut lens = Vec::new();
                for choice in &row.parts {
                    let second = before.as_ref().map_or_else(|| choice.clone(), |before| format!("{before} {choice}"));
                    let encoding = self.pair(&row.text, &second)?;
                    add(&encoding);
                    lens.push(encoding.0.len());
                }
                all.lens = lens;
            }
            (RowKind::Single | RowKind::Pair, Some(pair)) => add(&self.pair(&row.text, pair)?),
            (RowKind::Single | RowKind::Pair, None) => {
                let part = self.enough(&row.text)?;
                let (encoding, is_cut) = self.cut(self.inner.encode_fast(part, false)?, None)?;
                add(&(encoding, is_cut || part.len() < row.text.len()));
            }
        }
        Ok(all)
    }

    /// A pair with its special tokens, cut. Which side is cut further depends on the length of
    /// both, so both are tokenised whole: where the library cuts, it tokenises of each what fits
    /// alone and takes that for its length (tokenizers 0.23.2).
    fn pair(&self, first: &str, second: &str) -> tokenizers::Result<(Encoding, bool)> {
        let [first, mut second] = [self.inner.encode_fast(first, false)?, self.inner.encode_fast(second, false)?];
        second.set_type_ids(vec![1; second.len()]);
        self.cut(first, Some(second))
    }

    /// One or two texts with their special tokens, cut, and whether tokens were cut off.
    fn cut(&self, first: Encoding, second: Option<Encoding>) -> tokenizers::Result<(Encoding, bool)> {
        let special = self.inner.get_post_processor().map_or(0, |processor| processor.added_tokens(second.is_some()));
        let max_length = self.max_length.saturating_sub(special);
        let is_cut = first.len() + second.as_ref().map_or(0, Encoding::len) > max_length;
        let params = TruncationParams { max_length, direction: self.direction, ..TruncationParams::default() };
        let (first, second) = truncate_encodings(first, second, &params)?;
        Ok((self.inner.post_process(first, second, true)?, is_cut))
    }

    /// The part of `text` that has all tokens that a row can have: the library takes a hundred
    /// times the memory of a text, and of a long one only the beginning stays, or the end where the
    /// left side is cut.
    fn enough<'a>(&self, text: &'a str) -> tokenizers::Result<&'a str> {
        // More than almost every text needs for its tokens.
        let mut bytes = self.max_length.saturating_mul(32);
        while bytes < text.len() {
            let some = match self.direction {
                TruncationDirection::Right => {
                    let some = &text[..text.floor_char_boundary(bytes)];
                    &some[..seam(some).unwrap_or(some.len())]
                }
                TruncationDirection::Left => {
                    let some = &text[text.ceil_char_boundary(text.len() - bytes)..];
                    &some[first_seam(some).unwrap_or(0)..]
                }
            };
            if self.inner.encode_fast(some, false)?.len() >= self.max_length {
                return Ok(some);
            }
            bytes = bytes.saturating_mul(4);
        }
        Ok(text)
    }

    /// Whether token types are kept.
    pub fn has_types(&self) -> bool {
        self.has_types
    }

    /// Number of ids, added tokens included.
    pub fn vocab_size(&self) -> usize {
        vocab_size(&self.inner)
    }

    /// SHA-256 of everything that decides the ids.
    pub fn content_hash(&self) -> [u8; 32] {
        self.hash
    }
}

impl Tokenizer {
    /// An encoder of rows of the kind `kind`, of at most `max_length` tokens; with `has_types`, it
    /// keeps token types.
    ///
    /// # Errors
    /// A length that has no room for a token of each text beside the special ones.
    pub fn row_encoder(&self, max_length: usize, kind: RowKind, has_types: bool) -> Result<RowEncoder> {
        let pairs = matches!(kind, RowKind::Pair | RowKind::Choices);
        let special = self.inner.get_post_processor().map_or(0, |processor| processor.added_tokens(pairs));
        let least = special + if pairs { 2 } else { 1 };
        if max_length < least {
            return Err(Error::config(format!(
                "data.max_length = {max_length}: expected at least {least}, since the tokenizer adds {special} tokens"
            )));
        }
        let mut inner = self.inner.clone();
        if let (RowKind::Words, Some(PreTokenizerWrapper::ByteLevel(spaces))) = (kind, inner.get_pre_tokenizer()) {
            let spaced = spaces.add_prefix_space(true);
            inner.with_pre_tokenizer(Some(spaced));
        }
        let mut hash = Sha256::new();
        hash.update(self.hash);
        hash.update(format!("rows of {max_length}, {kind:?} cut by the lengths of both, types {has_types}").as_bytes());
        let direction = self.truncation;
        if direction == TruncationDirection::Left {
            hash.update("the end of a long text stays");
        }
        Ok(RowEncoder { inner, max_length, direction, hash: hash.finalize().into(), has_types, kind })
    }
}
