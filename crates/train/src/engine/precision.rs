//! In which type a run computes: what `precision` asks for, against what the device has. Decided
//! here and nowhere else; what is then rounded and what stays in f32 is
//! `kiln_models::ops::compute`'s, and the loss scale of f16 is
//! [`optim::scaler`](crate::optim::scaler)'s.

use burn::tensor::FloatDType;
use kiln_core::error::{Error, Result};
use kiln_models::ops::Form;
use kiln_models::ops::products::{self, Unit};
use kiln_models::{Operator, Ops};
use serde::{Deserialize, Serialize};

use crate::engine::compiler::settings::FusedOps;
use crate::engine::device::DeviceFacts;
use crate::engine::operators;
use crate::engine::settings::{DeviceKind, Precision, Switch};

/// The precision of a run, and why it is this one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrecisionPlan {
    /// The precision that was chosen; never `auto`.
    pub precision: Precision,
    /// For people: why `auto` chose it, or what is to be known of it on this device; may be empty.
    pub note: String,
}

impl PrecisionPlan {
    /// Resolves `asked` on `device` for a run that computes in the form `ops` in f32.
    ///
    /// # Errors
    /// A type that the device does not compute in.
    pub fn new(asked: Precision, device: &DeviceFacts, ops: Ops) -> Result<Self> {
        let unit = device.bf16_products.filter(|_| ops.form(Operator::Linear) == Form::Fused);
        let (precision, note) = match (asked, unit) {
            (Precision::Auto, unit) => choose(device, unit),
            (Precision::F32, _) if device.has_tf32() => {
                (Precision::F32, "matrix products in TF32 where such a kernel wins: Burn has no switch".into())
            }
            (Precision::Bf16, Some(unit)) => (Precision::Bf16, bf16_note(unit)),
            (Precision::F16, Some(unit)) => (Precision::F16, f16_note(unit)),
            (other, None) if device.kind == DeviceKind::Cpu && other != Precision::F32 => {
                (other, "the CPU converts to f32 and back: close to the numbers of a GPU, not its speed".into())
            }
            (other, _) => (other, String::new()),
        };
        if !device.computes_in(precision) {
            let others = [Precision::F16, Precision::Bf16].into_iter().filter(|other| device.computes_in(*other));
            let others = others.map(|precision| format!("\"{precision}\" or ")).collect::<String>();
            // The feature that the device lacks, where it is known; otherwise it depends on the
            // driver.
            let why = match (device.kind, precision) {
                (DeviceKind::Wgpu, Precision::Bf16) => {
                    "WGSL, the language of its kernels, has no bf16 (for Vulkan's own: tracel-ai/cubecl#802)"
                }
                (DeviceKind::Wgpu, _) => "its driver lacks shader-f16",
                _ => "it has no arithmetic in it, or only stores and converts it",
            };
            return Err(Error::config(format!(
                "precision = \"{precision}\": the {} device {} does not compute in {precision}: {why}",
                device.kind, device.name
            ))
            .help(format!("set precision = {others}\"f32\", or \"auto\"")));
        }
        Ok(Self { precision, note })
    }

    /// The type of matrix products.
    pub fn dtype(&self) -> FloatDType {
        match self.precision {
            Precision::Bf16 => FloatDType::BF16,
            Precision::F16 => FloatDType::F16,
            Precision::F32 | Precision::Auto => FloatDType::F32,
        }
    }

    /// The fused operators among `ops` that compute in this precision on a device of kind `kind`.
    pub fn ops(&self, ops: Ops, kind: DeviceKind) -> Ops {
        let on_request = FusedOps::from(Switch::On);
        ops.only(operators::fused(&on_request, kind, self.dtype()))
    }

    /// Whether losses are scaled.
    pub fn scales_loss(&self) -> bool {
        self.precision == Precision::F16
    }

    /// Says for the plan which values are in which type.
    pub fn describe(&self) -> String {
        let note = if self.note.is_empty() { String::new() } else { format!(" ({})", self.note) };
        match self.precision {
            Precision::F32 | Precision::Auto => format!("f32{note}"),
            narrow => format!(
                "{narrow} in matrix products; weights, moments, norms, softmax, activation functions and loss in f32{}{note}",
                if self.scales_loss() { "; dynamic loss scale" } else { "" }
            ),
        }
    }
}

/// The note of the plan on the unit that multiplies in a run in bf16 whose products are fused on
/// the CPU.
fn bf16_note(unit: Unit) -> String {
    if unit.is_faster_than_f32() {
        format!("products by {unit}")
    } else {
        format!("products by {unit}, of rounded operands: {}", no_faster())
    }
}

/// Why bf16 is multiplied in f32 on this CPU.
fn no_faster() -> String {
    match products::slower_unit() {
        Ok(Some(unit)) => {
            format!("this CPU multiplies bf16 no faster than f32, as its {} was measured to be slower", unit.name())
        }
        // It has none, or the environment asks for f32.
        _ => "this CPU multiplies bf16 no faster than f32".into(),
    }
}

/// The note of the plan on the unit that multiplies in a run in f16 whose products are fused on the
/// CPU.
fn f16_note(unit: Unit) -> String {
    let f32 = Unit::F32;
    if unit.is_faster_than_f32() {
        format!("products by {f32}, of rounded operands: bf16 is the fast type here, by {unit}")
    } else {
        // Measured: 1.4 times a step in bf16 (benches/results/2026-11-23-cpu-products.md).
        format!(
            "products by {f32}, of rounded operands: bf16 is the faster of the two here, with the same products, more fused \
             operators and no loss scale"
        )
    }
}

/// The precision that `auto` chooses, and why; `unit` multiplies bf16 where products are fused on
/// the CPU.
fn choose(device: &DeviceFacts, unit: Option<Unit>) -> (Precision, String) {
    match (device.kind, unit) {
        (DeviceKind::Cpu, Some(unit)) if unit.is_faster_than_f32() => {
            (Precision::Bf16, format!("auto: this CPU multiplies bf16 faster than f32, by {unit}"))
        }
        (DeviceKind::Cpu, Some(_)) => (Precision::F32, format!("auto: {}", no_faster())),
        (DeviceKind::Cpu | DeviceKind::Auto, _) => {
            (Precision::F32, "auto: the CPU converts narrower types to f32 and back, which is slower".into())
        }
        _ if device.computes_in(Precision::Bf16) => {
            (Precision::Bf16, "auto: the device computes in bf16, which needs no loss scale".into())
        }
        _ if device.computes_in(Precision::F16) => {
            (Precision::F32, "auto: the device has no bf16; f16 is there for the asking, with a loss scale".into())
        }
        _ => (Precision::F32, "auto: the device computes in nothing narrower".into()),
    }
}
