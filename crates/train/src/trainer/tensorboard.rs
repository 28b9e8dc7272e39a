//! TensorBoard event files, with the tags of Hugging Face's `TensorBoardCallback`: `train/loss`,
//! `eval/accuracy`. One file for every process that takes the run up; TensorBoard reads them as one
//! curve.
//!
//! An event file is a sequence of records (TensorFlow, `core/lib/io/record_writer.h`): length (u64,
//! little-endian), its masked CRC-32C, the bytes, their masked CRC-32C. The bytes are an `Event`
//! (`core/util/event.proto`), of which the fields below are used.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use kiln_core::clock;
use kiln_core::error::{Error, Result};
use kiln_core::metrics::Record;
use prost::Message;

use super::callback::{Callback, Control, Progress};
use crate::run_folder::TENSORBOARD;

#[derive(Clone, PartialEq, Message)]
struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    /// In the first event of a file only.
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
}

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Scalar>,
}

#[derive(Clone, PartialEq, Message)]
struct Scalar {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

/// Writes one event file.
pub struct TensorBoard {
    path: PathBuf,
    file: File,
    /// It could not be written once, which was said then.
    failed: bool,
}

impl TensorBoard {
    /// Begins an event file in `folder`/`tensorboard`.
    ///
    /// # Errors
    /// The operating system's.
    pub fn create(folder: &Path) -> Result<Self> {
        let folder = folder.join(TENSORBOARD);
        let now = clock::seconds();
        let path = folder.join(format!("events.out.tfevents.{:010}.kiln.{}", now as u64, std::process::id()));
        let io = |error: std::io::Error| Error::io(format!("write {}", path.display()), &error);
        fs::create_dir_all(&folder).map_err(io)?;
        let mut file = File::create(&path).map_err(io)?;
        let first = Event { wall_time: now, file_version: Some("brain.Event:2".into()), ..Event::default() };
        file.write_all(&record(&first)).map_err(io)?;
        Ok(Self { path, file, failed: false })
    }

    fn row(&mut self, progress: &Progress, row: &Record) {
        let values = row.fields().filter_map(|(name, _)| Some((tag(name)?, row.get(name)? as f32)));
        let value = values.map(|(tag, value)| Scalar { tag, simple_value: Some(value) }).collect();
        let event = Event {
            wall_time: clock::seconds(),
            step: progress.step as i64,
            summary: Some(Summary { value }),
            ..Event::default()
        };
        let written = self.file.write_all(&record(&event));
        // A curve that cannot be drawn is in metrics.jsonl all the same: no reason to end the
        // training.
        if let (Err(error), false) = (&written, self.failed) {
            tracing::warn!("cannot write {}: {error}", self.path.display());
        }
        self.failed |= written.is_err();
    }
}

impl<M> Callback<M> for TensorBoard {
    fn on_log(&mut self, progress: &Progress, row: &Record) {
        self.row(progress, row);
    }

    fn on_evaluate(&mut self, progress: &Progress, row: &Record, _control: &mut Control) {
        self.row(progress, row);
    }

    fn on_train_end(&mut self, progress: &Progress, summary: &Record) {
        self.row(progress, summary);
    }
}

/// `eval_loss` as `eval/loss`, `loss` as `train/loss` and the mean `train_loss` of the run as
/// `train/train_loss` (`rewrite_logs` of transformers); the step is the axis and no curve.
fn tag(name: &str) -> Option<String> {
    match (name.strip_prefix("eval_"), name.strip_prefix("test_")) {
        (Some(rest), _) => Some(format!("eval/{rest}")),
        (_, Some(rest)) => Some(format!("test/{rest}")),
        _ => (name != "step").then(|| format!("train/{name}")),
    }
}

/// An event as a record of the file.
fn record(event: &Event) -> Vec<u8> {
    let bytes = event.encode_to_vec();
    let length = (bytes.len() as u64).to_le_bytes();
    let mut record = length.to_vec();
    record.extend(masked_crc(&length).to_le_bytes());
    record.extend(&bytes);
    record.extend(masked_crc(&bytes).to_le_bytes());
    record
}

/// CRC-32C, rotated and shifted, as TensorFlow stores checksums (`core/lib/hash/crc32c.h`, `Mask`).
fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The first event of a file with wall time 1, put together in Python from the definition, the
    /// checksums bit by bit.
    const FIRST: &str = "1800000000000000a37f4b2209000000000000f03f1a0d627261696e2e4576656e743a3286bf577a";

    #[test]
    fn rows_become_scalars_that_can_be_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut board = TensorBoard::create(folder.path()).unwrap();
        let progress = Progress { step: 3, total_steps: 9, samples: 0, tokens: 0, epoch: 0.5 };
        let callback: &mut dyn Callback = &mut board;
        callback.on_log(&progress, &Record::default().with("step", 3u64).with("loss", 1.5).with("peak_mib", None));
        callback.on_evaluate(&progress, &Record::default().with("eval_accuracy", 0.25), &mut Control::default());
        callback.on_train_end(&progress, &Record::default().with("train_loss", 1.75));
        let bytes = fs::read(&board.path).unwrap();
        let (mut at, mut events) = (0, Vec::new());
        while at < bytes.len() {
            let length = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
            events.push(Event::decode(&bytes[at + 12..at + 12 + length]).unwrap());
            at += 12 + length + 4;
        }
        assert_eq!(events[0].file_version.as_deref(), Some("brain.Event:2"));
        let scalars = events[1..].iter().map(|event| {
            let scalar = &event.summary.as_ref().unwrap().value[..];
            (event.step, scalar[0].tag.as_str(), scalar[0].simple_value, scalar.len())
        });
        let expected = [("train/loss", Some(1.5)), ("eval/accuracy", Some(0.25)), ("train/train_loss", Some(1.75))];
        assert_eq!(scalars.collect::<Vec<_>>(), expected.map(|(tag, value)| (3, tag, value, 1)));
        assert!(events[1].wall_time > 1.7e9 && events[1].wall_time < 1e11, "seconds: {}", events[1].wall_time);
    }

    #[test]
    fn the_bytes_are_those_of_the_format() {
        let first = Event { wall_time: 1.0, file_version: Some("brain.Event:2".into()), ..Event::default() };
        let hex = record(&first).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex, FIRST);
    }
}
