//! Adagrad by the formula of `torch.optim.Adagrad` (Duchi et al. 2011): decay added to the
//! gradient, the gradient divided by the root of the sum of its squares.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::{State, Update};

/// Settings of Adagrad for all parameters and steps. Defaults are PyTorch's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AdagradConfig {
    /// The learning rate of update `t` is divided by `1 + (t - 1) lr_decay`. Default 0.
    pub lr_decay: f64,
    /// Added to the root. Default 1e-10.
    pub epsilon: f64,
}

impl Default for AdagradConfig {
    fn default() -> Self {
        Self { lr_decay: 0.0, epsilon: 1e-10 }
    }
}

/// The state's name, PyTorch's.
pub(super) const STATE: &str = "sum";

impl AdagradConfig {
    pub(super) fn update(&self, update: Update<'_, '_>, state: &mut State) -> Tensor<1> {
        let Update { value, grad, lr, weight_decay, step, .. } = update;
        let grad = if weight_decay == 0.0 { grad } else { grad + value.clone() * weight_decay };
        let square = grad.clone() * grad.clone();
        let sum = match state.pop() {
            Some(sum) => sum + square,
            None => square,
        };
        state.push(sum.clone());
        let lr = lr / (1.0 + step.saturating_sub(1) as f64 * self.lr_decay);
        value - grad / (sum.sqrt() + self.epsilon) * lr
    }
}
