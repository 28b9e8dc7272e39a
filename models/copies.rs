//! Copies of the weights in the type of matrix products, kept from one product to the next: without them every product casts
//! its weight, in every micro-batch, in every block that is computed again, and in every batch of an evaluation.
//!
//! A copy is made when it is first asked for and holds until [`Copies::clear`], which whoever changes the weights calls
//! (`kiln`'s optimizer keeps the copies, and clears them at every update). With autodiff it is a leaf of its own: the
//! backward pass of a product uses the same tensor as the forward pass and leaves the gradient there, in the narrow type;
//! who wants the gradient of the weight widens it and adds it to the weight's own ([`Copies::leaves`]).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::module::{Param, ParamId};
use burn::tensor::{FloatDType, Tensor};

/// The copies of one model's weights. A clone begins without any: what it is used with may soon have other weights.
#[derive(Debug, Default)]
pub struct Copies(Mutex<Kept>);

impl Clone for Copies {
    fn clone(&self) -> Self {
        Self::default()
    }
}

#[derive(Debug, Default)]
struct Kept {
    copies: HashMap<ParamId, Narrow>,
    counts: Counts,
}

/// One weight's.
#[derive(Debug)]
struct Narrow {
    /// Without autodiff.
    value: Tensor<2>,
    /// The same where gradients are wanted.
    leaf: Option<Tensor<2>>,
}

/// How often copies were made and used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Casts of a weight.
    pub casts: u64,
    /// Products that would have cast it.
    pub uses: u64,
}

impl Copies {
    /// Forgets all copies: the weights are others now.
    pub fn clear(&self) {
        self.kept().copies.clear();
    }

    /// The copies that gradients are left at, by weight.
    pub fn leaves(&self) -> Vec<(ParamId, Tensor<2>)> {
        let kept = self.kept();
        kept.copies.iter().filter_map(|(id, narrow)| Some((*id, narrow.leaf.clone()?))).collect()
    }

    /// How often copies have been made and used until now.
    pub fn counts(&self) -> Counts {
        self.kept().counts
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The copy of `weight` in `dtype`.
    pub(crate) fn of(&self, weight: &Param<Tensor<2>>, dtype: FloatDType) -> Tensor<2> {
        let value = weight.val();
        let (is_autodiff, learns) = (value.is_autodiff(), value.is_require_grad());
        let strategy = value.gradient_checkpointing_strategy();
        let mut kept = self.kept();
        let Kept { copies, counts } = &mut *kept;
        counts.uses += 1;
        let narrow = copies.entry(weight.id).or_insert_with(|| {
            counts.casts += 1;
            let value = if is_autodiff { value.inner() } else { value };
            Narrow { value: value.cast(dtype), leaf: None }
        });
        let tracked = |learns: bool| {
            let copy = Tensor::from_inner(narrow.value.clone());
            // `from_inner` gives the default strategy, and autodiff refuses two of them in one graph.
            match strategy {
                Some(strategy) => copy.with_gradient_checkpointing_strategy(strategy).set_require_grad(learns),
                None => copy.set_require_grad(learns),
            }
        };
        match (is_autodiff, learns) {
            (false, _) => narrow.value.clone(),
            (true, false) => tracked(false),
            (true, true) => {
                let leaf = narrow.leaf.clone().unwrap_or_else(|| tracked(true));
                narrow.leaf = Some(leaf.clone());
                leaf
            }
        }
    }
}
