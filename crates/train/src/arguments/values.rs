//! Values of [`TrainingArguments`](super::TrainingArguments) with more than one spelling: a number
//! of steps that may be a ratio, weights of classes, names of integrations.

use std::collections::BTreeMap;
use std::fmt;

use kiln_core::schema::{self, Schema, Value};
use kiln_core::values::{CountReader, strings};
use serde::de::{Error as _, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::json;

use super::names::Integration;

/// A stretch of the run: optimizer steps, a ratio of the run's length (Hugging Face's reading of
/// `warmup_steps`, `logging_steps`, `eval_steps` and `save_steps`, where a value below 1 is a
/// ratio), or examples or tokens, which stay what they are when the batch changes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Interval {
    /// So many optimizer steps.
    Steps(usize),
    /// This part of the run, above 0 and at most 1; written `0.1` or `"10%"`, the whole run
    /// `"100%"`.
    Ratio(f64),
    /// So many training examples; written `"1000 samples"`.
    Samples(u64),
    /// So many training tokens; written `"2e6 tokens"`.
    Tokens(u64),
}

/// The size of an optimizer step, to turn an [`Interval`] into steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepSize {
    /// Optimizer steps of the run.
    pub total_steps: usize,
    /// Examples of a full step.
    pub samples: usize,
    /// Tokens of a step, the mean of an epoch.
    pub tokens: f64,
}

impl Interval {
    /// The number of steps; what is no whole number is rounded up, as in Hugging Face's
    /// `get_warmup_steps`.
    pub fn resolve(self, step: StepSize) -> usize {
        match self {
            Self::Steps(steps) => steps,
            Self::Ratio(ratio) => (step.total_steps as f64 * ratio).ceil() as usize,
            Self::Samples(samples) => samples.div_ceil(step.samples as u64) as usize,
            Self::Tokens(tokens) => (tokens as f64 / step.tokens).ceil() as usize,
        }
    }

    /// `1000 samples / 16 a step`; none for what is steps already.
    pub fn arithmetic(self, step: StepSize) -> Option<String> {
        match self {
            Self::Steps(_) => None,
            Self::Ratio(ratio) => Some(format!("{ratio} x {} steps", step.total_steps)),
            Self::Samples(samples) => Some(format!("{samples} samples / {} a step", step.samples)),
            Self::Tokens(tokens) => Some(format!("{tokens} tokens / {:.0} a step", step.tokens)),
        }
    }

    /// Whether a ratio is one (above 0 and at most 1).
    pub(crate) fn is_valid(self) -> bool {
        match self {
            Self::Ratio(ratio) => ratio > 0.0 && ratio <= 1.0,
            Self::Steps(_) | Self::Samples(_) | Self::Tokens(_) => true,
        }
    }
}

impl From<usize> for Interval {
    fn from(steps: usize) -> Self {
        Self::Steps(steps)
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steps(steps) => write!(f, "{steps}"),
            // 1.0 would be read as one step.
            Self::Ratio(1.0) => f.write_str("100%"),
            Self::Ratio(ratio) => write!(f, "{ratio}"),
            Self::Samples(samples) => write!(f, "{samples} samples"),
            Self::Tokens(tokens) => write!(f, "{tokens} tokens"),
        }
    }
}

impl Serialize for Interval {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Steps(steps) => serializer.serialize_u64(*steps as u64),
            Self::Ratio(ratio) if *ratio < 1.0 => serializer.serialize_f64(*ratio),
            Self::Ratio(_) | Self::Samples(_) | Self::Tokens(_) => serializer.collect_str(self),
        }
    }
}

impl Schema for Interval {
    fn schema() -> Value {
        let text = "^ *[0-9][0-9._eE+]* *(%| samples| tokens) *$";
        let ratio = json!({ "type": "number", "minimum": 0, "maximum": 1 });
        json!({ "anyOf": [schema::whole(), ratio, { "type": "string", "pattern": text }] })
    }
}

impl<'de> Deserialize<'de> for Interval {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Interval;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a whole number of steps, a ratio between 0 and 1, or text such as \"1000 samples\" or \"2e6 tokens\"",
                )
            }

            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Interval, E> {
                let steps = usize::try_from(value).map_err(|_| E::invalid_value(Unexpected::Unsigned(value), &self))?;
                Ok(Interval::Steps(steps))
            }

            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Interval, E> {
                match u64::try_from(value) {
                    Ok(steps) => self.visit_u64(steps),
                    Err(_) => Err(E::invalid_value(Unexpected::Signed(value), &self)),
                }
            }

            fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Interval, E> {
                match Interval::Ratio(value) {
                    ratio if ratio.is_valid() && value < 1.0 => Ok(ratio),
                    _ => match CountReader.visit_f64::<E>(value) {
                        Ok(steps) => self.visit_u64(steps),
                        Err(_) => Err(E::invalid_value(Unexpected::Float(value), &self)),
                    },
                }
            }

            fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Interval, E> {
                let refused = || E::invalid_value(Unexpected::Str(value), &self);
                if let Some(percent) = value.trim().strip_suffix('%') {
                    let percent = percent.trim().parse::<f64>().map_err(|_| refused())?;
                    return Some(Interval::Ratio(percent / 100.0)).filter(|ratio| ratio.is_valid()).ok_or_else(refused);
                }
                let (number, unit) = value.trim().rsplit_once(' ').ok_or_else(refused)?;
                let number = number.trim().replace('_', "").parse::<f64>().map_err(|_| refused())?;
                let count = CountReader.visit_f64::<E>(number).map_err(|_| refused())?;
                match unit {
                    "samples" => Ok(Interval::Samples(count)),
                    "tokens" => Ok(Interval::Tokens(count)),
                    _ => Err(refused()),
                }
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// Weights of the classes of a classification.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a list of numbers, or a table of numbers by the labels' names")]
pub enum ClassWeights {
    /// In the order of the label ids.
    ById(Vec<f64>),
    /// By the names of the labels.
    ByName(BTreeMap<String, f64>),
}

impl Schema for ClassWeights {
    fn schema() -> Value {
        let number = f64::schema();
        json!({ "type": ["array", "object"], "items": number, "additionalProperties": number })
    }
}

impl ClassWeights {
    /// The numbers, in no particular order.
    pub(crate) fn numbers(&self) -> Vec<f64> {
        match self {
            Self::ById(weights) => weights.clone(),
            Self::ByName(weights) => weights.values().copied().collect(),
        }
    }
}

/// Reads the integrations of Hugging Face's `report_to`: a name or a list of names, where `all`,
/// which is all that need no server, and `none` stand alone.
pub(crate) fn integrations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Integration>, D::Error> {
    let names = strings(deserializer)?;
    match names.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["none"] => Ok(Vec::new()),
        ["all"] => Ok(vec![Integration::TensorBoard]),
        _ => names.iter().map(|name| name.parse().map_err(D::Error::custom)).collect(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use kiln_core::values::count;

    use super::*;

    fn read<T: serde::de::DeserializeOwned>(value: &str) -> Result<T, String> {
        let value: toml::Value = value.parse().unwrap();
        T::deserialize(value).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn steps_or_a_ratio() {
        assert_eq!(read("20"), Ok(Interval::Steps(20)));
        assert_eq!(read("0.0"), Ok(Interval::Steps(0)));
        assert_eq!(read("1.0"), Ok(Interval::Steps(1)));
        assert_eq!(read("1e3"), Ok(Interval::Steps(1000)));
        assert_eq!(read("0.06"), Ok(Interval::Ratio(0.06)));
        assert_eq!(read("\"12.5 %\""), Ok(Interval::Ratio(0.125)));
        assert_eq!(read("\"100%\""), Ok(Interval::Ratio(1.0)));
        for ratio in [0.06, 1.0] {
            let written = toml::Value::try_from(Interval::Ratio(ratio)).unwrap().to_string();
            assert_eq!(read(&written), Ok(Interval::Ratio(ratio)), "{written}");
        }
        assert_eq!(read("\"1000 samples\""), Ok(Interval::Samples(1000)));
        assert_eq!(read("\"2e6 tokens\""), Ok(Interval::Tokens(2_000_000)));
        assert_eq!(read("\"1_000 tokens\""), Ok(Interval::Tokens(1000)));
        for interval in [Interval::Steps(3), Interval::Ratio(0.5), Interval::Samples(7), Interval::Tokens(9)] {
            let written = serde_json::to_string(&interval).unwrap();
            assert_eq!(read(&written), Ok(interval), "{written}");
        }
        for bad in [
            "-1",
            "1.5",
            "-0.1",
            "nan",
            "inf",
            "\"0%\"",
            "\"101%\"",
            "\"nan%\"",
            "\"%\"",
            "true",
            "\"samples\"",
            "\"-1 samples\"",
            "\"1.5 tokens\"",
            "\"3 epochs\"",
        ] {
            assert!(read::<Interval>(bad).unwrap_err().contains("a ratio between 0 and 1"), "{bad}");
        }
    }

    #[test]
    fn what_is_no_whole_step_is_rounded_up() {
        let of = |total_steps| StepSize { total_steps, samples: 16, tokens: 2048.0 };
        assert_eq!(Interval::Ratio(0.1).resolve(of(33)), 4);
        assert_eq!(Interval::Ratio(0.001).resolve(of(100)), 1);
        assert_eq!(Interval::Steps(7).resolve(of(3)), 7);
        assert_eq!([1, 16, 1000].map(|samples| Interval::Samples(samples).resolve(of(3))), [1, 1, 63]);
        assert_eq!([1, 2048, 100_000].map(|tokens| Interval::Tokens(tokens).resolve(of(3))), [1, 1, 49]);
        assert_eq!(Interval::Samples(1000).arithmetic(of(3)).unwrap(), "1000 samples / 16 a step");
        assert_eq!(Interval::Steps(7).arithmetic(of(3)), None);
    }

    #[test]
    fn whole_numbers() {
        #[derive(Deserialize)]
        struct Counts {
            #[serde(deserialize_with = "count")]
            small: u8,
        }
        let small = |value: &str| read::<Counts>(&format!("{{ small = {value} }}")).map(|counts| counts.small);
        assert_eq!(small("8"), Ok(8));
        assert_eq!(small("2e2"), Ok(200));
        assert!(small("300").unwrap_err().contains("too large"));
        for bad in ["-1", "1.5", "-0.5", "1e300", "nan", "\"8\"", "false"] {
            assert!(small(bad).unwrap_err().contains("a whole number that is not negative"), "{bad}");
        }
    }
}
