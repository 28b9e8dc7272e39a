//! Updates in the parameters' own memory, told their numbers through the device: those of captured
//! steps, which do the same every time but find other numbers. AdamW has a kernel for all
//! parameters together. The other optimizers, and AdamW where its operator is plain or a step may
//! be skipped (f16), compute their own formula at the learning rate 1: all of them move a weight by
//! the learning rate times something that does not depend on it, which is then scaled by the rate
//! that the device has.

use std::cell::RefCell;
use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use kiln_models::ops::Form;
use kiln_models::ops::adamw::{self, Parameters};
use kiln_models::ops::in_place::{DeviceUpdates, Written, accumulate, overwrite, overwrite_ints, row_major, update};
use kiln_models::ops::list::TensorList;
use kiln_models::{Copies, Operator};

use super::optimizer::{Group, Optimizer, OptimizerConfig};
use super::skip::{Skip, Tables};
use super::step::tracked_like;
use super::{AdafactorConfig, AdamConfig, State, Update};
use crate::optim::scaler::Verdict;

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

/// An optimizer in place. The weights are the model's own tensors, [`updatable`], the state is the
/// optimizer's.
pub struct InPlace {
    device: Device,
    how: How,
    state: RefCell<HashMap<ParamId, State>>,
    /// 1 for a parameter that has had an update, else 0, `[1]` each, for an optimizer that takes
    /// the first gradient whole.
    has_begun: RefCell<HashMap<ParamId, Tensor<1>>>,
    /// Copies of the weights in the type of matrix products, which AdamW's kernel writes.
    copies: Copies,
}

/// The form of the update.
#[allow(clippy::large_enum_variant)] // a run has one
enum How {
    /// AdamW's kernel.
    Fused {
        config: AdamConfig,
        /// Weight decay and factor of the learning rate of each kind of parameter.
        kinds: Vec<(f64, f64)>,
        /// The numbers for each kind.
        numbers: DeviceUpdates,
        kind_of: HashMap<ParamId, usize>,
    },
    /// The optimizer's formula.
    Formula {
        config: OptimizerConfig,
        groups: HashMap<ParamId, Group>,
        /// Learning rate, `1 / (1 - beta1^t)` and `sqrt(1 - beta2^t)`, or Adafactor's weights of
        /// the past and of the update, and 1 where the update is idle, else 0: `[4]`.
        numbers: Tensor<1>,
        /// The number of the update, `[1]`.
        update: Tensor<1, Int>,
    },
}

/// The numbers of a formula while updates are idle.
const IDLE: [f32; 4] = [0.0, 1.0, 1.0, 1.0];

impl Optimizer {
    /// This optimizer in place; none for one that [cannot be](OptimizerConfig::can_be_in_place).
    /// Its numbers are idle until [`begin_in_place`](Self::begin_in_place). With `skips`, an update
    /// may be told that it is skipped, if the optimizer [can skip](OptimizerConfig::can_skip) one.
    pub fn in_place(&self, device: &Device, skips: bool) -> Option<InPlace> {
        if !self.config.can_be_in_place() || skips && !self.config.can_skip() {
            return None;
        }
        let how = match self.config.clone() {
            OptimizerConfig::AdamW(config) if !skips && self.ops.form(Operator::AdamW) == Form::Fused => {
                let (mut kinds, mut kind_of) = (Vec::<(f64, f64)>::new(), HashMap::new());
                for (id, Group { weight_decay, lr_factor, .. }) in &self.groups {
                    let told = (*weight_decay, *lr_factor);
                    let kind = kinds.iter().position(|kind| *kind == told).unwrap_or_else(|| {
                        kinds.push(told);
                        kinds.len() - 1
                    });
                    kind_of.insert(*id, kind);
                }
                let numbers = DeviceUpdates::idle(kinds.len(), device);
                How::Fused { config, kinds, numbers, kind_of }
            }
            config => How::Formula {
                config,
                groups: self.groups.clone(),
                numbers: Tensor::from_floats(IDLE, device),
                update: Tensor::from_data(TensorData::from([1i32]), device),
            },
        };
        let state = self.state.iter().map(|(id, state)| (*id, state.clone())).collect();
        let has_begun = self.state.keys().map(|id| (*id, Tensor::ones([1], device))).collect();
        let (state, has_begun) = (RefCell::new(state), RefCell::new(has_begun));
        Some(InPlace { device: device.clone(), how, state, has_begun, copies: Copies::in_place() })
    }

    /// Counts an update and writes its numbers, for the learning rate `lr`, to where `in_place`
    /// finds them. `update` is its number where the device counts the updates that were not
    /// skipped, `[1]`.
    #[must_use]
    pub fn begin_in_place(&mut self, in_place: &InPlace, lr: f64, update: Option<Tensor<1, Int>>) -> Vec<Written> {
        self.step += 1;
        let device = &in_place.device;
        match &in_place.how {
            How::Fused { config, kinds, numbers, .. } => {
                let update =
                    |(weight_decay, lr_factor): &(f64, f64)| config.fused(lr * lr_factor, *weight_decay, self.step);
                let updates = kinds.iter().map(update).collect::<Vec<adamw::Update>>();
                vec![numbers.set(DeviceUpdates::new(&updates, device))]
            }
            How::Formula { config, numbers, update: number, .. } => {
                let scalar = |value: f64| Tensor::<1>::from_floats([value as f32], device);
                let step = i32::try_from(self.step).unwrap_or(i32::MAX);
                let corrections = match (config.adam(), &update) {
                    (None, _) => config.adafactor().map_or([1.0, 1.0], |config| config.weights(self.step)).map(scalar),
                    (Some(config), None) => config.corrections(self.step).map(scalar),
                    (Some(config), Some(update)) => self.tables.corrections(&config, self.step, update),
                };
                let [rate, root] = corrections;
                let told = Tensor::cat(vec![scalar(lr), rate, root, scalar(0.0)], 0);
                let update = update.unwrap_or_else(|| Tensor::from_data(TensorData::from([step]), device));
                vec![overwrite(numbers, told), overwrite_ints(number, update)]
            }
        }
    }

    /// Takes the state that `in_place` made for parameters which had none.
    pub fn adopt(&mut self, in_place: &InPlace) {
        for (id, state) in &*in_place.state.borrow() {
            self.state.entry(*id).or_insert_with(|| state.clone());
        }
    }
}

impl InPlace {
    /// Copies of the weights for the passes before an update, which writes them; none where it does
    /// not: a pass then casts each weight where it is used. They are those of the weights of the
    /// first pass until an update changes these, and of no others.
    pub fn copies(&self) -> Option<&Copies> {
        matches!(self.how, How::Fused { .. }).then_some(&self.copies)
    }

    /// From now on, until [`Optimizer::begin_in_place`], updates leave weights and state what they
    /// are.
    #[must_use]
    pub fn idle(&self) -> Vec<Written> {
        vec![match &self.how {
            How::Fused { kinds, numbers, .. } => numbers.set(DeviceUpdates::idle(kinds.len(), &self.device)),
            How::Formula { numbers, .. } => overwrite(numbers, Tensor::from_floats(IDLE, &self.device)),
        }]
    }

    /// The update of all parameters of `model` that have a gradient, each multiplied by `scale`,
    /// `[1]`. Nothing changes where `skipped`, `[1]`, is true, in one that was made to skip.
    #[must_use]
    pub fn apply<M: Module>(
        &self,
        model: &M,
        grads: &GradientsParams,
        scale: &Tensor<1>,
        skipped: &Tensor<1, Bool>,
    ) -> Vec<Written> {
        let (mut state, device) = (self.state.borrow_mut(), &self.device);
        match &self.how {
            How::Fused { numbers, kind_of, .. } => {
                // A recording writes the copies that there are now.
                self.copies.seal();
                let parameters = Parameters::default();
                let copies = &self.copies;
                let mut all = Together { grads, kind_of, device, state: &mut state, copies, parameters };
                model.visit(&mut all);
                let parameters = all.parameters;
                if parameters.is_empty() { Vec::new() } else { vec![update(parameters, numbers, scale)] }
            }
            How::Formula { config, groups, numbers, update } => {
                let [lr, rate, root, idle] = [0, 1, 2, 3].map(|index| numbers.clone().narrow(0, index, 1));
                let keeps = idle.greater_elem(0.0).bool_or(skipped.clone());
                let by = Tensor::cat(vec![keeps.clone().float(), keeps.clone().bool_not().float()], 0);
                let verdict = Verdict { overflow: keeps, update: update.clone() };
                let mut tables = Tables::default();
                let skip = Skip::with_told(&verdict, &mut tables, [rate, root]);
                let (state, has_begun, written) = (&mut state, &mut self.has_begun.borrow_mut(), Vec::new());
                let mut each = Each { config, groups, grads, scale, lr, by, skip, device, state, has_begun, written };
                model.visit(&mut each);
                each.written
            }
        }
    }
}

/// Zeros for a state of tensors of these sizes that was not there yet.
fn zeros(sizes: impl IntoIterator<Item = usize>, device: &Device) -> State {
    sizes.into_iter().map(|n| Tensor::zeros([n], device)).collect()
}

/// The parameters that have a gradient, for AdamW's kernel.
struct Together<'a> {
    grads: &'a GradientsParams,
    kind_of: &'a HashMap<ParamId, usize>,
    device: &'a Device,
    state: &'a mut HashMap<ParamId, State>,
    copies: &'a Copies,
    parameters: Parameters,
}

impl ModuleVisitor for Together<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(grad) = self.grads.get::<D>(param.id) else { return };
        let value = param.val().inner();
        let n = value.shape().num_elements();
        let state = self.state.entry(param.id).or_insert_with(|| zeros([n, n], self.device));
        let moments = [state[0].clone(), state[1].clone()];
        self.parameters.push(value, moments, grad, self.kind_of[&param.id]);
        if let Some(copy) = self.copies.place(param.id) {
            self.parameters.copy_last(copy);
        }
    }
}

/// The parameters that have a gradient, each updated by the formula.
struct Each<'a> {
    config: &'a OptimizerConfig,
    groups: &'a HashMap<ParamId, Group>,
    grads: &'a GradientsParams,
    scale: &'a Tensor<1>,
    /// `[1]`
    lr: Tensor<1>,
    /// The factors of the old and the new values, `[2]`: 1 for those that stay, 0 for the others.
    by: Tensor<1>,
    skip: Skip<'a>,
    device: &'a Device,
    state: &'a mut HashMap<ParamId, State>,
    has_begun: &'a mut HashMap<ParamId, Tensor<1>>,
    written: Vec<Written>,
}

impl ModuleVisitor for Each<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(grad) = self.grads.get::<D>(param.id) else { return };
        let (value, group) = (param.val().inner(), &self.groups[&param.id]);
        let shape = value.shape();
        let (n, own_shape) = (shape.num_elements(), shape.to_vec());
        let state = self.state.entry(param.id).or_insert_with(|| match self.config.adafactor() {
            Some(config) => zeros(config.state(&own_shape).into_iter().map(|(_, n)| n), self.device),
            None => zeros(std::iter::repeat_n(n, group.num_state), self.device),
        });
        let (old, mut new_state) = (value.clone().reshape([n]), state.clone());
        self.skip.has_begun = self
            .config
            .takes_first_whole()
            .then(|| self.has_begun.entry(param.id).or_insert_with(|| Tensor::zeros([1], self.device)).clone());
        let update = Update {
            value: old.clone(),
            grad: grad.reshape([n]) * self.scale.clone(),
            shape: &own_shape,
            hf_shape: &group.hf_shape,
            lr: 1.0,
            weight_decay: group.weight_decay,
            step: 0, // the corrections are given
            skip: Some(&mut self.skip),
        };
        let at_one = self.config.compute(group.is_layer_matrix, update, &mut new_state);
        let moved = old.clone() + (at_one - old) * (self.lr.clone() * group.lr_factor);
        let (mut places, mut values) = (TensorList::default(), TensorList::default());
        places.push(value);
        values.push::<D>(moved.reshape(shape));
        for (place, new) in state.iter().zip(new_state) {
            places.push(place.clone());
            values.push(new);
        }
        if let Some(has_begun) = self.skip.has_begun.take() {
            values.push(has_begun.ones_like());
            places.push(has_begun);
        }
        self.written.push(accumulate(&places, values, &self.by));
    }
}

impl OptimizerConfig {
    /// The settings by which Adam's moments are corrected, where it has such moments.
    fn adam(&self) -> Option<AdamConfig> {
        match self {
            Self::AdamW(config) | Self::Adam(config) | Self::Lamb(config) => Some(*config),
            Self::Muon(config) => Some(config.adamw),
            _ => None,
        }
    }

    /// Whether the first gradient of a parameter counts otherwise than the later ones.
    fn takes_first_whole(&self) -> bool {
        matches!(self, Self::Sgd(config) if config.momentum != 0.0 && config.dampening != 0.0)
    }

    fn adafactor(&self) -> Option<&AdafactorConfig> {
        match self {
            Self::Adafactor(config) => Some(config),
            _ => None,
        }
    }
}

impl AdamConfig {
    /// `1 / (1 - beta1^t)` and `sqrt(1 - beta2^t)` of the update of number `t`.
    fn corrections(&self, t: u64) -> [f64; 2] {
        let [first, second] = [self.beta1, self.beta2].map(|beta| 1.0 - beta.powf(t as f64));
        [1.0 / first, second.sqrt()]
    }
}
