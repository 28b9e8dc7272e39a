//! The checks of the operators' arguments. A refusal has one form: the operator, the argument, what
//! was expected and what was given. The kernels leave memory unfilled and, on a GPU, read by sizes
//! alone, so an argument of another size must never reach them. Both forms of an operator ask the
//! same; type and device matter to the fused one.

use burn::tensor::kind::Basic;
use burn::tensor::{DType, Device, Int, Tensor};

use super::Form;
use super::device::DeviceKernels;

/// The arguments of one call.
pub(super) struct Contract {
    operator: &'static str,
    form: Form,
    device: Device,
}

impl Contract {
    /// For a call of `operator` whose tensors are all on `device`.
    pub(super) fn new(operator: &'static str, form: Form, device: Device) -> Self {
        Self { operator, form, device }
    }

    fn kernels(&self) -> DeviceKernels {
        DeviceKernels::on(&self.device)
    }

    /// Refuses the call unless `holds`.
    ///
    /// # Panics
    /// With the operator, `argument`, `expected` and `got`.
    #[track_caller]
    pub(super) fn ensure(
        &self,
        holds: bool,
        argument: &str,
        expected: impl std::fmt::Display,
        got: impl std::fmt::Debug,
    ) {
        assert!(holds, "{}: {argument}: expected {expected}, got {got:?}", self.operator);
    }

    /// Rows and columns of a matrix that has columns.
    #[track_caller]
    pub(super) fn matrix(&self, argument: &str, matrix: &Tensor<2>) -> [usize; 2] {
        let dims = matrix.dims();
        self.ensure(dims[1] > 0, argument, "1 feature or more", dims);
        dims
    }

    /// The type of the factors of an operator that takes narrow ones.
    #[track_caller]
    pub(super) fn factor<const D: usize>(&self, argument: &str, tensor: &Tensor<D>) -> DType {
        let dtype = tensor.dtype();
        let known = self.form == Form::Plain || matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
        self.ensure(known, argument, "f32, f16 or bf16", dtype);
        dtype
    }

    /// The type of what a kernel reads and writes for products: on the CPU f32, elsewhere also
    /// theirs.
    #[track_caller]
    pub(super) fn operand(&self, argument: &str, tensor: &Tensor<2>) -> DType {
        if self.kernels().round_operands { DType::F32 } else { self.factor(argument, tensor) }
    }

    /// The type of a factor of a product that rounds its factors itself: on the CPU also a narrow
    /// one, elsewhere f32.
    #[track_caller]
    pub(super) fn rounded(&self, argument: &str, factor: &Tensor<2>) -> DType {
        if self.kernels().round_operands { self.factor(argument, factor) } else { DType::F32 }
    }

    /// A tensor of real numbers in `dtype`.
    #[track_caller]
    pub(super) fn floats<const D: usize>(&self, argument: &str, tensor: &Tensor<D>, shape: [usize; D], dtype: DType) {
        self.tensor(argument, tensor, shape);
        let got = tensor.dtype();
        self.ensure(self.form == Form::Plain || got == dtype, argument, format_args!("{dtype:?}"), got);
    }

    /// A tensor of any kind.
    #[track_caller]
    pub(super) fn tensor<const D: usize, K: Basic>(&self, argument: &str, tensor: &Tensor<D, K>, shape: [usize; D]) {
        let got = tensor.dims();
        self.ensure(got == shape, argument, format_args!("shape {shape:?}"), got);
        if self.form == Form::Fused {
            let device = tensor.device();
            self.ensure(device == self.device, argument, format_args!("a tensor on {:?}", self.device), device);
        }
    }

    /// `ids [n]`, each below `count`. Elsewhere than on the CPU nobody looks at them: that would
    /// wait for the device.
    #[track_caller]
    pub(super) fn ids(&self, argument: &str, ids: &Tensor<1, Int>, n: usize, count: usize) {
        self.tensor(argument, ids, [n]);
        if !self.kernels().are_on_host {
            let dtype = ids.dtype();
            self.ensure(self.form == Form::Plain || dtype == DType::I32, argument, "I32", dtype);
            return;
        }
        let data = ids.clone().into_data();
        let outside = data.iter::<i64>().find(|id| usize::try_from(*id).map_or(true, |id| id >= count));
        self.ensure(
            outside.is_none(),
            argument,
            format_args!("ids from 0 to below {count}"),
            outside.unwrap_or_default(),
        );
    }

    /// A probability of dropout.
    #[track_caller]
    pub(super) fn probability(&self, argument: &str, p: f64) {
        self.ensure((0.0..1.0).contains(&p), argument, "a probability from 0 to below 1", p);
    }
}
