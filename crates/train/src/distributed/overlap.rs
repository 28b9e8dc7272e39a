//! Gradients that are summed over the ranks while the backward pass goes on: those of a part of the
//! model, usually a block, as soon as they are whole, by a thread of their own.
//!
//! The first step of a run shows in which part of the backward pass the gradient of each parameter
//! becomes whole (that of tied weights with the last place where they are used), and rank 0's
//! finding holds for all. The sums are made element by element in the order of the ranks, so they
//! have the bits of [`sum_gradients`](super::sum_gradients).

use std::sync::mpsc::{Receiver, Sender, channel};

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use kiln_core::error::{Error, Result};

use super::World;
use super::gradients::{any_of_ranks, append, given};
use crate::reads::Reads;

/// The sums of one step after the other, as the introduction of the module has it. Until
/// [`sums`](Self::sums) has returned, this rank makes no other exchange.
#[derive(Debug)]
pub struct Overlap {
    world: World,
    /// Elements of each parameter that learns, in the model's order.
    lengths: Vec<usize>,
    /// The part in which the gradient of each becomes whole; none until a step has shown it.
    order: Option<Vec<usize>>,
    jobs: Sender<Vec<f32>>,
    done: Receiver<Result<Vec<f32>>>,
    pass: Pass,
}

/// The last micro-batch of a step, whose backward pass comes part by part.
#[derive(Debug, Default)]
struct Pass {
    /// The gradients of the micro-batches before.
    before: GradientsParams,
    /// Its own, up to the last part.
    own: GradientsParams,
    /// The last part with a gradient of each parameter.
    seen: Vec<Option<usize>>,
    /// Whether this rank has a gradient of each parameter.
    has: Vec<bool>,
    /// Whether each part that has come has values to send.
    parts: Vec<bool>,
    /// All parts have come and are on their way.
    is_sent: bool,
}

impl Overlap {
    /// For the gradients of `model`.
    ///
    /// # Errors
    /// A thread that cannot be started.
    pub fn new<M: Module>(world: &World, model: &M) -> Result<Self> {
        let mut lengths = Lengths(Vec::new());
        model.visit(&mut lengths);
        let (jobs, waiting) = channel::<Vec<f32>>();
        let (results, done) = channel();
        // The backward pass needs the processor while this waits for the others.
        let patient = world.patient();
        let work = move || {
            for mut values in waiting {
                let sums = patient.sum(&mut values).map(|()| values);
                if results.send(sums).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("kiln-exchange".into()).spawn(work);
        thread.map_err(|error| Error::start("the thread that sums gradients over the ranks", &error))?;
        Ok(Self { world: world.clone(), lengths: lengths.0, order: None, jobs, done, pass: Pass::default() })
    }

    /// Whether it is known when gradients are whole, so that they can be sent.
    pub fn is_ready(&self) -> bool {
        self.order.is_some()
    }

    /// The last micro-batch of a step begins; where this is [ready](Self::is_ready), those before
    /// it have the gradients `before`.
    pub fn begin(&mut self, before: GradientsParams) {
        let count = self.lengths.len();
        self.pass = Pass { before, seen: vec![None; count], has: vec![false; count], ..Pass::default() };
    }

    /// The gradients of the next part of the backward pass. Those that are whole with it are sent
    /// on their way.
    ///
    /// # Errors
    /// The device's, and a gradient of a parameter that was whole before.
    pub fn part<M: Module>(&mut self, model: &M, part: GradientsParams) -> Result<()> {
        let Self { lengths, order, pass, .. } = &mut *self;
        let number = pass.parts.len();
        let whole = order.as_ref().map(|order| order.iter().map(|whole| whole.cmp(&number)).collect::<Vec<_>>());
        let mut take =
            Take { pass, part, number, whole, index: 0, own: Vec::new(), reads: Reads::new(), result: Ok(()) };
        model.visit(&mut take);
        let Take { own, reads, result, .. } = take;
        result?;
        let (mut read, mut values) = (reads.finish()?.into_iter(), Vec::new());
        for (index, has) in own {
            append(&mut values, if has { read.next() } else { None }, lengths[index]);
        }
        self.pass.parts.push(!values.is_empty());
        if values.is_empty() {
            return Ok(()); // on every rank
        }
        self.jobs.send(values).map_err(|_| gone())
    }

    /// The last micro-batch has ended. Its gradients, where they could not be sent.
    pub fn end(&mut self) -> Option<GradientsParams> {
        self.pass.is_sent = self.is_ready();
        if self.pass.is_sent { None } else { Some(std::mem::take(&mut self.pass.own)) }
    }

    /// Before other exchanges after the micro-batches of a step: a rank that had no last one sends
    /// its gradients, `rest`.
    ///
    /// # Errors
    /// MPI's, and the device's.
    pub fn finish<M: Module>(&mut self, model: &M, rest: impl FnOnce() -> GradientsParams) -> Result<()> {
        match &self.order {
            Some(order) if !self.pass.is_sent => {
                let parts = order.iter().max().map_or(0, |last| last + 1);
                self.begin(rest());
                (0..parts).try_for_each(|_| self.part(model, GradientsParams::new()))?;
                self.pass.is_sent = true;
            }
            Some(_) => {}
            None => {
                // Rank 0 has a last micro-batch in every step.
                let Pass { seen, parts, .. } = &self.pass;
                let last = parts.len().saturating_sub(1);
                let order = || Ok(seen.iter().map(|seen| seen.unwrap_or(last)).collect::<Vec<_>>());
                self.order = Some(self.world.made_by_root(order)?);
            }
        }
        Ok(())
    }

    /// The sums of the gradients over the ranks, as [`sum_gradients`](super::sum_gradients) gives
    /// them, after all parts were sent; none where they were not.
    ///
    /// # Errors
    /// MPI's.
    pub fn sums<M: Module>(&mut self, model: &M, device: &Device) -> Result<Option<GradientsParams>> {
        let Pass { has, parts, is_sent, .. } = std::mem::take(&mut self.pass);
        let Some(order) = self.order.as_ref().filter(|_| is_sent) else { return Ok(None) };
        let mut sums = Vec::with_capacity(parts.len());
        for has_values in parts {
            sums.push(if has_values { self.done.recv().map_err(|_| gone())?? } else { Vec::new() }.into_iter());
        }
        let has_any = any_of_ranks(&self.world, has.into_iter())?;
        let mut flat = Vec::with_capacity(self.lengths.iter().sum());
        for ((part, length), any) in order.iter().zip(&self.lengths).zip(&has_any) {
            let values = sums[*part].by_ref().take(*length);
            if *any {
                flat.extend(values);
            } else {
                values.for_each(drop);
            }
        }
        Ok(Some(given(model, has_any, &flat, device)))
    }
}

fn gone() -> Error {
    Error::device("the thread that sums gradients over the ranks has ended")
}

/// Elements of each parameter that learns.
struct Lengths(Vec<usize>);

impl ModuleVisitor for Lengths {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.val().is_require_grad() {
            self.0.push(param.shape().num_elements());
        }
    }
}

/// Takes the gradients of a part, and the values of those that are whole with it.
struct Take<'a> {
    pass: &'a mut Pass,
    part: GradientsParams,
    /// The part's number.
    number: usize,
    /// Whether each parameter is whole before it, with it or after it; none where that is not
    /// known.
    whole: Option<Vec<std::cmp::Ordering>>,
    /// The place of the next parameter that learns.
    index: usize,
    /// The parameters that are whole with it, and whether each has a gradient.
    own: Vec<(usize, bool)>,
    /// The gradients of the parameters that are whole with the part.
    reads: Reads,
    result: Result<()>,
}

impl ModuleVisitor for Take<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.val().is_require_grad() || self.result.is_err() {
            return;
        }
        let index = self.index;
        self.index += 1;
        let whole = self.whole.as_ref().map(|whole| whole[index]);
        if let Some(grad) = self.part.remove::<D>(param.id) {
            if whole == Some(std::cmp::Ordering::Less) {
                self.result = Err(Error::device(format!(
                    "the gradient of a parameter was sent before part {} of the backward pass had added to it",
                    self.number
                ))
                .help("set distributed.overlap_communication = false"));
                return;
            }
            let sum = match self.pass.own.remove::<D>(param.id) {
                Some(own) => own + grad,
                None => grad,
            };
            self.pass.own.register(param.id, sum);
            self.pass.seen[index] = Some(self.number);
        }
        if whole != Some(std::cmp::Ordering::Equal) {
            return;
        }
        let total = match (self.pass.before.remove::<D>(param.id), self.pass.own.remove::<D>(param.id)) {
            (Some(before), Some(own)) => Some(before + own),
            (before, own) => before.or(own),
        };
        self.pass.has[index] = total.is_some();
        self.own.push((index, total.is_some()));
        self.result = total.map_or(Ok(()), |total| self.reads.push(total));
    }
}
