//! The layers that GPT-2 and BERT share: projections, normalisation, embeddings, activations, dropout and attention.
//!
//! Activations are two-dimensional, `[batch * seq, features]`, everywhere outside attention. With a third dimension Burn
//! computes a weight gradient per sequence and sums them afterwards; with two it is one matrix product.
//! A layer's `ops` argument says in which form it computes: composed of Burn's operations, from which autodiff derives the
//! backward pass, or by Kiln's fused kernels (`ops`). Layers with a matrix product are told its type too ([`Compute`]).

use burn::module::{Module, Param, ParamId};
use burn::tensor::activation::softmax;
use burn::tensor::{Bool, Device, Distribution, FloatDType, Int, Shape, Tensor};

use crate::compute::Compute;
use crate::ops::{self, Ops};

/// `y = x W + b` with `W` stored as `[in, out]`, like Hugging Face's GPT-2 `Conv1D`; torch's `Linear` files hold the
/// transpose, which `weights` turns around.
#[derive(Module, Debug)]
pub struct Linear {
    /// `[in, out]`
    pub weight: Param<Tensor<2>>,
    /// `[out]`
    pub bias: Option<Param<Tensor<1>>>,
}

/// The same mathematics as [`Linear`]; its own type because Hugging Face's GPT-2 files store the weight untransposed.
#[derive(Module, Debug)]
pub struct Conv1D {
    /// `[in, out]`
    pub weight: Param<Tensor<2>>,
    /// `[out]`
    pub bias: Param<Tensor<1>>,
}

impl Linear {
    /// Weights from `N(0, std)`, bias zero, as `transformers` initialises them.
    pub fn new(d_in: usize, d_out: usize, bias: bool, std: f64, device: &Device) -> Self {
        Self { weight: normal([d_in, d_out], std, device), bias: bias.then(|| zeros([d_out], device)) }
    }

    /// `[n, in] -> [n, out]`
    pub fn forward(&self, x: Tensor<2>, compute: Compute) -> Tensor<2> {
        match &self.bias {
            Some(bias) => affine(x, &self.weight, bias.val(), compute),
            None => compute.projection(x, &self.weight),
        }
    }

    /// `activation(x W + b)`: `[n, in] -> [n, out]`
    pub fn activated(&self, x: Tensor<2>, activation: Activation, compute: Compute) -> Tensor<2> {
        let x = compute.projection(x, &self.weight);
        match &self.bias {
            Some(bias) => ops::gelu::bias_gelu(x, bias.val(), activation, compute.ops()),
            None => activation.forward(x),
        }
    }
}

impl Conv1D {
    /// Weights from `N(0, std)`, bias zero.
    pub fn new(d_in: usize, d_out: usize, std: f64, device: &Device) -> Self {
        Self { weight: normal([d_in, d_out], std, device), bias: zeros([d_out], device) }
    }

    /// `[n, in] -> [n, out]`
    pub fn forward(&self, x: Tensor<2>, compute: Compute) -> Tensor<2> {
        affine(x, &self.weight, self.bias.val(), compute)
    }

    /// `activation(x W + b)`: `[n, in] -> [n, out]`
    pub fn activated(&self, x: Tensor<2>, activation: Activation, compute: Compute) -> Tensor<2> {
        ops::gelu::bias_gelu(compute.projection(x, &self.weight), self.bias.val(), activation, compute.ops())
    }

    /// `residual + dropout(x W + b)`: `x [n, in]`, `residual [n, out]` -> `[n, out]`
    pub fn onto_residual(&self, x: Tensor<2>, residual: Tensor<2>, p: f64, train: bool, compute: Compute) -> Tensor<2> {
        let x = compute.projection(x, &self.weight);
        ops::dropout::bias_dropout_residual(x, self.bias.val(), residual, p, train, compute.ops())
    }
}

/// `x W + b`; the bias, whose gradient is a sum over all rows, is added in f32.
fn affine(x: Tensor<2>, weight: &Param<Tensor<2>>, bias: Tensor<1>, compute: Compute) -> Tensor<2> {
    match compute.is_f32() {
        true => ops::linear::linear(x, weight.val(), bias, compute.ops()),
        false => compute.product(x, compute.weight(weight)) + bias.unsqueeze(),
    }
}

/// Layer normalisation over the last dimension (Ba et al. 2016), statistics in f32 whatever the input's type.
#[derive(Module, Debug)]
pub struct LayerNorm {
    /// `[features]`
    pub weight: Param<Tensor<1>>,
    /// `[features]`
    pub bias: Param<Tensor<1>>,
    eps: f64,
}

impl LayerNorm {
    /// Weight one, bias zero.
    pub fn new(features: usize, eps: f64, device: &Device) -> Self {
        let weight = uninitialized([features], device, |shape, device| Tensor::ones(shape, device));
        Self { weight, bias: zeros([features], device), eps }
    }

    /// `[n, features] -> [n, features]`
    pub fn forward(&self, x: Tensor<2>, ops: Ops) -> Tensor<2> {
        ops::layer_norm::layer_norm(x, None, self.weight.val(), self.bias.val(), self.eps, ops)
    }

    /// The same of `x + residual`, both `[n, features]`.
    pub fn forward_sum(&self, x: Tensor<2>, residual: Tensor<2>, ops: Ops) -> Tensor<2> {
        ops::layer_norm::layer_norm(x, Some(residual), self.weight.val(), self.bias.val(), self.eps, ops)
    }
}

/// A table of vectors looked up by id.
#[derive(Module, Debug)]
pub struct Embedding {
    /// `[num_embeddings, features]`
    pub weight: Param<Tensor<2>>,
    padding_idx: Option<usize>,
}

impl Embedding {
    /// Weights from `N(0, std)`; the row `padding_idx`, if any, is zero, as torch initialises it.
    pub fn new(num: usize, features: usize, padding_idx: Option<usize>, std: f64, device: &Device) -> Self {
        let weight = uninitialized([num, features], device, move |shape, device| {
            let table = Tensor::random(shape, Distribution::Normal(0.0, std), device);
            match padding_idx {
                Some(row) => table.slice_fill([row..row + 1, 0..features], 0.0f32),
                None => table,
            }
        });
        Self { weight, padding_idx }
    }

    /// `[n] -> [n, features]`. The row `padding_idx` gets no gradient from being looked up, as in torch's `Embedding`.
    pub fn forward(&self, ids: Tensor<1, Int>, ops: Ops) -> Tensor<2> {
        ops::embedding::embedding(self.weight.val(), ids, self.padding_idx, ops)
    }

    /// The first `seq` rows from `start`, repeated for every sequence of the batch: `[batch * seq, features]`.
    /// A slice and a broadcast, so that the backward pass is a sum over the batch and not a scatter over tokens.
    pub fn positions(&self, x: Tensor<2>, batch: usize, start: usize) -> Tensor<2> {
        let [rows, features] = x.dims();
        let seq = rows / batch;
        let table = self.weight.val().slice([start..start + seq, 0..features]);
        (x.reshape([batch, seq, features]) + table.unsqueeze()).reshape([rows, features])
    }
}

/// The activation of the feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`: Hugging Face's `gelu_new` and `gelu_pytorch_tanh`.
    GeluTanh,
    /// `0.5 x (1 + erf(x / sqrt(2)))`: Hugging Face's `gelu`.
    GeluErf,
}

impl Activation {
    /// The activation that Hugging Face calls `name`; none for one that Kiln does not have.
    pub fn from_hf(name: &str) -> Option<Self> {
        match name {
            "gelu_new" | "gelu_pytorch_tanh" => Some(Self::GeluTanh),
            "gelu" => Some(Self::GeluErf),
            _ => None,
        }
    }

    /// Element-wise, any shape (Hendrycks & Gimpel 2016, both forms). Written out, because the derivative that Burn
    /// 0.22.1 uses by default for its own erf GELU is that of the tanh form.
    pub fn forward<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        match self {
            Self::GeluTanh => {
                let sqrt_2_over_pi = (2.0 / std::f64::consts::PI).sqrt();
                let cubic = x.clone() * x.clone() * x.clone();
                let inner = (x.clone() + cubic * 0.044715) * sqrt_2_over_pi;
                x * 0.5 * (inner.tanh() + 1.0)
            }
            Self::GeluErf => x.clone() * 0.5 * ((x * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0),
        }
    }
}

/// Inverted dropout (Srivastava et al. 2014): each element is zeroed with probability `p` and the others are scaled by
/// `1 / (1 - p)`. The identity unless `train`.
pub fn dropout<const D: usize>(x: Tensor<D>, p: f64, train: bool) -> Tensor<D> {
    if !train || p == 0.0 {
        return x;
    }
    let keep = 1.0 - p;
    let mask = x.random_like(Distribution::Bernoulli(keep));
    match FloatDType::from(x.dtype()) {
        FloatDType::F32 => x * (mask * (1.0 / keep)),
        // The factor itself would be rounded to a narrow type, and all of `x` scaled by the error.
        dtype => ((x * mask).cast(FloatDType::F32) * (1.0 / keep)).cast(dtype),
    }
}

/// `[batch * seq, heads * head_dim] -> [batch, heads, seq, head_dim]`
pub fn split_heads(x: Tensor<2>, batch: usize, heads: usize) -> Tensor<4> {
    let [rows, features] = x.dims();
    x.reshape([batch, rows / batch, heads, features / heads]).swap_dims(1, 2)
}

/// `[batch, heads, seq, head_dim] -> [batch * seq, heads * head_dim]`
pub fn merge_heads(x: Tensor<4>) -> Tensor<2> {
    let [batch, heads, seq, head_dim] = x.dims();
    x.swap_dims(1, 2).reshape([batch * seq, heads * head_dim])
}

/// Scaled dot-product attention (Vaswani et al. 2017), softmax in f32.
///
/// - `query`: `[batch, heads, seq, head_dim]`; `key`, `value`: `[batch, heads, keys, head_dim]`
/// - `hidden`: true where a key must not be seen, `[batch or 1, 1, seq or 1, keys]`
///
/// Hidden scores become the most negative finite number, as in `transformers`: a row in which every key is hidden is
/// then uniform instead of NaN.
pub fn attention(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    hidden: Option<Tensor<4, Bool>>,
    scale: f64,
    dropout_p: f64,
    train: bool,
) -> Tensor<4> {
    let [batch, heads, seq, _] = query.dims();
    let keys = key.dims()[2];
    let dtype = FloatDType::from(query.dtype());
    let mut scores = (query * scale).matmul(key.swap_dims(2, 3)); // [batch, heads, seq, keys]
    if dtype != FloatDType::F32 {
        scores = scores.cast(FloatDType::F32);
    }
    if let Some(hidden) = hidden {
        scores = scores.mask_fill(hidden.expand([batch, heads, seq, keys]), f32::MIN);
    }
    let mut weights = softmax(scores, 3);
    if dtype != FloatDType::F32 {
        weights = weights.cast(dtype);
    }
    dropout(weights, dropout_p, train).matmul(value)
}

/// True where query `past + i` must not see key `j`, that is where `j > past + i`: `[1, 1, seq, past + seq]`.
pub fn causal_mask(seq: usize, past: usize, device: &Device) -> Tensor<4, Bool> {
    let keys = Tensor::<1, Int>::arange(0..(past + seq) as i64, device).reshape([1, 1, 1, past + seq]);
    let queries = Tensor::<1, Int>::arange(past as i64..(past + seq) as i64, device).reshape([1, 1, seq, 1]);
    keys.expand([1, 1, seq, past + seq]).greater(queries.expand([1, 1, seq, past + seq]))
}

/// True where a key is padding: `attention_mask [batch, keys]` (true = attend) -> `[batch, 1, 1, keys]`.
pub fn padding_mask(attention_mask: Tensor<2, Bool>) -> Tensor<4, Bool> {
    let [batch, keys] = attention_mask.dims();
    attention_mask.bool_not().reshape([batch, 1, 1, keys])
}

/// A parameter that is created from `N(0, std)` when it is first used, so that loading weights costs no random numbers.
fn normal<const D: usize>(shape: [usize; D], std: f64, device: &Device) -> Param<Tensor<D>> {
    uninitialized(shape, device, move |shape, device| Tensor::random(shape, Distribution::Normal(0.0, std), device))
}

fn zeros<const D: usize>(shape: [usize; D], device: &Device) -> Param<Tensor<D>> {
    uninitialized(shape, device, |shape, device| Tensor::zeros(shape, device))
}

/// A trainable parameter of `shape` that `init` fills when it is first used.
pub fn uninitialized<const D: usize>(
    shape: [usize; D],
    device: &Device,
    init: impl FnOnce(Shape, &Device) -> Tensor<D> + Send + Sync + 'static,
) -> Param<Tensor<D>> {
    let shape = Shape::from(shape);
    let at_init = shape.clone();
    Param::uninitialized(
        ParamId::new(),
        move |device: &Device, require_grad| init(at_init, device).set_require_grad(require_grad),
        device.clone(),
        true,
        shape,
    )
}
