//! Captured steps, on wgpu and CUDA: forward pass, backward pass and update of a batch are recorded
//! once for the batch's shape, and from then on a step is that recording, replayed. Where a step
//! has several micro-batches, these are recorded without the update, which is a recording of its
//! own; so they are where there are several ranks, which exchange the sums over micro-batches
//! between the two. The values that change from step to step (the batch, the learning rate, the
//! divisor of the loss, the seeds of dropout) lie in tensors that are written to before the replay;
//! weights, moments and sums over micro-batches are updated in place.
//!
//! Recording computes a few times. That leaves no trace in the run: updates are idle
//! ([`InPlace::idle`]), and nothing is added to sums ([`Body::set_sums`]).
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

use self::batch::{shapes, write};
use self::body::{Body, Output};
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
    /// The step at hand has a micro-batch already.
    is_begun: bool,
    /// Whole steps, and micro-batches without the update: a run has either.
    steps: ByShape<OnDevice<T>, Output>,
    micro_batches: ByShape<OnDevice<T>, Written>,
    /// The update after micro-batches.
    update: Option<Recorded<Output>>,
    /// The results of writes, and of micro-batches computed without a recording, since the last
    /// step. They are held until the step ends because the device may still use them.
    written: Vec<Written>,
    /// The result of a whole step that was computed without a recording, held for the same reason.
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
            is_begun: false,
            steps: ByShape::default(),
            micro_batches: ByShape::default(),
            update: None,
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
        state.optimizer.adopt(&self.body.update);
        self.tell_pass(&micro, state.scaler.as_ref());
        self.tell_divisor(totals, state.scaler.as_ref());
        let number = self.tell_update(state, totals.lr);
        let Self { body, steps, written, computed, .. } = self;
        let output = match place {
            Some(place) => steps.replay(place, micro.batch, written),
            None => computed.insert(body.step(&micro.batch)),
        };
        output.copied(notice, number)
    }

    /// Puts the sums over the ranks in the place of this rank's. One that had no micro-batch with
    /// labels adds nothing.
    fn exchange(&mut self, has_any: bool) -> Result<()> {
        let _time = self.spans.open(Part::Communicate);
        if !has_any {
            self.forget();
        }
        let (grads, loss) = if has_any { self.body.shared_sums() } else { Default::default() };
        let (grads, loss) = sum_gradients(&self.world, &self.body.model, grads, loss, &self.device)?;
        self.written.extend(self.body.overwrite_sums(grads, loss));
        Ok(())
    }

    /// The update by the sums, unless the step is an outlier.
    ///
    /// # Errors
    /// An error of the device or of MPI while the step is judged as an outlier or not.
    fn update_by_sums(&mut self, state: &mut TrainState<T::Model>, totals: StepTotals) -> Result<Updated> {
        self.tell_divisor(totals, state.scaler.as_ref());
        if state.outliers.is_some() {
            let (loss, grad_norm) = self.body.mean();
            if let Some(why) = state.outlier(&self.world, &loss, &grad_norm)? {
                let verdict = state.scaler.as_ref().map(|scaler| scaler.judge(grad_norm.clone()));
                return Ok(Updated { loss, grad_norm, verdict, outlier: Some(why), notice: None });
            }
        }
        if self.update.is_none() {
            self.written.extend(self.body.update.idle());
            let body = Rc::clone(&self.body);
            self.update = Some(Recorded::new(&self.device, move || body.update_by_sums()));
            state.optimizer.adopt(&self.body.update);
        }
        let number = self.tell_update(state, totals.lr);
        let update = self.update.as_mut().expect("it is recorded above");
        // SAFETY: what the recording reads or writes and that is not its own lives in `body`; see
        // `Recorded::replay`.
        Ok(unsafe { update.replay() }.copied(None, number))
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
        let follows = std::mem::replace(&mut self.is_begun, true);
        if !follows {
            self.forget();
        }
        let body = &self.body;
        let idle = || vec![body.set_sums(true, false)];
        let recorded = Rc::clone(body);
        let compute = |batch: OnDevice<T>| move || recorded.micro_batch(&batch);
        let (place, notice) = self.micro_batches.find(&micro.batch, &self.device, idle, compute);
        self.written.push(self.body.set_sums(follows, true));
        self.tell_pass(&micro, state.scaler.as_ref());
        match place {
            Some(place) => _ = self.micro_batches.replay(place, micro.batch, &mut self.written),
            None => self.written.push(self.body.micro_batch(&micro.batch)),
        }
        Ok(notice)
    }

    fn update(
        &mut self,
        state: &mut TrainState<T::Model>,
        totals: StepTotals,
        _sees: &mut dyn FnMut(&T::Model, &GradientsParams),
    ) -> Result<Updated> {
        let has_any = std::mem::replace(&mut self.is_begun, false);
        if let Some(micro) = self.alone.take() {
            return Ok(self.step(micro, state, totals));
        }
        if self.world.is_shared() {
            self.exchange(has_any)?;
        }
        self.update_by_sums(state, totals)
    }

    fn recordings(&self) -> usize {
        self.steps.recordings.len() + self.micro_batches.recordings.len() + usize::from(self.update.is_some())
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
    /// The place of the recording for batches like `batch`, made if there is none and room for it;
    /// `idle` makes what `compute` computes leave no trace.
    fn find<C: FnMut() -> T + 'static>(
        &mut self,
        batch: &B,
        device: &Device,
        idle: impl FnOnce() -> Vec<Written>,
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
