//! AdamW (Loshchilov & Hutter 2017), Adam (Kingma & Ba 2014) and the moments that LAMB shares with
//! them, by the formulas of `torch.optim.AdamW` and `torch.optim.Adam`: bias-corrected moments,
//! epsilon outside the square root. They differ in the weight decay: AdamW's shrinks the weights,
//! Adam's is added to the gradient.

use burn::tensor::Tensor;
use kiln_models::ops::adamw;
use serde::{Deserialize, Serialize};

use super::skip::Skip;
use super::{State, Update};

/// Settings of AdamW, Adam and LAMB for all parameters and steps. The defaults are PyTorch's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AdamConfig {
    /// Decay of the first moment. Default 0.9.
    pub beta1: f64,
    /// Decay of the second moment. Default 0.999.
    pub beta2: f64,
    /// Added to the denominator. Default 1e-8.
    pub epsilon: f64,
}

impl Default for AdamConfig {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 }
    }
}

/// The state's names, PyTorch's.
pub(super) const STATE: [&str; 2] = ["exp_avg", "exp_avg_sq"];

impl AdamConfig {
    /// AdamW: `w <- w (1 - lr decay) - lr m / (sqrt(v) + epsilon)`.
    pub(super) fn adamw(&self, update: Update<'_, '_>, state: &mut State) -> Tensor<1> {
        let Update { value, grad, lr, weight_decay, step, skip, .. } = update;
        let moved = self.ratio(grad, step, lr, state, skip);
        let decay = lr * weight_decay;
        if decay == 0.0 { value - moved } else { value * (1.0 - decay) - moved }
    }

    /// The numbers of one fused AdamW update.
    pub(super) fn fused(&self, lr: f64, weight_decay: f64, step: u64) -> adamw::Update {
        let Self { beta1, beta2, epsilon } = *self;
        adamw::Update { beta1, beta2, epsilon, lr, weight_decay, step }
    }

    /// Adam: as AdamW, but the decay is part of the gradient.
    pub(super) fn adam(&self, update: Update<'_, '_>, state: &mut State) -> Tensor<1> {
        let Update { value, grad, lr, weight_decay, step, skip, .. } = update;
        let grad = if weight_decay == 0.0 { grad } else { grad + value.clone() * weight_decay };
        value - self.ratio(grad, step, lr, state, skip)
    }

    /// Takes `grad` into both moments and returns `factor` times their bias-corrected ratio, `m /
    /// (sqrt(v) + epsilon)`.
    pub(super) fn ratio(
        &self,
        grad: Tensor<1>,
        step: u64,
        factor: f64,
        state: &mut State,
        skip: Option<&mut Skip<'_>>,
    ) -> Tensor<1> {
        let Self { beta1, beta2, epsilon } = *self;
        let squared = grad.clone().square() * (1.0 - beta2);
        let first = grad * (1.0 - beta1);
        let (exp_avg, exp_avg_sq) = match (state.pop(), state.pop()) {
            (Some(exp_avg_sq), Some(exp_avg)) => (exp_avg * beta1 + first, exp_avg_sq * beta2 + squared),
            _ => (first, squared),
        };
        let (numerator, root) = (exp_avg.clone(), exp_avg_sq.clone().sqrt());
        let ratio = match skip {
            None => {
                let correction1 = 1.0 - beta1.powf(step as f64);
                let correction2 = 1.0 - beta2.powf(step as f64);
                numerator / (root / correction2.sqrt() + epsilon) * (factor / correction1)
            }
            Some(skip) => {
                let [rate, correction2] = skip.corrections(self, step, factor);
                numerator / (root / correction2 + epsilon) * rate
            }
        };
        *state = vec![exp_avg, exp_avg_sq];
        ratio
    }
}

/// The moments in `state`, zeros like the flattened `value` before the first update; `state` is
/// left without them.
pub(super) fn moments<const D: usize>(state: &mut State, value: &Tensor<D>) -> [Tensor<1>; 2] {
    let zeros = || Tensor::zeros([value.shape().num_elements()], &value.device());
    match (state.pop(), state.pop()) {
        (Some(exp_avg_sq), Some(exp_avg)) => [exp_avg, exp_avg_sq],
        _ => [zeros(), zeros()],
    }
}
