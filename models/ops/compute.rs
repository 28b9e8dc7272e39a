//! How a model computes: in which form its operators are, and in which type its matrix products
//! are.
//!
//! Mixed precision has one rule, and it is this file's: weights, activations between operators, and
//! everything that adds up many terms (norms, softmax, activation functions, sums of gradients) are
//! in f32; the two operands of a matrix product are rounded to the compute type, and its result is
//! of that type before it is widened again. That is what PyTorch's autocast does to these models.
//! The gradient of a weight is widened to f32 before it is added to anything.
//!
//! Fused operators on wgpu and CUDA read and write the compute type where a product gives or takes
//! their values, and compute in f32 between: the same roundings without a cast of their own, but
//! where an adapter reads what they give. Where several products read it ([`SharedOperand`]), their
//! gradients are f32 and are added so. The gradient of a bias that such an operator adds is the f32
//! sum of gradients that are rounded, as PyTorch's is. Fused products there round less: a product
//! without a bias whose result is read in f32, and the gradient of a weight, are the f32 sums
//! themselves. On CUDA's tensor cores a product whose result is narrow adds its bias, and those of
//! a feed-forward block activate and differentiate, with the same roundings
//! (`ops::linear::feed_forward`).
//!
//! Fused operators round less on the CPU. A fused product rounds its operands itself; its result,
//! and the gradients that it gives, are f32 (`ops::products`). Query, key and value are f32 then.
//! Fused attention in bf16 rounds the operands of its products, the weights and the gradients of
//! the scores among them; in f16 it rounds none, nor does attention without a fused form (windows
//! of GPT-Neo, rows of several documents with padding between, a cache of keys) in either type.
//! Scores, and the logits of fused cross-entropy, are f32 and never leave the operator. Fused
//! LayerNorm, RMSNorm, GELU, SwiGLU and attention write bf16 where a product alone reads what they
//! give: the values that it would round. Where linear layers and GELU are fused, the feed-forward
//! block is one operator in bf16 (`ops::linear::feed_forward`): the argument of its activation is
//! rounded for the backward pass alone, as autocast rounds it for both.

use std::fmt;

use burn::module::Param;
use burn::tensor::{Device, FloatDType, Tensor};
use kiln_core::model_config::Activation;

use super::attention::{Attention, Mask, Qkv};
use super::autodiff::Left;
use super::copies::Copies;
use super::device::DeviceKernels;
use super::dropout::{DropoutRng, Residual, Stream, dropout};
use super::embedding::TiedTable;
use super::layer_norm::HandsOn;
use super::linear::{self, FeedForward};
use super::products::Operands;
use super::{Availability, Form, Operator, Ops, gelu, layer_norm, rms_norm, swiglu};

/// The form of the operators and the type of matrix products. Default: plain operators in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compute {
    ops: Ops,
    dtype: FloatDType,
}

impl Default for Compute {
    fn default() -> Self {
        Self { ops: Ops::Plain, dtype: FloatDType::F32 }
    }
}

impl Compute {
    /// `ops` and `dtype`, with the operators plain that have no fused form in that type
    /// ([`FUSED`](super::FUSED)).
    pub fn new(ops: Ops, dtype: FloatDType) -> Self {
        let fused = |operator: &Operator| !matches!(operator.within(dtype), Availability::Missing(_));
        Self { ops: ops.only(Operator::ALL.into_iter().filter(fused)), dtype }
    }

    /// The form.
    pub fn ops(self) -> Ops {
        self.ops
    }

    /// The compute type.
    pub fn dtype(self) -> FloatDType {
        self.dtype
    }

    /// Whether everything is f32, so that nothing is cast.
    pub fn is_f32(self) -> bool {
        self.dtype == FloatDType::F32
    }

    /// Whether products on `device` take f32 and round their operands themselves.
    fn rounds(self, device: &Device) -> bool {
        self.ops.form(Operator::Linear) == Form::Fused && DeviceKernels::on(device).round_operands
    }

    /// Whether products on `device` take what there is as it is: f32, or what they round.
    fn casts_nothing(self, device: &Device) -> bool {
        self.is_f32() || self.rounds(device)
    }

    /// `x` as an operand of a matrix product: in the compute type, unless products round their
    /// operands themselves.
    pub fn narrow<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        if self.casts_nothing(&x.device()) { x } else { cast(x, self.dtype) }
    }

    /// The type in which `operator` on `device` gives the operand of a product: the compute type
    /// where its kernel writes that, or f32, which the product casts or rounds.
    fn operand_of(self, operator: Operator, device: &Device) -> FloatDType {
        let kernels = DeviceKernels::on(device);
        let is_written = self.ops.form(operator) == Form::Fused && kernels.write(self.dtype);
        let is_taken = !kernels.round_operands || self.rounds(device);
        if is_written && is_taken { self.dtype } else { FloatDType::F32 }
    }

    /// The type in which `reader` on `device` takes what a product gives: the compute type where a
    /// kernel or a product takes that, or f32.
    fn taken_by(self, reader: Reader, device: &Device) -> FloatDType {
        let is_narrow = match reader {
            Reader::Wide => false,
            Reader::Product => !self.casts_nothing(device),
            Reader::Operator(operator) => {
                self.ops.form(operator) == Form::Fused && DeviceKernels::on(device).reads_narrow(operator)
            }
        };
        if is_narrow { self.dtype } else { FloatDType::F32 }
    }

    /// Whether the kernel that adds a branch to its residual on `device` takes a product as it is,
    /// in the compute type and without its bias.
    pub(crate) fn adds_narrow(self, device: &Device) -> bool {
        self.taken_by(Operator::Dropout.into(), device) != FloatDType::F32
    }

    /// `x y` of operands in the compute type, the result in f32: `[n, k]`, `[k, m]` -> `[n, m]`.
    pub fn product(self, x: Tensor<2>, y: Tensor<2>) -> Tensor<2> {
        self.product_of(self.dtype.into(), x, y)
    }

    /// [`product`](Self::product) of `operands`, which are of the compute type.
    pub(crate) fn product_of(self, operands: Operands, x: Tensor<2>, y: Tensor<2>) -> Tensor<2> {
        if !self.is_f32() && self.rounds(&x.device()) {
            linear::linear(x, y, None, operands, self.ops)
        } else {
            cast(cast(x, self.dtype).matmul(cast(y, self.dtype)), FloatDType::F32)
        }
    }
}

fn cast<const D: usize>(x: Tensor<D>, dtype: FloatDType) -> Tensor<D> {
    if FloatDType::from(x.dtype()) == dtype { x } else { x.cast(dtype) }
}

/// The reader of the result of a linear layer, which decides its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// Operations in f32.
    Wide,
    /// Matrix products, those of attention among them.
    Product,
    /// This operator: in f32 where it has no kernel that reads a narrow product.
    Operator(Operator),
}

impl From<Operator> for Reader {
    fn from(operator: Operator) -> Self {
        Self::Operator(operator)
    }
}

/// The input of a linear layer: rows, or the result of an operator that nothing else reads, which
/// is computed when the layer says in which type it takes it.
pub struct Operand<'a>(Source<'a>);

/// Writes a result in the type that it is given.
type Write<'a> = dyn FnOnce(FloatDType) -> Tensor<2> + 'a;

#[allow(clippy::large_enum_variant)] // handles that live for one call
enum Source<'a> {
    Rows {
        x: Tensor<2>,
        /// The type of the gradient that a fused product gives; none for that of `x`.
        gradient: Option<FloatDType>,
    },
    Written {
        operator: Operator,
        device: Device,
        write: Box<Write<'a>>,
    },
    /// The first half of a feed-forward block, of which its second half may make one operator.
    Activated {
        x: Tensor<2>,
        weight: &'a Param<Tensor<2>>,
        bias: Tensor<1>,
        activation: Activation,
        pass: Pass<'a>,
    },
}

impl<'a> Operand<'a> {
    /// The result of `operator` on `device`, which `write` computes.
    fn written(operator: Operator, device: Device, write: impl FnOnce(FloatDType) -> Tensor<2> + 'a) -> Self {
        Self(Source::Written { operator, device, write: Box::new(write) })
    }

    /// The values in `dtype`; those of attention in the type of its inputs where its kernel does
    /// not write others, and rows in the type that they have.
    pub fn of_type(self, dtype: FloatDType) -> Tensor<2> {
        match self.0 {
            Source::Rows { x, .. } => x,
            Source::Written { write, .. } => write(dtype),
            Source::Activated { x, weight, bias, activation, pass } => {
                let reader = if dtype == FloatDType::F32 { Reader::Wide } else { Operator::Gelu.into() };
                gelu::bias_gelu(pass.linear(x, weight, None, reader), bias, activation, pass.ops().writing(dtype))
            }
        }
    }

    /// The values in f32.
    pub fn wide(self) -> Tensor<2> {
        self.of_type(FloatDType::F32)
    }

    /// The device on which the values are.
    pub(crate) fn device(&self) -> Device {
        match &self.0 {
            Source::Rows { x, .. } | Source::Activated { x, .. } => x.device(),
            Source::Written { device, .. } => device.clone(),
        }
    }

    /// The values in the type in which `reader` takes them, where it computes as `compute` says.
    pub(crate) fn read_by(self, reader: Reader, compute: Compute) -> Tensor<2> {
        let dtype = match (&self.0, reader) {
            (Source::Written { operator, device, .. }, Reader::Product) => compute.operand_of(*operator, device),
            (Source::Activated { x, .. }, Reader::Product) => compute.operand_of(Operator::Gelu, &x.device()),
            _ => compute.taken_by(reader, &self.device()),
        };
        self.of_type(dtype)
    }

    /// The values for several products that compute as `compute` says: in the type in which fused
    /// products on wgpu and CUDA take them, f32 elsewhere.
    pub fn shared(self, compute: Compute) -> SharedOperand {
        match compute.taken_by(Operator::Linear.into(), &self.device()) {
            FloatDType::F32 => SharedOperand(self.wide()),
            dtype => match self.read_by(Reader::Product, compute) {
                x if x.dtype() == dtype.into() => SharedOperand(x),
                x => SharedOperand(linear::narrowed(x, dtype)),
            },
        }
    }
}

impl Operand<'static> {
    /// [`layer_norm`](layer_norm::layer_norm) of `x` for the matrix product that reads it, in whose
    /// type it is written; and `x` as the residual of the branch that begins with it and ends with
    /// [`Stream::sum`]. Where both are fused, on wgpu and CUDA, the kernel of the normalisation
    /// makes the sum that `x` stands for, and its backward adds the gradient of the residual to its
    /// own: the branch that takes the residual must depend on what is normalised, or the gradient
    /// is lost there.
    ///
    /// # Panics
    /// When it is read, as [`layer_norm`](layer_norm::layer_norm).
    pub fn layer_norm(
        x: impl Into<Stream>,
        weight: Tensor<1>,
        bias: Tensor<1>,
        eps: f64,
        ops: Ops,
    ) -> (Self, Residual) {
        let x = x.into();
        let device = x.device();
        let left = left_to(Operator::LayerNorm, &device, ops);
        if left.is_none() {
            x.made();
        }
        let residual = Residual::new(x.shared(), left.clone());
        let write = move |dtype| layer_norm::layer_norm(x, None, weight, bias, eps, ops.writing(dtype).adding(left));
        (Self::written(Operator::LayerNorm, device, write), residual)
    }

    /// [`rms_norm`](rms_norm::rms_norm) of `x` for the matrix products that read it, in whose type
    /// it is written; and `x` as the residual of the branch that begins with it. Where both are
    /// fused, on wgpu and CUDA, the backward of the normalisation adds the gradient of the residual
    /// to its own: the branch that takes the residual must depend on what is normalised, or the
    /// gradient is lost there.
    ///
    /// # Panics
    /// When it is read, as [`rms_norm`](rms_norm::rms_norm).
    pub fn rms_norm(x: Tensor<2>, weight: Tensor<1>, epsilon: f64, ops: Ops) -> (Self, Residual) {
        let device = x.device();
        let left = left_to(Operator::RmsNorm, &device, ops);
        let residual = Residual::new(x.clone().into(), left.clone());
        let write = move |dtype| rms_norm::rms_norm(x, weight, epsilon, ops.writing(dtype).adding(left));
        (Self::written(Operator::RmsNorm, device, write), residual)
    }

    /// [`swiglu`](swiglu::swiglu) for the matrix product that reads it, in whose type it is
    /// written. Both factors must be what products give, and nothing else may read them: in the
    /// fused form on the CPU their gradients are also in that type.
    ///
    /// # Panics
    /// When it is read, as [`swiglu`](swiglu::swiglu).
    pub fn swiglu(gate: Tensor<2>, up: Tensor<2>, ops: Ops) -> Self {
        Self::written(Operator::Swiglu, gate.device(), move |dtype| swiglu::swiglu(gate, up, ops.writing(dtype)))
    }

    /// [`bias_gelu`](gelu::bias_gelu) for the matrix product that reads it, in whose type it is
    /// written. `x` must be what a product gives, and nothing else may read it: in the fused form
    /// on the CPU its gradient is also in that type.
    ///
    /// # Panics
    /// When it is read, as [`bias_gelu`](gelu::bias_gelu).
    pub fn gelu(x: Tensor<2>, bias: Tensor<1>, kind: Activation, ops: Ops) -> Self {
        Self::written(Operator::Gelu, x.device(), move |dtype| gelu::bias_gelu(x, bias, kind, ops.writing(dtype)))
    }
}

/// Where the gradient of a residual on `device` is left for the backward of `norm`, if that adds
/// it.
fn left_to(norm: Operator, device: &Device, ops: Ops) -> Option<Left> {
    let are_fused = [norm, Operator::Dropout].iter().all(|one| ops.form(*one) == Form::Fused);
    (are_fused && !DeviceKernels::on(device).are_on_host).then(Left::default)
}

/// The result of a branch of a post-norm model (Vaswani et al. 2017), `[n, features]` in f32: rows,
/// or the LayerNorm of a sum, which is made when it is read.
#[derive(Debug)]
pub struct PostNorm(Normalised);

#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // handles that live for one call
enum Normalised {
    Rows(Tensor<2>),
    Sum { sum: Stream, weight: Tensor<1>, bias: Tensor<1>, eps: f64, ops: Ops },
}

impl PostNorm {
    /// [`layer_norm`](layer_norm::layer_norm) of `sum`.
    pub fn layer_norm(sum: Stream, weight: Tensor<1>, bias: Tensor<1>, eps: f64, ops: Ops) -> Self {
        Self(Normalised::Sum { sum, weight, bias, eps, ops })
    }

    /// The rows.
    ///
    /// # Panics
    /// Where [`layer_norm`](layer_norm::layer_norm) does.
    pub fn rows(self) -> Tensor<2> {
        match self.0 {
            Normalised::Rows(rows) => rows,
            Normalised::Sum { sum, weight, bias, eps, ops } => {
                layer_norm::layer_norm(sum, None, weight, bias, eps, ops)
            }
        }
    }

    /// The rows for the products that the next branch begins with, and as the residual of that
    /// branch. Where LayerNorm and dropout are fused, on wgpu and CUDA, the kernel of the
    /// normalisation writes them in the type of the products as well, and its backward adds both
    /// gradients: the branch that takes the residual must depend on what these products read, or
    /// its gradient is lost there.
    ///
    /// # Panics
    /// Where [`layer_norm`](layer_norm::layer_norm) does.
    pub fn branch(self, compute: Compute) -> (Operand<'static>, Residual) {
        let (sum, weight, bias, eps, ops) = match self.0 {
            Normalised::Sum { sum, weight, bias, eps, ops } => (sum, weight, bias, eps, ops),
            Normalised::Rows(rows) => return (rows.clone().into(), rows.into()),
        };
        let device = sum.device();
        let dtype = compute.operand_of(Operator::LayerNorm, &device);
        let is_narrow = dtype != FloatDType::F32 && compute.taken_by(Operator::Linear.into(), &device) == dtype;
        let left = left_to(Operator::LayerNorm, &device, ops).filter(|_| is_narrow);
        match (left, sum.pending_for_two()) {
            (Some(left), Some(pending)) => {
                let handed = Some(left.clone());
                let (narrow, rows) =
                    layer_norm::normalised_sum(dtype, pending, weight, bias, eps, handed, HandsOn::Result);
                (narrow.into(), Residual::new(Stream::handed(rows), Some(left)))
            }
            _ => {
                let rows = Self::layer_norm(sum, weight, bias, eps, ops).rows();
                (rows.clone().into(), rows.into())
            }
        }
    }
}

impl From<Tensor<2>> for PostNorm {
    fn from(rows: Tensor<2>) -> Self {
        Self(Normalised::Rows(rows))
    }
}

impl<'a> Attention<'a> {
    /// [`forward`](Self::forward) for the matrix product that reads it: of inputs in f32 the fused
    /// form on the CPU gives its result in the type of that product. All else gives the inputs'
    /// type.
    ///
    /// # Panics
    /// When it is read, as [`forward`](Self::forward).
    pub fn operand(self, qkv: Qkv, mask: &'a Mask) -> Operand<'a> {
        Operand::written(Operator::Attention, qkv.first().device(), move |dtype| self.written(dtype, qkv, mask))
    }
}

impl From<Tensor<2>> for Operand<'_> {
    fn from(x: Tensor<2>) -> Self {
        Self(Source::Rows { x, gradient: None })
    }
}

/// The input of several linear layers, `[n, in]`, in f32 or the compute type. Fused products give
/// its gradients in f32, and so they are added.
#[derive(Debug, Clone)]
pub struct SharedOperand(Tensor<2>);

impl SharedOperand {
    /// The values of `x` in f32, as adapters read them.
    pub(crate) fn wide(x: Operand<'_>) -> Self {
        Self(x.wide())
    }
}

impl From<SharedOperand> for Operand<'_> {
    fn from(SharedOperand(x): SharedOperand) -> Self {
        Self(Source::Rows { x, gradient: Some(FloatDType::F32) })
    }
}

/// One forward pass: how it computes, where dropout draws from, and which copies of the weights it
/// uses. It is handed from the model down to the layers, so that nothing that a layer depends on is
/// held elsewhere.
#[derive(Clone, Copy, Default)]
pub struct Pass<'a> {
    /// The form of the operators and the type of matrix products.
    pub compute: Compute,
    /// Where dropout takes its random numbers from.
    pub rng: DropoutRng<'a>,
    /// Where copies of the weights in the compute type are kept; none casts a weight for every
    /// product.
    pub copies: Option<&'a Copies>,
    /// Called before each stage of the pass with its number: 0 the embeddings, then the blocks,
    /// then the head.
    pub on_stage: Option<&'a dyn Fn(usize)>,
    /// The token embedding of a language model whose output it is as well, for one backward pass
    /// through both; none for autodiff to add their gradients.
    pub tied: Option<&'a TiedTable>,
}

impl<'a> Pass<'a> {
    /// A pass that computes as `compute` says, with dropout from the device's generator where
    /// `train` is set.
    pub fn new(compute: Compute, train: bool) -> Self {
        Self { compute, rng: DropoutRng::of(train), copies: None, on_stage: None, tied: None }
    }

    /// This pass with the copies of weights in `copies`, which must be those of the model that
    /// computes.
    #[must_use]
    pub fn with_copies(self, copies: &'a Copies) -> Self {
        Self { copies: Some(copies), ..self }
    }

    /// The form of the operators.
    pub fn ops(self) -> Ops {
        self.compute.ops
    }

    /// `weight` as an operand of a matrix product, as it is stored; see [`Copies`].
    pub fn weight(self, weight: &Param<Tensor<2>>) -> Tensor<2> {
        let dtype = self.compute.dtype;
        let value = weight.val();
        match self.copies {
            // A frozen weight that only multiplies is kept in that type (`kiln` does so for
            // adapters' bases, predictions and generation).
            _ if FloatDType::from(value.dtype()) == dtype => value,
            Some(copies) => copies.of(weight, dtype),
            None => value.cast(dtype),
        }
    }

    /// How fused products on `device` take `weight` as their right factor: in bf16 on the CPU
    /// packed, where copies are kept that pack it.
    fn operands(self, device: &Device, weight: &Param<Tensor<2>>) -> Operands {
        let dtype = self.compute.dtype;
        let is_packed = dtype == FloatDType::BF16 && self.compute.rounds(device);
        let packed = self.copies.filter(|_| is_packed).and_then(|copies| copies.packed(weight));
        Operands { packed, ..dtype.into() }
    }

    /// `weight` as the right factor of a fused product on `device`, and how that takes its
    /// operands.
    fn right_factor(self, device: &Device, weight: &Param<Tensor<2>>) -> (Tensor<2>, Operands) {
        let operands = self.operands(device, weight);
        let has_copy = self.copies.is_some() && !self.compute.casts_nothing(device);
        (if has_copy { self.weight(weight) } else { weight.val() }, operands)
    }

    /// The factors of a product that is made later, and how it takes them: `x [n, k]`, and `weight
    /// [m, k]`, whose transpose is the right factor.
    pub(crate) fn factors(self, x: Tensor<2>, weight: &Param<Tensor<2>>) -> (Tensor<2>, Tensor<2>, Operands) {
        let device = x.device();
        let x = self.compute.narrow(x);
        let factor = if self.compute.rounds(&device) { weight.val() } else { self.weight(weight) };
        (x, factor, self.operands(&device, weight))
    }

    /// [`factors`](Self::factors) of a weight that is computed anew in each pass, in f32.
    pub(crate) fn factors_of(self, x: Tensor<2>, weight: Tensor<2>) -> (Tensor<2>, Tensor<2>, Operands) {
        (self.compute.narrow(x), self.compute.narrow(weight), self.compute.dtype.into())
    }

    /// `x W + b`, or `x W` without a bias, of a weight as it is stored, in the form of the linear
    /// operator: `[n, in]`, `[in, out]`, `[out]` -> `[n, out]`, in the type that `reader` takes.
    /// The bias, whose gradient is a sum over all rows, is added in f32. Of an
    /// [`activated`](Self::activated) layer it makes the feed-forward block one operator where that
    /// has a fused form.
    pub fn linear<'x>(
        self,
        x: impl Into<Operand<'x>>,
        weight: &Param<Tensor<2>>,
        bias: Option<Tensor<1>>,
        reader: Reader,
    ) -> Tensor<2> {
        let ops = self.ops();
        let x = x.into();
        let result = self.compute.taken_by(reader, &x.device());
        let (x, gradient) = match x.0 {
            Source::Activated { x, weight: first, bias: inner_bias, activation, .. }
                if linear::is_fused(self.compute.dtype, &x, ops) =>
            {
                let [first, second] = [first, weight].map(|weight| self.right_factor(&x.device(), weight));
                let (weights, operands) = ([first.0, second.0], [first.1, Operands { result, ..second.1 }]);
                let block = FeedForward { weights, inner_bias, bias, activation, operands };
                return linear::feed_forward(x, block, ops);
            }
            Source::Rows { x, gradient } => (x, gradient),
            source => (Operand(source).read_by(Reader::Product, self.compute), None),
        };
        if self.compute.is_f32() || ops.form(Operator::Linear) == Form::Fused {
            let (weight, operands) = self.right_factor(&x.device(), weight);
            return linear::linear(x, weight, bias, Operands { result, gradient, ..operands }, ops);
        }
        let y = cast(x, self.compute.dtype).matmul(self.weight(weight));
        match bias {
            Some(bias) => cast(cast(y, FloatDType::F32) + bias.unsqueeze(), result),
            None => cast(y, result),
        }
    }

    /// `activation(x W + b)`, of a weight as it is stored, for the product that reads it: `[n,
    /// in]`, `[in, out]`, `[out]` -> `[n, out]`.
    pub fn activated<'x>(
        self,
        x: impl Into<Operand<'x>>,
        weight: &'a Param<Tensor<2>>,
        bias: Tensor<1>,
        activation: Activation,
    ) -> Operand<'a> {
        let x = x.into().read_by(Reader::Product, self.compute);
        Operand(Source::Activated { x, weight, bias, activation, pass: self })
    }

    /// The attention of `batch` sequences with these settings, for
    /// [`operand`](Attention::operand).
    pub fn attention(self, batch: usize, heads: usize, scale: f64, dropout: f64) -> Attention<'a> {
        Attention { batch, heads, scale, dropout, rng: self.rng, products: self.compute.dtype }
    }

    /// `x W + b + scaling (drop(x) A) B` of a layer with an adapter (`crate::lora`), the bias where
    /// it is given: `[n, in]`, `[in, out]`, `[out]`, `[in, r]`, `[r, out]` -> `[n, out]`, f32. `x`
    /// is read in f32: it is dropped out, and its two gradients are added.
    pub fn adapted<'x>(
        self,
        x: impl Into<Operand<'x>>,
        weight: &Param<Tensor<2>>,
        bias: Option<Tensor<1>>,
        [a, b]: [&Param<Tensor<2>>; 2],
        p: f64,
        scaling: f64,
    ) -> Tensor<2> {
        let (x, ops) = (x.into().wide(), self.ops());
        if self.compute.casts_nothing(&x.device()) {
            let (operands, [weight, a, b]) = (self.operands(&x.device(), weight), [weight, a, b].map(Param::val));
            let adapted = linear::Adapted { weight, a, b, scaling, dropout: p, operands };
            return linear::adapted(x, adapted, bias, self.rng, ops);
        }
        let x = cast(x, FloatDType::F32);
        let dropped = match self.rng {
            DropoutRng::Off => x.clone(),
            _ if p == 0.0 => x.clone(),
            rng => dropout(x.clone(), p, rng, ops),
        };
        let y = self.linear(x, weight, bias, Reader::Wide);
        let low = self.linear(dropped, a, None, Reader::Wide);
        y + self.linear(low, b, None, Reader::Wide) * scaling
    }

    /// Whether dropout drops anything, as in training.
    pub fn drops(self) -> bool {
        !matches!(self.rng, DropoutRng::Off)
    }

    /// Tells that stage `stage` begins. A model need not tell; one that does lets training draw the
    /// dropout of each stage from a seed of its own.
    pub fn begin_stage(self, stage: usize) {
        if let Some(on_stage) = self.on_stage {
            on_stage(stage);
        }
    }
}

impl fmt::Debug for Pass<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { compute, rng, copies, on_stage, tied } = self;
        let mut pass = f.debug_struct("Pass");
        pass.field("compute", compute).field("rng", rng).field("copies", copies);
        pass.field("on_stage", &on_stage.is_some()).field("tied", tied).finish()
    }
}
