//! A corpus cut into blocks of equal length, as `run_clm.py` and `run_mlm.py` of `transformers`
//! group texts: documents run on, with end-of-text between them where the corpus has it, and what
//! is left at the end and does not fill a block is dropped. Labels are the ids themselves; the task
//! shifts them.
//!
//! Two things differ from the scripts. They group a thousand rows at a time and drop what is left
//! of each thousand; here it is dropped once, so the ids are theirs, but from the second thousand
//! rows on blocks begin elsewhere. And there is no `--line_by_line`, which gives every line a
//! padded row of its own: lines and rows are always joined.

use std::ops::Range;
use std::sync::Arc;

use kiln_core::error::{Error, Result};

use super::tokens::TokenStore;
use super::{Dataset, Example, Label};

/// Blocks of `block_size` tokens.
#[derive(Debug)]
pub struct Blocks {
    store: Arc<TokenStore>,
    block_size: usize,
    /// The blocks of the store that these are.
    blocks: Range<usize>,
}

impl Blocks {
    /// Cuts `store`.
    ///
    /// # Errors
    /// Fewer tokens than one block; a block of less than 2 tokens, in which nothing can be
    /// predicted.
    pub fn new(store: TokenStore, block_size: usize) -> Result<Self> {
        if block_size < 2 {
            return Err(Error::config(format!("data.block_size: expected at least 2, got {block_size}"))
                .help("a block of one token has nothing to predict"));
        }
        if store.len() < block_size {
            return Err(Error::data(format!(
                "the text has {} tokens, fewer than one block of {block_size}",
                store.len()
            ))
            .help(match store.len() {
                0 | 1 => "add text".to_owned(),
                tokens => format!("add text, or set data.block_size to at most {tokens}"),
            }));
        }
        let blocks = 0..store.len() / block_size;
        Ok(Self { store: Arc::new(store), block_size, blocks })
    }

    /// Splits off the last `share` (between 0 and 1) of the blocks for validation, as nanoGPT
    /// splits a text: `(rest, validation)`.
    ///
    /// # Errors
    /// A single block.
    pub fn split(self, share: f64) -> Result<(Self, Self)> {
        let Range { start, end } = self.blocks;
        if end - start < 2 {
            return Err(Error::data(format!(
                "data.validation = {share}: the text is one block of {} tokens, which cannot be split",
                self.block_size
            ))
            .help(format!(
                "name validation files, add text, or set data.block_size to at most {}",
                (self.store.len() / 2).max(2)
            )));
        }
        let last = (((end - start) as f64 * share).round() as usize).clamp(1, end - start - 1);
        let side = |blocks| Self { store: self.store.clone(), block_size: self.block_size, blocks };
        Ok((side(start..end - last), side(end - last..end)))
    }
}

impl Dataset for Blocks {
    fn len(&self) -> usize {
        self.blocks.len()
    }

    fn get(&self, index: usize, _epoch: u64) -> Result<Example> {
        let begin = (self.blocks.start + index) * self.block_size;
        let input_ids = self.store.tokens(begin..begin + self.block_size);
        let label = Label::Tokens(input_ids.clone());
        Ok(Example { input_ids, attention_mask: None, token_type_ids: None, position_ids: None, label })
    }

    fn max_len(&self) -> usize {
        self.block_size
    }

    fn len_of(&self, _index: usize) -> usize {
        self.block_size
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::ops::ControlFlow;

    use super::*;
    use crate::corpus::Corpus;
    use crate::settings::Documents;
    use crate::tokenizer::Tokenizer;

    /// Two documents of 9 and 4 bytes under a tokenizer without merges: 15 tokens with their ends
    /// of text.
    fn store() -> TokenStore {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.txt"), "abcdefghi").unwrap();
        std::fs::write(folder.path().join("b.txt"), "jklm").unwrap();
        let corpus = Corpus::open(&[format!("{}/*.txt", folder.path().display())], Documents::File).unwrap();
        let tokenizer = Tokenizer::train_bpe(&corpus, 257, 1).unwrap();
        let mut go_on = |_| ControlFlow::Continue(());
        TokenStore::build_or_open(&folder.path().join("cache"), &corpus, &tokenizer, &mut go_on).unwrap()
    }

    #[test]
    fn blocks_run_on_and_the_remainder_is_dropped() {
        let ids = store().tokens(0..15);
        assert_eq!((ids[9], ids[14]), (0, 0), "end-of-text follows each document");
        let blocks = Blocks::new(store(), 4).unwrap();
        assert_eq!((blocks.len(), blocks.max_len()), (3, 4));
        for index in 0..3 {
            let example = blocks.get(index, 0).unwrap();
            assert_eq!(example.input_ids, ids[index * 4..index * 4 + 4]);
            assert_eq!(example.label, Label::Tokens(example.input_ids.clone()));
            assert_eq!((example.attention_mask, example.token_type_ids), (None, None));
        }
        assert_eq!(Blocks::new(store(), 15).unwrap().len(), 1);
    }

    #[test]
    fn the_last_blocks_are_split_off() {
        let ids = store().tokens(0..15);
        let split = |share: f64| Blocks::new(store(), 2).unwrap().split(share).unwrap();
        for (share, last) in [(0.3, 2), (1e-9, 1), (0.999, 6)] {
            let (rest, validation) = split(share);
            assert_eq!((rest.len(), validation.len()), (7 - last, last), "{share}");
            let of = |blocks: &Blocks| {
                (0..blocks.len()).flat_map(|index| blocks.get(index, 0).unwrap().input_ids).collect::<Vec<_>>()
            };
            assert_eq!([of(&rest), of(&validation)].concat(), ids[..14], "{share}");
        }
        let error = Blocks::new(store(), 9).unwrap().split(0.02).unwrap_err().to_string();
        assert!(error.contains("one block of 9 tokens") && error.contains("at most 7"), "{error}");
    }

    #[test]
    fn less_than_one_block_is_refused_with_the_numbers() {
        let error = Blocks::new(store(), 16).unwrap_err().to_string();
        assert!(error.contains("15 tokens") && error.contains("block of 16"), "{error}");
        assert!(Blocks::new(store(), 1).unwrap_err().to_string().contains("at least 2"));
        assert!(Blocks::new(store(), 0).is_err());
    }
}
