//! Layer normalisation: mean first and then the variance around it, as on the CPU. A group of units
//! takes a row, of which each holds its vectors in registers. In the backward a cube takes a strip
//! of rows, and sums over its columns while it goes over them. Root mean square normalisation is
//! the same around 0 and without a bias. A row may be a sum, which the forward makes, and of whose
//! terms the backward has the gradients.
#![allow(unsafe_code)] // kernels are launched without bounds checks: each says why that is sound
#![allow(clippy::assign_op_pattern)] // vectors of kernels have no other form
#![allow(clippy::too_many_arguments, clippy::type_complexity)] // tensors one by one

use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, backend_extension};
use burn::tensor::FloatDType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::{HandsOn, Inputs, LayerNormKernel, OfSum, Saved};
use crate::ops::cube::rows::{Strip, Strips, group_sums, write_strip};
use crate::ops::cube::{
    Cube, FusedInts, FusedTensor, addresses, buffer, buffer_or, by_cube, dims2, element, empty, empty_in, rows_of,
    shaped, vector,
};
use crate::ops::dropout;
use crate::ops::dropout::cube::{factor, scale, threshold};

impl LayerNormKernel for Cube {
    fn forward(inputs: Inputs<Self>) -> (FusedTensor, Saved<FusedTensor>) {
        let Inputs { x, residual, weight, bias, eps, dtype, .. } = inputs;
        let (y, normalised, statistics) = match residual.given() {
            Some(residual) => Self::add_norm(x, residual, weight.clone(), bias, eps as f32),
            None => {
                let (y, statistics) = Self::norm(x.clone(), weight.clone(), bias, eps as f32, dtype);
                (y, x, statistics)
            }
        };
        (y, Saved { normalised, weight, statistics })
    }

    fn forward_of_sum(inputs: OfSum<Self>) -> (FusedTensor, FusedTensor, Saved<FusedTensor>) {
        let OfSum { sum, weight, bias: norm_bias, eps, dtype, hands_on, .. } = inputs;
        let dropout::Inputs { x, bias, has_bias, residual, seed, p, .. } = sum;
        let (eps, of_weight, copies) = (eps as f32, weight.clone(), hands_on == HandsOn::Result);
        let (y, rows, normalised, statistics) =
            Self::norm_of_sum(x, bias, has_bias, residual, seed, p, of_weight, norm_bias, eps, dtype, copies);
        (y, rows, Saved { normalised, weight, statistics })
    }

    fn backward(saved: Saved<FusedTensor>, dy: FusedTensor, added: Option<FusedTensor>) -> [FusedTensor; 3] {
        let Saved { normalised, weight, statistics } = saved;
        let (adds, added) = (added.is_some(), added.unwrap_or_else(|| normalised.clone())); // else not read
        let (dx, dweight, dbias) = Self::norm_backward(normalised, weight, statistics, dy, added, adds);
        [dx, dweight, dbias]
    }

    fn backward_of_sum(
        saved: Saved<FusedTensor>,
        dy: FusedTensor,
        added: Option<FusedTensor>,
        hands_on: HandsOn,
        of_sum: &dropout::Saved<FusedInts>,
    ) -> ([FusedTensor; 3], FusedTensor, Option<FusedTensor>) {
        let Saved { normalised, weight, statistics } = saved;
        let adds = added.is_some().then_some(hands_on);
        let added = added.unwrap_or_else(|| normalised.clone()); // else not read
        let &dropout::Saved { ref seed, p, dtype, .. } = of_sum;
        let (dsum, dx, dweight, dnorm_bias, dbias) =
            Self::norm_of_sum_backward(normalised, weight, statistics, dy, added, adds, seed.clone(), p, dtype);
        ([dsum, dweight, dnorm_bias], dx, Some(dbias))
    }
}

/// The kernels, as operations of a backend: `x` is `[rows, width]`, `weight` and `bias` are
/// `[width]`.
#[backend_extension(Cube, Fusion)]
pub(in crate::ops) trait NormKernels: Backend {
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

    /// `(y, rows, sum, statistics)`: [`norm`](Self::norm) of `residual + drop(x + bias)`, of `x` of
    /// any type, in f32; without `has_bias` that bias is not read. The rows are those of the sum,
    /// or where it `copies` those of `y` in f32.
    #[fusion(meta = |_x, _bias, _has_bias, residual, _seed, _p, _weight, _norm_bias, _eps, dtype, _copies| {
        let y = TensorSpec::new(residual.shape.clone(), (*dtype).into());
        (y, residual.clone(), residual.clone(), shaped(residual, [residual.shape[0], 2]))
    })]
    fn norm_of_sum(
        x: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        has_bias: bool,
        residual: FloatTensor<Self>,
        seed: IntTensor<Self>,
        p: f64,
        weight: FloatTensor<Self>,
        norm_bias: FloatTensor<Self>,
        eps: f32,
        dtype: FloatDType,
        copies: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// `(dx, dweight, dbias)` of [`norm`](Self::norm), `dy` being in f32 or in the type of its
    /// result and `dx` with `added`, if it `adds` that.
    #[fusion(meta = |x, weight, _statistics, _dy, _added, _adds| (x.clone(), weight.clone(), weight.clone()))]
    fn norm_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        statistics: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        added: FloatTensor<Self>,
        adds: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// `(dsum, dx, dweight, dnorm_bias, dbias)` of [`norm_of_sum`](Self::norm_of_sum), whose sum
    /// is given: `dsum` is that of [`norm_backward`](Self::norm_backward), and `dx`, whose sum over
    /// rows is `dbias`, in `dtype`. The gradient `added` is that of the rows that it `adds`.
    #[fusion(meta = |sum, weight, _statistics, _dy, _added, _adds, _seed, _p, dtype| {
        let dx = TensorSpec::new(sum.shape.clone(), (*dtype).into());
        (sum.clone(), dx, weight.clone(), weight.clone(), weight.clone())
    })]
    fn norm_of_sum_backward(
        sum: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        statistics: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        added: FloatTensor<Self>,
        adds: Option<HandsOn>,
        seed: IntTensor<Self>,
        p: f64,
        dtype: FloatDType,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

impl NormKernels for CubeBackend {
    fn norm(
        x: CubeTensor,
        weight: CubeTensor,
        bias: CubeTensor,
        eps: f32,
        dtype: FloatDType,
    ) -> (CubeTensor, CubeTensor) {
        let (y, _, _, statistics) = normalised(x, None, weight, Some(bias), eps, dtype, false);
        (y, statistics)
    }

    fn add_norm(
        x: CubeTensor,
        residual: CubeTensor,
        weight: CubeTensor,
        bias: CubeTensor,
        eps: f32,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        let terms = Some(Terms { residual, before: None });
        let (y, _, sum, statistics) = normalised(x, terms, weight, Some(bias), eps, FloatDType::F32, false);
        (y, sum, statistics)
    }

    fn norm_of_sum(
        x: CubeTensor,
        bias: CubeTensor,
        has_bias: bool,
        residual: CubeTensor,
        seed: CubeTensor,
        p: f64,
        weight: CubeTensor,
        norm_bias: CubeTensor,
        eps: f32,
        dtype: FloatDType,
        copies: bool,
    ) -> (CubeTensor, CubeTensor, CubeTensor, CubeTensor) {
        let terms = Terms { residual, before: Some((has_bias.then_some(bias), Dropped { seed, p })) };
        normalised(x, Some(terms), weight, Some(norm_bias), eps, dtype, copies)
    }

    fn norm_backward(
        x: CubeTensor,
        weight: CubeTensor,
        statistics: CubeTensor,
        dy: CubeTensor,
        added: CubeTensor,
        adds: bool,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        let added = adds.then_some((added, HandsOn::Sum));
        let (dx, _, [dweight, dbias, _]) = backward(x, weight, statistics, dy, added, true, None);
        (dx, dweight, dbias)
    }

    fn norm_of_sum_backward(
        sum: CubeTensor,
        weight: CubeTensor,
        statistics: CubeTensor,
        dy: CubeTensor,
        added: CubeTensor,
        adds: Option<HandsOn>,
        seed: CubeTensor,
        p: f64,
        dtype: FloatDType,
    ) -> (CubeTensor, CubeTensor, CubeTensor, CubeTensor, CubeTensor) {
        let of_sum = Some((Dropped { seed, p }, dtype));
        let (dsum, dx, [dweight, dnorm_bias, dbias]) =
            backward(sum, weight, statistics, dy, adds.map(|rows| (added, rows)), true, of_sum);
        (dsum, dx, dweight, dnorm_bias, dbias)
    }
}

/// The terms that are added to `x` before it is normalised.
pub(in crate::ops) struct Terms {
    residual: CubeTensor,
    /// A bias that is added first, if there is one, and the dropout of that sum.
    before: Option<(Option<CubeTensor>, Dropped)>,
}

/// A dropout of probability `p`.
pub(in crate::ops) struct Dropped {
    seed: CubeTensor,
    p: f64,
}

/// `(y, rows, sum, statistics)`, as [`NormKernels`] has them: `y` in `dtype`, and for the sum `x`
/// itself where there are no terms. Without a bias the mean is taken for 0.
pub(in crate::ops) fn normalised(
    x: CubeTensor,
    terms: Option<Terms>,
    weight: CubeTensor,
    norm_bias: Option<CubeTensor>,
    eps: f32,
    dtype: FloatDType,
    copies: bool,
) -> (CubeTensor, CubeTensor, CubeTensor, CubeTensor) {
    let ((x, pitch), weight) = (rows_of(x), into_contiguous(weight));
    let [rows, width] = dims2(&x);
    let (residual, before) = terms.map_or((None, None), |terms| (Some(terms.residual), terms.before));
    let (bias, seed, p) = before.map_or((None, None, 0.0), |(bias, Dropped { seed, p })| (bias, Some(seed), p));
    let seed = seed.filter(|_| p > 0.0);
    let [norm_bias, residual, bias, seed] = [norm_bias, residual, bias, seed].map(|tensor| tensor.map(into_contiguous));
    let (y, statistics) = (empty_in(&weight, [rows, width], dtype.into()), empty(&weight, [rows, 2]));
    let sum = residual.as_ref().map(|residual| empty(residual, [rows, width]));
    let copy = copies.then(|| empty(&weight, [rows, width]));
    let vector = [Some(&weight), norm_bias.as_ref(), residual.as_ref(), bias.as_ref(), Some(&y)]
        .into_iter()
        .flatten()
        .map(|other| vector(other, [width]))
        .fold(vector(&x, [width, pitch]), usize::min);
    let form = Strip::new(&x, width / vector);
    let cubes = rows.div_ceil(form.groups);
    let (count, dim) = by_cube(&x, cubes, form.lanes * form.groups);
    // SAFETY: a group reads and writes its own row, if there is one, at vectors below `width`. The
    // sum is written where there are terms, and they are read there alone; so is the copy where it
    // is wanted; a seed is two numbers.
    unsafe {
        norm_rows::launch_unchecked(
            &x.client,
            count,
            dim,
            addresses([&x, &y]),
            vector,
            buffer(&x),
            buffer(&weight),
            buffer_or(norm_bias.as_ref(), WEIGHT),
            buffer_or(bias.as_ref(), WEIGHT),
            buffer_or(residual.as_ref(), WEIGHT),
            buffer_or(seed.as_ref(), WEIGHT),
            buffer_or(sum.as_ref(), WEIGHT),
            buffer(&y),
            buffer_or(copy.as_ref(), WEIGHT),
            buffer(&statistics),
            rows,
            width / vector,
            pitch / vector,
            threshold(p),
            scale(p),
            1.0 / width as f32,
            eps,
            norm_bias.is_some(),
            sum.is_some(),
            bias.is_some(),
            seed.is_some(),
            copies,
            form,
            element(&x),
            element(&y),
        );
    }
    let sum = sum.unwrap_or(x);
    (y, copy.unwrap_or_else(|| sum.clone()), sum, statistics)
}

/// `(dx, dterm, [dweight, dnorm_bias, dbias])` of [`normalised`], with `added`, the gradient of the
/// rows that are handed on: it is added to `dx`, or where they are the result to `dy`. Of a sum
/// with a dropout, `of_sum`, `dterm` is the gradient of what was dropped out, in a type of its own,
/// and `dbias` its sum over rows; else `dterm` is `dx`. Sums that there are not have one element,
/// which is not written.
pub(in crate::ops) fn backward(
    x: CubeTensor,
    weight: CubeTensor,
    statistics: CubeTensor,
    dy: CubeTensor,
    added: Option<(CubeTensor, HandsOn)>,
    has_bias: bool,
    of_sum: Option<(Dropped, FloatDType)>,
) -> (CubeTensor, CubeTensor, [CubeTensor; 3]) {
    let [x, weight, statistics, dy] = [x, weight, statistics, dy].map(into_contiguous);
    let [rows, width] = dims2(&x);
    let dx = empty(&x, [rows, width]);
    let has_term = of_sum.is_some();
    let (seed, p, dtype) =
        of_sum.map_or((None, 0.0, FloatDType::F32), |(Dropped { seed, p }, dtype)| (Some(seed), p, dtype));
    let (added, rows_of_added) = added.unzip();
    let (added, seed) = (added.map(into_contiguous), seed.filter(|_| p > 0.0).map(into_contiguous));
    let writes_term = p > 0.0 || dtype != FloatDType::F32;
    let dterm = writes_term.then(|| empty_in(&x, [rows, width], dtype.into()));
    let vector = [Some(&weight), Some(&dy), added.as_ref(), Some(&dx)]
        .into_iter()
        .flatten()
        .map(|other| vector(other, [width]))
        .fold(vector(&x, [width]), usize::min);
    let strips = match has_term {
        true => Strips::holding(OF_SUM, &x, rows, width / vector),
        false => Strips::new(&x, rows, width / vector),
    };
    let sums = 1 + usize::from(has_bias) + usize::from(has_term);
    let parts = empty(&x, [strips.strips, sums * width]);
    // SAFETY: a group reads and writes rows of its strip below `rows`, at vectors below `width`;
    // the cube of a strip, if there is one, writes that strip's sums; a seed is two numbers.
    unsafe {
        norm_backward_strips::launch_unchecked(
            &x.client,
            strips.count.clone(),
            strips.dim,
            addresses([&x, &dy]),
            vector,
            buffer(&x),
            buffer(&weight),
            buffer(&statistics),
            buffer(&dy),
            buffer_or(added.as_ref(), WEIGHT),
            buffer_or(seed.as_ref(), WEIGHT),
            buffer_or(dterm.as_ref(), WEIGHT),
            buffer(&dx),
            buffer(&parts),
            rows,
            width / vector,
            strips.strips,
            threshold(p),
            scale(p),
            1.0 / width as f32,
            rows_of_added == Some(HandsOn::Sum),
            rows_of_added == Some(HandsOn::Result),
            has_bias,
            has_term,
            dterm.is_some(),
            seed.is_some(),
            strips.form,
            element(&dy),
            element(dterm.as_ref().unwrap_or(&dx)),
        );
    }
    let sums = strips.total(parts, width, sums);
    let dterm = dterm.unwrap_or_else(|| dx.clone());
    (dx, dterm, sums)
}

/// The normalised rows of `x`, or of a sum that it `adds`: `residual + x`, with a bias where it
/// `is_biased` and the mask of `seed` where it `drops`. Where it `copies`, the rows in f32 as well.
#[cube(launch_unchecked, address_type = "dynamic")]
fn norm_rows<F: Float, G: Float, N: Size>(
    x: &[Vector<F, N>],
    weight: &[Vector<f32, N>],
    norm_bias: &[Vector<f32, N>],
    bias: &[Vector<f32, N>],
    residual: &[Vector<f32, N>],
    seed: &[i32],
    sum: &mut [Vector<f32, N>],
    y: &mut [Vector<G, N>],
    copy: &mut [Vector<f32, N>],
    statistics: &mut [f32],
    rows: usize,
    vectors: usize,
    pitch: usize,
    threshold: u32,
    scale: f32,
    per_width: f32,
    eps: f32,
    #[comptime] has_bias: bool,
    #[comptime] adds: bool,
    #[comptime] is_biased: bool,
    #[comptime] drops: bool,
    #[comptime] copies: bool,
    #[comptime] form: Strip,
    #[define(F)] _dtype: ElemType,
    #[define(G)] _result: ElemType,
) {
    let lanes = N::value().comptime();
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(2 * form.lanes * form.groups));
    if CUBE_POS * form.groups >= rows {
        terminate!();
    }
    let lane = UNIT_POS as usize % form.lanes;
    let row = CUBE_POS * form.groups + UNIT_POS as usize / form.lanes;
    let is_row = row < rows;
    let start = row * vectors;
    let zero = Vector::<f32, N>::new(0.0f32);
    let mut normalised = Array::<Vector<f32, N>>::new(form.each);
    let mut total = zero;
    #[unroll]
    for j in 0..form.each {
        let at = lane + comptime!(j * form.lanes);
        let mut values = zero;
        if is_row && at < vectors {
            values = Vector::<f32, N>::cast_from(x[row * pitch + at]);
            if comptime!(is_biased) {
                values = values + bias[at];
            }
            if comptime!(drops) {
                #[unroll]
                for k in 0..lanes {
                    let column = u32::cast_from(at * lanes + k);
                    let factor = factor(seed, u32::cast_from(row), column, threshold, scale);
                    values.insert(k, values.extract(k) * factor);
                }
            }
            if comptime!(adds) {
                values = values + residual[start + at];
                sum[start + at] = values;
            }
        }
        total = total + values;
        normalised[j] = values;
    }
    let width = f32::cast_from(vectors * lanes);
    let mut mean = 0.0f32;
    if comptime!(has_bias) {
        let mut of_unit = 0.0f32;
        #[unroll]
        for k in 0..lanes {
            of_unit += total.extract(k);
        }
        let (of_row, _) = group_sums(of_unit, 0.0f32, &mut scratch, form);
        mean = of_row / width;
    }
    let mut squares = zero;
    #[unroll]
    for j in 0..form.each {
        let at = lane + comptime!(j * form.lanes);
        let mut centred = zero;
        if at < vectors {
            centred = normalised[j] - Vector::<f32, N>::new(mean);
        }
        squares = squares + centred * centred;
        normalised[j] = centred;
    }
    let mut of_unit = 0.0f32;
    #[unroll]
    for k in 0..lanes {
        of_unit += squares.extract(k);
    }
    let (of_row, _) = group_sums(of_unit, 0.0f32, &mut scratch, form);
    // A division by the width spills registers here on CUDA.
    let rstd = 1.0f32 / (of_row * per_width + eps).sqrt();
    if is_row {
        #[unroll]
        for j in 0..form.each {
            let at = lane + comptime!(j * form.lanes);
            if at < vectors {
                let mut value = normalised[j] * Vector::<f32, N>::new(rstd) * weight[at];
                if comptime!(has_bias) {
                    value = value + norm_bias[at];
                }
                y[start + at] = Vector::<G, N>::cast_from(value);
                if comptime!(copies) {
                    copy[start + at] = value;
                }
            }
        }
        if lane == 0 {
            statistics[2 * row] = mean;
            statistics[2 * row + 1] = rstd;
        }
    }
}

/// `dx = rstd (g - mean(g) - n mean(g n))` with `n` the normalised row and `g = dy * weight`;
/// around 0, without a bias, `mean(g)` is none of it. `added` may be added to it, or first to `dy`.
/// A strip's sums over columns of `dy n`, and with a bias those of `dy` behind them, are a row of
/// `parts`. Where the row is a sum that `has_term`, the gradient of that, dropped out where it
/// `drops`, is written to `dterm`, if that is another than `dx`, and has the last sums. Each number
/// of a row is read once: a unit holds its share in registers.
#[cube(launch_unchecked, address_type = "dynamic")]
fn norm_backward_strips<F: Float, G: Float, N: Size>(
    x: &[Vector<f32, N>],
    weight: &[Vector<f32, N>],
    statistics: &[f32],
    dy: &[Vector<F, N>],
    added: &[Vector<f32, N>],
    seed: &[i32],
    dterm: &mut [Vector<G, N>],
    dx: &mut [Vector<f32, N>],
    parts: &mut [Vector<f32, N>],
    rows: usize,
    vectors: usize,
    strips: usize,
    threshold: u32,
    scale: f32,
    per_width: f32,
    #[comptime] adds: bool,
    #[comptime] adds_first: bool,
    #[comptime] has_bias: bool,
    #[comptime] has_term: bool,
    #[comptime] writes_term: bool,
    #[comptime] drops: bool,
    #[comptime] form: Strip,
    #[define(F)] _dtype: ElemType,
    #[define(G)] _term: ElemType,
) {
    let units = comptime!(form.lanes * form.groups);
    let lanes = N::value().comptime();
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(2 * units));
    let mut columns = Shared::<[Vector<f32, N>]>::new_slice(units);
    let strip = CUBE_POS;
    if strip >= strips {
        terminate!();
    }
    let lane = UNIT_POS as usize % form.lanes;
    let group = UNIT_POS as usize / form.lanes;
    let zero = Vector::<f32, N>::new(0.0f32);
    let mut normalised = Array::<Vector<f32, N>>::new(form.each);
    let mut gradients = Array::<Vector<f32, N>>::new(form.each);
    let mut of_weight = Array::<Vector<f32, N>>::new(form.each);
    let mut of_bias = Array::<Vector<f32, N>>::new(form.each);
    let mut of_term = Array::<Vector<f32, N>>::new(form.each);
    #[unroll]
    for j in 0..form.each {
        of_weight[j] = zero;
        of_bias[j] = zero;
        of_term[j] = zero;
    }
    for round in 0..comptime!(form.rounds()) {
        let row = strip * comptime!(form.rows()) + round * form.groups + group;
        let is_row = row < rows;
        let mut mean = 0.0f32;
        let mut rstd = 0.0f32;
        if is_row {
            mean = statistics[2 * row];
            rstd = statistics[2 * row + 1];
        }
        let start = row * vectors;
        let mut sums_g = zero;
        let mut sums_gn = zero;
        #[unroll]
        for j in 0..form.each {
            let at = lane + comptime!(j * form.lanes);
            let mut normal = zero;
            let mut g = zero;
            let mut scaled = zero;
            if is_row && at < vectors {
                normal = (x[start + at] - Vector::<f32, N>::new(mean)) * Vector::<f32, N>::new(rstd);
                g = Vector::<f32, N>::cast_from(dy[start + at]);
                if comptime!(adds_first) {
                    g = g + added[start + at];
                }
                scaled = g * weight[at]; // read for each row: ptxas spills more where registers hold it
            }
            of_weight[j] = of_weight[j] + g * normal;
            of_bias[j] = of_bias[j] + g;
            sums_g = sums_g + scaled;
            sums_gn = sums_gn + scaled * normal;
            normalised[j] = normal;
            gradients[j] = scaled;
        }
        let mut sum_g = 0.0f32;
        let mut sum_gn = 0.0f32;
        #[unroll]
        for k in 0..lanes {
            sum_g += sums_g.extract(k);
            sum_gn += sums_gn.extract(k);
        }
        let (sum_g, sum_gn) = group_sums(sum_g, sum_gn, &mut scratch, form);
        let mut mean_g = 0.0f32;
        if comptime!(has_bias) {
            mean_g = sum_g * per_width;
        }
        let mean_gn = sum_gn * per_width;
        if is_row {
            #[unroll]
            for j in 0..form.each {
                let at = lane + comptime!(j * form.lanes);
                if at < vectors {
                    let centred = gradients[j] - Vector::<f32, N>::new(mean_g);
                    let mut gradient =
                        Vector::<f32, N>::new(rstd) * (centred - normalised[j] * Vector::<f32, N>::new(mean_gn));
                    if comptime!(adds) {
                        gradient = gradient + added[start + at];
                    }
                    dx[start + at] = gradient;
                    if comptime!(has_term) {
                        if comptime!(drops) {
                            #[unroll]
                            for k in 0..lanes {
                                let column = u32::cast_from(at * lanes + k);
                                let factor = factor(seed, u32::cast_from(row), column, threshold, scale);
                                gradient.insert(k, gradient.extract(k) * factor);
                            }
                        }
                        if comptime!(writes_term) {
                            let rounded = Vector::<G, N>::cast_from(gradient);
                            dterm[start + at] = rounded;
                            gradient = Vector::<f32, N>::cast_from(rounded);
                        }
                        of_term[j] = of_term[j] + gradient;
                    }
                }
            }
        }
    }
    let sums = comptime!(1usize + if has_bias { 1usize } else { 0usize } + if has_term { 1usize } else { 0usize });
    let start = strip * sums * vectors;
    write_strip::<N>(&of_weight, parts, start, vectors, &mut columns, form);
    if comptime!(has_bias) {
        write_strip::<N>(&of_bias, parts, start + vectors, vectors, &mut columns, form);
    }
    if comptime!(has_term) {
        write_strip::<N>(&of_term, parts, start + comptime!(sums - 1) * vectors, vectors, &mut columns, form);
    }
}

/// The place of the weight among the buffers of both kernels.
const WEIGHT: usize = 1;

/// Vectors of a row that a unit takes in the backward of a sum, whose third sum over columns is six
/// arrays in registers: at four vectors ptxas 13.0 gives it 159 registers, and a multiprocessor
/// then holds one cube.
const OF_SUM: usize = 3;
