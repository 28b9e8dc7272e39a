//! How the losses of micro-batches become the loss of an optimizer step.

use kiln_core::choices;
use serde::{Deserialize, Serialize};

choices! {
    /// How the losses of the micro-batches of an optimizer step become its loss, in the tasks in
    /// which `transformers` takes the mean of each micro-batch.
    Accumulation("accumulation") {
        /// One sum over all micro-batches, divided once: how a step is cut makes no difference.
        Exact = "exact",
        /// The loss of the Trainer of `transformers` 5.24; see
        /// [`Reduction`]. Its divisor of GPT-2's language model counts the
        /// first label of each row too, which nothing predicts.
        Transformers = "transformers",
    }
}

/// How the loss of training departs from the plain cross-entropy, and what it is over several
/// micro-batches. Default: the plain one, divided once.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LossOptions {
    /// Part of a target's probability that is spread evenly over all classes.
    pub label_smoothing: f64,
    /// The weights of the classes, one number a class; none means 1.
    pub class_weights: Option<Vec<f64>>,
    /// How the losses of micro-batches become that of an optimizer step.
    pub reduction: Reduction,
    /// Whether the divisor counts the first label of each row of a causal language model too, which
    /// nothing predicts: the `num_items_in_batch` that the Trainer of `transformers` 5.24 has for
    /// `GPT2LMHeadModel`.
    #[serde(default)]
    pub counts_first_labels: bool,
}

/// How the losses of the micro-batches of an optimizer step become the step's loss. The same holds
/// for gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    /// Their sums are added and divided once by the number of their terms: the loss does not depend
    /// on how the step is cut.
    #[default]
    Exact,
    /// Each is divided by the number of its own terms, and these means are added.
    SumOfMeans,
    /// Each sum is divided by the number of its own terms, and the mean of these means is taken.
    MeanOfMeans,
}

impl Reduction {
    /// The factor of the loss of a micro-batch before it is added to the others; 0 for one without
    /// valid labels. `labels` is what
    /// its valid labels count together ([`BatchSize::labels`](crate::task::BatchSize::labels)).
    pub fn weight(self, labels: f64) -> f64 {
        match self {
            _ if labels == 0.0 => 0.0,
            Self::Exact => 1.0,
            Self::SumOfMeans | Self::MeanOfMeans => 1.0 / labels,
        }
    }

    /// The divisor of a step of `micro_batches` if all of them are like the first, which has so
    /// many labels; at least 1.
    pub fn expected_divisor(self, first_labels: f64, micro_batches: usize) -> f64 {
        self.divisor(first_labels * micro_batches as f64, micro_batches).max(1.0)
    }

    /// The divisor of the sum over the `micro_batches` of a step, where the valid labels of all of
    /// them count `labels`.
    pub fn divisor(self, labels: f64, micro_batches: usize) -> f64 {
        match self {
            Self::Exact => labels,
            Self::SumOfMeans => 1.0,
            Self::MeanOfMeans => micro_batches as f64,
        }
    }
}

impl LossOptions {
    /// The loss of evaluation where this is that of training: smoothed too, but without class
    /// weights.
    #[must_use]
    pub fn of_evaluation(&self) -> Self {
        Self { label_smoothing: self.label_smoothing, ..Self::default() }
    }

    /// Whether a batch has the plain cross-entropy.
    pub fn is_plain(&self) -> bool {
        self.label_smoothing == 0.0 && self.class_weights.is_none()
    }
}
