//! A batch on the device, with the targets of its loss.

use burn::tensor::activation::log_sigmoid;
use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};
use kiln_core::error::{Error, Result};
use kiln_data::{IGNORED, PaddedBatch, valid_labels};
use kiln_models::ModelInput;
use kiln_models::ops::cross_entropy;

/// A batch on the device: what the model reads and what the loss compares with.
#[derive(Debug, Clone)]
pub struct DeviceBatch {
    /// The model's input.
    pub input: ModelInput,
    /// The targets of the loss; none when the batch has no labels.
    pub targets: Option<Targets>,
    /// How many rows are examples; those after them only fill the batch up.
    pub examples: usize,
    /// How many terms the loss sum has: predicted tokens, rows or spans. Known on the host, so no
    /// step reads it back.
    pub count: usize,
    /// The weights of the classes in the loss of training, `[classes]`, where it has some and they
    /// are on the device already.
    pub class_weights: Option<Tensor<1>>,
}

/// Labels on the device.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant)] // there is one of these at a time
pub enum Targets {
    /// One class a row of the logits; of a multiple choice, whose logits have a row for each
    /// choice, one a group of choices.
    Classes {
        /// `[n]`; 0 where the label is ignored.
        index: Tensor<1, Int>,
        /// `[n]`, 1 or 0; none when no label is ignored.
        weight: Option<Tensor<1>>,
    },
    /// One number a row.
    Values {
        /// `[batch]`
        values: Tensor<1>,
        /// `[batch]`, 1 or 0; none when every row is an example.
        weight: Option<Tensor<1>>,
    },
    /// A number for every label of a row, 1 where it applies and 0 where it does not.
    Multi {
        /// `[batch, labels]`
        values: Tensor<2>,
        /// `[batch]`, 1 or 0; none when every row is an example.
        weight: Option<Tensor<1>>,
    },
    /// One span a row.
    Spans {
        /// Index of the first token of the answer, `[batch]`.
        start: Tensor<1, Int>,
        /// Index of the last token of the answer, `[batch]`.
        end: Tensor<1, Int>,
        /// `[batch]`, 1 or 0; none when every row is an example.
        weight: Option<Tensor<1>>,
    },
}

/// Sum of a loss over its terms, on the device, and how many terms there were.
#[derive(Debug, Clone)]
pub struct LossSum {
    /// `[1]`, f32
    pub sum: Tensor<1>,
    /// Number of terms.
    pub count: usize,
}

impl DeviceBatch {
    /// The loss sum of `logits` against this batch's targets.
    ///
    /// - tokens and classes: negative log-likelihood, `logits [n, classes]`
    /// - choices: likewise, `logits [n * choices, 1]`
    /// - several labels: binary cross-entropy of every label, `logits [batch, labels]`
    /// - values: squared error, `logits [batch, 1]`
    /// - spans: mean of the start's and the end's negative log-likelihood, `logits [batch * seq,
    ///   2]`
    ///
    /// as `transformers`' `ForCausalLMLoss`, `ForMaskedLMLoss`, `ForSequenceClassificationLoss`,
    /// `ForTokenClassification` and `ForQuestionAnsweringLoss` before their division.
    ///
    /// # Errors
    /// A batch without labels.
    pub fn loss(&self, logits: Tensor<2>) -> Result<LossSum> {
        let logits = in_f32(logits);
        let sum = match &self.targets {
            None => return Err(Error::data("this batch has no labels, so it has no loss")),
            Some(Targets::Classes { index, weight }) => {
                let logits = by_target(logits, index);
                weighted_sum(cross_entropy::plain(logits, index.clone(), 0.0, None), weight)
            }
            Some(Targets::Multi { values, weight }) => {
                let rows = values.dims()[0];
                // -z log s(x) - (1 - z) log(1 - s(x)), where log(1 - s(x)) = log s(x) - x.
                let loss = logits.clone() * (values.clone() * -1.0 + 1.0) - log_sigmoid(logits);
                weighted_sum(loss.sum_dim(1).reshape([rows]), weight)
            }
            Some(Targets::Values { values, weight }) => {
                let rows = values.dims()[0];
                weighted_sum((logits.reshape([rows]) - values.clone()).square(), weight)
            }
            Some(Targets::Spans { start, end, weight }) => {
                let rows = start.dims()[0];
                let loss = |column: usize, target: &Tensor<1, Int>| {
                    let logits = span_logits(logits.clone(), rows, column);
                    weighted_sum(cross_entropy::plain(logits, target.clone(), 0.0, None), weight)
                };
                (loss(0, start) + loss(1, end)) * 0.5
            }
        };
        Ok(LossSum { sum, count: self.count })
    }

    /// How many predictions are right, `[1]`; none for a task without accuracy.
    pub fn correct(&self, logits: Tensor<2>) -> Option<Tensor<1>> {
        let Some(Targets::Classes { index, weight }) = &self.targets else { return None };
        let rows = index.dims()[0];
        let right = by_target(logits, index).argmax(1).reshape([rows]).equal(index.clone()).float();
        Some(weighted_sum(right, weight))
    }
}

/// `logits` with one row for each of the `n` targets: those of a multiple choice come as `[n *
/// choices, 1]`.
pub(super) fn by_target(logits: Tensor<2>, index: &Tensor<1, Int>) -> Tensor<2> {
    let ([rows, columns], targets) = (logits.dims(), index.dims()[0]);
    if rows == targets { logits } else { logits.reshape([targets, rows * columns / targets]) }
}

/// The start (column 0) or end (column 1) logits of `[batch * seq, 2]` as `[batch, seq]`.
pub fn span_logits(logits: Tensor<2>, batch: usize, column: usize) -> Tensor<2> {
    let rows = logits.dims()[0];
    logits.slice([0..rows, column..column + 1]).reshape([batch, rows / batch])
}

/// The sum of `terms [n]`, of those with weight 1 where there are weights: `[1]`.
fn weighted_sum(terms: Tensor<1>, weight: &Option<Tensor<1>>) -> Tensor<1> {
    match weight {
        Some(weight) => (terms * weight.clone()).sum(),
        None => terms.sum(),
    }
}

pub(super) fn in_f32(logits: Tensor<2>) -> Tensor<2> {
    if FloatDType::from(logits.dtype()) == FloatDType::F32 { logits } else { logits.cast(FloatDType::F32) }
}

/// One class a row, [`IGNORED`] where there is none.
pub(super) fn classes(labels: &[i32], device: &Device) -> Targets {
    let rows = labels.len();
    let index = labels.iter().map(|&label| if label == IGNORED { 0 } else { label }).collect::<Vec<_>>();
    let weight = (valid_labels(labels) < rows).then(|| {
        let weight = labels.iter().map(|&label| f32::from(label != IGNORED)).collect::<Vec<f32>>();
        Tensor::from_data(TensorData::new(weight, [rows]), device)
    });
    Targets::Classes { index: Tensor::from_data(TensorData::new(index, [rows]), device), weight }
}

/// `values` as a tensor of `shape` on `device`.
pub(super) fn numbers<const D: usize>(values: &[f32], shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), device)
}

/// The weight of each row of `batch`, `[rows]`: 1 for an example, 0 for a row that only fills the
/// batch up; none where all are examples.
pub(super) fn row_weight(batch: &PaddedBatch, device: &Device) -> Option<Tensor<1>> {
    let weight = (0..batch.rows).map(|row| f32::from(row < batch.examples)).collect::<Vec<_>>();
    (batch.examples < batch.rows).then(|| numbers(&weight, [batch.rows], device))
}

/// `[n, labels]` -> `[rows]`: the most likely class of each of the first `rows`.
pub(super) fn most_likely(logits: Tensor<2>, rows: usize) -> Tensor<1> {
    let labels = logits.dims()[1];
    logits.slice([0..rows, 0..labels]).argmax(1).reshape([rows]).float()
}

/// The logits of every token of `batch`: `[rows, seq, width]`.
pub(super) fn of_tokens(logits: Tensor<2>, batch: &PaddedBatch) -> Vec<(&'static str, Vec<usize>, Tensor<2>)> {
    let [_, width] = logits.dims();
    vec![("logits", vec![batch.rows, batch.seq_len, width], logits)]
}
