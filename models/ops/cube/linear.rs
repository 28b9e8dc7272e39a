//! A linear layer: Burn's matrix products, which its fusion joins with the bias, and the bias's gradient as one kernel.

use burn::backend::TensorMetadata;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::Shape;

use super::super::linear::LinearKernel;
use super::{Cube, FusedTensor, Kernels};

impl LinearKernel for Cube {
    fn forward(x: FusedTensor, weight: FusedTensor, bias: FusedTensor) -> FusedTensor {
        let row = Shape::from([1, bias.shape()[0]]);
        Self::float_add(Self::float_matmul(x, weight), Self::float_reshape(bias, row))
    }

    fn backward_x(weight: FusedTensor, dy: FusedTensor) -> FusedTensor {
        Self::float_matmul(dy, Self::float_transpose(weight))
    }

    fn backward_weight(x: FusedTensor, dy: FusedTensor) -> FusedTensor {
        Self::float_matmul(Self::float_transpose(x), dy)
    }

    fn backward_bias(dy: FusedTensor) -> FusedTensor {
        Self::column_sums(dy)
    }
}
