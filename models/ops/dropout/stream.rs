//! The residual stream of a model: rows that a branch reads and adds its result to. The sum that a
//! branch ends with is made by whatever reads it. A LayerNorm makes it in its own kernel.

use std::cell::RefCell;
use std::rc::Rc;

use burn::backend::Dispatch;
use burn::tensor::{DType, Device, Tensor};

use super::{DropoutOp, DropoutRng, Inputs, plain};
use crate::ops::autodiff::Left;
use crate::ops::contract::Contract;
use crate::ops::device::{DeviceKernels, binds};
use crate::ops::{Form, Operator, Ops, trace};

/// Buffers of the kernels that make a sum with its LayerNorm, and the gradients of both.
const OF_NORM: u32 = 9;
/// Buffers of these kernels where the rows of the LayerNorm are written twice, in f32 as well.
const OF_TWO_NORMS: u32 = 10;

/// The residual stream of a model (Elhage et al. 2021), `[n, features]` in f32: rows, or on wgpu
/// and CUDA the sum of a branch, [`bias_dropout_residual`](super::bias_dropout_residual), which is
/// made when it is read. The sum has one reader, so that its gradients are made once.
#[derive(Debug)]
pub struct Stream(Rc<RefCell<State>>);

#[derive(Debug, Clone)]
enum State {
    Rows(Tensor<2>),
    /// Rows without a gradient of their own, which a LayerNorm has made: their gradient is left to
    /// its backward.
    Handed(Tensor<2>),
    Sum(Box<Inputs<Dispatch>>),
}

impl Stream {
    fn new(state: State) -> Self {
        Self(Rc::new(RefCell::new(state)))
    }

    /// `residual + dropout(x + bias)`, with the arguments of
    /// [`bias_dropout_residual`](super::bias_dropout_residual). The seed of the dropout is drawn
    /// here, wherever the sum is made.
    ///
    /// # Panics
    /// Where [`bias_dropout_residual`](super::bias_dropout_residual) does.
    pub fn sum(
        x: Tensor<2>,
        bias: impl Into<Option<Tensor<1>>>,
        residual: impl Into<Residual>,
        p: f64,
        rng: DropoutRng<'_>,
        ops: Ops,
    ) -> Self {
        let (Residual { stream, left }, bias) = (residual.into(), bias.into());
        // Where the normalisation has not been read, autodiff adds the gradient.
        let left = left.filter(Left::is_awaited);
        let form = rng.form(ops.form(Operator::Dropout));
        let contract = Contract::new("bias_dropout_residual", form, x.device());
        let [rows, width] = contract.matrix("x", &x);
        let of_x = contract.operand("x", &x);
        let residual = stream.made();
        contract.floats("x", &x, [rows, width], of_x);
        if let Some(bias) = &bias {
            contract.floats("bias", bias, [width], DType::F32);
        }
        contract.floats("residual", &residual, [rows, width], DType::F32);
        contract.probability("p", p);
        if form == Form::Plain {
            let is_tracked = !stream.is_handed();
            contract.ensure(is_tracked, "residual", "the plain form for the sum before as well", "the fused form");
            let _time = trace::call("bias_dropout_residual");
            let x = match bias {
                Some(bias) => x + bias.unsqueeze(),
                None => x,
            };
            return (residual + plain(x, p, rng)).into();
        }
        let p = rng.probability(p);
        let device = x.device();
        let seed = rng.seed(p, &device).into_dispatch();
        let has_bias = bias.is_some(); // else it is not read
        let bias = bias.unwrap_or_else(|| Tensor::empty([width], &device.clone().without_autodiff()));
        let (x, bias, residual) = (x.into_dispatch(), bias.into_dispatch(), residual.into_dispatch());
        let sum = Inputs { x, bias, has_bias, residual, seed, p, left };
        if DeviceKernels::on(&device).are_on_host || !binds(&device, OF_NORM) {
            return make(sum).into(); // alone, so that the host overwrites `x`
        }
        Self::new(State::Sum(Box::new(sum)))
    }

    /// The rows, `[n, features]`.
    pub fn rows(self) -> Tensor<2> {
        self.made()
    }

    /// The device of the rows.
    pub(in crate::ops) fn device(&self) -> Device {
        match &*self.0.borrow() {
            State::Rows(rows) | State::Handed(rows) => rows.device(),
            State::Sum(sum) => Tensor::<2>::from_dispatch(sum.residual.clone()).device(),
        }
    }

    /// These rows for a second reader, whose gradient is left to the first.
    pub(in crate::ops) fn shared(&self) -> Self {
        Self(Rc::clone(&self.0))
    }

    /// Rows without a gradient of their own, which a LayerNorm has made: their gradient is left to
    /// its backward.
    pub(in crate::ops) fn handed(rows: Tensor<2>) -> Self {
        Self::new(State::Handed(rows))
    }

    /// The [`pending`](Self::pending) sum, if the kernel of its LayerNorm can write its rows twice.
    pub(in crate::ops) fn pending_for_two(&self) -> Option<Inputs<Dispatch>> {
        self.pending().filter(|_| binds(&self.device(), OF_TWO_NORMS))
    }

    /// The sum that has not been made yet, if there is one.
    pub(in crate::ops) fn pending(&self) -> Option<Inputs<Dispatch>> {
        match &*self.0.borrow() {
            State::Sum(sum) => Some((**sum).clone()),
            State::Rows(_) | State::Handed(_) => None,
        }
    }

    /// Takes the `rows` of the [`pending`](Self::pending) sum, without a gradient of their own.
    pub(in crate::ops) fn hand_on(&self, rows: Tensor<2>) {
        self.0.replace(State::Handed(rows));
    }

    fn is_handed(&self) -> bool {
        matches!(&*self.0.borrow(), State::Handed(_))
    }

    /// The rows, of a sum by its own kernel.
    pub(in crate::ops) fn made(&self) -> Tensor<2> {
        let state = self.0.borrow().clone();
        match state {
            State::Rows(rows) | State::Handed(rows) => rows,
            State::Sum(sum) => {
                let rows = make(*sum);
                self.0.replace(State::Rows(rows.clone()));
                rows
            }
        }
    }
}

/// The rows of `sum`, by a kernel of their own.
fn make(sum: Inputs<Dispatch>) -> Tensor<2> {
    let _time = trace::call("bias_dropout_residual");
    Tensor::from_dispatch(<Dispatch as DropoutOp>::bias_dropout_residual(sum))
}

impl From<Tensor<2>> for Stream {
    fn from(rows: Tensor<2>) -> Self {
        Self::new(State::Rows(rows))
    }
}

/// The residual of a branch, `[n, features]`: rows whose gradient autodiff adds to the others of
/// theirs, or the rows of a normalisation that adds it in its own kernel
/// ([`Operand::layer_norm`](crate::ops::Operand::layer_norm),
/// [`Operand::rms_norm`](crate::ops::Operand::rms_norm)).
#[derive(Debug)]
pub struct Residual {
    stream: Stream,
    left: Option<Left>,
}

impl Residual {
    /// The rows of `stream`, and where their gradient is left to be added.
    pub(in crate::ops) fn new(stream: Stream, left: Option<Left>) -> Self {
        Self { stream, left }
    }

    /// The rows, whose gradient autodiff adds to the others of theirs.
    ///
    /// # Panics
    /// For rows that a LayerNorm has made, whose gradient only a [`Stream`] leaves to it.
    pub(crate) fn rows(&self) -> Tensor<2> {
        assert!(!self.stream.is_handed(), "the gradient of these rows is the LayerNorm's that made them");
        self.stream.made()
    }

    /// The device of the rows.
    pub(crate) fn device(&self) -> Device {
        self.stream.device()
    }
}

impl From<Tensor<2>> for Residual {
    fn from(rows: Tensor<2>) -> Self {
        Self::new(rows.into(), None)
    }
}
