//! The trait by which the [`Trainer`](crate::Trainer) trains any model. A [`TrainingTask`] must
//! define `model`, `collate`, `size`, `to_device` and `loss`; everything else has a default.
//! [`BuiltIn`](super::BuiltIn) implements it for Kiln's models and tasks.

use std::sync::Arc;

use burn::tensor::{Bool, Device, Int, Tensor};
use kiln_core::error::Result;
use kiln_core::files::NamedFile;
use kiln_data::{Dataset, Fingerprint};
use kiln_models::weights::StateDict;
use kiln_models::{Compute, Pass};

use crate::optim::backward::Stages;
use crate::plan::{ModelFacts, RunPlan};
use crate::task::evaluator::{Evaluator, Means};

/// A model with its batches, its loss and its metrics. A clone trains the same.
///
/// The switch between native and compiled reaches a model as [`Pass::ops`]: Kiln's operators
/// ([`kiln_models::ops`]) take it and compute in the form that it names; what a model computes with
/// Burn's own operations is the same in both modes.
pub trait TrainingTask: Clone + Send + Sync + 'static {
    /// The module that learns. Its parameters are named by its fields, which checkpoints and
    /// patterns of `[trainer]` use.
    type Model: StateDict;
    /// An example of the data.
    type Example: Fingerprint;
    /// Examples of a micro-batch, put together on the host.
    type Batch: Send + 'static;
    /// Examples of a micro-batch on the device: a tensor, or a tuple or structure of tensors.
    type DeviceBatch: TensorTree;

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
    fn collate(&self, examples: &[Self::Example], rows: usize) -> Result<Self::Batch>;

    /// The size of `batch`.
    fn size(&self, batch: &Self::Batch) -> BatchSize;

    /// `batch` on `device`.
    ///
    /// # Errors
    /// A batch of another kind than the task has.
    fn to_device(&self, batch: &Self::Batch, device: &Device) -> Result<Self::DeviceBatch>;

    /// The sum of the loss over the terms of `batch`, `[1]`, f32: not divided by anything. The
    /// Trainer divides it by [`BatchSize::labels`], once for all micro-batches of a step. Dropout
    /// is [`Pass::rng`]'s.
    ///
    /// # Errors
    /// A batch without labels.
    fn loss(&self, model: &Self::Model, batch: &Self::DeviceBatch, pass: Pass<'_>) -> Result<Tensor<1>>;

    /// Whether the loss comes in [stages](Self::stages), so that the backward pass can compute
    /// blocks again (`trainer.activation_checkpointing = "blocks"`).
    const HAS_BLOCKS: bool = false;

    /// The stages of the [loss](Self::loss) of `batch`; by default none.
    fn stages<'a>(
        &'a self,
        model: &Self::Model,
        batch: &'a Self::DeviceBatch,
    ) -> Option<Box<dyn Stages<Self::Model> + 'a>> {
        let (_, _) = (model, batch);
        None
    }

    /// Whether a step can be recorded once and replayed (`compiler.graph`): [`loss`](Self::loss)
    /// copies nothing from the host and reads nothing back, drops nothing but with Kiln's
    /// operators, and [`DeviceBatch`](Self::DeviceBatch) shows all of its tensors.
    const CAN_BE_CAPTURED: bool = false;

    /// The values of `batch` for an evaluation: tensors of one dimension, f32, without autodiff,
    /// which the [evaluator](Self::evaluator) gets one after the other. By default the loss, to
    /// which a task may add the other sums that its [metrics](Self::metrics) are means of.
    ///
    /// # Errors
    /// A batch without labels.
    fn evaluate(&self, model: &Self::Model, batch: &Self::DeviceBatch, pass: Pass<'_>) -> Result<Vec<Tensor<1>>> {
        Ok(vec![self.loss(model, batch, pass)?])
    }

    /// The kind of the model, in a word. By default the name of its type.
    fn name(&self) -> String {
        let path = std::any::type_name::<Self::Model>();
        path.rsplit("::").next().unwrap_or(path).into()
    }

    /// The names of the figures of an evaluation, without `eval_`; the first is the `loss`.
    fn metrics(&self) -> &'static [&'static str] {
        &["loss"]
    }

    /// The evaluator that collects the values of [`evaluate`](Self::evaluate) over the examples of
    /// `data`. By default each [metric](Self::metrics) is the sum of one value over all batches,
    /// divided once by their labels.
    fn evaluator(&self, data: &Arc<dyn Dataset<Self::Example>>) -> Box<dyn Evaluator<Self::Batch>> {
        let (_, task) = (data, self.clone());
        Box::new(Means::new(self.metrics(), move |batch: &Self::Batch| task.size(batch).labels))
    }

    /// The task with those of its settings that a plan decides, such as loss and padding, as `plan`
    /// has them; called whenever a run gets another plan. By default a task has no such settings.
    #[must_use]
    fn planned(&self, plan: &RunPlan) -> Self {
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

    /// The texts that `model`, without autodiff, writes when the run of `plan` has samples, each as
    /// a prompt and the prompt with its continuation; by default none.
    ///
    /// # Errors
    /// The device's.
    fn samples(&self, plan: &RunPlan, model: &Self::Model, device: &Device) -> Result<Vec<(String, String)>> {
        let (_, _, _) = (plan, model, device);
        Ok(Vec::new())
    }
}

/// The facts about the model of `task` that a plan is derived from. The model is built for its
/// shapes only: nothing is drawn until a parameter is used.
///
/// # Errors
/// A configuration of which no model can be made.
pub(super) fn model_facts<T: TrainingTask>(task: &T) -> Result<ModelFacts> {
    let model = task.model(Compute::default(), &Device::flex())?;
    let facts = ModelFacts::of(&task.name(), &model);
    Ok(ModelFacts { metrics: task.metrics(), has_blocks: T::HAS_BLOCKS, can_be_captured: T::CAN_BE_CAPTURED, ..facts })
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
    /// there is none.
    pub labels: f64,
}

/// Tensors that belong together, each of which can be replaced by another of the same shape.
pub trait TensorTree: Clone + 'static {
    /// Replaces every tensor by what `mapper` makes of it, always in the same order.
    #[must_use]
    fn map<M: TensorMapper>(self, mapper: &mut M) -> Self;
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
}

impl<const D: usize> TensorTree for Tensor<D, Int> {
    fn map<M: TensorMapper>(self, mapper: &mut M) -> Self {
        mapper.int(self)
    }
}

impl<const D: usize> TensorTree for Tensor<D, Bool> {
    fn map<M: TensorMapper>(self, mapper: &mut M) -> Self {
        mapper.bool(self)
    }
}

impl<T: TensorTree> TensorTree for Option<T> {
    fn map<M: TensorMapper>(self, mapper: &mut M) -> Self {
        self.map(|tensors| TensorTree::map(tensors, mapper))
    }
}

impl<A: TensorTree, B: TensorTree> TensorTree for (A, B) {
    fn map<M: TensorMapper>(self, mapper: &mut M) -> Self {
        (self.0.map(mapper), self.1.map(mapper))
    }
}

impl<A: TensorTree, B: TensorTree, C: TensorTree> TensorTree for (A, B, C) {
    fn map<M: TensorMapper>(self, mapper: &mut M) -> Self {
        (self.0.map(mapper), self.1.map(mapper), self.2.map(mapper))
    }
}
