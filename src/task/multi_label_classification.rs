//! Multi-label classification: any number of labels apply to a row of text, each by itself.

use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use kiln_core::error::Result;
use kiln_data::{BatchLabels, Dataset, PaddedBatch};

use super::batch::{DeviceBatch, Targets, numbers, row_weight};
use super::model_task::{ModelTask, TaskScores};
use super::scores;
use crate::config::Task;

/// Predict which of several labels apply to a sequence (`ForSequenceClassificationLoss` of
/// `transformers` with `multi_label_classification`).
#[derive(Debug, Clone, Copy)]
pub struct MultiLabelClassification;

impl ModelTask for MultiLabelClassification {
    fn kind(&self) -> Task {
        Task::MultiLabelClassification
    }

    fn figures(&self) -> &'static [&'static str] {
        &["loss", "accuracy", "f1", "f1_macro"]
    }

    fn pipeline_tag(&self) -> &'static str {
        "text-classification"
    }

    fn peft_class(&self) -> Option<&'static str> {
        Some("AutoPeftModelForSequenceClassification")
    }

    fn targets(&self, batch: &PaddedBatch, device: &Device) -> Result<Option<Targets>> {
        let BatchLabels::Multi(values) = &batch.labels else { return Err(self.other_labels()) };
        let values = numbers(values, [batch.rows, values.len() / batch.rows], device);
        Ok(Some(Targets::Multi { values, weight: row_weight(batch, device) }))
    }

    fn predicts_classes(&self) -> bool {
        false
    }

    /// 1 for a label whose probability is above one half, else 0: `[examples * labels]`.
    fn predictions(&self, logits: Tensor<2>, batch: &DeviceBatch) -> Option<Tensor<1>> {
        let (examples, labels) = (batch.examples, logits.dims()[1]);
        let logits = logits.slice([0..examples, 0..labels]);
        Some(logits.greater_scalar(0.0).float().reshape([examples * labels]))
    }

    fn scores(&self, _data: &Arc<dyn Dataset>, label_names: Vec<String>) -> Option<Box<dyn TaskScores>> {
        Some(Box::new(Applying { num_labels: label_names.len(), ..Applying::default() }))
    }
}

/// For each label of each row, whether it applies.
#[derive(Default)]
struct Applying {
    num_labels: usize,
    expected: Vec<bool>,
    predicted: Vec<bool>,
}

impl TaskScores for Applying {
    fn add(&mut self, batch: &PaddedBatch, predicted: &[f64]) {
        let BatchLabels::Multi(expected) = &batch.labels else { return };
        self.expected.extend(expected.iter().take(predicted.len()).map(|value| *value > 0.5));
        self.predicted.extend(predicted.iter().map(|value| *value > 0.5));
    }

    fn figures(&self) -> Vec<(&'static str, f64)> {
        scores::several_labels(&self.expected, &self.predicted, self.num_labels)
    }
}
