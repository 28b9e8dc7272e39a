//! The arguments of Hugging Face's scripts (`run_clm.py`, `run_mlm.py`, `run_glue.py`,
//! `run_classification.py`, `run_qa.py`) and of their notebooks for SageMaker beside those of
//! `TrainingArguments`, and what stands for each of them in a config.

/// The meaning of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Means {
    /// The value is that of a key.
    Key(&'static str),
    /// Any value changes nothing, for this reason.
    Nothing(&'static str),
    /// False changes nothing, and true is refused with this help.
    Off(&'static str),
    /// A job reads it with others, by its name; in a config these keys stand for it.
    More(&'static str),
}

use Means::{Key, More, Nothing, Off};

const TOKENIZER: &str = "the tokenizer has one implementation, in Rust";
const CACHE: &str = "HF_HOME names the folder of the Hub's files, KILN_CACHE that of tokenised text";
const ACCESS: &str = "HF_TOKEN gives access to private models";
const CODE: &str = "Kiln runs no code of a model";
const COLUMNS: &str = "the columns that `[data]` names are read, and no others";

/// Every such argument.
pub const NAMES: &[(&str, Means)] = &[
    // ModelArguments.
    ("model_name_or_path", Key("model.from")),
    ("model_type", Key("model.kind")),
    ("config_overrides", More("keys of `[model]`")),
    ("config_name", More("`model.kind`, `model.size` and fields of config.json in `[model]`")),
    ("tokenizer_name", Key("tokenizer.from")),
    ("cache_dir", Nothing(CACHE)),
    ("use_fast_tokenizer", Nothing(TOKENIZER)),
    ("use_slow_tokenizer", Nothing(TOKENIZER)),
    ("model_revision", More("`model.from = \"ID@REVISION\"`")),
    ("token", Nothing(ACCESS)),
    ("use_auth_token", Nothing(ACCESS)),
    ("trust_remote_code", Nothing(CODE)),
    ("dtype", More("`precision`")),
    ("torch_dtype", More("`precision`")),
    ("low_cpu_mem_usage", Nothing("weights are read from a mapped file")),
    ("ignore_mismatched_sizes", Key("model.ignore_mismatched_sizes")),
    // DataTrainingArguments.
    ("dataset_name", More("`data.dataset_name`")),
    ("dataset_config_name", More("`data.dataset_config_name`")),
    (
        "task_name",
        More("`data.dataset_name = \"nyu-mll/glue\"` with `data.dataset_config_name`, and `data.text_column`"),
    ),
    ("train_file", Key("data.train")),
    ("validation_file", Key("data.validation")),
    ("test_file", Key("data.test")),
    ("max_seq_length", More("`data.max_length`, or `data.block_size` of a language model")),
    ("pad_to_max_length", More("`data.padding = \"max_length\"`")),
    ("validation_split_percentage", More("a share as `data.validation = \"5%\"`")),
    ("preprocessing_num_workers", Nothing("text is tokenised by all cores")),
    ("overwrite_cache", Nothing("tokenised text is kept by its content, so that no cache is stale")),
    ("keep_linebreaks", More("`data.documents`")),
    ("line_by_line", Off("leave it out: lines are joined to blocks; `documents = line` ends each with a token")),
    ("streaming", Key("data.streaming")),
    ("max_val_samples", Key("data.max_eval_samples")),
    ("max_predict_samples", More("a `data.test` of as many rows")),
    ("max_test_samples", More("a `data.test` of as many rows")),
    ("version_2_with_negative", Key("data.version_2_with_negative")),
    ("do_regression", More("`data.task = \"regression\"`")),
    ("text_column_name", Key("data.text_column")),
    ("text_column_names", More("`data.text_column` and `data.text_pair_column`")),
    ("text_column_delimiter", More("`data.text_column` and `data.text_pair_column`")),
    ("label_all_tokens", Off("leave it out: the first piece of a word has its label, and the others have none")),
    ("return_entity_level_metrics", Off("leave it out: the figures of an evaluation are those of all entities")),
    ("label_column_name", Key("data.label_column")),
    ("remove_splits", Nothing(COLUMNS)),
    ("remove_columns", Nothing(COLUMNS)),
    ("train_split_name", More("`data.train = \"hf://datasets/ORG/NAME/CONFIGURATION/SPLIT\"`")),
    ("validation_split_name", More("`data.validation = \"hf://datasets/ORG/NAME/CONFIGURATION/SPLIT\"`")),
    ("test_split_name", More("`data.test = \"hf://datasets/ORG/NAME/CONFIGURATION/SPLIT\"`")),
    ("shuffle_train_dataset", Nothing("`sampler` gives the order, which is random by default")),
    ("shuffle_seed", Nothing("`data_seed` is the seed of the order")),
    ("metric_name", Nothing("the figures of an evaluation are those of the task")),
    // The notebooks.
    ("model_name", Key("model.from")),
    ("model_id", Key("model.from")),
    ("epochs", Key("trainer.num_train_epochs")),
    ("train_batch_size", Key("trainer.per_device_train_batch_size")),
    ("batch_size", Key("trainer.per_device_train_batch_size")),
    ("eval_batch_size", Key("trainer.per_device_eval_batch_size")),
];

/// The meaning of the argument `name`; none where no script has it.
pub fn meaning(name: &str) -> Option<Means> {
    NAMES.iter().find(|(known, _)| *known == name).map(|(_, means)| *means)
}

/// Advice on what a config says in place of the argument `name`; none where no script has it.
pub(super) fn advice(name: &str) -> Option<String> {
    Some(match meaning(name)? {
        Key(key) => format!("`{name}` is `{key}`"),
        More(keys) => format!("`{name}` is {keys}"),
        Nothing(why) => format!("`{name}` has no effect: {why}"),
        Off(help) => format!("`{name}`: {help}"),
    })
}
