//! Attention on the tensor cores of CUDA devices, in bf16 and f16, without a matrix of scores in
//! global memory: FlashAttention-2 (Dao 2023) with the online softmax of Milakov and Gimelshein
//! (2018).
//!
//! A cube takes 64 queries of a head, holds them in registers and goes over the keys in tiles,
//! which lie in shared memory. The scores of a tile are the result of one product of tensor cores
//! and, rounded, the left operand of the next, so that they stay in registers. Sums, maxima, the
//! softmax and dropout are f32. The forward leaves the result and the log-sum-exp of each row's
//! scores. The backward computes the scores again, in two kernels that each write what they alone
//! compute, so that no sum depends on the order of cubes: one has the gradient of 64 queries, the
//! other those of 64 keys and their values, over all heads of queries that share them.
//!
//! Rows of query, key and value are read where they lie, packed or apart, and the gradients are
//! written in the form of the inputs. The scores of a tile are in the units of a plane as the
//! instruction `mma.sync.m16n8k16` (PTX ISA, "Matrix fragments for mma.m16n8k16") has them: unit
//! `u` holds of each 8 columns the two from `u % 4 * 2` on, of the rows `u / 4` and `u / 4 + 8`.
#![allow(unsafe_code)] // kernels are launched without bounds checks: each says why that is sound
#![allow(clippy::too_many_arguments)] // those of a kernel are its buffers
#![allow(clippy::assign_op_pattern, clippy::manual_is_multiple_of)] // kernels have no other form

mod backward;
pub(super) mod form;
mod forward;
mod tiles;

use burn::backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata, backend_extension};
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

use super::{Inputs, Parts, Rows, Saved, Settings};
use crate::ops::cube::{
    Cube, FusedTensor, addresses, buffer, by_cube, dims2, element, empty, empty_in, floats, narrow, overwrite, rows_of,
    shaped, vector,
};
use crate::ops::device::{HEAD_DIMS, multiplies};
use crate::ops::dropout::cube::{scale, threshold};
use backward::{flash_backward_keys, flash_backward_queries};
use form::{Form, LOAD, PAIR, ROWS, UNITS};
use forward::flash_rows;

/// Whether the kernels of this file compute the attention of `inputs`. All else takes the products
/// of `cube.rs`: f32, other sizes of a head, devices without `mma.sync` of the type, and f16
/// without a scale, as GPT-Neo has it.
pub(super) fn takes(inputs: &Inputs<Cube>) -> bool {
    let query = inputs.qkv.first();
    let is_unscaled = inputs.settings.scale >= 1.0 && query.dtype() == DType::F16;
    let head_dim = Flash::head_dim(inputs);
    !is_unscaled && HEAD_DIMS.contains(&head_dim) && multiplies(&query.device(), query.dtype())
}

/// Bytes of the operands that the cubes which run at a time read again and again: a part of the
/// cache that all multiprocessors of an A100 (40 MiB) or H100 (50 MiB) share.
const CACHED: usize = 16 << 20;

/// One attention, as the kernels are told it.
#[derive(Debug, Clone, Copy)]
pub(in crate::ops) struct Flash {
    form: Form,
    /// Whether query, key and value are one tensor.
    packed: bool,
    batch: usize,
    heads: usize,
    kv_heads: usize,
    /// Queries of a sequence, and keys.
    queries: usize,
    columns: usize,
    scale: f32,
    /// Probability that a weight is zeroed.
    dropout: f64,
}

impl Flash {
    fn head_dim(inputs: &Inputs<Cube>) -> usize {
        let width = inputs.qkv.first().shape()[1];
        let parts = if let Parts::Packed(_) = inputs.qkv { 3 } else { 1 };
        width / parts / inputs.settings.heads
    }

    fn of(inputs: &Inputs<Cube>) -> Self {
        let Settings { batch, heads, scale, causal, rows, dropout, .. } = inputs.settings;
        let head_dim = Self::head_dim(inputs);
        let form = Form { head_dim, causal, padded: rows == Rows::Padded, drops: dropout > 0.0 };
        let queries = inputs.qkv.first().shape()[0] / batch;
        let (kv_heads, columns, packed) = match &inputs.qkv {
            Parts::Packed(_) => (heads, queries, true),
            Parts::Separate(_, key, _) => (key.shape()[1] / head_dim, key.shape()[0] / batch, false),
        };
        Self { form, packed, batch, heads, kv_heads, queries, columns, scale, dropout }
    }

    /// `[rows, columns]` of the result.
    fn out(&self) -> [usize; 2] {
        [self.batch * self.queries, self.heads * self.form.head_dim]
    }

    fn rows(&self) -> usize {
        self.batch * self.heads * self.queries
    }

    /// Heads whose cubes run side by side, each of which reads two tensors of `rows` rows a head.
    fn together(&self, rows: usize) -> usize {
        (CACHED / (2 * rows * self.form.head_dim * size_of::<u16>())).max(1)
    }

    /// Where query, key and value begin in a row, in numbers.
    fn starts(&self) -> [usize; 3] {
        let width = self.heads * self.form.head_dim;
        if self.packed { [0, width, 2 * width] } else { [0; 3] }
    }
}

/// The result, and each row's log-sum-exp.
pub(super) fn forward(inputs: &Inputs<Cube>) -> (FusedTensor, FusedTensor) {
    let [query, key, value] = parts(&inputs.qkv);
    Cube::flash(query, key, value, inputs.keys.clone(), inputs.seed.clone(), Flash::of(inputs))
}

/// The gradients, in the form of the inputs.
pub(super) fn backward(saved: Saved<Cube>, out: FusedTensor, dout: FusedTensor) -> Parts<Cube> {
    let Saved { inputs, lse, .. } = saved;
    let by = Flash::of(&inputs);
    let Inputs { qkv, keys, seed, .. } = inputs;
    let dout = narrow(dout, out.dtype());
    match qkv {
        Parts::Packed(qkv) => Parts::Packed(Cube::flash_backward_packed(qkv, out, dout, lse, keys, seed, by)),
        Parts::Separate(query, key, value) => {
            let (dquery, dkey, dvalue) = Cube::flash_backward(query, key, value, out, dout, lse, keys, seed, by);
            Parts::Separate(dquery, dkey, dvalue)
        }
    }
}

fn parts(qkv: &Parts<Cube>) -> [FusedTensor; 3] {
    match qkv {
        Parts::Packed(qkv) => [qkv.clone(), qkv.clone(), qkv.clone()],
        Parts::Separate(query, key, value) => [query.clone(), key.clone(), value.clone()],
    }
}

/// The kernels, as operations of a backend. Packed, `query`, `key` and `value` are one tensor.
#[backend_extension(Cube, Fusion)]
pub(in crate::ops) trait FlashKernels: Backend {
    /// `(out [batch * queries, heads * head_dim], lse [batch, heads, queries])`, the latter in f32.
    #[fusion(meta = |query, _key, _value, _keys, _seed, by| {
        (shaped(query, by.out()), floats([by.batch, by.heads, by.queries]))
    })]
    fn flash(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        keys: BoolTensor<Self>,
        seed: IntTensor<Self>,
        by: Flash,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// The gradients of `query`, `key` and `value`.
    #[fusion(meta = |query, key, value, _out, _dout, _lse, _keys, _seed, _by| {
        (query.clone(), key.clone(), value.clone())
    })]
    fn flash_backward(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        out: FloatTensor<Self>,
        dout: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        keys: BoolTensor<Self>,
        seed: IntTensor<Self>,
        by: Flash,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// The gradient of `qkv`.
    #[fusion(meta = |qkv, _out, _dout, _lse, _keys, _seed, _by| qkv.clone())]
    fn flash_backward_packed(
        qkv: FloatTensor<Self>,
        out: FloatTensor<Self>,
        dout: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        keys: BoolTensor<Self>,
        seed: IntTensor<Self>,
        by: Flash,
    ) -> FloatTensor<Self>;
}

/// A tensor of rows that all begin at multiples of 16 bytes, and the numbers from one to the next.
fn in_loads(x: CubeTensor) -> (CubeTensor, usize) {
    let (x, pitch) = rows_of(x);
    let [_, width] = dims2(&x);
    if vector(&x, [width, pitch]) == LOAD {
        return (x, pitch);
    }
    (overwrite(empty(&x, x.shape()), x), width)
}

impl FlashKernels for CubeBackend {
    fn flash(
        query: CubeTensor,
        key: CubeTensor,
        value: CubeTensor,
        keys: CubeTensor,
        seed: CubeTensor,
        by: Flash,
    ) -> (CubeTensor, CubeTensor) {
        let [(query, q_pitch), (key, k_pitch), (value, v_pitch)] = [query, key, value].map(in_loads);
        let [keys, seed] = [keys, seed].map(into_contiguous);
        let out = empty(&query, by.out());
        let lse = empty_in(&query, [by.batch, by.heads, by.queries], DType::F32);
        let [q_start, k_start, v_start] = by.starts();
        let pairs = by.batch * by.heads;
        let cubes = pairs * by.queries.div_ceil(ROWS);
        let (count, dim) = by_cube(&query, cubes, UNITS);
        // SAFETY: a cube reads rows of its sequence below `queries` and `columns`, whose loads are
        // aligned, and writes its own rows of the result, if there are such; where `padded`, `keys`
        // has a row for every sequence.
        unsafe {
            flash_rows::launch_unchecked(
                &query.client,
                count,
                dim,
                addresses([&query, &key, &value, &out]),
                LOAD,
                PAIR,
                buffer(&query),
                buffer(&key),
                buffer(&value),
                buffer(&keys),
                buffer(&seed),
                buffer(&out),
                buffer(&lse),
                cubes,
                pairs,
                by.together(by.columns),
                by.heads,
                by.heads / by.kv_heads,
                by.queries,
                by.columns,
                q_start / LOAD,
                q_pitch / LOAD,
                k_start / LOAD,
                k_pitch / LOAD,
                v_start / LOAD,
                v_pitch / LOAD,
                by.out()[1] / PAIR,
                by.scale,
                threshold(by.dropout),
                scale(by.dropout),
                by.form,
                element(&query),
                element(&keys),
            );
        }
        (out, lse)
    }

    fn flash_backward(
        query: CubeTensor,
        key: CubeTensor,
        value: CubeTensor,
        out: CubeTensor,
        dout: CubeTensor,
        lse: CubeTensor,
        keys: CubeTensor,
        seed: CubeTensor,
        by: Flash,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        let [dquery, dkey, dvalue] = [&query, &key, &value].map(|x| empty(x, x.shape()));
        let gradients = [&dquery, &dkey, &dvalue];
        gradients_into(gradients, [query, key, value], [out, dout], lse, [keys, seed], by);
        (dquery, dkey, dvalue)
    }

    fn flash_backward_packed(
        qkv: CubeTensor,
        out: CubeTensor,
        dout: CubeTensor,
        lse: CubeTensor,
        keys: CubeTensor,
        seed: CubeTensor,
        by: Flash,
    ) -> CubeTensor {
        let dqkv = empty(&qkv, qkv.shape());
        let gradients = [&dqkv, &dqkv, &dqkv];
        gradients_into(gradients, [qkv.clone(), qkv.clone(), qkv], [out, dout], lse, [keys, seed], by);
        dqkv
    }
}

/// Writes the gradients of query, key and value, which are tensors without a pitch.
fn gradients_into(
    [dquery, dkey, dvalue]: [&CubeTensor; 3],
    qkv: [CubeTensor; 3],
    results: [CubeTensor; 2],
    lse: CubeTensor,
    ints: [CubeTensor; 2],
    by: Flash,
) {
    let [(query, q_pitch), (key, k_pitch), (value, v_pitch)] = qkv.map(in_loads);
    let [(out, out_pitch), (dout, dout_pitch)] = results.map(in_loads);
    let lse = into_contiguous(lse);
    let [keys, seed] = ints.map(into_contiguous);
    let delta = empty_in(&query, [by.rows()], DType::F32);
    let [q_start, k_start, v_start] = by.starts();
    let [dq_pitch, dk_pitch, dv_pitch] = [dquery, dkey, dvalue].map(|x| dims2(x)[1]);
    let group = by.heads / by.kv_heads;
    let pairs = by.batch * by.heads;
    let cubes = pairs * by.queries.div_ceil(ROWS);
    let (count, dim) = by_cube(&query, cubes, UNITS);
    // SAFETY: as in `flash`; a cube writes the gradients of its own queries.
    unsafe {
        flash_backward_queries::launch_unchecked(
            &query.client,
            count,
            dim,
            addresses([&query, &key, &value, &out, &dout, dquery]),
            LOAD,
            PAIR,
            buffer(&query),
            buffer(&key),
            buffer(&value),
            buffer(&out),
            buffer(&dout),
            buffer(&lse),
            buffer(&keys),
            buffer(&seed),
            buffer(dquery),
            buffer(&delta),
            cubes,
            pairs,
            by.together(by.columns),
            by.heads,
            group,
            by.queries,
            by.columns,
            q_start / LOAD,
            q_pitch / LOAD,
            k_start / LOAD,
            k_pitch / LOAD,
            v_start / LOAD,
            v_pitch / LOAD,
            out_pitch / LOAD,
            dout_pitch / LOAD,
            q_start / PAIR,
            dq_pitch / PAIR,
            by.scale,
            threshold(by.dropout),
            scale(by.dropout),
            by.form,
            element(&query),
            element(&keys),
        );
    }
    let pairs = by.batch * by.kv_heads;
    let cubes = pairs * by.columns.div_ceil(ROWS);
    let (count, dim) = by_cube(&query, cubes, UNITS);
    // SAFETY: as in `flash`; a cube writes the gradients of its own keys and values.
    unsafe {
        flash_backward_keys::launch_unchecked(
            &query.client,
            count,
            dim,
            addresses([&query, &key, &value, &dout, dkey, dvalue]),
            LOAD,
            PAIR,
            buffer(&query),
            buffer(&key),
            buffer(&value),
            buffer(&dout),
            buffer(&lse),
            buffer(&delta),
            buffer(&keys),
            buffer(&seed),
            buffer(dkey),
            buffer(dvalue),
            cubes,
            pairs,
            by.together(by.queries),
            by.heads,
            group,
            by.queries,
            by.columns,
            q_start / LOAD,
            q_pitch / LOAD,
            k_start / LOAD,
            k_pitch / LOAD,
            v_start / LOAD,
            v_pitch / LOAD,
            dout_pitch / LOAD,
            k_start / PAIR,
            dk_pitch / PAIR,
            v_start / PAIR,
            dv_pitch / PAIR,
            by.scale,
            threshold(by.dropout),
            scale(by.dropout),
            by.form,
            element(&query),
            element(&keys),
        );
    }
}
