//! The tasks by their names in configs. The loss and the figures of a task are in [`crate::task`].

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::base::error::{Error, Result};

/// The task that a run learns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// Predict the next token (causal language model).
    Clm,
    /// Predict masked tokens.
    Mlm,
    /// Predict one label for a sequence.
    SequenceClassification,
    /// Predict one number for a sequence.
    Regression,
    /// Predict where in a text the answer starts and ends.
    QuestionAnswering,
}

impl Task {
    /// Every task.
    pub const ALL: [Self; 5] =
        [Self::Clm, Self::Mlm, Self::SequenceClassification, Self::Regression, Self::QuestionAnswering];

    /// The name as it is written in configs and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Clm => "clm",
            Self::Mlm => "mlm",
            Self::SequenceClassification => "sequence-classification",
            Self::Regression => "regression",
            Self::QuestionAnswering => "question-answering",
        }
    }

    /// The task called `name`.
    ///
    /// # Errors
    /// An unknown name, with the nearest known one.
    pub fn from_name(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|task| task.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name);
            let near =
                crate::base::error::nearest(name, names).map_or_else(String::new, |n| format!("did you mean {n:?}? "));
            Error::config(format!("unknown task {name:?}")).help(format!("{near}expected one of {}", names.join(", ")))
        })
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
