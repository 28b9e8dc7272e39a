//! Gradients and weights of a model across the ranks.

use std::collections::VecDeque;

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor, TensorData};

use super::World;
use crate::base::error::{Error, Result};

/// The sums over the ranks of the gradients of `model` and of `loss`, `[1]`, f32, the same bits on each rank. A rank without
/// gradients, which had no micro-batch, adds nothing. A parameter that has a gradient on no rank has none in the result.
///
/// # Errors
/// The device's, and MPI's.
pub fn sum_gradients<M: Module>(
    world: &World,
    model: &M,
    grads: GradientsParams,
    loss: Option<Tensor<1>>,
    device: &Device,
) -> Result<(GradientsParams, Tensor<1>)> {
    let mut taken = Taken { grads, has: Vec::new(), lengths: Vec::new(), values: Vec::new(), error: None };
    model.visit(&mut taken);
    let Taken { has, lengths, values, error, .. } = taken;
    error.map_or(Ok(()), Err)?;
    let mut has_any = vec![false; has.len()];
    let flags = has.iter().map(|has| f64::from(u8::from(*has))).collect::<Vec<_>>();
    for of_rank in world.gather(&flags)? {
        has_any.iter_mut().zip(of_rank).for_each(|(any, has)| *any |= has > 0.0);
    }
    // The gradients that any rank has, one after the other. Minus zero is what adds nothing to any value, a zero of either
    // sign included.
    let mut own = values.into_iter();
    let mut flat = Vec::with_capacity(lengths.iter().sum::<usize>() + 1);
    for ((any, has), length) in has_any.iter().zip(&has).zip(&lengths) {
        match (any, has) {
            (true, true) => flat.extend(own.next().into_iter().flatten()),
            (true, false) => flat.resize(flat.len() + length, -0.0),
            (false, _) => {}
        }
    }
    flat.extend(match loss {
        Some(loss) => read(loss)?,
        None => vec![-0.0],
    });
    world.sum(&mut flat)?;
    let loss = flat.pop().into_iter().collect::<Vec<_>>();
    let mut given = Given { has_any: has_any.into(), values: &flat, device, grads: GradientsParams::new() };
    model.visit(&mut given);
    Ok((given.grads, Tensor::from_data(TensorData::new(loss, [1]), device)))
}

/// The values of `tensor`, f32.
fn read<const D: usize>(tensor: Tensor<D>) -> Result<Vec<f32>> {
    let data = tensor.try_into_data().map_err(|error| Error::device(format!("cannot read gradients: {error:?}")))?;
    data.try_into_vec::<f32>().map_err(|error| Error::device(format!("gradients are not f32: {error:?}")))
}

/// Takes the gradients of the parameters that learn.
struct Taken {
    grads: GradientsParams,
    /// Whether each parameter has one.
    has: Vec<bool>,
    /// Elements of each parameter.
    lengths: Vec<usize>,
    /// The gradients that there are.
    values: Vec<Vec<f32>>,
    error: Option<Error>,
}

impl ModuleVisitor for Taken {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.val().is_require_grad() {
            return;
        }
        let values = self.grads.remove::<D>(param.id).map(read).transpose();
        let values = values.unwrap_or_else(|error| {
            self.error.get_or_insert(error);
            None
        });
        self.has.push(values.is_some());
        self.lengths.push(param.shape().num_elements());
        self.values.extend(values);
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
