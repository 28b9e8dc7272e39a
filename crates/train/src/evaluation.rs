//! Evaluation: one pass over a dataset in order, without gradients. The task's
//! [`Evaluator`] collects the values of each batch.

use std::sync::Arc;
use std::time::Duration;

use burn::module::Module;
use burn::tensor::Device;
use kiln_core::dataset::Dataset;
use kiln_core::dataset::loader::{Loader, LoaderOptions, Share};
use kiln_core::dataset::sampler::Order;
use kiln_core::error::{Error, Result};
use kiln_core::host::return_freed_memory;
use kiln_core::metrics::Record;
use kiln_models::ops::dropout::DropoutRng;
use kiln_models::{Compute, Copies, Pass};

use crate::confusion::Confusion;
use crate::distributed::World;
use crate::reads::read_scalars;
pub use crate::task::Evaluator;
use crate::task::{Batch, FigureValues, Figures, OnDevice, TrainingTask};

/// Means over all labels of a dataset, from the sums of batches.
#[derive(Default)]
struct Means {
    sums: Vec<(&'static str, f64)>,
    labels: f64,
}

impl<B: Batch> Evaluator<B> for Means {
    fn add(&mut self, batch: &B, figures: &FigureValues) -> Result<()> {
        let names = figures.0.iter().map(|(name, _)| *name);
        if self.sums.is_empty() {
            self.sums = names.map(|name| (name, 0.0)).collect();
        }
        for (name, sum) in &mut self.sums {
            *sum += figures.sum(name)?;
        }
        self.labels += batch.size().labels;
        Ok(())
    }

    fn metrics(&self) -> Result<Vec<(&'static str, f64)>> {
        if self.labels == 0.0 {
            return Err(no_label());
        }
        Ok(self.sums.iter().map(|(name, sum)| (*name, sum / self.labels)).collect())
    }
}

/// Validation data of which no loss can be computed.
pub fn no_label() -> Error {
    Error::data("the validation data has no valid label").help("at least one label must not be -100")
}

/// An evaluation that can begin.
pub struct EvaluationSession<T: TrainingTask> {
    /// Where it runs.
    pub device: Device,
    /// How a model computes.
    pub compute: Compute,
    /// The task, with its loss and its metrics.
    pub task: T,
    /// Validation data.
    pub validation: Arc<dyn Dataset<T::Example>>,
    /// Examples of a batch.
    pub batch_size: usize,
}

/// The result of an evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluation {
    /// The figures by name, without `eval_`; the first is the `loss`, the mean over all valid
    /// terms.
    pub metrics: Vec<(&'static str, f64)>,
    /// Which class was predicted for which, for a classification.
    pub confusion: Option<Confusion>,
    /// Examples evaluated.
    pub samples: u64,
    /// Batches evaluated.
    pub batches: u64,
}

/// Batches after which values are read back, so that pending work does not pile up on the device.
const READ_EVERY: usize = 32;

/// Evaluates `model` in `session`. The ranks of `world` take turns with the batches and tell one
/// another the values: each has the figures that one process alone has, to the bit. `told` hears
/// before each batch how many are done, and of how many.
///
/// # Errors
/// Data that cannot be read, a dataset without one valid label, figures that
/// [`TrainingTask::evaluate`] must not return; a signal to any rank, which stops all. MPI's.
pub fn evaluate<T: TrainingTask>(
    world: &World,
    session: &EvaluationSession<T>,
    model: &T::Model,
    told: &mut dyn FnMut(u64, u64),
) -> Result<Evaluation> {
    let EvaluationSession { device, compute, task, validation, batch_size } = session;
    let (compute, batch_size) = (*compute, *batch_size);
    let planned = validation.len().div_ceil(batch_size) as u64;
    // The heap keeps what steps have freed, in pieces that hold the large tensors of a batch or do
    // not.
    return_freed_memory();
    let options = LoaderOptions {
        batch_size,
        order: Order::SEQUENTIAL,
        drop_last: false,
        prefetch: 2,
        repeat: false,
        share: Share::ALL,
    };
    let collator = task.clone();
    let own = task.evaluator(validation);
    let has_evaluator = own.is_some();
    let mut evaluator = own.unwrap_or_else(|| Box::new(Means::default()));
    let mut loader = Loader::new(validation.clone(), move |examples| collator.batch(examples, batch_size), options)?;
    let model = model.valid();
    let copies = Copies::default();
    let pass = Pass { compute, rng: DropoutRng::Off, copies: Some(&copies), ..Pass::default() };
    let figures_of = |batch: &T::Batch| batch_figures(task, &model, &batch.to_device(device)?, pass, has_evaluator);
    let mut names: Option<Vec<&'static str>> = None;
    // Batches and their figures; none where another rank computes them.
    let mut pending: Vec<(T::Batch, Option<Figures>)> = Vec::new();
    let (mut samples, mut batches) = (0, 0);
    loop {
        told(batches, planned);
        let is_first_turn = batches % world.size() as u64 == 0;
        if is_first_turn && let Some(signal) = world.received()? {
            return Err(signal.error(format_args!("stopped while evaluating, after {batches} batches")));
        }
        let loaded = loader.next_batch()?;
        let is_done = loaded.is_none();
        if let Some(loaded) = loaded {
            let is_own = batches % world.size() as u64 == world.rank() as u64;
            let figures = if is_own { Some(figures_of(&loaded.batch)?) } else { None };
            pending.push((loaded.batch, figures));
            samples += loaded.examples as u64;
            batches += 1;
        }
        if pending.len() >= READ_EVERY || (is_done && !pending.is_empty()) {
            let names = match &mut names {
                Some(names) => names,
                None => {
                    // A rank without a batch of its own computes one for the names alone.
                    let own = pending.iter().find_map(|(_, figures)| figures.as_ref()).map(names_of);
                    let own = own.map_or_else(|| Ok(names_of(&figures_of(&pending[0].0)?)), Ok::<_, Error>)?;
                    let of_ranks = world.gather_text(&own.join(", "))?;
                    for of_rank in &of_ranks {
                        check_names(task, &of_ranks[0], of_rank)?;
                    }
                    names.insert(own)
                }
            };
            let (mut of_batches, mut tensors) = (Vec::new(), Vec::new());
            for (batch, figures) in pending.drain(..) {
                let mut lengths = vec![0; names.len()];
                if let Some(figures) = figures {
                    check_names(task, &names.join(", "), &names_of(&figures).join(", "))?;
                    lengths = figures.iter().map(|(_, values)| values.dims()[0]).collect();
                    tensors.extend(figures.into_iter().map(|(_, values)| values));
                }
                of_batches.push((batch, lengths));
            }
            let lengths = of_batches.iter().flat_map(|(_, lengths)| lengths).map(|length| *length as f64).collect();
            let (lengths, values) = (world.gather_lists(lengths)?, world.gather_lists(read_scalars(tensors)?)?);
            let all = in_order(names, of_batches.len(), &lengths, &values);
            for ((batch, _), figures) in of_batches.into_iter().zip(all) {
                evaluator.add(&batch, &figures)?;
            }
        }
        if is_done {
            break;
        }
    }
    Ok(Evaluation { metrics: evaluator.metrics()?, confusion: evaluator.confusion(), samples, batches })
}

/// The names of the figures that an evaluation of `model` in `session` has, from two examples of
/// it; none where its evaluator can say nothing of so few.
///
/// # Errors
/// Data that cannot be read, figures that `evaluate` must not return, and the device's.
pub(crate) fn figures<T: TrainingTask>(
    session: &EvaluationSession<T>,
    model: &T::Model,
) -> Result<Option<Vec<&'static str>>> {
    let EvaluationSession { device, compute, task, validation, .. } = session;
    let pass = Pass { compute: *compute, rng: DropoutRng::Off, ..Pass::default() };
    // Two where there are two: the values of one row look like sums.
    let examples = (0..validation.len().min(2)).map(|index| validation.get(index, 0)).collect::<Result<Vec<_>>>()?;
    let batch = task.batch(&examples, examples.len())?;
    let own = task.evaluator(validation);
    let figures = batch_figures(task, &model.valid(), &batch.to_device(device)?, pass, own.is_some())?;
    let Some(mut own) = own else { return Ok(Some(names_of(&figures))) };
    let (names, lengths) = (names_of(&figures), figures.iter().map(|(_, values)| values.dims()[0] as f64).collect());
    let values = read_scalars(figures.into_iter().map(|(_, values)| values).collect())?;
    for figures in in_order(&names, 1, &[lengths], &[values]) {
        own.add(&batch, &figures)?;
    }
    Ok(own.metrics().ok().map(|figures| figures.into_iter().map(|(name, _)| name).collect()))
}

/// The figures of `batch` by [`TrainingTask::evaluate`]. Where no evaluator takes them, the first
/// is the `loss`, and each is one sum.
///
/// # Errors
/// Other figures, and an error of [`TrainingTask::evaluate`].
fn batch_figures<T: TrainingTask>(
    task: &T,
    model: &T::Model,
    batch: &OnDevice<T>,
    pass: Pass<'_>,
    has_evaluator: bool,
) -> Result<Figures> {
    let figures = task.evaluate(model, batch, pass)?;
    let names = names_of(&figures);
    if let Some((_, name)) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(*name)) {
        return Err(
            refused(task, format!("the figure `{name}` comes twice")).help("give each figure a name of its own")
        );
    }
    if has_evaluator {
        return Ok(figures);
    }
    let first = figures.first().map(|(name, _)| *name);
    if first != Some("loss") {
        let got = first.map_or("no figure".to_owned(), |name| format!("`{name}`"));
        return Err(refused(task, format!("the first figure must be `loss`, got {got}"))
            .help("return the loss first, or give the task an `evaluator`, whose figures begin with `loss`"));
    }
    match figures.iter().map(|(name, values)| (name, values.dims()[0])).find(|(_, length)| *length != 1) {
        Some((name, length)) => {
            Err(refused(task, format!("`{name}` has {length} values, expected 1: the sum over the batch"))
                .help("end the figure in `.sum()`, or give the task an `evaluator`, which takes values of any length"))
        }
        None => Ok(figures),
    }
}

fn names_of(figures: &Figures) -> Vec<&'static str> {
    figures.iter().map(|(name, _)| *name).collect()
}

/// The error of figures that [`TrainingTask::evaluate`] must not return.
fn refused(task: &impl TrainingTask, problem: String) -> Error {
    Error::config(format!("`evaluate` of `{}`: {problem}", task.name()))
}

/// Refuses figures of other names than those `expected`.
fn check_names(task: &impl TrainingTask, expected: &str, got: &str) -> Result<()> {
    if expected == got {
        return Ok(());
    }
    Err(refused(task, format!("expected the figures {expected}, got {got}"))
        .help("return the same figures, in the same order, for every batch"))
}

/// The figures, called `names`, of each of `batches`. A list of `lengths` and one of `values` are a
/// rank's: of each figure of each batch the number of values that the rank has computed, and these
/// values one after the other.
fn in_order(names: &[&'static str], batches: usize, lengths: &[Vec<f64>], values: &[Vec<f64>]) -> Vec<FigureValues> {
    let mut rests = values.iter().map(Vec::as_slice).collect::<Vec<_>>();
    let of_batch = |at: usize| {
        let mut figures = names.iter().map(|name| (*name, Vec::new())).collect::<Vec<_>>();
        for (rest, lengths) in rests.iter_mut().zip(lengths) {
            for ((_, own), length) in figures.iter_mut().zip(&lengths[at * names.len()..]) {
                let (part, after) = rest.split_at(*length as usize);
                own.extend_from_slice(part);
                *rest = after;
            }
        }
        figures.into_iter().collect()
    };
    (0..batches).map(of_batch).collect()
}

impl Evaluation {
    /// The figure of that name; none where the evaluation has no such figure.
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.metrics.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// The evaluation row of a run after step `step`, in epoch `epoch`.
    pub fn record(&self, step: u64, epoch: f64, elapsed: Duration) -> Record {
        let record = Record::default().with("step", step).with("epoch", epoch);
        let metrics = self.metrics.iter();
        let record = metrics.fold(record, |record, (name, value)| record.with(&format!("eval_{name}"), *value));
        let seconds = elapsed.as_secs_f64();
        record
            .with("eval_samples", self.samples)
            .with("eval_runtime", seconds)
            .with("eval_samples_per_second", self.samples as f64 / seconds)
            .with("eval_steps_per_second", self.batches as f64 / seconds)
    }
}

/// The error of an evaluation without data.
pub fn no_validation() -> Error {
    Error::config("data.validation: required to evaluate, got none").help(
        "name files, or a share to split off: --set data.validation=10%; a task of your own gets its validation data from \
         Trainer::with_validation",
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Two ranks take turns with three batches, and a third rank has none.
    #[test]
    fn the_values_of_all_ranks_come_in_the_order_of_the_batches() {
        let lengths = [vec![1.0, 2.0, 0.0, 0.0, 1.0, 1.0], vec![0.0, 0.0, 1.0, 3.0, 0.0, 0.0], vec![0.0; 6]];
        let values = [vec![0.5, 1.0, 2.0, 0.7, 6.0], vec![0.6, 3.0, 4.0, 5.0], Vec::new()];
        let figures = in_order(&["loss", "rows"], 3, &lengths, &values);
        let rows = figures.iter().map(|figures| figures.get("rows").unwrap().to_vec()).collect::<Vec<_>>();
        assert_eq!(rows, [vec![1.0, 2.0], vec![3.0, 4.0, 5.0], vec![6.0]]);
        let losses = figures.iter().map(|figures| figures.sum("loss").unwrap()).collect::<Vec<_>>();
        assert_eq!(losses, [0.5, 0.6, 0.7]);
    }
}
