//! A corpus cut into blocks of equal length, as `run_clm` packs it: documents run on, separated by end-of-text; what is left
//! at the end and does not fill a block is dropped. Labels are the ids themselves; the task shifts them.

use super::store::TokenStore;
use super::{Dataset, Example, Label};
use crate::error::{Error, Result};

/// Blocks of `block_size` tokens.
#[derive(Debug)]
pub struct Blocks {
    store: TokenStore,
    block_size: usize,
}

impl Blocks {
    /// Cuts `store`.
    ///
    /// # Errors
    /// Fewer tokens than one block; a block of less than 2 tokens, in which nothing can be predicted.
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
            .help(format!("add text, or set data.block_size to at most {}", store.len())));
        }
        Ok(Self { store, block_size })
    }
}

impl Dataset for Blocks {
    fn len(&self) -> usize {
        self.store.len() / self.block_size
    }

    fn get(&self, index: usize, _epoch: u64) -> Result<Example> {
        let input_ids = self.store.tokens(index * self.block_size..(index + 1) * self.block_size);
        let label = Label::Tokens(input_ids.clone());
        Ok(Example { input_ids, attention_mask: None, token_type_ids: None, label })
    }

    fn max_len(&self) -> usize {
        self.block_size
    }

    fn len_of(&self, _index: usize) -> usize {
        self.block_size
    }
}
