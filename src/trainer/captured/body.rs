//! The computation of captured steps, and the tensors through which it gets its inputs.

use std::cell::RefCell;

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Int, Tensor};
use kiln_models::Compute;
use kiln_models::ops::dropout::DropoutSeeds;
use kiln_models::ops::in_place::{Written, accumulate, overwrite, row_major};
use kiln_models::ops::list::TensorList;

use super::batch::tracked;
use crate::config::ActivationCheckpointing;
use crate::optim::backward::{DropoutSeed, GradientPass};
use crate::optim::gradient::{global_norm, scale_and_norm_by};
use crate::optim::in_place::InPlace;
use crate::session::TrainingTask;
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
    pub(super) update: InPlace,
    pub(super) clip: Option<f64>,
    /// The factor of the loss sum, `[1]`.
    pub(super) per_term: Tensor<1>,
    /// The words of dropout's seeds, `[2]`.
    pub(super) seeds: Tensor<1, Int>,
    pub(super) totals: Totals,
}

/// Sums over the micro-batches of a step.
pub(super) struct Totals {
    /// `[1]`
    loss: Tensor<1>,
    /// Of every parameter that has a gradient; made when the first comes.
    grads: RefCell<GradientsParams>,
    /// The factors of the sums so far and of a new value, `[2]`.
    by: Tensor<1>,
}

/// The results of a step: loss and gradient norm, `[1]` each.
pub(super) struct Output {
    pub(super) loss: Tensor<1>,
    pub(super) grad_norm: Tensor<1>,
    _written: Option<Written>,
}

/// The use of a micro-batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Adding {
    /// It is the first: the sums of the last step are forgotten. Loss and gradients are multiplied by the number.
    First(f64),
    /// It is added, times the number.
    Next(f64),
    /// It leaves no trace.
    Nothing,
}

impl Totals {
    /// Without gradients yet; `zero` is `[1]`, on the device.
    pub(super) fn new(zero: &Tensor<1>) -> Self {
        let grads = RefCell::new(GradientsParams::new());
        Self { loss: zero.zeros_like(), grads, by: Tensor::from_floats([1.0, 0.0], &zero.device()) }
    }

    /// The sums so far of loss and gradients of `model`, for whoever reads them before they change.
    pub(super) fn shared<M: Module>(&self, model: &M) -> (GradientsParams, Tensor<1>) {
        let totals = self.grads.borrow();
        let mut shared = Shared { from: &totals, grads: GradientsParams::new() };
        model.visit(&mut shared);
        (shared.grads, self.loss.clone())
    }

    /// Writes `grads` of `model` and `loss`, `[1]`, to where the sums lie; a gradient that had none before gets a place.
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
            Adding::First(weight) => [0.0, weight as f32],
            Adding::Next(weight) => [1.0, weight as f32],
            Adding::Nothing => [1.0, 0.0],
        };
        overwrite(&self.by, Tensor::from_floats(by, &self.by.device()))
    }
}

impl<T: TrainingTask> Body<T> {
    /// A step of one batch.
    pub(super) fn step(&self, batch: &T::DeviceBatch) -> Output {
        let (sum, grads) = self.pass(batch);
        self.update(sum, &grads)
    }

    /// Adds the loss and the gradients of a micro-batch to the totals.
    pub(super) fn micro_batch(&self, batch: &T::DeviceBatch) -> Written {
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

    /// The update by the totals.
    pub(super) fn update_by_totals(&self) -> Output {
        self.update(self.totals.loss.clone(), &self.totals.grads.borrow())
    }

    /// Loss sum, `[1]`, and gradients.
    fn pass(&self, batch: &T::DeviceBatch) -> (Tensor<1>, GradientsParams) {
        let seeds = DropoutSeeds::new(self.seeds.clone());
        let pass = GradientPass {
            seed: if self.drops { DropoutSeed::Device(&seeds) } else { DropoutSeed::Off },
            checkpointing: ActivationCheckpointing::None,
            compute: self.compute,
            device: &self.device,
            copies: None, // in a narrow type a recording casts each weight where it is used, once a step
        };
        gradients(&self.task, &self.model, &tracked(batch), &pass, |loss| loss)
            .expect("a batch with labels has a loss, and one without is not computed")
    }

    fn update(&self, sum: Tensor<1>, grads: &GradientsParams) -> Output {
        let sum_norm = global_norm(&self.model, grads, self.compute.ops());
        let (scale, grad_norm) = scale_and_norm_by(sum_norm, self.per_term.clone(), self.clip);
        let written = self.update.apply(&self.model, grads, &scale);
        Output { loss: sum * self.per_term.clone(), grad_norm, _written: written }
    }
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
