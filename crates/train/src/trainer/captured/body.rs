//! The computation of captured steps, and the tensors through which it gets its inputs.

use std::cell::RefCell;
use std::collections::HashSet;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Int, Tensor};
use kiln_models::Compute;
use kiln_models::ops::dropout::{DropoutRng, DropoutSeeds};
use kiln_models::ops::in_place::{Written, accumulate, overwrite, row_major};
use kiln_models::ops::list::TensorList;

use super::batch::tracked;
use crate::optim::backward::{ActivationCheckpointing, GradientPass};
use crate::optim::gradient::{global_norm, scale_and_norm_by};
use crate::optim::in_place::InPlace;
use crate::task::{OnDevice, TrainingTask};
use crate::trainer::gradients::gradients;
use crate::trainer::sums::{StepSums, TakeUp};

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
    /// The sums over the micro-batches of a step, each in memory of its own: that of the losses is
    /// there from the beginning, that of a parameter's gradients from the first one on.
    pub(super) sums: RefCell<StepSums>,
    /// The factors of the sums so far and of a micro-batch, `[2]`: those of [`Summing`].
    pub(super) of_sums: Tensor<1>,
}

/// The parameters of which a computation gives gradients.
pub(super) type Given = HashSet<ParamId>;

/// The use that the sums of a step make of a micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Summing {
    /// It takes their place: it is the first of the step.
    Replace,
    /// It is added to them.
    Add,
    /// The sums leave it out: it is computed to be recorded.
    Leave,
}

impl Summing {
    /// The factors of the sums so far and of the micro-batch: 1 where it counts, else 0.
    fn factors(self) -> [f32; 2] {
        match self {
            Self::Replace => [0.0, 1.0],
            Self::Add => [1.0, 1.0],
            Self::Leave => [1.0, 0.0],
        }
    }
}

/// A micro-batch in the sums.
pub(super) struct Summed {
    /// The parameters whose sums have taken it up.
    pub(super) given: Given,
    pub(super) written: Written,
}

/// The results of a step, `[1]` each.
pub(super) struct Output {
    pub(super) loss: Tensor<1>,
    pub(super) grad_norm: Tensor<1>,
    /// 1 where the update was skipped, else 0.
    pub(super) skipped: Tensor<1>,
    _written: Vec<Written>,
}

impl<T: TrainingTask> Body<T> {
    /// A step of one batch.
    pub(super) fn step(&self, batch: &OnDevice<T>) -> Output {
        let (sum, grads) = self.pass(batch);
        self.update(sum, &grads)
    }

    /// From now on the sums use micro-batches in the way `summing`.
    #[must_use]
    pub(super) fn set_sums(&self, summing: Summing) -> Written {
        overwrite(&self.of_sums, Tensor::from_floats(summing.factors(), &self.of_sums.device()))
    }

    /// Has the sums of the loss and of the parameters of which `batch` gives gradients take them
    /// up. Sums of other parameters stay what they are.
    pub(super) fn micro_batch(&self, batch: &OnDevice<T>) -> Summed {
        let (loss, grads) = self.pass(batch);
        let given = self.given(&grads);
        let AddInPlace { sums, values } =
            self.sums.borrow_mut().take_up(&self.model, grads, loss, AddInPlace::default());
        Summed { given, written: accumulate(&sums, values, &self.of_sums) }
    }

    /// The parameters that have a gradient in `grads`.
    pub(super) fn given(&self, grads: &GradientsParams) -> Given {
        let mut each = EachGiven { grads, given: Given::default() };
        self.model.visit(&mut each);
        each.given
    }

    /// Zeroes the sums of all parameters but those of `given`. The first micro-batch of a step has
    /// replaced these, and a later one may add to others.
    #[must_use]
    pub(super) fn zero_sums_except(&self, given: &Given) -> Vec<Written> {
        let sums = self.sums.borrow();
        let mut zeroed = Zeroed { sums: &sums.grads, given, written: Vec::new() };
        self.model.visit(&mut zeroed);
        zeroed.written
    }

    /// The sums of the gradients of the parameters `given`: the tensors in which they lie.
    pub(super) fn sums_of(&self, given: &Given) -> GradientsParams {
        let sums = self.sums.borrow();
        let mut shared = Shared { from: &sums.grads, given, grads: GradientsParams::new() };
        self.model.visit(&mut shared);
        shared.grads
    }

    /// The sum of the losses, `[1]`: the tensor in which it lies.
    pub(super) fn loss_sum(&self) -> Tensor<1> {
        self.sums.borrow().loss.clone().expect("it is there from the beginning")
    }

    /// Writes `grads` and `loss`, `[1]`, to where the sums lie.
    pub(super) fn overwrite_sums(&self, grads: GradientsParams, loss: Tensor<1>) -> Vec<Written> {
        self.sums.borrow_mut().take_up(&self.model, grads, loss, Overwrite::default()).0
    }

    /// Loss and gradient norm, `[1]` each, of the step whose sums of gradients are `grads`.
    pub(super) fn mean(&self, grads: &GradientsParams) -> (Tensor<1>, Tensor<1>) {
        let [loss_by, grads_by] = pair(&self.of_update);
        let sum_norm = global_norm(&self.model, grads, self.compute.ops());
        (self.loss_sum() * loss_by, sum_norm * grads_by)
    }

    /// The update by the sums `grads`.
    pub(super) fn update_by_sums(&self, grads: &GradientsParams) -> Output {
        self.update(self.loss_sum(), grads)
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

/// Collects what [`accumulate`] adds in the memory of the sums.
#[derive(Default)]
struct AddInPlace {
    sums: TensorList,
    values: TensorList,
}

impl TakeUp for AddInPlace {
    fn take_up<const D: usize>(&mut self, sum: Option<Tensor<D>>, value: Tensor<D>) -> Tensor<D> {
        let sum = sum.unwrap_or_else(|| row_major(value.zeros_like()));
        self.sums.push(sum.clone());
        self.values.push(value);
        sum
    }
}

/// Writes values to where the sums lie; one that had none before gets a place.
#[derive(Default)]
struct Overwrite(Vec<Written>);

impl TakeUp for Overwrite {
    fn take_up<const D: usize>(&mut self, sum: Option<Tensor<D>>, value: Tensor<D>) -> Tensor<D> {
        let Some(sum) = sum else { return row_major(value) };
        self.0.push(overwrite(&sum, value));
        sum
    }
}

/// See [`Body::given`].
struct EachGiven<'a> {
    grads: &'a GradientsParams,
    given: Given,
}

impl ModuleVisitor for EachGiven<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.grads.get::<D>(param.id).is_some() {
            self.given.insert(param.id);
        }
    }
}

/// See [`Body::zero_sums_except`].
struct Zeroed<'a> {
    sums: &'a GradientsParams,
    given: &'a Given,
    written: Vec<Written>,
}

impl ModuleVisitor for Zeroed<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.given.contains(&param.id) {
            return;
        }
        if let Some(sum) = self.sums.get::<D>(param.id) {
            self.written.push(overwrite(&sum, sum.zeros_like()));
        }
    }
}

/// See [`Body::sums_of`].
struct Shared<'a> {
    from: &'a GradientsParams,
    given: &'a Given,
    grads: GradientsParams,
}

impl ModuleVisitor for Shared<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !self.given.contains(&param.id) {
            return;
        }
        if let Some(sum) = self.from.get::<D>(param.id) {
            self.grads.register(param.id, sum);
        }
    }
}
