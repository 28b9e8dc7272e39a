//! Opens a run that a config file describes: its model's folder, tokenizer and data ([`inputs`])
//! and its device are found, and the plan is derived from the config and these facts. The
//! [`Session`] is that of `kiln-train`; [`OpenSession`] opens one, and tells what the file adds to
//! it.

pub mod adapter;
pub mod batch_sizes;
pub mod evaluation;
pub mod export;
pub mod generation_config;
pub mod inputs;
pub mod memory_line;
pub mod merge;
pub mod model_folder;
pub mod samples;
pub mod shortage;
mod card;
mod transformer_task;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use inputs::{Inputs, Use};
use kiln_core::error::Result;
use kiln_core::files::{malformed, read_json_if_there};
use kiln_data::store::Preparation;
pub use kiln_train::description::{Planned, Weights};
pub use kiln_train::provenance;
pub use kiln_train::task::{Batch, BatchSize, TensorMapper, TensorTree, TrainingTask};
pub use transformer_task::{Described, TransformerTask};

use crate::config::{CheckedConfig, RunConfig};
use crate::engine::{device, handover};
use crate::plan::{self, Facts, Found, RunPlan, sample_plan};
use crate::task::evaluator::ComputeMetrics;

/// A run that can begin, by default of a task of Kiln's.
pub type Session<T = TransformerTask> = kiln_train::Session<T>;

/// A session of a run that a config file describes.
pub trait OpenSession: Sized {
    /// Opens what `config` names (tokenising text, if that has not been done before) and derives
    /// the plan.
    ///
    /// # Errors
    /// Inputs that cannot be used, and settings that contradict one another or the inputs.
    fn open(config: CheckedConfig) -> Result<Self> {
        Self::open_for(config, None, &mut |_| ControlFlow::Continue(()))
    }

    /// Opens what `config` names and derives the plan, like [`open`](Self::open); evaluations have
    /// `metrics`, if any, beside the figures of the task, and `progress` is told how far tokenising
    /// has come and may interrupt it.
    ///
    /// # Errors
    /// Inputs that cannot be used, settings that contradict one another or the inputs, and with
    /// `metrics` a task whose predictions are not collected (`clm`, `mlm` and
    /// `question-answering`).
    fn open_for(
        config: CheckedConfig,
        metrics: Option<ComputeMetrics>,
        progress: &mut dyn FnMut(Preparation) -> ControlFlow<()>,
    ) -> Result<Self>;

    /// Opens what `config` names, like [`open`](Self::open), and tells `progress` how far
    /// tokenising has come.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    fn open_with_progress(
        config: CheckedConfig,
        progress: &mut dyn FnMut(Preparation) -> ControlFlow<()>,
    ) -> Result<Self> {
        Self::open_for(config, None, progress)
    }

    /// Opens what `config` names, like [`open`](Self::open), for evaluations with `metrics` beside
    /// the figures of the task.
    ///
    /// # Errors
    /// The errors of [`open_for`](Self::open_for).
    fn open_with_metrics(config: CheckedConfig, metrics: ComputeMetrics) -> Result<Self> {
        Self::open_for(config, Some(metrics), &mut |_| ControlFlow::Continue(()))
    }

    /// The plan of the run: that of its training, and what the config adds.
    ///
    /// # Errors
    /// A session that no config describes.
    fn run_plan(&self) -> Result<RunPlan>;

    /// The config of this run with every default and derived value explicit, as `plan.toml` has it.
    ///
    /// # Errors
    /// A session that no config describes.
    fn config(&self) -> Result<RunConfig>;

    /// The facts about the inputs that the plan is derived from, besides the config.
    ///
    /// # Errors
    /// A session that no config describes.
    fn run_facts(&self) -> Result<Facts>;
}

impl OpenSession for Session {
    fn open_for(
        config: CheckedConfig,
        metrics: Option<ComputeMetrics>,
        progress: &mut dyn FnMut(Preparation) -> ControlFlow<()>,
    ) -> Result<Self> {
        handover::settle(config.trainer.compiler.as_ref(), config.trainer.device.kind)?;
        let found = device::select(config.trainer.device.kind, config.trainer.device.index)?;
        let mut inputs = Inputs::open(&config, Use::Training, progress)?;
        if let Some(metrics) = metrics {
            let figures = metrics.figures(&*inputs.task.task)?;
            inputs.task.compute_metrics = Some((metrics, figures));
        }
        let facts = found.facts();
        let batch = batch_sizes::found(&config, &inputs, &facts)?;
        let (train, validation, facts) = inputs.facts(&config, facts, batch)?;
        let generation = sample_plan(&config, &facts)?;
        let (arguments, training) = (config.checked_arguments().clone(), facts.train.clone());
        let described = Some(Arc::new(Described { config: config.into(), facts, generation }));
        let task = TransformerTask { described, ..inputs.task };
        let session = Self::opened(arguments, training, task, found.device, train, validation)?;
        session.plan().check_evaluation()?;
        Ok(session)
    }
    fn run_plan(&self) -> Result<RunPlan> {
        let run = Planned { arguments: self.arguments(), facts: self.facts(), plan: self.plan() };
        Ok(self.task.described()?.plan(run))
    }

    fn config(&self) -> Result<RunConfig> {
        Ok(self.run_plan()?.resolved(&self.task.described()?.config.with_arguments(self.arguments())))
    }

    fn run_facts(&self) -> Result<Facts> {
        Ok(self.task.described()?.facts_of(self.facts()))
    }
}

/// The plan of the run in `folder`, as it was saved; none for a run without one, and for one of
/// another version of Kiln whose plans are made otherwise.
///
/// # Errors
/// A file that holds no plan, and the operating system's.
pub fn saved_plan(folder: &Path) -> Result<Option<RunPlan>> {
    let path = folder.join(plan::FILE);
    let Some(saved) = read_json_if_there::<serde_json::Value>(&path)? else { return Ok(None) };
    let is = |key: &str, ours: &str| saved.get(key).and_then(serde_json::Value::as_str) == Some(ours);
    let is_ours = is("schema", plan::SCHEMA) && is("kiln", env!("CARGO_PKG_VERSION"));
    match serde_json::from_value(saved) {
        Ok(plan) => Ok(Some(plan)),
        Err(_) if !is_ours => Ok(None),
        Err(error) => Err(malformed(&path, &error)),
    }
}

/// The part of the plan of `config` that does not depend on what is lacking of its inputs, and what
/// that is; none where all is there.
pub fn outline(config: &CheckedConfig) -> Option<String> {
    let device =
        device::select(config.trainer.device.kind, config.trainer.device.index).ok().map(|found| found.facts());
    let found = Found { device, ..inputs::found(config) };
    (!found.lacks.is_empty()).then(|| plan::outline(config, &found))
}

impl CheckedConfig {
    /// The plan of this run. Its inputs are opened to derive it and closed again; [`Session::open`]
    /// keeps them open.
    ///
    /// # Errors
    /// Inputs that cannot be used, and settings that contradict one another or the inputs.
    pub fn plan(self) -> Result<RunPlan> {
        Session::open(self)?.run_plan()
    }
}
