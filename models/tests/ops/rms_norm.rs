//! Root mean square normalisation.

use burn::module::Param;
use burn::tensor::{FloatDType, Tensor, TensorData};
use kiln_models::layers::{Linear, RmsNorm};
use kiln_models::ops::dropout::{DropoutRng, bias_dropout_residual};
use kiln_models::ops::rms_norm::rms_norm;
use kiln_models::ops::{Operand, Reader};
use kiln_models::{Compute, Ops, Pass};

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
            let y = Operand::rms_norm(inputs.pop().unwrap(), weight, EPSILON, ops).0.of_type(dtype);
            assert_eq!(y.dtype(), dtype.into());
            vector(y.cast(FloatDType::F32))
        };
        for (rows, width) in [(3, 7), (2, 65)] {
            agrees_with_host(&format!("{dtype:?}"), &inputs(rows, width), &narrow, &host, 4.0 * rounding);
        }
    }
}

/// The branch of a decoder: `x + rms_norm(x)`, plus another use of `x`, whose three gradients are
/// added.
#[test]
fn a_residual_that_the_normalisation_reads_as_well() {
    let branch = |mut inputs: Vec<Tensor<2>>, ops: Ops| {
        let (weight, x) = (vector(inputs.pop().unwrap()), inputs.pop().unwrap());
        let (rows, residual) = Operand::rms_norm(x.clone(), weight, EPSILON, ops);
        let y = bias_dropout_residual(rows.wide(), None, residual, 0.0, DropoutRng::Off, ops);
        vector(y + x * 0.25)
    };
    let host = |values: &[Vec<f64>]| host(values).iter().zip(&values[0]).map(|(y, x)| y + 1.25 * x).collect::<Vec<_>>();
    for (rows, width) in [(1, 2), (3, 7), (2, 16), (5, 33)] {
        let (what, inputs) = (format!("[{rows}, {width}]"), inputs(rows, width));
        agrees_with_host(&what, &inputs, &branch, &host, ROUNDING);
        agrees_with_plain(&what, &inputs, &branch, ROUNDING);
    }
}

/// Two layers read the result in the type of products, and give their gradients in f32: what is
/// added is not rounded. Results and gradients are the bits of layers that each round rows in f32.
#[test]
fn gradients_of_several_readers_are_added_in_f32() {
    let device = crate::device().autodiff();
    for dtype in [FloatDType::BF16, FloatDType::F16] {
        if crate::on_cpu() || !device.supports_dtype(dtype) {
            continue;
        }
        let pass = Pass::new(Compute::new(Ops::fused(&device).unwrap(), dtype), true);
        let (rows, width) = (3, 24);
        let x = crate::tensor(&input(rows, width, 1.0, 1), &device).require_grad();
        let norm = RmsNorm::new(width, EPSILON, &device);
        let layers = [4u64, 5].map(|seed| {
            let weight = crate::tensor(&input(width, 16, 1.0, seed), &device).require_grad();
            Linear { weight: Param::from_tensor(weight), bias: None, lora: None }
        });
        let of = |y: Tensor<2>| (y.cast(FloatDType::F32) * crate::tensor(&input(rows, 16, 1.0, 6), &device)).sum();
        let gradients = |is_shared: bool| {
            let (normalised, _) = norm.operand(x.clone(), pass.ops());
            let [first, second] = if is_shared {
                let x = normalised.shared(pass.compute);
                layers.each_ref().map(|layer| layer.forward_for(Reader::Product, x.clone(), pass))
            } else {
                let x = normalised.wide();
                layers.each_ref().map(|layer| layer.forward_for(Reader::Product, x.clone(), pass))
            };
            assert_eq!(first.dtype(), dtype.into());
            let gradients = (of(first) + of(second)).backward();
            let of_weight = norm.weight.val().grad(&gradients).unwrap();
            (read(x.grad(&gradients).unwrap()), read(of_weight))
        };
        assert_eq!(gradients(true), gradients(false), "{dtype:?}");
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
