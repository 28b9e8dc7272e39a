//! Captured steps, on wgpu and CUDA: forward pass, backward pass and update of a batch are recorded once for the batch's
//! shape, and from then on a step is that recording, replayed. What changes from step to step (the batch, the learning rate,
//! the divisor of the loss, the seeds of dropout) lies in tensors that are written to before the replay; weights and moments
//! are updated where they lie.
//!
//! Recording runs the step a few times. Those updates are idle ([`InPlace::idle`]), so they leave no trace in the run.
#![allow(unsafe_code)] // a replay is: see where it is done

use std::rc::Rc;

use burn::tensor::{Device, Graph, Int, Tensor, TensorData, capture};
use kiln_models::ops::dropout::with_seeds;
use kiln_models::ops::in_place::{Written, overwrite, overwrite_bools, overwrite_ints};
use kiln_models::{Model, ModelInput};

use crate::config::ActivationCheckpointing;
use crate::error::{Error, Result};
use crate::execution::seed_for;
use crate::optim::Optimizer;
use crate::optim::backward::Pass;
use crate::optim::gradient::{global_norm, scale_and_norm_by};
use crate::optim::in_place::InPlace;
use crate::task::{DeviceBatch, LossOptions, Targets};

/// Shapes of batches that are captured; a recording keeps the memory that its step needs. Batches of others are computed
/// without one.
const MOST_SHAPES: usize = 8;

/// The captured steps of a run, by shape of batch.
pub(super) struct CapturedSteps {
    body: Rc<Body>,
    device: Device,
    recordings: Vec<Recording>,
    /// What was written to since the last replay.
    written: Vec<Written>,
    /// It has been said that a shape is not captured.
    is_full: bool,
}

/// What a step computes, and where it finds what it is told.
struct Body {
    model: Model,
    update: InPlace,
    options: LossOptions,
    clip: Option<f64>,
    /// What the loss sum is multiplied by, `[1]`.
    per_term: Tensor<1>,
    /// What dropout's seeds are made of, `[2]`.
    seeds: Tensor<1, Int>,
}

/// What a step leaves: loss and gradient norm, `[1]` each.
struct Output {
    loss: Tensor<1>,
    grad_norm: Tensor<1>,
    _written: Option<Written>,
}

type Step = Box<dyn FnMut() -> Output>;

struct Recording {
    batch: DeviceBatch,
    graph: Graph<Output, Step>,
}

/// What one step is told.
pub(super) struct Told<'a> {
    /// The batch, without autodiff.
    pub(super) batch: DeviceBatch,
    /// The optimizer, whose numbers are used.
    pub(super) optimizer: &'a mut Optimizer,
    /// The learning rate.
    pub(super) lr: f64,
    /// What the loss sum is divided by.
    pub(super) divisor: f64,
    /// What dropout is drawn from.
    pub(super) seed: u64,
}

/// What one step gives: loss and gradient norm, `[1]` each, without autodiff; and what is worth telling about it.
pub(super) struct Stepped {
    pub(super) loss: Tensor<1>,
    pub(super) grad_norm: Tensor<1>,
    pub(super) notice: Option<String>,
}

impl CapturedSteps {
    /// For `model`, whose tensors are written to from now on, on `device` without autodiff; none for another optimizer than
    /// AdamW.
    pub(super) fn new(
        model: &Model,
        optimizer: &Optimizer,
        options: LossOptions,
        clip: Option<f64>,
        device: &Device,
    ) -> Option<Self> {
        let body = Body {
            model: model.clone(),
            update: optimizer.in_place(device)?,
            options,
            clip,
            per_term: Tensor::ones([1], device),
            seeds: Tensor::zeros([2], device),
        };
        Some(Self {
            body: Rc::new(body),
            device: device.clone(),
            recordings: Vec::new(),
            written: Vec::new(),
            is_full: false,
        })
    }

    /// One optimizer step.
    ///
    /// # Errors
    /// A batch without labels.
    pub(super) fn step(&mut self, told: Told<'_>) -> Result<Stepped> {
        let Told { batch, optimizer, lr, divisor, seed } = told;
        if batch.targets.is_none() {
            return Err(Error::data("this batch has no labels, so there is nothing to learn from it"));
        }
        let mut notice = None;
        let mut index = self.recordings.iter().position(|recording| same_shape(&recording.batch, &batch));
        if index.is_none() && self.recordings.len() < MOST_SHAPES {
            notice = Some(self.record(batch.clone()));
            optimizer.adopt(&self.body.update);
            index = Some(self.recordings.len() - 1);
        } else if index.is_none() && !std::mem::replace(&mut self.is_full, true) {
            let [rows, seq] = batch.input.input_ids.dims();
            notice = Some(format!(
                "the step for batches of {rows} x {seq} and of shapes after it is not captured: {MOST_SHAPES} shapes are \
                 (data.padding = \"buckets\" has few)"
            ));
        }
        self.written = vec![optimizer.begin_in_place(&self.body.update, lr)];
        let per_term = Tensor::from_floats([(1.0 / divisor) as f32], &self.device);
        self.written.push(overwrite(&self.body.per_term, per_term));
        let halves = [0, 1].map(|part| (seed_for(seed, "captured", 0, part) >> 34) as i32);
        let seeds = Tensor::from_data(TensorData::new(halves.to_vec(), [2]), &self.device);
        self.written.push(overwrite_ints(&self.body.seeds, seeds));
        let computed;
        let output = match index.map(|index| &mut self.recordings[index]) {
            Some(recording) => {
                write(&recording.batch, batch, &mut self.written);
                // SAFETY: everything that the recording reads or writes and that is not its own lives in `body` and in
                // `recording.batch`, which live as long as it does. This thread alone computes with them, on the one
                // stream that it has, so writes before the replay and reads after it are in order.
                unsafe { recording.graph.replay() }
            }
            None => {
                computed = self.body.compute(&batch);
                optimizer.adopt(&self.body.update);
                &computed
            }
        };
        let Output { loss, grad_norm, .. } = output;
        // Copies: the next replay writes where these lie.
        Ok(Stepped { loss: loss.clone() * 1.0, grad_norm: grad_norm.clone() * 1.0, notice })
    }

    /// Records the step for batches like `batch`.
    fn record(&mut self, batch: DeviceBatch) -> String {
        let started = std::time::Instant::now();
        self.written = vec![self.body.update.idle()];
        let (body, own) = (Rc::clone(&self.body), batch.clone());
        let graph = capture(&self.device, Box::new(move || body.compute(&own)) as Step);
        let [rows, seq] = batch.input.input_ids.dims();
        let seconds = started.elapsed().as_secs_f64();
        let how = match graph.is_hardware() {
            true => "captured",
            false => "could not be captured, so it is computed anew every time",
        };
        self.recordings.push(Recording { batch, graph });
        format!("the step for batches of {rows} x {seq} is {how} ({seconds:.1} s)")
    }
}

impl Body {
    fn compute(&self, batch: &DeviceBatch) -> Output {
        let checkpointing = ActivationCheckpointing::None;
        let pass = Pass { seed: None, checkpointing, options: &self.options, copies: None }; // all is f32
        let tracked = tracked(batch);
        let (sum, grads) = with_seeds(self.seeds.clone(), || pass.run(&self.model, &tracked, |loss| loss))
            .expect("the batch has labels, and that is all that a pass without recomputation asks for");
        let sum_norm = global_norm(&self.model, &grads, self.model.ops());
        let (scale, grad_norm) = scale_and_norm_by(sum_norm, self.per_term.clone(), self.clip);
        let written = self.update.apply(&self.model, &grads, &scale);
        Output { loss: sum * self.per_term.clone(), grad_norm, _written: written }
    }
}

/// `batch` for a model with autodiff.
fn tracked(batch: &DeviceBatch) -> DeviceBatch {
    let ModelInput { input_ids, attention_mask, token_type_ids, last_token } = batch.input.clone();
    let weight = |weight: &Option<Tensor<1>>| weight.clone().map(Tensor::from_inner);
    let ints = |values: &Tensor<1, Int>| Tensor::from_inner(values.clone());
    DeviceBatch {
        input: ModelInput {
            input_ids: Tensor::from_inner(input_ids),
            attention_mask: attention_mask.map(Tensor::from_inner),
            token_type_ids: token_type_ids.map(Tensor::from_inner),
            last_token: last_token.map(Tensor::from_inner),
        },
        targets: batch.targets.as_ref().map(|targets| match targets {
            Targets::Classes { index, weight: w } => Targets::Classes { index: ints(index), weight: weight(w) },
            Targets::Values { values, weight: w } => {
                Targets::Values { values: Tensor::from_inner(values.clone()), weight: weight(w) }
            }
            Targets::Spans { start, end, weight: w } => {
                Targets::Spans { start: ints(start), end: ints(end), weight: weight(w) }
            }
        }),
        ..*batch
    }
}

/// Whether the two have the same parts in the same shapes.
fn same_shape(a: &DeviceBatch, b: &DeviceBatch) -> bool {
    let parts = |batch: &DeviceBatch| {
        let weight = match &batch.targets {
            None => None,
            Some(Targets::Classes { weight, .. } | Targets::Values { weight, .. } | Targets::Spans { weight, .. }) => {
                Some(weight.is_some())
            }
        };
        let input = &batch.input;
        (input.input_ids.dims(), input.attention_mask.is_some(), input.token_type_ids.is_some(), weight)
    };
    parts(a) == parts(b)
}

/// Writes `new` to where `target` lies; the two have the [same shape](same_shape).
fn write(target: &DeviceBatch, new: DeviceBatch, written: &mut Vec<Written>) {
    let (old, new_input) = (&target.input, new.input);
    written.push(overwrite_ints(&old.input_ids, new_input.input_ids));
    let masks = old.attention_mask.as_ref().zip(new_input.attention_mask);
    written.extend(masks.map(|(old, new)| overwrite_bools(old, new)));
    written
        .extend(old.token_type_ids.as_ref().zip(new_input.token_type_ids).map(|(old, new)| overwrite_ints(old, new)));
    written.extend(old.last_token.as_ref().zip(new_input.last_token).map(|(old, new)| overwrite_ints(old, new)));
    let (mut ints, mut floats) = (Vec::new(), Vec::new());
    match (&target.targets, new.targets) {
        (Some(Targets::Classes { index, weight }), Some(Targets::Classes { index: new, weight: w })) => {
            ints.push((index, new));
            floats.extend(weight.as_ref().zip(w));
        }
        (Some(Targets::Values { values, weight }), Some(Targets::Values { values: new, weight: w })) => {
            floats.push((values, new));
            floats.extend(weight.as_ref().zip(w));
        }
        (Some(Targets::Spans { start, end, weight }), Some(Targets::Spans { start: s, end: e, weight: w })) => {
            ints.extend([(start, s), (end, e)]);
            floats.extend(weight.as_ref().zip(w));
        }
        _ => {} // a batch without labels, or of another task, is not trained on
    }
    written.extend(ints.into_iter().map(|(old, new)| overwrite_ints(old, new)));
    written.extend(floats.into_iter().map(|(old, new)| overwrite(old, new)));
}
