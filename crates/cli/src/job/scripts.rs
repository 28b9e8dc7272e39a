//! The names that hyperparameters of jobs have beside the keys of Kiln's config, the arguments of
//! `TrainingArguments` and those of Hugging Face's scripts ([`kiln::config::scripts`]): Kiln's and
//! SageMaker's own; and what a job has to know of the scripts themselves.

use kiln::config::Task;
use kiln::config::scripts::Means::{self, Key, More, Nothing, Off};

const PLATFORM: &str = "it belongs to the platform";
const OPTIONS: &str = "`kiln launch` starts the ranks, with options of its own";
const RESULTS: &str = "a job writes its model to SM_MODEL_DIR, other results to SM_OUTPUT_DATA_DIR";
const RESUMES: &str =
    "a job continues from its folder of checkpoints where there is one, and begins where there is none";

/// Every name that is a job's alone. Those that are read with others stand for no key of a config.
pub(super) const NAMES: &[(&str, Means)] = &[
    // Kiln's own.
    ("kiln_config", More("")),
    ("price_per_hour", More("")),
    ("max_run", More("")),
    // The notebooks.
    ("training_script", More("")),
    ("n_gpus", More("")),
    ("num_gpus", More("")),
    ("n_gpu", More("")),
    ("_n_gpu", More("")),
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
    ("sagemaker_training_compiler_enabled", More("")),
    ("sagemaker_training_compiler_debug_mode", More("")),
    // An option of `kiln train`.
    ("compiler", Key("compiler.enabled")),
    ("sagemaker_program", More("")),
    ("sagemaker_submit_directory", Nothing(PLATFORM)),
    ("sagemaker_container_log_level", Nothing(PLATFORM)),
    ("sagemaker_job_name", Key("run.name")),
    ("sagemaker_region", Nothing(PLATFORM)),
    ("sagemaker_instance_type", Nothing(PLATFORM)),
    ("sagemaker_requirements", Nothing(PLATFORM)),
    ("sagemaker_s3_output", Nothing(PLATFORM)),
    // Of a tuning job.
    ("_tuning_objective_metric", Nothing(PLATFORM)),
    ("sagemaker_distributed_dataparallel_enabled", More("")),
    ("sagemaker_pytorch_xla_multi_worker_enabled", More("")),
    ("sagemaker_pytorch_ddp_enabled", More("")),
    ("sagemaker_torch_distributed_enabled", More("")),
    ("sagemaker_mpi_enabled", More("")),
    ("sagemaker_mpi_num_of_processes_per_host", More("")),
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
