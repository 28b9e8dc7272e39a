//! Which parameters learn, and how fast: weight decay (Hugging Face's two groups), freezing, and
//! learning rates that fall from the head down to the embeddings. Resolved and checked when the
//! plan is made, from names alone.

use std::collections::{BTreeSet, HashSet};

use burn::module::{ModuleMapper, Param, ParamId};
use burn::tensor::Tensor;
use kiln_models::weights::{Depth, Parameter, StateDict, parameters};
use serde::{Deserialize, Serialize};

/// The settings of each parameter of a model besides the step's learning rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ParameterGroups {
    pub(crate) weight_decay: f64,
    pub(crate) lr_decay: f64,
    pub(crate) num_layers: usize,
    pub(crate) frozen: BTreeSet<String>,
}

impl ParameterGroups {
    /// Everything learns at the same rate; biases and LayerNorm weights do not decay.
    pub fn new(weight_decay: f64) -> Self {
        Self { weight_decay, lr_decay: 1.0, num_layers: 0, frozen: BTreeSet::new() }
    }

    /// The weight decay of the parameters that decay.
    pub fn stated_weight_decay(&self) -> f64 {
        self.weight_decay
    }

    /// Whether `parameter` learns.
    pub fn learns(&self, parameter: &Parameter) -> bool {
        !self.frozen.contains(&parameter.name)
    }

    /// Its weight decay.
    pub fn weight_decay(&self, parameter: &Parameter) -> f64 {
        if parameter.decays() { self.weight_decay } else { 0.0 }
    }

    /// The factor of the step's learning rate for `parameter`: `decay^0` above the layers,
    /// `decay^1` in the top layer, and `decay^(layers + 1)` in the embeddings (as in BEiT's
    /// fine-tuning, Bao et al. 2021).
    pub fn lr_factor(&self, parameter: &Parameter) -> f64 {
        self.factor(parameter.depth())
    }

    fn factor(&self, depth: Depth) -> f64 {
        let below_head = match depth {
            Depth::Head => 0,
            Depth::Layer(number) => self.num_layers.saturating_sub(number),
            Depth::Embeddings => self.num_layers + 1,
        };
        self.lr_decay.powi(below_head as i32)
    }

    /// The factors from the top down, for the plan; none where all are 1.
    pub fn lr_factors(&self) -> Vec<(String, f64)> {
        if self.lr_decay == 1.0 {
            return Vec::new();
        }
        let layers = (0..self.num_layers).rev().map(|number| (format!("layer {number}"), Depth::Layer(number)));
        let all = [("head".to_string(), Depth::Head)].into_iter().chain(layers);
        let all = all.chain([("embeddings".to_string(), Depth::Embeddings)]);
        all.map(|(name, depth)| (name, self.factor(depth))).collect()
    }

    /// `model` with the frozen parameters out of the backward pass: they get no gradient, and where
    /// nothing below them learns either, none is computed.
    #[must_use]
    pub fn freeze<M: StateDict>(&self, model: M) -> M {
        if self.frozen.is_empty() {
            return model;
        }
        let frozen = parameters(&model).into_iter().filter(|parameter| !self.learns(parameter));
        let frozen = frozen.map(|parameter| parameter.id).collect();
        model.map(&mut Freeze { frozen })
    }
}

struct Freeze {
    frozen: HashSet<ParamId>,
}

impl ModuleMapper for Freeze {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.frozen.contains(&param.id) { param.set_require_grad(false) } else { param }
    }
}
