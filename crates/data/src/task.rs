//! The tasks by their names in configs. The loss and the figures of a task are in `kiln::task`.

use std::fmt;

use kiln_core::error::{Error, Result, nearest};
use kiln_core::model_config::Head;
use kiln_core::schema::{Schema, Value};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The column of tables that `text_column` names when it is left out.
pub const DEFAULT_TEXT_COLUMN: &str = "text";

/// The column of tables that `label_column` names when it is left out.
pub const DEFAULT_LABEL_COLUMN: &str = "label";

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
    /// Predict a label for every word of a text, such as the names in it.
    TokenClassification,
    /// Predict which of several labels apply to a sequence: any number of them, each by itself.
    MultiLabelClassification,
    /// Predict which of several continuations of a text is the right one.
    MultipleChoice,
}

impl Schema for Task {
    fn schema() -> Value {
        json!({ "enum": Self::ALL })
    }
}

impl Task {
    /// Every task.
    pub const ALL: [Self; 8] = [
        Self::Clm,
        Self::Mlm,
        Self::SequenceClassification,
        Self::Regression,
        Self::QuestionAnswering,
        Self::TokenClassification,
        Self::MultiLabelClassification,
        Self::MultipleChoice,
    ];

    /// The columns of text and label that tables have for the task when the config names none: for
    /// token classification those of CoNLL-2003 on the Hub.
    pub fn columns(self) -> (&'static str, &'static str) {
        match self {
            Self::TokenClassification => ("tokens", "ner_tags"),
            _ => (DEFAULT_TEXT_COLUMN, DEFAULT_LABEL_COLUMN),
        }
    }

    /// The head that the task needs.
    pub fn head(self) -> Head {
        match self {
            Self::Clm => Head::CausalLm,
            Self::Mlm => Head::MaskedLm,
            Self::SequenceClassification | Self::MultiLabelClassification | Self::Regression => {
                Head::SequenceClassification
            }
            Self::QuestionAnswering => Head::QuestionAnswering,
            Self::TokenClassification => Head::TokenClassification,
            Self::MultipleChoice => Head::MultipleChoice,
        }
    }

    /// Whether the model is a language model, which reads documents and not labelled rows.
    pub fn is_language_model(self) -> bool {
        matches!(self, Self::Clm | Self::Mlm)
    }

    /// Whether rows have labels with names.
    pub fn has_label_names(self) -> bool {
        matches!(self, Self::SequenceClassification | Self::TokenClassification | Self::MultiLabelClassification)
    }

    /// The name as it is written in configs and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Clm => "clm",
            Self::Mlm => "mlm",
            Self::SequenceClassification => "sequence-classification",
            Self::Regression => "regression",
            Self::QuestionAnswering => "question-answering",
            Self::TokenClassification => "token-classification",
            Self::MultiLabelClassification => "multi-label-classification",
            Self::MultipleChoice => "multiple-choice",
        }
    }

    /// The task called `name`.
    ///
    /// # Errors
    /// An unknown name, with the nearest known one.
    pub fn from_name(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|task| task.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name);
            let near = Self::nearest(name).map_or_else(String::new, |near| format!("did you mean {near:?}? "));
            Error::config(format!("unknown task {name:?}")).help(format!("{near}expected one of {}", names.join(", ")))
        })
    }

    /// The name of the task that `name`, which is none, is likely to mean: by the words that
    /// transformers has for tasks in `pipeline` and in its scripts, else the nearest one.
    pub fn nearest(name: &str) -> Option<&'static str> {
        let words = name.to_ascii_lowercase().replace(['_', ' '], "-");
        let meant = match words.as_str() {
            "classification" | "text-classification" | "sentiment-analysis" => Self::SequenceClassification,
            "ner" | "tagging" => Self::TokenClassification,
            "text-generation" | "language-modeling" | "causal-lm" | "lm" => Self::Clm,
            "fill-mask" | "masked-lm" => Self::Mlm,
            "qa" | "squad" => Self::QuestionAnswering,
            "swag" => Self::MultipleChoice,
            _ => return nearest(name, Self::ALL.map(Self::name)),
        };
        Some(meant.name())
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
