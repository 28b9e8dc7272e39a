//! AdamW in the parameters' own memory, told its numbers through the device: the update of a captured step, which does the
//! same every time but finds other numbers.

use std::cell::RefCell;
use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use kiln_models::ops::adamw::{Parameters, Update};
use kiln_models::ops::in_place::{DeviceUpdates, Written, row_major, update};

use super::AdamConfig;
use super::optimizer::{Group, Optimizer, OptimizerConfig};
use super::step::tracked_like;

/// The moments of a parameter, `[n]` each.
type Moments = [Tensor<1>; 2];

/// `model` with parameters that can be updated in place: those that are not row-major are copied.
pub fn updatable<M: Module>(model: M) -> M {
    struct RowMajor;

    impl ModuleMapper for RowMajor {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let (id, value, mapper) = param.consume();
            let tracked = tracked_like(&value);
            Param::from_mapped_value(id, tracked(row_major(value.inner())), mapper)
        }
    }

    model.map(&mut RowMajor)
}

/// AdamW in place. The weights are the model's own tensors, [`updatable`], the moments the optimizer's.
pub struct InPlace {
    config: AdamConfig,
    device: Device,
    /// Weight decay and factor of the learning rate of each kind of parameter.
    kinds: Vec<(f64, f64)>,
    /// The numbers for each kind.
    numbers: DeviceUpdates,
    kind_of: HashMap<ParamId, usize>,
    moments: RefCell<HashMap<ParamId, Moments>>,
}

impl Optimizer {
    /// The same optimizer in place; none for another one than AdamW. Its numbers are idle until
    /// [`begin_in_place`](Self::begin_in_place).
    pub fn in_place(&self, device: &Device) -> Option<InPlace> {
        let OptimizerConfig::AdamW(config) = self.config else { return None };
        let (mut kinds, mut kind_of) = (Vec::<(f64, f64)>::new(), HashMap::new());
        for (id, Group { weight_decay, lr_factor, .. }) in &self.groups {
            let told = (*weight_decay, *lr_factor);
            let kind = kinds.iter().position(|kind| *kind == told).unwrap_or_else(|| {
                kinds.push(told);
                kinds.len() - 1
            });
            kind_of.insert(*id, kind);
        }
        let moments = self.state.iter().filter_map(|(id, state)| Some((*id, Moments::try_from(state.clone()).ok()?)));
        let (numbers, moments) = (DeviceUpdates::idle(kinds.len(), device), RefCell::new(moments.collect()));
        Some(InPlace { config, device: device.clone(), kinds, numbers, kind_of, moments })
    }

    /// Counts an update and writes its numbers, for the learning rate `lr`, to where `in_place` finds them.
    #[must_use]
    pub fn begin_in_place(&mut self, in_place: &InPlace, lr: f64) -> Written {
        self.step += 1;
        let update =
            |(weight_decay, lr_factor): &(f64, f64)| in_place.config.fused(lr * lr_factor, *weight_decay, self.step);
        let updates = in_place.kinds.iter().map(update).collect::<Vec<Update>>();
        in_place.numbers.set(DeviceUpdates::new(&updates, &in_place.device))
    }

    /// Takes the moments that `in_place` made for parameters which had none.
    pub fn adopt(&mut self, in_place: &InPlace) {
        for (id, moments) in &*in_place.moments.borrow() {
            self.state.entry(*id).or_insert_with(|| moments.to_vec());
        }
    }
}

impl InPlace {
    /// From now on, until [`Optimizer::begin_in_place`], updates leave weights and moments what they are.
    #[must_use]
    pub fn idle(&self) -> Written {
        self.numbers.set(DeviceUpdates::idle(self.kinds.len(), &self.device))
    }

    /// The update of all parameters of `model` that have a gradient, each multiplied by `scale`, `[1]`.
    #[must_use]
    pub fn apply<M: Module>(&self, model: &M, grads: &GradientsParams, scale: &Tensor<1>) -> Option<Written> {
        let mut all = All { of: self, grads, parameters: Parameters::default() };
        model.visit(&mut all);
        (!all.parameters.is_empty()).then(|| update(all.parameters, &self.numbers, scale))
    }
}

/// The parameters that have a gradient.
struct All<'a> {
    of: &'a InPlace,
    grads: &'a GradientsParams,
    parameters: Parameters,
}

impl ModuleVisitor for All<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(grad) = self.grads.get::<D>(param.id) else { return };
        let value = param.val().inner();
        let zeros = || Tensor::zeros([value.shape().num_elements()], &self.of.device);
        let mut moments = self.of.moments.borrow_mut();
        let moments = moments.entry(param.id).or_insert_with(|| [zeros(), zeros()]);
        self.parameters.push(value, moments.clone(), grad, self.of.kind_of[&param.id]);
    }
}
