//! The parts of the training compiler and what becomes of each in a run.

use std::borrow::Cow;

use burn::tensor::FloatDType;
use kiln_models::ops::Form;
use kiln_models::{Operator, Ops};
use serde::{Deserialize, Serialize};

use super::NotCaptured;
use crate::engine::compiler::settings::{FusedOps, TrainingCompilerConfig};
use crate::engine::compiler::warms_up;
use crate::engine::device::DeviceFacts;
use crate::engine::handover::{Engine, Settings};
use crate::engine::settings::{CompilerMode, DeviceKind, Switch};
use crate::engine::{handover, operators};

/// A part of the training compiler and what has become of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Its name in tables.
    #[serde(rename = "part")]
    pub name: Cow<'static, str>,
    /// `on`, `off` or `not available`.
    pub state: Cow<'static, str>,
    /// The extent to which it is on, such as the names of the fused operators, or the reason why it
    /// is not.
    pub because: String,
}

impl Part {
    fn new(name: &'static str, state: &'static str, because: impl Into<String>) -> Self {
        Self { name: name.into(), state: state.into(), because: because.into() }
    }
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:<23}{:<15}{}", self.name, self.state, self.because)
    }
}

/// Why two runs of a config on a GPU may differ.
pub(super) const NOT_DETERMINISTIC: &str = "kernels are chosen by their measured time, and those of Burn add in an order of their own: two runs may differ in their last bits";

/// The parts of the training compiler that are active on `device` in this build when a run under
/// `compiler`, whose matrix products are in `dtype`, computes in the form `ops` and
/// [captures](crate::plan::TrainPlan::captures) its steps or not, and the reasons why the others
/// are not.
pub(super) fn parts(
    compiler: Option<&TrainingCompilerConfig>,
    device: &DeviceFacts,
    dtype: FloatDType,
    ops: Ops,
    not_captured: Option<&NotCaptured>,
) -> Vec<Part> {
    let native = compiler.is_none_or(|compiler| compiler.enabled == CompilerMode::Native);
    let setting = compiler.map_or(FusedOps::All(Switch::Off), |compiler| compiler.fused_ops.clone());
    let (fused, plain) = Operator::ALL.into_iter().partition::<Vec<_>, _>(|it| ops.form(*it) == Form::Fused);
    let why = || operators::explain(&plain, &setting, device.kind, dtype);
    let name = "Kiln's fused operators";
    let fused_part = if native {
        Part::new(name, "off", "the run is native")
    } else if fused.is_empty() {
        Part::new(name, "off", why())
    } else if plain.is_empty() {
        Part::new(name, "on", operators::names(&fused))
    } else {
        Part::new(name, "on", format!("{}; plain: {}", operators::names(&fused), why()))
    };
    let fusion = "Burn's fusion";
    let burns = [
        (fusion, "the CPU backend (Flex) computes every operation at once", "in every element-wise block"),
        ("autotune", "the CPU backend (Flex) has one kernel for an operation", ""),
    ];
    let tried = |part: Part| match operators::tried(device.kind) {
        Some(tried) if part.state == "on" => {
            let because = format!("{}; {tried}", part.because);
            Part { because, ..part }
        }
        _ => part,
    };
    let mut parts = vec![tried(fused_part)];
    let settings = handover::settings(compiler, device.kind).ok().flatten();
    for (name, no_cpu, on) in burns {
        parts.push(match (device.kind, settings) {
            (DeviceKind::Cpu, _) => Part::new(name, "not available", no_cpu),
            (_, Some(Settings { fusion: false, .. })) if name == fusion && device.engine == Engine::Compiled => {
                Part::new(name, "off", "compiler.fusion, or --unfused: for debugging, slower than the native engine")
            }
            (_, Some(settings)) if name != fusion && device.engine == Engine::Compiled => {
                Part::new(name, "on", settings.autotune.as_str())
            }
            (_, Some(Settings { max_explorations: Some(most), .. })) if device.engine == Engine::Compiled => {
                Part::new(name, "on", format!("{on}, up to {most} explorations; then unfused where it is new"))
            }
            _ if device.engine == Engine::Compiled => Part::new(name, "on", on),
            _ => Part::new(name, "off", "this build is the native engine"),
        });
    }
    let captured = "captured step";
    parts.push(tried(match not_captured {
        None => Part::new(
            captured,
            "on",
            "recorded once for every shape of batch; several micro-batches a step one by one, and the update",
        ),
        Some(NotCaptured { by_device: true, because }) => Part::new(captured, "not available", because.clone()),
        Some(NotCaptured { because, .. }) => Part::new(captured, "off", because.clone()),
    }));
    parts.push(warmup_part(compiler.filter(|_| !native), device.kind));
    let name = "determinism";
    parts.push(match device.kind {
        DeviceKind::Cpu => Part::new(
            name,
            "on",
            "the same config gives the same run, bit for bit, in the same mode and with the same batch size",
        ),
        _ => Part::new(name, "not available", NOT_DETERMINISTIC),
    });
    parts
}

/// The stage before step 1, for `compiler`; none for a native run.
fn warmup_part(compiler: Option<&TrainingCompilerConfig>, kind: DeviceKind) -> Part {
    let name = "warm-up stage";
    let Some(compiler) = compiler else { return Part::new(name, "off", "the run is native") };
    match (warms_up(compiler.warmup, kind), compiler.warmup) {
        (true, _) => Part::new(name, "on", "every batch shape once before step 1, on weights that are thrown away"),
        (false, Switch::Off) => Part::new(name, "off", "compiler.warmup"),
        (false, _) => Part::new(name, "off", "nothing is compiled or tuned on the CPU"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::engine::compiler::start_up_lines;
    use crate::engine::device::{ops, select};
    use crate::engine::precision::PrecisionPlan;
    use crate::engine::settings::Precision;

    const NO_CAPTURE: NotCaptured = NotCaptured { by_device: true, because: Cow::Borrowed("Flex") };

    #[test]
    fn the_table_says_what_is_on_and_why_the_rest_is_not() {
        let cpu = select(DeviceKind::Cpu, 0).unwrap().facts();
        let compiled = TrainingCompilerConfig::default();
        let table = |config: Option<&TrainingCompilerConfig>| {
            parts(config, &cpu, FloatDType::F32, ops(config, &cpu).unwrap(), Some(&NO_CAPTURE))
        };
        let on = table(Some(&compiled));
        assert_eq!((&*on[0].state, on.len()), ("on", 6));
        assert!(on[0].because.starts_with("embedding, dropout, layer_norm") && on[0].because.ends_with("adamw"));
        assert!(on[1..4].iter().all(|part| part.state == "not available" && part.because.contains("Flex")));
        assert_eq!((&*on[4].state, on[4].because.as_str()), ("off", "nothing is compiled or tuned on the CPU"));
        let forced = TrainingCompilerConfig { warmup: Switch::On, ..TrainingCompilerConfig::default() };
        assert_eq!((&*table(Some(&forced))[4].state, table(None)[4].because.as_str()), ("on", "the run is native"));
        assert_eq!((&*table(None)[0].state, table(None)[0].because.as_str()), ("off", "the run is native"));
        let some = TrainingCompilerConfig {
            fused_ops: FusedOps::Only(vec![Operator::Gelu]),
            ..TrainingCompilerConfig::default()
        };
        assert!(
            table(Some(&some))[0].because.starts_with("gelu; plain: embedding,")
                && table(Some(&some))[0].because.ends_with("adamw (not in the list of compiler.fused_ops)")
        );
        let all = ops(Some(&compiled), &cpu).unwrap();
        let bf16 = PrecisionPlan::new(Precision::Bf16, &cpu, all).unwrap();
        let part = &parts(Some(&compiled), &cpu, bf16.dtype(), bf16.ops(all, cpu.kind), Some(&NO_CAPTURE))[0];
        assert_eq!(part.because, on[0].because, "on the CPU bf16 has every fused operator that f32 has");
        let f16 = PrecisionPlan::new(Precision::F16, &cpu, all).unwrap();
        let part = &parts(Some(&compiled), &cpu, f16.dtype(), f16.ops(all, cpu.kind), Some(&NO_CAPTURE))[0];
        let why = "plain: cross_entropy (precision f16: it takes gradients in the forward pass";
        assert!(part.because.contains(why), "{part}");
        let off = TrainingCompilerConfig { fused_ops: Switch::Off.into(), ..compiled.clone() };
        assert_eq!(
            (&*table(Some(&off))[0].state, &*table(Some(&off))[0].because),
            ("off", "compiler.fused_ops = \"off\"")
        );
        assert_eq!((&*on[5].name, &*on[5].state), ("determinism", "on"));
        let gpu = DeviceFacts { kind: DeviceKind::Wgpu, ..cpu };
        let on_gpu = parts(None, &gpu, FloatDType::F32, Ops::Plain, Some(&NO_CAPTURE));
        assert_eq!((&*on_gpu[5].state, on_gpu[5].because.as_str()), ("not available", NOT_DETERMINISTIC));
        assert_eq!((start_up_lines(None).len(), start_up_lines(Some(&compiled)).len()), (0, 2));
    }
}
