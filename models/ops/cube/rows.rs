//! Building blocks of the kernels that work on rows: sums and maxima over a cube, and sums over the
//! rows of a matrix.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, backend_extension};
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::product::is_software;
use super::{addresses, buffer, by_cube, dims2, element, empty_in, floats, lanes, rows_of, units};

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
