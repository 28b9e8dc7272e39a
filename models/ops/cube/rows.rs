//! Building blocks of the kernels that work on rows: sums and maxima over a cube, and sums over the
//! rows of a matrix.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, backend_extension};
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::{addresses, buffer, by_element, dims2, element, empty_in, floats, rows_of};

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

/// Rows that one unit adds up: long enough to be worth a unit, short enough that a tall matrix has
/// work for many.
const PART: usize = 128;

/// The kernel, as an operation of a backend.
#[backend_extension(Cube, Fusion)]
pub(in crate::ops) trait RowKernels: Backend {
    /// `x`, of any type, summed over its rows, `[width]` in f32.
    #[fusion(meta = |x| floats([x.shape[1]]))]
    fn column_sums(x: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl RowKernels for CubeBackend {
    fn column_sums(x: CubeTensor) -> CubeTensor {
        let (mut x, mut pitch) = rows_of(x);
        loop {
            let [rows, width] = dims2(&x);
            let parts = rows.div_ceil(PART).max(1);
            let sums = empty_in(&x, [parts, width], DType::F32);
            let (count, dim) = by_element(&x, parts * width);
            // SAFETY: a unit reads rows below `rows` of its column and writes its own element, if
            // there is one.
            unsafe {
                add_rows::launch_unchecked(
                    &x.client,
                    count,
                    dim,
                    addresses([&x]),
                    buffer(&x),
                    buffer(&sums),
                    parts,
                    rows,
                    width,
                    pitch,
                    PART,
                    element(&x),
                );
            }
            if parts == 1 {
                return CubeTensor::new_contiguous(sums.client, sums.device, [width].into(), sums.handle, sums.dtype);
            }
            (x, pitch) = (sums, width);
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn add_rows<F: Float>(
    x: &[F],
    sums: &mut [f32],
    parts: usize,
    rows: usize,
    width: usize,
    pitch: usize,
    part: usize,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= parts * width {
        terminate!();
    }
    let column = ABSOLUTE_POS % width;
    let first = ABSOLUTE_POS / width * part;
    let end = min(first + part, rows);
    let mut sum = 0.0f32;
    for row in first..end {
        sum += f32::cast_from(x[row * pitch + column]);
    }
    sums[ABSOLUTE_POS] = sum;
}
