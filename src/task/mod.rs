//! Tasks: which head a run needs, how logits and labels become a loss, and what predictions are
//! worth. Each task implements [`ModelTask`] in a file of its own. A loss is a sum and a count,
//! divided once by whoever has collected all of an optimizer step; never a mean of means.

pub mod evaluator;
pub mod generate;
pub mod scores;
mod batch;
mod causal_lm;
mod loss;
mod masked_lm;
mod model_task;
mod multi_label_classification;
mod multiple_choice;
mod question_answering;
mod regression;
mod sequence_classification;
mod token_classification;

pub use batch::{DeviceBatch, LabelsOnDevice, LossSum, Targets, span_logits};
pub use causal_lm::CausalLm;
pub use kiln_train::optim::loss::{LossOptions, Reduction};
pub use loss::loss_options;
pub use masked_lm::MaskedLm;
pub use model_task::{ModelTask, Scores, TaskBatch, total_weight};
pub use multi_label_classification::MultiLabelClassification;
pub use multiple_choice::MultipleChoice;
pub use question_answering::QuestionAnswering;
pub use regression::Regression;
pub use sequence_classification::SequenceClassification;
pub use token_classification::TokenClassification;

use crate::config::Task;

/// The task that a config calls `task`.
pub fn model_task(task: Task) -> &'static dyn ModelTask {
    match task {
        Task::Clm => &CausalLm,
        Task::Mlm => &MaskedLm,
        Task::SequenceClassification => &SequenceClassification,
        Task::Regression => &Regression,
        Task::QuestionAnswering => &QuestionAnswering,
        Task::TokenClassification => &TokenClassification,
        Task::MultiLabelClassification => &MultiLabelClassification,
        Task::MultipleChoice => &MultipleChoice,
    }
}
