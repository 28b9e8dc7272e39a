//! A task says how labels become the targets of a loss, and which figures an evaluation has. Each
//! task implements [`ModelTask`] in a file of its own. A loss is a sum and a count: the Trainer
//! divides the sum of an optimizer step once, unless `trainer.accumulation = "transformers"`.

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

use std::sync::Arc;

pub use batch::{DeviceBatch, LossSum, Targets, span_logits};
pub use causal_lm::CausalLm;
pub use kiln_train::optim::loss::{LossOptions, Reduction};
pub use loss::loss_options;
pub use masked_lm::MaskedLm;
pub use model_task::{ModelTask, TaskBatch, TaskScores, total_weight};
pub use multi_label_classification::MultiLabelClassification;
pub use multiple_choice::MultipleChoice;
pub use question_answering::QuestionAnswering;
pub use regression::Regression;
pub use sequence_classification::SequenceClassification;
pub use token_classification::TokenClassification;

use crate::config::Task;

/// The task that a config calls `kind`.
pub fn model_task(kind: Task) -> Arc<dyn ModelTask> {
    match kind {
        Task::Clm => Arc::new(CausalLm),
        Task::Mlm => Arc::new(MaskedLm),
        Task::SequenceClassification => Arc::new(SequenceClassification),
        Task::Regression => Arc::new(Regression),
        Task::QuestionAnswering => Arc::new(QuestionAnswering),
        Task::TokenClassification => Arc::new(TokenClassification),
        Task::MultiLabelClassification => Arc::new(MultiLabelClassification),
        Task::MultipleChoice => Arc::new(MultipleChoice),
    }
}
