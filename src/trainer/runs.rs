//! What can be told of finished, running and broken runs from their folders alone: `kiln runs` and `kiln describe`.

use std::path::{Path, PathBuf};

use crate::base::error::{Error, Result, one_line};
use crate::base::files::read_regular_text;
use crate::base::metrics::Record;
use crate::session::saved_plan;
use crate::trainer::checkpoint;
use crate::trainer::{RunStatus, Status};

/// The runs in `folder` and, one level down, in the folders in it, by name; with the error where a run's status cannot be
/// read, so that one broken run does not hide the others.
///
/// # Errors
/// A folder that cannot be read.
pub fn list(folder: &Path) -> Result<Vec<(PathBuf, Result<Status>)>> {
    let entries = std::fs::read_dir(folder).map_err(|error| Error::io(format!("read {}", folder.display()), &error))?;
    let mut folders = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect::<Vec<_>>();
    folders.sort();
    folders.insert(0, folder.into());
    let read = |path: PathBuf| Some((Status::read(&path).transpose()?, path));
    Ok(folders.into_iter().filter_map(read).map(|(status, path)| (path, status)).collect())
}

/// One line a run: name, status, steps, seconds, what is trained; or why its status cannot be read.
pub fn table(runs: &[(PathBuf, Result<Status>)]) -> String {
    let name = |path: &Path| one_line(&path.display().to_string());
    let width = runs.iter().map(|(path, _)| name(path).chars().count()).max().unwrap_or(0).max(3);
    let mut text = format!("{:<width$}  {:<10}  {:>15}  {:>9}  MODEL\n", "RUN", "STATUS", "STEPS", "SECONDS");
    for (path, status) in runs {
        let (status, steps, seconds, model) = match status {
            Ok(status) => (
                status.status.to_string(),
                format!("{}/{}", last_step(path, status), status.total_steps),
                format!("{:.1}", status.seconds),
                one_line(&status.model),
            ),
            Err(error) => ("Unreadable".into(), "-".into(), "-".into(), one_line(&error.to_string())),
        };
        text += &format!("{:<width$}  {status:<10}  {steps:>15}  {seconds:>9}  {model}\n", name(path));
    }
    text
}

/// Everything worth telling of the run in `folder`.
///
/// # Errors
/// A folder without a run, or files of it that cannot be read.
pub fn describe(folder: &Path) -> Result<String> {
    let Some(status) = Status::read(folder)? else {
        return Err(Error::data(format!("{}: there is no run of Kiln's in this folder", folder.display()))
            .help("`kiln runs FOLDER` lists the runs in a folder"));
    };
    let mut text = String::new();
    let mut line = |name: &str, value: String| text += &format!("{name:<14} {}\n", one_line(&value));
    line("status", status.status.to_string());
    if let Some(message) = &status.message {
        line("", message.clone());
    }
    if let Some(name) = &status.name {
        line("name", name.clone());
    }
    line("model", status.model.clone());
    line("steps", format!("{} of {}", last_step(folder, &status), status.total_steps));
    match saved_plan(folder) {
        Ok(None) => {}
        Ok(Some(plan)) => {
            line("batch", plan.batch.arithmetic());
            line("learning rate", plan.optimizer.schedule.describe());
        }
        Err(error) => line("plan", error.to_string()),
    }
    line("seconds", format!("{:.1}", status.seconds));
    let rows = rows(folder);
    for (name, key) in [("last row", "loss"), ("evaluation", "eval_loss"), ("summary", "train_runtime")] {
        if let Some(row) = rows.iter().rev().find(|row| row.get(key).is_some()) {
            line(name, row.to_json());
        }
    }
    let checkpoints = checkpoint::list(&folder.join(checkpoint::FOLDER))?;
    let names = checkpoints.iter().map(|(step, _)| step.to_string()).collect::<Vec<_>>();
    line("checkpoints", if names.is_empty() { "none".into() } else { format!("after step {}", names.join(", ")) });
    let model = folder.join("model");
    if model.is_dir() {
        line("model folder", model.display().to_string());
    }
    if matches!(status.status, RunStatus::Stopped | RunStatus::Failed) && !names.is_empty() {
        line("continue", format!("kiln train {} --resume", folder.join("plan.toml").display()));
    }
    Ok(text)
}

/// The last step that left a trace: `status.json` is written now and then, rows more often.
fn last_step(folder: &Path, status: &Status) -> u64 {
    let logged = rows(folder).iter().filter_map(|row| row.get("step")).fold(0.0, f64::max);
    status.step.max(logged as u64)
}

/// The rows of `metrics.jsonl` that can be read; the last one may be half written.
fn rows(folder: &Path) -> Vec<Record> {
    let text = read_regular_text(&folder.join("metrics.jsonl")).unwrap_or_default();
    text.lines().filter_map(Record::from_json).collect()
}
