//! The state that training changes: the model, and what the update keeps.

use burn::tensor::Tensor;
use kiln_core::error::Result;

use crate::distributed::World;
use crate::optim::Optimizer;
use crate::optim::outliers::Outliers;
use crate::optim::scaler::LossScaler;
use crate::reads::read_scalars;

/// The state that training changes.
pub(super) struct TrainState<M> {
    pub(super) model: M,
    pub(super) optimizer: Optimizer,
    /// The loss scale of f16.
    pub(super) scaler: Option<LossScaler>,
    /// Finds the steps that are not applied.
    pub(super) outliers: Option<Outliers>,
}

impl<M> TrainState<M> {
    /// Why a step with this loss and gradient norm, `[1]` each, is not to be applied, if it is an
    /// outlier, which is then counted without an update. The ranks of `world` all go by the values
    /// of rank 0.
    ///
    /// # Errors
    /// The device's, and MPI's.
    pub(super) fn outlier(&mut self, world: &World, loss: &Tensor<1>, grad_norm: &Tensor<1>) -> Result<Option<String>> {
        let Some(outliers) = &mut self.outliers else { return Ok(None) };
        let values = read_scalars(vec![loss.clone(), grad_norm.clone()])?;
        let why = outliers.judge(world.of_root(values[0])?, world.of_root(values[1])?);
        if why.is_some() {
            self.optimizer.pass_over();
        }
        Ok(why)
    }
}
