//! Evaluation: one pass over a dataset in order, without gradients. The loss is the mean over all valid terms of the whole
//! dataset, not a mean of batch means.

use std::sync::Arc;
use std::time::Duration;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use kiln_models::Model;

use super::callback::Progress;
use crate::data::Dataset;
use crate::data::loader::{Loader, LoaderOptions};
use crate::data::sampler::Sampler;
use crate::error::{Error, Result};
use crate::execution::read_scalars;
use crate::metrics::Record;
use crate::signals;
use crate::task::{DeviceBatch, Task};

/// Sums over a dataset.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    task: Task,
    /// Mean loss over all valid terms.
    pub loss: f64,
    /// Share of right predictions; none for a task without accuracy.
    pub accuracy: Option<f64>,
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
    device: &Device,
) -> Result<Evaluation> {
    let model = model.valid();
    let options = LoaderOptions {
        batch_size,
        sampler: Sampler::Sequential,
        seed: 0,
        drop_last: false,
        pad_id,
        pad_to: None,
        prefetch: 2,
        repeat: false,
    };
    let mut loader = Loader::new(dataset, options)?;
    let (mut loss, mut correct, mut count, mut samples, mut batches) = (0.0, 0.0, 0usize, 0, 0);
    let mut pending: Vec<Tensor<1>> = Vec::new(); // loss and number of right predictions, in turn
    loop {
        if let Some(signal) = signals::received() {
            return Err(signal.error(format_args!("stopped while evaluating, after {batches} batches")));
        }
        let loaded = loader.next_batch()?;
        if let Some(loaded) = &loaded {
            let batch = DeviceBatch::new(task, &loaded.batch, device)?;
            let logits = model.forward(batch.input.clone(), false);
            let right = batch.correct(logits.clone());
            let sum = batch.loss(logits)?;
            pending.push(sum.sum.clone());
            pending.push(right.unwrap_or_else(|| sum.sum.zeros_like()));
            count += sum.count;
            samples += loaded.batch.rows as u64;
            batches += 1;
        }
        if pending.len() >= 2 * READ_EVERY || loaded.is_none() {
            for pair in read_scalars(std::mem::take(&mut pending))?.chunks(2) {
                loss += pair[0];
                correct += pair[1];
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
    Ok(Evaluation { task, loss: loss / count as f64, accuracy, samples, batches })
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
        let seconds = elapsed.as_secs_f64();
        record
            .with("eval_samples", self.samples)
            .with("eval_runtime", seconds)
            .with("eval_samples_per_second", self.samples as f64 / seconds)
            .with("eval_steps_per_second", self.batches as f64 / seconds)
    }
}
