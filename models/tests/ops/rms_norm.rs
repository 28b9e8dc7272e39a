//! Root mean square normalisation.

use burn::tensor::{FloatDType, Tensor, TensorData};
use kiln_models::Ops;
use kiln_models::ops::Operand;
use kiln_models::ops::rms_norm::rms_norm;

use crate::{Input, agrees_with_host, agrees_with_plain, input, read, run, vector};

const EPSILON: f64 = 1e-5;
/// A mean of up to a few hundred squares of order 1, each with a rounding of 6e-8, and its root.
const ROUNDING: f64 = 2e-6;

fn op(mut inputs: Vec<Tensor<2>>, ops: Ops) -> Tensor<1> {
    let weight = vector(inputs.pop().unwrap());
    vector(rms_norm(inputs.pop().unwrap(), weight, EPSILON, ops))
}

fn host(values: &[Vec<f64>]) -> Vec<f64> {
    let (x, weight) = (&values[0], &values[1]);
    let rows = x.chunks(weight.len()).flat_map(|row| {
        let mean = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
        row.iter().zip(weight).map(move |(x, w)| x / (mean + EPSILON).sqrt() * w).collect::<Vec<_>>()
    });
    rows.collect()
}

fn inputs(rows: usize, width: usize) -> Vec<Input> {
    vec![input(rows, width, 1.0, 1), input(1, width, 1.0, 2)]
}

#[test]
fn values_and_gradients() {
    for (rows, width) in [(1, 2), (3, 7), (2, 17), (5, 63), (2, 65)] {
        let what = format!("[{rows}, {width}]");
        agrees_with_host(&what, &inputs(rows, width), &op, &host, ROUNDING);
        agrees_with_plain(&what, &inputs(rows, width), &op, ROUNDING);
    }
    // Several blocks of rows: the gradient of the weight is a sum over 1009 rows.
    agrees_with_plain("blocks", &inputs(1009, 97), &op, 1e-5);
}

/// The result is rounded, and the gradient that comes in; statistics and sums are f32.
#[test]
fn a_result_for_a_narrow_product() {
    for (dtype, rounding) in [(FloatDType::BF16, 2f64.powi(-8)), (FloatDType::F16, 2f64.powi(-11))] {
        if !crate::device().supports_dtype(dtype) {
            continue; // WGSL has no bf16
        }
        let narrow = |mut inputs: Vec<Tensor<2>>, ops: Ops| {
            let weight = vector(inputs.pop().unwrap());
            let y = Operand::rms_norm(inputs.pop().unwrap(), weight, EPSILON, ops).of_type(dtype);
            assert_eq!(y.dtype(), dtype.into());
            vector(y.cast(FloatDType::F32))
        };
        for (rows, width) in [(3, 7), (2, 65)] {
            agrees_with_host(&format!("{dtype:?}"), &inputs(rows, width), &narrow, &host, 4.0 * rounding);
        }
    }
}

/// `transformers` rounds what is normalised to the input's type and multiplies it there.
#[test]
fn a_narrow_input_is_rounded_before_the_weight() {
    let device = crate::device();
    if !device.supports_dtype(FloatDType::BF16) {
        return; // WGSL has no bf16
    }
    let tensor = |values: Vec<f32>| Tensor::<1>::from_data(TensorData::new(values.clone(), [values.len()]), &device);
    let x = tensor(vec![7.0, 1.0]).unsqueeze::<2>().cast(FloatDType::BF16);
    let y = rms_norm(x, tensor(vec![1.164_062_5, 1.0]), 0.0, Ops::Plain);
    assert_eq!(y.dtype(), FloatDType::BF16.into());
    // 7 / 5 rounds to 1.398_437_5, and that times the weight, 1.627_87, to 1.625. Without the first
    // rounding it were 1.629_69, which rounds to 1.632_812_5.
    assert_eq!(read(vector(y.cast(FloatDType::F32))), [1.625, 0.200_195_31]);
}

#[test]
fn one_feature_is_its_sign_times_the_weight() {
    // The gradient is what is left of the difference of two numbers of order 1 by epsilon.
    agrees_with_host("[3, 1]", &inputs(3, 1), &op, &host, 1e-3);
    let (y, _) = run(&inputs(3, 1), &op, Ops::Fused);
    let weight = inputs(3, 1)[1].values[0];
    assert!(y.iter().all(|y| (y.abs() / weight.abs() - 1.0).abs() < 0.05), "{y:?} of {weight}");
}

#[test]
fn rows_of_zeros_and_of_large_numbers() {
    let mut inputs = inputs(2, 31);
    inputs[0].values[..31].fill(0.0);
    inputs[0].values[31..].iter_mut().for_each(|x| *x *= 1e4);
    let (y, grads) = run(&inputs, &op, Ops::Fused);
    assert!(y[..31].iter().all(|y| *y == 0.0) && grads[0].iter().all(|g| g.is_finite()));
    agrees_with_host("rows", &inputs, &op, &host, ROUNDING);
}
