//! The gradients of a micro-batch: of the whole loss at once, or block by block where the task's
//! loss comes in stages.

use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use kiln_core::error::Result;
use kiln_models::Pass;

use crate::optim::backward::{ActivationCheckpointing, GradientPass, batch_sum};
use crate::task::{OnDevice, TrainingTask};

/// The loss sum of `batch`, `[1]`, without autodiff, and the gradients of `scaled` of it.
///
/// # Errors
/// An error of [`TrainingTask::loss`], e.g. for a batch without labels; a loss of another shape.
pub fn gradients<T: TrainingTask>(
    task: &T,
    model: &T::Model,
    batch: &OnDevice<T>,
    pass: &GradientPass<'_>,
    scaled: impl FnOnce(Tensor<1>) -> Tensor<1>,
) -> Result<(Tensor<1>, GradientsParams)> {
    let stages = task.stages(model, batch).filter(|_| pass.checkpointing == ActivationCheckpointing::Blocks);
    match stages {
        Some(stages) => pass.by_blocks(model, &*stages, scaled),
        None => {
            let loss = |pass: Pass<'_>| batch_sum(task.loss(model, batch, pass)?, format_args!("`{}`", task.name()));
            pass.run(model, loss, scaled)
        }
    }
}

/// The loss sum of `batch`, `[1]`, without autodiff. The gradients of `scaled` of it go to
/// `on_part` when the backward pass has computed them: part by part where the loss comes in
/// [stages](TrainingTask::stages), which may add to the same parameter, and all at once otherwise.
///
/// # Errors
/// An error of [`TrainingTask::loss`], e.g. for a batch without labels, or of `on_part`; a loss of
/// another shape.
pub fn gradients_in_parts<T: TrainingTask>(
    task: &T,
    model: &T::Model,
    batch: &OnDevice<T>,
    pass: &GradientPass<'_>,
    scaled: impl FnOnce(Tensor<1>) -> Tensor<1>,
    on_part: &mut dyn FnMut(GradientsParams) -> Result<()>,
) -> Result<Tensor<1>> {
    // Burn refuses two ways to keep activations in one graph, and the parts are joined with the
    // usual one.
    let stages = task.stages(model, batch).filter(|_| pass.checkpointing != ActivationCheckpointing::Balanced);
    match stages {
        Some(stages) => pass.in_parts(model, &*stages, scaled, on_part),
        None => {
            let (loss, grads) = gradients(task, model, batch, pass, scaled)?;
            on_part(grads)?;
            Ok(loss)
        }
    }
}
