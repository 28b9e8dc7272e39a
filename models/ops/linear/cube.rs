//! A linear layer: matrix products, the addition of the bias, which Burn's fusion joins with a
//! product of f32 and the epilogue of a narrow one makes, and the bias's gradient as one kernel.
#![allow(unsafe_code)] // kernels are launched without bounds checks: each says why that is sound

use burn::backend::fusion::custom::TensorSpec;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata, backend_extension};
use burn::tensor::{FloatDType, Shape};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::epilogue::FinishedProducts;
use super::{Inputs, LinearKernel};
use crate::ops::cube::product::{plain, product, transposed};
use crate::ops::cube::rows::RowKernels;
use crate::ops::cube::{
    Cube, FusedTensor, addresses, buffer, by_element, dims2, element, empty_in, narrow, rows_of, vector,
};

impl LinearKernel for Cube {
    fn operand(x: FusedTensor, dtype: FloatDType) -> FusedTensor {
        narrow(x, dtype.into())
    }

    fn forward(Inputs { x, weight, bias, operands, result, .. }: Inputs<Self>) -> FusedTensor {
        let dtype = operands.dtype;
        let [x, weight] = [x, weight].map(|factor| Self::operand(factor, dtype));
        let Some(bias) = bias.given() else { return product(plain(x), plain(weight), result.into()) };
        match dtype {
            FloatDType::F32 => {
                let row = Shape::from([1, bias.shape()[0]]);
                Self::float_add(product(plain(x), plain(weight), result.into()), Self::float_reshape(bias, row))
            }
            _ if result == dtype => Self::biased_product(x, weight, bias),
            // The product is rounded, as without a bias: in f32 it would be written and read in
            // twice the bytes.
            _ => Self::add_bias(product(plain(x), plain(weight), dtype.into()), bias, result),
        }
    }

    fn backward_x(weight: FusedTensor, dy: FusedTensor, dtype: FloatDType, result: FloatDType) -> FusedTensor {
        let [dy, weight] = [dy, weight].map(|factor| Self::operand(factor, dtype));
        product(plain(dy), transposed(weight), result.into())
    }

    fn backward_weight(x: FusedTensor, dy: FusedTensor, dtype: FloatDType) -> FusedTensor {
        let [x, dy] = [x, dy].map(|factor| Self::operand(factor, dtype));
        product(transposed(x), plain(dy), FloatDType::F32.into())
    }

    fn backward_bias(dy: FusedTensor) -> FusedTensor {
        Self::column_sums(dy)
    }
}

/// The kernel, as an operation of a backend.
#[backend_extension(Cube, Fusion)]
pub(in crate::ops) trait BiasKernels: Backend {
    /// `bias [width]`, in f32, added to every row of `x [rows, width]`, of any type; the sum, which
    /// is f32, in `dtype`.
    #[fusion(meta = |x, _bias, dtype| TensorSpec::new(x.shape.clone(), (*dtype).into()))]
    fn add_bias(x: FloatTensor<Self>, bias: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self>;
}

impl BiasKernels for CubeBackend {
    fn add_bias(x: CubeTensor, bias: CubeTensor, dtype: FloatDType) -> CubeTensor {
        let ((x, pitch), bias) = (rows_of(x), into_contiguous(bias));
        let [rows, width] = dims2(&x);
        let y = empty_in(&x, [rows, width], dtype.into());
        let vector = vector(&x, [width, pitch]).min(vector(&y, [width]));
        let n = rows * width / vector;
        let (count, dim) = by_element(&x, n);
        // SAFETY: a unit touches its own vector, if there is one, and the bias of its columns.
        unsafe {
            add_bias_each::launch_unchecked(
                &x.client,
                count,
                dim,
                addresses([&x, &y]),
                vector,
                buffer(&x),
                buffer(&bias),
                buffer(&y),
                n,
                width / vector,
                pitch / vector,
                element(&x),
                element(&y),
            );
        }
        y
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn add_bias_each<F: Float, G: Float, N: Size>(
    x: &[Vector<F, N>],
    bias: &[f32],
    y: &mut [Vector<G, N>],
    count: usize,
    width: usize,
    pitch: usize,
    #[define(F)] _of_x: ElemType,
    #[define(G)] _of_y: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i >= count {
        terminate!();
    }
    let lanes = N::value().comptime();
    let column = i % width;
    let mut sum = Vector::<f32, N>::cast_from(x[i / width * pitch + column]);
    #[unroll]
    for k in 0..lanes {
        sum.insert(k, sum.extract(k) + bias[column * lanes + k]);
    }
    y[i] = Vector::cast_from(sum);
}
