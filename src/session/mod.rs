//! Opens a run: its model's folder, tokenizer and data ([`inputs`]) and its device are found, and the plan is derived from
//! the config and these facts. A [`Session`] holds the plan and everything that is open.

pub mod batch_sizes;
pub mod export;
pub mod inputs;
pub mod memory_line;
pub mod model_folder;
pub mod provenance;
use std::ops::ControlFlow;
use std::sync::Arc;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};
use kiln_models::Model;
use kiln_models::weights::{LoadReport, load};

use crate::base::error::{Error, Result};
use crate::base::random::seed_for;
use crate::config::RunConfig;
use crate::data::Dataset;
use crate::data::store::Progress;
use crate::data::subset::Subset;
use crate::data::tokenizer::{NamedFile, Tokenizer};
use crate::engine::compiler::decision::Decision;
use crate::engine::device;
use crate::engine::handover;
use crate::plan::{BatchPlan, Inputs, RunPlan};

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
        let facts = found.facts();
        let inputs = Inputs::open(&config, progress)?;
        let mut config = config;
        let note = batch_sizes::settle(&mut config, &inputs, &facts)?;
        let inputs = limited(&config, inputs)?;
        let plan = RunPlan { batch_note: note, ..RunPlan::derive(config, &inputs, facts)? };
        let Inputs { tokenizer, train, validation, kept_files, .. } = inputs;
        Ok(Self { plan, device: found.device, tokenizer, train, validation, kept_files })
    }

    /// The session in the mode that `decision` names.
    #[must_use]
    pub fn decided(self, decision: Decision) -> Self {
        Self { plan: self.plan.decided(decision), ..self }
    }

    /// The files beside the weights in a saved folder of `model`: `config.json`, the tokenizer's, and those that the
    /// pretrained model had.
    ///
    /// # Errors
    /// A tokenizer that cannot be written.
    pub fn files_beside_weights(&self, model: &Model) -> Result<Vec<NamedFile>> {
        let plan = &self.plan;
        let config = serde_json::to_string_pretty(&plan.model_config.to_json(model.architecture()))
            .map_err(|error| Error::data(format!("config.json: {error}")))?;
        let mut files = vec![("config.json".into(), (config + "\n").into_bytes().into())];
        if let Some(tokenizer) = &self.tokenizer {
            files.extend(tokenizer.files(&plan.model_config, plan.model_from.as_deref())?);
        }
        files.extend(self.kept_files.iter().cloned());
        Ok(files)
    }
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

/// `inputs` without the examples that `config` does not want.
///
/// # Errors
/// A batch that contradicts itself.
pub(crate) fn limited(config: &RunConfig, mut inputs: Inputs) -> Result<Inputs> {
    let trainer = &config.trainer;
    let only = |given: Option<usize>, one: bool, size: usize| if one { Some(size) } else { given };
    let one_step = trainer.overfit_one_batch || trainer.fast_dev_run;
    let train = only(config.data.max_train_samples, one_step, BatchPlan::of(config)?.global);
    let eval = only(config.data.max_eval_samples, trainer.fast_dev_run, trainer.per_device_eval_batch_size);
    if let Some(wanted) = train.filter(|wanted| *wanted < inputs.train.len()) {
        let view = first(&inputs.train, wanted);
        inputs.train_tokens = (0..view.len()).map(|index| view.len_of(index) as u64).sum();
        inputs.train = view;
    }
    if let (Some(wanted), Some(validation)) = (eval, &inputs.validation) {
        inputs.validation = Some(first(validation, wanted));
    }
    Ok(inputs)
}

/// The first `wanted` examples; of question answering the first so many questions with all their windows, since an answer
/// is looked for in all of them.
fn first(data: &Arc<dyn Dataset>, wanted: usize) -> Arc<dyn Dataset> {
    match data.squad() {
        Some(squad) => Arc::new(squad.first(wanted)),
        None => Arc::new(Subset::first(data.clone(), wanted)),
    }
}

/// The model of `plan` as it is before the first step: with the weights that `model.from` names, and random ones, drawn from
/// the run's seed alone, where it has none. Parameters that do not learn are frozen.
///
/// # Errors
/// Weights that do not fit the model.
pub fn model(plan: &RunPlan, device: &Device) -> Result<(Model, Option<LoadReport>)> {
    device.seed(seed_for(plan.config.trainer.seed, "init", 0, 0));
    let model = Model::new(&plan.model_config, plan.task.head(), device)?.with_compute(plan.compute());
    let (model, report) = match &plan.model_from {
        Some(folder) => load(model, folder).map(|(model, report)| (model, Some(report)))?,
        None => (model, None),
    };
    let model = plan.groups.freeze(model);
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
