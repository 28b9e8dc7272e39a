//! One batch through a model, with its loss and gradients, for checking a converted model against
//! another framework.

use std::collections::HashMap;
use std::path::Path;

use burn::module::{ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use kiln_core::error::{Error, Result};
use kiln_data::PaddedBatch;
use kiln_models::Operator;
use kiln_models::ops::Form;
use kiln_models::weights::{NamedTensor, Parameter, StateDict, parameters, to_hf_layout, write_safetensors};

use crate::config::Task;
use crate::reads::read_values;
use crate::session::model_folder::ModelFolder;
use crate::task::{DeviceBatch, LossOptions, model_task};

/// Runs `batch` through the model without dropout and returns, in this order:
/// - `logits`: `[batch, seq, vocab]`, `[batch, seq, num_labels]` for token classification, `[batch,
///   num_labels]` for sequence tasks, or `[batch, choices]` for multiple choice; `start_logits` and
///   `end_logits`, `[batch, seq]`, for question answering
/// - `loss`, `[1]`, the mean over valid labels, when the batch has labels
/// - with `gradients`, `grad.<Hugging Face name>` of that loss, in Hugging Face's layout; zeros for
///   a parameter that the loss does not reach
///
/// # Errors
/// Ids, labels or lengths that the model does not have; gradients asked for without labels.
pub fn forward(
    folder: &ModelFolder,
    task: Task,
    batch: &PaddedBatch,
    gradients: bool,
    device: &Device,
) -> Result<Vec<NamedTensor>> {
    let (task, padded) = (model_task(task), batch);
    let batch = DeviceBatch::new(&*task, padded, device)?;
    let logits = folder.model.forward(batch.input.clone(), false);
    let outputs = task.outputs(logits.clone(), padded).into_iter();
    let read = |(name, shape, tensor)| -> Result<_> {
        Ok(NamedTensor { name: String::from(name), shape, data: read_values::<2>(tensor)? })
    };
    let mut out = outputs.map(read).collect::<Result<Vec<_>>>()?;
    if batch.targets.is_none() {
        if gradients {
            return Err(Error::data("--gradients needs labels, and the batch has none"));
        }
        return Ok(out);
    }
    if batch.count == 0 {
        return Err(Error::data("no label of the batch is valid (all are -100), so it has no loss"));
    }
    let loss = match folder.model.ops().form(Operator::CrossEntropy) {
        Form::Plain => batch.loss(logits)?,
        // The fused loss has no logits, so it is a pass of its own.
        Form::Fused => batch.loss_of(&folder.model, folder.model.pass(false), &LossOptions::default())?,
    };
    let mean = loss.sum * (1.0 / loss.count as f64);
    out.push(NamedTensor { name: "loss".into(), shape: vec![1], data: read_values(mean.clone())? });
    if gradients {
        let grads = GradientsParams::from_grads(mean.backward(), &folder.model);
        out.extend(gradients_of(&folder.model, &grads)?);
    }
    Ok(out)
}

/// Runs `batch` through the model without dropout, like [`forward`], and writes the result to
/// `path` as safetensors.
///
/// # Errors
/// Ids, labels or lengths that the model does not have; gradients asked for without labels; the
/// operating system's.
pub fn forward_to_file(
    folder: &ModelFolder,
    task: Task,
    batch: &PaddedBatch,
    gradients: bool,
    device: &Device,
    path: &Path,
) -> Result<Vec<NamedTensor>> {
    let out = forward(folder, task, batch, gradients, device)?;
    write_safetensors(path, &out)?;
    Ok(out)
}

/// `grad.<name>` of every parameter, in Hugging Face's layout.
fn gradients_of<M: StateDict>(model: &M, grads: &GradientsParams) -> Result<Vec<NamedTensor>> {
    let by_id = parameters(model).into_iter().map(|parameter| (parameter.id, parameter)).collect();
    let mut visitor = Gradients { by_id, grads, found: Vec::new() };
    model.visit(&mut visitor);
    visitor.found.into_iter().collect::<std::result::Result<Vec<_>, String>>().map_err(Error::device)
}

struct Gradients<'a> {
    by_id: HashMap<ParamId, Parameter>,
    grads: &'a GradientsParams,
    found: Vec<std::result::Result<NamedTensor, String>>,
}

impl ModuleVisitor for Gradients<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let parameter = &self.by_id[&param.id];
        let grad = self.grads.get::<D>(param.id).unwrap_or_else(|| param.val().inner().zeros_like());
        let named = to_hf_layout(parameter, grad);
        self.found.push(named.map(|tensor| NamedTensor { name: format!("grad.{}", tensor.name), ..tensor }));
    }
}
