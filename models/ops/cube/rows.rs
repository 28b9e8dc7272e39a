//! Building blocks of the kernels that work on rows: sums and maxima over a cube, and sums over the
//! rows of a matrix.
#![allow(clippy::assign_op_pattern)] // vectors of kernels have no other form

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, backend_extension};
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::{addresses, buffer, by_cube, dims2, element, empty, empty_in, floats, lanes, rows_of, units};
use crate::ops::device::is_software;

/// The sum of the `value`s of all units of the cube, for every one of them. `scratch` is shared
/// memory of `lanes` numbers.
#[cube]
pub(in crate::ops) fn cube_sum(value: f32, scratch: &mut Shared<[f32]>, #[comptime] lanes: usize) -> f32 {
    sync_cube(); // nobody reads the last sum any more
    scratch[UNIT_POS as usize] = value;
    sync_cube();
    let mut sum = 0.0f32;
    #[unroll]
    for lane in 0..lanes {
        sum += scratch[lane];
    }
    sum
}

/// The largest `value` of all units of the cube, for every one of them.
#[cube]
pub(in crate::ops) fn cube_max(value: f32, scratch: &mut Shared<[f32]>, #[comptime] lanes: usize) -> f32 {
    sync_cube();
    scratch[UNIT_POS as usize] = value;
    sync_cube();
    let mut largest = scratch[0];
    #[unroll]
    for lane in 1..lanes {
        largest = max(largest, scratch[lane]);
    }
    largest
}

/// Columns of a matrix that a cube adds up: rows of that many numbers are whole sectors of a GPU's
/// memory.
const COLUMNS: usize = 16;

/// Cubes that sum over the rows of a matrix: each takes `columns` of its columns, and a unit of it
/// every `groups`-th row of one. One launch has the sums, in a fixed order.
pub(in crate::ops) struct ByColumns {
    pub(in crate::ops) count: CubeCount,
    pub(in crate::ops) dim: CubeDim,
    pub(in crate::ops) columns: usize,
    pub(in crate::ops) groups: usize,
}

impl ByColumns {
    /// For a matrix `[rows, width]` on the device of `x`.
    pub(in crate::ops) fn new(x: &CubeTensor, rows: usize, width: usize) -> Self {
        let (columns, groups) =
            if is_software(&x.device) { (lanes(x), 1) } else { (COLUMNS, units(x, rows) / COLUMNS) };
        let groups = groups.max(1);
        let (count, dim) = by_cube(x, width.div_ceil(columns), columns * groups);
        Self { count, dim, columns, groups }
    }
}

/// The sum of the `value`s of the units with the same column, for the first `columns` units of the
/// cube. `scratch` is shared memory of a number for every unit, and `groups` a power of two.
#[cube]
pub(in crate::ops) fn column_sum(
    value: f32,
    scratch: &mut Shared<[f32]>,
    #[comptime] columns: usize,
    #[comptime] groups: usize,
) -> f32 {
    let unit = UNIT_POS as usize;
    sync_cube(); // nobody reads the last sums any more
    scratch[unit] = value;
    #[unroll]
    for level in 0..comptime!(groups.ilog2()) {
        sync_cube();
        let half = comptime!((groups >> (level + 1)) * columns);
        if unit < half {
            scratch[unit] += scratch[unit + half];
        }
    }
    scratch[unit]
}

/// Vectors of a row that a unit of [`Strips`] takes, which it holds in registers, where a kernel
/// has room for no other number.
const VECTORS: usize = 4;
/// Units of a cube of [`Strips`], where a row leaves it more than one group.
const UNITS: usize = 256;
/// Rows of a strip: so many rows are read for one of sums that is written.
const STRIP: usize = 32;

/// Cubes that each go over a strip of rows of a matrix, and hold what they add up of its columns in
/// registers: `groups` groups of `lanes` units take a row each at a time, of which a unit has
/// `each` vectors. [`total`](Self::total) adds the sums of all strips. Where a sum is made depends
/// on the matrix and the units of a cube alone, so it is the same from call to call.
pub(in crate::ops) struct Strips {
    pub(in crate::ops) count: CubeCount,
    pub(in crate::ops) dim: CubeDim,
    /// How many there are.
    pub(in crate::ops) strips: usize,
    pub(in crate::ops) form: Strip,
}

/// The sizes of a kernel for [`Strips`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::ops) struct Strip {
    pub(in crate::ops) lanes: usize,
    pub(in crate::ops) groups: usize,
    pub(in crate::ops) each: usize,
}

impl Strip {
    /// For rows of `vectors` vectors on the device of `x`.
    pub(in crate::ops) fn new(x: &CubeTensor, vectors: usize) -> Self {
        Self::holding(VECTORS, x, vectors)
    }

    /// [`new`](Self::new) with about `each` vectors of a row, at most, for each unit of a cube that
    /// has units enough.
    fn holding(each: usize, x: &CubeTensor, vectors: usize) -> Self {
        let most = 1 << x.client.properties().hardware.max_units_per_cube.clamp(8, 1024).ilog2();
        let lanes = vectors.div_ceil(each).next_power_of_two().clamp(8.min(most), most);
        // A software device runs the units of a cube one after another.
        let groups = if is_software(&x.device) { 1 } else { (UNITS.min(most) / lanes).max(1) };
        Self { lanes, groups, each: vectors.div_ceil(lanes).max(1) }
    }

    /// Rows that a group takes, one after the other.
    pub(in crate::ops) fn rounds(self) -> usize {
        STRIP.div_ceil(self.groups)
    }

    /// Rows of the strip.
    pub(in crate::ops) fn rows(self) -> usize {
        self.rounds() * self.groups
    }
}

impl Strips {
    /// For a matrix of `rows` rows of `vectors` vectors on the device of `x`.
    pub(in crate::ops) fn new(x: &CubeTensor, rows: usize, vectors: usize) -> Self {
        Self::holding(VECTORS, x, rows, vectors)
    }

    /// [`new`](Self::new) for a kernel whose units have room for `each` vectors of a row.
    pub(in crate::ops) fn holding(each: usize, x: &CubeTensor, rows: usize, vectors: usize) -> Self {
        let form = Strip::holding(each, x, vectors);
        let strips = rows.div_ceil(form.rows());
        let (count, dim) = by_cube(x, strips, form.lanes * form.groups);
        Self { count, dim, strips, form }
    }

    /// The `sums`, three at most, of each of `width` columns, of which the strips have written
    /// their parts, `[strips, sums * width]` in f32; one launch adds them all. Tensors behind the
    /// last sum have one element, which is not written.
    pub(in crate::ops) fn total(&self, parts: CubeTensor, width: usize, sums: usize) -> [CubeTensor; 3] {
        let rows = self.strips;
        let [first, second, third] = [0, 1, 2].map(|sum| empty(&parts, [if sum < sums { width } else { 1 }]));
        // Strips are few: so many units that each adds a few of them.
        let ByColumns { count, dim, columns, groups } = ByColumns::new(&parts, rows * COLUMNS, sums * width);
        // SAFETY: a unit reads rows below `rows` of its column and writes that column's sum, if
        // there is such a column: into the tensor of the sum to which it belongs.
        unsafe {
            add_strips::launch_unchecked(
                &parts.client,
                count,
                dim,
                addresses([&parts]),
                buffer(&parts),
                buffer(&first),
                buffer(&second),
                buffer(&third),
                rows,
                width,
                sums,
                columns,
                groups,
            );
        }
        [first, second, third]
    }
}

/// The sums of `values` and `others`, a number each, of the units of a group, for every one of
/// them. `scratch` is shared memory of two numbers for every unit of the cube; a group has a power
/// of two of units.
#[cube]
pub(in crate::ops) fn group_sums(
    value: f32,
    other: f32,
    scratch: &mut Shared<[f32]>,
    #[comptime] form: Strip,
) -> (f32, f32) {
    let units = comptime!(form.lanes * form.groups);
    let unit = UNIT_POS as usize;
    let lane = unit % form.lanes;
    sync_cube(); // nobody reads the last sums any more
    scratch[unit] = value;
    scratch[units + unit] = other;
    #[unroll]
    for level in 0..comptime!(form.lanes.ilog2().div_ceil(2)) {
        sync_cube();
        // A quarter of the units adds four numbers each; half of them two, where no four are left.
        let left = comptime!(form.lanes >> (2 * level));
        let next = comptime!(if left >= 4 { left / 4 } else { left / 2 });
        if lane < next {
            let mut sum = scratch[unit];
            let mut of_other = scratch[units + unit];
            #[unroll]
            for part in 1..comptime!(left / next) {
                sum += scratch[unit + part * next];
                of_other += scratch[units + unit + part * next];
            }
            scratch[unit] = sum;
            scratch[units + unit] = of_other;
        }
    }
    sync_cube();
    let first = unit - lane;
    (scratch[first], scratch[units + first])
}

/// Adds `sums`, which a unit has of its `each` vectors of columns, over the groups, and writes
/// those of the strip from `start` on. `scratch` is shared memory of a vector for every unit.
#[cube]
pub(in crate::ops) fn write_strip<N: Size>(
    sums: &Array<Vector<f32, N>>,
    parts: &mut [Vector<f32, N>],
    start: usize,
    vectors: usize,
    scratch: &mut Shared<[Vector<f32, N>]>,
    #[comptime] form: Strip,
) {
    let unit = UNIT_POS as usize;
    #[unroll]
    for j in 0..form.each {
        sync_cube(); // nobody reads the last sums any more
        scratch[unit] = sums[j];
        sync_cube();
        let at = unit + comptime!(j * form.lanes);
        if unit < form.lanes && at < vectors {
            let mut sum = scratch[unit];
            #[unroll]
            for group in 1..form.groups {
                sum = sum + scratch[unit + comptime!(group * form.lanes)];
            }
            parts[start + at] = sum;
        }
    }
}

/// The kernel, as an operation of a backend.
#[backend_extension(Cube, Fusion)]
pub(in crate::ops) trait RowKernels: Backend {
    /// `x`, of any type, summed over its rows, `[width]` in f32.
    #[fusion(meta = |x| floats([x.shape[1]]))]
    fn column_sums(x: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl RowKernels for CubeBackend {
    fn column_sums(x: CubeTensor) -> CubeTensor {
        let (x, pitch) = rows_of(x);
        let [rows, width] = dims2(&x);
        let sums = empty_in(&x, [width], DType::F32);
        let ByColumns { count, dim, columns, groups } = ByColumns::new(&x, rows, width);
        // SAFETY: a unit reads rows below `rows` of its column and writes that column's sum, if
        // there is such a column.
        unsafe {
            add_rows::launch_unchecked(
                &x.client,
                count,
                dim,
                addresses([&x]),
                buffer(&x),
                buffer(&sums),
                rows,
                width,
                pitch,
                columns,
                groups,
                element(&x),
            );
        }
        sums
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn add_rows<F: Float>(
    x: &[F],
    sums: &mut [f32],
    rows: usize,
    width: usize,
    pitch: usize,
    #[comptime] columns: usize,
    #[comptime] groups: usize,
    #[define(F)] _dtype: ElemType,
) {
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(columns * groups));
    let unit = UNIT_POS as usize;
    let first = CUBE_POS * columns;
    if first >= width {
        terminate!();
    }
    let column = first + unit % columns;
    let mut sum = 0.0f32;
    if column < width {
        let mut row = unit / columns;
        while row < rows {
            sum += f32::cast_from(x[row * pitch + column]);
            row += groups;
        }
    }
    let sum = column_sum(sum, &mut scratch, columns, groups);
    if unit < columns && column < width {
        sums[column] = sum;
    }
}

/// The sums over the rows of `parts [rows, sums * width]`: those of the first `width` columns, and
/// those of the next `width` and of the ones behind them, if there are.
#[cube(launch_unchecked, address_type = "dynamic")]
fn add_strips(
    parts: &[f32],
    first_sums: &mut [f32],
    second_sums: &mut [f32],
    third_sums: &mut [f32],
    rows: usize,
    width: usize,
    sums: usize,
    #[comptime] columns: usize,
    #[comptime] groups: usize,
) {
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(columns * groups));
    let unit = UNIT_POS as usize;
    let first = CUBE_POS * columns;
    let all = sums * width;
    if first >= all {
        terminate!();
    }
    let column = first + unit % columns;
    let mut sum = 0.0f32;
    if column < all {
        let mut row = unit / columns;
        while row < rows {
            sum += parts[row * all + column];
            row += groups;
        }
    }
    let sum = column_sum(sum, &mut scratch, columns, groups);
    if unit < columns {
        if column < width {
            first_sums[column] = sum;
        } else if column < min(2 * width, all) {
            second_sums[column - width] = sum;
        } else if column < all {
            third_sums[column - 2 * width] = sum;
        }
    }
}
