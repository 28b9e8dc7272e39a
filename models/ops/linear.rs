//! `x W + b` with the bias added by the matrix product itself, `x W` alone for operators that add the bias later, and their
//! gradients without a temporary.
#![allow(unsafe_code)] // kernel: memory is written without being filled first, or by several threads at once

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops as Step, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, autodiff::Autodiff, backend_extension};
use burn::tensor::{DType, Tensor};
use rayon::prelude::*;

use super::contract::Contract;
use super::flex::{self, FlexTensor, Matrix, Output};
use super::{Form, Operator, Ops};

/// `x W + b`: `x [n, in]`, `weight [in, out]`, `bias [out]` -> `[n, out]`.
///
/// # Panics
/// For tensors of other shapes; in the fused form for another type than f32 and for tensors on different devices.
pub fn linear(x: Tensor<2>, weight: Tensor<2>, bias: Tensor<1>, ops: Ops) -> Tensor<2> {
    let form = ops.form(Operator::Linear);
    let contract = Contract::new("linear", form, x.device());
    let width = factors(&contract, &x, &weight);
    contract.floats("bias", &bias, [width], DType::F32);
    match form {
        Form::Plain => x.matmul(weight) + bias.unsqueeze(),
        Form::Fused => {
            let (x, weight, bias) = (x.into_dispatch(), weight.into_dispatch(), bias.into_dispatch());
            Tensor::from_dispatch(<Dispatch as LinearOp>::linear(x, weight, bias))
        }
    }
}

/// `x W`: `x [n, in]`, `weight [in, out]` -> `[n, out]`.
///
/// # Panics
/// As [`linear`].
pub fn product(x: Tensor<2>, weight: Tensor<2>, ops: Ops) -> Tensor<2> {
    let form = ops.form(Operator::Linear);
    factors(&Contract::new("product", form, x.device()), &x, &weight);
    match form {
        Form::Plain => x.matmul(weight),
        Form::Fused => {
            let y = <Dispatch as LinearOp>::product(x.into_dispatch(), weight.into_dispatch());
            Tensor::from_dispatch(y)
        }
    }
}

/// Asks for factors that can be multiplied; the width of their product.
#[track_caller]
fn factors(contract: &Contract, x: &Tensor<2>, weight: &Tensor<2>) -> usize {
    let ([rows, inner], [_, width]) = (contract.matrix("x", x), contract.matrix("weight", weight));
    contract.floats("x", x, [rows, inner], DType::F32);
    contract.floats("weight", weight, [inner, width], DType::F32);
    width
}

#[backend_extension(Flex, Cube: cfg(feature = "compiler"), Autodiff)]
trait LinearOp: Backend {
    fn product(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self>;

    fn linear(x: FloatTensor<Self>, weight: FloatTensor<Self>, bias: FloatTensor<Self>) -> FloatTensor<Self>;
}

/// What a backend supplies.
pub(super) trait LinearKernel: Backend {
    /// `x W`
    fn product(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self>;

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
            fn product(x: $tensor, weight: $tensor) -> $tensor {
                <Self as LinearKernel>::product(x, weight)
            }

            fn linear(x: $tensor, weight: $tensor, bias: $tensor) -> $tensor {
                Self::forward(x, weight, bias)
            }
        }
    };
}
without_autodiff!(Flex, FlexTensor);
#[cfg(feature = "compiler")]
without_autodiff!(super::cube::Cube, super::cube::FusedTensor);

#[derive(Debug)]
struct LinearBackward;

/// The gradients of the two factors, of those that are tracked.
fn backward_factors<B: LinearKernel>(
    (x, weight): (FloatTensor<B>, FloatTensor<B>),
    dy: FloatTensor<B>,
    [x_id, weight_id]: [Option<NodeId>; 2],
    grads: &mut Gradients,
) {
    if let Some(id) = weight_id {
        grads.register::<B>(id, B::backward_weight(x, dy.clone()));
    }
    if let Some(id) = x_id {
        grads.register::<B>(id, B::backward_x(weight, dy));
    }
}

impl<B: LinearKernel> Backward<B, 2> for LinearBackward {
    type State = (FloatTensor<B>, FloatTensor<B>);

    fn backward(self, step: Step<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = grads.consume::<B>(&step.node);
        backward_factors::<B>(step.state, dy, step.parents.map(|parent| parent.map(|node| node.id)), grads);
    }
}

impl<B: LinearKernel> Backward<B, 3> for LinearBackward {
    type State = (FloatTensor<B>, FloatTensor<B>);

    fn backward(self, step: Step<Self::State, 3>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = grads.consume::<B>(&step.node);
        let [x_id, weight_id, bias_id] = step.parents.map(|parent| parent.map(|node| node.id));
        if let Some(id) = bias_id {
            grads.register::<B>(id, B::backward_bias(dy.clone()));
        }
        backward_factors::<B>(step.state, dy, [x_id, weight_id], grads);
    }
}

impl<B: LinearKernel, C: CheckpointStrategy> LinearOp for Autodiff<B, C> {
    fn product(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self> {
        let nodes = [x.node(), weight.node()];
        let (x, weight) = (x.into_primitive(), weight.into_primitive());
        let forward = <B as LinearKernel>::product;
        match LinearBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => {
                let y = forward(x.clone(), weight.clone());
                prepared.finish((x, weight), y)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(forward(x, weight)),
        }
    }

    fn linear(x: FloatTensor<Self>, weight: FloatTensor<Self>, bias: FloatTensor<Self>) -> FloatTensor<Self> {
        let nodes = [x.node(), weight.node(), bias.node()];
        let (x, weight, bias) = (x.into_primitive(), weight.into_primitive(), bias.into_primitive());
        match LinearBackward.prepare::<C>(nodes).compute_bound().stateful() {
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
    fn product(x: FlexTensor, weight: FlexTensor) -> FlexTensor {
        let (x, weight) = (flex::row_major(x), flex::row_major(weight));
        let y = flex::product(matrix(&x), matrix(&weight));
        flex::tensor(y, [flex::dims2(&x)[0], flex::dims2(&weight)[1]])
    }

    fn forward(x: FlexTensor, weight: FlexTensor, bias: FlexTensor) -> FlexTensor {
        let (x, weight, bias) = (flex::row_major(x), flex::row_major(weight), flex::row_major(bias));
        let ([rows, _], [_, width]) = (flex::dims2(&x), flex::dims2(&weight));
        // SAFETY: every row is `width` long, as the bias is (`linear` has asked), and is written whole.
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
