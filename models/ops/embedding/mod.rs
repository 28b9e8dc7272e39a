//! Looking up rows of a table, with a backward that is neither serial in the tokens nor dependent
//! on their order: the tokens are sorted by id once, and every thread sums the rows of its own part
//! of the table.
#![allow(unsafe_code)] // kernel: memory is written without being filled first, or by several threads at once

#[cfg(feature = "compiler")]
pub(super) mod cube;

use std::mem::MaybeUninit;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, Flex, TensorMetadata, autodiff::Autodiff, backend_extension};
use burn::tensor::{DType, Int, Shape, Tensor};
use rayon::prelude::*;

use super::autodiff::{Call, Differentiate};
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
            let (table, ids) = (table.into_dispatch(), ids.into_dispatch());
            Tensor::from_dispatch(<Dispatch as EmbeddingOp>::lookup(table, ids, padding_idx))
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
    fn lookup(table: FloatTensor<Self>, ids: IntTensor<Self>, padding_idx: Option<usize>) -> FloatTensor<Self>;
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
}

/// Without autodiff the operator is its kernel's forward.
impl<B: EmbeddingKernel> EmbeddingOp for B {
    fn lookup(table: FloatTensor<B>, ids: IntTensor<B>, _: Option<usize>) -> FloatTensor<B> {
        B::forward(table, ids)
    }
}

impl<B: EmbeddingKernel, C: CheckpointStrategy> EmbeddingOp for Autodiff<B, C> {
    fn lookup(table: FloatTensor<Self>, ids: IntTensor<Self>, padding_idx: Option<usize>) -> FloatTensor<Self> {
        let mut call = Call::<B, C>::new();
        let table = call.input(table);
        let saved = Saved { table: table.shape(), ids: ids.clone(), padding_idx };
        call.record(|_| (B::forward(table, ids), saved))
    }
}

/// The values that the backward needs.
#[derive(Debug, Clone)]
struct Saved<I> {
    /// The shape of the table.
    table: Shape,
    ids: I,
    padding_idx: Option<usize>,
}

impl<B: EmbeddingKernel> Differentiate<B> for Saved<IntTensor<B>> {
    fn gradients(self, dy: FloatTensor<B>, _: &[bool]) -> Vec<Option<FloatTensor<B>>> {
        vec![Some(B::backward(self.table, self.ids, self.padding_idx, dy))]
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
        let dy = flex::row_major(dy);
        let (num, width) = (table[0], table[1]);
        // (id, token), sorted: the tokens of one id stay in their order, so the sums do not depend
        // on the sort.
        let mut by_id = flex::integers(&ids).into_iter().map(|id| id as usize).zip(0usize..).collect::<Vec<_>>();
        by_id.retain(|&(id, _)| Some(id) != padding_idx);
        by_id.sort_unstable();
        let block = flex::block_rows(width);
        // SAFETY: every block writes zeros to all of its rows before anything else.
        let dtable = unsafe {
            flex::written(num * width, |dtable| {
                dtable.par_chunks_mut(block * width).enumerate().for_each(|(i, rows)| {
                    rows.fill(MaybeUninit::new(0.0));
                    let rows = rows.assume_init_mut();
                    let first = i * block;
                    let from = by_id.partition_point(|&(id, _)| id < first);
                    let to = by_id.partition_point(|&(id, _)| id < first + block);
                    for &(id, token) in &by_id[from..to] {
                        let row = &mut rows[(id - first) * width..][..width];
                        flex::add_rows(&flex::values(&dy)[token * width..][..width], row);
                    }
                });
            })
        };
        flex::tensor(dtable, [num, width])
    }
}
