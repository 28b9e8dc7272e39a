//! Batches of captured steps: a recording reads the tensors of the batch with which it was made, so
//! later batches are written into these.

use std::any::Any;
use std::collections::VecDeque;

use burn::tensor::{Bool, DType, Int, Tensor};
use kiln_models::ops::in_place::{Written, overwrite, overwrite_bools, overwrite_ints};

use crate::task::{TensorMapper, TensorTree};

/// `batch` for a model with autodiff.
pub(super) fn tracked<B: TensorTree>(batch: &B) -> B {
    struct Tracked;

    impl TensorMapper for Tracked {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            Tensor::from_inner(tensor)
        }

        fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
            Tensor::from_inner(tensor)
        }

        fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
            Tensor::from_inner(tensor)
        }
    }

    batch.clone().map(&mut Tracked)
}

/// The key of a recording: batches with equal keys are computed in the same way.
#[derive(PartialEq, Eq)]
pub(super) struct Likeness {
    /// The types and shapes of the tensors.
    shapes: Vec<(DType, Vec<usize>)>,
    /// See [`TensorTree::host_values`].
    host_values: Vec<u64>,
}

impl Likeness {
    pub(super) fn of<B: TensorTree>(batch: &B) -> Self {
        let mut shapes = Shapes(Vec::new());
        let _ = batch.clone().map(&mut shapes);
        Self { shapes: shapes.0, host_values: batch.host_values() }
    }

    /// The shape of the first tensor, for messages.
    pub(super) fn dims(&self) -> String {
        let first = self.shapes.first().into_iter().flat_map(|(_, dims)| dims);
        first.map(usize::to_string).collect::<Vec<_>>().join(" x ")
    }
}

struct Shapes(Vec<(DType, Vec<usize>)>);

impl TensorMapper for Shapes {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.0.push((tensor.dtype(), tensor.dims().to_vec()));
        tensor
    }

    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        self.0.push((tensor.dtype(), tensor.dims().to_vec()));
        tensor
    }

    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        self.0.push((tensor.dtype(), tensor.dims().to_vec()));
        tensor
    }
}

/// Writes `new` to where `target` lies; the two have the same [`Likeness`].
pub(super) fn write<B: TensorTree>(target: &B, new: B, written: &mut Vec<Written>) {
    let mut queue = Queue(VecDeque::new());
    let _ = new.map(&mut queue);
    let _ = target.clone().map(&mut Overwrites { queue: queue.0, written });
}

/// Takes the tensors of a batch.
struct Queue(VecDeque<Box<dyn Any>>);

impl TensorMapper for Queue {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.0.push_back(Box::new(tensor.clone()));
        tensor
    }

    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        self.0.push_back(Box::new(tensor.clone()));
        tensor
    }

    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        self.0.push_back(Box::new(tensor.clone()));
        tensor
    }
}

/// Writes the tensors of another batch to where those of this one lie.
struct Overwrites<'a> {
    queue: VecDeque<Box<dyn Any>>,
    written: &'a mut Vec<Written>,
}

impl Overwrites<'_> {
    fn next<T: 'static>(&mut self) -> T {
        let next = self.queue.pop_front().and_then(|tensor| tensor.downcast().ok());
        *next.expect("batches of the same shapes have the same tensors")
    }
}

impl TensorMapper for Overwrites<'_> {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let new = self.next();
        self.written.push(overwrite(&tensor, new));
        tensor
    }

    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        let new = self.next();
        self.written.push(overwrite_ints(&tensor, new));
        tensor
    }

    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        let new = self.next();
        self.written.push(overwrite_bools(&tensor, new));
        tensor
    }
}
