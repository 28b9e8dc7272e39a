//! Captured steps, on wgpu and CUDA: forward pass, backward pass and update of a batch are recorded once for the batch's
//! shape, and from then on a step is that recording, replayed. Where a step has several micro-batches, these are recorded
//! without the update, which is a recording of its own; so they are where there are several ranks, which exchange the sums over
//! micro-batches between the two. The values that change from step to step (the batch, the learning rate,
//! the divisor of the loss, the seeds of dropout) lie in tensors that are written to before the replay; weights, moments and
//! sums over micro-batches are updated in place.
//!
//! Recording computes a few times. That leaves no trace in the run: updates are idle ([`InPlace::idle`]), and nothing is
//! added to sums ([`Adding::Nothing`]).
#![allow(unsafe_code)] // a replay is: see `Recorded::replay`

mod batch;
mod body;

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use burn::optim::GradientsParams;
use burn::tensor::{Device, Graph, Tensor, TensorData, capture};
use kiln_models::ops::in_place::{Written, overwrite, overwrite_ints};

use self::batch::{shapes, write};
use self::body::{Adding, Body, Output, Totals};
use super::observer::{Observer, Part};
use super::step::{self, Executor, MicroBatch, TrainState, Updated};
use crate::base::distributed::{World, sum_gradients};
use crate::base::error::Result;
use crate::base::random::seed_for;
use crate::engine::launches;
use crate::engine::launches::kernel_launches;
use crate::optim::Optimizer;
#[cfg(doc)]
use crate::optim::in_place::InPlace;
use crate::optim::in_place::updatable;
use crate::session::{Session, TensorTree, TrainingTask};
use crate::task::Reduction;

/// Shapes of batches that are captured; a recording keeps the memory that its step needs. Batches of others are computed
/// without one.
const MOST_SHAPES: usize = 8;

/// The captured steps of a run.
pub(super) struct CapturedSteps<T: TrainingTask> {
    body: Rc<Body<T>>,
    reduction: Reduction,
    device: Device,
    /// The ranks whose losses and gradients are summed.
    world: World,
    /// A step is one micro-batch.
    is_whole: bool,
    /// The one micro-batch of the step at hand, with the seed of its dropout.
    alone: Option<(T::DeviceBatch, u64)>,
    /// The step at hand has a micro-batch already.
    is_begun: bool,
    /// Whole steps, and micro-batches without the update: a run has either.
    steps: ByShape<T::DeviceBatch, Output>,
    micro_batches: ByShape<T::DeviceBatch, Written>,
    /// The update after micro-batches.
    update: Option<Recorded<Output>>,
    /// The results of writes, and of micro-batches computed without a recording, since the last step. They are held until the
    /// step ends because the device may still use them.
    written: Vec<Written>,
    /// The result of a whole step that was computed without a recording, held for the same reason.
    computed: Option<Output>,
}

/// A notice for the user, if there is one.
type Notice = Option<String>;

impl<T: TrainingTask> CapturedSteps<T> {
    /// For the model of `state`, whose tensors are written to from now on, in the run of `session` by the ranks of `world`; none
    /// for another optimizer than AdamW.
    pub(super) fn new(
        state: &mut TrainState<T::Model>,
        session: &Session<T>,
        world: &World,
        drops: bool,
    ) -> Option<Self> {
        let (plan, device) = (session.plan(), &session.device);
        let update = state.optimizer.in_place(device)?;
        state.model = updatable(state.model.clone());
        let per_term = Tensor::ones([1], device);
        let body = Body {
            task: session.task.clone(),
            model: state.model.clone(),
            compute: plan.engine.compute(),
            device: device.clone().autodiff(),
            drops,
            update,
            clip: plan.optimizer.max_grad_norm,
            totals: Totals::new(&per_term),
            per_term,
            seeds: Tensor::zeros([2], device),
        };
        Some(Self {
            body: Rc::new(body),
            reduction: plan.optimizer.loss.reduction,
            device: device.clone(),
            world: world.clone(),
            is_whole: plan.batch.micro_batches() == 1,
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
    fn step(&mut self, batch: T::DeviceBatch, seed: u64, optimizer: &mut Optimizer, totals: step::Totals) -> Updated {
        self.forget();
        let body = &self.body;
        let idle = || body.update.idle();
        let recorded = Rc::clone(body);
        let compute = |batch: T::DeviceBatch| move || recorded.step(&batch);
        let (place, notice) = self.steps.find(&batch, &self.device, idle, compute);
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

    /// Puts the sums over the ranks in the place of this rank's. One that had no micro-batch with labels adds nothing.
    fn exchange(&mut self, has_any: bool) -> Result<()> {
        if !has_any {
            self.forget();
        }
        let Body { model, totals, .. } = &*self.body;
        let (grads, loss) = match has_any {
            true => {
                let (grads, loss) = totals.shared(model);
                (grads, Some(loss))
            }
            false => (GradientsParams::new(), None),
        };
        let (grads, loss) = sum_gradients(&self.world, model, grads, loss, &self.device)?;
        self.written.extend(totals.replace(model, grads, loss));
        Ok(())
    }

    /// The update after several micro-batches.
    fn update_by_totals(&mut self, optimizer: &mut Optimizer, totals: step::Totals) -> Updated {
        if self.update.is_none() {
            self.written.push(self.body.update.idle());
            let body = Rc::clone(&self.body);
            self.update = Some(Recorded::new(&self.device, move || body.update_by_totals()));
            optimizer.adopt(&self.body.update);
        }
        let divisor = self.reduction.divisor(totals.labels, totals.micro_batches);
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
impl<T: TrainingTask> Executor<T> for CapturedSteps<T> {
    fn device(&self) -> &Device {
        &self.device
    }

    fn micro_batch(
        &mut self,
        _state: &mut TrainState<T::Model>,
        micro: MicroBatch<T::DeviceBatch>,
        observer: &mut dyn Observer,
    ) -> Result<Option<String>> {
        let MicroBatch { batch, seed, labels, .. } = micro;
        if labels == 0.0 {
            return Ok(None); // it adds nothing, and a step of nothing else is refused
        }
        if self.is_whole {
            self.alone = Some((batch, seed));
            return Ok(None);
        }
        let weight = self.reduction.weight(labels);
        let adding = if self.is_begun { Adding::Next(weight) } else { Adding::First(weight) };
        if !std::mem::replace(&mut self.is_begun, true) {
            self.forget();
        }
        let body = &self.body;
        let idle = || body.totals.set(Adding::Nothing);
        let recorded = Rc::clone(body);
        let compute = |batch: T::DeviceBatch| move || recorded.micro_batch(&batch);
        let (place, notice) = self.micro_batches.find(&batch, &self.device, idle, compute);
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
        state: &mut TrainState<T::Model>,
        totals: step::Totals,
        _sees: &mut dyn FnMut(&T::Model, &GradientsParams),
        observer: &mut dyn Observer,
    ) -> Result<Updated> {
        let has_any = std::mem::replace(&mut self.is_begun, false);
        if let Some((batch, seed)) = self.alone.take() {
            return Ok(self.step(batch, seed, &mut state.optimizer, totals));
        }
        let mut communicated = Duration::ZERO;
        if self.world.is_shared() {
            let began = Instant::now();
            self.exchange(has_any)?;
            communicated = began.elapsed();
            observer.part(Part::Communicate);
        }
        Ok(Updated { communicated, ..self.update_by_totals(&mut state.optimizer, totals) })
    }

    fn recordings(&self) -> usize {
        self.steps.recordings.len() + self.micro_batches.recordings.len() + usize::from(self.update.is_some())
    }
}

impl Output {
    /// Copies: the next replay writes where these lie.
    fn copied(&self, notice: Notice) -> Updated {
        let (loss, grad_norm) = (self.loss.clone() * 1.0, self.grad_norm.clone() * 1.0);
        Updated { loss, grad_norm, verdict: None, outlier: None, notice, communicated: Duration::ZERO }
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
    /// The tensors that the recording reads or writes and does not own must be alive. This thread alone computes with them, on
    /// its one stream, so writes before the replay and reads after it are in order.
    unsafe fn replay(&mut self) -> &T {
        launches::add(self.launches);
        // SAFETY: the caller's.
        unsafe { self.graph.replay() }
    }
}

/// The recordings of batches, by their shape.
struct ByShape<B, T> {
    recordings: Vec<(B, Recorded<T>)>,
    /// It has been said that a shape is not captured.
    is_full: bool,
}

impl<B, T> Default for ByShape<B, T> {
    fn default() -> Self {
        Self { recordings: Vec::new(), is_full: false }
    }
}

impl<B: TensorTree, T: 'static> ByShape<B, T> {
    /// The place of the recording for batches like `batch`, made if there is none and room for it; `idle` makes what
    /// `compute` computes leave no trace.
    fn find<C: FnMut() -> T + 'static>(
        &mut self,
        batch: &B,
        device: &Device,
        idle: impl FnOnce() -> Written,
        compute: impl FnOnce(B) -> C,
    ) -> (Option<usize>, Notice) {
        let own = shapes(batch);
        let dims =
            own.first().into_iter().flat_map(|(_, dims)| dims).map(usize::to_string).collect::<Vec<_>>().join(" x ");
        let place = self.recordings.iter().position(|(known, _)| shapes(known) == own);
        if place.is_some() {
            return (place, None);
        }
        if self.recordings.len() == MOST_SHAPES {
            let notice = (!std::mem::replace(&mut self.is_full, true)).then(|| {
                format!(
                    "the step for batches of {dims} and of shapes after it is not captured: {MOST_SHAPES} shapes \
                     are (data.padding = \"buckets\" has few)"
                )
            });
            return (None, notice);
        }
        let started = Instant::now();
        let _written = idle();
        let recorded = Recorded::new(device, compute(batch.clone()));
        let seconds = started.elapsed().as_secs_f64();
        let how = match recorded.graph.is_hardware() {
            true => "captured",
            false => "could not be captured, so it is computed anew every time",
        };
        self.recordings.push((batch.clone(), recorded));
        let notice = format!("the step for batches of {dims} is {how} ({seconds:.1} s)");
        (Some(self.recordings.len() - 1), Some(notice))
    }

    /// The computation of the recording at `place` for `batch`.
    fn replay(&mut self, place: usize, batch: B, written: &mut Vec<Written>) -> &T {
        let (own, recorded) = &mut self.recordings[place];
        write(own, batch, written);
        // SAFETY: everything that the recording reads or writes and that is not its own lives in the body that it has a share
        // of, and in `own`, which lives as long as it does.
        unsafe { recorded.replay() }
    }
}
