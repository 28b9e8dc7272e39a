//! Opens what a run needs: its model's folder, tokenizer and data ([`inputs`]), the device, and from them and
//! the config its plan. Everything that lives outside the process is read here, before the plan, which is derived from the
//! facts that were found.

pub mod batch_sizes;
pub mod export;
pub mod inputs;
pub mod memory_line;
pub mod model_folder;
pub mod provenance;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};
use kiln_models::Model;
use kiln_models::weights::{LoadReport, load};

use crate::base::error::Result;
use crate::base::random::seed_for;
use crate::config::RunConfig;
use crate::data::store::Progress;
use crate::engine::device;
use crate::engine::handover;
use crate::plan::{Inputs, RunPlan};

impl RunConfig {
    /// Opens the inputs (tokenising them, if that has not been done before) and derives the plan.
    ///
    /// # Errors
    /// Inputs that cannot be used, and settings that contradict one another or the inputs.
    pub fn plan(self) -> Result<RunPlan> {
        self.plan_with_progress(&mut |_| std::ops::ControlFlow::Continue(()))
    }

    /// As [`plan`](Self::plan); `progress` is told how far tokenising has come and may interrupt it.
    ///
    /// # Errors
    /// As [`plan`](Self::plan).
    pub fn plan_with_progress(
        self,
        progress: &mut dyn FnMut(Progress) -> std::ops::ControlFlow<()>,
    ) -> Result<RunPlan> {
        self.validate()?;
        handover::settle(self.compiler.as_ref(), self.device.kind)?;
        let device = device::select(self.device.kind, self.device.index)?;
        let inputs = Inputs::open(&self, progress)?;
        let mut config = self;
        let note = batch_sizes::settle(&mut config, &inputs, &device)?;
        Ok(RunPlan { batch_note: note, ..RunPlan::derive(config, inputs, device)? })
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
