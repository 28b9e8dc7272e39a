//! The trait by which the [`Trainer`](crate::Trainer) trains any model. A [`TrainingTask`] must
//! define `model`, `batch` and `loss`; everything else has a default. [`TokenBatch`] is a batch of
//! rows of token ids, [`TensorBatch`] one of any tensors.
//! The crate `kiln` implements it for Kiln's models and tasks.

use std::fmt;
use std::sync::Arc;

use burn::tensor::kind::Basic;
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use kiln_core::dataset::{Dataset, Fingerprint};
use kiln_core::error::{Error, Result};
use kiln_core::files::NamedFile;
use kiln_models::weights::{LoadOptions, LoadReport, Narrow, Parameter, StateDict, load_with};
use kiln_models::{Compute, Pass};

use crate::arguments::TrainingArguments;
use crate::confusion::Confusion;
use crate::description::{Description, Outcome, Planned, Weights};
use crate::optim::ParameterGroups;
use crate::optim::backward::Stages;
use crate::optim::loss::LossOptions;
use crate::plan::{ModelFacts, TrainPlan};

/// A model with its batches, its loss and its metrics. Clones are interchangeable.
///
/// The switch between native and compiled reaches a model as [`Pass::ops`]: Kiln's operators
/// ([`kiln_models::ops`]) take it and compute in the form that it names; what a model computes with
/// Burn's own operations is the same in both modes.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no task that a Trainer can train",
    note = "implement `TrainingTask` for it: its model, a batch of its examples, and the loss"
)]
pub trait TrainingTask: Clone + Send + Sync + 'static {
    /// The module that learns. Its parameters are named by its fields, which checkpoints and
    /// patterns of `[trainer]` use.
    type Model: StateDict;
    /// An example of the data.
    type Example: Fingerprint;
    /// Examples of a micro-batch, put together on the host.
    type Batch: Batch;

    /// The model with random weights, drawn from the generator of `device` and from nothing else.
    /// `compute` says in which form and type it will compute; [`Pass::compute`] says the same.
    ///
    /// # Errors
    /// A configuration of which no model can be made.
    fn model(&self, compute: Compute, device: &Device) -> Result<Self::Model>;

    /// `examples` as a batch (`transformers` calls it a data collator), on any thread. A full batch
    /// has `rows` rows: a task whose batches have one shape fills up one that has fewer.
    ///
    /// # Errors
    /// Examples that do not fit together.
    fn batch(&self, examples: &[Self::Example], rows: usize) -> Result<Self::Batch>;

    /// The sum of the loss over the terms of `batch`, `[1]`, f32: not divided by anything. The
    /// Trainer divides it by [`BatchSize::labels`], once for all micro-batches of a step. Dropout
    /// is [`Pass::rng`]'s.
    ///
    /// # Errors
    /// A batch without labels.
    fn loss(&self, model: &Self::Model, batch: &OnDevice<Self>, pass: Pass<'_>) -> Result<Tensor<1>>;

    /// Whether batches are padded to the lengths of the plan, which [`planned`](Self::planned)
    /// hands to the task; another argument than the default is refused otherwise.
    const PADS_BY_PLAN: bool = false;

    /// Whether the model writes [samples](Self::samples); the argument that asks for them is
    /// refused otherwise.
    const WRITES_SAMPLES: bool = false;

    /// Whether the loss comes in [stages](Self::stages), so that the backward pass can compute
    /// blocks again (`trainer.activation_checkpointing = "blocks"`).
    const HAS_BLOCKS: bool = false;

    /// The stages of the [loss](Self::loss) of `batch`; by default none.
    fn stages<'a>(
        &'a self,
        model: &Self::Model,
        batch: &'a OnDevice<Self>,
    ) -> Option<Box<dyn Stages<Self::Model> + 'a>> {
        let (_, _) = (model, batch);
        None
    }

    /// Whether a step can be recorded once and replayed (`compiler.graph`): [`loss`](Self::loss)
    /// copies nothing from the host and reads nothing back, drops nothing but with Kiln's
    /// operators, branches by nothing but the shapes of the batch's tensors and its
    /// [`TensorTree::host_values`], and [`Batch::OnDevice`] shows all of its tensors.
    const CAN_BE_CAPTURED: bool = false;

    /// Whether whoever plans the run estimates its memory, activations included. Else the plan has
    /// the memory that is known of any model, and the run tells what it measures.
    const HAS_MEMORY_ESTIMATE: bool = false;

    /// The sums over `batch` whose means over all labels are the figures of an evaluation, each
    /// with its name, `[1]`, f32, without autodiff; the first is the `loss`. By default the loss
    /// alone. A task with an [evaluator](Self::evaluator) gives it values of any length. Figures of
    /// all batches have the same names, in the same order.
    ///
    /// # Errors
    /// A batch without labels. Refused are two figures of one name, and, without an evaluator,
    /// another first figure than the `loss` and one of another shape.
    fn evaluate(&self, model: &Self::Model, batch: &OnDevice<Self>, pass: Pass<'_>) -> Result<Figures> {
        Ok(vec![("loss", self.loss(model, batch, pass)?)])
    }

    /// The kind of the model, `model_type` of its `config.json`. By default the name of its type.
    fn name(&self) -> String {
        let path = std::any::type_name::<Self::Model>();
        path.rsplit("::").next().unwrap_or(path).into()
    }

    /// The names of the figures of an evaluation, without `eval_`, where they are known before the
    /// first one.
    fn metrics(&self) -> Option<&'static [&'static str]> {
        None
    }

    /// The evaluator that makes figures of the values of [`evaluate`](Self::evaluate) over the
    /// examples of `data`; by default none, and each value is a sum that is divided once by all
    /// labels.
    fn evaluator(&self, data: &Arc<dyn Dataset<Self::Example>>) -> Option<Box<dyn Evaluator<Self::Batch>>> {
        let _ = data;
        None
    }

    /// The task with those of its settings that a plan decides, such as loss and padding, as `plan`
    /// has them; called whenever a run gets another plan. By default a task has no such settings.
    #[must_use]
    fn planned(&self, plan: &TrainPlan) -> Self {
        let _ = plan;
        self.clone()
    }

    /// The configuration of the model, saved as `config.json`: a run is continued only with an
    /// equal one. By default the [name](Self::name) as `model_type`.
    fn config(&self) -> serde_json::Value {
        serde_json::json!({ "model_type": self.name() })
    }

    /// The names of the classes of a classification, in the order of their ids, for its confusion
    /// matrix; by default none, and the classes have numbers.
    ///
    /// # Errors
    /// Names that cannot be told apart.
    fn class_names(&self) -> Result<Option<Vec<String>>> {
        Ok(None)
    }

    /// The files beside the weights in a saved folder of `model`: `config.json`, which a checkpoint
    /// must have, and what else the model needs.
    ///
    /// # Errors
    /// A file that cannot be made.
    fn files(&self, model: &Self::Model) -> Result<Vec<NamedFile>> {
        let (_, config) = (model, self.config());
        let text = serde_json::to_string_pretty(&config).expect("a JSON value has a text") + "\n";
        Ok(vec![("config.json".into(), text.into_bytes().into())])
    }

    /// The model card of a run that has ended as `outcome` says: the `README.md` beside the weights
    /// in its `model/`; by default none.
    ///
    /// # Errors
    /// A value that cannot be written.
    fn card(&self, run: Planned<'_>, outcome: &Outcome<'_>) -> Result<Option<String>> {
        let _ = (run, outcome);
        Ok(None)
    }

    /// The texts that `model`, without autodiff, writes when the run has samples
    /// ([`TrainingArguments::samples`]), each as a prompt and the prompt with its continuation; by
    /// default none.
    ///
    /// # Errors
    /// The device's.
    fn samples(&self, model: &Self::Model, device: &Device) -> Result<Vec<(String, String)>> {
        let (_, _) = (model, device);
        Ok(Vec::new())
    }

    /// The name of the task in plans and messages, where several models learn it. By default none,
    /// and the [name](Self::name) of the model stands there.
    fn task_name(&self) -> Option<&str> {
        None
    }

    /// Whether training drops anything out. By default true.
    fn drops(&self) -> bool {
        true
    }

    /// The loss under `arguments`. By default the task's own sum, of which nothing is known.
    ///
    /// # Errors
    /// Arguments that the loss cannot have.
    fn loss_options(&self, arguments: &TrainingArguments) -> Result<LossOptions> {
        LossOptions::of_a_program(arguments)
    }

    /// `model` with the weights that training begins with, and what has become of them; by default
    /// those that it has, or the saved ones that `weights` names.
    ///
    /// # Errors
    /// Weights that do not fit the model.
    fn pretrained(
        &self,
        model: Self::Model,
        weights: &Weights,
        groups: &ParameterGroups,
        compute: Compute,
    ) -> Result<(Self::Model, Option<LoadReport>)> {
        let _ = groups;
        let Weights::Saved(folder) = weights else { return Ok((model, None)) };
        let narrow: Narrow<'_> = (compute.dtype(), &|_: &Parameter| false);
        let options = LoadOptions { narrow, ignore_mismatched_sizes: false, resize_token_embeddings: false };
        let (model, report) = load_with(model, folder, options)?;
        Ok((model, Some(report)))
    }

    /// The description that a run of this task keeps in its folder of itself. By default the plan
    /// of its training and its arguments.
    ///
    /// # Errors
    /// A value that cannot be written.
    fn description(&self, run: Planned<'_>) -> Result<Description> {
        Description::of_a_program(run)
    }
}

/// The facts about the model of `task` that a plan is derived from. The model is built for its
/// shapes only: nothing is drawn until a parameter is used.
///
/// # Errors
/// A configuration of which no model can be made.
pub fn model_facts<T: TrainingTask>(task: &T) -> Result<ModelFacts> {
    let model = task.model(Compute::default(), &Device::flex())?;
    let facts = ModelFacts::of(&task.name(), &model);
    Ok(ModelFacts {
        task: task.task_name().unwrap_or(&facts.kind).to_owned(),
        metrics: task.metrics(),
        has_blocks: T::HAS_BLOCKS,
        can_be_captured: T::CAN_BE_CAPTURED,
        drops: task.drops(),
        ..facts
    })
}

/// Collects the values that an evaluation reads from the device, and makes figures of them.
pub trait Evaluator<B> {
    /// Takes the figures of `batch`, in the order of the data.
    ///
    /// # Errors
    /// A figure that [`TrainingTask::evaluate`] does not return.
    fn add(&mut self, batch: &B, figures: &FigureValues) -> Result<()>;

    /// The figures by name, without `eval_`; the first is the `loss`.
    ///
    /// # Errors
    /// Data of which nothing can be said, such as one without a label.
    fn metrics(&self) -> Result<Vec<(&'static str, f64)>>;

    /// Which class was predicted for which, for a classification.
    fn confusion(&self) -> Option<Confusion> {
        None
    }
}

/// Values of a batch for an evaluation, each with its name.
pub type Figures = Vec<(&'static str, Tensor<1>)>;

/// The [`Figures`] of a batch, read from the device.
#[derive(Debug, Clone, PartialEq)]
pub struct FigureValues(pub(crate) Vec<(&'static str, Vec<f64>)>);

impl FromIterator<(&'static str, Vec<f64>)> for FigureValues {
    fn from_iter<I: IntoIterator<Item = (&'static str, Vec<f64>)>>(figures: I) -> Self {
        Self(figures.into_iter().collect())
    }
}

impl FigureValues {
    /// The values of the figure `name`.
    ///
    /// # Errors
    /// A figure that [`TrainingTask::evaluate`] does not return.
    pub fn get(&self, name: &str) -> Result<&[f64]> {
        let found = self.0.iter().find(|(known, _)| *known == name).map(|(_, values)| values.as_slice());
        found.ok_or_else(|| {
            let known = self.0.iter().map(|(known, _)| *known).collect::<Vec<_>>().join(", ");
            Error::config(format!("the evaluator asks for the figure `{name}`, and `evaluate` returns {known}"))
                .help("return it under that name, or ask for one of these")
        })
    }

    /// The sum of the values of the figure `name`.
    ///
    /// # Errors
    /// A figure that [`TrainingTask::evaluate`] does not return.
    pub fn sum(&self, name: &str) -> Result<f64> {
        Ok(self.get(name)?.iter().sum())
    }
}

/// A micro-batch of the task `T` on the device.
pub type OnDevice<T> = <<T as TrainingTask>::Batch as Batch>::OnDevice;

/// Examples of a micro-batch, put together on the host. [`TokenBatch`] and [`TensorBatch`] are
/// batches.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no batch of a `TrainingTask`",
    note = "`TokenBatch` is a batch of token ids, `TensorBatch<(Tensor<2>, Tensor<1, Int>)>` one of numbers and classes"
)]
pub trait Batch: Send + 'static {
    /// The batch on the device: a tensor, or a tuple or structure of tensors.
    type OnDevice: TensorTree;

    /// Its size.
    fn size(&self) -> BatchSize;

    /// The batch on `device`.
    ///
    /// # Errors
    /// A batch of another kind than the task has.
    fn to_device(&self, device: &Device) -> Result<Self::OnDevice>;
}

/// Rows of token ids, `[rows, seq]` on the device, the shorter ones filled up with an id for
/// padding.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenBatch {
    rows: Vec<Vec<i32>>,
    pad_id: i32,
    labels: Option<f64>,
}

impl TokenBatch {
    /// The batch of `rows`. Every token but the first of a row is a label of the loss.
    pub fn new(rows: &[Vec<i32>]) -> Self {
        Self { rows: rows.to_vec(), pad_id: 0, labels: None }
    }

    /// Rows are filled up with `pad_id`, by default 0.
    #[must_use]
    pub fn with_pad_id(self, pad_id: i32) -> Self {
        Self { pad_id, ..self }
    }

    /// The loss has so many labels.
    #[must_use]
    pub fn with_labels(self, labels: f64) -> Self {
        Self { labels: Some(labels), ..self }
    }

    fn seq_len(&self) -> usize {
        self.rows.iter().map(Vec::len).max().unwrap_or(0)
    }
}

impl Batch for TokenBatch {
    type OnDevice = Tensor<2, Int>;

    fn size(&self) -> BatchSize {
        let (rows, seq_len) = (self.rows.len(), self.seq_len());
        let tokens = self.rows.iter().map(Vec::len).sum::<usize>();
        let predicted = self.rows.iter().map(|row| row.len().saturating_sub(1)).sum::<usize>();
        let labels = self.labels.unwrap_or(predicted as f64);
        BatchSize { rows, seq_len, padded: tokens < rows * seq_len, tokens: tokens as u64, labels }
    }

    fn to_device(&self, device: &Device) -> Result<Tensor<2, Int>> {
        let seq_len = self.seq_len();
        let padded = |row: &Vec<i32>| {
            let mut row = row.clone();
            row.resize(seq_len, self.pad_id);
            row
        };
        let ids = self.rows.iter().flat_map(padded).collect::<Vec<_>>();
        Ok(Tensor::from_data(TensorData::new(ids, [self.rows.len(), seq_len]), device))
    }
}

/// A batch of tensors that have one row for each example: `T` is what the model gets on the device,
/// a [`Tensor`] of numbers, integers or truth values, or a tuple of two or three.
///
/// ```
/// use burn::tensor::{Int, Tensor, TensorData};
/// use kiln_train::task::{Batch, TensorBatch};
///
/// let features = TensorData::new(vec![0.5_f32, 1.0, -2.0, 0.0], [2, 2]);
/// let classes = TensorData::new(vec![0_i32, 1], [2]);
/// let batch = TensorBatch::<(Tensor<2>, Tensor<1, Int>)>::new((features, classes));
/// assert_eq!((batch.size().rows, batch.size().labels), (2, 2.0));
/// ```
#[derive(Debug, Clone)]
pub struct TensorBatch<T: FromData> {
    data: T::Data,
    seq_len: usize,
    labels: Option<f64>,
}

impl<T: FromData> TensorBatch<T> {
    /// The batch of `data`, each with as many rows. A row is one label of the loss, and counts as
    /// one token.
    pub fn new(data: T::Data) -> Self {
        Self { data, seq_len: 1, labels: None }
    }

    /// A row is a sequence of `seq_len` tokens, padding included. Batches of several lengths are
    /// told apart by it.
    #[must_use]
    pub fn with_seq_len(self, seq_len: usize) -> Self {
        Self { seq_len, ..self }
    }

    /// The loss has so many labels.
    #[must_use]
    pub fn with_labels(self, labels: f64) -> Self {
        Self { labels: Some(labels), ..self }
    }
}

impl<T: FromData> Batch for TensorBatch<T> {
    type OnDevice = T;

    fn size(&self) -> BatchSize {
        let (rows, seq_len) = (T::rows(&self.data), self.seq_len);
        let labels = self.labels.unwrap_or(rows as f64);
        BatchSize { rows, seq_len, padded: false, tokens: (rows * seq_len) as u64, labels }
    }

    fn to_device(&self, device: &Device) -> Result<T> {
        T::from_data(&self.data, T::rows(&self.data), device)
    }
}

/// Tensors that are made of data on the host.
pub trait FromData: TensorTree {
    /// The data, a [`TensorData`] for each tensor.
    type Data: Clone + fmt::Debug + Send + 'static;

    /// The rows of `data`, which are those of its first tensor.
    fn rows(data: &Self::Data) -> usize;

    /// The tensors on `device`, of `rows` rows each.
    ///
    /// # Errors
    /// Data of another rank than the tensor's, or with another number of rows.
    fn from_data(data: &Self::Data, rows: usize, device: &Device) -> Result<Self>;
}

impl<const D: usize, K> FromData for Tensor<D, K>
where
    K: Basic + 'static,
    Self: TensorTree,
{
    type Data = TensorData;

    fn rows(data: &TensorData) -> usize {
        data.shape().first().copied().unwrap_or(0)
    }

    fn from_data(data: &TensorData, rows: usize, device: &Device) -> Result<Self> {
        if data.rank() != D || Self::rows(data) != rows {
            let got = data.shape();
            return Err(Error::data(format!(
                "a batch: expected a tensor of {D} dimensions and {rows} rows, got {got}"
            )));
        }
        Ok(Self::from_data(data.clone(), device))
    }
}

impl<A: FromData, B: FromData> FromData for (A, B) {
    type Data = (A::Data, B::Data);

    fn rows(data: &Self::Data) -> usize {
        A::rows(&data.0)
    }

    fn from_data(data: &Self::Data, rows: usize, device: &Device) -> Result<Self> {
        Ok((A::from_data(&data.0, rows, device)?, B::from_data(&data.1, rows, device)?))
    }
}

impl<A: FromData, B: FromData, C: FromData> FromData for (A, B, C) {
    type Data = (A::Data, B::Data, C::Data);

    fn rows(data: &Self::Data) -> usize {
        A::rows(&data.0)
    }

    fn from_data(data: &Self::Data, rows: usize, device: &Device) -> Result<Self> {
        let (a, b, c) = data;
        Ok((A::from_data(a, rows, device)?, B::from_data(b, rows, device)?, C::from_data(c, rows, device)?))
    }
}

/// The size of a batch, as the Trainer counts it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchSize {
    /// Rows, those that only fill the batch up among them.
    pub rows: usize,
    /// Tokens of a row, padding included.
    pub seq_len: usize,
    /// Some positions are padding, which a mask hides.
    pub padded: bool,
    /// Tokens without padding.
    pub tokens: u64,
    /// The divisor of the loss sum: the number of labels, or the sum of their weights. 0 where
    /// there is none: such a batch adds nothing to the step.
    pub labels: f64,
}

/// Tensors that belong together, each of which can be replaced by another of the same shape.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not made of tensors as a batch on the device is",
    note = "tensors, options of them, and tuples of two or three are; a structure implements `TensorTree`"
)]
pub trait TensorTree: Clone + 'static {
    /// Replaces every tensor by what `mapper` makes of it, always in the same order.
    #[must_use]
    fn map<M: TensorMapper>(self, mapper: &mut M) -> Self;

    /// Whatever else the loss branches by: which of its optional tensors a batch has, the variant
    /// of an enumeration, a number on the host. A captured step computes for a batch what it has
    /// recorded for one of the same shapes and the same values here. Empty where there are tensors
    /// alone.
    fn host_values(&self) -> Vec<u64>;
}

/// Replaces the tensors of a [`TensorTree`].
pub trait TensorMapper {
    /// A tensor of numbers.
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D>;
    /// A tensor of whole numbers.
    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int>;
    /// A tensor of truth values.
    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool>;
}

impl<const D: usize> TensorTree for Tensor<D> {
    fn map<M: TensorMapper>(self, mapper: &mut M) -> Self {
        mapper.float(self)
    }

    fn host_values(&self) -> Vec<u64> {
        Vec::new()
    }
}

impl<const D: usize> TensorTree for Tensor<D, Int> {
    fn map<M: TensorMapper>(self, mapper: &mut M) -> Self {
        mapper.int(self)
    }

    fn host_values(&self) -> Vec<u64> {
        Vec::new()
    }
}

impl<const D: usize> TensorTree for Tensor<D, Bool> {
    fn map<M: TensorMapper>(self, mapper: &mut M) -> Self {
        mapper.bool(self)
    }

    fn host_values(&self) -> Vec<u64> {
        Vec::new()
    }
}

impl<T: TensorTree> TensorTree for Option<T> {
    fn map<M: TensorMapper>(self, mapper: &mut M) -> Self {
        self.map(|tensors| TensorTree::map(tensors, mapper))
    }

    fn host_values(&self) -> Vec<u64> {
        match self {
            Some(tensors) => [vec![1], tensors.host_values()].concat(),
            None => vec![0],
        }
    }
}

impl<A: TensorTree, B: TensorTree> TensorTree for (A, B) {
    fn map<M: TensorMapper>(self, mapper: &mut M) -> Self {
        (self.0.map(mapper), self.1.map(mapper))
    }

    fn host_values(&self) -> Vec<u64> {
        counted([self.0.host_values(), self.1.host_values()])
    }
}

impl<A: TensorTree, B: TensorTree, C: TensorTree> TensorTree for (A, B, C) {
    fn map<M: TensorMapper>(self, mapper: &mut M) -> Self {
        (self.0.map(mapper), self.1.map(mapper), self.2.map(mapper))
    }

    fn host_values(&self) -> Vec<u64> {
        counted([self.0.host_values(), self.1.host_values(), self.2.host_values()])
    }
}

/// The values of several parts, each after its number of them, so that no value passes for one of
/// another part.
fn counted<const N: usize>(parts: [Vec<u64>; N]) -> Vec<u64> {
    parts.into_iter().flat_map(|part| std::iter::once(part.len() as u64).chain(part)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    type Pair = (Tensor<2>, Tensor<1, Int>);

    #[test]
    fn a_batch_of_tensors_has_as_many_rows_everywhere() {
        let device = Device::flex();
        let numbers = |shape: [usize; 2]| TensorData::new(vec![0.5_f32; shape[0] * shape[1]], shape);
        let classes = |rows: usize| TensorData::new(vec![1_i32; rows], [rows]);
        let batch = TensorBatch::<Pair>::new((numbers([3, 4]), classes(3))).with_seq_len(4).with_labels(2.0);
        let size = BatchSize { rows: 3, seq_len: 4, padded: false, tokens: 12, labels: 2.0 };
        assert_eq!(batch.size(), size);
        let (x, y) = batch.to_device(&device).unwrap();
        assert_eq!((x.dims(), y.into_data().iter::<i32>().collect::<Vec<_>>()), ([3, 4], vec![1; 3]));

        let refused = |data| TensorBatch::<Pair>::new(data).to_device(&device).unwrap_err().to_string();
        assert_eq!(
            refused((numbers([3, 4]), classes(2))),
            "a batch: expected a tensor of 1 dimensions and 3 rows, got [2]"
        );
        assert_eq!(refused((classes(3), classes(3))), "a batch: expected a tensor of 2 dimensions and 3 rows, got [3]");
    }
}
