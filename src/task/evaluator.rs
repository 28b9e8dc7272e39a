//! Evaluators collect the values of an evaluation batch by batch and compute its metrics.

use std::sync::Arc;

use burn::tensor::Tensor;
use kiln_core::error::{Error, Result};
use kiln_data::squad::{SpanLogits, SquadData};
use kiln_data::{BatchLabels, Dataset, IGNORED};

use kiln_train::confusion::Confusion;
use kiln_train::evaluation::{Evaluator, no_label};

use super::scores::{self, Entities};
use super::{DeviceBatch, LossOptions, TaskBatch};
use crate::config::Task;

/// The logits and labels of an evaluation (`EvalPrediction` of `transformers`).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EvalPrediction {
    /// The logits of each example, or of each word that has a label: those of its classes, labels
    /// or choices, or the number.
    pub predictions: Vec<Vec<f32>>,
    /// For each of these the class or the number of the right choice; empty where labels are
    /// numbers.
    pub label_ids: Vec<i32>,
    /// For each of these the number, or one for every label; empty where labels are classes.
    pub label_values: Vec<Vec<f32>>,
}

/// From all predictions of an evaluation to one number for each name.
type Compute = dyn Fn(&EvalPrediction) -> Result<Vec<f64>> + Send + Sync;

/// Figures of one's own beside those of a task, computed after an evaluation from all of its
/// predictions: `compute_metrics` of `transformers`' Trainer.
#[derive(Clone)]
pub struct ComputeMetrics {
    names: Vec<&'static str>,
    compute: Arc<Compute>,
}

impl ComputeMetrics {
    /// The figures called `names`, without `eval_`, which `compute` gives in the same order. They
    /// stand in the rows of the log, and `trainer.metric_for_best_model` may name one of them.
    pub fn new(
        names: &[&'static str],
        compute: impl Fn(&EvalPrediction) -> Result<Vec<f64>> + Send + Sync + 'static,
    ) -> Self {
        Self { names: names.to_vec(), compute: Arc::new(compute) }
    }

    /// The figures of `task` and these.
    ///
    /// # Errors
    /// A task whose predictions are not collected, and a name that stands in the rows of the log
    /// already, or comes twice.
    pub(crate) fn figures(&self, task: Task) -> Result<&'static [&'static str]> {
        if task.is_language_model() || task == Task::QuestionAnswering {
            return Err(Error::config(format!("figures of one's own: the task {task} does not collect its logits"))
                .help("they are for tasks whose examples, words or choices have labels"));
        }
        for (index, name) in self.names.iter().enumerate() {
            let refuse =
                |why: String| Err(Error::config(format!("figures of one's own: {why}")).help("choose another name"));
            if task.figures().contains(name) {
                return refuse(format!("the task {task} has the figure {name:?} already"));
            }
            if OF_EVERY_EVALUATION.contains(name) {
                return refuse(format!("the row of every evaluation has \"eval_{name}\" already"));
            }
            if self.names[..index].contains(name) {
                return refuse(format!("the name {name:?} comes twice"));
            }
            if name.is_empty()
                || !name.chars().all(|character| character.is_ascii_alphanumeric() || "_-./@".contains(character))
            {
                return refuse(format!("expected a name of letters, digits and _-./@, got {name:?}"));
            }
        }
        // A program has a handful of tasks, and the names of figures are static everywhere else.
        Ok(Vec::leak([task.figures(), &self.names].concat()))
    }
}

/// The names that the row of an evaluation has beside its figures.
const OF_EVERY_EVALUATION: [&str; 4] = ["samples", "runtime", "samples_per_second", "steps_per_second"];

/// [`Predictions`] with figures of one's own: their values are followed by the logits of the
/// examples.
pub(crate) struct WithMetrics {
    pub task: Task,
    /// Logits of an example or a word.
    pub width: usize,
    pub inner: Predictions,
    pub metrics: ComputeMetrics,
    pub seen: EvalPrediction,
}

impl Evaluator<TaskBatch> for WithMetrics {
    fn add(&mut self, of: &TaskBatch, values: &[f64]) {
        let batch = &of.batch;
        let (choices, rows) = (batch.sequences(), batch.examples / batch.sequences());
        let rows = if self.task == Task::TokenClassification { rows * batch.seq_len } else { rows };
        let width = if self.task == Task::MultipleChoice { choices } else { self.width };
        let (own, logits) = values.split_at(values.len() - rows * width);
        self.inner.add(of, own);
        for (row, logits) in logits.chunks(width).enumerate() {
            match &batch.labels {
                BatchLabels::Tokens(ids) | BatchLabels::Classes(ids) | BatchLabels::Choices { answers: ids, .. } => {
                    match ids[row] {
                        IGNORED => continue,
                        id => self.seen.label_ids.push(id),
                    }
                }
                BatchLabels::Values(values) => self.seen.label_values.push(vec![values[row]]),
                BatchLabels::Multi(values) => {
                    self.seen.label_values.push(values[row * width..(row + 1) * width].to_vec());
                }
                BatchLabels::None | BatchLabels::Spans { .. } => continue,
            }
            self.seen.predictions.push(logits.iter().map(|logit| *logit as f32).collect());
        }
    }

    fn metrics(&self) -> Result<Vec<(&'static str, f64)>> {
        let mut all = self.inner.metrics()?;
        let (names, own) = (&self.metrics.names, (self.metrics.compute)(&self.seen)?);
        if own.len() != names.len() {
            let (expected, got) = (names.len(), own.len());
            return Err(Error::config(format!("figures of one's own: expected {expected} ({names:?}), got {got}")));
        }
        all.extend(names.iter().copied().zip(own));
        Ok(all)
    }

    fn confusion(&self) -> Option<Confusion> {
        self.inner.confusion()
    }
}

/// The evaluator of Kiln's tasks: the mean loss over all valid terms, not a mean of batch means,
/// and what the predictions are worth. Of a batch it takes the loss sum with the label smoothing of
/// training, the sum of negative log-likelihoods, the number of right predictions, and the
/// predictions, where they are compared row by row.
pub struct Predictions {
    task: Task,
    /// The questions behind the rows of question answering are in it.
    dataset: Arc<dyn Dataset>,
    label_names: Vec<String>,
    loss: f64,
    nll: f64,
    correct: f64,
    count: usize,
    expected: Expected,
    predicted: Vec<f64>,
    /// Examples and tokens of each batch, where predictions are span logits.
    spans: Vec<(usize, usize)>,
    /// The entities of token classification; none where no label is a tag of one.
    entities: Option<Entities>,
}

impl Predictions {
    /// For `task` on `dataset`, with the classes `label_names`.
    pub fn new(task: Task, dataset: Arc<dyn Dataset>, label_names: Vec<String>) -> Self {
        let entities = scores::are_tags(&label_names).then(Entities::default);
        Self {
            task,
            dataset,
            label_names,
            loss: 0.0,
            nll: 0.0,
            correct: 0.0,
            count: 0,
            expected: Expected::default(),
            predicted: Vec::new(),
            spans: Vec::new(),
            entities,
        }
    }

    /// The values that the evaluator reads from `batch`: the sum of the loss of training under
    /// `options`, as evaluation computes it, the sum of the plain loss, the number of correct
    /// predictions, and for some tasks the predictions.
    ///
    /// # Errors
    /// A batch without labels.
    pub fn values(task: Task, batch: &DeviceBatch, logits: Tensor<2>, options: &LossOptions) -> Result<Vec<Tensor<1>>> {
        let options = options.of_evaluation();
        let right = batch.correct(logits.clone());
        let predictions = match task {
            Task::SequenceClassification | Task::Regression => Some(predictions(logits.clone(), batch.examples)),
            Task::TokenClassification => {
                Some(predictions(logits.clone(), batch.examples * batch.input.input_ids.dims()[1]))
            }
            Task::MultiLabelClassification => Some(applying(logits.clone(), batch.examples)),
            Task::QuestionAnswering => Some(spans(logits.clone(), batch.input.input_ids.dims()[0], batch.examples)),
            Task::Clm | Task::Mlm | Task::MultipleChoice => None,
        };
        // The logits of a vocabulary are what evaluation takes most memory for: no copy outlives
        // its last use.
        let smoothed = if options.is_plain() { None } else { Some(batch.training_loss(logits.clone(), &options)?.sum) };
        let sum = batch.loss(logits)?.sum;
        let smoothed = smoothed.unwrap_or_else(|| sum.clone());
        let right = right.unwrap_or_else(|| sum.zeros_like());
        Ok([smoothed, sum, right].into_iter().chain(predictions).collect())
    }
}

impl Evaluator<TaskBatch> for Predictions {
    fn add(&mut self, TaskBatch { batch, .. }: &TaskBatch, values: &[f64]) {
        self.loss += values[0];
        self.nll += values[1];
        self.correct += values[2];
        self.count += self.task.num_terms(batch);
        self.expected.add(&batch.labels, batch.rows, batch.examples);
        match (&batch.labels, self.task) {
            (BatchLabels::Tokens(labels), Task::TokenClassification) => {
                let rows = labels.chunks(batch.seq_len).zip(values[3..].chunks(batch.seq_len));
                if let Some(entities) = &mut self.entities {
                    rows.for_each(|(expected, predicted)| entities.add(&self.label_names, expected, predicted));
                }
            }
            (_, Task::QuestionAnswering) if SquadData::of(&*self.dataset).is_none() => {}
            _ => self.predicted.extend_from_slice(&values[3..]),
        }
        self.spans.push((batch.examples, batch.seq_len));
    }

    fn metrics(&self) -> Result<Vec<(&'static str, f64)>> {
        if self.count == 0 {
            return Err(no_label());
        }
        let mean = |sum: f64| sum / self.count as f64;
        let mut metrics = vec![("loss", mean(self.loss))];
        // Of the mean negative log-likelihood, which label smoothing leaves as it is.
        metrics.extend(self.task.has_perplexity().then(|| ("perplexity", mean(self.nll).exp())));
        metrics.extend(self.task.has_accuracy().then(|| ("accuracy", mean(self.correct))));
        metrics.extend(match (SquadData::of(&*self.dataset), self.confusion()) {
            (Some(squad), _) => squad.scores(&span_logits_of(&self.predicted, &self.spans)).named(),
            (None, Some(confusion)) => {
                vec![("f1", confusion.f1()), ("matthews_correlation", confusion.matthews_correlation())]
            }
            (None, None) if self.task == Task::TokenClassification => {
                self.entities.as_ref().map_or_else(Vec::new, Entities::scores)
            }
            (None, None) => self.expected.scores(&self.predicted, self.label_names.len()),
        });
        Ok(metrics)
    }

    fn confusion(&self) -> Option<Confusion> {
        self.expected.confusion(&self.predicted, self.label_names.len())
    }
}

/// The labels of a dataset whose predictions are compared row by row.
#[derive(Default)]
struct Expected {
    classes: Vec<i32>,
    values: Vec<f64>,
    /// For each label of each row, whether it applies.
    applying: Vec<bool>,
}

impl Expected {
    /// Keeps the labels of the first `examples` rows of a batch.
    fn add(&mut self, labels: &BatchLabels, batch_rows: usize, examples: usize) {
        match labels {
            BatchLabels::Classes(classes) => self.classes.extend(&classes[..examples]),
            BatchLabels::Values(values) => self.values.extend(values[..examples].iter().copied().map(f64::from)),
            BatchLabels::Multi(values) => {
                let of_examples = values.len() / batch_rows * examples;
                self.applying.extend(values[..of_examples].iter().map(|value| *value > 0.5));
            }
            BatchLabels::None | BatchLabels::Tokens(_) | BatchLabels::Choices { .. } | BatchLabels::Spans { .. } => {}
        }
    }

    fn confusion(&self, predicted: &[f64], num_labels: usize) -> Option<Confusion> {
        let pairs = self.classes.iter().zip(predicted).filter(|(expected, _)| **expected != IGNORED);
        let pairs = pairs.map(|(expected, predicted)| (*expected as usize, *predicted as usize));
        (!self.classes.is_empty()).then(|| Confusion::new(num_labels, pairs))
    }

    fn scores(&self, predicted: &[f64], num_labels: usize) -> Vec<(&'static str, f64)> {
        if !self.applying.is_empty() {
            let predicted = predicted.iter().map(|value| *value > 0.5).collect::<Vec<_>>();
            return scores::several_labels(&self.applying, &predicted, num_labels);
        }
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

/// `[rows, labels]` -> `[examples]`: the most likely class of each example, or the value of a head
/// with one output.
fn predictions(logits: Tensor<2>, examples: usize) -> Tensor<1> {
    let labels = logits.dims()[1];
    let logits = logits.slice([0..examples, 0..labels]);
    match labels {
        1 => logits.reshape([examples]),
        _ => logits.argmax(1).reshape([examples]).float(),
    }
}

/// `[rows, labels]` -> `[examples * labels]`: 1 for a label whose probability is above one half,
/// else 0.
fn applying(logits: Tensor<2>, examples: usize) -> Tensor<1> {
    let labels = logits.dims()[1];
    logits.slice([0..examples, 0..labels]).greater_scalar(0.0).float().reshape([examples * labels])
}

/// `[rows * tokens, 2]` -> `[examples * 2 * tokens]`: of each example its start logits, then its
/// end logits.
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
