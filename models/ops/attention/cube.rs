//! Attention: by the kernels of `flash` where [`flash::takes`] says so, else Burn's matrix
//! products around one kernel that makes weights of scores, and one that takes their gradient back.
//! Both read and write the type of the products and compute in f32. The heads of queries that share
//! a head of keys are rows of one product, so that keys and values are not repeated and their
//! gradients need no sum of their own. Scores exist for a few sequences at a time ([`bytes_on`])
//! and are computed again in the backward, so none are kept.
#![allow(unsafe_code)] // kernels are launched without bounds checks: each says why that is sound

use burn::backend::ops::{BoolTensorOps, FloatTensorOps, IntTensorOps};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata, backend_extension};
use burn::tensor::{DType, IntDType, Shape, Slice};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::flash;
use super::flash::form::HIDDEN;
use super::{AttentionKernel, Inputs, Parts, Rows, Saved, Settings};
use crate::ops::cube::rows::{cube_max, cube_sum};
use crate::ops::cube::{
    Cube, FusedTensor, addresses, buffer, by_row, element, empty_in, floats, lanes, narrow, own_rows, wide,
};
use crate::ops::device::bytes_on;
use crate::ops::dropout::cube::{factor, scale, threshold};
use crate::ops::pitched;

/// How the scores of attention become weights.
#[derive(Debug, Clone, Copy)]
pub(in crate::ops) struct Scores {
    scale: f32,
    causal: bool,
    padded: bool,
    /// Heads of queries in a sequence, and queries in a head.
    heads: usize,
    queries: usize,
    /// Probability that a weight is zeroed.
    dropout: f64,
    /// The sequence of the whole batch that is the first here.
    first: usize,
}

/// The sequences `start..end` of a batch, with what the kernels need of it.
struct Part {
    qkv: [FusedTensor; 3],
    keys: FusedTensor,
    by: Scores,
}

/// Query, key and value as `[batch, kv_heads, rows, head_dim]`, where the rows of the query are
/// those of all heads that share a head of keys; the mask of keys as numbers, and the sequences of
/// each chunk.
struct Split {
    /// The query times [`query_scale`](Self::query_scale).
    qkv: [FusedTensor; 3],
    /// The factor of the scores in f16, applied before the product, in which they could overflow. 1
    /// in the other types, where the kernel multiplies them.
    query_scale: f32,
    keys: FusedTensor,
    by: Scores,
    chunks: Vec<(usize, usize)>,
}

impl Split {
    fn of(inputs: &Inputs<Cube>) -> Self {
        let settings = inputs.settings;
        let qkv = match &inputs.qkv {
            Parts::Separate(query, key, value) => [query, key, value].map(FusedTensor::clone),
            Parts::Packed(qkv) => {
                let d = qkv.shape()[1] / 3;
                [0, 1, 2].map(|i| Cube::float_slice(qkv.clone(), &[Slice::full(), Slice::from(i * d..(i + 1) * d)]))
            }
        };
        // Scores without a scale, as GPT-Neo's, can be larger than f16 holds.
        let is_unscaled = settings.scale >= 1.0 && qkv[0].dtype() == DType::F16;
        let [query, key, value] = qkv.map(|x| if is_unscaled { wide(x) } else { x });
        let queries = query.shape()[0] / settings.batch;
        let query = grouped(query, &inputs.settings, key.shape()[1]);
        let head_dim = query.shape()[3];
        let [key, value] = [key, value].map(|x| by_head(x, settings.batch, head_dim));
        let (query, query_scale, scale) = match query.dtype() {
            DType::F16 => (Cube::float_mul_scalar(query, settings.scale.into()), settings.scale, 1.0),
            _ => (query, 1.0, settings.scale),
        };
        let qkv = [query, key, value];
        let keys = qkv[1].shape()[2];
        let bytes = bytes_on(&qkv[0].device());
        let sequence = (settings.heads * queries) as u64 * pitched((keys * qkv[0].dtype().size()) as u64);
        let each = ((bytes / sequence.max(1)) as usize).clamp(1, settings.batch);
        let starts = (0..settings.batch).step_by(each);
        Self {
            qkv,
            query_scale,
            keys: match settings.rows {
                Rows::Padded => Cube::bool_into_int(inputs.keys.clone(), IntDType::I32),
                _ => inputs.seed.clone(), // which is not read
            },
            by: Scores {
                scale,
                causal: settings.causal,
                padded: settings.rows == Rows::Padded,
                heads: settings.heads,
                queries,
                dropout: settings.dropout,
                first: 0,
            },
            chunks: starts.map(|start| (start, (start + each).min(settings.batch))).collect(),
        }
    }

    fn part(&self, (start, end): (usize, usize)) -> Part {
        Part {
            qkv: self.qkv.each_ref().map(|x| self.rows(x, (start, end))),
            keys: if self.by.padded && self.chunks.len() > 1 {
                Cube::int_slice(self.keys.clone(), &[Slice::from(start..end)])
            } else {
                self.keys.clone()
            },
            by: Scores { first: start, ..self.by },
        }
    }

    /// The sequences `start..end` of `x`.
    fn rows(&self, x: &FusedTensor, (start, end): (usize, usize)) -> FusedTensor {
        match self.chunks.len() {
            1 => x.clone(),
            _ => Cube::float_slice(x.clone(), &[Slice::from(start..end)]),
        }
    }
}

fn together(mut parts: Vec<FusedTensor>) -> FusedTensor {
    if parts.len() == 1 { parts.remove(0) } else { Cube::float_cat(parts, 0) }
}

/// `[batch * rows, heads * head_dim] -> [batch, heads, rows, head_dim]`
fn by_head(x: FusedTensor, batch: usize, head_dim: usize) -> FusedTensor {
    let [rows, width] = x.shape().dims();
    let shape = [batch, rows / batch, width / head_dim, head_dim];
    Cube::float_swap_dims(Cube::float_reshape(x, Shape::from(shape)), 1, 2)
}

/// The rows of the queries by the head of keys that they read, of which there are as many as
/// `kv_width` has room for: `[batch * queries, heads * head_dim] -> [batch, kv_heads, group *
/// queries, head_dim]`
fn grouped(x: FusedTensor, settings: &Settings, kv_width: usize) -> FusedTensor {
    let Settings { batch, heads, .. } = *settings;
    let head_dim = x.shape()[1] / heads;
    let x = by_head(x, batch, head_dim);
    let kv_heads = kv_width / head_dim;
    if kv_heads == heads {
        return x;
    }
    let rows = heads / kv_heads * x.shape()[2];
    Cube::float_reshape(x, Shape::from([batch, kv_heads, rows, head_dim]))
}

/// [`grouped`] turned around.
fn ungrouped(x: FusedTensor, heads: usize) -> FusedTensor {
    let [batch, kv_heads, rows, head_dim] = x.shape().dims();
    if kv_heads == heads {
        return merge(x);
    }
    merge(Cube::float_reshape(x, Shape::from([batch, heads, rows * kv_heads / heads, head_dim])))
}

/// `[batch, heads, rows, head_dim] -> [batch * rows, heads * head_dim]`
fn merge(x: FusedTensor) -> FusedTensor {
    let [batch, heads, rows, head_dim] = x.shape().dims();
    Cube::float_reshape(Cube::float_swap_dims(x, 1, 2), Shape::from([batch * rows, heads * head_dim]))
}

fn transposed(x: &FusedTensor) -> FusedTensor {
    Cube::float_swap_dims(x.clone(), 2, 3)
}

impl AttentionKernel for Cube {
    fn keeps_result(inputs: &Inputs<Self>) -> bool {
        flash::takes(inputs)
    }

    fn forward(inputs: &Inputs<Self>) -> (FusedTensor, FusedTensor) {
        if flash::takes(inputs) {
            return flash::forward(inputs);
        }
        let split = Split::of(inputs);
        let (mut outs, mut lses) = (Vec::new(), Vec::new());
        for &chunk in &split.chunks {
            let Part { qkv: [query, key, value], keys, by } = split.part(chunk);
            let scores = Self::float_matmul(query, transposed(&key));
            let (weights, lse) = Self::attention_weights(scores, keys, inputs.seed.clone(), by);
            outs.push(Self::float_matmul(weights, value));
            lses.push(lse);
        }
        let out = ungrouped(together(outs), inputs.settings.heads);
        (narrow(out, inputs.qkv.first().dtype()), together(lses))
    }

    fn backward(saved: Saved<Self>, dout: FusedTensor) -> Parts<Self> {
        if let Some(out) = saved.out.clone() {
            return flash::backward(saved, out, dout);
        }
        // The scores are those of the forward to the last bit only by the same product of the same
        // layouts.
        let split = Split::of(&saved.inputs);
        let settings = saved.inputs.settings;
        let [_, kv_heads, _, head_dim] = split.qkv[1].shape().dims();
        let dout = grouped(narrow(dout, split.qkv[0].dtype()), &settings, kv_heads * head_dim);
        let mut gradients = [Vec::new(), Vec::new(), Vec::new()];
        for &chunk in &split.chunks {
            let Part { qkv: [query, key, value], keys, by } = split.part(chunk);
            let (dout, lse) = (split.rows(&dout, chunk), split.rows(&saved.lse, chunk));
            let scores = Self::float_matmul(query.clone(), transposed(&key));
            let dweights = Self::float_matmul(dout.clone(), transposed(&value));
            let (weights, dscores) =
                Self::attention_backward(scores, lse, dweights, keys, saved.inputs.seed.clone(), by);
            gradients[0].push(Self::float_matmul(dscores.clone(), key));
            gradients[1].push(Self::float_matmul(transposed(&dscores), query));
            gradients[2].push(Self::float_matmul(transposed(&weights), dout));
        }
        let [query, key, value] = gradients.map(together);
        let [query, key, value] = [ungrouped(query, settings.heads), merge(key), merge(value)];
        let scales = split.query_scale != 1.0;
        let query = if scales { Self::float_mul_scalar(query, split.query_scale.into()) } else { query };
        let dtype = saved.inputs.qkv.first().dtype();
        let [query, key, value] = [query, key, value].map(|gradient| narrow(gradient, dtype));
        match saved.inputs.qkv {
            Parts::Separate(..) => Parts::Separate(query, key, value),
            Parts::Packed(_) => Parts::Packed(Self::float_cat(vec![query, key, value], 1)),
        }
    }
}

/// `[batch, kv_heads, group * queries, keys]` of a chunk's scores.
fn sizes(scores: &CubeTensor) -> [usize; 4] {
    scores.shape().dims()
}

/// The kernels, as operations of a backend.
#[backend_extension(Cube, Fusion)]
pub(in crate::ops) trait ScoreKernels: Backend {
    /// `(weights, lse)`: the softmax of each row of `scores [batch, kv_heads, group * queries,
    /// keys]`, of any type, with its dropout, in place where nobody else holds them, and the
    /// logarithm of the row's sum, `[batch, kv_heads, group * queries]` in f32.
    #[fusion(meta = |scores, _keys, _seed, _by| {
        (scores.clone(), floats([scores.shape[0], scores.shape[1], scores.shape[2]]))
    })]
    fn attention_weights(
        scores: FloatTensor<Self>,
        keys: IntTensor<Self>,
        seed: IntTensor<Self>,
        by: Scores,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// `(weights, dscores)` from the scores, their rows' logarithms and the gradient of the
    /// weights, in the type of the scores.
    #[fusion(meta = |scores, _lse, _dweights, _keys, _seed, _by| (scores.clone(), scores.clone()))]
    fn attention_backward(
        scores: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        dweights: FloatTensor<Self>,
        keys: IntTensor<Self>,
        seed: IntTensor<Self>,
        by: Scores,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

impl ScoreKernels for CubeBackend {
    fn attention_weights(
        scores: CubeTensor,
        keys: CubeTensor,
        seed: CubeTensor,
        by: Scores,
    ) -> (CubeTensor, CubeTensor) {
        let (scores, pitch) = own_rows(scores);
        let [keys, seed] = [keys, seed].map(into_contiguous);
        let [batch, kv_heads, of_group, columns] = sizes(&scores);
        let lse = empty_in(&scores, [batch, kv_heads, of_group], DType::F32);
        let rows = batch * by.heads * by.queries;
        let (count, dim) = by_row(&scores, rows);
        // SAFETY: a cube reads and writes its own row, if there is one; where `padded`, `keys` has
        // a row for every sequence.
        unsafe {
            weigh_rows::launch_unchecked(
                &scores.client,
                count,
                dim,
                addresses([&scores]),
                buffer(&scores),
                buffer(&keys),
                buffer(&seed),
                buffer(&lse),
                rows,
                by.queries,
                columns,
                by.heads,
                pitch,
                by.first * by.heads * by.queries,
                by.scale,
                threshold(by.dropout),
                scale(by.dropout),
                by.causal,
                by.padded,
                by.dropout > 0.0,
                lanes(&scores),
                element(&scores),
            );
        }
        (scores, lse)
    }

    fn attention_backward(
        scores: CubeTensor,
        lse: CubeTensor,
        dweights: CubeTensor,
        keys: CubeTensor,
        seed: CubeTensor,
        by: Scores,
    ) -> (CubeTensor, CubeTensor) {
        let [(scores, pitch), (dweights, dpitch)] = [scores, dweights].map(own_rows);
        let [lse, keys, seed] = [lse, keys, seed].map(into_contiguous);
        let [batch, _, _, columns] = sizes(&scores);
        let rows = batch * by.heads * by.queries;
        let (count, dim) = by_row(&scores, rows);
        // SAFETY: as in `attention_weights`.
        unsafe {
            weigh_backward_rows::launch_unchecked(
                &scores.client,
                count,
                dim,
                addresses([&scores, &dweights]),
                buffer(&scores),
                buffer(&dweights),
                buffer(&lse),
                buffer(&keys),
                buffer(&seed),
                rows,
                by.queries,
                columns,
                by.heads,
                pitch,
                dpitch,
                by.first * by.heads * by.queries,
                by.scale,
                threshold(by.dropout),
                scale(by.dropout),
                by.causal,
                by.padded,
                by.dropout > 0.0,
                lanes(&scores),
                element(&scores),
            );
        }
        (scores, dweights)
    }
}

/// The score of key `column` for the query of row `row`, counted over the chunk, or [`HIDDEN`].
#[cube]
#[allow(clippy::collapsible_if)] // the outer condition is decided when the kernel is made, the inner one when it runs
fn score(
    value: f32,
    keys: &[i32],
    row: usize,
    column: usize,
    queries: usize,
    columns: usize,
    heads: usize,
    scale: f32,
    #[comptime] causal: bool,
    #[comptime] padded: bool,
) -> f32 {
    let mut score = value * scale;
    if comptime!(causal) {
        if column > row % queries {
            score = HIDDEN;
        }
    }
    if comptime!(padded) {
        if keys[row / (queries * heads) * columns + column] == 0 {
            score = HIDDEN;
        }
    }
    score
}

/// The first column behind those that the query of row `row` may see: padding may leave none, so
/// that all are weighted.
#[cube]
fn behind(row: usize, queries: usize, columns: usize, #[comptime] causal: bool, #[comptime] padded: bool) -> usize {
    if comptime!(causal && !padded) { min(row % queries + 1, columns) } else { columns }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn weigh_rows<F: Float>(
    scores: &mut [F],
    keys: &[i32],
    seed: &[i32],
    lse: &mut [f32],
    rows: usize,
    queries: usize,
    columns: usize,
    heads: usize,
    pitch: usize,
    first_row: usize,
    scale: f32,
    threshold: u32,
    keep_scale: f32,
    #[comptime] causal: bool,
    #[comptime] padded: bool,
    #[comptime] drops: bool,
    #[comptime] lanes: usize,
    #[define(F)] _dtype: ElemType,
) {
    let mut scratch = Shared::<[f32]>::new_slice(lanes);
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let start = row * pitch;
    let end = behind(row, queries, columns, causal, padded);
    let mut largest = f32::cast_from(HIDDEN);
    let mut column = UNIT_POS as usize;
    while column < end {
        let value = f32::cast_from(scores[start + column]);
        let value = score(value, keys, row, column, queries, columns, heads, scale, causal, padded);
        largest = max(largest, value);
        column += lanes;
    }
    let largest = cube_max(largest, &mut scratch, lanes);
    let mut sum = 0.0f32;
    let mut column = UNIT_POS as usize;
    while column < end {
        let value = f32::cast_from(scores[start + column]);
        let value = score(value, keys, row, column, queries, columns, heads, scale, causal, padded);
        sum += (value - largest).exp();
        column += lanes;
    }
    let sum = cube_sum(sum, &mut scratch, lanes);
    let mut column = UNIT_POS as usize;
    while column < end {
        let value = f32::cast_from(scores[start + column]);
        let value = score(value, keys, row, column, queries, columns, heads, scale, causal, padded);
        let mut weight = (value - largest).exp() / sum;
        if comptime!(drops) {
            weight *= factor(seed, u32::cast_from(first_row + row), u32::cast_from(column), threshold, keep_scale);
        }
        scores[start + column] = F::cast_from(weight); // of the unit's own score, which nobody else reads
        column += lanes;
    }
    while column < columns {
        scores[start + column] = F::cast_from(0.0f32);
        column += lanes;
    }
    if UNIT_POS == 0 {
        lse[row] = largest + sum.ln();
    }
}

/// With `p` the weights before dropout, `f` dropout's factors and `g` the gradient of the weights:
/// `ds = scale p (f g - sum(p f g))`. `scores` become the weights after dropout, `dweights` become
/// `ds`.
#[cube(launch_unchecked, address_type = "dynamic")]
fn weigh_backward_rows<F: Float>(
    scores: &mut [F],
    dweights: &mut [F],
    lse: &[f32],
    keys: &[i32],
    seed: &[i32],
    rows: usize,
    queries: usize,
    columns: usize,
    heads: usize,
    pitch: usize,
    dpitch: usize,
    first_row: usize,
    scale: f32,
    threshold: u32,
    keep_scale: f32,
    #[comptime] causal: bool,
    #[comptime] padded: bool,
    #[comptime] drops: bool,
    #[comptime] lanes: usize,
    #[define(F)] _dtype: ElemType,
) {
    let mut scratch = Shared::<[f32]>::new_slice(lanes);
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let start = row * pitch;
    let dstart = row * dpitch;
    let end = behind(row, queries, columns, causal, padded);
    // Where no key is seen, the logarithm of the sum has drowned in HIDDEN, and all weights are
    // alike.
    let none = lse[row] < 0.5f32 * HIDDEN;
    let even = 1.0f32 / f32::cast_from(columns);
    let mut sum = 0.0f32;
    let mut column = UNIT_POS as usize;
    while column < end {
        let value = f32::cast_from(scores[start + column]);
        let value = score(value, keys, row, column, queries, columns, heads, scale, causal, padded);
        let mut weight = select(none, even, (value - lse[row]).exp());
        if comptime!(drops) {
            weight *= factor(seed, u32::cast_from(first_row + row), u32::cast_from(column), threshold, keep_scale);
        }
        sum += weight * f32::cast_from(dweights[dstart + column]);
        column += lanes;
    }
    let sum = cube_sum(sum, &mut scratch, lanes);
    let mut column = UNIT_POS as usize;
    while column < end {
        let value = f32::cast_from(scores[start + column]);
        let value = score(value, keys, row, column, queries, columns, heads, scale, causal, padded);
        let weight = select(none, even, (value - lse[row]).exp());
        let mut dropped = weight;
        let mut dweight = f32::cast_from(dweights[dstart + column]);
        if comptime!(drops) {
            let factor = factor(seed, u32::cast_from(first_row + row), u32::cast_from(column), threshold, keep_scale);
            dropped *= factor;
            dweight *= factor;
        }
        // A hidden key has no gradient: its score is a constant.
        let seen = score(0.0f32, keys, row, column, queries, columns, heads, scale, causal, padded) == 0.0f32;
        dweights[dstart + column] = F::cast_from(select(seen, scale * weight * (dweight - sum), 0.0f32));
        scores[start + column] = F::cast_from(dropped);
        column += lanes;
    }
    while column < columns {
        dweights[dstart + column] = F::cast_from(0.0f32);
        scores[start + column] = F::cast_from(0.0f32);
        column += lanes;
    }
}
