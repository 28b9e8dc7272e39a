//! The computation of captured steps, and the tensors through which it gets its inputs.

use std::cell::RefCell;

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Int, Tensor};
use kiln_models::Compute;
use kiln_models::ops::dropout::{DropoutRng, DropoutSeeds};
use kiln_models::ops::in_place::{Written, accumulate, overwrite, row_major};
use kiln_models::ops::list::TensorList;

use super::batch::tracked;
use crate::optim::backward::ActivationCheckpointing;
use crate::optim::backward::GradientPass;
use crate::optim::gradient::{global_norm, scale_and_norm_by};
use crate::optim::in_place::InPlace;
use crate::task::{OnDevice, TrainingTask};
use crate::trainer::gradients::gradients;

/// The computation of a step.
pub(super) struct Body<T: TrainingTask> {
    pub(super) task: T,
    pub(super) model: T::Model,
    pub(super) compute: Compute,
    /// With autodiff.
    pub(super) device: Device,
    /// Whether dropout drops anything.
    pub(super) drops: bool,
    pub(super) checkpointing: ActivationCheckpointing,
    pub(super) update: InPlace,
    pub(super) clip: Option<f64>,
    /// Whether the gradients may overflow (f16), so that an update finds out whether it is skipped.
    pub(super) skips: bool,
    /// The numbers of a pass, `[2]`: the factor of its loss, and that of the loss before the
    /// backward pass, in which f16 has its scale.
    pub(super) of_pass: Tensor<1>,
    /// The numbers of an update, `[2]`: the factor of the sum of the losses, and that of the sum of
    /// the gradients.
    pub(super) of_update: Tensor<1>,
    /// The words of dropout's seeds, `[2]`.
    pub(super) seeds: Tensor<1, Int>,
    pub(super) totals: Totals,
}

/// Sums over the micro-batches of a step.
pub(super) struct Totals {
    /// `[1]`
    loss: Tensor<1>,
    /// Sum of the gradients of each parameter that has one; made when its first gradient comes.
    grads: RefCell<GradientsParams>,
    /// The factors of the sums so far and of a new value, `[2]`: 1 where it counts, else 0.
    by: Tensor<1>,
}

/// The results of a step, `[1]` each.
pub(super) struct Output {
    pub(super) loss: Tensor<1>,
    pub(super) grad_norm: Tensor<1>,
    /// 1 where the update was skipped, else 0.
    pub(super) skipped: Tensor<1>,
    _written: Vec<Written>,
}

/// The use of a micro-batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Adding {
    /// It is the first: the sums of the last step are forgotten.
    First,
    /// It is added.
    Next,
    /// It leaves no trace.
    Nothing,
}

impl Totals {
    /// Without gradients yet, on `device`.
    pub(super) fn new(device: &Device) -> Self {
        let grads = RefCell::new(GradientsParams::new());
        Self { loss: Tensor::zeros([1], device), grads, by: Tensor::from_floats([1.0, 0.0], device) }
    }

    /// The sums so far of loss and gradients of `model`, for whoever reads them before they change.
    pub(super) fn shared<M: Module>(&self, model: &M) -> (GradientsParams, Tensor<1>) {
        let totals = self.grads.borrow();
        let mut shared = Shared { from: &totals, grads: GradientsParams::new() };
        model.visit(&mut shared);
        (shared.grads, self.loss.clone())
    }

    /// Writes `grads` of `model` and `loss`, `[1]`, to where the sums lie; a gradient that had none
    /// before gets a place.
    pub(super) fn replace<M: Module>(&self, model: &M, grads: GradientsParams, loss: Tensor<1>) -> Vec<Written> {
        let mut totals = self.grads.borrow_mut();
        let mut replacing = Replacing { totals: &mut totals, grads, written: vec![overwrite(&self.loss, loss)] };
        model.visit(&mut replacing);
        replacing.written
    }

    /// Sets the use of the following micro-batches.
    #[must_use]
    pub(super) fn set(&self, adding: Adding) -> Written {
        let by = match adding {
            Adding::First => [0.0, 1.0],
            Adding::Next => [1.0, 1.0],
            Adding::Nothing => [1.0, 0.0],
        };
        overwrite(&self.by, Tensor::from_floats(by, &self.by.device()))
    }
}

impl<T: TrainingTask> Body<T> {
    /// A step of one batch.
    pub(super) fn step(&self, batch: &OnDevice<T>) -> Output {
        let (sum, grads) = self.pass(batch);
        self.update(sum, &grads)
    }

    /// Adds the loss and the gradients of a micro-batch to the totals.
    pub(super) fn micro_batch(&self, batch: &OnDevice<T>) -> Written {
        let (sum, grads) = self.pass(batch);
        let mut totals = self.totals.grads.borrow_mut();
        let (sums, values) = (TensorList::default(), TensorList::default());
        let mut adding = Lists { totals: &mut totals, grads: &grads, sums, values };
        self.model.visit(&mut adding);
        let Lists { mut sums, mut values, .. } = adding;
        sums.push(self.totals.loss.clone());
        values.push(sum);
        accumulate(&sums, values, &self.totals.by)
    }

    /// Loss and gradient norm of the totals, `[1]` each.
    pub(super) fn of_totals(&self) -> (Tensor<1>, Tensor<1>) {
        let [loss_by, grads_by] = pair(&self.of_update);
        let sum_norm = global_norm(&self.model, &self.totals.grads.borrow(), self.compute.ops());
        (self.totals.loss.clone() * loss_by, sum_norm * grads_by)
    }

    /// The update by the totals.
    pub(super) fn update_by_totals(&self) -> Output {
        self.update(self.totals.loss.clone(), &self.totals.grads.borrow())
    }

    /// Loss, `[1]`, and gradients.
    fn pass(&self, batch: &OnDevice<T>) -> (Tensor<1>, GradientsParams) {
        let seeds = DropoutSeeds::new(self.seeds.clone());
        let pass = GradientPass {
            rng: if self.drops { DropoutRng::Seeds(&seeds) } else { DropoutRng::Off },
            seed: 0, // the numbers are those of the seeds
            checkpointing: self.checkpointing,
            compute: self.compute,
            device: &self.device,
            copies: self.update.copies(),
        };
        let [by, by_before_backward] = pair(&self.of_pass);
        let scaled = |loss| loss * Tensor::from_inner(by_before_backward);
        let (loss, grads) = gradients(&self.task, &self.model, &tracked(batch), &pass, scaled)
            .expect("a batch with labels has a loss, and one without is not computed");
        (loss * by, grads)
    }

    fn update(&self, loss: Tensor<1>, grads: &GradientsParams) -> Output {
        let [loss_by, grads_by] = pair(&self.of_update);
        let sum_norm = global_norm(&self.model, grads, self.compute.ops());
        // Without f16 never, but the update still waits for the norm, and thus for all that reads
        // the weights of before.
        let skipped =
            if self.skips { sum_norm.clone().is_finite().bool_not() } else { sum_norm.clone().lower_elem(0.0) };
        let (scale, grad_norm) = scale_and_norm_by(sum_norm, grads_by, self.clip);
        let written = self.update.apply(&self.model, grads, &scale, &skipped);
        Output { loss: loss * loss_by, grad_norm, skipped: skipped.float(), _written: written }
    }
}

/// Both elements of `numbers`, `[1]` each.
fn pair(numbers: &Tensor<1>) -> [Tensor<1>; 2] {
    [0, 1].map(|index| numbers.clone().narrow(0, index, 1))
}

/// Totals and what is added to them, in the same order.
struct Lists<'a> {
    totals: &'a mut GradientsParams,
    grads: &'a GradientsParams,
    sums: TensorList,
    values: TensorList,
}

impl ModuleVisitor for Lists<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(grad) = self.grads.get::<D>(param.id) else { return };
        let total = self.totals.get::<D>(param.id).unwrap_or_else(|| {
            let zeros = row_major(grad.zeros_like());
            self.totals.register(param.id, zeros.clone());
            zeros
        });
        self.sums.push(total);
        self.values.push(grad);
    }
}

/// See [`Totals::shared`].
struct Shared<'a> {
    from: &'a GradientsParams,
    grads: GradientsParams,
}

impl ModuleVisitor for Shared<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(total) = self.from.get::<D>(param.id) {
            self.grads.register(param.id, total);
        }
    }
}

/// See [`Totals::replace`].
struct Replacing<'a> {
    totals: &'a mut GradientsParams,
    grads: GradientsParams,
    written: Vec<Written>,
}

impl ModuleVisitor for Replacing<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(grad) = self.grads.remove::<D>(param.id) else { return };
        match self.totals.get::<D>(param.id) {
            Some(total) => self.written.push(overwrite(&total, grad)),
            None => self.totals.register(param.id, row_major(grad)),
        }
    }
}
