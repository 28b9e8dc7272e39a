//! How a command that trains talks on stdout: in the format of the rows of its run.

use clap::ValueEnum;
use console::style;
use kiln::config::LogLevel;
use kiln::plan::RunPlan;
use kiln_core::error::{Result, printable};
use kiln_core::metrics::Record;

use super::figures::figure;
use super::header::header;
use super::streams::{is_seen, show, width};
use crate::faults::complain;
use crate::say;

/// The form of the rows of a run on stdout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Python dicts, which Hugging Face's Trainer prints and metric regexes read; the default where
    /// stdout is no terminal
    Dict,
    /// One JSON object a row, as in metrics.jsonl, and nothing else: all other text goes to stderr
    Json,
    /// A short header and aligned columns; the default on a terminal
    Table,
}

/// How a command that trains talks on stdout.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Talk {
    pub(crate) format: LogFormat,
    pub(crate) level: LogLevel,
}

impl Talk {
    /// The format that was asked for, or else the one of this stdout.
    pub(crate) fn new(asked: Option<LogFormat>, level: LogLevel) -> Self {
        let of_stdout = || if is_seen(&std::io::stdout()) { LogFormat::Table } else { LogFormat::Dict };
        Self { format: asked.unwrap_or_else(of_stdout), level }
    }

    /// Says a line that is no row.
    pub(crate) fn tell(self, line: impl std::fmt::Display) -> Result<()> {
        match self.format {
            LogFormat::Json => {
                complain(line);
                Ok(())
            }
            LogFormat::Dict | LogFormat::Table => say(line),
        }
    }

    /// [`tell`](Self::tell), where `trainer.log_level` wants to be informed.
    pub(crate) fn inform(self, line: impl std::fmt::Display) -> Result<()> {
        if self.level.informs() { self.tell(line) } else { Ok(()) }
    }

    /// Says texts that the model wrote, each under `head`.
    pub(crate) fn samples(self, head: &str, samples: &[String]) -> Result<()> {
        let below = "-".repeat(head.chars().count() + 8);
        samples.iter().try_for_each(|sample| self.tell(format!("\n--- {head} ---\n{sample}\n{below}\n")))
    }

    /// Says a warning, which stands out in the table.
    pub(crate) fn warn(self, line: &str) -> Result<()> {
        match self.format {
            _ if !self.level.warns() => Ok(()),
            LogFormat::Table => show(style(format!("! {}", printable(line))).yellow()),
            LogFormat::Dict | LogFormat::Json => self.tell(line),
        }
    }

    /// Says what the run of `plan` will do: all of it, or its header in the table unless `verbose`.
    pub(crate) fn plan(self, plan: &RunPlan, verbose: bool) -> Result<()> {
        if self.format != LogFormat::Table || verbose {
            return self.inform(plan.describe());
        }
        if self.level.informs() {
            show(header(plan, width()).trim_end())?;
        }
        let unknown = plan.architecture.as_ref().map(|it| it.unknown_fields.join(", "));
        let unknown = unknown.filter(|names| !names.is_empty());
        let unknown = unknown.map(|names| format!("not known, not used: config.json {names}"));
        let no_effect = plan.train.run.no_effect.iter().map(|line| format!("no effect: {line}"));
        let idle = plan.train.idle_validation();
        let mut all = unknown.into_iter().chain(plan.examples.limits.clone()).chain(no_effect).chain(idle);
        all.try_for_each(|line| self.warn(&line))
    }

    /// Says the summary and the last evaluation again as Hugging Face's scripts do at their end,
    /// where rows are dicts.
    pub(crate) fn blocks(self, summary: Option<&Record>, evaluation: Option<&Record>) -> Result<()> {
        let blocks = [summary.map(|row| row.to_lines("train")), evaluation.map(|row| row.to_lines("eval"))];
        match self.format {
            LogFormat::Dict => blocks.into_iter().flatten().try_for_each(|block| self.inform(block)),
            LogFormat::Json | LogFormat::Table => Ok(()),
        }
    }

    /// Says a row that stands alone.
    pub(crate) fn record(self, record: &Record) -> Result<()> {
        match self.format {
            LogFormat::Dict => say(record.to_dict()),
            LogFormat::Json => say(record.to_json()),
            LogFormat::Table => {
                let width = record.fields().map(|(name, _)| name.len()).max().unwrap_or(0);
                record.fields().try_for_each(|(name, value)| say(format!("{name:<width$}  {}", figure(value))))
            }
        }
    }
}
