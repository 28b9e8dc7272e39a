//! The arms of `kiln compare --ablate`: compiled with one part of the training compiler off, so that what the part is worth can
//! be measured. The parts are the columns of the table that every plan prints (Kiln's fused operators, Burn's fusion, its
//! tuning, captured steps), as far as the device has them, and with `--ablate=operators` every fused operator by itself.

use std::str::FromStr;

use kiln_models::Operator;

use crate::config::{AutotuneLevel, CompilerMode, DeviceKind, FusedOps, RunConfig, Switch, TrainingCompilerConfig};
use crate::error::{Error, Result};
use crate::plan::RunPlan;
use crate::provenance::has_dropout;
use crate::task::Task;

/// How finely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ablate {
    /// An arm for each column of the compiler that the device has.
    Columns,
    /// Also one for each of Kiln's fused operators.
    Operators,
}

impl FromStr for Ablate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "columns" => Ok(Self::Columns),
            "operators" => Ok(Self::Operators),
            _ => Err(Error::config(format!("--ablate: expected columns or operators, got `{text}`"))
                .help("--ablate alone is --ablate=columns; --ablate=operators has an arm for each fused operator too")),
        }
    }
}

/// An arm with a part off.
pub(super) struct Ablation {
    pub(super) name: String,
    pub(super) label: String,
    pub(super) config: RunConfig,
}

/// The ablations of `base`, whose native plan is `planned`, and a note on parts without an arm.
pub(super) fn of(base: &RunConfig, ablate: Ablate, planned: &RunPlan) -> Result<(Vec<Ablation>, String)> {
    let compiler = base.compiler.clone().unwrap_or_default();
    let kind = planned.device.kind;
    let without = |name: &str, label: String, change: &dyn Fn(&mut TrainingCompilerConfig)| {
        let mut config = base.clone();
        config.set_compiler(CompilerMode::Compiled);
        change(config.compiler.get_or_insert_default());
        Ablation { name: format!("compiled-{name}"), label, config }
    };
    let mut arms = Vec::new();
    let fused = fused_operators(&compiler.fused_ops, kind);
    if !fused.is_empty() {
        arms.push(without("no-fused-ops", "compiled without Kiln's fused operators".into(), &|compiler| {
            compiler.fused_ops = Switch::Off.into();
        }));
    }
    let mut missing = Vec::new();
    if kind == DeviceKind::Cpu {
        missing.push("Burn's fusion, tuning and captured steps, which the CPU does not have".to_owned());
    } else {
        if compiler.fusion != Switch::Off {
            let label = "compiled, unfused: without Burn's fusion, slower than the native engine".into();
            arms.push(without("no-fusion", label, &|compiler| compiler.fusion = Switch::Off));
        }
        if compiler.autotune != AutotuneLevel::Minimal {
            let label = "compiled, tuned as little as Burn can: autotune minimal".into();
            arms.push(without("least-autotune", label, &|compiler| compiler.autotune = AutotuneLevel::Minimal));
        }
        if compiler.graph != Switch::Off {
            let label = "compiled without captured steps".into();
            arms.push(without("no-graph", label, &|compiler| compiler.graph = Switch::Off));
        }
    }
    if ablate == Ablate::Operators {
        let (used, idle): (Vec<_>, Vec<_>) = fused.iter().copied().partition(|operator| is_used(*operator, planned));
        for operator in used {
            let rest = fused.iter().copied().filter(|other| *other != operator).collect::<Vec<_>>();
            let (name, label) = (operator.name().replace('_', "-"), format!("compiled, {} plain", operator.name()));
            arms.push(without(&format!("no-{name}"), label, &|compiler| {
                compiler.fused_ops = if rest.is_empty() { Switch::Off.into() } else { FusedOps::Only(rest.clone()) };
            }));
        }
        missing.extend(idle.into_iter().map(|operator| format!("{}, which this run does not use", operator.name())));
    }
    if arms.is_empty() {
        return Err(Error::config("--ablate: nothing of the compiler can be switched off for this run on this device")
            .help("`kiln plan FILE --set compiler.enabled=true` shows what is on"));
    }
    let without = if missing.is_empty() { String::new() } else { format!("; no arm for {}", missing.join("; for ")) };
    Ok((
        arms,
        format!("ablation: an arm for each part of the compiler that is on here, compared with compiled{without}"),
    ))
}

/// The operators that are fused under `fused_ops`, as [`crate::execution::ops`] has it.
fn fused_operators(fused_ops: &FusedOps, kind: DeviceKind) -> Vec<Operator> {
    match (fused_ops, kind) {
        (FusedOps::All(Switch::Off), _) | (FusedOps::All(Switch::Auto), DeviceKind::Cuda) => Vec::new(),
        (FusedOps::All(_), _) => Operator::ALL.to_vec(),
        (FusedOps::Only(operators), _) => operators.clone(),
    }
}

/// Whether a step of the run meets the operator: an arm without one that it does not meet would measure nothing.
fn is_used(operator: Operator, plan: &RunPlan) -> bool {
    match operator {
        Operator::Dropout => has_dropout(plan),
        Operator::CrossEntropy => matches!(plan.task, Task::Clm | Task::Mlm),
        // The gradient norm is a part of `adamw`, whatever the optimizer.
        _ => true,
    }
}
