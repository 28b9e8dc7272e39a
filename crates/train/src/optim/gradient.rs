//! Gradients between the backward pass and the update: those of the micro-batches are summed, the
//! sum is divided once by the number of loss terms, and the result is clipped by its global norm.
//! All of it stays on the device.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor, TensorData};
use kiln_core::error::Result;
use kiln_models::ops::Form;
use kiln_models::ops::adamw::{norm, sum_of_squares, updates_together};
use kiln_models::ops::list::TensorList;
use kiln_models::{Operator, Ops};

use crate::distributed::{Shard, ShardGradients};

/// L2 norm over the gradients of all parameters of `model`, `[1]`, f32, computed in the form `ops`.
pub fn global_norm<M: Module>(model: &M, grads: &GradientsParams, ops: Ops) -> Tensor<1> {
    let mut squares =
        Gradients { grads, form: ops.form(Operator::AdamW), list: TensorList::default(), sums: Vec::new() };
    model.visit(&mut squares);
    let Gradients { list, sums, .. } = squares;
    if !list.is_empty() {
        return norm(list);
    }
    let device = model.devices().into_iter().next().unwrap_or_default().inner();
    if sums.is_empty() { Tensor::zeros([1], &device) } else { Tensor::cat(sums, 0).sum().sqrt() }
}

/// [`global_norm`] of gradients that are divided among ranks, on each of them: on the CPU the same
/// bits; the fused operator of a GPU adds in another order.
///
/// # Errors
/// The device's, and MPI's.
pub fn global_norm_of_shards(shard: &Shard, grads: &ShardGradients, ops: Ops, device: &Device) -> Result<Tensor<1>> {
    let tensor = |values: Vec<f32>| {
        let n = values.len();
        Tensor::<1>::from_data(TensorData::new(values, [n]), device)
    };
    let is_fused = ops.form(Operator::AdamW) == Form::Fused && !updates_together(device);
    let sums = shard.of_gradients(grads, |grad| {
        if is_fused { tensor(vec![sum_of_squares(&grad)]) } else { tensor(grad).square().sum() }
    })?;
    Ok(if sums.is_empty() { Tensor::zeros([1], device) } else { tensor(sums).sum().sqrt() })
}

/// The factor that turns summed gradients into the clipped mean gradient, and the norm of the mean
/// before clipping.
///
/// With `max_norm` the factor is `min(1, max_norm / (norm + 1e-6)) / divisor`
/// (`torch.nn.utils.clip_grad_norm_`), without it `1 / divisor`. Both are `[1]` on the device.
pub fn scale_and_norm(sum_norm: Tensor<1>, divisor: f64, max_norm: Option<f64>) -> (Tensor<1>, Tensor<1>) {
    let per_term = sum_norm.full_like(1.0 / divisor);
    scale_and_norm_by(sum_norm, per_term, max_norm)
}

/// [`scale_and_norm`] where the device knows what the sum is multiplied by to be the mean:
/// `per_term`, `[1]`.
pub fn scale_and_norm_by(sum_norm: Tensor<1>, per_term: Tensor<1>, max_norm: Option<f64>) -> (Tensor<1>, Tensor<1>) {
    let norm = sum_norm * per_term.clone();
    let scale = match max_norm {
        Some(max_norm) => ((norm.clone() + 1e-6).recip() * max_norm).clamp_max(1.0) * per_term,
        None => per_term,
    };
    (scale, norm)
}

/// Gradients to take the norm of.
struct Gradients<'a> {
    grads: &'a GradientsParams,
    form: Form,
    /// All of them, in the fused form.
    list: TensorList,
    /// Sums of their squares, in the plain form.
    sums: Vec<Tensor<1>>,
}

impl ModuleVisitor for Gradients<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(grad) = self.grads.get::<D>(param.id) else { return };
        match self.form {
            Form::Plain => self.sums.push(grad.square().sum()),
            Form::Fused => self.list.push(grad),
        }
    }
}
