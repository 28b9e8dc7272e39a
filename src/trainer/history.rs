//! `trainer_state.json`, as `transformers` writes it (`TrainerState`): how far the run is, its best checkpoint, and every
//! row of `metrics.jsonl` as `log_history`.

use std::path::Path;

use serde_json::json;

use super::checkpoint;
use super::output::{RunFolder, write_whole};
use super::run::Run;
use crate::error::{Error, Result};
use crate::plan::RunPlan;

/// Writes `trainer_state.json`.
///
/// # Errors
/// The operating system's.
pub(super) fn write_trainer_state(folder: &RunFolder, plan: &RunPlan, run: &Run) -> Result<()> {
    let best = run.best.step.map(|step| folder.checkpoints().join(checkpoint::name(step)));
    let head = json!({
        "best_global_step": run.best.step,
        "best_metric": run.best.value(),
        "best_model_checkpoint": best.filter(|path| path.is_dir()).map(|path| path.display().to_string()),
        "epoch": run.progress.epoch,
        "eval_steps": plan.eval_steps,
        "global_step": run.progress.step,
        "is_hyper_param_search": false,
        "is_local_process_zero": true,
        "is_world_process_zero": true,
        "logging_steps": plan.logging_steps,
        "max_steps": plan.steps.total,
        "num_input_tokens_seen": run.progress.tokens,
        "num_train_epochs": (plan.steps.total as f64 / plan.steps.per_epoch as f64).ceil() as u64,
        "save_steps": plan.save_steps,
        "stateful_callbacks": {},
        "total_flos": 0,
        "train_batch_size": plan.batch.micro,
        "trial_name": null,
        "trial_params": null,
    });
    let head =
        serde_json::to_string_pretty(&head).map_err(|error| Error::data(format!("trainer_state.json: {error}")))?;
    // Rows go in as they stand: they may hold NaN, which Python's json module reads and writes.
    let history = rows(folder.path())?.join(",\n    ");
    let text = format!("{},\n  \"log_history\": [\n    {history}\n  ]\n}}\n", head.trim_end_matches("\n}"));
    write_whole(&folder.path().join("trainer_state.json"), text.as_bytes())
}

fn rows(folder: &Path) -> Result<Vec<String>> {
    let path = folder.join("metrics.jsonl");
    let text = std::fs::read_to_string(&path).map_err(|error| Error::io(format!("read {}", path.display()), &error))?;
    Ok(text.lines().map(str::to_owned).collect())
}
