//! Opens an evaluation without training: its tokenizer and validation data and its device. Nothing
//! of it depends on training data or on how a run would train, so there is no plan.

use std::ops::ControlFlow;
use std::sync::Arc;

use burn::tensor::Device;
use kiln_core::error::{Error, Result};
use kiln_data::Dataset;
use kiln_data::padding::{Batches, Padding, survey};
use kiln_data::sampler::Order;
use kiln_data::store::Progress;
use kiln_models::Compute;

use super::inputs::{Inputs, Use};
use super::{BuiltIn, TrainingTask};
use crate::config::RunConfig;
use crate::engine::{device, handover};
use crate::plan::EnginePlan;
use crate::task::LossOptions;

/// An evaluation that can begin.
pub struct EvaluationSession<T: TrainingTask = BuiltIn> {
    /// Where it runs.
    pub device: Device,
    /// How a model computes.
    pub compute: Compute,
    /// The task, with its loss and its metrics.
    pub task: T,
    /// Validation data.
    pub validation: Arc<dyn Dataset<T::Example>>,
    /// Examples of a batch.
    pub batch_size: usize,
}

impl EvaluationSession {
    /// Opens what an evaluation of `config` needs: `data.train` only where validation data is a
    /// share of it. `progress` is told how far tokenising has come and may interrupt it.
    ///
    /// # Errors
    /// A config without validation data, and inputs, a device or a compiler that cannot be used.
    pub fn open_with_progress(
        config: &RunConfig,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Self> {
        config.validate()?;
        if config.data.validation.is_none() && config.data.dataset_name.is_none() {
            return Err(no_validation());
        }
        handover::settle(config.trainer.compiler.as_ref(), config.trainer.device.kind)?;
        let found = device::select(config.trainer.device.kind, config.trainer.device.index)?;
        let engine = EnginePlan::of(config, &found.facts(), None)?;
        let inputs = Inputs::open(config, Use::Evaluation, progress)?;
        let validation = inputs.validation(config).ok_or_else(no_validation)?;
        let batch_size = config.trainer.per_device_eval_batch_size;
        let drawn = Batches { size: batch_size, order: Order::SEQUENTIAL, drop_last: false };
        let longest = inputs.max_length.unwrap_or(validation.max_len());
        let padding = Padding::new(config.data.padding, longest, &survey(&*validation, drawn));
        let loss = LossOptions::of(&config.trainer, config.data.task, &inputs.task.model_config)?;
        let task = BuiltIn { loss, padding, ..inputs.task };
        Ok(Self { device: found.device, compute: engine.compute(), task, validation, batch_size })
    }
}

/// The error of an evaluation without data.
pub(crate) fn no_validation() -> Error {
    Error::config("data.validation: required to evaluate, got none").help(
        "name files, or a share to split off: --set data.validation=10%; a task of your own gets its validation data from \
         Session::new",
    )
}
