//! Values of `[compiler]` with more than one spelling: `enabled` is true, false or `"auto"`,
//! `fused_ops` a switch or a list of operators, `verify` a word or a number of steps.
//! [`crate::engine::compiler`] resolves them for a device.

use kiln_core::choices::unknown_name;
use kiln_core::error::Error;
use kiln_models::Operator;
use serde::de::Error as _;
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use toml::Value;

use super::names::{CompilerMode, Switch};

/// Reads `enabled`: true, false or `"auto"`; the modes' own names do too.
pub(super) fn read_enabled<'de, D: Deserializer<'de>>(deserializer: D) -> Result<CompilerMode, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Boolean(true) => Ok(CompilerMode::Compiled),
        Value::Boolean(false) => Ok(CompilerMode::Native),
        Value::String(given) => given.parse().map_err(D::Error::custom),
        other => Err(D::Error::custom(format!("expected true, false or \"auto\", got {other}"))),
    }
}

/// Writes `enabled` as it is read.
pub(super) fn write_enabled<S: Serializer>(mode: &CompilerMode, serializer: S) -> Result<S::Ok, S::Error> {
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

impl<'de> Deserialize<'de> for Verify {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(given) if given == "off" => Ok(Self::Off),
            Value::String(given) if given == "start" => Ok(Self::Start),
            Value::Integer(steps) if steps > 0 => Ok(Self::Every(steps.unsigned_abs())),
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
