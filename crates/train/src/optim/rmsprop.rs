//! RMSprop by the formula of `torch.optim.RMSprop` (Hinton 2012): decay added to the gradient, the
//! gradient divided by the root of an average of its squares, centred (Graves 2013) and with
//! momentum where that is asked for.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::{State, Update};

/// Settings of RMSprop for all parameters and steps. Defaults are PyTorch's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RmsPropConfig {
    /// Decay of the average of squares. Default 0.99.
    pub alpha: f64,
    /// Added to the root. Default 1e-8.
    pub epsilon: f64,
    /// Part of the past steps that stays; 0, the default, keeps no state for it.
    pub momentum: f64,
    /// Subtracts the square of the average gradient from the average of squares. Default false.
    pub centered: bool,
}

impl Default for RmsPropConfig {
    fn default() -> Self {
        Self { alpha: 0.99, epsilon: 1e-8, momentum: 0.0, centered: false }
    }
}

impl RmsPropConfig {
    /// The names of the states, PyTorch's, in their order.
    pub(super) fn state(&self) -> Vec<&'static str> {
        let centered = self.centered.then_some("grad_avg");
        let momentum = (self.momentum > 0.0).then_some("momentum_buffer");
        ["square_avg"].into_iter().chain(centered).chain(momentum).collect()
    }

    pub(super) fn update(&self, update: Update<'_, '_>, state: &mut State) -> Tensor<1> {
        let Update { value, grad, lr, weight_decay, .. } = update;
        let grad = if weight_decay == 0.0 { grad } else { grad + value.clone() * weight_decay };
        let mut past = std::mem::take(state).into_iter();
        let mut average = |new: Tensor<1>| {
            let new = new * (1.0 - self.alpha);
            past.next().map_or_else(|| new.clone(), |past| past * self.alpha + new.clone())
        };
        let squares = average(grad.clone() * grad.clone());
        state.push(squares.clone());
        let variance = if self.centered {
            let mean = average(grad.clone());
            state.push(mean.clone());
            squares - mean.clone() * mean
        } else {
            squares
        };
        let direction = grad / (variance.sqrt() + self.epsilon);
        if self.momentum == 0.0 {
            return value - direction * lr;
        }
        let buffer = match past.next() {
            Some(buffer) => buffer * self.momentum + direction,
            None => direction,
        };
        state.push(buffer.clone());
        value - buffer * lr
    }
}
