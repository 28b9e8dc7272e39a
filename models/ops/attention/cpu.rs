//! Attention on the CPU: every block of query rows of every head of every sequence is a task of its
//! own; in the backward pass a task is a head with all its blocks, which add to the same gradients.
//! A block goes through scores, softmax and product one after the other, in memory that stays in
//! the cache. A thread packs keys and values once for the blocks and heads of theirs that it
//! computes one after the other. Kernels in f32 of AVX-512 multiply weights and gradients of scores
//! as they lie. A causal block stops at its last row, so about half of the products are never
//! computed. Heads of queries that share a head of keys read the same keys; the gradients that they
//! give for these keys are added up when all are there. Sequences need not have the same length,
//! and may have one query each. Scores, softmax and all sums are in f32. The operands of the
//! products are rounded to bf16 in a call of that type, weights and gradients of scores among them;
//! those of f16 stay f32. The result is in the type that the call names, gradients are in the
//! inputs'.
#![allow(unsafe_code)] // kernel: memory is written without being filled first, or by several threads at once

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

use burn::backend::Flex;
use burn::tensor::{FloatDType, TensorData};
use rayon::prelude::*;

use super::{AttentionKernel, Inputs, Parts, Rows, Saved, Settings};
use crate::ops::dropout::{Keep, KeepRow};
use crate::ops::flex::{self, FlexTensor};
use crate::ops::products::{Factor, Matrix, Output, Repacked, Rounding, Shared, multiply_rounded_rows, multiply_rows};
use crate::ops::simd::{exp_shifted, max, sum_pairs, vectorised};

/// Elements of one block of scores, about, if it has more rows than the least: 384 KiB, a part of a
/// core's second-level cache.
const BLOCK_ELEMENTS: usize = 98_304;
/// Rows of a block: multiples of the 32 keys of a step of tiles, so that the keys of a causal block
/// end with a step.
const BLOCK_ROWS: [usize; 3] = [32, 64, 96];
/// Queries of a sequence from which its keys and values are packed: those of one panel. The bound
/// was not measured.
const PACKED_FROM: usize = 12;

/// Heads of one operand within the rows of a tensor.
#[derive(Clone, Copy)]
struct Operand<'a> {
    values: &'a [f32],
    /// Where the first head starts in a row.
    offset: usize,
    row_stride: usize,
}

/// The sizes of one call.
#[derive(Clone, Copy)]
struct Sizes {
    /// Rows of queries, and of keys and values.
    queries: usize,
    keys: usize,
    /// Heads of queries, and of keys and values.
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl Sizes {
    /// Heads of queries that share a head of keys, one after the other.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
}

/// Rows one after the other.
#[derive(Clone, Copy)]
struct Span {
    start: usize,
    len: usize,
}

/// The rows of one sequence.
#[derive(Clone, Copy)]
struct Sequence {
    queries: Span,
    keys: Span,
}

/// One head of one sequence.
#[derive(Clone, Copy)]
struct Head {
    sequence: Sequence,
    head: usize,
    sizes: Sizes,
}

impl Head {
    /// Queries `from..to` of this head, or what else has a row for each: `[to - from, head_dim]`.
    fn queries<'a>(&self, of: Operand<'a>, from: usize, to: usize) -> Matrix<'a> {
        self.rows(of, self.head, self.sequence.queries.start + from, to - from)
    }

    /// The first `count` keys or values of this head: `[count, head_dim]`.
    fn keys<'a>(&self, of: Operand<'a>, count: usize) -> Matrix<'a> {
        self.rows(of, self.kv_head(), self.sequence.keys.start, count)
    }

    /// The number of the keys and values that this head reads, among their heads.
    fn kv_head(&self) -> usize {
        self.head / self.sizes.group()
    }

    /// `count` rows of `head` from row `row` of all sequences.
    fn rows<'a>(&self, of: Operand<'a>, head: usize, row: usize, count: usize) -> Matrix<'a> {
        let start = row * of.row_stride + of.offset + head * self.sizes.head_dim;
        Matrix::strided(&of.values[start..], count, self.sizes.head_dim, of.row_stride)
    }

    /// Index of this head's first element in row `row` of all sequences.
    fn element(&self, offset: usize, row_stride: usize, row: usize) -> usize {
        row * row_stride + offset + self.head * self.sizes.head_dim
    }

    /// Index of this head's first query among the queries of all heads, sequence by sequence.
    fn first_query(&self) -> usize {
        let Span { start, len } = self.sequence.queries;
        self.sizes.heads * start + self.head * len
    }
}

/// Which keys the rows of one sequence see.
#[derive(Clone, Copy)]
struct Visible<'a> {
    causal: bool,
    /// True = attend, `[seq]`.
    keys: Option<&'a [bool]>,
    /// The first key that the mask shows; `seq` for none.
    first: usize,
    seq: usize,
}

impl<'a> Visible<'a> {
    fn new(causal: bool, keys: Option<&'a [bool]>, seq: usize) -> Self {
        let first = keys.map_or(0, |keys| keys.iter().position(|&key| key).unwrap_or(seq));
        Self { causal, keys, first, seq }
    }

    /// Keys at and behind this one are later than `row`.
    #[inline(always)]
    fn end(self, row: usize) -> usize {
        if self.causal { row + 1 } else { self.seq }
    }

    /// Whether `row` sees no key; it then attends evenly to all.
    #[inline(always)]
    fn nothing(self, row: usize) -> bool {
        self.first >= self.end(row)
    }

    /// How many keys the rows `from..to` need: those up to the last row, all if the first row sees
    /// nothing.
    fn width(self, from: usize, to: usize) -> usize {
        if self.nothing(from) { self.seq } else { self.end(to - 1) }
    }
}

/// Memory that a thread keeps until it ends.
#[derive(Default)]
struct Scratch {
    /// Two blocks of scores, or of the result, whose values are any.
    blocks: [Vec<f32>; 2],
    /// Keys and values, packed as right factors, and whose they are: the call, the first row of the
    /// sequence and the head.
    packed: [Repacked; 3],
    of: Option<(u64, usize, usize)>,
    /// Queries of a block, and gradients of its result.
    rows: [Repacked; 2],
}

impl Scratch {
    /// Packs `matrices`, keys and values of `head`, where this thread does not have them and there
    /// are queries enough.
    fn pack(&mut self, call: &Call<'_>, head: Head, matrices: &[Matrix<'_>]) {
        let of =
            (head.sequence.queries.len >= PACKED_FROM).then_some((call.id, head.sequence.keys.start, head.kv_head()));
        if self.of != of && of.is_some() {
            for (packed, matrix) in self.packed.iter_mut().zip(matrices) {
                packed.pack(*matrix, call.rounding());
            }
        }
        self.of = of;
    }
}

/// How many elements rows of scores are apart: an odd number of cache lines, so that they do not
/// share the sets of a cache.
fn row_stride(keys: usize) -> usize {
    (keys.div_ceil(16) | 1) * 16
}

/// The part of a call that all heads share.
struct Call<'a> {
    /// A number that no other call of the process has.
    id: u64,
    sizes: Sizes,
    sequences: Vec<Sequence>,
    settings: Settings,
    query: Operand<'a>,
    key: Operand<'a>,
    value: Operand<'a>,
    keys: Option<Vec<bool>>,
    keep: Option<Keep>,
}

impl<'a> Call<'a> {
    fn new(inputs: &Inputs<Flex>, qkv: &'a Parts<Flex>) -> Self {
        let settings = inputs.settings;
        let operand = |tensor: &'a FlexTensor, offset: usize| Operand {
            values: flex::values(tensor),
            offset,
            row_stride: flex::dims2(tensor)[1],
        };
        let ([queries, rows], [width, kv_width], [query, key, value]) = match qkv {
            Parts::Packed(all) => {
                let [rows, width] = flex::dims2(all);
                let d = width / 3;
                ([rows, rows], [d, d], [operand(all, 0), operand(all, d), operand(all, 2 * d)])
            }
            Parts::Separate(q, k, v) => {
                let ([queries, width], [rows, kv_width]) = (flex::dims2(q), flex::dims2(k));
                ([queries, rows], [width, kv_width], [operand(q, 0), operand(k, 0), operand(v, 0)])
            }
        };
        let Settings { batch, heads, .. } = settings;
        let head_dim = width / heads;
        let sizes = Sizes { queries, keys: rows, heads, kv_heads: kv_width / head_dim, head_dim };
        let spans = match settings.rows {
            Rows::Full | Rows::Padded => {
                let len = rows / batch;
                (0..batch).map(|sequence| Span { start: sequence * len, len }).collect()
            }
            Rows::Unpadded => {
                let keys = flex::booleans(&inputs.keys);
                let shown = keys.chunks_exact(keys.len() / batch).map(|keys| keys.iter().filter(|key| **key).count());
                let spans = shown.scan(0, |start, len| {
                    *start += len;
                    Some(Span { start: *start - len, len })
                });
                spans.collect::<Vec<_>>()
            }
        };
        // The result is written sequence by sequence, so the sequences have to cover each row once.
        assert_eq!(spans.last().map_or(0, |last| last.start + last.len), rows, "rows of an attention and of its mask");
        let one_each = queries != rows;
        assert!(!one_each || queries == spans.len(), "queries of an attention: all or one a sequence");
        let sequences = spans.into_iter().enumerate().map(|(index, keys)| Sequence {
            queries: if one_each { Span { start: index, len: 1 } } else { keys },
            keys,
        });
        let sequences = sequences.collect();
        let keys = (settings.rows == Rows::Padded).then(|| flex::booleans(&inputs.keys));
        let keep = (settings.dropout > 0.0).then(|| Keep::new(&flex::integers(&inputs.seed), settings.dropout));
        static CALLS: AtomicU64 = AtomicU64::new(0);
        let id = CALLS.fetch_add(1, Ordering::Relaxed);
        Self { id, sizes, sequences, settings, query, key, value, keys, keep }
    }

    /// Runs `f` for every head.
    fn for_each_head(&self, f: impl Fn(Head, Visible<'_>, &mut Scratch) + Sync) {
        let heads = self.sizes.heads;
        (0..self.sequences.len() * heads).into_par_iter().for_each(|index| {
            let head = Head { sequence: self.sequences[index / heads], head: index % heads, sizes: self.sizes };
            self.with_scratch(head.sequence, |visible, scratch| f(head, visible, scratch));
        });
    }

    /// Runs `f` for every block of queries of every head, with its first query and the one behind
    /// its last.
    fn for_each_block(&self, f: impl Fn(Head, Visible<'_>, (usize, usize), &mut Scratch) + Sync) {
        let blocks = self.sequences.iter().flat_map(|&sequence| {
            let starts = (0..sequence.queries.len).step_by(block(sequence).max(1));
            (0..self.sizes.heads).flat_map(move |head| starts.clone().map(move |from| (sequence, head, from)))
        });
        let blocks = blocks.collect::<Vec<_>>();
        blocks.par_iter().for_each(|&(sequence, head, from)| {
            let to = (from + block(sequence)).min(sequence.queries.len);
            self.with_scratch(sequence, |visible, scratch| {
                f(Head { sequence, head, sizes: self.sizes }, visible, (from, to), scratch);
            });
        });
    }

    /// Calls `f` with what the rows of `sequence` see and with this thread's memory, in which there
    /// is place for two blocks.
    fn with_scratch(&self, sequence: Sequence, f: impl FnOnce(Visible<'_>, &mut Scratch)) {
        thread_local! {
            static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
        }
        let Span { start, len } = sequence.keys;
        let keys = self.keys.as_ref().map(|keys| &keys[start..][..len]);
        let elements = block(sequence).next_multiple_of(4) * row_stride(len).max(self.sizes.head_dim);
        // Taken, not borrowed: a task may wait for another one on this thread.
        let mut scratch = SCRATCH.take();
        for block in &mut scratch.blocks {
            if block.len() < elements {
                block.resize(elements, 0.0);
            }
        }
        f(Visible::new(self.settings.causal, keys, len), &mut scratch);
        SCRATCH.set(scratch);
    }

    /// The type to which the operands of products are rounded: f16 stays f32.
    fn rounding(&self) -> Rounding {
        match self.settings.products {
            FloatDType::BF16 => Rounding::Bf16,
            _ => Rounding::F32,
        }
    }

    /// The dropout of a head, and where its first query's is.
    fn keep(&self, head: Head) -> Option<(Keep, usize)> {
        self.keep.map(|keep| (keep, head.first_query()))
    }
}

/// Query rows in a block of a sequence.
fn block(Sequence { queries, keys }: Sequence) -> usize {
    let fits = |rows: &&usize| **rows * keys.len <= BLOCK_ELEMENTS;
    BLOCK_ROWS.iter().rev().find(fits).unwrap_or(&BLOCK_ROWS[0]).min(&queries.len).to_owned()
}

/// Multiplies weights and values of a block of queries: it has memory for the product, and where
/// its first element belongs in the result.
type Multiply<'a> = dyn Fn(Matrix<'_>, Factor<'_>, &mut [f32], usize) + Sync + 'a;

impl AttentionKernel for Flex {
    fn forward(inputs: &Inputs<Self>) -> (FlexTensor, FlexTensor) {
        let (qkv, dtype) = (inputs.qkv.clone().map(flex::widened), inputs.settings.dtype);
        let call = Call::new(inputs, &qkv);
        let (Sizes { queries, heads, head_dim, .. }, rounding) = (call.sizes, call.rounding());
        let out_width = heads * head_dim;
        let mut lse = vec![0.0f32; heads * queries];
        let lse_at = Shared(lse.as_mut_ptr());
        // Calls `multiply` for each block of queries of each head.
        let each_block = |multiply: &Multiply<'_>| {
            call.for_each_block(|head, visible, (from, to), scratch| {
                let all = head.sequence.keys.len;
                scratch.pack(&call, head, &[head.keys(call.key, all).t(), head.keys(call.value, all)]);
                let Scratch { blocks: [scores, product], packed: [keys, values, _], of, .. } = scratch;
                let (width, stride) = (visible.width(from, to), row_stride(all));
                let [key, value] = [head.keys(call.key, width).t(), head.keys(call.value, width)];
                let [key, value] = [keys.first(key, of.is_some()), values.first(value, of.is_some())];
                let query = head.queries(call.query, from, to);
                // SAFETY: the scores are exclusively borrowed and large enough for the product;
                // every block has its own part of `lse`.
                let lse = unsafe {
                    multiply_rows(scores.as_mut_ptr(), stride, query, key, Output::Overwrite, rounding);
                    std::slice::from_raw_parts_mut(lse_at.at(head.first_query() + from), to - from)
                };
                let rows = Block { values: &mut scores[..(to - from) * stride], stride, width, from, rounding };
                softmax_rows(rows, lse, visible, call.settings.scale, call.keep(head));
                let weights = Matrix::strided(scores, to - from, width, stride);
                let product = &mut product[..(to - from) * head_dim];
                let first = head.element(0, out_width, head.sequence.queries.start + from);
                multiply(weights, value, product, first);
            });
        };
        // SAFETY (both): every block of a head writes the rows of its queries in the columns of the
        // head, and the blocks of all heads together are all rows and columns. In bf16 a block is
        // multiplied in memory of its own, which is as large as it, and rounded from there.
        let out = match dtype {
            FloatDType::BF16 => unsafe {
                let values = flex::written(queries * out_width, |out| {
                    let out = Shared(out.as_mut_ptr());
                    each_block(&|weights, values, product, first| {
                        let at = product.as_mut_ptr();
                        multiply_rounded_rows(at, head_dim, weights, values, Output::Overwrite, rounding);
                        for (row, product) in product.chunks_exact(head_dim).enumerate() {
                            flex::narrow(
                                std::slice::from_raw_parts_mut(out.at(first + row * out_width), head_dim),
                                product,
                            );
                        }
                    });
                });
                FlexTensor::from_data(TensorData::new(values, [queries, out_width]))
            },
            dtype => unsafe {
                let values = flex::written(queries * out_width, |out| {
                    let out = Shared(out.as_mut_ptr().cast());
                    each_block(&|weights, values, _, first| {
                        let at = out.at(first);
                        multiply_rounded_rows(at, out_width, weights, values, Output::Overwrite, rounding);
                    });
                });
                flex::cast(flex::tensor(values, [queries, out_width]), dtype)
            },
        };
        (out, flex::tensor(lse, [heads * queries]))
    }

    fn backward(saved: Saved<Self>, dout: FlexTensor) -> Parts<Self> {
        let qkv = &saved.inputs.qkv;
        let (qkv, dtype) = (qkv.clone().map(flex::widened), FloatDType::from(qkv.first().dtype()));
        let gradient = |values: Vec<f32>, shape: [usize; 2]| flex::cast(flex::tensor(values, shape), dtype);
        let call = Call::new(&saved.inputs, &qkv);
        let Sizes { queries, keys: rows, heads, kv_heads, head_dim } = call.sizes;
        let width = heads * head_dim;
        let dout = flex::widened(dout);
        let dout = Operand { values: flex::values(&dout), offset: 0, row_stride: width };
        let lse = flex::values(&saved.lse);
        let run = |targets: [Target; 3]| {
            call.for_each_head(|head, visible, scratch| {
                let lse = &lse[head.first_query()..][..head.sequence.queries.len];
                // SAFETY: every head writes its own columns of the three targets in all rows of its
                // sequence: a sequence with keys has a query, and the first block of queries writes
                // the gradients of all keys.
                unsafe { backward_head(&call, head, visible, dout, lse, scratch, targets) }
            });
        };
        let target = |values: &mut [std::mem::MaybeUninit<f32>], offset: usize, row_stride: usize| Target {
            at: Shared(values.as_mut_ptr().cast()),
            offset,
            row_stride,
        };
        // SAFETY (all three): the heads together write every column of every row of query, key and
        // value.
        match &saved.inputs.qkv {
            Parts::Packed(_) => {
                let dqkv = unsafe {
                    flex::written(rows * 3 * width, |dqkv| {
                        run([0, 1, 2].map(|i| target(dqkv, i * width, 3 * width)));
                    })
                };
                Parts::Packed(gradient(dqkv, [rows, 3 * width]))
            }
            Parts::Separate(..) => {
                let (mut dk, mut dv) =
                    (Vec::<f32>::with_capacity(rows * width), Vec::<f32>::with_capacity(rows * width));
                let dq = unsafe {
                    flex::written(queries * width, |dq| {
                        let (dk, dv) = (&mut dk.spare_capacity_mut()[..], &mut dv.spare_capacity_mut()[..]);
                        run([target(dq, 0, width), target(dk, 0, width), target(dv, 0, width)]);
                    })
                };
                unsafe {
                    dk.set_len(rows * width);
                    dv.set_len(rows * width);
                }
                let [dk, dv] = [dk, dv].map(|values| {
                    let values = add_groups(values, call.sizes);
                    gradient(values, [rows, kv_heads * head_dim])
                });
                Parts::Separate(gradient(dq, [queries, width]), dk, dv)
            }
        }
    }
}

/// The gradients of keys or values from those that each head gives, `[keys, heads * head_dim] ->
/// [keys, kv_heads * head_dim]`
fn add_groups(of_heads: Vec<f32>, sizes: Sizes) -> Vec<f32> {
    let Sizes { keys, kv_heads, head_dim, .. } = sizes;
    if sizes.group() == 1 {
        return of_heads;
    }
    let mut sums = vec![0.0; keys * kv_heads * head_dim];
    let groups = sums.par_chunks_mut(head_dim).zip(of_heads.par_chunks(sizes.group() * head_dim));
    groups.with_min_len(64).for_each(|(sum, heads)| flex::add_rows(heads, sum));
    sums
}

/// Where a gradient goes: the columns of all heads, from `offset` in rows `row_stride` apart.
#[derive(Clone, Copy)]
struct Target {
    at: Shared,
    offset: usize,
    row_stride: usize,
}

/// The three gradients of one head. With weights `P`, dropout factors `M`, result `(P M) V` and
/// scores `S = scale Q K^T`: `dV = (P M)^T dO`, `dP = M (dO V^T)`, `dS = P (dP - rowsum(P dP))`,
/// `dQ = (scale dS) K`, `dK = (scale dS)^T Q` (Dao et al. 2022, whose `rowsum(dO O)` is the same
/// sum, but rounds apart from `P dP`).
///
/// # Safety
/// This head's columns of the three targets must be valid for writing, and nobody else may access
/// them meanwhile.
unsafe fn backward_head(
    call: &Call<'_>,
    head: Head,
    visible: Visible<'_>,
    dout: Operand<'_>,
    lse: &[f32],
    scratch: &mut Scratch,
    [dq, dk, dv]: [Target; 3],
) {
    let (Sequence { queries, keys: all }, rounding) = (head.sequence, call.rounding());
    if queries.len == 0 {
        return;
    }
    let (block, stride) = (block(head.sequence), row_stride(all.len));
    let at = |target: Target, row: usize| {
        // SAFETY: the element is one of this head's, which the caller vouches for.
        unsafe { target.at.at(head.element(target.offset, target.row_stride, row)) }
    };
    let [key, value] = [call.key, call.value].map(|of| head.keys(of, all.len));
    scratch.pack(call, head, &[key.t(), value.t(), key]);
    let Scratch { blocks: [weights, dscores], packed: [keys_t, values_t, keys], of, rows: [query_rows, dout_rows] } =
        scratch;
    let is_packed = of.is_some();
    // The last block first: it needs all keys, so it overwrites dK and dV whole, and the others add
    // to them.
    let starts = (0..queries.len).step_by(block).rev();
    for (i, from) in starts.enumerate() {
        let to = (from + block).min(queries.len);
        let width = if i == 0 { all.len } else { visible.width(from, to) };
        let into = if i == 0 { Output::Overwrite } else { Output::Add };
        let [key, value] = [call.key, call.value].map(|of| head.keys(of, width));
        let [query, dout] = [call.query, dout].map(|of| head.queries(of, from, to));
        // SAFETY: both destinations are exclusively borrowed and large enough for the products.
        unsafe {
            let (key, value) = (keys_t.first(key.t(), is_packed), values_t.first(value.t(), is_packed));
            multiply_rows(weights.as_mut_ptr(), stride, query, key, Output::Overwrite, rounding);
            multiply_rows(dscores.as_mut_ptr(), stride, dout, value, Output::Overwrite, rounding);
        }
        let of_block = |values| Block { values, stride, width, from, rounding };
        let elements = (to - from) * stride;
        let [rows, drows] = [&mut weights[..elements], &mut dscores[..elements]].map(of_block);
        backward_rows(rows, drows, lse, visible, call.settings.scale, call.keep(head));
        let [weights, dscores] = [&*weights, &*dscores].map(|values| Matrix::strided(values, to - from, width, stride));
        if is_packed {
            query_rows.pack(query, rounding);
            dout_rows.pack(dout, rounding);
        }
        let (query, dout) = (query_rows.first(query, is_packed), dout_rows.first(dout, is_packed));
        let key = keys.first(key, is_packed);
        // SAFETY: the rows are this head's; those of dK and dV that are added to were written with
        // the first block.
        unsafe {
            multiply_rounded_rows(at(dv, all.start), dv.row_stride, weights.t(), dout, into, rounding);
            multiply_rounded_rows(at(dk, all.start), dk.row_stride, dscores.t(), query, into, rounding);
            let at = at(dq, queries.start + from);
            multiply_rounded_rows(at, dq.row_stride, dscores, key, Output::Overwrite, rounding);
        }
    }
}

/// Rows of scores, or of what becomes of them, of a block of queries.
struct Block<'a> {
    /// Rows of `width` elements, `stride` elements apart.
    values: &'a mut [f32],
    stride: usize,
    width: usize,
    /// The first row, among the queries of its head.
    from: usize,
    /// The type of the products of which they become factors.
    rounding: Rounding,
}

impl Block<'_> {
    /// The rows, each with its number.
    #[inline(always)]
    fn rows(&mut self) -> impl Iterator<Item = (usize, &mut [f32])> {
        let width = self.width;
        (self.from..).zip(self.values.chunks_exact_mut(self.stride).map(move |row| &mut row[..width]))
    }
}

/// Rounds `row` as the operands of a product are.
#[inline(always)]
fn round(row: &mut [f32], rounding: Rounding) {
    if rounding == Rounding::Bf16 {
        row.iter_mut().for_each(|x| *x = flex::rounded_to_bf16(*x));
    }
}

/// Multiplies scores by `scale`; those that the mask hides become the most negative number.
#[inline(always)]
fn scale_and_hide(scores: &mut [f32], scale: f32, visible: Visible<'_>) {
    for score in scores.iter_mut() {
        *score *= scale;
    }
    if let Some(keys) = visible.keys {
        for (score, key) in scores.iter_mut().zip(keys) {
            *score = if *key { *score } else { f32::MIN };
        }
    }
}

#[inline(always)]
fn drop_row(weights: &mut [f32], keep: KeepRow) {
    for (column, weight) in (0u32..).zip(weights) {
        *weight *= keep.factor(column);
    }
}

vectorised! {
    /// Turns rows of products of queries and keys into weights after dropout, factors of a product;
    /// writes the log-sum-exp of `scale` times them.
    fn softmax_rows(block: Block<'_>, lse: &mut [f32], visible: Visible<'_>, scale: f32, keep: Option<(Keep, usize)>) {
        let (rounding, mut block) = (block.rounding, block);
        for ((row, scores), lse) in block.rows().zip(lse) {
            if visible.nothing(row) {
                scores.fill(1.0 / visible.seq as f32);
                *lse = 0.0;
            } else {
                let (seen, later) = scores.split_at_mut(visible.end(row));
                later.fill(0.0);
                scale_and_hide(seen, scale, visible);
                let largest = max(seen);
                let total = exp_shifted::<FMA>(seen, largest);
                *lse = largest + total.ln();
                let by = 1.0 / total;
                for weight in seen {
                    *weight *= by;
                }
            }
            if let Some((keep, first)) = keep {
                drop_row(scores, keep.row(first + row));
            }
            round(scores, rounding);
        }
    }
}

vectorised! {
    /// Turns products of queries and keys into weights after dropout, and the gradients of these
    /// weights into `scale` times those of the scores, which are the gradients of the products;
    /// both become factors of products.
    fn backward_rows(
        weights: Block<'_>,
        dscores: Block<'_>,
        lse: &[f32],
        visible: Visible<'_>,
        scale: f32,
        keep: Option<(Keep, usize)>,
    ) {
        let (rounding, mut weights, mut dscores) = (weights.rounding, weights, dscores);
        for ((row, weights), (_, dscores)) in weights.rows().zip(dscores.rows()) {
            let keep = keep.map(|(keep, first)| keep.row(first + row));
            if visible.nothing(row) {
                weights.fill(1.0 / visible.seq as f32);
                if let Some(keep) = keep {
                    drop_row(weights, keep);
                }
                round(weights, rounding);
                dscores.fill(0.0);
                continue;
            }
            let end = visible.end(row);
            weights[end..].fill(0.0);
            dscores[end..].fill(0.0);
            let (weights, dscores) = (&mut weights[..end], &mut dscores[..end]);
            scale_and_hide(weights, scale, visible);
            let total = exp_shifted::<FMA>(weights, lse[row]); // 1 but for rounding
            if let Some(keep) = keep {
                drop_row(dscores, keep);
            }
            // Divided by the sum as it is, so that a row's gradients add up to 0 as exactly as f32
            // can have it: the gradient of a key's bias is that sum, and an optimizer like Adam
            // makes steps of whatever is left. Products in bf16 round the gradients after this, as
            // autocast does, and leave more.
            let mean = sum_pairs(weights, dscores, |weight, dscore| weight * dscore) / total;
            for (weight, dscore) in weights.iter().zip(dscores.iter_mut()) {
                *dscore = weight * (*dscore - mean) * scale;
            }
            if let Some(keep) = keep {
                drop_row(weights, keep);
            }
            round(weights, rounding);
            round(dscores, rounding);
        }
    }
}
