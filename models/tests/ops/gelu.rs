//! `gelu(x + bias)`.

use burn::tensor::{FloatDType, Tensor};
use kiln_models::ops::gelu::bias_gelu;
use kiln_models::{Activation, Ops};

use crate::{Input, agrees_with_host, agrees_with_plain, close, input, on_cpu, run, vector, wide};

/// A few roundings of f32 (6e-8) at values of order 1 to 6.
const ROUNDING: f64 = 1e-6;
/// The plain composition adds 1 to a `tanh` or an `erf` near -1, which leaves 6e-8 of 1 in a result
/// of 1e-2; off the CPU `erf` itself is a polynomial with an error of 1.5e-7 (Abramowitz & Stegun
/// 7.1.26).
fn cancellation() -> f64 {
    if on_cpu() { 1e-5 } else { 1e-4 }
}

/// `erf` to 1e-12 by its series (Abramowitz & Stegun 7.1.5); good for `|x| < 5`.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term.abs() > 1e-17 {
        n += 1.0;
        term *= -x * x / n;
        sum += term / (2.0 * n + 1.0);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

pub(crate) fn gelu(x: f64, kind: Activation) -> f64 {
    match kind {
        Activation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
        }
        Activation::GeluErf => 0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)),
    }
}

fn op(kind: Activation) -> impl Fn(Vec<Tensor<2>>, Ops) -> Tensor<1> {
    move |mut inputs, ops| {
        let bias = vector(inputs.pop().unwrap());
        vector(bias_gelu(inputs.pop().unwrap(), bias, kind, ops))
    }
}

#[test]
fn values_and_gradients() {
    for kind in [Activation::GeluTanh, Activation::GeluErf] {
        for (rows, width) in [(1, 1), (1, 31), (3, 7), (2, 17), (5, 33)] {
            let inputs = [input(rows, width, 3.0, 1), input(1, width, 1.0, 2)];
            let host = |values: &[Vec<f64>]| {
                values[0].iter().enumerate().map(|(i, x)| gelu(x + values[1][i % width], kind)).collect()
            };
            let what = format!("{kind:?} [{rows}, {width}]");
            agrees_with_host(&what, &inputs, &op(kind), &host, ROUNDING);
            agrees_with_plain(&what, &inputs, &op(kind), cancellation());
        }
        // Several blocks of rows, and the last one is not whole.
        agrees_with_plain("blocks", &[input(1009, 67, 4.0, 3), input(1, 67, 1.0, 4)], &op(kind), 2e-6);
    }
}

/// Off the CPU the kernel reads and writes the type of products. Rows of 7 have a pitch on CUDA.
#[test]
fn narrow_values_are_computed_in_f32() {
    for (dtype, rounding) in [(FloatDType::BF16, 2f64.powi(-8)), (FloatDType::F16, 2f64.powi(-11))] {
        if on_cpu() || !crate::device().supports_dtype(dtype) {
            continue;
        }
        for kind in [Activation::GeluTanh, Activation::GeluErf] {
            let mut inputs = [input(3, 7, 3.0, 1), input(1, 7, 1.0, 2)];
            // Numbers of 6 bits are themselves in both types.
            inputs[0].values.iter_mut().for_each(|x| *x = (*x * 8.0).round() / 8.0);
            let narrow = |mut inputs: Vec<Tensor<2>>, ops: Ops| {
                let bias = vector(inputs.pop().unwrap());
                let y = bias_gelu(inputs.pop().unwrap().cast(dtype), bias, kind, ops);
                assert_eq!(y.dtype(), dtype.into());
                vector(y.cast(FloatDType::F32))
            };
            let host = |values: &[Vec<f64>]| {
                values[0].iter().enumerate().map(|(i, x)| gelu(x + values[1][i % 7], kind)).collect()
            };
            agrees_with_host(&format!("{dtype:?} {kind:?}"), &inputs, &narrow, &host, 2.0 * rounding);
        }
    }
}

/// The bias's gradient is summed in strips of rows by the kernel that writes that of `x`: it is the
/// f64 sum of what is written, and the same in two calls.
#[test]
fn sums_of_strips_of_rows_are_those_of_f64() {
    for (rows, width) in [(1, 31), (17, 48), (63, 67), (1000, 24), (70, 1030), (1000, 7)] {
        for dtype in [FloatDType::F32, FloatDType::BF16, FloatDType::F16] {
            if !crate::device().supports_dtype(dtype) || on_cpu() && dtype != FloatDType::F32 {
                continue;
            }
            let inputs = [input(rows, width, 3.0, 1), input(1, width, 1.0, 2)];
            let op = |mut inputs: Vec<Tensor<2>>, ops: Ops| {
                let bias = vector(inputs.pop().unwrap());
                vector(
                    bias_gelu(inputs.pop().unwrap().cast(dtype), bias, Activation::GeluTanh, ops).cast(FloatDType::F32),
                )
            };
            let (_, grads) = run(&inputs, &op, Ops::Fused);
            let dbias = (0..width).map(|c| wide(&grads[0]).iter().skip(c).step_by(width).sum()).collect::<Vec<f64>>();
            // Sums in f32 of up to 1000 terms.
            close(&format!("{dtype:?} [{rows}, {width}]"), &grads[1], &dbias, 1e-5);
            assert_eq!(run(&inputs, &op, Ops::Fused).1, grads, "{dtype:?} [{rows}, {width}]: two calls");
        }
    }
}

#[test]
fn the_tails_keep_their_precision() {
    let x = [-40.0f32, -13.0, -9.0, -5.5, -4.0, 4.0, 9.0, 40.0, 1e4, -1e4, 0.0, -0.0];
    let inputs =
        [Input { values: x.to_vec(), shape: [1, x.len()] }, Input { values: vec![0.0; x.len()], shape: [1, x.len()] }];
    for kind in [Activation::GeluTanh, Activation::GeluErf] {
        let (y, grads) = run(&inputs, &op(kind), Ops::Fused);
        assert!(y.iter().chain(&grads[0]).all(|value| value.is_finite()), "{kind:?}: {y:?} {grads:?}");
        assert_eq!(y[6..9], x[6..9]);
        assert!(y[..2].iter().all(|y| y.abs() < 1e-12), "{y:?}");
        for i in [3, 4] {
            // Relative: the plain composition has lost these digits to cancellation, and so has the
            // series of `erf`.
            let expected = match (kind, x[i]) {
                (Activation::GeluErf, -5.5) => -5.5 * 1.898_956_246_588_772e-8, // scipy.stats.norm.cdf
                (Activation::GeluErf, _) => -4.0 * 3.167_124_183_311_986e-5,
                (Activation::GeluTanh, x) => gelu(f64::from(x), kind),
            };
            // The exponent is of order 30 with an error of 6e-8 relative.
            assert!(
                (f64::from(y[i]) / expected - 1.0).abs() < 5e-6,
                "{kind:?}({}) = {}, expected {expected}",
                x[i],
                y[i]
            );
        }
    }
}

#[test]
fn nan_stays_nan() {
    let inputs = [Input { values: vec![f32::NAN, 1.0], shape: [1, 2] }, Input { values: vec![0.0; 2], shape: [1, 2] }];
    for kind in [Activation::GeluTanh, Activation::GeluErf] {
        let (y, grads) = run(&inputs, &op(kind), Ops::Fused);
        assert!(y[0].is_nan() && grads[0][0].is_nan() && y[1].is_finite(), "{y:?} {grads:?}");
    }
}
