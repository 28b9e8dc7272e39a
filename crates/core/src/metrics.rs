//! The reports of a run: one record per event, written twice. As a line of `metrics.jsonl`, flushed
//! at once, so that nothing is lost when the process dies; and as a dict line on stdout, as Hugging
//! Face's Trainer prints it and as metric regexes read it. A NaN is written as NaN (as Python's
//! json module does), never left out.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};
use serde_json::Value as Json;

use crate::error::{Error, Result};
use crate::files::{free_beside, is_blocked, read_error, read_regular, read_regular_text, write_whole};

/// The file's name in a run folder.
pub const FILE: &str = "metrics.jsonl";

/// The fields of every row.
const STEP: &[u8] = b"\"step\": ";

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

/// The rows of the file in the run folder `folder`.
///
/// # Errors
/// A file that cannot be read, and a line that is no row, with its number.
pub fn read(folder: &Path) -> Result<Vec<Record>> {
    let path = folder.join(FILE);
    let text = read_regular_text(&path).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::InvalidData => damaged(&path, error),
        _ => read_error(&path, &error),
    })?;
    let row = |(number, line)| {
        Record::from_json(line).ok_or_else(|| damaged(&path, format_args!("line {} is no row", number + 1)))
    };
    text.lines().enumerate().map(row).collect()
}

/// The step after which the start of the run began whose end the row `summary` tells; none for a
/// run that was never continued.
pub fn begun_at(summary: &Record) -> Option<u64> {
    let made = summary.get("train_steps_per_second")? * summary.get("train_runtime")?;
    let begun = (summary.get("step")? - made).round();
    (begun >= 1.0).then_some(begun as u64)
}

/// The error for a file at `path` of a run folder that does not hold what the run wrote.
pub fn damaged(path: &Path, what: impl std::fmt::Display) -> Error {
    Error::data(format!("{}: the run is damaged: {what}", path.display()))
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

    /// Keeps the values that are called one of `names`.
    #[must_use]
    pub fn only(mut self, names: &[&str]) -> Self {
        self.fields.retain(|(name, _)| names.contains(&name.as_str()));
        self
    }

    /// The row of `metrics.jsonl` in `line`, as [`to_json`](Self::to_json) wrote it; none when it
    /// is no such row, for example one that was half written.
    pub fn from_json(line: &str) -> Option<Self> {
        // No JSON has NaN or an infinity; as texts they are read back. Names of values hold no
        // colon.
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
        self.render('"', ["NaN", "Infinity", "-Infinity", "null"], |real| format!("{real:?}"))
    }

    /// `{'step': 1, 'loss': 8.3}`. Small numbers have no exponent: metric regexes would take 4.9e-5
    /// for 4.9.
    pub fn to_dict(&self) -> String {
        self.render('\'', ["nan", "inf", "-inf", "None"], decimal)
    }

    /// The record that [`to_dict`](Self::to_dict) has written as `line`.
    pub fn from_dict(line: &str) -> Option<Self> {
        let names =
            [("'", "\""), (": nan", ": NaN"), (": inf", ": Infinity"), (": -inf", ": -Infinity"), (": None", ": null")];
        let json = names.iter().fold(line.to_owned(), |line, (python, json)| line.replace(python, json));
        line.starts_with("{'").then(|| Self::from_json(&json))?
    }

    /// The block that Hugging Face's scripts print at the end (`Trainer.log_metrics`): the figures
    /// of `split`, which is train or eval, by name. Times are in seconds.
    pub fn to_lines(&self, split: &str) -> String {
        let figures = self.fields.iter().filter_map(|(name, value)| match value {
            Value::Count(count) => Some((name, count.to_string())),
            Value::Real(real) => Some((name, decimal(*real))),
            Value::Missing => None,
        });
        let figures = figures.collect::<std::collections::BTreeMap<_, _>>();
        let width = |lengths: &mut dyn Iterator<Item = usize>| lengths.max().unwrap_or(0);
        let (names, values) =
            (width(&mut figures.keys().map(|name| name.len())), width(&mut figures.values().map(String::len)));
        let lines = figures.iter().map(|(name, value)| format!("\n  {name:names$} = {value:>values$}"));
        format!("***** {split} metrics *****{}", lines.collect::<String>())
    }

    fn render(&self, quote: char, [nan, inf, minus_inf, missing]: [&str; 4], number: fn(f64) -> String) -> String {
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
                Value::Real(real) => write!(text, "{comma}{quote}{name}{quote}: {}", number(*real)),
            };
            written.expect("writing to a String cannot fail");
        }
        text.push('}');
        text
    }
}

/// A number without an exponent, and with a decimal point.
fn decimal(real: f64) -> String {
    let text = real.to_string();
    if text.contains('.') || !real.is_finite() { text } else { format!("{text}.0") }
}

/// Serializes the record as a JSON object. JSON has no NaN and no infinity: they are the texts
/// "NaN", "Infinity" and "-Infinity".
impl Serialize for Record {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.fields().map(|(name, value)| {
            let value = match value {
                Value::Count(count) => (*count).into(),
                Value::Missing => Json::Null,
                Value::Real(real) if real.is_nan() => "NaN".into(),
                Value::Real(real) if real.is_infinite() => if *real > 0.0 { "Infinity" } else { "-Infinity" }.into(),
                Value::Real(real) => (*real).into(),
            };
            (name, value)
        }))
    }
}

/// The step of the row in `line`; none when it is no row of a run's.
fn step(line: &[u8]) -> Option<f64> {
    Record::from_json(std::str::from_utf8(line).ok()?)?.get("step")
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
        let path = folder.join(FILE);
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let file = file.map_err(|error| Error::io(format!("open {}", path.display()), &error))?;
        Ok(Self { path, file, rows: 0 })
    }

    /// Opens `metrics.jsonl` in `folder` where it is a file of whole rows and nothing else; none
    /// otherwise.
    ///
    /// # Errors
    /// The operating system's.
    pub fn open_whole(folder: &Path) -> Result<Option<Self>> {
        let text = read_regular(&folder.join(FILE)).unwrap_or_default();
        let is_whole =
            text.ends_with(b"\n") && text.split_inclusive(|byte| *byte == b'\n').all(|line| step(line).is_some());
        if is_whole { Self::open(folder).map(Some) } else { Ok(None) }
    }

    /// Opens `metrics.jsonl` in `folder` for a run that continues after step `last`, where the file
    /// had `rows` rows. Later rows are cut off, since the run writes them again. Rows that cannot
    /// be read are passed over with a warning: the others stay, and a copy of the damaged file is
    /// kept under another name.
    ///
    /// # Errors
    /// The operating system's.
    pub fn resume(folder: &Path, rows: u64, last: u64) -> Result<Self> {
        let path = folder.join(FILE);
        let io = |error: &std::io::Error| Error::io(format!("read {}", path.display()), error);
        let (text, why) = match read_regular(&path) {
            Ok(text) => (text, None),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => return Err(io(&error)),
            Err(error) => (Vec::new(), Some(error)),
        };
        let (mut whole, mut kept, mut seen) = (Vec::new(), 0, 0);
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            if seen >= rows {
                break;
            }
            match step(line) {
                Some(step) if step <= last as f64 => {
                    whole.extend_from_slice(line.strip_suffix(b"\n").unwrap_or(line));
                    whole.push(b'\n');
                    (kept, seen) = (kept + 1, seen + 1);
                }
                // It belongs after that step: rows before it are missing.
                Some(_) => {}
                // A line's end that has become another byte makes one line of two rows.
                None => seen += line.windows(STEP.len()).filter(|text| *text == STEP).count().max(1) as u64,
            }
        }
        if kept == rows && text.starts_with(&whole) && !is_blocked(&path) {
            let mut metrics = Self::open(folder)?;
            metrics.file.set_len(whole.len() as u64).map_err(|error| io(&error))?;
            metrics.rows = rows;
            return Ok(metrics);
        }
        let what = match why {
            Some(error) if error.kind() == ErrorKind::NotFound => "it is missing".to_owned(),
            Some(error) => error.to_string(),
            None => format!("it has {kept} of them that can be read"),
        };
        let aside = match fs::symlink_metadata(&path) {
            Err(_) => String::new(),
            Ok(found) => {
                // A regular file keeps its name until the whole one takes it.
                let aside = free_beside(&path, "damaged");
                if !found.is_file() || fs::hard_link(&path, &aside).is_err() {
                    fs::rename(&path, &aside).map_err(|error| io(&error))?;
                }
                format!(", and what was there is now {}", aside.display())
            }
        };
        tracing::warn!(
            "{}: there were {rows} rows up to step {last}, and {what}; the run goes on without the others{aside}",
            path.display()
        );
        write_whole(&path, &whole)?;
        let mut metrics = Self::open(folder)?;
        metrics.rows = kept;
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
                // Half a line would spoil the file for every reader; that the disk is full is the
                // error to report.
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
    fn strict_json_has_what_is_no_number_as_text() {
        let expected = r#"{"step":3,"loss":"NaN","lr":0.00005,"epoch":1.0,"up":"Infinity","peak_mib":null}"#;
        let json = serde_json::to_string(&record()).unwrap();
        assert_eq!(json.replace("5e-5", "0.00005"), expected);
        assert_eq!(format!("{:?}", Record::from_json(&json).unwrap()), format!("{:?}", record()));
    }

    #[test]
    fn the_dict_line_is_pythons() {
        let expected = "{'step': 3, 'loss': nan, 'lr': 0.00005, 'epoch': 1.0, 'up': inf, 'peak_mib': None}";
        assert_eq!(record().to_dict(), expected);
        let line = Record::default().with("train_runtime", 123_456.789).to_dict();
        assert_eq!(line, "{'train_runtime': 123456.789}", "metric regexes read [0-9.]*");
        let row = Record::default().with("eval_loss", 0.5).with("epoch", 1.0).with("eval_samples", 12).with("x", None);
        let expected = "***** eval metrics *****\n  epoch        = 1.0\n  eval_loss    = 0.5\n  eval_samples =  12";
        assert_eq!(row.to_lines("eval"), expected);
    }

    #[test]
    fn a_dict_line_is_read_as_its_record() {
        let row = Record::default().with("step", 7).with("loss", f64::NAN).with("grad_norm", f64::NEG_INFINITY);
        let row = row.with("learning_rate", 4.9e-5).with("peak_mib", None::<f64>).with("top", f64::INFINITY);
        let read = Record::from_dict(&row.to_dict()).unwrap();
        assert_eq!(read.to_json(), row.to_json());
        assert!(["{'step': 7", "saving {'step': 7}", "{}", ""].iter().all(|line| Record::from_dict(line).is_none()));
    }

    #[test]
    fn rows_after_a_checkpoint_are_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let mut metrics = MetricsFile::open(folder.path()).unwrap();
        (1..=3).for_each(|step| metrics.append(&Record::default().with("step", step)).unwrap());
        let mut metrics = MetricsFile::resume(folder.path(), 2, 2).unwrap();
        metrics.append(&Record::default().with("step", 7)).unwrap();
        assert_eq!(metrics.rows(), 3);
        let text = fs::read_to_string(folder.path().join(FILE)).unwrap();
        assert_eq!(text, "{\"step\": 1}\n{\"step\": 2}\n{\"step\": 7}\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    /// Any bit of the file may flip, and it may end anywhere: what can be read up to the checkpoint
    /// stays, and nothing else.
    #[test]
    fn damaged_rows_are_passed_over_and_the_file_is_kept() {
        let rows = (1..=5).map(|step| Record::default().with("step", step).with("loss", 1.0 / step as f64).to_json());
        let rows = rows.collect::<Vec<_>>();
        let whole = rows.iter().map(|row| format!("{row}\n")).collect::<String>().into_bytes();
        let flipped = (0..whole.len()).map(|at| {
            let mut other = whole.clone();
            other[at] ^= [1, 4, 128][at % 3];
            other
        });
        let cut = (0..whole.len()).map(|at| whole[..at].to_vec());
        for damaged in flipped.chain(cut) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(FILE);
            fs::write(&path, &damaged).unwrap();
            let metrics = MetricsFile::resume(folder.path(), 3, 3).unwrap();
            let text = fs::read_to_string(&path).unwrap();
            let kept = text.lines().collect::<Vec<_>>();
            assert!(text.is_empty() || text.ends_with('\n'));
            assert_eq!(metrics.rows(), kept.len() as u64);
            assert!(
                kept.iter().all(|row| Record::from_json(row).is_some_and(|row| row.get("step").is_some())),
                "{text}"
            );
            assert!(!kept.iter().any(|row| rows[3..].contains(&(*row).to_owned())), "{text}");
            let readable =
                rows[..3].iter().filter(|row| damaged.split(|byte| *byte == b'\n').any(|line| line == row.as_bytes()));
            assert!(readable.into_iter().all(|row| kept.contains(&row.as_str())), "{text}");
            let aside = path.with_file_name("metrics.jsonl.damaged-1");
            match kept.len() {
                3 => assert!(!aside.exists() || fs::read(&aside).unwrap() == damaged),
                _ => assert!(fs::read(&aside).unwrap() == damaged),
            }
        }
    }

    #[test]
    fn values_are_found_by_name() {
        assert_eq!(record().get("lr"), Some(5e-5));
        assert_eq!(record().get("peak_mib"), None);
        assert_eq!(record().get("absent"), None);
    }
}
