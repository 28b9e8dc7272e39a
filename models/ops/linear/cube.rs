//! A linear layer: matrix products, the addition of the bias, which Burn's fusion joins with a
//! product of f32 and the epilogue of a narrow one makes, and the bias's gradient as one kernel.

use burn::backend::TensorMetadata;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{FloatDType, Shape};

use super::epilogue::{BiasKernels, FinishedProducts};
use super::{Inputs, LinearKernel};
use crate::ops::cube::product::{plain, product, transposed};
use crate::ops::cube::rows::RowKernels;
use crate::ops::cube::{Cube, FusedTensor, narrow};
use crate::ops::products::Operands;

impl LinearKernel for Cube {
    fn operand(x: FusedTensor, dtype: FloatDType) -> FusedTensor {
        narrow(x, dtype.into())
    }

    fn forward(Inputs { x, weight, bias, operands }: Inputs<Self>) -> FusedTensor {
        let Operands { dtype, result, .. } = operands;
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
