//! Token classification: each word of a text has a label, such as the tag of an entity.

use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use kiln_core::error::Result;
use kiln_data::{BatchLabels, Dataset, PaddedBatch};

use super::batch::{DeviceBatch, Targets, classes, most_likely, of_tokens};
use super::model_task::{ModelTask, TaskScores};
use super::scores::{Entities, are_tags};
use crate::config::Task;

/// Predict a label for every word of a text (`ForTokenClassification` of `transformers`).
#[derive(Debug, Clone, Copy)]
pub struct TokenClassification;

impl ModelTask for TokenClassification {
    fn kind(&self) -> Task {
        Task::TokenClassification
    }

    fn figures(&self) -> &'static [&'static str] {
        &["loss", "accuracy", "precision", "recall", "f1"]
    }

    fn predicts_classes(&self) -> bool {
        true
    }

    fn pipeline_tag(&self) -> &'static str {
        "token-classification"
    }

    fn peft_class(&self) -> Option<&'static str> {
        Some("AutoPeftModelForTokenClassification")
    }

    fn targets(&self, batch: &PaddedBatch, device: &Device) -> Result<Option<Targets>> {
        let BatchLabels::Tokens(labels) = &batch.labels else { return Err(self.other_labels()) };
        Ok(Some(classes(labels, device)))
    }

    fn predictions(&self, logits: Tensor<2>, batch: &DeviceBatch) -> Option<Tensor<1>> {
        Some(most_likely(logits, batch.examples * batch.input.input_ids.dims()[1]))
    }

    /// None where no label is the tag of an entity.
    fn scores(&self, _data: &Arc<dyn Dataset>, label_names: Vec<String>) -> Option<Box<dyn TaskScores>> {
        are_tags(&label_names).then(|| Box::new(Tags { label_names, entities: Entities::default() }) as _)
    }

    fn outputs(&self, logits: Tensor<2>, batch: &PaddedBatch) -> Vec<(&'static str, Vec<usize>, Tensor<2>)> {
        of_tokens(logits, batch)
    }
}

struct Tags {
    label_names: Vec<String>,
    entities: Entities,
}

impl TaskScores for Tags {
    fn add(&mut self, batch: &PaddedBatch, predicted: &[f64]) {
        let BatchLabels::Tokens(expected) = &batch.labels else { return };
        let rows = expected.chunks(batch.seq_len).zip(predicted.chunks(batch.seq_len));
        rows.for_each(|(expected, predicted)| self.entities.add(&self.label_names, expected, predicted));
    }

    fn figures(&self) -> Vec<(&'static str, f64)> {
        self.entities.scores()
    }
}
