//! The optimizer that the arguments ask for: the update, its groups of parameters, the steps that
//! are not applied, and the loss.

use std::collections::BTreeSet;

use glob::Pattern;
use kiln_core::error::{Error, Result};
use kiln_models::weights::{Depth, Parameter};

use super::{Feature, TrainingArguments};
use crate::optim::arguments::OptimizerName;
use crate::optim::loss::{Accumulation, LossOptions, Reduction};
use crate::optim::outliers::OutlierLimits;
use crate::optim::{
    AdafactorConfig, AdagradConfig, AdamConfig, LionConfig, MuonConfig, OptimizerConfig, ParameterGroups,
    RmsPropConfig, SgdConfig,
};

impl From<&TrainingArguments> for OptimizerConfig {
    /// The optimizer that `[trainer]` asks for.
    fn from(trainer: &TrainingArguments) -> Self {
        let args = &trainer.optim_args;
        let (beta1, beta2) = (trainer.adam_beta1, trainer.adam_beta2);
        let adam = AdamConfig { beta1, beta2, epsilon: trainer.adam_epsilon };
        match trainer.optim {
            OptimizerName::AdamW => Self::AdamW(adam),
            OptimizerName::Adam => Self::Adam(adam),
            OptimizerName::Lamb => Self::Lamb(adam),
            OptimizerName::Lion => Self::Lion(LionConfig { beta1, beta2 }),
            OptimizerName::RmsProp => {
                let default = RmsPropConfig::default();
                Self::RmsProp(RmsPropConfig {
                    alpha: args.alpha.unwrap_or(default.alpha),
                    epsilon: args.eps.unwrap_or(default.epsilon),
                    momentum: args.momentum.unwrap_or(default.momentum),
                    centered: args.centered.unwrap_or(default.centered),
                })
            }
            OptimizerName::Adagrad => {
                let default = AdagradConfig::default();
                Self::Adagrad(AdagradConfig {
                    lr_decay: args.lr_decay.unwrap_or(default.lr_decay),
                    epsilon: args.eps.unwrap_or(default.epsilon),
                })
            }
            OptimizerName::Sgd => Self::Sgd(SgdConfig {
                momentum: args.momentum.unwrap_or(0.0),
                dampening: args.dampening.unwrap_or(0.0),
                nesterov: args.nesterov.unwrap_or(false),
            }),
            OptimizerName::Adafactor => {
                let default = AdafactorConfig::default();
                Self::Adafactor(AdafactorConfig {
                    scale_parameter: args.scale_parameter.unwrap_or(default.scale_parameter),
                    clip_threshold: args.clip_threshold.unwrap_or(default.clip_threshold),
                    decay_rate: args.decay_rate.unwrap_or(default.decay_rate),
                    beta1: args.beta1,
                })
            }
            OptimizerName::Muon => {
                let default = MuonConfig::default();
                Self::Muon(MuonConfig {
                    momentum: args.momentum.unwrap_or(default.momentum),
                    nesterov: args.nesterov.unwrap_or(default.nesterov),
                    ns_steps: args.ns_steps.unwrap_or(default.ns_steps),
                    adjust_lr: args.adjust_lr_fn.unwrap_or(default.adjust_lr),
                    adamw: adam,
                })
            }
        }
    }
}

impl ParameterGroups {
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
}

impl OutlierLimits {
    /// The limits that `[trainer]` asks for; none if there is no limit.
    pub fn of(trainer: &TrainingArguments) -> Option<Self> {
        let limit = |limit: Option<f64>| limit.filter(|limit| *limit > 0.0);
        let (loss, grad_norm) = (limit(trainer.skip_update_lossz), limit(trainer.skip_update_gradz));
        (loss.is_some() || grad_norm.is_some()).then_some(Self { loss, grad_norm })
    }
}

impl LossOptions {
    /// The options of `[trainer]` where a model brings a loss of its own, of which nothing is known
    /// but its sum and its count.
    ///
    /// # Errors
    /// Label smoothing and class weights, which are a part of the loss, and noise on embeddings.
    pub fn of_a_program(trainer: &TrainingArguments) -> Result<Self> {
        trainer.check_without(|feature| feature == Feature::Loss)?;
        let reduction = match trainer.accumulation {
            Accumulation::Exact => Reduction::Exact,
            Accumulation::Transformers => Reduction::MeanOfMeans,
        };
        Ok(Self { reduction, ..Self::default() })
    }
}
