//! Muon (Jordan et al. 2024) by the formula of `torch.optim.Muon`: the momentum of a matrix is
//! replaced by the nearest matrix with orthogonal rows or columns, found by Newton-Schulz
//! iterations. Made for the matrices inside the layers; embeddings, heads, norms and biases are
//! AdamW's. PyTorch iterates in bf16, Kiln in f32.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::adam::AdamConfig;
use super::{State, Update};
use crate::optim::arguments::AdjustLr;

/// Settings of Muon for all parameters and steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MuonConfig {
    /// Decay of the average of gradients. Default 0.95.
    pub momentum: f64,
    /// Looks one momentum step ahead. Default true.
    pub nesterov: bool,
    /// Newton-Schulz iterations. Default 5.
    pub ns_steps: usize,
    /// How the learning rate depends on the shape. Default [`AdjustLr::MatchRmsAdamW`].
    pub adjust_lr: AdjustLr,
    /// AdamW for the other parameters.
    pub adamw: AdamConfig,
}

impl Default for MuonConfig {
    fn default() -> Self {
        let adamw = AdamConfig::default();
        Self { momentum: 0.95, nesterov: true, ns_steps: 5, adjust_lr: AdjustLr::MatchRmsAdamW, adamw }
    }
}

/// The state's name, PyTorch's.
pub(super) const STATE: &str = "momentum_buffer";

/// Coefficients of the quintic iteration (Keller Jordan's).
const QUINTIC: (f64, f64, f64) = (3.4445, -4.7750, 2.0315);

/// The smallest norm that a matrix is divided by.
const EPSILON: f64 = 1e-7;

impl MuonConfig {
    /// The update of a matrix, `shape = [rows, columns]`.
    pub(super) fn update(&self, update: Update<'_, '_>, state: &mut State) -> Tensor<1> {
        let Update { value, grad, shape, hf_shape, lr, weight_decay, .. } = update;
        let fresh = grad.clone() * (1.0 - self.momentum);
        let buffer = match state.pop() {
            Some(buffer) => buffer * self.momentum + fresh.clone(),
            None => fresh.clone(),
        };
        state.push(buffer.clone());
        let direction = if self.nesterov { fresh + buffer * self.momentum } else { buffer };
        let n = shape.iter().product::<usize>();
        let orthogonal = orthogonalised(direction.reshape([shape[0], shape[1]]), self.ns_steps).reshape([n]);
        value * (1.0 - lr * weight_decay) - orthogonal * (lr * self.ratio(hf_shape))
    }

    /// The factor of the learning rate for a matrix of this shape, as Hugging Face stores it.
    fn ratio(&self, shape: &[usize]) -> f64 {
        let (rows, columns) = (shape[0] as f64, shape[1] as f64);
        match self.adjust_lr {
            AdjustLr::Original => (rows / columns).max(1.0).sqrt(),
            AdjustLr::MatchRmsAdamW => 0.2 * rows.max(columns).sqrt(),
            AdjustLr::SpectralUnclamped => (rows / columns).sqrt(),
        }
    }
}

/// `U S' V^T` for `matrix = U S V^T`, every value of `S'` near 1: `[rows, columns]`, on the side
/// with the smaller product.
fn orthogonalised(matrix: Tensor<2>, steps: usize) -> Tensor<2> {
    let [rows, columns] = matrix.dims();
    let (a, b, c) = QUINTIC;
    let tall = rows > columns;
    let x = if tall { matrix.transpose() } else { matrix };
    let norm = x.clone().square().sum().sqrt().clamp_min(EPSILON);
    let mut x = x / norm.unsqueeze();
    for _ in 0..steps {
        let gram = x.clone().matmul(x.clone().transpose());
        let polynomial = gram.clone() * b + gram.clone().matmul(gram) * c;
        x = x.clone() * a + polynomial.matmul(x);
    }
    if tall { x.transpose() } else { x }
}
