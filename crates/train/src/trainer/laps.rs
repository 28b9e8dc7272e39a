//! Where the time of every optimizer step goes, by part: `steps.jsonl` of the run folder, written
//! when `kiln train --step-times` or `kiln compare` asks for it.
//!
//! Convention: wall-clock time of the thread that trains. On the CPU every operation has ended when
//! its call returns, so the parts are what they say. A device that works asynchronously returns at
//! once from `forward`, `backward` and `update` and is waited for where a value is read, so there
//! the time appears as `sync`: no synchronisation is added, since it would slow down what it
//! measures. A step is `synced` when nothing of it is pending at its end, so windows of such a
//! device end there.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kiln_core::error::{Error, Result};
use serde::{Deserialize, Serialize};

use super::callback::Progress;
use super::observer::{Observer, Part, Spent};
use super::shapes::Shape;
use crate::engine::device::DeviceFacts;
use crate::engine::energy::EnergyMeter;
use crate::engine::launches;
use crate::engine::launches::NewKernels;
use crate::run_folder::STEP_TIMES;

/// A wait that is longer than a driver takes to answer was for others' turns.
const HELD_UP: Duration = Duration::from_millis(1);

/// One optimizer step: a line of `steps.jsonl`, and a step in the answer of an arm of a
/// benchmark, where another program may leave out whatever has a default. `step_ms` is the training
/// time of the step: all parts but evaluation and saving.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepTimes {
    /// The step, from 1.
    pub step: u64,
    /// Examples of this step.
    pub samples: u64,
    /// Attended tokens of this step.
    pub tokens: u64,
    /// Milliseconds from the start of the process's training to the end of this step.
    #[serde(default)]
    pub since_start_ms: f64,
    /// Milliseconds of training, and of its parts.
    pub step_ms: f64,
    /// Waiting for batches and moving them to the device.
    pub data_ms: f64,
    /// The model and its loss.
    pub forward_ms: f64,
    /// Gradients.
    pub backward_ms: f64,
    /// Exchanges with the other ranks, and waiting for them.
    #[serde(default)]
    pub communicate_ms: f64,
    /// Gradient norm, clipping and optimizer.
    pub update_ms: f64,
    /// Reading values back and logging.
    pub sync_ms: f64,
    /// Evaluation, not part of `step_ms`.
    #[serde(default)]
    pub evaluation_ms: f64,
    /// Saving, not part of `step_ms`.
    #[serde(default)]
    pub save_ms: f64,
    /// Reads from the device, without those of evaluation and saving.
    #[serde(default)]
    pub device_reads: u64,
    /// Kernels launched, without those of evaluation and saving. A device may be behind, so that
    /// what a step asked for is launched in the next. None in files from before they were counted.
    #[serde(default)]
    pub kernel_launches: Option<u64>,
    /// A batch of the step had a shape that had not been seen since the file was begun.
    #[serde(default)]
    pub new_shape: bool,
    /// Kernels that had not been launched since the file was begun: compiled, read from the kernel
    /// cache or tried by a tuning.
    #[serde(default)]
    pub new_kernels: u64,
    /// The run was held up before the step, for others' turns: caches and threads are cold.
    #[serde(default)]
    pub held_up: bool,
    /// The device had finished all work of the step when the step ended.
    pub synced: bool,
    /// Joules of the device in the step, evaluation and saving included, where they can be read: of
    /// the processors and their memory, or of a GPU, which may still compute the steps before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joules: Option<f64>,
    /// The loss of the step, where it was read back; `steps.jsonl` does not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
}

/// Milliseconds of a step by part, as figures show them: each the mean or the median over many
/// steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Parts {
    /// Waiting for batches.
    pub data: f64,
    /// The model and its loss.
    pub forward: f64,
    /// Gradients.
    pub backward: f64,
    /// Exchanges with the other ranks; 0 for one alone.
    pub communicate: f64,
    /// Gradient norm, clipping, optimizer.
    pub update: f64,
    /// Reading values back and logging.
    pub sync: f64,
    /// Evaluations; no training time.
    pub evaluation: f64,
    /// Checkpoints; no training time.
    pub save: f64,
}

impl Parts {
    /// Every part of `all`, reduced to one number by `of`.
    pub fn over(all: &[Self], of: fn(&[f64]) -> f64) -> Self {
        let part = |pick: fn(&Self) -> f64| of(&all.iter().map(pick).collect::<Vec<_>>());
        Self {
            data: part(|it| it.data),
            forward: part(|it| it.forward),
            backward: part(|it| it.backward),
            communicate: part(|it| it.communicate),
            update: part(|it| it.update),
            sync: part(|it| it.sync),
            evaluation: part(|it| it.evaluation),
            save: part(|it| it.save),
        }
    }

    /// Name and milliseconds of every part.
    pub fn named(&self) -> [(&'static str, f64); 8] {
        [
            ("data", self.data),
            ("forward", self.forward),
            ("backward", self.backward),
            ("communicate", self.communicate),
            ("update", self.update),
            ("sync", self.sync),
            ("evaluation", self.evaluation),
            ("save", self.save),
        ]
    }
}

impl StepTimes {
    /// The time of this step by part.
    pub fn parts(&self) -> Parts {
        Parts {
            data: self.data_ms,
            forward: self.forward_ms,
            backward: self.backward_ms,
            communicate: self.communicate_ms,
            update: self.update_ms,
            sync: self.sync_ms,
            evaluation: self.evaluation_ms,
            save: self.save_ms,
        }
    }
}

/// Writes what steps have taken to `steps.jsonl`, from the moment on when the loop
/// [begins](Observer::begin).
#[derive(Debug, Default)]
pub struct Laps {
    open: Option<Open>,
    energy: Option<EnergyMeter>,
}

#[derive(Debug)]
struct Open {
    path: PathBuf,
    file: BufWriter<File>,
    start: Instant,
    is_synchronous: bool,
    shapes: BTreeSet<Shape>,
    kernels: NewKernels,
    before: (u64, u64),
    step: StepTimes,
}

impl Laps {
    /// The times of a run on `device`, whose energy is counted where it can be.
    pub fn on(device: &DeviceFacts) -> Self {
        Self { open: None, energy: EnergyMeter::open(device).ok() }
    }

    /// The run was held up for `waited` before the step, which is no time of it.
    pub fn hold_up(&mut self, waited: Duration) {
        if let Some(open) = &mut self.open {
            open.start += waited;
            open.step.held_up = waited >= HELD_UP;
            // The time of others meanwhile is no part of the step.
            self.energy.as_mut().and_then(EnergyMeter::take);
        }
    }
}

impl Observer for Laps {
    fn begin(&mut self, folder: &Path, progress: &Progress, is_synchronous: bool) -> Result<()> {
        let path = folder.join(STEP_TIMES);
        let file = File::create(&path).map_err(|error| Error::io(format!("create {}", path.display()), &error))?;
        launches::watch();
        self.open = Some(Open {
            path,
            file: BufWriter::new(file),
            start: Instant::now(),
            is_synchronous,
            shapes: BTreeSet::new(),
            kernels: NewKernels::start(),
            before: (progress.samples, progress.tokens),
            step: StepTimes::default(),
        });
        // What was before the loop is no part of its first step.
        self.energy.as_mut().and_then(EnergyMeter::take);
        Ok(())
    }

    fn batch(&mut self, shape: Shape) {
        if let Some(open) = &mut self.open {
            open.step.new_shape |= open.shapes.insert(shape);
        }
    }

    fn end_step(&mut self, progress: &Progress, spent: &Spent, read: bool) -> Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        let mut step = std::mem::take(&mut open.step);
        step.step = progress.step;
        step.new_kernels = open.kernels.count();
        (step.samples, step.tokens) = (progress.samples - open.before.0, progress.tokens - open.before.1);
        open.before = (progress.samples, progress.tokens);
        step.since_start_ms = milliseconds(open.start.elapsed());
        let ms = |part| milliseconds(spent.time(part));
        step.data_ms = ms(Part::Data);
        step.forward_ms = ms(Part::Forward);
        step.backward_ms = ms(Part::Backward);
        step.communicate_ms = ms(Part::Communicate);
        step.update_ms = ms(Part::Update);
        step.sync_ms = ms(Part::Sync);
        step.evaluation_ms = ms(Part::Evaluation);
        step.save_ms = ms(Part::Save);
        (step.device_reads, step.kernel_launches) = (spent.device_reads, Some(spent.kernel_launches));
        let computing = step.forward_ms + step.backward_ms + step.update_ms;
        step.step_ms = step.data_ms + computing + step.communicate_ms + step.sync_ms;
        step.synced = open.is_synchronous || read;
        step.joules = self.energy.as_mut().and_then(EnergyMeter::take);
        let line = serde_json::to_string(&step).map_err(|error| Error::data(format!("{STEP_TIMES}: {error}")))?;
        let written = writeln!(open.file, "{line}").and_then(|()| if read { open.file.flush() } else { Ok(()) });
        written.map_err(|error| Error::io(format!("write {}", open.path.display()), &error))
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::trainer::spans::Spans;

    #[test]
    fn parts_add_up_and_new_shapes_are_seen_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut progress = Progress { step: 0, total_steps: 2, samples: 10, tokens: 100, epoch: 0.0 };
        let (mut laps, spans) = (Laps::default(), Spans::default());
        laps.end_step(&progress, &spans.end_step(), false).unwrap();
        laps.begin(folder.path(), &progress, true).unwrap();
        for step in 1..=2 {
            laps.batch(Shape { rows: 4, seq_len: 8, padded: false });
            let training = [Part::Data, Part::Forward, Part::Backward, Part::Communicate, Part::Update];
            for part in training.into_iter().chain([Part::Evaluation, Part::Save]) {
                let _time = spans.open(part);
                std::thread::sleep(Duration::from_millis(2));
            }
            progress = Progress { step, samples: 10 + 4 * step, tokens: 100 + 32 * step, ..progress };
            laps.end_step(&progress, &spans.end_step(), step == 2).unwrap();
        }
        let text = std::fs::read_to_string(folder.path().join(STEP_TIMES)).unwrap();
        let steps = text.lines().map(|line| serde_json::from_str::<StepTimes>(line).unwrap()).collect::<Vec<_>>();
        assert_eq!(steps.len(), 2);
        for (index, step) in steps.iter().enumerate() {
            assert_eq!((step.step, step.samples, step.tokens), (index as u64 + 1, 4, 32));
            let parts = step.parts().named()[..6].iter().map(|(_, ms)| ms).sum::<f64>();
            assert!((parts - step.step_ms).abs() < 1e-9 && step.step_ms >= 10.0 && step.evaluation_ms >= 2.0);
            assert!(step.communicate_ms >= 2.0);
            assert_eq!(step.new_shape, index == 0);
            assert!(step.synced, "on a synchronous device every step is");
        }
    }
}
