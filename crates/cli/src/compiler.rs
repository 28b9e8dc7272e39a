//! `kiln parity` and `kiln bisect`, and the hidden `kiln probe` that they run in processes of their
//! own.

use std::path::PathBuf;
use std::rc::Rc;

use clap::{Args, ValueEnum};
use kiln::config::{CompilerMode, DeviceKind, Precision, RunConfig, Switch, Verify};
use kiln::engine::compiler::columns;
use kiln::engine::compiler::decision::Decision;
use kiln::plan::EnginePlan;
use kiln::session::{OpenSession, Session};
use kiln::trainer::{Trainer, warmup};
use kiln_core::error::{Error, Result};
use kiln_core::process::this_program;
use kiln_core::{process, signals};
use kiln_data::cache;
use kiln_measure::engines::{self, Programs};
use kiln_measure::proof::auto;
use kiln_measure::proof::bisect::{Finding, bisect};
use kiln_measure::proof::parity::parity;
use kiln_measure::runner::in_a_process;
use kiln_models::Operator;
use kiln_train::trial::probe::{Look, Probe};
use kiln_train::trial::{self, probe, verify};

use super::say;
use super::training::{ConfigArgs, open};

#[derive(Debug, Args)]
pub(super) struct ParityArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Optimizer steps to compare
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LookArg {
    Figures,
    Captured,
    Times,
}

#[derive(Debug, Args)]
pub(super) struct ProbeArgs {
    /// The config file
    file: PathBuf,
    /// Optimizer steps
    #[arg(long)]
    steps: usize,
    /// The kind of measurement
    #[arg(long)]
    look: LookArg,
}

/// Makes a probe, for the process that asked for it.
pub(super) fn run_probe(args: &ProbeArgs) -> Result<()> {
    let config = RunConfig::load(&args.file)?;
    engines::hand_over(config.trainer.compiler.as_ref(), config.trainer.device.kind)?;
    let session = open(config)?;
    let look = match args.look {
        LookArg::Figures => Look::Figures,
        LookArg::Captured => Look::Captured,
        LookArg::Times => Look::Times,
    };
    process::answer(&probe::run(&session, session.plan().engine.ops, args.steps, look)?)
}

/// `compiler.verify` before step 1 where each mode has an engine of its own; whether it has been
/// done.
pub(super) fn verify_start(session: &Session) -> Result<bool> {
    let plan = session.plan();
    if plan.engine.verify == Verify::Off || plan.engine.device.kind == DeviceKind::Cpu {
        return Ok(false);
    }
    let report = parity(&session.config()?, verify::STEPS, &mut probed)?;
    say(verify::verdict(Some(&report), 0)?)?;
    Ok(true)
}

/// `compiler.verify` of a comparison, which is on unless it is said to be off: before anything is
/// timed.
pub(super) fn verify_compare(config: &RunConfig) -> Result<()> {
    if config.trainer.compiler.as_ref().and_then(|compiler| compiler.verify) == Some(Verify::Off) {
        return Ok(());
    }
    let report = parity(config, verify::STEPS, &mut probed)?;
    say(verify::verdict(Some(&report), 0)?)
}

/// `compiler.enabled = "auto"`: the session in the mode that was chosen, by the process that began
/// the run, by the one that this one was as the other engine (`handed`), or else by a trial. Where
/// each mode has an engine of its own, this process becomes it.
pub(super) fn choose(session: Session, handed: Option<&str>) -> Result<Session> {
    let plan = session.plan();
    match (plan.engine.mode, handed) {
        (CompilerMode::Auto, _) => {}
        (_, None) => return Ok(session),
        (mode, Some(_)) => {
            return Err(Error::config(format!("--decision: expected compiler.enabled = \"auto\", got {mode}"))
                .help("leave it out: kiln hands it to the engine that a trial has chosen"));
        }
    }
    let kind = plan.engine.device.kind;
    let handed = handed.map(Decision::from_json).transpose().map_err(|error| error.at("--decision"))?;
    let decision = match handed.map_or_else(|| trial::kept(plan), |handed| Ok(Some(handed)))? {
        Some(decision) => decision,
        None => {
            say("compiler auto: trying both modes on the run's own data")?;
            if kind == DeviceKind::Cpu {
                trial::decide(&session)?
            } else {
                auto::between_engines(&session, &mut probed)?
            }
        }
    };
    stopped()?;
    if kind != DeviceKind::Cpu {
        engines::become_engine(decision.engine(), kind, &["--decision".to_owned(), decision.to_json()?])?;
    }
    session.decided(decision)
}

/// The line about the switch for a native run on a device that has the compiled mode.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Worth {
    /// The speed that the run could have.
    Hint(String),
    /// A precision in which the run is slower than without it.
    Warning(String),
}

/// How many times as fast as native compiled was on CPUs in `precision`, by the section "The
/// switch" of the README; none where that was not measured.
const fn measured_on_cpu(precision: Precision) -> Option<&'static str> {
    match precision {
        Precision::F32 => Some("1.8 to 5.0"),
        Precision::Bf16 => Some("2.1 to 9.9"),
        Precision::F16 | Precision::Auto => None,
    }
}

/// The time of a native step in bf16 in times of one in f32, on CPUs (`benches/results`:
/// 2026-11-23-pytorch-cpu-epyc, 2026-11-23-pytorch-cpu, 2026-11-24-gpt2-12x768-epyc,
/// 2026-11-25-pytorch-cpu-zen4, 2026-11-26-zen3, 2026-11-27-pytorch-llama-zen4-alone).
const NATIVE_BF16: &str = "1.0 to 1.4";

/// The worth of the switch for the run of `engine`; none where it is compiled, where a trial has
/// chosen native, and where there is nothing that compiles.
pub(super) fn worth_of_compiling(engine: &EnginePlan) -> Option<Worth> {
    let (kind, precision) = (engine.device.kind, engine.precision.precision);
    if engine.mode != CompilerMode::Native || engine.decision.is_some() {
        return None;
    }
    if kind != DeviceKind::Cpu {
        let note = "whose worth here `kiln compare FILE` measures";
        return Programs::find(kind).is_ok().then(|| {
            Worth::Hint(format!("native mode; `--compiler compiled` runs it with the compiled engine, {note}"))
        });
    }
    if engine.device.not_fused.is_some() {
        return None;
    }
    Some(match (precision, measured_on_cpu(precision)) {
        (Precision::Bf16, Some(times)) => Worth::Warning(format!(
            "native mode in bf16 on a CPU: a step takes {NATIVE_BF16} times as long as in f32; `--compiler compiled` is usually \
             {times} times as fast"
        )),
        (_, Some(times)) => Worth::Hint(format!(
            "native mode; `--compiler compiled` is usually {times} times as fast on a CPU in {precision}, with the same \
             losses up to rounding"
        )),
        (_, None) => Worth::Hint(format!(
            "native mode; `kiln compare FILE` measures the worth of `--compiler compiled` on a CPU in {precision}"
        )),
    })
}

/// The warm-up stage of a compiled run alone, which leaves its kernels in the cache.
pub(super) fn run_pretune(args: &ConfigArgs) -> Result<()> {
    let config = args.load_for_modes("kiln pretune tunes kernels of the compiled mode")?;
    let config = config.with(|config| config.trainer.set_compiler(CompilerMode::Compiled))?;
    engines::hand_over(config.trainer.compiler.as_ref(), config.trainer.device.kind)?;
    let forced = config.trainer.compiler.as_ref().is_some_and(|compiler| compiler.warmup == Switch::On);
    let session = open(config)?;
    if session.plan().engine.device.kind == DeviceKind::Cpu && !forced {
        return say("nothing to tune: on the CPU (Flex) no kernel is compiled or tuned");
    }
    let heard: warmup::Say = Rc::new(|line| {
        // A progress line that cannot be written is no reason to stop tuning.
        let _ = say(line);
    });
    warmup::run(&session, &heard, Trainer::train)?;
    let (folder, prefix) = (cache::folder()?, format!("{}/", cache::KERNELS));
    let kernels = cache::list(&folder)?.into_iter().filter(|entry| entry.name.starts_with(&prefix)).collect::<Vec<_>>();
    say(format!("{}: {} files, {}", folder.join(cache::KERNELS).display(), kernels.len(), cache::size(&kernels)))
}

/// Why a command that compares the modes takes none.
pub(super) const BOTH_MODES: &str = "native and compiled are what is compared";

pub(super) fn run_parity(args: &ParityArgs) -> Result<()> {
    let config = args.config.load_for_modes(BOTH_MODES)?;
    let report = parity(&config, args.steps as usize, &mut probed)?;
    report.lines().iter().try_for_each(say)?;
    match &report.difference {
        None => say("native and compiled compute the same"),
        Some(difference) => Err(Error::differs(format!("compiled differs from native: {difference}"))
            .help("`kiln bisect FILE` finds what is to blame; until then train with --compiler native")),
    }
}

pub(super) fn run_bisect(args: &ParityArgs) -> Result<()> {
    let config = args.config.load_for_modes(BOTH_MODES)?;
    let mut lost = Ok(());
    let found = bisect(&config, args.steps as usize, &mut probed, &mut |line| {
        if lost.is_ok() {
            lost = say(line);
        }
    })?;
    lost?;
    match found {
        Finding::Nothing { parity, step_ms: [native, compiled] } => {
            parity.lines().iter().try_for_each(say)?;
            say(format!(
                "nothing to find: compiled computes what native does, in {compiled:.2} ms a step against {native:.2}"
            ))
        }
        Finding::Wrong { parity, columns, together } => {
            let names = columns.iter().map(|column| format!("\"{column}\"")).collect::<Vec<_>>();
            let names = names.join(if together { " and " } else { " or " });
            let difference =
                parity.difference.as_ref().map_or_else(String::new, |difference| format!(" ({difference})"));
            let fused = Operator::ALL.into_iter().filter(|it| parity.fused.iter().any(|name| name == it.name()));
            let fused = fused.collect::<Vec<_>>();
            let (what, help) = if columns.is_empty() {
                ("though no single part of the compiler is to blame".to_owned(), "train with --compiler native".into())
            } else {
                let settings = if together {
                    columns::settings(&columns, &fused)
                } else {
                    columns.chunks(1).map(|one| columns::settings(one, &fused)).collect::<Vec<_>>().join(" or ")
                };
                (format!("because of {names}"), format!("train with {settings}, or with --compiler native"))
            };
            Err(Error::differs(format!("compiled differs from native, {what}{difference}")).help(help))
        }
        Finding::Slow { step_ms: [native, compiled], columns } => {
            let slow = columns.iter().map(|(column, ms)| format!("without {column} it takes {ms:.2} ms"));
            let slow = slow.collect::<Vec<_>>().join(", ");
            let slow = if slow.is_empty() { "no single part of the compiler is to blame".into() } else { slow };
            say(format!("compiled is slower: {compiled:.2} ms a step against {native:.2}; {slow}"))
        }
    }
}

/// A signal that came while other processes worked ends this one.
fn stopped() -> Result<()> {
    signals::received().map_or(Ok(()), |signal| Err(signal.error("stopped before the first step")))
}

/// Runs `kiln probe` on `config`.
pub(super) fn probed(config: &RunConfig, steps: usize, look: Look) -> Result<Probe> {
    stopped()?;
    let look = match look {
        Look::Figures => "figures",
        Look::Captured => "captured",
        Look::Times => "times",
    };
    let what = format!("the {} probe", config.trainer.compiler_mode());
    let options = ["--steps", &steps.to_string(), "--look", look];
    in_a_process(&this_program()?, "probe", config, &what, |work| work.with(options))?.answer()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worth_of_the_switch_is_that_of_the_readme() {
        let readme = include_str!("../../../README.md");
        for precision in [Precision::F32, Precision::Bf16] {
            let times = measured_on_cpu(precision).expect("both were measured");
            assert!(readme.contains(&format!("| native / compiled, {precision} | {times} |")), "{precision}");
        }
        assert!(readme.contains(&format!("| native in bf16 / native in f32 | {NATIVE_BF16} |")));
        assert_eq!(measured_on_cpu(Precision::F16), None, "nothing is claimed where nothing was measured");
    }
}
