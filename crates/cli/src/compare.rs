//! `kiln compare` and `kiln report`: whether compiling a run is worth it, measured, and shown again
//! from finished runs.

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use clap::Args;
use kiln::config::{CompilerMode, DeviceKind, RunConfig, TrainBatchSize};
use kiln::engine::device;
use kiln::engine::handover::Engine;
use kiln::run_folder::PAGE;
use kiln_core::error::{Error, Result};
use kiln_core::files::read_json;
use kiln_core::{host, signals};
use kiln_measure::collectives::Collectives;
use kiln_measure::compare::ablation::Ablate;
use kiln_measure::compare::arms::{Scan, Wanted};
use kiln_measure::compare::run::{Options, run};
use kiln_measure::compare::{Gate, Report, saved};
use kiln_measure::report::run::RunPage;
use kiln_measure::{gemm, report, scaling, sweep, tune_batch};

use super::compiler::{BOTH_MODES, verify_compare};
use super::training::resolve;
use super::{say, terminal};

#[derive(Debug, Args)]
pub(super) struct CompareArgs {
    #[command(flatten)]
    config: super::training::ConfigArgs,
    /// The folder of the comparison; the config's run folder with -compare when it is left out
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Some of native, compiled, native-large, compiled-large
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    arms: Vec<String>,
    /// The micro-batch of the -large arms, for the 2 x 2
    #[arg(long, value_name = "N")]
    compiled_batch: Option<usize>,
    /// Optimizer steps of each run; as many as take 2.5 seconds, at least 16 (80 on a GPU), when it
    /// is left out
    #[arg(long, value_name = "N")]
    steps: Option<usize>,
    /// Runs of each arm
    #[arg(long, value_name = "N", default_value_t = 10)]
    repeats: usize,
    /// Also an arm with each part of the compiler off that the device has; with `operators` each
    /// fused operator too
    #[arg(long, value_name = "columns|operators", num_args = 0..=1, require_equals = true, default_missing_value = "columns")]
    ablate: Option<Ablate>,
    /// Also both modes at every batch and block, as in batch=4,8,block=64,128
    #[arg(long, value_name = "POINTS")]
    sweep: Option<Scan>,
    /// Compare numbers of devices instead of modes, as in 1,2,4: the same run with the same global
    /// batch, one process a device
    #[arg(long, value_name = "N,...", value_delimiter = ',', conflicts_with_all = ["arms", "compiled_batch", "ablate", "sweep"])]
    world: Vec<usize>,
    /// The machines of --world, as `kiln launch` takes them
    #[arg(long, value_name = "HOST,...", value_delimiter = ',', requires = "world")]
    hosts: Vec<String>,
    /// The launcher of --world: mpirun of Open MPI or MPICH
    #[arg(long, value_name = "PROGRAM", default_value = "mpirun", requires = "world")]
    mpirun: PathBuf,
    /// The measurements of `kiln bench --collectives` of the link: steps are predicted from it,
    /// also of 8, 64 and 512 devices
    #[arg(long, value_name = "FILE", requires = "world")]
    collectives: Option<PathBuf>,
    #[command(flatten)]
    asked: Asked,
    /// Run the compiled arms with this program, to see that the comparison finds out what is wrong
    /// with it
    #[arg(long, value_name = "PROGRAM", hide = true)]
    compiled_program: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct ReportArgs {
    /// A run, the folder of a comparison or of a search, or finished runs; the first is what the
    /// others are compared with
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Properties that may differ between the runs besides how they were trained, as in
    /// device,cpu,data.block_size
    #[arg(long, value_name = "KEYS", value_delimiter = ',')]
    about: Vec<String>,
    /// The folder that gets the report; the run's or the comparison's own, or `report/RUN-RUN`,
    /// when it is left out
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    #[command(flatten)]
    asked: Asked,
}

/// Options of a report.
#[derive(Debug, Args)]
struct Asked {
    /// The price of an hour of the machine
    #[arg(long, value_name = "PRICE")]
    price_per_hour: Option<f64>,
    /// The loss to race to; when it is left out, one that all arms reach
    #[arg(long, value_name = "LOSS")]
    target_loss: Option<f64>,
    /// Conditions for exit code 0, as in speedup>=1.2,loss_delta<=1e-3
    #[arg(long, value_name = "CLAUSES")]
    gate: Option<Gate>,
}

impl Asked {
    fn check(&self) -> Result<()> {
        match (self.price_per_hour, self.target_loss) {
            (Some(price), _) if !(price.is_finite() && price >= 0.0) => {
                Err(Error::config(format!("--price-per-hour: expected a number from 0, got {price}")))
            }
            (_, Some(target)) if !target.is_finite() => {
                Err(Error::config(format!("--target-loss: expected a number, got {target}")))
            }
            _ => Ok(()),
        }
    }

    /// Whether the gate, where there is one, lets the report pass.
    fn of(&self, report: &Report) -> Result<()> {
        self.gate.as_ref().map_or(Ok(()), |gate| gate.check(report))
    }
}

/// More runs than anybody has the time for.
const MOST_REPEATS: usize = 10_000;

pub(super) fn run_compare(args: &CompareArgs) -> Result<()> {
    let at_least = |name: &str, given: usize, least: usize, why: &str| {
        let message = format!("--{name}: expected at least {least}, got {given}");
        if given < least { Err(Error::config(message).help(why)) } else { Ok(()) }
    };
    at_least("repeats", args.repeats, 2, "one run cannot tell how much runs differ")?;
    if args.repeats > MOST_REPEATS {
        return Err(Error::config(format!("--repeats: expected at most {MOST_REPEATS}, got {}", args.repeats)));
    }
    if let Some(batch) = args.compiled_batch {
        at_least("compiled-batch", batch, 1, "it is the micro-batch of the -large arms")?;
    }
    args.asked.check()?;
    if !args.world.is_empty() {
        return compare_worlds(args);
    }
    let config = args.config.load_for_modes(BOTH_MODES).map_err(|error| {
        if args.config.file.is_dir() { error.help("`kiln report RUN..` reports on finished runs") } else { error }
    })?;
    let mut config = RunConfig::from(config);
    // The compiler is what is compared: a config that switches it on has no native arm of its own.
    config.trainer.set_compiler(CompilerMode::Native);
    // On a GPU only the engine of a mode can plan a run of it, and so name what its size is kept
    // under.
    let device = device::select(config.trainer.device.kind, config.trainer.device.index)?;
    if let Some(steps) = args.steps {
        let least = if device.kind == DeviceKind::Cpu { 10 } else { 60 };
        at_least("steps", steps, least, "the first steps are the warm-up, and at least 3 windows must follow")?;
    }
    let can_look = |engine| device.kind == DeviceKind::Cpu || Engine::this() == engine;
    if config.trainer.per_device_train_batch_size == TrainBatchSize::Auto {
        if !can_look(Engine::Native) {
            return Err(Error::config(
                "trainer.per_device_train_batch_size = \"auto\": this engine cannot look up what was found for the native one",
            )
            .help("`kiln tune-batch --list` shows it; then --set trainer.per_device_train_batch_size=N"));
        }
        let size = tune_batch::found(&config, &resolve)?.ok_or_else(|| {
            Error::config(
                "trainer.per_device_train_batch_size = \"auto\": no size has been found yet for the native mode",
            )
            .help("`kiln tune-batch FILE --mode both` finds both")
        })?;
        config.trainer.per_device_train_batch_size = size.into();
    }
    let large = args.arms.is_empty() || args.arms.iter().any(|arm| arm.ends_with("-large"));
    let compiled_batch = match args.compiled_batch {
        None if large && can_look(Engine::Compiled) => {
            let mut compiled = config.clone();
            compiled.trainer.set_compiler(CompilerMode::Compiled);
            tune_batch::found(&compiled, &resolve).map_err(|error| error.at("arm compiled"))?
        }
        given => given,
    };
    let options = Options {
        title: format!("{}: native against compiled", args.config.file.display()),
        config,
        out: args.out.clone(),
        wanted: Wanted {
            arms: args.arms.clone(),
            compiled_batch,
            ablate: args.ablate,
            sweep: args.sweep.clone().unwrap_or_default(),
        },
        steps: args.steps,
        repeats: args.repeats,
        price_per_hour: args.asked.price_per_hour,
        target_loss: args.asked.target_loss,
        compiled_program: args.compiled_program.clone(),
    };
    let (report, out, error) = run(&options, &resolve, &verify_compare, &mut |line| say(line))?;
    show(&report, &out)?;
    if let Some(error) = error {
        return Err(error);
    }
    args.asked.of(&report)
}

/// Steps of each run of `--world` where the command line has none.
const WORLD_STEPS: usize = 20;

/// `kiln compare --world`.
fn compare_worlds(args: &CompareArgs) -> Result<()> {
    let Asked { price_per_hour, target_loss, gate } = &args.asked;
    let of_modes = [
        ("--price-per-hour", price_per_hour.is_some()),
        ("--target-loss", target_loss.is_some()),
        ("--gate", gate.is_some()),
    ];
    if let Some((name, _)) = of_modes.iter().find(|(_, is_given)| *is_given) {
        return Err(Error::config(format!("{name}: has no effect with --world")).help("leave it out"));
    }
    let mut worlds = args.world.clone();
    worlds.sort_unstable();
    worlds.dedup();
    if worlds.len() != args.world.len() || worlds[0] == 0 {
        return Err(Error::config(format!("--world: expected different numbers from 1, got {:?}", args.world))
            .help("as in --world 1,2,4"));
    }
    signals::install()?;
    let options = scaling::Options {
        title: format!("{}: {} devices", args.config.file.display(), listed(&worlds)),
        config: args.config.load()?.into(),
        out: args.out.clone(),
        worlds,
        steps: args.steps.unwrap_or(WORLD_STEPS),
        repeats: args.repeats,
        hosts: args.hosts.clone(),
        mpirun: args.mpirun.clone(),
        collectives: args.collectives.as_deref().map(Collectives::read).transpose()?,
    };
    let (found, out) = scaling::run(&options, &resolve, &mut |line| say(line))?;
    say("")?;
    say(found.table())?;
    say(format!("result: {}", out.join(scaling::FILE).display()))
}

/// `1, 2 and 4`
fn listed(numbers: &[usize]) -> String {
    let texts = numbers.iter().map(usize::to_string).collect::<Vec<_>>();
    match texts.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => texts.concat(),
    }
}

pub(super) fn run_report(args: &ReportArgs) -> Result<()> {
    args.asked.check()?;
    if let [folder] = &args.runs[..]
        && !folder.join(kiln_measure::compare::run::FILE).exists()
        && let Some(run) = RunPage::read(folder)?
    {
        return report_run(run, folder, args);
    }
    if let [folder] = &args.runs[..]
        && folder.join(sweep::FILE).is_file()
        && let Some(found) = sweep::kept(folder)?
    {
        return super::sweep::show(&found, args.out.as_deref().unwrap_or(folder));
    }
    let (report, own) = saved::report(&args.runs, &args.about, args.asked.price_per_hour, args.asked.target_loss)?;
    let out = args.out.clone().or(own).unwrap_or_else(|| folder_of(&args.runs));
    let used = std::fs::read_dir(&out).is_ok_and(|mut entries| entries.next().is_some());
    if used && !out.join("report.json").exists() && !out.join(kiln_measure::compare::run::FILE).exists() {
        return Err(Error::config(format!("{} is not empty and holds no report of Kiln's", out.display()))
            .help("name another folder with --out FOLDER"));
    }
    show(&report, &out)?;
    args.asked.of(&report)
}

/// The folder of the report of `runs`: `report/monday-friday`.
fn folder_of(runs: &[PathBuf]) -> PathBuf {
    /// Bytes of a name, of which file systems take 255.
    const LONGEST: usize = 120;
    let names = runs.iter().map(|run| run.file_name().unwrap_or(run.as_os_str()).to_string_lossy().replace('/', "-"));
    let name = names.collect::<Vec<_>>().join("-");
    let name = if name.len() > LONGEST { format!("{}-runs", runs.len()) } else { name };
    Path::new("report").join(name)
}

/// The page of the run in `folder`.
fn report_run(run: RunPage, folder: &Path, args: &ReportArgs) -> Result<()> {
    let Asked { price_per_hour, target_loss, gate } = &args.asked;
    let for_comparisons = [
        ("--about", !args.about.is_empty()),
        ("--price-per-hour", price_per_hour.is_some()),
        ("--target-loss", target_loss.is_some()),
        ("--gate", gate.is_some()),
    ];
    if let Some((name, _)) = for_comparisons.iter().find(|(_, is_given)| *is_given) {
        return Err(Error::config(format!("{name}: one run is compared with nothing"))
            .help("give the folder of a comparison, or at least two run folders"));
    }
    let run = match (device_of(&run), run.is_going_on()) {
        // A product beside a run that is going on would measure what the run leaves.
        (Some(device), false) => run.with_peak(gemm::gflops(&device)?),
        _ => run,
    };
    let out = args.out.as_deref().unwrap_or(folder);
    let shown = report::write_run(&run, out, width())?;
    say(shown.trim_end())?;
    say(format!("report: {}", out.join(PAGE).display()))
}

/// The device that the run was made on, where it is one of this machine's and this engine's.
fn device_of(run: &RunPage) -> Option<Device> {
    let made = run.provenance.as_ref()?;
    let build = if cfg!(debug_assertions) { "debug" } else { "release" };
    let is_here = made.cpu == host::cpu() && made.threads == host::threads() && made.build == build;
    let describe = |device: &device::Available| format!("{} {} ({})", device.kind, device.index, device.name);
    let mut devices = device::available().into_iter().filter(|_| is_here);
    devices.find(|device| describe(device) == made.device).map(|found| found.device)
}

/// The columns of the terminal, or those of a table in a file.
pub(super) fn width() -> usize {
    terminal::width().unwrap_or(110)
}

/// Writes the report into the folder `out` and shows it.
fn show(report: &Report, out: &Path) -> Result<()> {
    let before = read_json::<serde_json::Value>(&out.join("report.json")).ok();
    if let Some(title) = before.as_ref().and_then(|before| before["title"].as_str()).filter(|it| *it != report.title) {
        say(format!("{} held the report of {title}, which this one replaces", out.display()))?;
    }
    report::write(report, out)?;
    say("")?;
    say(report::terminal(report, width()).trim_end())?;
    say(format!("report: {}", out.join(PAGE).display()))
}
