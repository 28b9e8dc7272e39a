//! Whether the steps of a run are captured (`compiler.graph`), and if not, why not. How they are is
//! the trainer's.

use std::borrow::Cow;

use kiln_core::error::{Error, Result};
use kiln_models::Operator;
use serde::{Deserialize, Serialize};

use super::{EnginePlan, ModelFacts, OptimizerPlan, TrainPlan};
use crate::arguments::DistributedArguments;
use crate::engine::compiler::settings::TrainingCompilerConfig;
use crate::engine::handover::Engine;
use crate::engine::settings::{CompilerMode, DeviceKind, Switch};
use crate::optim::backward::ActivationCheckpointing;

/// Why steps are not captured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotCaptured {
    /// No device of this kind could.
    pub by_device: bool,
    /// The reason.
    pub because: Cow<'static, str>,
}

impl NotCaptured {
    /// On the CPU.
    const fn on_cpu() -> Self {
        let because = Cow::Borrowed("the CPU backend (Flex) launches nothing that could be captured");
        Self { by_device: true, because }
    }

    /// Before more is known of a run than that it is `native` or not, on a device of kind `kind`.
    pub(super) const fn yet(kind: DeviceKind, native: bool) -> Self {
        match (kind, native) {
            (DeviceKind::Cpu, _) => Self::on_cpu(),
            (_, true) => Self::run("the run is native"),
            (_, false) => Self::run("it depends on the model and the optimizer"),
        }
    }

    const fn run(because: &'static str) -> Self {
        Self { by_device: false, because: Cow::Borrowed(because) }
    }
}

impl EnginePlan {
    /// Whether steps that train `model` by `optimizer` under `compiler`, whose mode is the plan's,
    /// are captured; several devices share the work as `shared` says.
    ///
    /// # Errors
    /// Why they are not.
    pub(super) fn can_capture(
        &self,
        compiler: Option<&TrainingCompilerConfig>,
        model: &ModelFacts,
        optimizer: &OptimizerPlan,
        shared: Option<DistributedArguments>,
    ) -> std::result::Result<(), NotCaptured> {
        let Some(compiler) = compiler.filter(|compiler| compiler.enabled != CompilerMode::Native) else {
            return Err(NotCaptured::run("the run is native"));
        };
        let fused = |operator| self.ops.fused_operators().contains(&operator);
        let (drops, never) = (model.drops, optimizer.config.never_in_place());
        if self.device.kind == DeviceKind::Cpu {
            return Err(NotCaptured::on_cpu());
        }
        let because = if self.device.engine == Engine::Native {
            "the run is native"
        } else if compiler.graph == Switch::Off {
            "compiler.graph says so"
        } else if shared.is_some_and(|it| it.optimizer_sharding) {
            "the optimizer is divided among the devices"
        } else if shared.is_some_and(|it| it.overlap_communication) {
            "gradients are summed over the devices during the backward pass"
        } else if self.unfused {
            "compiler.fusion is off"
        } else if !model.can_be_captured {
            "the task does not say that its steps can be (CAN_BE_CAPTURED)"
        } else if let Some(never) = never {
            never
        } else if shared.is_some() && !fused(Operator::AdamW) {
            "kernels of Burn take the gradient norm, each device may have its own, and a captured step agrees on none"
        } else if shared.is_some() && !optimizer.config.is_element_wise() {
            "kernels of Burn take the norms or products of this optimizer's update, and each device may have its own"
        } else if drops && !(fused(Operator::Dropout) && fused(Operator::Attention)) {
            "dropout of plain operators draws from the host: a replay would repeat it"
        } else if optimizer.neftune_noise_alpha.is_some() {
            "the noise on embeddings (trainer.neftune_noise_alpha) is drawn from the host: a replay would repeat it"
        } else if self.activation_checkpointing == ActivationCheckpointing::Balanced {
            "Burn's activation checkpointing (\"balanced\") refuses the numbers that a captured step is told; \"blocks\" does not"
        } else {
            return Ok(());
        };
        Err(NotCaptured::run(because))
    }
}

impl TrainPlan {
    /// Whether the steps of this run are captured.
    ///
    /// # Errors
    /// Why they are not.
    pub fn captures(&self) -> std::result::Result<(), NotCaptured> {
        self.engine.not_captured.clone().map_or(Ok(()), Err)
    }

    /// Refuses a run that asks for captured steps, by `compiler`, whose mode is the plan's, and
    /// cannot have them.
    pub(super) fn check_graph(&self, compiler: Option<&TrainingCompilerConfig>) -> Result<()> {
        let asked = compiler.is_some_and(|compiler| compiler.graph == Switch::On)
            && Engine::wanted(compiler) == Engine::Compiled;
        match self.captures() {
            Err(why) if asked => {
                Err(Error::config(format!("compiler.graph = \"on\": steps cannot be captured: {}", why.because))
                    .help("change that, or set compiler.graph = \"auto\""))
            }
            _ => Ok(()),
        }
    }
}
