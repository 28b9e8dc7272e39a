//! The arms of `kiln compare --ablate`: compiled with one part of the training compiler off, so
//! that what the part is worth can be measured. The parts are the columns of the table that every
//! plan prints (Kiln's fused operators, Burn's fusion, its tuning, captured steps), as far as the
//! device has them, and with `--ablate=operators` every fused operator by itself.

use std::str::FromStr;

use kiln::config::{CompilerMode, DeviceKind, RunConfig};
use kiln::engine::compiler::columns::Column;
use kiln::engine::operators;
use kiln::plan::RunPlan;
use kiln_core::error::{Error, Result};
use kiln_models::Operator;

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
    let compiler = base.trainer.compiler.clone().unwrap_or_default();
    let kind = planned.train.engine.device.kind;
    let dtype = planned.train.engine.precision.dtype();
    let fused = operators::fused(&compiler.fused_ops, kind, dtype);
    let without = |column: Column, name: &str, label: String| {
        let mut config = base.clone();
        config.trainer.set_compiler(CompilerMode::Compiled);
        column.switch_off(config.trainer.compiler.get_or_insert_default(), &fused);
        Ablation { name: format!("compiled-{name}"), label, config }
    };
    let mut arms = Vec::new();
    for column in Column::on(&compiler, kind, &fused) {
        let (name, label) = match column {
            Column::Fusion => {
                ("no-fusion", "compiled, unfused: without Burn's fusion, slower than the native engine".into())
            }
            Column::Autotune => ("least-autotune", "compiled, tuned as little as Burn can: autotune minimal".into()),
            Column::Graph => ("no-graph", "compiled without captured steps".into()),
            Column::Operators | Column::Operator(_) => ("no-fused-ops", format!("compiled without {column}")),
        };
        arms.push(without(column, name, label));
    }
    let mut missing = Vec::new();
    if kind == DeviceKind::Cpu {
        missing.push("Burn's fusion, tuning and captured steps, which the CPU does not have".to_owned());
    }
    if ablate == Ablate::Operators {
        let (used, idle): (Vec<_>, Vec<_>) = fused.iter().copied().partition(|operator| is_used(*operator, planned));
        for operator in used {
            let (name, label) = (operator.name().replace('_', "-"), format!("compiled, {} plain", operator.name()));
            arms.push(without(Column::Operator(operator), &format!("no-{name}"), label));
        }
        missing.extend(idle.into_iter().map(|operator| format!("{}, which this run does not use", operator.name())));
        missing.extend(Operator::ALL.into_iter().filter_map(|operator| {
            let why = operators::plain_because(operator, &compiler.fused_ops, kind, dtype)?;
            Some(format!("{}, which is plain ({why})", operator.name()))
        }));
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

/// Whether a step of the run meets the operator: an arm without one that it does not meet would
/// measure nothing.
fn is_used(operator: Operator, plan: &RunPlan) -> bool {
    match operator {
        Operator::Dropout => plan.architecture.as_ref().is_none_or(|it| it.has_dropout()),
        Operator::CrossEntropy => plan.architecture.as_ref().is_some_and(|it| it.task.is_language_model()),
        Operator::RmsNorm | Operator::Rotary | Operator::Swiglu => {
            plan.architecture.as_ref().is_none_or(|it| it.is_llama())
        }
        Operator::LayerNorm | Operator::Gelu => plan.architecture.as_ref().is_none_or(|it| !it.is_llama()),
        // The gradient norm is a part of `adamw`, whatever the optimizer.
        _ => true,
    }
}
