//! Dropout from a counter-based generator, alone and in `residual + dropout(x + bias)`.

use burn::tensor::{FloatDType, Tensor};
use kiln_models::Ops;
use kiln_models::ops::dropout::{DropoutRng, bias_dropout_residual, dropout};

use crate::{agrees_with_host, agrees_with_plain, close, generator, input, noise, read, run, vector, wide};

/// The factors that dropout with this seed gives the elements of `[rows, cols]`: its result for
/// ones.
pub(crate) fn factors(rows: usize, cols: usize, p: f64, seed: u64) -> Vec<f32> {
    let device = crate::device();
    device.seed(seed);
    read(dropout(Tensor::ones([rows, cols], &device), p, DropoutRng::Device, Ops::Fused))
}

#[test]
fn the_rate_holds_and_the_mean_stays() {
    let _alone = generator();
    for p in [0.1, 0.5, 0.9] {
        let (rows, cols) = (307, 331);
        let all = factors(rows, cols, p, 5);
        let n = all.len() as f64;
        let scale = (1.0 / (1.0 - p)) as f32;
        assert!(all.iter().all(|&f| f == 0.0 || f == scale));
        // A binomial count is within 4 standard deviations of its mean but for one case in 16,000.
        let deviation = (n * p * (1.0 - p)).sqrt();
        let dropped = all.iter().filter(|f| **f == 0.0).count() as f64;
        assert!((dropped - n * p).abs() < 4.0 * deviation, "p = {p}: {dropped} of {n} dropped");
        // No row and no column is off either: chi-square with one degree of freedom each, in its
        // normal approximation.
        let lines = |of: &dyn Fn(usize, usize) -> f32, outer: usize, inner: usize| {
            let expected = inner as f64 * p;
            let variance = inner as f64 * p * (1.0 - p);
            let line = |i: usize| (0..inner).filter(|&j| of(i, j) == 0.0).count() as f64;
            (0..outer).map(|i| (line(i) - expected).powi(2) / variance).sum::<f64>() / outer as f64
        };
        for chi in [lines(&|i, j| all[i * cols + j], rows, cols), lines(&|i, j| all[j * cols + i], cols, rows)] {
            // Mean of about 300 squares of standard normals: 1 with a standard deviation of 0.08.
            assert!((chi - 1.0).abs() < 0.35, "p = {p}: {chi}");
        }
        // Neighbours in a row are independent.
        let pairs = all.windows(2).filter(|pair| pair[0] == 0.0 && pair[1] == 0.0).count() as f64;
        let expected = (n - 1.0) * p * p;
        assert!((pairs - expected).abs() < 6.0 * expected.sqrt(), "p = {p}: {pairs} pairs, expected {expected}");
    }
}

#[test]
fn seeds_decide() {
    let _alone = generator();
    assert_eq!(factors(13, 17, 0.5, 1), factors(13, 17, 0.5, 1));
    assert_ne!(factors(13, 17, 0.5, 1), factors(13, 17, 0.5, 2));
    let device = crate::device();
    let draw = || read(dropout(Tensor::ones([13, 17], &device), 0.5, DropoutRng::Device, Ops::Fused));
    assert_ne!(draw(), draw(), "two draws");
    assert_eq!(read(dropout(Tensor::ones([3, 4], &device), 0.5, DropoutRng::Off, Ops::Fused)), [1.0; 12]);
}

#[test]
fn without_dropout_it_is_the_composition() {
    for (rows, width) in [(1, 1), (3, 7), (5, 33), (1009, 67)] {
        let inputs = [input(rows, width, 1.0, 1), input(1, width, 1.0, 2), input(rows, width, 1.0, 3)];
        let op = |inputs: Vec<Tensor<2>>, ops| {
            let [x, bias, residual] = inputs.try_into().unwrap();
            vector(bias_dropout_residual(x, vector(bias), residual, 0.3, DropoutRng::Off, ops))
        };
        // One addition more or less; the bias's gradient is a sum of up to 1009 terms.
        agrees_with_plain(&format!("[{rows}, {width}]"), &inputs, &op, 5e-6);
    }
}

/// Off the CPU the kernel reads the type of products, and gives the gradient of `x` in it. Rows of
/// 7 have a pitch on CUDA, and those of 24 are read in vectors.
#[test]
fn a_narrow_product_is_added_to_an_f32_residual() {
    let _alone = generator();
    for (dtype, rounding) in [(FloatDType::BF16, 2f64.powi(-8)), (FloatDType::F16, 2f64.powi(-11))] {
        if crate::on_cpu() || !crate::device().supports_dtype(dtype) {
            continue;
        }
        for (rows, width, p) in [(3, 7, 0.0), (5, 24, 0.0), (3, 7, 0.3), (5, 24, 0.3), (601, 67, 0.3)] {
            let mask = if p > 0.0 { factors(rows, width, p, 17) } else { vec![1.0; rows * width] };
            let mut inputs = [input(rows, width, 2.0, 1), input(1, width, 1.0, 2), input(rows, width, 1.0, 3)];
            // Numbers of 5 bits are themselves in both types.
            inputs[0].values.iter_mut().for_each(|x| *x = (*x * 8.0).round() / 8.0);
            let op = |inputs: Vec<Tensor<2>>, ops| {
                crate::device().seed(17);
                let [x, bias, residual] = inputs.try_into().unwrap();
                let y = bias_dropout_residual(x.cast(dtype), vector(bias), residual, p, DropoutRng::Device, ops);
                assert_eq!(y.dtype(), FloatDType::F32.into());
                vector(y)
            };
            let what = format!("{dtype:?} [{rows}, {width}] p = {p}");
            let (y, grads) = run(&inputs, &op, Ops::Fused);
            let of = |i: usize| {
                let sum = f64::from(inputs[0].values[i]) + f64::from(inputs[1].values[i % width]);
                f64::from(inputs[2].values[i]) + sum * f64::from(mask[i])
            };
            close(&format!("{what}: y"), &y, &(0..y.len()).map(of).collect::<Vec<_>>(), 5e-7);
            let weights = noise(rows * width, 99);
            let dx = mask.iter().zip(&weights).map(|(m, w)| f64::from(m * w)).collect::<Vec<_>>();
            close(&format!("{what}: dx"), &grads[0], &dx, rounding);
            let dbias = (0..width).map(|c| dx.iter().skip(c).step_by(width).sum()).collect::<Vec<f64>>();
            // The terms are rounded, either way, and the largest sum is that of about sqrt(rows).
            close(&format!("{what}: dbias"), &grads[1], &dbias, 2.0 * rounding);
            close(&format!("{what}: dresidual"), &grads[2], &wide(&weights), 0.0);
            assert_eq!(run(&inputs, &op, Ops::Fused).1, grads, "{what}: two calls");
        }
    }
}

/// Without a bias nothing is added, in either form.
#[test]
fn a_product_without_a_bias_is_added_to_a_residual() {
    let _alone = generator();
    for (rows, width) in [(1, 1), (3, 7), (5, 24)] {
        let inputs = [input(rows, width, 2.0, 1), input(rows, width, 1.0, 3)];
        let op = |inputs: Vec<Tensor<2>>, ops| {
            let [x, residual] = inputs.try_into().unwrap();
            vector(bias_dropout_residual(x, None, residual, 0.0, DropoutRng::Device, ops))
        };
        let sum = |values: &[Vec<f64>]| values[0].iter().zip(&values[1]).map(|(x, residual)| x + residual).collect();
        let what = format!("[{rows}, {width}]");
        agrees_with_host(&what, &inputs, &op, &sum, 5e-7);
        agrees_with_plain(&what, &inputs, &op, 5e-7);
    }
}

#[test]
fn forward_and_backward_have_one_mask() {
    let _alone = generator();
    for (rows, width) in [(1, 1), (3, 7), (5, 33), (601, 67)] {
        let (p, seed) = (0.3, 17);
        let mask = factors(rows, width, p, seed);
        let weights = noise(rows * width, 99);
        let expected_dx = mask.iter().zip(&weights).map(|(m, w)| f64::from(m * w)).collect::<Vec<_>>();
        let x = input(rows, width, 1.0, 1);

        let alone = |inputs: Vec<Tensor<2>>, ops| {
            crate::device().seed(seed);
            let [x] = inputs.try_into().unwrap();
            vector(dropout(x, p, DropoutRng::Device, ops))
        };
        let (y, grads) = run(std::slice::from_ref(&x), &alone, Ops::Fused);
        let expected = x.values.iter().zip(&mask).map(|(x, m)| x * m).collect::<Vec<_>>();
        assert_eq!(y, expected);
        close("alone: dx", &grads[0], &expected_dx, 1e-7);

        let (bias, residual) = (input(1, width, 1.0, 2), input(rows, width, 1.0, 3));
        let all = |inputs: Vec<Tensor<2>>, ops| {
            crate::device().seed(seed);
            let [x, bias, residual] = inputs.try_into().unwrap();
            vector(bias_dropout_residual(x, vector(bias), residual, p, DropoutRng::Device, ops))
        };
        let (y, grads) = run(&[x.clone(), bias.clone(), residual.clone()], &all, Ops::Fused);
        let of = |i: usize| {
            let sum = f64::from(x.values[i]) + f64::from(bias.values[i % width]);
            f64::from(residual.values[i]) + sum * f64::from(mask[i])
        };
        close("y", &y, &(0..y.len()).map(of).collect::<Vec<_>>(), 5e-7);
        close("dx", &grads[0], &expected_dx, 1e-7);
        let dbias = (0..width).map(|c| expected_dx.iter().skip(c).step_by(width).sum()).collect::<Vec<f64>>();
        close("dbias", &grads[1], &dbias, 5e-6);
        close("dresidual", &grads[2], &wide(&weights), 0.0);
    }
}
