//! Regression: a row of text has a number.

use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use kiln_core::error::Result;
use kiln_data::{BatchLabels, Dataset, PaddedBatch};

use super::batch::{DeviceBatch, Targets, numbers, row_weight};
use super::model_task::{ModelTask, TaskScores};
use super::scores;
use crate::config::Task;

/// Predict one number for a sequence (`ForSequenceClassificationLoss` of `transformers` with
/// `regression`).
#[derive(Debug, Clone, Copy)]
pub struct Regression;

impl ModelTask for Regression {
    fn kind(&self) -> Task {
        Task::Regression
    }

    fn figures(&self) -> &'static [&'static str] {
        &["loss", "mse", "pearson", "spearmanr"]
    }

    fn pipeline_tag(&self) -> &'static str {
        "text-classification"
    }

    fn peft_class(&self) -> Option<&'static str> {
        Some("AutoPeftModelForSequenceClassification")
    }

    fn targets(&self, batch: &PaddedBatch, device: &Device) -> Result<Option<Targets>> {
        let BatchLabels::Values(values) = &batch.labels else { return Err(self.other_labels()) };
        let values = numbers(values, [batch.rows], device);
        Ok(Some(Targets::Values { values, weight: row_weight(batch, device) }))
    }

    fn predicts_classes(&self) -> bool {
        false
    }

    fn predictions(&self, logits: Tensor<2>, batch: &DeviceBatch) -> Option<Tensor<1>> {
        Some(logits.slice([0..batch.examples, 0..1]).reshape([batch.examples]))
    }

    fn scores(&self, _data: &Arc<dyn Dataset>, _label_names: Vec<String>) -> Option<Box<dyn TaskScores>> {
        Some(Box::new(Values::default()))
    }
}

#[derive(Default)]
struct Values {
    expected: Vec<f64>,
    predicted: Vec<f64>,
}

impl TaskScores for Values {
    fn add(&mut self, batch: &PaddedBatch, predicted: &[f64]) {
        let BatchLabels::Values(expected) = &batch.labels else { return };
        self.expected.extend(expected.iter().take(predicted.len()).copied().map(f64::from));
        self.predicted.extend(predicted);
    }

    fn figures(&self) -> Vec<(&'static str, f64)> {
        let (expected, predicted) = (&self.expected, &self.predicted);
        vec![
            ("mse", scores::mean_squared_error(expected, predicted)),
            ("pearson", scores::pearson(expected, predicted)),
            ("spearmanr", scores::spearman(expected, predicted)),
        ]
    }
}
