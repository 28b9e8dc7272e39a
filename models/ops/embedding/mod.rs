//! Looking up rows of a table, with a backward that is neither serial in the tokens nor dependent
//! on their order: the tokens are sorted by id once, and every thread sums the rows of its own part
//! of the table.
#![allow(unsafe_code)] // kernel: memory is written without being filled first, or by several threads at once

#[cfg(feature = "compiler")]
pub(super) mod cube;

use std::cell::OnceCell;
use std::mem::MaybeUninit;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, Flex, TensorMetadata, autodiff::Autodiff, backend_extension};
use burn::tensor::{DType, Int, Shape, Tensor};
use rayon::prelude::*;

use super::autodiff::{Call, Differentiate, HasGradient};
use super::contract::Contract;
use super::flex::{self, FlexTensor};
use super::{Form, Operator, Ops, trace};

/// The rows of `table [num, features]` that `ids [n]` name: `[n, features]`. The row `padding_idx`
/// gets no gradient from being looked up, as in torch's `Embedding`.
///
/// # Panics
/// For a table without features, a `padding_idx` that the table does not have and, on the CPU, an
/// id that it does not have; in the fused form for another type than f32 and for tensors on
/// different devices.
pub fn embedding(table: Tensor<2>, ids: Tensor<1, Int>, padding_idx: Option<usize>, ops: Ops) -> Tensor<2> {
    tied_embedding(table, ids, padding_idx, None, ops)
}

/// The table of a forward pass that is both looked up ([`tied_embedding`]) and the weight of a loss
/// ([`CrossEntropy::tied_sum`](super::cross_entropy::CrossEntropy::tied_sum)): the backward of the
/// lookup adds its rows in place to the gradient that the loss has given the table. Autodiff would
/// make a second table of them, zeros for the most part, and add the two.
///
/// The first lookup in the fused form of a table that learns fills it; until then, and for other
/// lookups, autodiff adds gradients as ever. One backward pass must reach both the lookup and the
/// loss.
#[derive(Debug, Default)]
pub struct TiedTable(OnceCell<Shared>);

/// A node of autodiff between a table and those who read it, which collects its gradient.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    /// The table.
    pub table: Tensor<2>,
    pub has_gradient: HasGradient,
}

impl TiedTable {
    /// `table` for a lookup, and whether it has a gradient if it is that of the loss as well.
    fn for_lookup(&self, table: Tensor<2>) -> (Tensor<2>, Option<HasGradient>) {
        if self.0.get().is_some() || !table.is_tracked() {
            return (table, None);
        }
        let Shared { table, has_gradient } = self.0.get_or_init(|| {
            let table = Tensor::from_dispatch(<Dispatch as EmbeddingOp>::shared(table.into_dispatch()));
            Shared { table, has_gradient: HasGradient::default() }
        });
        (table.clone(), Some(has_gradient.clone()))
    }

    /// The table, if it has been looked up.
    pub(super) fn for_loss(&self) -> Option<Shared> {
        self.0.get().cloned()
    }
}

/// [`embedding`] of a table that is `tied`, if it is, to the weight of a loss.
///
/// # Panics
/// Where [`embedding`] panics.
pub fn tied_embedding(
    table: Tensor<2>,
    ids: Tensor<1, Int>,
    padding_idx: Option<usize>,
    tied: Option<&TiedTable>,
    ops: Ops,
) -> Tensor<2> {
    let form = ops.form(Operator::Embedding);
    let _time = trace::call("embedding");
    let contract = Contract::new("embedding", form, table.device());
    let [num, width] = contract.matrix("table", &table);
    contract.floats("table", &table, [num, width], DType::F32);
    contract.ids("ids", &ids, ids.dims()[0], num);
    let known = padding_idx.is_none_or(|row| row < num);
    contract.ensure(known, "padding_idx", format_args!("a row of {num}"), padding_idx);
    match form {
        Form::Plain => plain(table, ids, padding_idx),
        Form::Fused => {
            let (table, has_gradient) = match tied {
                Some(tied) => tied.for_lookup(table),
                None => (table, None),
            };
            let (table, ids) = (table.into_dispatch(), ids.into_dispatch());
            Tensor::from_dispatch(<Dispatch as EmbeddingOp>::lookup(table, ids, padding_idx, has_gradient))
        }
    }
}

fn plain(table: Tensor<2>, ids: Tensor<1, Int>, padding_idx: Option<usize>) -> Tensor<2> {
    let x = table.select(0, ids.clone());
    match padding_idx {
        Some(row) if x.is_tracked() => {
            let [n, features] = x.dims();
            let is_padding = ids.equal_scalar(row as i64).reshape([n, 1]).expand([n, features]);
            x.clone().mask_where(is_padding, x.detach())
        }
        _ => x,
    }
}

#[backend_extension(Flex, Cube: cfg(feature = "compiler"), Autodiff)]
trait EmbeddingOp: Backend {
    /// `table` as a node of its own.
    fn shared(table: FloatTensor<Self>) -> FloatTensor<Self>;

    fn lookup(
        table: FloatTensor<Self>,
        ids: IntTensor<Self>,
        padding_idx: Option<usize>,
        has_gradient: Option<HasGradient>,
    ) -> FloatTensor<Self>;
}

/// The kernels that a backend supplies.
pub(super) trait EmbeddingKernel: Backend {
    fn forward(table: FloatTensor<Self>, ids: IntTensor<Self>) -> FloatTensor<Self>;

    /// The gradient of a table of shape `table`.
    fn backward(
        table: Shape,
        ids: IntTensor<Self>,
        padding_idx: Option<usize>,
        dy: FloatTensor<Self>,
    ) -> FloatTensor<Self>;

    /// The gradient of a table on top of the gradient `onto`, `[num, features]`, in place where
    /// nobody else holds that.
    fn add_backward(
        onto: FloatTensor<Self>,
        ids: IntTensor<Self>,
        padding_idx: Option<usize>,
        dy: FloatTensor<Self>,
    ) -> FloatTensor<Self>;
}

/// Without autodiff the operator is its kernel's forward.
impl<B: EmbeddingKernel> EmbeddingOp for B {
    fn shared(table: FloatTensor<B>) -> FloatTensor<B> {
        table
    }

    fn lookup(table: FloatTensor<B>, ids: IntTensor<B>, _: Option<usize>, _: Option<HasGradient>) -> FloatTensor<B> {
        B::forward(table, ids)
    }
}

impl<B: EmbeddingKernel, C: CheckpointStrategy> EmbeddingOp for Autodiff<B, C> {
    fn shared(table: FloatTensor<Self>) -> FloatTensor<Self> {
        let mut call = Call::<B, C>::new();
        let table = call.input(table);
        call.record(|_| (table, Passed))
    }

    fn lookup(
        table: FloatTensor<Self>,
        ids: IntTensor<Self>,
        padding_idx: Option<usize>,
        has_gradient: Option<HasGradient>,
    ) -> FloatTensor<Self> {
        let mut call = Call::<B, C>::new();
        let table = call.input(table);
        let saved = Saved { table: table.shape(), ids: ids.clone(), padding_idx, has_gradient };
        call.record(|_| (B::forward(table, ids), saved))
    }
}

/// The gradient of a node is that of its input.
#[derive(Debug, Clone)]
struct Passed;

impl<B: Backend> Differentiate<B> for Passed {
    fn gradients(self, dy: FloatTensor<B>, _: &[bool]) -> Vec<Option<FloatTensor<B>>> {
        vec![Some(dy)]
    }
}

/// The values that the backward needs.
#[derive(Debug, Clone)]
struct Saved<I> {
    /// The shape of the table.
    table: Shape,
    ids: I,
    padding_idx: Option<usize>,
    /// Whether the table has a gradient, if it is a node of its own.
    has_gradient: Option<HasGradient>,
}

impl<B: EmbeddingKernel> Differentiate<B> for Saved<IntTensor<B>> {
    fn gradients(self, dy: FloatTensor<B>, _: &[bool]) -> Vec<Option<FloatTensor<B>>> {
        vec![Some(B::backward(self.table, self.ids, self.padding_idx, dy))]
    }

    fn gradients_onto(
        self,
        dy: FloatTensor<B>,
        tracked: &[bool],
        take: &mut dyn FnMut(usize) -> FloatTensor<B>,
    ) -> Vec<Option<FloatTensor<B>>> {
        match &self.has_gradient {
            Some(table) if table.set() => vec![Some(B::add_backward(take(0), self.ids, self.padding_idx, dy))],
            _ => Differentiate::<B>::gradients(self, dy, tracked),
        }
    }
}

impl EmbeddingKernel for Flex {
    fn forward(table: FlexTensor, ids: FlexTensor) -> FlexTensor {
        let (table, ids) = (flex::row_major(table), flex::integers(&ids));
        let [_, width] = flex::dims2(&table);
        let block = flex::block_rows(width);
        // SAFETY: there is a block of rows for every block of ids, and each row is written whole.
        let x = unsafe {
            flex::written(ids.len() * width, |out| {
                out.par_chunks_mut(block * width).zip(ids.par_chunks(block)).for_each(|(out, ids)| {
                    for (out, &id) in out.chunks_exact_mut(width).zip(ids) {
                        let start = id as usize * width;
                        out.write_copy_of_slice(&flex::values(&table)[start..start + width]);
                    }
                });
            })
        };
        flex::tensor(x, [ids.len(), width])
    }

    fn backward(table: Shape, ids: FlexTensor, padding_idx: Option<usize>, dy: FlexTensor) -> FlexTensor {
        let (num, width) = (table[0], table[1]);
        let (rows, block) = (Sorted::new(&ids, padding_idx, dy), flex::block_rows(width));
        // SAFETY: every block writes zeros to all of its rows before anything else.
        let dtable = unsafe {
            flex::written(num * width, |dtable| {
                dtable.par_chunks_mut(block * width).enumerate().for_each(|(i, part)| {
                    part.fill(MaybeUninit::new(0.0));
                    rows.add_to(part.assume_init_mut(), i * block, width);
                });
            })
        };
        flex::tensor(dtable, [num, width])
    }

    fn add_backward(onto: FlexTensor, ids: FlexTensor, padding_idx: Option<usize>, dy: FlexTensor) -> FlexTensor {
        let [_, width] = flex::dims2(&onto);
        let (rows, block) = (Sorted::new(&ids, padding_idx, dy), flex::block_rows(width));
        flex::overwritten(onto, |dtable| {
            let parts = dtable.par_chunks_mut(block * width).enumerate();
            parts.for_each(|(i, part)| rows.add_to(part, i * block, width));
        })
    }
}

/// The gradients of rows that were looked up, by their ids.
struct Sorted {
    /// `(id, token)`, sorted: the tokens of one id stay in their order, and so do sums.
    by_id: Vec<(usize, usize)>,
    dy: FlexTensor,
}

impl Sorted {
    fn new(ids: &FlexTensor, padding_idx: Option<usize>, dy: FlexTensor) -> Self {
        let mut by_id = flex::integers(ids).into_iter().map(|id| id as usize).zip(0usize..).collect::<Vec<_>>();
        by_id.retain(|&(id, _)| Some(id) != padding_idx);
        by_id.sort_unstable();
        Self { by_id, dy: flex::row_major(dy) }
    }

    /// Adds them to `rows` of `width` numbers, a part of the table whose first row is `first`: the
    /// sum of an id to its row, which rounds as autodiff's sum of two tables.
    fn add_to(&self, rows: &mut [f32], first: usize, width: usize) {
        let from = self.by_id.partition_point(|&(id, _)| id < first);
        let to = self.by_id.partition_point(|&(id, _)| id < first + rows.len() / width);
        let gradient = |token: usize| &flex::values(&self.dy)[token * width..][..width];
        let mut sum = Vec::new();
        for tokens in self.by_id[from..to].chunk_by(|(one, _), (next, _)| one == next) {
            let (id, token) = tokens[0];
            let row = &mut rows[(id - first) * width..][..width];
            if let [_] = tokens {
                flex::add_rows(gradient(token), row);
                continue;
            }
            sum.clear();
            sum.extend_from_slice(gradient(token));
            for &(_, token) in &tokens[1..] {
                flex::add_rows(gradient(token), &mut sum);
            }
            flex::add_rows(&sum, row);
        }
    }
}
