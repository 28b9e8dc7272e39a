//! A finished run, read from its folder for a report: plan, provenance, steps, losses and totals.
//! It runs nothing and changes nothing; a run that is not complete, or whose files do not fit
//! together, is refused.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use kiln::config::toml_words::toml_error;
use kiln::plan::{self, RunPlan};
use kiln::run_folder::{RunStatus, STEP_TIMES, Status};
use kiln::session::provenance::Provenance;
use kiln::session::saved_plan;
use kiln::trainer::debug;
use kiln::trainer::laps::StepTimes;
use kiln_core::error::{Error, Result};
use kiln_core::files::{read_error, read_regular_text};
use kiln_core::metrics::{self, Record};
use kiln_core::process::shell_quoted;
use kiln_core::words::json_words_in_line;

use crate::figures::{Window, median_step_ms, windows};
use crate::runner::Failure;

/// Steps without a new shape after which the warm-up is over, on the CPU, where nothing is tuned.
const QUIET_STEPS: usize = 3;

/// Steps without a new shape after which the warm-up is over, on devices whose kernels are tuned
/// and captured.
const QUIET_STEPS_TUNED: usize = 20;

/// The advice for a run that is damaged.
const AGAIN: &str = "make the run again; a report is made of whole runs only";

/// A row of `metrics.jsonl` about training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossRow {
    /// Optimizer steps made.
    pub step: u64,
    /// Examples seen.
    pub samples: u64,
    /// Attended tokens seen.
    pub tokens: u64,
    /// The loss.
    pub loss: f64,
    /// Milliseconds of a step of its window.
    pub step_ms: f64,
    /// Training seconds from the first step on, without evaluation and saving.
    pub seconds: f64,
}

impl LossRow {
    /// The values of `row`, without the seconds, which it lacks.
    fn of(row: &Record) -> Option<Self> {
        let count = |name: &str| row.get(name).map(|count| count as u64);
        Some(Self {
            step: count("step")?,
            samples: count("samples")?,
            tokens: count("tokens")?,
            loss: row.get("loss")?,
            step_ms: row.get("step_ms")?,
            seconds: 0.0,
        })
    }
}

/// The message about a plan that was saved and cannot be read.
#[derive(Debug, Clone)]
pub struct Unreadable(String);

impl Unreadable {
    /// The help of the error.
    const HELP: &str = "make the run again, or, where another build of Kiln wrote the file, remove it: reports then leave out the \
                        batch and the learning rate of the run";

    /// The failure of one arm among others whose saved plan cannot be read.
    pub(crate) fn failure(&self) -> Failure {
        Failure::of_data(format!("{}; {}", self.0, Self::HELP))
    }

    /// The error of a report on a run whose saved plan cannot be read.
    pub(crate) fn error(&self) -> Error {
        Error::data(&self.0).help(Self::HELP)
    }
}

/// See the top of this file.
#[derive(Debug, Clone)]
pub struct MeasuredRun {
    /// The run folder.
    pub folder: PathBuf,
    /// `plan.toml` as `section.key` = value.
    pub settings: BTreeMap<String, String>,
    /// Who made it and where; none for a run of an earlier Kiln.
    pub provenance: Option<Provenance>,
    /// The lines of `steps.jsonl`; empty when they were not asked for.
    pub steps: Vec<StepTimes>,
    /// Windows after the warm-up.
    pub steady: Vec<Window>,
    /// Seconds before the steady state (the warm-up stage, where there was one, and the first
    /// steps), and the steps of it.
    pub warmup: (f64, u64),
    /// Steps of the steady state that were the first of a batch shape, or compiled or tuned
    /// kernels.
    pub late_steps: u64,
    /// Losses.
    pub losses: Vec<LossRow>,
    /// Examples that it learned from, up to its last log row.
    pub samples: u64,
    /// Seconds that the run has taken, over all its processes.
    pub seconds: f64,
    /// The day on which it was made, or last continued: `2026-11-21`, UTC.
    pub day: String,
    /// The plan as it was saved; none for a run of an earlier Kiln, and an error where it cannot be
    /// read. Of all figures only those that describe an arm come from it.
    pub plan: std::result::Result<Option<RunPlan>, Unreadable>,
    /// The summary row.
    pub summary: Record,
    /// Evaluation rows.
    pub evaluations: Vec<Record>,
    /// The evaluation of the model that was kept, or the last one.
    pub evaluation: Option<Record>,
}

impl MeasuredRun {
    /// Reads the run in `folder`.
    ///
    /// # Errors
    /// A folder without a run, a run that is not complete, files that cannot be read or do not fit
    /// together.
    pub fn read(folder: &Path) -> Result<Self> {
        let shown = folder.display();
        let Some(status) = Status::read(folder)? else {
            return Err(Error::data(format!("{shown}: there is no run of Kiln's in this folder"))
                .help("`kiln runs FOLDER` lists the runs in a folder"));
        };
        // A run whose time was over has its results, too.
        let has_results = status.status == RunStatus::Stopped && folder.join("all_results.json").exists();
        if status.status != RunStatus::Completed && !has_results {
            let message =
                status.message.map_or_else(String::new, |message| format!(": {}", message.replace('\n', " ")));
            return Err(Error::data(format!(
                "{shown}: the run is {} after step {} of {}{message}; a report needs a complete one",
                status.status, status.step, status.total_steps
            ))
            .help(format!(
                "`kiln describe {}` tells how it stands and how to continue it",
                shell_quoted(&shown.to_string())
            )));
        }
        let damaged = |file: &str, what: String| metrics::damaged(&folder.join(file), what).help(AGAIN);
        // The run of a program has no config.
        let is_a_programs = matches!(saved_plan(folder), Ok(Some(plan)) if plan.architecture.is_none());
        let plan = if is_a_programs { String::new() } else { read(&folder.join("plan.toml"))? };
        let plan: toml::Table = plan
            .parse()
            .map_err(|error| damaged("plan.toml", toml_error("its line", &plan, &error).message().to_owned()))?;
        let mut settings = BTreeMap::new();
        flatten("", &toml::Value::Table(plan), &mut settings);
        let damaged_plan = |error: Error| {
            let path = folder.join(plan::FILE);
            let place = format!("{}: ", path.display());
            let what = error.message().strip_prefix(&place).unwrap_or(error.message());
            Unreadable(metrics::damaged(&path, what).message().to_owned())
        };
        let plan = saved_plan(folder).map_err(damaged_plan);
        let (mut rows, mut summary, mut evaluations) = (Vec::new(), None, Vec::new());
        for row in metrics::read(folder).map_err(|error| error.help(AGAIN))? {
            if row.get("train_runtime").is_some() {
                summary = Some(row);
            } else if row.get("eval_loss").is_some() {
                evaluations.push(row);
            } else if row.get("loss").is_some() {
                rows.push(row);
            }
        }
        let summary = summary.ok_or_else(|| damaged("metrics.jsonl", "its summary is missing".into()))?;
        let mut steps = Vec::new();
        let path = folder.join(STEP_TIMES);
        if path.exists() {
            for (number, line) in read(&path)?.lines().enumerate() {
                let step = serde_json::from_str::<StepTimes>(line);
                steps.push(step.map_err(|error| {
                    damaged(STEP_TIMES, format!("line {}: {}", number + 1, json_words_in_line(&error)))
                })?);
            }
            if steps.last().map(|step| step.step) != Some(status.step) {
                return Err(damaged(STEP_TIMES, format!("it does not end at step {}", status.step)));
            }
        }
        let provenance = Provenance::read(folder)?;
        let is_cpu = provenance.as_ref().is_some_and(|it| it.device.starts_with("cpu"));
        let quiet = if is_cpu { QUIET_STEPS } else { QUIET_STEPS_TUNED };
        let losses = rows.iter().map(LossRow::of).collect::<Option<Vec<_>>>();
        let mut losses = losses.ok_or_else(|| damaged("metrics.jsonl", "a training row lacks a number".into()))?;
        let (steady, mut warmup, late_steps) =
            if steps.is_empty() { windows_of_log(&losses) } else { windows_of_steps(&steps, quiet) };
        warmup.0 += rows.iter().filter_map(|row| row.get("warmup_seconds")).sum::<f64>();
        let samples = losses.last().map_or(0, |row| row.samples);
        set_seconds(&mut losses, &steps);
        Ok(Self {
            folder: folder.into(),
            settings,
            provenance,
            steps,
            steady,
            warmup,
            late_steps,
            losses,
            samples,
            seconds: status.seconds,
            day: day(status.started_at),
            plan,
            summary,
            evaluation: status.evaluation(evaluations.iter()).cloned(),
            evaluations,
        })
    }

    /// A number of the summary row.
    pub fn summary(&self, name: &str) -> Option<f64> {
        self.summary.get(name)
    }

    /// Whether `compiler.debug` was on, so that its times are those of no other run.
    pub fn is_debug(&self) -> bool {
        self.summary(debug::MARK).is_some()
    }

    /// Seconds of the warm-up beyond what its steps take in the steady state.
    pub fn warmup_excess(&self) -> Option<f64> {
        let steady = median_step_ms(&self.steady) * self.warmup.1 as f64 / 1e3;
        steady.is_finite().then(|| (self.warmup.0 - steady).max(0.0))
    }

    /// Whether Burn's fusion was held off.
    pub fn is_unfused(&self) -> bool {
        self.summary("unfused").is_some()
    }
}

/// The day of a moment in seconds since 1970.
fn day(seconds: f64) -> String {
    // Beyond the year 9999 there are no four digits.
    let since = Duration::try_from_secs_f64(seconds).ok().filter(|since| since.as_secs() < 253_402_300_800);
    let moment = since.and_then(|since| UNIX_EPOCH.checked_add(since));
    moment.map_or_else(|| "unknown".into(), |moment| humantime::format_rfc3339(moment).to_string()[..10].to_owned())
}

fn read(path: &Path) -> Result<String> {
    read_regular_text(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::InvalidData => metrics::damaged(path, error).help(AGAIN),
        _ => read_error(path, &error),
    })
}

type Windows = (Vec<Window>, (f64, u64), u64);

/// Windows between log rows; the first one is the warm-up, as in the run's own summary.
fn windows_of_log(rows: &[LossRow]) -> Windows {
    let first = rows.first().map_or((0.0, 0), |row| (row.step_ms * row.step as f64 / 1e3, row.step));
    let windows = rows.windows(2).map(|pair| {
        let steps = pair[1].step - pair[0].step;
        Window {
            steps,
            samples: pair[1].samples - pair[0].samples,
            tokens: pair[1].tokens - pair[0].tokens,
            ms: pair[1].step_ms * steps as f64,
            parts: None,
            device_reads: None,
            kernel_launches: None,
            joules: None,
        }
    });
    (windows.filter(|window| window.steps > 0 && window.samples > 0).collect(), first, 0)
}

/// The warm-up ends after the first `quiet` steps in a row without a new shape or kernel (they
/// belong to it), where the device had finished; windows end where it had finished, too. Those of a
/// step before which the run was held up are left out.
fn windows_of_steps(steps: &[StepTimes], quiet: usize) -> Windows {
    let mut calm = 0;
    let begin = steps.iter().position(|step| {
        let over = calm >= quiet;
        calm = if has_news(step) { 0 } else { calm + 1 };
        over
    });
    // A run that never calms down is all warm-up. The first window begins after a step that waited
    // for the device: otherwise it would include the time of earlier work that the device had not
    // finished.
    let begin = begin.unwrap_or(steps.len());
    let begin = (begin..steps.len()).find(|step| steps[step.saturating_sub(1)].synced).unwrap_or(steps.len());
    let warmup = steps[..begin].iter().map(|step| step.step_ms).sum::<f64>() / 1e3;
    let late = steps[begin..].iter().filter(|step| has_news(step)).count() as u64;
    let undisturbed = windows(&steps[begin..]).filter(|window| !window.iter().any(|step| step.held_up));
    let windows = undisturbed.map(Window::of).collect();
    (windows, (warmup, begin as u64), late)
}

/// Sets the seconds of every row: by the times of the `steps`, or by those in the rows where there
/// are none.
fn set_seconds(rows: &mut [LossRow], steps: &[StepTimes]) {
    let (mut seconds, mut before, mut times) = (0.0, 0, steps.iter().peekable());
    for row in rows {
        if steps.is_empty() {
            seconds += row.step_ms * (row.step - before) as f64 / 1e3;
            before = row.step;
        }
        while let Some(step) = times.next_if(|step| step.step <= row.step) {
            seconds += step.step_ms / 1e3;
        }
        row.seconds = seconds;
    }
}

/// `[a] b = 1` as `a.b` = `1`.
fn flatten(prefix: &str, value: &toml::Value, into: &mut BTreeMap<String, String>) {
    match value {
        toml::Value::Table(table) => {
            for (key, value) in table {
                let full = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                flatten(&full, value, into);
            }
        }
        toml::Value::String(text) => drop(into.insert(prefix.into(), text.clone())),
        other => drop(into.insert(prefix.into(), other.to_string())),
    }
}

/// A batch shape or a kernel came up for the first time: something was compiled, or tuned.
fn has_news(step: &StepTimes) -> bool {
    step.new_shape || step.new_kernels > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(new_shapes: &[usize], count: usize) -> Vec<StepTimes> {
        let step = |index: usize| StepTimes {
            step: index as u64 + 1,
            samples: 4,
            tokens: 32,
            step_ms: 10.0,
            new_shape: new_shapes.contains(&index),
            synced: true,
            ..StepTimes::default()
        };
        (0..count).map(step).collect()
    }

    #[test]
    fn the_warmup_ends_after_steps_without_a_new_shape() {
        let (windows, warmup, late) = windows_of_steps(&steps(&[0], 10), 3);
        assert_eq!((windows.len(), warmup.1, late), (6, 4, 0));
        assert!((warmup.0 - 0.04).abs() < 1e-12);
        let (windows, warmup, late) = windows_of_steps(&steps(&[0, 2, 8], 10), 3);
        assert_eq!((windows.len(), warmup.1, late), (4, 6, 1));
        assert_eq!(windows_of_steps(&steps(&[0, 3, 6, 9], 10), 3).0.len(), 0);
        // A tuning is news as a shape is.
        let mut tuned = steps(&[0], 10);
        (tuned[2].new_kernels, tuned[8].new_kernels) = (3, 1);
        let (windows, warmup, late) = windows_of_steps(&tuned, 3);
        assert_eq!((windows.len(), warmup.1, late), (4, 6, 1));
    }

    #[test]
    fn steps_after_others_turns_are_left_out() {
        let mut steps = steps(&[0], 12);
        steps.iter_mut().for_each(|step| step.held_up = step.step % 5 == 1);
        let (windows, warmup, _) = windows_of_steps(&steps, 3);
        assert_eq!((windows.len(), warmup.1), (6, 4), "steps 5, 7 to 10 and 12");
    }

    #[test]
    fn windows_end_where_the_device_had_finished() {
        let mut steps = steps(&[0], 10);
        steps.iter_mut().for_each(|step| step.synced = step.step % 3 == 0);
        let (windows, ..) = windows_of_steps(&steps, 3);
        let found = windows.iter().map(|window| (window.steps, window.samples, window.ms)).collect::<Vec<_>>();
        assert_eq!(found, [(3, 12, 30.0)], "steps 5 and 6 wait for what came before, and step 10 was not waited for");
    }
}
