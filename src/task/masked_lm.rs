//! Masked language modelling: masked tokens are predicted from those around them.

use burn::tensor::{Device, Tensor};
use kiln_core::error::Result;
use kiln_data::{BatchLabels, PaddedBatch};

use super::batch::{Targets, classes, of_tokens};
use super::model_task::ModelTask;
use crate::config::Task;

/// Predict masked tokens (`ForMaskedLMLoss` of `transformers`).
#[derive(Debug, Clone, Copy)]
pub struct MaskedLm;

impl ModelTask for MaskedLm {
    fn kind(&self) -> Task {
        Task::Mlm
    }

    fn figures(&self) -> &'static [&'static str] {
        &["loss", "perplexity", "accuracy"]
    }

    fn predicts_classes(&self) -> bool {
        true
    }

    fn pipeline_tag(&self) -> &'static str {
        "fill-mask"
    }

    fn peft_class(&self) -> Option<&'static str> {
        None
    }

    fn targets(&self, batch: &PaddedBatch, device: &Device) -> Result<Option<Targets>> {
        let BatchLabels::Tokens(labels) = &batch.labels else { return Err(self.other_labels()) };
        Ok(Some(classes(labels, device)))
    }

    fn collects_logits(&self) -> bool {
        false
    }

    fn outputs(&self, logits: Tensor<2>, batch: &PaddedBatch) -> Vec<(&'static str, Vec<usize>, Tensor<2>)> {
        of_tokens(logits, batch)
    }
}
