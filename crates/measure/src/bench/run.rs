//! Drives the arms of a benchmark by turns, checks their losses, and writes the report as it
//! goes.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use burn::tensor::{Device, FloatDType};
use kiln::config::{CompilerMode, DeviceKind, Precision, RunConfig, TrainBatchSize};
use kiln::engine::device;
use kiln_core::error::{Error, Result};
use kiln_core::files::{write_json, write_whole};
use kiln_core::process::{Kind, scratch};
use kiln_core::{clock, host, signals};
use kiln_models::ops::products;

use super::case::prepare;
use super::judge::{floor_ms, judge, kiln_provenance};
use super::report::{BenchArm, BenchReport, CaseReport, OperatorReport, SCHEMA, UnitPeak};
use super::suite::{Case, CaseBatch, Suite};
use crate::engines::Programs;
use crate::figures::Spread;
use crate::gemm;
use crate::interleaved::protocol::Turn;
use crate::interleaved::{Arm, ArmProcess, Interleaved};
use crate::operators::OperatorTimes;
use crate::runner::{Answer, Attempt, Failure, Work, in_a_process};

/// Log rows, and so reads from the device, of arms on a GPU.
const LOGGING_STEPS_GPU: usize = 10;

/// An arm that is not Kiln.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its name in tables.
    pub name: String,
    /// Its program and arguments; the folder of the case is added as the last one, and
    /// `--operators` where single operators are measured.
    pub command: Vec<String>,
}

impl std::str::FromStr for Peer {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let has_words = |command: &str| !command.trim().is_empty();
        let example = "--peer \"eager=python3 benches/pytorch/worker.py --mode eager\"";
        let (name, command) = named("--peer", "COMMAND", example, text, has_words)?;
        Ok(Self { name, command: command.split_whitespace().map(str::to_owned).collect() })
    }
}

/// The compiled mode with another setting, as an arm of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variant {
    /// Its name in tables.
    pub name: String,
    /// `section.key=value`.
    pub set: String,
}

impl std::str::FromStr for Variant {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let is_setting = |set: &str| set.contains('=');
        let example = "--variant fused=compiler.fused_ops=on";
        let (name, set) = named("--variant", "SECTION.KEY=VALUE", example, text, is_setting)?;
        Ok(Self { name, set: set.into() })
    }
}

/// The parts of `text`, `NAME=REST`, which `option` takes in the form `rest`.
fn named<'a>(
    option: &str,
    rest: &str,
    example: &str,
    text: &'a str,
    is_right: impl Fn(&str) -> bool,
) -> Result<(String, &'a str)> {
    let parts = text.split_once('=').filter(|(name, rest)| is_free(name) && is_right(rest));
    let (name, value) = parts.ok_or_else(|| {
        Error::config(format!("{option}: expected NAME={rest}, got {text:?}")).help(format!("as in {example}; {NAME}"))
    })?;
    Ok((name.into(), value))
}

/// Whether an arm besides Kiln's modes can have this name, which is also that of its files in
/// the folder of the case.
fn is_free(name: &str) -> bool {
    let is_plain = |c: char| c.is_alphanumeric() || "-_.+".contains(c);
    let is_taken = ["native", "compiled", "model"].contains(&name);
    (1..=64).contains(&name.len()) && !is_taken && !name.starts_with('.') && name.chars().all(is_plain)
}

/// The rule of [`is_free`], for people.
const NAME: &str = "NAME is up to 64 letters, digits and - _ . +, and not native, compiled or model";

/// The subject of the measurement.
#[derive(Debug, Clone)]
pub enum Subject {
    /// The cases of a suite.
    Suite {
        /// Its name.
        name: String,
        /// Its cases.
        suite: Suite,
    },
    /// The run that a config describes.
    Config {
        /// The file, for the title.
        title: String,
        /// The config.
        config: Box<RunConfig>,
    },
}

/// How it is measured.
#[derive(Debug, Clone)]
pub struct Options {
    /// The thing that is compared.
    pub subject: Subject,
    /// Steps of each arm that are not counted.
    pub warmup: Option<usize>,
    /// Turns of each arm.
    pub rounds: Option<usize>,
    /// Optimizer steps of a turn.
    pub steps: Option<usize>,
    /// Repeats of single operators in every round; 0 measures none.
    pub operators: usize,
    /// The compiled mode with other settings.
    pub variants: Vec<Variant>,
    /// Arms that are not Kiln.
    pub peers: Vec<Peer>,
    /// The file of the report.
    pub out: PathBuf,
    /// No case is begun after this time.
    pub time_limit: Option<Duration>,
    /// An arm that is silent for so long has failed.
    pub answer_within: Duration,
}

/// No number of steps, rounds or repeats is larger: what an arm answers must have room in
/// memory.
const MOST: usize = 1_000_000;

/// The numbers of turns.
#[derive(Debug, Clone, Copy)]
struct Turns {
    warmup: usize,
    rounds: usize,
    steps: usize,
    together: bool,
    /// Every so many steps the device is waited for.
    logging: usize,
}

/// Measures, and writes the report after every case. `say` is told how far it is. The second value
/// is the error that the benchmark should end with although there is a report: an arm that
/// failed, or losses that are not equal.
///
/// # Errors
/// Options that make no sense, a device that is not there, a program that cannot be started, and a
/// signal.
pub fn run(options: &Options, say: &mut dyn FnMut(&CaseReport) -> Result<()>) -> Result<(BenchReport, Option<Error>)> {
    let started = Instant::now();
    let (title, kind, defaults, floor) = match &options.subject {
        Subject::Suite { name, suite } => {
            let defaults = (suite.warmup, suite.rounds, suite.steps, suite.together);
            (format!("suite {name}: {}", suite.about), suite.device()?, defaults, suite.floor)
        }
        Subject::Config { title, config } => {
            if let Some(peer) = options.peers.first() {
                let message = format!("--peer: {} needs a suite, whose cases are written down for it", peer.name);
                return Err(Error::config(message).help("--suite cpu"));
            }
            let kind = device::select(config.trainer.device.kind, config.trainer.device.index)?.kind;
            let defaults = if kind == DeviceKind::Cpu { (3, 5, 4, true) } else { (20, 3, 60, false) };
            (title.clone(), kind, defaults, true)
        }
    };
    let is_cpu = kind == DeviceKind::Cpu;
    let turns = Turns {
        warmup: options.warmup.unwrap_or(defaults.0),
        rounds: options.rounds.unwrap_or(defaults.1),
        steps: options.steps.unwrap_or(defaults.2),
        together: defaults.3,
        logging: if is_cpu { 1 } else { LOGGING_STEPS_GPU },
    };
    turns.check()?;
    if options.operators > MOST {
        return Err(Error::config(format!("--operators: expected at most {MOST}, got {}", options.operators)));
    }
    let programs = Programs::find(kind)?;
    let mut report = BenchReport {
        schema: SCHEMA,
        title,
        began_at: clock::rfc3339(),
        written_at: clock::rfc3339(),
        complete: false,
        machine: host::cpu_name(),
        gemm_gflops: None,
        cases: Vec::new(),
        notes: vec![if is_cpu {
            "peak memory is what the process had resident, its start and its compiler included".into()
        } else {
            "peak memory is that of the device's pools".into()
        }],
    };
    let cases = match &options.subject {
        Subject::Suite { suite, .. } => suite.cases.iter().map(Some).collect::<Vec<_>>(),
        Subject::Config { .. } => vec![None],
    };
    let mut error = None;
    for case in cases {
        if let (Some(limit), Some(case)) = (options.time_limit, case)
            && started.elapsed() >= limit
        {
            report.notes.push(format!("{}: not measured, the time limit was over", case.name));
            continue;
        }
        let (mut measured, failed) = measure(options, &programs, case, kind, turns)?;
        if floor && is_cpu {
            // The best of all cases: other work on the machine makes it less, never more.
            let rate = gemm::gflops(&Device::flex())?.max(report.gemm_gflops.unwrap_or(0.0));
            report.gemm_gflops = Some(rate);
            measured.gemm_floor_ms = floor_ms(&measured, rate);
        }
        say(&measured)?;
        report.cases.push(measured);
        error = error.or(failed);
        // A pipe or a device gets the report once, at the end.
        if !options.out.exists() || options.out.is_file() {
            write(&mut report, &options.out)?;
        }
    }
    report.complete = true;
    write(&mut report, &options.out)?;
    Ok((report, error))
}

impl Turns {
    fn check(self) -> Result<()> {
        for (name, given, unit) in
            [("warmup", self.warmup, self.logging), ("rounds", self.rounds, 1), ("steps", self.steps, self.logging)]
        {
            if given == 0 || given > MOST || given % unit != 0 {
                let of = if unit > 1 {
                    format!(", a multiple of {unit}: the device is waited for so often")
                } else {
                    String::new()
                };
                return Err(Error::config(format!("--{name}: expected 1 or more{of}, up to {MOST}, got {given}")));
            }
        }
        Ok(())
    }

    /// The arms in groups that live side by side.
    fn groups(self, arms: &[Arm]) -> std::slice::Chunks<'_, Arm> {
        arms.chunks(if self.together { arms.len() } else { 1 })
    }

    /// All steps of an arm, and the one with which it ends.
    fn total(self) -> u64 {
        (self.warmup + self.rounds * self.steps + 1) as u64
    }
}

fn write(report: &mut BenchReport, out: &Path) -> Result<()> {
    report.written_at = clock::rfc3339();
    write_json(out, report)
}

/// One case, or the config's run; with the error that the benchmark should end with.
fn measure(
    options: &Options,
    programs: &Programs,
    case: Option<&Case>,
    kind: DeviceKind,
    turns: Turns,
) -> Result<(CaseReport, Option<Error>)> {
    let folder = scratch()?;
    let folder = folder.path();
    let (name, about, config, max_batch) = match (case, &options.subject) {
        (Some(case), Subject::Suite { suite, .. }) => {
            let prepared = prepare(case, &suite.review_lengths, kind, folder)?;
            (case.name.clone(), case.describe()?, prepared.config, suite.max_batch)
        }
        (_, Subject::Config { title, config }) => {
            (title.clone(), format!("the run of {title}"), (**config).clone(), None)
        }
        (None, Subject::Suite { .. }) => return Err(Error::config("a suite is measured case by case")),
    };
    let is_max = case.is_some_and(|case| case.batch == CaseBatch::Max);
    let mut report = CaseReport {
        name,
        about,
        load_before: host::load(),
        together: turns.together,
        warmup: turns.warmup,
        rounds: turns.rounds,
        steps: turns.steps,
        ..CaseReport::default()
    };
    let (mut arms, patience) = (Vec::new(), options.answer_within);
    let modes = [("native", CompilerMode::Native, None), ("compiled", CompilerMode::Compiled, None)].into_iter();
    let variants = options.variants.iter();
    let variants = variants.map(|it| (it.name.as_str(), CompilerMode::Compiled, Some(it.set.clone())));
    for (name, mode, set) in modes.chain(variants) {
        let mut config = config.training_only(folder.join(name), turns.logging);
        config.trainer.set_compiler(mode);
        config.trainer.logging_first_step = true;
        let file = folder.join(format!("{name}.toml"));
        if let Some(set) = set {
            write_whole(&file, config.to_toml()?.as_bytes())?;
            let varied = RunConfig::load_with(&file, &[set]);
            config = varied.map_err(|error| error.at(format!("--variant {name}")))?.into();
        }
        let arm = Arm::new(name, Work::on(&config, &file, programs.of(mode), "worker")?, patience);
        if config.trainer.per_device_train_batch_size == TrainBatchSize::Auto && is_max {
            // The result is kept for the arm.
            in_a_process(programs.of(mode), "tune-batch", &config, &format!("tune-batch ({mode})"), |work| {
                let max = max_batch.iter().flat_map(|max| ["--max".to_owned(), max.to_string()]);
                work.with(["--mode", mode.as_str()]).with(max)
            })?;
        }
        arms.push(arm);
    }
    // Peers are given the batch, and here every mode has its own.
    for peer in options.peers.iter().filter(|_| !is_max) {
        let work = Work::of(&peer.command[0], folder.join(format!("{}.err", peer.name)));
        let work = Work { kind: Kind::Foreign, ..work }.with(&peer.command[1..]).with([folder]);
        arms.push(Arm::new(&peer.name, work, patience));
    }
    let mut failures = Vec::new();
    for group in turns.groups(&arms) {
        let (reports, failed) = take_turns(group, turns)?;
        report.arms.extend(reports);
        failures.extend(failed);
    }
    // Where every mode has its own batch, the losses are others.
    if !is_max {
        judge(&mut report)?;
    }
    if options.operators > 0 && !is_max {
        failures.extend(operators(&mut report, &arms, options.operators, turns)?);
        if kind == DeviceKind::Cpu {
            report.peak = peak(&report)?;
        }
    }
    report.load_after = host::load();
    let unequal = report.losses.iter().find(|check| !check.found.passed).map(|check| {
        Error::differs(format!(
            "{}: the losses of {} are not those of {}: {:.1e} relative, {:.0e} is allowed; no ratio was made of their times",
            report.name, check.of, check.against, check.found.relative, check.found.limit
        ))
    });
    // In a suite a batch need not fit in every mode: that is a result.
    let in_suite = case.is_some();
    let failed = failures.into_iter().find(|(_, failure)| !(in_suite && failure.exit_code == 4));
    let error = failed.map(|(who, failure)| failure.error(&format!("{}: {who}", report.name))).or(unequal);
    Ok((report, error))
}

type Failed = Vec<(String, Failure)>;

/// Lets `arms` live side by side and make their turns.
fn take_turns(arms: &[Arm], turns: Turns) -> Result<(Vec<BenchArm>, Failed)> {
    let mut reports =
        arms.iter().map(|arm| BenchArm { name: arm.name.clone(), ..BenchArm::default() }).collect::<Vec<_>>();
    let mut group = Interleaved::start(arms, |index, process| warm_up(process, &mut reports[index], turns))?;
    for _ in 0..turns.rounds {
        group.turn(
            |_| turns.steps,
            |index, turn| {
                let turn = whole(turn, turns.steps)?;
                reports[index].rounds.push(turn.steps);
                reports[index].figures.peak_mib = turn.peak_mib;
                Ok(())
            },
        )?;
    }
    let mut failures = Failed::new();
    for (report, end) in reports.iter_mut().zip(group.end()) {
        if let Err(failure) = end {
            report.failure = Some(failure.message.clone());
            failures.push((report.name.clone(), failure));
        }
        report.finish();
    }
    Ok((reports, failures))
}

/// The steps of an arm that are not counted, the first of them by itself.
fn warm_up(process: &mut ArmProcess, report: &mut BenchArm, turns: Turns) -> Attempt<()> {
    let hello = &process.hello;
    (report.provenance, report.batch, report.padding) = (hello.provenance.clone(), hello.batch, hello.padding);
    if hello.total_steps < turns.total() {
        let message = format!(
            "the run has {} steps, and {} warm-up + {} x {} + 1 = {} are needed",
            hello.total_steps,
            turns.warmup,
            turns.rounds,
            turns.steps,
            turns.total()
        );
        let help = "lower --warmup, --rounds or --steps, or raise trainer.max_steps with --set";
        return Err(Error::config(message).help(help).into());
    }
    for count in [1, turns.warmup - 1].into_iter().filter(|count| *count > 0) {
        report.warmup_steps.extend(whole(process.run(count)?, count)?.steps);
        report.first_step_seconds.get_or_insert(process.seconds());
    }
    Ok(())
}

/// `turn`, which has to have the times of all its `count` steps.
fn whole(turn: Turn, count: usize) -> Answer<Turn> {
    let made = turn.steps.len();
    if made != count {
        return Err(Failure::of_data(format!("expected the times of {count} steps, as its turn had, got {made}")));
    }
    match turn.steps.iter().find(|step| !(step.step_ms.is_finite() && step.step_ms > 0.0)) {
        Some(step) => {
            Err(Failure::of_data(format!("step {}: expected a time above 0 ms, got {}", step.step, step.step_ms)))
        }
        None => Ok(turn),
    }
}

/// The peak of the instructions that multiply in the fused operators of `report`, whose arms
/// have one precision; none where all have failed.
fn peak(report: &CaseReport) -> Result<Option<UnitPeak>> {
    let Some(provenance) = report.arms.iter().find_map(kiln_provenance) else { return Ok(None) };
    let dtype = match provenance.precision {
        Precision::Bf16 => FloatDType::BF16,
        Precision::F16 => FloatDType::F16,
        Precision::F32 | Precision::Auto => FloatDType::F32,
    };
    let measured = signals::leaving(move || products::peak_gflops(dtype));
    let measured = measured.map_err(|signal| signal.error("stopped while the peak of products was measured"))?;
    let (unit, gflops) = measured.map_err(|error| Error::config(error.to_string()))?;
    Ok(Some(UnitPeak { unit: unit.to_string(), gflops }))
}

/// Measures single operators in processes of their own, by turns where that is wanted.
fn operators(report: &mut CaseReport, arms: &[Arm], repeats: usize, turns: Turns) -> Result<Failed> {
    let (mut failures, mut measured) = (Failed::new(), Vec::<(String, OperatorTimes)>::new());
    for members in turns.groups(arms) {
        let of_operators = |arm: &Arm| {
            let mut arm = arm.clone();
            arm.work.arguments.push("--operators".into());
            arm.work.said.set_extension("operators.err");
            arm
        };
        let members = members.iter().map(of_operators).collect::<Vec<_>>();
        // The first pass of everything is the warm-up.
        let mut group = Interleaved::start(&members, |_, process| process.run(1).map(drop))?;
        for _ in 0..turns.rounds {
            group.turn(
                |_| repeats,
                |index, turn| {
                    measured.extend(turn.operators.into_iter().map(|times| (members[index].name.clone(), times)));
                    Ok(())
                },
            )?;
        }
        let ends = members.iter().zip(group.end());
        failures.extend(ends.filter_map(|(arm, end)| Some((arm.name.clone(), end.err()?))));
    }
    for (_, OperatorTimes { name, shape, gflop, .. }) in &measured {
        if report.operators.iter().any(|operator| operator.name == *name) {
            continue;
        }
        let spread = |arm: &Arm| {
            let times = measured.iter().filter(|(of, times)| *of == arm.name && times.name == *name);
            let ms = times.flat_map(|(_, times)| times.ms.iter().copied()).collect::<Vec<_>>();
            Some((arm.name.clone(), Spread::of(&ms)?))
        };
        let ms = arms.iter().filter_map(spread).collect();
        report.operators.push(OperatorReport { name: name.clone(), shape: shape.clone(), gflop: *gflop, ms });
    }
    Ok(failures)
}
