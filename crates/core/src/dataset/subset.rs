//! Some examples of a dataset: its first ones, a seeded share of it, or those at given indices. No
//! example is copied.

use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::random::seed_for;
use sha2::Sha256;

use super::sampler::shuffled;
use super::{Dataset, Example, Fingerprint};

/// Examples of another dataset.
pub struct Subset<E: Fingerprint = Example> {
    data: Arc<dyn Dataset<E>>,
    examples: Examples,
}

/// Which examples a subset has.
enum Examples {
    /// The examples in a range.
    Range(Range<usize>),
    /// The examples in a range of a permutation with this seed.
    Shuffled(Range<usize>, u64),
    /// The examples at these indices.
    At(Vec<usize>),
}

impl<E: Fingerprint> Subset<E> {
    /// The first `len` examples of `data`, or all if it has fewer.
    pub fn first(data: Arc<dyn Dataset<E>>, len: usize) -> Self {
        let examples = Examples::Range(0..len.min(data.len()));
        Self { data, examples }
    }

    /// Splits off a share (between 0 and 1) of `data` for validation: `(rest, validation)`. Which
    /// examples depends on the seed and their number alone.
    ///
    /// # Errors
    /// Fewer than two examples.
    pub fn split(data: Arc<dyn Dataset<E>>, share: f64, seed: u64) -> Result<(Self, Self)> {
        let len = data.len();
        if len < 2 {
            return Err(Error::data(format!("data.validation = {share}: {len} row cannot be split"))
                .help("name a validation file"));
        }
        let count = ((len as f64 * share).round() as usize).clamp(1, len - 1);
        let seed = seed_for(seed, "validation", 0, 0);
        let part = |range| Self { data: data.clone(), examples: Examples::Shuffled(range, seed) };
        Ok((part(count..len), part(0..count)))
    }

    /// Splits off the first examples of `data`, `percent` of 100, for validation: `(rest,
    /// validation)`.
    ///
    /// # Errors
    /// A percentage that leaves one side without an example.
    pub fn split_first(data: Arc<dyn Dataset<E>>, percent: f64) -> Result<(Self, Self)> {
        let (len, count) = (data.len(), first_of(data.len(), percent)?);
        let part = |range| Self { data: data.clone(), examples: Examples::Range(range) };
        Ok((part(count..len), part(0..count)))
    }

    /// The examples at `indices` of `data`, each below its length; an index may come more than
    /// once. Every epoch has them as the first epoch of `data` has.
    pub fn select(data: Arc<dyn Dataset<E>>, indices: Vec<usize>) -> Self {
        Self { data, examples: Examples::At(indices) }
    }

    /// The dataset that the example at `index` comes from, and its index there.
    pub fn origin(&self, index: usize) -> (&dyn Dataset<E>, usize) {
        (&*self.data, self.index(index))
    }

    fn index(&self, index: usize) -> usize {
        match &self.examples {
            Examples::Range(range) => range.start + index,
            Examples::Shuffled(range, seed) => {
                shuffled(*seed, 0, self.data.len() as u64, (range.start + index) as u64) as usize
            }
            Examples::At(indices) => indices[index],
        }
    }
}

impl<E: Fingerprint> Dataset<E> for Subset<E> {
    fn len(&self) -> usize {
        match &self.examples {
            Examples::Range(range) | Examples::Shuffled(range, _) => range.len(),
            Examples::At(indices) => indices.len(),
        }
    }

    fn get(&self, index: usize, epoch: u64) -> Result<E> {
        let epoch = if matches!(self.examples, Examples::At(_)) { 0 } else { epoch };
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

/// How many of `rows` rows the first `percent` of 100 are, by the rule of `load_dataset(..,
/// split="train[:5%]")`: the nearest whole number, of two equally near ones the even one.
///
/// # Errors
/// A percentage that leaves one side without a row.
pub fn first_of(rows: usize, percent: f64) -> Result<usize> {
    let count = (percent * rows as f64 / 100.0).round_ties_even() as usize;
    match count {
        0 => Err("none"),
        count if count >= rows => Err("all"),
        count => Ok(count),
    }
    .map_err(|taken| {
        Error::data(format!("data.validation = \"train[:{percent}%]\": of {rows} rows it takes {taken}"))
            .help("name validation files, or set another percentage (validation_split_percentage)")
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::dataset::Label;

    struct Numbers(usize);

    impl Dataset for Numbers {
        fn len(&self) -> usize {
            self.0
        }
        fn get(&self, index: usize, _epoch: u64) -> Result<Example> {
            let input_ids = vec![index as i32; self.len_of(index)];
            Ok(Example {
                input_ids,
                attention_mask: None,
                token_type_ids: None,
                position_ids: None,
                label: Label::None,
            })
        }
        fn max_len(&self) -> usize {
            self.0
        }
        fn len_of(&self, index: usize) -> usize {
            index + 1
        }
    }

    fn ids(subset: &Subset) -> Vec<i32> {
        (0..subset.len()).map(|index| subset.get(index, 0).unwrap().input_ids[0]).collect()
    }

    /// The numbers of rows are those of `datasets` 4: see `make_scripts.py`.
    #[test]
    fn the_first_rows_are_split_off_as_datasets_does_it() {
        for (rows, percent, count) in
            [(10, 5.0, None), (11, 5.0, Some(1)), (30, 5.0, Some(2)), (50, 5.0, Some(2)), (150, 7.0, Some(10))]
        {
            assert_eq!(first_of(rows, percent).ok(), count, "{percent} % of {rows}");
        }
        assert!(first_of(10, 99.0).unwrap_err().to_string().contains("it takes all"));
    }

    #[test]
    fn the_first_examples() {
        let subset = Subset::first(Arc::new(Numbers(9)), 3);
        assert_eq!((ids(&subset), subset.max_len()), (vec![0, 1, 2], 3));
        assert_eq!(Subset::first(Arc::new(Numbers(2)), 3).len(), 2);
    }

    #[test]
    fn selected_examples_come_in_their_order_and_as_the_first_epoch_has_them() {
        struct Epochs;
        impl Dataset for Epochs {
            fn len(&self) -> usize {
                3
            }
            fn get(&self, index: usize, epoch: u64) -> Result<Example> {
                let input_ids = vec![index as i32, epoch as i32];
                Ok(Example {
                    input_ids,
                    attention_mask: None,
                    token_type_ids: None,
                    position_ids: None,
                    label: Label::None,
                })
            }
            fn max_len(&self) -> usize {
                2
            }
            fn len_of(&self, _index: usize) -> usize {
                2
            }
        }
        let subset = Subset::select(Arc::new(Epochs), vec![2, 0, 2]);
        assert_eq!((ids(&subset), subset.max_len()), (vec![2, 0, 2], 2));
        assert_eq!(subset.get(1, 7).unwrap().input_ids, [0, 0]);
        assert_eq!(Subset::first(Arc::new(Epochs), 2).get(1, 7).unwrap().input_ids, [1, 7]);
    }

    #[test]
    fn a_split_is_complete_seeded_and_never_empty() {
        let split = |seed| Subset::split(Arc::new(Numbers(50)), 0.1, seed).unwrap();
        let (rest, validation) = split(1);
        assert_eq!((rest.len(), validation.len()), (45, 5));
        let mut all = [ids(&rest), ids(&validation)].concat();
        all.sort_unstable();
        assert_eq!(all, (0..50).collect::<Vec<_>>());
        assert_eq!(ids(&split(1).1), ids(&validation));
        assert_ne!(ids(&split(2).1), ids(&validation));
        assert_eq!(Subset::split(Arc::new(Numbers(2)), 0.01, 1).unwrap().1.len(), 1);
        assert!(Subset::split(Arc::new(Numbers(1)), 0.5, 1).is_err());
    }
}
