//! `kiln tune-batch`: the search for the largest batch, told as it goes; and the trial that it
//! starts in a process of its own. Where the modes are two engines, each search is made by the
//! engine of its mode.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use clap::Args;
use kiln::config::{CompilerMode, DeviceKind, RunConfig, TrainBatchSize};
use kiln::plan::batch::micro_batch;
use kiln::session::batch_sizes::{Outcome, Stored, Trial, size_of_run};
use kiln_core::error::{Error, Result};
use kiln_core::process::{self, this_program};
use kiln_measure::engines::{self, Identity};
use kiln_measure::runner::{Work, in_a_process};
use kiln_measure::tune_batch;
use kiln_measure::tune_batch::{DEFAULT_RESERVE, Event, TuneOptions, measured, parse_mib, trial, tune};

use super::training::{Layers, open, resolve};
use super::{say, time};

#[derive(Debug, Args)]
pub(super) struct TuneArgs {
    /// The config file (TOML)
    #[arg(required_unless_present = "list")]
    file: Option<PathBuf>,
    #[command(flatten)]
    layers: Layers,
    /// Show the sizes that are kept and those that were measured elsewhere
    #[arg(long, conflicts_with = "file")]
    list: bool,
    /// native, compiled or both; what [compiler] says when it is left out
    #[arg(long, value_name = "MODE", conflicts_with = "compiler")]
    mode: Option<String>,
    /// The first size to try; when it is left out, the one that an earlier search or the plan's
    /// estimate leads to; where the memory has no stated size, the config's, or 8
    #[arg(long, value_name = "SIZE")]
    start: Option<usize>,
    /// The largest size to try
    #[arg(long, value_name = "SIZE", default_value_t = 1 << 16)]
    max: usize,
    /// Only multiples of this
    #[arg(long, value_name = "SIZE", default_value_t = 1)]
    multiple_of: usize,
    /// Optimizer steps of a trial
    #[arg(long, value_name = "STEPS", default_value_t = 3)]
    steps_per_trial: usize,
    /// End the search after this time with the largest size that ran: 90s, 10m
    #[arg(long, value_name = "TIME", value_parser = time)]
    time_limit: Option<Duration>,
    /// Memory of a trial on the CPU: 2GiB; what is free when it is left out
    #[arg(long, value_name = "MEMORY")]
    memory_budget: Option<String>,
    /// The share of memory that is left alone; 0.1 of what is free, 0 of a stated budget
    #[arg(long, value_name = "SHARE")]
    memory_reserve: Option<f64>,
}

impl TuneArgs {
    /// The options of the search, as they are written on a command line.
    fn options(&self) -> Vec<String> {
        let start = self.start.map(|start| ("--start", start.to_string()));
        let limit = self.time_limit.map(|limit| ("--time-limit", humantime::format_duration(limit).to_string()));
        let budget = self.memory_budget.clone().map(|budget| ("--memory-budget", budget));
        let reserve = self.memory_reserve.map(|reserve| ("--memory-reserve", reserve.to_string()));
        let always = [
            ("--max", self.max.to_string()),
            ("--multiple-of", self.multiple_of.to_string()),
            ("--steps-per-trial", self.steps_per_trial.to_string()),
        ];
        let all = always.into_iter().chain(start).chain(limit).chain(budget).chain(reserve);
        all.map(|(name, value)| format!("{name}={value}")).collect()
    }
}

#[derive(Debug, Args)]
pub(super) struct TrialArgs {
    /// The config of the trial
    file: PathBuf,
    /// The devices of the run
    #[arg(long, default_value_t = 1)]
    devices: usize,
}

pub(super) fn run_trial(args: &TrialArgs) -> Result<()> {
    process::answer(&trial::run_trial(&args.file, args.devices)?)
}

pub(super) fn run_tune(args: &TuneArgs) -> Result<()> {
    // Without a file, clap has seen --list.
    let Some(file) = &args.file else { return list() };
    let mut asked = CompilerMode::Native;
    let config = args.layers.load(file, |config| {
        asked = config.trainer.compiler_mode();
        if asked == CompilerMode::Auto {
            // Each mode is searched by itself, where the size "auto" is that of one mode.
            config.trainer.set_compiler(CompilerMode::Native);
        }
        Ok(())
    });
    let mut config = RunConfig::from(config?);
    let modes = match (args.mode.as_deref(), asked) {
        (Some("both" | "auto"), _) | (None, CompilerMode::Auto) => vec![CompilerMode::Native, CompilerMode::Compiled],
        (None, mode) => vec![mode],
        (Some(mode), _) => vec![mode.parse().map_err(|error: Error| error.at("--mode"))?],
    };
    let budget = args.memory_budget.as_deref().map(parse_mib).transpose();
    let options = TuneOptions {
        start: args.start,
        max: args.max,
        multiple_of: args.multiple_of,
        steps_per_trial: args.steps_per_trial,
        time_limit: args.time_limit,
        memory_budget_mib: budget.map_err(|error| error.at("--memory-budget"))?,
        memory_reserve: args.memory_reserve,
        ..TuneOptions::new(this_program()?)
    };
    let two_engines = config.trainer.device.kind != DeviceKind::Cpu && Identity::this().devices.len() > 1;
    if let ([mode], true) = (&modes[..], two_engines) {
        config.trainer.set_compiler(*mode);
        engines::hand_over(config.trainer.compiler.as_ref(), config.trainer.device.kind)?;
    }
    let elsewhere = two_engines && modes.len() > 1;
    let search = |mode: &CompilerMode| {
        if elsewhere { search_in_its_engine(&config, *mode, args) } else { search(&config, *mode, &options) }
    };
    let found = modes.iter().map(search).collect::<Result<Vec<_>>>()?;
    if let (true, [found]) = (process::is_child(), &found[..]) {
        process::answer(found)?;
    }
    if let [native, compiled] = &found[..] {
        let (a, b) = (native.batch, compiled.batch);
        let verdict = match b.cmp(&a) {
            std::cmp::Ordering::Greater => "more than",
            std::cmp::Ordering::Equal => "as many as",
            std::cmp::Ordering::Less => "FEWER than",
        };
        say(format!("compiled fits {b}, {verdict} native's {a}: {:.2} times", b as f64 / a as f64))?;
    }
    Ok(())
}

/// The size of a run that asks for it with `"auto"`, which is looked for where none is known; none
/// for a run that states its own.
pub(super) fn size_of(config: &RunConfig) -> Result<Option<usize>> {
    if config.trainer.per_device_train_batch_size != TrainBatchSize::Auto {
        return Ok(None);
    }
    if let Some(size) =
        size_of_run(config)?.map_or_else(|| tune_batch::found(config, &resolve), |size| Ok(Some(size)))?
    {
        return Ok(Some(size));
    }
    say("trainer.per_device_train_batch_size = \"auto\", and no size is known for this run: looking for one")?;
    let found = search(config, config.trainer.compiler_mode(), &TuneOptions::new(this_program()?))?;
    Ok(Some(micro_batch(&config.trainer, found.batch)))
}

/// Runs `kiln tune-batch` for one mode, in a process that becomes that mode's engine.
fn search_in_its_engine(config: &RunConfig, mode: CompilerMode, args: &TuneArgs) -> Result<Stored> {
    in_a_process(&this_program()?, "tune-batch", config, &format!("tune-batch ({mode})"), |work| Work {
        stdout: Stdio::inherit,
        ..work.with(["--mode", mode.as_str()]).with(args.options())
    })?
    .answer()
}

fn search(config: &RunConfig, mode: CompilerMode, options: &TuneOptions) -> Result<Stored> {
    let found = tune(config, mode, options, &open, &mut |event| match event {
        Event::Begins { key, budget } => {
            say(format!("{}: {} for {}, {} tokens, {}", key.mode, key.model, key.task, key.block_size, key.precision))?;
            say(format!("on {}; memory of a trial: {budget}", key.device))
        }
        Event::Tried(trial) => say(line(trial)),
    })?;
    if let Some(line) = &found.line {
        say(line)?;
    }
    let next = found.batch.saturating_add(options.multiple_of);
    say(match (found.next_fails, found.trials.iter().any(|trial| trial.outcome == Outcome::OutOfTime)) {
        (true, _) => format!("{mode}: {} fit, {next} do not", found.batch),
        (false, true) => format!("{mode}: {} fit; the time limit came before the next size", found.batch),
        (false, false) => match found.capped_at {
            Some(cap) => format!("{mode}: {} fit, and the run has no use for more than {cap}", found.batch),
            None => format!("{mode}: {} fit; larger sizes were not tried, or are left alone", found.batch),
        },
    })?;
    Ok(found)
}

fn line(trial: &Trial) -> String {
    let what = match &trial.outcome {
        Outcome::Fits { peak_mib, step_ms } => {
            let peak = peak_mib.map_or(String::new(), |mib| format!("  {mib:.1} MiB"));
            let step = step_ms.map_or(String::new(), |ms| format!("  {ms:.0} ms a step"));
            format!("fits{peak}{step}")
        }
        Outcome::TooLarge(why) => format!("too large: {why}"),
        Outcome::OutOfTime => "the time limit is over".into(),
    };
    format!("batch {:>6}  {what}", trial.batch)
}

fn list() -> Result<()> {
    let found = Stored::list()?;
    say(format!("found on this machine: {}", found.len()))?;
    found.iter().try_for_each(say)?;
    let measured = measured::table();
    say(format!("measured elsewhere (configs/measured): {}", measured.len()))?;
    measured.iter().try_for_each(say)
}

// The help of --memory-reserve names the default.
const _: () = assert!(DEFAULT_RESERVE == 0.1);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        tune: TuneArgs,
    }

    fn parse(options: &[String]) -> TuneArgs {
        let words = ["kiln", "FILE"].map(str::to_owned).into_iter().chain(options.iter().cloned());
        Command::try_parse_from(words).unwrap().tune
    }

    #[test]
    fn another_engine_is_given_the_options_of_this_one() {
        let given = [
            "--max=24",
            "--multiple-of=4",
            "--steps-per-trial=5",
            "--start=8",
            "--time-limit=1m 30s",
            "--memory-budget=2GiB",
            "--memory-reserve=0.25",
        ];
        let options = parse(&given.map(str::to_owned)).options();
        assert_eq!(options, given);
        let again = parse(&options);
        assert_eq!((again.start, again.time_limit), (Some(8), Some(Duration::from_secs(90))));
        assert_eq!(parse(&[]).options(), ["--max=65536", "--multiple-of=1", "--steps-per-trial=3"]);
    }
}
