//! Evaluators collect the values of an evaluation batch by batch and compute its metrics.

use std::sync::Arc;

use burn::tensor::Tensor;
use kiln_core::error::{Error, Result};
use kiln_data::{BatchLabels, Dataset, IGNORED};

use kiln_train::confusion::Confusion;
use kiln_train::evaluation::{Evaluator, no_label};
use kiln_train::optim::loss::LossOptions;
use kiln_train::task::{FigureValues, Figures};

use super::batch::DeviceBatch;
use super::model_task::{ModelTask, TaskBatch, TaskScores};

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
    pub(crate) fn figures(&self, task: &dyn ModelTask) -> Result<&'static [&'static str]> {
        let (figures, kind) = (task.figures(), task.kind());
        if !task.collects_logits() {
            return Err(Error::config(format!("figures of one's own: the task {kind} does not collect its logits"))
                .help("they are for tasks whose examples, words or choices have labels"));
        }
        for (index, name) in self.names.iter().enumerate() {
            let refuse =
                |why: String| Err(Error::config(format!("figures of one's own: {why}")).help("choose another name"));
            if figures.contains(name) {
                return refuse(format!("the task {kind} has the figure {name:?} already"));
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
        Ok(Vec::leak([figures, &self.names].concat()))
    }
}

/// The names that the row of an evaluation has beside its figures.
const OF_EVERY_EVALUATION: [&str; 4] = ["samples", "runtime", "samples_per_second", "steps_per_second"];

/// The evaluator of Kiln's tasks with figures of one's own, which are computed from the figure
/// `logits` of each batch.
pub(crate) struct WithMetrics {
    pub inner: TaskEvaluator,
    pub metrics: ComputeMetrics,
    pub seen: EvalPrediction,
}

impl Evaluator<TaskBatch> for WithMetrics {
    fn add(&mut self, of: &TaskBatch, figures: &FigureValues) -> Result<()> {
        self.inner.add(of, figures)?;
        let batch = &of.batch;
        let logits = figures.get("logits")?;
        // One row of logits for each label.
        let rows = match &batch.labels {
            BatchLabels::Tokens(_) => batch.examples * batch.seq_len,
            _ => batch.examples / batch.sequences(),
        };
        let width = logits.len() / rows;
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
        Ok(())
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
/// and what the predictions are worth.
pub struct TaskEvaluator {
    task: Arc<dyn ModelTask>,
    scores: Option<Box<dyn TaskScores>>,
    loss: f64,
    nll: f64,
    correct: f64,
    count: usize,
}

impl TaskEvaluator {
    /// For `task` on `data`, with the classes `label_names`.
    pub fn new(task: Arc<dyn ModelTask>, data: &Arc<dyn Dataset>, label_names: Vec<String>) -> Self {
        Self { scores: task.scores(data, label_names), task, loss: 0.0, nll: 0.0, correct: 0.0, count: 0 }
    }

    /// The figures of `batch` for the evaluator: the sum of the `loss` of training under `options`,
    /// as evaluation computes it, that of the plain loss (`nll`), the number of `correct`
    /// predictions, and the `predictions` that the scores need; each where `task` has it.
    ///
    /// # Errors
    /// A batch without labels.
    pub fn figures(
        task: &dyn ModelTask,
        batch: &DeviceBatch,
        logits: Tensor<2>,
        options: &LossOptions,
    ) -> Result<Figures> {
        let options = options.of_evaluation();
        let correct = batch.correct(logits.clone());
        let predictions = task.predictions(logits.clone(), batch);
        // The logits of a vocabulary are what evaluation takes most memory for: no copy outlives
        // its last use.
        let smoothed = if options.is_plain() { None } else { Some(batch.training_loss(logits.clone(), &options)?.sum) };
        let nll = batch.loss(logits)?.sum;
        let loss = smoothed.unwrap_or_else(|| nll.clone());
        let others = [("correct", correct), ("predictions", predictions)];
        let others = others.into_iter().filter_map(|(name, values)| Some((name, values?)));
        Ok([("loss", loss), ("nll", nll)].into_iter().chain(others).collect())
    }
}

/// The error of a program's own task one of whose methods does not go with another.
fn lacking(task: &dyn ModelTask, what: &str) -> Error {
    Error::config(format!("the `ModelTask` of kind {}: {what}", task.kind()))
}

impl Evaluator<TaskBatch> for TaskEvaluator {
    fn add(&mut self, TaskBatch { batch, .. }: &TaskBatch, figures: &FigureValues) -> Result<()> {
        self.loss += figures.sum("loss")?;
        self.nll += figures.sum("nll")?;
        if self.task.predicts_classes() {
            let lacks = || {
                lacking(&*self.task, "`predicts_classes` is true, and `targets` returns no `Targets::Classes`")
                    .help("return `Targets::Classes` from `targets`, or false from `predicts_classes`")
            };
            self.correct += figures.sum("correct").map_err(|_| lacks())?;
        }
        self.count += self.task.num_terms(batch);
        if let Some(scores) = &mut self.scores {
            let lacks = || {
                lacking(&*self.task, "`scores` returns scores, and `predictions` returns nothing for them")
                    .help("implement `predictions`, whose values `TaskScores::add` gets, or let `scores` return none")
            };
            scores.add(batch, figures.get("predictions").map_err(|_| lacks())?);
        }
        Ok(())
    }

    fn metrics(&self) -> Result<Vec<(&'static str, f64)>> {
        if self.count == 0 {
            return Err(no_label());
        }
        let mean = |sum: f64| sum / self.count as f64;
        let mut metrics = vec![("loss", mean(self.loss))];
        // Label smoothing leaves the mean negative log-likelihood as it is.
        metrics.extend(self.task.kind().is_language_model().then(|| ("perplexity", mean(self.nll).exp())));
        metrics.extend(self.task.predicts_classes().then(|| ("accuracy", mean(self.correct))));
        metrics.extend(self.scores.iter().flat_map(|scores| scores.figures()));
        Ok(metrics)
    }

    fn confusion(&self) -> Option<Confusion> {
        self.scores.as_ref().and_then(|scores| scores.confusion())
    }
}
