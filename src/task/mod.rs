//! Tasks: which head a run needs, how logits and labels become a loss, and what predictions are
//! worth. Each task implements [`ModelTask`] in a file of its own. A loss is a sum and a count,
//! divided once by whoever has collected all of an optimizer step; never a mean of means.

pub mod evaluator;
pub mod generate;
pub mod scores;
mod causal_lm;
mod loss;
mod masked_lm;
mod multi_label_classification;
mod multiple_choice;
mod question_answering;
mod regression;
mod sequence_classification;
mod token_classification;

use std::sync::Arc;

use burn::tensor::activation::log_sigmoid;
use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};
pub use causal_lm::CausalLm;
use kiln_core::error::{Error, Result};
use kiln_data::{BatchLabels, Dataset, IGNORED, PaddedBatch, valid_labels};
use kiln_models::ModelInput;
use kiln_models::ops::cross_entropy;
pub use kiln_train::optim::loss::{LossOptions, Reduction};
pub use loss::{loss_options, total_weight};
pub use masked_lm::MaskedLm;
pub use multi_label_classification::MultiLabelClassification;
pub use multiple_choice::MultipleChoice;
pub use question_answering::QuestionAnswering;
pub use regression::Regression;
pub use sequence_classification::SequenceClassification;
pub use token_classification::TokenClassification;

use kiln_train::task::BatchSize;

use crate::config::Task;
use evaluator::Scores;

/// A task of Kiln's models: its labels, its loss and its figures.
pub trait ModelTask: Send + Sync + 'static {
    /// Its name in configs, which says what its rows and its head are.
    fn task(&self) -> Task;

    /// The names of the figures of an evaluation, without their `eval_`, in their order: the
    /// `loss`, the `perplexity` of a language model, the `accuracy` where predictions are classes,
    /// and those of its [scores](Self::scores).
    fn figures(&self) -> &'static [&'static str];

    /// The name that the Hub has for the task (`pipeline_tag` of a model card).
    fn pipeline_tag(&self) -> &'static str;

    /// The class of PEFT that loads a model for the task with its adapter, where PEFT has one.
    fn peft_class(&self) -> Option<&'static str>;

    /// The labels of `batch` on `device`, where they are of the kind that the task has.
    fn labels(&self, batch: &PaddedBatch, device: &Device) -> Option<LabelsOnDevice>;

    /// How many terms the loss sum of `batch` has: predicted tokens, rows or spans.
    fn num_terms(&self, batch: &PaddedBatch) -> usize {
        batch.num_labels()
    }

    /// Whether each prediction is one class, right or wrong: it has an accuracy, and its labels can
    /// be smoothed.
    fn predicts_classes(&self) -> bool {
        true
    }

    /// Whether the classes may have weights in the loss of training.
    fn weighs_classes(&self) -> bool {
        false
    }

    /// The reduction of the Trainer of `transformers` 5.24 (`Trainer.training_step`). It counts the
    /// labels of a step (`num_items_in_batch`), and takes the loss to be divided by them. GPT-2's
    /// language model does that, and so does label smoothing; the other models take the mean of
    /// each micro-batch all the same, and these means are added up.
    fn reduction_of_transformers(&self, label_smoothing: f64) -> Reduction {
        if label_smoothing > 0.0 { Reduction::Exact } else { Reduction::SumOfMeans }
    }

    /// What the [scores](Self::scores) need of the `logits` of `batch`, of its examples alone, row
    /// by row: `[n]`.
    fn predictions(&self, logits: Tensor<2>, batch: &DeviceBatch) -> Option<Tensor<1>> {
        let (_, _) = (logits, batch);
        None
    }

    /// The figures of the predictions on `data`, whose classes are called `label_names`, beside
    /// loss, perplexity and accuracy.
    fn scores(&self, data: &Arc<dyn Dataset>, label_names: Vec<String>) -> Option<Box<dyn Scores>> {
        let (_, _) = (data, label_names);
        None
    }

    /// Whether [figures of one's own](evaluator::ComputeMetrics) get its logits.
    fn collects_logits(&self) -> bool {
        true
    }

    /// How many rows of logits these get of the examples of `batch`.
    fn collected_rows(&self, batch: &PaddedBatch) -> usize {
        batch.examples
    }

    /// The `logits [n, width]` of `batch` as the model of `transformers` returns them: name, shape,
    /// values.
    fn outputs(&self, logits: Tensor<2>, batch: &PaddedBatch) -> Vec<(&'static str, Vec<usize>, Tensor<2>)> {
        let [_, width] = logits.dims();
        vec![("logits", vec![batch.rows, width], logits)]
    }
}

/// The task that a config calls `task`.
pub fn model_task(task: Task) -> &'static dyn ModelTask {
    match task {
        Task::Clm => &CausalLm,
        Task::Mlm => &MaskedLm,
        Task::SequenceClassification => &SequenceClassification,
        Task::Regression => &Regression,
        Task::QuestionAnswering => &QuestionAnswering,
        Task::TokenClassification => &TokenClassification,
        Task::MultiLabelClassification => &MultiLabelClassification,
        Task::MultipleChoice => &MultipleChoice,
    }
}

/// The targets of a loss, and how many terms its sum has.
pub type LabelsOnDevice = (Option<Targets>, usize);

/// A batch of a task of Kiln's.
pub struct TaskBatch {
    /// Its rows.
    pub batch: PaddedBatch,
    /// The task.
    pub task: &'static dyn ModelTask,
    /// Its loss.
    pub loss: LossOptions,
}

impl kiln_train::task::Batch for TaskBatch {
    type OnDevice = DeviceBatch;

    fn size(&self) -> BatchSize {
        let batch = &self.batch;
        BatchSize {
            rows: batch.rows,
            seq_len: batch.seq_len,
            padded: batch.attention_mask.is_some(),
            tokens: batch.num_tokens as u64,
            labels: total_weight(&self.loss, self.task, batch),
        }
    }

    fn to_device(&self, device: &Device) -> Result<DeviceBatch> {
        Ok(DeviceBatch::new(self.task, &self.batch, device)?.with_class_weights(&self.loss, device))
    }
}

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
    /// Moves `batch` to `device`, with its labels as `task` compares with them.
    ///
    /// # Errors
    /// Labels of another kind than the task has.
    pub fn new(task: &dyn ModelTask, batch: &PaddedBatch, device: &Device) -> Result<Self> {
        let shape = [batch.rows, batch.seq_len];
        let ids = |values: &[i32]| Tensor::<2, Int>::from_data(TensorData::new(values.to_vec(), shape), device);
        let attention_mask = batch.attention_mask.as_ref();
        let (targets, count) = match (&batch.labels, task.labels(batch, device)) {
            (BatchLabels::None, _) => (None, 0),
            (_, Some(labels)) => labels,
            (_, None) => {
                let task = task.task();
                return Err(Error::data(format!("the labels of this batch are not those of the task {task}")));
            }
        };
        // Rows whose own mask hides their first token, which padding on the right does not.
        let is_left_padded = attention_mask.is_some_and(|mask| mask.iter().step_by(batch.seq_len).any(|shown| !shown));
        let one_document = || (0..batch.rows).flat_map(|_| 0..batch.seq_len as i32).collect::<Vec<_>>();
        let position_ids = batch.position_ids.clone().or_else(|| is_left_padded.then(one_document));
        let input = ModelInput {
            input_ids: ids(&batch.input_ids),
            attention_mask: attention_mask.map(|mask| Tensor::from_data(TensorData::new(mask.clone(), shape), device)),
            token_type_ids: batch.token_type_ids.as_deref().map(ids),
            position_ids: position_ids.as_deref().map(ids),
        };
        Ok(Self { input, targets, examples: batch.examples, count, class_weights: None })
    }

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
fn by_target(logits: Tensor<2>, index: &Tensor<1, Int>) -> Tensor<2> {
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

fn in_f32(logits: Tensor<2>) -> Tensor<2> {
    if FloatDType::from(logits.dtype()) == FloatDType::F32 { logits } else { logits.cast(FloatDType::F32) }
}

/// One class a row, [`IGNORED`] where there is none.
fn classes(labels: &[i32], device: &Device) -> LabelsOnDevice {
    let rows = labels.len();
    let count = valid_labels(labels);
    let index = labels.iter().map(|&label| if label == IGNORED { 0 } else { label }).collect::<Vec<_>>();
    let weight = (count < rows).then(|| {
        let weight = labels.iter().map(|&label| f32::from(label != IGNORED)).collect::<Vec<f32>>();
        Tensor::from_data(TensorData::new(weight, [rows]), device)
    });
    (Some(Targets::Classes { index: Tensor::from_data(TensorData::new(index, [rows]), device), weight }), count)
}

/// `values` of a row each, `[rows, width]` with a width, on `device`.
fn numbers<const D: usize>(values: &[f32], shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), device)
}

/// 1 for the rows of `batch` that are examples and 0 for those that fill it up, `[rows]`; none where
/// all are examples.
fn row_weight(batch: &PaddedBatch, device: &Device) -> Option<Tensor<1>> {
    let weight = (0..batch.rows).map(|row| f32::from(row < batch.examples)).collect::<Vec<_>>();
    (batch.examples < batch.rows).then(|| numbers(&weight, [batch.rows], device))
}

/// `[rows, labels]` -> `[rows]`: the most likely class of each of the first `rows`.
fn most_likely(logits: Tensor<2>, rows: usize) -> Tensor<1> {
    let labels = logits.dims()[1];
    let logits = logits.slice([0..rows, 0..labels]);
    // With one class there is nothing to compare.
    if labels == 1 { logits.reshape([rows]) } else { logits.argmax(1).reshape([rows]).float() }
}

/// The logits of every token of `batch`: `[rows, seq, width]`.
fn of_tokens(logits: Tensor<2>, batch: &PaddedBatch) -> Vec<(&'static str, Vec<usize>, Tensor<2>)> {
    let [_, width] = logits.dims();
    vec![("logits", vec![batch.rows, batch.seq_len, width], logits)]
}
