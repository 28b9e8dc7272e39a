//! The page of one run, from its folder alone: `report.html` that `kiln train` leaves, and what
//! `kiln report RUN` makes of any run, finished, broken or going on. The page leaves out values
//! that no file holds, and names each file that cannot be read.

use std::path::{Path, PathBuf};

use kiln::run_folder::{CONFUSION, ConfusionFile, RUN_LOG, RunStatus, SAMPLES, STEP_TIMES, Status};
use kiln::session::provenance::Provenance;
use kiln::session::saved_plan;
use kiln::trainer::laps::{Parts, StepTimes};
use kiln_core::error::Result;
use kiln_core::files::read_regular_text;
use kiln_core::metrics::{self, Record, begun_at};
use kiln_core::stats::{median, quantile};
use kiln_core::words::duration;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::document::{Document, Matrix, Section, Statement, Tone, machine, own, validation};
use crate::compare::{figure_names, greater_is_better};
use crate::table::{Rows, Table, fixed, significant};

/// The contents of a run folder that the page shows.
#[derive(Debug)]
pub struct RunPage {
    folder: PathBuf,
    status: Status,
    /// The rows of `metrics.jsonl`, each with the seconds of training before it.
    pub(super) timed_rows: Vec<(Record, f64)>,
    /// The lines of `steps.jsonl`.
    pub(super) steps: Vec<StepTimes>,
    /// The machine and the program that trained; none of a run of an older Kiln.
    pub provenance: Option<Provenance>,
    /// The lines of the plan: what follows from the config and the data.
    derived: Vec<String>,
    /// The config as `plan.toml` has it.
    asked: Vec<String>,
    samples: Vec<Sample>,
    confusion: Option<ConfusionFile>,
    /// The lines of `run.log` besides the plan and the rows.
    events: Vec<String>,
    /// Files that cannot be read, and why.
    unreadable: Vec<String>,
    /// The speed of the device in a matrix product, in GFLOP/s, and a note on how it was measured.
    peak: Option<(f64, String)>,
}

/// A line of `samples.jsonl`.
#[derive(Debug, Deserialize)]
struct Sample {
    step: u64,
    text: String,
}

/// Classes of which the whole matrix is shown; of more, the pairs that are confused most.
const MOST_CLASSES: usize = 20;

/// Lines of `run.log` that are shown: the last ones.
const MOST_EVENTS: usize = 60;

/// Lines of a sample that are shown.
const MOST_SAMPLE_LINES: usize = 200;

/// A share of the time that waiting for data takes, above which that is worth a warning.
const MUCH_WAITING: f64 = 0.1;

impl RunPage {
    /// Reads the run in `folder`; none where there is none.
    ///
    /// # Errors
    /// A `status.json` that is no such file.
    pub fn read(folder: &Path) -> Result<Option<Self>> {
        let Some(status) = Status::read(folder)? else { return Ok(None) };
        let mut unreadable = Vec::new();
        let mut text = |name: &str| match read_regular_text(&folder.join(name)) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => {
                unreadable.push(format!("{name} cannot be read: {error}"));
                String::new()
            }
        };
        let (metrics, steps, plan) = (text(metrics::FILE), text(STEP_TIMES), text("plan.toml"));
        let (samples, confusion, log) = (text(SAMPLES), text(CONFUSION), text(RUN_LOG));
        // The last line of a run that is going on, or was killed, may be half written.
        let is_going_on = status.status == RunStatus::InProgress;
        let mut lines = |name: &str, text: &str, bad: usize| {
            let is_half = bad == 1 && !text.ends_with('\n');
            if bad > 0 && !(is_going_on && is_half) {
                unreadable.push(format!("{name}: {bad} of {} lines cannot be read", text.lines().count()));
            }
        };
        let rows = metrics.lines().filter_map(Record::from_json).collect::<Vec<_>>();
        lines(metrics::FILE, &metrics, metrics.lines().count() - rows.len());
        let [steps, samples] = [(STEP_TIMES, steps), (SAMPLES, samples)];
        let steps_read = json_lines::<StepTimes>(&steps.1);
        lines(steps.0, &steps.1, steps.1.lines().count() - steps_read.len());
        let samples_read = json_lines::<Sample>(&samples.1);
        lines(samples.0, &samples.1, samples.1.lines().count() - samples_read.len());
        let confusion = match confusion.as_str() {
            "" => None,
            text => serde_json::from_str(text)
                .map_err(|error| unreadable.push(format!("{CONFUSION} cannot be read: {error}")))
                .ok()
                .filter(ConfusionFile::is_square),
        };
        let provenance = Provenance::read(folder).unwrap_or_else(|error| {
            unreadable.push(error.to_string());
            None
        });
        let (comments, asked): (Vec<_>, Vec<_>) = plan.lines().partition(|line| line.starts_with('#'));
        let derived = match saved_plan(folder) {
            Ok(Some(plan)) => plan.describe().lines().map(str::to_owned).collect(),
            // The head of plan.toml has the same lines, in runs of every version.
            Ok(None) => comments.iter().map(|line| line.trim_start_matches("# ").to_owned()).collect(),
            Err(error) => {
                unreadable.push(error.to_string());
                Vec::new()
            }
        };
        Ok(Some(Self {
            folder: folder.into(),
            status,
            timed_rows: timed(rows),
            steps: steps_read,
            provenance,
            derived,
            asked: asked.into_iter().skip_while(|line| line.is_empty()).map(str::to_owned).collect(),
            samples: samples_read,
            confusion,
            events: events(&log),
            unreadable,
            peak: None,
        }))
    }

    /// Whether another process is at work on it.
    pub fn is_going_on(&self) -> bool {
        self.status.status == RunStatus::InProgress
    }

    /// Adds the measured speed of the device in a product of f32 matrices, in GFLOP/s.
    pub fn with_peak(mut self, gflops: f64) -> Self {
        let note = format!(
            "The device reaches {gflops:.0} GFLOP/s in a product of 2048 x 2048 f32 matrices, measured when this page was made. \
             Model FLOP: 6 x weights that multiply + 12 x layers x width x length a token."
        );
        self.peak = Some((gflops, note));
        self
    }

    pub(super) fn is_cpu(&self) -> bool {
        self.provenance.as_ref().is_some_and(|it| it.device.starts_with("cpu"))
    }

    fn rows(&self) -> impl DoubleEndedIterator<Item = &Record> {
        self.timed_rows.iter().map(|(row, _)| row)
    }

    /// The last value called `name`.
    fn last(&self, name: &str) -> Option<f64> {
        self.rows().rev().find_map(|row| row.get(name))
    }

    /// The evaluation of the model that was kept, or the last one.
    fn evaluation(&self) -> Option<&Record> {
        self.status.evaluation(self.rows())
    }

    /// The names of the figures of evaluations that lie between -1 and 1: accuracy, F1,
    /// correlations.
    pub(super) fn score_names(&self) -> Vec<&str> {
        let evaluation = self.rows().rev().find(|row| row.get("eval_loss").is_some());
        const SCORES: [&str; 5] =
            ["eval_accuracy", "eval_f1", "eval_matthews_correlation", "eval_pearson", "eval_spearmanr"];
        // A figure of a program's own is one where it lies between -1 and 1.
        let is_share = |name: &str| self.rows().filter_map(|row| row.get(name)).all(|value| value.abs() <= 1.0);
        let is_score =
            |name: &&str| SCORES.contains(name) || (greater_is_better(name) != Some(false) && is_share(name));
        evaluation.into_iter().flat_map(figure_names).filter(is_score).collect()
    }

    /// Steps, milliseconds of a step and share of waiting for data of every log row.
    fn windows(&self) -> impl Iterator<Item = (f64, f64, f64)> {
        let mut before = 0.0;
        self.rows().filter_map(move |row| {
            let (step, ms) = (row.get("step")?, row.get("step_ms")?);
            let steps = (step - before).max(0.0);
            before = step;
            Some((steps, ms, row.get("data_wait").unwrap_or(0.0)))
        })
    }

    /// Where the seconds of the run went, up to its last log row.
    pub(super) fn seconds_by_part(&self) -> Vec<(&'static str, f64)> {
        let (mut data, mut training) = (0.0, 0.0);
        for (steps, ms, wait) in self.windows() {
            data += steps * ms * wait / 1e3;
            training += steps * ms * (1.0 - wait) / 1e3;
        }
        let evaluation = self.rows().filter_map(|row| row.get("eval_runtime")).sum::<f64>();
        let saving = self.last("save_seconds").unwrap_or(0.0);
        let finite = |value: f64| if value.is_finite() { value } else { 0.0 };
        vec![
            ("waiting for data", finite(data)),
            ("training", finite(training)),
            ("evaluation", finite(evaluation)),
            ("saving", finite(saving)),
        ]
    }

    /// The words for figures of the last start alone, where the run was continued: `, from step 20
    /// on`.
    pub(super) fn of_last_start(&self) -> String {
        let summary = self.rows().rev().find(|row| row.get("train_runtime").is_some());
        summary.and_then(begun_at).map_or_else(String::new, |step| format!(", from step {step} on"))
    }

    fn waiting_share(&self) -> Option<f64> {
        let parts = self.seconds_by_part();
        let (data, training) = (parts[0].1, parts[1].1);
        (data + training > 0.0).then(|| data / (data + training))
    }

    /// The steps made: `status.json` is written now and then, rows more often.
    fn step(&self) -> u64 {
        self.rows().filter_map(|row| row.get("step")).fold(self.status.step as f64, f64::max) as u64
    }

    /// How the run stands, in a sentence.
    fn statement(&self) -> Statement {
        let Status { status, message, total_steps, seconds, .. } = &self.status;
        let step = self.step();
        let message = message.as_ref().map_or(String::new(), |message| format!(": {message}"));
        let evaluated = |key: &str| Some(format!("{} {}", validation(key), significant(self.evaluation()?.get(key)?)));
        let loss = evaluated("eval_loss");
        let evaluated = match &self.status.best_model {
            None => loss,
            Some(best) => {
                let loss = loss.filter(|_| best.metric != "eval_loss");
                let figures = evaluated(&best.metric).into_iter().chain(loss).collect::<Vec<_>>().join(", ");
                Some(format!("model of step {}, the best: {figures}", best.step))
            }
        };
        let last = self.last("loss").map(|value| format!("last loss {}", significant(value)));
        let losses = last.into_iter().chain(evaluated).map(|part| format!("; {part}")).collect::<String>();
        let (tone, sentence) = match status {
            RunStatus::Completed => {
                (Tone::Good, format!("Completed: {step} steps in {}{losses}{message}", duration(*seconds)))
            }
            RunStatus::Stopped => (
                Tone::Doubtful,
                format!("Stopped after step {step} of {total_steps} and {}{losses}{message}", duration(*seconds)),
            ),
            RunStatus::Failed => (
                Tone::Bad,
                format!("Failed after step {step} of {total_steps} and {}{losses}{message}", duration(*seconds)),
            ),
            RunStatus::InProgress => (
                Tone::Plain,
                format!(
                    "Going on when this page was made: step {step} of {total_steps} after {}{losses}",
                    duration(*seconds)
                ),
            ),
        };
        Statement::new(tone, format!("{}.", sentence.trim_end_matches('.')))
    }

    /// Warnings that the reader must know before believing the figures.
    fn warnings(&self) -> Vec<Statement> {
        let mut warnings = Vec::new();
        let mut warn = |tone: Tone, line: String| warnings.push(Statement::new(tone, line));
        let no_number = |key: &str| {
            let row = self.rows().find(|row| row.get(key).is_some_and(|value| !value.is_finite()))?;
            Some(format!("{key} is {} at step {}.", row.get(key)?, row.get("step")?))
        };
        ["loss", "grad_norm", "eval_loss"]
            .iter()
            .filter_map(|key| no_number(key))
            .for_each(|line| warn(Tone::Bad, line));
        if let Some(share) = self.waiting_share().filter(|share| *share > MUCH_WAITING) {
            warn(Tone::Doubtful, format!("Training waited for data {:.0} % of its time.", share * 100.0));
        }
        if self.provenance.as_ref().is_some_and(|it| it.build == "debug") {
            warn(
                Tone::Doubtful,
                "kiln was built without --release: the times are not those of a release build.".into(),
            );
        }
        if self.last(kiln::trainer::debug::MARK).is_some() {
            warn(Tone::Doubtful, "compiler.debug was on: the times are those of no other run.".into());
        }
        let best = self.rows().filter_map(|row| Some((row.get("step")?, row.get("eval_loss")?)));
        let best = best.filter(|(_, loss)| loss.is_finite()).min_by(|a, b| a.1.total_cmp(&b.1));
        if let (Some((step, least)), Some(last)) = (best, self.last("eval_loss"))
            && last > least * 1.02
        {
            let (least, last) = (significant(least), significant(last));
            let is_kept = self.status.best_model.as_ref().is_some_and(|best| best.step as f64 == step);
            let so = if is_kept { "later steps overfit, and their model was not kept" } else { "the model overfits" };
            warn(
                Tone::Doubtful,
                format!("The validation loss was least at step {step}, {least}, and is {last} at the end: {so}."),
            );
        }
        self.unreadable.iter().for_each(|line| warn(Tone::Doubtful, format!("{line}.")));
        warnings
    }

    /// The run as a document; `made_at` is the moment at which it is made, RFC 3339.
    pub(super) fn document(&self, made_at: String) -> Document {
        let name = self.status.name.clone().unwrap_or_else(|| self.folder.display().to_string());
        let sample = |sample: &Sample| {
            let head = format!("after step {}", sample.step);
            std::iter::once(head)
                .chain(sample.text.lines().take(MOST_SAMPLE_LINES).map(str::to_owned))
                .collect::<Vec<_>>()
        };
        let provenance = self
            .provenance
            .iter()
            .flat_map(|it| [machine(it), own(it)])
            .chain([format!("steps: metrics.jsonl and, with --step-times, steps.jsonl in {}", self.folder.display())]);
        let (matrix, confused) = self.confusion();
        Document {
            title: format!("{name}: {}", self.status.model),
            made_at,
            answer: Some(self.statement()),
            statements: self.warnings(),
            statements_title: "Warnings",
            failures: Vec::new(),
            conclusions: Vec::new(),
            labels: vec!["the run".into()],
            is_list: false,
            table: self.table(),
            matrix,
            sections: vec![
                Section::list("Classes that are confused most", confused, None),
                Section::text("Samples", self.samples.iter().flat_map(sample).collect(), false),
                Section::list("Notes", self.peak.iter().map(|(_, note)| note.clone()).collect(), Some("Note: ")),
                Section::text(
                    "Log",
                    Some(self.events.clone()).filter(|events| events.len() > 1).unwrap_or_default(),
                    false,
                ),
                Section {
                    hangs: true,
                    ..Section::text("Plan: what follows from the config and the data", self.derived.clone(), true)
                },
                Section::text("Plan: what was asked, and the defaults (plan.toml)", self.asked.clone(), true),
                Section::list("Provenance", provenance.collect(), None),
            ],
        }
    }

    fn table(&self) -> Table {
        let runs = [self];
        let mut rows = Rows::new(&runs);
        let finite = |value: f64| value.is_finite().then_some(value);
        let count = |key: &'static str| move |run: &&Self| Some(significant(run.last(key)?));
        rows.add("parameters", |run| Some(fixed(run.provenance.as_ref()?.parameters as f64, 0)));
        rows.add("steps", |run| Some(format!("{} of {}", run.step(), run.status.total_steps)));
        rows.add("epochs", count("epoch"));
        rows.add("examples", count("samples"));
        rows.add("tokens", count("tokens"));
        // Sums over steps are those of the whole run, and the row at the end has figures of the
        // last start.
        let last_start = self.of_last_start();
        let name = if last_start.is_empty() { "time" } else { "time of all starts" };
        rows.add(name, |run| Some(duration(run.status.seconds)));
        rows.add("last loss", count("loss"));
        rows.add("mean loss", count("train_loss"));
        rows.add("learning rate, last", |run| run.last("learning_rate").map(significant));
        rows.add("model", |run| {
            let best = run.status.best_model.as_ref()?;
            Some(format!("of step {}, the best by {}", best.step, validation(&best.metric)))
        });
        let evaluation = self.evaluation().cloned().unwrap_or_default();
        for name in figure_names(&evaluation) {
            rows.add(&validation(name), |_| evaluation.get(name).map(significant));
        }
        let best = self.rows().filter_map(|row| Some((row.get("step")?, row.get("eval_loss")?)));
        let best = best.min_by(|a, b| a.1.total_cmp(&b.1));
        rows.add("validation loss, least", |_| {
            best.map(|(step, loss)| format!("{} at step {step}", significant(loss)))
        });
        rows.add("validation examples", |_| evaluation.get("eval_samples").map(significant));
        rows.add(&format!("samples/s{last_start}"), count("train_samples_per_second"));
        let rate = self.tokens_per_s();
        rows.add(&format!("tokens/s, steady{last_start}"), |_| rate.map(significant));
        let (of, times) = self.step_times();
        let at = |q: f64| finite(quantile(&times, q)).map(significant);
        rows.add(&format!("step ms, median{of}"), |_| at(0.5));
        rows.add(&format!("step ms, p95{of}"), |_| at(0.95));
        rows.add(&format!("step ms, max{of}"), |_| at(1.0));
        let parts = self.steps.iter().map(StepTimes::parts).collect::<Vec<_>>();
        let parts = (!parts.is_empty()).then(|| Parts::over(&parts, median));
        let names = ["data wait", "forward", "backward", "communicate", "update", "sync and log"];
        for (index, name) in names.into_iter().enumerate() {
            let part = parts.map(|parts| parts.named()[index].1).filter(|ms| name != "communicate" || *ms > 0.0);
            rows.add(&format!("  {name}"), |_| part.map(significant));
        }
        if parts.is_none() {
            rows.add("  communicate", count("steady_communicate_ms"));
        }
        rows.add("waiting for data", |run| Some(format!("{:.1} %", run.waiting_share()? * 100.0)));
        let time = |key: &'static str| move |run: &&Self| Some(duration(run.last(key)?));
        rows.add(&format!("warm-up{last_start}"), time("warmup_seconds"));
        rows.add(&format!("evaluation{last_start}"), time("eval_seconds"));
        rows.add(&format!("saving{last_start}"), time("save_seconds"));
        let most = self.rows().filter_map(|row| row.get("peak_mib")).reduce(f64::max);
        rows.add("peak memory MiB", |_| most.map(|mib| fixed(mib, 0)));
        let flops = self.provenance.as_ref().and_then(|it| it.flops_per_token);
        let gflops = rate.zip(flops).map(|(rate, flops)| rate * flops / 1e9);
        rows.add("model GFLOP/s", |_| gflops.map(significant));
        let peak = self.peak.as_ref().map(|(peak, _)| *peak);
        rows.add("  of the measured peak", |_| Some(format!("{:.1} %", gflops? / peak? * 100.0)));
        rows.table(|_| "the run")
    }

    /// Attended tokens a second in the steady state.
    fn tokens_per_s(&self) -> Option<f64> {
        let of_rows = self.rows().filter_map(|row| row.get("tokens_per_s")).collect::<Vec<_>>();
        let rate = self.last("steady_tokens_per_second").unwrap_or_else(|| median(&of_rows));
        rate.is_finite().then_some(rate)
    }

    /// The milliseconds of steps: of each that neither compiled nor met a new shape, or the means
    /// between log rows.
    fn step_times(&self) -> (&'static str, Vec<f64>) {
        let calm = self.steps.iter().filter(|step| !step.new_shape && step.new_kernels == 0);
        let calm = calm.map(|step| step.step_ms).collect::<Vec<_>>();
        if calm.is_empty() {
            (" of log windows", self.windows().map(|(_, ms, _)| ms).filter(|ms| ms.is_finite()).collect())
        } else {
            ("", calm)
        }
    }

    /// The confusion matrix, or of many classes the pairs that are confused most.
    fn confusion(&self) -> (Option<Matrix>, Vec<String>) {
        let Some(ConfusionFile { step, labels, counts }) = &self.confusion else { return (None, Vec::new()) };
        if labels.len() > MOST_CLASSES {
            let pairs = counts.iter().enumerate().flat_map(|(is, row)| row.iter().enumerate().map(move |of| (is, of)));
            let wrong = pairs.filter(|(is, (predicted, count))| is != predicted && **count > 0);
            let mut wrong = wrong.map(|(is, (predicted, count))| (*count, is, predicted)).collect::<Vec<_>>();
            wrong.sort_by_key(|(count, is, predicted)| (std::cmp::Reverse(*count), *is, *predicted));
            let line = |(count, is, predicted): &(u64, usize, usize)| {
                format!(
                    "{} taken for {}: {count} of {}",
                    labels[*is],
                    labels[*predicted],
                    counts[*is].iter().sum::<u64>()
                )
            };
            return (None, wrong.iter().take(MOST_CLASSES).map(line).collect());
        }
        let share = |row: &Vec<u64>| {
            let all = row.iter().map(|count| *count as f64).sum::<f64>().max(1.0);
            row.iter().map(|count| (*count, (*count as f64 / all * 100.0) as u64)).collect()
        };
        let caption = format!(
            "Predictions after step {step}: a row for each label, a column for each prediction; the shade is the share of the row."
        );
        let rows = labels.iter().cloned().zip(counts.iter().map(share)).collect();
        (Some(Matrix { caption, labels: labels.clone(), rows }), Vec::new())
    }
}

fn json_lines<T: DeserializeOwned>(text: &str) -> Vec<T> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Rows with the seconds of training before them.
fn timed(rows: Vec<Record>) -> Vec<(Record, f64)> {
    let (mut seconds, mut before) = (0.0, 0.0);
    let timed = rows.into_iter().map(|row| {
        if let (Some(step), Some(ms)) = (row.get("step"), row.get("step_ms").filter(|ms| ms.is_finite())) {
            seconds += ms * (step - before).max(0.0) / 1e3;
            before = step;
        }
        (row, seconds)
    });
    timed.collect()
}

/// The lines of `run.log` without the plan, which ends with the output folder, the rows, the saves
/// and the tables of metrics.
fn events(log: &str) -> Vec<String> {
    let (mut events, mut is_plan) = (Vec::new(), false);
    for line in log.lines() {
        let said = line.split_once(' ').map_or(line, |(_, said)| said);
        let is_metric = said.ends_with(" metrics *****") || said.starts_with("  ") && said.contains(" = ");
        let is_row = said.starts_with("{'") || said.starts_with("saving ") || is_metric;
        if is_plan {
            is_plan = !said.starts_with("output  ");
        } else if !is_row {
            events.push(line.to_owned());
        }
        is_plan |= said.starts_with("kiln ") && said.ends_with(" begins");
    }
    events.split_off(events.len().saturating_sub(MOST_EVENTS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_tells_events_without_plan_and_rows() {
        let log = "T kiln 0.1.0 begins\nT model          gpt2\nT output         runs/a\nT {'step': 5}\nT saving x\n\
                   T ***** train metrics *****\nT   epoch          = 3.0\nT the batch was halved\nT ended: error\n";
        assert_eq!(events(log), ["T kiln 0.1.0 begins", "T the batch was halved", "T ended: error"]);
    }
}
