//! Copies of the weights in the type of matrix products, kept from one product to the next: without
//! them every product casts its weight, in every micro-batch, in every block that is computed
//! again, and in every batch of an evaluation.
//!
//! Fused products on the CPU round their operands themselves. Where nothing learns (evaluation,
//! prediction, generation) they keep the weight as they have packed it, in bf16: two bytes an
//! element.
//!
//! A copy is made when it is first asked for and holds until [`Copies::clear`], which whoever
//! changes the weights calls (`kiln`'s optimizer keeps the copies, and clears them at every
//! update). With autodiff every use of it is a leaf of its own: the backward pass of a product uses
//! the same values as the forward pass and leaves the gradient there, in the narrow type or, from a
//! fused product, in f32; who wants the gradient of the weight widens them and adds them to its own
//! ([`Copies::take_gradients`]), so that nothing is added up in the narrow type where a weight is
//! used many times.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::module::{Param, ParamId};
use burn::tensor::{FloatDType, Gradients, Tensor};

use super::products::Packed;

/// The copies of one model's weights. A clone begins without any: what it is used with may soon
/// have other weights.
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
    /// Packed weights for products on the CPU, which round their operands themselves.
    packed: HashMap<ParamId, Packed>,
    counts: Counts,
}

/// One weight's.
#[derive(Debug)]
struct Narrow {
    /// Without autodiff.
    value: Tensor<2>,
    /// Leaves of autodiff with this value: one for each use whose gradient has not been taken.
    leaves: Vec<Tensor<2>>,
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
        let mut kept = self.kept();
        kept.copies.clear();
        kept.packed.clear();
    }

    /// Takes the gradients of the copies, in their type or f32, out of those of a backward pass, by
    /// weight: one for each use, the last first, which is the order in which autodiff adds the
    /// gradients of a weight.
    pub fn take_gradients(&self, grads: &mut Gradients) -> Vec<(ParamId, Tensor<2>)> {
        let mut taken = Vec::new();
        for (id, narrow) in &mut self.kept().copies {
            let before = taken.len();
            // A use without a gradient is waiting for the backward pass of another part of the
            // model.
            narrow.leaves.retain(|leaf| match leaf.grad_remove(grads) {
                Some(gradient) => {
                    taken.push((*id, gradient));
                    false
                }
                None => true,
            });
            taken[before..].reverse();
        }
        taken
    }

    /// How often copies have been made and used until now.
    pub fn counts(&self) -> Counts {
        self.kept().counts
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where fused products of the CPU keep `weight` packed. None where gradients are wanted: a
    /// weight that learns is packed for one product before it changes, which costs more than it
    /// saves (measured with 1,024 and 128 tokens), and the packed forms of both passes would take
    /// as much memory as the weight.
    pub(crate) fn packed(&self, weight: &Param<Tensor<2>>) -> Option<Packed> {
        (!weight.val().is_autodiff()).then(|| self.kept().packed.entry(weight.id).or_default().clone())
    }

    /// The copy of `weight` in `dtype`.
    pub(crate) fn of(&self, weight: &Param<Tensor<2>>, dtype: FloatDType) -> Tensor<2> {
        let value = weight.val();
        let (is_autodiff, learns) = (value.is_autodiff(), value.is_require_grad());
        let strategy = value.gradient_checkpointing_strategy();
        let mut kept = self.kept();
        let Kept { copies, counts, .. } = &mut *kept;
        counts.uses += 1;
        let narrow = copies.entry(weight.id).or_insert_with(|| {
            counts.casts += 1;
            let value = if is_autodiff { value.inner() } else { value };
            Narrow { value: value.cast(dtype), leaves: Vec::new() }
        });
        let tracked = |learns: bool| {
            let copy = Tensor::from_inner(narrow.value.clone());
            // `from_inner` gives the default strategy, and autodiff refuses two of them in one
            // graph.
            match strategy {
                Some(strategy) => copy.with_gradient_checkpointing_strategy(strategy).set_require_grad(learns),
                None => copy.set_require_grad(learns),
            }
        };
        match (is_autodiff, learns) {
            (false, _) => narrow.value.clone(),
            (true, false) => tracked(false),
            (true, true) => {
                let leaf = tracked(true);
                narrow.leaves.push(leaf.clone());
                leaf
            }
        }
    }
}
