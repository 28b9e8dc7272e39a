//! The AdamW update of many parameters, each in one pass over its four tensors and in place where
//! nobody else holds them, the norm over all gradients, and a sample of all weights. The settings
//! of an optimizer, its state and its groups are not here.

#[cfg(feature = "compiler")]
pub(super) mod cube;

use std::collections::VecDeque;

use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, ExtensionType, Flex, TensorMetadata, backend_extension};
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use rayon::prelude::*;

use super::contract::Contract;
use super::device::DeviceKernels;
use super::flex::{self, FlexTensor};
use super::list::TensorList;
use super::simd::{fma, sum, vectorised};
use super::{Form, trace};

/// Elements of each tensor in a [`sample`].
pub const SAMPLED: usize = 16;

/// Elements in a block of work.
const BLOCK: usize = 16_384;

/// The numbers of one update, by PyTorch's formula (`torch.optim.AdamW`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Update {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the denominator.
    pub epsilon: f64,
    /// Learning rate.
    pub lr: f64,
    /// Decoupled weight decay of this parameter.
    pub weight_decay: f64,
    /// How many updates have been made with this one, from 1.
    pub step: u64,
}

/// The factors of a kernel, in this order: the part of the weight that stays, the first moment's
/// decay and its rest, the second's, the factor of its root, epsilon, the rate.
pub(super) type Factors = [f32; 8];

/// Factors that leave weights and moments what they are, bit for bit, whatever finite gradient they
/// meet.
#[cfg(feature = "compiler")]
pub(super) const IDLE: Factors = [1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0];

impl Update {
    fn factors(&self) -> Factors {
        let correction1 = 1.0 - self.beta1.powf(self.step as f64);
        let correction2 = 1.0 - self.beta2.powf(self.step as f64);
        let keep = 1.0 - self.lr * self.weight_decay;
        let (root, rate) = (1.0 / correction2.sqrt(), self.lr / correction1);
        [keep, self.beta1, 1.0 - self.beta1, self.beta2, 1.0 - self.beta2, root, self.epsilon, rate].map(|x| x as f32)
    }
}

/// `[kinds * 8]`
pub(super) fn factors(updates: &[Update], device: &Device) -> Tensor<1> {
    let values = updates.iter().flat_map(Update::factors).collect::<Vec<_>>();
    let n = values.len();
    Tensor::from_data(TensorData::new(values, [n]), device)
}

/// Parameters that are updated together, in the order in which they were added.
#[derive(Debug, Default)]
pub struct Parameters {
    state: State<Dispatch>,
    grads: TensorList,
    kinds: Vec<usize>,
    /// Whether each has a copy.
    copied: Vec<bool>,
}

impl Parameters {
    /// Adds a parameter, its first and second moment, `[n]` each, and its gradient, all f32 and
    /// without autodiff; `kind` is the place of its [`Update`] among those of the call that
    /// follows.
    ///
    /// # Panics
    /// For a gradient of another shape than the value's, for moments of another length than its
    /// elements, for another type than f32 and for tensors on different devices.
    pub fn push<const D: usize>(&mut self, value: Tensor<D>, moments: [Tensor<1>; 2], grad: Tensor<D>, kind: usize) {
        let [exp_avg, exp_avg_sq] = moments;
        let contract = Contract::new("adamw", Form::Fused, value.device());
        let shape = value.dims();
        contract.floats("value", &value, shape, DType::F32);
        contract.floats("exp_avg", &exp_avg, [shape.iter().product()], DType::F32);
        contract.floats("exp_avg_sq", &exp_avg_sq, [shape.iter().product()], DType::F32);
        contract.floats("grad", &grad, shape, DType::F32);
        self.state.values.push(value);
        self.state.exp_avgs.push(exp_avg);
        self.state.exp_avg_sqs.push(exp_avg_sq);
        self.grads.push(grad);
        self.kinds.push(kind);
        self.copied.push(false);
    }

    /// Gives the parameter that was added last a copy in the type of matrix products, without
    /// autodiff, which the update overwrites with the new value, rounded.
    ///
    /// # Panics
    /// Without a parameter, for a copy of another shape than the value's, and for copies of more
    /// than one type.
    pub fn copy_last(&mut self, copy: Tensor<2>) {
        let contract = Contract::new("adamw", Form::Fused, copy.device());
        let (expected, got) = (self.state.values.0.last().map(TensorMetadata::shape), copy.shape());
        contract.ensure(expected.as_ref() == Some(&got), "copy", format_args!("shape {expected:?}"), got);
        let dtype = self.state.copies.0.first().map_or(copy.dtype(), TensorMetadata::dtype);
        self.state.copies.push_in(dtype, copy);
        *self.copied.last_mut().expect("its value is there") = true;
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.state.values.is_empty()
    }

    /// The inputs of an update by `factors`, `[kinds * 8]`: asks for a kind among them for each,
    /// and for one number to scale their gradients by.
    #[track_caller]
    pub(super) fn inputs(self, factors: Tensor<1>, scale: &Tensor<1>) -> Inputs<Dispatch> {
        let kinds = factors.dims()[0] / 8;
        let contract = Contract::new("adamw", Form::Fused, scale.device());
        contract.floats("scale", scale, [1], DType::F32);
        let unknown = self.kinds.iter().find(|kind| **kind >= kinds);
        contract.ensure(unknown.is_none(), "kind", format_args!("one of {kinds} updates"), unknown);
        let (scale, factors) = (scale.clone().into_dispatch(), factors.into_dispatch());
        let Self { state, grads, kinds, copied } = self;
        Inputs { state, grads, scale, factors, kinds, copied }
    }

    /// All of them after the update that `updates` has for their kind, with their gradients times
    /// `scale`, `[1]`. The fused form; the plain one is `kiln::optim`'s composition.
    ///
    /// # Panics
    /// For a parameter whose kind has no update and a scale of another length, and on a device
    /// without fused kernels (see [`Ops::fused`](super::Ops::fused)).
    pub fn update(self, updates: &[Update], scale: &Tensor<1>) -> Updated {
        let _time = trace::call("adamw");
        let factors = factors(updates, &scale.device());
        let copied = self.copied.clone();
        let State { values, exp_avgs, exp_avg_sqs, copies } =
            <Dispatch as AdamWOp>::update(self.inputs(factors, scale));
        let mut copies = copies.0.into_iter();
        let copies = copied.into_iter().map(|has_one| if has_one { copies.next() } else { None });
        let moments = exp_avgs.0.into_iter().zip(exp_avg_sqs.0);
        Updated(values.0.into_iter().zip(moments).zip(copies).collect())
    }
}

/// [`Parameters`] after an update.
#[derive(Debug)]
pub struct Updated(VecDeque<(Values, Option<Primitive>)>);

/// A value and its moments.
type Values = (Primitive, (Primitive, Primitive));

type Primitive = FloatTensor<Dispatch>;

impl Updated {
    /// The next one in their order: its value, which has the shape that it had, its moments, and
    /// its copy where it has one. None after the last.
    pub fn take<const D: usize>(&mut self) -> Option<(Tensor<D>, [Tensor<1>; 2], Option<Tensor<2>>)> {
        let ((value, (exp_avg, exp_avg_sq)), copy) = self.0.pop_front()?;
        let moments = [exp_avg, exp_avg_sq].map(Tensor::from_dispatch);
        Some((Tensor::from_dispatch(value), moments, copy.map(Tensor::from_dispatch)))
    }
}

/// Whether `device` updates many parameters faster than one after another: each would be a launch
/// of its own.
pub fn updates_together(device: &Device) -> bool {
    !DeviceKernels::on(device).are_on_host
}

/// The sum of the squares of `values` in f32, as [`norm`] on the CPU computes it of each tensor.
pub fn sum_of_squares(values: &[f32]) -> f32 {
    let parts = values.par_chunks(BLOCK).map(|block| f64::from(squares(block)));
    parts.collect::<Vec<_>>().into_iter().sum::<f64>() as f32
}

/// L2 norm over all elements of all `tensors`, `[1]`. The fused form.
///
/// # Panics
/// For no tensor, and on a device without fused kernels.
pub fn norm(tensors: TensorList) -> Tensor<1> {
    assert!(!tensors.is_empty(), "norm: tensors: expected 1 tensor or more, got none");
    Tensor::from_dispatch(<Dispatch as AdamWOp>::norm(tensors))
}

/// The first [`SAMPLED`] elements of each of `tensors`, one tensor after another, with zeros behind
/// the last of a shorter one: `[tensors * SAMPLED]`.
///
/// # Panics
/// For no tensor, and on a device without fused kernels.
pub fn sample(tensors: TensorList) -> Tensor<1> {
    assert!(!tensors.is_empty(), "sample: tensors: expected 1 tensor or more, got none");
    Tensor::from_dispatch(<Dispatch as AdamWOp>::sample(tensors))
}

/// Parameters and their moments as a backend has them.
#[derive(Debug, Clone, Default, ExtensionType)]
pub(super) struct State<B: Backend> {
    #[extension_type]
    pub values: TensorList<B>,
    #[extension_type]
    pub exp_avgs: TensorList<B>,
    #[extension_type]
    pub exp_avg_sqs: TensorList<B>,
    /// The values of those that have a copy, rounded.
    #[extension_type]
    pub copies: TensorList<B>,
}

/// The inputs of an update as a backend has them.
#[derive(Debug, Clone, ExtensionType)]
pub(super) struct Inputs<B: Backend> {
    #[extension_type]
    pub state: State<B>,
    #[extension_type]
    pub grads: TensorList<B>,
    /// `[1]`
    pub scale: FloatTensor<B>,
    /// `[kinds * 8]`
    pub factors: FloatTensor<B>,
    pub kinds: Vec<usize>,
    /// Whether each has a copy.
    pub copied: Vec<bool>,
}

#[backend_extension(Flex, Cube: cfg(feature = "compiler"))]
pub(super) trait AdamWOp: Backend {
    fn update(#[extension_type] inputs: Inputs<Self>) -> State<Self>;

    fn norm(#[extension_type] tensors: TensorList<Self>) -> FloatTensor<Self>;

    fn sample(#[extension_type] tensors: TensorList<Self>) -> FloatTensor<Self>;
}

impl AdamWOp for Flex {
    fn update(Inputs { state, grads, scale, factors, kinds, copied }: Inputs<Self>) -> State<Self> {
        let dtypes = state.copies.0.into_iter().map(|copy| FloatDType::from(copy.dtype()));
        let [mut values, mut exp_avgs, mut exp_avg_sqs] = [state.values, state.exp_avgs, state.exp_avg_sqs]
            .map(|tensors| TensorList(tensors.0.into_iter().map(flex::row_major).collect::<Vec<_>>()));
        let (scale, factors) = (flex::values(&flex::row_major(scale))[0], flex::row_major(factors));
        let (factors, _) = flex::values(&factors).as_chunks::<8>();
        let states = values.0.iter_mut().zip(&mut exp_avgs.0).zip(&mut exp_avg_sqs.0);
        for ((((value, exp_avg), exp_avg_sq), grad), kind) in states.zip(grads.0).zip(kinds) {
            let grad = flex::row_major(grad);
            flex::writable(value)
                .par_chunks_mut(BLOCK)
                .zip(flex::writable(exp_avg).par_chunks_mut(BLOCK))
                .zip(flex::writable(exp_avg_sq).par_chunks_mut(BLOCK))
                .zip(flex::values(&grad).par_chunks(BLOCK))
                .for_each(|(((value, m), v), grad)| update_block(value, m, v, grad, scale, factors[kind]));
        }
        let with_copy =
            values.0.iter().zip(copied).filter(|(_, has_one)| *has_one).map(|(value, _)| FlexTensor::clone(value));
        let copies = TensorList(with_copy.zip(dtypes).map(|(value, dtype)| Self::float_cast(value, dtype)).collect());
        State { values, exp_avgs, exp_avg_sqs, copies }
    }

    fn norm(tensors: TensorList<Self>) -> FlexTensor {
        let sum = |x: FlexTensor| sum_of_squares(flex::values(&flex::row_major(x)));
        let sums = tensors.0.into_iter().map(sum).collect::<Vec<_>>();
        let n = sums.len();
        Self::float_sqrt(Self::float_sum(flex::tensor(sums, [n])))
    }

    fn sample(tensors: TensorList<Self>) -> FlexTensor {
        let mut sample = vec![0.0; tensors.0.len() * SAMPLED];
        for (sample, tensor) in sample.chunks_exact_mut(SAMPLED).zip(tensors.0) {
            let tensor = flex::row_major(tensor);
            sample.iter_mut().zip(flex::values(&tensor)).for_each(|(sample, value)| *sample = *value);
        }
        let n = sample.len();
        flex::tensor(sample, [n])
    }
}

vectorised! {
    fn update_block(value: &mut [f32], m: &mut [f32], v: &mut [f32], grad: &[f32], scale: f32, by: Factors) {
        let [keep, beta1, rest1, beta2, rest2, root, epsilon, rate] = by;
        for (((value, m), v), grad) in value.iter_mut().zip(m).zip(v).zip(grad) {
            let grad = grad * scale;
            *m = fma::<FMA>(*m, beta1, grad * rest1);
            *v = fma::<FMA>(*v, beta2, grad * grad * rest2);
            let denominator = fma::<FMA>(v.sqrt(), root, epsilon);
            *value = fma::<FMA>(*value, keep, -(*m / denominator * rate));
        }
    }
}

vectorised! {
    fn squares(x: &[f32]) -> f32 {
        sum(x, |x| x * x)
    }
}
