//! The names that hyperparameters of jobs have beside the keys of Kiln's config and the arguments
//! of `TrainingArguments`: the further arguments of Hugging Face's scripts (`run_clm.py`,
//! `run_mlm.py`, `run_glue.py`, `run_classification.py`, `run_qa.py`), of their notebooks for
//! SageMaker, and SageMaker's own.

/// The meaning of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Means {
    /// The value is that of a key.
    Key(&'static str),
    /// Any value changes nothing, for this reason.
    Nothing(&'static str),
    /// False changes nothing, and true is refused with this help.
    Off(&'static str),
    /// It is read with others, by its name.
    More,
}

use kiln::config::Task;

use Means::{Key, More, Nothing, Off};

const TOKENIZER: &str = "the tokenizer has one implementation, in Rust";
const CACHE: &str = "HF_HOME names the folder of the Hub's files, KILN_CACHE that of tokenised text";
const ACCESS: &str = "HF_TOKEN gives access to private models";
const CODE: &str = "Kiln runs no code of a model";
const PLATFORM: &str = "it belongs to the platform";
const OPTIONS: &str = "`kiln launch` starts the ranks, with options of its own";
const RESULTS: &str = "a job writes its model to SM_MODEL_DIR, other results to SM_OUTPUT_DATA_DIR";
const RESUMES: &str =
    "a job continues from its folder of checkpoints where there is one, and begins where there is none";
const COLUMNS: &str = "the columns that `[data]` names are read, and no others";

/// Every such name.
pub(super) const NAMES: &[(&str, Means)] = &[
    // Kiln's own.
    ("kiln_config", More),
    ("price_per_hour", More),
    ("max_run", More),
    // ModelArguments.
    ("model_name_or_path", Key("model.from")),
    ("model_type", Key("model.kind")),
    ("config_overrides", More),
    ("config_name", More),
    ("tokenizer_name", Key("tokenizer.from")),
    ("cache_dir", Nothing(CACHE)),
    ("use_fast_tokenizer", Nothing(TOKENIZER)),
    ("use_slow_tokenizer", Nothing(TOKENIZER)),
    ("model_revision", More),
    ("token", Nothing(ACCESS)),
    ("use_auth_token", Nothing(ACCESS)),
    ("trust_remote_code", Nothing(CODE)),
    ("dtype", More),
    ("torch_dtype", More),
    ("low_cpu_mem_usage", Nothing("weights are read from a mapped file")),
    ("ignore_mismatched_sizes", Key("model.ignore_mismatched_sizes")),
    // DataTrainingArguments.
    ("dataset_name", More),
    ("dataset_config_name", More),
    ("task_name", More),
    ("train_file", Key("data.train")),
    ("validation_file", Key("data.validation")),
    ("test_file", Key("data.test")),
    ("max_seq_length", More),
    ("pad_to_max_length", More),
    ("validation_split_percentage", More),
    ("preprocessing_num_workers", Nothing("text is tokenised by all cores")),
    ("overwrite_cache", Nothing("tokenised text is kept by its content, so that no cache is stale")),
    ("keep_linebreaks", More),
    ("line_by_line", Off("leave it out: lines are joined to blocks; `documents = line` ends each with a token")),
    ("streaming", Key("data.streaming")),
    ("max_val_samples", Key("data.max_eval_samples")),
    ("max_predict_samples", More),
    ("max_test_samples", More),
    ("version_2_with_negative", Key("data.version_2_with_negative")),
    ("do_regression", More),
    ("text_column_name", Key("data.text_column")),
    ("text_column_names", More),
    ("text_column_delimiter", More),
    ("label_all_tokens", Off("leave it out: the first piece of a word has its label, and the others have none")),
    ("return_entity_level_metrics", Off("leave it out: the figures of an evaluation are those of all entities")),
    ("label_column_name", Key("data.label_column")),
    ("remove_splits", Nothing(COLUMNS)),
    ("remove_columns", Nothing(COLUMNS)),
    ("train_split_name", More),
    ("validation_split_name", More),
    ("test_split_name", More),
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
    ("training_script", More),
    ("n_gpus", More),
    ("num_gpus", More),
    ("n_gpu", More),
    ("_n_gpu", More),
    ("training_dir", Key("data.train")),
    ("test_dir", Key("data.validation")),
    ("model_dir", Nothing(RESULTS)),
    ("output_data_dir", Nothing(RESULTS)),
    ("checkpoints", Nothing(RESUMES)),
    // TrainingArguments whose meaning is the job's.
    ("output_dir", Nothing(RESULTS)),
    ("run.output_dir", Nothing(RESULTS)),
    ("trainer.output_dir", Nothing(RESULTS)),
    ("overwrite_output_dir", Nothing(RESUMES)),
    ("trainer.overwrite_output_dir", Nothing(RESUMES)),
    ("resume_from_checkpoint", Nothing(RESUMES)),
    ("trainer.resume_from_checkpoint", Nothing(RESUMES)),
    ("run.resume_from_checkpoint", Nothing(RESUMES)),
    ("run.on_existing", Nothing(RESUMES)),
    // SageMaker's.
    ("sagemaker_training_compiler_enabled", More),
    ("sagemaker_training_compiler_debug_mode", More),
    ("sagemaker_program", More),
    ("sagemaker_submit_directory", Nothing(PLATFORM)),
    ("sagemaker_container_log_level", Nothing(PLATFORM)),
    ("sagemaker_job_name", Key("run.name")),
    ("sagemaker_region", Nothing(PLATFORM)),
    ("sagemaker_instance_type", Nothing(PLATFORM)),
    ("sagemaker_requirements", Nothing(PLATFORM)),
    ("sagemaker_s3_output", Nothing(PLATFORM)),
    // Of a tuning job.
    ("_tuning_objective_metric", Nothing(PLATFORM)),
    ("sagemaker_distributed_dataparallel_enabled", More),
    ("sagemaker_pytorch_xla_multi_worker_enabled", More),
    ("sagemaker_pytorch_ddp_enabled", More),
    ("sagemaker_torch_distributed_enabled", More),
    ("sagemaker_mpi_enabled", More),
    ("sagemaker_mpi_num_of_processes_per_host", More),
    ("sagemaker_mpi_custom_mpi_options", Nothing(OPTIONS)),
    ("sagemaker_distributed_dataparallel_custom_mpi_options", Nothing(OPTIONS)),
    (
        "sagemaker_parameter_server_enabled",
        Off("leave it out: ranks sum their gradients, and no server has parameters"),
    ),
];

/// The switches by which SageMaker's estimators ask for several processes, one for each GPU.
pub(super) const DISTRIBUTIONS: [&str; 5] = [
    "sagemaker_distributed_dataparallel_enabled",
    "sagemaker_pytorch_xla_multi_worker_enabled",
    "sagemaker_pytorch_ddp_enabled",
    "sagemaker_torch_distributed_enabled",
    MPI,
];

/// The one of them that says by itself how many processes a machine has.
pub(super) const MPI: &str = "sagemaker_mpi_enabled";

/// The reason why any other name that begins with `sagemaker_` changes nothing.
pub(super) const OTHERS_OF_THE_PLATFORM: &str = PLATFORM;

/// A dataset of the Hub that scripts call by a name.
pub(super) struct Dataset {
    pub(super) names: &'static [&'static str],
    /// The configuration that is meant where none is given.
    pub(super) config: &'static str,
    /// The columns of text, one or two; none of a dataset that has more.
    pub(super) text: &'static [&'static str],
    pub(super) validation: &'static str,
}

/// The first name is the one on the Hub.
pub(super) const DATASETS: &[Dataset] = &[
    Dataset {
        names: &["Salesforce/wikitext", "wikitext"],
        config: "wikitext-2-raw-v1",
        text: &["text"],
        validation: "validation",
    },
    Dataset { names: &["stanfordnlp/imdb", "imdb"], config: "plain_text", text: &["text"], validation: "test" },
    Dataset { names: &["stanfordnlp/sst2", "sst2"], config: "default", text: &["sentence"], validation: "validation" },
    Dataset { names: &["fancyzhx/ag_news", "ag_news"], config: "default", text: &["text"], validation: "test" },
    Dataset { names: &["rajpurkar/squad", "squad"], config: "plain_text", text: &[], validation: "validation" },
    Dataset { names: &["rajpurkar/squad_v2", "squad_v2"], config: "squad_v2", text: &[], validation: "validation" },
    Dataset { names: &["dair-ai/emotion", "emotion"], config: "split", text: &["text"], validation: "validation" },
];

/// A task of GLUE.
#[derive(Debug)]
pub(super) struct Glue {
    pub(super) task: &'static str,
    /// Its columns of text, one or two.
    pub(super) text: &'static [&'static str],
    /// Its labels in the order of their ids; none of a regression.
    pub(super) labels: &'static [&'static str],
}

impl Glue {
    /// The task called `name`.
    pub(super) fn of(name: &str) -> Option<&'static Self> {
        GLUE.iter().find(|glue| glue.task == name)
    }

    /// The task that is learned: regression without labels, else classification.
    pub(super) fn learns(&self) -> Task {
        if self.labels.is_empty() { Task::Regression } else { Task::SequenceClassification }
    }

    /// Its splits for validation and for predictions.
    pub(super) fn splits(&self) -> (&'static str, &'static str) {
        match self.task {
            "mnli" => ("validation_matched", "test_matched"),
            _ => ("validation", "test"),
        }
    }
}

/// Every task that has labels for training, with the columns that `run_glue.py` reads and the names
/// that the dataset gives its labels.
pub(super) const GLUE: &[Glue] = &[
    Glue { task: "cola", text: &["sentence"], labels: &["unacceptable", "acceptable"] },
    Glue { task: "mnli", text: &["premise", "hypothesis"], labels: &["entailment", "neutral", "contradiction"] },
    Glue { task: "mrpc", text: &["sentence1", "sentence2"], labels: &["not_equivalent", "equivalent"] },
    Glue { task: "qnli", text: &["question", "sentence"], labels: &["entailment", "not_entailment"] },
    Glue { task: "qqp", text: &["question1", "question2"], labels: &["not_duplicate", "duplicate"] },
    Glue { task: "rte", text: &["sentence1", "sentence2"], labels: &["entailment", "not_entailment"] },
    Glue { task: "sst2", text: &["sentence"], labels: &["negative", "positive"] },
    Glue { task: "stsb", text: &["sentence1", "sentence2"], labels: &[] },
    Glue { task: "wnli", text: &["sentence1", "sentence2"], labels: &["not_entailment", "entailment"] },
];

/// A script of Hugging Face's whose rules Kiln follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Script {
    Clm,
    Mlm,
    Glue,
    Classification,
    Qa,
    Ner,
    Swag,
}

impl Script {
    /// The script that the path of a file names.
    pub(super) fn of(path: &str) -> Option<Self> {
        let file = path.rsplit('/').next().unwrap_or(path);
        Some(match file.strip_suffix(".py").unwrap_or(file) {
            "run_clm" => Self::Clm,
            "run_mlm" => Self::Mlm,
            "run_glue" => Self::Glue,
            "run_classification" | "run_text_classification" => Self::Classification,
            "run_qa" | "run_squad" => Self::Qa,
            "run_ner" => Self::Ner,
            "run_swag" => Self::Swag,
            _ => return None,
        })
    }

    /// The name of its file.
    pub(super) fn file(self) -> &'static str {
        match self {
            Self::Clm => "run_clm.py",
            Self::Mlm => "run_mlm.py",
            Self::Glue => "run_glue.py",
            Self::Classification => "run_classification.py",
            Self::Qa => "run_qa.py",
            Self::Ner => "run_ner.py",
            Self::Swag => "run_swag.py",
        }
    }

    /// Its task, where nothing else tells of another.
    pub(super) fn task(self) -> Task {
        match self {
            Self::Clm => Task::Clm,
            Self::Mlm => Task::Mlm,
            Self::Glue | Self::Classification => Task::SequenceClassification,
            Self::Qa => Task::QuestionAnswering,
            Self::Ner => Task::TokenClassification,
            Self::Swag => Task::MultipleChoice,
        }
    }
}
