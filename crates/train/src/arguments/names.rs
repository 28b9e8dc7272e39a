//! Arguments of the Trainer that are one name out of a few: each an enum with its spelling in a
//! file, the list of all spellings and an error with the nearest one.

use kiln_core::choices;
use kiln_core::error::Error;

choices! {
    /// The way in which a run treats a run folder that exists already.
    OnExisting("on_existing") {
        /// Stop with an error; nothing is touched.
        Fail = "fail",
        /// Remove what an earlier run left there.
        Overwrite = "overwrite",
        /// Continue the run from its newest whole checkpoint; from the start when the folder holds
        /// no checkpoint and no model.
        Resume = "resume",
    }
}

choices! {
    /// When the model is evaluated during training (Hugging Face's `eval_strategy`).
    EvalStrategy("evaluation strategy") {
        /// Never.
        No = "no",
        /// Every `eval_steps` optimizer steps.
        Steps = "steps",
        /// At the end of every epoch.
        Epoch = "epoch",
    }
}

choices! {
    /// When a log row is written (Hugging Face's `logging_strategy`).
    LoggingStrategy("logging strategy") {
        /// Never; evaluations and the summary have their rows all the same.
        No = "no",
        /// Every `logging_steps` optimizer steps and at the end.
        Steps = "steps",
        /// At the end of every epoch and at the end.
        Epoch = "epoch",
    }
}

choices! {
    /// How much `kiln train` says besides rows and errors (Hugging Face's `log_level`).
    LogLevel("log level") {
        /// Everything, as `info`.
        Detail = "detail",
        /// Everything, as `info`.
        Debug = "debug",
        /// The plan, what is loaded and written, and notices.
        Info = "info",
        /// Notices.
        Warning = "warning",
        /// Neither plan nor notices.
        Error = "error",
        /// Neither plan nor notices.
        Critical = "critical",
        /// The default of the application, which is `info`.
        Passive = "passive",
    }
}

impl LogLevel {
    /// Whether the plan, what is loaded and what is written are said.
    pub fn informs(self) -> bool {
        matches!(self, Self::Detail | Self::Debug | Self::Info | Self::Passive)
    }

    /// Whether notices are said.
    pub fn warns(self) -> bool {
        self.informs() || self == Self::Warning
    }
}

choices! {
    /// When a checkpoint is saved during training (Hugging Face's `save_strategy`).
    SaveStrategy("save strategy") {
        /// Never on a schedule; a run that is stopped before its end saves one all the same.
        No = "no",
        /// Every `save_steps` optimizer steps and at the end.
        Steps = "steps",
        /// At the end of every epoch and at the end.
        Epoch = "epoch",
        /// After every evaluation that is the best so far.
        Best = "best",
    }
}

choices! {
    /// Who is told of the rows of a run, besides `metrics.jsonl` and stdout (Hugging Face's
    /// `report_to`).
    Integration("integration", unsupported) {
        /// TensorBoard event files in `tensorboard/` in the run folder.
        TensorBoard = "tensorboard",
        /// The MLflow server at `MLFLOW_TRACKING_URI`.
        Mlflow = "mlflow",
    }
}

choices! {
    /// Content and time of the uploads of `push_to_hub` (Hugging Face's `hub_strategy`).
    HubStrategy("hub strategy", no_strategy) {
        /// The model of the finished run.
        End = "end",
        /// The model of every checkpoint too.
        EverySave = "every_save",
        /// The model of every checkpoint too, and the checkpoint in the folder `last-checkpoint`,
        /// from which a run on another machine continues.
        Checkpoint = "checkpoint",
    }
}

fn no_strategy(given: &str) -> Option<Error> {
    (given == "all_checkpoints").then(|| {
        Error::config("hub_strategy = \"all_checkpoints\" is not supported: every checkpoint would stay on the Hub")
            .help("\"checkpoint\" keeps the last one there")
    })
}

/// The rest of transformers.integrations' names: services and their clients.
pub const SERVICES: [&str; 11] = [
    "azure_ml",
    "clearml",
    "codecarbon",
    "comet_ml",
    "dagshub",
    "dvclive",
    "flyte",
    "neptune",
    "swanlab",
    "trackio",
    "wandb",
];

fn unsupported(given: &str) -> Option<Error> {
    SERVICES.contains(&given).then(|| {
        Error::config(format!("Hugging Face's integration `{given}` is not supported by this version"))
            .help("metrics.jsonl in the run folder has every row; or use \"tensorboard\" or \"mlflow\"")
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_name_reads_back_as_itself() {
        for value in OnExisting::ALL {
            assert_eq!(value.as_str().parse::<OnExisting>().unwrap(), *value);
        }
        assert_eq!("best".parse::<SaveStrategy>().unwrap(), SaveStrategy::Best);
        assert_eq!("epoch".parse::<EvalStrategy>().unwrap(), EvalStrategy::Epoch);
    }

    #[test]
    fn names_refused_with_a_suggestion() {
        let error = "resumes".parse::<OnExisting>().unwrap_err();
        assert!(error.to_string().contains("did you mean `resume`?"), "{error}");
    }
}
