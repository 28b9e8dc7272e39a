//! How the batch of an optimizer step comes about, and how the learning rate follows it. The
//! micro-batch and the accumulation themselves have Hugging Face's names and are arguments of the
//! Trainer; here stands the goal that they serve. The arithmetic of the
//! learning rate is here too, since it needs nothing but these two sections; the batch's is the
//! plan's.

use kiln_core::choices;
use kiln_core::complaint::MAX_BATCH;
use kiln_core::ranges::whole;
use kiln_core::schema::{self, Schema, Value};
use kiln_core::values::{CountReader, some_count};
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::json;

use crate::distributed::Devices;

choices! {
    /// Which number stays when the micro-batch changes.
    BatchScaling("batch scaling") {
        /// The examples of an optimizer step stay; micro-batch and accumulation are derived.
        Fixed = "fixed",
        /// The batch grows to what fits, as Amazon SageMaker Training Compiler had it.
        Grow = "grow",
    }
}

choices! {
    /// How the learning rate follows the batch.
    LrScaling("learning-rate scaling") {
        /// It does not.
        None = "none",
        /// In proportion: the rate of SGD (Goyal et al. 2017, arXiv 1706.02677).
        Linear = "linear",
        /// With the square root: the rate of Adam (Malladi et al. 2022, arXiv 2205.10287).
        Sqrt = "sqrt",
    }
}

choices! {
    /// Which batch the learning rate follows.
    BatchScope("scope") {
        /// All examples of an optimizer step.
        Global = "global",
        /// The examples of one device.
        PerDevice = "per_device",
    }
}

kiln_core::keys! {
    /// `[batch]`: the batch of an optimizer step.
    #[derive(Eq)]
    #[serde(default, deny_unknown_fields)]
    pub struct BatchArguments in "batch" {
        /// The number that stays when the micro-batch changes. Default: `fixed`.
        scaling: BatchScaling = BatchScaling::Fixed, Free;
        /// Examples of an optimizer step; `trainer.gradient_accumulation_steps` follows from it.
        /// The loss of a step is then the mean over all its examples, however they are cut. Only
        /// with `fixed`. Default: micro-batch x accumulation.
        #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
        global_batch_size: Option<usize> = None, Free, whole(1..=MAX_BATCH);
    }
}

kiln_core::keys! {
    /// `[learning_rate]`: how `trainer.learning_rate` follows the batch.
    #[derive(Eq)]
    #[serde(default, deny_unknown_fields)]
    pub struct LearningRateScaling in "learning_rate" {
        /// The rule. Default: `none`.
        scaling: LrScaling = LrScaling::None, Derived;
        /// The batch that `trainer.learning_rate` was chosen for. Required unless the rule is
        /// `none`.
        #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
        reference_batch: Option<usize> = None, Derived, whole(1..=usize::MAX);
        /// Which batch is compared with it. Default: `global`.
        scope: BatchScope = BatchScope::Global, Derived;
    }
}

/// A learning rate and where it comes from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScaledRate {
    /// The peak learning rate.
    pub rate: f64,
    /// `5e-5 / 32 x 25 (per device) = 3.90625e-5`; none where nothing is scaled.
    pub because: Option<String>,
}

impl LearningRateScaling {
    /// `base` for optimizer steps of `per_device` examples on each of `devices`. In the order in
    /// which SageMaker's documents write it, `base / reference * batch * num_gpus *
    /// instance_count`, so that the result is theirs to the last bit.
    pub fn scaled(&self, base: f64, per_device: usize, devices: Devices) -> ScaledRate {
        let (counted, scope) = match self.scope {
            BatchScope::Global => (devices, "global"),
            BatchScope::PerDevice => (Devices::default(), "per device"),
        };
        let batch = per_device.saturating_mul(counted.count);
        let Some(reference) = self.reference_batch else { return ScaledRate { rate: base, because: None } };
        match self.scaling {
            LrScaling::None => ScaledRate { rate: base, because: None },
            LrScaling::Linear => {
                let per_node = counted.count as f64 / counted.nodes as f64;
                let rate = base / reference as f64 * per_device as f64 * per_node * counted.nodes as f64;
                let because = format!("{base:e} / {reference} x {batch} ({scope}) = {}", short(rate));
                ScaledRate { rate, because: Some(because) }
            }
            LrScaling::Sqrt => {
                let rate = base * (batch as f64 / reference as f64).sqrt();
                let because = format!("{base:e} x sqrt({batch} / {reference}) ({scope}) = {}", short(rate));
                ScaledRate { rate, because: Some(because) }
            }
        }
    }
}

/// A rate with at most 12 digits: `4.0625e-5`, not `4.0625000000000005e-5`.
fn short(rate: f64) -> String {
    format!("{rate:.11e}").parse::<f64>().map_or_else(|_| format!("{rate:e}"), |rounded| format!("{rounded:e}"))
}

/// Samples per forward pass in training: a number, or what `kiln tune-batch` finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrainBatchSize {
    /// So many.
    Size(usize),
    /// The largest that fits, as measured on this machine; written `"auto"`.
    Auto,
}

impl TrainBatchSize {
    /// The number, where there is one.
    pub fn size(self) -> Option<usize> {
        match self {
            Self::Size(size) => Some(size),
            Self::Auto => None,
        }
    }
}

impl From<usize> for TrainBatchSize {
    fn from(size: usize) -> Self {
        Self::Size(size)
    }
}

impl From<TrainBatchSize> for Option<usize> {
    fn from(size: TrainBatchSize) -> Self {
        size.size()
    }
}

impl PartialEq<usize> for TrainBatchSize {
    fn eq(&self, other: &usize) -> bool {
        self.size() == Some(*other)
    }
}

impl Serialize for TrainBatchSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Size(size) => serializer.serialize_u64(*size as u64),
            Self::Auto => serializer.serialize_str("auto"),
        }
    }
}

impl Schema for TrainBatchSize {
    fn schema() -> Value {
        json!({ "anyOf": [schema::whole(), { "enum": ["auto"] }] })
    }
}

impl<'de> Deserialize<'de> for TrainBatchSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = TrainBatchSize;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a whole number that is not negative, or \"auto\"")
            }

            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<TrainBatchSize, E> {
                let size = usize::try_from(value).map_err(|_| E::custom(format!("{value} is too large")))?;
                Ok(TrainBatchSize::Size(size))
            }

            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<TrainBatchSize, E> {
                match u64::try_from(value) {
                    Ok(size) => self.visit_u64(size),
                    Err(_) => Err(E::invalid_value(serde::de::Unexpected::Signed(value), &self)),
                }
            }

            fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<TrainBatchSize, E> {
                CountReader.visit_f64(value).and_then(|size| self.visit_u64(size))
            }

            fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<TrainBatchSize, E> {
                match value {
                    "auto" => Ok(TrainBatchSize::Auto),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(value), &self)),
                }
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn section(scaling: LrScaling, reference: usize, scope: BatchScope) -> LearningRateScaling {
        LearningRateScaling { scaling, reference_batch: Some(reference), scope }
    }

    /// `learning_rate_native / batch_size_native * batch_size`, with SageMaker's table of batch
    /// sizes on one V100 of 16 GB at 512 tokens; the rates as Python prints them.
    #[test]
    fn sagemakers_formula_for_one_device() {
        for (native, compiled, rate) in [
            (6, 20, 0.00016666666666666666), // gpt2
            (12, 24, 0.0001),                // bert-base-uncased
            (14, 24, 8.571428571428571e-05), // bert-base-cased
            (16, 32, 0.0001),                // distilgpt2
            (12, 20, 8.333333333333333e-05), // roberta-base
            (28, 32, 5.714285714285714e-05), // distilbert-base-uncased
        ] {
            for scope in [BatchScope::Global, BatchScope::PerDevice] {
                let scaled = section(LrScaling::Linear, native, scope).scaled(5e-5, compiled, Devices::default());
                // One rounding: Python divides and multiplies in the same order.
                assert!(
                    (scaled.rate / rate - 1.0).abs() < 4e-16,
                    "{native} to {compiled}: {} is not {rate}",
                    scaled.rate
                );
            }
        }
    }

    /// `learning_rate_native / batch_size_native * batch_size * num_gpus * instance_count`: the
    /// reference is a device's, the batch is everyone's. Two instances of 8 GPUs.
    #[test]
    fn sagemakers_formula_for_several_devices() {
        let scaled =
            section(LrScaling::Linear, 12, BatchScope::Global).scaled(5e-5, 24, Devices { count: 16, nodes: 2 });
        assert!((scaled.rate / 0.0016 - 1.0).abs() < 4e-16, "{}", scaled.rate);
        assert_eq!(scaled.because.unwrap(), "5e-5 / 12 x 384 (global) = 1.6e-3");
    }

    /// `5e-5 / 32 * per_device_batch` of the GPT-2 notebook, on however many devices.
    #[test]
    fn sagemakers_formula_of_the_notebook() {
        for devices in [1, 4] {
            let scaled = section(LrScaling::Linear, 32, BatchScope::PerDevice).scaled(
                5e-5,
                25,
                Devices { count: devices, nodes: 1 },
            );
            assert_eq!(scaled.rate, 3.90625e-5);
            assert_eq!(scaled.because.unwrap(), "5e-5 / 32 x 25 (per device) = 3.90625e-5");
        }
    }

    #[test]
    fn the_square_root_and_nothing() {
        let scaled = section(LrScaling::Sqrt, 32, BatchScope::Global).scaled(5e-5, 128, Devices::default());
        assert_eq!(scaled.rate, 1e-4);
        assert_eq!(scaled.because.unwrap(), "5e-5 x sqrt(128 / 32) (global) = 1e-4");
        let none = LearningRateScaling::default().scaled(5e-5, 128, Devices { count: 4, nodes: 1 });
        assert_eq!(none, ScaledRate { rate: 5e-5, because: None });
    }

    #[test]
    fn noise_is_not_shown() {
        assert_eq!(short(5e-5 / 32.0 * 26.0), "4.0625e-5");
        assert_eq!(short(5e-5 / 6.0 * 20.0), "1.66666666667e-4");
    }
}
