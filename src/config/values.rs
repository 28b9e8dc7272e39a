//! Validation data that may be a share of the training data.

use std::fmt;

use kiln_core::schema::{Schema, Value};
use serde::de::{Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::json;

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

impl Schema for Validation {
    fn schema() -> Value {
        let share = json!({ "type": "number", "minimum": 0, "maximum": 1, "not": { "enum": [0, 1] } });
        json!({ "anyOf": [Vec::<String>::schema(), share] })
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read<T: serde::de::DeserializeOwned>(value: &str) -> Result<T, String> {
        let value: toml::Value = value.parse().unwrap();
        T::deserialize(value).map_err(|error| error.message().to_owned())
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
}
