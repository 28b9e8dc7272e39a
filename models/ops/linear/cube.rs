//! A linear layer: matrix products, which Burn's fusion joins with the bias, and the bias's
//! gradient as one kernel.
#![allow(unsafe_code)] // kernels are launched without bounds checks: each says why that is sound

use burn::backend::TensorMetadata;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{FloatDType, Shape};

use super::{Inputs, LinearKernel};
use crate::ops::cube::product::{plain, product, transposed};
use crate::ops::cube::rows::RowKernels;
use crate::ops::cube::{Cube, FusedTensor};

impl LinearKernel for Cube {
    fn forward(Inputs { x, weight, bias, .. }: Inputs<Self>) -> FusedTensor {
        let y = product(plain(x), plain(weight));
        match bias.given() {
            Some(bias) => {
                let row = Shape::from([1, bias.shape()[0]]);
                Self::float_add(y, Self::float_reshape(bias, row))
            }
            None => y,
        }
    }

    fn backward_x(weight: FusedTensor, dy: FusedTensor, _: FloatDType) -> FusedTensor {
        product(plain(dy), transposed(weight))
    }

    fn backward_weight(x: FusedTensor, dy: FusedTensor, _: FloatDType) -> FusedTensor {
        product(transposed(x), plain(dy))
    }

    fn backward_bias(dy: FusedTensor) -> FusedTensor {
        Self::column_sums(dy)
    }
}
