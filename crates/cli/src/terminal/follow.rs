//! The files of a run folder as they grow: what `kiln watch` shows, read from the folder alone.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kiln::plan::TrainPlan;
use kiln::run_folder::{LOGS, RUN_LOG, RunStatus, STEP_TIMES, Status};
use kiln::session::saved_plan;
use kiln::trainer::laps::{Parts, StepTimes};
use kiln_core::error::Result;
use kiln_core::metrics::{self, Record};
use kiln_core::stats::median;

use super::pace::Pace;

/// Lines of the log that are kept.
const LOG: usize = 200;

/// The times of so many last steps are shown.
const STEPS: usize = 200;

/// So much of the end of a file of which only the end is shown, in bytes.
const TAIL: u64 = 1 << 18;

/// No row is longer, in bytes: a file without line ends is not kept in memory.
const LONGEST: usize = 1 << 20;

/// A file of lines that is read as it grows, and anew when it has been replaced or cut.
#[derive(Debug)]
struct Lines {
    path: PathBuf,
    /// So much of its end is read at first.
    tail: u64,
    inode: u64,
    offset: u64,
    rest: Vec<u8>,
}

impl Lines {
    fn new(path: PathBuf, tail: u64) -> Self {
        Self { path, tail, inode: 0, offset: 0, rest: Vec::new() }
    }

    /// The whole lines since the last call, and whether what came before is void. A file that is
    /// missing or cannot be read has none.
    fn read(&mut self) -> (bool, Vec<String>) {
        let Some(found) = fs::metadata(&self.path).ok().filter(fs::Metadata::is_file) else {
            let was_there = self.inode != 0;
            (self.inode, self.offset) = (0, 0);
            self.rest.clear();
            return (was_there, Vec::new());
        };
        let is_new = found.ino() != self.inode || found.len() < self.offset;
        let mut is_cut = false;
        if is_new {
            self.inode = found.ino();
            self.offset = found.len().saturating_sub(self.tail);
            is_cut = self.offset > 0;
            self.rest.clear();
        }
        let read = File::open(&self.path).and_then(|mut file| {
            file.seek(SeekFrom::Start(self.offset))?;
            file.take(found.len().saturating_sub(self.offset)).read_to_end(&mut self.rest)
        });
        self.offset += read.unwrap_or(0) as u64;
        let end = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let rest = self.rest.split_off(end);
        let text = String::from_utf8_lossy(&std::mem::replace(&mut self.rest, rest)).into_owned();
        if self.rest.len() > LONGEST {
            self.rest.clear();
        }
        // The first line of a tail is the end of one.
        (is_new, text.lines().skip(usize::from(is_cut)).map(str::to_owned).collect())
    }
}

/// A rank besides 0, as its log tells.
#[derive(Debug)]
pub(super) struct FollowedRank {
    log: Lines,
    /// The last line of its log.
    pub(super) last: String,
    /// When the log was last written.
    written: SystemTime,
}

impl FollowedRank {
    /// How long it has said nothing.
    pub(super) fn silence(&self) -> Duration {
        self.written.elapsed().unwrap_or_default()
    }
}

/// One run, followed.
#[derive(Debug)]
pub(super) struct Followed {
    /// The arm's name in a comparison.
    pub(super) name: String,
    folder: PathBuf,
    /// How it stands; none before it begins.
    pub(super) status: Option<Result<Status>>,
    /// The plan of the process that works on it.
    plan: Option<TrainPlan>,
    pub(super) rows: Vec<Record>,
    pub(super) log: VecDeque<String>,
    steps: VecDeque<StepTimes>,
    /// The ranks besides 0 whose logs are here, by number.
    pub(super) ranks: BTreeMap<usize, FollowedRank>,
    files: [Lines; 3],
}

impl Followed {
    pub(super) fn new(name: String, folder: &Path) -> Self {
        let file = |name: &str, tail: u64| Lines::new(folder.join(name), tail);
        Self {
            name,
            folder: folder.into(),
            status: None,
            plan: None,
            rows: Vec::new(),
            log: VecDeque::new(),
            steps: VecDeque::new(),
            ranks: BTreeMap::new(),
            files: [file(metrics::FILE, u64::MAX), file(RUN_LOG, TAIL), file(STEP_TIMES, TAIL)],
        }
    }

    /// Reads what is new.
    pub(super) fn read(&mut self) {
        let [rows, log, steps] = self.files.each_mut().map(Lines::read);
        if rows.0 {
            self.rows.clear();
        }
        if log.0 {
            self.log.clear();
        }
        if steps.0 {
            self.steps.clear();
        }
        self.rows.extend(rows.1.iter().filter_map(|line| Record::from_json(line)));
        self.log.extend(log.1);
        self.steps.extend(steps.1.iter().filter_map(|line| serde_json::from_str(line).ok()));
        self.log.drain(..self.log.len().saturating_sub(LOG));
        self.steps.drain(..self.steps.len().saturating_sub(STEPS));
        let before = self.known().map(|status| status.started_at);
        self.status = Status::read(&self.folder).transpose();
        if self.known().map(|status| status.started_at) != before {
            // Without its plan the forecast has no evaluations.
            self.plan = saved_plan(&self.folder).ok().flatten().map(|plan| plan.train);
        }
        self.read_ranks();
    }

    /// The logs of an earlier start of the run, which may have had more ranks, are left out.
    fn read_ranks(&mut self) {
        let began = self.known().map_or(0.0, |status| status.started_at).max(0.0);
        let began = UNIX_EPOCH + Duration::try_from_secs_f64(began).unwrap_or_default();
        let mut there = BTreeMap::new();
        for entry in fs::read_dir(self.folder.join(LOGS)).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let rank = name.to_str().and_then(|name| name.strip_suffix(".log")).and_then(|rank| rank.parse().ok());
            let written = entry.metadata().ok().filter(fs::Metadata::is_file).and_then(|found| found.modified().ok());
            if let (Some(rank), Some(written)) = (rank, written.filter(|written| *written >= began)) {
                let new = || FollowedRank { log: Lines::new(entry.path(), TAIL), last: String::new(), written };
                let mut followed = self.ranks.remove(&rank).unwrap_or_else(new);
                followed.written = written;
                if let Some(last) = followed.log.read().1.into_iter().rfind(|line| !line.trim().is_empty()) {
                    followed.last = last;
                }
                there.insert(rank, followed);
            }
        }
        self.ranks = there;
    }

    /// Nothing of what the folder held before `since` (seconds since 1970) is of the run that is to
    /// begin.
    pub(super) fn forget_before(&mut self, since: f64) {
        let is_before = |status: &Result<Status>| status.as_ref().is_ok_and(|status| status.started_at < since);
        if self.status.as_ref().is_none_or(is_before) {
            self.status = None;
            self.rows.clear();
            self.log.clear();
            self.steps.clear();
            self.ranks.clear();
            self.files.iter_mut().for_each(|file| file.inode = 0);
        }
    }

    /// The evaluation of the model that is kept, or the last one.
    pub(super) fn evaluation(&self) -> Option<&Record> {
        self.known()?.evaluation(self.rows.iter())
    }

    /// Where it is.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The status, where it can be read.
    pub(super) fn known(&self) -> Option<&Status> {
        self.status.as_ref()?.as_ref().ok()
    }

    /// Whether the run goes on, or is yet to begin.
    pub(super) fn goes_on(&self) -> bool {
        self.known().is_none_or(|status| status.status == RunStatus::InProgress)
    }

    /// The last step that left a trace.
    pub(super) fn step(&self) -> u64 {
        let logged = self.rows.iter().filter_map(|row| row.get("step")).fold(0.0, f64::max);
        self.known().map_or(0, |status| status.step).max(logged as u64)
    }

    /// Step and value of every row that has a number `name`.
    pub(super) fn points(&self, name: &str) -> Vec<(f64, f64)> {
        self.rows.iter().filter_map(|row| Some((row.get("step")?, row.get(name)?))).collect()
    }

    /// The median time of the last steps by part, in milliseconds; none without `steps.jsonl`.
    pub(super) fn parts(&self) -> Option<Parts> {
        let parts = self.steps.iter().map(StepTimes::parts).collect::<Vec<_>>();
        (!parts.is_empty()).then(|| Parts::over(&parts, median))
    }

    /// Seconds until the end at the pace of the rows so far; none for a run that does not go on.
    pub(super) fn seconds_left(&self) -> Option<f64> {
        let status = self.known().filter(|status| status.status == RunStatus::InProgress)?;
        Pace::of(&self.rows).seconds_left(self.plan.as_ref(), self.step(), status.total_steps, None)
    }
}

/// The runs that belong to `folder`: the one in it, the last repeat of each arm of a comparison, or
/// the trial of a search that wrote last.
pub(super) fn runs_in(folder: &Path) -> Vec<(String, PathBuf)> {
    let (arms, trials) = (folder.join("arms"), folder.join("trials"));
    if folder.join("sweep.json").exists() {
        let entries = fs::read_dir(trials).into_iter().flatten().flatten().map(|entry| entry.path());
        let written = |trial: &PathBuf| fs::metadata(trial.join("status.json")).and_then(|file| file.modified()).ok();
        let newest = entries.filter_map(|trial| Some((written(&trial)?, trial))).max();
        let name = |trial: &Path| format!("trial {}", trial.file_name().unwrap_or_default().to_string_lossy());
        return newest.map(|(_, trial)| (name(&trial), trial)).into_iter().collect();
    }
    if folder.join("status.json").exists() || !arms.is_dir() {
        return vec![(String::new(), folder.into())];
    }
    let folders = |path: &Path| {
        let entries = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
        entries.filter(|path| path.is_dir())
    };
    let repeat = |path: &Path| {
        let name = path.file_name()?.to_str()?;
        name.strip_prefix("repeat-")?.parse::<u32>().ok()
    };
    let last = |arm: PathBuf| {
        let last = folders(&arm).filter(|path| repeat(path).is_some()).max_by_key(|path| repeat(path))?;
        Some((arm.file_name()?.to_string_lossy().into_owned(), last))
    };
    let mut arms = folders(&arms).filter_map(last).collect::<Vec<_>>();
    arms.sort();
    arms
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_file_is_read_as_it_grows_and_anew_when_it_is_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        let mut lines = Lines::new(path.clone(), u64::MAX);
        assert_eq!(lines.read(), (false, vec![]));
        fs::write(&path, "one\ntw").unwrap();
        assert_eq!(lines.read(), (true, vec!["one".to_owned()]));
        let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
        std::io::Write::write_all(&mut file, b"o\nthree\n").unwrap();
        assert_eq!(lines.read(), (false, vec!["two".to_owned(), "three".into()]));
        assert_eq!(lines.read(), (false, vec![]));
        file.set_len(4).unwrap();
        assert_eq!(lines.read(), (true, vec!["one".to_owned()]));
        fs::write(folder.path().join("other"), b"a\xffb\nlonger than what was there before\n").unwrap();
        fs::rename(folder.path().join("other"), &path).unwrap();
        assert_eq!(lines.read(), (true, vec!["a\u{fffd}b".to_owned(), "longer than what was there before".into()]));
        fs::remove_file(&path).unwrap();
        assert_eq!(lines.read(), (true, vec![]));
        // A pipe would block whoever opens it.
        fs::create_dir(&path).unwrap();
        assert_eq!(lines.read(), (false, vec![]));
    }

    #[test]
    fn of_a_search_the_trial_that_wrote_last_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(runs_in(folder.path()), [(String::new(), folder.path().into())]);
        fs::write(folder.path().join("sweep.json"), "{}").unwrap();
        assert!(runs_in(folder.path()).is_empty(), "no trial has begun");
        for (trial, seconds) in [("001-native", 20), ("002-native", 30), ("003-native", 10)] {
            let trial = folder.path().join("trials").join(trial);
            fs::create_dir_all(&trial).unwrap();
            let file = File::create(trial.join("status.json")).unwrap();
            file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
        }
        let newest = folder.path().join("trials/002-native");
        assert_eq!(runs_in(folder.path()), [("trial 002-native".to_owned(), newest)]);
    }

    #[test]
    fn of_a_long_file_the_end_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        fs::write(&path, "first\nsecond\nthird\n").unwrap();
        assert_eq!(Lines::new(path, 10).read(), (true, vec!["third".to_owned()]));
    }
}
