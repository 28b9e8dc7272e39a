//! Building blocks of the kernels: tiles in shared memory, operands of matrix instructions, and
//! what the kernels do with scores.

use cubecl::cmma::{MatrixIdent, MmaDefinition};
use cubecl::prelude::*;

use super::form::{Form, HIDDEN, LOAD, UNITS};

/// Stands for the score of a key behind the last: its exponential is 0 beside [`HIDDEN`] too.
const ABSENT: f32 = -3.4e38;

/// The head, counted over all sequences, and the tile of it that a cube takes. Of each `together`
/// heads the first tiles come first, which should be those with the most work, and heads that are
/// read at a time are few enough for the cache.
#[cube]
pub(super) fn place(cube: usize, pairs: usize, tiles: usize, together: usize) -> (usize, usize) {
    let before = cube / (together * tiles) * together;
    let beside = min(together, pairs - before);
    let within = cube - before * tiles;
    (before + within % beside, within / beside)
}

/// Copies the rows `first..first + count` of a head into shared memory, of `width` loads each; rows
/// from `rows` on are 0. A row there is one load longer, so that the rows of 8 x 8 numbers that a
/// matrix load reads lie in different banks.
#[cube]
pub(super) fn fill<F: Float, N: Size>(
    tile: &mut Shared<[Vector<F, N>]>,
    from: &[Vector<F, N>],
    start: usize,
    pitch: usize,
    first: usize,
    rows: usize,
    #[comptime] count: usize,
    #[comptime] width: usize,
) {
    #[unroll]
    for i in 0..comptime!((count * width).div_ceil(UNITS)) {
        let at = comptime!(i * UNITS) + UNIT_POS as usize;
        if comptime!((i + 1) * UNITS <= count * width) {
            copy_load::<F, N>(tile, from, start, pitch, first, rows, at, width);
        } else {
            // The last round is of fewer units.
            if at < comptime!(count * width) {
                copy_load::<F, N>(tile, from, start, pitch, first, rows, at, width);
            }
        }
    }
}

/// Copies the load `at` of a tile.
#[cube]
fn copy_load<F: Float, N: Size>(
    tile: &mut Shared<[Vector<F, N>]>,
    from: &[Vector<F, N>],
    start: usize,
    pitch: usize,
    first: usize,
    rows: usize,
    at: usize,
    #[comptime] width: usize,
) {
    let row = at / width;
    let column = at % width;
    let mut load = Vector::<F, N>::new(F::cast_from(0.0f32));
    if first + row < rows {
        load = from[start + (first + row) * pitch + column];
    }
    tile[row * comptime!(width + 1) + column] = load;
}

/// The load of a tile at which the unit's row of four matrices of 8 x 8 begins, for the rows
/// `row..row + 16` and the columns `column..column + 16`: the second matrix is below the first, the
/// third to the right of it.
#[cube]
pub(super) fn below_first(row: usize, #[comptime] column: usize, #[comptime] width: usize) -> usize {
    let lane = UNIT_POS as usize % 32;
    (row + lane / 8 % 2 * 8 + lane % 8) * comptime!(width + 1) + comptime!(column / LOAD) + lane / 16
}

/// [`below_first`] with the second matrix to the right of the first, and the third below it.
#[cube]
pub(super) fn right_first(row: usize, #[comptime] column: usize, #[comptime] width: usize) -> usize {
    let lane = UNIT_POS as usize % 32;
    (row + lane / 16 * 8 + lane % 8) * comptime!(width + 1) + comptime!(column / LOAD) + lane / 8 % 2
}

/// The left operand of a product: 16 rows of a tile, 16 columns of which are multiplied.
#[cube]
pub(super) fn left<F: Float, N: Size, P: Size>(
    by: &MmaDefinition<F, F, f32>,
    tile: &Shared<[Vector<F, N>]>,
    row: usize,
    #[comptime] column: usize,
    #[comptime] width: usize,
) -> Array<Vector<F, P>> {
    let at = below_first(row, column, width);
    by.load_matrix::<Vector<F, N>, P>(&tile[at..at + 1], MatrixIdent::A, 4usize, false)
}

/// The right operands of two products whose results have a column for each of 16 rows of a tile.
#[cube]
pub(super) fn right<F: Float, N: Size, P: Size>(
    by: &MmaDefinition<F, F, f32>,
    tile: &Shared<[Vector<F, N>]>,
    row: usize,
    #[comptime] column: usize,
    #[comptime] width: usize,
) -> Array<Vector<F, P>> {
    let at = right_first(row, column, width);
    by.load_matrix::<Vector<F, N>, P>(&tile[at..at + 1], MatrixIdent::B, 4usize, false)
}

/// The right operands of two products over 16 rows of a tile whose results have its columns.
#[cube]
pub(super) fn right_over_rows<F: Float, N: Size, P: Size>(
    by: &MmaDefinition<F, F, f32>,
    tile: &Shared<[Vector<F, N>]>,
    row: usize,
    #[comptime] column: usize,
    #[comptime] width: usize,
) -> Array<Vector<F, P>> {
    let at = below_first(row, column, width);
    by.load_matrix::<Vector<F, N>, P>(&tile[at..at + 1], MatrixIdent::B, 4usize, true)
}

/// Adds to the tiles `tile` and `tile + 1` of `sums`, 16 x 8 each, the products of `a` with both
/// halves of `b`.
#[cube]
pub(super) fn add_products<F: Float, P: Size>(
    by: &MmaDefinition<F, F, f32>,
    a: &Array<Vector<F, P>>,
    b: &Array<Vector<F, P>>,
    sums: &mut Array<Vector<f32, P>>,
    #[comptime] tile: usize,
) {
    #[unroll]
    for i in 0..2usize {
        let mut half = Array::<Vector<F, P>>::new(2usize);
        half[0] = b[comptime!(2 * i)];
        half[1] = b[comptime!(2 * i + 1)];
        let mut sum = Array::<Vector<f32, P>>::new(2usize);
        sum[0] = sums[comptime!(2 * (tile + i))];
        sum[1] = sums[comptime!(2 * (tile + i) + 1)];
        let sum = by.execute::<P, P, P>(a, &half, &sum);
        sums[comptime!(2 * (tile + i))] = sum[0];
        sums[comptime!(2 * (tile + i) + 1)] = sum[1];
    }
}

/// The left operand that the tiles `2 step` and `2 step + 1` of a result are, rounded.
#[cube]
pub(super) fn narrowed<F: Float, P: Size>(
    values: &Array<Vector<f32, P>>,
    #[comptime] step: usize,
) -> Array<Vector<F, P>> {
    let mut operand = Array::<Vector<F, P>>::new(4usize);
    #[unroll]
    for i in 0..4usize {
        operand[i] = Vector::<F, P>::cast_from(values[comptime!(4 * step + i)]);
    }
    operand
}

#[cube]
pub(super) fn zero<P: Size>(sums: &mut Array<Vector<f32, P>>, #[comptime] count: usize) {
    #[unroll]
    for i in 0..count {
        sums[i] = Vector::<f32, P>::new(0.0f32);
    }
}

/// The left operands of a plane's 16 rows of a tile from `row` on.
#[cube]
pub(super) fn left_of_all<F: Float, N: Size, P: Size>(
    by: &MmaDefinition<F, F, f32>,
    tile: &Shared<[Vector<F, N>]>,
    row: usize,
    #[comptime] head_dim: usize,
) -> Array<Vector<F, P>> {
    let mut all = Array::<Vector<F, P>>::new(comptime!(head_dim / 4));
    #[unroll]
    for step in 0..comptime!(head_dim / 16) {
        let one = left::<F, N, P>(by, tile, row, comptime!(16 * step), comptime!(head_dim / LOAD));
        #[unroll]
        for i in 0..4usize {
            all[comptime!(4 * step + i)] = one[i];
        }
    }
    all
}

/// The `step`-th left operand of `all`.
#[cube]
pub(super) fn left_of<F: Float, P: Size>(all: &Array<Vector<F, P>>, #[comptime] step: usize) -> Array<Vector<F, P>> {
    let mut one = Array::<Vector<F, P>>::new(4usize);
    #[unroll]
    for i in 0..4usize {
        one[i] = all[comptime!(4 * step + i)];
    }
    one
}

/// `sums`, 16 rows of `count` columns, becomes the product of 16 rows, whose left operands are
/// `all`, and the transpose of the first `count` rows of `tile`.
#[cube]
pub(super) fn multiply_rows<F: Float, N: Size, P: Size>(
    by: &MmaDefinition<F, F, f32>,
    all: &Array<Vector<F, P>>,
    tile: &Shared<[Vector<F, N>]>,
    sums: &mut Array<Vector<f32, P>>,
    #[comptime] count: usize,
    #[comptime] head_dim: usize,
) {
    zero::<P>(sums, comptime!(count / 4));
    #[unroll]
    for step in 0..comptime!(head_dim / 16) {
        let a = left_of::<F, P>(all, step);
        #[unroll]
        for pair in 0..comptime!(count / 16) {
            let row = comptime!(16 * pair).runtime();
            let b = right::<F, N, P>(by, tile, row, comptime!(16 * step), comptime!(head_dim / LOAD));
            add_products::<F, P>(by, &a, &b, sums, comptime!(2 * pair));
        }
    }
}

/// Adds to `sums`, 16 rows of a head, the product of `values`, 16 rows of `count` columns, and the
/// first `count` rows of `tile`.
#[cube]
pub(super) fn add_rows_of<F: Float, N: Size, P: Size>(
    by: &MmaDefinition<F, F, f32>,
    values: &Array<Vector<f32, P>>,
    tile: &Shared<[Vector<F, N>]>,
    sums: &mut Array<Vector<f32, P>>,
    #[comptime] count: usize,
    #[comptime] head_dim: usize,
) {
    #[unroll]
    for step in 0..comptime!(count / 16) {
        let a = narrowed::<F, P>(values, step);
        #[unroll]
        for pair in 0..comptime!(head_dim / 16) {
            let row = comptime!(16 * step).runtime();
            let b = right_over_rows::<F, N, P>(by, tile, row, comptime!(16 * pair), comptime!(head_dim / LOAD));
            add_products::<F, P>(by, &a, &b, sums, comptime!(2 * pair));
        }
    }
}

/// Writes 16 rows of a head from `row` on, of which the unit has two, times a factor each.
#[cube]
pub(super) fn write_rows<F: Float, P: Size>(
    to: &mut [Vector<F, P>],
    values: &Array<Vector<f32, P>>,
    start: usize,
    pitch: usize,
    row: usize,
    rows: usize,
    by: &Array<f32>,
    #[comptime] head_dim: usize,
) {
    let lane = UNIT_POS as usize % 32;
    #[unroll]
    for half in 0..2usize {
        let row = row + lane / 4 + comptime!(8 * half);
        if row < rows {
            let start = start + row * pitch + lane % 4;
            #[unroll]
            for tile in 0..comptime!(head_dim / 8) {
                let value = values[comptime!(2 * tile + half)] * Vector::<f32, P>::new(by[half]);
                to[start + comptime!(4 * tile)] = Vector::<F, P>::cast_from(value);
            }
        }
    }
}

/// The score of key `column` for query `row`, or what stands for it.
#[cube]
pub(super) fn visible<M: Int>(
    score: f32,
    keys: &[M],
    sequence: usize,
    row: usize,
    column: usize,
    columns: usize,
    #[comptime] form: Form,
) -> f32 {
    let mut score = score;
    if comptime!(form.causal) {
        score = select(column > row, f32::cast_from(HIDDEN), score);
    }
    if comptime!(form.padded) {
        let shown = keys[sequence * columns + min(column, columns - 1)];
        score = select(u32::cast_from(shown) == 0u32, f32::cast_from(HIDDEN), score);
    }
    select(column < columns, score, f32::cast_from(ABSENT))
}

/// Whether some score of `count` keys from `column` on needs [`visible`], for queries from `row`
/// on.
#[cube]
pub(super) fn is_edge(
    row: usize,
    column: usize,
    columns: usize,
    #[comptime] count: usize,
    #[comptime] form: Form,
) -> bool {
    if comptime!(form.padded) {
        true.runtime()
    } else if comptime!(form.causal) {
        column + count > columns || column + count > row + 1
    } else {
        column + count > columns
    }
}

/// Scales the products `scores` of 16 rows and `count` columns, and where `is_edge` replaces what
/// is not to be seen. `row` and `column` are the query and the key of the unit's first score;
/// `transposed`, a row is a key's.
#[cube]
pub(super) fn finish_scores<M: Int, P: Size>(
    scores: &mut Array<Vector<f32, P>>,
    scale: f32,
    keys: &[M],
    sequence: usize,
    row: usize,
    column: usize,
    columns: usize,
    is_edge: bool,
    #[comptime] count: usize,
    #[comptime] transposed: bool,
    #[comptime] form: Form,
) {
    #[unroll]
    for i in 0..comptime!(count / 4) {
        scores[i] = scores[i] * Vector::<f32, P>::new(scale);
    }
    if is_edge {
        #[unroll]
        for i in 0..comptime!(count / 4) {
            let mut pair = scores[i];
            #[unroll]
            for e in 0..2usize {
                let down = comptime!(if transposed { i / 2 * 8 + e } else { i % 2 * 8 });
                let across = comptime!(if transposed { i % 2 * 8 } else { i / 2 * 8 + e });
                let score = visible::<M>(pair.extract(e), keys, sequence, row + down, column + across, columns, form);
                pair.insert(e, score);
            }
            scores[i] = pair;
        }
    }
}

/// The sum of the four units that have numbers of a row.
#[cube]
pub(super) fn sum_of_row(value: f32) -> f32 {
    let value = value + plane_shuffle_xor(value, 1u32);
    value + plane_shuffle_xor(value, 2u32)
}

#[cube]
pub(super) fn largest_of_row(value: f32) -> f32 {
    let value = max(value, plane_shuffle_xor(value, 1u32));
    max(value, plane_shuffle_xor(value, 2u32))
}

/// The weight of a key before dropout, and 0 for what is not there. Where no key is seen, the
/// logarithm of the sum has drowned in [`HIDDEN`], and all weights are alike.
#[cube]
pub(super) fn weight_of(score: f32, lse: f32, column: usize, columns: usize, #[comptime] form: Form) -> f32 {
    let weight = (score - lse).exp();
    if comptime!(form.padded) {
        let even = select(column < columns, 1.0f32 / f32::cast_from(columns), 0.0f32);
        select(lse < 0.5f32 * HIDDEN, even, weight)
    } else {
        weight
    }
}

/// The gradient of a score, but for the scale. A hidden key has none: its score is a constant.
#[cube]
pub(super) fn gradient_of(score: f32, weight: f32, dweight: f32, delta: f32, #[comptime] form: Form) -> f32 {
    let gradient = weight * (dweight - delta);
    if comptime!(form.padded) { select(score > 0.5f32 * HIDDEN, gradient, 0.0f32) } else { gradient }
}

/// The number of a query among those of all heads of all sequences.
#[cube]
pub(super) fn pair_row(sequence: usize, head: usize, row: usize, heads: usize, queries: usize) -> usize {
    (sequence * heads + head) * queries + row
}
