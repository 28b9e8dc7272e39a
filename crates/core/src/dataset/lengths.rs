//! A dataset of which only the lengths matter, for tests.

use crate::error::Result;

use super::{Dataset, Example, Label};

/// Examples of these lengths without labels; every token of one is its index.
pub struct Lengths(pub Vec<usize>);

impl Dataset for Lengths {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize, _: u64) -> Result<Example> {
        let input_ids = vec![index as i32; self.0[index]];
        Ok(Example { input_ids, attention_mask: None, token_type_ids: None, position_ids: None, label: Label::None })
    }

    fn len_of(&self, index: usize) -> usize {
        self.0[index]
    }

    fn max_len(&self) -> usize {
        self.0.iter().copied().max().unwrap_or(0)
    }
}
