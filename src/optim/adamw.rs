//! AdamW (Loshchilov & Hutter 2017) over all parameters of a model, by PyTorch's formula and with its defaults
//! (`torch.optim.AdamW`): decoupled decay first, bias-corrected moments, epsilon outside the square root.
//! State lives on the device in f32, flat, keyed by parameter; it leaves and enters under Hugging Face's parameter names.

use std::collections::{BTreeMap, HashMap};

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor, TensorData};
use kiln_models::Ops;
use kiln_models::ops::adamw;
use kiln_models::weights::{NamedTensor, parameters};

use crate::error::{Error, Result};
use crate::execution::read_values;

/// What AdamW is told once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWConfig {
    /// Decay of the first moment. Default 0.9.
    pub beta1: f64,
    /// Decay of the second moment. Default 0.999.
    pub beta2: f64,
    /// Added to the denominator. Default 1e-8.
    pub epsilon: f64,
    /// Decoupled weight decay of every parameter that decays. Default 0.
    pub weight_decay: f64,
}

impl Default for AdamWConfig {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 }
    }
}

/// The optimizer with its state.
#[derive(Debug, Clone)]
pub struct AdamW {
    config: AdamWConfig,
    /// How many updates have been made.
    step: u64,
    /// Weight decay of each parameter: the config's, or 0 for biases and LayerNorm weights.
    decay: HashMap<ParamId, f64>,
    moments: BTreeMap<ParamId, Moments>,
    /// In which form the update computes.
    ops: Ops,
}

/// The endings of the two moments' names, PyTorch's.
const MOMENTS: [&str; 2] = ["exp_avg", "exp_avg_sq"];

/// First and second moment of one parameter, flat `[n]`, f32.
#[derive(Debug, Clone)]
struct Moments {
    exp_avg: Tensor<1>,
    exp_avg_sq: Tensor<1>,
}

impl AdamW {
    /// An optimizer for `model`, without state yet. Parameter groups are Hugging Face's: no decay on biases and norms.
    pub fn new<M: Module>(config: AdamWConfig, model: &M) -> Self {
        let decay = parameters(model)
            .into_iter()
            .map(|parameter| (parameter.id, if parameter.decays() { config.weight_decay } else { 0.0 }))
            .collect();
        Self { config, step: 0, decay, moments: BTreeMap::new(), ops: Ops::Plain }
    }

    /// The same optimizer, computing in the form `ops`: [`Ops::Fused`] updates a parameter in one pass over it, its gradient
    /// and its moments.
    #[must_use]
    pub fn with_ops(mut self, ops: Ops) -> Self {
        self.ops = ops;
        self
    }

    /// One update with learning rate `lr`. `scale`, `[1]`, multiplies every gradient: it carries the division by the loss
    /// count and the clipping, so that neither needs a pass of its own or a value on the host.
    #[must_use]
    pub fn step<M: Module>(&mut self, model: M, grads: GradientsParams, scale: &Tensor<1>, lr: f64) -> M {
        self.step += 1;
        model.map(&mut Update { optimizer: self, grads, scale, lr })
    }

    /// The state on the host: `NAME.exp_avg` and `NAME.exp_avg_sq`, flat in Kiln's own layout, `[n]`, for every parameter
    /// that has been updated. The number of updates is the caller's to keep.
    ///
    /// # Errors
    /// The device's, when a value cannot be read.
    pub fn export<M: Module>(&self, model: &M) -> Result<Vec<NamedTensor>> {
        let mut tensors = Vec::new();
        for parameter in parameters(model) {
            let Some(moments) = self.moments.get(&parameter.id) else { continue };
            for (ending, moment) in MOMENTS.into_iter().zip([&moments.exp_avg, &moments.exp_avg_sq]) {
                let name = format!("{}.{ending}", parameter.name);
                tensors.push(NamedTensor {
                    name,
                    shape: vec![parameter.num_elements()],
                    data: read_values(moment.clone())?,
                });
            }
        }
        Ok(tensors)
    }

    /// Puts back what [`export`](Self::export) gave after `step` updates of a model of the same shape.
    ///
    /// # Errors
    /// Names or sizes that are not the model's, or one moment without the other; the state is then as it was.
    pub fn import<M: Module>(
        &mut self,
        model: &M,
        step: u64,
        tensors: Vec<NamedTensor>,
        device: &Device,
    ) -> Result<()> {
        let mut given = tensors.into_iter().map(|tensor| (tensor.name, tensor.data)).collect::<BTreeMap<_, _>>();
        let mut moments = BTreeMap::new();
        for parameter in parameters(model) {
            let found = MOMENTS.map(|ending| given.remove(&format!("{}.{ending}", parameter.name)));
            let n = parameter.num_elements();
            match found {
                [None, None] => {}
                [Some(first), Some(second)] if first.len() == n && second.len() == n => {
                    let [exp_avg, exp_avg_sq] =
                        [first, second].map(|values| Tensor::from_data(TensorData::new(values, [n]), device));
                    moments.insert(parameter.id, Moments { exp_avg, exp_avg_sq });
                }
                _ => {
                    return Err(Error::data(format!(
                        "the optimizer's state of {} does not fit: expected both moments with {n} values",
                        parameter.name
                    )));
                }
            }
        }
        if let Some(name) = given.keys().next() {
            return Err(Error::data(format!("the optimizer's state has {name}, which the model does not have")));
        }
        (self.step, self.moments) = (step, moments);
        Ok(())
    }

    /// The parameter `id` after an update, `value`, `grad` `[n]`.
    fn update(&mut self, id: ParamId, value: Tensor<1>, grad: Tensor<1>, scale: &Tensor<1>, lr: f64) -> Tensor<1> {
        match self.ops {
            Ops::Plain => self.update_plain(id, value, grad * scale.clone(), lr),
            Ops::Fused => self.update_fused(id, value, grad, scale, lr),
        }
    }

    fn update_fused(
        &mut self,
        id: ParamId,
        value: Tensor<1>,
        grad: Tensor<1>,
        scale: &Tensor<1>,
        lr: f64,
    ) -> Tensor<1> {
        let AdamWConfig { beta1, beta2, epsilon, .. } = self.config;
        let weight_decay = self.decay.get(&id).copied().unwrap_or(0.0);
        let Moments { exp_avg, exp_avg_sq } = self.moments.remove(&id).unwrap_or_else(|| {
            let zeros = || Tensor::zeros_like(&grad);
            Moments { exp_avg: zeros(), exp_avg_sq: zeros() }
        });
        let update = adamw::Update { beta1, beta2, epsilon, lr, weight_decay, step: self.step };
        let state = update.fused(adamw::State { value, exp_avg, exp_avg_sq }, grad, scale);
        self.moments.insert(id, Moments { exp_avg: state.exp_avg, exp_avg_sq: state.exp_avg_sq });
        state.value
    }

    fn update_plain(&mut self, id: ParamId, value: Tensor<1>, grad: Tensor<1>, lr: f64) -> Tensor<1> {
        let AdamWConfig { beta1, beta2, epsilon, .. } = self.config;
        let squared = grad.clone().square() * (1.0 - beta2);
        let first = grad * (1.0 - beta1);
        let moments = match self.moments.remove(&id) {
            Some(Moments { exp_avg, exp_avg_sq }) => {
                Moments { exp_avg: exp_avg * beta1 + first, exp_avg_sq: exp_avg_sq * beta2 + squared }
            }
            None => Moments { exp_avg: first, exp_avg_sq: squared },
        };
        let correction1 = 1.0 - beta1.powf(self.step as f64);
        let correction2 = 1.0 - beta2.powf(self.step as f64);
        let denominator = moments.exp_avg_sq.clone().sqrt() / correction2.sqrt() + epsilon;
        let update = moments.exp_avg.clone() / denominator * (lr / correction1);
        self.moments.insert(id, moments);
        let decay = lr * self.decay.get(&id).copied().unwrap_or(0.0);
        if decay == 0.0 { value - update } else { value * (1.0 - decay) - update }
    }
}

struct Update<'a> {
    optimizer: &'a mut AdamW,
    grads: GradientsParams,
    scale: &'a Tensor<1>,
    lr: f64,
}

impl ModuleMapper for Update<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(grad) = self.grads.remove::<D>(param.id) else { return param };
        let (id, value, mapper) = param.consume();
        let require_grad = value.is_require_grad();
        let value = value.inner();
        let shape = value.shape();
        let n = shape.num_elements();
        let updated = self.optimizer.update(id, value.reshape([n]), grad.reshape([n]), self.scale, self.lr);
        let updated = Tensor::<D>::from_inner(updated.reshape(shape)).set_require_grad(require_grad);
        Param::from_mapped_value(id, updated, mapper)
    }
}
