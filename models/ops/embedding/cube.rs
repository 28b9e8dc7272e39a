//! The gradient of an embedding without atomics and in a fixed order: the first token with an id
//! adds up the rows of all tokens with it, so that no two cubes write to one row of the table.
//!
//! Finding them compares each token with the others, `n^2` comparisons in all over as many cubes as
//! there are tokens.
#![allow(unsafe_code)] // kernels are launched without bounds checks: each says why that is sound

use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, backend_extension};
use burn::tensor::Shape;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::zeros_client;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::EmbeddingKernel;
use crate::ops::cube::{Cube, FusedTensor, addresses, buffer, by_row, dims2, lanes, shaped};

impl EmbeddingKernel for Cube {
    fn forward(table: FusedTensor, ids: FusedTensor) -> FusedTensor {
        Self::float_select(table, 0, ids)
    }

    fn backward(table: Shape, ids: FusedTensor, padding_idx: Option<usize>, dy: FusedTensor) -> FusedTensor {
        let skipped = padding_idx.and_then(|id| i32::try_from(id).ok()).unwrap_or(-1); // no id is -1
        Self::embedding_backward(dy, ids, table[0], skipped)
    }
}

/// The kernel, as an operation of a backend.
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
        let table = zeros_client(dy.client.clone(), dy.device.clone(), Shape::from([num, width]), dy.dtype); // its rows may have a pitch
        let (count, dim) = by_row(&dy, n);
        // SAFETY: there is a token for every cube that goes on, and it writes where its id is below
        // `num`.
        unsafe {
            add_tokens::launch_unchecked(
                &dy.client,
                count,
                dim,
                addresses([&dy, &table]),
                buffer(&dy),
                buffer(&ids),
                buffer(&table),
                n,
                num,
                width,
                table.meta.strides()[0],
                skipped,
                lanes(&dy),
            );
        }
        table
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn add_tokens(
    dy: &[f32],
    ids: &[i32],
    table: &mut [f32],
    n: usize,
    num: usize,
    width: usize,
    pitch: usize,
    skipped: i32,
    #[comptime] lanes: usize,
) {
    let mut earlier = Shared::<[u32]>::new_slice(lanes);
    let token = CUBE_POS;
    if token >= n {
        terminate!();
    }
    let id = ids[token];
    let mut found = 0u32;
    let mut i = UNIT_POS as usize;
    while i < token {
        if ids[i] == id {
            found = 1u32;
        }
        i += lanes;
    }
    earlier[UNIT_POS as usize] = found;
    sync_cube();
    let mut any = 0u32;
    #[unroll]
    for lane in 0..lanes {
        any += earlier[lane];
    }
    if any == 0 && id != skipped && id >= 0 && usize::cast_from(id) < num {
        let row = usize::cast_from(id) * pitch;
        for other in token..n {
            if ids[other] == id {
                let mut column = UNIT_POS as usize;
                while column < width {
                    table[row + column] += dy[other * width + column];
                    column += lanes;
                }
            }
        }
    }
}
