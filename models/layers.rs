//! The layers that GPT-2 and BERT share: projections, normalisation and embeddings.
//!
//! Activations are two-dimensional, `[batch * seq, features]`, everywhere outside attention. With a third dimension Burn
//! computes a weight gradient per sequence and sums them afterwards; with two it is one matrix product.
//! A layer's `ops` argument says in which form it computes: composed of Burn's operations, from which autodiff derives the
//! backward pass, or by Kiln's fused kernels (`ops`). Layers with a matrix product take the whole [`Pass`].

use burn::module::{Module, Param, ParamId};
use burn::tensor::{Device, Distribution, Int, Shape, Tensor};

use crate::compute::Pass;
use crate::ops::gelu::Activation;
use crate::ops::{self, Ops};

/// `y = x W + b` with `W` stored as `[in, out]`; the files hold the transpose, which `weights` turns around. Reference:
/// `torch.nn.Linear`.
#[derive(Module, Debug)]
pub struct Linear {
    /// `[in, out]`
    pub weight: Param<Tensor<2>>,
    /// `[out]`
    pub bias: Option<Param<Tensor<1>>>,
}

/// The same mathematics as [`Linear`]; its own type because Hugging Face's GPT-2 files store the weight untransposed.
/// Reference: `transformers.pytorch_utils.Conv1D`.
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
    pub fn forward(&self, x: Tensor<2>, pass: Pass<'_>) -> Tensor<2> {
        match &self.bias {
            Some(bias) => pass.affine(x, &self.weight, bias.val()),
            None => pass.projection(x, &self.weight),
        }
    }

    /// `activation(x W + b)`: `[n, in] -> [n, out]`
    pub fn activated(&self, x: Tensor<2>, activation: Activation, pass: Pass<'_>) -> Tensor<2> {
        let x = pass.projection(x, &self.weight);
        match &self.bias {
            Some(bias) => ops::gelu::bias_gelu(x, bias.val(), activation, pass.ops()),
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
    pub fn forward(&self, x: Tensor<2>, pass: Pass<'_>) -> Tensor<2> {
        pass.affine(x, &self.weight, self.bias.val())
    }

    /// `activation(x W + b)`: `[n, in] -> [n, out]`
    pub fn activated(&self, x: Tensor<2>, activation: Activation, pass: Pass<'_>) -> Tensor<2> {
        ops::gelu::bias_gelu(pass.projection(x, &self.weight), self.bias.val(), activation, pass.ops())
    }

    /// `residual + dropout(x W + b)`: `x [n, in]`, `residual [n, out]` -> `[n, out]`
    pub fn onto_residual(&self, x: Tensor<2>, residual: Tensor<2>, p: f64, pass: Pass<'_>) -> Tensor<2> {
        let x = pass.projection(x, &self.weight);
        ops::dropout::bias_dropout_residual(x, self.bias.val(), residual, p, pass.rng, pass.ops())
    }
}

/// Layer normalisation over the last dimension (Ba et al. 2016), statistics in f32 whatever the input's type. Reference:
/// `torch.nn.LayerNorm`.
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

/// A table of vectors looked up by id. Reference: `torch.nn.Embedding`.
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
