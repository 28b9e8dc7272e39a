//! A probe: the first steps of a run, made by its own training loop in a temporary folder and
//! thrown away. Its figures are compared with those of another mode, its times decide what is
//! faster. The run itself, its folder and its state are not touched.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::engine::operators;
use crate::engine::settings::{DeviceKind, Precision};
use crate::session::Session;
use crate::task::TrainingTask;
use crate::trainer::warmup::rehearsal;
use crate::trainer::{Callback, Progress, Purpose, StopAfter, Trainer};
use burn::optim::GradientsParams;
use kiln_core::dataset::Sampler;
use kiln_core::dataset::subset::Subset;
use kiln_core::error::{Error, Result};
use kiln_core::metrics::Record;
use kiln_core::process::scratch;
use kiln_core::stats::median;
use kiln_models::Ops;
use kiln_models::weights::StateDict;
use serde::{Deserialize, Serialize};

use super::figures::{StepFigures, Weights, gradients};

/// The kind of measurement that a probe makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Loss, gradients and weight changes of every step, without dropout where each mode draws
    /// masks of its own. Reading them takes time, so nothing is timed, and no step is captured.
    Figures,
    /// Loss and weight changes of every step, as under `Figures`, where the steps are captured if
    /// the run's are. The gradients are left out: captured steps keep them to themselves.
    Captured,
    /// Loss and time of every step, as the run makes it, but all of the first one's examples: a
    /// shape that is new takes longer.
    Times,
}

/// The measurements of a probe.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// The type in which the model computed.
    pub precision: Precision,
    /// Whether its products of f32 may have been in TF32.
    #[serde(default)]
    pub in_tf32: bool,
    /// The kind of the device.
    pub device: DeviceKind,
    /// The fused operators that computed, by name.
    pub fused: Vec<String>,
    /// Whether the run's steps are captured.
    pub captures: bool,
    /// Every step.
    pub steps: Vec<StepFigures>,
    /// Wall-clock time of every step in milliseconds; empty unless they were looked at.
    pub step_ms: Vec<f64>,
}

impl Probe {
    /// The median time of a step in milliseconds, without the first, which starts everything up.
    pub fn median_ms(&self) -> f64 {
        median(self.step_ms.get(1..).unwrap_or_default())
    }

    /// The time of the first step minus the median time of a step, in seconds; 0 where that is
    /// negative.
    pub fn start_seconds(&self) -> f64 {
        self.step_ms.first().map_or(0.0, |first| (first - self.median_ms()).max(0.0) / 1e3)
    }
}

/// Makes the first `steps` steps of `session`, computing in the form `ops`.
///
/// # Errors
/// Any error of the first `steps` steps of the run.
pub fn run<T: TrainingTask>(session: &Session<T>, ops: Ops, steps: usize, look: Look) -> Result<Probe> {
    let folder = scratch()?;
    let session = rehearsal(session, ops, folder.path())?;
    let session = if look == Look::Times { repeat_first_step(&session)? } else { session };
    let plan = session.plan();
    let (precision, device) = (plan.engine.precision.precision, plan.engine.device.kind);
    let in_tf32 = plan.engine.device.has_tf32();
    let captures = plan.captures().is_ok();
    let seen = Arc::new(Mutex::new(Seen::default()));
    let trainer = Trainer::build(session)?.with_purpose(Purpose::Rehearsal);
    let drops = look == Look::Times || operators::drop_alike(device);
    let trainer = if drops { trainer } else { trainer.without_dropout() };
    let weights = if look == Look::Times { None } else { Some(Weights::read(trainer.model())?) };
    let recorder = Recorder { look, weights, seen: seen.clone() };
    trainer.with_callback(recorder).with_callback(StopAfter(steps as u64)).train()?;
    let mut seen = lock(&seen);
    match seen.failed.take() {
        Some(error) => Err(error),
        None => {
            let fused = ops.fused_operators().into_iter().map(|operator| operator.name().to_owned()).collect();
            Ok(Probe { precision, in_tf32, device, fused, captures, ..std::mem::take(&mut seen.probe) })
        }
    }
}

/// The `session` of which every step has the examples of the first.
fn repeat_first_step<T: TrainingTask>(session: &Session<T>) -> Result<Session<T>> {
    let plan = session.plan();
    let mut walk = plan.data.drawn(&plan.batch).order.walk();
    let places = 0..plan.batch.global.min(session.train().len()) as u64;
    let examples = places.map(|place| walk.index(&**session.train(), 0, place)).collect();
    let first = Subset::select(session.train().clone(), examples);
    let in_order = session.derive(|arguments, _| {
        (arguments.sampler, arguments.dataloader_drop_last) = (Sampler::Sequential, false);
        Ok(())
    })?;
    in_order.with_examples(Arc::new(first), None)
}

#[derive(Default)]
struct Seen {
    probe: Probe,
    failed: Option<Error>,
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The step under way; the loop makes its entry before it changes any.
fn last_step(seen: &mut Seen) -> &mut StepFigures {
    if seen.probe.steps.is_empty() {
        seen.probe.steps.push(StepFigures::default());
    }
    let last = seen.probe.steps.len() - 1;
    &mut seen.probe.steps[last]
}

struct Recorder {
    look: Look,
    weights: Option<Weights>,
    seen: Arc<Mutex<Seen>>,
}

impl<M: StateDict> Callback<M> for Recorder {
    fn on_step_begin(&mut self, _progress: &Progress) {
        lock(&self.seen).probe.steps.push(StepFigures::default());
    }

    fn sees_gradients(&self) -> bool {
        self.look == Look::Figures
    }

    fn on_pre_optimizer_step(&mut self, _progress: &Progress, model: &M, grads: &GradientsParams) {
        if self.look == Look::Figures {
            let mut seen = lock(&self.seen);
            match gradients(model, grads) {
                Ok(gradients) => last_step(&mut seen).gradients = gradients,
                Err(error) => seen.failed = Some(error),
            }
        }
    }

    fn on_optimizer_step(&mut self, _progress: &Progress, model: &M) {
        let Some(weights) = &mut self.weights else { return };
        let mut seen = lock(&self.seen);
        match weights.advance(model) {
            Ok(changes) => last_step(&mut seen).changes = changes,
            Err(error) => seen.failed = Some(error),
        }
    }

    fn on_log(&mut self, _progress: &Progress, row: &Record) {
        let mut seen = lock(&self.seen);
        let (loss, step_ms) = (row.get("loss").unwrap_or(f64::NAN), row.get("step_ms").unwrap_or(f64::NAN));
        last_step(&mut seen).loss = loss;
        if self.look == Look::Times {
            seen.probe.step_ms.push(step_ms);
        }
    }
}
