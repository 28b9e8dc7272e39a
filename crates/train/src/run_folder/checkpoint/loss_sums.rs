//! The sums of the losses of a run, exactly.

use serde::{Deserialize, Serialize};

/// The sums in a checkpoint: a run that is continued between two rows writes the same rows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LossSums {
    /// Sum of the losses of the steps up to the last log row.
    #[serde(with = "exact")]
    pub logged: f64,
    /// Sum of the losses of the steps since then, an f32.
    #[serde(with = "exact")]
    pub window: f64,
    /// Steps since the last log row.
    pub steps: u64,
}

/// A float as the shortest decimal that reads back as the same float, in a string: JSON readers may
/// round numbers.
pub(super) mod exact {
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes it.
    pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{value:?}"))
    }

    /// Reads it.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}
