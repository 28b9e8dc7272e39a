//! `trainer_state.json`, as `transformers` writes it (`TrainerState`): how far the run is, its best
//! checkpoint, and every row of `metrics.jsonl` as `log_history`.
//!
//! The rows come first and the rest after them, so that a save writes the new rows only, however
//! long the run is. That the file is whole whenever it is read takes two copies of it: a save
//! brings the older one up to date, unseen, and the two change places by renaming.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use kiln_core::error::{Error, Result};
use kiln_core::files::is_blocked;
use kiln_core::metrics::Record;

/// The file's name.
pub(crate) const FILE: &str = "trainer_state.json";

/// The older copy, while a process is at work on the run.
const SPARE: &str = ".trainer_state.json.spare";

/// The copy that was seen, while the two change places.
const SEEN: &str = ".trainer_state.json.seen";

fn cannot_write(folder: &Path, error: &io::Error) -> Error {
    Error::io(format!("write {}", folder.join(FILE).display()), error)
}

/// The two copies of the file, as this process has written them.
#[derive(Debug, Default)]
pub(crate) struct History {
    seen: Option<Written>,
    spare: Option<Written>,
    folder: PathBuf,
}

/// How far a copy has come, in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Written {
    /// Length of the part of `metrics.jsonl` whose rows are in the copy.
    metrics: u64,
    /// Where the rows end in the copy itself.
    rows: u64,
    /// Whether there is a row.
    has_rows: bool,
}

impl History {
    pub(crate) fn write(&mut self, folder: &Path, end: &str, is_last: bool) -> Result<()> {
        let io = |error: io::Error| cannot_write(folder, &error);
        let [path, spare, seen] = [FILE, SPARE, SEEN].map(|name| folder.join(name));
        self.folder = folder.into();
        let mut file = match self.spare {
            Some(_) => OpenOptions::new().write(true).open(&spare).map_err(io)?,
            None => {
                // A process that was killed may have left it.
                for left in [&spare, &seen] {
                    let _ = fs::remove_file(left);
                }
                File::create_new(&spare).map_err(io)?
            }
        };
        let mut copy = self.spare.take().unwrap_or_default();
        copy.append(folder, &mut file, end)?;
        drop(file);
        // Without a second name for what is seen now, the next save writes everything again.
        let is_kept = !is_last && self.seen.is_some() && fs::hard_link(&path, &seen).is_ok();
        fs::rename(&spare, &path).map_err(io)?;
        let older = self.seen.replace(copy);
        self.spare = older.filter(|_| is_kept && fs::rename(&seen, &spare).is_ok());
        Ok(())
    }
}

impl Drop for History {
    fn drop(&mut self) {
        if self.spare.is_some() {
            let _ = fs::remove_file(self.folder.join(SPARE));
        }
    }
}

impl Written {
    /// Brings `file`, which is this copy, up to date with the rows in `folder`, and closes it with
    /// `end`.
    fn append(&mut self, folder: &Path, file: &mut File, end: &str) -> Result<()> {
        let mut text = if self.rows == 0 { "{\n  \"log_history\": [".to_owned() } else { String::new() };
        let path = folder.join("metrics.jsonl");
        let read = || -> io::Result<Vec<u8>> {
            if is_blocked(&path) {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no regular file"));
            }
            let mut metrics = File::open(&path)?;
            metrics.seek(SeekFrom::Start(self.metrics))?;
            let mut rows = Vec::new();
            metrics.read_to_end(&mut rows)?;
            Ok(rows)
        };
        let rows = read().map_err(|error| Error::io(format!("read {}", path.display()), &error))?;
        self.metrics += rows.len() as u64;
        // Rows go in as they stand: they may hold NaN, which Python's json module reads and writes.
        // One that somebody has spoilt meanwhile would spoil this file too.
        for row in String::from_utf8_lossy(&rows).lines().filter(|row| Record::from_json(row).is_some()) {
            text.push_str(if self.has_rows { ",\n    " } else { "\n    " });
            text.push_str(row);
            self.has_rows = true;
        }
        let mut write = || {
            file.seek(SeekFrom::Start(self.rows))?;
            self.rows += text.len() as u64;
            text.push_str(end);
            file.write_all(text.as_bytes())?;
            file.set_len(self.rows + end.len() as u64)?;
            file.sync_data()
        };
        write().map_err(|error| cannot_write(folder, &error))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_save_is_whole_and_reads_and_writes_only_what_is_new() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path();
        let mut metrics = File::create(folder.join("metrics.jsonl")).unwrap();
        let mut history = History::default();
        let mut count = 0;
        let mut save = |rows: usize, is_last: bool| {
            let text = (count..count + rows).map(|row| {
                format!("{{\"step\": {row}, \"loss\": 2.5, \"grad_norm\": 1.25, \"{}\": 1}}\n", "x".repeat(150))
            });
            metrics.write_all(text.collect::<String>().as_bytes()).unwrap();
            count += rows;
            // Its length changes, down too.
            let end = format!("\n  ],\n  \"global_step\": {}\n}}\n", 1000 * (count % 3));
            history.write(folder, &end, is_last).unwrap();
            let read: serde_json::Value = serde_json::from_slice(&fs::read(folder.join(FILE)).unwrap()).unwrap();
            let steps = read["log_history"].as_array().unwrap().iter().map(|row| row["step"].as_u64().unwrap());
            assert!(steps.eq(0..count as u64) && read["global_step"] == 1000 * (count % 3));
        };
        for rows in [0, 1, 0, 2, 1] {
            save(rows, false);
        }
        save(100_000, false);
        save(1, false);
        // Rows that are in both copies are not read again: their time would grow with the run.
        let path = folder.join("metrics.jsonl");
        let other = fs::read_to_string(&path).unwrap().replacen("{\"step\": 0,", "{\"step\": 7,", 1);
        OpenOptions::new().write(true).open(&path).unwrap().write_all(other.as_bytes()).unwrap();
        for rows in [1, 1, 3] {
            save(rows, false);
        }
        save(1, true);
        let mut names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names = names.by_ref().collect::<Vec<_>>();
        names.sort();
        assert_eq!(names, ["metrics.jsonl", FILE], "the last save leaves nothing else");
    }

    #[test]
    fn what_a_killed_process_left_is_replaced_and_an_end_without_a_last_save_leaves_nothing() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path();
        fs::write(folder.join("metrics.jsonl"), "{\"step\": 1}\n").unwrap();
        for name in [SPARE, SEEN, FILE] {
            fs::write(folder.join(name), "half").unwrap();
        }
        let mut history = History::default();
        for _ in 0..3 {
            history.write(folder, "\n  ],\n  \"a\": 1\n}\n", false).unwrap();
            assert!(fs::read_to_string(folder.join(FILE)).unwrap().ends_with("{\"step\": 1}\n  ],\n  \"a\": 1\n}\n"));
        }
        assert!(folder.join(SPARE).exists());
        drop(history);
        assert!(!folder.join(SPARE).exists() && !folder.join(SEEN).exists());
    }
}
