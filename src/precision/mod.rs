//! In which type a run computes: what `precision` asks for, against what the device has. Decided here and nowhere else;
//! what is then rounded and what stays in f32 is `kiln_models::compute`'s, and the loss scale of f16 is [`scaler`]'s.

pub mod scaler;

use burn::tensor::FloatDType;
use kiln_models::{Compute, Ops};
use serde::{Deserialize, Serialize};

use crate::base::error::{Error, Result};
use crate::config::{DeviceKind, Precision};
use crate::engine::device::DeviceFacts;

/// The precision of a run, and why it is this one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrecisionPlan {
    /// The precision that was chosen; never `auto`.
    pub precision: Precision,
    /// For people: why `auto` chose it, or what is to be known of it on this device; may be empty.
    pub note: String,
}

impl PrecisionPlan {
    /// Resolves `asked` on `device`.
    ///
    /// # Errors
    /// A type that the device does not compute in.
    pub fn new(asked: Precision, device: &DeviceFacts) -> Result<Self> {
        let (precision, note) = match asked {
            Precision::Auto => choose(device),
            Precision::F32 if device.kind == DeviceKind::Cuda => {
                (Precision::F32, "matrix products in TF32 where such a kernel wins: Burn has no switch".into())
            }
            other if device.kind == DeviceKind::Cpu && other != Precision::F32 => {
                (other, "the CPU converts to f32 and back: close to the numbers of a GPU, not its speed".into())
            }
            other => (other, String::new()),
        };
        if !device.computes_in(precision) {
            let others = [Precision::F16, Precision::Bf16].into_iter().filter(|other| device.computes_in(*other));
            let others = others.map(|precision| format!("\"{precision}\" or ")).collect::<String>();
            // The feature that the device lacks, where it is known; otherwise it depends on the driver.
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

    /// Those of the fused operators `ops` that compute in this precision.
    pub fn ops(&self, ops: Ops) -> Ops {
        Compute::new(ops, self.dtype()).ops()
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

/// The precision that `auto` chooses, and why.
fn choose(device: &DeviceFacts) -> (Precision, String) {
    match device.kind {
        DeviceKind::Cpu | DeviceKind::Auto => {
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
