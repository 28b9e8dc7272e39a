//! The rows of a run while it trains, in the format that was asked for, and the progress line on
//! stderr.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use console::{StyledObject, measure_text_width, style};
use indicatif::{ProgressBar, ProgressFinish, ProgressState};
use kiln::plan::TrainPlan;
use kiln::trainer::{Activity, Callback, Control, Progress};
use kiln_core::metrics::{Record, begun_at};
use kiln_core::words::duration;

use super::figures::{epochs, figure, memory, rate, significant};
use super::pace::Pace;
use super::streams::{keep_below, show};
use super::talk::{LogFormat, Talk};
use crate::{keep_moving, progress_bar};

/// Prints rows on stdout, with a progress line on stderr when that is a terminal.
pub(crate) struct Printer {
    bar: ProgressBar,
    talk: Talk,
    table: Table,
    /// The last evaluation; at the end, that of the model that is kept.
    evaluation: Option<Record>,
    /// The lines about pretrained weights that were read, until they are said.
    loaded: Vec<String>,
    plan: Option<TrainPlan>,
    pace: Pace,
    /// The first step of this process and when it ended: they tell the pace before the first row.
    first: Option<(u64, Instant)>,
    /// The last loss, as the progress line shows it.
    loss: String,
    /// When the run is expected to end.
    end: Arc<Mutex<Option<Instant>>>,
}

impl Printer {
    /// A printer that says what `loaded` tells before the first step, unless a checkpoint takes its
    /// place.
    pub(crate) fn new(talk: Talk, loaded: Vec<String>) -> Self {
        let end = Arc::<Mutex<Option<Instant>>>::default();
        let bar = progress_bar("{took} [{wide_bar}] step {pos}/{len}{msg}{left}");
        let took = |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            let _ = out.write_str(&duration(state.elapsed().as_secs() as f64));
        };
        let expected = end.clone();
        let left = move |_: &ProgressState, out: &mut dyn std::fmt::Write| {
            if let Some(end) = *expected.lock().unwrap_or_else(PoisonError::into_inner) {
                let left = end.saturating_duration_since(Instant::now()).as_secs_f64().round();
                let _ = write!(out, " {} left", duration(left));
            }
        };
        bar.set_style(bar.style().with_key("took", took).with_key("left", left));
        let bar = bar.with_finish(ProgressFinish::AndClear);
        keep_moving(&bar);
        keep_below(Some(bar.clone()));
        Self {
            bar,
            talk,
            table: Table::default(),
            evaluation: None,
            loaded,
            plan: None,
            pace: Pace::default(),
            first: None,
            loss: String::new(),
            end,
        }
    }

    /// Forecasts the end of the run from where it is.
    fn forecast(&self, progress: &Progress) {
        if self.bar.is_hidden() {
            return;
        }
        let of_step = self
            .first
            .filter(|(step, _)| *step < progress.step)
            .map(|(step, ended)| ended.elapsed().as_secs_f64() * 1e3 / (progress.step - step) as f64);
        let left = self.pace.seconds_left(self.plan.as_ref(), progress.step, progress.total_steps, of_step);
        let left = left.and_then(|left| Duration::try_from_secs_f64(left).ok());
        let end = left.and_then(|left| Instant::now().checked_add(left));
        *self.end.lock().unwrap_or_else(PoisonError::into_inner) = end;
    }

    fn print(&mut self, row: &Record, in_table: fn(&mut Table, &Record) -> String) {
        // A row that cannot be shown is in metrics.jsonl all the same: no reason to end the
        // training.
        let _ = match self.talk.format {
            LogFormat::Table => show(in_table(&mut self.table, row)),
            LogFormat::Dict | LogFormat::Json => self.talk.record(row),
        };
    }
}

impl Drop for Printer {
    fn drop(&mut self) {
        keep_below(None);
        self.bar.finish_and_clear();
    }
}

impl<M> Callback<M> for Printer {
    fn on_resume(&mut self, progress: &Progress, checkpoint: &Path) {
        self.loaded.clear();
        let _ = self.talk.tell(format!("continuing after step {} from {}", progress.step, checkpoint.display()));
        self.bar.set_position(progress.step);
    }

    fn on_train_begin(&mut self, plan: &TrainPlan) {
        for line in self.loaded.drain(..) {
            let _ = self.talk.inform(line);
        }
        self.bar.set_length(plan.steps.total as u64);
        (self.plan, self.first) = (Some(plan.clone()), None);
    }

    fn on_step_end(&mut self, progress: &Progress, _control: &mut Control) {
        self.bar.set_length(progress.total_steps);
        self.bar.set_position(progress.step);
        self.bar.set_message(self.loss.clone());
        self.first.get_or_insert_with(|| (progress.step, Instant::now()));
        self.forecast(progress);
    }

    fn on_log(&mut self, progress: &Progress, row: &Record) {
        if let Some(loss) = row.get("loss") {
            self.loss = format!(" loss {}", significant(loss));
            self.bar.set_message(self.loss.clone());
        }
        self.pace.see(row);
        self.forecast(progress);
        self.print(row, Table::training);
    }

    fn on_evaluate(&mut self, progress: &Progress, row: &Record, _control: &mut Control) {
        self.pace.see(row);
        self.first = None;
        self.forecast(progress);
        self.print(row, Table::evaluation);
        self.evaluation = Some(row.clone());
    }

    fn on_activity(&mut self, _progress: &Progress, activity: Activity) {
        self.bar.set_message(format!("{} {activity}", self.loss));
    }

    fn on_samples(&mut self, progress: &Progress, samples: &[String]) {
        let _ = self.talk.samples(&format!("sample after step {}", progress.step), samples);
    }

    fn on_notice(&mut self, notice: &str) {
        let _ = self.talk.warn(notice);
    }

    fn on_load_best(&mut self, _progress: &Progress, evaluation: &Record) {
        self.evaluation = Some(evaluation.clone());
    }

    fn on_train_end(&mut self, _progress: &Progress, summary: &Record) {
        keep_below(None);
        self.bar.finish_and_clear();
        self.print(summary, |_, summary| self::summary(summary));
        let _ = self.talk.blocks(Some(summary), self.evaluation.as_ref());
    }
}

/// A column: its name and its width.
const COLUMNS: [(&str, usize); 7] =
    [("step", 8), ("epoch", 7), ("loss", 9), ("val loss", 9), ("learn rate", 10), ("tokens/s", 8), ("memory", 9)];

/// The names of the columns are said again after so many rows.
const NAMES_EVERY: usize = 40;

/// Rows in columns.
#[derive(Debug, Default)]
struct Table {
    rows: usize,
}

impl Table {
    fn training(&mut self, row: &Record) -> String {
        self.line(training(row), row.get("loss"), false)
    }

    fn evaluation(&mut self, row: &Record) -> String {
        self.line(evaluation(row), row.get("eval_loss"), true)
    }

    /// One row, marked where its loss is no number, with the names of the columns where they are
    /// due.
    fn line(&mut self, line: String, loss: Option<f64>, is_evaluation: bool) -> String {
        let line: StyledObject<_> = match loss {
            Some(loss) if !loss.is_finite() => style(line).red().bold(),
            Some(_) if is_evaluation => style(line).cyan(),
            _ => style(line),
        };
        let names = self.rows.is_multiple_of(NAMES_EVERY).then(|| format!("{}\n", style(names()).bold()));
        self.rows += 1;
        names.unwrap_or_default() + &line.to_string()
    }
}

/// The names of the columns.
pub(super) fn names() -> String {
    aligned(COLUMNS.map(|(name, _)| Some(name.to_owned())))
}

/// A row of training in columns.
pub(super) fn training(row: &Record) -> String {
    aligned([
        row.get("step").map(step),
        row.get("epoch").map(epochs),
        row.get("loss").map(significant),
        None,
        row.get("learning_rate").map(significant),
        row.get("tokens_per_s").map(rate),
        row.get("peak_mib").map(memory),
    ])
}

/// A row of an evaluation in columns, with its other figures.
pub(super) fn evaluation(row: &Record) -> String {
    let loss = row.get("eval_loss").map(significant);
    let line = aligned([row.get("step").map(step), row.get("epoch").map(epochs), None, loss, None, None, None]);
    let more = metrics(row);
    if more.is_empty() { line } else { format!("{line}  {more}") }
}

/// Cells at the right of their columns.
fn aligned(cells: [Option<String>; 7]) -> String {
    let cells = COLUMNS.iter().zip(&cells).map(|((_, width), cell)| right(cell.as_deref().unwrap_or(""), *width));
    cells.collect::<Vec<_>>().join(" ").trim_end().to_owned()
}

fn step(step: f64) -> String {
    format!("{step:.0}")
}

/// `text`, at the right of `width` columns.
fn right(text: &str, width: usize) -> String {
    format!("{}{text}", " ".repeat(width.saturating_sub(measure_text_width(text))))
}

/// The figures of an evaluation beside its loss, without its times and its size.
pub(super) fn metrics(row: &Record) -> String {
    let is_time =
        |name: &str| name.ends_with("_runtime") || name.ends_with("_per_second") || name.ends_with("_seconds");
    let is_known = |name: &str| ["eval_loss", "eval_samples"].contains(&name);
    let figures = row.fields().filter(|(name, _)| !is_known(name) && !is_time(name));
    let figures =
        figures.filter_map(|(name, value)| Some(format!("{} {}", name.strip_prefix("eval_")?, figure(value))));
    figures.collect::<Vec<_>>().join("  ")
}

/// The last row in words.
pub(super) fn summary(row: &Record) -> String {
    let get = |name: &str| row.get(name);
    let mut parts = vec![format!("train loss {}", get("train_loss").map_or("-".into(), significant))];
    parts.extend(get("steady_tokens_per_second").map(|speed| format!("{} tokens/s", rate(speed))));
    parts.extend(get("peak_mib").map(|peak| format!("at most {}", memory(peak))));
    let (steps, time) = (get("step").map_or("?".into(), step), get("train_runtime").map_or("?".into(), duration));
    // The time and the speeds are those of this start.
    let since = match begun_at(row) {
        Some(begun) => format!("step {steps} after {time} from step {begun} on"),
        None => format!("step {steps} after {time}"),
    };
    let (done, rest) = (style(since).bold(), parts.join(", "));
    format!("{done}: {rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_of_a_run_that_was_continued_tells_from_where_its_time_is() {
        let row = Record::default().with("step", 30).with("train_runtime", 0.5).with("train_loss", 2.0);
        let whole = row.clone().with("train_steps_per_second", 60.0);
        assert!(plain(&summary(&whole)).starts_with("step 30 after 0.5s: "), "{}", summary(&whole));
        let continued = row.with("train_steps_per_second", 20.0);
        assert!(
            plain(&summary(&continued)).starts_with("step 30 after 0.5s from step 20 on: "),
            "{}",
            summary(&continued)
        );
    }

    fn plain(text: &str) -> String {
        console::strip_ansi_codes(text).into_owned()
    }

    #[test]
    fn rows_are_aligned_under_their_columns() {
        let mut table = Table::default();
        let row = |step: u64, loss: f64| {
            Record::default()
                .with("step", step)
                .with("epoch", step as f64 / 7.0)
                .with("loss", loss)
                .with("grad_norm", 1.0)
                .with("learning_rate", 5e-5)
                .with("tokens_per_s", 12_345.678)
                .with("peak_mib", Some(812.34))
        };
        let evaluation = Record::default()
            .with("step", 20)
            .with("epoch", 3.0)
            .with("eval_loss", 2.5)
            .with("eval_accuracy", 0.912_345)
            .with("eval_samples", 5)
            .with("eval_runtime", 1.0);
        let text = [
            table.training(&row(1, 8.312_345)),
            table.training(&row(123_456, f64::NAN)),
            table.evaluation(&evaluation),
        ];
        let expected = [
            "    step   epoch      loss  val loss learn rate tokens/s    memory",
            "       1  0.1429     8.312             5.000e-5   12.35k 812.3 MiB",
            "  123456 1.764e4       nan             5.000e-5   12.35k 812.3 MiB",
            "      20   3.000               2.500  accuracy 0.9123",
        ];
        assert_eq!(plain(&text.join("\n")).lines().collect::<Vec<_>>(), expected);
        let again = (3..=40).map(|step| plain(&table.training(&row(step, 1.0))).lines().count()).sum::<usize>();
        assert_eq!(again, 38 + 1, "the names come again after 40 rows");
    }

    #[test]
    fn the_summary_tells_what_is_there() {
        let row = Record::default().with("step", 9).with("train_runtime", 83.2).with("train_loss", 2.34567);
        assert_eq!(plain(&summary(&row)), "step 9 after 1m 23s: train loss 2.346");
    }
}
