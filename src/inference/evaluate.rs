//! Evaluation: one pass over a dataset in order, without gradients. The loss is the mean over all valid terms of the whole
//! dataset, not a mean of batch means.

use std::sync::Arc;
use std::time::Duration;

use burn::module::Module;
use burn::tensor::Tensor;
use kiln_models::{Copies, Model};

use crate::base::error::{Error, Result};
use crate::base::metrics::Record;
use crate::base::reads::read_scalars;
use crate::base::signals;
use crate::config::Task;
use crate::data::IGNORED;
use crate::data::loader::{Loader, LoaderOptions};
use crate::data::sampler::Order;
use crate::data::squad::SpanLogits;
use crate::data::{Dataset, Labels};
use crate::session::Session;
use crate::task::DeviceBatch;
use crate::task::scores;
use crate::task::scores::Confusion;

/// Sums over a dataset.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluation {
    task: Task,
    /// Mean loss over all valid terms, with the label smoothing of training.
    pub loss: f64,
    /// Mean negative log-likelihood over all valid terms: the loss without label smoothing.
    nll: f64,
    /// Share of right predictions; none for a task without accuracy.
    pub accuracy: Option<f64>,
    /// What the predictions are worth, for a task that predicts one thing a row: `f1` and `matthews_correlation`, or `mse`,
    /// `pearson` and `spearmanr`.
    pub scores: Vec<(&'static str, f64)>,
    /// Which class was predicted for which, for a classification.
    pub confusion: Option<Confusion>,
    /// Examples evaluated.
    pub samples: u64,
    /// Batches evaluated.
    pub batches: u64,
}

/// Batches after which sums are read back, so that pending work does not pile up on the device.
const READ_EVERY: usize = 32;

/// Evaluates `model` on `dataset` in batches of `batch_size`, by the task, the loss, the padding and the device of `session`.
///
/// # Errors
/// Data that cannot be read, a dataset without one valid label, or a signal that asks the process to stop.
pub fn evaluate(model: &Model, session: &Session, dataset: Arc<dyn Dataset>, batch_size: usize) -> Result<Evaluation> {
    let plan = &session.plan;
    let options = LoaderOptions {
        batch_size,
        order: Order::SEQUENTIAL,
        drop_last: false,
        pad_id: plan.data.pad_id,
        padding: plan.data.padding.clone(),
        prefetch: 2,
        repeat: false,
    };
    let loader = Loader::new(dataset.clone(), options)?;
    evaluate_batches(&model.valid(), session, &dataset, loader)
}

/// [`evaluate`] for the batches of `loader`.
fn evaluate_batches(
    model: &Model,
    session: &Session,
    dataset: &Arc<dyn Dataset>,
    mut loader: Loader,
) -> Result<Evaluation> {
    let (_, task) = session.plan.model.built_in()?;
    let (device, options) = (&session.device, session.plan.optimizer.loss.of_evaluation());
    let copies = Copies::default();
    let pass = model.pass(false).with_copies(&copies);
    let (mut predicted, mut expected, mut num_labels) = (Vec::new(), Expected::default(), 0);
    let mut pending_rows = Vec::new(); // predictions of each batch in `pending`
    let mut spans_of = Vec::new(); // examples and tokens of each batch, where predictions are span logits
    let (mut loss, mut nll, mut correct, mut count, mut samples, mut batches) = (0.0, 0.0, 0.0, 0usize, 0, 0);
    // Loss, its negative log-likelihood, number of right predictions and predictions, in turn.
    let mut pending: Vec<Tensor<1>> = Vec::new();
    loop {
        if let Some(signal) = signals::received() {
            return Err(signal.error(format_args!("stopped while evaluating, after {batches} batches")));
        }
        let loaded = loader.next_batch()?;
        if let Some(loaded) = &loaded {
            let batch = DeviceBatch::new(task, &loaded.batch, device)?;
            let logits = model.logits(&batch.input, pass);
            let right = batch.correct(logits.clone());
            num_labels = logits.dims()[1];
            let examples = loaded.batch.examples;
            let compared = expected.add(&loaded.batch.labels, examples, task);
            let predictions = match (compared, dataset.squad()) {
                (true, _) => Some(predictions(logits.clone(), examples)),
                (false, Some(_)) => {
                    spans_of.push((examples, loaded.batch.seq_len));
                    Some(spans(logits.clone(), loaded.batch.rows, examples))
                }
                (false, None) => None,
            };
            pending_rows.push(predictions.as_ref().map_or(0, |rows| rows.dims()[0]));
            // The logits of a vocabulary are what evaluation takes most memory for: no copy outlives its last use.
            let smoothed = match options.is_plain() {
                true => None,
                false => Some(batch.training_loss(logits.clone(), &options)?.sum),
            };
            let sum = batch.loss(logits)?;
            let smoothed = smoothed.unwrap_or_else(|| sum.sum.clone());
            let right = right.unwrap_or_else(|| sum.sum.zeros_like());
            pending.extend([smoothed, sum.sum, right]);
            pending.extend(predictions);
            count += sum.count;
            samples += loaded.batch.examples as u64;
            batches += 1;
        }
        if pending_rows.len() >= READ_EVERY || loaded.is_none() {
            let values = read_scalars(std::mem::take(&mut pending))?;
            let mut rest = &values[..];
            for rows in pending_rows.drain(..) {
                let (of_batch, after) = rest.split_at(3 + rows);
                loss += of_batch[0];
                nll += of_batch[1];
                correct += of_batch[2];
                predicted.extend_from_slice(&of_batch[3..]);
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
    let confusion = expected.confusion(&predicted, num_labels);
    let scores = match (dataset.squad(), &confusion) {
        (Some(squad), _) => squad.scores(&span_logits_of(&predicted, &spans_of)).named(),
        (None, Some(confusion)) => {
            vec![("f1", confusion.f1()), ("matthews_correlation", confusion.matthews_correlation())]
        }
        (None, None) => expected.scores(&predicted),
    };
    let (loss, nll) = (loss / count as f64, nll / count as f64);
    Ok(Evaluation { task, loss, nll, accuracy, scores, confusion, samples, batches })
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

    fn confusion(&self, predicted: &[f64], num_labels: usize) -> Option<Confusion> {
        let pairs = self.classes.iter().zip(predicted).filter(|(expected, _)| **expected != IGNORED);
        let pairs = pairs.map(|(expected, predicted)| (*expected as usize, *predicted as usize));
        (!self.classes.is_empty()).then(|| Confusion::new(num_labels, pairs))
    }

    fn scores(&self, predicted: &[f64]) -> Vec<(&'static str, f64)> {
        let expected = &self.values;
        if expected.is_empty() {
            return Vec::new();
        }
        vec![
            ("mse", scores::mean_squared_error(expected, predicted)),
            ("pearson", scores::pearson(expected, predicted)),
            ("spearmanr", scores::spearman(expected, predicted)),
        ]
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

/// `[rows * tokens, 2]` -> `[examples * 2 * tokens]`: of each example its start logits, then its end logits.
fn spans(logits: Tensor<2>, rows: usize, examples: usize) -> Tensor<1> {
    let tokens = logits.dims()[0] / rows;
    let by_example: Tensor<3> = logits.reshape([rows, tokens, 2]).swap_dims(1, 2);
    by_example.slice([0..examples, 0..2, 0..tokens]).reshape([examples * 2 * tokens])
}

/// The values that [`spans`] gave for batches of so many examples and tokens, by example.
fn span_logits_of(values: &[f64], batches: &[(usize, usize)]) -> Vec<SpanLogits> {
    let mut rest = values;
    let mut found = Vec::new();
    for (examples, tokens) in batches {
        for _ in 0..*examples {
            let (start, after) = rest.split_at(*tokens);
            let (end, after) = after.split_at(*tokens);
            let narrow = |values: &[f64]| values.iter().map(|value| *value as f32).collect();
            found.push(SpanLogits { start: narrow(start), end: narrow(end) });
            rest = after;
        }
    }
    found
}

impl Evaluation {
    /// The perplexity of a language model: the exponential of the mean negative log-likelihood, which label smoothing leaves
    /// as it is.
    pub fn perplexity(&self) -> Option<f64> {
        self.task.has_perplexity().then_some(self.nll.exp())
    }

    /// The confusion matrix as lines of text, a row for each label and a column for each prediction; none for other tasks.
    pub fn confusion_lines(&self, names: &[String]) -> Vec<String> {
        let Some(confusion) = &self.confusion else { return Vec::new() };
        let classes = 0..confusion.num_labels();
        let name = |class: usize| names.get(class).cloned().unwrap_or_else(|| format!("LABEL_{class}"));
        let width = classes.clone().map(|class| name(class).chars().count()).max().unwrap_or(0).max("label".len());
        let line = |first: String, cells: Vec<String>| {
            let cells = cells.iter().map(|cell| format!("  {cell:>width$}")).collect::<String>();
            format!("{first:<width$}{cells}")
        };
        let head = line("label".into(), classes.clone().map(name).collect());
        let rows = classes.clone().map(|expected| {
            line(name(expected), classes.clone().map(|p| confusion.count(expected, p).to_string()).collect())
        });
        std::iter::once(head).chain(rows).collect()
    }

    /// The evaluation row of a run after step `step`, in epoch `epoch`.
    pub fn record(&self, step: u64, epoch: f64, elapsed: Duration) -> Record {
        let mut record = Record::default().with("step", step).with("epoch", epoch).with("eval_loss", self.loss);
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
