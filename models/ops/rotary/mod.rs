//! Rotary position embedding: every head of every row is turned by the angles of its position, in
//! place where nobody else holds the rows.
//!
//! The forward saves the tables of the angles alone: the backward turns the gradient by the
//! negative angles.

#[cfg(feature = "compiler")]
pub(super) mod cube;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, ExtensionType, Flex, autodiff::Autodiff, backend_extension};
use burn::tensor::{DType, Tensor};
use rayon::prelude::*;

use super::autodiff::{Call, Differentiate};
use super::contract::Contract;
use super::flex::{self, FlexTensor};
use super::simd::{fma, vectorised};
use super::{Form, Operator, Ops};

/// Cosines and sines of the rotary positions of a batch's rows, `[rows, head_dim / 2]` each: of the
/// tokens of one sequence where all sequences have the same positions, else of all rows.
#[derive(Debug, Clone)]
pub(crate) struct Angles {
    pub(crate) cos: Tensor<2>,
    pub(crate) sin: Tensor<2>,
}

/// Turns element `i` of each head with element `i + head_dim / 2` by angle `i` of the row (Su et
/// al. 2021), paired as `rotate_half` of `transformers` pairs them: `x cos + rotate_half(x) sin`.
///
/// `x`: `[n, heads * head_dim]`; `cos`, `sin`: `[rows, head_dim / 2]` in f32, the cosines and sines
/// of the angles of `rows` positions, which repeat from row to row of `x` (the positions of a
/// sequence, or of all rows). The tables have no gradient. The result is in the type of `x`, which
/// in the fused form on wgpu and CUDA may be that of the products: it is computed in f32.
///
/// # Panics
/// For tensors of other shapes; in the fused form on the CPU for another type than f32, and for
/// tensors on different devices.
pub fn rotary(x: Tensor<2>, cos: Tensor<2>, sin: Tensor<2>, heads: usize, ops: Ops) -> Tensor<2> {
    let form = ops.form(Operator::Rotary);
    let contract = Contract::new("rotary", form, x.device());
    let [n, width] = contract.matrix("x", &x);
    let is_divided = heads > 0 && width.is_multiple_of(2 * heads);
    contract.ensure(is_divided, "x", format_args!("a width that {heads} heads of an even size divide"), [n, width]);
    contract.floats("x", &x, [n, width], contract.operand("x", &x));
    let (rows, half) = (cos.dims()[0], width / heads / 2);
    let repeats = rows > 0 && n.is_multiple_of(rows);
    contract.ensure(repeats, "cos", format_args!("a number of rows that divides {n}"), rows);
    contract.floats("cos", &cos, [rows, half], DType::F32);
    contract.floats("sin", &sin, [rows, half], DType::F32);
    match form {
        Form::Plain => plain(x, cos, sin, heads),
        Form::Fused => {
            let inputs = Inputs { x: x.into_dispatch(), cos: cos.into_dispatch(), sin: sin.into_dispatch() };
            Tensor::from_dispatch(<Dispatch as RotaryOp>::rotary(inputs))
        }
    }
}

fn plain(x: Tensor<2>, cos: Tensor<2>, sin: Tensor<2>, heads: usize) -> Tensor<2> {
    let ([n, width], [rows, half], dtype) = (x.dims(), cos.dims(), x.dtype());
    let table = |table: Tensor<2>| {
        let table = if table.dtype() == dtype { table } else { table.cast(dtype) };
        table.reshape([1, rows, 1, half])
    };
    let (cos, sin) = (table(cos), table(sin));
    let x = x.reshape([n / rows, rows, heads, 2 * half]);
    let (first, second) = (x.clone().slice_dim(3, 0..half), x.slice_dim(3, half..2 * half));
    let turned = first.clone() * cos.clone() - second.clone() * sin.clone();
    Tensor::cat(vec![turned, second * cos + first * sin], 3).reshape([n, width])
}

/// The operator's inputs as a backend has them.
#[derive(Debug, Clone, ExtensionType)]
pub(super) struct Inputs<B: Backend> {
    pub x: FloatTensor<B>,
    pub cos: FloatTensor<B>,
    pub sin: FloatTensor<B>,
}

#[backend_extension(Flex, Cube: cfg(feature = "compiler"), Autodiff)]
trait RotaryOp: Backend {
    fn rotary(#[extension_type] inputs: Inputs<Self>) -> FloatTensor<Self>;
}

/// The kernel that a backend supplies.
pub(super) trait RotaryKernel: Backend {
    /// `x` turned by the angles, or `back` by the negative angles.
    fn turned(inputs: Inputs<Self>, back: bool) -> FloatTensor<Self>;
}

/// Without autodiff the operator is its kernel.
impl<B: RotaryKernel> RotaryOp for B {
    fn rotary(inputs: Inputs<B>) -> FloatTensor<B> {
        B::turned(inputs, false)
    }
}

impl<B: RotaryKernel, C: CheckpointStrategy> RotaryOp for Autodiff<B, C> {
    fn rotary(Inputs { x, cos, sin }: Inputs<Self>) -> FloatTensor<Self> {
        let mut call = Call::<B, C>::new();
        let x = call.input(x);
        let [cos, sin] = [cos, sin].map(|table| table.into_parts().0);
        let tables = Tables { cos: cos.clone(), sin: sin.clone() };
        call.record(|_| (B::turned(Inputs { x, cos, sin }, false), tables))
    }
}

/// The angles, which are all that the backward needs.
#[derive(Debug, Clone)]
struct Tables<T> {
    cos: T,
    sin: T,
}

impl<B: RotaryKernel> Differentiate<B> for Tables<FloatTensor<B>> {
    fn gradients(self, dy: FloatTensor<B>, _: &[bool]) -> Vec<Option<FloatTensor<B>>> {
        let Self { cos, sin } = self;
        vec![Some(B::turned(Inputs { x: dy, cos, sin }, true))]
    }
}

impl RotaryKernel for Flex {
    fn turned(Inputs { x, cos, sin }: Inputs<Self>, back: bool) -> FlexTensor {
        let (cos, sin) = (flex::row_major(cos), flex::row_major(sin));
        let [_, width] = flex::dims2(&x);
        let ([positions, half], block) = (flex::dims2(&cos), flex::block_rows(width));
        flex::overwritten(flex::widened(x), |x| {
            x.par_chunks_mut(block * width).enumerate().for_each(|(i, rows)| {
                for (row, x) in rows.chunks_exact_mut(width).enumerate() {
                    let first = (i * block + row) % positions * half;
                    let [cos, sin] = [&cos, &sin].map(|table| &flex::values(table)[first..][..half]);
                    turn_row(x, cos, sin, if back { -1.0 } else { 1.0 });
                }
            });
        })
    }
}

vectorised! {
    /// Turns every head of a row by `sign` times the angles.
    fn turn_row(x: &mut [f32], cos: &[f32], sin: &[f32], sign: f32) {
        for head in x.chunks_exact_mut(2 * cos.len()) {
            let (first, second) = head.split_at_mut(cos.len());
            for ((first, second), (cos, sin)) in first.iter_mut().zip(second).zip(cos.iter().zip(sin)) {
                let sin = sign * sin;
                let (a, b) = (*first, *second);
                *first = fma::<FMA>(a, *cos, -(b * sin));
                *second = fma::<FMA>(b, *cos, a * sin);
            }
        }
    }
}
