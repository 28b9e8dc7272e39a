//! `kiln verify-resume FILE`: shows on the user's own config that N + M steps equal N steps, a stop and M steps. Model,
//! data, batch, schedule and seed are the config's; only what changes no weight is left out (evaluation, the text sample,
//! the checkpoints' schedule). It works in a temporary folder and leaves the run folder alone.
//!
//! With `--modes` also across the compiler's modes ([`across_modes`]): native or compiled before the stop, native or compiled
//! after it. In one mode on the CPU every bit is the same. A change of the mode is compared with the mode of the first part,
//! without dropout, which the modes draw differently: names, shapes and types of all tensors byte for byte (the files'
//! headers), losses, gradient norms and tensors to [`Limits`], in f32 1e-5 and 1e-3 relative, since f32 sums are rounded in another
//! order. So they may be on a GPU from run to run, where tuning chooses the kernels.
//!
//! A run is made of [`Part`]s, each in a process of its own: where the modes are two engines, no process has both.

use std::path::Path;

use kiln_models::weights::{ADAPTER_FILE, Depth, MODEL_FILE};
use safetensors::SafeTensors;

use crate::base::error::{Error, Result};
use crate::base::files::read_regular;
use crate::base::metrics::{self, Record};
use crate::base::process::scratch;
use crate::config::{CompilerMode, DeviceKind, OnExisting, RunConfig};
use crate::engine::device;
use crate::plan::EnginePlan;
use crate::proof::auto;
use crate::proof::figures::Limits;
use crate::session::Session;
use crate::trainer::{Callback, Control, Progress, checkpoint};

/// Figures of a training row that say something about the run, not about the machine.
const FIGURES: [&str; 7] = ["step", "epoch", "samples", "tokens", "loss", "grad_norm", "learning_rate"];

/// The comparison that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Steps before the stop.
    pub before: u64,
    /// Steps after it.
    pub after: u64,
    /// Tensors that were compared: weights and moments.
    pub tensors: usize,
    /// Rows that were compared.
    pub rows: usize,
    /// To what: `bit for bit`, or the tolerances.
    pub within: String,
    /// The differences; empty when the promise is kept.
    pub differences: Vec<String>,
}

/// A part of a run: of its first steps, those up to where it is stopped, or all that are compared.
#[derive(Debug, Clone)]
pub struct Part {
    /// The run's config, with an `output_dir` in which an earlier part is continued.
    pub config: RunConfig,
    /// Whether this is the part before the stop.
    pub before_stop: bool,
    /// Whether nothing is dropped out, whatever the config says.
    pub without_dropout: bool,
}

/// Trains a part, as [`train`] does.
pub type Runner<'a> = dyn Fn(&Part) -> Result<()> + 'a;

/// Trains `part` and saves a checkpoint at its end. `open` opens a config ([`Session::open`], or one that shows
/// its progress).
///
/// # Errors
/// A run of one step, and whatever the run meets.
pub fn train(part: &Part, open: &dyn Fn(RunConfig) -> Result<Session>) -> Result<()> {
    let session = open(part.config.clone())?;
    let total = session.plan().steps.total as u64;
    if total < 2 {
        return Err(Error::config("this run has one step: there is nothing to stop in the middle of"));
    }
    let steps = if part.before_stop { (total / 2).min(3) } else { total.min(6) };
    let trainer = auto::trainer(session)?.with_callback(SaveAndStop(steps));
    let mut trainer = if part.without_dropout { trainer.without_dropout() } else { trainer };
    trainer.train().map(drop)
}

/// Runs `config` for a few steps, once straight and once with a stop between, and compares.
///
/// # Errors
/// Any error of the runs.
pub fn verify(config: &RunConfig, runner: &Runner<'_>) -> Result<Report> {
    verify_in(config, [config.compiler_mode(); 2], runner)
}

/// As [`verify`], for the four ways to go from one of the compiler's modes to one of them, each with its name.
///
/// # Errors
/// As [`verify`].
pub fn across_modes(config: &RunConfig, runner: &Runner<'_>) -> Result<Vec<(String, Report)>> {
    let (n, c) = (CompilerMode::Native, CompilerMode::Compiled);
    let ways = [[n, n], [c, c], [n, c], [c, n]];
    ways.into_iter().map(|way| Ok((format!("{} -> {}", way[0], way[1]), verify_in(config, way, runner)?))).collect()
}

/// `modes`: before the stop, and after it.
fn verify_in(config: &RunConfig, modes: [CompilerMode; 2], runner: &Runner<'_>) -> Result<Report> {
    let folder = scratch()?;
    let run = |name: &str, before_stop: bool, mode: CompilerMode| -> Result<u64> {
        let mut config = config.training_only(folder.path().join(name), 1);
        config.set_compiler(mode);
        config.run.on_existing = OnExisting::Resume;
        runner(&Part { config, before_stop, without_dropout: modes[0] != modes[1] })?;
        let saved = checkpoint::list(&folder.path().join(name).join(checkpoint::FOLDER))?;
        Ok(saved.into_iter().map(|(step, _)| step).max().unwrap_or_default())
    };
    let all = run("straight", false, modes[0])?;
    let before = run("stopped", true, modes[0])?;
    run("stopped", false, modes[1])?;
    let device = device::select(config.device.kind, config.device.index)?.facts();
    let rounded = match modes[0] == modes[1] && device.kind == DeviceKind::Cpu {
        true => None,
        false => {
            let precision = EnginePlan::of(config, &device, None)?.precision.precision;
            Some(Limits::of(precision, device.has_tf32()))
        }
    };
    compare(&folder.path().join("straight"), &folder.path().join("stopped"), [before, all], rounded)
}

/// `rounded`: how far figures may be apart; none for not at all.
fn compare(straight: &Path, stopped: &Path, [before, all]: [u64; 2], rounded: Option<Limits>) -> Result<Report> {
    let within = match rounded {
        None => "bit for bit".into(),
        Some(Limits { loss, gradient, .. }) => {
            format!(
                "the layout of the files to the byte, losses to {loss:.0e}, gradient norms and tensors to {gradient:.0e}"
            )
        }
    };
    let mut report = Report { before, after: all - before, tensors: 0, rows: 0, within, differences: Vec::new() };
    let last = Path::new(checkpoint::FOLDER).join(checkpoint::name(all));
    let adapters = straight.join(&last).join(ADAPTER_FILE).is_file();
    for file in [if adapters { ADAPTER_FILE } else { MODEL_FILE }, checkpoint::OPTIMIZER] {
        let [a, b] = [straight, stopped].map(|run| read(&run.join(&last).join(file)));
        let (a, b) = (a?, b?);
        let bad = |error: safetensors::SafeTensorError| Error::data(format!("{file}: {error}"));
        if header(&a) != header(&b) {
            report.differences.push(format!("{file}: names, shapes or types of its tensors"));
        }
        let (a, b) = (SafeTensors::deserialize(&a).map_err(bad)?, SafeTensors::deserialize(&b).map_err(bad)?);
        let mut names = a.names();
        names.extend(b.names().into_iter().filter(|name| a.tensor(name).is_err()));
        let mut groups: Vec<(Group<'_>, Vec<&str>)> = Vec::new();
        for name in names {
            report.tensors += 1;
            let group = Group::of(name, file, rounded);
            match groups.iter_mut().find(|(known, _)| *known == group) {
                Some((_, all)) => all.push(name),
                None => groups.push((group, vec![name])),
            }
        }
        for (_, names) in groups {
            let pairs = names.iter().map(|name| Some((a.tensor(name).ok()?, b.tensor(name).ok()?)));
            let pairs = pairs.collect::<Option<Vec<_>>>();
            let is_same = pairs.is_some_and(|pairs| {
                pairs.iter().all(|(a, b)| a.data() == b.data())
                    || rounded.is_some_and(|limits| near(pairs.iter().map(|(a, b)| (a.data(), b.data())), limits))
            });
            if !is_same {
                report.differences.push(names.join(", "));
            }
        }
    }
    let (a, b) = (rows(straight)?, rows(stopped)?);
    report.rows = a.len();
    if a.len() != b.len() {
        report.differences.push(format!("{} rows against {}", a.len(), b.len()));
    }
    for (a, b) in a.iter().zip(&b).filter(|(a, b)| !rounded.is_some_and(|limits| near_rows(a, b, limits))) {
        // As text, in which NaN is the same as NaN.
        let (a, b) = (a.to_json(), b.to_json());
        if a != b {
            report.differences.push(format!("{a} against {b}"));
        }
    }
    Ok(report)
}

/// The header of a safetensors file: 8 bytes of its length, then names, types, shapes and places of all tensors.
fn header(file: &[u8]) -> Option<&[u8]> {
    let length = u64::from_le_bytes(*file.first_chunk()?);
    file.get(..8 + usize::try_from(length).ok()?)
}

/// The tensors that are compared together.
#[derive(Debug, PartialEq)]
enum Group<'a> {
    /// This one.
    One(&'a str),
    /// All of a layer that end in the same, in the optimizer's file. Where products round their operands, Adam moves a weight without
    /// a gradient, such as an attention key's bias, as far as any other, in a direction that rounding decides.
    Layer(Depth, &'a str),
}

impl<'a> Group<'a> {
    fn of(name: &'a str, file: &str, rounded: Option<Limits>) -> Self {
        match rounded.is_none_or(|limits| limits == Limits::F32) {
            true => Self::One(name),
            false if file == checkpoint::OPTIMIZER => {
                Self::Layer(Depth::of(name), name.rsplit('.').next().unwrap_or(name))
            }
            false => Self::Layer(Depth::of(name), ""),
        }
    }
}

/// Whether f32 tensors, together, are the same but for rounding. Adam's first moments of a weight without a gradient are nothing but
/// rounding, so what is smaller than any update counts as 0.
fn near<'a>(tensors: impl Iterator<Item = (&'a [u8], &'a [u8])>, limits: Limits) -> bool {
    let values = |bytes: &'a [u8]| bytes.as_chunks().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes)));
    let (mut apart, mut norm) = (0.0, 0.0);
    for (a, b) in tensors {
        if a.len() != b.len() {
            return false;
        }
        apart += values(a).zip(values(b)).map(|(a, b)| (a - b).powi(2)).sum::<f64>();
        norm += values(a).map(|a| a * a).sum::<f64>();
    }
    apart.sqrt() <= limits.gradient * norm.sqrt() + 1e-7
}

/// Whether two rows are the same but for rounding.
fn near_rows(a: &Record, b: &Record, limits: Limits) -> bool {
    FIGURES.iter().all(|name| {
        let limit = match *name {
            "loss" => limits.loss,
            "grad_norm" => limits.gradient,
            _ => 0.0,
        };
        match (a.get(name), b.get(name)) {
            (Some(a), Some(b)) => (a - b).abs() <= limit * a.abs(),
            (a, b) => a == b,
        }
    })
}

fn read(path: &Path) -> Result<Vec<u8>> {
    read_regular(path).map_err(|error| Error::io(format!("read {}", path.display()), &error))
}

/// The training rows of a run, without what is measured.
fn rows(run: &Path) -> Result<Vec<Record>> {
    Ok(metrics::read(run)?.into_iter().filter(|row| row.get("loss").is_some()).map(|row| row.only(&FIGURES)).collect())
}

/// Saves and stops after a number of steps.
struct SaveAndStop(u64);

impl<M> Callback<M> for SaveAndStop {
    fn on_step_end(&mut self, progress: &Progress, control: &mut Control) {
        let reached = progress.step >= self.0;
        (control.should_save, control.should_training_stop) = (reached, reached);
    }
}
