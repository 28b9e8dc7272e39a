//! The AdamW update of one parameter in one pass over its four tensors, in place where nobody else holds them, and the sum
//! of squares for the global norm. The settings of an optimizer, its state and its groups are not here.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, backend_extension};
use burn::tensor::Tensor;
use rayon::prelude::*;

use super::flex::{self, FlexTensor};
use super::simd::{fma, sum, vectorised};

/// Elements in a block of work.
const BLOCK: usize = 16_384;

/// The numbers of one update, by PyTorch's formula (`torch.optim.AdamW`).
#[derive(Debug, Clone, Copy)]
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

/// One parameter with its moments, all flat, `[n]`, f32, without autodiff.
#[derive(Debug, Clone)]
pub struct State {
    /// The parameter.
    pub value: Tensor<1>,
    /// First moment.
    pub exp_avg: Tensor<1>,
    /// Second moment.
    pub exp_avg_sq: Tensor<1>,
}

impl Update {
    /// `state` after an update with the gradient `grad * scale`; `grad [n]`, `scale [1]`, both without autodiff. The fused
    /// form; the plain one is `kiln::optim`'s composition.
    ///
    /// # Panics
    /// On a device without fused kernels (see [`Ops::fused`](super::Ops::fused)).
    pub fn fused(&self, state: State, grad: Tensor<1>, scale: &Tensor<1>) -> State {
        let (value, exp_avg, exp_avg_sq) = <Dispatch as AdamWOp>::update(
            state.value.into_dispatch(),
            state.exp_avg.into_dispatch(),
            state.exp_avg_sq.into_dispatch(),
            grad.into_dispatch(),
            scale.clone().into_dispatch(),
            self.factors(),
        );
        State {
            value: Tensor::from_dispatch(value),
            exp_avg: Tensor::from_dispatch(exp_avg),
            exp_avg_sq: Tensor::from_dispatch(exp_avg_sq),
        }
    }

    /// What the kernel multiplies with.
    pub(super) fn factors(&self) -> Factors {
        let correction1 = 1.0 - self.beta1.powf(self.step as f64);
        let correction2 = 1.0 - self.beta2.powf(self.step as f64);
        Factors {
            keep: (1.0 - self.lr * self.weight_decay) as f32,
            beta1: self.beta1 as f32,
            rest1: (1.0 - self.beta1) as f32,
            beta2: self.beta2 as f32,
            rest2: (1.0 - self.beta2) as f32,
            root: (1.0 / correction2.sqrt()) as f32,
            epsilon: self.epsilon as f32,
            rate: (self.lr / correction1) as f32,
        }
    }
}

/// Sum of the squares of `x`, `[1]`; `x` without autodiff. Fused form.
pub fn sum_of_squares<const D: usize>(x: Tensor<D>) -> Tensor<1> {
    Tensor::from_dispatch(<Dispatch as AdamWOp>::sum_of_squares(x.into_dispatch()))
}

/// [`Update`] as the kernel multiplies with it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Factors {
    pub keep: f32,
    pub beta1: f32,
    pub rest1: f32,
    pub beta2: f32,
    pub rest2: f32,
    pub root: f32,
    pub epsilon: f32,
    pub rate: f32,
}

#[backend_extension(Flex, Cube: cfg(feature = "compiler"))]
pub(super) trait AdamWOp: Backend {
    /// `(value, exp_avg, exp_avg_sq)`
    fn update(
        value: FloatTensor<Self>,
        exp_avg: FloatTensor<Self>,
        exp_avg_sq: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        factors: Factors,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    fn sum_of_squares(x: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl AdamWOp for Flex {
    fn update(
        value: FlexTensor,
        exp_avg: FlexTensor,
        exp_avg_sq: FlexTensor,
        grad: FlexTensor,
        scale: FlexTensor,
        factors: Factors,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let (grad, scale) = (flex::row_major(grad), flex::values(&flex::row_major(scale))[0]);
        let [mut value, mut exp_avg, mut exp_avg_sq] = [value, exp_avg, exp_avg_sq].map(flex::row_major);
        flex::writable(&mut value)
            .par_chunks_mut(BLOCK)
            .zip(flex::writable(&mut exp_avg).par_chunks_mut(BLOCK))
            .zip(flex::writable(&mut exp_avg_sq).par_chunks_mut(BLOCK))
            .zip(flex::values(&grad).par_chunks(BLOCK))
            .for_each(|(((value, m), v), grad)| update_block(value, m, v, grad, scale, factors));
        (value, exp_avg, exp_avg_sq)
    }

    fn sum_of_squares(x: FlexTensor) -> FlexTensor {
        let x = flex::row_major(x);
        let parts = flex::values(&x).par_chunks(BLOCK).map(|block| f64::from(squares(block)));
        let total = parts.collect::<Vec<_>>().into_iter().sum::<f64>();
        flex::tensor(vec![total as f32], [1])
    }
}

vectorised! {
    fn update_block(value: &mut [f32], m: &mut [f32], v: &mut [f32], grad: &[f32], scale: f32, by: Factors) {
        for (((value, m), v), grad) in value.iter_mut().zip(m).zip(v).zip(grad) {
            let grad = grad * scale;
            *m = fma::<FMA>(*m, by.beta1, grad * by.rest1);
            *v = fma::<FMA>(*v, by.beta2, grad * grad * by.rest2);
            let denominator = fma::<FMA>(v.sqrt(), by.root, by.epsilon);
            *value = fma::<FMA>(*value, by.keep, -(*m / denominator * by.rate));
        }
    }
}

vectorised! {
    fn squares(x: &[f32]) -> f32 {
        sum(x, |x| x * x)
    }
}
