//! Captured steps, on wgpu and CUDA: forward pass, backward pass and update of a batch are recorded
//! once for the batch's shape, and from then on a step is that recording, replayed. Where a step
//! has several micro-batches, these are recorded without the update, which is a recording of its
//! own; so they are where there are several ranks, which exchange the sums over micro-batches
//! between the two. The values that change from step to step (the batch, the learning rate, the
//! divisor of the loss, the seeds of dropout) lie in tensors that are written to before the replay;
//! weights, moments and sums over micro-batches are updated in place.
//!
//! Recording computes a few times. That leaves no trace in the run: updates are idle
//! ([`InPlace::idle`]), and nothing is added to sums ([`Summing::Leave`]).
//!
//! A recording launches the same kernels every time, so it serves the batches for which the loss
//! computes the same: those whose tensors have the same shapes and which agree in
//! [`TensorTree::host_values`]. Micro-batches may give gradients of different parameters. The
//! update is of those that have one in the step, and is recorded for each such set.
//!
//! In f16 the scale of the loss is one of these tensors, and the update finds out on the device
//! whether it is skipped. Where steps may be outliers, loss and gradient norm are read between the
//! micro-batches and the update, which is then replayed or not.
#![allow(unsafe_code)] // a replay is: see `Recorded::replay`

mod batch;
mod body;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use burn::optim::GradientsParams;
use burn::tensor::{Device, Graph, Int, Tensor, TensorData, capture};
use kiln_core::error::Result;
use kiln_core::random::seed_for;
use kiln_core::words::duration;
use kiln_models::ops::in_place::{Written, overwrite, overwrite_ints};

use self::batch::{Likeness, write};
use self::body::{Body, Given, Output, Summed, Summing};
use super::executor::{Executor, MicroBatch, StepTotals, Updated};
use super::observer::Part;
use super::spans::Spans;
use super::state::TrainState;
use super::sums::StepSums;
use crate::distributed::{World, sum_gradients};
use crate::engine::launches;
use crate::engine::launches::kernel_launches;
#[cfg(doc)]
use crate::optim::in_place::InPlace;
use crate::optim::in_place::updatable;
use crate::optim::scaler::{LossScaler, Verdict};
use crate::session::Session;
use crate::task::{OnDevice, TensorTree, TrainingTask};

/// Shapes of batches that are captured; a recording keeps the memory that its step needs. Batches
/// of others are computed without one.
const MOST_SHAPES: usize = 8;

/// Sets of parameters whose update is captured. Updates of others are computed without a recording.
const MOST_UPDATES: usize = 8;

/// The captured steps of a run.
pub(super) struct CapturedSteps<T: TrainingTask> {
    body: Rc<Body<T>>,
    device: Device,
    /// The ranks whose losses and gradients are summed.
    world: World,
    /// A step is one recording: it has one micro-batch, and is applied whatever its loss is.
    is_whole: bool,
    /// The one micro-batch of the step at hand.
    alone: Option<MicroBatch<OnDevice<T>>>,
    /// The parameters that have a gradient in the step at hand; none before its first micro-batch.
    given: Option<Given>,
    /// Whole steps, and micro-batches without the update: a run has either.
    steps: ByShape<OnDevice<T>, Output>,
    micro_batches: ByShape<OnDevice<T>, Summed>,
    /// The updates after micro-batches, by the parameters that they change.
    updates: Vec<(Given, Recorded<Output>)>,
    /// It has been said that an update is not captured.
    is_full: bool,
    /// The results of writes, and of micro-batches computed without a recording, since the last
    /// step. They are held until the step ends because the device may still use them.
    written: Vec<Written>,
    /// The result of a step or an update that was computed without a recording, held for the same
    /// reason.
    computed: Option<Output>,
    spans: Spans,
}

/// A notice for the user, if there is one.
type Notice = Option<String>;

impl<T: TrainingTask> CapturedSteps<T> {
    /// For the model of `state`, whose tensors are written to from now on, in the run of `session`
    /// by the ranks of `world`, of which `spans` are; none for an optimizer that cannot update in
    /// place.
    pub(super) fn new(
        state: &mut TrainState<T::Model>,
        session: &Session<T>,
        world: &World,
        drops: bool,
        spans: &Spans,
    ) -> Option<Self> {
        let (plan, device) = (session.plan(), &session.device);
        let update = state.optimizer.in_place(device, state.scaler.is_some())?;
        state.model = updatable(state.model.clone());
        let ones = || Tensor::ones([2], device);
        let body = Body {
            task: session.task.clone(),
            model: state.model.clone(),
            compute: plan.engine.compute(),
            device: device.clone().autodiff(),
            drops,
            checkpointing: plan.engine.activation_checkpointing,
            update,
            clip: plan.optimizer.max_grad_norm,
            skips: state.scaler.is_some(),
            of_pass: ones(),
            of_update: ones(),
            sums: RefCell::new(StepSums { loss: Some(Tensor::zeros([1], device)), ..StepSums::default() }),
            of_sums: ones(),
            seeds: Tensor::zeros([2], device),
        };
        Some(Self {
            body: Rc::new(body),
            device: device.clone(),
            world: world.clone(),
            is_whole: plan.batch.micro_batches() == 1 && state.outliers.is_none(),
            alone: None,
            given: None,
            steps: ByShape::default(),
            micro_batches: ByShape::default(),
            updates: Vec::new(),
            is_full: false,
            written: Vec::new(),
            computed: None,
            spans: spans.clone(),
        })
    }

    /// The step of the one micro-batch `micro`.
    fn step(
        &mut self,
        micro: MicroBatch<OnDevice<T>>,
        state: &mut TrainState<T::Model>,
        totals: StepTotals,
    ) -> Updated {
        self.forget();
        let body = &self.body;
        let idle = || body.update.idle();
        let recorded = Rc::clone(body);
        let compute = |batch: OnDevice<T>| move || recorded.step(&batch);
        let (place, notice) = self.steps.find(&micro.batch, &self.device, idle, compute);
        self.tell_pass(&micro, state.scaler.as_ref());
        self.tell_divisor(totals, state.scaler.as_ref());
        let number = self.tell_update(state, totals.lr);
        let Self { body, steps, written, computed, .. } = self;
        let output = match place {
            Some(place) => steps.replay(place, micro.batch, written),
            None => computed.insert(body.step(&micro.batch)),
        };
        state.optimizer.adopt(&body.update);
        output.copied(notice, number)
    }

    /// Puts the sums over the ranks in the place of this rank's, which has gradients of the
    /// parameters `given`. A rank that had no micro-batch with labels adds nothing. Returns the
    /// parameters of which any rank has a gradient.
    fn exchange(&mut self, given: Option<Given>) -> Result<Given> {
        let _time = self.spans.open(Part::Communicate);
        if given.is_none() {
            self.forget();
        }
        let body = &self.body;
        let (grads, loss) = given.map(|given| (body.sums_of(&given), Some(body.loss_sum()))).unwrap_or_default();
        let (grads, loss) = sum_gradients(&self.world, &body.model, grads, loss, &self.device)?;
        let given = body.given(&grads);
        self.written.extend(body.overwrite_sums(grads, loss));
        Ok(given)
    }

    /// The update by the sums of the parameters `given`, unless the step is an outlier.
    ///
    /// # Errors
    /// An error of the device or of MPI while the step is judged as an outlier or not.
    fn update_by_sums(
        &mut self,
        given: Given,
        state: &mut TrainState<T::Model>,
        totals: StepTotals,
    ) -> Result<Updated> {
        self.tell_divisor(totals, state.scaler.as_ref());
        let grads = self.body.sums_of(&given);
        if state.outliers.is_some() {
            let (loss, grad_norm) = self.body.mean(&grads);
            if let Some(why) = state.outlier(&self.world, &loss, &grad_norm)? {
                let verdict = state.scaler.as_ref().map(|scaler| scaler.judge(grad_norm.clone()));
                return Ok(Updated { loss, grad_norm, verdict, outlier: Some(why), notice: None });
            }
        }
        let place = self.updates.iter().position(|(of, _)| *of == given);
        if place.is_none() && self.updates.len() == MOST_UPDATES {
            let number = self.tell_update(state, totals.lr);
            let notice = (!std::mem::replace(&mut self.is_full, true)).then(|| {
                format!(
                    "the update of {} parameters and updates of other parameters after it are not captured: \
                     {MOST_UPDATES} sets of parameters are",
                    given.len()
                )
            });
            let updated = self.computed.insert(self.body.update_by_sums(&grads)).copied(notice, number);
            state.optimizer.adopt(&self.body.update);
            return Ok(updated);
        }
        let place = place.unwrap_or_else(|| {
            self.written.extend(self.body.update.idle());
            let body = Rc::clone(&self.body);
            let recorded = Recorded::new(&self.device, move || body.update_by_sums(&grads));
            self.updates.push((given, recorded));
            state.optimizer.adopt(&self.body.update);
            self.updates.len() - 1
        });
        let number = self.tell_update(state, totals.lr);
        // SAFETY: what the recording reads or writes and that is not its own lives in `body`; see
        // `Recorded::replay`.
        Ok(unsafe { self.updates[place].1.replay() }.copied(None, number))
    }

    /// A new step begins: what the last one wrote has been computed.
    fn forget(&mut self) {
        self.written.clear();
        self.computed = None;
    }

    /// Tells the pass after this, of `micro`, what its dropout is drawn from and what its loss is
    /// multiplied by.
    fn tell_pass(&mut self, micro: &MicroBatch<OnDevice<T>>, scaler: Option<&LossScaler>) {
        let halves = [0, 1].map(|part| (seed_for(micro.seed, "captured", 0, part) >> 34) as i32);
        let seeds = Tensor::from_data(TensorData::new(halves.to_vec(), [2]), &self.device);
        let of_loss = scaler.map(|scaler| scaler.scale() * (micro.weight / micro.expected));
        let of_pass = self.pair(micro.weight, of_loss);
        self.written.extend([overwrite_ints(&self.body.seeds, seeds), overwrite(&self.body.of_pass, of_pass)]);
    }

    /// Tells the update after this by what the sums of the step are divided.
    fn tell_divisor(&mut self, totals: StepTotals, scaler: Option<&LossScaler>) {
        let (of_loss, of_grads) = totals.factors(scaler);
        let of_update = self.pair(of_loss, of_grads);
        self.written.push(overwrite(&self.body.of_update, of_update));
    }

    /// Counts an update and tells it its numbers. Returns the one that the device counts it by,
    /// where it may be skipped.
    fn tell_update(&mut self, state: &mut TrainState<T::Model>, lr: f64) -> Option<Tensor<1, Int>> {
        let number = state.scaler.as_ref().map(LossScaler::next_update);
        self.written.extend(state.optimizer.begin_in_place(&self.body.update, lr, number.clone()));
        number
    }

    /// `of_loss` and the number of the gradients, which is the same if it is not given, `[2]`.
    fn pair(&self, of_loss: f64, of_grads: Option<Tensor<1>>) -> Tensor<1> {
        let of_loss = of_loss as f32;
        match of_grads {
            Some(of_grads) => Tensor::cat(vec![Tensor::from_floats([of_loss], &self.device), of_grads], 0),
            None => Tensor::from_floats([of_loss; 2], &self.device),
        }
    }
}

/// The one micro-batch of a step is kept until the update, so that both are one replay.
impl<T: TrainingTask> Executor<T> for CapturedSteps<T> {
    fn device(&self) -> &Device {
        &self.device
    }

    fn micro_batch(
        &mut self,
        state: &mut TrainState<T::Model>,
        micro: MicroBatch<OnDevice<T>>,
    ) -> Result<Option<String>> {
        if micro.weight == 0.0 {
            return Ok(None); // it adds nothing, and a step of nothing else is refused
        }
        if self.is_whole {
            self.alone = Some(micro);
            return Ok(None);
        }
        let _time = self.spans.open(Part::Backward);
        if self.given.is_none() {
            self.forget();
        }
        let body = &self.body;
        let idle = || vec![body.set_sums(Summing::Leave)];
        let recorded = Rc::clone(body);
        let compute = |batch: OnDevice<T>| move || recorded.micro_batch(&batch);
        let (place, notice) = self.micro_batches.find(&micro.batch, &self.device, idle, compute);
        let summing = if self.given.is_some() { Summing::Add } else { Summing::Replace };
        self.written.push(self.body.set_sums(summing));
        self.tell_pass(&micro, state.scaler.as_ref());
        let given = match place {
            Some(place) => self.micro_batches.replay(place, micro.batch, &mut self.written).given.clone(),
            None => {
                let Summed { given, written } = self.body.micro_batch(&micro.batch);
                self.written.push(written);
                given
            }
        };
        match &mut self.given {
            Some(so_far) => so_far.extend(given),
            first => {
                self.written.extend(self.body.zero_sums_except(&given));
                *first = Some(given);
            }
        }
        Ok(notice)
    }

    fn update(
        &mut self,
        state: &mut TrainState<T::Model>,
        totals: StepTotals,
        _sees: &mut dyn FnMut(&T::Model, &GradientsParams),
    ) -> Result<Updated> {
        if let Some(micro) = self.alone.take() {
            return Ok(self.step(micro, state, totals));
        }
        let given = self.given.take();
        let given = if self.world.is_shared() { self.exchange(given)? } else { given.unwrap_or_default() };
        self.update_by_sums(given, state, totals)
    }

    fn recordings(&self) -> usize {
        self.steps.recordings.len() + self.micro_batches.recordings.len() + self.updates.len()
    }
}

impl Output {
    /// Copies: the next replay writes where these lie. `number` is that of the update if it was not
    /// skipped, where it may be.
    fn copied(&self, notice: Notice, number: Option<Tensor<1, Int>>) -> Updated {
        let (loss, grad_norm) = (self.loss.clone() * 1.0, self.grad_norm.clone() * 1.0);
        let verdict = number.map(|update| Verdict { overflow: self.skipped.clone().greater_elem(0.0), update });
        Updated { loss, grad_norm, verdict, outlier: None, notice }
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
        // The last run is the one that is recorded; when it begins and when it has been recorded,
        // nothing waits to be launched.
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
    /// The tensors that the recording reads or writes and does not own must be alive. This thread
    /// alone computes with them, on its one stream, so writes before the replay and reads after it
    /// are in order.
    unsafe fn replay(&mut self) -> &T {
        launches::add(self.launches);
        // SAFETY: the caller's.
        unsafe { self.graph.replay() }
    }
}

/// The recordings of batches, by their [likeness](Likeness).
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
    /// The place of the recording for batches like `batch`, made if there is none and room for it;
    /// `idle` makes what `compute` computes leave no trace.
    fn find<C: FnMut() -> T + 'static>(
        &mut self,
        batch: &B,
        device: &Device,
        idle: impl FnOnce() -> Vec<Written>,
        compute: impl FnOnce(B) -> C,
    ) -> (Option<usize>, Notice) {
        let own = Likeness::of(batch);
        let dims = own.dims();
        let place = self.recordings.iter().position(|(known, _)| Likeness::of(known) == own);
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
        let how = if recorded.graph.is_hardware() {
            "captured"
        } else {
            "could not be captured, so it is computed anew every time"
        };
        self.recordings.push((batch.clone(), recorded));
        let notice = format!("the step for batches of {dims} is {how} ({})", duration(seconds));
        (Some(self.recordings.len() - 1), Some(notice))
    }

    /// The computation of the recording at `place` for `batch`.
    fn replay(&mut self, place: usize, batch: B, written: &mut Vec<Written>) -> &T {
        let (own, recorded) = &mut self.recordings[place];
        write(own, batch, written);
        // SAFETY: everything that the recording reads or writes and that is not its own lives in
        // the body that it has a share of, and in `own`, which lives as long as it does.
        unsafe { recorded.replay() }
    }
}
