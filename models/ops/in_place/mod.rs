//! Writing into a tensor's own memory on wgpu and CUDA, also where other tensors share that memory.
//! Captured steps need it: their buffers keep their addresses while the contents change. Every
//! other tensor that shares the memory changes too, so a caller has to own all of them. The
//! functions return the tensor that was written to. The caller holds it until the device has been
//! synchronised, since Burn's fusion may leave out an operation whose result nobody holds.

pub(super) mod cube;

use std::any::Any;

use burn::backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::kind::Basic;
use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData};

use super::adamw::{self, Inputs, Parameters, State, Update};
use super::contract::Contract;
use super::list::TensorList;
use super::{Form, trace};

/// Tensors that were written to, to be held.
pub struct Written(#[allow(dead_code)] Box<dyn Any>); // nobody looks at them: holding them is the use

/// `x` row-major, as [`update`] and [`accumulate`] need what they write to: in its own memory if it
/// is that already, or a copy. CUDA's allocator gives rows a pitch of 512 bytes, so that other rows
/// have gaps between them.
pub fn row_major<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    Tensor::from_dispatch(<Dispatch as InPlaceOp>::row_major(x.into_dispatch()))
}

/// `values` in the memory of `target`; the shapes are the same, both are without autodiff.
///
/// # Panics
/// For tensors of different shapes, of different types or on different devices.
pub fn overwrite<const D: usize>(target: &Tensor<D>, values: Tensor<D>) -> Written {
    same("overwrite", target, &values);
    let (target, values) = (target.clone().into_dispatch(), values.into_dispatch());
    Written(Box::new(<Dispatch as InPlaceOp>::overwrite(target, values)))
}

/// Whole numbers `values` in the memory of `target`; the shapes are the same.
///
/// # Panics
/// For tensors of different shapes, of different types or on different devices.
pub fn overwrite_ints<const D: usize>(target: &Tensor<D, Int>, values: Tensor<D, Int>) -> Written {
    same("overwrite_ints", target, &values);
    let (target, values) = (target.clone().into_dispatch(), values.into_dispatch());
    Written(Box::new(<Dispatch as InPlaceOp>::overwrite_ints(target, values)))
}

/// Truth values `values` in the memory of `target`; the shapes are the same.
///
/// # Panics
/// For tensors of different shapes, of different types or on different devices.
pub fn overwrite_bools<const D: usize>(target: &Tensor<D, Bool>, values: Tensor<D, Bool>) -> Written {
    same("overwrite_bools", target, &values);
    let (target, values) = (target.clone().into_dispatch(), values.into_dispatch());
    Written(Box::new(<Dispatch as InPlaceOp>::overwrite_bools(target, values)))
}

/// Asks for values of the shape, the type and the device of what they overwrite.
#[track_caller]
fn same<const D: usize, K: Basic>(operator: &'static str, target: &Tensor<D, K>, values: &Tensor<D, K>) {
    let contract = Contract::new(operator, Form::Fused, target.device());
    contract.tensor("values", values, target.dims());
    let (expected, got) = (target.dtype(), values.dtype());
    contract.ensure(got == expected, "values", format_args!("{expected:?}"), got);
}

/// The numbers of updates, a kind of parameter each, where the device can read them, so that a
/// captured update can be told others.
#[derive(Debug, Clone)]
pub struct DeviceUpdates(Tensor<1>);

impl DeviceUpdates {
    /// The numbers of `updates`, in the memory of `device`.
    pub fn new(updates: &[Update], device: &Device) -> Self {
        Self(adamw::factors(updates, device))
    }

    /// The numbers of updates of `kinds` kinds that leave weights and moments what they are, bit
    /// for bit, whatever finite gradient they meet.
    pub fn idle(kinds: usize, device: &Device) -> Self {
        let values = adamw::IDLE.repeat(kinds);
        let n = values.len();
        Self(Tensor::from_data(TensorData::new(values, [n]), device))
    }

    /// Becomes what `updates` is, in its own memory.
    pub fn set(&self, updates: Self) -> Written {
        overwrite(&self.0, updates.0)
    }
}

/// [`Parameters::update`] in the memory of the parameters, their moments and copies, by the numbers
/// in `updates`. Parameters and copies are [`row_major`].
///
/// # Panics
/// For a parameter whose kind has no update, and a scale of another length.
pub fn update(parameters: Parameters, updates: &DeviceUpdates, scale: &Tensor<1>) -> Written {
    let _time = trace::call("adamw");
    let written = <Dispatch as InPlaceOp>::adamw(parameters.inputs(updates.0.clone(), scale));
    Written(Box::new(written))
}

/// `sums * by[0] + values * by[1]` in the memory of `sums`, which are [`row_major`]; both lists
/// have the same shapes, `by` is `[2]`. A product with 0 is 0, also of a number that is not finite.
///
/// # Panics
/// For lists of different shapes, and a `by` of another length.
pub fn accumulate(sums: &TensorList, values: TensorList, by: &Tensor<1>) -> Written {
    let contract = Contract::new("accumulate", Form::Fused, by.device());
    contract.floats("by", by, [2], DType::F32);
    let (expected, got) = (sums.shapes(), values.shapes());
    contract.ensure(got == expected, "values", format_args!("shapes {expected:?}"), got);
    let by = by.clone().into_dispatch();
    Written(Box::new(<Dispatch as InPlaceOp>::accumulate(sums.clone(), values, by)))
}

#[backend_extension(Cube: cfg(feature = "compiler"))]
pub(super) trait InPlaceOp: Backend {
    fn overwrite(target: FloatTensor<Self>, values: FloatTensor<Self>) -> FloatTensor<Self>;

    fn overwrite_ints(target: IntTensor<Self>, values: IntTensor<Self>) -> IntTensor<Self>;

    fn overwrite_bools(target: BoolTensor<Self>, values: BoolTensor<Self>) -> BoolTensor<Self>;

    fn row_major(x: FloatTensor<Self>) -> FloatTensor<Self>;

    fn adamw(#[extension_type] inputs: Inputs<Self>) -> State<Self>;

    fn accumulate(
        #[extension_type] sums: TensorList<Self>,
        #[extension_type] values: TensorList<Self>,
        by: FloatTensor<Self>,
    ) -> TensorList<Self>;
}
