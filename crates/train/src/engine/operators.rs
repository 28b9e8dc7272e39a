//! Which of Kiln's operators a run computes in the fused form: `compiler.fused_ops`, the device and
//! the precision, held against the table [`FUSED`](kiln_models::ops::FUSED).

use burn::tensor::FloatDType;
use kiln_models::Operator;
use kiln_models::ops::{Availability, DTYPES, Target};

use crate::engine::compiler::settings::FusedOps;
use crate::engine::settings::{DeviceKind, Switch};

/// Whether both modes zero the same elements in dropout, so that a run may change its mode without
/// a change of masks: on the CPU. On a GPU each mode draws masks of its own.
pub fn drop_alike(kind: DeviceKind) -> bool {
    kind == DeviceKind::Cpu
}

/// The operators that `fused_ops` fuses on a device of kind `kind` in a run whose matrix products
/// are in `dtype`.
pub fn fused(fused_ops: &FusedOps, kind: DeviceKind, dtype: FloatDType) -> Vec<Operator> {
    let is_fused = |operator: &Operator| plain_because(*operator, fused_ops, kind, dtype).is_none();
    Operator::ALL.into_iter().filter(is_fused).collect()
}

/// Why `operator` is plain in a compiled run with `fused_ops` on a device of kind `kind`, whose
/// matrix products are in `dtype`; none if it is fused.
pub fn plain_because(operator: Operator, fused_ops: &FusedOps, kind: DeviceKind, dtype: FloatDType) -> Option<String> {
    match fused_ops {
        FusedOps::All(Switch::Off) => return Some("compiler.fused_ops = \"off\"".into()),
        FusedOps::Only(operators) if !operators.contains(&operator) => {
            return Some("not in the list of compiler.fused_ops".into());
        }
        _ => {}
    }
    match (operator.within(dtype), operator.on(target(kind))) {
        (Availability::Missing(why), _) => Some(missing(dtype, why)),
        (_, Availability::Missing(why)) => Some(why.into()),
        (Availability::Default, Availability::Default) => None,
    }
}

/// Why an operator has no fused form in `dtype`.
fn missing(dtype: FloatDType, why: &str) -> String {
    format!("precision {}: {why}", format!("{dtype:?}").to_lowercase())
}

/// The reasons why the operators `plain` are plain, each with its operators, as in `linear (not in
/// the list of compiler.fused_ops)`; a reason alone if it is that of every operator.
pub fn explain(plain: &[Operator], fused_ops: &FusedOps, kind: DeviceKind, dtype: FloatDType) -> String {
    let mut reasons = Vec::<(String, Vec<Operator>)>::new();
    for operator in plain {
        let why = plain_because(*operator, fused_ops, kind, dtype);
        // The table allows it, but the native engine of a GPU has no kernel of Kiln's.
        let why = why.unwrap_or_else(|| NATIVE_GPU.into());
        match reasons.iter_mut().find(|(reason, _)| *reason == why) {
            Some((_, operators)) => operators.push(*operator),
            None => reasons.push((why, vec![*operator])),
        }
    }
    match reasons.as_slice() {
        [(why, operators)] if operators.len() == Operator::ALL.len() => why.clone(),
        reasons => {
            let groups = reasons.iter().map(|(why, operators)| format!("{} ({why})", names(operators)));
            groups.collect::<Vec<_>>().join("; ")
        }
    }
}

/// How far Kiln's kernels and captured steps have been tried on devices of kind `kind`, where that
/// is less than a run on one.
pub const fn tried(kind: DeviceKind) -> Option<&'static str> {
    match kind {
        DeviceKind::Cuda => Some("checked against NVIDIA's compiler and an emulated device; not timed on a GPU"),
        DeviceKind::Auto | DeviceKind::Cpu | DeviceKind::Wgpu => None,
    }
}

/// The reason of an operator that is plain although the table has a fused form.
pub const NATIVE_GPU: &str = "the native engine of a GPU has no fused operators";

/// Names of operators, as in tables.
pub fn names(operators: &[Operator]) -> String {
    operators.iter().map(|operator| operator.name()).collect::<Vec<_>>().join(", ")
}

/// The operators that a compiled run fuses on a device of kind `kind` unless its config says
/// otherwise, and those that a narrow precision leaves plain, one line each.
pub fn defaults(kind: DeviceKind) -> Vec<String> {
    let auto = FusedOps::from(Switch::Auto);
    let wide = fused(&auto, kind, FloatDType::F32);
    if wide.is_empty() {
        return vec![format!("fused operators: none ({})", explain(&Operator::ALL, &auto, kind, FloatDType::F32))];
    }
    let mut lines = vec![format!("fused operators: {}", names(&wide))];
    lines.extend(tried(kind).map(|tried| format!("fused operators, captured steps: {tried}")));
    for dtype in DTYPES {
        let narrow = fused(&auto, kind, dtype);
        let plain = wide.iter().copied().filter(|operator| !narrow.contains(operator)).collect::<Vec<_>>();
        if !plain.is_empty() {
            lines.push(format!("plain operators: {}", explain(&plain, &auto, kind, dtype)));
        }
    }
    lines
}

/// The device's columns in the table; those of the CPU for a device that is still to be chosen.
fn target(kind: DeviceKind) -> Target {
    match kind {
        DeviceKind::Auto | DeviceKind::Cpu => Target::Cpu,
        DeviceKind::Wgpu => Target::Wgpu,
        DeviceKind::Cuda => Target::Cuda,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn setting_device_and_precision_decide() {
        let (auto, on) = (FusedOps::from(Switch::Auto), FusedOps::from(Switch::On));
        let (f32, bf16, f16) = (FloatDType::F32, FloatDType::BF16, FloatDType::F16);
        assert_eq!(fused(&auto, DeviceKind::Cpu, f32), Operator::ALL);
        assert_eq!(fused(&auto, DeviceKind::Cuda, f32), Operator::ALL);
        assert_eq!(fused(&on, DeviceKind::Cuda, f32), Operator::ALL);
        assert_eq!(fused(&Switch::Off.into(), DeviceKind::Wgpu, f32), []);
        let some = FusedOps::Only(vec![Operator::AdamW, Operator::Linear]);
        assert_eq!(fused(&some, DeviceKind::Cpu, f32), [Operator::Linear, Operator::AdamW]);
        assert_eq!(fused(&some, DeviceKind::Cuda, f16), [Operator::Linear]);
        let plain = |dtype| {
            let fused = fused(&on, DeviceKind::Wgpu, dtype);
            Operator::ALL.into_iter().filter(|operator| !fused.contains(operator)).collect::<Vec<_>>()
        };
        assert_eq!(plain(bf16), []);
        assert_eq!(plain(f16), [Operator::CrossEntropy, Operator::AdamW]);
        let why = |operator, fused_ops| plain_because(operator, fused_ops, DeviceKind::Cuda, f16).unwrap();
        assert_eq!(why(Operator::Gelu, &some), "not in the list of compiler.fused_ops");
        assert_eq!(why(Operator::AdamW, &auto), "precision f16: it cannot skip a step whose scaled gradients overflow");
        assert!(defaults(DeviceKind::Cuda)[1].ends_with("not timed on a GPU"));
    }
}
