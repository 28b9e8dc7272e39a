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
//! where several products, or an adapter, read what they give. The gradient of a bias that such an
//! operator adds is the f32 sum of gradients that are rounded, as PyTorch's is.
//!
//! Fused operators round less on the CPU. A fused product rounds its operands itself; its result,
//! and the gradients that it gives, are f32 (`ops::products`). Query, key and value are f32 then.
//! Fused attention in bf16 rounds the operands of its products, the weights and the gradients of
//! the scores among them; in f16 it rounds none, nor does attention without a fused form (windows
//! of GPT-Neo, rows of several documents with padding between, a cache of keys) in either type.
//! Scores, and the logits of fused cross-entropy, are f32 and never leave the operator. Fused
//! LayerNorm, GELU and attention write bf16 where a product alone reads what they give: the values
//! that it would round. Where linear layers and GELU are fused, the feed-forward block is one
//! operator in bf16 (`ops::linear::feed_forward`): the argument of its activation is rounded for
//! the backward pass alone, as autocast rounds it for both.

use burn::module::Param;
use burn::tensor::{DType, Device, FloatDType, Tensor};

use crate::copies::Copies;
use crate::ops::dropout::DropoutRng;
use crate::ops::products::Operands;
use crate::ops::{self, Availability, Form, Operator, Ops, linear};

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
    /// ([`FUSED`](crate::ops::FUSED)).
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

    /// Whether products of `x` take f32 and round their operands themselves: fused ones on the CPU.
    fn rounds<const D: usize>(self, x: &Tensor<D>) -> bool {
        self.ops.form(Operator::Linear) == Form::Fused && x.device() == Device::flex()
    }

    /// `x` as an operand of a matrix product: in the compute type, unless products round their
    /// operands themselves.
    pub fn narrow<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        if self.is_f32() || self.rounds(&x) { x } else { cast(x, self.dtype) }
    }

    /// Whether the kernel of `operator` on `x` reads and writes the compute type, so that nothing
    /// is cast between it and a product: fused ones elsewhere than on the CPU.
    fn is_narrow_in<const D: usize>(self, operator: Operator, x: &Tensor<D>) -> bool {
        !self.is_f32() && self.ops.form(operator) == Form::Fused && x.device() != Device::flex()
    }

    /// The type in which `operator` on `x` gives the operand of a product: the compute type where
    /// its kernel writes that (on the CPU bf16 alone), or f32, which [`narrow`](Self::narrow)
    /// casts.
    pub(crate) fn operand_of<const D: usize>(self, operator: Operator, x: &Tensor<D>) -> FloatDType {
        let is_narrow_on_cpu =
            self.dtype == FloatDType::BF16 && self.rounds(x) && self.ops.form(operator) == Form::Fused;
        if is_narrow_on_cpu || self.is_narrow_in(operator, x) { self.dtype } else { FloatDType::F32 }
    }

    /// `x` in f32.
    fn wide<const D: usize>(x: Tensor<D>) -> Tensor<D> {
        cast(x, FloatDType::F32)
    }

    /// `x y` of operands in the compute type, the result in f32: `[n, k]`, `[k, m]` -> `[n, m]`.
    pub fn product(self, x: Tensor<2>, y: Tensor<2>) -> Tensor<2> {
        self.product_of(self.dtype.into(), x, y)
    }

    /// [`product`](Self::product) of `operands`, which are of the compute type.
    pub(crate) fn product_of(self, operands: Operands, x: Tensor<2>, y: Tensor<2>) -> Tensor<2> {
        if !self.is_f32() && self.rounds(&x) {
            linear::product_in(operands, x, y, self.ops)
        } else {
            cast(cast(x, self.dtype).matmul(cast(y, self.dtype)), FloatDType::F32)
        }
    }
}

fn cast<const D: usize>(x: Tensor<D>, dtype: FloatDType) -> Tensor<D> {
    if FloatDType::from(x.dtype()) == dtype { x } else { x.cast(dtype) }
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
}

impl<'a> Pass<'a> {
    /// A pass that computes as `compute` says, with dropout from the device's generator where
    /// `train` is set.
    pub fn new(compute: Compute, train: bool) -> Self {
        Self { compute, rng: DropoutRng::of(train), copies: None, on_stage: None }
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
            // adapters' bases).
            _ if FloatDType::from(value.dtype()) == dtype => value,
            Some(copies) => copies.of(weight, dtype),
            None => value.cast(dtype),
        }
    }

    /// `weight` as an operand of a product with `x`: as [`weight`](Self::weight), unless products
    /// round their operands themselves.
    pub(crate) fn factor(self, x: &Tensor<2>, weight: &Param<Tensor<2>>) -> Tensor<2> {
        if self.compute.rounds(x) { weight.val() } else { self.weight(weight) }
    }

    /// How fused products of `x` with `weight` take them: in bf16 on the CPU packed, where copies
    /// are kept and the weight is not stored in bf16 itself, as the base of adapters is to save
    /// memory.
    pub(crate) fn operands(self, x: &Tensor<2>, weight: &Param<Tensor<2>>) -> Operands {
        let dtype = self.compute.dtype;
        let is_packed = dtype == FloatDType::BF16 && self.compute.rounds(x) && weight.val().dtype() == DType::F32;
        Operands { dtype, packed: self.copies.filter(|_| is_packed).and_then(|copies| copies.packed(weight)) }
    }

    /// `x W` with a weight as it is stored, in the form of the linear operator: `[n, in]`, `[in,
    /// out]` -> `[n, out]`, f32.
    pub fn projection(self, x: Tensor<2>, weight: &Param<Tensor<2>>) -> Tensor<2> {
        if self.compute.is_f32() {
            linear::product(x, weight.val(), self.compute.ops)
        } else {
            let (factor, operands) = (self.factor(&x, weight), self.operands(&x, weight));
            self.compute.product_of(operands, x, factor)
        }
    }

    /// `x W` for the kernel of `reader`: as the product gives it where that kernel reads the
    /// compute type, else as [`projection`](Self::projection).
    pub(crate) fn projection_for(self, reader: Operator, x: Tensor<2>, weight: &Param<Tensor<2>>) -> Tensor<2> {
        if self.compute.is_narrow_in(reader, &x) {
            cast(x, self.compute.dtype).matmul(self.weight(weight))
        } else {
            self.projection(x, weight)
        }
    }

    /// `x W + b` as [`projection`](Self::projection): the bias, whose gradient is a sum over all
    /// rows, is added in f32.
    pub fn affine(self, x: Tensor<2>, weight: &Param<Tensor<2>>, bias: Tensor<1>) -> Tensor<2> {
        if self.compute.is_f32() || self.compute.rounds(&x) {
            linear::linear_in(self.operands(&x, weight), x, weight.val(), bias, self.compute.ops)
        } else {
            self.compute.product(x, self.weight(weight)) + bias.unsqueeze()
        }
    }

    /// `x W + b + scaling (drop(x) A) B` of a layer with an adapter (`crate::lora`), the bias where
    /// it is given: `[n, in]`, `[in, out]`, `[out]`, `[in, r]`, `[r, out]` -> `[n, out]`, f32.
    pub fn adapted(
        self,
        x: Tensor<2>,
        weight: &Param<Tensor<2>>,
        bias: Option<Tensor<1>>,
        [a, b]: [&Param<Tensor<2>>; 2],
        dropout: f64,
        scaling: f64,
    ) -> Tensor<2> {
        if self.compute.is_f32() || self.compute.rounds(&x) {
            let (operands, [weight, a, b]) = (self.operands(&x, weight), [weight, a, b].map(Param::val));
            let adapted = linear::Adapted { weight, a, b, scaling, dropout, operands };
            return linear::adapted(x, adapted, bias, self.rng, self.compute.ops);
        }
        let x = Compute::wide(x); // its two gradients are added in f32
        let dropped = match self.rng {
            DropoutRng::Off => x.clone(),
            _ if dropout == 0.0 => x.clone(),
            rng => ops::dropout::dropout(x.clone(), dropout, rng, self.compute.ops),
        };
        let y = match bias {
            Some(bias) => self.affine(x, weight, bias),
            None => self.projection(x, weight),
        };
        let low = self.compute.product(dropped, self.weight(a));
        y + self.compute.product(low, self.weight(b)) * scaling
    }

    /// Tells that stage `stage` begins. A model need not tell; one that does lets training draw the
    /// dropout of each stage from a seed of its own.
    pub fn begin_stage(self, stage: usize) {
        if let Some(on_stage) = self.on_stage {
            on_stage(stage);
        }
    }
}

impl std::fmt::Debug for Pass<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { compute, rng, copies, on_stage } = self;
        let mut pass = f.debug_struct("Pass");
        pass.field("compute", compute).field("rng", rng).field("copies", copies);
        pass.field("on_stage", &on_stage.is_some()).finish()
    }
}
