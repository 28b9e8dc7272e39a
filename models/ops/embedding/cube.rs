//! The gradient of an embedding without atomics and in a fixed order: tokens are sorted by id, and
//! a cube for each row of the table adds up those with its id. Text has a few ids that occur very
//! often, so parts of the sorted tokens that have one id throughout are summed first, each by a
//! cube of its own: how long a row takes hardly depends on how often its id occurs.
//!
//! Sorting compares each token with the others, `n^2` comparisons in all.
#![allow(unsafe_code)] // kernels are launched without bounds checks: each says why that is sound

use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, backend_extension};
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::EmbeddingKernel;
use crate::ops::cube::product::is_software;
use crate::ops::cube::{Cube, FusedTensor, addresses, buffer, by_cube, dims2, empty, empty_in, lanes, shaped, vector};

/// Tokens of a part.
const PART: usize = 32;

/// Tokens that a cube sorts, and compares with others at a time.
const TILE: usize = 64;

impl EmbeddingKernel for Cube {
    fn forward(table: FusedTensor, ids: FusedTensor) -> FusedTensor {
        Self::float_select(table, 0, ids)
    }

    fn backward(table: Shape, ids: FusedTensor, padding_idx: Option<usize>, dy: FusedTensor) -> FusedTensor {
        let skipped = padding_idx.and_then(|id| i32::try_from(id).ok()).unwrap_or(-1); // no id is -1
        Self::embedding_backward(dy, ids, table[0], skipped)
    }
}

/// The kernels, as an operation of a backend.
#[backend_extension(Cube, Fusion)]
pub(in crate::ops) trait TableKernels: Backend {
    /// The gradient of a table of `num` rows, of which `ids [n]` were looked up and met the
    /// gradient `dy [n, width]`; ids that equal `skipped` count for nothing.
    #[fusion(meta = |dy, _ids, num, _skipped| shaped(dy, [*num, dy.shape[1]]))]
    fn embedding_backward(dy: FloatTensor<Self>, ids: IntTensor<Self>, num: usize, skipped: i32) -> FloatTensor<Self>;
}

impl TableKernels for CubeBackend {
    fn embedding_backward(dy: CubeTensor, ids: CubeTensor, num: usize, skipped: i32) -> CubeTensor {
        let [dy, ids] = [dy, ids].map(into_contiguous);
        let [n, width] = dims2(&dy);
        let [sorted, order] = [(); 2].map(|()| empty_in(&dy, [n.max(1)], DType::I32));
        let (count, dim) = by_cube(&dy, n.div_ceil(TILE).max(1), TILE);
        // SAFETY: a unit reads ids below `n`. It writes the place of its own token, if there is
        // one, which is below `n` and no other token's.
        unsafe {
            sort_ids::launch_unchecked(
                &dy.client,
                count,
                dim,
                addresses([&ids]),
                buffer(&ids),
                buffer(&sorted),
                buffer(&order),
                n,
                TILE,
            );
        }
        let parts = n / PART;
        let sums = empty(&dy, [parts.max(1), width]);
        let table = empty(&dy, [num, width]);
        let vector = vector(&dy, [width]);
        let vectors = width / vector;
        let units = lanes(&dy);
        let units = if is_software(&dy.device) { units } else { vectors.next_multiple_of(units).min(4 * units) };
        let (count, dim) = by_cube(&dy, parts.max(1), units);
        // SAFETY: a cube goes on with a part of the `n` sorted tokens, if there is one, whose
        // places are below `n`.
        unsafe {
            add_parts::launch_unchecked(
                &dy.client,
                count,
                dim,
                addresses([&dy]),
                vector,
                buffer(&dy),
                buffer(&sorted),
                buffer(&order),
                buffer(&sums),
                parts,
                vectors,
                units,
            );
        }
        let (count, dim) = by_cube(&dy, num, units);
        // SAFETY: a cube writes its own row of the table, if there is one, and reads tokens below
        // `n`, and parts that lie before them.
        unsafe {
            sum_rows::launch_unchecked(
                &dy.client,
                count,
                dim,
                addresses([&dy, &table]),
                vector,
                buffer(&dy),
                buffer(&sorted),
                buffer(&order),
                buffer(&sums),
                buffer(&table),
                n,
                num,
                vectors,
                skipped,
                units,
            );
        }
        table
    }
}

/// The tokens by their id, and those of one id by their place: `sorted` are the ids and `order` the
/// places. A unit counts the tokens before its own.
#[cube(launch_unchecked, address_type = "dynamic")]
fn sort_ids(ids: &[i32], sorted: &mut [i32], order: &mut [i32], n: usize, #[comptime] units: usize) {
    let mut tile = Shared::<[i32]>::new_slice(units);
    let unit = UNIT_POS as usize;
    if CUBE_POS * units >= n {
        terminate!();
    }
    let token = CUBE_POS * units + unit;
    let id = ids[min(token, n - 1)];
    let mut place = 0usize;
    let mut first = 0usize;
    while first < n {
        sync_cube(); // nobody reads the last tile any more
        if first + unit < n {
            tile[unit] = ids[first + unit];
        }
        sync_cube();
        let count = min(units, n - first);
        for other in 0..count {
            let is_equal = tile[other] == id && first + other < token;
            place += select(tile[other] < id || is_equal, 1usize, 0usize);
        }
        first += units;
    }
    if token < n {
        sorted[place] = id;
        order[place] = i32::cast_from(token);
    }
}

/// The sums of `dy` over the parts of the sorted tokens that have one id each.
#[cube(launch_unchecked, address_type = "dynamic")]
fn add_parts<N: Size>(
    dy: &[Vector<f32, N>],
    sorted: &[i32],
    order: &[i32],
    sums: &mut [Vector<f32, N>],
    parts: usize,
    vectors: usize,
    #[comptime] units: usize,
) {
    let part = CUBE_POS;
    if part >= parts {
        terminate!();
    }
    let first = part * PART;
    if sorted[first] == sorted[first + PART - 1] {
        let mut column = UNIT_POS as usize;
        while column < vectors {
            let mut sum = Vector::<f32, N>::new(0.0f32);
            for i in 0..PART {
                sum += dy[usize::cast_from(order[first + i]) * vectors + column];
            }
            sums[part * vectors + column] = sum;
            column += units;
        }
    }
}

/// A cube looks for the tokens of its row among the sorted ones, and adds them, whole parts of them
/// at once: a row has as many terms as an id's share of the parts, and fewer than two parts of
/// tokens.
// Both sides of `&&` are computed, and CubeCL has no `is_multiple_of`.
#[allow(clippy::collapsible_if, clippy::manual_is_multiple_of)]
#[cube(launch_unchecked, address_type = "dynamic")]
fn sum_rows<N: Size>(
    dy: &[Vector<f32, N>],
    sorted: &[i32],
    order: &[i32],
    sums: &[Vector<f32, N>],
    table: &mut [Vector<f32, N>],
    tokens: usize,
    num: usize,
    vectors: usize,
    skipped: i32,
    #[comptime] units: usize,
) {
    let row = CUBE_POS;
    if row >= num {
        terminate!();
    }
    let id = i32::cast_from(row);
    let mut first = 0usize;
    let mut end = tokens;
    while first < end {
        let middle = (first + end) / 2;
        if sorted[middle] < id {
            first = middle + 1;
        } else {
            end = middle;
        }
    }
    // Rows that no token has end where they begin.
    if first < tokens && id != skipped {
        if sorted[first] == id {
            let mut behind = tokens;
            while end < behind {
                let middle = (end + behind) / 2;
                if sorted[middle] <= id {
                    end = middle + 1;
                } else {
                    behind = middle;
                }
            }
        }
    }
    let mut column = UNIT_POS as usize;
    while column < vectors {
        let mut sum = Vector::<f32, N>::new(0.0f32);
        let mut place = first;
        while place < end {
            if place % PART == 0 && place + PART <= end {
                sum += sums[place / PART * vectors + column];
                place += PART;
            } else {
                sum += dy[usize::cast_from(order[place]) * vectors + column];
                place += 1;
            }
        }
        table[row * vectors + column] = sum;
        column += units;
    }
}
