//! `kiln init`: a commented config for a task and a model, to be filled in. What it leaves out has the default that the
//! comment names.

use std::path::Path;

use burn::tensor::Device;
use kiln_models::Model;

use crate::error::{Error, Result, one_line};
use crate::model_folder::read_config;
use crate::task::Task;

/// Checks that `model` has a head for `task`, if it is a folder; a model of the Hub is asked when it is loaded.
///
/// # Errors
/// A configuration that cannot be read, and a model without such a head.
pub fn check_model(task: Task, model: &str) -> Result<()> {
    let folder = Path::new(model);
    if !folder.join("config.json").is_file() {
        return Ok(());
    }
    let (config, _) = read_config(folder)?;
    Model::new(&config, task.head(), &Device::flex()).map_err(|error| Error::from(error).at(model))?;
    Ok(())
}

/// The text of a config that fine-tunes `model` (a folder or a Hub id) on `task`.
pub fn template(task: Task, model: &str) -> String {
    let model = toml::Value::from(model).to_string();
    let (data, trainer) = parts(task);
    format!(
        "# {task} with {}. `kiln plan FILE` shows what it would do, `kiln train FILE` does it.

[run]
output_dir = \"runs/{task}\"
on_existing = \"fail\"                # fail | resume | overwrite

[model]
from = {model}                       # a folder or a Hub id; its tokenizer is used too

[data]
task = \"{task}\"
{data}
[trainer]                            # Hugging Face's TrainingArguments; good values to begin with
{trainer}lr_scheduler_type = \"linear\"
warmup_steps = 0.1                   # a number of steps, or a ratio below 1
weight_decay = 0.01
max_grad_norm = 1.0
logging_steps = 10
eval_strategy = \"epoch\"              # no | steps (eval_steps) | epoch
save_strategy = \"epoch\"              # no | steps (save_steps) | epoch | best
save_total_limit = 2
load_best_model_at_end = true
seed = 42

[device]
kind = \"auto\"                        # auto | cpu | wgpu | cuda
",
        one_line(&model)
    )
}

/// The keys of `[data]` and of `[trainer]` that depend on the task.
fn parts(task: Task) -> (String, &'static str) {
    match task {
        Task::Clm | Task::Mlm => (
            "format = \"text\"                      # text | csv, tsv, jsonl, parquet (text_column) | tokenized
documents = \"file\"                   # a document is a file, or a line
train = [\"data/train/**/*.txt\"]      # paths, globs, ~, ${VAR:-default}, hf://datasets/ORG/NAME/CONFIGURATION/SPLIT
validation = \"2%\"                    # files, or a share split off by document
block_size = 128                     # tokens of a sample
"
            .into(),
            "max_steps = 1000                     # or num_train_epochs, max_tokens, max_minutes
per_device_train_batch_size = 8
gradient_accumulation_steps = 1
learning_rate = 5e-5
",
        ),
        Task::SequenceClassification => (
            rows(
                "label_column = \"label\"
# label_names = [\"bad\", \"good\"]      # the labels by id; else those of the model or of the data",
            ),
            ROWS_TRAINER,
        ),
        Task::Regression => (rows("label_column = \"label\"               # a number"), ROWS_TRAINER),
        Task::QuestionAnswering => (
            "format = \"squad\"                     # SQuAD's JSON, 1.1 or 2.0 | tokenized
train = \"data/train-v1.1.json\"
validation = \"data/dev-v1.1.json\"
max_length = 384                     # tokens of a window of the context
doc_stride = 128                     # tokens that two windows share
"
            .into(),
            "num_train_epochs = 2                 # or max_steps, max_tokens, max_minutes
per_device_train_batch_size = 12
learning_rate = 3e-5
",
        ),
    }
}

/// `[trainer]` of a task on the rows of a table.
const ROWS_TRAINER: &str = "num_train_epochs = 3                 # or max_steps, max_tokens, max_minutes
per_device_train_batch_size = 16
learning_rate = 2e-5
";

/// `[data]` of a task on the rows of a table, with the lines that tell of its label.
fn rows(label: &str) -> String {
    format!(
        "format = \"csv\"                       # csv | tsv | jsonl | parquet | tokenized
train = \"data/train.csv\"             # paths, globs, ~, ${{VAR:-default}}, hf://datasets/ORG/NAME/CONFIGURATION/SPLIT
validation = \"data/validation.csv\"   # files, or a share such as \"10%\"
text_column = \"text\"
# text_pair_column = \"text2\"         # for pairs
{label}
max_length = 128                     # tokens that a row is cut to
padding = \"longest\"                  # longest | max_length | buckets
"
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::RunConfig;

    #[test]
    fn every_template_is_a_config_of_its_task() {
        for task in Task::ALL {
            let text = template(task, "org/a \"name\"");
            let config = RunConfig::parse(&text, "new.toml").unwrap_or_else(|error| panic!("{task}: {error}"));
            assert_eq!((config.data.task, config.model.from.as_deref()), (task, Some("org/a \"name\"")));
            assert!(text.lines().all(|line| line.chars().count() <= 130), "{text}");
        }
    }
}
