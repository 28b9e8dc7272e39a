//! Multiple choice: one of several continuations of a text is the right one.

use burn::tensor::{Device, Tensor};
use kiln_core::error::Result;
use kiln_data::{BatchLabels, PaddedBatch, valid_labels};

use super::batch::{Targets, classes};
use super::model_task::ModelTask;
use crate::config::Task;

/// Predict which of several continuations of a text is the right one (`BertForMultipleChoice` of
/// `transformers`).
#[derive(Debug, Clone, Copy)]
pub struct MultipleChoice;

impl ModelTask for MultipleChoice {
    fn kind(&self) -> Task {
        Task::MultipleChoice
    }

    fn figures(&self) -> &'static [&'static str] {
        &["loss", "accuracy"]
    }

    fn predicts_classes(&self) -> bool {
        true
    }

    fn pipeline_tag(&self) -> &'static str {
        "multiple-choice"
    }

    fn peft_class(&self) -> Option<&'static str> {
        None
    }

    fn targets(&self, batch: &PaddedBatch, device: &Device) -> Result<Option<Targets>> {
        let BatchLabels::Choices { answers, .. } = &batch.labels else { return Err(self.other_labels()) };
        Ok((valid_labels(answers) > 0).then(|| classes(answers, device)))
    }

    fn outputs(&self, logits: Tensor<2>, batch: &PaddedBatch) -> Vec<(&'static str, Vec<usize>, Tensor<2>)> {
        vec![("logits", vec![batch.rows / batch.sequences(), batch.sequences()], logits)]
    }
}
