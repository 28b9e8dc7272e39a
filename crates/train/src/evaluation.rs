//! Evaluation: one pass over a dataset in order, without gradients. The task's
//! [`Evaluator`] collects the values of each batch.

use std::sync::Arc;
use std::time::Duration;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use kiln_core::dataset::Dataset;
use kiln_core::dataset::loader::{Loader, LoaderOptions, Share};
use kiln_core::dataset::sampler::Order;
use kiln_core::error::{Error, Result};
use kiln_core::metrics::Record;
use kiln_models::ops::dropout::DropoutRng;
use kiln_models::{Compute, Copies, Pass};

use crate::confusion::Confusion;
use crate::distributed::World;
use crate::reads::read_scalars;
pub use crate::task::Evaluator;
use crate::task::{Batch, Figures, OnDevice, TrainingTask};

/// Means over all labels of a dataset, from the sums of batches.
#[derive(Default)]
struct Means {
    names: Vec<&'static str>,
    sums: Vec<f64>,
    labels: f64,
}

impl Means {
    fn add(&mut self, batch: &impl Batch, values: &[f64]) {
        self.sums.resize(values.len(), 0.0);
        self.sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        self.labels += batch.size().labels;
    }

    fn metrics(&self) -> Result<Vec<(&'static str, f64)>> {
        if self.labels == 0.0 {
            return Err(no_label());
        }
        Ok(self.names.iter().zip(&self.sums).map(|(name, sum)| (*name, sum / self.labels)).collect())
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
    let options = LoaderOptions {
        batch_size,
        order: Order::SEQUENTIAL,
        drop_last: false,
        prefetch: 2,
        repeat: false,
        share: Share::ALL,
    };
    let collator = task.clone();
    let mut own = task.evaluator(validation);
    let mut means = Means::default();
    let mut loader = Loader::new(validation.clone(), move |examples| collator.batch(examples, batch_size), options)?;
    let model = model.valid();
    let copies = Copies::default();
    let pass = Pass { compute, rng: DropoutRng::Off, copies: Some(&copies), ..Pass::default() };
    // Batches and their values.
    let mut pending: Vec<(T::Batch, Vec<Tensor<1>>)> = Vec::new();
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
            // The first batch names the figures on every rank, where no evaluator does.
            let values = if is_own || (own.is_none() && means.names.is_empty()) {
                batch_figures(task, &model, &loaded.batch.to_device(device)?, pass, own.is_some())?
            } else {
                Vec::new()
            };
            let (names, values): (Vec<_>, Vec<_>) = values.into_iter().unzip();
            if means.names.is_empty() {
                means.names = names;
            }
            pending.push((loaded.batch, if is_own { values } else { Vec::new() }));
            samples += loaded.examples as u64;
            batches += 1;
        }
        if pending.len() >= READ_EVERY || is_done {
            let lengths = |tensors: &[Tensor<1>]| tensors.iter().map(|tensor| tensor.dims()[0]).sum::<usize>();
            let (of_batches, tensors): (Vec<_>, Vec<_>) =
                pending.drain(..).map(|(batch, tensors)| ((batch, lengths(&tensors)), tensors)).unzip();
            let values = read_scalars(tensors.into_iter().flatten().collect())?;
            for (batch, values) in in_order(world, of_batches, values)? {
                match &mut own {
                    Some(own) => own.add(&batch, &values),
                    None => means.add(&batch, &values),
                }
            }
        }
        if is_done {
            break;
        }
    }
    let (metrics, confusion) = match own {
        Some(own) => (own.metrics()?, own.confusion()),
        None => (means.metrics()?, None),
    };
    Ok(Evaluation { metrics, confusion, samples, batches })
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
    let values = batch_figures(task, &model.valid(), &batch.to_device(device)?, pass, own.is_some())?;
    let (names, values): (Vec<_>, Vec<_>) = values.into_iter().unzip();
    let Some(mut own) = own else { return Ok(Some(names)) };
    own.add(&batch, &read_scalars(values)?);
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
    if has_evaluator {
        return Ok(figures);
    }
    let refused = |problem: String| Error::config(format!("`evaluate` of `{}`: {problem}", task.name()));
    let first = figures.first().map(|(name, _)| *name);
    if first != Some("loss") {
        let got = first.map_or("no figure".to_owned(), |name| format!("`{name}`"));
        return Err(refused(format!("the first figure must be `loss`, got {got}"))
            .help("return the loss first, or give the task an `evaluator`, whose figures begin with `loss`"));
    }
    match figures.iter().map(|(name, values)| (name, values.dims()[0])).find(|(_, length)| *length != 1) {
        Some((name, length)) => {
            Err(refused(format!("`{name}` has {length} values, expected 1: the sum over the batch"))
                .help("end the figure in `.sum()`, or give the task an `evaluator`, which takes values of any length"))
        }
        None => Ok(figures),
    }
}

/// Batches with their values, which lie one after the other in `values`: those that other ranks
/// have computed, and of which this one has none, are theirs.
fn in_order<B>(world: &World, batches: Vec<(B, usize)>, values: Vec<f64>) -> Result<Vec<(B, Vec<f64>)>> {
    let lengths = batches.iter().map(|(_, length)| *length as f64).collect();
    let (lengths, values) = (world.gather_lists(lengths)?, world.gather_lists(values)?);
    let mut rests = values.iter().map(Vec::as_slice).collect::<Vec<_>>();
    let of_batch = |(at, (batch, _)): (usize, (B, usize))| {
        let mut own = Vec::new();
        for (rest, lengths) in rests.iter_mut().zip(&lengths) {
            let (part, after) = rest.split_at(lengths[at] as usize);
            own.extend_from_slice(part);
            *rest = after;
        }
        (batch, own)
    };
    Ok(batches.into_iter().enumerate().map(of_batch).collect())
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
