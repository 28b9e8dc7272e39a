//! Stochastic gradient descent by the formula of `torch.optim.SGD`: decay added to the gradient,
//! momentum with dampening, Nesterov's variant. The first gradient enters the momentum whole, as
//! there.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::{State, Update};

/// Settings of SGD for all parameters and steps. Default: no momentum.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct SgdConfig {
    /// Part of the past gradients that stays; 0 keeps no state.
    pub momentum: f64,
    /// Part of a new gradient that is left out of the momentum.
    pub dampening: f64,
    /// Looks one momentum step ahead.
    pub nesterov: bool,
}

/// The state's name, PyTorch's.
pub(super) const STATE: &str = "momentum_buffer";

impl SgdConfig {
    pub(super) fn update(&self, update: Update<'_, '_>, state: &mut State) -> Tensor<1> {
        let Update { value, grad, lr, weight_decay, skip, .. } = update;
        let grad = if weight_decay == 0.0 { grad } else { grad + value.clone() * weight_decay };
        if self.momentum == 0.0 {
            return value - grad * lr;
        }
        let buffer = match state.pop() {
            Some(buffer) => {
                let moved = buffer * self.momentum + grad.clone() * (1.0 - self.dampening);
                match skip {
                    // All before it were skipped: it is the first gradient, whole.
                    Some(skip) if self.dampening != 0.0 => {
                        moved.mask_where(skip.is_first(grad.dims()[0]), grad.clone())
                    }
                    _ => moved,
                }
            }
            None => grad.clone(),
        };
        state.push(buffer.clone());
        let direction = if self.nesterov { grad + buffer * self.momentum } else { buffer };
        value - direction * lr
    }
}
