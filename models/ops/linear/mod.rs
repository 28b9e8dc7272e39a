//! `x W + b` with the bias added by the matrix product itself, `x W` alone for operators that add
//! the bias later, and their gradients without a temporary. A frozen weight has no gradient, and
//! nothing is kept for one. [`adapted`] is the layer with an adapter of low rank beside its weight.
//!
//! The operands of the products may be rounded to bf16 or f16; sums, and the gradients of weights
//! and biases, are f32. On the CPU so is all else. On wgpu and CUDA the result is in the type that
//! its reader takes, and the gradient of `x` in the type of `x`, or in f32 where other layers read
//! `x` as well and their gradients are added.

#[cfg(feature = "compiler")]
pub(super) mod cube;
mod adapted;
#[cfg(feature = "compiler")]
mod epilogue;
mod feed_forward;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, ExtensionType, Flex, autodiff::Autodiff, backend_extension};
use burn::tensor::{DType, FloatDType, Tensor};

use super::autodiff::{Call, Differentiate};
use super::contract::Contract;
use super::flex::{self, FlexTensor};
use super::list::Optional;
use super::products::{self, Factor, Operands, Output, Rounding};
use super::{Form, Operator, Ops, trace};
pub use adapted::{Adapted, adapted};
pub use feed_forward::{FeedForward, feed_forward, is_fused};

/// `x W + b`, or `x W` without a bias: `x [n, in]`, `weight [in, out]`, `bias [out]` -> `[n, out]`.
/// The operands of the products, those of the gradients included, are in the type of `operands`,
/// and all results in f32. The fused form on wgpu and CUDA gives the types of result and gradient
/// that `operands` states; where it states none, the gradient of a narrow `x` has the type of `x`.
/// A weight may be stored in the type of `operands`, and so may `x`.
///
/// # Panics
/// For tensors of other shapes; in the fused form for types that a product does not take, and for
/// tensors on different devices.
pub fn linear(
    x: Tensor<2>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    operands: impl Into<Operands>,
    ops: Ops,
) -> Tensor<2> {
    let operands = operands.into();
    let dtype = operands.dtype;
    let form = ops.form(Operator::Linear);
    let _time = trace::call("linear");
    let contract = Contract::new(if bias.is_some() { "linear" } else { "product" }, form, x.device());
    let width = factors(&contract, dtype, &x, &weight);
    if let Some(bias) = &bias {
        contract.floats("bias", bias, [width], DType::F32);
    }
    match (form, bias) {
        (Form::Plain, bias) => plain(dtype, x, weight, bias),
        (Form::Fused, bias) => {
            let (x, weight) = (x.into_dispatch(), weight.into_dispatch());
            let inputs = Inputs { x, weight, bias: bias.into(), operands };
            Tensor::from_dispatch(<Dispatch as LinearOp>::linear(inputs))
        }
    }
}

/// `x` as several products with operands in `dtype` take it without a cast of their own. Its
/// gradient is what they give, in f32.
pub(super) fn narrowed(x: Tensor<2>, dtype: FloatDType) -> Tensor<2> {
    Tensor::from_dispatch(<Dispatch as LinearOp>::narrowed(x.into_dispatch(), dtype))
}

/// The layer with the operands of its product in `dtype`; in f32 with those that there are.
fn plain(dtype: FloatDType, x: Tensor<2>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<2> {
    let y = match dtype {
        FloatDType::F32 => x.matmul(weight),
        dtype => x.cast(dtype).matmul(weight.cast(dtype)).cast(FloatDType::F32),
    };
    match bias {
        Some(bias) => y + bias.unsqueeze(),
        None => y,
    }
}

/// Asks for factors that can be multiplied in `dtype`; the width of their product.
#[track_caller]
fn factors(contract: &Contract, dtype: FloatDType, x: &Tensor<2>, weight: &Tensor<2>) -> usize {
    let [rows, inner] = contract.matrix("x", x);
    let of_x = if x.dtype() == dtype.into() { contract.factor("x", x) } else { DType::F32 };
    contract.floats("x", x, [rows, inner], of_x);
    right_factor(contract, dtype, inner, weight)
}

/// Asks for a right factor with `inner` rows that can be multiplied in `dtype`; its width.
#[track_caller]
fn right_factor(contract: &Contract, dtype: FloatDType, inner: usize, weight: &Tensor<2>) -> usize {
    let [_, width] = contract.matrix("weight", weight);
    let is_narrow = weight.dtype() == dtype.into();
    let of_weight = if is_narrow { contract.factor("weight", weight) } else { contract.rounded("weight", weight) };
    contract.floats("weight", weight, [inner, width], of_weight);
    width
}

/// The operator's inputs as a backend has them.
#[derive(Debug, Clone, ExtensionType)]
pub(super) struct Inputs<B: Backend> {
    pub x: FloatTensor<B>,
    pub weight: FloatTensor<B>,
    #[extension_type]
    pub bias: Optional<B>,
    pub operands: Operands,
}

#[backend_extension(Flex, Cube: cfg(feature = "compiler"), Autodiff)]
trait LinearOp: Backend {
    fn linear(#[extension_type] inputs: Inputs<Self>) -> FloatTensor<Self>;

    fn narrowed(x: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self>;
}

/// The kernels that a backend supplies, with operands of the products rounded to the type that is
/// given. Results are f32 where nothing else is said.
pub(super) trait LinearKernel: Backend {
    /// `x` as products of operands in `dtype` take it without a cast of their own, and as it is
    /// kept for the backward pass.
    fn operand(x: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        let _ = dtype;
        x
    }

    fn forward(inputs: Inputs<Self>) -> FloatTensor<Self>;

    /// `x W`
    fn product(x: FloatTensor<Self>, weight: FloatTensor<Self>, operands: Operands) -> FloatTensor<Self> {
        Self::forward(Inputs { x, weight, bias: Optional::Missing, operands })
    }

    /// `dy W^T`, in the type `result`, or on the CPU in f32.
    fn backward_x(
        weight: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        dtype: FloatDType,
        result: FloatDType,
    ) -> FloatTensor<Self>;

    /// `x^T dy`
    fn backward_weight(x: FloatTensor<Self>, dy: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self>;

    /// Sum over the rows of `dy`.
    fn backward_bias(dy: FloatTensor<Self>) -> FloatTensor<Self>;

    /// `x W + bias + h B`, and `h = s z A`, `[n, r]`, where `z` is `dropped`, or `x` without it.
    fn forward_adapted(
        inputs: Inputs<Self>,
        adapter: AdapterFactors<FloatTensor<Self>>,
        dropped: Option<FloatTensor<Self>>,
    ) -> [FloatTensor<Self>; 2] {
        let (dtype, z) = (inputs.operands.dtype, dropped.unwrap_or_else(|| inputs.x.clone()));
        let y = Self::forward(inputs);
        let low = Self::float_mul_scalar(Self::product(z, adapter.a, dtype.into()), adapter.scaling.into());
        [Self::add_product(y, low.clone(), adapter.b, dtype.into()), low]
    }

    /// `dy W^T + u A^T`, and `u = s dy B^T`, `[n, r]`.
    fn backward_x_adapted(
        weight: FloatTensor<Self>,
        adapter: AdapterFactors<FloatTensor<Self>>,
        dy: FloatTensor<Self>,
        dtype: FloatDType,
    ) -> [FloatTensor<Self>; 2] {
        let up = Self::backward_low(&adapter, dy.clone(), dtype);
        let through_a = Self::backward_x(adapter.a, up.clone(), dtype, FloatDType::F32);
        [Self::add_backward_x(through_a, weight, dy, dtype), up]
    }

    /// `s dy B^T`
    fn backward_low(
        adapter: &AdapterFactors<FloatTensor<Self>>,
        dy: FloatTensor<Self>,
        dtype: FloatDType,
    ) -> FloatTensor<Self> {
        let up = Self::backward_x(adapter.b.clone(), dy, dtype, FloatDType::F32);
        Self::float_mul_scalar(up, adapter.scaling.into())
    }

    /// `y + x W`
    fn add_product(
        y: FloatTensor<Self>,
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        operands: Operands,
    ) -> FloatTensor<Self> {
        Self::float_add(y, Self::product(x, weight, operands))
    }

    /// `dx + dy W^T`
    fn add_backward_x(
        dx: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        dtype: FloatDType,
    ) -> FloatTensor<Self> {
        Self::float_add(dx, Self::backward_x(weight, dy, dtype, FloatDType::F32))
    }
}

/// The factors of an adapter of low rank, `s A B`, beside the weight of a layer.
#[derive(Debug, Clone)]
pub(super) struct AdapterFactors<F> {
    /// `[in, r]`
    pub a: F,
    /// `[r, out]`
    pub b: F,
    /// `s`
    pub scaling: f64,
}

/// Without autodiff the operator is its kernel's forward.
impl<B: LinearKernel> LinearOp for B {
    fn linear(inputs: Inputs<B>) -> FloatTensor<B> {
        B::forward(inputs)
    }

    fn narrowed(x: FloatTensor<B>, dtype: FloatDType) -> FloatTensor<B> {
        B::operand(x, dtype)
    }
}

impl<B: LinearKernel, C: CheckpointStrategy> LinearOp for Autodiff<B, C> {
    fn linear(inputs: Inputs<Self>) -> FloatTensor<Self> {
        let mut call = Call::<B, C>::new();
        let inputs = Inputs::<B> {
            x: call.input(inputs.x),
            weight: call.input(inputs.weight),
            bias: inputs.bias.map(|bias| call.input(bias)),
            operands: inputs.operands,
        };
        call.record(|tracked| {
            let (dtype, gradient) = (inputs.operands.dtype, inputs.operands.gradient_of::<B>(&inputs.x));
            let [x, weight] = [inputs.x, inputs.weight].map(|factor| B::operand(factor, dtype));
            let saved = Saved { x: tracked[1].then(|| x.clone()), weight: weight.clone(), dtype, gradient };
            (B::forward(Inputs { x, weight, ..inputs }), saved)
        })
    }

    fn narrowed(x: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        let mut call = Call::<B, C>::new();
        let x = call.input(x);
        call.record(|_| (B::operand(x, dtype), Narrowed))
    }
}

/// The backward of [`narrowed`], which saves nothing.
#[derive(Debug, Clone)]
struct Narrowed;

impl<B: Backend> Differentiate<B> for Narrowed {
    fn gradients(self, dy: FloatTensor<B>, _: &[bool]) -> Vec<Option<FloatTensor<B>>> {
        vec![Some(dy)]
    }
}

/// The factors, which the backward needs; `x` only where the weight learns.
#[derive(Debug, Clone)]
struct Saved<F> {
    x: Option<F>,
    weight: F,
    dtype: FloatDType,
    /// The type of the gradient of `x`.
    gradient: FloatDType,
}

impl<B: LinearKernel> Differentiate<B> for Saved<FloatTensor<B>> {
    fn gradients(self, dy: FloatTensor<B>, tracked: &[bool]) -> Vec<Option<FloatTensor<B>>> {
        let is_tracked = |input: usize| tracked.get(input) == Some(&true);
        let dbias = is_tracked(2).then(|| B::backward_bias(dy.clone()));
        let Self { x, weight, dtype, gradient } = self;
        let dy = B::operand(dy, dtype);
        let dweight = x.filter(|_| is_tracked(1)).map(|x| B::backward_weight(x, dy.clone(), dtype));
        let dx = is_tracked(0).then(|| B::backward_x(weight, dy, dtype, gradient));
        vec![dx, dweight, dbias]
    }
}

impl LinearKernel for Flex {
    fn forward(Inputs { x, weight, bias, operands, .. }: Inputs<Self>) -> FlexTensor {
        let (x, weight, bias) = (flex::strided(x), flex::strided(weight), bias.given().map(flex::row_major));
        let (left, right) = (flex::factor(&x), flex::right_factor(&weight, &operands));
        let y = products::product(left, right, bias.as_ref().map(flex::values), operands.dtype.into());
        flex::tensor(y, [flex::dims2(&x)[0], flex::dims2(&weight)[1]])
    }

    fn backward_x(weight: FlexTensor, dy: FlexTensor, dtype: FloatDType, _: FloatDType) -> FlexTensor {
        Self::product(dy, Self::float_transpose(weight), dtype.into())
    }

    fn backward_weight(x: FlexTensor, dy: FlexTensor, dtype: FloatDType) -> FlexTensor {
        Self::product(Self::float_transpose(x), dy, dtype.into())
    }

    fn backward_bias(dy: FlexTensor) -> FlexTensor {
        let dy = flex::widened(dy);
        let [_, width] = flex::dims2(&dy);
        flex::tensor(flex::column_sums(flex::values(&dy), width), [width])
    }

    fn forward_adapted(
        Inputs { x, weight, bias, operands, .. }: Inputs<Self>,
        AdapterFactors { a, b, scaling }: AdapterFactors<FlexTensor>,
        dropped: Option<FlexTensor>,
    ) -> [FlexTensor; 2] {
        let rounding = operands.dtype.into();
        let (x, weight, bias) = (flex::strided(x), flex::strided(weight), bias.given().map(flex::row_major));
        let [a, b] = [a, b].map(flex::strided);
        let right = flex::right_factor(&weight, &operands);
        let [rows, _] = flex::dims2(&x);
        let low_of = |left: Factor<'_>| scaled_product(left, rows, &a, scaling, rounding);
        let y_of = |left: Factor<'_>, low: &FlexTensor| {
            let beside = [flex::factor(low), flex::factor(&b)];
            products::sum_of_products([left, right], bias.as_ref().map(flex::values), beside, rounding)
        };
        let (y, low) = match dropped {
            Some(z) => {
                let low = low_of(flex::factor(&flex::strided(z)));
                (y_of(flex::factor(&x), &low), low)
            }
            None => products::with_left(flex::factor(&x), [right, flex::factor(&a)], rounding, |left| {
                let low = low_of(left);
                (y_of(left, &low), low)
            }),
        };
        [flex::tensor(y, [rows, flex::dims2(&weight)[1]]), low]
    }

    fn backward_x_adapted(
        weight: FlexTensor,
        AdapterFactors { a, b, scaling }: AdapterFactors<FlexTensor>,
        dy: FlexTensor,
        dtype: FloatDType,
    ) -> [FlexTensor; 2] {
        let rounding = dtype.into();
        let [weight, a, b] = [weight, a, b].map(|factor| flex::strided(Self::float_transpose(factor)));
        let dy = flex::strided(dy);
        let [rows, _] = flex::dims2(&dy);
        let others = [flex::factor(&weight), flex::factor(&b)];
        let (dx, up) = products::with_left(flex::factor(&dy), others, rounding, |left| {
            let up = scaled_product(left, rows, &b, scaling, rounding);
            let beside = [flex::factor(&up), flex::factor(&a)];
            (products::sum_of_products([left, flex::factor(&weight)], None, beside, rounding), up)
        });
        [flex::tensor(dx, [rows, flex::dims2(&weight)[1]]), up]
    }

    fn add_product(y: FlexTensor, x: FlexTensor, weight: FlexTensor, operands: Operands) -> FlexTensor {
        let (x, weight) = (flex::strided(x), flex::strided(weight));
        let (left, right) = (flex::factor(&x), flex::right_factor(&weight, &operands));
        flex::overwritten(y, |y| products::multiply(y, left, right, Output::Add, operands.dtype.into()))
    }

    fn add_backward_x(dx: FlexTensor, weight: FlexTensor, dy: FlexTensor, dtype: FloatDType) -> FlexTensor {
        Self::add_product(dx, dy, Self::float_transpose(weight), dtype.into())
    }
}

/// `scaling left right`, `[rows, ..]`
fn scaled_product(left: Factor<'_>, rows: usize, right: &FlexTensor, scaling: f64, rounding: Rounding) -> FlexTensor {
    let y = products::product(left, flex::factor(right), None, rounding);
    Flex::float_mul_scalar(flex::tensor(y, [rows, flex::dims2(right)[1]]), scaling.into())
}
