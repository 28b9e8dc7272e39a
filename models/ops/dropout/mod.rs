//! Dropout without a stored mask, alone and as `residual + dropout(x + bias)` in one pass.
//!
//! Whether an element is kept is a function of a seed and of the element's place (`Keep`), so the
//! backward computes the mask again instead of reading it. The seed is drawn on the device from its
//! generator, which `Device::seed` seeds. On the CPU the plain composition draws the same seeds and
//! has the same masks (`masks`); elsewhere it draws masks of its own from the device's generator.
#![allow(unsafe_code)] // kernel: memory is written without being filled first, or by several threads at once

#[cfg(feature = "compiler")]
pub(super) mod cube;
pub(crate) mod masks;
mod stream;

use std::cell::Cell;
use std::mem::MaybeUninit;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, ExtensionType, Flex, TensorMetadata, autodiff::Autodiff, backend_extension};
use burn::tensor::{DType, Device, Distribution, FloatDType, Int, Tensor, TensorData};
use rayon::prelude::*;

use super::autodiff::{Call, Differentiate, Left};
use super::contract::Contract;
use super::device::DeviceKernels;
use super::flex::{self, FlexTensor};
use super::simd::{fma, vectorised};
use super::{Form, Operator, Ops, trace};
use masks::Numbered;
pub use stream::{Residual, Stream};

/// Where the dropout of a forward pass takes its random numbers from.
#[derive(Debug, Clone, Copy, Default)]
pub enum DropoutRng<'a> {
    /// Dropout is off, as in evaluation.
    #[default]
    Off,
    /// The generator of the device, which `Device::seed` seeds.
    Device,
    /// The generator of the device. Rows have the numbers that they have in the fused form, so that
    /// the plain form on the CPU drops what that drops.
    Numbered(Numbered<'a>),
    /// Seeds that are computed from a tensor on the device. A captured step replays the same
    /// launches and draws anew once other numbers have been written into that tensor. The plain
    /// form of dropout draws from the device's generator, except on the CPU.
    Seeds(&'a DropoutSeeds),
}

impl DropoutRng<'_> {
    /// The device's generator in training, nothing in evaluation.
    pub fn of(train: bool) -> Self {
        if train { Self::Device } else { Self::Off }
    }

    /// The form of an operator that is to compute in `form`. Rows with numbers of their own are
    /// those of plain attention; a fused dropout beside it would number them by their places, so it
    /// has the plain form there.
    pub(in crate::ops) fn form(self, form: Form) -> Form {
        if matches!(self, Self::Numbered(_)) { Form::Plain } else { form }
    }

    /// The probability with which an element is zeroed where the configuration says `p`.
    pub(in crate::ops) fn probability(self, p: f64) -> f64 {
        if matches!(self, Self::Off) { 0.0 } else { p }
    }

    /// A seed for one dropout of probability `p`: two random whole numbers, `[2]`, without
    /// autodiff; without values, which no kernel reads, where nothing is dropped.
    pub(in crate::ops) fn seed(self, p: f64, device: &Device) -> Tensor<1, Int> {
        let device = device.clone().without_autodiff();
        match self {
            Self::Seeds(seeds) if p > 0.0 => seeds.next(),
            Self::Device | Self::Numbered(_) if p > 0.0 => {
                Tensor::random([2], Distribution::Uniform(0.0, f64::from(i32::MAX)), &device)
            }
            _ => Tensor::empty([2], &device),
        }
    }
}

/// The seeds of one forward pass, made of a tensor that another pass may find changed; see
/// [`DropoutRng::Seeds`].
#[derive(Debug)]
pub struct DropoutSeeds {
    base: Tensor<1, Int>,
    made: Cell<i32>,
}

impl DropoutSeeds {
    /// `base`: two whole numbers below 2^30, `[2]`, without autodiff. The seed of the `n`-th
    /// dropout of stage `s`, counted from 1, is `base + 1024 s + n`; a pass that tells of no stages
    /// is all in stage 0.
    ///
    /// # Panics
    /// For a `base` of another length.
    pub fn new(base: Tensor<1, Int>) -> Self {
        Contract::new("DropoutSeeds::new", Form::Fused, base.device()).tensor("base", &base, [2]);
        Self { base, made: Cell::new(0) }
    }

    /// The dropouts from here on are those of stage `stage` of the model: a stage that is computed
    /// a second time drops what it dropped the first time. A stage has fewer than 1,024 of them.
    pub fn begin_stage(&self, stage: usize) {
        self.made.set((stage << 10) as i32);
    }

    fn next(&self) -> Tensor<1, Int> {
        self.made.set(self.made.get() + 1);
        self.base.clone() + self.made.get()
    }
}

/// Inverted dropout (Srivastava et al. 2014): each element is zeroed with probability `p` and the
/// others are scaled by `1 / (1 - p)`. The identity where `rng` is off. `x`: `[n, features]`.
///
/// # Panics
/// For a `p` outside `[0, 1)` and an `x` without features; in the fused form for another type than
/// f32.
pub fn dropout(x: Tensor<2>, p: f64, rng: DropoutRng<'_>, ops: Ops) -> Tensor<2> {
    let form = rng.form(ops.form(Operator::Dropout));
    let _time = trace::call("dropout");
    let contract = Contract::new("dropout", form, x.device());
    let dims = contract.matrix("x", &x);
    contract.floats("x", &x, dims, DType::F32);
    contract.probability("p", p);
    match form {
        Form::Plain => plain(x, p, rng),
        Form::Fused if rng.probability(p) == 0.0 => x,
        Form::Fused => {
            let seed = rng.seed(p, &x.device());
            Tensor::from_dispatch(<Dispatch as DropoutOp>::dropout(x.into_dispatch(), seed.into_dispatch(), p))
        }
    }
}

/// `residual + dropout(x + bias)`: `x`, `residual` `[n, features]`, `bias` `[features]` or none, in
/// f32; dropout as [`dropout`]'s. In the fused form on wgpu and CUDA `x` may be in the type of
/// products, and then its gradient is.
///
/// # Panics
/// For tensors of other shapes and a `p` outside `[0, 1)`; in the fused form for other types and
/// for tensors on different devices.
pub fn bias_dropout_residual(
    x: Tensor<2>,
    bias: impl Into<Option<Tensor<1>>>,
    residual: impl Into<Residual>,
    p: f64,
    rng: DropoutRng<'_>,
    ops: Ops,
) -> Tensor<2> {
    Stream::sum(x, bias, residual, p, rng, ops).rows()
}

/// Inverted dropout (Srivastava et al. 2014): each element is zeroed with probability `p` and the
/// others are scaled by `1 / (1 - p)`. The identity where `rng` is off. A composition of Burn's
/// operations, on a tensor of any shape. On the CPU it drops what the fused kernels drop.
pub fn plain<const D: usize>(x: Tensor<D>, p: f64, rng: DropoutRng<'_>) -> Tensor<D> {
    if rng.probability(p) == 0.0 {
        return x;
    }
    let keep = 1.0 - p;
    let mask = mask(&x, p, rng);
    match FloatDType::from(x.dtype()) {
        FloatDType::F32 => x * (mask * (1.0 / keep)),
        // The factor itself would be rounded to a narrow type, and all of `x` scaled by the error.
        dtype => ((x * mask).cast(FloatDType::F32) * (1.0 / keep)).cast(dtype),
    }
}

/// `x [n, features]` with a number added to each element, drawn evenly from `-bound` to `bound`.
/// The identity where `rng` is off. On the CPU the numbers are a function of a seed and of the
/// element's place, so that both modes add the same; elsewhere they come from the device's
/// generator.
///
/// # Panics
/// For an `x` without features.
pub fn uniform_noise(x: Tensor<2>, bound: f64, rng: DropoutRng<'_>) -> Tensor<2> {
    if matches!(rng, DropoutRng::Off) || bound == 0.0 {
        return x;
    }
    let device = x.device();
    Contract::new("uniform_noise", Form::Plain, device.clone()).matrix("x", &x);
    if !DeviceKernels::on(&device).are_on_host {
        return x.clone() + x.random_like(Distribution::Uniform(-bound, bound));
    }
    let seed = rng.seed(1.0, &device).into_data().iter::<i64>().collect::<Vec<_>>();
    let values = masks::uniform(Keep::new(&seed, 0.0), x.dims(), bound as f32);
    let noise = Tensor::<2>::from_data(TensorData::new(values, x.dims()), (&device, x.dtype()));
    x + noise
}

/// 1 where an element of `x` is kept, else 0, in the type of `x`.
fn mask<const D: usize>(x: &Tensor<D>, p: f64, rng: DropoutRng<'_>) -> Tensor<D> {
    let device = x.device();
    if !DeviceKernels::on(&device).are_on_host {
        return x.random_like(Distribution::Bernoulli(1.0 - p));
    }
    let numbers = match rng {
        DropoutRng::Numbered(numbers) => Some(numbers),
        _ => None,
    };
    let seed = rng.seed(p, &device).into_data().iter::<i64>().collect::<Vec<_>>();
    let keep = Keep { scale: 1.0, ..Keep::new(&seed, p) };
    let values = masks::factors(keep, &x.dims(), numbers);
    Tensor::from_data(TensorData::new(values, x.dims()), (&device, x.dtype()))
}

/// Decides for every element whether dropout keeps it: a counter-based generator, so any element
/// can be asked at any time.
///
/// The bits of element `column` of a row are `mix(mix(column ^ a) + b)`, where `a` and `b` are 64
/// random bits of the row (SplitMix64 of seed and row, Steele, Lea & Flood 2014) and `mix` is a
/// 32-bit finaliser of low bias (C. Wellons 2018, "lowbias32"). An element is kept if its bits are
/// at least `p 2^32`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keep {
    seed: u64,
    threshold: u32,
    /// `1 / (1 - p)`
    pub scale: f32,
}

impl Keep {
    /// From the two numbers of a seed and the probability of zeroing, in `[0, 1)`.
    pub fn new(seed: &[i64], p: f64) -> Self {
        let seed = ((seed[0] as u64) << 32) ^ seed[1] as u64;
        let threshold = (p * 4_294_967_296.0).round().min(f64::from(u32::MAX)) as u32;
        Self { seed, threshold, scale: (1.0 / (1.0 - p)) as f32 }
    }

    /// The generator of row `row`.
    #[inline(always)]
    pub fn row(self, row: usize) -> KeepRow {
        let mut z = self.seed.wrapping_add((row as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        KeepRow { a: z as u32, b: (z >> 32) as u32, threshold: self.threshold, scale: self.scale }
    }
}

/// [`Keep`] for one row.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeepRow {
    a: u32,
    b: u32,
    threshold: u32,
    scale: f32,
}

impl KeepRow {
    /// The factor of element `column`: 0 or `1 / (1 - p)`.
    #[inline(always)]
    pub fn factor(self, column: u32) -> f32 {
        if self.bits(column) >= self.threshold { self.scale } else { 0.0 }
    }

    /// A number for element `column`, evenly from -1 to 1.
    #[inline(always)]
    pub fn uniform(self, column: u32) -> f32 {
        (self.bits(column) >> 8) as f32 * (1.0 / 8_388_608.0) - 1.0
    }

    #[inline(always)]
    fn bits(self, column: u32) -> u32 {
        mix(mix(column ^ self.a).wrapping_add(self.b))
    }
}

#[inline(always)]
fn mix(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x7FEB_352D);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846C_A68B);
    x ^ (x >> 16)
}

/// The inputs of [`bias_dropout_residual`] as a backend has them.
#[derive(Debug, Clone, ExtensionType)]
pub(super) struct Inputs<B: Backend> {
    pub x: FloatTensor<B>,
    pub bias: FloatTensor<B>,
    /// Whether `bias` has values.
    pub has_bias: bool,
    pub residual: FloatTensor<B>,
    pub seed: IntTensor<B>,
    pub p: f64,
    /// Where the gradient of `residual` is left, if autodiff is not to add it.
    pub left: Option<Left>,
}

#[backend_extension(Flex, Cube: cfg(feature = "compiler"), Autodiff)]
trait DropoutOp: Backend {
    fn dropout(x: FloatTensor<Self>, seed: IntTensor<Self>, p: f64) -> FloatTensor<Self>;

    fn bias_dropout_residual(#[extension_type] inputs: Inputs<Self>) -> FloatTensor<Self>;
}

/// The kernels that a backend supplies.
pub(in crate::ops) trait DropoutKernel: Backend {
    /// Zeroes or scales every element of `x`: the forward, and with the same seed the backward.
    fn masked(x: FloatTensor<Self>, seed: IntTensor<Self>, p: f64) -> FloatTensor<Self>;

    /// The gradients of the `x` of [`bias_drop_add`](Self::bias_drop_add), in its type, `dtype`,
    /// and of its bias, which is the sum over the rows of that, where it is `wanted`.
    fn gradients(
        dy: FloatTensor<Self>,
        seed: IntTensor<Self>,
        p: f64,
        dtype: FloatDType,
        wanted: bool,
    ) -> (FloatTensor<Self>, Option<FloatTensor<Self>>);

    fn bias_drop_add(inputs: Inputs<Self>) -> FloatTensor<Self>;
}

/// Without autodiff the operator is its kernel's forward.
impl<B: DropoutKernel> DropoutOp for B {
    fn dropout(x: FloatTensor<B>, seed: IntTensor<B>, p: f64) -> FloatTensor<B> {
        B::masked(x, seed, p)
    }

    fn bias_dropout_residual(inputs: Inputs<B>) -> FloatTensor<B> {
        B::bias_drop_add(inputs)
    }
}

impl<B: DropoutKernel, C: CheckpointStrategy> DropoutOp for Autodiff<B, C> {
    fn dropout(x: FloatTensor<Self>, seed: IntTensor<Self>, p: f64) -> FloatTensor<Self> {
        let mut call = Call::<B, C>::new();
        let x = call.input(x);
        call.record(|_| (B::masked(x, seed.clone(), p), Saved { seed, p, dtype: FloatDType::F32, left: None }))
    }

    fn bias_dropout_residual(inputs: Inputs<Self>) -> FloatTensor<Self> {
        let mut call = Call::<B, C>::new();
        let (inputs, saved) = inputs.of_call(&mut call);
        call.record(|_| (B::bias_drop_add(inputs), saved))
    }
}

impl<B: DropoutKernel, C: CheckpointStrategy> Inputs<Autodiff<B, C>> {
    /// These without autodiff, as the next inputs of `call`: `x`, `bias` and, unless its gradient
    /// is left, `residual`; and what the backward needs.
    pub(super) fn of_call(self, call: &mut Call<B, C>) -> (Inputs<B>, Saved<IntTensor<B>>) {
        let Self { x, bias, has_bias, residual, seed, p, left } = self;
        let (x, bias) = (call.input(x), call.input(bias));
        let residual = if left.is_some() { residual.into_primitive() } else { call.input(residual) };
        let saved = Saved { seed: seed.clone(), p, dtype: x.dtype().into(), left };
        (Inputs { x, bias, has_bias, residual, seed, p, left: None }, saved)
    }
}

/// The values that the backward needs: the mask is computed again from them.
#[derive(Debug, Clone)]
pub(super) struct Saved<I> {
    pub seed: I,
    pub p: f64,
    /// The type of `x`.
    pub dtype: FloatDType,
    /// Where the gradient of the residual is left.
    left: Option<Left>,
}

impl<I> Saved<I> {
    /// The gradients `dx`, `dbias` and, unless it is left, that of the residual, `dy`.
    pub(super) fn with_residual<B: Backend>(
        self,
        dx: Option<FloatTensor<B>>,
        dbias: Option<FloatTensor<B>>,
        dy: FloatTensor<B>,
    ) -> Vec<Option<FloatTensor<B>>> {
        match self.left {
            None => vec![dx, dbias, Some(dy)],
            Some(left) => {
                left.put::<B>(dy);
                vec![dx, dbias]
            }
        }
    }
}

impl<B: DropoutKernel> Differentiate<B> for Saved<IntTensor<B>> {
    /// The gradients of `x`, `bias` and, unless it is left, `residual`, or of `x` alone.
    fn gradients(self, dy: FloatTensor<B>, tracked: &[bool]) -> Vec<Option<FloatTensor<B>>> {
        let &[x, bias, ..] = tracked else { return vec![Some(B::masked(dy, self.seed, self.p))] };
        let (dx, dbias) = match x || bias {
            true => {
                let (dx, dbias) = B::gradients(dy.clone(), self.seed.clone(), self.p, self.dtype, bias);
                (Some(dx), dbias)
            }
            false => (None, None),
        };
        self.with_residual::<B>(dx, dbias, dy)
    }
}

impl DropoutKernel for Flex {
    fn masked(x: FlexTensor, seed: FlexTensor, p: f64) -> FlexTensor {
        let keep = Keep::new(&flex::integers(&seed), p);
        let x = flex::row_major(x);
        let [rows, width] = flex::dims2(&x);
        let block = flex::block_rows(width);
        // SAFETY: the blocks pair up, and `drop_rows` writes every element of its block.
        let y = unsafe {
            flex::written(rows * width, |out| {
                let blocks = out.par_chunks_mut(block * width).zip(flex::values(&x).par_chunks(block * width));
                blocks.enumerate().for_each(|(i, (out, x))| drop_rows(out, x, width, i * block, keep));
            })
        };
        flex::tensor(y, [rows, width])
    }

    fn bias_drop_add(Inputs { x, bias, has_bias, residual, seed, p, .. }: Inputs<Self>) -> FlexTensor {
        let [_, width] = flex::dims2(&x);
        let bias = if has_bias { flex::row_major(bias) } else { flex::tensor(vec![0.0; width], [width]) };
        let residual = flex::row_major(residual);
        let block = flex::block_rows(width);
        let keep = (p > 0.0).then(|| Keep::new(&flex::integers(&seed), p));
        flex::overwritten(x, |x| {
            let blocks = x.par_chunks_mut(block * width).zip(flex::values(&residual).par_chunks(block * width));
            blocks.enumerate().for_each(|(i, (x, residual))| match keep {
                Some(keep) => bias_drop_add_rows(x, flex::values(&bias), residual, i * block, keep),
                None => bias_add_rows(x, flex::values(&bias), residual),
            });
        })
    }

    fn gradients(
        dy: FlexTensor,
        seed: FlexTensor,
        p: f64,
        _: FloatDType,
        wanted: bool,
    ) -> (FlexTensor, Option<FlexTensor>) {
        let dx = if p > 0.0 { Self::masked(dy, seed, p) } else { dy };
        let dbias = wanted.then(|| {
            let dx = flex::row_major(dx.clone());
            let [_, width] = flex::dims2(&dx);
            flex::tensor(flex::column_sums(flex::values(&dx), width), [width])
        });
        (dx, dbias)
    }
}

vectorised! {
    fn drop_rows(out: &mut [MaybeUninit<f32>], x: &[f32], width: usize, first_row: usize, keep: Keep) {
        for (i, (out, x)) in out.chunks_exact_mut(width).zip(x.chunks_exact(width)).enumerate() {
            let keep = keep.row(first_row + i);
            for (column, (out, x)) in (0u32..).zip(out.iter_mut().zip(x)) {
                out.write(x * keep.factor(column));
            }
        }
    }
}

vectorised! {
    fn bias_drop_add_rows(x: &mut [f32], bias: &[f32], residual: &[f32], first_row: usize, keep: Keep) {
        let rows = x.chunks_exact_mut(bias.len()).zip(residual.chunks_exact(bias.len()));
        for (i, (x, residual)) in rows.enumerate() {
            let keep = keep.row(first_row + i);
            for (column, ((x, bias), residual)) in (0u32..).zip(x.iter_mut().zip(bias).zip(residual)) {
                *x = fma::<FMA>(*x + bias, keep.factor(column), *residual);
            }
        }
    }
}

vectorised! {
    fn bias_add_rows(x: &mut [f32], bias: &[f32], residual: &[f32]) {
        for (x, residual) in x.chunks_exact_mut(bias.len()).zip(residual.chunks_exact(bias.len())) {
            for ((x, bias), residual) in x.iter_mut().zip(bias).zip(residual) {
                *x = (*x + bias) + residual;
            }
        }
    }
}
