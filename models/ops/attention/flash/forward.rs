//! The kernel of the forward.

use cubecl::cmma::MmaDefinition;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::form::{Form, HIDDEN, LOAD, PAIR, ROWS};
use super::tiles::{
    add_rows_of, fill, finish_scores, is_edge, largest_of_row, left_of_all, multiply_rows, pair_row, place, sum_of_row,
    write_rows, zero,
};
use crate::ops::dropout::cube::factor;

/// The result of 64 queries of a head, with the softmax online: whenever a tile of keys has a
/// larger score than those before it, what has been added up is scaled down.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn flash_rows<F: Float, M: Int, N: Size, P: Size>(
    query: &[Vector<F, N>],
    key: &[Vector<F, N>],
    value: &[Vector<F, N>],
    keys: &[M],
    seed: &[i32],
    out: &mut [Vector<F, P>],
    lse: &mut [f32],
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
    scale: f32,
    threshold: u32,
    keep_scale: f32,
    #[comptime] form: Form,
    #[define(F)] _dtype: ElemType,
    #[define(M)] _mask: ElemType,
) {
    let head_dim = comptime!(form.head_dim);
    let width = comptime!(form.head_dim / LOAD);
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
    let first = (tiles - 1 - at) * ROWS; // of a causal mask the last queries see the most keys
    let sequence = pair / heads;
    let head = pair % heads;
    let q_start = q_start + sequence * queries * q_pitch + head * width;
    let k_start = k_start + sequence * columns * k_pitch + head / group * width;
    let v_start = v_start + sequence * columns * v_pitch + head / group * width;
    let row = first + plane + lane / 4;

    fill::<F, N>(&mut key_tile, query, q_start, q_pitch, first, queries, ROWS, width);
    sync_cube();
    let own = left_of_all::<F, N, P>(&by, &key_tile, plane, head_dim);

    let mut result = Array::<Vector<f32, P>>::new(comptime!(head_dim / 4));
    zero::<P>(&mut result, comptime!(head_dim / 4));
    let mut scores = Array::<Vector<f32, P>>::new(comptime!(ROWS / 4));
    let mut largest = Array::<f32>::new(2usize);
    let mut sum = Array::<f32>::new(2usize);
    #[unroll]
    for half in 0..2usize {
        largest[half] = f32::cast_from(HIDDEN);
        sum[half] = 0.0f32;
    }
    let end = if comptime!(form.causal && !form.padded) { min(first + ROWS, columns) } else { columns };
    let mut tile = 0usize;
    while tile < end {
        sync_cube(); // nobody reads the last tiles any more
        fill::<F, N>(&mut key_tile, key, k_start, k_pitch, tile, columns, ROWS, width);
        fill::<F, N>(&mut value_tile, value, v_start, v_pitch, tile, columns, ROWS, width);
        sync_cube();
        multiply_rows::<F, N, P>(&by, &own, &key_tile, &mut scores, ROWS, head_dim);
        let column = tile + lane % 4 * 2;
        let is_edge = is_edge(first + plane, tile, columns, ROWS, form);
        finish_scores::<M, P>(&mut scores, scale, keys, sequence, row, column, columns, is_edge, ROWS, false, form);
        #[unroll]
        for half in 0..2usize {
            let row = row + comptime!(8 * half);
            let mut top = largest[half];
            #[unroll]
            for i in 0..comptime!(ROWS / 8) {
                let pair = scores[comptime!(2 * i + half)];
                top = max(top, max(pair.extract(0usize), pair.extract(1usize)));
            }
            let top = largest_of_row(top);
            let shrink = (largest[half] - top).exp();
            largest[half] = top;
            let mut of_tile = 0.0f32;
            #[unroll]
            for i in 0..comptime!(ROWS / 8) {
                let mut pair = scores[comptime!(2 * i + half)];
                #[unroll]
                for e in 0..2usize {
                    let mut weight = (pair.extract(e) - top).exp();
                    of_tile += weight;
                    if comptime!(form.drops) {
                        let column = u32::cast_from(column + comptime!(8 * i + e));
                        let row = u32::cast_from(pair_row(sequence, head, row, heads, queries));
                        weight *= factor(seed, row, column, threshold, keep_scale);
                    }
                    pair.insert(e, weight);
                }
                scores[comptime!(2 * i + half)] = pair;
            }
            sum[half] = sum[half] * shrink + of_tile;
            #[unroll]
            for i in 0..comptime!(head_dim / 8) {
                result[comptime!(2 * i + half)] = result[comptime!(2 * i + half)] * Vector::<f32, P>::new(shrink);
            }
        }
        add_rows_of::<F, N, P>(&by, &scores, &value_tile, &mut result, ROWS, head_dim);
        tile += ROWS;
    }
    let mut parts = Array::<f32>::new(2usize);
    #[unroll]
    for half in 0..2usize {
        let sum = sum_of_row(sum[half]);
        parts[half] = 1.0f32 / sum;
        let row = row + comptime!(8 * half);
        if lane % 4 == 0 && row < queries {
            lse[pair_row(sequence, head, row, heads, queries)] = largest[half] + sum.ln();
        }
    }
    let start = sequence * queries * out_pitch + head * comptime!(head_dim / PAIR);
    write_rows::<F, P>(out, &result, start, out_pitch, first + plane, queries, &parts, head_dim);
}
