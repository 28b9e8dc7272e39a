//! Writing into a tensor's own memory, whoever else holds it, on wgpu and CUDA: what a captured step needs, in which buffers
//! stay where they are while their contents change. Every other tensor that shares the memory changes with it, so whoever
//! calls these owns all of them. What they return is the tensor written to; it is to be held until the device has been
//! synchronised, since Burn's fusion may leave out an operation whose result nobody holds.

use std::any::Any;

use burn::backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

use super::adamw::Update;

/// Tensors that were written to, to be held.
pub struct Written(#[allow(dead_code)] Box<dyn Any>); // nobody looks at them: holding them is the use

/// `values` in the memory of `target`; the shapes are the same, both are without autodiff.
pub fn overwrite<const D: usize>(target: &Tensor<D>, values: Tensor<D>) -> Written {
    assert_eq!(target.dims(), values.dims(), "what overwrites a tensor has its shape");
    let (target, values) = (target.clone().into_dispatch(), values.into_dispatch());
    Written(Box::new(<Dispatch as InPlaceOp>::overwrite(target, values)))
}

/// As [`overwrite`], for whole numbers.
pub fn overwrite_ints<const D: usize>(target: &Tensor<D, Int>, values: Tensor<D, Int>) -> Written {
    assert_eq!(target.dims(), values.dims(), "what overwrites a tensor has its shape");
    let (target, values) = (target.clone().into_dispatch(), values.into_dispatch());
    Written(Box::new(<Dispatch as InPlaceOp>::overwrite_ints(target, values)))
}

/// As [`overwrite`], for truth values.
pub fn overwrite_bools<const D: usize>(target: &Tensor<D, Bool>, values: Tensor<D, Bool>) -> Written {
    assert_eq!(target.dims(), values.dims(), "what overwrites a tensor has its shape");
    let (target, values) = (target.clone().into_dispatch(), values.into_dispatch());
    Written(Box::new(<Dispatch as InPlaceOp>::overwrite_bools(target, values)))
}

/// The numbers of an update where the device can read them, so that a captured update can be told others.
#[derive(Debug, Clone)]
pub struct DeviceUpdate(Tensor<1>);

/// Numbers in a [`DeviceUpdate`].
const FACTORS: usize = 8;

impl DeviceUpdate {
    /// Those of `update`.
    pub fn new(update: &Update, device: &Device) -> Self {
        let by = update.factors();
        let values = [by.keep, by.beta1, by.rest1, by.beta2, by.rest2, by.root, by.epsilon, by.rate];
        Self(Tensor::from_data(TensorData::new(values.to_vec(), [FACTORS]), device))
    }

    /// Those of an update that leaves weights and moments what they are, bit for bit, whatever finite gradient it meets.
    pub fn idle(device: &Device) -> Self {
        let values = [1.0f32, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0];
        Self(Tensor::from_data(TensorData::new(values.to_vec(), [FACTORS]), device))
    }

    /// Becomes what `update` is, in its own memory.
    pub fn set(&self, update: Self) -> Written {
        overwrite(&self.0, update.0)
    }

    /// A parameter `value` and its moments, `[n]` each, after the update with the gradient `grad * scale` of the shape of
    /// `value`, in their own memory; `scale [1]`, all without autodiff. The numbers are [`Update::fused`]'s.
    pub fn apply<const D: usize>(
        &self,
        value: &Tensor<D>,
        moments: [&Tensor<1>; 2],
        grad: Tensor<D>,
        scale: &Tensor<1>,
    ) -> Written {
        let [m, v] = moments.map(|moment| moment.clone().into_dispatch());
        let (grad, scale, factors) =
            (grad.into_dispatch(), scale.clone().into_dispatch(), self.0.clone().into_dispatch());
        let written = <Dispatch as InPlaceOp>::adamw(value.clone().into_dispatch(), m, v, grad, scale, factors);
        Written(Box::new(written))
    }
}

#[backend_extension(Cube: cfg(feature = "compiler"))]
pub(super) trait InPlaceOp: Backend {
    fn overwrite(target: FloatTensor<Self>, values: FloatTensor<Self>) -> FloatTensor<Self>;

    fn overwrite_ints(target: IntTensor<Self>, values: IntTensor<Self>) -> IntTensor<Self>;

    fn overwrite_bools(target: BoolTensor<Self>, values: BoolTensor<Self>) -> BoolTensor<Self>;

    /// `(value, exp_avg, exp_avg_sq)`
    fn adamw(
        value: FloatTensor<Self>,
        exp_avg: FloatTensor<Self>,
        exp_avg_sq: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        factors: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}
