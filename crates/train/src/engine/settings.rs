//! Where a run computes, how, and in which type: the settings of devices and of the engines that
//! are one name out of a few. Values that are known but that this version cannot do are refused
//! here, with the reason.

use kiln_core::choices;
use kiln_core::error::Error;
use kiln_core::values::count;
use serde::{Deserialize, Serialize};

choices! {
    /// How a run computes.
    CompilerMode("compiler") {
        /// Every operation eagerly, as Burn has it.
        Native = "native",
        /// With what the training compiler can activate on the device.
        Compiled = "compiled",
        /// The better of the two: training finds out by a short trial on its own data, other
        /// commands take `compiled` where the device has it.
        Auto = "auto",
    }
}

choices! {
    /// A part of the training compiler.
    Switch("setting") {
        /// Where the device has it.
        Auto = "auto",
        /// Everywhere; an error where the device lacks it.
        On = "on",
        /// Nowhere.
        Off = "off",
    }
}

choices! {
    /// How much Burn tunes: how many candidates it times for how many sizes.
    AutotuneLevel("autotune level") {
        /// `balanced`, Burn's own default: `full` compiles every candidate of a product, and
        /// NVIDIA's compiler takes more than a minute for some.
        Auto = "auto",
        /// Few sizes, few candidates.
        Minimal = "minimal",
        /// A candidate that reaches 80 % of the device's limit ends the search.
        Balanced = "balanced",
        /// More sizes told apart.
        Extensive = "extensive",
        /// Every size by itself, and every candidate.
        Full = "full",
    }
}

choices! {
    /// Where the run computes.
    DeviceKind("device kind") {
        /// The best device that this build and machine offer.
        Auto = "auto",
        /// The processor.
        Cpu = "cpu",
        /// A GPU through WebGPU (Vulkan, Metal, DirectX 12).
        Wgpu = "wgpu",
        /// An NVIDIA GPU through CUDA.
        Cuda = "cuda",
    }
}

choices! {
    /// The type of matrix products. Parameters, optimizer state, norms, softmax and losses are in
    /// f32 under all of them.
    Precision("precision", unsupported) {
        /// The best that the device computes in itself, with the reason printed.
        Auto = "auto",
        /// 32 bits.
        F32 = "f32" | "fp32" | "float32" | "no",
        /// bfloat16: the range of f32 with 8 bits of precision.
        Bf16 = "bf16" | "bfloat16",
        /// IEEE half precision, with a dynamic loss scale.
        F16 = "f16" | "fp16" | "float16",
    }
}

#[allow(clippy::derivable_impls)] // the macro derives no default
impl Default for DeviceKind {
    fn default() -> Self {
        Self::Auto
    }
}

#[allow(clippy::derivable_impls)] // as above
impl Default for Precision {
    fn default() -> Self {
        Self::F32
    }
}

fn unsupported(given: &str) -> Option<Error> {
    match given {
        "tf32" => Some(
            Error::config("`tf32` is no setting of Burn 0.22: it has no switch for it")
                .help("with `f32`, CUDA's matrix products are in TF32 wherever such a kernel wins; the plan says so"),
        ),
        "fp8" | "int8" | "f64" | "float64" => Some(
            Error::config(format!("the precision `{given}` is not supported by this version"))
                .help("use f32, bf16, f16 or auto"),
        ),
        _ => None,
    }
}

kiln_core::keys! {
    /// `[device]`: where the run computes.
    #[derive(Eq)]
    #[serde(default, deny_unknown_fields)]
    pub struct DeviceArguments in "device" {
        /// The kind of device. Default: `auto`.
        kind: DeviceKind = DeviceKind::Auto, Derived;
        /// Which one of several of that kind, from 0. Default: 0.
        #[serde(deserialize_with = "count")]
        index: usize = 0, Free;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_name_reads_back_as_itself() {
        for value in DeviceKind::ALL {
            assert_eq!(value.to_string().parse::<DeviceKind>().unwrap(), *value);
        }
        for (text, value) in [("fp32", Precision::F32), ("fp16", Precision::F16), ("auto", Precision::Auto)] {
            assert_eq!(text.parse::<Precision>().unwrap(), value);
        }
    }

    #[test]
    fn names_refused_with_a_reason_or_a_suggestion() {
        let refused = |error: Error, part: &str| assert!(error.to_string().contains(part), "{error}");
        refused("bf32".parse::<Precision>().unwrap_err(), "did you mean");
        refused("tf32".parse::<Precision>().unwrap_err(), "no switch");
        refused("fp8".parse::<Precision>().unwrap_err(), "not supported");
        refused("gpu".parse::<DeviceKind>().unwrap_err(), "expected one of auto, cpu, wgpu, cuda");
    }
}
