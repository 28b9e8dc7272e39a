//! Copies of the weights in the type of matrix products, kept from one product to the next: without
//! them every product casts its weight, in every micro-batch, in every block that is computed
//! again, and in every batch of an evaluation.
//!
//! Fused products on the CPU round their operands themselves. Where nothing learns (evaluation,
//! prediction, generation) and the CPU has a unit for bf16, they keep the weight as they have
//! packed it: two bytes an element.
//!
//! A copy is made when it is first asked for and holds until the weight changes: whoever loads
//! other weights calls [`Copies::clear`], and an update takes the copies of the weights that it
//! changes ([`Copies::take`]). AdamW's kernel for GPUs writes them beside the weights, and they are
//! put back ([`Copies::put`]); a copy of a frozen weight stays. Captured steps have copies that are
//! written where they lie (`Copies::in_place`).
//!
//! With autodiff every use of it is a leaf of its own: the backward pass of a product uses
//! the same values as the forward pass and leaves the gradient there, in the narrow type or, from a
//! fused product, in f32; who wants the gradient of the weight widens them and adds them to its own
//! ([`Copies::take_gradients`]), so that nothing is added up in the narrow type where a weight is
//! used many times.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::module::{Param, ParamId};
use burn::tensor::{DType, FloatDType, Gradients, Tensor};

#[cfg(feature = "compiler")]
use super::in_place::row_major as updatable;
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
    /// Copies are row-major, so that they can be written where they lie.
    is_in_place: bool,
    /// No weight gets a copy that has none.
    is_sealed: bool,
    /// Weights that are stored in bf16 are packed too.
    packs_narrow: bool,
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

    /// Copies for updates in place, which write them where they lie: on wgpu and CUDA.
    #[cfg(feature = "compiler")]
    pub fn in_place() -> Self {
        Self(Mutex::new(Kept { is_in_place: true, ..Kept::default() }))
    }

    /// Copies for a model that does not learn while it has them. Weights that are stored in bf16
    /// are packed too, which takes as much memory again; the frozen base of adapters that learn is
    /// not packed, to save it.
    pub fn of_frozen() -> Self {
        Self(Mutex::new(Kept { packs_narrow: true, ..Kept::default() }))
    }

    /// From now on a weight without a copy is cast for every product: a recorded update writes the
    /// copies that there were, and would leave another one behind.
    #[cfg(feature = "compiler")]
    pub fn seal(&self) {
        self.kept().is_sealed = true;
    }

    /// The copy of the weight `id`, if there is one, to be written where it lies.
    #[cfg(feature = "compiler")]
    pub fn place(&self, id: ParamId) -> Option<Tensor<2>> {
        self.kept().copies.get(&id).map(|narrow| narrow.value.clone())
    }

    /// Takes the copy of the weight `id`, which is about to change; none if there is none.
    pub fn take(&self, id: ParamId) -> Option<Tensor<2>> {
        let mut kept = self.kept();
        kept.packed.remove(&id);
        kept.copies.remove(&id).map(|narrow| narrow.value)
    }

    /// Keeps `value`, without autodiff, as the copy of the weight `id`.
    pub fn put(&self, id: ParamId, value: Tensor<2>) {
        self.kept().copies.insert(id, Narrow { value, leaves: Vec::new() });
    }

    /// Forgets the uses that no backward pass has reached.
    pub fn forget_uses(&self) {
        self.kept().copies.values_mut().for_each(|narrow| narrow.leaves.clear());
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
        let (weight, id) = (weight.val(), weight.id);
        let mut kept = self.kept();
        let is_packed = !weight.is_autodiff() && (weight.dtype() == DType::F32 || kept.packs_narrow);
        is_packed.then(|| kept.packed.entry(id).or_default().clone())
    }

    /// The copy of `weight` in `dtype`.
    pub(crate) fn of(&self, weight: &Param<Tensor<2>>, dtype: FloatDType) -> Tensor<2> {
        let value = weight.val();
        let (is_autodiff, learns) = (value.is_autodiff(), value.is_require_grad());
        let strategy = value.gradient_checkpointing_strategy();
        let mut kept = self.kept();
        let Kept { is_in_place, is_sealed, copies, counts, .. } = &mut *kept;
        counts.uses += 1;
        if *is_sealed && !copies.contains_key(&weight.id) {
            counts.casts += 1;
            return value.cast(dtype);
        }
        let narrow = copies.entry(weight.id).or_insert_with(|| {
            counts.casts += 1;
            let value = if is_autodiff { value.inner() } else { value };
            let value = value.cast(dtype);
            Narrow { value: if *is_in_place { updatable(value) } else { value }, leaves: Vec::new() }
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

/// Without kernels that write in place there is nothing to do.
#[cfg(not(feature = "compiler"))]
fn updatable(x: Tensor<2>) -> Tensor<2> {
    x
}
