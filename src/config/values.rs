//! Values with more than one spelling in a file: whole numbers that may be written `1e3`, a list that may be one
//! string, a number of steps that may be a ratio, validation data that may be a share. The sections use them; nothing
//! here knows keys.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error as _, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::names::Integration;

/// A number of optimizer steps, or a ratio of the run's length: Hugging Face's reading of `warmup_steps`,
/// `logging_steps` and `eval_steps`, where a value below 1 is a ratio.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum StepsOrRatio {
    /// So many optimizer steps.
    Steps(usize),
    /// This part of the run, above 0 and below 1.
    Ratio(f64),
}

impl StepsOrRatio {
    /// The number of steps in a run of `total_steps`; a ratio is rounded up, as in Hugging Face's `get_warmup_steps`.
    pub fn resolve(self, total_steps: usize) -> usize {
        match self {
            Self::Steps(steps) => steps,
            Self::Ratio(ratio) => (total_steps as f64 * ratio).ceil() as usize,
        }
    }

    /// Whether this is a number of steps, or a ratio that is one (above 0 and below 1).
    pub(crate) fn is_valid(self) -> bool {
        match self {
            Self::Steps(_) => true,
            Self::Ratio(ratio) => ratio > 0.0 && ratio < 1.0,
        }
    }
}

impl From<usize> for StepsOrRatio {
    fn from(steps: usize) -> Self {
        Self::Steps(steps)
    }
}

impl fmt::Display for StepsOrRatio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steps(steps) => write!(f, "{steps}"),
            Self::Ratio(ratio) => write!(f, "{ratio}"),
        }
    }
}

impl Serialize for StepsOrRatio {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Steps(steps) => serializer.serialize_u64(*steps as u64),
            Self::Ratio(ratio) => serializer.serialize_f64(*ratio),
        }
    }
}

impl<'de> Deserialize<'de> for StepsOrRatio {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = StepsOrRatio;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number of steps, or a ratio between 0 and 1")
            }

            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<StepsOrRatio, E> {
                let steps = usize::try_from(value).map_err(|_| E::invalid_value(Unexpected::Unsigned(value), &self))?;
                Ok(StepsOrRatio::Steps(steps))
            }

            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<StepsOrRatio, E> {
                match u64::try_from(value) {
                    Ok(steps) => self.visit_u64(steps),
                    Err(_) => Err(E::invalid_value(Unexpected::Signed(value), &self)),
                }
            }

            fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<StepsOrRatio, E> {
                match StepsOrRatio::Ratio(value) {
                    ratio if ratio.is_valid() => Ok(ratio),
                    _ => match CountReader.visit_f64::<E>(value) {
                        Ok(steps) => self.visit_u64(steps),
                        Err(_) => Err(E::invalid_value(Unexpected::Float(value), &self)),
                    },
                }
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// Where validation data comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum Validation {
    /// This share of the training documents, above 0 and below 1, split off deterministically. Written `"2%"` or
    /// `0.02`.
    Share(f64),
    /// Files of their own: paths, globs, `~`, `${VAR:-default}`.
    Files(Vec<String>),
}

impl Serialize for Validation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Share(share) => serializer.serialize_f64(*share),
            Self::Files(files) => files.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Validation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Validation;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("files, or a share of the training data such as \"2%\" or 0.02")
            }

            fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Validation, E> {
                match value > 0.0 && value < 1.0 {
                    true => Ok(Validation::Share(value)),
                    false => Err(E::invalid_value(Unexpected::Float(value), &"a share between 0 and 1")),
                }
            }

            fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Validation, E> {
                let Some(percent) = value.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok()) else {
                    return Ok(Validation::Files(vec![value.to_owned()]));
                };
                match percent > 0.0 && percent < 100.0 {
                    true => Ok(Validation::Share(percent / 100.0)),
                    false => Err(E::invalid_value(Unexpected::Str(value), &"a share between \"0%\" and \"100%\"")),
                }
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, seq: A) -> Result<Validation, A::Error> {
                Vec::deserialize(serde::de::value::SeqAccessDeserializer::new(seq)).map(Validation::Files)
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

impl ClassWeights {
    /// The numbers, in no particular order.
    pub(crate) fn numbers(&self) -> Vec<f64> {
        match self {
            Self::ById(weights) => weights.clone(),
            Self::ByName(weights) => weights.values().copied().collect(),
        }
    }
}

/// Reads a list of strings that may be written as one string.
pub(crate) fn strings<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    struct Reader;
    impl<'de> Visitor<'de> for Reader {
        type Value = Vec<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string or a list of strings")
        }

        fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Vec<String>, E> {
            Ok(vec![value.to_owned()])
        }

        fn visit_seq<A: serde::de::SeqAccess<'de>>(self, seq: A) -> Result<Vec<String>, A::Error> {
            Vec::deserialize(serde::de::value::SeqAccessDeserializer::new(seq))
        }
    }
    deserializer.deserialize_any(Reader)
}

/// Reads the integrations of Hugging Face's `report_to`: a name or a list of names, where `all` and `none` stand alone.
pub(crate) fn integrations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Integration>, D::Error> {
    let names = strings(deserializer)?;
    match names.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["none"] => Ok(Vec::new()),
        ["all"] => Ok(Integration::ALL.to_vec()),
        _ => names.iter().map(|name| name.parse().map_err(D::Error::custom)).collect(),
    }
}

/// Reads a whole number that is not negative. A float with a whole value is one too, so that `1e3` can be written.
pub(crate) fn count<'de, D: Deserializer<'de>, T: TryFrom<u64>>(deserializer: D) -> Result<T, D::Error> {
    let value = deserializer.deserialize_any(CountReader)?;
    T::try_from(value).map_err(|_| D::Error::custom(format!("{value} is too large for this machine")))
}

/// [`count`] for a key that may be absent.
pub(crate) fn some_count<'de, D: Deserializer<'de>, T: TryFrom<u64>>(deserializer: D) -> Result<Option<T>, D::Error> {
    count(deserializer).map(Some)
}

/// [`some_count`] where -1 means absent, as Hugging Face writes `max_steps`.
pub(crate) fn count_or_minus_one<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<u64>,
{
    struct Reader;
    impl Visitor<'_> for Reader {
        type Value = Option<u64>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a whole number, or -1 for none")
        }

        fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Option<u64>, E> {
            match value {
                -1 => Ok(None),
                _ => u64::try_from(value).map(Some).map_err(|_| E::invalid_value(Unexpected::Signed(value), &self)),
            }
        }

        fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Option<u64>, E> {
            match value == -1.0 {
                true => Ok(None),
                false => CountReader.visit_f64(value).map(Some),
            }
        }
    }
    let value = deserializer.deserialize_any(Reader)?;
    let too_large = |value: u64| D::Error::custom(format!("{value} is too large for this machine"));
    value.map(|value| T::try_from(value).map_err(|_| too_large(value))).transpose()
}

/// A number where -1 means absent.
pub(crate) fn number_or_minus_one<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    f64::deserialize(deserializer).map(|value| (value != -1.0).then_some(value))
}

struct CountReader;

impl Visitor<'_> for CountReader {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number that is not negative")
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<u64, E> {
        Ok(value)
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<u64, E> {
        u64::try_from(value).map_err(|_| E::invalid_value(Unexpected::Signed(value), &self))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<u64, E> {
        // Above 2^53 a float no longer says which whole number was meant.
        match value >= 0.0 && value.fract() == 0.0 && value <= 9_007_199_254_740_992.0 {
            true => Ok(value as u64),
            false => Err(E::invalid_type(Unexpected::Float(value), &self)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read<T: serde::de::DeserializeOwned>(value: &str) -> Result<T, String> {
        let value: toml::Value = value.parse().unwrap();
        T::deserialize(value).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn steps_or_a_ratio() {
        assert_eq!(read("20"), Ok(StepsOrRatio::Steps(20)));
        assert_eq!(read("0.0"), Ok(StepsOrRatio::Steps(0)));
        assert_eq!(read("1.0"), Ok(StepsOrRatio::Steps(1)));
        assert_eq!(read("1e3"), Ok(StepsOrRatio::Steps(1000)));
        assert_eq!(read("0.06"), Ok(StepsOrRatio::Ratio(0.06)));
        for bad in ["-1", "1.5", "-0.1", "nan", "inf", "\"10%\"", "true"] {
            assert!(read::<StepsOrRatio>(bad).unwrap_err().contains("or a ratio between 0 and 1"), "{bad}");
        }
    }

    #[test]
    fn ratios_are_rounded_up() {
        assert_eq!(StepsOrRatio::Ratio(0.1).resolve(33), 4);
        assert_eq!(StepsOrRatio::Ratio(0.001).resolve(100), 1);
        assert_eq!(StepsOrRatio::Steps(7).resolve(3), 7);
    }

    #[test]
    fn validation_is_a_share_or_files() {
        assert_eq!(read("\"2%\""), Ok(Validation::Share(0.02)));
        assert_eq!(read("0.02"), Ok(Validation::Share(0.02)));
        assert_eq!(read("\"a.txt\""), Ok(Validation::Files(vec!["a.txt".into()])));
        assert_eq!(read("\"odd name%\""), Ok(Validation::Files(vec!["odd name%".into()])));
        assert_eq!(read("[\"a\", \"b\"]"), Ok(Validation::Files(vec!["a".into(), "b".into()])));
        for bad in ["\"0%\"", "\"100%\"", "\"-3%\"", "\"nan%\"", "0.0", "1.0", "2", "true", "[1]"] {
            assert!(read::<Validation>(bad).is_err(), "{bad}");
        }
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
