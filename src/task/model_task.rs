//! The trait of a task of Kiln's models, and a batch of one.

use std::sync::Arc;

use burn::tensor::{Device, Int, Tensor, TensorData};
use kiln_core::error::{Error, Result};
use kiln_data::{BatchLabels, Dataset, IGNORED, PaddedBatch};
use kiln_models::ModelInput;
use kiln_train::confusion::Confusion;
use kiln_train::optim::loss::{LossOptions, Reduction};
use kiln_train::task::BatchSize;

use super::batch::{DeviceBatch, Targets};
use crate::config::Task;

/// A task of Kiln's models: its labels, and the figures of its predictions. A task of a program's
/// own may call the methods of Kiln's tasks, such as `SequenceClassification.targets(..)`.
pub trait ModelTask: Send + Sync + 'static {
    /// The task of a config whose head, columns and labels this task has: a task of a program's own
    /// returns the one that it resembles. Messages use its name, and an evaluation asks it whether
    /// there are a perplexity and names of labels.
    fn kind(&self) -> Task;

    /// The names of the figures of an evaluation, without their `eval_`, in their order: the
    /// `loss`, the `perplexity` of a language model, the `accuracy` where [predictions are
    /// classes](Self::predicts_classes), and those of the [scores](Self::scores). The plan checks
    /// `trainer.metric_for_best_model` against them.
    fn figures(&self) -> &'static [&'static str];

    /// The name that the Hub has for the task, for the model card of a run with a config (its
    /// `pipeline_tag`). By default that of the task that has the [kind](Self::kind) as its name.
    fn pipeline_tag(&self) -> &'static str {
        self.kind().name()
    }

    /// The class of PEFT that loads a model for the task with its adapter, where PEFT has one, for
    /// the model card. By default none.
    fn peft_class(&self) -> Option<&'static str> {
        None
    }

    /// The labels of `batch` on `device`, as the loss compares with them; none where there is no
    /// label.
    ///
    /// # Errors
    /// Labels of another kind than the task has ([`other_labels`](Self::other_labels)).
    fn targets(&self, batch: &PaddedBatch, device: &Device) -> Result<Option<Targets>>;

    /// The error of labels of another kind than the task has.
    fn other_labels(&self) -> Error {
        let kind = self.kind();
        Error::data(format!("the labels of this batch are not those of the task {kind}"))
    }

    /// How many terms the loss sum of `batch` has: predicted tokens, rows or spans.
    fn num_terms(&self, batch: &PaddedBatch) -> usize {
        batch.num_labels()
    }

    /// Whether each prediction is one class, right or wrong: its [targets](Self::targets) are
    /// [classes](Targets::Classes), or an evaluation fails with an error that says so; it has an
    /// accuracy, and its labels can be smoothed.
    fn predicts_classes(&self) -> bool;

    /// Whether the classes may have weights in the loss of training.
    fn weighs_classes(&self) -> bool {
        false
    }

    /// The reduction of the Trainer of `transformers` 5.24 (`Trainer.training_step`), for
    /// `trainer.accumulation = "transformers"`. That Trainer counts the labels of a step
    /// (`num_items_in_batch`), and takes the loss to be divided by them. GPT-2's language model
    /// does that, and so does label smoothing; the other models take the mean of each micro-batch
    /// all the same, and these means are added up.
    fn reduction_of_transformers(&self, label_smoothing: f64) -> Reduction {
        if label_smoothing > 0.0 { Reduction::Exact } else { Reduction::SumOfMeans }
    }

    /// The predictions that [`TaskScores::add`] gets, from the `logits` of the examples of `batch`,
    /// row by row: `[n]`, f32. A task that has [scores](Self::scores) returns them, or its
    /// evaluation fails with an error that says so.
    fn predictions(&self, logits: Tensor<2>, batch: &DeviceBatch) -> Option<Tensor<1>> {
        let (_, _) = (logits, batch);
        None
    }

    /// The figures of the predictions on `data`, whose classes are called `label_names`, beside
    /// loss, perplexity and accuracy.
    fn scores(&self, data: &Arc<dyn Dataset>, label_names: Vec<String>) -> Option<Box<dyn TaskScores>> {
        let (_, _) = (data, label_names);
        None
    }

    /// Whether [`ComputeMetrics`](super::evaluator::ComputeMetrics) gets the logits of this task.
    fn collects_logits(&self) -> bool {
        true
    }

    /// The `logits [n, width]` of `batch` as the model of `transformers` returns them: name, shape,
    /// values.
    fn outputs(&self, logits: Tensor<2>, batch: &PaddedBatch) -> Vec<(&'static str, Vec<usize>, Tensor<2>)> {
        let [_, width] = logits.dims();
        vec![("logits", vec![batch.rows, width], logits)]
    }
}

/// Figures that a task has beside loss, perplexity and accuracy.
pub trait TaskScores {
    /// Takes the labels of `batch`, and what [`ModelTask::predictions`] gave for it.
    fn add(&mut self, batch: &PaddedBatch, predicted: &[f64]);

    /// The figures by name, without `eval_`.
    fn figures(&self) -> Vec<(&'static str, f64)>;

    /// Which class was predicted for which, for a classification.
    fn confusion(&self) -> Option<Confusion> {
        None
    }
}

/// A batch of a task of Kiln's.
pub struct TaskBatch {
    /// Its rows.
    pub batch: PaddedBatch,
    /// The task.
    pub task: Arc<dyn ModelTask>,
    /// The options of its loss in training.
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
            labels: total_weight(&self.loss, &*self.task, batch),
        }
    }

    fn to_device(&self, device: &Device) -> Result<DeviceBatch> {
        Ok(DeviceBatch::new(&*self.task, &self.batch, device)?.with_class_weights(&self.loss, device))
    }
}

/// The divisor of the loss sum of `batch` in training under `options`: the sum of the weights of
/// the terms, where without weights each counts 1.
pub fn total_weight(options: &LossOptions, task: &dyn ModelTask, batch: &PaddedBatch) -> f64 {
    match (&options.class_weights, &batch.labels) {
        (Some(weights), BatchLabels::Classes(labels)) => {
            let valid = labels.iter().filter(|&&label| label != IGNORED);
            valid.filter_map(|&label| weights.as_slice().get(label as usize)).sum()
        }
        _ if options.counts_first_labels => batch.num_labels() as f64,
        _ => task.num_terms(batch) as f64,
    }
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
        let targets = if batch.labels == BatchLabels::None { None } else { task.targets(batch, device)? };
        let count = if targets.is_some() { task.num_terms(batch) } else { 0 };
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
}
