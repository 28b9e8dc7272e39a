//! Opens a run: its model's folder, tokenizer and data ([`inputs`]) and its device are found, and the plan is derived from
//! the config and these facts. A [`Session`] holds the plan and everything that is open.

pub mod batch_sizes;
pub mod export;
pub mod inputs;
pub mod memory_line;
pub mod model_folder;
pub mod provenance;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};
use kiln_models::Model;
use kiln_models::weights::{LoadReport, load};

use crate::base::error::{Error, Result};
use crate::base::files::{read_json, write_json, write_whole};
use crate::base::random::seed_for;
use crate::config::RunConfig;
use crate::data::Dataset;
use crate::data::padding::survey;
use crate::data::store::Progress;
use crate::data::tokenizer::{NamedFile, Tokenizer};
use crate::engine::compiler::decision::Decision;
use crate::engine::device;
use crate::engine::handover;
use crate::plan::{self, BatchPlan, Facts, Found, RunPlan};
use inputs::Inputs;

/// A run that can begin: what will happen, and the device, tokenizer and datasets that it happens with.
#[derive(Clone)]
pub struct Session {
    /// What will happen.
    pub plan: RunPlan,
    /// Where it runs.
    pub device: Device,
    /// The tokenizer, where there is one.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// Training data.
    pub train: Arc<dyn Dataset>,
    /// Validation data, if any.
    pub validation: Option<Arc<dyn Dataset>>,
    /// Files of the pretrained model's folder that the trained model keeps as they are.
    pub kept_files: Vec<NamedFile>,
    /// What the plan follows from.
    config: RunConfig,
    facts: Facts,
}

impl Session {
    /// Opens what `config` names (tokenising text, if that has not been done before) and derives the plan.
    ///
    /// # Errors
    /// Inputs that cannot be used, and settings that contradict one another or the inputs.
    pub fn open(config: RunConfig) -> Result<Self> {
        Self::open_with_progress(config, &mut |_| ControlFlow::Continue(()))
    }

    /// As [`open`](Self::open); `progress` is told how far tokenising has come and may interrupt it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with_progress(
        config: RunConfig,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Self> {
        config.validate()?;
        handover::settle(config.compiler.as_ref(), config.device.kind)?;
        let found = device::select(config.device.kind, config.device.index)?;
        let inputs = Inputs::open(&config, progress)?;
        let facts = found.facts();
        let batch = batch_sizes::found(&config, &inputs, &facts)?;
        let (inputs, facts) = inputs.facts(&config, facts, batch)?;
        let plan = RunPlan::derive(&config, &facts)?;
        let Inputs { tokenizer, train, validation, kept_files, .. } = inputs;
        Ok(Self { plan, device: found.device, tokenizer, train, validation, kept_files, config, facts })
    }

    /// The config of this run with every default and derived value explicit, as `plan.toml` has it.
    pub fn config(&self) -> RunConfig {
        self.plan.resolved(&self.config)
    }

    /// What the plan follows from, besides the config.
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

    /// The session of another config on what is open: `change` is made to this one's and a plan derived from it. Model,
    /// tokenizer, device and the choice of examples stay.
    ///
    /// # Errors
    /// Settings that contradict one another or the facts.
    pub fn with(&self, change: impl FnOnce(&mut RunConfig)) -> Result<Self> {
        let (mut config, mut facts) = (self.config.clone(), self.facts.clone());
        change(&mut config);
        let batch = BatchPlan::of(&config, facts.batch.as_ref())?;
        facts.data.batches = survey(&*self.train, batch.drawn(&config));
        let plan = RunPlan::derive(&config, &facts)?;
        Ok(Self { plan, config, facts, ..self.clone() })
    }

    /// The session in the mode that `decision` names.
    ///
    /// # Errors
    /// As [`with`](Self::with).
    pub fn decided(mut self, decision: Decision) -> Result<Self> {
        self.facts.decision = Some(decision);
        self.plan = RunPlan::derive(&self.config, &self.facts)?;
        Ok(self)
    }

    /// The files beside the weights in a saved folder of `model`: `config.json`, the tokenizer's, and those that the
    /// pretrained model had.
    ///
    /// # Errors
    /// A tokenizer that cannot be written.
    pub fn files_beside_weights(&self, model: &Model) -> Result<Vec<NamedFile>> {
        let (of_model, _) = self.plan.model.built_in()?;
        let config = serde_json::to_string_pretty(&of_model.to_json(model.architecture()))
            .map_err(|error| Error::data(format!("config.json: {error}")))?;
        let mut files = vec![("config.json".into(), (config + "\n").into_bytes().into())];
        if let Some(tokenizer) = &self.tokenizer {
            files.extend(tokenizer.files(of_model, self.plan.model.from.as_deref())?);
        }
        files.extend(self.kept_files.iter().cloned());
        Ok(files)
    }
}

/// The plan of the run in `folder`, as it was saved; none for a run without one, and for one of another version of Kiln whose
/// plans are made otherwise.
///
/// # Errors
/// A file that holds no plan, and the operating system's.
pub fn saved_plan(folder: &Path) -> Result<Option<RunPlan>> {
    let path = folder.join(plan::FILE);
    if std::fs::symlink_metadata(&path).is_err() {
        return Ok(None);
    }
    let saved: serde_json::Value = read_json(&path)?;
    let version = saved.get("kiln").and_then(|version| version.as_str().map(str::to_owned));
    match serde_json::from_value(saved) {
        Ok(plan) => Ok(Some(plan)),
        Err(_) if version.is_some_and(|version| version != env!("CARGO_PKG_VERSION")) => Ok(None),
        Err(error) => Err(Error::data(format!("{}: {error}", path.display()))),
    }
}

/// The part of the plan of `config` that does not depend on what is lacking of its inputs, and what that is; none where all is
/// there.
pub fn outline(config: &RunConfig) -> Option<String> {
    let device = device::select(config.device.kind, config.device.index).ok().map(|found| found.facts());
    let found = Found { device, ..inputs::found(config) };
    (!found.lacks.is_empty()).then(|| plan::outline(config, &found))
}

impl RunConfig {
    /// The plan of this run. What it names is opened for it and closed again; [`Session::open`] keeps it open.
    ///
    /// # Errors
    /// Those of [`Session::open`].
    pub fn plan(self) -> Result<RunPlan> {
        Session::open(self).map(|session| session.plan)
    }
}

/// The model of `plan` as it is before the first step: with the weights that `model.from` names, and random ones, drawn from
/// the run's seed alone, where it has none. Parameters that do not learn are frozen.
///
/// # Errors
/// Weights that do not fit the model.
pub fn model(plan: &RunPlan, device: &Device) -> Result<(Model, Option<LoadReport>)> {
    device.seed(seed_for(plan.run.seed, "init", 0, 0));
    let (config, task) = plan.model.built_in()?;
    let model = Model::new(config, task.head(), device)?.with_compute(plan.engine.compute());
    let (model, report) = match &plan.model.from {
        Some(folder) => load(model, folder).map(|(model, report)| (model, Some(report)))?,
        None => (model, None),
    };
    let model = plan.optimizer.groups.freeze(model);
    // Drawn now: the first forward pass draws dropout too, in another order in every mode.
    model.visit(&mut Drawn);
    Ok((model, report))
}

/// Draws every weight that has not been drawn.
struct Drawn;

impl ModuleVisitor for Drawn {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        drop(param.val());
    }
}
