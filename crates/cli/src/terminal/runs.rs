//! The output of `kiln runs` and `kiln describe` for people.

use std::path::PathBuf;

use console::{StyledObject, measure_text_width, style};
use kiln::run_folder::runs::Run;
use kiln::run_folder::{BestModel, RunStatus};
use kiln::session::saved_plan;
use kiln_core::error::{Result, one_line};
use kiln_core::metrics::Record;
use kiln_core::words::duration;

use super::figures::{epochs, fitted, memory, moment, rate, significant};
use super::rows::{metrics, summary};

/// Columns of a description's names and the space after them.
const NAME: usize = 15;

/// The names of the columns. The first and the last two are texts, to the left; figures are to the
/// right.
const COLUMNS: [&str; 9] = ["RUN", "STATUS", "STEPS", "LOSS", "VAL LOSS", "TIME", "STARTED", "MODEL", "REASON"];

/// A line a run: its folder, how it stands, how far it came, its last losses, when it was started,
/// what is trained and why it ended (without help), or why it cannot be read; of at most `width`
/// columns.
pub(crate) fn table(runs: &[(PathBuf, Result<Run>)], width: Option<usize>) -> String {
    let rows = runs.iter().map(|(path, run)| {
        let name = one_line(&path.display().to_string());
        let Ok(run) = run else {
            let error = run.as_ref().err().map(ToString::to_string).unwrap_or_default();
            let nothing = || "-".to_owned();
            let cells = [nothing(), nothing(), nothing(), nothing(), nothing(), nothing(), one_line(&error)];
            let [steps, loss, eval, time, started, model, error] = cells;
            return [name, "Unreadable".into(), steps, loss, eval, time, started, model, error];
        };
        let figure = |row: &Option<Record>, name: &str| {
            row.as_ref().and_then(|row| row.get(name)).map_or_else(|| "-".into(), significant)
        };
        let status = &run.status;
        [
            name,
            status.status.to_string(),
            format!("{}/{}", status.step, status.total_steps),
            figure(&run.last_row, "loss"),
            figure(&run.evaluation, "eval_loss"),
            duration(status.seconds),
            moment(status.started_at).unwrap_or_else(|| "-".into()),
            one_line(&status.model),
            run.reason.as_deref().and_then(|reason| reason.lines().next()).map_or_else(|| "-".into(), one_line),
        ]
    });
    let rows = rows.collect::<Vec<_>>();
    let widths = std::array::from_fn::<_, 9, _>(|at| {
        let cells = rows.iter().map(|row| measure_text_width(&row[at]));
        cells.max().unwrap_or(0).max(COLUMNS[at].len())
    });
    let line = |cells: &[String; 9]| {
        let aligned = cells.iter().zip(widths).enumerate().map(|(at, (cell, width))| {
            let space = " ".repeat(width.saturating_sub(measure_text_width(cell)));
            if (2..6).contains(&at) { format!("{space}{cell}") } else { format!("{cell}{space}") }
        });
        fitted(aligned.collect::<Vec<_>>().join("  ").trim_end(), width)
    };
    let names = style(line(&COLUMNS.map(str::to_owned))).bold().to_string();
    let lines = rows.iter().zip(runs).map(|(row, (_, run))| {
        let status = run.as_ref().ok().map(|run| run.status.status);
        colored(status, line(row)).to_string()
    });
    std::iter::once(names).chain(lines).collect::<Vec<_>>().join("\n")
}

/// Green for what goes on, red for what failed, yellow for what was stopped.
fn colored(status: Option<RunStatus>, text: String) -> StyledObject<String> {
    match status {
        Some(RunStatus::InProgress) => style(text).green(),
        Some(RunStatus::Completed) => style(text),
        Some(RunStatus::Stopped) => style(text).yellow(),
        Some(RunStatus::Failed) | None => style(text).red(),
    }
}

/// Everything worth telling of `run`, a line each.
pub(crate) fn description(run: &Run) -> String {
    let status = &run.status;
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let value = one_line(value);
        let value = if name == "status" { colored(Some(status.status), value).to_string() } else { value };
        text += &format!("{}{value}\n", style(format!("{name:<NAME$}")).bold());
    };
    line("status", &status.status.to_string());
    if let Some(reason) = &run.reason {
        let (reason, help) = reason.split_once("\n  help: ").map_or((&**reason, None), |(why, help)| (why, Some(help)));
        line("reason", reason);
        if let Some(help) = help {
            line("help", help);
        }
    }
    if let Some(name) = &status.name {
        line("name", name);
    }
    line("model", &status.model);
    line("steps", &format!("{} of {}", status.step, status.total_steps));
    match saved_plan(&run.folder) {
        Ok(None) => {}
        Ok(Some(plan)) => {
            line("batch", &plan.train.batch.arithmetic());
            line("learning rate", &plan.train.optimizer.schedule.describe());
        }
        Err(error) => line("plan", &error.to_string()),
    }
    if let Some(started) = moment(status.started_at) {
        line("started", &started);
    }
    line("time", &duration(status.seconds));
    if let Some(row) = &run.last_row {
        line("last row", &training(row));
    }
    if let Some(row) = &run.evaluation {
        let loss = format!("{}validation loss {}", at_step(row), row.get("eval_loss").map_or("-".into(), significant));
        line("evaluation", format!("{loss}  {}", metrics(row)).trim_end());
    }
    if let Some(row) = &run.summary {
        line("summary", &console::strip_ansi_codes(&summary(row)));
    }
    let steps = run.checkpoints.iter().map(u64::to_string).collect::<Vec<_>>();
    line("checkpoints", &if steps.is_empty() { "none".into() } else { format!("after step {}", steps.join(", ")) });
    if let Some(model) = model(run) {
        line("model folder", &model);
    }
    if let Some(command) = &run.continued_by {
        line("continue", command);
    }
    text
}

/// The folder of the trained model and, where the best one was kept, which that is.
pub(crate) fn model(run: &Run) -> Option<String> {
    let folder = run.model_folder.as_ref()?.display();
    let Some(BestModel { step, metric }) = &run.status.best_model else { return Some(folder.to_string()) };
    let figure = run.evaluation.as_ref().and_then(|row| row.get(metric)).map_or("-".into(), significant);
    Some(format!("{folder} (step {step}, {metric} {figure}, the best)"))
}

fn at_step(row: &Record) -> String {
    row.get("step").map_or_else(String::new, |step| format!("step {step:.0}: "))
}

/// The figures of a row of training.
fn training(row: &Record) -> String {
    type Form = fn(f64) -> String;
    let parts: [(&str, Form, &str); 6] = [
        ("loss", significant, "loss "),
        ("epoch", epochs, "epoch "),
        ("grad_norm", significant, "gradient norm "),
        ("learning_rate", significant, "learning rate "),
        ("tokens_per_s", rate, "tokens/s "),
        ("peak_mib", memory, "memory "),
    ];
    let parts = parts.into_iter().filter_map(|(name, form, what)| Some(format!("{what}{}", form(row.get(name)?))));
    at_step(row) + &parts.collect::<Vec<_>>().join("  ")
}
