//! One update of all parameters of a model. Which optimizer that is, its state and its groups are
//! [`Optimizer`]'s; here every parameter is given to its formula, or, where a device does better
//! with all of them at once, held back until they are known.

use std::collections::HashSet;

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use kiln_models::Operator;
use kiln_models::ops::Form;
use kiln_models::ops::adamw::{self, Parameters, Updated, updates_together};

use super::optimizer::{Optimizer, OptimizerConfig};
use super::skip::Skip;
use super::{State, Update, adam, lamb};

/// An update under way.
pub(super) struct Step<'a, 'b> {
    optimizer: &'a mut Optimizer,
    grads: GradientsParams,
    scale: &'a Tensor<1>,
    lr: f64,
    skip: Option<Skip<'b>>,
    together: Together,
}

/// Parameters whose update is made when all of them are known.
#[derive(Default)]
struct Together {
    parameters: Parameters,
    /// The numbers of the update, those of each kind of parameter.
    updates: Vec<adamw::Update>,
    /// Which they are.
    waiting: HashSet<ParamId>,
}

impl Together {
    /// The kind of those that are told `update`.
    fn kind(&mut self, update: adamw::Update) -> usize {
        self.updates.iter().position(|known| *known == update).unwrap_or_else(|| {
            self.updates.push(update);
            self.updates.len() - 1
        })
    }
}

impl<'a, 'b> Step<'a, 'b> {
    /// See [`Optimizer::step`] and, with `skip`, [`Optimizer::step_unless`].
    pub(super) fn new(
        optimizer: &'a mut Optimizer,
        grads: GradientsParams,
        scale: &'a Tensor<1>,
        lr: f64,
        skip: Option<Skip<'b>>,
    ) -> Self {
        Self { optimizer, grads, scale, lr, skip, together: Together::default() }
    }

    /// `model` after it.
    pub(super) fn make<M: Module>(mut self, model: M) -> M {
        let model = model.map(&mut self);
        let Self { optimizer, scale, together: Together { parameters, updates, waiting }, .. } = self;
        if waiting.is_empty() {
            return model;
        }
        let updated = parameters.update(&updates, scale);
        model.map(&mut PutBack { optimizer, waiting, updated })
    }
}

impl OptimizerConfig {
    /// The parameter of `update` after it, flat; `is_layer_matrix` is whether Muon takes it.
    pub(super) fn compute(&self, is_layer_matrix: bool, update: Update<'_, '_>, state: &mut State) -> Tensor<1> {
        match self {
            Self::AdamW(config) => config.adamw(update, state),
            Self::Adam(config) => config.adam(update, state),
            Self::Sgd(config) => config.update(update, state),
            Self::Adafactor(config) => config.update(update, state),
            Self::Lion(config) => config.update(update, state),
            Self::RmsProp(config) => config.update(update, state),
            Self::Adagrad(config) => config.update(update, state),
            Self::Lamb(config) => lamb::update(config, update, state),
            Self::Muon(config) if is_layer_matrix => config.update(update, state),
            Self::Muon(config) => config.adamw.adamw(update, state),
            Self::Own(own) => own.update(update, state),
        }
    }
}

impl ModuleMapper for Step<'_, '_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(grad) = self.grads.remove::<D>(param.id) else { return param };
        let (id, value, mapper) = param.consume();
        let copy = self.optimizer.copies().take(id);
        let tracked = tracked_like(&value);
        let value = value.inner();
        let Optimizer { config, step, groups, state, ops, .. } = &mut *self.optimizer;
        let group = groups.get(&id).expect("an optimizer is made for the parameters of its model");
        let state = state.entry(id).or_default();
        let (lr, weight_decay) = (self.lr * group.lr_factor, group.weight_decay);
        let adamw = match config {
            OptimizerConfig::AdamW(config) => Some(*config),
            OptimizerConfig::Muon(config) if !group.is_layer_matrix => Some(config.adamw),
            _ => None,
        };
        if let (Form::Fused, Some(config), None) = (ops.form(Operator::AdamW), adamw, &self.skip) {
            let update = config.fused(lr, weight_decay, *step);
            let moments = adam::moments(state, &value);
            let device = value.device();
            if updates_together(&device) {
                let kind = self.together.kind(update);
                self.together.parameters.push(value, moments, grad, kind);
                if let Some(copy) = copy {
                    self.together.parameters.copy_last(copy);
                }
                self.together.waiting.insert(id);
                return Param::from_mapped_value(id, tracked(Tensor::empty([1; D], &device)), mapper);
            }
            let mut alone = Parameters::default();
            alone.push(value, moments, grad, 0);
            let updated = alone.update(&[update], self.scale).take();
            let (value, moments, _) = updated.expect("as many parameters are updated as there are");
            *state = moments.to_vec();
            return Param::from_mapped_value(id, tracked(value), mapper);
        }
        let shape = value.shape();
        let (n, own_shape) = (shape.num_elements(), shape.to_vec());
        let value = value.reshape([n]);
        let before = self.skip.as_ref().map(|_| (value.clone(), state.clone()));
        let update = Update {
            value,
            grad: grad.reshape([n]) * self.scale.clone(),
            shape: &own_shape,
            hf_shape: &group.hf_shape,
            lr,
            weight_decay,
            step: *step,
            skip: self.skip.as_mut(),
        };
        let updated = config.compute(group.is_layer_matrix, update, state);
        let updated = match (&self.skip, before) {
            (Some(skip), Some((old, old_state))) => skip.choose(updated, old, state, old_state),
            _ => updated,
        };
        Param::from_mapped_value(id, tracked(updated.reshape(shape)), mapper)
    }
}

/// Gives parameters what they waited for.
struct PutBack<'a> {
    optimizer: &'a mut Optimizer,
    waiting: HashSet<ParamId>,
    updated: Updated,
}

impl ModuleMapper for PutBack<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !self.waiting.contains(&param.id) {
            return param;
        }
        let (value, moments, copy) = self.updated.take().expect("as many parameters are updated as wait");
        if let Some(copy) = copy {
            self.optimizer.copies().put(param.id, copy);
        }
        self.optimizer.state.insert(param.id, moments.to_vec());
        let (id, stand_in, mapper) = param.consume();
        Param::from_mapped_value(id, tracked_like(&stand_in)(value), mapper)
    }
}

/// A function that makes a tensor without autodiff a tracked one if `old` is, with the same
/// strategy of recomputation.
pub(super) fn tracked_like<const D: usize>(old: &Tensor<D>) -> impl Fn(Tensor<D>) -> Tensor<D> + use<D> {
    let (require_grad, strategy) = (old.is_require_grad(), old.gradient_checkpointing_strategy());
    move |value| {
        let value = Tensor::from_inner(value);
        // `from_inner` gives the default strategy, and autodiff refuses two of them in one graph.
        match strategy {
            Some(strategy) => value.with_gradient_checkpointing_strategy(strategy).set_require_grad(require_grad),
            None => value.set_require_grad(require_grad),
        }
    }
}
