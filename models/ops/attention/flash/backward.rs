//! The kernels of the backward, which compute the scores again. With `p` the weights before
//! dropout, `f` dropout's factors and `g` the gradient of the weights, the gradient of a score is
//! `p (f g - sum(p f g))`, and the sum is that of the products of the result and its gradient.

use cubecl::cmma::MmaDefinition;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::form::{Form, LOAD, PAIR, ROWS};
use super::tiles::{
    add_rows_of, fill, finish_scores, gradient_of, is_edge, left, left_of_all, multiply_rows, pair_row, place,
    sum_of_row, weight_of, write_rows, zero,
};
use crate::ops::dropout::cube::factor;

/// Queries that the kernel of the keys' gradients takes at a time.
const QUERIES_AT_A_TIME: usize = 32;
/// The log-sum-exp of a query behind the last: the exponential of any score less this is 0.
const NO_QUERY: f32 = 3.0e38;

/// The gradient of 64 queries, and for each the sum of the products of the result and its gradient,
/// which is that of the weights and theirs, dropout included.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn flash_backward_queries<F: Float, M: Int, N: Size, P: Size>(
    query: &[Vector<F, N>],
    key: &[Vector<F, N>],
    value: &[Vector<F, N>],
    out: &[Vector<F, N>],
    dout: &[Vector<F, N>],
    lse: &[f32],
    keys: &[M],
    seed: &[i32],
    dquery: &mut [Vector<F, P>],
    delta: &mut [f32],
    cubes: usize,
    pairs: usize,
    together: usize,
    heads: usize,
    group: usize,
    queries: usize,
    columns: usize,
    q_start: usize,
    q_pitch: usize,
    k_start: usize,
    k_pitch: usize,
    v_start: usize,
    v_pitch: usize,
    out_pitch: usize,
    dout_pitch: usize,
    dq_start: usize,
    dq_pitch: usize,
    scale: f32,
    threshold: u32,
    keep_scale: f32,
    #[comptime] form: Form,
    #[define(F)] _dtype: ElemType,
    #[define(M)] _mask: ElemType,
) {
    let head_dim = comptime!(form.head_dim);
    let width = comptime!(form.head_dim / LOAD);
    let count = comptime!(form.keys_at_a_time());
    let mut key_tile = Shared::<[Vector<F, N>]>::new_aligned_slice(comptime!(ROWS * (width + 1)), 16usize);
    let mut value_tile = Shared::<[Vector<F, N>]>::new_aligned_slice(comptime!(ROWS * (width + 1)), 16usize);
    let cube = CUBE_POS;
    if cube >= cubes {
        terminate!();
    }
    let by = MmaDefinition::<F, F, f32>::new(16usize, 8usize, 16usize);
    let lane = UNIT_POS as usize % 32;
    let plane = UNIT_POS as usize / 32 * 16;
    let tiles = queries.div_ceil(ROWS);
    let (pair, at) = place(cube, pairs, tiles, together);
    let first = (tiles - 1 - at) * ROWS;
    let sequence = pair / heads;
    let head = pair % heads;
    let q_start = q_start + sequence * queries * q_pitch + head * width;
    let k_start = k_start + sequence * columns * k_pitch + head / group * width;
    let v_start = v_start + sequence * columns * v_pitch + head / group * width;
    let out_start = sequence * queries * out_pitch + head * width;
    let dout_start = sequence * queries * dout_pitch + head * width;
    let row = first + plane + lane / 4;

    fill::<F, N>(&mut key_tile, query, q_start, q_pitch, first, queries, ROWS, width);
    fill::<F, N>(&mut value_tile, dout, dout_start, dout_pitch, first, queries, ROWS, width);
    sync_cube();
    let own = left_of_all::<F, N, P>(&by, &key_tile, plane, head_dim);
    let of_result = left_of_all::<F, N, P>(&by, &value_tile, plane, head_dim);
    sync_cube();
    fill::<F, N>(&mut key_tile, out, out_start, out_pitch, first, queries, ROWS, width);
    sync_cube();
    let mut deltas = Array::<f32>::new(2usize);
    let mut lses = Array::<f32>::new(2usize);
    #[unroll]
    for half in 0..2usize {
        deltas[half] = 0.0f32;
    }
    #[unroll]
    for step in 0..comptime!(head_dim / 16) {
        let result = left::<F, N, P>(&by, &key_tile, plane, comptime!(16 * step), width);
        #[unroll]
        for i in 0..4usize {
            // The registers of a left operand are of both rows in turn.
            let product = Vector::<f32, P>::cast_from(result[i])
                * Vector::<f32, P>::cast_from(of_result[comptime!(4 * step + i)]);
            deltas[comptime!(i % 2)] += product.extract(0usize) + product.extract(1usize);
        }
    }
    #[unroll]
    for half in 0..2usize {
        deltas[half] = sum_of_row(deltas[half]);
        let row = row + comptime!(8 * half);
        lses[half] = f32::cast_from(NO_QUERY);
        if row < queries {
            let at = pair_row(sequence, head, row, heads, queries);
            lses[half] = lse[at];
            if lane % 4 == 0 {
                delta[at] = deltas[half];
            }
        }
    }

    let mut gradient = Array::<Vector<f32, P>>::new(comptime!(head_dim / 4));
    zero::<P>(&mut gradient, comptime!(head_dim / 4));
    let mut scores = Array::<Vector<f32, P>>::new(comptime!(count / 4));
    let mut dweights = Array::<Vector<f32, P>>::new(comptime!(count / 4));
    let end = if comptime!(form.causal && !form.padded) { min(first + ROWS, columns) } else { columns };
    let mut tile = 0usize;
    while tile < end {
        sync_cube(); // nobody reads the last tiles any more
        fill::<F, N>(&mut key_tile, key, k_start, k_pitch, tile, columns, count, width);
        fill::<F, N>(&mut value_tile, value, v_start, v_pitch, tile, columns, count, width);
        sync_cube();
        multiply_rows::<F, N, P>(&by, &own, &key_tile, &mut scores, count, head_dim);
        multiply_rows::<F, N, P>(&by, &of_result, &value_tile, &mut dweights, count, head_dim);
        let column = tile + lane % 4 * 2;
        let is_edge = is_edge(first + plane, tile, columns, count, form);
        finish_scores::<M, P>(&mut scores, scale, keys, sequence, row, column, columns, is_edge, count, false, form);
        #[unroll]
        for half in 0..2usize {
            let row = row + comptime!(8 * half);
            #[unroll]
            for i in 0..comptime!(count / 8) {
                let pair = scores[comptime!(2 * i + half)];
                let mut of_pair = dweights[comptime!(2 * i + half)];
                #[unroll]
                for e in 0..2usize {
                    let column = column + comptime!(8 * i + e);
                    let score = pair.extract(e);
                    let weight = weight_of(score, lses[half], column, columns, form);
                    let mut dweight = of_pair.extract(e);
                    if comptime!(form.drops) {
                        let row = u32::cast_from(pair_row(sequence, head, row, heads, queries));
                        dweight *= factor(seed, row, u32::cast_from(column), threshold, keep_scale);
                    }
                    of_pair.insert(e, gradient_of(score, weight, dweight, deltas[half], form));
                }
                dweights[comptime!(2 * i + half)] = of_pair;
            }
        }
        add_rows_of::<F, N, P>(&by, &dweights, &key_tile, &mut gradient, count, head_dim);
        tile += count;
    }
    let mut scales = Array::<f32>::new(2usize);
    #[unroll]
    for half in 0..2usize {
        scales[half] = scale;
    }
    let start = dq_start + sequence * queries * dq_pitch + head * comptime!(head_dim / PAIR);
    write_rows::<F, P>(dquery, &gradient, start, dq_pitch, first + plane, queries, &scales, head_dim);
}

/// The gradients of 64 keys and their values. The scores are transposed: a row is a key's.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn flash_backward_keys<F: Float, M: Int, N: Size, P: Size>(
    query: &[Vector<F, N>],
    key: &[Vector<F, N>],
    value: &[Vector<F, N>],
    dout: &[Vector<F, N>],
    lse: &[f32],
    delta: &[f32],
    keys: &[M],
    seed: &[i32],
    dkey: &mut [Vector<F, P>],
    dvalue: &mut [Vector<F, P>],
    cubes: usize,
    pairs: usize,
    together: usize,
    heads: usize,
    group: usize,
    queries: usize,
    columns: usize,
    q_start: usize,
    q_pitch: usize,
    k_start: usize,
    k_pitch: usize,
    v_start: usize,
    v_pitch: usize,
    dout_pitch: usize,
    dk_start: usize,
    dk_pitch: usize,
    dv_start: usize,
    dv_pitch: usize,
    scale: f32,
    threshold: u32,
    keep_scale: f32,
    #[comptime] form: Form,
    #[define(F)] _dtype: ElemType,
    #[define(M)] _mask: ElemType,
) {
    let head_dim = comptime!(form.head_dim);
    let width = comptime!(form.head_dim / LOAD);
    let count = QUERIES_AT_A_TIME;
    let mut key_tile = Shared::<[Vector<F, N>]>::new_aligned_slice(comptime!(ROWS * (width + 1)), 16usize);
    let mut value_tile = Shared::<[Vector<F, N>]>::new_aligned_slice(comptime!(ROWS * (width + 1)), 16usize);
    let mut query_tile = Shared::<[Vector<F, N>]>::new_aligned_slice(comptime!(count * (width + 1)), 16usize);
    let mut dout_tile = Shared::<[Vector<F, N>]>::new_aligned_slice(comptime!(count * (width + 1)), 16usize);
    let mut lse_tile = Shared::<[f32]>::new_slice(count);
    let mut delta_tile = Shared::<[f32]>::new_slice(count);
    let cube = CUBE_POS;
    if cube >= cubes {
        terminate!();
    }
    let by = MmaDefinition::<F, F, f32>::new(16usize, 8usize, 16usize);
    let unit = UNIT_POS as usize;
    let lane = unit % 32;
    let plane = unit / 32 * 16;
    let (pair, at) = place(cube, pairs, columns.div_ceil(ROWS), together);
    let first = at * ROWS; // of a causal mask the most queries see the first keys
    let kv_heads = heads / group;
    let sequence = pair / kv_heads;
    let kv_head = pair % kv_heads;
    let k_start = k_start + sequence * columns * k_pitch + kv_head * width;
    let v_start = v_start + sequence * columns * v_pitch + kv_head * width;
    let column = first + plane + lane / 4;

    fill::<F, N>(&mut key_tile, key, k_start, k_pitch, first, columns, ROWS, width);
    fill::<F, N>(&mut value_tile, value, v_start, v_pitch, first, columns, ROWS, width);
    sync_cube();
    let mut of_key = Array::<Vector<f32, P>>::new(comptime!(head_dim / 4));
    let mut of_value = Array::<Vector<f32, P>>::new(comptime!(head_dim / 4));
    zero::<P>(&mut of_key, comptime!(head_dim / 4));
    zero::<P>(&mut of_value, comptime!(head_dim / 4));
    let mut scores = Array::<Vector<f32, P>>::new(comptime!(count / 4));
    let mut dweights = Array::<Vector<f32, P>>::new(comptime!(count / 4));
    for member in 0..group {
        let head = kv_head * group + member;
        let q_start = q_start + sequence * queries * q_pitch + head * width;
        let dout_start = sequence * queries * dout_pitch + head * width;
        let mut tile = if comptime!(form.causal && !form.padded) { first } else { 0usize.runtime() };
        while tile < queries {
            sync_cube(); // nobody reads the last tiles any more
            fill::<F, N>(&mut query_tile, query, q_start, q_pitch, tile, queries, count, width);
            fill::<F, N>(&mut dout_tile, dout, dout_start, dout_pitch, tile, queries, count, width);
            if unit < count {
                let row = tile + unit;
                lse_tile[unit] = f32::cast_from(NO_QUERY);
                delta_tile[unit] = 0.0f32;
                if row < queries {
                    lse_tile[unit] = lse[pair_row(sequence, head, row, heads, queries)];
                    delta_tile[unit] = delta[pair_row(sequence, head, row, heads, queries)];
                }
            }
            sync_cube();
            let own = left_of_all::<F, N, P>(&by, &key_tile, plane, head_dim);
            multiply_rows::<F, N, P>(&by, &own, &query_tile, &mut scores, count, head_dim);
            let own = left_of_all::<F, N, P>(&by, &value_tile, plane, head_dim);
            multiply_rows::<F, N, P>(&by, &own, &dout_tile, &mut dweights, count, head_dim);
            let row = tile + lane % 4 * 2;
            let is_edge = is_edge(tile, first + plane, columns, 16usize, form);
            finish_scores::<M, P>(&mut scores, scale, keys, sequence, row, column, columns, is_edge, count, true, form);
            #[unroll]
            for half in 0..2usize {
                let column = column + comptime!(8 * half);
                #[unroll]
                for i in 0..comptime!(count / 8) {
                    let mut pair = scores[comptime!(2 * i + half)];
                    let mut of_pair = dweights[comptime!(2 * i + half)];
                    #[unroll]
                    for e in 0..2usize {
                        let of_tile = comptime!(8 * i + e) + lane % 4 * 2;
                        let score = pair.extract(e);
                        let weight = weight_of(score, lse_tile[of_tile], column, columns, form);
                        let mut dweight = of_pair.extract(e);
                        let mut dropped = weight;
                        if comptime!(form.drops) {
                            let row = pair_row(sequence, head, tile + of_tile, heads, queries);
                            let row = u32::cast_from(row);
                            let factor = factor(seed, row, u32::cast_from(column), threshold, keep_scale);
                            dropped *= factor;
                            dweight *= factor;
                        }
                        pair.insert(e, dropped);
                        of_pair.insert(e, gradient_of(score, weight, dweight, delta_tile[of_tile], form));
                    }
                    scores[comptime!(2 * i + half)] = pair;
                    dweights[comptime!(2 * i + half)] = of_pair;
                }
            }
            add_rows_of::<F, N, P>(&by, &scores, &dout_tile, &mut of_value, count, head_dim);
            add_rows_of::<F, N, P>(&by, &dweights, &query_tile, &mut of_key, count, head_dim);
            tile += count;
        }
    }
    let mut scales = Array::<f32>::new(2usize);
    let mut ones = Array::<f32>::new(2usize);
    #[unroll]
    for half in 0..2usize {
        scales[half] = scale;
        ones[half] = 1.0f32;
    }
    let start = dk_start + sequence * columns * dk_pitch + kv_head * comptime!(head_dim / PAIR);
    write_rows::<F, P>(dkey, &of_key, start, dk_pitch, first + plane, columns, &scales, head_dim);
    let start = dv_start + sequence * columns * dv_pitch + kv_head * comptime!(head_dim / PAIR);
    write_rows::<F, P>(dvalue, &of_value, start, dv_pitch, first + plane, columns, &ones, head_dim);
}
