//! Question answering: the answer to a question is a span of a text.

use std::sync::Arc;

use burn::tensor::{Device, Tensor, TensorData};
use kiln_core::error::Result;
use kiln_data::squad::{SpanLogits, SquadData};
use kiln_data::{BatchLabels, Dataset, PaddedBatch};

use super::batch::{DeviceBatch, Targets, row_weight, span_logits};
use super::model_task::{ModelTask, TaskScores};
use crate::config::Task;
use kiln_train::optim::loss::Reduction;

/// Predict where in a text the answer starts and ends (`ForQuestionAnsweringLoss` of
/// `transformers`).
#[derive(Debug, Clone, Copy)]
pub struct QuestionAnswering;

impl ModelTask for QuestionAnswering {
    fn kind(&self) -> Task {
        Task::QuestionAnswering
    }

    fn figures(&self) -> &'static [&'static str] {
        &["loss", "exact_match", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1"]
    }

    fn pipeline_tag(&self) -> &'static str {
        "question-answering"
    }

    fn peft_class(&self) -> Option<&'static str> {
        Some("AutoPeftModelForQuestionAnswering")
    }

    fn targets(&self, batch: &PaddedBatch, device: &Device) -> Result<Option<Targets>> {
        let BatchLabels::Spans { start, end } = &batch.labels else { return Err(self.other_labels()) };
        let ints = |values: &[i32]| Tensor::from_data(TensorData::new(values.to_vec(), [batch.rows]), device);
        Ok(Some(Targets::Spans { start: ints(start), end: ints(end), weight: row_weight(batch, device) }))
    }

    fn predicts_classes(&self) -> bool {
        false
    }

    /// The labels have other names than those that the Trainer of `transformers` counts, so that it
    /// divides by the number of micro-batches.
    fn reduction_of_transformers(&self, _label_smoothing: f64) -> Reduction {
        Reduction::MeanOfMeans
    }

    /// Start logits and then end logits of each example: `[examples * 2 * tokens]`.
    fn predictions(&self, logits: Tensor<2>, batch: &DeviceBatch) -> Option<Tensor<1>> {
        let [rows, tokens] = batch.input.input_ids.dims();
        let by_example: Tensor<3> = logits.reshape([rows, tokens, 2]).swap_dims(1, 2);
        let of_examples = by_example.slice([0..batch.examples, 0..2, 0..tokens]);
        Some(of_examples.reshape([batch.examples * 2 * tokens]))
    }

    /// None for tokenized rows, behind which there are no questions.
    fn scores(&self, data: &Arc<dyn Dataset>, _label_names: Vec<String>) -> Option<Box<dyn TaskScores>> {
        SquadData::of(&**data)?;
        Some(Box::new(Spans { data: data.clone(), logits: Vec::new() }))
    }

    fn collects_logits(&self) -> bool {
        false
    }

    fn outputs(&self, logits: Tensor<2>, batch: &PaddedBatch) -> Vec<(&'static str, Vec<usize>, Tensor<2>)> {
        let shape = vec![batch.rows, batch.seq_len];
        let column = |column| span_logits(logits.clone(), batch.rows, column);
        vec![("start_logits", shape.clone(), column(0)), ("end_logits", shape, column(1))]
    }
}

/// The span logits of the rows of `data`, whose questions they answer.
struct Spans {
    data: Arc<dyn Dataset>,
    logits: Vec<SpanLogits>,
}

impl TaskScores for Spans {
    fn add(&mut self, batch: &PaddedBatch, predicted: &[f64]) {
        let narrow = |values: &[f64]| values.iter().map(|value| *value as f32).collect();
        self.logits.extend(predicted.chunks(2 * batch.seq_len).map(|both| {
            let (start, end) = both.split_at(batch.seq_len);
            SpanLogits { start: narrow(start), end: narrow(end) }
        }));
    }

    fn figures(&self) -> Vec<(&'static str, f64)> {
        SquadData::of(&*self.data).map_or_else(Vec::new, |squad| squad.scores(&self.logits).named())
    }
}
