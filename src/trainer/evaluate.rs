//! Evaluation: one pass over a dataset in order, without gradients. The loss is the mean over all valid terms of the whole
//! dataset, not a mean of batch means.

use std::sync::Arc;
use std::time::Duration;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use kiln_models::Model;

use super::callback::Progress;
use crate::data::loader::{Loader, LoaderOptions};
use crate::data::padding::Padding;
use crate::data::sampler::Sampler;
use crate::data::{Dataset, Labels};
use crate::error::{Error, Result};
use crate::execution::read_scalars;
use crate::metrics::Record;
use crate::scores::{self, Confusion};
use crate::signals;
use crate::task::{DeviceBatch, IGNORED, Task};

/// Sums over a dataset.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluation {
    task: Task,
    /// Mean loss over all valid terms.
    pub loss: f64,
    /// Share of right predictions; none for a task without accuracy.
    pub accuracy: Option<f64>,
    /// What the predictions are worth, for a task that predicts one thing a row: `f1` and `matthews_correlation`, or `mse`,
    /// `pearson` and `spearmanr`.
    pub scores: Vec<(&'static str, f64)>,
    /// Examples evaluated.
    pub samples: u64,
    /// Batches evaluated.
    pub batches: u64,
}

/// Batches after which sums are read back, so that pending work does not pile up on the device.
const READ_EVERY: usize = 32;

/// Evaluates `model` on `dataset`.
///
/// # Errors
/// Data that cannot be read, a dataset without one valid label, or a signal that asks the process to stop.
pub fn evaluate(
    model: &Model,
    task: Task,
    dataset: Arc<dyn Dataset>,
    batch_size: usize,
    pad_id: u32,
    padding: &Padding,
    device: &Device,
) -> Result<Evaluation> {
    let model = model.valid();
    let options = LoaderOptions {
        batch_size,
        sampler: Sampler::Sequential,
        seed: 0,
        drop_last: false,
        pad_id,
        padding: padding.clone(),
        prefetch: 2,
        repeat: false,
    };
    let mut loader = Loader::new(dataset, options)?;
    let (mut predicted, mut expected, mut num_labels) = (Vec::new(), Expected::default(), 0);
    let mut pending_rows = Vec::new(); // predictions of each batch in `pending`
    let (mut loss, mut correct, mut count, mut samples, mut batches) = (0.0, 0.0, 0usize, 0, 0);
    let mut pending: Vec<Tensor<1>> = Vec::new(); // loss, number of right predictions and predictions, in turn
    loop {
        if let Some(signal) = signals::received() {
            return Err(signal.error(format_args!("stopped while evaluating, after {batches} batches")));
        }
        let loaded = loader.next_batch()?;
        if let Some(loaded) = &loaded {
            let batch = DeviceBatch::new(task, &loaded.batch, device)?;
            let logits = model.forward(batch.input.clone(), false);
            let right = batch.correct(logits.clone());
            num_labels = logits.dims()[1];
            let examples = loaded.batch.examples;
            let compared = expected.add(&loaded.batch.labels, examples, task);
            let predictions = compared.then(|| predictions(logits.clone(), examples));
            pending_rows.push(predictions.as_ref().map_or(0, |rows| rows.dims()[0]));
            let sum = batch.loss(logits)?;
            pending.push(sum.sum.clone());
            pending.push(right.unwrap_or_else(|| sum.sum.zeros_like()));
            pending.extend(predictions);
            count += sum.count;
            samples += loaded.batch.examples as u64;
            batches += 1;
        }
        if pending_rows.len() >= READ_EVERY || loaded.is_none() {
            let values = read_scalars(std::mem::take(&mut pending))?;
            let mut rest = &values[..];
            for rows in pending_rows.drain(..) {
                let (of_batch, after) = rest.split_at(2 + rows);
                loss += of_batch[0];
                correct += of_batch[1];
                predicted.extend_from_slice(&of_batch[2..]);
                rest = after;
            }
        }
        if loaded.is_none() {
            break;
        }
    }
    if count == 0 {
        return Err(Error::data("the validation data has no valid label").help("at least one label must not be -100"));
    }
    let accuracy = task.has_accuracy().then_some(correct / count as f64);
    let scores = expected.scores(&predicted, num_labels);
    Ok(Evaluation { task, loss: loss / count as f64, accuracy, scores, samples, batches })
}

/// The labels of a dataset whose predictions are compared row by row.
#[derive(Default)]
struct Expected {
    classes: Vec<i32>,
    values: Vec<f64>,
}

impl Expected {
    /// Keeps the labels of the first `examples` rows of a batch; whether their predictions are wanted.
    fn add(&mut self, labels: &Labels, examples: usize, task: Task) -> bool {
        match (labels, task) {
            (Labels::Classes(classes), Task::SequenceClassification) => self.classes.extend(&classes[..examples]),
            (Labels::Values(values), Task::Regression) => {
                self.values.extend(values[..examples].iter().copied().map(f64::from));
            }
            _ => return false,
        }
        true
    }

    fn scores(&self, predicted: &[f64], num_labels: usize) -> Vec<(&'static str, f64)> {
        if !self.values.is_empty() {
            let expected = &self.values;
            return vec![
                ("mse", scores::mean_squared_error(expected, predicted)),
                ("pearson", scores::pearson(expected, predicted)),
                ("spearmanr", scores::spearman(expected, predicted)),
            ];
        }
        if self.classes.is_empty() {
            return Vec::new();
        }
        let pairs = self.classes.iter().zip(predicted).filter(|(expected, _)| **expected != IGNORED);
        let pairs = pairs.map(|(expected, predicted)| (*expected as usize, *predicted as usize));
        let confusion = Confusion::new(num_labels, pairs);
        vec![("f1", confusion.f1()), ("matthews_correlation", confusion.matthews_correlation())]
    }
}

/// `[rows, labels]` -> `[examples]`: the most likely class of each example, or the value of a head with one output.
fn predictions(logits: Tensor<2>, examples: usize) -> Tensor<1> {
    let labels = logits.dims()[1];
    let logits = logits.slice([0..examples, 0..labels]);
    match labels {
        1 => logits.reshape([examples]),
        _ => logits.argmax(1).reshape([examples]).float(),
    }
}

impl Evaluation {
    /// The perplexity of a language model: `exp(loss)`.
    pub fn perplexity(&self) -> Option<f64> {
        self.task.has_perplexity().then_some(self.loss.exp())
    }

    /// The evaluation row of a run.
    pub fn record(&self, progress: &Progress, elapsed: Duration) -> Record {
        let mut record =
            Record::default().with("step", progress.step).with("epoch", progress.epoch).with("eval_loss", self.loss);
        if let Some(perplexity) = self.perplexity() {
            record = record.with("eval_perplexity", perplexity);
        }
        if let Some(accuracy) = self.accuracy {
            record = record.with("eval_accuracy", accuracy);
        }
        for (name, value) in &self.scores {
            record = record.with(&format!("eval_{name}"), *value);
        }
        let seconds = elapsed.as_secs_f64();
        record
            .with("eval_samples", self.samples)
            .with("eval_runtime", seconds)
            .with("eval_samples_per_second", self.samples as f64 / seconds)
            .with("eval_steps_per_second", self.batches as f64 / seconds)
    }
}
