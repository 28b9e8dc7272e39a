//! Masked language modelling: masked tokens are predicted from those around them.

use burn::tensor::{Device, Tensor};
use kiln_data::{BatchLabels, PaddedBatch};

use super::batch::{LabelsOnDevice, classes, of_tokens};
use super::model_task::ModelTask;
use crate::config::Task;

/// Predict masked tokens (`ForMaskedLMLoss` of `transformers`).
#[derive(Debug, Clone, Copy)]
pub struct MaskedLm;

impl ModelTask for MaskedLm {
    fn task(&self) -> Task {
        Task::Mlm
    }

    fn figures(&self) -> &'static [&'static str] {
        &["loss", "perplexity", "accuracy"]
    }

    fn pipeline_tag(&self) -> &'static str {
        "fill-mask"
    }

    fn peft_class(&self) -> Option<&'static str> {
        None
    }

    fn labels(&self, batch: &PaddedBatch, device: &Device) -> Option<LabelsOnDevice> {
        let BatchLabels::Tokens(labels) = &batch.labels else { return None };
        Some(classes(labels, device))
    }

    fn collects_logits(&self) -> bool {
        false
    }

    fn outputs(&self, logits: Tensor<2>, batch: &PaddedBatch) -> Vec<(&'static str, Vec<usize>, Tensor<2>)> {
        of_tokens(logits, batch)
    }
}
