//! Copies of the weights in the type of matrix products, kept from one product to the next: without them every product casts
//! its weight, in every micro-batch, in every block that is computed again, and in every batch of an evaluation.
//!
//! A copy is made when it is first asked for and holds until [`Copies::clear`], which whoever changes the weights calls
//! (`kiln`'s optimizer keeps the copies, and clears them at every update). With autodiff it is a leaf of its own: the
//! backward pass of a product uses the same tensor as the forward pass and leaves the gradient there, in the narrow type;
//! who wants the gradient of the weight widens it and adds it to the weight's own ([`Copies::leaves`]).

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::module::{Param, ParamId};
use burn::tensor::{FloatDType, Tensor};

/// The copies of one model's weights. A clone begins without any: what it is used with may soon have other weights.
#[derive(Debug, Default)]
pub struct Copies(Arc<Mutex<Kept>>);

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

/// What copies have been good for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Casts of a weight.
    pub casts: u64,
    /// Products that would have cast it.
    pub uses: u64,
}

thread_local! {
    /// What this thread's products use: see [`Copies::within`].
    static CURRENT: RefCell<Option<Arc<Mutex<Kept>>>> = const { RefCell::new(None) };
}

impl Copies {
    /// `f`, in which products of this thread take the weights' copies from here. They must be those of the model that `f`
    /// computes with.
    pub fn within<T>(&self, f: impl FnOnce() -> T) -> T {
        /// Puts back what was there, also where `f` panics.
        struct Restore(Option<Arc<Mutex<Kept>>>);
        impl Drop for Restore {
            fn drop(&mut self) {
                CURRENT.set(self.0.take());
            }
        }
        let _restore = Restore(CURRENT.replace(Some(Arc::clone(&self.0))));
        f()
    }

    /// `f`, which changes no weights and computes with one model: with this thread's copies, or with some that live as long as
    /// `f` does.
    pub fn while_fixed<T>(f: impl FnOnce() -> T) -> T {
        match CURRENT.with_borrow(Option::is_some) {
            true => f(),
            false => Self::default().within(f),
        }
    }

    /// Forgets all copies: the weights are others now.
    pub fn clear(&self) {
        self.kept().copies.clear();
    }

    /// The copies that gradients are left at, by weight.
    pub fn leaves(&self) -> Vec<(ParamId, Tensor<2>)> {
        let kept = self.kept();
        kept.copies.iter().filter_map(|(id, narrow)| Some((*id, narrow.leaf.clone()?))).collect()
    }

    /// What they have been good for until now.
    pub fn counts(&self) -> Counts {
        self.kept().counts
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The copy of `weight` in `dtype`.
    fn of(&self, weight: &Param<Tensor<2>>, dtype: FloatDType) -> Tensor<2> {
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

/// `weight` in `dtype`: a copy, where this thread has [copies](Copies::within), or a cast for this product alone.
pub(crate) fn narrowed(weight: &Param<Tensor<2>>, dtype: FloatDType) -> Tensor<2> {
    match CURRENT.with_borrow(Clone::clone) {
        Some(kept) => Copies(kept).of(weight, dtype),
        None => weight.val().cast(dtype),
    }
}
