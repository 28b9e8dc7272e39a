//! AdamW in the parameters' own memory, told its numbers through the device: the update of a captured step, which does the
//! same every time but finds other numbers.

use std::cell::RefCell;
use std::collections::HashMap;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use kiln_models::ops::adamw::Update;
use kiln_models::ops::in_place::{DeviceUpdate, Written};

use super::AdamConfig;
use super::optimizer::{Group, Optimizer, OptimizerConfig};

/// The moments of a parameter, `[n]` each.
type Moments = [Tensor<1>; 2];

/// What updates in place. The weights are the model's own tensors, the moments the optimizer's.
pub struct InPlace {
    config: AdamConfig,
    device: Device,
    /// What parameters are told: weight decay and factor of the learning rate, and the numbers for them.
    kinds: Vec<(f64, f64, DeviceUpdate)>,
    kind_of: HashMap<ParamId, usize>,
    moments: RefCell<HashMap<ParamId, Moments>>,
}

impl Optimizer {
    /// The same optimizer in place; none for another one than AdamW. Its numbers are idle until
    /// [`begin_in_place`](Self::begin_in_place).
    pub fn in_place(&self, device: &Device) -> Option<InPlace> {
        let OptimizerConfig::AdamW(config) = self.config else { return None };
        let (mut kinds, mut kind_of) = (Vec::<(f64, f64, DeviceUpdate)>::new(), HashMap::new());
        for (id, Group { weight_decay, lr_factor, .. }) in &self.groups {
            let known = kinds.iter().position(|(decay, factor, _)| (decay, factor) == (weight_decay, lr_factor));
            let kind = known.unwrap_or_else(|| {
                kinds.push((*weight_decay, *lr_factor, DeviceUpdate::idle(device)));
                kinds.len() - 1
            });
            kind_of.insert(*id, kind);
        }
        let moments = self.state.iter().filter_map(|(id, state)| Some((*id, Moments::try_from(state.clone()).ok()?)));
        Some(InPlace { config, device: device.clone(), kinds, kind_of, moments: RefCell::new(moments.collect()) })
    }

    /// Counts an update and writes its numbers, for the learning rate `lr`, to where `in_place` finds them.
    #[must_use]
    pub fn begin_in_place(&mut self, in_place: &InPlace, lr: f64) -> Vec<Written> {
        self.step += 1;
        let AdamConfig { beta1, beta2, epsilon } = in_place.config;
        let set = |(weight_decay, lr_factor, numbers): &(f64, f64, DeviceUpdate)| {
            let (lr, weight_decay, step) = (lr * lr_factor, *weight_decay, self.step);
            numbers.set(DeviceUpdate::new(&Update { beta1, beta2, epsilon, lr, weight_decay, step }, &in_place.device))
        };
        in_place.kinds.iter().map(set).collect()
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
    pub fn idle(&self) -> Vec<Written> {
        self.kinds.iter().map(|(_, _, numbers)| numbers.set(DeviceUpdate::idle(&self.device))).collect()
    }

    /// The update of all parameters of `model` that have a gradient, each multiplied by `scale`, `[1]`.
    #[must_use]
    pub fn apply<M: Module>(&self, model: &M, grads: &GradientsParams, scale: &Tensor<1>) -> Vec<Written> {
        let mut apply = Apply { of: self, grads, scale, written: Vec::new() };
        model.visit(&mut apply);
        apply.written
    }
}

struct Apply<'a> {
    of: &'a InPlace,
    grads: &'a GradientsParams,
    scale: &'a Tensor<1>,
    written: Vec<Written>,
}

impl ModuleVisitor for Apply<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(grad) = self.grads.get::<D>(param.id) else { return };
        let value = param.val().inner();
        let zeros = || Tensor::zeros([value.shape().num_elements()], &self.of.device);
        let mut moments = self.of.moments.borrow_mut();
        let [m, v] = moments.entry(param.id).or_insert_with(|| [zeros(), zeros()]);
        let (.., numbers) = &self.of.kinds[self.of.kind_of[&param.id]];
        self.written.push(numbers.apply(&value, [&*m, &*v], grad, self.scale));
    }
}
