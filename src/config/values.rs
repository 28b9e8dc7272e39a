//! Values with more than one spelling in a file: whole numbers that may be written `1e3`, a list
//! that may be one string, a number of steps that may be a ratio, validation data that may be a
//! share. The sections use them; nothing here knows keys.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error as _, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

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

/// Where validation data comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum Validation {
    /// This share of the training documents, above 0 and below 1, split off deterministically.
    /// Written `"2%"` or `0.02`.
    Share(f64),
    /// The first rows of the training data, this percentage of them, above 0 and below 100, as the
    /// scripts of `transformers` take them. Written `"train[:5%]"`.
    First(f64),
    /// Files of their own: paths, globs, `~`, `${VAR:-default}`.
    Files(Vec<String>),
}

impl Serialize for Validation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Share(share) => serializer.serialize_f64(*share),
            Self::First(percent) => serializer.serialize_str(&format!("train[:{percent}%]")),
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
                f.write_str("files, or a share of the training data such as \"2%\", 0.02 or \"train[:2%]\"")
            }

            fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Validation, E> {
                if value > 0.0 && value < 1.0 {
                    Ok(Validation::Share(value))
                } else {
                    Err(E::invalid_value(Unexpected::Float(value), &"a share between 0 and 1"))
                }
            }

            fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Validation, E> {
                let first = value.strip_prefix("train[:").and_then(|rest| rest.strip_suffix("%]"));
                if let Some(percent) = first.and_then(|number| number.trim().parse::<f64>().ok()) {
                    return if percent > 0.0 && percent < 100.0 {
                        Ok(Validation::First(percent))
                    } else {
                        Err(E::invalid_value(Unexpected::Str(value), &"a share between \"0%\" and \"100%\""))
                    };
                }
                let Some(percent) = value.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok()) else {
                    return Ok(Validation::Files(vec![value.to_owned()]));
                };
                if percent > 0.0 && percent < 100.0 {
                    Ok(Validation::Share(percent / 100.0))
                } else {
                    Err(E::invalid_value(Unexpected::Str(value), &"a share between \"0%\" and \"100%\""))
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

/// Reads the integrations of Hugging Face's `report_to`: a name or a list of names, where `all` and
/// `none` stand alone.
pub(crate) fn integrations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Integration>, D::Error> {
    let names = strings(deserializer)?;
    match names.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["none"] => Ok(Vec::new()),
        ["all"] => Ok(Integration::ALL.to_vec()),
        _ => names.iter().map(|name| name.parse().map_err(D::Error::custom)).collect(),
    }
}

/// Reads a whole number that is not negative. A float with a whole value is one too, so that `1e3`
/// can be written.
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
            if value == -1.0 { Ok(None) } else { CountReader.visit_f64(value).map(Some) }
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

/// A seed: [`count`] over all 64 bits. TOML's whole numbers end at 2^63 - 1; what is above is
/// written as text.
pub(crate) mod seed {
    use std::fmt;

    use serde::de::{Unexpected, Visitor};
    use serde::{Deserializer, Serializer};

    use super::CountReader;

    pub(crate) fn serialize<S: Serializer>(seed: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        match i64::try_from(*seed) {
            Ok(seed) => serializer.serialize_i64(seed),
            Err(_) => serializer.collect_str(seed),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = u64;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                CountReader.expecting(f)
            }

            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<u64, E> {
                Ok(value)
            }

            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<u64, E> {
                u64::try_from(value).map_err(|_| E::invalid_value(Unexpected::Signed(value), &self))
            }

            fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<u64, E> {
                let refused = |error: E| {
                    if value.fract() == 0.0 && value > 0.0 {
                        E::custom(format!("expected a whole number from 0 to {}, got {value}", u64::MAX))
                    } else {
                        error
                    }
                };
                CountReader.visit_f64(value).map_err(refused)
            }

            fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<u64, E> {
                let refused = |_| E::custom(format!("expected a whole number from 0 to {}, got \"{value}\"", u64::MAX));
                value.parse().map_err(refused)
            }
        }
        deserializer.deserialize_any(Reader)
    }

    /// The serialised form of a seed that may be absent.
    pub(crate) mod some {
        use serde::{Deserializer, Serializer};

        pub(crate) fn serialize<S: Serializer>(seed: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
            match seed {
                Some(seed) => super::serialize(seed, serializer),
                None => serializer.serialize_none(),
            }
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
            super::deserialize(deserializer).map(Some)
        }
    }
}

pub(crate) struct CountReader;

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
        if value >= 0.0 && value.fract() == 0.0 && value <= 9_007_199_254_740_992.0 {
            Ok(value as u64)
        } else {
            Err(E::invalid_type(Unexpected::Float(value), &self))
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
    fn validation_is_a_share_or_files() {
        assert_eq!(read("\"2%\""), Ok(Validation::Share(0.02)));
        assert_eq!(read("0.02"), Ok(Validation::Share(0.02)));
        assert_eq!(read("\"train[:5%]\""), Ok(Validation::First(5.0)));
        assert_eq!(serde_json::to_string(&Validation::First(2.5)).unwrap(), "\"train[:2.5%]\"");
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
