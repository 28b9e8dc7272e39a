//! Output for people at a terminal and for programs that read it: the format of the rows of a run,
//! colours, figures with four significant digits, and the progress line that other output must not
//! cut in two.

#[cfg(unix)]
mod follow;
mod header;
mod pace;
#[cfg(unix)]
mod page;
mod rows;
pub(super) mod runs;
#[cfg(unix)]
pub(super) mod watch;

use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use console::{Term, style, truncate_str};
use header::header;
use indicatif::ProgressBar;
use kiln::config::LogLevel;
use kiln::distributed::environment;
use kiln::plan::RunPlan;
use kiln_core::error::{Error, Result, one_line};
use kiln_core::metrics::{Record, Value};
use kiln_core::process;
pub(super) use rows::Printer;

use super::faults::complain;

/// The form of the rows of a run on stdout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum LogFormat {
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
pub(super) struct Talk {
    pub(super) format: LogFormat,
    pub(super) level: LogLevel,
}

impl Talk {
    /// The format that was asked for, or else the one of this stdout.
    pub(super) fn new(asked: Option<LogFormat>, level: LogLevel) -> Self {
        let of_stdout = || if is_seen(&std::io::stdout()) { LogFormat::Table } else { LogFormat::Dict };
        Self { format: asked.unwrap_or_else(of_stdout), level }
    }

    /// Says a line that is no row.
    pub(super) fn tell(self, line: impl std::fmt::Display) -> Result<()> {
        match self.format {
            LogFormat::Json => {
                complain(line);
                Ok(())
            }
            LogFormat::Dict | LogFormat::Table => super::say(line),
        }
    }

    /// [`tell`](Self::tell), where `trainer.log_level` wants to be informed.
    pub(super) fn inform(self, line: impl std::fmt::Display) -> Result<()> {
        if self.level.informs() { self.tell(line) } else { Ok(()) }
    }

    /// Says texts that the model wrote, each under `head`.
    pub(super) fn samples(self, head: &str, samples: &[String]) -> Result<()> {
        let below = "-".repeat(head.chars().count() + 8);
        samples.iter().try_for_each(|sample| self.tell(format!("\n--- {head} ---\n{sample}\n{below}\n")))
    }

    /// Says a warning, which stands out in the table.
    pub(super) fn warn(self, line: &str) -> Result<()> {
        match self.format {
            _ if !self.level.warns() => Ok(()),
            LogFormat::Table => show(style(format!("! {}", kiln_core::error::printable(line))).yellow()),
            LogFormat::Dict | LogFormat::Json => self.tell(line),
        }
    }

    /// Says what the run of `plan` will do: all of it, or its header in the table unless `verbose`.
    pub(super) fn plan(self, plan: &RunPlan, verbose: bool) -> Result<()> {
        if self.format != LogFormat::Table || verbose {
            return self.inform(plan.describe());
        }
        if self.level.informs() {
            show(header(plan, width()).trim_end())?;
        }
        let unknown = plan.architecture.as_ref().map(|it| it.unknown_fields.join(", "));
        let unknown = unknown.filter(|names| !names.is_empty());
        let unknown = unknown.map(|names| format!("not known, not used: config.json {names}"));
        let no_effect = plan.run.no_effect.iter().map(|line| format!("no effect: {line}"));
        unknown.into_iter().chain(plan.examples.limits.clone()).chain(no_effect).try_for_each(|line| self.warn(&line))
    }

    /// Says the summary and the last evaluation again as Hugging Face's scripts do at their end,
    /// where rows are dicts.
    pub(super) fn blocks(self, summary: Option<&Record>, evaluation: Option<&Record>) -> Result<()> {
        let blocks = [summary.map(|row| row.to_lines("train")), evaluation.map(|row| row.to_lines("eval"))];
        match self.format {
            LogFormat::Dict => blocks.into_iter().flatten().try_for_each(|block| self.inform(block)),
            LogFormat::Json | LogFormat::Table => Ok(()),
        }
    }

    /// Says a row that stands alone.
    pub(super) fn record(self, record: &Record) -> Result<()> {
        match self.format {
            LogFormat::Dict => super::say(record.to_dict()),
            LogFormat::Json => super::say(record.to_json()),
            LogFormat::Table => {
                let width = record.fields().map(|(name, _)| name.len()).max().unwrap_or(0);
                record.fields().try_for_each(|(name, value)| super::say(format!("{name:<width$}  {}", figure(value))))
            }
        }
    }
}

/// The progress line that is on the terminal, if any.
static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Keeps `bar` below everything that is written from now on; none for no bar.
fn keep_below(bar: Option<ProgressBar>) {
    *BAR.lock().unwrap_or_else(PoisonError::into_inner) = bar;
}

/// Writes with the progress line out of the way. `write` must not come here again.
pub(super) fn above_bar<T>(write: impl FnOnce() -> T) -> T {
    let bar = BAR.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match bar {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// Writes text to stdout that may hold styles. A reader that has gone away (`kiln plan FILE |
/// head`) is no error of ours; a full disk is one.
pub(super) fn show(text: impl std::fmt::Display) -> Result<()> {
    match above_bar(|| writeln!(std::io::stdout(), "{text}")) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Error::io("write to stdout", &error)),
        _ => Ok(()),
    }
}

/// Whether somebody sees `stream` on a terminal. That of a rank is the launcher's, which may pass
/// it on to a file.
pub(super) fn is_seen(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && matches!(environment::find(), Ok(None))
}

/// Decides once whether stdout and stderr get colours.
pub(super) fn settle_colors() {
    let variable = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    // The output of a child that a driver reads has no colours.
    let colors = |is_terminal| !process::is_child() && colored(is_terminal, &variable);
    console::set_colors_enabled(colors(is_seen(&std::io::stdout())));
    console::set_colors_enabled_stderr(colors(is_seen(&std::io::stderr())));
}

/// Whether a stream has colours: never with `NO_COLOR` (<https://no-color.org>), always with
/// `CLICOLOR_FORCE`, else on a terminal that has them, unless `CLICOLOR` is 0
/// (<https://bixense.com/clicolors>).
fn colored(is_terminal: bool, variable: &dyn Fn(&str) -> Option<String>) -> bool {
    let is_set = |name| variable(name).is_some_and(|value| !value.is_empty());
    let is_on = |name| is_set(name) && variable(name).is_none_or(|value| value != "0");
    let has_them = variable("TERM").is_none_or(|term| term != "dumb");
    !is_set("NO_COLOR")
        && (is_on("CLICOLOR_FORCE") || is_terminal && has_them && (!is_set("CLICOLOR") || is_on("CLICOLOR")))
}

/// Columns of the terminal on stdout; none where there is no terminal.
pub(super) fn width() -> Option<usize> {
    Term::stdout().size_checked().map(|(_, columns)| usize::from(columns)).filter(|columns| *columns > 0)
}

/// `text` on one line of at most `width` columns, without anything that has power over a terminal.
pub(super) fn fitted(text: &str, width: Option<usize>) -> String {
    let line = one_line(text);
    width.map_or_else(|| line.clone(), |width| truncate_str(&line, width, "…").into_owned())
}

/// A number with four significant digits: `3.142`, `1234`, `5.000e-5`, `nan`.
pub(super) fn significant(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}").to_lowercase();
    }
    let scientific = format!("{value:.3e}");
    let exponent = scientific.split_once('e').and_then(|(_, exponent)| exponent.parse::<i32>().ok());
    match exponent {
        Some(exponent @ -2..=3) => format!("{value:.*}", (3 - exponent).unsigned_abs() as usize),
        _ => scientific,
    }
}

/// A value of a row with four significant digits; counts are exact.
pub(super) fn figure(value: &Value) -> String {
    match value {
        Value::Count(count) => count.to_string(),
        Value::Real(real) => significant(*real),
        Value::Missing => "-".into(),
    }
}

/// A rate with four significant digits and a decimal prefix: `12.35k`.
pub(super) fn rate(value: f64) -> String {
    let scales = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    match scales.into_iter().find(|(scale, _)| value.is_finite() && value >= *scale) {
        Some((scale, prefix)) => significant(value / scale) + prefix,
        None => significant(value),
    }
}

/// An amount of memory, given in MiB.
pub(super) fn memory(mib: f64) -> String {
    if mib < 1024.0 { format!("{} MiB", significant(mib)) } else { format!("{} GiB", significant(mib / 1024.0)) }
}

/// Passes over the data: small ones without an exponent, to four places and two digits at least.
pub(super) fn epochs(value: f64) -> String {
    match value.log10().floor() {
        tens @ -15.0..-1.0 => format!("{value:.0$}", (1.0 - tens).max(4.0) as usize),
        _ => significant(value),
    }
}

/// A moment, given in seconds since 1970, to the minute: `2026-01-31 09:30Z`; nothing for what no
/// calendar has.
pub(super) fn moment(seconds: f64) -> Option<String> {
    const YEAR_10000: f64 = 253_402_300_800.0;
    let since = Some(seconds).filter(|seconds| (0.0..YEAR_10000 - 1.0).contains(seconds))?;
    let at: SystemTime = UNIX_EPOCH + Duration::from_secs(since as u64);
    let text = humantime::format_rfc3339_seconds(at).to_string();
    Some(format!("{} {}Z", &text[..10], &text[11..16]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_four_significant_digits() {
        let values =
            [3.14259, 0.999_96, 12.3456, 1234.4, 99_999.0, 5e-5, 0.012_346, -2.5, 0.0, f64::NAN, f64::NEG_INFINITY];
        let expected =
            ["3.143", "1.000", "12.35", "1234", "1.000e5", "5.000e-5", "0.01235", "-2.500", "0", "nan", "-inf"];
        assert_eq!(values.map(significant), expected);
        assert_eq!([12_345.0, 2.5e6, 12.0, f64::NAN].map(rate), ["12.35k", "2.500M", "12.00", "nan"]);
        assert_eq!([812.3, 2048.0].map(memory), ["812.3 MiB", "2.000 GiB"]);
        let passes = [1.482e-3, 5.927e-3, 0.034_66, 0.1429, 1.2e-5, 0.0, 3.0, 17_640.0, f64::NAN].map(epochs);
        assert_eq!(passes, ["0.0015", "0.0059", "0.0347", "0.1429", "0.000012", "0", "3.000", "1.764e4", "nan"]);
    }

    #[test]
    fn a_moment_that_no_calendar_has_is_none() {
        assert_eq!(moment(1.0e9).as_deref(), Some("2001-09-09 01:46Z"));
        assert_eq!([-1.0, f64::NAN, 1e300, 253_402_300_800.0].map(moment), [None, None, None, None]);
    }

    #[test]
    fn colours_follow_the_terminal_and_the_conventions() {
        let with = |is_terminal: bool, set: &[(&str, &str)]| {
            colored(is_terminal, &|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
        };
        assert!(with(true, &[]) && !with(false, &[]));
        assert!(!with(true, &[("NO_COLOR", "1")]) && with(true, &[("NO_COLOR", "")]));
        assert!(with(false, &[("CLICOLOR_FORCE", "1")]) && !with(false, &[("CLICOLOR_FORCE", "0")]));
        assert!(!with(false, &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]));
        assert!(!with(true, &[("CLICOLOR", "0")]) && with(true, &[("CLICOLOR", "1")]));
        assert!(!with(true, &[("TERM", "dumb")]));
    }

    #[test]
    fn foreign_text_stays_on_its_line_and_has_no_power() {
        assert_eq!(fitted("a\nb\u{1b}[2J", None), r"a b\u001b[2J");
        assert_eq!(fitted("日本語日本語", Some(7)), "日本語…");
    }
}
