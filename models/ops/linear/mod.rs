//! `x W + b` with the bias added by the matrix product itself, `x W` alone for operators that add the bias later, and their
//! gradients without a temporary. A frozen weight has no gradient, and nothing is kept for one. [`adapted`] is the layer with
//! an adapter of low rank beside its weight.
#![allow(unsafe_code)] // kernel: memory is written without being filled first, or by several threads at once

#[cfg(feature = "compiler")]
pub(super) mod cube;
mod adapted;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, autodiff::Autodiff, backend_extension};
use burn::tensor::{DType, Tensor};
use rayon::prelude::*;

use super::autodiff::{Differentiate, record};
use super::contract::Contract;
use super::flex::{self, FlexTensor, Matrix, Output};
use super::{Form, Operator, Ops};
pub use adapted::{Adapted, adapted};

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

/// The kernels that a backend supplies.
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

    /// `y + x W`
    fn add_product(y: FloatTensor<Self>, x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::float_add(y, <Self as LinearKernel>::product(x, weight))
    }

    /// `dx + dy W^T`
    fn add_backward_x(dx: FloatTensor<Self>, weight: FloatTensor<Self>, dy: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::float_add(dx, Self::backward_x(weight, dy))
    }
}

/// Without autodiff the operator is its kernel's forward.
impl<B: LinearKernel> LinearOp for B {
    fn product(x: FloatTensor<B>, weight: FloatTensor<B>) -> FloatTensor<B> {
        <B as LinearKernel>::product(x, weight)
    }

    fn linear(x: FloatTensor<B>, weight: FloatTensor<B>, bias: FloatTensor<B>) -> FloatTensor<B> {
        B::forward(x, weight, bias)
    }
}

impl<B: LinearKernel, C: CheckpointStrategy> LinearOp for Autodiff<B, C> {
    fn product(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self> {
        record::<C, _, _, _>([x, weight], |[x, weight], tracked| {
            let saved = Saved::new(&x, &weight, tracked[1]);
            (<B as LinearKernel>::product(x, weight), saved)
        })
    }

    fn linear(x: FloatTensor<Self>, weight: FloatTensor<Self>, bias: FloatTensor<Self>) -> FloatTensor<Self> {
        record::<C, _, _, _>([x, weight, bias], |[x, weight, bias], tracked| {
            let saved = Saved::new(&x, &weight, tracked[1]);
            (B::forward(x, weight, bias), saved)
        })
    }
}

/// The factors, which the backward needs; `x` only where the weight learns.
#[derive(Debug, Clone)]
struct Saved<F> {
    x: Option<F>,
    weight: F,
}

impl<F: Clone> Saved<F> {
    fn new(x: &F, weight: &F, learns: bool) -> Self {
        Self { x: learns.then(|| x.clone()), weight: weight.clone() }
    }
}

impl<B: LinearKernel> Differentiate<B> for Saved<FloatTensor<B>> {
    fn gradients(self, dy: FloatTensor<B>, tracked: &[bool]) -> Vec<Option<FloatTensor<B>>> {
        let is_tracked = |input: usize| tracked.get(input) == Some(&true);
        let dbias = is_tracked(2).then(|| B::backward_bias(dy.clone()));
        let dweight = self.x.filter(|_| is_tracked(1)).map(|x| B::backward_weight(x, dy.clone()));
        let dx = is_tracked(0).then(|| B::backward_x(self.weight, dy));
        vec![dx, dweight, dbias]
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

    fn add_product(y: FlexTensor, x: FlexTensor, weight: FlexTensor) -> FlexTensor {
        let (x, weight) = (flex::row_major(x), flex::row_major(weight));
        flex::overwritten(y, |y| flex::multiply(y, matrix(&x), matrix(&weight), Output::Add))
    }

    fn add_backward_x(dx: FlexTensor, weight: FlexTensor, dy: FlexTensor) -> FlexTensor {
        let (weight, dy) = (flex::row_major(weight), flex::row_major(dy));
        flex::overwritten(dx, |dx| flex::multiply(dx, matrix(&dy), matrix(&weight).t(), Output::Add))
    }
}
