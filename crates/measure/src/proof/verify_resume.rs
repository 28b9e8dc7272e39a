//! `kiln verify-resume FILE`: shows on the user's own config that N + M steps equal N steps, a stop
//! and M steps. Model, data, batch, schedule and seed are the config's; only what changes no weight
//! is left out (evaluation, the text sample, the checkpoints' schedule). It works in a temporary
//! folder and leaves the run folder alone.
//!
//! With `--modes` also across the compiler's modes ([`across_modes`]): native or compiled before
//! the stop, native or compiled after it. In one mode on the CPU every bit is the same. A change of
//! the mode is compared with the mode of the first part, without dropout, which the modes draw
//! differently: names, shapes and types of all tensors byte for byte (the files' headers), losses,
//! gradient norms and tensors to [`Limits`], in f32 1e-5 and 1e-3 relative, since f32 sums are
//! rounded in another order; where products round their operands, moments and the changes of a
//! layer's weights instead of single tensors. So they may be on a GPU from run to run, where tuning
//! chooses the kernels.
//!
//! With `--micro-batch` it is resumed with another micro-batch at the same global batch
//! ([`with_micro_batch`]): the sums of a step are then added in another order, so that this is
//! compared to rounding too, without dropout, which is drawn for each micro-batch.
//!
//! A run is made of [`Part`]s, each in a process of its own: where the modes are two engines, no
//! process has both.

use std::collections::BTreeMap;
use std::path::Path;

use kiln::Trainer;
use kiln::config::{BatchArguments, CheckedConfig, CompilerMode, DeviceKind, OnExisting, RunConfig};
use kiln::plan::{self, RunPlan, TrainPlan};
use kiln::run_folder::checkpoint;
use kiln::session::Session;
use kiln::trainer::{Callback, Control, Progress};
use kiln_core::error::{Error, Result};
use kiln_core::files::read_regular;
use kiln_core::metrics::{self, Record};
use kiln_core::process::scratch;
use kiln_models::weights::{ADAPTER_FILE, Depth, MODEL_FILE, safetensors_words};
use safetensors::SafeTensors;

use kiln_train::engine::operators;
use kiln_train::trial::figures::{self, Limits, StepFigures, TensorFigures};

/// Figures of a training row that say something about the run, not about the machine.
const FIGURES: [&str; 7] = ["step", "epoch", "samples", "tokens", "loss", "grad_norm", "learning_rate"];

/// The comparison that was made.
#[derive(Debug, Clone, PartialEq)]
pub struct Resumed {
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
    /// How far the weights are apart, in parts of their norm; 0 where all are the same.
    pub apart: f64,
    /// The differences; empty when the promise is kept.
    pub differences: Vec<String>,
}

/// A part of a run: of its first steps, those up to where it is stopped, or all that are compared.
#[derive(Debug, Clone)]
pub struct Part {
    /// The run's config, with an `output_dir` in which an earlier part is continued.
    pub config: CheckedConfig,
    /// Whether this is the part before the stop.
    pub before_stop: bool,
    /// Whether nothing is dropped out, whatever the config says: the parts are of two modes or of
    /// two micro-batches, each of which draws masks of its own.
    pub without_dropout: bool,
}

/// Trains a part, as [`train`] does.
pub type Runner<'a> = dyn Fn(&Part) -> Result<()> + 'a;

/// Trains `part` and saves a checkpoint at its end. `open` opens a config
/// ([`open`](kiln::OpenSession::open), or one that shows its progress).
///
/// # Errors
/// A run of one step, and whatever the run meets.
pub fn train(part: &Part, open: &dyn Fn(CheckedConfig) -> Result<Session>) -> Result<()> {
    let session = open(part.config.clone())?;
    let total = session.plan().steps.total as u64;
    if total < 2 {
        return Err(Error::config("this run has one step: there is nothing to stop in the middle of"));
    }
    let steps = if part.before_stop { (total / 2).min(3) } else { total.min(6) };
    let trainer = Trainer::from_session(session)?.with_callback(SaveAndStop(steps));
    let mut trainer = if part.without_dropout { trainer.without_dropout() } else { trainer };
    trainer.train().map(drop)
}

/// Runs `config` for a few steps, once straight and once with a stop between, and compares.
///
/// # Errors
/// Any error of the runs.
pub fn verify(config: &RunConfig, runner: &Runner<'_>) -> Result<Resumed> {
    verify_in(config, [config.trainer.compiler_mode(); 2], None, runner)
}

/// Compares a run of `config` with one that is stopped and resumed with the micro-batch `micro` at
/// the same global batch.
///
/// # Errors
/// Any error of the runs; a micro-batch that does not divide the global batch, or that the run has
/// already.
pub fn with_micro_batch(config: &RunConfig, micro: usize, runner: &Runner<'_>) -> Result<Resumed> {
    verify_in(config, [config.trainer.compiler_mode(); 2], Some(micro), runner)
}

/// Compares a run of `config` with one that is stopped and resumed, for the four ways to go from
/// one of the compiler's modes to one of them, each with its name.
///
/// # Errors
/// Any error of the runs.
pub fn across_modes(config: &RunConfig, runner: &Runner<'_>) -> Result<Vec<(String, Resumed)>> {
    let (n, c) = (CompilerMode::Native, CompilerMode::Compiled);
    let ways = [[n, n], [c, c], [n, c], [c, n]];
    ways.into_iter()
        .map(|way| Ok((format!("{} -> {}", way[0], way[1]), verify_in(config, way, None, runner)?)))
        .collect()
}

/// `modes`: before the stop, and after it. `micro`: the micro-batch after it, where it is another.
fn verify_in(
    config: &RunConfig,
    modes: [CompilerMode; 2],
    micro: Option<usize>,
    runner: &Runner<'_>,
) -> Result<Resumed> {
    let folder = scratch()?;
    let run = |name: &str, before_stop: bool, mode: CompilerMode, batch: Option<[usize; 2]>| -> Result<u64> {
        let mut config = config.training_only(folder.path().join(name), 1);
        config.trainer.set_compiler(mode);
        if let Some([micro, global]) = batch {
            config.trainer.per_device_train_batch_size = micro.into();
            config.trainer.gradient_accumulation_steps = 1;
            config.trainer.batch = BatchArguments { global_batch_size: Some(global), ..BatchArguments::default() };
        }
        config.trainer.on_existing = OnExisting::Resume;
        let other_modes = modes[0] != modes[1] && !operators::drop_alike(config.trainer.device.kind);
        let without_dropout = other_modes || micro.is_some();
        runner(&Part { config: config.checked()?, before_stop, without_dropout })?;
        let saved = checkpoint::list(&folder.path().join(name).join(checkpoint::FOLDER))?;
        Ok(saved.into_iter().map(|(step, _)| step).max().unwrap_or_default())
    };
    let check = |micro: usize, own: usize, of_device: usize| {
        if micro > 0 && micro != own && of_device.is_multiple_of(micro) {
            return Ok(());
        }
        let message = format!("--micro-batch: expected a divisor of {of_device} other than {own}, got {micro}");
        Err(Error::config(message).help("an optimizer step keeps its examples"))
    };
    // Before the first run, where the config says the sizes itself.
    let arguments = &config.trainer;
    if let (Some(micro), Some(own)) = (micro, arguments.per_device_train_batch_size.size()) {
        let global = arguments.batch.global_batch_size.map(|global| global / arguments.devices.count);
        check(micro, own, global.unwrap_or(own * arguments.gradient_accumulation_steps))?;
    }
    let all = run("straight", false, modes[0], None)?;
    // As the parts have resolved it: this process may have the other engine.
    let straight = folder.path().join("straight");
    let plan = serde_json::from_slice::<RunPlan>(&read(&straight.join(plan::FILE))?);
    let TrainPlan { engine, batch, .. } = plan.map_err(|error| Error::data(format!("{}: {error}", plan::FILE)))?.train;
    micro.map_or(Ok(()), |micro| check(micro, batch.micro, batch.global / batch.devices.count))?;
    let before = run("stopped", true, modes[0], None)?;
    run("stopped", false, modes[1], micro.map(|micro| [micro, batch.global]))?;
    let rounded = if modes[0] == modes[1] && micro.is_none() && engine.device.kind == DeviceKind::Cpu {
        None
    } else {
        Some(Limits::of(engine.precision.precision, engine.device.has_tf32()))
    };
    compare(&straight, &folder.path().join("stopped"), [before, all], rounded)
}

/// `rounded`: how far figures may be apart; none for not at all.
fn compare(straight: &Path, stopped: &Path, [before, all]: [u64; 2], rounded: Option<Limits>) -> Result<Resumed> {
    let within = match rounded {
        None => "bit for bit".into(),
        Some(Limits { loss, gradient, .. }) if rounded == Some(Limits::F32) => {
            format!(
                "the layout of the files to the byte, losses to {loss:.0e}, gradient norms and tensors to {gradient:.0e}"
            )
        }
        Some(Limits { loss, gradient, change, .. }) => format!(
            "the layout of the files to the byte, losses to {loss:.0e}, gradient norms and moments to {gradient:.0e}, the weight \
             change of every layer to {change:.0e}"
        ),
    };
    let differences = Vec::new();
    let mut report = Resumed { before, after: all - before, tensors: 0, rows: 0, within, apart: 0.0, differences };
    let last = Path::new(checkpoint::FOLDER).join(checkpoint::name(all));
    let adapters = straight.join(&last).join(ADAPTER_FILE).is_file();
    let model = if adapters { ADAPTER_FILE } else { MODEL_FILE };
    let narrow = rounded.filter(|limits| *limits != Limits::F32);
    for file in [model, checkpoint::OPTIMIZER] {
        let [a, b] = [straight, stopped].map(|run| read(&run.join(&last).join(file)));
        let (a, b) = (a?, b?);
        if header(&a) != header(&b) {
            report.differences.push(format!("{file}: names, shapes or types of its tensors"));
        }
        let (a, b) = (tensors(file, &a)?, tensors(file, &b)?);
        let mut names = a.names();
        names.extend(b.names().into_iter().filter(|name| a.tensor(name).is_err()));
        report.tensors += names.len();
        if file == model {
            report.apart = apart(&a, &b);
        }
        if let Some(limits) = narrow {
            let figures = if file == model {
                let start = Path::new(checkpoint::FOLDER).join(checkpoint::name(before));
                let start = read(&stopped.join(start).join(file))?;
                let start = tensors(file, &start)?;
                [&a, &b].map(|end| vec![StepFigures { changes: changes(&start, end), ..StepFigures::default() }])
            } else {
                [&a, &b].map(moments)
            };
            let (_, difference) = figures::compare(&figures[0], &figures[1], &limits);
            report.differences.extend(difference.map(|difference| format!("{file}: {}", difference.what)));
            continue;
        }
        for name in names {
            match (a.tensor(name), b.tensor(name)) {
                (Ok(a), Ok(b)) if a.data() == b.data() || (rounded.is_some() && near(a.data(), b.data())) => {}
                _ => report.differences.push(name.to_owned()),
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

/// The header of a safetensors file: 8 bytes of its length, then names, types, shapes and places of
/// all tensors.
fn header(file: &[u8]) -> Option<&[u8]> {
    let length = u64::from_le_bytes(*file.first_chunk()?);
    file.get(..8 + usize::try_from(length).ok()?)
}

fn tensors<'a>(file: &str, bytes: &'a [u8]) -> Result<SafeTensors<'a>> {
    SafeTensors::deserialize(bytes).map_err(|error| Error::data(format!("{file}: {}", safetensors_words(&error))))
}

fn values(bytes: &[u8]) -> impl Iterator<Item = f64> {
    bytes.as_chunks().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes)))
}

/// How far the weights of each layer have moved from `start` to `end`, those of the second matrices
/// of adapters, which begin at 0, apart. Where products round their operands, Adam moves a weight
/// without a gradient, such as an attention key's bias, as far as any other, in a direction that
/// rounding decides: the weights of a layer are not the same one by one.
fn changes(start: &SafeTensors<'_>, end: &SafeTensors<'_>) -> Vec<TensorFigures> {
    let mut layers = BTreeMap::<String, Vec<f64>>::new();
    for (name, tensor) in end.iter() {
        let adapter = if name.contains("lora_B") { ", lora_B" } else { "" };
        let moved = layers.entry(format!("{:?}{adapter}", Depth::of(name))).or_default();
        let from = start.tensor(name).map(|tensor| values(tensor.data()).collect::<Vec<_>>()).unwrap_or_default();
        moved.extend(values(tensor.data()).zip(from).map(|(to, from)| to - from));
    }
    layers.into_iter().map(|(name, moved)| TensorFigures::of(name, moved)).collect()
}

/// The moments of each kind as if they were the gradients of a step: they are means of gradients,
/// or of their squares, of which roots are taken.
fn moments(optimizer: &SafeTensors<'_>) -> Vec<StepFigures> {
    let mut kinds = BTreeMap::<&str, Vec<TensorFigures>>::new();
    let mut names = optimizer.names();
    names.sort_unstable();
    for name in names {
        let kind = name.rsplit('.').next().unwrap_or(name);
        let root = |value: f64| if kind.contains("_sq") { value.sqrt() } else { value };
        if let Ok(tensor) = optimizer.tensor(name) {
            let figures = TensorFigures::of(name.to_owned(), values(tensor.data()).map(root));
            kinds.entry(kind).or_default().push(figures);
        }
    }
    kinds.into_values().map(|gradients| StepFigures { gradients, ..StepFigures::default() }).collect()
}

/// How far the tensors of `a` and `b` are apart together, in parts of the norm of `a`.
fn apart(a: &SafeTensors<'_>, b: &SafeTensors<'_>) -> f64 {
    let both = a.iter().filter_map(|(name, a)| Some((a, b.tensor(name).ok()?)));
    let (apart, all) = both.fold((0.0, 0.0), |(apart, all), (a, b)| {
        (apart + distance(a.data(), b.data()).powi(2), all + norm(&mut values(a.data())).powi(2))
    });
    (apart / all).sqrt()
}

fn norm(values: &mut dyn Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}

fn distance(a: &[u8], b: &[u8]) -> f64 {
    norm(&mut values(a).zip(values(b)).map(|(a, b)| a - b))
}

/// Whether two f32 tensors are the same but for rounding. Adam's first moments of a weight without
/// a gradient are nothing but rounding, so what is smaller than any update counts as 0.
fn near(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && distance(a, b) <= Limits::F32.gradient * norm(&mut values(a)) + 1e-7
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use safetensors::Dtype;
    use safetensors::tensor::TensorView;

    use super::*;

    fn file(tensors: &[(&str, [f32; 4])]) -> Vec<u8> {
        let bytes = tensors.iter().map(|(_, values)| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>());
        let bytes = bytes.collect::<Vec<_>>();
        let views = tensors
            .iter()
            .zip(&bytes)
            .map(|((name, _), bytes)| (*name, TensorView::new(Dtype::F32, vec![4], bytes).unwrap()));
        safetensors::serialize(views, None).unwrap()
    }

    /// The first difference in bf16's limits.
    fn difference(a: Vec<StepFigures>, b: Vec<StepFigures>) -> Option<String> {
        figures::compare(&a, &b, &Limits::BF16).1.map(|difference| difference.what)
    }

    #[test]
    fn a_part_that_did_not_learn_or_has_lost_its_moments_is_found_in_bf16() {
        let weights = |weight: f32, adapter: f32| {
            file(&[("h.0.attn.weight", [1.0, -2.0, weight, 3.0]), ("h.0.attn.lora_B.weight", [adapter, 0.0, 0.0, 0.0])])
        };
        let [start, end, rounded, same_weight, same_adapter] = [
            weights(0.5, 0.0),
            weights(0.501, 0.002),
            weights(0.50101, 0.002),
            weights(0.5, 0.002),
            weights(0.501, 0.0),
        ];
        let of = |end: &[u8]| {
            let changes = changes(&tensors("start", &start).unwrap(), &tensors("end", end).unwrap());
            vec![StepFigures { changes, ..StepFigures::default() }]
        };
        assert_eq!(difference(of(&end), of(&rounded)), None);
        assert_eq!(difference(of(&end), of(&same_weight)).unwrap(), "weight change of Layer(0)");
        assert_eq!(difference(of(&end), of(&same_adapter)).unwrap(), "weight change of Layer(0), lora_B");

        let optimizer = |first: f32, second: f32| {
            let second = ("h.0.w.exp_avg_sq", [second, 1e-10, 4e-10, 1e-10]);
            file(&[("h.0.w.exp_avg", [first, 1e-3, -1e-3, 1e-3]), second])
        };
        let of = |bytes: &[u8]| moments(&tensors("optimizer", bytes).unwrap());
        let kept = of(&optimizer(2e-3, 9e-10));
        assert_eq!(difference(kept.clone(), of(&optimizer(2.02e-3, 9.1e-10))), None);
        assert_eq!(difference(kept.clone(), of(&optimizer(0.0, 9e-10))).unwrap(), "gradient of h.0.w.exp_avg");
        assert_eq!(difference(kept, of(&optimizer(2e-3, 0.0))).unwrap(), "gradient of h.0.w.exp_avg_sq");
    }
}
