//! The settings of the training compiler. Some have more than one spelling: `enabled` is true,
//! false or `"auto"`, `fused_ops` a switch or a list of operators, `verify` a word or a number of
//! steps. The parent module resolves them for a device.

use kiln_core::choices::unknown_name;
use kiln_core::error::Error;
use kiln_core::ranges::{Spelled, any};
use kiln_core::schema::Schema;
use kiln_core::values::some_count;
use kiln_models::Operator;
use serde::de::Error as _;
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};

use crate::engine::settings::{AutotuneLevel, CompilerMode, Switch};

/// Reads `enabled`: true, false or `"auto"`; the modes' own names do too.
fn read_enabled<'de, D: Deserializer<'de>>(deserializer: D) -> Result<CompilerMode, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Bool(true) => Ok(CompilerMode::Compiled),
        Value::Bool(false) => Ok(CompilerMode::Native),
        Value::String(given) => given.parse().map_err(|_| D::Error::custom(not_enabled(&given.into()))),
        other => Err(D::Error::custom(not_enabled(&other))),
    }
}

fn not_enabled(given: &Value) -> String {
    format!("expected true, false or \"auto\", got {given}")
}

/// Writes `enabled` as it is read.
fn write_enabled<S: Serializer>(mode: &CompilerMode, serializer: S) -> Result<S::Ok, S::Error> {
    match mode {
        CompilerMode::Compiled => serializer.serialize_bool(true),
        CompilerMode::Native => serializer.serialize_bool(false),
        CompilerMode::Auto => serializer.serialize_str(mode.as_str()),
    }
}

/// Which of Kiln's fused operators a compiled run uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FusedOps {
    /// All, none, or all where the device has them.
    All(Switch),
    /// These alone, by name; an error where the device lacks them.
    Only(Vec<Operator>),
}

impl From<Switch> for FusedOps {
    fn from(switch: Switch) -> Self {
        Self::All(switch)
    }
}

impl Serialize for FusedOps {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All(switch) => switch.serialize(serializer),
            Self::Only(operators) => {
                let mut names = serializer.serialize_seq(Some(operators.len()))?;
                operators.iter().try_for_each(|operator| names.serialize_element(operator.name()))?;
                names.end()
            }
        }
    }
}

impl Schema for FusedOps {
    fn schema() -> Value {
        let names = Operator::ALL.map(Operator::name);
        json!({ "anyOf": [Switch::schema(), { "type": "array", "items": { "enum": names } }] })
    }
}

impl<'de> Deserialize<'de> for FusedOps {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(given) => given.parse().map(Self::All).map_err(D::Error::custom),
            Value::Array(names) => {
                let names = names.iter().map(|name| match name.as_str() {
                    Some(name) => operator(name).map_err(D::Error::custom),
                    None => Err(D::Error::custom(format!("expected names of operators, got {name}"))),
                });
                names.collect::<Result<_, _>>().map(Self::Only)
            }
            other => Err(D::Error::custom(format!("expected auto, on, off or a list of operators, got {other}"))),
        }
    }
}

/// When a compiled run is checked against native: `off`, `start` (before step 1), or a number of
/// steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verify {
    /// Never.
    Off,
    /// Before step 1.
    Start,
    /// Before step 1 and every so many steps.
    Every(u64),
}

impl Serialize for Verify {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => serializer.serialize_str("off"),
            Self::Start => serializer.serialize_str("start"),
            Self::Every(steps) => serializer.serialize_u64(*steps),
        }
    }
}

impl Schema for Verify {
    fn schema() -> Value {
        json!({ "anyOf": [{ "enum": ["off", "start"] }, { "type": "integer", "minimum": 1 }] })
    }
}

impl<'de> Deserialize<'de> for Verify {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(given) if given == "off" => Ok(Self::Off),
            Value::String(given) if given == "start" => Ok(Self::Start),
            other if other.as_u64().is_some_and(|steps| steps > 0) => {
                Ok(Self::Every(other.as_u64().unwrap_or_default()))
            }
            other => Err(D::Error::custom(format!("expected \"off\", \"start\" or a number of steps, got {other}"))),
        }
    }
}

fn operator(given: &str) -> Result<Operator, Error> {
    Operator::ALL
        .into_iter()
        .find(|operator| operator.name() == given)
        .ok_or_else(|| unknown_name("operator", given, Operator::ALL.into_iter().map(Operator::name)))
}

kiln_core::keys! {
    /// `[compiler]`: the training compiler. Left out: the run is native. A section without keys
    /// switches it on.
    #[derive(Eq)]
    #[serde(default, deny_unknown_fields)]
    pub struct TrainingCompilerConfig in "compiler" {
        /// Whether the run is compiled: true, false, or `"auto"`, which finds out by a short trial.
        /// Default: true.
        #[serde(deserialize_with = "read_enabled", serialize_with = "write_enabled")]
        enabled: CompilerMode = CompilerMode::Compiled, Free, Spelled(any, bool::schema);
        /// Writes what the compiler did into `compiler/` of the run folder and shows a table of it
        /// at the end. Looking takes time, so the run's times are marked as not comparable.
        /// Default: false.
        debug: bool = false, Free;
        /// Kiln's own fused operators (`kiln_models::ops`): all, or a list of names. `auto` takes
        /// all that the device and the precision have. Default: `auto`.
        fused_ops: FusedOps = Switch::Auto.into(), Free;
        /// Burn's fusion on wgpu and CUDA; `off` is `--unfused`, for debugging, and labelled in
        /// every row. Default: `auto`.
        fusion: Switch = Switch::Auto, Free;
        /// Burn's fusion explores at most so many sequences of operations. The sequences that it
        /// knows by then stay fused, and every other one is computed operation by operation, where
        /// shapes that never come again would be explored without end. Default: no limit.
        #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
        max_explorations: Option<usize> = None, Free;
        /// How much Burn tunes on wgpu and CUDA: auto, minimal, balanced, extensive or full.
        /// Default: `auto`.
        autotune: AutotuneLevel = AutotuneLevel::Auto, Free;
        /// Steps captured and replayed, on wgpu and CUDA, in runs that can have it
        /// ([`TrainPlan::captures`](crate::TrainPlan::captures) says why not); `on` is refused in
        /// others. Default: `auto`.
        graph: Switch = Switch::Auto, Free;
        /// Whether a compiled run begins with a stage in which every batch shape is computed once
        /// and thrown away, so that kernels are compiled and tuned before step 1. `auto` is on for
        /// wgpu and CUDA and off on the CPU, where nothing is compiled or tuned. Default: `auto`.
        warmup: Switch = Switch::Auto, Free;
        /// When a compiled run is checked against native, with exit code 6 when they differ: `off`,
        /// `start` (before step 1), or a number of steps: then also from the weights that the run
        /// has after every so many. Default: off in training, `start` in `kiln compare`.
        #[serde(skip_serializing_if = "Option::is_none")]
        verify: Option<Verify> = None, Free;
    }
}

impl From<CompilerMode> for TrainingCompilerConfig {
    fn from(enabled: CompilerMode) -> Self {
        Self { enabled, ..Self::default() }
    }
}
