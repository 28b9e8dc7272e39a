//! A linear layer with an adapter of low rank (LoRA, Hu et al. 2021), `x W + b + s (drop(x) A) B`,
//! and its gradients. The products are added to one another in place. The backward pass computes
//! the dropout's mask again and multiplies through the narrow side: with `h = s drop(x) A [n, r]`,
//! which the forward pass leaves, and `u = s dy B^T [n, r]` it is `dB = h^T dy`, `dA = drop(x)^T u`
//! and `dx = dy W^T + drop(u A^T)`. A frozen `W` has no gradient.

use burn::backend::Dispatch;
use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, backend_extension};
use burn::tensor::{DType, FloatDType, Tensor};

use super::LinearKernel;
use crate::ops::autodiff::{Differentiate, record};
use crate::ops::contract::Contract;
use crate::ops::dropout::{self, DropoutKernel, DropoutRng};
use crate::ops::products::Operands;
use crate::ops::{Form, Ops};

/// The layer: its weight and what stands beside it.
#[derive(Debug, Clone)]
pub struct Adapted {
    /// `[in, out]`, as a rule frozen.
    pub weight: Tensor<2>,
    /// `[in, r]`
    pub a: Tensor<2>,
    /// `[r, out]`
    pub b: Tensor<2>,
    /// The factor `s`.
    pub scaling: f64,
    /// The probability of the dropout of the input of `a`.
    pub dropout: f64,
    /// How the products take their operands, as in [`linear`](super::linear()); `weight` is the
    /// right factor.
    pub operands: Operands,
}

/// `x W + b + s (drop(x) A) B`: `x [n, in]`, `bias [out]`, if there is one, -> `[n, out]`. In the
/// form of [`Operator::Linear`](crate::Operator::Linear).
///
/// # Panics
/// For tensors of other shapes and a probability outside `[0, 1)`; in the fused form for other
/// types than those of [`linear`](super::linear()) and for tensors on different devices.
pub fn adapted(x: Tensor<2>, layer: Adapted, bias: Option<Tensor<1>>, rng: DropoutRng<'_>, ops: Ops) -> Tensor<2> {
    let Adapted { weight, a, b, scaling, dropout, operands } = layer;
    let dtype = operands.dtype;
    let form = super::form(dtype, &x, ops);
    let contract = Contract::new("adapted", form, x.device());
    let width = super::factors(&contract, FloatDType::F32, &x, &weight);
    let ([_, inner], [_, rank]) = (x.dims(), contract.matrix("a", &a));
    contract.floats("a", &a, [inner, rank], contract.rounded("a", &a));
    contract.floats("b", &b, [rank, width], contract.rounded("b", &b));
    if let Some(bias) = &bias {
        contract.floats("bias", bias, [width], DType::F32);
    }
    contract.probability("dropout", dropout);
    match form {
        Form::Plain => {
            let low = super::plain(dtype, dropout::plain(x.clone(), dropout, rng), a, None);
            super::plain(dtype, x, weight, bias) + super::plain(dtype, low, b, None) * scaling
        }
        Form::Fused => {
            let p = rng.probability(dropout);
            let seed = rng.seed(p, &x.device()).into_dispatch();
            let (x, weight, a, b) = (x.into_dispatch(), weight.into_dispatch(), a.into_dispatch(), b.into_dispatch());
            Tensor::from_dispatch(match bias {
                Some(bias) => {
                    <Dispatch as AdaptedOp>::linear(x, weight, bias.into_dispatch(), a, b, seed, p, scaling, operands)
                }
                None => <Dispatch as AdaptedOp>::product(x, weight, a, b, seed, p, scaling, operands),
            })
        }
    }
}

#[allow(clippy::too_many_arguments)] // a backend extension takes tensors one by one
#[backend_extension(Flex, Cube: cfg(feature = "compiler"), Autodiff)]
trait AdaptedOp: Backend {
    fn product(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        seed: IntTensor<Self>,
        p: f64,
        scaling: f64,
        operands: Operands,
    ) -> FloatTensor<Self>;

    fn linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        seed: IntTensor<Self>,
        p: f64,
        scaling: f64,
        operands: Operands,
    ) -> FloatTensor<Self>;
}

/// The inputs besides the bias, as a backend has them.
#[derive(Debug, Clone)]
struct Inputs<F, I> {
    x: F,
    weight: F,
    a: F,
    b: F,
    dropout: Dropout<I>,
    scaling: f64,
    operands: Operands,
}

/// The dropout of the adapter's input.
#[derive(Debug, Clone)]
struct Dropout<I> {
    seed: I,
    p: f64,
}

impl<I> Dropout<I> {
    /// `x` with elements dropped out; in the backward pass the gradient of that.
    fn of<B: DropoutKernel + Backend<IntTensorPrimitive = I>>(&self, x: FloatTensor<B>) -> FloatTensor<B>
    where
        I: Clone,
    {
        if self.p > 0.0 { B::masked(x, self.seed.clone(), self.p) } else { x }
    }
}

/// The layer's output without the adapter, `y`, with it; and `h`, `[n, r]`.
fn forward<B: LinearKernel + DropoutKernel>(
    y: FloatTensor<B>,
    inputs: &Inputs<FloatTensor<B>, IntTensor<B>>,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let low = <B as LinearKernel>::product(
        inputs.dropout.of::<B>(inputs.x.clone()),
        inputs.a.clone(),
        inputs.operands.dtype.into(),
    );
    let low = B::float_mul_scalar(low, inputs.scaling.into());
    (B::add_product(y, low.clone(), inputs.b.clone(), inputs.operands.dtype.into()), low)
}

fn projected<B: LinearKernel + DropoutKernel>(
    inputs: &Inputs<FloatTensor<B>, IntTensor<B>>,
) -> (FloatTensor<B>, FloatTensor<B>) {
    forward::<B>(<B as LinearKernel>::product(inputs.x.clone(), inputs.weight.clone(), inputs.operands.clone()), inputs)
}

fn biased<B: LinearKernel + DropoutKernel>(
    bias: FloatTensor<B>,
    inputs: &Inputs<FloatTensor<B>, IntTensor<B>>,
) -> (FloatTensor<B>, FloatTensor<B>) {
    forward::<B>(
        <B as LinearKernel>::forward(inputs.x.clone(), inputs.weight.clone(), bias, inputs.operands.clone()),
        inputs,
    )
}

/// Without autodiff the operator is its forward.
impl<B: LinearKernel + DropoutKernel> AdaptedOp for B {
    fn product(
        x: FloatTensor<B>,
        weight: FloatTensor<B>,
        a: FloatTensor<B>,
        b: FloatTensor<B>,
        seed: IntTensor<B>,
        p: f64,
        scaling: f64,
        operands: Operands,
    ) -> FloatTensor<B> {
        projected::<B>(&Inputs { x, weight, a, b, dropout: Dropout { seed, p }, scaling, operands }).0
    }

    fn linear(
        x: FloatTensor<B>,
        weight: FloatTensor<B>,
        bias: FloatTensor<B>,
        a: FloatTensor<B>,
        b: FloatTensor<B>,
        seed: IntTensor<B>,
        p: f64,
        scaling: f64,
        operands: Operands,
    ) -> FloatTensor<B> {
        biased::<B>(bias, &Inputs { x, weight, a, b, dropout: Dropout { seed, p }, scaling, operands }).0
    }
}

impl<B: LinearKernel + DropoutKernel, C: CheckpointStrategy> AdaptedOp for Autodiff<B, C> {
    fn product(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        seed: IntTensor<Self>,
        p: f64,
        scaling: f64,
        operands: Operands,
    ) -> FloatTensor<Self> {
        record::<C, _, _, _>([x, weight, a, b], |[x, weight, a, b], _| {
            let inputs = Inputs { x, weight, a, b, dropout: Dropout { seed, p }, scaling, operands };
            let (y, low) = projected::<B>(&inputs);
            (y, Saved::<_, _> { inputs, low })
        })
    }

    fn linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        seed: IntTensor<Self>,
        p: f64,
        scaling: f64,
        operands: Operands,
    ) -> FloatTensor<Self> {
        record::<C, _, _, _>([x, weight, a, b, bias], |[x, weight, a, b, bias], _| {
            let inputs = Inputs { x, weight, a, b, dropout: Dropout { seed, p }, scaling, operands };
            let (y, low) = biased::<B>(bias, &inputs);
            (y, Saved { inputs, low })
        })
    }
}

/// The values that the backward needs: the mask of the dropout is computed again.
#[derive(Debug, Clone)]
struct Saved<F, I> {
    inputs: Inputs<F, I>,
    /// `h`
    low: F,
}

impl<B: LinearKernel + DropoutKernel> Differentiate<B> for Saved<FloatTensor<B>, IntTensor<B>> {
    /// The gradients of `x`, `weight`, `a`, `b`, and of the bias where there is one.
    fn gradients(self, dy: FloatTensor<B>, tracked: &[bool]) -> Vec<Option<FloatTensor<B>>> {
        let is_tracked = |input: usize| tracked.get(input) == Some(&true);
        let Self { inputs: Inputs { x, weight, a, b, dropout, scaling, operands: Operands { dtype, .. } }, low } = self;
        let db = is_tracked(3).then(|| B::backward_weight(low, dy.clone(), dtype));
        let dbias = is_tracked(4).then(|| B::backward_bias(dy.clone()));
        let dweight = is_tracked(1).then(|| B::backward_weight(x.clone(), dy.clone(), dtype));
        let up = (is_tracked(0) || is_tracked(2))
            .then(|| B::float_mul_scalar(B::backward_x(b, dy.clone(), dtype), scaling.into())); // [n, r]
        let da = up.clone().filter(|_| is_tracked(2)).map(|up| B::backward_weight(dropout.of::<B>(x), up, dtype));
        let dx = up.filter(|_| is_tracked(0)).map(|up| {
            let through_a = dropout.of::<B>(B::backward_x(a, up, dtype));
            B::add_backward_x(through_a, weight, dy, dtype)
        });
        vec![dx, dweight, da, db, dbias]
    }
}
