//! Makes the runs of a comparison, repeat by repeat (`repeat`), in an order that turns round from
//! one to the next, so that no arm always comes first. Raw samples stay in the run folders; weights
//! are removed. [`super::arms`] defines the arms, [`super::analyse`] compares the runs.

use std::fs;
use std::path::{Path, PathBuf};

use kiln::config::{CheckedConfig, CompilerMode, DeviceKind, EvalStrategy, RunConfig, SaveStrategy, Switch};
use kiln::engine::device::{self, DeviceFacts};
use kiln::engine::energy::EnergyMeter;
use kiln::engine::handover::Engine;
use kiln::plan::{RunPlan, TrainPlan};
use kiln_core::error::{Error, Result};
use kiln_core::files::write_json;
use kiln_core::process::scratch;
use kiln_data::cache;

use super::analyse::analyse;
use super::arms::{PlannedArm, Wanted, arms, run_config};
use super::{EXPERIMENT_SCHEMA, Experiment, Report, Role, WholeRun, repeat};
use crate::engines::Programs;
use crate::figures::median_step_ms;
use crate::interleaved::Arm;
use crate::measured::MeasuredRun;
use crate::runner::{Answer, Work, in_a_process};
use crate::verdict::Verdict;
use crate::{gemm, output};

/// The file that keeps an [`Experiment`].
pub const FILE: &str = "experiment.json";

/// The options of a comparison.
#[derive(Debug, Clone)]
pub struct Options {
    /// The config file, for the report's title.
    pub title: String,
    /// The config.
    pub config: RunConfig,
    /// The folder of the comparison. Default: the config's run folder with `-compare`.
    pub out: Option<PathBuf>,
    /// Which arms.
    pub wanted: Wanted,
    /// Optimizer steps of each run; none for as many as it takes to tell arms apart, see `repeat`.
    pub steps: Option<usize>,
    /// Runs of each arm.
    pub repeats: usize,
    /// Price of an hour.
    pub price_per_hour: Option<f64>,
    /// The loss to race to.
    pub target_loss: Option<f64>,
    /// A program that runs the compiled arms instead of the compiled engine, to see that the
    /// comparison finds out what is wrong with it.
    pub compiled_program: Option<PathBuf>,
}

/// Runs the comparison. `plan` makes a plan of a config; `verify` is asked
/// before anything runs whether both modes of it compute the same; `say` is told how far it is. The
/// second value is the error that the comparison should end with although there is a report: an arm
/// that failed, or parity that did.
///
/// # Errors
/// Settings that cannot be run in every arm, a folder that is in use, and a signal.
pub fn run(
    options: &Options,
    plan: &dyn Fn(CheckedConfig) -> Result<RunPlan>,
    verify: &dyn Fn(&RunConfig) -> Result<()>,
    say: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<(Report, PathBuf, Option<Error>)> {
    let base = &options.config;
    options.wanted.check()?;
    let out = output::folder(options.out.as_deref(), base, "compare", FILE)?;
    let device = device::select(base.trainer.device.kind, base.trainer.device.index)?;
    let is_cpu = device.kind == DeviceKind::Cpu;
    let programs = Programs::find(device.kind)?;
    let programs = match &options.compiled_program {
        Some(program) => programs.with_compiled(program.clone()),
        None => programs,
    };
    if base.trainer.compiler.as_ref().is_some_and(|compiler| compiler.fusion == Switch::Off) && !is_cpu {
        return Err(Error::config(
            "compiler.fusion = \"off\": a run without Burn's fusion is neither native nor compiled",
        )
        .help("leave it \"auto\"; --ablate has an arm that shows what the fusion is worth"));
    }
    // Planning also tokenises, so that no arm pays for what the next one finds in the cache.
    let planned = plannable(base, &out, is_cpu).checked().map_err(Error::from).and_then(plan);
    let planned = planned.map_err(|error| error.at("arm native"))?;
    let (mut arms, mut notes) = arms(base, &options.wanted, &planned)?;
    let whole = whole_run(&planned.train);
    drop(planned);
    let expected = check_arms(&arms, base, &out, &programs, is_cpu, plan)?;
    let (together, note) = repeat::side_by_side(&expected, is_cpu);
    notes.push(note);
    notes.push("token cache: warm, the text was tokenised before the first run".into());
    notes.push(tuning_cache(is_cpu)?);
    notes.push(energy(&device.facts()));
    if arms.iter().any(|arm| arm.config.trainer.compiler_mode() == CompilerMode::Compiled) {
        verify(base)?;
    }
    say("measuring the device's matrix products")?;
    let gemm_gflops = Some(gemm::gflops(&device.device)?);
    let logging_steps = if is_cpu { 1 } else { 10 };
    say("looking how long a step takes")?;
    let pace = {
        let scratch = scratch()?;
        let config = run_config(&arms[0], scratch.path().join("run"), 1, logging_steps);
        repeat::pace(&process_of(&arms[0], &config, scratch.path().join("pace.toml"), &programs)?, is_cpu)?
    };
    let steps = options.steps.unwrap_or(pace.steps).min(whole.steps as usize);
    notes.push(format!(
        "{} runs of {steps} steps an arm, or of all that its own run has, in alternating order; every repeat has another seed, \
         the same in all arms",
        options.repeats
    ));
    clear(&out)?;
    let mut experiment = Experiment {
        schema: EXPERIMENT_SCHEMA.into(),
        title: options.title.clone(),
        is_complete: false,
        arms: arms.iter().map(|arm| arm.runs.clone()).collect(),
        whole: Some(whole),
        gemm_gflops,
        price_per_hour: options.price_per_hour,
        target_loss: options.target_loss,
        notes,
    };
    // From now on the folder is a comparison, also where this process does not come to its end.
    write_json(&out.join(FILE), &experiment)?;
    let (arms_in_all, repeats) = (experiment.arms.len(), options.repeats);
    let time = pace.time_of(arms_in_all * repeats, steps);
    let time =
        time.map_or_else(String::new, |time| format!(", which takes about {}", humantime::format_duration(time)));
    say(&format!("training {arms_in_all} arms {repeats} times over{time}"))?;
    for repeat in 0..options.repeats {
        let round = Round { programs: &programs, repeat, repeats: options.repeats, steps, together, logging_steps };
        round.run(&mut arms, &mut experiment.notes, &out, say)?;
    }
    experiment.arms = arms.into_iter().map(|arm| arm.runs).collect();
    experiment.is_complete = true;
    write_json(&out.join(FILE), &experiment)?;
    let report = analyse(&experiment, &out)?;
    let error = outcome(&experiment, &report);
    Ok((report, out, error))
}

/// One repeat, and how it is made.
struct Round<'a> {
    programs: &'a Programs,
    repeat: usize,
    repeats: usize,
    steps: usize,
    together: bool,
    logging_steps: usize,
}

impl Round<'_> {
    /// Trains every arm that has not failed once; what the reader must know of it is added to
    /// `notes`.
    fn run(
        &self,
        arms: &mut [PlannedArm],
        notes: &mut Vec<String>,
        out: &Path,
        say: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<()> {
        let mut alive = arms.iter_mut().filter(|arm| arm.runs.failure.is_none()).collect::<Vec<_>>();
        if self.repeat % 2 == 1 {
            alive.reverse();
        }
        let (mut processes, mut folders) = (Vec::new(), Vec::new());
        for arm in &alive {
            let relative = Path::new("arms").join(&arm.runs.name).join(format!("repeat-{}", self.repeat + 1));
            let above = out.join("arms").join(&arm.runs.name);
            fs::create_dir_all(&above).map_err(|error| Error::io(format!("create {}", above.display()), &error))?;
            let file = above.join(format!("repeat-{}.toml", self.repeat + 1));
            let config = run_config(arm, out.join(&relative), self.repeat, self.logging_steps);
            processes.push(process_of(arm, &config, file, self.programs)?);
            folders.push(relative);
        }
        let mut ends = repeat::repeat(&processes, self.steps, self.together)?;
        if self.together && ends.iter().any(is_out_of_memory) {
            // Which one needed too much cannot be said while they share the machine's memory.
            let again = format!(
                "repeat {}: an arm ran out of memory side by side, so the arms were run again, one after the other",
                self.repeat + 1
            );
            say(&again)?;
            notes.push(again);
            for folder in folders.iter().map(|relative| out.join(relative)).filter(|folder| folder.exists()) {
                fs::remove_dir_all(&folder)
                    .map_err(|error| Error::io(format!("clear {}", folder.display()), &error))?;
            }
            ends = repeat::repeat(&processes, self.steps, false)?;
        }
        for ((arm, relative), end) in alive.into_iter().zip(folders).zip(ends) {
            let folder = out.join(&relative);
            let place = format!("repeat {}/{}  {:<22}", self.repeat + 1, self.repeats, arm.runs.name);
            match end {
                Ok(seconds) => {
                    arm.runs.runs.push(relative);
                    arm.runs.process_seconds.push(seconds);
                    let read = MeasuredRun::read(&folder)?;
                    let speed = if read.steady.is_empty() {
                        "no steady state".into()
                    } else {
                        format!("{:.1} ms a step", median_step_ms(&read.steady))
                    };
                    say(&format!("{place} {speed:>18}, {seconds:.1} s in all"))?;
                }
                Err(mut failure) => {
                    failure.is_expected = arm.runs.role == Role::NativeLarge && failure.exit_code == 4;
                    say(&format!("{place} failed: {}", failure.message))?;
                    arm.runs.failure = Some(failure);
                }
            }
            output::drop_weights(&folder);
        }
        Ok(())
    }
}

fn is_out_of_memory(end: &Answer<f64>) -> bool {
    end.as_ref().is_err_and(|failure| failure.exit_code == 4)
}

/// A run of `arm` whose config goes to `file`.
fn process_of(arm: &PlannedArm, config: &RunConfig, file: PathBuf, programs: &Programs) -> Result<Arm> {
    let program = programs.of(config.trainer.compiler_mode());
    // As any run does: a comparison counts what the end of a run takes.
    let work = Work::on(config, &file, program, "worker")?.with(["--model"]);
    Ok(Arm::new(&arm.runs.name, work, repeat::PATIENCE))
}

/// `config` with the folder `out` and a mode that this build can plan: on a GPU the other mode is
/// another build.
fn plannable(config: &RunConfig, out: &Path, is_cpu: bool) -> RunConfig {
    let mut config = config.clone();
    config.trainer.output_dir = out.into();
    if !is_cpu && Engine::this() == Engine::Compiled {
        config.trainer.set_compiler(CompilerMode::Compiled);
    }
    config
}

/// Says what one of the arms cannot run before any of them has run; the memory that each is
/// expected to need, in bytes. On a GPU, where a mode is a build of its own and a process settles
/// the compiler's settings once, the arm's own engine is asked, in a process.
fn check_arms(
    arms: &[PlannedArm],
    base: &RunConfig,
    out: &Path,
    programs: &Programs,
    is_cpu: bool,
    plan: &dyn Fn(CheckedConfig) -> Result<RunPlan>,
) -> Result<Vec<u64>> {
    let mut expected = Vec::new();
    for arm in arms {
        let mut config = arm.config.clone();
        config.trainer.output_dir = out.into();
        if !is_cpu {
            let what = format!("arm {}", arm.runs.name);
            in_a_process(programs.of(config.trainer.compiler_mode()), "plan", &config, &what, |work| work)?;
            // For the lengths alone, which no mode changes.
            let block = config.data.block_size;
            config = plannable(base, out, is_cpu);
            config.data.block_size = block;
        }
        let planned = config.checked().map_err(Error::from).and_then(plan);
        let planned = planned.map_err(|error| error.at(format_args!("arm {}", arm.runs.name)))?;
        expected.push(planned.memory.estimate.map_or(0, |memory| memory.total()));
        let seq_len = planned.train.batch.seq_len;
        let block = arm.config.data.block_size.filter(|block| base.data.block_size != Some(*block));
        if let Some(block) = block.filter(|block| *block != seq_len) {
            return Err(Error::config(format!(
                "--sweep: arm {}: the data has sequences of {seq_len} tokens, not of {block}, whatever data.block_size says",
                arm.runs.name
            ))
            .help("sweep the batch alone, or lengths that the data and the model have"));
        }
    }
    Ok(expected)
}

/// The energy of the report, or why it has none.
fn energy(device: &DeviceFacts) -> String {
    match EnergyMeter::open(device) {
        Err(why) => format!("energy: not counted: {why}"),
        Ok(meter) => {
            format!("energy: that of {} in the steps of each arm, whatever else the machine did", meter.about())
        }
    }
}

/// Whether the first runs find what earlier ones have tuned.
fn tuning_cache(is_cpu: bool) -> Result<String> {
    if is_cpu {
        return Ok("tuning cache: the CPU has none, so the first run of an arm is as cold as the later ones".into());
    }
    let prefix = format!("{}/", cache::KERNELS);
    let kept = cache::list(&cache::folder()?)?.iter().filter(|entry| entry.name.starts_with(&prefix)).count();
    Ok(match kept {
        0 => "tuning cache: cold for the first run of the compiled arms, warm for the later ones".into(),
        kept => format!(
            "tuning cache: warm from the first run on, {kept} files were kept before it; for a cold one run `kiln cache \
             clear` first"
        ),
    })
}

/// The error that a comparison ends with: an arm that failed and was not expected to, or losses
/// that are not equal.
pub fn outcome(experiment: &Experiment, report: &Report) -> Option<Error> {
    let failed = experiment.arms.iter().filter_map(|arm| Some((arm, arm.failure.as_ref()?)));
    if let Some((arm, failure)) = failed.into_iter().find(|(_, failure)| !failure.is_expected) {
        return Some(failure.error(&format!("arm {}", arm.name)));
    }
    let wrong = |comparison: &&super::Comparison| {
        let parity = comparison.parity.as_ref().is_some_and(|parity| !parity.passed);
        comparison.verdict == Verdict::NotComparable && (parity || !comparison.differences.is_empty())
    };
    let wrong = report.comparisons.iter().find(wrong)?;
    let reason = wrong.reason.as_deref().unwrap_or_default();
    Some(Error::differs(format!("{} is not comparable with {}: {reason}", wrong.arm, wrong.against)))
}

/// The run that the config describes.
fn whole_run(plan: &TrainPlan) -> WholeRun {
    let steps = plan.steps.total as u64;
    let per_epoch = plan.steps.per_epoch as u64;
    let every = |interval: usize| steps.div_ceil(interval as u64);
    let evaluations = match plan.evaluation.strategy {
        EvalStrategy::No => 0,
        EvalStrategy::Steps => every(plan.evaluation.steps),
        EvalStrategy::Epoch => steps.div_ceil(per_epoch),
    };
    let saves = match plan.saving.strategy {
        SaveStrategy::No => 0,
        SaveStrategy::Steps => every(plan.saving.steps),
        SaveStrategy::Epoch => steps.div_ceil(per_epoch),
        SaveStrategy::Best => evaluations,
    };
    WholeRun { steps, samples: steps * plan.batch.global as u64, evaluations, saves }
}

/// Makes the folder, without what an earlier comparison left in it.
fn clear(out: &Path) -> Result<()> {
    let io = |action: &str, error: &std::io::Error| Error::io(format!("{action} {}", out.display()), error);
    fs::create_dir_all(out).map_err(|error| io("create", &error))?;
    for entry in [FILE, "arms"].iter().chain(output::REPORT).map(|entry| out.join(entry)).filter(|entry| entry.exists())
    {
        let removed = if entry.is_dir() { fs::remove_dir_all(&entry) } else { fs::remove_file(&entry) };
        removed.map_err(|error| io("clear", &error))?;
    }
    Ok(())
}
