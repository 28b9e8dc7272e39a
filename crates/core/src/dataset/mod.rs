//! Data on their way into a training step: [`Dataset`] -> [subset](subset::Subset) ->
//! [order](sampler::Order) -> [loader](loader::Loader) -> [collator](collate::Collator) ->
//! [`PaddedBatch`]. Nothing here knows files or tensors.

mod batch;
pub mod sampler;
pub mod subset;
pub mod padding;
pub mod loader;
pub mod collate;
pub mod digest;
#[doc(hidden)]
pub mod lengths;

use std::any::Any;

pub use batch::{BatchLabels, Example, IGNORED, Label, PaddedBatch, shifted, valid_labels};
pub use padding::{Buckets, PaddingRule, PaddingStrategy};
pub use sampler::Sampler;
use serde_json::Value;
use sha2::Digest as _;
pub use sha2::Sha256;

use crate::error::Result;

/// An example of a [`Dataset`], as far as a run that is continued has to know its data again.
/// Numbers, truth values and strings, and lists, options and tuples of them are examples; a
/// structure becomes one by [`fingerprint!`](crate::fingerprint).
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an example: it has no `Fingerprint`, by which a resumed run knows its data again",
    note = "a structure whose fields have one gets it by `fingerprint!({Self} {{ field, other_field }});`"
)]
pub trait Fingerprint: 'static {
    /// Adds everything in the example to `hash`, with tags and lengths, so that no two examples add
    /// the same.
    fn hash_into(&self, hash: &mut Sha256);
}

macro_rules! fingerprint_of_numbers {
    ($($number:ty),*) => {
        $(
            impl Fingerprint for $number {
                fn hash_into(&self, hash: &mut Sha256) {
                    hash.update(self.to_le_bytes());
                }
            }
        )*
    };
}

fingerprint_of_numbers!(u8, u32, u64, i32, i64, f32, f64);

impl Fingerprint for usize {
    fn hash_into(&self, hash: &mut Sha256) {
        (*self as u64).hash_into(hash);
    }
}

impl Fingerprint for bool {
    fn hash_into(&self, hash: &mut Sha256) {
        u8::from(*self).hash_into(hash);
    }
}

impl<T: Fingerprint> Fingerprint for Option<T> {
    fn hash_into(&self, hash: &mut Sha256) {
        self.is_some().hash_into(hash);
        self.iter().for_each(|value| value.hash_into(hash));
    }
}

/// Token ids, for example.
impl<T: Fingerprint> Fingerprint for Vec<T> {
    fn hash_into(&self, hash: &mut Sha256) {
        hash.update((self.len() as u64).to_le_bytes());
        self.iter().for_each(|item| item.hash_into(hash));
    }
}

impl<T: Fingerprint, const N: usize> Fingerprint for [T; N] {
    fn hash_into(&self, hash: &mut Sha256) {
        self.iter().for_each(|item| item.hash_into(hash));
    }
}

impl Fingerprint for String {
    fn hash_into(&self, hash: &mut Sha256) {
        hash.update((self.len() as u64).to_le_bytes());
        hash.update(self);
    }
}

/// An input and its label, for example.
impl<A: Fingerprint, B: Fingerprint> Fingerprint for (A, B) {
    fn hash_into(&self, hash: &mut Sha256) {
        self.0.hash_into(hash);
        self.1.hash_into(hash);
    }
}

impl<A: Fingerprint, B: Fingerprint, C: Fingerprint> Fingerprint for (A, B, C) {
    fn hash_into(&self, hash: &mut Sha256) {
        self.0.hash_into(hash);
        self.1.hash_into(hash);
        self.2.hash_into(hash);
    }
}

/// Makes a structure an example of a dataset: its [`Fingerprint`](crate::dataset::Fingerprint) is
/// that of its fields. All fields are named, so that one that is added later is not forgotten.
///
/// ```
/// use kiln_core::fingerprint;
///
/// struct Series {
///     values: Vec<f32>,
///     class: usize,
/// }
/// fingerprint!(Series { values, class });
/// ```
#[macro_export]
macro_rules! fingerprint {
    ($name:ident { $($field:ident),+ $(,)? }) => {
        impl $crate::dataset::Fingerprint for $name {
            fn hash_into(&self, hash: &mut $crate::dataset::Sha256) {
                let Self { $($field),+ } = self;
                $($crate::dataset::Fingerprint::hash_into($field, hash);)+
            }
        }
    };
}

/// Examples by index: of tokens and a label, or of what a task of one's own reads. The
/// [evaluator](https://docs.rs/kiln/latest/kiln/trait.TrainingTask.html) of a task may look
/// ([`Any`]) for the dataset that it knows, for example for what is behind its examples.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no dataset of `{E}`",
    note = "a `Vec` of examples that are `Clone`, `Send` and `Sync` is one; else implement `Dataset`: a length, and the \
            example at an index"
)]
pub trait Dataset<E: Fingerprint = Example>: Send + Sync + Any {
    /// How many examples there are; at least one.
    fn len(&self) -> usize;

    /// Whether there is no example; such a dataset is refused when a run is opened.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The example at `index`, which is below [`len`](Self::len), as epoch `epoch` sees it. A pure
    /// function of both, so that a run that is continued sees the same.
    ///
    /// # Errors
    /// Data that cannot be read any more.
    fn get(&self, index: usize, epoch: u64) -> Result<E>;

    /// Adds to `hash` everything that the example at `index` is made of in every epoch.
    ///
    /// # Errors
    /// Data that cannot be read any more.
    fn hash_example(&self, index: usize, hash: &mut Sha256) -> Result<()> {
        self.get(index, 0)?.hash_into(hash);
        Ok(())
    }

    /// Tokens of the example at `index`, by which `data.sampler = "group_by_length"` puts examples
    /// together, and of which the plan tells how many there are. By default 0 for all: examples
    /// that are no sequences, or whose lengths nobody tells.
    fn len_of(&self, index: usize) -> usize {
        let _ = index;
        0
    }

    /// Tokens of the longest example; 0 where [`len_of`](Self::len_of) tells none.
    fn max_len(&self) -> usize {
        (0..self.len()).map(|index| self.len_of(index)).max().unwrap_or(0)
    }

    /// Tokens of all examples; 0 where [`len_of`](Self::len_of) tells none.
    fn num_tokens(&self) -> u64 {
        (0..self.len()).map(|index| self.len_of(index) as u64).sum()
    }

    /// The stream that the examples come from, where they are read as they are needed; by default
    /// none.
    fn stream(&self) -> Option<&dyn Stream> {
        None
    }
}

/// Examples in memory.
impl<E: Fingerprint + Clone + Send + Sync> Dataset<E> for Vec<E> {
    fn len(&self) -> usize {
        self.len()
    }

    fn get(&self, index: usize, _: u64) -> Result<E> {
        Ok(self[index].clone())
    }
}

/// Data that are read in their own order as they are needed, and are kept nowhere, as far as a run
/// has to know them.
pub trait Stream {
    /// SHA-256, in hexadecimal digits, of what decides the examples: reading all of them could take
    /// longer than the run.
    fn digest(&self) -> String;

    /// The place before the example at `index`, counted over all epochs. `state.json` of a
    /// checkpoint keeps it.
    ///
    /// # Errors
    /// Data that cannot be read.
    fn position(&self, index: u64) -> Result<Value>;

    /// Goes on at a place that [`position`](Self::position) told.
    ///
    /// # Errors
    /// A place that is none of this kind of stream; data that have changed.
    fn seek(&self, position: &Value) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(example: &impl Fingerprint) -> [u8; 32] {
        let mut hash = Sha256::new();
        example.hash_into(&mut hash);
        hash.finalize().into()
    }

    #[test]
    fn a_structure_is_told_by_each_of_its_fields() {
        struct Row {
            values: Vec<f32>,
            class: usize,
            group: Option<u32>,
            is_new: bool,
        }
        fingerprint!(Row { values, class, group, is_new });
        let row = || Row { values: vec![1.0, 2.0], class: 1, group: None, is_new: false };
        assert_eq!(digest(&row()), digest(&((vec![1.0_f32, 2.0], 1_u64), None::<u32>, false)));
        let others = [
            Row { values: vec![1.0], ..row() },
            Row { class: 2, ..row() },
            Row { group: Some(0), ..row() },
            Row { is_new: true, ..row() },
        ];
        for (index, other) in others.iter().enumerate() {
            assert_ne!(digest(other), digest(&row()), "field {index}");
        }
    }
}
