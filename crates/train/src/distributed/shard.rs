//! Training whose optimizer is divided among the ranks: each has the moments of a part of the
//! parameters, gets the sums of their gradients, updates them and hands them to the others (ZeRO,
//! stage 1: Rajbhandari et al. 2020).
//!
//! The parameters that learn lie one after the other, and each rank has an equal part of them, so
//! that at most a parameter a rank is cut. A function of a whole gradient, such as its norm, is
//! computed by one rank that has all of it; a gradient that is cut is put together for that. So the
//! figures are those of ranks that have all gradients, to the bit.

use std::ops::Range;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor, TensorData};
use kiln_core::error::Result;

use super::World;
use super::gradients::{Taken, any_of_ranks, append, given, sum_read_loss};
use crate::reads::{Reads, read_scalars};

/// The part of a model's parameters whose optimizer is this rank's.
#[derive(Debug, Clone)]
pub struct Shard {
    world: World,
    /// The parameters that learn, in the model's order, each with its place among all values.
    places: Vec<(ParamId, Range<usize>)>,
}

/// The sums over the ranks of the gradients of a [`Shard`].
#[derive(Debug)]
pub struct ShardGradients {
    /// The sums of the gradients of the shard's values.
    sums: Vec<f32>,
    /// Whether each parameter has a gradient on any rank.
    has_any: Vec<bool>,
}

impl Shard {
    /// The part of `model` that is this rank's in `world`.
    pub fn of<M: Module>(model: &M, world: &World) -> Self {
        let mut places = Places(Vec::new());
        model.visit(&mut places);
        Self { world: world.clone(), places: places.0 }
    }

    /// The values of all parameters that learn.
    fn len(&self) -> usize {
        self.places.last().map_or(0, |(_, place)| place.end)
    }

    /// The values of rank `rank` among those of all parameters.
    fn part(&self, rank: usize) -> Range<usize> {
        self.world.part(rank, self.len())
    }

    /// How many values each rank has.
    fn lengths(&self) -> Vec<usize> {
        (0..self.world.size()).map(|rank| self.part(rank).len()).collect()
    }

    /// The elements of parameter `id` that are this rank's, none of a parameter that does not
    /// learn.
    pub fn own(&self, id: ParamId) -> Range<usize> {
        self.of_rank(id, self.world.rank())
    }

    fn of_rank(&self, id: ParamId, rank: usize) -> Range<usize> {
        match self.places.iter().find(|(other, _)| *other == id) {
            Some((_, place)) => within(&self.part(rank), place),
            None => 0..0,
        }
    }

    /// Values of parameter `id` of all ranks, of which this one has `own`, one after the other on
    /// rank 0; nothing on the others.
    ///
    /// # Errors
    /// MPI's.
    pub fn join_at_root(&self, id: ParamId, own: &[f32]) -> Result<Vec<f32>> {
        let lengths = (0..self.world.size()).map(|rank| self.of_rank(id, rank).len()).collect::<Vec<_>>();
        self.world.gather_at_root(own, &lengths)
    }

    /// Whether any rank says so of each of a list of things, of which this one says `own`.
    ///
    /// # Errors
    /// MPI's.
    pub fn any(&self, own: &[bool]) -> Result<Vec<bool>> {
        any_of_ranks(&self.world, own.iter().copied())
    }

    /// The sums over the ranks of the gradients of `model`, of which every rank gets its part, and
    /// of `loss`, `[1]`.
    ///
    /// # Errors
    /// The device's, and MPI's.
    pub fn scatter<M: Module>(
        &self,
        model: &M,
        grads: GradientsParams,
        loss: Option<Tensor<1>>,
        device: &Device,
    ) -> Result<(ShardGradients, Tensor<1>)> {
        let Taken { lengths, values, loss } = Taken::of(model, grads, loss)?;
        let has_any = any_of_ranks(&self.world, values.iter().map(Option::is_some))?;
        let mut flat = Vec::with_capacity(self.len());
        values.into_iter().zip(lengths).for_each(|(values, length)| append(&mut flat, values, length));
        let sums = self.world.reduce_scatter(&flat)?;
        Ok((ShardGradients { sums, has_any }, sum_read_loss(&self.world, loss, device)?))
    }

    /// The value of `of`, `[1]`, for the whole gradient of each parameter that has one, on every
    /// rank.
    ///
    /// # Errors
    /// The device's, and MPI's.
    pub fn of_gradients(&self, grads: &ShardGradients, of: impl Fn(Vec<f32>) -> Tensor<1>) -> Result<Vec<f32>> {
        let own = self.part(self.world.rank());
        let (mut mine, mut owners) = (Vec::new(), Vec::new());
        for ((_, place), _) in self.places.iter().zip(&grads.has_any).filter(|(_, has)| **has) {
            let parts = (0..self.world.size()).map(|rank| common(&self.part(rank), place)).collect::<Vec<_>>();
            let has_some = |part: &Range<usize>| !part.is_empty() || place.is_empty();
            let owner = parts.iter().position(has_some).unwrap_or(0);
            let part = &parts[self.world.rank()];
            let mut whole = if part.is_empty() {
                Vec::new()
            } else {
                grads.sums[part.start - own.start..part.end - own.start].to_vec()
            };
            if parts[owner].len() < place.len() {
                let lengths = parts.iter().map(Range::len).collect::<Vec<_>>();
                whole = self.world.all_gather(&whole, &lengths)?;
            }
            if owner == self.world.rank() {
                mine.push(of(whole));
            }
            owners.push(owner);
        }
        let mut mine = read_scalars(mine)?.into_iter();
        let own = |owner: &usize| if *owner == self.world.rank() { mine.next().unwrap_or_default() } else { 0.0 };
        let all = self.world.gather(&owners.iter().map(own).collect::<Vec<_>>())?;
        Ok(owners.into_iter().enumerate().map(|(index, owner)| all[owner][index] as f32).collect())
    }

    /// All gradients, on every rank.
    ///
    /// # Errors
    /// MPI's.
    pub fn all_gradients<M: Module>(
        &self,
        model: &M,
        grads: &ShardGradients,
        device: &Device,
    ) -> Result<GradientsParams> {
        let all = self.world.all_gather(&grads.sums, &self.lengths())?;
        let with_any = self.places.iter().zip(&grads.has_any).filter(|(_, has)| **has);
        let values = with_any.flat_map(|((_, place), _)| &all[place.clone()]).copied().collect::<Vec<_>>();
        Ok(given(model, grads.has_any.clone(), &values, device))
    }

    /// The values of `model` that are this rank's and have a gradient, flat, each with the
    /// parameter that it is a part of; and their gradients, which are found under the same names.
    pub fn cut<M: Module>(
        &self,
        model: &M,
        grads: ShardGradients,
        device: &Device,
    ) -> (Vec<Param<Tensor<1>>>, GradientsParams) {
        let mut cut =
            Cut { shard: self, of: &grads, index: 0, device, values: Vec::new(), grads: GradientsParams::new() };
        model.visit(&mut cut);
        (cut.values, cut.grads)
    }

    /// `model` with the values of all ranks, of which this one has made `updated` of what
    /// [`cut`](Self::cut) gave it.
    ///
    /// # Errors
    /// The device's, and MPI's.
    pub fn put_back<M: Module>(&self, model: M, updated: Vec<Param<Tensor<1>>>, device: &Device) -> Result<M> {
        let updated = updated.into_iter().peekable();
        let mut own = Own { shard: self, updated, reads: Reads::new(), result: Ok(()) };
        model.visit(&mut own);
        let Own { reads, result, .. } = own;
        let values = result.and_then(|()| reads.finish())?.concat();
        let all = self.world.all_gather(&values, &self.lengths())?;
        drop(values);
        Ok(model.map(&mut Put { shard: self, all: &all, device }))
    }
}

/// The values that are in both, among those of all parameters.
fn common(part: &Range<usize>, place: &Range<usize>) -> Range<usize> {
    let start = part.start.clamp(place.start, place.end);
    start..part.end.clamp(start, place.end)
}

/// The values that are in `part` and in `place`, among those of the parameter at `place`.
fn within(part: &Range<usize>, place: &Range<usize>) -> Range<usize> {
    let common = common(part, place);
    common.start - place.start..common.end - place.start
}

struct Places(Vec<(ParamId, Range<usize>)>);

impl ModuleVisitor for Places {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.val().is_require_grad() {
            let start = self.0.last().map_or(0, |(_, place)| place.end);
            self.0.push((param.id, start..start + param.shape().num_elements()));
        }
    }
}

/// See [`Shard::cut`].
struct Cut<'a> {
    shard: &'a Shard,
    of: &'a ShardGradients,
    /// The place of the next parameter that learns.
    index: usize,
    device: &'a Device,
    values: Vec<Param<Tensor<1>>>,
    grads: GradientsParams,
}

impl ModuleVisitor for Cut<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.val().is_require_grad() {
            return;
        }
        let own = self.shard.own(param.id);
        let index = self.index;
        self.index += 1;
        if own.is_empty() || !self.of.has_any[index] {
            return;
        }
        let shard = self.shard.part(self.shard.world.rank());
        let place = common(&shard, &self.shard.places[index].1);
        let sums = self.of.sums[place.start - shard.start..place.end - shard.start].to_vec();
        let n = param.shape().num_elements();
        let value = param.val().inner().reshape([n]).slice([own]);
        self.grads.register(param.id, Tensor::<1>::from_data(TensorData::new(sums, [place.len()]), self.device));
        self.values.push(Param::initialized(param.id, Tensor::from_inner(value)));
    }
}

/// Reads this rank's values: those that were updated, and those of the model where nothing was.
struct Own<'a> {
    shard: &'a Shard,
    updated: std::iter::Peekable<std::vec::IntoIter<Param<Tensor<1>>>>,
    reads: Reads,
    result: Result<()>,
}

impl ModuleVisitor for Own<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let own = self.shard.own(param.id);
        if own.is_empty() || self.result.is_err() {
            return;
        }
        let value = match self.updated.next_if(|updated| updated.id == param.id) {
            Some(updated) => updated.val().inner(),
            None => param.val().inner().reshape([param.shape().num_elements()]).slice([own]),
        };
        self.result = self.reads.push(value);
    }
}

/// Gives the parameters that learn their values.
struct Put<'a> {
    shard: &'a Shard,
    all: &'a [f32],
    device: &'a Device,
}

impl ModuleMapper for Put<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some((_, place)) = self.shard.places.iter().find(|(id, _)| *id == param.id) else { return param };
        let (id, old, mapper) = param.consume();
        let (shape, learns) = (old.shape(), old.is_require_grad());
        let strategy = old.gradient_checkpointing_strategy();
        drop(old); // before its successor takes memory
        let data = TensorData::new(self.all[place.clone()].to_vec(), shape);
        let value = Tensor::from_inner(Tensor::from_data(data, self.device));
        let value = match strategy {
            Some(strategy) => value.with_gradient_checkpointing_strategy(strategy),
            None => value,
        };
        Param::from_mapped_value(id, value.set_require_grad(learns), mapper)
    }
}
