//! A part of a dataset: its first examples, or a seeded share of it. Nothing is copied and no list of indices is kept.

use std::ops::Range;
use std::sync::Arc;

use sha2::Sha256;

use super::sampler::shuffled;
use super::{Dataset, Example};
use crate::base::error::{Error, Result};
use crate::base::random::seed_for;

/// Examples of another dataset.
pub struct View {
    data: Arc<dyn Dataset>,
    range: Range<usize>,
    /// The range is one of a seeded permutation.
    seed: Option<u64>,
}

impl View {
    /// The first `len` examples of `data`, or all if it has fewer.
    pub fn first(data: Arc<dyn Dataset>, len: usize) -> Self {
        let range = 0..len.min(data.len());
        Self { data, range, seed: None }
    }

    /// Splits off a share (between 0 and 1) of `data` for validation: `(rest, validation)`. Which examples depends on the
    /// seed and their number alone.
    ///
    /// # Errors
    /// Fewer than two examples.
    pub fn split(data: Arc<dyn Dataset>, share: f64, seed: u64) -> Result<(Self, Self)> {
        let len = data.len();
        if len < 2 {
            return Err(Error::data(format!("data.validation = {share}: {len} row cannot be split"))
                .help("name a validation file"));
        }
        let count = ((len as f64 * share).round() as usize).clamp(1, len - 1);
        let seed = Some(seed_for(seed, "validation", 0, 0));
        let rest = Self { data: data.clone(), range: count..len, seed };
        Ok((rest, Self { data, range: 0..count, seed }))
    }

    fn index(&self, index: usize) -> usize {
        let place = self.range.start + index;
        match self.seed {
            Some(seed) => shuffled(seed, 0, self.data.len() as u64, place as u64) as usize,
            None => place,
        }
    }
}

impl Dataset for View {
    fn len(&self) -> usize {
        self.range.len()
    }

    fn get(&self, index: usize, epoch: u64) -> Result<Example> {
        self.data.get(self.index(index), epoch)
    }

    fn hash_example(&self, index: usize, hash: &mut Sha256) -> Result<()> {
        self.data.hash_example(self.index(index), hash)
    }

    fn max_len(&self) -> usize {
        (0..self.len()).map(|index| self.len_of(index)).max().unwrap_or(0)
    }

    fn len_of(&self, index: usize) -> usize {
        self.data.len_of(self.index(index))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::data::Label;

    struct Numbers(usize);

    impl Dataset for Numbers {
        fn len(&self) -> usize {
            self.0
        }
        fn get(&self, index: usize, _epoch: u64) -> Result<Example> {
            let input_ids = vec![index as i32; self.len_of(index)];
            Ok(Example { input_ids, attention_mask: None, token_type_ids: None, label: Label::None })
        }
        fn max_len(&self) -> usize {
            self.0
        }
        fn len_of(&self, index: usize) -> usize {
            index + 1
        }
    }

    fn ids(view: &View) -> Vec<i32> {
        (0..view.len()).map(|index| view.get(index, 0).unwrap().input_ids[0]).collect()
    }

    #[test]
    fn the_first_examples() {
        let view = View::first(Arc::new(Numbers(9)), 3);
        assert_eq!((ids(&view), view.max_len()), (vec![0, 1, 2], 3));
        assert_eq!(View::first(Arc::new(Numbers(2)), 3).len(), 2);
    }

    #[test]
    fn a_split_is_complete_seeded_and_never_empty() {
        let split = |seed| View::split(Arc::new(Numbers(50)), 0.1, seed).unwrap();
        let (rest, validation) = split(1);
        assert_eq!((rest.len(), validation.len()), (45, 5));
        let mut all = [ids(&rest), ids(&validation)].concat();
        all.sort_unstable();
        assert_eq!(all, (0..50).collect::<Vec<_>>());
        assert_eq!(ids(&split(1).1), ids(&validation));
        assert_ne!(ids(&split(2).1), ids(&validation));
        assert_eq!(View::split(Arc::new(Numbers(2)), 0.01, 1).unwrap().1.len(), 1);
        assert!(View::split(Arc::new(Numbers(1)), 0.5, 1).is_err());
    }
}
