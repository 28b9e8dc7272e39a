//! Reads the state of finished, running and broken runs from their folders alone.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kiln_core::error::{Error, Result};
use kiln_core::files::{read_json_if_there, read_regular_text};
use kiln_core::host;
use kiln_core::metrics::{self, Record};
use kiln_core::process::shell_quoted;
use kiln_core::words::thousands;
use serde::{Serialize, Serializer};

use super::checkpoint;
use super::status::{KILLED, RunStatus, Status};
use crate::provenance::{begun_from, started_elsewhere};

/// A run, as its folder shows it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Run {
    /// The folder.
    #[serde(rename = "run", serialize_with = "shown")]
    pub folder: PathBuf,
    /// How it stands; its step is the last one that left a trace: `status.json` is written now and
    /// then, rows more often.
    #[serde(flatten)]
    pub status: Status,
    /// Why it ended, in words; none while it goes on.
    pub reason: Option<String>,
    /// The last row of training.
    pub last_row: Option<Record>,
    /// The evaluation of the model that was kept, or the last one.
    pub evaluation: Option<Record>,
    /// The row that ends a run.
    pub summary: Option<Record>,
    /// The steps after which there are checkpoints.
    pub checkpoints: Vec<u64>,
    /// The folder of the trained model, once that is written.
    #[serde(serialize_with = "shown_if_any")]
    pub model_folder: Option<PathBuf>,
    /// The command that continues the run, where it can be continued.
    #[serde(rename = "continue")]
    pub continued_by: Option<String>,
}

impl Run {
    /// A run as far as it is known by its status alone.
    pub fn of_status(folder: &Path, status: Status) -> Self {
        Self {
            folder: folder.into(),
            reason: reason(&status),
            status,
            last_row: None,
            evaluation: None,
            summary: None,
            checkpoints: Vec::new(),
            model_folder: None,
            continued_by: None,
        }
    }

    /// The run in `folder`; none when there is no run of Kiln's.
    ///
    /// # Errors
    /// A status that cannot be read, or a folder of checkpoints that cannot.
    pub fn read(folder: &Path) -> Result<Option<Self>> {
        let Some(mut status) = Status::read(folder)? else { return Ok(None) };
        let rows = rows(folder);
        let logged = rows.iter().filter_map(|row| row.get("step")).fold(0.0, f64::max);
        status.step = status.step.max(logged as u64);
        let last = |name: &str| rows.iter().rev().find(|row| row.get(name).is_some()).cloned();
        let checkpoints = checkpoint::list(&folder.join(checkpoint::FOLDER))?;
        let checkpoints = checkpoints.into_iter().map(|(step, _)| step).collect::<Vec<_>>();
        let can_go_on = matches!(status.status, RunStatus::Stopped | RunStatus::Failed) && !checkpoints.is_empty();
        let model = folder.join("model");
        Ok(Some(Self {
            reason: reason(&status).map(|reason| reason + &memory_at_end(&status, last("peak_mib").as_ref())),
            last_row: last("loss"),
            evaluation: status.evaluation(rows.iter()).cloned(),
            summary: last("train_runtime"),
            model_folder: model.is_dir().then_some(model),
            continued_by: if can_go_on {
                continue_command(folder, limit_that_is_over(folder, status.seconds))
            } else {
                None
            },
            checkpoints,
            ..Self::of_status(folder, status)
        }))
    }
}

/// The command that continues the run in `folder`, with a higher limit of its time where `limit` is
/// over; none for the run of a program, which has no config.
pub fn continue_command(folder: &Path, limit: Option<Duration>) -> Option<String> {
    let longer = |limit: Duration| format!(" --set trainer.max_minutes={}", (limit.as_secs_f64() / 30.0) as f32);
    let (train, _) = train_command(folder)?;
    Some(format!("{train} --resume{}", limit.map_or_else(String::new, longer)))
}

/// The command that makes the run in `folder` once more, into a folder of its own and from the
/// checkpoint of another run where it was begun there; none for the run of a program.
pub fn repeat_command(folder: &Path) -> Option<String> {
    let (train, named) = train_command(folder)?;
    // Without a separator at the end, and with a name: `.` and `..` have none.
    let whole = named.components().collect::<PathBuf>();
    let whole = if whole.file_name().is_some() { whole } else { folder.canonicalize().ok()? };
    let output_dir = format!("run.output_dir={}-again", whole.display());
    let from = begun_from(folder)
        .map(|checkpoint| format!(" --resume-from {}", shell_quoted(&checkpoint.display().to_string())));
    Some(format!("{train} --set {}{}", shell_quoted(&output_dir), from.unwrap_or_default()))
}

/// The advice how to go on with the run in `folder`, which has ended early; none for the run of a
/// program.
pub(crate) fn way_on(folder: &Path) -> Option<String> {
    if checkpoint::list(&folder.join(checkpoint::FOLDER)).is_ok_and(|found| !found.is_empty()) {
        return Some(format!("continue with `{}`", continue_command(folder, None)?));
    }
    let (train, _) = train_command(folder)?;
    Some(format!("no checkpoint is there to continue from; begin again with `{train} --set run.on_existing=overwrite`"))
}

/// The command that trains by the plan of the run in `folder`, if the run has one, and the folder
/// as that command names it. Relative paths of a plan begin where the run was started: from another
/// folder the command goes there first.
fn train_command(folder: &Path) -> Option<(String, PathBuf)> {
    if !folder.join(PLAN).is_file() {
        return None;
    }
    let train = |named: &Path| format!("kiln train {}", shell_quoted(&named.join(PLAN).display().to_string()));
    let Some(there) = started_elsewhere(folder) else { return Some((train(folder), folder.into())) };
    let whole = folder.canonicalize().ok()?;
    let named = whole.strip_prefix(&there).ok().filter(|within| within.file_name().is_some()).unwrap_or(&whole);
    let go = format!("cd {} && ", shell_quoted(&there.display().to_string()));
    Some((go + &train(named), named.into()))
}

/// The config in the folder of a run.
const PLAN: &str = "plan.toml";

/// `trainer.max_minutes` of the run in `folder`, where that time is over after so many seconds.
fn limit_that_is_over(folder: &Path, seconds: f64) -> Option<Duration> {
    let mut plan = read_json_if_there::<serde_json::Value>(&folder.join(crate::plan::FILE)).ok()??;
    let limit: Duration = serde_json::from_value(plan.pointer_mut("/steps/max_duration")?.take()).ok()?;
    (seconds >= limit.as_secs_f64()).then_some(limit)
}

/// Paths may hold what is no text.
fn shown<S: Serializer>(path: &Path, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

fn shown_if_any<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    path.as_ref().map(|path| path.display().to_string()).serialize(serializer)
}

/// Why a run with this status ended; none while it goes on.
fn reason(status: &Status) -> Option<String> {
    let Status { step, total_steps, .. } = status;
    match (status.status, &status.message) {
        (RunStatus::InProgress, _) => None,
        (_, Some(message)) => Some(message.clone()),
        (RunStatus::Completed, None) if step >= total_steps => Some(format!("all of its {total_steps} steps are made")),
        (RunStatus::Completed, None) => Some(format!("it was to end after step {step}")),
        (_, None) => Some("it did not say".into()),
    }
}

/// The memory that a run without a word at its end had last, where that is most of this machine's.
fn memory_at_end(status: &Status, row: Option<&Record>) -> String {
    const MOST: f64 = 0.75;
    let peak = row.and_then(|row| row.get("peak_mib")).filter(|_| status.message.as_deref() == Some(KILLED));
    match peak.zip(host::memory_mib()) {
        Some((peak, all)) if peak > MOST * all => {
            let [peak, all] = [peak, all].map(|mib| thousands(mib.round() as u64));
            format!("; lack of memory is likely: it had {peak} of the {all} MiB of this machine")
        }
        _ => String::new(),
    }
}

/// The runs in `folder` and, one level down, in the folders in it, by name; with the error where a
/// run cannot be read, so that one broken run does not hide the others.
///
/// # Errors
/// A folder that cannot be read.
pub fn list(folder: &Path) -> Result<Vec<(PathBuf, Result<Run>)>> {
    let entries = std::fs::read_dir(folder).map_err(|error| Error::io(format!("read {}", folder.display()), &error))?;
    let mut folders = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect::<Vec<_>>();
    folders.sort();
    folders.insert(0, folder.into());
    let read = |path: PathBuf| Some((Run::read(&path).transpose()?, path));
    Ok(folders.into_iter().filter_map(read).map(|(run, path)| (path, run)).collect())
}

/// The rows of `metrics.jsonl` that can be read; the last one may be half written.
pub fn rows(folder: &Path) -> Vec<Record> {
    let text = read_regular_text(&folder.join(metrics::FILE)).unwrap_or_default();
    text.lines().filter_map(Record::from_json).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::run_folder::manifest::LOCK;

    #[test]
    fn a_command_names_a_folder_beside_the_run() {
        let place = tempfile::tempdir().unwrap();
        let run = place.path().join("run");
        std::fs::create_dir(&run).unwrap();
        std::fs::write(run.join("plan.toml"), "").unwrap();
        let beside = format!("--set run.output_dir={}-again", run.display());
        for folder in [run.clone(), run.join(""), run.join("."), run.join("x/..")] {
            std::fs::create_dir_all(run.join("x")).unwrap();
            let command = repeat_command(&folder).unwrap();
            assert!(command.ends_with(&beside), "{command}");
        }
    }

    #[test]
    fn a_command_goes_to_where_the_run_was_started() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path().canonicalize().unwrap();
        let [start, run] = [place.join("a start"), place.join("a start/runs/x")];
        std::fs::create_dir_all(&run).unwrap();
        std::fs::write(run.join(PLAN), "").unwrap();
        let of = |started_in: &Path| {
            let provenance = include_str!("../../../../tests/fixtures/own_run/provenance.json");
            let mut provenance: serde_json::Value = serde_json::from_str(provenance).unwrap();
            provenance["started_in"] = started_in.display().to_string().into();
            std::fs::write(run.join("provenance.json"), provenance.to_string()).unwrap();
            continue_command(&run, None).unwrap()
        };
        let there = format!("cd '{}' && kiln train runs/x/plan.toml --resume", start.display());
        assert_eq!(of(&start), there);
        let again = repeat_command(&run).unwrap();
        assert!(again.ends_with("&& kiln train runs/x/plan.toml --set run.output_dir=runs/x-again"), "{again}");
        let here = format!("kiln train '{}/plan.toml' --resume", run.display());
        assert_eq!(of(&std::env::current_dir().unwrap()), here);
        assert_eq!(of(&place.join("gone")), here, "a folder that is not there");
    }

    #[test]
    fn a_plan_that_is_another_object_has_no_limit() {
        let folder = tempfile::tempdir().unwrap();
        for plan in ["[]", "{\"steps\": 5}", "{}", "no JSON"] {
            std::fs::write(folder.path().join(crate::plan::FILE), plan).unwrap();
            assert_eq!(limit_that_is_over(folder.path(), 9.0), None, "{plan}");
        }
    }

    #[cfg(target_os = "linux")] // elsewhere the memory of the machine is not told
    #[test]
    fn a_process_without_a_word_at_its_end_that_had_most_of_the_memory_lacked_it() {
        let folder = tempfile::tempdir().unwrap();
        let status = Status {
            status: RunStatus::InProgress,
            message: None,
            name: None,
            model: "gpt2 clm".into(),
            step: 1,
            total_steps: 9,
            best_model: None,
            started_at: 0.0,
            written_at: 0.0,
            seconds_before: 0.0,
            seconds: 0.0,
        };
        status.write(folder.path()).unwrap();
        std::fs::write(folder.path().join(LOCK), "").unwrap();
        let reason = |peak: f64| {
            let row = format!("{{\"step\": 2, \"loss\": 1.0, \"peak_mib\": {peak}}}\n");
            std::fs::write(folder.path().join(metrics::FILE), row).unwrap();
            Run::read(folder.path()).unwrap().unwrap().reason.unwrap()
        };
        let all = host::memory_mib().unwrap();
        assert_eq!(reason(0.5 * all), KILLED);
        let (had, of) = (thousands((0.9 * all).round() as u64), thousands(all.round() as u64));
        let likely = format!("{KILLED}; lack of memory is likely: it had {had} of the {of} MiB of this machine");
        assert_eq!(reason(0.9 * all), likely);
    }
}
