//! `kiln compare --world 1,2,4`: what more devices are worth. The same run, with the same global
//! batch, is trained by each number of ranks, each time in processes of its own; the worlds take
//! turns, in an order that turns round from one repeat to the next.
//!
//! **Efficiency** is the throughput of `N` devices over `N` times that of one. **Communication** is
//! the part of a step that goes to exchanges and to waiting for other ranks. Where the link has
//! been measured ([`Collectives`]), a step is also predicted: the time that it has computed, and
//! the time that the model of the link takes for the exchanges. For numbers of devices that nobody
//! has here the prediction is all there is, with as much work a device as in the largest world that
//! was measured; it is labelled so.

use std::fs;
use std::path::{Path, PathBuf};

use kiln::build_info::COMMIT;
use kiln::config::{BatchScaling, CheckedConfig, OnExisting, RunConfig, TrainingArguments};
use kiln::distributed::Devices;
use kiln::plan::RunPlan;
use kiln_core::error::{Error, Result};
use kiln_core::files::write_json;
use kiln_core::process::{Kind, this_program};
use kiln_core::stats::median;
use kiln_core::{clock, host};
use serde::Serialize;

use super::collectives::{Collectives, Link};
use super::figures::{SpeedFigures, Spread, Window, median_step_ms};
use super::measured::MeasuredRun;
use super::output;
use super::runner::Work;
use super::table::{Column, list};

/// The file of the figures.
pub const FILE: &str = "scaling.json";

/// The version of its form.
pub const SCHEMA: &str = "kiln.scaling/1";

/// Numbers of devices that are predicted.
const PREDICTED: [usize; 3] = [8, 64, 512];

/// Exchanges of a few numbers in a step: labels of the first micro-batch, totals, which parameters
/// have gradients, time, signals.
const SMALL_EXCHANGES: f64 = 5.0;

/// The comparison that is asked for.
#[derive(Debug, Clone)]
pub struct Options {
    /// The config file, for the title.
    pub title: String,
    /// The config.
    pub config: RunConfig,
    /// The folder of the comparison. Default: the config's run folder with `-scaling`.
    pub out: Option<PathBuf>,
    /// Numbers of ranks.
    pub worlds: Vec<usize>,
    /// Optimizer steps of each run.
    pub steps: usize,
    /// Runs of each world.
    pub repeats: usize,
    /// The machines; none for this one alone.
    pub hosts: Vec<String>,
    /// The launcher.
    pub mpirun: PathBuf,
    /// The link, where it has been measured.
    pub collectives: Option<Collectives>,
}

/// The figures of an arm, which is a number of devices.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct World {
    /// How many.
    pub devices: usize,
    /// Micro-batches a step of each.
    pub accumulation: usize,
    /// The speed of the steps of all repeats.
    #[serde(flatten)]
    pub figures: SpeedFigures,
    /// Milliseconds of a step.
    pub step_ms: Spread,
    /// Medians of the repeats.
    pub step_ms_by_repeat: Vec<f64>,
    /// Milliseconds of a step that go to exchanges and to waiting for other ranks, median.
    pub communicate_ms: f64,
    /// Their share of the step, median.
    pub communicate_share: f64,
    /// Throughput over that of as many devices at the rate of one; none where one was not measured.
    pub efficiency: Option<f64>,
    /// The step by the model of the link.
    pub modelled_step_ms: Option<f64>,
}

/// A number of devices that was not measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Prediction {
    /// How many.
    pub devices: usize,
    /// Milliseconds of a step.
    pub step_ms: f64,
    /// Milliseconds of a step that go to exchanges between the devices.
    pub communicate_ms: f64,
    /// Throughput over that of as many devices that exchange nothing.
    pub efficiency: f64,
}

/// The content of `scaling.json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Scaling {
    /// [`SCHEMA`]
    pub schema: String,
    /// The subject.
    pub title: String,
    /// When it was made, RFC 3339.
    pub made_at: String,
    /// Kiln's commit.
    pub commit: String,
    /// `release` or `debug`.
    pub build: String,
    /// The processor's name, where the system tells.
    pub cpu: Option<String>,
    /// Threads of each rank, in all worlds.
    pub threads: String,
    /// The load of the machine before.
    pub load: Option<f64>,
    /// Examples of a step, the same in all worlds.
    pub global_batch: usize,
    /// Bytes of gradients that a step sums.
    pub gradient_bytes: u64,
    /// The measurements of every world.
    pub worlds: Vec<World>,
    /// The model of the link.
    pub link: Option<Link>,
    /// By the model alone.
    pub modelled: Vec<Prediction>,
    /// Notes for the reader.
    pub notes: Vec<String>,
}

/// The runs of an arm, which is a number of ranks.
struct WorldRuns {
    ranks: usize,
    config: RunConfig,
    accumulation: usize,
    windows: Vec<Vec<Window>>,
}

/// Trains in worlds of all sizes and writes `scaling.json`. `plan` makes a plan of a config; `say`
/// is told how far it is.
///
/// # Errors
/// A global batch that a world cannot share, a folder that is in use, a run that fails, and a
/// signal.
pub fn run(
    options: &Options,
    plan: &dyn Fn(CheckedConfig) -> Result<RunPlan>,
    say: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<(Scaling, PathBuf)> {
    let base = &options.config;
    let out = output::folder(options.out.as_deref(), base, "scaling", FILE)?;
    let alone = TrainingArguments { devices: Devices::default(), ..base.trainer.clone() };
    let planned = plan(RunConfig { trainer: alone, ..base.clone() }.checked()?)?;
    let (global, gradient_bytes) = (planned.train.batch.global, 4 * planned.memory.values.trained as u64);
    let mut arms = Vec::new();
    for ranks in options.worlds.iter().copied() {
        let mut config = base.clone();
        config.trainer.devices = Devices { count: ranks, nodes: machines(options, ranks) };
        config.trainer.batch.global_batch_size = Some(global);
        config.trainer.batch.scaling = BatchScaling::Fixed;
        config.trainer.gradient_accumulation_steps = 1;
        let planned = config.clone().checked().map_err(Error::from).and_then(plan);
        let planned = planned.map_err(|error| error.at(format_args!("--world {ranks}")))?;
        config.trainer.max_steps = Some(options.steps.min(planned.train.steps.total));
        config.trainer.num_train_epochs = None;
        config.trainer.max_tokens = None;
        arms.push(WorldRuns { ranks, config, accumulation: planned.train.batch.accumulation, windows: Vec::new() });
    }
    let most = options.worlds.iter().map(|ranks| ranks.div_ceil(machines(options, *ranks))).max().unwrap_or(1);
    let threads = std::env::var("RAYON_NUM_THREADS").unwrap_or_else(|_| (host::threads() / most).max(1).to_string());
    let load = host::load();
    fs::create_dir_all(&out).map_err(|error| Error::io(format!("create {}", out.display()), &error))?;
    for repeat in 0..options.repeats {
        let mut order = arms.iter_mut().collect::<Vec<_>>();
        if repeat % 2 == 1 {
            order.reverse();
        }
        for arm in order {
            let folder = out.join(format!("world-{}", arm.ranks)).join(format!("repeat-{}", repeat + 1));
            let windows = arm.run(options, &folder, &threads)?;
            let step = median_step_ms(&windows);
            say(&format!("repeat {}/{}  world {:<4} {step:>10.1} ms a step", repeat + 1, options.repeats, arm.ranks))?;
            arm.windows.push(windows);
        }
    }
    let link = options.collectives.as_ref().map(|it| it.link);
    let mut worlds = arms.iter().map(|arm| arm.figures(link.as_ref(), gradient_bytes)).collect::<Vec<_>>();
    let of_one = worlds.iter().find(|world| world.devices == 1).and_then(|world| world.figures.samples_per_s);
    for world in &mut worlds {
        let rates = of_one.zip(world.figures.samples_per_s);
        world.efficiency = rates.map(|(of_one, rate)| rate / (of_one * world.devices as f64));
    }
    let largest = worlds.iter().max_by_key(|world| world.devices);
    let modelled = match (link, largest) {
        (Some(link), Some(largest)) => {
            PREDICTED.map(|devices| predict(&link, largest, devices, gradient_bytes)).to_vec()
        }
        _ => Vec::new(),
    };
    let scaling = Scaling {
        schema: SCHEMA.into(),
        title: options.title.clone(),
        made_at: clock::rfc3339(),
        commit: COMMIT.into(),
        build: if cfg!(debug_assertions) { "debug" } else { "release" }.into(),
        cpu: host::cpu(),
        threads,
        load,
        global_batch: global,
        gradient_bytes,
        worlds,
        link,
        modelled,
        notes: notes(options),
    };
    write_json(&out.join(FILE), &scaling)?;
    Ok((scaling, out))
}

/// The machines that `ranks` are on.
fn machines(options: &Options, ranks: usize) -> usize {
    options.hosts.len().clamp(1, ranks)
}

fn notes(options: &Options) -> Vec<String> {
    let mut notes = Vec::new();
    if options.hosts.len() < 2 {
        notes.push(
            "all ranks are on this machine and share its memory and caches: the efficiency is not that of as many machines".into(),
        );
    }
    if let Some(found) = &options.collectives {
        notes.push(format!("the link: collectives of {}, {}", found.devices, found.world));
    }
    notes
}

/// The milliseconds that `bytes` of gradients and the small exchanges of a step take among
/// `devices`.
fn exchanges_ms(link: &Link, devices: usize, bytes: u64) -> f64 {
    let small = SMALL_EXCHANGES * (devices as f64).log2().ceil() * link.alpha;
    (link.gradients(devices, bytes as f64) + small) * 1e3
}

fn predict(link: &Link, measured: &World, devices: usize, bytes: u64) -> Prediction {
    let computes = measured.step_ms.median - measured.communicate_ms;
    let communicate_ms = exchanges_ms(link, devices, bytes);
    let step_ms = computes + communicate_ms;
    Prediction { devices, step_ms, communicate_ms, efficiency: computes / step_ms }
}

impl WorldRuns {
    /// One run of it into `folder`.
    fn run(&self, options: &Options, folder: &Path, threads: &str) -> Result<Vec<Window>> {
        let above = folder.parent().unwrap_or(folder);
        fs::create_dir_all(above).map_err(|error| Error::io(format!("create {}", above.display()), &error))?;
        if folder.exists() {
            fs::remove_dir_all(folder).map_err(|error| Error::io(format!("clear {}", folder.display()), &error))?;
        }
        let mut config = self.config.training_only(folder, 1);
        config.trainer.on_existing = OnExisting::Fail;
        let work = Work::on(&config, &folder.with_extension("toml"), &this_program()?, "train")?.with(["--step-times"]);
        let mut work = Work { kind: Kind::Foreign, variables: vec![("RAYON_NUM_THREADS", threads.into())], ..work };
        if self.ranks > 1 {
            let train = std::mem::take(&mut work.arguments);
            work = work.with(["launch", "-n", &self.ranks.to_string(), "--mpirun"]).with([&options.mpirun]);
            if !options.hosts.is_empty() {
                work = work.with(["--hosts", &options.hosts[..machines(options, self.ranks)].join(",")]);
            }
            work = work.with(["--"]).with(train);
        }
        let exit = work.start()?.wait(None, "stopped while measuring; no report is made of what was not complete")?;
        if let Some(error) = exit.error() {
            return Err(error.at(format_args!("--world {}", self.ranks)));
        }
        let read = MeasuredRun::read(folder)?;
        output::drop_weights(folder);
        if read.steady.is_empty() {
            return Err(Error::config(format!("--world {}: the run is too short: it has no steady state", self.ranks))
                .help("raise --steps"));
        }
        Ok(read.steady)
    }

    fn figures(&self, link: Option<&Link>, bytes: u64) -> World {
        let windows = self.windows.concat();
        let over = |pick: &dyn Fn(&Window) -> f64| median(&windows.iter().map(pick).collect::<Vec<_>>());
        let communicate = |window: &Window| window.parts.map_or(0.0, |parts| parts.communicate);
        let computes = over(&|window| window.step_ms() - communicate(window));
        let modelled = link.filter(|_| self.ranks > 1).map(|link| computes + exchanges_ms(link, self.ranks, bytes));
        let figures = SpeedFigures::of(&windows, None);
        World {
            devices: self.ranks,
            accumulation: self.accumulation,
            step_ms: figures.step_ms.expect("a run without windows is refused"),
            figures,
            step_ms_by_repeat: self.windows.iter().map(|of_run| median_step_ms(of_run)).collect(),
            communicate_ms: over(&communicate),
            communicate_share: over(&|window| communicate(window) / window.step_ms()),
            efficiency: None,
            modelled_step_ms: modelled,
        }
    }
}

impl Scaling {
    /// Tables for the terminal.
    pub fn table(&self) -> String {
        let columns: [Column<World>; 7] = [
            ("samples/s", 2, |it| it.figures.samples_per_s),
            ("step ms", 1, |it| Some(it.step_ms.median)),
            ("p90", 1, |it| Some(it.step_ms.p90)),
            ("communicate", 1, |it| Some(it.communicate_ms)),
            ("share %", 1, |it| Some(100.0 * it.communicate_share)),
            ("efficiency", 3, |it| it.efficiency),
            ("modelled ms", 1, |it| it.modelled_step_ms),
        ];
        let mib = self.gradient_bytes as f64 / f64::from(1 << 20);
        let mut lines = vec![
            self.title.clone(),
            format!(
                "{} examples a step, {mib:.1} MiB of gradients, {} threads a rank",
                self.global_batch, self.threads
            ),
        ];
        lines.extend(list(&self.worlds, |it| devices(it.devices), &columns));
        lines.extend(self.link.iter().map(|link| format!("link: {}", link.describe())));
        if !self.modelled.is_empty() {
            let columns: [Column<Prediction>; 3] = [
                ("step ms", 1, |it| Some(it.step_ms)),
                ("communicate", 1, |it| Some(it.communicate_ms)),
                ("efficiency", 3, |it| Some(it.efficiency)),
            ];
            lines.push("modelled, not measured: as much work a device as in the largest world above".into());
            lines.extend(list(&self.modelled, |it| devices(it.devices), &columns));
        }
        lines.extend(self.notes.iter().map(|note| format!("note: {note}")));
        lines.join("\n")
    }
}

fn devices(count: usize) -> String {
    format!("{count} device{}", if count == 1 { "" } else { "s" })
}
