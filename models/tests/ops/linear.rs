//! `x W + b`, and `x W`.

use burn::tensor::{FloatDType, Tensor};
use kiln_models::Ops;
use kiln_models::ops::dropout::{DropoutRng, dropout};
use kiln_models::ops::linear::{Adapted, adapted, linear};

use crate::{agrees_with_host, agrees_with_plain, close, generator, input, read, run, vector, wide};

const F32: FloatDType = FloatDType::F32;

fn op(mut inputs: Vec<Tensor<2>>, ops: Ops) -> Tensor<1> {
    let (bias, weight) = (vector(inputs.pop().unwrap()), inputs.pop().unwrap());
    vector(linear(inputs.pop().unwrap(), weight, Some(bias), F32, ops))
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
    // Large enough for the threaded product and for several blocks of rows; sums of 1009 terms in
    // the weight's gradient.
    agrees_with_plain("threads", &[input(1009, 97, 1.0, 1), input(97, 131, 1.0, 2), input(1, 131, 1.0, 3)], &op, 1e-5);
}

#[test]
fn values_and_gradients_without_a_bias() {
    let op = |mut inputs: Vec<Tensor<2>>, ops: Ops| {
        let weight = inputs.pop().unwrap();
        vector(linear(inputs.pop().unwrap(), weight, None, F32, ops))
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

/// `x W + b + s (drop(x) A) B` of `x`, `W`, `A`, `B` and the bias where there is a fifth input,
/// with `s = 0.75`.
fn with_adapter(mut inputs: Vec<Tensor<2>>, p: f64, ops: Ops) -> Tensor<1> {
    let bias = (inputs.len() == 5).then(|| vector(inputs.pop().unwrap()));
    let [x, weight, a, b] = inputs.try_into().unwrap();
    crate::device().seed(7);
    vector(adapted(
        x,
        Adapted { weight, a, b, scaling: 0.75, dropout: p, operands: FloatDType::F32.into() },
        bias,
        DropoutRng::Device,
        ops,
    ))
}

#[test]
fn values_and_gradients_with_an_adapter() {
    let op = |inputs: Vec<Tensor<2>>, ops: Ops| with_adapter(inputs, 0.0, ops);
    for (rows, d_in, d_out, rank) in [(1, 1, 1, 1), (3, 5, 7, 2), (17, 2, 33, 3), (5, 13, 4, 8)] {
        let mut inputs = vec![
            input(rows, d_in, 1.0, 1),
            input(d_in, d_out, 1.0, 2),
            input(d_in, rank, 1.0, 4),
            input(rank, d_out, 1.0, 5),
        ];
        let host = |values: &[Vec<f64>]| {
            let [x, w, a, b] = [0, 1, 2, 3].map(|i| &values[i]);
            let low = |r: usize, j: usize| (0..d_in).map(|k| x[r * d_in + k] * a[k * rank + j]).sum::<f64>();
            let element = |r: usize, c: usize| {
                (0..d_in).map(|k| x[r * d_in + k] * w[k * d_out + c]).sum::<f64>()
                    + 0.75 * (0..rank).map(|j| low(r, j) * b[j * d_out + c]).sum::<f64>()
                    + values.get(4).map_or(0.0, |bias| bias[c])
            };
            (0..rows * d_out).map(|i| element(i / d_out, i % d_out)).collect()
        };
        let what = format!("[{rows}, {d_in}] x [{d_in}, {d_out}], rank {rank}");
        // Sums of up to 13 products of order 1, once of sums of 13 such.
        agrees_with_host(&what, &inputs, &op, &host, 4e-6);
        agrees_with_plain(&what, &inputs, &op, 4e-6);
        inputs.push(input(1, d_out, 1.0, 3));
        agrees_with_host(&format!("{what}, bias"), &inputs, &op, &host, 4e-6);
        agrees_with_plain(&format!("{what}, bias"), &inputs, &op, 4e-6);
    }
    // Large enough for the threaded product.
    let sizes = [(1009, 97), (97, 131), (97, 8), (8, 131), (1, 131)];
    let inputs = (1u64..).zip(sizes).map(|(seed, (rows, cols))| input(rows, cols, 1.0, seed)).collect::<Vec<_>>();
    agrees_with_plain("threads", &inputs, &op, 2e-5);
}

/// With dropout the fused operator is the composition of the fused dropout with the others, from
/// the same seed.
#[test]
fn an_adapter_drops_out_its_input_and_the_gradient() {
    let _alone = generator();
    let sizes = [(19, 11), (11, 7), (11, 3), (3, 7), (1, 7)];
    let inputs = (1u64..).zip(sizes).map(|(seed, (rows, cols))| input(rows, cols, 1.0, seed)).collect::<Vec<_>>();
    let composed = |inputs: Vec<Tensor<2>>, _: Ops| {
        let [x, weight, a, b, bias] = inputs.try_into().unwrap();
        crate::device().seed(7);
        let dropped = dropout(x.clone(), 0.4, DropoutRng::Device, Ops::Fused);
        vector(x.matmul(weight) + bias + dropped.matmul(a).matmul(b) * 0.75)
    };
    let (expected, expected_grads) = run(&inputs, &composed, Ops::Plain);
    let (got, grads) = run(&inputs, &|inputs, ops| with_adapter(inputs, 0.4, ops), Ops::Fused);
    close("value", &got, &wide(&expected), 4e-6);
    for (i, (got, expected)) in grads.iter().zip(&expected_grads).enumerate() {
        close(&format!("gradient {i}"), got, &wide(expected), 4e-6);
    }
    let (undropped, _) = run(&inputs, &|inputs, ops| with_adapter(inputs, 0.0, ops), Ops::Fused);
    assert_ne!(got, undropped);
    let device = crate::device();
    let tensors = inputs.iter().map(|input| crate::tensor(input, &device)).collect::<Vec<_>>();
    let [x, weight, a, b, bias]: [Tensor<2>; 5] = tensors.try_into().unwrap();
    let layer = Adapted { weight, a, b, scaling: 0.75, dropout: 0.4, operands: FloatDType::F32.into() };
    let off = adapted(x, layer, Some(vector(bias)), DropoutRng::Off, Ops::Fused);
    assert_eq!(read(off).len(), undropped.len());
}
