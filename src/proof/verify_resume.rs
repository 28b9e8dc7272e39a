//! `kiln verify-resume FILE`: shows on the user's own config that N + M steps equal N steps, a stop and M steps. Model,
//! data, batch, schedule and seed are the config's; only what changes no weight is left out (evaluation, the text sample,
//! the checkpoints' schedule). It works in a temporary folder and leaves the run folder alone.
//!
//! With `--modes` also across the compiler's modes ([`across_modes`]): native or compiled before the stop, native or compiled
//! after it. In one mode on the CPU every bit is the same. A change of the mode is compared with the mode of the first part,
//! without dropout, which the modes draw differently: names, shapes and types of all tensors byte for byte (the files'
//! headers), losses to 1e-5 and gradient norms to 1e-3 relative, the weights of a tensor to 1e-3 of its norm, since f32 sums
//! are rounded in another order. So they may be on a GPU from run to run, where tuning chooses the kernels.
//!
//! A run is made of [`Part`]s, each in a process of its own: where the modes are two engines, no process has both.

use std::path::Path;

use kiln_models::weights::{ADAPTER_FILE, MODEL_FILE};
use safetensors::SafeTensors;

use crate::base::error::{Error, Result};
use crate::base::files::read_regular;
use crate::base::metrics::{self, Record};
use crate::base::process::scratch;
use crate::config::{CompilerMode, DeviceKind, OnExisting, RunConfig};
use crate::engine::device;
use crate::proof::auto;
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
    pub within: &'static str,
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
    let device = device::select(config.device.kind, config.device.index)?;
    let exact = modes[0] == modes[1] && device.kind == DeviceKind::Cpu;
    compare(&folder.path().join("straight"), &folder.path().join("stopped"), [before, all], exact)
}

/// Figures of rows that a change of the mode may round in another way, with how much.
const ROUNDED: [(&str, f64); 2] = [("loss", 1e-5), ("grad_norm", 1e-3)];

/// The same for a tensor: of the norm of what is compared.
const ROUNDED_TENSOR: f64 = 1e-3;

fn compare(straight: &Path, stopped: &Path, [before, all]: [u64; 2], exact: bool) -> Result<Report> {
    let within = if exact {
        "bit for bit"
    } else {
        "the layout of the files to the byte, losses to 1e-5, gradient norms and tensors to 1e-3"
    };
    let mut report = Report { before, after: all - before, tensors: 0, rows: 0, within, differences: Vec::new() };
    let last = Path::new(checkpoint::FOLDER).join(checkpoint::name(all));
    let adapters = straight.join(&last).join(ADAPTER_FILE).is_file();
    for file in [if adapters { ADAPTER_FILE } else { MODEL_FILE }, "optimizer.safetensors"] {
        let [a, b] = [straight, stopped].map(|run| read(&run.join(&last).join(file)));
        let (a, b) = (a?, b?);
        let bad = |error: safetensors::SafeTensorError| Error::data(format!("{file}: {error}"));
        if header(&a) != header(&b) {
            report.differences.push(format!("{file}: names, shapes or types of its tensors"));
        }
        let (a, b) = (SafeTensors::deserialize(&a).map_err(bad)?, SafeTensors::deserialize(&b).map_err(bad)?);
        let mut names = a.names();
        names.extend(b.names().into_iter().filter(|name| a.tensor(name).is_err()));
        for name in names {
            report.tensors += 1;
            match (a.tensor(name), b.tensor(name)) {
                (Ok(a), Ok(b)) if a.data() == b.data() || (!exact && near(a.data(), b.data())) => {}
                _ => report.differences.push(name.to_owned()),
            }
        }
    }
    let (a, b) = (rows(straight)?, rows(stopped)?);
    report.rows = a.len();
    if a.len() != b.len() {
        report.differences.push(format!("{} rows against {}", a.len(), b.len()));
    }
    for (a, b) in a.iter().zip(&b).filter(|(a, b)| exact || !near_rows(a, b)) {
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

/// Whether two f32 tensors are the same but for rounding. Adam's first moments of a weight without a gradient are nothing but
/// rounding, so what is smaller than any update counts as 0.
fn near(a: &[u8], b: &[u8]) -> bool {
    let values = |bytes: &[u8]| {
        bytes.as_chunks().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect::<Vec<_>>()
    };
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let (a, b) = (values(a), values(b));
    let apart = norm(&mut a.iter().zip(&b).map(|(a, b)| a - b));
    a.len() == b.len() && apart <= ROUNDED_TENSOR * norm(&mut a.iter().copied()) + 1e-7
}

/// Whether two rows are the same but for rounding.
fn near_rows(a: &Record, b: &Record) -> bool {
    FIGURES.iter().all(|name| {
        let limit = ROUNDED.iter().find(|(rounded, _)| rounded == name).map_or(0.0, |(_, limit)| *limit);
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
