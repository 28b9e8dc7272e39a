//! How the fused operators enter Burn's autodiff: each operator computes and saves something in its
//! forward, and gives the gradients of its inputs from it. [`Call`] and one implementation of
//! Burn's `Backward` are the same for all of them, whatever number of inputs they have.

use std::any::Any;
use std::fmt::{self, Debug, Formatter};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::backend::Backend;
use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops as Step, OpsKind};
use burn::backend::tensor::FloatTensor;

use super::trace;

/// The state that an operator's forward leaves for its backward.
pub(super) trait Differentiate<B: Backend>: Clone + Debug + Send + 'static {
    /// The gradients of the inputs, in the order in which [`Call::input`] took them, of the
    /// output's gradient `dy`. `tracked` tells which of them are wanted; the others may be none.
    fn gradients(self, dy: FloatTensor<B>, tracked: &[bool]) -> Vec<Option<FloatTensor<B>>>;

    /// [`gradients`](Self::gradients) of an operator that adds to the gradient which an input has
    /// already. `take` gives that of the input of a number, for the operator to give back with its
    /// own: the input must be no leaf, and have a gradient ([`HasGradient`]).
    fn gradients_onto(
        self,
        dy: FloatTensor<B>,
        tracked: &[bool],
        _take: &mut dyn FnMut(usize) -> FloatTensor<B>,
    ) -> Vec<Option<FloatTensor<B>>> {
        self.gradients(dy, tracked)
    }
}

/// Whether the backward pass has given a gradient to a tensor: Burn does not tell. All operators
/// that give it one say so.
#[derive(Debug, Clone, Default)]
pub(super) struct HasGradient(Arc<AtomicBool>);

impl HasGradient {
    /// The tensor is about to have one. Returns whether it had one before.
    pub(super) fn set(&self) -> bool {
        self.0.swap(true, Ordering::AcqRel)
    }
}

/// A gradient that one operator leaves to another, which adds it in its own kernel; autodiff would
/// add the two in a pass of its own. The operator that leaves it must depend on the result of the
/// other, so that its backward comes first.
#[derive(Clone, Default)]
pub(super) struct Left(Arc<Slot>);

#[derive(Default)]
struct Slot {
    gradient: Mutex<Option<Box<dyn Any + Send>>>,
    is_awaited: AtomicBool,
}

impl Left {
    /// This, of which an operator that has been recorded takes the gradient.
    pub(super) fn awaited(self) -> Self {
        self.0.is_awaited.store(true, Ordering::Release);
        self
    }

    /// Whether an operator takes the gradient. One that is left where nobody takes it is lost.
    pub(super) fn is_awaited(&self) -> bool {
        self.0.is_awaited.load(Ordering::Acquire)
    }

    /// Leaves `gradient`.
    pub(super) fn put<B: Backend>(&self, gradient: FloatTensor<B>) {
        *self.slot() = Some(Box::new(gradient));
    }

    /// The gradient, if one has been left.
    pub(super) fn take<B: Backend>(&self) -> Option<FloatTensor<B>> {
        self.slot().take().and_then(|gradient| gradient.downcast().ok()).map(|gradient| *gradient)
    }

    fn slot(&self) -> MutexGuard<'_, Option<Box<dyn Any + Send>>> {
        self.0.gradient.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Debug for Left {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Left").field(&self.slot().is_some()).finish()
    }
}

/// A call of an operator with autodiff.
pub(super) struct Call<B, C> {
    inputs: Vec<NodeGuard>,
    tracked: Vec<bool>,
    backend: PhantomData<fn() -> (B, C)>,
}

impl<B: Backend, C: CheckpointStrategy> Call<B, C> {
    /// A call without inputs yet.
    pub(super) fn new() -> Self {
        Self { inputs: Vec::new(), tracked: Vec::new(), backend: PhantomData }
    }

    /// `tensor` without autodiff, as the next input.
    pub(super) fn input(&mut self, tensor: FloatTensor<Autodiff<B, C>>) -> FloatTensor<B> {
        self.tracked.push(tensor.is_tracked());
        let (tensor, node) = tensor.into_parts();
        self.inputs.push(node);
        tensor
    }

    /// The output of `forward`, which is given which of the inputs are tracked. If one is, the
    /// state that `forward` returns beside the output is kept for the backward: it has no need of
    /// what only the gradient of an untracked input takes.
    pub(super) fn record<S: Differentiate<B>>(
        self,
        forward: impl FnOnce(&[bool]) -> (FloatTensor<B>, S),
    ) -> FloatTensor<Autodiff<B, C>> {
        let (output, state) = forward(&self.tracked);
        match self.inputs.len() {
            1 => recorded::<B, C, S, 1>(self.inputs, output, state),
            2 => recorded::<B, C, S, 2>(self.inputs, output, state),
            3 => recorded::<B, C, S, 3>(self.inputs, output, state),
            4 => recorded::<B, C, S, 4>(self.inputs, output, state),
            5 => recorded::<B, C, S, 5>(self.inputs, output, state),
            inputs => panic!("an operator has 1 to 5 inputs with gradients, not {inputs}"),
        }
    }
}

fn recorded<B: Backend, C: CheckpointStrategy, S: Differentiate<B>, const N: usize>(
    inputs: Vec<NodeGuard>,
    output: FloatTensor<B>,
    state: S,
) -> FloatTensor<Autodiff<B, C>> {
    let inputs: [NodeGuard; N] = inputs.try_into().expect("`record` has counted them");
    let operator = trace::current().unwrap_or_default();
    match (Recorded { operator, state: PhantomData::<fn() -> S> }).prepare::<C>(inputs).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => prepared.finish(state, output),
        OpsKind::UnTracked(prepared) => prepared.finish(output),
    }
}

/// A call of an operator whose backward starts from the state `S`.
#[derive(Debug)]
struct Recorded<S> {
    /// Its name, where calls are timed.
    operator: &'static str,
    state: PhantomData<fn() -> S>,
}

impl<B: Backend, S: Differentiate<B>, const N: usize> Backward<B, N> for Recorded<S> {
    type State = S;

    fn backward(self, step: Step<S, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let _time = trace::backward(self.operator);
        let dy = grads.consume::<B>(&step.node);
        let parents = step.parents;
        let tracked = parents.each_ref().map(Option::is_some);
        let mut take = |input: usize| match &parents[input] {
            Some(parent) => grads.consume::<B>(parent),
            None => panic!("{}: input {input} is not tracked and has no gradient", self.operator),
        };
        let gradients = step.state.gradients_onto(dy, &tracked, &mut take);
        for (parent, grad) in parents.into_iter().zip(gradients) {
            if let (Some(parent), Some(grad)) = (parent, grad) {
                grads.register::<B>(parent.id, grad);
            }
        }
    }
}
