//! LAMB (You et al. 2019, "Large Batch Optimization for Deep Learning", algorithm 2, with the
//! identity for its phi): Adam's ratio plus the decayed weights, scaled so that the step is to the
//! learning rate as the weights are to one.

use burn::tensor::Tensor;

use super::adam::AdamConfig;
use super::{State, Update};

/// `w <- w - lr |w| / |u| u` with `u = m / (sqrt(v) + epsilon) + decay w`; a norm of zero leaves
/// the scale at 1. The norms are those of one tensor.
pub(super) fn update(config: &AdamConfig, update: Update<'_, '_>, state: &mut State) -> Tensor<1> {
    let Update { value, grad, lr, weight_decay, step, skip, .. } = update;
    let ratio = config.ratio(grad, step, 1.0, state, skip);
    let direction = if weight_decay == 0.0 { ratio } else { ratio + value.clone() * weight_decay };
    let norm = |tensor: &Tensor<1>| tensor.clone().square().sum().sqrt(); // [1]
    let (size, length) = (norm(&value), norm(&direction));
    let is_zero = size.clone().equal_scalar(0.0).bool_or(length.clone().equal_scalar(0.0));
    let trust = (size / length).mask_fill(is_zero, 1.0); // [1]
    value - direction * (trust * lr)
}
