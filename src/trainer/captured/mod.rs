//! Captured steps, on wgpu and CUDA: forward pass, backward pass and update of a batch are recorded once for the batch's
//! shape, and from then on a step is that recording, replayed. Where a step has several micro-batches, these are recorded
//! without the update, which is a recording of its own. What changes from step to step (the batch, the learning rate, the
//! divisor of the loss, the seeds of dropout) lies in tensors that are written to before the replay; weights, moments and sums
//! over micro-batches are updated where they lie.
//!
//! Recording computes a few times. That leaves no trace in the run: updates are idle ([`InPlace::idle`]), and nothing is
//! added to sums ([`Adding::Nothing`]).
#![allow(unsafe_code)] // a replay is: see `Recorded::replay`

mod batch;
mod body;

use std::cell::Cell;
use std::rc::Rc;

use burn::optim::GradientsParams;
use burn::tensor::{Device, Graph, Tensor, TensorData, capture};
use kiln_models::Model;
use kiln_models::ops::in_place::{Written, overwrite, overwrite_ints};

use self::batch::{same_shape, write};
use self::body::{Adding, Body, Output, Totals};
use super::observer::{Observer, Part};
use super::step::{self, Executor, MicroBatch, TrainState, Updated};
use crate::base::error::{Error, Result};
use crate::base::random::seed_for;
use crate::engine::launches;
use crate::engine::launches::kernel_launches;
use crate::optim::Optimizer;
#[cfg(doc)]
use crate::optim::in_place::InPlace;
use crate::session::Session;
use crate::task::DeviceBatch;

/// Shapes of batches that are captured; a recording keeps the memory that its step needs. Batches of others are computed
/// without one.
const MOST_SHAPES: usize = 8;

/// The captured steps of a run.
pub(super) struct CapturedSteps {
    body: Rc<Body>,
    device: Device,
    /// Micro-batches of a step.
    accumulation: usize,
    /// The one micro-batch of the step at hand, with the seed of its dropout.
    alone: Option<(DeviceBatch, u64)>,
    /// The step at hand has a micro-batch already.
    is_begun: bool,
    /// Whole steps, and micro-batches without the update: a run has either.
    steps: ByShape<Output>,
    micro_batches: ByShape<Written>,
    /// The update after micro-batches.
    update: Option<Recorded<Output>>,
    /// What was written to, or computed without a recording, since the last step.
    written: Vec<Written>,
    /// As that, of a whole step.
    computed: Option<Output>,
}

/// What is worth telling, if anything is.
type Notice = Option<String>;

impl CapturedSteps {
    /// For the model of `state`, whose tensors are written to from now on, in the run of `session`; none for another optimizer
    /// than AdamW.
    pub(super) fn new(state: &TrainState, session: &Session) -> Option<Self> {
        let (plan, device) = (&session.plan, &session.device);
        let per_term = Tensor::ones([1], device);
        let body = Body {
            model: state.model.clone(),
            update: state.optimizer.in_place(device)?,
            options: plan.optimizer.loss.clone(),
            clip: step::clip(plan),
            totals: Totals::new(&per_term),
            per_term,
            seeds: Tensor::zeros([2], device),
        };
        Some(Self {
            body: Rc::new(body),
            device: device.clone(),
            accumulation: plan.batch.accumulation,
            alone: None,
            is_begun: false,
            steps: ByShape::default(),
            micro_batches: ByShape::default(),
            update: None,
            written: Vec::new(),
            computed: None,
        })
    }

    /// The step of one micro-batch, whose dropout is drawn from `seed`.
    fn step(&mut self, batch: DeviceBatch, seed: u64, optimizer: &mut Optimizer, totals: step::Totals) -> Updated {
        self.forget();
        let body = &self.body;
        let idle = || body.update.idle();
        let compute = |body: Rc<Body>, batch: DeviceBatch| move || body.step(&batch);
        let (place, notice) = self.steps.find(&batch, body, &self.device, idle, compute);
        optimizer.adopt(&self.body.update);
        self.tell(seed);
        // The mean of the one micro-batch is that of the step, and it was not weighted before.
        self.tell_update(optimizer, totals.lr, totals.labels);
        let Self { body, steps, written, computed, .. } = self;
        let output = match place {
            Some(place) => steps.replay(place, batch, written),
            None => computed.insert(body.step(&batch)),
        };
        output.copied(notice)
    }

    /// The update after several micro-batches.
    fn update_by_totals(&mut self, optimizer: &mut Optimizer, totals: step::Totals) -> Updated {
        if self.update.is_none() {
            self.written.push(self.body.update.idle());
            let body = Rc::clone(&self.body);
            self.update = Some(Recorded::new(&self.device, move || body.update_by_totals()));
            optimizer.adopt(&self.body.update);
        }
        let divisor = self.body.options.reduction.divisor(totals.labels, totals.micro_batches);
        self.tell_update(optimizer, totals.lr, divisor);
        let update = self.update.as_mut().expect("it is recorded above");
        // SAFETY: what the recording reads or writes and that is not its own lives in `body`; see `Recorded::replay`.
        unsafe { update.replay() }.copied(None)
    }

    /// A new step begins: what the last one wrote has been computed.
    fn forget(&mut self) {
        self.written.clear();
        self.computed = None;
    }

    /// Tells the pass after this what its dropout is drawn from.
    fn tell(&mut self, seed: u64) {
        let halves = [0, 1].map(|part| (seed_for(seed, "captured", 0, part) >> 34) as i32);
        let seeds = Tensor::from_data(TensorData::new(halves.to_vec(), [2]), &self.device);
        self.written.push(overwrite_ints(&self.body.seeds, seeds));
    }

    /// Counts an update and tells it its numbers.
    fn tell_update(&mut self, optimizer: &mut Optimizer, lr: f64, divisor: f64) {
        self.written.push(optimizer.begin_in_place(&self.body.update, lr));
        let per_term = Tensor::from_floats([(1.0 / divisor) as f32], &self.device);
        self.written.push(overwrite(&self.body.per_term, per_term));
    }
}

/// The one micro-batch of a step is kept until the update, so that both are one replay.
impl Executor for CapturedSteps {
    fn device(&self) -> &Device {
        &self.device
    }

    fn micro_batch(
        &mut self,
        _state: &mut TrainState,
        micro: MicroBatch,
        observer: &mut dyn Observer,
    ) -> Result<Option<String>> {
        let MicroBatch { batch, seed, labels } = micro;
        if batch.targets.is_none() {
            return Err(Error::data("this batch has no labels, so there is nothing to learn from it"));
        }
        if self.accumulation == 1 {
            self.alone = Some((batch, seed));
            return Ok(None);
        }
        let weight = self.body.options.reduction.weight(labels);
        let adding = if self.is_begun { Adding::Next(weight) } else { Adding::First(weight) };
        if !std::mem::replace(&mut self.is_begun, true) {
            self.forget();
        }
        let body = &self.body;
        let idle = || body.totals.set(Adding::Nothing);
        let compute = |body: Rc<Body>, batch: DeviceBatch| move || body.micro_batch(&batch);
        let (place, notice) = self.micro_batches.find(&batch, body, &self.device, idle, compute);
        self.written.push(self.body.totals.set(adding));
        self.tell(seed);
        match place {
            Some(place) => _ = self.micro_batches.replay(place, batch, &mut self.written),
            None => self.written.push(self.body.micro_batch(&batch)),
        }
        observer.part(Part::Backward);
        Ok(notice)
    }

    fn update(
        &mut self,
        state: &mut TrainState,
        totals: step::Totals,
        _sees: &mut dyn FnMut(&Model, &GradientsParams),
    ) -> Result<Updated> {
        self.is_begun = false;
        Ok(match self.alone.take() {
            Some((batch, seed)) => self.step(batch, seed, &mut state.optimizer, totals),
            None => self.update_by_totals(&mut state.optimizer, totals),
        })
    }

    fn recordings(&self) -> usize {
        self.steps.recordings.len() + self.micro_batches.recordings.len() + usize::from(self.update.is_some())
    }
}

impl Output {
    /// Copies: the next replay writes where these lie.
    fn copied(&self, notice: Notice) -> Updated {
        Updated { loss: self.loss.clone() * 1.0, grad_norm: self.grad_norm.clone() * 1.0, verdict: None, notice }
    }
}

/// Something that was computed once and can be replayed.
struct Recorded<T> {
    graph: Graph<T, Box<dyn FnMut() -> T>>,
    /// Kernels of a replay, which nobody but the device launches.
    launches: u64,
}

impl<T: 'static> Recorded<T> {
    fn new(device: &Device, mut compute: impl FnMut() -> T + 'static) -> Self {
        // The last run is the one that is recorded; when it begins and when it has been recorded, nothing waits to be launched.
        let before = Rc::new(Cell::new(0));
        let begun = Rc::clone(&before);
        let compute = move || {
            begun.set(kernel_launches());
            compute()
        };
        let graph = capture(device, Box::new(compute) as Box<dyn FnMut() -> T>);
        let launches = if graph.is_hardware() { kernel_launches() - before.get() } else { 0 };
        Self { graph, launches }
    }

    /// Computes it anew.
    ///
    /// # Safety
    /// What the recording reads or writes and that is not its own must live. This thread alone computes with it, on the one
    /// stream that it has, so writes before the replay and reads after it are in order.
    unsafe fn replay(&mut self) -> &T {
        launches::add(self.launches);
        // SAFETY: the caller's.
        unsafe { self.graph.replay() }
    }
}

/// What was recorded for batches, by their shape.
struct ByShape<T> {
    recordings: Vec<(DeviceBatch, Recorded<T>)>,
    /// It has been said that a shape is not captured.
    is_full: bool,
}

impl<T> Default for ByShape<T> {
    fn default() -> Self {
        Self { recordings: Vec::new(), is_full: false }
    }
}

impl<T: 'static> ByShape<T> {
    /// The place of the recording for batches like `batch`, made if there is none and room for it; `idle` makes what
    /// `compute` computes leave no trace.
    fn find<C: FnMut() -> T + 'static>(
        &mut self,
        batch: &DeviceBatch,
        body: &Rc<Body>,
        device: &Device,
        idle: impl FnOnce() -> Written,
        compute: impl FnOnce(Rc<Body>, DeviceBatch) -> C,
    ) -> (Option<usize>, Notice) {
        let place = self.recordings.iter().position(|(known, _)| same_shape(known, batch));
        let [rows, seq] = batch.input.input_ids.dims();
        if place.is_some() {
            return (place, None);
        }
        if self.recordings.len() == MOST_SHAPES {
            let notice = (!std::mem::replace(&mut self.is_full, true)).then(|| {
                format!(
                    "the step for batches of {rows} x {seq} and of shapes after it is not captured: {MOST_SHAPES} shapes \
                     are (data.padding = \"buckets\" has few)"
                )
            });
            return (None, notice);
        }
        let started = std::time::Instant::now();
        let _written = idle();
        let recorded = Recorded::new(device, compute(Rc::clone(body), batch.clone()));
        let seconds = started.elapsed().as_secs_f64();
        let how = match recorded.graph.is_hardware() {
            true => "captured",
            false => "could not be captured, so it is computed anew every time",
        };
        self.recordings.push((batch.clone(), recorded));
        let notice = format!("the step for batches of {rows} x {seq} is {how} ({seconds:.1} s)");
        (Some(self.recordings.len() - 1), Some(notice))
    }

    /// The computation of the recording at `place` for `batch`.
    fn replay(&mut self, place: usize, batch: DeviceBatch, written: &mut Vec<Written>) -> &T {
        let (own, recorded) = &mut self.recordings[place];
        write(own, batch, written);
        // SAFETY: everything that the recording reads or writes and that is not its own lives in the body that it has a share
        // of, and in `own`, which lives as long as it does.
        unsafe { recorded.replay() }
    }
}
