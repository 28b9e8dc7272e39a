//! Learns a byte-level BPE from text.

use kiln_core::error::{Error, Result};
use tokenizers::AddedToken;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::files::Stated;
use super::ids::Tokenizer;
use super::names::END_OF_TEXT;
use crate::corpus::Corpus;

/// Merges are learned from at most this much text, drawn from the corpus in a seeded order: what a
/// vocabulary needs to know of a language fits in it, and memory stays bounded whatever the corpus.
pub const TRAIN_BYTES: usize = 16 << 20;

/// The text that a vocabulary is learned from, in pieces: [`TRAIN_BYTES`] at the most.
pub(crate) fn training_text(corpus: &Corpus, seed: u64) -> impl Iterator<Item = Result<String>> + Send {
    let mut left = TRAIN_BYTES;
    corpus.sample(TRAIN_BYTES as u64, seed, TRAIN_PIECE).map_while(move |piece| {
        let text = piece.map(|piece| {
            let mut text = piece.text;
            text.truncate(text.floor_char_boundary(left));
            text
        });
        let is_over = left == 0;
        left -= text.as_ref().map_or(0, String::len);
        (!is_over).then_some(text)
    })
}

/// Text is read in pieces of this many bytes while the vocabulary is learned.
const TRAIN_PIECE: usize = 64 << 10;

impl Tokenizer {
    /// Learns a byte-level BPE (Radford et al. 2019) of `vocab_size` tokens from `corpus`: 256
    /// bytes, end-of-text (id 0), and merges. Deterministic for a seed. The vocabulary is smaller
    /// when the text does not yield as many merges.
    ///
    /// # Errors
    /// Text that cannot be read; fewer than 257 tokens asked for.
    pub fn train_bpe(corpus: &Corpus, vocab_size: usize, seed: u64) -> Result<Self> {
        if vocab_size < 257 {
            return Err(Error::config(format!("tokenizer.train_vocab_size: expected at least 257, got {vocab_size}"))
                .help("256 bytes and end-of-text are always in it"));
        }
        let mut trainer = BpeTrainerBuilder::new()
            .vocab_size(vocab_size)
            .show_progress(false)
            .special_tokens(vec![AddedToken::from(END_OF_TEXT, true)])
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .build();
        // Read as it is counted, never all at once. A failure ends the text, and is told when the
        // counting is over.
        let mut failed = None;
        let texts = training_text(corpus, seed).map_while(|text| text.map_err(|error| failed = Some(error)).ok());
        let mut inner = tokenizers::Tokenizer::new(BPE::default());
        inner.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
        inner.with_decoder(Some(ByteLevel::new(false, true, true)));
        let mut wrapped = TrainerWrapper::BpeTrainer(std::mem::take(&mut trainer));
        let learned = inner.train(&mut wrapped, texts).map(drop);
        failed.map_or(Ok(()), Err)?;
        learned.map_err(|error| Error::data(format!("learning the tokenizer failed: {error}")))?;
        Self::wrap(inner, None, Stated::default())
    }
}
