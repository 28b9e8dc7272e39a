//! The layers that the models share: projections, normalisation and embeddings.
//!
//! Activations are two-dimensional, `[batch * seq, features]`, everywhere outside attention. With a
//! third dimension Burn computes a weight gradient per sequence and sums them afterwards; with two
//! it is one matrix product. A layer's `ops` argument says in which form it computes: composed of
//! Burn's operations, from which autodiff derives the backward pass, or by Kiln's fused kernels
//! (`ops`). Layers with a matrix product take the whole [`Pass`].

use burn::module::{Module, Param, ParamId};
use burn::tensor::{Device, Distribution, FloatDType, IndexingUpdateOp, Int, Shape, Tensor};
use kiln_core::model_config::Activation;

use crate::error::Result;
use crate::lora::{LoraConfig, LoraInit};
use crate::ops::dropout::{Residual, Stream, uniform_noise};
use crate::ops::embedding::{TiedTable, tied_embedding};
use crate::ops::gelu::{activate, bias_gelu};
use crate::ops::{self, Operand, Operator, Ops, Pass, PostNorm, Reader, SharedOperand};

/// `y = x W + b` with `W` stored as `[in, out]`; the files hold the transpose, which `weights`
/// turns around. Reference: `torch.nn.Linear`.
#[derive(Module, Debug)]
pub struct Linear {
    /// `[in, out]`
    pub weight: Param<Tensor<2>>,
    /// `[out]`
    pub bias: Option<Param<Tensor<1>>>,
    /// The adapter that learns beside a frozen weight, if there is one.
    pub lora: Option<Lora>,
}

/// `y = x W + b`, as in [`Linear`]; its own type because Hugging Face's GPT-2 files store the
/// weight untransposed. Reference: `transformers.pytorch_utils.Conv1D`.
#[derive(Module, Debug)]
pub struct Conv1D {
    /// `[in, out]`
    pub weight: Param<Tensor<2>>,
    /// `[out]`
    pub bias: Param<Tensor<1>>,
    /// The adapter that learns beside a frozen weight, if there is one.
    pub lora: Option<Lora>,
}

/// The adapter of one linear layer. Reference: `peft.tuners.lora.layer.Linear`.
#[derive(Module, Debug)]
pub struct Lora {
    lora_a: LowRank,
    lora_b: LowRank,
    /// The lengths of the columns of the weight with the adapter, `[out]`, where they learn (DoRA).
    lora_magnitude_vector: Option<Param<Tensor<1>>>,
    dropout: f64,
    scaling: f64,
}

/// One of the two matrices, stored as [`Linear`] stores its weight. Reference: `torch.nn.Linear`.
#[derive(Module, Debug)]
struct LowRank {
    weight: Param<Tensor<2>>,
    /// The bias of the second one, `[out]`.
    bias: Option<Param<Tensor<1>>>,
}

/// A linear layer as [`EachLinear`] sees it.
pub(crate) struct LinearParts<'a> {
    /// `[in, out]`
    pub weight: &'a mut Param<Tensor<2>>,
    /// `[out]`
    pub bias: Option<&'a mut Param<Tensor<1>>>,
    pub lora: &'a mut Option<Lora>,
}

/// A function of every linear layer of a model.
pub(crate) type EachLinear<'a> = dyn FnMut(LinearParts<'_>) + 'a;

/// The adapter of one embedding, which drops nothing out. Its matrices lie as in files. Reference:
/// `peft.tuners.lora.layer.Embedding`.
#[derive(Module, Debug)]
pub struct EmbeddingLora {
    /// `[r, num_embeddings]`
    lora_embedding_a: Param<Tensor<2>>,
    /// `[features, r]`
    lora_embedding_b: Param<Tensor<2>>,
    /// The lengths of the columns of the table with the adapter, `[features]`, where they learn
    /// (DoRA).
    lora_magnitude_vector: Option<Param<Tensor<1>>>,
    scaling: f64,
}

/// Rows of an embedding that learn, in place of those that it has. Reference:
/// `peft.tuners.trainable_tokens.TrainableTokensLayer`.
#[derive(Module, Debug)]
pub struct TokenAdapter {
    /// `[tokens, features]`
    trainable_tokens_delta: Param<Tensor<2>>,
    #[module(skip)]
    rows: Vec<i64>,
}

/// `x W`, with the adapter where there is one, and with `bias` where it is given: `[n, in] -> [n,
/// out]`, in the type that `reader` takes. An adapter gives f32, which operators read as well.
fn product<'a>(
    x: impl Into<Operand<'a>>,
    weight: &Param<Tensor<2>>,
    bias: Option<Tensor<1>>,
    lora: Option<&Lora>,
    reader: Reader,
    pass: Pass<'_>,
) -> Tensor<2> {
    match lora {
        None => pass.linear(x, weight, bias, reader),
        Some(lora) if reader == Reader::Product => pass.compute.narrow(lora.forward(x, weight, bias, pass)),
        Some(lora) => lora.forward(x, weight, bias, pass),
    }
}

/// `residual + dropout(x W + b)`: `x [n, in]`, `residual [n, out]` -> `[n, out]`
fn onto_residual<'a>(
    x: impl Into<Operand<'a>>,
    weight: &Param<Tensor<2>>,
    bias: Option<Tensor<1>>,
    lora: Option<&Lora>,
    residual: Residual,
    p: f64,
    pass: Pass<'_>,
) -> Stream {
    let x = product(x, weight, None, lora, Operator::Dropout.into(), pass);
    Stream::sum(x, bias, residual, p, pass.rng, pass.ops())
}

/// `x` for the `layers` that the next branch begins with, and as the residual of that branch;
/// adapters read f32.
pub(crate) fn branch(x: PostNorm, layers: &[&Linear], pass: Pass<'_>) -> (Operand<'static>, Residual) {
    if layers.iter().any(|layer| layer.lora.is_some()) {
        return PostNorm::from(x.rows()).branch(pass.compute);
    }
    x.branch(pass.compute)
}

/// `x` for each of the `layers` that read it: as products take it, but for adapters, which read
/// f32.
pub(crate) fn shared(x: Operand<'_>, layers: &[&Linear], pass: Pass<'_>) -> SharedOperand {
    if layers.iter().any(|layer| layer.lora.is_some()) { SharedOperand::wide(x) } else { x.shared(pass.compute) }
}

/// `activation(x W + b)` for the layer that reads it, the bias where it is given: `[n, in] -> [n,
/// out]`
fn activated<'a>(
    x: impl Into<Operand<'a>>,
    weight: &'a Param<Tensor<2>>,
    bias: Option<Tensor<1>>,
    lora: Option<&Lora>,
    activation: Activation,
    pass: Pass<'a>,
) -> Operand<'a> {
    match (bias, lora) {
        (Some(bias), None) => pass.activated(x, weight, bias, activation),
        (Some(bias), Some(lora)) if lora.has_magnitude() => {
            bias_gelu(product(x, weight, None, Some(lora), Reader::Wide, pass), bias, activation, pass.ops()).into()
        }
        (Some(bias), lora) => {
            Operand::gelu(product(x, weight, None, lora, Reader::Wide, pass), bias, activation, pass.ops())
        }
        (None, lora) => activate(product(x, weight, None, lora, Reader::Wide, pass), activation).into(),
    }
}

/// Noise on the output of a token embedding in training, by its strength alpha (NEFTune, Jain et
/// al. 2023, arXiv 2310.05914): each element gets a number drawn evenly from 0 to `alpha / sqrt(seq
/// * width)`, either way. Reference: `transformers.integrations.neftune`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct EmbeddingNoise(pub Option<f64>);

impl EmbeddingNoise {
    /// `x [batch * seq, width]` with noise where `pass` trains.
    pub(crate) fn added(self, x: Tensor<2>, seq: usize, pass: Pass<'_>) -> Tensor<2> {
        let Self(Some(alpha)) = self else { return x };
        let elements = seq * x.dims()[1];
        uniform_noise(x, alpha / (elements as f64).sqrt(), pass.rng)
    }
}

impl Linear {
    /// Weights from `N(0, std)`, bias zero, as `transformers` initialises them.
    pub fn new(d_in: usize, d_out: usize, bias: bool, std: f64, device: &Device) -> Self {
        Self { weight: normal([d_in, d_out], std, device), bias: bias.then(|| zeros([d_out], device)), lora: None }
    }

    /// `[n, in] -> [n, out]`
    pub fn forward<'a>(&self, x: impl Into<Operand<'a>>, pass: Pass<'_>) -> Tensor<2> {
        self.forward_for(Reader::Wide, x, pass)
    }

    /// [`forward`](Self::forward) in the type that `reader` takes; for an operator f32 where the
    /// layer has an adapter.
    pub fn forward_for<'a>(&self, reader: impl Into<Reader>, x: impl Into<Operand<'a>>, pass: Pass<'_>) -> Tensor<2> {
        let bias = self.bias.as_ref().map(Param::val);
        product(x, &self.weight, bias, self.lora.as_ref(), reader.into(), pass)
    }

    /// `residual + dropout(x W + b)`: `x [n, in]`, `residual [n, out]` -> `[n, out]`
    pub(crate) fn onto_residual<'a>(
        &self,
        x: impl Into<Operand<'a>>,
        residual: impl Into<Residual>,
        p: f64,
        pass: Pass<'_>,
    ) -> Stream {
        let bias = self.bias.as_ref().map(Param::val);
        onto_residual(x, &self.weight, bias, self.lora.as_ref(), residual.into(), p, pass)
    }

    /// `residual + x W + b`: `x [n, in]`, `residual [n, out]` -> `[n, out]`
    pub(crate) fn added_to<'a>(&self, residual: Residual, x: impl Into<Operand<'a>>, pass: Pass<'_>) -> Tensor<2> {
        // The kernel that adds bias and residual reads what a narrow product gives.
        if pass.compute.adds_narrow(&residual.device()) {
            return self.onto_residual(x, residual, 0.0, pass).rows();
        }
        residual.rows() + self.forward(x, pass)
    }

    /// Shows itself to `each`.
    pub(crate) fn each_linear(&mut self, each: &mut EachLinear<'_>) {
        each(LinearParts { weight: &mut self.weight, bias: self.bias.as_mut(), lora: &mut self.lora });
    }

    /// `activation(x W + b)` for the layer that reads it: `[n, in] -> [n, out]`
    pub fn activated<'a>(&'a self, x: impl Into<Operand<'a>>, activation: Activation, pass: Pass<'a>) -> Operand<'a> {
        activated(x, &self.weight, self.bias.as_ref().map(Param::val), self.lora.as_ref(), activation, pass)
    }
}

impl Conv1D {
    /// Weights from `N(0, std)`, bias zero.
    pub fn new(d_in: usize, d_out: usize, std: f64, device: &Device) -> Self {
        Self { weight: normal([d_in, d_out], std, device), bias: zeros([d_out], device), lora: None }
    }

    /// `[n, in] -> [n, out]`
    pub fn forward<'a>(&self, x: impl Into<Operand<'a>>, pass: Pass<'_>) -> Tensor<2> {
        self.forward_for(Reader::Wide, x, pass)
    }

    /// [`forward`](Self::forward) in the type that `reader` takes; for an operator f32 where the
    /// layer has an adapter.
    pub fn forward_for<'a>(&self, reader: impl Into<Reader>, x: impl Into<Operand<'a>>, pass: Pass<'_>) -> Tensor<2> {
        product(x, &self.weight, Some(self.bias.val()), self.lora.as_ref(), reader.into(), pass)
    }

    /// `activation(x W + b)` for the layer that reads it: `[n, in] -> [n, out]`
    pub fn activated<'a>(&'a self, x: impl Into<Operand<'a>>, activation: Activation, pass: Pass<'a>) -> Operand<'a> {
        activated(x, &self.weight, Some(self.bias.val()), self.lora.as_ref(), activation, pass)
    }

    /// Shows itself to `each`.
    pub(crate) fn each_linear(&mut self, each: &mut EachLinear<'_>) {
        each(LinearParts { weight: &mut self.weight, bias: Some(&mut self.bias), lora: &mut self.lora });
    }

    /// `residual + dropout(x W + b)`: `x [n, in]`, `residual [n, out]` -> `[n, out]`
    pub fn onto_residual<'a>(
        &self,
        x: impl Into<Operand<'a>>,
        residual: impl Into<Residual>,
        p: f64,
        pass: Pass<'_>,
    ) -> Stream {
        onto_residual(x, &self.weight, Some(self.bias.val()), self.lora.as_ref(), residual.into(), p, pass)
    }
}

impl Lora {
    /// Whether the lengths of the columns learn, so that the result is no product but one that they
    /// have scaled: its gradient must be in f32.
    pub(crate) fn has_magnitude(&self) -> bool {
        self.lora_magnitude_vector.is_some()
    }

    /// The adapter of the layer `module` with a weight `[d_in, d_out]`. The lengths of its columns,
    /// if they learn, are 1 until [`begin`](Self::begin) or a file sets them.
    pub(crate) fn new(config: &LoraConfig, module: &str, [d_in, d_out]: [usize; 2], device: &Device) -> Self {
        let r = config.rank(module);
        let uniform = |fan_in: usize| {
            let bound = 1.0 / (fan_in as f64).sqrt();
            Distribution::Uniform(-bound, bound)
        };
        let drawn = |shape: [usize; 2], distribution: Distribution| {
            uninitialized(shape, device, move |shape, device| Tensor::random(shape, distribution, device))
        };
        let zero = || uninitialized([r, d_out], device, |shape, device| Tensor::zeros(shape, device));
        let (a, b) = match config.init_lora_weights {
            LoraInit::Zero => (drawn([d_in, r], uniform(d_in)), zero()),
            LoraInit::Gaussian => (drawn([d_in, r], Distribution::Normal(0.0, 1.0 / r as f64)), zero()),
            LoraInit::Random => (drawn([d_in, r], uniform(d_in)), drawn([r, d_out], uniform(r))),
        };
        let bias = config.lora_bias.then(|| match config.init_lora_weights {
            LoraInit::Random => {
                uninitialized([d_out], device, move |shape, device| Tensor::random(shape, uniform(r), device))
            }
            LoraInit::Zero | LoraInit::Gaussian => zeros([d_out], device),
        });
        let ones = || uninitialized([d_out], device, |shape, device| Tensor::ones(shape, device));
        Self {
            lora_a: LowRank { weight: a, bias: None },
            lora_b: LowRank { weight: b, bias },
            lora_magnitude_vector: config.use_dora.then(ones),
            dropout: config.lora_dropout,
            scaling: config.scaling(module),
        }
    }

    /// Where the lengths of the columns learn, they begin as those of `weight` with the adapter.
    pub(crate) fn begin(&mut self, weight: &Tensor<2>) {
        let sum = self.lora_magnitude_vector.is_some().then(|| self.sum(weight.clone()));
        begin_lengths(&mut self.lora_magnitude_vector, sum);
    }

    /// The factors `x' [n, k]`, `weight' [out, k]` and the bias of a product that is made later,
    /// which computes `x weight^T` with the adapter: its narrow matrices are more columns of the
    /// two factors. `weight` is frozen, `[out, in]`.
    pub(crate) fn factors(
        &self,
        x: Tensor<2>,
        weight: Tensor<2>,
        bias: Option<Tensor<1>>,
        pass: Pass<'_>,
    ) -> (Tensor<2>, Tensor<2>, Option<Tensor<1>>) {
        let drops = self.dropout > 0.0 && pass.drops();
        let dropped = ops::dropout::dropout(x.clone(), self.dropout, pass.rng, pass.ops());
        let low = pass.linear(dropped.clone(), &self.lora_a.weight, None, Reader::Wide) * self.scaling;
        let second = self.lora_b.weight.val().transpose(); // [out, r]
        let bias = match (bias, &self.lora_b.bias) {
            (Some(bias), Some(of_adapter)) => Some(bias + of_adapter.val() * self.scaling),
            (bias, of_adapter) => bias.or(of_adapter.as_ref().map(|of_adapter| of_adapter.val() * self.scaling)),
        };
        let (x, weight) = match &self.lora_magnitude_vector {
            None => (vec![x, low], vec![weight, second]),
            Some(magnitude) => {
                let lengths = lengths(self.sum(weight.clone().transpose())).detach();
                let factors = (magnitude.val() / lengths).unsqueeze_dim::<2>(1); // [out, 1]
                if drops {
                    let of_base = weight.clone() * (factors.clone() - 1.0);
                    (vec![x, dropped, low], vec![weight, of_base, second * factors])
                } else {
                    (vec![x, low], vec![weight * factors.clone(), second * factors])
                }
            }
        };
        (Tensor::cat(x, 1), Tensor::cat(weight, 1), bias)
    }

    /// `x W + b + s ((drop(x) A) B + b')` for the frozen `weight` and the `bias`, if any, of the
    /// layer: `[n, in] -> [n, out]`, f32. With lengths `m` of columns (DoRA) `x W + b + (c - 1)
    /// drop(x) W + c s (drop(x) A) B` instead, where `c = m / ||W + s A B||` by column and the norm
    /// has no gradient. Reference: `peft.tuners.lora.dora.DoraLinearLayer`.
    pub(crate) fn forward<'a>(
        &self,
        x: impl Into<Operand<'a>>,
        weight: &Param<Tensor<2>>,
        bias: Option<Tensor<1>>,
        pass: Pass<'_>,
    ) -> Tensor<2> {
        let low_rank = [&self.lora_a.weight, &self.lora_b.weight];
        let Some(magnitude) = &self.lora_magnitude_vector else {
            let of_adapter = self.lora_b.bias.as_ref().map(|bias| bias.val() * self.scaling);
            let bias = match (bias, of_adapter) {
                (Some(bias), Some(of_adapter)) => Some(bias + of_adapter),
                (bias, of_adapter) => bias.or(of_adapter),
            };
            return pass.adapted(x, weight, bias, low_rank, self.dropout, self.scaling);
        };
        let lengths = lengths(self.sum(weight.val())).detach();
        let factors = (magnitude.val() / lengths).unsqueeze::<2>();
        if self.dropout == 0.0 || !pass.drops() {
            let y = pass.adapted(x, weight, None, low_rank, 0.0, self.scaling) * factors;
            return match bias {
                Some(bias) => y + bias.unsqueeze(),
                None => y,
            };
        }
        let x = x.into().wide();
        let dropped = ops::dropout::dropout(x.clone(), self.dropout, pass.rng, pass.ops());
        let [a, b] = low_rank;
        let wide = |x: Tensor<2>, weight, bias| pass.linear(x, weight, bias, Reader::Wide);
        let low = wide(wide(dropped.clone(), a, None), b, None) * self.scaling;
        let of_base = wide(dropped, weight, None) * (factors.clone() - 1.0);
        wide(x, weight, bias) + of_base + low * factors
    }

    /// `W + s A B`, `[in, out]`, in f32.
    fn sum(&self, weight: Tensor<2>) -> Tensor<2> {
        weight.cast(FloatDType::F32) + self.lora_a.weight.val().matmul(self.lora_b.weight.val()) * self.scaling
    }

    /// The weight and the bias, if there is one, of a layer that computes the same without an
    /// adapter.
    ///
    /// # Errors
    /// A bias of the adapter for a layer that has none.
    pub(crate) fn merged(&self, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Result<(Tensor<2>, Option<Tensor<1>>)> {
        let sum = self.sum(weight);
        let merged = match &self.lora_magnitude_vector {
            Some(magnitude) => sum.clone() * (magnitude.val() / lengths(sum)).unsqueeze::<2>(),
            None => sum,
        };
        let bias = match (bias, &self.lora_b.bias) {
            (Some(bias), Some(of_adapter)) => Some(bias + of_adapter.val() * self.scaling),
            (None, Some(_)) => {
                let what = "the adapter has a bias (lora_bias) for a layer that has none, so that it cannot be merged";
                return Err(kiln_core::Error::data(what).help("use the adapter beside its base").into());
            }
            (bias, None) => bias,
        };
        Ok((merged, bias))
    }
}

impl EmbeddingLora {
    /// The adapter of the embedding `module` with a table `[num_embeddings, features]`: a second
    /// matrix from `N(0, 1)`, and a first one of zeros but for tests.
    pub(crate) fn new(config: &LoraConfig, module: &str, [num, features]: [usize; 2], device: &Device) -> Self {
        let r = config.rank(module);
        let drawn = |shape| normal(shape, 1.0, device);
        Self {
            lora_embedding_a: match config.init_lora_weights {
                LoraInit::Random => drawn([r, num]),
                LoraInit::Zero | LoraInit::Gaussian => {
                    uninitialized([r, num], device, |shape, device| Tensor::zeros(shape, device))
                }
            },
            lora_embedding_b: drawn([features, r]),
            lora_magnitude_vector: config
                .use_dora
                .then(|| uninitialized([features], device, |shape, device| Tensor::ones(shape, device))),
            scaling: config.scaling(module),
        }
    }

    /// Where the lengths of the columns learn, they begin as those of `weight` with the adapter.
    fn begin(&mut self, weight: &Tensor<2>) {
        let sum = self.lora_magnitude_vector.is_some().then(|| self.sum(weight.clone()));
        begin_lengths(&mut self.lora_magnitude_vector, sum);
    }

    /// `c (x + s a B)` for rows `x [n, features]` of the table `weight` and those `a [n, r]` of the
    /// first matrix, in f32; `c` is 1 but where lengths of columns learn.
    fn forward(&self, x: Tensor<2>, a: Tensor<2>, weight: &Param<Tensor<2>>) -> Tensor<2> {
        let sum = x + a.matmul(self.lora_embedding_b.val().transpose()) * self.scaling;
        match &self.lora_magnitude_vector {
            Some(magnitude) => {
                let lengths = lengths(self.sum(weight.val())).detach();
                sum * (magnitude.val() / lengths).unsqueeze::<2>()
            }
            None => sum,
        }
    }

    /// The first matrix with a row for each of the table: `[num_embeddings, r]`.
    fn a(&self) -> Tensor<2> {
        self.lora_embedding_a.val().transpose()
    }

    /// `W + s A B`, `[num_embeddings, features]`.
    fn sum(&self, weight: Tensor<2>) -> Tensor<2> {
        weight + self.a().matmul(self.lora_embedding_b.val().transpose()) * self.scaling
    }
}

impl TokenAdapter {
    /// The `rows` of a table with `features` columns, which begin as those that it has.
    fn new(rows: &[usize], features: usize, device: &Device) -> Self {
        let shape = [rows.len(), features];
        Self {
            trainable_tokens_delta: uninitialized(shape, device, |shape, device| Tensor::zeros(shape, device)),
            rows: rows.iter().map(|row| *row as i64).collect(),
        }
    }

    fn indices(&self, device: &Device) -> Tensor<1, Int> {
        Tensor::from_ints(self.rows.as_slice(), device)
    }

    /// The rows begin as those of `weight`.
    fn begin(&mut self, weight: &Tensor<2>) {
        let rows = weight.clone().select(0, self.indices(&weight.device())).detach();
        let id = self.trainable_tokens_delta.id;
        self.trainable_tokens_delta = Param::initialized(id, rows.require_grad());
    }

    /// `weight` with these rows in place of its own, to the bit: a row less itself is zero.
    fn replaced(&self, weight: Tensor<2>) -> Tensor<2> {
        let rows = self.indices(&weight.device());
        let own = weight.clone().select(0, rows.clone());
        let without = weight.select_assign(0, rows.clone(), -own, IndexingUpdateOp::Add);
        without.select_assign(0, rows, self.trainable_tokens_delta.val(), IndexingUpdateOp::Add)
    }
}

/// Begins the lengths of columns that learn, if any, with those of `sum`.
fn begin_lengths(magnitude: &mut Option<Param<Tensor<1>>>, sum: Option<Tensor<2>>) {
    if let (Some(begun), Some(sum)) = (magnitude.take(), sum) {
        *magnitude = Some(Param::initialized(begun.id, lengths(sum).detach().require_grad()));
    }
}

/// The lengths of the columns of a matrix: `[in, out] -> [out]`.
fn lengths(matrix: Tensor<2>) -> Tensor<1> {
    matrix.powf_scalar(2.0).sum_dim(0).sqrt().squeeze_dim(0)
}

/// Layer normalisation over the last dimension (Ba et al. 2016), statistics in f32 whatever the
/// input's type. Reference: `torch.nn.LayerNorm`.
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
    pub fn forward(&self, x: impl Into<Stream>, ops: Ops) -> Tensor<2> {
        ops::layer_norm::layer_norm(x, None, self.weight.val(), self.bias.val(), self.eps, ops)
    }

    /// Layer normalisation for the layer that reads it, and `x` as the residual of the branch that
    /// begins with that layer: `[n, features] -> [n, features]`
    pub fn operand(&self, x: impl Into<Stream>, ops: Ops) -> (Operand<'static>, Residual) {
        Operand::layer_norm(x, self.weight.val(), self.bias.val(), self.eps, ops)
    }

    /// Layer normalisation of a sum as the result of a post-norm branch: `[n, features] -> [n,
    /// features]`
    pub fn after(&self, sum: Stream, ops: Ops) -> PostNorm {
        PostNorm::layer_norm(sum, self.weight.val(), self.bias.val(), self.eps, ops)
    }

    /// Layer normalisation of `x + residual`, both `[n, features]`.
    pub fn forward_sum(&self, x: Tensor<2>, residual: Tensor<2>, ops: Ops) -> Tensor<2> {
        ops::layer_norm::layer_norm(x, Some(residual), self.weight.val(), self.bias.val(), self.eps, ops)
    }
}

/// Root mean square normalisation over the last dimension (Zhang & Sennrich 2019). Reference:
/// `LlamaRMSNorm`.
#[derive(Module, Debug)]
pub struct RmsNorm {
    /// `[features]`
    pub weight: Param<Tensor<1>>,
    eps: f64,
}

impl RmsNorm {
    /// Weight one.
    pub fn new(features: usize, eps: f64, device: &Device) -> Self {
        Self { weight: uninitialized([features], device, |shape, device| Tensor::ones(shape, device)), eps }
    }

    /// `[n, features] -> [n, features]`
    pub fn forward(&self, x: Tensor<2>, ops: Ops) -> Tensor<2> {
        ops::rms_norm::rms_norm(x, self.weight.val(), self.eps, ops)
    }

    /// The normalisation for the layers that read it, and `x` as the residual of the branch that
    /// begins with them: `[n, features] -> [n, features]`
    pub fn operand(&self, x: Tensor<2>, ops: Ops) -> (Operand<'static>, Residual) {
        Operand::rms_norm(x, self.weight.val(), self.eps, ops)
    }

    /// The normalisation of each head by itself, in the type that `reader` takes: `[n, heads *
    /// features]` -> the same.
    pub(crate) fn heads_for(&self, reader: Reader, x: Tensor<2>, heads: usize, pass: Pass<'_>) -> Tensor<2> {
        let [n, width] = x.dims();
        let (normalised, _) = self.operand(x.reshape([n * heads, width / heads]), pass.ops());
        normalised.read_by(reader, pass.compute).reshape([n, width])
    }
}

/// A table of vectors looked up by id. Reference: `torch.nn.Embedding`.
#[derive(Module, Debug)]
pub struct Embedding {
    /// `[num_embeddings, features]`
    pub weight: Param<Tensor<2>>,
    padding_idx: Option<usize>,
    /// The adapter that learns beside a frozen table, if there is one.
    pub lora: Option<EmbeddingLora>,
    /// The rows of a frozen table that learn, if there are any.
    pub token_adapter: Option<TokenAdapter>,
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
        Self { weight, padding_idx, lora: None, token_adapter: None }
    }

    /// Lets the `rows` of the table, which is frozen, learn.
    pub(crate) fn adapt_rows(&mut self, rows: &[usize]) {
        let ([_, features], device) = (self.weight.lazy_shape().dims(), self.weight.lazy_device());
        self.token_adapter = Some(TokenAdapter::new(rows, features, &device));
    }

    /// Begins what learns beside the table, which is loaded.
    pub(crate) fn begin(&mut self) {
        if let Some(lora) = &mut self.lora {
            lora.begin(&self.weight.val());
        }
        if let Some(tokens) = &mut self.token_adapter {
            tokens.begin(&self.weight.val());
        }
    }

    /// Takes what has learnt beside the table up into it.
    pub(crate) fn merge(&mut self) {
        let table = self.rows(0, self.weight.dims()[0]);
        self.weight = Param::initialized(self.weight.id, table);
        (self.lora, self.token_adapter) = (None, None);
    }

    /// The table with the rows that have learnt, without an adapter: `[num_embeddings, features]`.
    pub(crate) fn table(&self) -> Tensor<2> {
        match &self.token_adapter {
            Some(tokens) => tokens.replaced(self.weight.val()),
            None => self.weight.val(),
        }
    }

    /// `[n] -> [n, features]`. The row `padding_idx` gets no gradient from being looked up, as in
    /// torch's `Embedding`.
    pub fn forward(&self, ids: Tensor<1, Int>, ops: Ops) -> Tensor<2> {
        self.looked_up(ids, None, ops)
    }

    /// [`forward`](Self::forward) of the tokens that `pass` begins with.
    pub(crate) fn tokens(&self, ids: Tensor<1, Int>, pass: Pass<'_>) -> Tensor<2> {
        self.looked_up(ids, pass.tied, pass.ops())
    }

    fn looked_up(&self, ids: Tensor<1, Int>, tied: Option<&TiedTable>, ops: Ops) -> Tensor<2> {
        // A table that is computed in each pass is computed anew for the output.
        let tied = tied.filter(|_| self.token_adapter.is_none());
        let lookup = |table, ids, tied| tied_embedding(table, ids, self.padding_idx, tied, ops);
        let rows = lookup(self.table(), ids.clone(), tied);
        match &self.lora {
            Some(lora) => lora.forward(rows, lookup(lora.a(), ids, None), &self.weight),
            None => rows,
        }
    }

    /// The rows `from..to` of the table: `[to - from, features]`.
    pub(crate) fn rows(&self, from: usize, to: usize) -> Tensor<2> {
        let rows = self.table().slice_dim(0, from..to);
        match &self.lora {
            Some(lora) => lora.forward(rows, lora.a().slice_dim(0, from..to), &self.weight),
            None => rows,
        }
    }

    /// The first `seq` rows from `start`, repeated for every sequence of the batch: `[batch * seq,
    /// features]`. A slice and a broadcast, so that the backward pass is a sum over the batch and
    /// not a scatter over tokens.
    pub fn positions(&self, x: Tensor<2>, batch: usize, start: usize) -> Tensor<2> {
        let [rows, features] = x.dims();
        let seq = rows / batch;
        let table = self.rows(start, start + seq);
        (x.reshape([batch, seq, features]) + table.unsqueeze()).reshape([rows, features])
    }
}

/// A parameter that is created from `N(0, std)` when it is first used, so that loading weights
/// costs no random numbers.
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
