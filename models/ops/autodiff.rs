//! How the fused operators enter Burn's autodiff: each operator computes and saves something in its
//! forward, and gives the gradients of its inputs from it. [`record`] and one implementation of
//! Burn's `Backward` are the same for all of them, whatever number of inputs they have.

use std::fmt::Debug;
use std::marker::PhantomData;

use burn::backend::Backend;
use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops as Step, OpsKind};
use burn::backend::tensor::FloatTensor;

/// The state that an operator's forward leaves for its backward.
pub(super) trait Differentiate<B: Backend>: Clone + Debug + Send + 'static {
    /// The gradients of the inputs, in the order in which [`record`] took them, of the output's
    /// gradient `dy`. `tracked` tells which of them are wanted; the others may be none.
    fn gradients(self, dy: FloatTensor<B>, tracked: &[bool]) -> Vec<Option<FloatTensor<B>>>;
}

/// The output of `forward`, which is given `inputs` without autodiff and which of them are tracked.
/// If one is, the state that `forward` returns beside the output is kept for the backward: it has
/// no need of what only the gradient of an untracked input takes.
pub(super) fn record<C, B, S, const N: usize>(
    inputs: [FloatTensor<Autodiff<B, C>>; N],
    forward: impl FnOnce([FloatTensor<B>; N], [bool; N]) -> (FloatTensor<B>, S),
) -> FloatTensor<Autodiff<B, C>>
where
    C: CheckpointStrategy,
    B: Backend,
    S: Differentiate<B>,
{
    let tracked = inputs.each_ref().map(|input| input.is_tracked());
    let nodes = inputs.each_ref().map(|input| input.node());
    let inputs = inputs.map(|input| input.into_primitive());
    match Recorded(PhantomData::<fn() -> S>).prepare::<C>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => {
            let (output, state) = forward(inputs, tracked);
            prepared.finish(state, output)
        }
        OpsKind::UnTracked(prepared) => prepared.finish(forward(inputs, tracked).0),
    }
}

/// A call of an operator whose backward starts from the state `S`.
#[derive(Debug)]
struct Recorded<S>(PhantomData<fn() -> S>);

impl<B: Backend, S: Differentiate<B>, const N: usize> Backward<B, N> for Recorded<S> {
    type State = S;

    fn backward(self, step: Step<S, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = grads.consume::<B>(&step.node);
        let tracked = step.parents.each_ref().map(Option::is_some);
        for (parent, grad) in step.parents.into_iter().zip(step.state.gradients(dy, &tracked)) {
            if let (Some(parent), Some(grad)) = (parent, grad) {
                grads.register::<B>(parent.id, grad);
            }
        }
    }
}
