//! An optimizer and a schedule of one's own: what `optimizers=(optimizer, lr_scheduler)` is to the
//! Trainer of `transformers`. Both have a name that says all of their settings, by which a run that
//! is continued knows them again.

use std::fmt;
use std::sync::Arc;

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// An optimizer of one's own: the update of one parameter from its gradient.
///
/// The Trainer does what every optimizer of Kiln's leaves to it: it divides and clips gradients,
/// accumulates micro-batches, freezes parameters, groups weight decay, and saves and restores the
/// state. Steps with such an optimizer are not captured, f16 and
/// `distributed.optimizer_sharding` are refused.
///
/// ```
/// use burn::tensor::Tensor;
/// use kiln_train::optim::{ParameterUpdate, UpdateRule};
///
/// /// The sign of the momentum (signSGD with momentum; Bernstein et al. 2018).
/// #[derive(Debug)]
/// struct Signum(f64);
///
/// impl UpdateRule for Signum {
///     fn name(&self) -> String {
///         format!("signum, momentum {}", self.0)
///     }
///     fn state(&self) -> &'static [&'static str] {
///         &["momentum_buffer"]
///     }
///     fn update(&self, update: ParameterUpdate, state: &mut Vec<Tensor<1>>) -> Tensor<1> {
///         let ParameterUpdate { value, grad, lr, weight_decay, .. } = update;
///         let past = state.pop().unwrap_or_else(|| grad.zeros_like());
///         let momentum = past * self.0 + grad * (1.0 - self.0);
///         state.push(momentum.clone());
///         value * (1.0 - lr * weight_decay) - momentum.sign() * lr
///     }
/// }
/// ```
pub trait UpdateRule: fmt::Debug + Send + Sync {
    /// The name, with every setting that an update depends on. A checkpoint is continued only by a
    /// rule of the same name.
    fn name(&self) -> String;

    /// The names of the tensors that are kept for every parameter, each as large as it, in the
    /// order of the state of [`update`](Self::update). By default none.
    fn state(&self) -> &'static [&'static str] {
        &[]
    }

    /// The parameter after the update, `[n]`. `state` is empty at the first update of a parameter;
    /// afterwards it has the tensors of [`state`](Self::state), `[n]` each, and this leaves as many
    /// in it.
    fn update(&self, update: ParameterUpdate, state: &mut Vec<Tensor<1>>) -> Tensor<1>;
}

/// One update of one parameter. Tensors are flat, f32, without autodiff.
#[derive(Debug, Clone)]
pub struct ParameterUpdate {
    /// The parameter, `[n]`.
    pub value: Tensor<1>,
    /// The gradient of the loss, divided and clipped, `[n]`.
    pub grad: Tensor<1>,
    /// The shape of the parameter, as `state_dict()` of a PyTorch model has it: `[out, in]` of a
    /// linear layer.
    pub shape: Vec<usize>,
    /// The learning rate of this parameter in this step.
    pub lr: f64,
    /// Its weight decay: 0 for biases and the weights of norms.
    pub weight_decay: f64,
    /// The number of this update, from 1.
    pub step: u64,
}

/// A learning-rate schedule of one's own (`torch.optim.lr_scheduler.LambdaLR`): the rate of a step
/// is the peak, `trainer.learning_rate`, times a function of the step.
///
/// ```
/// use kiln_train::optim::LambdaLr;
///
/// // Half of the rate in the second half of the run.
/// let schedule = LambdaLr::new("halved at half", |step, total| if 2 * step < total { 1.0 } else { 0.5 });
/// # drop(schedule);
/// ```
#[derive(Clone, Serialize, Deserialize)]
pub struct LambdaLr {
    name: String,
    #[serde(skip)]
    factor: Option<Arc<Factor>>,
}

/// From the number of completed steps and the length of the run to a factor of the peak.
type Factor = dyn Fn(usize, usize) -> f64 + Send + Sync;

impl LambdaLr {
    /// The schedule `name` whose step after `step` completed ones, of a run of `total`, has the
    /// peak rate times `factor(step, total)`. The name says what the function depends on: a
    /// checkpoint is continued only under a schedule of the same name.
    pub fn new(name: impl Into<String>, factor: impl Fn(usize, usize) -> f64 + Send + Sync + 'static) -> Self {
        Self { name: name.into(), factor: Some(Arc::new(factor)) }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The factor; none for a schedule whose name alone is known, from a file.
    pub(super) fn factor(&self, step: usize, total: usize) -> Option<f64> {
        self.factor.as_ref().map(|factor| factor(step, total))
    }
}

impl PartialEq for LambdaLr {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl fmt::Debug for LambdaLr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LambdaLr").field(&self.name).finish()
    }
}

/// An [`UpdateRule`] as a plan holds it: its name, and the rule where this process has it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OwnOptimizer {
    name: String,
    #[serde(skip)]
    rule: Option<Arc<dyn UpdateRule>>,
}

impl OwnOptimizer {
    /// The optimizer that updates by `rule`.
    pub(crate) fn new(rule: impl UpdateRule + 'static) -> Self {
        Self { name: rule.name(), rule: Some(Arc::new(rule)) }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The names of its state; none for an optimizer whose name alone is known, from a file.
    pub(super) fn state(&self) -> &'static [&'static str] {
        self.rule.as_ref().map_or(&[], |rule| rule.state())
    }

    pub(super) fn update(&self, update: super::Update<'_, '_>, state: &mut super::State) -> Tensor<1> {
        let super::Update { value, grad, hf_shape, lr, weight_decay, step, .. } = update;
        let rule = self.rule.as_ref().expect("a plan that trains is derived, and was not read from a file");
        let update = ParameterUpdate { value, grad, shape: hf_shape.to_vec(), lr, weight_decay, step };
        rule.update(update, state)
    }
}

impl PartialEq for OwnOptimizer {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}
