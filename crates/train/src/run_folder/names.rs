//! The names of files in a run folder that other parts of Kiln write.

use std::path::{Path, PathBuf};

/// The log of the run.
pub const RUN_LOG: &str = "run.log";

/// The folder of the logs of the ranks besides 0.
pub const LOGS: &str = "ranks";

/// The log of rank `rank`.
pub fn log_of(rank: usize) -> PathBuf {
    Path::new(LOGS).join(format!("{rank}.log"))
}

/// The time of every step by part, one line a step.
pub const STEP_TIMES: &str = "steps.jsonl";

/// The profile of some steps.
pub const TRACE: &str = "trace.json";

/// The predictions of `trainer.do_predict`.
pub const PREDICTIONS: &str = "predict_results.jsonl";

/// The folder of the bundle about a fault.
pub const FAULT: &str = "fault";

/// The folder of `compiler.debug`.
pub const COMPILER: &str = "compiler";

/// The files in [`COMPILER`].
pub const COMPILER_FILES: [&str; 2] = ["report.json", "summary.txt"];

/// The run on the MLflow server: its address and the run's id there.
pub const MLFLOW: &str = "mlflow.json";

/// The folder of TensorBoard's event files.
pub const TENSORBOARD: &str = "tensorboard";

/// The names of event files, with the time and the process as `*`.
pub(super) const EVENT_FILES: &str = "events.out.tfevents.*.kiln.*";

/// Whether `name` is that of an event file that Kiln has written.
pub(super) fn is_event_file(name: &str) -> bool {
    name.strip_prefix("events.out.tfevents.").is_some_and(|rest| rest.contains(".kiln."))
}
