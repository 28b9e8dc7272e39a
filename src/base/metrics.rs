//! What a run reports: one record per event, written twice. As a line of `metrics.jsonl`, flushed at once, so that nothing
//! is lost when the process dies; and as a dict line on stdout, as Hugging Face's Trainer prints it and as metric regexes
//! read it. A NaN is written as NaN (as Python's json module does), never left out.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::base::error::{Error, Result};
use crate::base::files::{read_regular, read_regular_text};

/// One value of a record.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A count.
    Count(u64),
    /// A measurement; may be NaN or infinite.
    Real(f64),
    /// A measurement that this machine cannot make.
    Missing,
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Count(value)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

impl From<Option<f64>> for Value {
    fn from(value: Option<f64>) -> Self {
        value.map_or(Self::Missing, Self::Real)
    }
}

/// Named values in the order in which they are written.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Record {
    fields: Vec<(String, Value)>,
}

impl Record {
    /// Adds a value.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.fields.push((name.to_string(), value.into()));
        self
    }

    /// The value called `name`, as a number; none when it is not there or could not be measured.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.fields.iter().find(|(field, _)| field == name).and_then(|(_, value)| match value {
            Value::Count(count) => Some(*count as f64),
            Value::Real(real) => Some(*real),
            Value::Missing => None,
        })
    }

    /// The fields in order.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.fields.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// The row of `metrics.jsonl` in `line`, as [`to_json`](Self::to_json) wrote it; none when it is no such row, for example
    /// one that was half written.
    pub fn from_json(line: &str) -> Option<Self> {
        // No JSON has NaN or an infinity; as texts they are read back. Names of values hold no colon.
        let line = ["NaN", "Infinity", "-Infinity"]
            .into_iter()
            .fold(line.to_owned(), |line, number| line.replace(&format!(": {number}"), &format!(": \"{number}\"")));
        let row = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&line).ok()?;
        let value = |value: &serde_json::Value| match value {
            serde_json::Value::Null => Some(Value::Missing),
            serde_json::Value::String(number) => number.parse().ok().map(Value::Real),
            number => number.as_u64().map(Value::Count).or_else(|| number.as_f64().map(Value::Real)),
        };
        let fields = row.iter().map(|(name, number)| Some((name.clone(), value(number)?)));
        Some(Self { fields: fields.collect::<Option<_>>()? })
    }

    /// `{"step": 1, "loss": 8.3}`
    pub fn to_json(&self) -> String {
        self.render('"', ["NaN", "Infinity", "-Infinity", "null"])
    }

    /// `{'step': 1, 'loss': 8.3}`
    pub fn to_dict(&self) -> String {
        self.render('\'', ["nan", "inf", "-inf", "None"])
    }

    fn render(&self, quote: char, [nan, inf, minus_inf, missing]: [&str; 4]) -> String {
        let mut text = String::from("{");
        for (i, (name, value)) in self.fields.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            let written = match value {
                Value::Count(count) => write!(text, "{comma}{quote}{name}{quote}: {count}"),
                Value::Missing => write!(text, "{comma}{quote}{name}{quote}: {missing}"),
                Value::Real(real) if real.is_nan() => write!(text, "{comma}{quote}{name}{quote}: {nan}"),
                Value::Real(real) if real.is_infinite() => {
                    let sign = if *real > 0.0 { inf } else { minus_inf };
                    write!(text, "{comma}{quote}{name}{quote}: {sign}")
                }
                Value::Real(real) => write!(text, "{comma}{quote}{name}{quote}: {real:?}"),
            };
            written.expect("writing to a String cannot fail");
        }
        text.push('}');
        text
    }
}

/// `metrics.jsonl` of a run folder, open for appending.
#[derive(Debug)]
pub struct MetricsFile {
    path: PathBuf,
    file: File,
    rows: u64,
}

impl MetricsFile {
    /// Opens `metrics.jsonl` in `folder`, for a run from its start.
    ///
    /// # Errors
    /// The operating system's.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join("metrics.jsonl");
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let file = file.map_err(|error| Error::io(format!("open {}", path.display()), &error))?;
        Ok(Self { path, file, rows: 0 })
    }

    /// How many whole rows `metrics.jsonl` in `folder` has; none when it cannot be read.
    pub fn count(folder: &Path) -> u64 {
        let text = read_regular(&folder.join("metrics.jsonl")).unwrap_or_default();
        text.iter().filter(|byte| **byte == b'\n').count() as u64
    }

    /// Opens `metrics.jsonl` in `folder` and keeps its first `rows` rows: what follows is written again by a run that
    /// continues from there.
    ///
    /// # Errors
    /// Fewer rows than that, and the operating system's.
    pub fn open_with(folder: &Path, rows: u64) -> Result<Self> {
        let mut metrics = Self::open(folder)?;
        let io = |error: &std::io::Error| Error::io(format!("read {}", metrics.path.display()), error);
        let text = read_regular(&metrics.path).map_err(|error| io(&error))?;
        let (mut found, mut end) = (0, 0);
        for (at, _) in text.iter().enumerate().filter(|(_, byte)| **byte == b'\n').take(rows as usize) {
            (found, end) = (found + 1, at + 1);
        }
        if found < rows {
            return Err(Error::data(format!(
                "{} has {found} rows, and the checkpoint was saved after {rows}",
                metrics.path.display()
            ))
            .help("put the file back as the run wrote it, or start again with run.on_existing = \"overwrite\""));
        }
        metrics.file.set_len(end as u64).map_err(|error| io(&error))?;
        metrics.rows = rows;
        Ok(metrics)
    }

    /// The last row that has a number `name`; none when there is none that can be read.
    pub fn last_with(&self, name: &str) -> Option<Record> {
        let text = read_regular_text(&self.path).ok()?;
        text.lines().rev().filter_map(Record::from_json).find(|row| row.get(name).is_some())
    }

    /// How many rows it has.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Brings it to disk.
    ///
    /// # Errors
    /// The operating system's.
    pub fn sync(&self) -> Result<()> {
        self.file.sync_all().map_err(|error| Error::io(format!("write {}", self.path.display()), &error))
    }

    /// Appends one line, whole or not at all.
    ///
    /// # Errors
    /// The operating system's, for example a full disk.
    pub fn append(&mut self, record: &Record) -> Result<()> {
        let line = record.to_json() + "\n";
        let written = self.file.metadata().map(|metadata| metadata.len()).and_then(|length| {
            self.file.write_all(line.as_bytes()).inspect_err(|_| {
                // Half a line would spoil the file for every reader; that the disk is full is the error to report.
                let _ = self.file.set_len(length);
            })
        });
        self.rows += 1;
        written.map_err(|error| Error::io(format!("write {}", self.path.display()), &error))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn record() -> Record {
        Record::default()
            .with("step", 3)
            .with("loss", f64::NAN)
            .with("lr", 5e-5)
            .with("epoch", 1.0)
            .with("up", f64::INFINITY)
            .with("peak_mib", None)
    }

    #[test]
    fn json_is_what_pythons_json_module_reads() {
        let expected = r#"{"step": 3, "loss": NaN, "lr": 5e-5, "epoch": 1.0, "up": Infinity, "peak_mib": null}"#;
        assert_eq!(record().to_json(), expected);
    }

    #[test]
    fn rows_are_read_back_with_what_is_no_json() {
        let row = Record::default().with("down", f64::NEG_INFINITY).with("small", 1e-300).with("large", u64::MAX);
        for row in [record(), row] {
            let read = Record::from_json(&row.to_json()).unwrap();
            assert_eq!(format!("{read:?}"), format!("{row:?}"), "NaN equals nothing, and its text itself");
        }
        for line in ["", "{\"step\": 1, \"lo", "[1]", "{\"step\": \"one\"}", "{\"step\": {}}"] {
            assert_eq!(Record::from_json(line), None, "{line}");
        }
    }

    #[test]
    fn the_dict_line_is_pythons() {
        let expected = "{'step': 3, 'loss': nan, 'lr': 5e-5, 'epoch': 1.0, 'up': inf, 'peak_mib': None}";
        assert_eq!(record().to_dict(), expected);
        let line = Record::default().with("train_runtime", 123_456.789).to_dict();
        assert_eq!(line, "{'train_runtime': 123456.789}", "metric regexes read [0-9.]*");
    }

    #[test]
    fn rows_after_a_checkpoint_are_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let mut metrics = MetricsFile::open(folder.path()).unwrap();
        (1..=3).for_each(|step| metrics.append(&Record::default().with("step", step)).unwrap());
        let mut metrics = MetricsFile::open_with(folder.path(), 2).unwrap();
        metrics.append(&Record::default().with("step", 7)).unwrap();
        assert_eq!(metrics.rows(), 3);
        let text = std::fs::read_to_string(folder.path().join("metrics.jsonl")).unwrap();
        assert_eq!(text, "{\"step\": 1}\n{\"step\": 2}\n{\"step\": 7}\n");
        assert!(MetricsFile::open_with(folder.path(), 4).unwrap_err().to_string().contains("has 3 rows"));
    }

    #[test]
    fn values_are_found_by_name() {
        assert_eq!(record().get("lr"), Some(5e-5));
        assert_eq!(record().get("peak_mib"), None);
        assert_eq!(record().get("absent"), None);
    }
}
