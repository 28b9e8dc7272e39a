//! Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2): every
//! weight moves by the learning rate in the direction of the sign of an average, so its rate is 3
//! to 10 times smaller than AdamW's and its decay as much larger.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::{State, Update};

/// Settings of Lion for all parameters and steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LionConfig {
    /// Weight of the past in the direction of a step. Default 0.9.
    pub beta1: f64,
    /// Decay of the average of gradients. Default 0.99, the paper's.
    pub beta2: f64,
}

impl Default for LionConfig {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.99 }
    }
}

/// The state's name.
pub(super) const STATE: &str = "exp_avg";

impl LionConfig {
    pub(super) fn update(&self, update: Update<'_, '_>, state: &mut State) -> Tensor<1> {
        let Update { value, grad, lr, weight_decay, .. } = update;
        let past = state.pop().unwrap_or_else(|| grad.zeros_like());
        let direction = (past.clone() * self.beta1 + grad.clone() * (1.0 - self.beta1)).sign();
        state.push(past * self.beta2 + grad * (1.0 - self.beta2));
        value * (1.0 - lr * weight_decay) - direction * lr
    }
}
