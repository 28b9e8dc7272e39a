//! The feed-forward block of a transformer, `activation(x W1 + b1) W2 + b2`, as one operator.
//!
//! On the CPU in bf16, where it has instructions for that, the first product gives each block of
//! its sums to the activation while it is there. Written are its argument, which the backward
//! needs, and its value, both in bf16: the latter is rounded as the operand of the second product,
//! the former as PyTorch's autocast rounds it. In the backward pass the product `dy W2^T` does the
//! same with the activation's derivative and gives the gradient of the first product in bf16, and
//! the sums of its columns (the gradient of `b1`) in f32 before they are rounded. Without such
//! instructions the products are made whole in f32, with the same roundings.
//!
//! On CUDA devices with tensor cores for the type of the operands, bf16 or f16, the epilogues of
//! the same products do this to what they have rounded (`epilogue.rs`).
#![allow(unsafe_code)] // kernel: memory is written without being filled first, by several threads at once

use std::cell::RefCell;
use std::mem::MaybeUninit;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, ExtensionType, Flex, autodiff::Autodiff, backend_extension};
use burn::tensor::{DType, FloatDType, Tensor, TensorData};
use half::bf16;
use kiln_core::model_config::Activation;

use super::LinearKernel;
#[cfg(feature = "compiler")]
use super::epilogue::FinishedProducts;
use crate::ops::autodiff::{Call, Differentiate};
use crate::ops::contract::Contract;
#[cfg(feature = "compiler")]
use crate::ops::cube::{Cube, FusedTensor};
use crate::ops::device::{DeviceKernels, has_tensor_cores};
use crate::ops::flex::{self, FlexTensor};
use crate::ops::gelu;
use crate::ops::list::Optional;
use crate::ops::products::{self, BLOCK_ROWS, Operands, Rounding, Shared, Sums};
use crate::ops::simd::vectorised;
use crate::ops::{Form, Operator, Ops, trace};

/// The block: two layers and the activation between them.
#[derive(Debug, Clone)]
pub struct FeedForward {
    /// `W1 [in, inner]` and `W2 [inner, out]`
    pub weights: [Tensor<2>; 2],
    /// `b1 [inner]`
    pub inner_bias: Tensor<1>,
    /// `b2 [out]`
    pub bias: Option<Tensor<1>>,
    /// The activation.
    pub activation: Activation,
    /// How the two products take their operands, as in [`linear`](super::linear()), in one
    /// type; the weights are the right factors.
    pub operands: [Operands; 2],
}

/// Whether there is a fused form of the block for products of `x` in `dtype`: on the CPU in bf16,
/// and on CUDA where it has tensor cores for that type, if both the linear layer and the activation
/// are fused. Elsewhere it is these operators one after the other.
pub fn is_fused(dtype: FloatDType, x: &Tensor<2>, ops: Ops) -> bool {
    let operators = [Operator::Linear, Operator::Gelu];
    let is_on_host = || dtype == FloatDType::BF16 && DeviceKernels::on(&x.device()).round_operands;
    operators.into_iter().all(|operator| ops.form(operator) == Form::Fused)
        && (is_on_host() || has_tensor_cores(&x.device(), dtype))
}

/// `activation(x W1 + b1) W2 + b2`: `x [n, in]` -> `[n, out]`, f32. Fused where [`is_fused`] says
/// so, else the composition of Burn's operations. The result, and the gradient of `x`, have other
/// types where `operands` state them, the former of the second product and the latter of the first.
///
/// # Panics
/// For tensors of other shapes and operands of different types; in the fused form for other types
/// than those of [`linear`](super::linear()) and for tensors on different devices.
pub fn feed_forward(x: Tensor<2>, block: FeedForward, ops: Ops) -> Tensor<2> {
    let FeedForward { weights: [first, second], inner_bias, bias, activation, operands } = block;
    let dtype = operands[0].dtype;
    let form = if is_fused(dtype, &x, ops) { Form::Fused } else { Form::Plain };
    let _time = trace::call("feed_forward");
    let contract = Contract::new("feed_forward", form, x.device());
    contract.ensure(operands[1].dtype == dtype, "operands", "operands of one type", operands[1].dtype);
    let inner = super::factors(&contract, dtype, &x, &first);
    let width = super::right_factor(&contract, dtype, inner, &second);
    contract.floats("inner_bias", &inner_bias, [inner], DType::F32);
    if let Some(bias) = &bias {
        contract.floats("bias", bias, [width], DType::F32);
    }
    match form {
        Form::Plain => {
            let hidden = gelu::activate(super::plain(dtype, x, first, Some(inner_bias)), activation);
            super::plain(dtype, hidden, second, bias)
        }
        Form::Fused => {
            let (x, inner_bias) = (x.into_dispatch(), inner_bias.into_dispatch());
            let (first, second) = (first.into_dispatch(), second.into_dispatch());
            let settings = Settings { activation, operands };
            let inputs = Inputs { x, first, inner_bias, second, bias: bias.into(), settings };
            Tensor::from_dispatch(<Dispatch as FeedForwardOp>::feed_forward(inputs))
        }
    }
}

/// The fields of [`FeedForward`] that are not tensors.
#[derive(Debug, Clone)]
pub(in crate::ops) struct Settings {
    activation: Activation,
    operands: [Operands; 2],
}

/// The operator's inputs as a backend has them.
#[derive(Debug, Clone, ExtensionType)]
struct Inputs<B: Backend> {
    x: FloatTensor<B>,
    first: FloatTensor<B>,
    inner_bias: FloatTensor<B>,
    second: FloatTensor<B>,
    #[extension_type]
    bias: Optional<B>,
    settings: Settings,
}

#[backend_extension(Flex, Cube: cfg(feature = "compiler"), Autodiff)]
trait FeedForwardOp: Backend {
    fn feed_forward(#[extension_type] inputs: Inputs<Self>) -> FloatTensor<Self>;
}

/// The kernels that a backend supplies, of factors that are operands.
pub(in crate::ops) trait FeedForwardKernel: LinearKernel {
    /// `activation(x W1 + b1)`, and where it is `wanted` what
    /// [`inner_backward`](Self::inner_backward) takes of the argument: `x W1` or `x W1 + b1`, as
    /// the backend has it.
    fn inner(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        settings: &Settings,
        wanted: bool,
    ) -> (Option<FloatTensor<Self>>, FloatTensor<Self>);

    /// The gradients of `x W1` and `b1`, of what [`inner`](Self::inner) has kept and the gradient
    /// `dy` of the second product.
    fn inner_backward(
        u: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        settings: &Settings,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

#[cfg(feature = "compiler")]
impl FeedForwardKernel for Cube {
    fn inner(
        x: FusedTensor,
        weight: FusedTensor,
        bias: FusedTensor,
        settings: &Settings,
        wanted: bool,
    ) -> (Option<FusedTensor>, FusedTensor) {
        let (u, h) = Self::activated_product(x, weight, bias, settings.activation);
        (wanted.then_some(u), h)
    }

    fn inner_backward(
        u: FusedTensor,
        bias: FusedTensor,
        dy: FusedTensor,
        weight: FusedTensor,
        settings: &Settings,
    ) -> (FusedTensor, FusedTensor) {
        let du = Self::differentiated_product(dy, weight, u, bias, settings.activation);
        (du.clone(), Self::backward_bias(du))
    }
}

/// Without autodiff the operator is its kernels' forward.
impl<B: FeedForwardKernel> FeedForwardOp for B {
    fn feed_forward(inputs: Inputs<B>) -> FloatTensor<B> {
        inputs.forward(&[false; 4]).0
    }
}

impl<B: FeedForwardKernel, C: CheckpointStrategy> FeedForwardOp for Autodiff<B, C> {
    fn feed_forward(inputs: Inputs<Self>) -> FloatTensor<Self> {
        let mut call = Call::<B, C>::new();
        let inputs = Inputs::<B> {
            x: call.input(inputs.x),
            first: call.input(inputs.first),
            inner_bias: call.input(inputs.inner_bias),
            second: call.input(inputs.second),
            bias: inputs.bias.map(|bias| call.input(bias)),
            settings: inputs.settings,
        };
        call.record(|tracked| inputs.forward(tracked))
    }
}

/// The values that the backward needs.
#[derive(Debug, Clone)]
struct Saved<F> {
    /// Where the first weight learns.
    x: Option<F>,
    weights: [F; 2],
    inner_bias: F,
    /// The value that [`FeedForwardKernel::inner`] keeps; none where nothing before the second
    /// product learns.
    u: Option<F>,
    /// `activation(x W1 + b1)`, where the second weight learns.
    h: Option<F>,
    /// The type of the gradient of `x`.
    gradient: FloatDType,
    settings: Settings,
}

impl<B: FeedForwardKernel> Inputs<B> {
    /// The result, and what is saved; of `x`, `W1`, `b1` and `W2` those that are `tracked` have a
    /// gradient.
    fn forward(self, tracked: &[bool]) -> (FloatTensor<B>, Saved<FloatTensor<B>>) {
        let Self { x, first, inner_bias, second, bias, settings } = self;
        let gradient = settings.operands[0].gradient_of::<B>(&x);
        let [x, first, second] = [x, first, second].map(|factor| B::operand(factor, settings.operands[0].dtype));
        let kept = tracked[1].then(|| x.clone());
        let is_wanted = tracked[..3].contains(&true);
        let (u, h) = B::inner(x, first.clone(), inner_bias.clone(), &settings, is_wanted);
        let saved_h = tracked[3].then(|| h.clone());
        let operands = settings.operands[1].clone();
        let y = <B as LinearKernel>::forward(super::Inputs { x: h, weight: second.clone(), bias, operands });
        (y, Saved { x: kept, weights: [first, second], inner_bias, u, h: saved_h, gradient, settings })
    }
}

impl<B: FeedForwardKernel> Differentiate<B> for Saved<FloatTensor<B>> {
    /// The gradients of `x`, `W1`, `b1`, `W2`, and of `b2` where there is one.
    fn gradients(self, dy: FloatTensor<B>, tracked: &[bool]) -> Vec<Option<FloatTensor<B>>> {
        let Self { x, weights: [first, second], inner_bias, u, h, gradient, settings } = self;
        let dtype = settings.operands[0].dtype;
        let is_tracked = |input: usize| tracked.get(input) == Some(&true);
        let dbias = is_tracked(4).then(|| B::backward_bias(dy.clone()));
        let dy = B::operand(dy, dtype);
        let dsecond = h.map(|h| B::backward_weight(h, dy.clone(), dtype));
        let Some(u) = u else { return vec![None, None, None, dsecond, dbias] };
        let (du, dinner_bias) = B::inner_backward(u, inner_bias, dy, second, &settings);
        let dfirst = x.map(|x| B::backward_weight(x, du.clone(), dtype));
        let dx = is_tracked(0).then(|| B::backward_x(first, du, dtype, gradient));
        vec![dx, dfirst, Some(dinner_bias), dsecond, dbias]
    }
}

/// A matrix that blocks are written to, each by the thread that has computed it.
#[derive(Clone, Copy)]
struct Blocks {
    at: Shared<bf16>,
    width: usize,
}

impl Blocks {
    /// # Safety
    /// The matrix must have the block, and nobody else may access that meanwhile.
    unsafe fn write(self, block: &Sums<'_>, rounded: &mut Vec<bf16>) {
        // SAFETY: `narrow` writes all elements; the rows lie within the matrix, as the caller
        // promises, and within what was rounded.
        unsafe {
            rounded.clear();
            rounded.reserve(block.values.len());
            flex::narrow(&mut rounded.spare_capacity_mut()[..block.values.len()], block.values);
            rounded.set_len(block.values.len());
            for row in 0..block.rows {
                let from = rounded.as_ptr().add(row * block.stride);
                let to = self.at.at((block.row + row) * self.width + block.col);
                match block.cols {
                    // A constant length is a move of a register, where another one is a call.
                    BLOCK_ROWS => std::ptr::copy_nonoverlapping(from, to, BLOCK_ROWS),
                    cols => std::ptr::copy_nonoverlapping(from, to, cols),
                }
            }
        }
    }

    /// The block of this matrix where `of` is, as f32, in rows of its stride; 0 behind its columns.
    ///
    /// # Safety
    /// The matrix must have the block, whose elements must be initialised and not be written
    /// meanwhile.
    unsafe fn read(self, of: &Sums<'_>, wide: &mut Vec<f32>) {
        wide.resize(of.rows * of.stride, 0.0);
        for (row, to) in wide.chunks_exact_mut(of.stride).enumerate() {
            // SAFETY: the caller's promise.
            let from = unsafe { std::slice::from_raw_parts(self.at.at((of.row + row) * self.width + of.col), of.cols) };
            let (to, behind) = to.split_at_mut(of.cols);
            widen(to, from);
            behind.fill(0.0);
        }
    }
}

/// `x` in f32.
fn widen(out: &mut [f32], x: &[bf16]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = f32::from_bits(u32::from(x.to_bits()) << 16);
    }
}

/// So many zeros.
fn zeros(values: &mut Vec<f32>, n: usize) -> &mut [f32] {
    values.clear();
    values.resize(n, 0.0);
    values
}

vectorised! {
    /// Adds `bias` to every row of `x`.
    fn add_to_rows(x: &mut [f32], bias: &[f32]) {
        for row in x.chunks_exact_mut(bias.len()) {
            for (x, bias) in row.iter_mut().zip(bias) {
                *x += *bias;
            }
        }
    }
}

/// `bias`, followed by zeros for the columns that a block has beyond the matrix.
fn padded(bias: &FlexTensor) -> Vec<f32> {
    let mut values = flex::values(bias).to_vec();
    values.resize(values.len().next_multiple_of(BLOCK_ROWS), 0.0);
    values
}

/// Memory of a thread for one block.
struct Block {
    wide: Vec<f32>,
    columns: Vec<f32>,
    rounded: Vec<bf16>,
}

thread_local! {
    static BLOCK: RefCell<Block> =
        const { RefCell::new(Block { wide: Vec::new(), columns: Vec::new(), rounded: Vec::new() }) };
}

impl FeedForwardKernel for Flex {
    fn inner(
        x: FlexTensor,
        weight: FlexTensor,
        bias: FlexTensor,
        settings: &Settings,
        wanted: bool,
    ) -> (Option<FlexTensor>, FlexTensor) {
        let (x, weight, bias) = (flex::strided(x), flex::strided(weight), flex::row_major(bias));
        let ([rows, _], [_, width]) = (flex::dims2(&x), flex::dims2(&weight));
        let (left, right) = (flex::factor(&x), flex::right_factor(&weight, &settings.operands[0]));
        let bias = padded(&bias);
        let mut u = Vec::<bf16>::with_capacity(if wanted { rows * width } else { 0 });
        let to_u = Blocks { at: Shared(u.as_mut_ptr()), width };
        // SAFETY: each block of the product is given once, and all blocks are the whole of both
        // matrices.
        let h = unsafe {
            let h = flex::written(rows * width, |h: &mut [MaybeUninit<bf16>]| {
                let to_h = Blocks { at: Shared(h.as_mut_ptr().cast()), width };
                products::finished(left, right, Rounding::Bf16, &|block: Sums<'_>| {
                    BLOCK.with_borrow_mut(|Block { wide, columns, rounded }| {
                        add_to_rows(block.values, &bias[block.col..][..block.stride]);
                        if wanted {
                            to_u.write(&block, rounded);
                        }
                        wide.clear();
                        wide.reserve(block.values.len());
                        gelu::forward_rows(
                            &mut wide.spare_capacity_mut()[..block.values.len()],
                            block.values,
                            zeros(columns, block.stride),
                            settings.activation,
                        );
                        wide.set_len(block.values.len());
                        to_h.write(&Sums { values: wide, ..block }, rounded);
                    });
                });
            });
            u.set_len(if wanted { rows * width } else { 0 });
            h
        };
        let tensor = |values: Vec<bf16>| FlexTensor::from_data(TensorData::new(values, [rows, width]));
        (wanted.then(|| tensor(u)), tensor(h))
    }

    fn inner_backward(
        u: FlexTensor,
        _: FlexTensor,
        dy: FlexTensor,
        weight: FlexTensor,
        settings: &Settings,
    ) -> (FlexTensor, FlexTensor) {
        let [rows, width] = flex::dims2(&u);
        let (dy, weight) = (flex::strided(dy), Self::float_transpose(flex::strided(weight)));
        let u = u.as_slice::<bf16>().expect("`inner` has made it");
        // The sums of the columns of each row of blocks, which are added in their order.
        let mut sums = vec![0.0f32; rows.div_ceil(BLOCK_ROWS) * width];
        let sums_at = Shared(sums.as_mut_ptr());
        let from_u = Blocks { at: Shared(u.as_ptr().cast_mut()), width }; // read alone
        // SAFETY: each block of the product is given once, and all blocks are the whole of the
        // matrix.
        let du = unsafe {
            flex::written(rows * width, |du: &mut [MaybeUninit<bf16>]| {
                let to_du = Blocks { at: Shared(du.as_mut_ptr().cast()), width };
                products::finished(flex::factor(&dy), flex::factor(&weight), Rounding::Bf16, &|block: Sums<'_>| {
                    BLOCK.with_borrow_mut(|Block { wide, columns, rounded }| {
                        from_u.read(&block, wide);
                        let (columns, no_bias) = zeros(columns, 2 * block.stride).split_at_mut(block.stride);
                        gelu::backward_rows(block.values, wide, no_bias, columns, settings.activation);
                        let to = sums_at.at(block.row / BLOCK_ROWS * width + block.col);
                        std::ptr::copy_nonoverlapping(columns.as_ptr(), to, block.cols);
                        to_du.write(&block, rounded);
                    });
                });
            })
        };
        let mut dbias = vec![0.0; width];
        flex::add_rows(&sums, &mut dbias);
        let du = FlexTensor::from_data(TensorData::new(du, [rows, width]));
        (du, flex::tensor(dbias, [width]))
    }
}
