//! `kiln metrics`: the values that metric definitions, pairs of a name and a regular expression,
//! take from what a run printed, as a training platform takes them from the log of a job.

use std::path::{Path, PathBuf};

use clap::Args;
use kiln::run_folder::{RUN_LOG, runs};
use kiln_core::error::{Error, Result, one_line};
use kiln_core::files::{MAX_CONFIG, read_given};
use kiln_core::words::json_words;
use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::say;

/// The definitions that Kiln ships.
pub(super) const SHIPPED: &str = include_str!("../metric_definitions.json");

/// SageMaker's limits of a training job: definitions, characters of a name, characters of a regular
/// expression.
const LIMITS: (usize, usize, usize) = (40, 255, 500);

/// So many values of a metric are shown, without `--all`: the first ones and the last.
const SHOWN: usize = 4;

/// So much of a line is shown.
const WIDTH: usize = 100;

#[derive(Debug, Args)]
pub(super) struct MetricsArgs {
    /// The run folder, or a file with the log of a job
    run: PathBuf,
    /// The definitions: JSON, a list of {"Name": .., "Regex": ..}, or TOML with
    /// [[metric_definitions]]. Without it, those of examples/sagemaker/metric_definitions.json
    #[arg(long, value_name = "FILE")]
    definitions: Option<PathBuf>,
    /// Show every value, not the first and the last ones
    #[arg(long)]
    all: bool,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

/// A name and the regular expression whose first group is its value, by the names of SageMaker's
/// API.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Definition {
    #[serde(rename = "Name", alias = "name")]
    pub(super) name: String,
    #[serde(rename = "Regex", alias = "regex")]
    pub(super) regex: String,
}

/// The values that a definition takes.
#[derive(Debug, Serialize)]
pub(super) struct Metric {
    #[serde(rename = "Name")]
    pub(super) name: String,
    #[serde(rename = "Regex")]
    regex: String,
    pub(super) values: Vec<Taken>,
}

/// The value that it takes from one line.
#[derive(Debug, Serialize)]
pub(super) struct Taken {
    /// From 1.
    line: usize,
    /// The text of the group.
    text: String,
    /// The text as a number; none for another text, which is no value of a metric.
    pub(super) value: Option<f64>,
    /// The line.
    from: String,
}

pub(super) fn run_metrics(args: &MetricsArgs) -> Result<()> {
    let definitions = match &args.definitions {
        Some(path) => definitions(&text_of(path)?, &path.display().to_string())?,
        None => definitions(SHIPPED, "the shipped definitions")?,
    };
    let lines = lines(&args.run)?;
    let metrics = definitions.iter().map(|(definition, regex)| take(definition, regex, &lines)).collect::<Vec<_>>();
    if args.json {
        let text = serde_json::to_string_pretty(&metrics).map_err(|error| Error::data(format!("metrics: {error}")))?;
        return say(text);
    }
    metrics.iter().try_for_each(|metric| show(metric, args.all))
}

/// The values that `definition` takes from `lines`: the first group of the first match in each
/// line, as SageMaker does.
pub(super) fn take(definition: &Definition, regex: &Regex, lines: &[String]) -> Metric {
    let of_line = |(index, line): (usize, &String)| {
        let text = regex.captures(line)?.get(1)?.as_str().trim().to_owned();
        let value = text.parse::<f64>().ok().filter(|value| value.is_finite());
        Some(Taken { line: index + 1, text, value, from: line.clone() })
    };
    Metric {
        name: definition.name.clone(),
        regex: definition.regex.clone(),
        values: lines.iter().enumerate().filter_map(of_line).collect(),
    }
}

fn show(metric: &Metric, all: bool) -> Result<()> {
    let Metric { name, regex, values } = metric;
    let count = match values.len() {
        0 => "no line matches".to_owned(),
        1 => "1 value".to_owned(),
        count => format!("{count} values"),
    };
    say(format!("{}: {count}  {}", one_line(name), one_line(regex)))?;
    let skipped = if all || values.len() <= SHOWN { 0..0 } else { SHOWN - 1..values.len() - 1 };
    for (index, taken) in values.iter().enumerate() {
        if index == skipped.start && !skipped.is_empty() {
            say(format!("  ... {} more, shown by --all", skipped.len()))?;
        }
        if skipped.contains(&index) {
            continue;
        }
        let value = match taken.value {
            Some(_) => one_line(&taken.text),
            None => format!("{:?}, which is no number", taken.text),
        };
        let from = one_line(&taken.from);
        let from = match from.char_indices().nth(WIDTH) {
            Some((end, _)) => format!("{}...", &from[..end]),
            None => from,
        };
        say(format!("  {value}  line {}: {from}", taken.line))?;
    }
    Ok(())
}

/// The text of a file that was named on the command line.
///
/// # Errors
/// A config error for a file that is missing, a folder, too long or not UTF-8; the operating
/// system's.
pub(super) fn text_of(path: &Path) -> Result<String> {
    let at = path.display();
    if path.is_dir() {
        return Err(Error::config(format!("{at}: expected a file, got a folder")));
    }
    let bytes = read_given(path, MAX_CONFIG).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::config(format!("{at}: no such file")),
        std::io::ErrorKind::InvalidData => Error::config(format!("{at}: {error}")),
        _ => Error::io(format!("read {at}"), &error),
    })?;
    String::from_utf8(bytes).map_err(|_| Error::config(format!("{at}: expected UTF-8 text")))
}

/// The lines that a run printed: of its log, without the times that stand before them there, or of
/// its rows where there is no log; or the lines of a file.
fn lines(run: &Path) -> Result<Vec<String>> {
    if !run.exists() {
        return Err(Error::config(format!("{}: no such run folder or log", run.display())));
    }
    if run.is_file() {
        let bytes = std::fs::read(run).map_err(|error| Error::io(format!("read {}", run.display()), &error))?;
        return Ok(String::from_utf8_lossy(&bytes).lines().map(|line| without_time(line).to_owned()).collect());
    }
    let log = run.join(RUN_LOG);
    if log.is_file() {
        return lines(&log);
    }
    let rows = runs::rows(run);
    if rows.is_empty() {
        Err(Error::config(format!("{}: no run folder: it has neither {} nor rows", run.display(), RUN_LOG)))
    } else {
        Ok(rows.iter().map(|row| row.to_dict()).collect())
    }
}

/// A line of a log without the time that [`RunLog`](kiln::trainer::run_log::RunLog) puts before it.
fn without_time(line: &str) -> &str {
    match line.split_once(' ') {
        Some((time, rest)) if time.ends_with('Z') && humantime::parse_rfc3339(time).is_ok() => rest,
        _ => line,
    }
}

/// Reads definitions: a list, or a list under the name that a request to SageMaker or its Python
/// SDK gives it.
///
/// # Errors
/// A config error for what is no such list, breaks SageMaker's limits, or has no group.
pub(super) fn definitions(text: &str, origin: &str) -> Result<Vec<(Definition, Regex)>> {
    const EXPECTED: &str = "expected a list of {\"Name\": .., \"Regex\": ..}";
    let bad = |message: String| Error::config(format!("{origin}: {message}"));
    let json: Json = match serde_json::from_str(text) {
        Ok(json) => json,
        Err(error) => match text.parse::<toml::Table>() {
            Ok(table) if !table.is_empty() => serde_json::to_value(table).unwrap_or_default(),
            _ => {
                return Err(bad(format!(
                    "{EXPECTED} as JSON, or [[metric_definitions]] as TOML: {}",
                    json_words(&error)
                )));
            }
        },
    };
    let list = match json {
        Json::Object(mut map) => {
            let list = ["MetricDefinitions", "metric_definitions"].iter().find_map(|name| map.remove(*name));
            list.ok_or_else(|| bad(EXPECTED.to_owned()))?
        }
        list => list,
    };
    let list = serde_path_to_error::deserialize::<_, Vec<Definition>>(list)
        .map_err(|error| bad(format!("{EXPECTED}: {}: {}", error.path(), json_words(error.inner()))))?;
    let (most, name, regex) = LIMITS;
    if list.is_empty() || list.len() > most {
        return Err(bad(format!("expected 1 to {most} definitions, got {}", list.len())));
    }
    let mut read = Vec::<(Definition, Regex)>::new();
    for definition in list {
        let shown = one_line(&definition.name);
        let lengths = [("Name", &definition.name, name), ("Regex", &definition.regex, regex)];
        for (key, text, most) in lengths {
            if !(1..=most).contains(&text.chars().count()) {
                let count = text.chars().count();
                return Err(bad(format!("{shown}: {key}: expected 1 to {most} characters, got {count}")));
            }
        }
        if read.iter().any(|(other, _)| other.name == definition.name) {
            return Err(bad(format!("`{shown}` is defined twice")));
        }
        let compiled = Regex::new(&definition.regex).map_err(|error| {
            let error = error.to_string();
            let why = error.lines().last().unwrap_or_default();
            bad(format!("{shown}: no regular expression: {}", why.trim_start_matches("error: ")))
        })?;
        if compiled.captures_len() < 2 {
            return Err(bad(format!(
                "{shown}: the regular expression has no group, so there is no value: {}",
                definition.regex
            ))
            .help("put the number in parentheses: 'loss': ([0-9.]+)"));
        }
        read.push((definition, compiled));
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use kiln_core::metrics::Record;

    use super::*;

    #[test]
    fn the_shipped_definitions_take_what_is_printed_whole() {
        let row = Record::default().with("loss", 0.5).with("learning_rate", 4.9e-5).with("epoch", 1.0);
        let eval = Record::default().with("eval_loss", 1.25e-5).with("eval_accuracy", 0.75).with("eval_runtime", 12.5);
        let lines = [row.to_dict(), eval.to_dict(), eval.to_lines("eval")]
            .iter()
            .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
            .collect::<Vec<_>>();
        let all = definitions(SHIPPED, "shipped").unwrap();
        let values = |name: &str| {
            let (definition, regex) = all.iter().find(|(definition, _)| definition.name == name).unwrap();
            take(definition, regex, &lines).values.iter().map(|taken| taken.value.unwrap()).collect::<Vec<_>>()
        };
        assert_eq!((values("loss"), values("learning_rate"), values("epoch")), (vec![0.5], vec![4.9e-5], vec![1.0]));
        assert_eq!((values("eval_loss"), values("eval_accuracy")), (vec![1.25e-5], vec![0.75]));
        // Those of Hugging Face's page read the block that its scripts print at the end.
        let page = r#"[{"Name": "eval_loss", "Regex": "eval_loss.*=\\D*(.*?)$"}]"#;
        let page = definitions(page, "page").unwrap();
        let taken = take(&page[0].0, &page[0].1, &lines).values;
        assert_eq!(taken.iter().map(|taken| (taken.value, taken.line)).collect::<Vec<_>>(), [(Some(1.25e-5), 5)]);
    }

    #[test]
    fn definitions_that_take_nothing_are_refused() {
        for (text, part) in [
            ("", "expected a list"),
            ("[]", "1 to 40"),
            ("{\"a\": []}", "expected a list"),
            ("[{\"Name\": \"a\"}]", "the field `Regex` is missing"),
            ("[{\"Name\": \"a\", \"Regex\": \"b\", \"c\": 1}]", "unknown field"),
            ("[{\"Name\": \"a\", \"Regex\": \"b\"}]", "no group"),
            ("[{\"Name\": \"a\", \"Regex\": \"(\"}]", "unclosed group"),
            ("[{\"Name\": \"\", \"Regex\": \"(b)\"}]", "1 to 255"),
            ("[{\"Name\": \"a\", \"Regex\": \"(b)\"}, {\"Name\": \"a\", \"Regex\": \"(b)\"}]", "twice"),
        ] {
            let error = definitions(text, "d.json").unwrap_err().to_string();
            assert!(error.starts_with("d.json: ") && error.contains(part), "{text}: {error}");
        }
        let toml = "[[metric_definitions]]\nName = \"a\"\nRegex = 'a=(\\d+)'\n";
        assert_eq!(definitions(toml, "d.toml").unwrap().len(), 1);
    }

    #[test]
    fn times_of_a_log_are_no_part_of_its_lines() {
        assert_eq!(without_time("2026-01-01T00:00:00Z {'loss': 1.0}"), "{'loss': 1.0}");
        assert_eq!(without_time("Z {'loss': 1.0}"), "Z {'loss': 1.0}");
    }
}
