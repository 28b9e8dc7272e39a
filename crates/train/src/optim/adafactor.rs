//! Adafactor (Shazeer & Stern 2018) as `transformers.optimization.Adafactor` has it, with a
//! learning rate from outside (`relative_step = False`, which is what Hugging Face's Trainer asks
//! for): second moments of a matrix kept as the mean of each row and each column, updates clipped
//! by their root mean square, no first moment unless asked for.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::{State, Update};

/// Settings of Adafactor for all parameters and steps. The defaults are those of Hugging Face's
/// Trainer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AdafactorConfig {
    /// Scales the learning rate by the root mean square of the weights, at least 1e-3. Default
    /// false.
    pub scale_parameter: bool,
    /// Largest root mean square of an update before the learning rate. Default 1.
    pub clip_threshold: f64,
    /// The second moments' decay at step `t` is `1 - t^decay_rate`. Default -0.8.
    pub decay_rate: f64,
    /// Decay of the first moment. Default: none is kept.
    pub beta1: Option<f64>,
}

impl Default for AdafactorConfig {
    fn default() -> Self {
        Self { scale_parameter: false, clip_threshold: 1.0, decay_rate: -0.8, beta1: None }
    }
}

/// Added to squared gradients (`eps[0]`).
const EPSILON: f64 = 1e-30;

/// The smallest scale of `scale_parameter` (`eps[1]`).
const LEAST_SCALE: f64 = 1e-3;

impl AdafactorConfig {
    /// Names and sizes of the state of a parameter of `shape`, in Kiln's layout: `transformers`'
    /// names.
    pub(super) fn state(&self, shape: &[usize]) -> Vec<(&'static str, usize)> {
        let n = shape.iter().product();
        let mut state = match *shape {
            [rows, columns] => vec![("exp_avg_sq_row", rows), ("exp_avg_sq_col", columns)],
            _ => vec![("exp_avg_sq", n)],
        };
        state.extend(self.beta1.map(|_| ("exp_avg", n)));
        state
    }

    /// The weights of the past and of the update of number `step` in the second moments.
    pub(super) fn weights(&self, step: u64) -> [f64; 2] {
        let new = (step as f64).powf(self.decay_rate); // 1 in the first update
        [1.0 - new, 1.0 - (1.0 - new)]
    }

    pub(super) fn update(&self, update: Update<'_, '_>, state: &mut State) -> Tensor<1> {
        let Update { value, grad, shape, lr, weight_decay, step, skip, .. } = update;
        let told = skip.and_then(|skip| skip.told());
        let [past, new] = self.weights(step);
        let mut old = std::mem::take(state).into_iter();
        let squared = grad.clone().square() + EPSILON;
        let averaged = |old: Option<Tensor<1>>, squared: Tensor<1>| match (old, &told) {
            // In place a parameter begins with zeros, which no square leaves: each has [`EPSILON`].
            (Some(old), Some([past, new])) => {
                let begins = old.clone().equal_scalar(0.0);
                (old * past.clone() + squared.clone() * new.clone()).mask_where(begins, squared)
            }
            (Some(old), None) => old * past + squared * new,
            (None, _) => squared,
        };
        let scaled = match *shape {
            [rows, columns] => {
                let squared = squared.reshape([rows, columns]);
                let row = averaged(old.next(), squared.clone().mean_dim(1).reshape([rows]));
                let col = averaged(old.next(), squared.mean_dim(0).reshape([columns]));
                state.extend([row.clone(), col.clone()]);
                // The product of both over their mean, which is the same for rows and columns:
                // Kiln's layout, where torch's rows are columns, gives the same matrix.
                let row = (row.clone() / row.mean()).sqrt().recip().reshape([rows, 1]);
                let col = col.sqrt().recip().reshape([1, columns]);
                (grad.reshape([rows, columns]) * row * col).reshape([rows * columns])
            }
            _ => {
                let mean = averaged(old.next(), squared);
                state.push(mean.clone());
                grad / mean.sqrt()
            }
        };
        let size = rms(&scaled) / self.clip_threshold;
        let scaled = scaled / size.clamp_min(1.0);
        let scale = self.scale_parameter.then(|| rms(&value).clamp_min(LEAST_SCALE) * lr); // [1]
        let times_rate = |tensor: Tensor<1>| match &scale {
            Some(rate) => tensor * rate.clone(),
            None => tensor * lr,
        };
        let step = times_rate(scaled);
        let step = match self.beta1 {
            None => step,
            Some(beta1) => {
                let new = step * (1.0 - beta1);
                let average = match old.next() {
                    Some(average) => average * beta1 + new,
                    None => new,
                };
                state.push(average.clone());
                average
            }
        };
        let value = if weight_decay == 0.0 { value } else { value.clone() - times_rate(value * weight_decay) };
        value - step
    }
}

/// The root mean square, `[n] -> [1]`.
fn rms(tensor: &Tensor<1>) -> Tensor<1> {
    tensor.clone().square().mean().sqrt()
}
