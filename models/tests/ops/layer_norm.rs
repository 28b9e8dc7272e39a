//! Layer normalisation, with and without a residual.

use burn::tensor::{FloatDType, Tensor, TensorData};
use kiln_models::ops::dropout::{DropoutRng, Stream, bias_dropout_residual};
use kiln_models::ops::layer_norm::layer_norm;
use kiln_models::ops::{Operand, PostNorm};
use kiln_models::{Compute, Ops};

use crate::dropout::factors;
use crate::{Input, agrees_with_host, agrees_with_plain, close, generator, input, read, run, vector, weights, wide};

const EPS: f64 = 1e-5;
/// Statistics of up to a few hundred values of order 1, each with a rounding of 6e-8, divided by a
/// deviation of 0.5.
const ROUNDING: f64 = 4e-6;

fn op(mut inputs: Vec<Tensor<2>>, ops: Ops) -> Tensor<1> {
    let residual = (inputs.len() == 4).then(|| inputs.pop().unwrap());
    let (bias, weight) = (vector(inputs.pop().unwrap()), vector(inputs.pop().unwrap()));
    vector(layer_norm(inputs.pop().unwrap(), residual, weight, bias, EPS, ops))
}

fn host(values: &[Vec<f64>]) -> Vec<f64> {
    let (weight, bias) = (&values[1], &values[2]);
    let x = match values.get(3) {
        Some(residual) => values[0].iter().zip(residual).map(|(x, r)| x + r).collect(),
        None => values[0].clone(),
    };
    let rows = x.chunks(weight.len()).flat_map(|row| {
        let n = row.len() as f64;
        let mean = row.iter().sum::<f64>() / n;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        let normalised = row.iter().map(move |x| (x - mean) / (variance + EPS).sqrt());
        normalised.zip(weight).zip(bias).map(|((x, w), b)| x * w + b).collect::<Vec<_>>()
    });
    rows.collect()
}

fn inputs(rows: usize, width: usize, residual: bool) -> Vec<Input> {
    let mut inputs = vec![input(rows, width, 1.0, 1), input(1, width, 1.0, 2), input(1, width, 1.0, 3)];
    inputs.extend(residual.then(|| input(rows, width, 1.0, 4)));
    inputs
}

#[test]
fn values_and_gradients() {
    for residual in [false, true] {
        for (rows, width) in [(1, 2), (3, 7), (2, 16), (5, 33), (1, 67)] {
            let what = format!("[{rows}, {width}], residual {residual}");
            agrees_with_host(&what, &inputs(rows, width, residual), &op, &host, ROUNDING);
            agrees_with_plain(&what, &inputs(rows, width, residual), &op, ROUNDING);
        }
        // Several blocks of rows: the gradients of weight and bias are sums over 1009 rows.
        agrees_with_plain("blocks", &inputs(1009, 97, residual), &op, 1e-5);
    }
}

/// The result is rounded, and the gradient that comes in; statistics and sums are f32.
#[test]
fn a_result_for_a_narrow_product() {
    for (dtype, rounding) in [(FloatDType::BF16, 2f64.powi(-8)), (FloatDType::F16, 2f64.powi(-11))] {
        if !crate::device().supports_dtype(dtype) {
            continue; // WGSL has no bf16
        }
        let narrow = |mut inputs: Vec<Tensor<2>>, ops: Ops| {
            let (bias, weight) = (vector(inputs.pop().unwrap()), vector(inputs.pop().unwrap()));
            let y = Operand::layer_norm(inputs.pop().unwrap(), weight, bias, EPS, ops).0.of_type(dtype);
            assert_eq!(y.dtype(), dtype.into());
            vector(y.cast(FloatDType::F32))
        };
        for (rows, width) in [(3, 7), (2, 67)] {
            let inputs = inputs(rows, width, false);
            agrees_with_host(&format!("{dtype:?}"), &inputs, &narrow, &host, 4.0 * rounding);
        }
    }
}

/// The branch of a block: `x + layer_norm(x) + bias`, plus another use of `x`, whose three
/// gradients are added.
#[test]
fn a_residual_that_the_normalisation_reads_as_well() {
    let branch = |mut inputs: Vec<Tensor<2>>, ops: Ops| {
        let [x, weight, bias, of_branch] = std::array::from_fn(|_| inputs.remove(0));
        let (rows, residual) = Operand::layer_norm(x.clone(), vector(weight), vector(bias), EPS, ops);
        let y = bias_dropout_residual(rows.wide(), vector(of_branch), residual, 0.0, DropoutRng::Off, ops);
        vector(y + x * 0.25)
    };
    let host = |values: &[Vec<f64>]| {
        let width = values[1].len();
        let y = host(&values[..3]);
        y.iter().zip(&values[0]).enumerate().map(|(i, (y, x))| y + 1.25 * x + values[3][i % width]).collect()
    };
    for (rows, width) in [(1, 2), (3, 7), (2, 16), (5, 33)] {
        let mut inputs = inputs(rows, width, false);
        inputs.push(input(1, width, 1.0, 4));
        agrees_with_host(&format!("[{rows}, {width}]"), &inputs, &branch, &host, ROUNDING);
        agrees_with_plain(&format!("[{rows}, {width}]"), &inputs, &branch, ROUNDING);
    }
}

/// Sums over columns are made in strips of rows: one that is not whole, one row, several strips,
/// and widths of whole vectors and of none. Gradients by their formulas in f64 (Ba et al. 2016);
/// two calls give the same bits.
#[test]
fn gradients_of_strips_of_rows_are_those_of_f64() {
    for (rows, width) in [(1, 768), (17, 40), (63, 67), (1000, 24), (70, 1030), (1000, 7), (3, 4100)] {
        for dtype in [FloatDType::F32, FloatDType::BF16, FloatDType::F16] {
            if !crate::device().supports_dtype(dtype) || crate::on_cpu() && dtype == FloatDType::F16 {
                continue; // WGSL has no bf16, and kernels of the CPU write no f16
            }
            let op = |mut inputs: Vec<Tensor<2>>, ops: Ops| {
                let (bias, weight) = (vector(inputs.pop().unwrap()), vector(inputs.pop().unwrap()));
                let y = Operand::layer_norm(inputs.pop().unwrap(), weight, bias, EPS, ops).0.of_type(dtype);
                vector(y.cast(FloatDType::F32))
            };
            let inputs = inputs(rows, width, false);
            let (_, grads) = run(&inputs, &op, Ops::Fused);
            let dy = weights(rows * width);
            let (mut dx, mut dweight, mut dbias) = (Vec::new(), vec![0.0; width], vec![0.0; width]);
            for (x, dy) in inputs[0].values.chunks(width).zip(dy.chunks(width)) {
                let (x, dy, n) = (wide(x), wide(&rounded(dy, dtype)), width as f64);
                let mean = x.iter().sum::<f64>() / n;
                let rstd = 1.0 / (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n + EPS).sqrt();
                let normalised = x.iter().map(|x| (x - mean) * rstd).collect::<Vec<_>>();
                let g = dy.iter().zip(&inputs[1].values).map(|(dy, w)| dy * f64::from(*w)).collect::<Vec<_>>();
                let mean_g = g.iter().sum::<f64>() / n;
                let mean_gn = g.iter().zip(&normalised).map(|(g, n)| g * n).sum::<f64>() / n;
                dx.extend(g.iter().zip(&normalised).map(|(g, n)| rstd * (g - mean_g - n * mean_gn)));
                for (i, (dy, n)) in dy.iter().zip(&normalised).enumerate() {
                    dweight[i] += dy * n;
                    dbias[i] += dy;
                }
            }
            let what = format!("{dtype:?} [{rows}, {width}]");
            close(&format!("{what}: dx"), &grads[0], &dx, ROUNDING);
            // Sums of up to 1000 terms of order 1, whose largest is about 30.
            close(&format!("{what}: dweight"), &grads[1], &dweight, 1e-5);
            close(&format!("{what}: dbias"), &grads[2], &dbias, 1e-5);
            assert_eq!(run(&inputs, &op, Ops::Fused).1, grads, "{what}: two calls");
        }
    }
}

/// Two branches of a block: the normalisation makes the sum `s = residual + dropout(x + bias)` of
/// the first, and the second adds what is normalised to it. Values and gradients by their formulas
/// in f64, and of the two operators one after the other; two calls give the same bits.
#[test]
fn a_sum_that_the_normalisation_makes() {
    branches_around_a_sum(false);
}

/// The result is the operand of the next products, in their type, and a residual in f32.
#[test]
fn a_result_that_the_normalisation_writes_twice() {
    branches_around_a_sum(true);
}

/// The normalisation of a sum and a branch that adds to what goes around it: the sum, or where it
/// `is_post_norm` the result. Values and gradients are held against their formulas in f64.
fn branches_around_a_sum(is_post_norm: bool) {
    let _alone = generator();
    for (rows, width) in [(1, 40), (63, 67), (1000, 40), (63, 768), (63, 1024), (1000, 67)] {
        let [f32, f16, bf16] = [FloatDType::F32, FloatDType::F16, FloatDType::BF16];
        for (dtype, p) in [(f32, 0.0), (f32, 0.3), (f16, 0.3), (bf16, 0.0), (bf16, 0.3)] {
            let is_narrow = dtype != f32;
            if is_narrow && (crate::on_cpu() || !crate::device().supports_dtype(dtype)) {
                continue; // WGSL has no bf16, and the kernels of the CPU read f32
            }
            let branches = |mut inputs: Vec<Tensor<2>>, ops: Ops, makes_sum: bool| {
                crate::device().seed(17);
                let [x, bias, residual, weight, norm_bias] = std::array::from_fn(|_| inputs.remove(0));
                let none = Tensor::zeros([width], &x.device());
                let sum = Stream::sum(x.cast(dtype), vector(bias), residual, p, DropoutRng::Device, ops);
                let sum = if makes_sum { sum } else { sum.rows().into() };
                let (weight, norm_bias) = (vector(weight), vector(norm_bias));
                let (y, residual) = match is_post_norm {
                    true => PostNorm::layer_norm(sum, weight, norm_bias, EPS, ops).branch(Compute::new(ops, dtype)),
                    false => Operand::layer_norm(sum, weight, norm_bias, EPS, ops),
                };
                let y = y.of_type(dtype);
                if makes_sum && ops == Ops::Fused {
                    assert_eq!(y.dtype(), dtype.into(), "the type of the operand");
                }
                vector(bias_dropout_residual(y, none, residual, 0.0, DropoutRng::Off, ops))
            };
            let op = |inputs: Vec<Tensor<2>>, ops: Ops| branches(inputs, ops, true);
            let mut inputs = vec![input(rows, width, 2.0, 1), input(1, width, 1.0, 2), input(rows, width, 1.0, 3)];
            // Numbers of 5 bits are themselves in all types.
            inputs[0].values.iter_mut().for_each(|x| *x = (*x * 8.0).round() / 8.0);
            inputs.extend([input(1, width, 1.0, 4), input(1, width, 1.0, 5)]);
            let mask = if p > 0.0 { factors(rows, width, p, 17) } else { vec![1.0; rows * width] };
            let (y, grads) = run(&inputs, &op, Ops::Fused);

            let [x, bias, residual, weight, norm_bias] = std::array::from_fn(|i| wide(&inputs[i].values));
            let (dy, mask) = (weights(rows * width), wide(&mask));
            let (mut of_norm, n) = (wide(&rounded(&dy, dtype)), width as f64);
            if is_post_norm {
                of_norm.iter_mut().zip(&dy).for_each(|(of_norm, dy)| *of_norm += f64::from(*dy));
            }
            let around = if is_post_norm { 0.0 } else { 1.0 };
            let (mut expected, mut dsum, mut dx) = (Vec::new(), Vec::new(), Vec::new());
            let [mut dweight, mut dnorm_bias, mut dbias] = std::array::from_fn(|_| vec![0.0; width]);
            for first in (0..rows * width).step_by(width) {
                let sum = (0..width)
                    .map(|i| residual[first + i] + mask[first + i] * (x[first + i] + bias[i]))
                    .collect::<Vec<_>>();
                let mean = sum.iter().sum::<f64>() / n;
                let rstd = 1.0 / (sum.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n + EPS).sqrt();
                let normal = sum.iter().map(|x| (x - mean) * rstd).collect::<Vec<_>>();
                let g = (0..width).map(|i| of_norm[first + i] * weight[i]).collect::<Vec<_>>();
                let mean_g = g.iter().sum::<f64>() / n;
                let mean_gn = g.iter().zip(&normal).map(|(g, n)| g * n).sum::<f64>() / n;
                for i in 0..width {
                    expected.push(around * sum[i] + (2.0 - around) * (normal[i] * weight[i] + norm_bias[i]));
                    dweight[i] += of_norm[first + i] * normal[i];
                    dnorm_bias[i] += of_norm[first + i];
                    let of_sum = rstd * (g[i] - mean_g - normal[i] * mean_gn);
                    dsum.push(around * f64::from(dy[first + i]) + of_sum);
                    dx.push(mask[first + i] * dsum[first + i]);
                    dbias[i] += dx[first + i];
                }
            }
            let what = format!("{dtype:?} [{rows}, {width}] p = {p}");
            // bf16 has 8 bits; sums of up to 1000 terms are of order 30, and their terms are
            // rounded either way.
            let rounding = if is_narrow { 2f64.powi(-8) } else { ROUNDING };
            let of_sums = if is_narrow { 2.0 * rounding } else { 1e-5 };
            close(&format!("{what}: value"), &y, &expected, rounding);
            let of_each = [("x", &dx, rounding), ("bias", &dbias, of_sums), ("residual", &dsum, ROUNDING)];
            let of_norm = [("weight", &dweight, 1e-5), ("norm's bias", &dnorm_bias, 1e-5)];
            for ((name, expected, tolerance), got) in of_each.into_iter().chain(of_norm).zip(&grads) {
                close(&format!("{what}: gradient of {name}"), got, expected, tolerance);
            }
            assert_eq!(run(&inputs, &op, Ops::Fused), (y.clone(), grads.clone()), "{what}: two calls");

            let apart = |inputs: Vec<Tensor<2>>, ops: Ops| branches(inputs, ops, false);
            let (of_apart, grads_apart) = run(&inputs, &apart, Ops::Fused);
            close(&format!("{what}: value apart"), &y, &wide(&of_apart), rounding);
            for (i, (got, expected)) in grads.iter().zip(&grads_apart).enumerate() {
                close(&format!("{what}: gradient {i} apart"), got, &wide(expected), of_sums);
            }
            if !is_narrow && p == 0.0 && rows < 100 {
                agrees_with_plain(&what, &inputs, &op, ROUNDING);
            }
        }
    }
}

/// The gradient of a residual is that of the sum where nobody reads what was normalised.
#[test]
fn a_residual_of_rows_that_are_not_normalised() {
    let inputs = vec![input(5, 33, 1.0, 1), input(5, 33, 1.0, 2)];
    for is_rms in [false, true] {
        let op = |mut inputs: Vec<Tensor<2>>, ops: Ops| {
            let (y, x) = (inputs.pop().unwrap(), inputs.pop().unwrap());
            let [ones, zeros] = [Tensor::ones([33], &x.device()), Tensor::zeros([33], &x.device())];
            let (_, residual) = match is_rms {
                false => Operand::layer_norm(x, ones, zeros, EPS, ops),
                true => Operand::rms_norm(x, ones, EPS, ops),
            };
            vector(bias_dropout_residual(y, None, residual, 0.0, DropoutRng::Off, ops))
        };
        let (_, grads) = run(&inputs, &op, Ops::Fused);
        let dy = weights(5 * 33);
        assert_eq!(grads, vec![dy.clone(), dy], "RMSNorm: {is_rms}");
    }
}

/// Without a bias the sum and all gradients have the bits of those with a bias of zeros.
#[test]
fn a_sum_without_a_bias_that_the_normalisation_makes() {
    let _alone = generator();
    for (rows, width) in [(1, 40), (33, 67)] {
        let inputs = [(rows, 1), (rows, 2), (1, 3), (1, 4)].map(|(rows, seed)| input(rows, width, 1.0, seed));
        let [without, with] = [false, true].map(|has_bias| {
            let op = |mut inputs: Vec<Tensor<2>>, ops: Ops| {
                crate::device().seed(5);
                let [x, residual, weight, norm_bias] = std::array::from_fn(|_| inputs.remove(0));
                let bias = has_bias.then(|| Tensor::zeros([width], &x.device()));
                let sum = Stream::sum(x, bias, residual, 0.3, DropoutRng::Device, ops);
                vector(layer_norm(sum, None, vector(weight), vector(norm_bias), EPS, ops))
            };
            run(&inputs, &op, Ops::Fused)
        });
        assert_eq!(without, with, "[{rows}, {width}]");
    }
}

/// `values` as a tensor of `dtype` has them.
fn rounded(values: &[f32], dtype: FloatDType) -> Vec<f32> {
    let row = Tensor::<1>::from_data(TensorData::new(values.to_vec(), [values.len()]), &crate::device());
    read(row.cast(dtype).cast(FloatDType::F32))
}

#[test]
fn one_feature_is_its_bias() {
    // The variance is 0, so only eps stands under the root, and 1 / sqrt(eps) multiplies a
    // difference that is 0.
    let (y, grads) = run(&inputs(3, 1, false), &op, Ops::Fused);
    let bias = inputs(3, 1, false)[2].values[0];
    assert_eq!(y, [bias; 3]);
    assert!(grads[0].iter().all(|g| g.abs() < 1e-3), "{grads:?}");
}

#[test]
fn a_row_far_from_zero_keeps_its_deviation() {
    // One pass over squares would lose all digits here.
    let mut shifted = inputs(2, 31, false);
    shifted[0].values.iter_mut().for_each(|x| *x += 1000.0);
    // The inputs themselves are rounded to 6e-5 at 1000.
    agrees_with_host("shifted", &shifted, &op, &host, 2e-4);
}
