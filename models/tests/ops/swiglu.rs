//! `silu(gate) * up`.

use burn::tensor::{FloatDType, Tensor};
use kiln_models::Ops;
use kiln_models::ops::swiglu::swiglu;

use crate::{Input, agrees_with_host, agrees_with_plain, input, on_cpu, run, vector};

/// A few roundings of f32 (6e-8) at values of order 1 to 6.
const ROUNDING: f64 = 1e-6;

fn op(mut inputs: Vec<Tensor<2>>, ops: Ops) -> Tensor<1> {
    let up = inputs.pop().unwrap();
    vector(swiglu(inputs.pop().unwrap(), up, ops))
}

fn host(values: &[Vec<f64>]) -> Vec<f64> {
    values[0].iter().zip(&values[1]).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect()
}

fn inputs(rows: usize, width: usize) -> Vec<Input> {
    vec![input(rows, width, 5.0, 1), input(rows, width, 2.0, 2)]
}

#[test]
fn values_and_gradients() {
    for (rows, width) in [(1, 1), (3, 7), (2, 17), (1, 63), (2, 65)] {
        let what = format!("[{rows}, {width}]");
        agrees_with_host(&what, &inputs(rows, width), &op, &host, ROUNDING);
        agrees_with_plain(&what, &inputs(rows, width), &op, ROUNDING);
    }
    // Several blocks of rows, and the last one is not whole.
    agrees_with_plain("blocks", &inputs(1009, 67), &op, ROUNDING);
}

/// Off the CPU the kernel reads and writes the type of products. Rows of 7 have a pitch on CUDA.
#[test]
fn narrow_values_are_computed_in_f32() {
    for (dtype, rounding) in [(FloatDType::BF16, 2f64.powi(-8)), (FloatDType::F16, 2f64.powi(-11))] {
        if on_cpu() || !crate::device().supports_dtype(dtype) {
            continue;
        }
        let mut inputs = inputs(3, 7);
        // Numbers of 6 bits are themselves in both types.
        inputs.iter_mut().flat_map(|input| &mut input.values).for_each(|x| *x = (*x * 8.0).round() / 8.0);
        let narrow = |inputs: Vec<Tensor<2>>, ops: Ops| {
            let y = op(inputs.into_iter().map(|input| input.cast(dtype)).collect(), ops);
            assert_eq!(y.dtype(), dtype.into());
            y.cast(FloatDType::F32)
        };
        agrees_with_host(&format!("{dtype:?}"), &inputs, &narrow, &host, 2.0 * rounding);
    }
}

#[test]
fn the_tails_are_finite() {
    let gate = [-1e4f32, -100.0, -88.5, -20.0, -0.0, 0.0, 20.0, 100.0, 1e4];
    let row = |values: &[f32]| Input { values: values.to_vec(), shape: [1, values.len()] };
    let (y, grads) = run(&[row(&gate), row(&[1.0; 9])], &op, Ops::Fused);
    assert!(y.iter().chain(grads.iter().flatten()).all(|value| value.is_finite()), "{y:?} {grads:?}");
    assert_eq!(y[7..], gate[7..]);
    assert!(y[..3].iter().all(|y| y.abs() < 1e-30), "{y:?}");
    // -20 / (1 + e^20)
    assert!((f64::from(y[3]) / -4.122_307_236_380_407e-8 - 1.0).abs() < 1e-6, "{}", y[3]);
    let (y, grads) = run(&[row(&[f32::NAN, 1.0]), row(&[1.0, 1.0])], &op, Ops::Fused);
    assert!(y[0].is_nan() && grads[0][0].is_nan() && grads[1][0].is_nan() && y[1].is_finite(), "{y:?} {grads:?}");
}
