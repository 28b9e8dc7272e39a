//! The inputs of a run, opened, and the facts about them.

use std::sync::Arc;

use kiln_core::error::{Error, Result};
use kiln_core::host::resident_mib;
use kiln_core::told::tell_once;
use kiln_data::Dataset;
use kiln_data::labels::label_names;
use kiln_data::squad::SquadData;
use kiln_data::stream::Streamed;
use kiln_data::subset::Subset;
use kiln_train::task::{TrainingTask, model_facts};

use super::splits::Splits;
use crate::config::{CheckedConfig, RunConfig, Task};
use crate::engine::device::DeviceFacts;
use crate::plan::{
    Architecture, BatchPlan, DataFacts, ExampleFacts, Facts, FoundBatch, LabelledRows, TokenizerFacts, TrainFacts,
};
use crate::session::TransformerTask;

/// Examples of Kiln's tasks.
type Data = Arc<dyn Dataset>;

/// The inputs of a run, opened.
#[derive(Clone)]
pub struct Inputs {
    /// The model with its task, vocabulary and labels settled, its tokenizer, and the files that
    /// are kept.
    pub task: TransformerTask,
    /// Fields of a pretrained model's `config.json` that Kiln does not know.
    pub unknown_model_fields: Vec<String>,
    /// Block size of packed text; none for data that is tokenised already.
    pub block_size: Option<usize>,
    /// Tokens that rows of a table are cut to; none for other data.
    pub max_length: Option<usize>,
    /// Whether the validation data are the last blocks of the one file of text that there is.
    pub split_at_block: bool,
    /// Sequences of bytes that are not UTF-8 and are read as U+FFFD, in data that are not streamed.
    pub replaced: u64,
    /// Training and validation data.
    pub data: Splits<Arc<dyn Dataset>>,
}

/// Bytes that this process has resident.
fn resident() -> u64 {
    (resident_mib().unwrap_or(0.0) * f64::from(1 << 20)) as u64
}

impl Inputs {
    /// The training data of these inputs without the examples that `config` does not want, the
    /// validation data likewise, and what a plan has to know of all inputs, of the `device` and of
    /// this process. `batch` is a micro-batch that was found.
    ///
    /// # Errors
    /// A batch that contradicts itself, a model that cannot be built, a prompt that cannot be
    /// encoded, inputs that were opened for an evaluation alone.
    pub(crate) fn facts(
        &self,
        config: &CheckedConfig,
        device: DeviceFacts,
        batch: Option<FoundBatch>,
    ) -> Result<(Data, Option<Data>, Facts)> {
        let (inputs, arguments) = (self, config.checked_arguments());
        let of_batch = BatchPlan::of(arguments, batch.as_ref())?;
        let train = inputs.train(config, of_batch.global)?;
        let validation = inputs.validation(config);
        let drawn = of_batch.drawn(arguments);
        let data = DataFacts::new(&*train, validation.as_deref(), drawn);
        let tokenizer = inputs.task.tokenizer.as_ref().map(|tokenizer| {
            let prompts = config.generation.iter().flat_map(|generation| &generation.prompt);
            let tokens = prompts.map(|prompt| tokenizer.encode(prompt).map(|ids| ids.len())).collect::<Result<_>>()?;
            Ok::<_, Error>(TokenizerFacts {
                vocab_size: tokenizer.vocab_size(),
                eot_id: tokenizer.eot_id(),
                prompt_tokens: tokens,
            })
        });
        let architecture =
            Architecture { unknown_fields: inputs.unknown_model_fields.clone(), ..inputs.task.architecture() };
        let task = config.data.task;
        let labels = inputs.task.model_config.labels();
        let names = if task.has_label_names() { label_names(labels)? } else { Vec::new() };
        let counts = LabelledRows::count(&names, &*train, validation.as_deref())?;
        if arguments.limits().is_empty() {
            counts.warnings(task, config.data.format.is_table()).into_iter().for_each(tell_once);
        }
        let facts = Facts {
            architecture,
            examples: ExampleFacts {
                block_size: inputs.block_size,
                split_at_block: inputs.split_at_block,
                replaced: inputs.replaced,
                pad_id: inputs.task.pad_id,
                version_2_with_negative: SquadData::of(&**validation.as_ref().unwrap_or(&train))
                    .is_some_and(|squad| squad.questions().iter().any(|question| question.may_be_unanswerable)),
                counts,
                sequences: match task {
                    Task::MultipleChoice => train.get(0, 0)?.sequences().len().max(1),
                    _ => 1,
                },
            },
            tokenizer: tokenizer.transpose()?,
            resident: resident(),
            train: TrainFacts {
                model: model_facts(&inputs.task)?,
                data: DataFacts { max_length: inputs.max_length, ..data },
                device,
                batch,
                decision: None,
                loss: inputs.task.loss_options(arguments)?,
            },
        };
        Ok((train, validation, facts))
    }

    /// The training data that `config` wants; a step has `step` examples.
    fn train(&self, config: &RunConfig, step: usize) -> Result<Arc<dyn Dataset>> {
        let trainer = &config.trainer;
        let train = self.data.train.clone();
        let train = train
            .ok_or_else(|| Error::data("data.train: it was not opened, since the inputs are for an evaluation"))?;
        if let Some(streamed) = Streamed::of(&*train) {
            streamed.set_len(trainer.max_steps.unwrap_or(1).saturating_mul(step));
        }
        let one_step = trainer.overfit_one_batch || trainer.fast_dev_run;
        let wanted = if one_step { Some(step) } else { config.data.max_train_samples };
        Ok(match wanted.filter(|wanted| *wanted < train.len()) {
            Some(wanted) => first(&train, wanted),
            None => train,
        })
    }

    /// The validation data that `config` wants, if any.
    pub(crate) fn validation(&self, config: &RunConfig) -> Option<Arc<dyn Dataset>> {
        let (trainer, validation) = (&config.trainer, self.data.validation.clone()?);
        let one_batch = trainer.fast_dev_run.then_some(trainer.per_device_eval_batch_size);
        Some(match one_batch.or(config.data.max_eval_samples) {
            Some(wanted) => first(&validation, wanted),
            None => validation,
        })
    }
}

/// The first `wanted` examples; of question answering the first so many questions with all their
/// windows, since an answer is looked for in all of them.
fn first(data: &Arc<dyn Dataset>, wanted: usize) -> Arc<dyn Dataset> {
    match SquadData::of(&**data) {
        Some(squad) => Arc::new(squad.first(wanted)),
        None => Arc::new(Subset::first(data.clone(), wanted)),
    }
}
