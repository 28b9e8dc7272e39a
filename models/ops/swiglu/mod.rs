//! `silu(gate) * up` in one pass, with its exact derivative, for the gated feed-forward block.
//!
//! The forward saves `gate` and `up` and nothing else; the backward gives the gradients of both in
//! one pass.
#![allow(unsafe_code)] // kernel: memory is written without being filled first

#[cfg(feature = "compiler")]
pub(super) mod cube;

use std::mem::MaybeUninit;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, ExtensionType, Flex, autodiff::Autodiff, backend_extension};
use burn::tensor::activation::silu;
use burn::tensor::{FloatDType, Tensor, TensorData};
use rayon::prelude::*;

use super::autodiff::{Call, Differentiate};
use super::contract::Contract;
use super::flex::{self, FlexTensor};
use super::simd::{exp, fma, vectorised};
use super::{Form, Operator, Writing};

/// `silu(gate) * up` with `silu(x) = x / (1 + e^-x)` (Shazeer 2020): both `[n, features]` and of
/// one type, which is the result's, unless `ops` names another
/// ([`Ops::writing`](super::Ops::writing)). In the fused form on wgpu and CUDA both may be in the
/// type of the products: the result is computed in f32.
///
/// # Panics
/// For tensors of different shapes; in the fused form on the CPU for another type than f32, and for
/// tensors on different devices.
pub fn swiglu(gate: Tensor<2>, up: Tensor<2>, ops: impl Into<Writing>) -> Tensor<2> {
    let written = ops.into();
    let form = written.ops.form(Operator::Swiglu);
    let contract = Contract::new("swiglu", form, gate.device());
    let shape = contract.matrix("gate", &gate);
    let of_gate = contract.operand("gate", &gate);
    contract.floats("gate", &gate, shape, of_gate);
    contract.floats("up", &up, shape, of_gate);
    written.cast(match form {
        Form::Plain => silu(gate) * up,
        Form::Fused => {
            let dtype = written.by_kernel(Operator::Swiglu, gate.dtype().into(), &gate.device());
            let inputs = Inputs { gate: gate.into_dispatch(), up: up.into_dispatch(), dtype };
            Tensor::from_dispatch(<Dispatch as SwigluOp>::swiglu(inputs))
        }
    })
}

/// The operator's inputs as a backend has them: all that the backward needs.
#[derive(Debug, Clone, ExtensionType)]
pub(super) struct Inputs<B: Backend> {
    pub gate: FloatTensor<B>,
    pub up: FloatTensor<B>,
    /// The type of the result and of the gradients: elsewhere than on the CPU that of `gate`.
    pub dtype: FloatDType,
}

#[backend_extension(Flex, Cube: cfg(feature = "compiler"), Autodiff)]
trait SwigluOp: Backend {
    fn swiglu(#[extension_type] inputs: Inputs<Self>) -> FloatTensor<Self>;
}

/// The kernels that a backend supplies.
pub(super) trait SwigluKernel: Backend {
    fn forward(inputs: Inputs<Self>) -> FloatTensor<Self>;

    /// `(dgate, dup)`
    fn backward(inputs: Inputs<Self>, dy: FloatTensor<Self>) -> [FloatTensor<Self>; 2];
}

/// Without autodiff the operator is its kernel's forward.
impl<B: SwigluKernel> SwigluOp for B {
    fn swiglu(inputs: Inputs<B>) -> FloatTensor<B> {
        B::forward(inputs)
    }
}

impl<B: SwigluKernel, C: CheckpointStrategy> SwigluOp for Autodiff<B, C> {
    fn swiglu(inputs: Inputs<Self>) -> FloatTensor<Self> {
        let mut call = Call::<B, C>::new();
        let Inputs { gate, up, dtype } = inputs;
        let inputs = Inputs { gate: call.input(gate), up: call.input(up), dtype };
        call.record(|_| (B::forward(inputs.clone()), inputs))
    }
}

impl<B: SwigluKernel> Differentiate<B> for Inputs<B> {
    fn gradients(self, dy: FloatTensor<B>, _: &[bool]) -> Vec<Option<FloatTensor<B>>> {
        B::backward(self, dy).map(Some).into()
    }
}

impl SwigluKernel for Flex {
    fn forward(Inputs { gate, up, dtype }: Inputs<Self>) -> FlexTensor {
        let (gate, up) = (flex::row_major(gate), flex::row_major(up));
        let [rows, width] = flex::dims2(&gate);
        let block = flex::block_rows(width) * width;
        // SAFETY: `forward_each` writes every element of its block, which both factors have as well
        // (`swiglu` has asked).
        unsafe {
            flex::written_in(dtype, [rows, width], |i, out| {
                let [gate, up] = [&gate, &up].map(|x| &flex::values(x)[i * block..][..out.len()]);
                forward_each(out, gate, up);
            })
        }
    }

    fn backward(Inputs { gate, up, dtype }: Inputs<Self>, dy: FlexTensor) -> [FlexTensor; 2] {
        let (gate, up) = (flex::row_major(gate), flex::row_major(up));
        let [rows, width] = flex::dims2(&gate);
        let block = flex::block_rows(width) * width;
        let mut dy = flex::widened(dy);
        let factors = flex::values(&gate).par_chunks(block).zip(flex::values(&up).par_chunks(block));
        let blocks = flex::writable(&mut dy).par_chunks_mut(block).zip(factors);
        // SAFETY (both): the blocks pair up, and `backward_each` and `narrow` write every element
        // of theirs.
        match dtype {
            FloatDType::F32 => {
                let dup = unsafe {
                    flex::written(rows * width, |dup| {
                        let blocks = dup.par_chunks_mut(block).zip(blocks);
                        blocks.for_each(|(dup, (dy, (gate, up)))| backward_each(dy, dup, gate, up));
                    })
                };
                [dy, flex::tensor(dup, [rows, width])]
            }
            dtype => {
                assert_eq!(dtype, FloatDType::BF16, "a kernel of the CPU gives f32 or bf16");
                let mut dgate = Vec::with_capacity(rows * width);
                let dup = unsafe {
                    let dup = flex::written(rows * width, |dup| {
                        let narrow = dgate.spare_capacity_mut()[..rows * width].par_chunks_mut(block);
                        let blocks = dup.par_chunks_mut(block).zip(narrow).zip(blocks);
                        blocks.for_each_init(
                            || Vec::with_capacity(block),
                            |wide, ((dup, dgate), (dy, (gate, up)))| {
                                backward_each(dy, &mut wide.spare_capacity_mut()[..dup.len()], gate, up);
                                wide.set_len(dup.len());
                                flex::narrow(dup, wide);
                                flex::narrow(dgate, dy);
                                wide.clear();
                            },
                        );
                    });
                    dgate.set_len(rows * width);
                    dup
                };
                [dgate, dup].map(|values| FlexTensor::from_data(TensorData::new(values, [rows, width])))
            }
        }
    }
}

/// `1 / (1 + e^-x)`
#[inline(always)]
fn sigmoid<const FMA: bool>(x: f32) -> f32 {
    1.0 / (1.0 + exp::<FMA>(-x))
}

vectorised! {
    /// `silu(gate) * up`; all three are equally long.
    fn forward_each(out: &mut [MaybeUninit<f32>], gate: &[f32], up: &[f32]) {
        for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
            out.write(gate * sigmoid::<FMA>(*gate) * up);
        }
    }
}

vectorised! {
    /// Turns the gradients `dy` of `silu(gate) * up` into those of `gate`, and writes those of
    /// `up`; all four are equally long.
    fn backward_each(dy: &mut [f32], dup: &mut [MaybeUninit<f32>], gate: &[f32], up: &[f32]) {
        for (((dy, dup), gate), up) in dy.iter_mut().zip(dup).zip(gate).zip(up) {
            let sigmoid = sigmoid::<FMA>(*gate);
            let silu = gate * sigmoid;
            dup.write(*dy * silu);
            *dy *= up * fma::<FMA>(silu, 1.0 - sigmoid, sigmoid);
        }
    }
}
