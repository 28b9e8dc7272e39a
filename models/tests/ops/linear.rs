//! `x W + b`, and `x W`.

use burn::tensor::{FloatDType, Tensor};
use kiln_models::layers::Conv1D;
use kiln_models::ops::Reader;
use kiln_models::ops::dropout::{DropoutRng, dropout};
use kiln_models::ops::linear::{Adapted, adapted, linear};
use kiln_models::{Compute, Ops, Pass};

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

/// The narrow types of the device, each with its unit roundoff; none on the CPU, whose
/// products take f32.
fn narrow_types() -> impl Iterator<Item = (FloatDType, f64)> {
    let types = [(FloatDType::BF16, 2f64.powi(-8)), (FloatDType::F16, 2f64.powi(-11))];
    types.into_iter().filter(|(dtype, _)| !crate::on_cpu() && crate::device().supports_dtype(*dtype))
}

/// Off the CPU products take narrow factors and sum in f32.
#[test]
fn narrow_values_and_gradients() {
    for (dtype, rounding) in narrow_types() {
        for (rows, d_in, d_out) in [(1, 1, 1), (3, 5, 7), (17, 2, 33), (33, 17, 9), (1, 31, 4)] {
            let mut inputs = [input(rows, d_in, 2.0, 1), input(d_in, d_out, 2.0, 2), input(1, d_out, 1.0, 3)];
            // Numbers of 5 bits are themselves in both types.
            inputs.iter_mut().flat_map(|input| &mut input.values).for_each(|x| *x = (*x * 8.0).round() / 8.0);
            for (has_bias, is_narrow) in [(true, true), (true, false), (false, true), (false, false)] {
                let op = |inputs: Vec<Tensor<2>>, ops: Ops| {
                    let [x, weight, bias] = inputs.try_into().unwrap();
                    let x = if is_narrow { x.cast(dtype) } else { x };
                    let y = linear(x, weight, has_bias.then(|| vector(bias.clone())), dtype, ops);
                    assert_eq!(y.dtype(), F32.into());
                    // A term of the bias's in any case, so that it has a gradient.
                    vector(y + bias * 0.5)
                };
                let host = |values: &[Vec<f64>]| {
                    let [x, w, b] = [0, 1, 2].map(|i| &values[i]);
                    let by = if has_bias { 1.5 } else { 0.5 };
                    let element = |r: usize, c: usize| {
                        (0..d_in).map(|k| x[r * d_in + k] * w[k * d_out + c]).sum::<f64>() + by * b[c]
                    };
                    (0..rows * d_out).map(|i| element(i / d_out, i % d_out)).collect()
                };
                let what = format!("{dtype:?} [{rows}, {d_in}] x [{d_in}, {d_out}] {has_bias} {is_narrow}");
                // The gradient of the result is rounded, and then the sum that it is in, or the
                // product before the bias is added.
                agrees_with_host(&what, &inputs, &op, &host, 2.0 * rounding);
            }
        }
    }
}

/// The gradient of a weight is the f32 sum itself, and so is a result that is read in f32: bf16 has
/// no 513, and f16 no 4097.
#[test]
fn sums_of_narrow_products_are_not_rounded() {
    for (dtype, rounding) in narrow_types() {
        let n = (2.0 / rounding).round() as usize + 1;
        let ones = |rows: usize, cols: usize| {
            let device = crate::device().autodiff();
            Tensor::<2>::ones([rows, cols], &device).require_grad()
        };
        let (x, weight) = (ones(n, 3), ones(3, 5));
        let grads = linear(x.clone(), weight.clone(), Some(vector(ones(1, 5))), dtype, Ops::Fused).sum().backward();
        assert_eq!(read(weight.grad(&grads).unwrap()), [n as f32; 15], "{dtype:?}");
        let sums = linear(ones(3, n), ones(n, 5), None, dtype, Ops::Fused);
        assert_eq!(read(sums), [n as f32; 15], "{dtype:?}");
        let x = ones(2, 3);
        let grads = linear(x.clone(), ones(3, n), None, dtype, Ops::Fused).sum().backward();
        assert_eq!(read(x.grad(&grads).unwrap()), [n as f32; 6], "{dtype:?}");
    }
}

/// The projection to query, key and value stays in the type of products, its bias included.
#[test]
fn a_projection_stays_narrow() {
    let device = crate::device().autodiff();
    for (dtype, rounding) in narrow_types() {
        let pass = Pass::new(Compute::new(Ops::fused(&device).unwrap(), dtype), true);
        for (rows, d_in, d_out) in [(3, 5, 7), (9, 8, 24), (2, 3, 16)] {
            let layer = Conv1D::new(d_in, d_out, 0.5, &device);
            let [x, bias] = [input(rows, d_in, 1.0, 1), input(1, d_out, 1.0, 2)];
            let x = crate::tensor(&x, &device).require_grad();
            let bias = vector(crate::tensor(&bias, &device)).require_grad();
            let layer = Conv1D { bias: burn::module::Param::from_tensor(bias), ..layer };
            let y = layer.forward_for(Reader::Product, x.clone(), pass);
            assert_eq!(y.dtype(), dtype.into());
            let of = |y: Tensor<2>| (y.clone() * y).sum().backward();
            let (grads, plain_grads) =
                (of(y.clone().cast(F32)), of(x.clone().matmul(layer.weight.val()) + layer.bias.val().unsqueeze()));
            let plain = x.clone().inner().matmul(layer.weight.val().inner()) + layer.bias.val().inner().unsqueeze();
            // Operands, the product, the sum with the bias and the gradients are rounded.
            close("value", &read(y.inner().cast(F32)), &wide(&read(plain)), 3.0 * rounding);
            let both = |of: &dyn Fn(&burn::tensor::Gradients) -> Vec<f32>| (of(&grads), of(&plain_grads));
            for (what, (got, expected)) in [
                ("x", both(&|grads| read(x.grad(grads).unwrap()))),
                ("weight", both(&|grads| read(layer.weight.val().grad(grads).unwrap()))),
                ("bias", both(&|grads| read(layer.bias.val().grad(grads).unwrap()))),
            ] {
                close(&format!("{dtype:?} gradient of {what}"), &got, &wide(&expected), 6.0 * rounding);
            }
        }
    }
}

/// `x W + b + s (drop(x) A) B` of `x`, `W`, `A`, `B` and the bias where there is a fifth input,
/// with `s = 0.75`.
fn with_adapter(mut inputs: Vec<Tensor<2>>, p: f64, dtype: FloatDType, ops: Ops) -> Tensor<1> {
    let bias = (inputs.len() == 5).then(|| vector(inputs.pop().unwrap()));
    let [x, weight, a, b] = inputs.try_into().unwrap();
    crate::device().seed(7);
    vector(adapted(
        x,
        Adapted { weight, a, b, scaling: 0.75, dropout: p, operands: dtype.into() },
        bias,
        DropoutRng::Device,
        ops,
    ))
}

#[test]
fn values_and_gradients_with_an_adapter() {
    let op = |inputs: Vec<Tensor<2>>, ops: Ops| with_adapter(inputs, 0.0, F32, ops);
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

/// On the CPU the operands of the products may be rounded: the input, whose panels the weight and
/// the adapter share, and the gradient of the result, which both read as well.
#[test]
fn narrow_operands_with_an_adapter() {
    if !crate::on_cpu() {
        return;
    }
    for (dtype, rounding) in [(FloatDType::BF16, 2f64.powi(-9)), (FloatDType::F16, 2f64.powi(-12))] {
        for (rows, d_in, d_out, rank) in [(1, 1, 1, 1), (13, 33, 7, 2), (33, 65, 31, 16), (1009, 97, 131, 17)] {
            let sizes = [(rows, d_in), (d_in, d_out), (d_in, rank), (rank, d_out), (1, d_out)];
            let inputs = (1u64..).zip(sizes).map(|(seed, (rows, cols))| input(rows, cols, 1.0, seed));
            let inputs = inputs.collect::<Vec<_>>();
            let (expected, expected_grads) = run(&inputs, &|it, ops| with_adapter(it, 0.0, F32, ops), Ops::Plain);
            let (got, grads) = run(&inputs, &|it, ops| with_adapter(it, 0.0, dtype, ops), Ops::Fused);
            let what = format!("{dtype:?}, [{rows}, {d_in}] x [{d_in}, {d_out}], rank {rank}");
            // Three factors are rounded on the way through the adapter, two of them once more.
            close(&what, &got, &wide(&expected), 5.0 * rounding);
            for (i, (got, expected)) in grads.iter().zip(&expected_grads).enumerate() {
                close(&format!("{what}: gradient {i}"), got, &wide(expected), 5.0 * rounding);
            }
            // A gradient does not depend on which others are wanted.
            for tracked in [[true, false, true, true], [false, false, true, true], [true, false, false, true]] {
                let device = crate::device().autodiff();
                let leaf = |(input, wanted): (&crate::Input, bool)| {
                    let leaf = crate::tensor(input, &device);
                    if wanted { leaf.require_grad() } else { leaf }
                };
                let leaves = inputs.iter().zip(tracked.into_iter().chain([true])).map(leaf).collect::<Vec<_>>();
                let result = with_adapter(leaves.clone(), 0.0, dtype, Ops::Fused);
                let weights = crate::weights(got.len());
                let weights = Tensor::<1>::from_data(burn::tensor::TensorData::new(weights, [got.len()]), &device);
                let some = (result * weights).sum().backward();
                for (i, leaf) in leaves.iter().enumerate() {
                    match leaf.grad(&some) {
                        Some(grad) => assert_eq!(read(grad), grads[i], "{what}: gradient {i} of {tracked:?}"),
                        None => assert!(!tracked.get(i).copied().unwrap_or(true), "{what}: no gradient {i}"),
                    }
                }
            }
        }
    }
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
    let (got, grads) = run(&inputs, &|inputs, ops| with_adapter(inputs, 0.4, F32, ops), Ops::Fused);
    close("value", &got, &wide(&expected), 4e-6);
    for (i, (got, expected)) in grads.iter().zip(&expected_grads).enumerate() {
        close(&format!("gradient {i}"), got, &wide(expected), 4e-6);
    }
    let (undropped, _) = run(&inputs, &|inputs, ops| with_adapter(inputs, 0.0, F32, ops), Ops::Fused);
    assert_ne!(got, undropped);
    let device = crate::device();
    let tensors = inputs.iter().map(|input| crate::tensor(input, &device)).collect::<Vec<_>>();
    let [x, weight, a, b, bias]: [Tensor<2>; 5] = tensors.try_into().unwrap();
    let layer = Adapted { weight, a, b, scaling: 0.75, dropout: 0.4, operands: FloatDType::F32.into() };
    let off = adapted(x, layer, Some(vector(bias)), DropoutRng::Off, Ops::Fused);
    assert_eq!(read(off).len(), undropped.len());
}
