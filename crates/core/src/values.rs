//! Values that serde reads with more spellings than its own: whole numbers that may be written
//! `1e3`, seeds of 64 bits, -1 for none, a list that may be one string.

use std::fmt;

use serde::de::{Error as _, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

/// Reads a list of strings that may be written as one string.
pub fn strings<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
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

/// Reads a whole number that is not negative. A float with a whole value is one too, so that `1e3`
/// can be written.
pub fn count<'de, D: Deserializer<'de>, T: TryFrom<u64>>(deserializer: D) -> Result<T, D::Error> {
    let value = deserializer.deserialize_any(CountReader)?;
    T::try_from(value).map_err(|_| D::Error::custom(format!("{value} is too large for this machine")))
}

/// [`count`] for a key that may be absent.
pub fn some_count<'de, D: Deserializer<'de>, T: TryFrom<u64>>(deserializer: D) -> Result<Option<T>, D::Error> {
    count(deserializer).map(Some)
}

/// [`some_count`] where -1 means absent, as Hugging Face writes `max_steps`.
pub fn count_or_minus_one<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<u64>,
{
    struct Reader;
    impl Visitor<'_> for Reader {
        type Value = Option<u64>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a whole number that is not negative, or -1 for none")
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

/// A seed: [`count`] over all 64 bits. TOML's whole numbers end at 2^63 - 1; what is above is
/// written as text.
pub mod seed {
    use std::fmt;

    use serde::de::{Unexpected, Visitor};
    use serde::{Deserializer, Serializer};

    use super::CountReader;

    /// Writes a seed as a number, above 2^63 - 1 as text.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(seed: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        match i64::try_from(*seed) {
            Ok(seed) => serializer.serialize_i64(seed),
            Err(_) => serializer.collect_str(seed),
        }
    }

    /// Reads a seed.
    ///
    /// # Errors
    /// A value that is no seed.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
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
    pub mod some {
        use serde::{Deserializer, Serializer};

        /// Writes a seed, if any.
        ///
        /// # Errors
        /// The serializer's.
        pub fn serialize<S: Serializer>(seed: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
            match seed {
                Some(seed) => super::serialize(seed, serializer),
                None => serializer.serialize_none(),
            }
        }

        /// Reads a seed.
        ///
        /// # Errors
        /// A value that is no seed.
        pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
            super::deserialize(deserializer).map(Some)
        }
    }
}

/// Reads a whole number that is not negative; a float with a whole value is one too.
pub struct CountReader;

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
