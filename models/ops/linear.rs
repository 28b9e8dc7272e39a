//! `x W + b` with the bias added by the matrix product itself, and the three gradients without a temporary.
#![allow(unsafe_code)] // kernel: memory is written without being filled first, or by several threads at once

use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops as Step, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, autodiff::Autodiff, backend_extension};
use burn::tensor::Tensor;
use rayon::prelude::*;

use super::flex::{self, FlexTensor, Matrix, Output};
use super::{Form, Operator, Ops};

/// `x W + b`: `x [n, in]`, `weight [in, out]`, `bias [out]` -> `[n, out]`.
pub fn linear(x: Tensor<2>, weight: Tensor<2>, bias: Tensor<1>, ops: Ops) -> Tensor<2> {
    match ops.form(Operator::Linear) {
        Form::Plain => x.matmul(weight) + bias.unsqueeze(),
        Form::Fused => {
            let (x, weight, bias) = (x.into_dispatch(), weight.into_dispatch(), bias.into_dispatch());
            Tensor::from_dispatch(<Dispatch as LinearOp>::linear(x, weight, bias))
        }
    }
}

#[backend_extension(Flex, Cube: cfg(feature = "compiler"), Autodiff)]
trait LinearOp: Backend {
    fn linear(x: FloatTensor<Self>, weight: FloatTensor<Self>, bias: FloatTensor<Self>) -> FloatTensor<Self>;
}

/// What a backend supplies.
pub(super) trait LinearKernel: Backend {
    fn forward(x: FloatTensor<Self>, weight: FloatTensor<Self>, bias: FloatTensor<Self>) -> FloatTensor<Self>;

    /// `dy W^T`
    fn backward_x(weight: FloatTensor<Self>, dy: FloatTensor<Self>) -> FloatTensor<Self>;

    /// `x^T dy`
    fn backward_weight(x: FloatTensor<Self>, dy: FloatTensor<Self>) -> FloatTensor<Self>;

    /// Sum over the rows of `dy`.
    fn backward_bias(dy: FloatTensor<Self>) -> FloatTensor<Self>;
}

/// Without autodiff the operator is its kernel's forward.
macro_rules! without_autodiff {
    ($backend:ty, $tensor:ty) => {
        impl LinearOp for $backend {
            fn linear(x: $tensor, weight: $tensor, bias: $tensor) -> $tensor {
                Self::forward(x, weight, bias)
            }
        }
    };
}
without_autodiff!(Flex, FlexTensor);
#[cfg(feature = "compiler")]
without_autodiff!(super::cube::Cube, super::cube::FusedTensor);

impl<B: LinearKernel, C: CheckpointStrategy> LinearOp for Autodiff<B, C> {
    fn linear(x: FloatTensor<Self>, weight: FloatTensor<Self>, bias: FloatTensor<Self>) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct Linear;
        impl<B: LinearKernel> Backward<B, 3> for Linear {
            type State = (FloatTensor<B>, FloatTensor<B>);

            fn backward(self, step: Step<Self::State, 3>, grads: &mut Gradients, _: &mut Checkpointer) {
                let dy = grads.consume::<B>(&step.node);
                let (x, weight) = step.state;
                let [x_node, weight_node, bias_node] = step.parents;
                if let Some(node) = bias_node {
                    grads.register::<B>(node.id, B::backward_bias(dy.clone()));
                }
                if let Some(node) = weight_node {
                    grads.register::<B>(node.id, B::backward_weight(x, dy.clone()));
                }
                if let Some(node) = x_node {
                    grads.register::<B>(node.id, B::backward_x(weight, dy));
                }
            }
        }
        let nodes = [x.node(), weight.node(), bias.node()];
        let (x, weight, bias) = (x.into_primitive(), weight.into_primitive(), bias.into_primitive());
        match Linear.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => {
                let y = B::forward(x.clone(), weight.clone(), bias);
                prepared.finish((x, weight), y)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(B::forward(x, weight, bias)),
        }
    }
}

fn matrix(tensor: &FlexTensor) -> Matrix<'_> {
    let [rows, cols] = flex::dims2(tensor);
    Matrix::new(flex::values(tensor), rows, cols)
}

impl LinearKernel for Flex {
    fn forward(x: FlexTensor, weight: FlexTensor, bias: FlexTensor) -> FlexTensor {
        let (x, weight, bias) = (flex::row_major(x), flex::row_major(weight), flex::row_major(bias));
        let ([rows, _], [_, width]) = (flex::dims2(&x), flex::dims2(&weight));
        // SAFETY: every row is `width` long, as the bias is, and is written whole.
        let mut y = unsafe {
            flex::written(rows * width, |out| {
                out.par_chunks_exact_mut(width).with_min_len(flex::block_rows(width)).for_each(|row| {
                    row.write_copy_of_slice(flex::values(&bias));
                });
            })
        };
        flex::multiply(&mut y, matrix(&x), matrix(&weight), Output::Add);
        flex::tensor(y, [rows, width])
    }

    fn backward_x(weight: FlexTensor, dy: FlexTensor) -> FlexTensor {
        let (weight, dy) = (flex::row_major(weight), flex::row_major(dy));
        let dx = flex::product(matrix(&dy), matrix(&weight).t());
        flex::tensor(dx, [flex::dims2(&dy)[0], flex::dims2(&weight)[0]])
    }

    fn backward_weight(x: FlexTensor, dy: FlexTensor) -> FlexTensor {
        let (x, dy) = (flex::row_major(x), flex::row_major(dy));
        let dweight = flex::product(matrix(&x).t(), matrix(&dy));
        flex::tensor(dweight, [flex::dims2(&x)[1], flex::dims2(&dy)[1]])
    }

    fn backward_bias(dy: FlexTensor) -> FlexTensor {
        let dy = flex::row_major(dy);
        let [_, width] = flex::dims2(&dy);
        flex::tensor(flex::column_sums(flex::values(&dy), width), [width])
    }
}
