//! Whether the steps of a run are captured (`compiler.graph`), and if not, why not. How they are is the trainer's.

use kiln_models::Operator;

use super::RunPlan;
use crate::base::error::{Error, Result};
use crate::config::{ActivationCheckpointing, CompilerMode, DeviceKind, Precision, Switch};
use crate::engine::handover;
use crate::engine::handover::Engine;
use crate::optim::OptimizerConfig;

/// Why steps are not captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotCaptured {
    /// No device of this kind could.
    pub by_device: bool,
    /// The reason.
    pub because: &'static str,
}

impl NotCaptured {
    const fn run(because: &'static str) -> Self {
        Self { by_device: false, because }
    }
}

impl RunPlan {
    /// Whether the steps of this run are captured.
    ///
    /// # Errors
    /// Why they are not.
    pub fn captures(&self) -> std::result::Result<(), NotCaptured> {
        let Some(compiler) = &self.config.compiler else { return Err(NotCaptured::run("the run is native")) };
        let trainer = &self.config.trainer;
        let fused = |operator| self.ops.fused_operators().contains(&operator);
        let drops = self.has_dropout();
        let because = match () {
            () if self.device.kind == DeviceKind::Cpu => {
                let because = "the CPU backend (Flex) launches nothing that could be captured";
                return Err(NotCaptured { by_device: true, because });
            }
            () if compiler.enabled == CompilerMode::Native || Engine::this() == Engine::Native => "the run is native",
            () if compiler.graph == Switch::Off => "compiler.graph says so",
            () if handover::is_unfused(Some(compiler), self.device.kind) => "compiler.fusion is off",
            () if !matches!(self.optimizer, OptimizerConfig::AdamW(_)) => "only AdamW updates in place",
            () if !fused(Operator::AdamW) => "the operator adamw is plain, and only the fused one updates in place",
            () if drops && !(fused(Operator::Dropout) && fused(Operator::Attention)) => {
                "dropout of plain operators draws from the host: a replay would repeat it"
            }
            () if self.precision.precision != Precision::F32 => "only f32 steps are captured",
            () if trainer.activation_checkpointing != ActivationCheckpointing::None => {
                "activation checkpointing draws dropout from the host"
            }
            () if trainer.class_weights.is_some() => "class weights are copied from the host in every step",
            () => return Ok(()),
        };
        Err(NotCaptured::run(because))
    }

    /// Refuses a compiled run that asks for captured steps and cannot have them.
    pub(crate) fn check_graph(&self) -> Result<()> {
        let compiler = self.config.compiler.as_ref();
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
