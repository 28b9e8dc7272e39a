//! A linear layer with an adapter of low rank (LoRA, Hu et al. 2021), `x W + b + s (drop(x) A) B`,
//! and its gradients. The products are added to one another in place; on the CPU the adapter's is
//! added while the sums of the other one are in the caches. The backward pass computes the
//! dropout's mask again and multiplies through the narrow side: with `h = s drop(x) A [n, r]`,
//! which the forward pass leaves, and `u = s dy B^T [n, r]` it is `dB = h^T dy`, `dA = drop(x)^T u`
//! and `dx = dy W^T + drop(u A^T)`. A frozen `W` has no gradient.

use burn::backend::Dispatch;
use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, ExtensionType, backend_extension};
use burn::tensor::{DType, FloatDType, Tensor};

use super::{AdapterFactors, LinearKernel};
use crate::ops::autodiff::{Call, Differentiate};
use crate::ops::contract::Contract;
use crate::ops::dropout::{self, DropoutKernel, DropoutRng};
use crate::ops::list::Optional;
use crate::ops::products::Operands;
use crate::ops::{Form, Operator, Ops, trace};

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
    let form = rng.form(ops.form(Operator::Linear));
    let _time = trace::call("lora");
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
            let inputs = Inputs { x, weight, bias: bias.into(), a, b, seed, p, scaling, operands };
            Tensor::from_dispatch(<Dispatch as AdaptedOp>::adapted(inputs))
        }
    }
}

/// The operator's inputs as a backend has them.
#[derive(Debug, Clone, ExtensionType)]
struct Inputs<B: Backend> {
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    #[extension_type]
    bias: Optional<B>,
    a: FloatTensor<B>,
    b: FloatTensor<B>,
    seed: IntTensor<B>,
    p: f64,
    scaling: f64,
    operands: Operands,
}

#[backend_extension(Flex, Cube: cfg(feature = "compiler"), Autodiff)]
trait AdaptedOp: Backend {
    fn adapted(#[extension_type] inputs: Inputs<Self>) -> FloatTensor<Self>;
}

/// `x`, an input of the adapter, with elements dropped out; in the backward pass the gradient of
/// that.
fn dropped<B: DropoutKernel>(x: FloatTensor<B>, seed: &IntTensor<B>, p: f64) -> FloatTensor<B> {
    if p > 0.0 { B::masked(x, seed.clone(), p) } else { x }
}

impl<B: LinearKernel + DropoutKernel> Inputs<B> {
    /// The result, and what is saved.
    fn forward(mut self) -> (FloatTensor<B>, Saved<B>) {
        let bias = std::mem::replace(&mut self.bias, Optional::Missing); // the backward needs none
        let (x, weight) = (self.x.clone(), self.weight.clone());
        let operands = Operands { result: FloatDType::F32, ..self.operands.clone() };
        let dropped = (self.p > 0.0).then(|| dropped::<B>(x.clone(), &self.seed, self.p));
        let inputs = super::Inputs { x, weight, bias, operands };
        let adapter = AdapterFactors { a: self.a.clone(), b: self.b.clone(), scaling: self.scaling };
        let [y, low] = B::forward_adapted(inputs, adapter, dropped);
        (y, Saved { inputs: self, low })
    }
}

/// Without autodiff the operator is its forward.
impl<B: LinearKernel + DropoutKernel> AdaptedOp for B {
    fn adapted(inputs: Inputs<B>) -> FloatTensor<B> {
        inputs.forward().0
    }
}

impl<B: LinearKernel + DropoutKernel, C: CheckpointStrategy> AdaptedOp for Autodiff<B, C> {
    fn adapted(inputs: Inputs<Self>) -> FloatTensor<Self> {
        let mut call = Call::<B, C>::new();
        let inputs = Inputs {
            x: call.input(inputs.x),
            weight: call.input(inputs.weight),
            a: call.input(inputs.a),
            b: call.input(inputs.b),
            bias: inputs.bias.map(|bias| call.input(bias)),
            seed: inputs.seed,
            p: inputs.p,
            scaling: inputs.scaling,
            operands: inputs.operands,
        };
        call.record(|_| inputs.forward())
    }
}

/// The values that the backward needs: the mask of the dropout is computed again.
#[derive(Debug, Clone)]
struct Saved<B: Backend> {
    inputs: Inputs<B>,
    /// `h`, `[n, r]`
    low: FloatTensor<B>,
}

impl<B: LinearKernel + DropoutKernel> Differentiate<B> for Saved<B> {
    /// The gradients of `x`, `weight`, `a`, `b`, and of the bias where there is one.
    fn gradients(self, dy: FloatTensor<B>, tracked: &[bool]) -> Vec<Option<FloatTensor<B>>> {
        let is_tracked = |input: usize| tracked.get(input) == Some(&true);
        let Self { inputs: Inputs { x, weight, a, b, seed, p, scaling, operands, .. }, low } = self;
        let dtype = operands.dtype;
        let db = is_tracked(3).then(|| B::backward_weight(low, dy.clone(), dtype));
        let dbias = is_tracked(4).then(|| B::backward_bias(dy.clone()));
        let dweight = is_tracked(1).then(|| B::backward_weight(x.clone(), dy.clone(), dtype));
        let adapter = AdapterFactors { a, b, scaling };
        let (dx, up) = match (is_tracked(0), is_tracked(2)) {
            (true, _) if p == 0.0 => {
                let [dx, up] = B::backward_x_adapted(weight, adapter, dy, dtype);
                (Some(dx), Some(up))
            }
            (true, _) => {
                let up = B::backward_low(&adapter, dy.clone(), dtype);
                let through_a = B::backward_x(adapter.a, up.clone(), dtype, FloatDType::F32);
                let through_a = dropped::<B>(through_a, &seed, p);
                (Some(B::add_backward_x(through_a, weight, dy, dtype)), Some(up))
            }
            (false, true) => (None, Some(B::backward_low(&adapter, dy, dtype))),
            (false, false) => (None, None),
        };
        let da = up.filter(|_| is_tracked(2)).map(|up| B::backward_weight(dropped::<B>(x, &seed, p), up, dtype));
        vec![dx, dweight, da, db, dbias]
    }
}
