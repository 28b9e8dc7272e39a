//! Opens an evaluation without training: its tokenizer and validation data and its device. Nothing
//! of it depends on training data or on how a run would train, so there is no plan.

use std::ops::ControlFlow;

use kiln_core::error::Result;
use kiln_data::padding::{Batches, Padding, survey};
use kiln_data::sampler::Order;
use kiln_data::store::Preparation;
pub use kiln_train::evaluation::no_validation;

use super::TransformerTask;
use super::inputs::{Inputs, Use};
use crate::config::CheckedConfig;
use crate::engine::{device, handover};
use crate::plan::{EnginePlan, check_positions};
use crate::task::loss_options;

/// An evaluation that can begin, by default of a task of Kiln's.
pub type EvaluationSession<T = TransformerTask> = kiln_train::evaluation::EvaluationSession<T>;

/// Opens what an evaluation of `config` needs: `data.train` only where validation data is a
/// share of it. `progress` is told how far tokenising has come and may interrupt it.
///
/// # Errors
/// A config without validation data, and inputs, a device or a compiler that cannot be used.
pub fn open(
    config: &CheckedConfig,
    progress: &mut dyn FnMut(Preparation) -> ControlFlow<()>,
) -> Result<EvaluationSession> {
    if config.data.validation.is_none() && config.data.dataset_name.is_none() {
        return Err(no_validation());
    }
    handover::settle(config.trainer.compiler.as_ref(), config.trainer.device.kind)?;
    let found = device::select(config.trainer.device.kind, config.trainer.device.index)?;
    let engine = EnginePlan::of(&config.trainer, &found.facts(), None)?;
    let inputs = Inputs::open(config, Use::Evaluation, progress)?;
    let validation = inputs.validation(config).ok_or_else(no_validation)?;
    let batch_size = config.trainer.per_device_eval_batch_size;
    let drawn = Batches { size: batch_size, order: Order::SEQUENTIAL, drop_last: false };
    let longest = inputs.max_length.unwrap_or(validation.max_len());
    let padding = Padding::new(config.trainer.padding_rule(), longest, &survey(&*validation, drawn));
    check_positions(&padding, longest, &inputs.task.model_config)?;
    let loss = loss_options(&config.trainer, &*inputs.task.task, &inputs.task.model_config)?;
    let task = TransformerTask { loss, padding, ..inputs.task };
    Ok(EvaluationSession { device: found.device, compute: engine.compute(), task, validation, batch_size })
}
