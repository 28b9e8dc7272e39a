//! Some examples of a dataset, in an order of their own.

use std::sync::Arc;

use super::{Dataset, Example};
use crate::base::error::Result;

/// The examples `examples` of `data`, as its first epoch has them; an example may come more than once.
pub struct Picks {
    data: Arc<dyn Dataset>,
    examples: Vec<usize>,
}

impl Picks {
    /// See above; every one of `examples` is below the length of `data`.
    pub fn new(data: Arc<dyn Dataset>, examples: Vec<usize>) -> Self {
        Self { data, examples }
    }
}

impl Dataset for Picks {
    fn len(&self) -> usize {
        self.examples.len()
    }

    fn get(&self, index: usize, _epoch: u64) -> Result<Example> {
        self.data.get(self.examples[index], 0)
    }

    fn len_of(&self, index: usize) -> usize {
        self.data.len_of(self.examples[index])
    }

    fn max_len(&self) -> usize {
        self.examples.iter().map(|index| self.data.len_of(*index)).max().unwrap_or(0)
    }
}
