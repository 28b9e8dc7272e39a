//! The gradient of an embedding without atomics and in a fixed order: tokens are sorted by id, and
//! a cube for each row of the table adds up those with its id; or, to add to a gradient that there
//! is, a cube for each id. Text has a few ids that occur very often, so parts of the sorted tokens
//! that have one id throughout are summed first, each by a cube of its own: how long a row takes
//! hardly depends on how often its id occurs.
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
use crate::ops::cube::{
    Cube, FusedTensor, addresses, buffer, by_cube, dims2, empty, empty_in, lanes, own_rows, shaped, vector,
};
use crate::ops::device::is_software;

/// Tokens of a part.
const PART: usize = 32;

/// Tokens that a cube sorts, and compares with others at a time.
const TILE: usize = 64;

impl EmbeddingKernel for Cube {
    fn forward(table: FusedTensor, ids: FusedTensor) -> FusedTensor {
        Self::float_select(table, 0, ids)
    }

    fn backward(table: Shape, ids: FusedTensor, padding_idx: Option<usize>, dy: FusedTensor) -> FusedTensor {
        Self::embedding_backward(dy, ids, table[0], skipped(padding_idx))
    }

    fn add_backward(onto: FusedTensor, ids: FusedTensor, padding_idx: Option<usize>, dy: FusedTensor) -> FusedTensor {
        Self::embedding_add_backward(onto, dy, ids, skipped(padding_idx))
    }
}

/// The id that counts for nothing; no id is -1.
fn skipped(padding_idx: Option<usize>) -> i32 {
    padding_idx.and_then(|id| i32::try_from(id).ok()).unwrap_or(-1)
}

/// The kernels, as an operation of a backend.
#[backend_extension(Cube, Fusion)]
pub(in crate::ops) trait TableKernels: Backend {
    /// The gradient of a table of `num` rows, of which `ids [n]` were looked up and met the
    /// gradient `dy [n, width]`; ids that equal `skipped` count for nothing.
    #[fusion(meta = |dy, _ids, num, _skipped| shaped(dy, [*num, dy.shape[1]]))]
    fn embedding_backward(dy: FloatTensor<Self>, ids: IntTensor<Self>, num: usize, skipped: i32) -> FloatTensor<Self>;

    /// [`embedding_backward`](Self::embedding_backward) on top of `onto [num, width]`, in place
    /// where nobody else holds it: the same sums, each added to its row.
    #[fusion(meta = |onto, _dy, _ids, _skipped| onto.clone())]
    fn embedding_add_backward(
        onto: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        ids: IntTensor<Self>,
        skipped: i32,
    ) -> FloatTensor<Self>;
}

impl TableKernels for CubeBackend {
    fn embedding_backward(dy: CubeTensor, ids: CubeTensor, num: usize, skipped: i32) -> CubeTensor {
        let dy = into_contiguous(dy);
        let width = dims2(&dy)[1];
        let (vector, table) = (vector(&dy, [width]), empty(&dy, [num, width]));
        let Sorted { dy, sorted, order, sums, n, vectors, units } = Sorted::new(dy, ids, vector);
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

    fn embedding_add_backward(onto: CubeTensor, dy: CubeTensor, ids: CubeTensor, skipped: i32) -> CubeTensor {
        let ((table, pitch), dy) = (own_rows(onto), into_contiguous(dy));
        let [num, width] = dims2(&table);
        let vector = vector(&dy, [width]).min(vector(&table, [width, pitch]));
        let Sorted { dy, sorted, order, sums, n, vectors, units } = Sorted::new(dy, ids, vector);
        let (count, dim) = by_cube(&dy, n.max(1), units);
        // SAFETY: of the cubes at the places of an id's tokens, which are below `n`, the first one
        // alone reads and writes the row of the id, if the table has it. It reads tokens below `n`,
        // and parts that lie before them.
        unsafe {
            add_to_rows::launch_unchecked(
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
                pitch / vector,
                vectors,
                skipped,
                units,
            );
        }
        table
    }
}

/// Tokens by their id, and the sums of the parts of them that have one id each.
struct Sorted {
    dy: CubeTensor,
    sorted: CubeTensor,
    order: CubeTensor,
    sums: CubeTensor,
    /// Tokens.
    n: usize,
    /// Vectors of a row, and units of a cube that works on one.
    vectors: usize,
    units: usize,
}

impl Sorted {
    /// For a row-major `dy [n, width]`, which is read in vectors of `vector` elements.
    fn new(dy: CubeTensor, ids: CubeTensor, vector: usize) -> Self {
        let ids = into_contiguous(ids);
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
        Self { dy, sorted, order, sums, n, vectors, units }
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

/// The place behind the sorted tokens of `id`, of which one is at `first`.
#[cube]
fn end_of(sorted: &[i32], id: i32, first: usize, tokens: usize) -> usize {
    let mut end = first;
    let mut behind = tokens;
    while end < behind {
        let middle = (end + behind) / 2;
        if sorted[middle] <= id {
            end = middle + 1;
        } else {
            behind = middle;
        }
    }
    end
}

/// A vector of the sum over the sorted tokens `first..end`, whole parts of them at once: as many
/// terms as their share of the parts, and fewer than two parts of tokens.
#[allow(clippy::manual_is_multiple_of)] // CubeCL has no `is_multiple_of`
#[cube]
fn sum_of<N: Size>(
    dy: &[Vector<f32, N>],
    order: &[i32],
    sums: &[Vector<f32, N>],
    first: usize,
    end: usize,
    vectors: usize,
    column: usize,
) -> Vector<f32, N> {
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
    sum
}

/// A cube looks for the tokens of its row among the sorted ones, and adds them.
#[allow(clippy::collapsible_if)] // both sides of `&&` are computed
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
            end = end_of(sorted, id, first, tokens);
        }
    }
    let mut column = UNIT_POS as usize;
    while column < vectors {
        table[row * vectors + column] = sum_of(dy, order, sums, first, end, vectors, column);
        column += units;
    }
}

/// A cube stands at a place of the sorted tokens. The one at the first token of an id adds the sum
/// over all of them to the row of the id, which is `pitch` vectors behind the one before it.
#[cube(launch_unchecked, address_type = "dynamic")]
fn add_to_rows<N: Size>(
    dy: &[Vector<f32, N>],
    sorted: &[i32],
    order: &[i32],
    sums: &[Vector<f32, N>],
    table: &mut [Vector<f32, N>],
    tokens: usize,
    num: usize,
    pitch: usize,
    vectors: usize,
    skipped: i32,
    #[comptime] units: usize,
) {
    let first = CUBE_POS;
    if first >= tokens {
        terminate!();
    }
    let id = sorted[first];
    let is_later = first > 0 && sorted[first - min(first, 1)] == id;
    if is_later || id == skipped || id < 0 || id >= i32::cast_from(num) {
        terminate!();
    }
    let row = usize::cast_from(id) * pitch;
    let end = end_of(sorted, id, first, tokens);
    let mut column = UNIT_POS as usize;
    while column < vectors {
        table[row + column] += sum_of(dy, order, sums, first, end, vectors, column);
        column += units;
    }
}
