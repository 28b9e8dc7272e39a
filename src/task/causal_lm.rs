//! Causal language modelling: each token predicts the next one.

use burn::tensor::{Device, Tensor};
use kiln_core::error::Result;
use kiln_data::{BatchLabels, PaddedBatch, shifted, valid_labels};

use super::batch::{Targets, classes, of_tokens};
use super::model_task::ModelTask;
use crate::config::Task;
use kiln_train::optim::loss::Reduction;

/// Predict the next token (`ForCausalLMLoss` of `transformers`).
#[derive(Debug, Clone, Copy)]
pub struct CausalLm;

impl ModelTask for CausalLm {
    fn kind(&self) -> Task {
        Task::Clm
    }

    fn figures(&self) -> &'static [&'static str] {
        &["loss", "perplexity", "accuracy"]
    }

    fn predicts_classes(&self) -> bool {
        true
    }

    fn pipeline_tag(&self) -> &'static str {
        "text-generation"
    }

    fn peft_class(&self) -> Option<&'static str> {
        Some("AutoPeftModelForCausalLM")
    }

    /// The labels are shifted here, on the host: position `i` predicts label `i + 1`.
    fn targets(&self, batch: &PaddedBatch, device: &Device) -> Result<Option<Targets>> {
        let BatchLabels::Tokens(labels) = &batch.labels else { return Err(self.other_labels()) };
        Ok(Some(classes(&shifted(labels, batch.seq_len), device)))
    }

    fn num_terms(&self, batch: &PaddedBatch) -> usize {
        match &batch.labels {
            // Nothing predicts the first token of a row.
            BatchLabels::Tokens(labels) => labels.chunks(batch.seq_len).map(|row| valid_labels(&row[1..])).sum(),
            _ => batch.num_labels(),
        }
    }

    fn reduction_of_transformers(&self, _label_smoothing: f64) -> Reduction {
        Reduction::Exact
    }

    fn collects_logits(&self) -> bool {
        false
    }

    fn outputs(&self, logits: Tensor<2>, batch: &PaddedBatch) -> Vec<(&'static str, Vec<usize>, Tensor<2>)> {
        of_tokens(logits, batch)
    }
}
