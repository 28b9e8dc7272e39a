//! Sequence classification: a row of text has one of several classes.

use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use kiln_core::error::Result;
use kiln_data::{BatchLabels, Dataset, IGNORED, PaddedBatch};
use kiln_train::confusion::Confusion;

use super::batch::{DeviceBatch, Targets, classes, most_likely};
use super::model_task::{ModelTask, TaskScores};
use crate::config::Task;

/// Predict one label for a sequence (`ForSequenceClassificationLoss` of `transformers` with
/// `single_label_classification`).
#[derive(Debug, Clone, Copy)]
pub struct SequenceClassification;

impl ModelTask for SequenceClassification {
    fn kind(&self) -> Task {
        Task::SequenceClassification
    }

    fn figures(&self) -> &'static [&'static str] {
        &["loss", "accuracy", "f1", "matthews_correlation"]
    }

    fn predicts_classes(&self) -> bool {
        true
    }

    fn pipeline_tag(&self) -> &'static str {
        "text-classification"
    }

    fn peft_class(&self) -> Option<&'static str> {
        Some("AutoPeftModelForSequenceClassification")
    }

    fn targets(&self, batch: &PaddedBatch, device: &Device) -> Result<Option<Targets>> {
        let BatchLabels::Classes(labels) = &batch.labels else { return Err(self.other_labels()) };
        Ok(Some(classes(labels, device)))
    }

    fn weighs_classes(&self) -> bool {
        true
    }

    fn predictions(&self, logits: Tensor<2>, batch: &DeviceBatch) -> Option<Tensor<1>> {
        Some(most_likely(logits, batch.examples))
    }

    fn scores(&self, _data: &Arc<dyn Dataset>, label_names: Vec<String>) -> Option<Box<dyn TaskScores>> {
        Some(Box::new(Classes { num_labels: label_names.len(), pairs: Vec::new() }))
    }
}

/// Labels and predictions of the rows that have a label.
struct Classes {
    num_labels: usize,
    pairs: Vec<(usize, usize)>,
}

impl Classes {
    fn matrix(&self) -> Confusion {
        Confusion::new(self.num_labels, self.pairs.iter().copied())
    }
}

impl TaskScores for Classes {
    fn add(&mut self, batch: &PaddedBatch, predicted: &[f64]) {
        let BatchLabels::Classes(expected) = &batch.labels else { return };
        let pairs = expected.iter().zip(predicted).filter(|(expected, _)| **expected != IGNORED);
        self.pairs.extend(pairs.map(|(expected, predicted)| (*expected as usize, *predicted as usize)));
    }

    fn figures(&self) -> Vec<(&'static str, f64)> {
        let matrix = self.matrix();
        vec![("f1", matrix.f1()), ("matthews_correlation", matrix.matthews_correlation())]
    }

    fn confusion(&self) -> Option<Confusion> {
        Some(self.matrix())
    }
}
