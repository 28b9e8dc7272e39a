//! The largest batch that trains on this machine, found by training: each size in a process of its
//! own, with real steps on the longest examples, until one more does not fit. `kiln tune-batch` and
//! `per_device_train_batch_size = "auto"` are built on it. It never guesses: a size that was not
//! run is never reported.

pub mod measured;
pub mod process;
pub mod search;
pub mod trial;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kiln::config::{CheckedConfig, CompilerMode, DeviceKind, RunConfig};
use kiln::engine::device::DeviceFacts;
use kiln::plan::{RunPlan, batch::micro_batch};
use kiln::session::batch_sizes::{Key, Outcome, Stored, Trial, accumulates, probe, sharers, useful};
use kiln::session::memory_line::MemoryLine;
use kiln::session::{OpenSession, Session};
use kiln_core::clock;
use kiln_core::error::{Error, Result};
use kiln_core::host::available_mib;
use kiln_core::process::scratch;
use process::Limits;
use search::Range;
use trial::{MIN_STEPS, trial_config};

use crate::runner::Work;

/// How to look for a size.
#[derive(Debug, Clone, PartialEq)]
pub struct TuneOptions {
    /// The `kiln` that makes the trials, by its hidden command `trial-batch`.
    pub program: PathBuf,
    /// The first size. Default: what the memory line of an earlier search of the same run, or else
    /// that of the plan's estimate, has room for; where the memory has no stated size, the
    /// config's, or 8.
    pub start: Option<usize>,
    /// The largest size to try. Default: 65,536.
    pub max: usize,
    /// Sizes are multiples of this. Default: 1.
    pub multiple_of: usize,
    /// Optimizer steps of a trial, at least 2. Default: 3.
    pub steps_per_trial: usize,
    /// The search ends after this much time with the largest size that ran. Default: no limit.
    pub time_limit: Option<Duration>,
    /// Memory that a trial on the CPU may have resident, in MiB. Default: what is free.
    pub memory_budget_mib: Option<f64>,
    /// The share of the memory that is left alone. Default: 0.1; with a stated budget 0.
    pub memory_reserve: Option<f64>,
}

/// The share that is left alone of memory that is merely free.
pub const DEFAULT_RESERVE: f64 = 0.1;

impl TuneOptions {
    /// The defaults, with trials made by `program`.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            start: None,
            max: 1 << 16,
            multiple_of: 1,
            steps_per_trial: 3,
            time_limit: None,
            memory_budget_mib: None,
            memory_reserve: None,
        }
    }

    fn check(&self) -> Result<()> {
        let reserve = self.memory_reserve.unwrap_or(0.0);
        if !(0.0..1.0).contains(&reserve) {
            return Err(Error::config(format!("--memory-reserve: expected a share from 0 to below 1, got {reserve}")));
        }
        if self.steps_per_trial < MIN_STEPS {
            return Err(Error::config(format!(
                "--steps-per-trial: expected {MIN_STEPS} or more, got {}: the second step shows that the first was made",
                self.steps_per_trial
            )));
        }
        for (name, value) in
            [("--max", self.max), ("--multiple-of", self.multiple_of), ("--start", self.start.unwrap_or(1))]
        {
            if value == 0 {
                return Err(Error::config(format!("{name}: expected 1 or more, got 0")));
            }
        }
        Ok(())
    }

    /// The memory of a trial on `device`, whose memory `sharers` processes of the run share, in
    /// MiB, and the arithmetic; none where the device's own memory is the limit.
    fn budget(&self, device: &DeviceFacts, sharers: usize) -> Result<(Option<f64>, String)> {
        if device.kind != DeviceKind::Cpu {
            if self.memory_budget_mib.is_some() {
                return Err(Error::config(format!(
                    "--memory-budget is for the CPU, and this run is on {}",
                    device.kind
                ))
                .help("leave it out: the device's memory is the limit"));
            }
            let reserve = self.memory_reserve.unwrap_or(DEFAULT_RESERVE);
            return Ok((None, format!("the device's memory; {:.0} % of the size is left alone", reserve * 100.0)));
        }
        let Some(available) = available_mib() else {
            return Err(Error::config(
                "this system does not tell how much memory a process has, so there is no budget to keep",
            )
            .help("tune-batch on the CPU needs Linux; set trainer.per_device_train_batch_size to a number"));
        };
        let (memory, what, reserve) = match self.memory_budget_mib {
            Some(budget) => (budget, "stated", self.memory_reserve.unwrap_or(0.0)),
            None => (available, "free", self.memory_reserve.unwrap_or(DEFAULT_RESERVE)),
        };
        if memory > available {
            return Err(Error::config(format!(
                "--memory-budget: {memory:.0} MiB, but only {available:.0} MiB are free"
            ))
            .help("end other programs, or lower the budget"));
        }
        let budget = memory * (1.0 - reserve) / sharers as f64;
        let shared = if sharers == 1 { String::new() } else { format!(", shared by {sharers} ranks") };
        let because = match reserve {
            0.0 if sharers == 1 => format!("{budget:.0} MiB ({what})"),
            0.0 => format!("{budget:.0} MiB = {memory:.0} MiB {what}{shared}"),
            _ => format!("{budget:.0} MiB = {memory:.0} MiB {what} - {:.0} % left alone{shared}", reserve * 100.0),
        };
        Ok((Some(budget), because))
    }
}

/// The events of a search.
#[derive(Debug)]
pub enum Event<'a> {
    /// It begins: what for, and with which memory.
    Begins {
        /// The run that the size is for.
        key: &'a Key,
        /// The memory, with its arithmetic.
        budget: &'a str,
    },
    /// A trial has ended.
    Tried(&'a Trial),
}

/// Looks for the largest size at which `config` trains in `mode` and keeps it. `plan` makes a plan
/// of a config ([`CheckedConfig::plan`], or one that shows its progress); `watch` is told how the
/// search goes.
///
/// # Errors
/// Options that make no sense, a config that cannot be planned in that mode, memory in which not
/// even one sample trains, a trial that failed for another reason, no trial within the time limit.
pub fn tune(
    config: &RunConfig,
    mode: CompilerMode,
    options: &TuneOptions,
    open: &dyn Fn(CheckedConfig) -> Result<Session>,
    watch: &mut dyn FnMut(Event<'_>) -> Result<()>,
) -> Result<Stored> {
    options.check()?;
    // A limit beyond what the clock can tell is none.
    let deadline = options.time_limit.and_then(|limit| Instant::now().checked_add(limit));
    let mut config = config.clone();
    config.trainer.set_compiler(mode);
    let session = open(probe(&config).checked()?)?;
    let probe = &session.run_plan()?;
    let device = &probe.train.engine.device;
    let (budget_mib, because) = options.budget(device, sharers(&config, device.kind))?;
    let key = Key::of(&config, probe)?;
    watch(Event::Begins { key: &key, budget: &because })?;
    let folder = scratch()?;
    let mut run = |batch: usize| {
        let outcome = try_size(&config, &session, batch, options, Limits { budget_mib, deadline }, folder.path())?;
        watch(Event::Tried(&Trial { batch, outcome: outcome.clone() }))?;
        Ok(outcome)
    };
    let useful = useful(&config, &probe.train).checked_next_multiple_of(options.multiple_of).unwrap_or(usize::MAX);
    let known = Stored::find(&key, 0)?.and_then(|stored| stored.line);
    let estimate = budget_mib.and_then(|budget| estimated_line(probe, budget));
    let room = || known.or(estimate).zip(budget_mib).map(|(line, budget)| line.largest(budget));
    let start =
        options.start.or_else(room).or(config.trainer.per_device_train_batch_size.size()).unwrap_or(DEFAULT_START);
    let range = Range { start, max: options.max.min(useful), multiple_of: options.multiple_of, known, estimate };
    let mut found = range.search(budget_mib, &mut run)?;
    if let (None, Some(batch)) = (budget_mib, found.batch) {
        // Nobody measures the device's memory here, so the reserve is taken from the size; what it
        // comes to is run too.
        let reserve = options.memory_reserve.unwrap_or(DEFAULT_RESERVE);
        let unit = options.multiple_of;
        let less = ((batch as f64 * (1.0 - reserve)) as usize / unit * unit).max(unit.min(batch));
        let known = found.trials.iter().any(|trial| trial.batch == less);
        let outcome = if known || less == batch { None } else { Some(run(less)?) };
        if known || matches!(outcome, Some(Outcome::Fits { .. })) {
            (found.batch, found.next_fails) = (Some(less), found.next_fails && less == batch);
        }
        found.trials.extend(outcome.map(|outcome| Trial { batch: less, outcome }));
    }
    let Some(batch) = found.batch else {
        let tried = found.trials.iter().map(|trial| trial.batch).min().unwrap_or(start);
        if found.trials.iter().any(|trial| trial.outcome == Outcome::OutOfTime) {
            return Err(Error::config(format!("{mode}: no size had trained when the time limit was over"))
                .help("raise --time-limit"));
        }
        return Err(Error::out_of_memory(format!("{mode}: not even a batch of {tried} trains in {because}")).help(
            "give it more memory (--memory-budget), or take a smaller model, data.block_size or optimizer state",
        ));
    };
    let stored = Stored {
        key,
        batch,
        next_fails: found.next_fails,
        capped_at: (batch == useful).then_some(useful),
        budget_mib,
        line: found.line,
        trials: found.trials,
        date: clock::rfc3339(),
    };
    stored.write()?;
    Ok(stored)
}

/// The line through the plan's estimates of two sizes about the largest that it has room for in
/// `budget_mib`.
fn estimated_line(plan: &RunPlan, budget_mib: f64) -> Option<MemoryLine> {
    let estimate = |batch| Some((batch, plan.estimated_memory_of(batch)?.total() as f64 / f64::from(1 << 20)));
    let mut points = [estimate(1)?, estimate(2)?];
    while points[1].1 <= budget_mib && points[1].0 < LARGEST_ESTIMATED {
        points = [points[1], estimate(2 * points[1].0)?];
    }
    MemoryLine::fit(&points)
}

/// No memory holds batches so large.
const LARGEST_ESTIMATED: usize = 1 << 24;

/// The first size, when the config names none.
const DEFAULT_START: usize = 8;

fn try_size(
    config: &RunConfig,
    probe: &Session,
    batch: usize,
    options: &TuneOptions,
    limits: Limits,
    folder: &Path,
) -> Result<Outcome> {
    let trial = trial_config(probe, batch, options.steps_per_trial, accumulates(config), folder)?;
    let file = folder.join("trial.toml");
    // A trial that was ended leaves a folder that is no run yet.
    if trial.trainer.output_dir.exists() {
        let left = &trial.trainer.output_dir;
        std::fs::remove_dir_all(left).map_err(|error| Error::io(format!("remove {}", left.display()), &error))?;
    }
    let work = Work::on(&trial, &file, &options.program, "trial-batch")?;
    process::run(&work.with(["--devices", &config.trainer.devices.count.to_string()]), limits)
}

/// The micro-batch that `kiln tune-batch` has found for a run of `config`, in the mode that it
/// names; none when nothing is stored. `plan` makes a plan of a config.
///
/// # Errors
/// A config that cannot be planned.
pub fn found(config: &RunConfig, plan: &dyn Fn(CheckedConfig) -> Result<RunPlan>) -> Result<Option<usize>> {
    let probe = plan(probe(config).checked()?)?;
    let stored = Stored::find(&Key::of(config, &probe)?, useful(config, &probe.train))?;
    Ok(stored.map(|stored| micro_batch(&config.trainer, stored.batch)))
}

/// `2GiB`, `1.5 GB`, `512M` or a number of bytes, in MiB.
///
/// # Errors
/// Anything else.
pub fn parse_mib(text: &str) -> Result<f64> {
    let refused = || {
        Error::config(format!("expected an amount of memory, got `{text}`"))
            .help("for example 2GiB, 1500MB or 2147483648")
    };
    let digits = text.trim().trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text.trim()[digits.len()..].to_ascii_lowercase();
    let bytes = match unit.as_str() {
        "" | "b" => 1.0,
        "k" | "kib" => 1024.0,
        "m" | "mib" => 1024f64.powi(2),
        "g" | "gib" => 1024f64.powi(3),
        "t" | "tib" => 1024f64.powi(4),
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "tb" => 1e12,
        _ => return Err(refused()),
    };
    let number = digits.trim().parse::<f64>().map_err(|_| refused())?;
    let mib = number * bytes / 1024f64.powi(2);
    if mib.is_finite() && mib > 0.0 { Ok(mib) } else { Err(refused()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn amounts_of_memory() {
        for (text, mib) in [("2GiB", 2048.0), ("2 GiB", 2048.0), ("512m", 512.0), ("1048576", 1.0), ("0.5 gib", 512.0)]
        {
            assert_eq!(parse_mib(text).unwrap(), mib, "{text}");
        }
        assert!((parse_mib("1GB").unwrap() - 953.674).abs() < 1e-3);
        for bad in ["", "GiB", "2 parsecs", "-1GiB", "0", "nan", "inf"] {
            assert!(parse_mib(bad).unwrap_err().to_string().contains("2GiB"), "{bad}");
        }
    }

    #[test]
    fn options_that_make_no_sense_are_refused() {
        let options = TuneOptions::new("kiln");
        options.check().unwrap();
        for bad in [
            TuneOptions { memory_reserve: Some(1.0), ..options.clone() },
            TuneOptions { memory_reserve: Some(f64::NAN), ..options.clone() },
            TuneOptions { steps_per_trial: 1, ..options.clone() },
            TuneOptions { multiple_of: 0, ..options.clone() },
            TuneOptions { max: 0, ..options.clone() },
        ] {
            assert!(bad.check().unwrap_err().to_string().starts_with("--"));
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_budget_is_stated_or_a_share_of_what_is_free() {
        let cpu = kiln::engine::device::select(DeviceKind::Cpu, 0).unwrap().facts();
        let options = TuneOptions::new("kiln");
        let (budget, because) = options.budget(&cpu, 1).unwrap();
        assert!(budget.unwrap() > 0.0 && because.contains("free - 10 % left alone"), "{because}");
        let stated = TuneOptions { memory_budget_mib: Some(64.0), ..options.clone() };
        assert_eq!(stated.budget(&cpu, 1).unwrap(), (Some(64.0), "64 MiB (stated)".into()));
        let both = TuneOptions { memory_reserve: Some(0.25), ..stated };
        assert_eq!(both.budget(&cpu, 1).unwrap(), (Some(48.0), "48 MiB = 64 MiB stated - 25 % left alone".into()));
        assert_eq!(
            both.budget(&cpu, 2).unwrap(),
            (Some(24.0), "24 MiB = 64 MiB stated - 25 % left alone, shared by 2 ranks".into())
        );
        let error = TuneOptions { memory_budget_mib: Some(1e12), ..options }.budget(&cpu, 1).unwrap_err().to_string();
        assert!(error.contains("MiB are free"), "{error}");
    }
}
