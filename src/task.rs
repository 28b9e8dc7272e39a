//! The tasks a model can be trained for, by name.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What the model learns to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// Causal language modelling: every token from those before it.
    Clm,
    /// Masked language modelling.
    Mlm,
    /// One label for a sequence.
    SequenceClassification,
    /// One number for a sequence.
    Regression,
    /// The span of a text that answers a question.
    QuestionAnswering,
}

impl Task {
    /// Every task.
    pub const ALL: [Self; 5] =
        [Self::Clm, Self::Mlm, Self::SequenceClassification, Self::Regression, Self::QuestionAnswering];
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Clm => "clm",
            Self::Mlm => "mlm",
            Self::SequenceClassification => "sequence-classification",
            Self::Regression => "regression",
            Self::QuestionAnswering => "question-answering",
        })
    }
}
