//! Opens a run: its model's folder, tokenizer and data ([`inputs`]) and its device are found, and
//! the plan is derived from the config and these facts. A [`Session`] holds the plan and everything
//! that is open.

pub mod adapter;
pub mod batch_sizes;
pub mod evaluation;
pub mod export;
pub mod generation_config;
pub mod inputs;
pub mod memory_line;
pub mod merge;
pub mod model_folder;
pub mod provenance;
mod built_in;
mod training_task;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

pub use built_in::BuiltIn;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};
use evaluation::EvaluationSession;
use inputs::{Inputs, Use, resident};
use kiln_core::error::{Error, Result};
use kiln_core::files::{malformed, read_json_if_there, write_json, write_whole};
use kiln_core::random::seed_for;
use kiln_data::Dataset;
use kiln_data::padding::survey;
use kiln_data::store::Progress;
use kiln_data::subset::Subset;
use kiln_models::AllowedBy;
use kiln_models::weights::{LoadOptions, LoadReport, Narrow, Parameter, StateDict, load_adapted, load_with};
use training_task::model_facts;
pub use training_task::{BatchSize, TensorMapper, TensorTree, TrainingTask};

use crate::arguments::{TrainBatchSize, TrainingArguments};
use crate::config::{DataSection, ModelSection, RunConfig};
use crate::engine::compiler::decision::Decision;
use crate::engine::{device, handover};
use crate::plan::{self, BatchPlan, DataFacts, Facts, Found, RunPlan};
use crate::task::evaluator::ComputeMetrics;

/// A run that can begin: its plan, its device, its task and its open datasets.
pub struct Session<T: TrainingTask = BuiltIn> {
    /// The plan of the run. Nothing changes it: another config or other facts make another session.
    plan: RunPlan,
    /// Where it runs.
    pub device: Device,
    /// The model, its loss and its metrics.
    pub task: T,
    /// Training data.
    train: Arc<dyn Dataset<T::Example>>,
    /// Validation data, if any.
    validation: Option<Arc<dyn Dataset<T::Example>>>,
    /// The config and the facts that the plan is derived from.
    config: RunConfig,
    facts: Facts,
}

impl<T: TrainingTask> Clone for Session<T> {
    fn clone(&self) -> Self {
        Self {
            plan: self.plan.clone(),
            device: self.device.clone(),
            task: self.task.clone(),
            train: self.train.clone(),
            validation: self.validation.clone(),
            config: self.config.clone(),
            facts: self.facts.clone(),
        }
    }
}

impl<T: TrainingTask> Session<T> {
    /// The plan of the run.
    pub fn plan(&self) -> &RunPlan {
        &self.plan
    }

    /// Training data.
    pub fn train(&self) -> &Arc<dyn Dataset<T::Example>> {
        &self.train
    }

    /// Validation data, if any.
    pub fn validation(&self) -> Option<&Arc<dyn Dataset<T::Example>>> {
        self.validation.as_ref()
    }

    /// An evaluation on `data`, as this run evaluates.
    pub fn evaluation(&self, data: Arc<dyn Dataset<T::Example>>) -> EvaluationSession<T> {
        EvaluationSession {
            device: self.device.clone(),
            compute: self.plan.engine.compute(),
            task: self.task.clone(),
            validation: data,
            batch_size: self.plan.evaluation.batch_size,
        }
    }

    /// The plan alone; the datasets are closed.
    pub fn into_plan(self) -> RunPlan {
        self.plan
    }

    /// The config of this run with every default and derived value explicit, as `plan.toml` has it.
    pub fn config(&self) -> RunConfig {
        self.plan.resolved(&self.config)
    }

    /// The facts about the inputs that the plan is derived from, besides the config.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The text of `plan.toml`.
    ///
    /// # Errors
    /// A value that TOML cannot hold.
    pub fn plan_toml(&self) -> Result<String> {
        self.plan.to_toml(&self.config)
    }

    /// Writes `plan.toml` and `plan.json` into the run folder `folder`.
    ///
    /// # Errors
    /// The operating system's.
    pub fn write_plan(&self, folder: &Path) -> Result<()> {
        write_whole(&folder.join("plan.toml"), self.plan_toml()?.as_bytes())?;
        write_json(&folder.join(plan::FILE), &self.plan)
    }

    /// The session of another config on what is open: `change` is made to this one's, the batches
    /// that it draws are looked at again, and a plan is derived. Model, tokenizer, device and the
    /// choice of examples stay.
    ///
    /// # Errors
    /// Settings that contradict one another or the facts.
    pub fn with(&self, change: impl FnOnce(&mut RunConfig)) -> Result<Self> {
        self.derive(|config, facts| {
            change(config);
            let batch = BatchPlan::of(config, facts.batch.as_ref())?;
            facts.data.batches = survey(&*self.train, batch.drawn(config));
            Ok(())
        })
    }

    /// The session of another config and other facts on what is open: `change` is made to this
    /// one's, and a plan is derived from them.
    ///
    /// # Errors
    /// The error of `change`, and settings that contradict one another or the facts.
    pub fn derive(&self, change: impl FnOnce(&mut RunConfig, &mut Facts) -> Result<()>) -> Result<Self> {
        let (mut config, mut facts) = (self.config.clone(), self.facts.clone());
        change(&mut config, &mut facts)?;
        let plan = RunPlan::derive(&config, &facts)?;
        Ok(Self { task: self.task.planned(&plan), plan, config, facts, ..self.clone() })
    }

    /// The session of the same config on a choice of its own examples: `train` in place of its
    /// training data and `validation`, if any, in place of its validation data. They are padded by
    /// the same rule.
    ///
    /// # Errors
    /// Settings that so many examples contradict.
    pub fn with_examples(
        &self,
        train: Arc<dyn Dataset<T::Example>>,
        validation: Option<Arc<dyn Dataset<T::Example>>>,
    ) -> Result<Self> {
        let chosen = self.derive(|_, facts| {
            facts.data.choose(&*train, validation.as_deref());
            Ok(())
        })?;
        Ok(Self { train, validation: validation.or(chosen.validation), ..chosen })
    }

    /// The session in the mode that `decision` names.
    ///
    /// # Errors
    /// Settings that contradict one another or the facts.
    pub fn decided(&self, decision: Decision) -> Result<Self> {
        self.derive(|_, facts| {
            facts.decision = Some(decision);
            Ok(())
        })
    }

    /// The model as it is before the first step: with the weights that `model.from` names, and
    /// random ones, drawn from the run's seed alone, where it has none. Parameters that do not
    /// learn are frozen.
    ///
    /// # Errors
    /// Weights that do not fit the model.
    pub fn model(&self, device: &Device) -> Result<(T::Model, Option<LoadReport>)> {
        let plan = &self.plan;
        device.seed(seed_for(plan.run.seed, "init", 0, 0));
        let model = self.task.model(plan.engine.compute(), device)?;
        let (model, report) = match &plan.model.from {
            Some(folder) => {
                let has_adapters = plan.model.lora.is_some();
                let groups = &plan.optimizer.groups;
                // Frozen weights that do nothing but multiply need no f32.
                let only_multiplies = |it: &Parameter| has_adapters && it.in_linear && !groups.learns(it);
                let narrow: Narrow<'_> = (plan.engine.compute().dtype(), &only_multiplies);
                let (model, report) = match &plan.model.adapter {
                    Some(adapter) => load_adapted(model, folder, adapter, narrow).map_err(|error| match error {
                        kiln_models::Error::OtherSizes { allowed_by: AllowedBy::IgnoreMismatchedSizes, .. } => {
                            Error::from(error).help(
                                "the head of an adapter keeps its size: merge the adapter first (kiln merge), and set \
                                 model.ignore_mismatched_sizes = true on what comes of it",
                            )
                        }
                        other => other.into(),
                    })?,
                    None => {
                        let ModelSection { ignore_mismatched_sizes, resize_token_embeddings, .. } = self.config.model;
                        load_with(
                            model,
                            folder,
                            LoadOptions { narrow, ignore_mismatched_sizes, resize_token_embeddings },
                        )?
                    }
                };
                if let (Some(adapter), [first, ..]) = (&plan.model.adapter, report.replaced.as_slice()) {
                    return Err(Error::config(format!(
                        "model.from: the adapter {} has weights of its own in place of {first} of its base, which an adapter \
                         trained on would lose: they learn nothing, and only what learns is saved",
                        adapter.display()
                    ))
                    .help("merge it into its base first (kiln merge), and train on what comes of it, with [lora] or whole"));
                }
                (model, Some(report))
            }
            None => (model, None),
        };
        if plan.model.lora.is_some()
            && let Some(report) = &report
        {
            let lost = report.random().filter(|name| model.saved_as(name).is_none()).cloned().collect::<Vec<_>>();
            if let Some(first) = lost.first() {
                let adapter = plan.model.adapter.as_deref();
                if let Some(error) = adapter.and_then(|adapter| adapter::lacks_pooler(adapter, &lost)) {
                    return Err(error);
                }
                return Err(Error::config(format!(
                    "[lora]: the base has no {first}{}, so they would be random, frozen, and not in the saved adapter",
                    if lost.len() == 1 { String::new() } else { format!(" and {} tensors more", lost.len() - 1) }
                ))
                .help(match adapter {
                    Some(_) => "merge the adapter into its base first (kiln merge), and train on what comes of it",
                    None => "name their modules in lora.modules_to_save, so that they learn and are saved",
                }));
            }
        }
        let model = plan.optimizer.groups.freeze(model);
        // Drawn now: the first forward pass draws dropout too, in another order in every mode.
        model.visit(&mut Drawn);
        Ok((model, report))
    }
}

/// Refuses the arguments that are about runs of the command.
fn of_a_program(arguments: &TrainingArguments) -> Result<()> {
    let given = [("trainer.do_predict", arguments.do_predict), ("trainer.do_train", !arguments.do_train)];
    if let Some((key, _)) = given.into_iter().find(|(_, given)| *given) {
        let message = format!("{key}: has no effect on a run whose model, data and loss the program brings along");
        return Err(Error::config(message).help("remove it"));
    }
    if arguments.per_device_train_batch_size == TrainBatchSize::Auto {
        let message = "trainer.per_device_train_batch_size: \"auto\" is for models that Kiln knows";
        return Err(Error::config(message).help("set a number"));
    }
    Ok(())
}

impl<T: TrainingTask> Session<T> {
    /// The run that trains `task` on `train`, and evaluates it on `validation`, if there is any.
    ///
    /// # Errors
    /// Settings that contradict one another, the task or the data, and a model that cannot be made.
    pub fn new(
        arguments: TrainingArguments,
        task: T,
        train: Arc<dyn Dataset<T::Example>>,
        validation: Option<Arc<dyn Dataset<T::Example>>>,
    ) -> Result<Self> {
        arguments.validate()?;
        of_a_program(&arguments)?;
        let data = DataSection { sampler: arguments.sampler, padding: arguments.padding, ..DataSection::default() };
        let config = RunConfig { trainer: arguments, data, ..RunConfig::default() };
        handover::settle(config.trainer.compiler.as_ref(), config.trainer.device.kind)?;
        let found = device::select(config.trainer.device.kind, config.trainer.device.index)?;
        let batch = BatchPlan::of(&config, None)?;
        let trainer = &config.trainer;
        let limit = |data: Arc<dyn Dataset<T::Example>>, limits: bool, size| {
            if limits { Arc::new(Subset::first(data, size)) } else { data }
        };
        let train = limit(train, trainer.overfit_one_batch || trainer.fast_dev_run, batch.global);
        let validation = validation.map(|data| limit(data, trainer.fast_dev_run, trainer.per_device_eval_batch_size));
        for (name, is_empty) in
            [("training", train.is_empty()), ("validation", validation.as_ref().is_some_and(|data| data.is_empty()))]
        {
            if is_empty {
                return Err(Error::data(format!("expected examples in the {name} data, got none")));
            }
        }
        if validation.is_none() && (trainer.do_eval || trainer.eval_on_start) {
            return Err(Error::config(
                "trainer.do_eval, trainer.eval_on_start: they need validation data, and there is none",
            )
            .help("give Session::new validation data, or leave the two keys out"));
        }
        let facts = Facts {
            model: model_facts(&task)?,
            data: DataFacts::new(&*train, validation.as_deref(), batch.drawn(&config)),
            tokenizer: None,
            device: found.facts(),
            batch: None,
            decision: None,
            resident: resident(),
        };
        Self::opened(config, facts, task, found.device, train, validation)
    }

    /// The run of `config` on what is open.
    fn opened(
        config: RunConfig,
        facts: Facts,
        task: T,
        device: Device,
        train: Arc<dyn Dataset<T::Example>>,
        validation: Option<Arc<dyn Dataset<T::Example>>>,
    ) -> Result<Self> {
        let plan = RunPlan::derive(&config, &facts)?;
        Ok(Self { task: task.planned(&plan), plan, device, train, validation, config, facts })
    }
}

impl Session {
    /// Opens what `config` names (tokenising text, if that has not been done before) and derives
    /// the plan.
    ///
    /// # Errors
    /// Inputs that cannot be used, and settings that contradict one another or the inputs.
    pub fn open(config: RunConfig) -> Result<Self> {
        Self::open_with_progress(config, &mut |_| ControlFlow::Continue(()))
    }

    /// Opens what `config` names and derives the plan, like [`open`](Self::open); `progress` is
    /// told how far tokenising has come and may interrupt it.
    ///
    /// # Errors
    /// Inputs that cannot be used, and settings that contradict one another or the inputs.
    pub fn open_with_progress(
        config: RunConfig,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Self> {
        Self::open_for(config, None, progress)
    }

    /// Opens what `config` names and derives the plan, like [`open`](Self::open); evaluations have
    /// `metrics` beside the figures of the task.
    ///
    /// # Errors
    /// Inputs that cannot be used, settings that contradict one another or the inputs, and a task
    /// whose predictions are not collected (`clm`, `mlm` and `question-answering`).
    pub fn open_with_metrics(config: RunConfig, metrics: ComputeMetrics) -> Result<Self> {
        Self::open_for(config, Some(metrics), &mut |_| ControlFlow::Continue(()))
    }

    fn open_for(
        config: RunConfig,
        metrics: Option<ComputeMetrics>,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Self> {
        config.validate()?;
        handover::settle(config.trainer.compiler.as_ref(), config.trainer.device.kind)?;
        let found = device::select(config.trainer.device.kind, config.trainer.device.index)?;
        let mut inputs = Inputs::open(&config, Use::Training, progress)?;
        if let Some(metrics) = metrics {
            let figures = metrics.figures(config.data.task)?;
            inputs.task.compute_metrics = Some((metrics, figures));
        }
        let facts = found.facts();
        let batch = batch_sizes::found(&config, &inputs, &facts)?;
        let (train, validation, facts) = inputs.facts(&config, facts, batch)?;
        Self::opened(config, facts, inputs.task, found.device, train, validation)
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
pub fn outline(config: &RunConfig) -> Option<String> {
    let device =
        device::select(config.trainer.device.kind, config.trainer.device.index).ok().map(|found| found.facts());
    let found = Found { device, ..inputs::found(config) };
    (!found.lacks.is_empty()).then(|| plan::outline(config, &found))
}

impl RunConfig {
    /// The plan of this run. Its inputs are opened to derive it and closed again; [`Session::open`]
    /// keeps them open.
    ///
    /// # Errors
    /// Inputs that cannot be used, and settings that contradict one another or the inputs.
    pub fn plan(self) -> Result<RunPlan> {
        Session::open(self).map(Session::into_plan)
    }
}

/// Draws every weight that has not been drawn.
struct Drawn;

impl ModuleVisitor for Drawn {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        drop(param.val());
    }
}
