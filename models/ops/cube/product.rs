//! Matrix products: Burn's, which are tuned and may fuse with what follows; on software devices,
//! which are CPUs posing as GPUs (Mesa's llvmpipe), a kernel of our own.
//!
//! Burn's kernels are written for GPUs: they stage tiles in shared memory behind barriers. On a CPU
//! a barrier is a switch between coroutines, shared memory is memory like any other, and a load is
//! a loop over the units of a plane, while arithmetic is one vector instruction. So a unit here
//! keeps a large tile in registers, nothing is staged, and the units of a plane load different
//! elements of `a` once and broadcast them to each other.

use burn::backend::tensor::FloatTensor;
use burn_cubecl::CubeBackend;
use std::sync::OnceLock;

use burn::backend::fusion::custom::TensorSpec;
use burn::backend::ops::FloatTensorOps;
use burn::backend::{Backend, TensorMetadata, backend_extension};
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeDevice;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::kernel::matmul::matmul_autotune;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{Cube, FusedTensor, VECTOR_BYTES, buffer, dims2, empty, empty_in, shaped};
use crate::ops::device::is_software;

/// A factor of a product.
pub(in crate::ops) struct Factor {
    matrix: FusedTensor,
    transposed: bool,
}

/// `matrix` itself.
pub(in crate::ops) fn plain(matrix: FusedTensor) -> Factor {
    Factor { matrix, transposed: false }
}

/// The transpose of `matrix`.
pub(in crate::ops) fn transposed(matrix: FusedTensor) -> Factor {
    Factor { matrix, transposed: true }
}

/// `a b`, of two matrices of one type. The result of narrow ones is in `dtype`: their type, or f32,
/// in which the sums are; that of f32 is f32.
pub(in crate::ops) fn product(a: Factor, b: Factor, dtype: DType) -> FusedTensor {
    if a.matrix.dtype() != DType::F32 {
        return Cube::narrow_product(a.matrix, b.matrix, a.transposed, b.transposed, dtype);
    }
    if vector_width(&a.matrix.device()).is_some() {
        return Cube::tiled_product(a.matrix, b.matrix, a.transposed, b.transposed);
    }
    let [a, b] =
        [a, b].map(|Factor { matrix, transposed }| if transposed { Cube::float_transpose(matrix) } else { matrix });
    Cube::float_matmul(a, b)
}

/// Units of a plane of a software device: 4 or 8, the width of its CPU's vectors. None for every
/// other device.
///
/// CubeCL does not count planes among a software device's features and does not know their width,
/// so a kernel is asked, once.
fn vector_width(device: &CubeDevice) -> Option<usize> {
    static WIDTH: OnceLock<u32> = OnceLock::new();
    if !is_software(device) {
        return None;
    }
    let width = *WIDTH.get_or_init(|| {
        let client = device.client();
        let width = client.empty(size_of::<u32>());
        // SAFETY: the first unit alone writes, the only element.
        unsafe {
            plane_width::launch_unchecked(
                &client,
                CubeCount::new_single(),
                CubeDim::new_1d(64),
                BufferArg::from_raw_parts(width.clone(), 1),
            );
        }
        // A device that cannot be read has failed, which the next read of a loss tells: Burn's
        // products are as good as any.
        client.read_one(width).map_or(0, |bytes| u32::from_ne_bytes(bytes[..4].try_into().unwrap_or_default()))
    });
    matches!(width, 4 | 8).then_some(width as usize)
}

#[cube(launch_unchecked)]
fn plane_width(width: &mut [u32]) {
    if ABSOLUTE_POS == 0 {
        width[0] = PLANE_DIM;
    }
}

/// Rows of a plane's tile, a multiple of every [`vector_width`].
const ROWS: usize = 32;
/// Columns of a unit.
const COLUMNS: usize = 4;
/// Planes in a cube: enough to repay starting one.
const PLANES: usize = 8;

/// The products, as operations of a backend.
#[backend_extension(Cube, Fusion)]
pub(in crate::ops) trait ProductKernels: Backend {
    /// `a b`, of matrices in bf16 or f16 or of their transposes, which are views. Burn tunes the
    /// product among all its kernels; its fused products lack those that load by TMA, and their
    /// result has the type of the factors.
    #[fusion(meta = |a, b, a_transposed, b_transposed, dtype| {
        let shape = [a.shape[usize::from(*a_transposed)], b.shape[usize::from(!*b_transposed)]];
        TensorSpec::new(Shape::from(shape), *dtype)
    })]
    fn narrow_product(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        a_transposed: bool,
        b_transposed: bool,
        dtype: DType,
    ) -> FloatTensor<Self>;

    /// `a b`, of the matrices or of their transposes, on a software device.
    #[fusion(meta = |a, b, a_transposed, b_transposed| {
        shaped(a, [a.shape[usize::from(*a_transposed)], b.shape[usize::from(!*b_transposed)]])
    })]
    fn tiled_product(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        a_transposed: bool,
        b_transposed: bool,
    ) -> FloatTensor<Self>;
}

impl ProductKernels for CubeBackend {
    fn narrow_product(
        a: CubeTensor,
        b: CubeTensor,
        a_transposed: bool,
        b_transposed: bool,
        dtype: DType,
    ) -> CubeTensor {
        let a = if a_transposed { Self::float_transpose(a) } else { a };
        let b = if b_transposed { Self::float_transpose(b) } else { b };
        let (rows, columns) = (dims2(&a)[0], dims2(&b)[1]);
        // CUDA's allocator puts rows of other lengths than a multiple of 512 bytes apart, and what
        // works on all elements alike (the update, the norm) would copy them together. Rows that
        // are no whole vectors keep the gap, which aligns them.
        let is_whole = (columns * dtype.size()).is_multiple_of(VECTOR_BYTES);
        let out = is_whole.then(|| empty_in(&a, [rows, columns], dtype));
        matmul_autotune(a, b, out, dtype)
    }

    fn tiled_product(a: CubeTensor, b: CubeTensor, a_transposed: bool, b_transposed: bool) -> CubeTensor {
        let lanes = vector_width(&a.device).expect("product() has seen that it is a software device");
        let [a, b] = [a, b].map(into_contiguous);
        let ([a_rows, a_cols], [b_rows, b_cols]) = (dims2(&a), dims2(&b));
        let (m, k, a_strides) =
            if a_transposed { (a_cols, a_rows, (1, a_cols)) } else { (a_rows, a_cols, (a_cols, 1)) };
        let (n, b_strides) = if b_transposed { (b_rows, (1, b_cols)) } else { (b_cols, (b_cols, 1)) };
        let product = empty(&a, [m, n]);
        let tiles = m.div_ceil(ROWS) * n.div_ceil(COLUMNS * lanes);
        // SAFETY: rows and columns behind the last are read as the last, and are not written; `k`
        // bounds both factors.
        unsafe {
            product_tiles::launch_unchecked(
                &a.client,
                CubeCount::new_1d(tiles.div_ceil(PLANES) as u32),
                CubeDim::new_2d(lanes as u32, PLANES as u32),
                buffer(&a),
                buffer(&b),
                buffer(&product),
                m,
                n,
                k,
                a_strides.0,
                a_strides.1,
                b_strides.0,
                b_strides.1,
                lanes,
            );
        }
        product
    }
}

/// A plane computes `ROWS` rows of `COLUMNS * lanes` columns, every `lanes`-th of which is a
/// unit's.
#[cube(launch_unchecked)]
fn product_tiles(
    a: &[f32],
    b: &[f32],
    product: &mut [f32],
    m: usize,
    n: usize,
    k: usize,
    a_row: usize,
    a_col: usize,
    b_row: usize,
    b_col: usize,
    #[comptime] lanes: usize,
) {
    let across = n.div_ceil(comptime!(COLUMNS * lanes));
    let tile = CUBE_POS * PLANES + UNIT_POS_Y as usize;
    let lane = UNIT_POS_X as usize;
    let row = tile / across * ROWS;
    let column = tile % across * comptime!(COLUMNS * lanes) + lane;
    if row >= m {
        terminate!();
    }
    let groups = comptime!(ROWS / lanes);
    let mut sums = Array::<f32>::new(comptime!(ROWS * COLUMNS));
    let mut a_at = Array::<usize>::new(groups);
    let mut b_at = Array::<usize>::new(COLUMNS);
    let mut a_of = Array::<f32>::new(groups);
    let mut b_of = Array::<f32>::new(COLUMNS);
    #[unroll]
    for i in 0..comptime!(ROWS * COLUMNS) {
        sums[i] = 0.0f32;
    }
    #[unroll]
    for g in 0..groups {
        a_at[g] = min(row + comptime!(g * lanes) + lane, m - 1) * a_row;
    }
    #[unroll]
    for j in 0..COLUMNS {
        b_at[j] = min(column + comptime!(j * lanes), n - 1) * b_col;
    }
    for p in 0..k {
        #[unroll]
        for g in 0..groups {
            a_of[g] = a[a_at[g] + p * a_col];
        }
        #[unroll]
        for j in 0..COLUMNS {
            b_of[j] = b[b_at[j] + p * b_row];
        }
        #[unroll]
        for i in 0..ROWS {
            let factor = plane_broadcast(a_of[comptime!(i / lanes)], comptime!((i % lanes) as u32));
            #[unroll]
            for j in 0..COLUMNS {
                sums[comptime!(i * COLUMNS + j)] += factor * b_of[j];
            }
        }
    }
    #[unroll]
    for i in 0..ROWS {
        if row + i < m {
            #[unroll]
            for j in 0..COLUMNS {
                if column + comptime!(j * lanes) < n {
                    product[(row + i) * n + column + comptime!(j * lanes)] = sums[comptime!(i * COLUMNS + j)];
                }
            }
        }
    }
}
