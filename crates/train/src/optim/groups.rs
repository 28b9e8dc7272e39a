//! Which parameters learn, and how fast: weight decay (Hugging Face's two groups), freezing, and
//! learning rates that fall from the head down to the embeddings. Resolved and checked when the
//! plan is made, from names alone.

use std::collections::{BTreeSet, HashSet};

use burn::module::{ModuleMapper, Param, ParamId};
use burn::tensor::Tensor;
use glob::Pattern;
use kiln_core::error::{Error, Result};
use kiln_models::weights::{Depth, Parameter, StateDict, parameters};
use serde::{Deserialize, Serialize};

use crate::arguments::TrainingArguments;

/// The settings of each parameter of a model besides the step's learning rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ParameterGroups {
    weight_decay: f64,
    lr_decay: f64,
    num_layers: usize,
    frozen: BTreeSet<String>,
}

impl ParameterGroups {
    /// Everything learns at the same rate; biases and LayerNorm weights do not decay.
    pub fn new(weight_decay: f64) -> Self {
        Self { weight_decay, lr_decay: 1.0, num_layers: 0, frozen: BTreeSet::new() }
    }

    /// The groups that `[trainer]` asks for in a model with these parameters. Those of a base under
    /// adapters are frozen whatever it says.
    ///
    /// # Errors
    /// A pattern that is none or that no tensor has, more frozen layers than there are, nothing
    /// left to train.
    pub fn of(trainer: &TrainingArguments, parameters: &[Parameter]) -> Result<Self> {
        let layers = parameters.iter().filter_map(|parameter| match parameter.depth() {
            Depth::Layer(number) => Some(number + 1),
            _ => None,
        });
        let num_layers = layers.max().unwrap_or(0);
        let of_base = parameters.iter().filter(|parameter| parameter.saved_as.is_none());
        let mut frozen = of_base.map(|parameter| parameter.name.clone()).collect::<BTreeSet<_>>();
        for text in &trainer.freeze {
            let pattern = Pattern::new(text)
                .map_err(|error| Error::config(format!("trainer.freeze: {text:?} is no pattern: {error}")))?;
            let found = parameters.iter().filter(|parameter| pattern.matches(&parameter.name)).collect::<Vec<_>>();
            if found.is_empty() {
                let some = parameters.iter().step_by(parameters.len().div_ceil(6).max(1));
                let some = some.map(|parameter| parameter.name.as_str()).collect::<Vec<_>>().join(", ");
                return Err(Error::config(format!("trainer.freeze: no tensor of the model fits {text:?}")).help(
                    format!("patterns are of whole Hugging Face names with * and ?; the model has {some}, ..."),
                ));
            }
            frozen.extend(found.into_iter().map(|parameter| parameter.name.clone()));
        }
        if trainer.freeze_layers > num_layers {
            return Err(Error::config(format!(
                "trainer.freeze_layers: the model has {num_layers} layers, got {}",
                trainer.freeze_layers
            ))
            .help("freeze fewer layers"));
        }
        if trainer.freeze_layers > 0 {
            let below = parameters.iter().filter(|parameter| match parameter.depth() {
                Depth::Embeddings => true,
                Depth::Layer(number) => number < trainer.freeze_layers,
                Depth::Head => false,
            });
            frozen.extend(below.map(|parameter| parameter.name.clone()));
        }
        if frozen.len() == parameters.len() {
            return Err(Error::config("trainer.freeze: every tensor of the model is frozen, so nothing would learn")
                .help("freeze fewer layers (trainer.freeze_layers) or name fewer tensors (trainer.freeze)"));
        }
        let lr_decay = trainer.layer_wise_lr_decay.unwrap_or(1.0);
        Ok(Self { weight_decay: trainer.weight_decay, lr_decay, num_layers, frozen })
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
