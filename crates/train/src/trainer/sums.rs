//! The sums of a step over its micro-batches: losses and gradients are added here, but for those of
//! the last micro-batch where ranks add them up during its backward pass.
//! Eager steps make new tensors of them; captured steps write where their recordings find them,
//! which is another [`TakeUp`].

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

/// The sums of a step over its micro-batches, without autodiff.
#[derive(Default)]
pub(super) struct StepSums {
    /// Sum of the losses, `[1]`; none before the first.
    pub(super) loss: Option<Tensor<1>>,
    /// Sum of the gradients of each parameter that has one.
    pub(super) grads: GradientsParams,
}

/// How a sum takes up a value.
pub(super) trait TakeUp {
    /// The sum with `value`; `sum` is the one before, if there is one.
    fn take_up<const D: usize>(&mut self, sum: Option<Tensor<D>>, value: Tensor<D>) -> Tensor<D>;
}

/// Adds, and makes a new tensor of the sum.
pub(super) struct Add;

impl TakeUp for Add {
    fn take_up<const D: usize>(&mut self, sum: Option<Tensor<D>>, value: Tensor<D>) -> Tensor<D> {
        match sum {
            Some(sum) => sum + value,
            None => value,
        }
    }
}

impl StepSums {
    /// Has the sums take up `grads` of `model` and `loss`, `[1]`, in the way `by`, which is
    /// returned.
    pub(super) fn take_up<M: Module, T: TakeUp>(
        &mut self,
        model: &M,
        grads: GradientsParams,
        loss: Tensor<1>,
        by: T,
    ) -> T {
        let mut each = Each { sums: &mut self.grads, grads, by };
        model.visit(&mut each);
        let mut by = each.by;
        self.loss = Some(by.take_up(self.loss.take(), loss));
        by
    }
}

/// Takes up the gradients of a model.
struct Each<'a, T> {
    sums: &'a mut GradientsParams,
    grads: GradientsParams,
    by: T,
}

impl<T: TakeUp> ModuleVisitor for Each<'_, T> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(grad) = self.grads.remove::<D>(param.id) else { return };
        let sum = self.by.take_up(self.sums.remove(param.id), grad);
        self.sums.register(param.id, sum);
    }
}
