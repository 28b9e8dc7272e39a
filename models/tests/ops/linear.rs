//! `x W + b`, and `x W`.

use burn::tensor::Tensor;
use kiln_models::Ops;
use kiln_models::ops::linear::{linear, product};

use crate::{agrees_with_host, agrees_with_plain, input, vector};

fn op(mut inputs: Vec<Tensor<2>>, ops: Ops) -> Tensor<1> {
    let (bias, weight) = (vector(inputs.pop().unwrap()), inputs.pop().unwrap());
    vector(linear(inputs.pop().unwrap(), weight, bias, ops))
}

#[test]
fn values_and_gradients() {
    for (rows, d_in, d_out) in [(1, 1, 1), (3, 5, 7), (17, 2, 33), (1, 31, 4)] {
        let inputs = [input(rows, d_in, 1.0, 1), input(d_in, d_out, 1.0, 2), input(1, d_out, 1.0, 3)];
        let host = |values: &[Vec<f64>]| {
            let [x, w, b] = [0, 1, 2].map(|i| &values[i]);
            let element =
                |r: usize, c: usize| (0..d_in).map(|k| x[r * d_in + k] * w[k * d_out + c]).sum::<f64>() + b[c];
            (0..rows * d_out).map(|i| element(i / d_out, i % d_out)).collect()
        };
        let what = format!("[{rows}, {d_in}] x [{d_in}, {d_out}]");
        // Sums of up to 31 products of order 1.
        agrees_with_host(&what, &inputs, &op, &host, 2e-6);
        agrees_with_plain(&what, &inputs, &op, 2e-6);
    }
    // Large enough for the threaded product and for several blocks of rows; sums of 1009 terms in the weight's gradient.
    agrees_with_plain("threads", &[input(1009, 97, 1.0, 1), input(97, 131, 1.0, 2), input(1, 131, 1.0, 3)], &op, 1e-5);
}

#[test]
fn values_and_gradients_without_a_bias() {
    let op = |mut inputs: Vec<Tensor<2>>, ops: Ops| {
        let weight = inputs.pop().unwrap();
        vector(product(inputs.pop().unwrap(), weight, ops))
    };
    for (rows, d_in, d_out) in [(1, 1, 1), (3, 5, 7), (17, 2, 33), (1, 31, 4)] {
        let inputs = [input(rows, d_in, 1.0, 1), input(d_in, d_out, 1.0, 2)];
        let host = |values: &[Vec<f64>]| {
            let (x, w) = (&values[0], &values[1]);
            let element = |r: usize, c: usize| (0..d_in).map(|k| x[r * d_in + k] * w[k * d_out + c]).sum::<f64>();
            (0..rows * d_out).map(|i| element(i / d_out, i % d_out)).collect()
        };
        let what = format!("[{rows}, {d_in}] x [{d_in}, {d_out}]");
        // Sums of up to 31 products of order 1.
        agrees_with_host(&what, &inputs, &op, &host, 2e-6);
        agrees_with_plain(&what, &inputs, &op, 2e-6);
    }
    agrees_with_plain("threads", &[input(1009, 97, 1.0, 1), input(97, 131, 1.0, 2)], &op, 1e-5);
}
