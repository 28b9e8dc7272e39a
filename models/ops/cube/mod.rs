//! Building blocks of the fused operators' kernels for wgpu and CUDA, which are written in CubeCL
//! and are in the compiled engine only. The kernels themselves are in `cube.rs` of each operator's
//! folder. Burn's backend is [`Cube`], which is Burn's fusion around CubeCL's backend.
//!
//! [`Kernels`] lists every kernel with the shapes it gives, which Burn's fusion needs to know
//! before a kernel runs: to fusion a kernel is one operation that it does not look into. Everything
//! is f32 and row-major, but for factors and results of matrix products: kernels that work on those
//! read and write them in their type, and compute in f32. Burn's tensors are not row-major by
//! themselves: CUDA's allocator gives rows a pitch, a multiple of 512 bytes, and views have strides
//! of their own. So a kernel's inputs go through [`own`] or `into_contiguous`, its outputs are made
//! by [`empty`], and what may have a pitch goes through [`own_rows`] or [`rows_of`], which tell the
//! kernel how far a row is from the next.
//!
//! Kernels that work on rows give each row to one cube of [`lanes`] units, which share sums through
//! shared memory, so that no device needs subgroups.
#![allow(unsafe_code)] // kernels are launched without bounds checks: each says why that is sound
#![allow(clippy::too_many_arguments)] // those of a kernel are its buffers

mod lists;
pub(super) mod product;
pub(super) mod rows;

use burn::backend::fusion::custom::TensorSpec;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata, backend_extension};
use burn::tensor::{DType, FloatDType, Shape};
use burn_backend::cubecl::dtype_to_storage_type;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeDevice};
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::zspace::striding::has_pitched_row_major_strides;
use kiln_core::model_config::Activation;

use super::list::TensorList;
use super::{adamw, attention, cross_entropy, dropout, embedding, gelu, in_place, layer_norm};

/// Burn's backend for wgpu and CUDA: fusion around CubeCL's.
pub(super) use burn_cubecl::Cube;

/// A tensor of [`Cube`].
pub(super) type FusedTensor = FloatTensor<Cube>;

/// Whole numbers of [`Cube`].
pub(super) type FusedInts = IntTensor<Cube>;

/// A tensor of f32.
fn floats<const D: usize>(shape: [usize; D]) -> TensorSpec {
    TensorSpec::new(Shape::from(shape), DType::F32)
}

/// A tensor like `x` with another shape.
fn shaped<const D: usize>(x: &TensorSpec, shape: [usize; D]) -> TensorSpec {
    TensorSpec::new(Shape::from(shape), x.dtype)
}

/// Every kernel, as an operation of a backend. `x` is `[rows, width]`, `weight` and `bias` are
/// `[width]`.
#[backend_extension(Cube, Fusion)]
pub(super) trait Kernels: Backend {
    /// `(values, exp_avgs, exp_avg_sqs)` after an update, in their own memory if `in_place` says so
    /// or nobody else holds them; `scale [1]`, `factors [kinds * 8]`.
    #[fusion(meta = |values, m, v, _grads, _scale, _factors, _kinds, _in_place| (values.clone(), m.clone(), v.clone()))]
    fn adamw(
        #[extension_type] values: TensorList<Self>,
        #[extension_type] exp_avgs: TensorList<Self>,
        #[extension_type] exp_avg_sqs: TensorList<Self>,
        #[extension_type] grads: TensorList<Self>,
        scale: FloatTensor<Self>,
        factors: FloatTensor<Self>,
        kinds: Vec<usize>,
        in_place: bool,
    ) -> (TensorList<Self>, TensorList<Self>, TensorList<Self>);

    /// The norm over all elements of all `tensors`, `[1]`.
    #[fusion(meta = |tensors| shaped(&tensors[0], [1]))]
    fn global_norm(#[extension_type] tensors: TensorList<Self>) -> FloatTensor<Self>;

    /// `sums * by[0] + values * by[1]` in the memory of `sums`; `by [2]`.
    #[fusion(meta = |sums, _values, _by| sums.clone())]
    fn accumulate(
        #[extension_type] sums: TensorList<Self>,
        #[extension_type] values: TensorList<Self>,
        by: FloatTensor<Self>,
    ) -> TensorList<Self>;

    /// `x` row-major, in its own memory if it is that already.
    #[fusion(meta = |x| x.clone())]
    fn row_major(x: FloatTensor<Self>) -> FloatTensor<Self>;

    /// `values` in the memory of `target`.
    #[fusion(meta = |target, _values| target.clone())]
    fn overwrite(target: FloatTensor<Self>, values: FloatTensor<Self>) -> FloatTensor<Self>;

    /// `values` in the memory of `target`.
    #[fusion(meta = |target, _values| target.clone())]
    fn overwrite_ints(target: IntTensor<Self>, values: IntTensor<Self>) -> IntTensor<Self>;

    /// `values` in the memory of `target`.
    #[fusion(meta = |target, _values| target.clone())]
    fn overwrite_bools(target: BoolTensor<Self>, values: BoolTensor<Self>) -> BoolTensor<Self>;

    /// `a b`, of the matrices or of their transposes, on a software device.
    #[fusion(meta = |a, b, a_transposed, b_transposed| {
        shaped(a, [a.shape[usize::from(*a_transposed)], b.shape[usize::from(!*b_transposed)]])
    })]
    fn tiled_product(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        a_transposed: bool,
        b_transposed: bool,
    ) -> FloatTensor<Self>;

    /// `x`, of any type, summed over its rows, `[width]` in f32.
    #[fusion(meta = |x| floats([x.shape[1]]))]
    fn column_sums(x: FloatTensor<Self>) -> FloatTensor<Self>;

    /// `(y, statistics)`: the normalised rows in `dtype`, and mean and reciprocal deviation of
    /// each, `[rows, 2]`.
    #[fusion(meta = |x, _weight, _bias, _eps, dtype| {
        (TensorSpec::new(x.shape.clone(), (*dtype).into()), shaped(x, [x.shape[0], 2]))
    })]
    fn norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        eps: f32,
        dtype: FloatDType,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// `(y, sum, statistics)`: [`norm`](Self::norm) of the sum of `x` and `residual`.
    #[fusion(meta = |x, _residual, _weight, _bias, _eps| (x.clone(), x.clone(), shaped(x, [x.shape[0], 2])))]
    fn add_norm(
        x: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        eps: f32,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// `(dx, dweight, dbias)` of [`norm`](Self::norm), `dy` being in the type of its result.
    #[fusion(meta = |x, weight, _statistics, _dy| (x.clone(), weight.clone(), weight.clone()))]
    fn norm_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        statistics: FloatTensor<Self>,
        dy: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// `gelu(x + bias)` in the type of `x`.
    #[fusion(meta = |x, _bias, _kind| x.clone())]
    fn gelu(x: FloatTensor<Self>, bias: FloatTensor<Self>, kind: Activation) -> FloatTensor<Self>;

    /// `dx` of [`gelu`](Self::gelu).
    #[fusion(meta = |x, _bias, _dy, _kind| x.clone())]
    fn gelu_backward(
        x: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        kind: Activation,
    ) -> FloatTensor<Self>;

    /// `x` with every element zeroed or scaled, as `seed [2]` decides.
    #[fusion(meta = |x, _seed, _p| x.clone())]
    fn drop(x: FloatTensor<Self>, seed: IntTensor<Self>, p: f64) -> FloatTensor<Self>;

    /// `residual + drop(x + bias)`
    #[fusion(meta = |x, _bias, _residual, _seed, _p| x.clone())]
    fn bias_drop_add(
        x: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        seed: IntTensor<Self>,
        p: f64,
    ) -> FloatTensor<Self>;

    /// `(losses [rows], dlogits)`: the cross-entropy of each row of `logits [rows, columns]`, of
    /// any type, in place where nobody else holds them. There are as many classes as `bias
    /// [classes]` has; the columns behind them count for nothing.
    #[fusion(meta = |logits, _bias, _target, _row_weight, _smoothing| (floats([logits.shape[0]]), logits.clone()))]
    fn cross_entropy(
        logits: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        target: IntTensor<Self>,
        row_weight: FloatTensor<Self>,
        smoothing: f32,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// The gradient of a table of `num` rows, of which `ids [n]` were looked up and met the
    /// gradient `dy [n, width]`; ids that equal `skipped` count for nothing.
    #[fusion(meta = |dy, _ids, num, _skipped| shaped(dy, [*num, dy.shape[1]]))]
    fn embedding_backward(dy: FloatTensor<Self>, ids: IntTensor<Self>, num: usize, skipped: i32) -> FloatTensor<Self>;

    /// `(weights, lse)`: the softmax of each row of `scores [batch, heads, queries, keys]`, of any
    /// type, with its dropout, in place where nobody else holds them, and the logarithm of the
    /// row's sum, `[batch, heads, queries]` in f32.
    #[fusion(meta = |scores, _keys, _seed, _by| {
        (scores.clone(), floats([scores.shape[0], scores.shape[1], scores.shape[2]]))
    })]
    fn attention_weights(
        scores: FloatTensor<Self>,
        keys: IntTensor<Self>,
        seed: IntTensor<Self>,
        by: attention::cube::Scores,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// `(weights, dscores)` from the scores, their rows' logarithms and the gradient of the
    /// weights, in the type of the scores.
    #[fusion(meta = |scores, _lse, _dweights, _keys, _seed, _by| (scores.clone(), scores.clone()))]
    fn attention_backward(
        scores: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        dweights: FloatTensor<Self>,
        keys: IntTensor<Self>,
        seed: IntTensor<Self>,
        by: attention::cube::Scores,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

impl Kernels for CubeBackend {
    fn adamw(
        values: TensorList<Self>,
        exp_avgs: TensorList<Self>,
        exp_avg_sqs: TensorList<Self>,
        grads: TensorList<Self>,
        scale: CubeTensor,
        factors: CubeTensor,
        kinds: Vec<usize>,
        in_place: bool,
    ) -> (TensorList<Self>, TensorList<Self>, TensorList<Self>) {
        let state = [values.0, exp_avgs.0, exp_avg_sqs.0];
        adamw::cube::adamw(state, grads.0, scale, factors, &kinds, in_place).map(TensorList).into()
    }

    fn global_norm(tensors: TensorList<Self>) -> CubeTensor {
        adamw::cube::norm(tensors.0)
    }

    fn accumulate(sums: TensorList<Self>, values: TensorList<Self>, by: CubeTensor) -> TensorList<Self> {
        TensorList(adamw::cube::accumulate(sums.0, values.0, by))
    }

    fn row_major(x: CubeTensor) -> CubeTensor {
        into_contiguous(x)
    }

    fn overwrite(target: CubeTensor, values: CubeTensor) -> CubeTensor {
        in_place::cube::overwrite(target, values)
    }

    fn overwrite_ints(target: CubeTensor, values: CubeTensor) -> CubeTensor {
        in_place::cube::overwrite(target, values)
    }

    fn overwrite_bools(target: CubeTensor, values: CubeTensor) -> CubeTensor {
        in_place::cube::overwrite(target, values)
    }

    fn tiled_product(a: CubeTensor, b: CubeTensor, a_transposed: bool, b_transposed: bool) -> CubeTensor {
        product::tiled(a, b, a_transposed, b_transposed)
    }

    fn column_sums(x: CubeTensor) -> CubeTensor {
        rows::column_sums(x)
    }

    fn norm(
        x: CubeTensor,
        weight: CubeTensor,
        bias: CubeTensor,
        eps: f32,
        dtype: FloatDType,
    ) -> (CubeTensor, CubeTensor) {
        layer_norm::cube::forward(x, weight, bias, eps, dtype)
    }

    fn add_norm(
        x: CubeTensor,
        residual: CubeTensor,
        weight: CubeTensor,
        bias: CubeTensor,
        eps: f32,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        layer_norm::cube::forward_sum(x, residual, weight, bias, eps)
    }

    fn norm_backward(
        x: CubeTensor,
        weight: CubeTensor,
        statistics: CubeTensor,
        dy: CubeTensor,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        layer_norm::cube::backward(x, weight, statistics, dy)
    }

    fn gelu(x: CubeTensor, bias: CubeTensor, kind: Activation) -> CubeTensor {
        gelu::cube::forward(x, bias, kind)
    }

    fn gelu_backward(x: CubeTensor, bias: CubeTensor, dy: CubeTensor, kind: Activation) -> CubeTensor {
        gelu::cube::backward(x, bias, dy, kind)
    }

    fn drop(x: CubeTensor, seed: CubeTensor, p: f64) -> CubeTensor {
        dropout::cube::drop(x, seed, p)
    }

    fn bias_drop_add(x: CubeTensor, bias: CubeTensor, residual: CubeTensor, seed: CubeTensor, p: f64) -> CubeTensor {
        dropout::cube::bias_drop_add(x, bias, residual, seed, p)
    }

    fn cross_entropy(
        logits: CubeTensor,
        bias: CubeTensor,
        target: CubeTensor,
        row_weight: CubeTensor,
        smoothing: f32,
    ) -> (CubeTensor, CubeTensor) {
        cross_entropy::cube::rows(logits, bias, target, row_weight, smoothing)
    }

    fn embedding_backward(dy: CubeTensor, ids: CubeTensor, num: usize, skipped: i32) -> CubeTensor {
        embedding::cube::backward(dy, ids, num, skipped)
    }

    fn attention_weights(
        scores: CubeTensor,
        keys: CubeTensor,
        seed: CubeTensor,
        by: attention::cube::Scores,
    ) -> (CubeTensor, CubeTensor) {
        attention::cube::weights(scores, keys, seed, by)
    }

    fn attention_backward(
        scores: CubeTensor,
        lse: CubeTensor,
        dweights: CubeTensor,
        keys: CubeTensor,
        seed: CubeTensor,
        by: attention::cube::Scores,
    ) -> (CubeTensor, CubeTensor) {
        attention::cube::scores_backward(scores, lse, dweights, keys, seed, by)
    }
}

/// `x` in f32, which the kernels compute in.
pub(super) fn wide(x: FusedTensor) -> FusedTensor {
    narrow(x, DType::F32)
}

/// `x` as an operand of a matrix product in `dtype`.
pub(super) fn narrow(x: FusedTensor, dtype: DType) -> FusedTensor {
    if x.dtype() == dtype { x } else { Cube::float_cast(x, FloatDType::from(dtype)) }
}

/// Units in a cube that works on a row: a plane (warp), so that all of them run in step.
pub(super) fn lanes(x: &CubeTensor) -> usize {
    (x.client.properties().hardware.plane_size_max as usize).clamp(8, 64)
}

/// A cube of [`lanes`] units for each of `rows` rows; there may be more cubes than rows.
pub(super) fn by_row(x: &CubeTensor, rows: usize) -> (CubeCount, CubeDim) {
    let lanes = lanes(x);
    let dim = CubeDim::new_1d(lanes as u32);
    (cubecl::calculate_cube_count_elemwise(&x.client, rows * lanes, dim), dim)
}

/// A unit for each of `n` elements; there may be more units than elements.
pub(super) fn by_element(x: &CubeTensor, n: usize) -> (CubeCount, CubeDim) {
    let dim = CubeDim::new(&x.client, n);
    (cubecl::calculate_cube_count_elemwise(&x.client, n, dim), dim)
}

/// A row-major tensor without values on the device of `x` and in its type.
pub(super) fn empty(x: &CubeTensor, shape: impl Into<Shape>) -> CubeTensor {
    empty_in(x, shape, x.dtype)
}

/// [`empty`] in another type.
pub(super) fn empty_in(x: &CubeTensor, shape: impl Into<Shape>, dtype: DType) -> CubeTensor {
    empty_device_contiguous_dtype(x.client.clone(), x.device.clone(), shape.into(), dtype)
}

/// The type of the indices of a kernel that works on `tensors`: 32 bits, or 64 where one has so
/// many elements that the number of a unit behind the last could come around to another's.
pub(super) fn addresses<'a>(tensors: impl IntoIterator<Item = &'a CubeTensor>) -> AddressType {
    let of = |x: &CubeTensor| AddressType::from_len_signed(x.handle.size() as usize / x.dtype.size());
    tensors.into_iter().map(of).max().unwrap_or_default()
}

/// `x` row-major, in its own memory if nobody else holds that.
pub(super) fn own(x: CubeTensor) -> CubeTensor {
    if x.is_contiguous() && x.can_mut() { x } else { in_place::cube::copied(x) }
}

/// Elements from a row of `x` to the next, where all rows lie in order and equally far apart.
fn pitch(x: &CubeTensor) -> Option<usize> {
    let (shape, strides) = (x.meta.shape(), x.meta.strides());
    has_pitched_row_major_strides(shape, strides).then(|| strides[strides.len() - 2])
}

/// `x` with rows in order, and the elements from one to the next; in its own memory if nobody else
/// holds that.
pub(super) fn own_rows(x: CubeTensor) -> (CubeTensor, usize) {
    match pitch(&x) {
        Some(pitch) if x.can_mut() => (x, pitch),
        _ => dense_rows(in_place::cube::copied(x)),
    }
}

/// `x` to be read with rows in order, and the elements from one to the next.
pub(super) fn rows_of(x: CubeTensor) -> (CubeTensor, usize) {
    match pitch(&x) {
        Some(pitch) => (x, pitch),
        None => dense_rows(into_contiguous(x)),
    }
}

fn dense_rows(x: CubeTensor) -> (CubeTensor, usize) {
    let width = x.shape()[x.shape().num_dims() - 1];
    (x, width)
}

/// The type of the elements of `x`, as a kernel is told it.
pub(super) fn element(x: &CubeTensor) -> ElemType {
    dtype_to_storage_type(x.dtype)
}

/// Bytes of an operator's intermediate result that exist at a time (`ops::bytes_at_a_time`).
pub(super) fn bytes_at_a_time(device: &CubeDevice) -> u64 {
    let client = device.client();
    let memory = &client.properties().memory;
    // On wgpu a page is the longest buffer that a kernel can be given.
    memory.max_memory().map_or(256 << 20, |memory| (memory / 64).min(1 << 30)).min(memory.max_page_size)
}

/// The two dimensions of a matrix.
pub(super) fn dims2(x: &CubeTensor) -> [usize; 2] {
    x.shape().dims()
}

/// The buffer of a row-major tensor, as an argument of a kernel. It may be longer than the tensor
/// (a slice is a view), so kernels are told sizes and never ask a buffer for its length.
pub(super) fn buffer(x: &CubeTensor) -> BufferArg {
    x.clone().into_buffer_arg()
}
