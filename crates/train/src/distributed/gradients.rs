//! Gradients and weights of a model across the ranks.

use std::collections::VecDeque;

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor, TensorData};
use kiln_core::error::{Error, Result};

use super::World;
use crate::reads::{Reads, read_values};

/// The sums over the ranks of the gradients of `model` and of `loss`, `[1]`, f32, the same bits on
/// each rank. A rank without gradients, which had no micro-batch, adds nothing. A parameter that
/// has a gradient on no rank has none in the result.
///
/// # Errors
/// The device's, MPI's, and NCCL's.
pub fn sum_gradients<M: Module>(
    world: &World,
    model: &M,
    grads: GradientsParams,
    loss: Option<Tensor<1>>,
    device: &Device,
) -> Result<(GradientsParams, Tensor<1>)> {
    #[cfg(feature = "cuda")]
    if let Some(nccl) = &world.nccl {
        return nccl.sum_gradients(world, model, grads, loss, device);
    }
    let Taken { lengths, values, loss } = Taken::of(model, grads, loss)?;
    let has_any = any_of_ranks(world, values.iter().map(Option::is_some))?;
    // The gradients that any rank has, one after the other.
    let mut flat = Vec::with_capacity(lengths.iter().sum::<usize>() + 1);
    for ((any, values), length) in has_any.iter().zip(values).zip(lengths) {
        if *any {
            append(&mut flat, values, length);
        }
    }
    append(&mut flat, loss, 1);
    world.sum(&mut flat)?;
    let loss = flat.pop().into_iter().collect::<Vec<_>>();
    let grads = given(model, has_any, &flat, device);
    Ok((grads, Tensor::from_data(TensorData::new(loss, [1]), device)))
}

/// The sum of `loss`, `[1]`, over the ranks; a rank without one adds nothing.
///
/// # Errors
/// The device's, and MPI's.
pub fn sum_loss(world: &World, loss: Option<Tensor<1>>, device: &Device) -> Result<Tensor<1>> {
    sum_read_loss(world, loss.map(read_values).transpose()?, device)
}

/// [`sum_loss`] of the one value of a loss that has been read.
pub(super) fn sum_read_loss(world: &World, loss: Option<Vec<f32>>, device: &Device) -> Result<Tensor<1>> {
    let mut sum = Vec::new();
    append(&mut sum, loss, 1);
    world.sum(&mut sum)?;
    Ok(Tensor::from_data(TensorData::new(sum, [1]), device))
}

/// Whether any rank says so of each of a list of things, of which this one says `own`.
pub(super) fn any_of_ranks(world: &World, own: impl Iterator<Item = bool>) -> Result<Vec<bool>> {
    let flags = own.map(|own| f64::from(u8::from(own))).collect::<Vec<_>>();
    let mut any = vec![false; flags.len()];
    for of_rank in world.gather(&flags)? {
        any.iter_mut().zip(of_rank).for_each(|(any, own)| *any |= own > 0.0);
    }
    Ok(any)
}

/// Appends `values`, or what adds nothing to any value, a zero of either sign included: minus
/// zeros.
pub(super) fn append(flat: &mut Vec<f32>, values: Option<Vec<f32>>, length: usize) {
    match values {
        Some(values) => flat.extend(values),
        None => flat.resize(flat.len() + length, -0.0),
    }
}

/// The gradients of those parameters of `model` that learn and `has_any`, whose values lie in
/// `values` one after the other.
pub(super) fn given<M: Module>(model: &M, has_any: Vec<bool>, values: &[f32], device: &Device) -> GradientsParams {
    let mut given = Given { has_any: has_any.into(), values, device, grads: GradientsParams::new() };
    model.visit(&mut given);
    given.grads
}

/// The gradients of the parameters that learn, and a loss, on the host.
pub(super) struct Taken {
    /// Elements of each parameter.
    pub(super) lengths: Vec<usize>,
    /// The gradient of each, where it has one.
    pub(super) values: Vec<Option<Vec<f32>>>,
    /// The loss, where there is one.
    pub(super) loss: Option<Vec<f32>>,
}

impl Taken {
    /// Reads those of `model` among `grads`, and `loss`, together.
    pub(super) fn of<M: Module>(model: &M, grads: GradientsParams, loss: Option<Tensor<1>>) -> Result<Self> {
        let mut take = Take { grads, lengths: Vec::new(), has: Vec::new(), reads: Reads::new(), result: Ok(()) };
        model.visit(&mut take);
        let Take { lengths, has, mut reads, result, .. } = take;
        result?;
        let has_loss = loss.is_some();
        loss.map_or(Ok(()), |loss| reads.push(loss))?;
        let mut read = reads.finish()?.into_iter();
        let mut next = |has: bool| if has { read.next() } else { None };
        let values = has.into_iter().map(&mut next).collect();
        Ok(Self { lengths, values, loss: next(has_loss) })
    }
}

/// See [`Taken`].
struct Take {
    grads: GradientsParams,
    lengths: Vec<usize>,
    /// Whether each parameter has a gradient.
    has: Vec<bool>,
    reads: Reads,
    result: Result<()>,
}

impl ModuleVisitor for Take {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.val().is_require_grad() || self.result.is_err() {
            return;
        }
        let grad = self.grads.remove::<D>(param.id);
        self.lengths.push(param.shape().num_elements());
        self.has.push(grad.is_some());
        self.result = grad.map_or(Ok(()), |grad| self.reads.push(grad));
    }
}

/// Gives parameters the gradients that lie in `values` one after the other.
struct Given<'a> {
    has_any: VecDeque<bool>,
    values: &'a [f32],
    device: &'a Device,
    grads: GradientsParams,
}

impl ModuleVisitor for Given<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.val().is_require_grad() || self.has_any.pop_front() != Some(true) {
            return;
        }
        let shape = param.shape();
        let (own, rest) = self.values.split_at(shape.num_elements());
        self.values = rest;
        self.grads.register(param.id, Tensor::<D>::from_data(TensorData::new(own.to_vec(), shape), self.device));
    }
}

/// A checksum of all weights of `model`: CRC-32C over their f32 values.
///
/// # Errors
/// The device's.
pub fn weights_checksum<M: Module>(model: &M) -> Result<u32> {
    let mut sum = Checksum { crc: 0, error: None };
    model.visit(&mut sum);
    sum.error.map_or(Ok(sum.crc), Err)
}

struct Checksum {
    crc: u32,
    error: Option<Error>,
}

impl ModuleVisitor for Checksum {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        match param.val().inner().try_into_data() {
            Ok(data) => self.crc = crc32c::crc32c_append(self.crc, data.as_bytes()),
            Err(error) => self.error = Some(Error::device(format!("cannot read weights: {error:?}"))),
        }
    }
}
