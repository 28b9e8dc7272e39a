//! The feed-forward block as one operator, against the fused operators one after the other and
//! against the composition of Burn's operations. It has a fused form on the CPU in bf16, and on
//! tensor cores in bf16 and f16.

use burn::tensor::{FloatDType, Tensor};
use kiln_models::ops::Operand;
use kiln_models::ops::linear::{FeedForward, feed_forward, is_fused, linear};
use kiln_models::ops::products::{Operands, Packed};
use kiln_models::{Activation, Ops};

use crate::gelu::gelu;
use crate::skip::skip;
use crate::{Input, close, input, on_cpu, read, run, tensor, vector, weights, wide};

const BF16: FloatDType = FloatDType::BF16;
const KINDS: [Activation; 2] = [Activation::GeluTanh, Activation::GeluErf];

/// The feed-forward block of the inputs `x`, `W1`, `b1`, `W2`, and `b2` where there is a fifth one.
fn block(kind: Activation, mut inputs: Vec<Tensor<2>>, operands: [Operands; 2], ops: Ops) -> Tensor<1> {
    let bias = (inputs.len() == 5).then(|| vector(inputs.pop().unwrap()));
    let [x, first, inner_bias, second] = inputs.try_into().unwrap();
    let layers =
        FeedForward { weights: [first, second], inner_bias: vector(inner_bias), bias, activation: kind, operands };
    vector(feed_forward(x, layers, ops))
}

fn joined(kind: Activation, inputs: Vec<Tensor<2>>, ops: Ops) -> Tensor<1> {
    assert_eq!(is_fused(BF16, &inputs[0], ops), ops == Ops::Fused);
    block(kind, inputs, [BF16, BF16].map(Operands::from), ops)
}

/// The feed-forward block composed of the operators that the fused one joins.
fn one_by_one(kind: Activation, mut inputs: Vec<Tensor<2>>, ops: Ops) -> Tensor<1> {
    let bias = (inputs.len() == 5).then(|| vector(inputs.pop().unwrap()));
    let [x, first, inner_bias, second] = inputs.try_into().unwrap();
    let inner = Operand::gelu(linear(x, first, None, BF16, ops), vector(inner_bias), kind, ops).of_type(BF16);
    vector(linear(inner, second, bias, BF16, ops))
}

/// Sizes that fit no vector and no block, several blocks of rows, and sums of several parts.
const SIZES: [[usize; 4]; 6] =
    [[1, 1, 1, 1], [5, 31, 33, 2], [33, 17, 67, 35], [131, 64, 32, 1], [1009, 13, 97, 11], [70, 1500, 45, 33]];

fn inputs([rows, d_in, inner, d_out]: [usize; 4], scale: f32, has_bias: bool) -> Vec<Input> {
    let mut inputs = vec![
        input(rows, d_in, scale, 1),
        input(d_in, inner, 1.0, 2),
        input(1, inner, 1.0, 3),
        input(inner, d_out, 1.0, 4),
    ];
    if has_bias {
        inputs.push(input(1, d_out, 1.0, 5));
    }
    inputs
}

#[test]
fn its_values_are_those_of_the_operators_that_it_joins() {
    if !on_cpu() {
        return skip!("cpu", "the CPU rounds at other places than tensor cores");
    }
    for (kind, has_bias) in [(KINDS[0], false), (KINDS[1], true)] {
        for size in SIZES {
            let inputs = inputs(size, 2.0 / (size[1] as f32).sqrt(), has_bias);
            let (got, grads) = run(&inputs, &|inputs, ops| joined(kind, inputs, ops), Ops::Fused);
            let (expected, of_each) = run(&inputs, &|inputs, ops| one_by_one(kind, inputs, ops), Ops::Fused);
            assert_eq!(got, expected, "{size:?}");
            for (i, (got, expected)) in grads.iter().zip(&of_each).enumerate() {
                // The derivative is taken where its argument is in bf16, 2^-8 of it away at most:
                // 2^-9 off, since |u gelu''(u)| is below 0.5, before it is rounded to 2^-8. Sums of
                // such errors cancel in part; here they are told by the largest element.
                close(&format!("{size:?}, gradient {i}"), got, &wide(expected), 2f64.powi(-7));
            }
        }
    }
}

/// Where the argument of the activation is a number of bf16 the gradients have the bits of those of
/// the joined operators too, but for the bias's before the activation, whose sum has another order.
#[test]
fn its_gradients_are_those_of_the_operators_that_it_joins() {
    if !on_cpu() {
        return skip!("cpu", "the CPU rounds at other places than tensor cores");
    }
    for kind in KINDS {
        for [rows, d_in, inner, d_out] in [[1, 1, 1, 1], [5, 31, 33, 2], [70, 17, 67, 35], [1009, 13, 97, 11]] {
            let mut inputs = inputs([rows, d_in, inner, d_out], 1.0, true);
            // Sums of 31 terms of 1/4 and 1/2 and a bias of the like, at most 16: 7 bits.
            inputs[0].values.iter_mut().for_each(|x| *x = x.round());
            for i in [1, 2] {
                inputs[i].values.iter_mut().for_each(|x| *x = (*x * 2.0).round() / 4.0);
            }
            let (got, grads) = run(&inputs, &|inputs, ops| joined(kind, inputs, ops), Ops::Fused);
            let (expected, of_each) = run(&inputs, &|inputs, ops| one_by_one(kind, inputs, ops), Ops::Fused);
            assert_eq!(got, expected);
            for i in [0, 1, 3, 4] {
                assert_eq!(grads[i], of_each[i], "gradient {i} of {rows} x {d_in} x {inner} x {d_out}");
            }
            // Up to 1,009 terms in f32.
            close("gradient of the inner bias", &grads[2], &wide(&of_each[2]), 1e-5);
        }
    }
}

/// Where a bias cancels most of a product that is no number of bf16, the derivative is that of
/// their sum, as PyTorch's autocast has it.
#[test]
fn the_derivative_is_taken_at_the_argument() {
    if !on_cpu() {
        return skip!("cpu", "the CPU rounds at other places than tensor cores");
    }
    // Phi(u) + u phi(u) at u = 0.75, 0.96875 and -0.03125; the operands are numbers of bf16.
    for (x, bias, expected) in
        [([100.0, 0.75], -100.0, 0.999_226), ([-8.0, -0.03125], 9.0, 1.075_397), ([3.0, -0.03125], -3.0, 0.475_074)]
    {
        let of = |values: &[f32], shape: [usize; 2]| Input { values: values.to_vec(), shape };
        let inputs = [of(&x, [1, 2]), of(&[1.0, 1.0], [2, 1]), of(&[bias], [1, 1]), of(&[1.0], [1, 1])];
        let device = crate::device().autodiff();
        let leaves = inputs.iter().map(|input| tensor(input, &device).require_grad()).collect::<Vec<_>>();
        let grads = joined(Activation::GeluErf, leaves.clone(), Ops::Fused).sum().backward();
        let got = read(leaves[2].grad(&grads).unwrap())[0];
        // That of the bias is a sum of one, in f32.
        assert!((got / expected - 1.0).abs() < 1e-5, "{x:?} {bias}: {got}");
    }
}

#[test]
fn it_is_the_composition_of_burns_operations() {
    if !crate::device().supports_dtype(BF16) {
        return skip!("bf16", "the device has no bf16");
    }
    for kind in KINDS {
        for size in SIZES {
            let inputs = inputs(size, 2.0 / (size[1] as f32).sqrt(), true);
            let narrow = |inputs, ops| joined(kind, inputs, ops);
            let plain = |inputs, ops| block(kind, inputs, [FloatDType::F32, FloatDType::F32].map(Operands::from), ops);
            let ops = if on_cpu() { Ops::Fused } else { Ops::Plain };
            let ((got, grads), (expected, wide_grads)) = (run(&inputs, &narrow, ops), run(&inputs, &plain, Ops::Plain));
            // Operands rounded to 2^-9 in three products one after the other.
            close(&format!("{size:?}"), &got, &wide(&expected), 2f64.powi(-6));
            for (i, (got, expected)) in grads.iter().zip(&wide_grads).enumerate() {
                close(&format!("{size:?}, gradient {i}"), got, &wide(expected), 2f64.powi(-5));
            }
        }
    }
}

#[test]
fn it_keeps_its_bits_without_autodiff_with_packed_weights_and_on_any_number_of_threads() {
    if !on_cpu() {
        return skip!("cpu", "the CPU rounds at other places than tensor cores");
    }
    let (kind, device) = (Activation::GeluTanh, crate::device());
    for size in [[577, 40, 193, 67], [33, 401, 1201, 97]] {
        let inputs = inputs(size, 0.3, true);
        let all = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| run(&inputs, &|inputs, ops| joined(kind, inputs, ops), Ops::Fused))
        };
        let one = all(1);
        assert!(one == all(2) && one == all(3), "{size:?}");
        let packed = [Packed::default(), Packed::default()];
        for _ in 0..2 {
            let operands = packed.clone().map(Operands::packed);
            let tensors = inputs.iter().map(|input| tensor(input, &device)).collect();
            assert_eq!(read(block(kind, tensors, operands, Ops::Fused)), one.0, "{size:?}");
        }
    }
}

/// A frozen input has no gradient, and the gradients of the other inputs stay what they are.
#[test]
fn frozen_inputs_have_no_gradient() {
    if !on_cpu() {
        return skip!("cpu", "the CPU rounds at other places than tensor cores");
    }
    let (inputs, device) = (inputs([37, 19, 45, 23], 1.0, true), crate::device().autodiff());
    let gradients = |learns: &dyn Fn(usize) -> bool| {
        let leaves = inputs.iter().enumerate().map(|(i, input)| tensor(input, &device).set_require_grad(learns(i)));
        let leaves = leaves.collect::<Vec<_>>();
        let grads = joined(Activation::GeluErf, leaves.clone(), Ops::Fused).sum().backward();
        leaves.iter().map(|leaf| leaf.grad(&grads).map(read)).collect::<Vec<_>>()
    };
    let all = gradients(&|_| true);
    assert!(all.iter().all(Option::is_some));
    for only in 0..inputs.len() {
        for (i, gradient) in gradients(&|i| i == only).into_iter().enumerate() {
            assert_eq!(gradient, if i == only { all[i].clone() } else { None }, "{i} where {only} learns");
        }
    }
}

#[test]
fn what_is_no_number_stays_so() {
    if !crate::device().supports_dtype(BF16) {
        return skip!("bf16", "the device has no bf16");
    }
    let mut inputs = inputs([3, 2, 5, 4], 1.0, true);
    inputs[0].values[2] = f32::NAN;
    let ops = if on_cpu() { Ops::Fused } else { Ops::Plain };
    let (values, grads) = run(&inputs, &|inputs, ops| joined(Activation::GeluTanh, inputs, ops), ops);
    for (row, values) in values.chunks_exact(4).enumerate() {
        assert!(values.iter().all(|value| value.is_nan() == (row == 1)), "{values:?}");
    }
    assert!(grads[1].iter().all(|x| x.is_nan()) && grads[0][..2].iter().all(|x| x.is_finite()));
}

/// The types in which products take operands on tensor cores, each with its unit roundoff.
const NARROW: [(FloatDType, f64); 2] = [(BF16, 1.0 / 256.0), (FloatDType::F16, 1.0 / 2048.0)];

/// The inputs of a block with `x`, `W1` and `b1` of 4 bits: sums of their products are exact in
/// f32, so that they do not depend on the order, and are rounded in bf16 and f16.
fn of_few_bits([rows, d_in, inner]: [usize; 3]) -> Vec<Input> {
    let mut inputs = inputs([rows, d_in, inner, 24], 1.0, true);
    inputs[..3].iter_mut().flat_map(|input| &mut input.values).for_each(|x| *x = (*x * 8.0).round() / 8.0);
    inputs[1].values.iter_mut().for_each(|x| *x /= 4.0); // arguments at which the series of erf converges
    inputs
}

/// Rows and widths that no tile divides; widths that vectors divide and one that none does, and
/// factors that are vectors.
const INNER_SIZES: [[usize; 3]; 6] = [[1, 24, 40], [63, 24, 72], [65, 40, 136], [129, 72, 40], [67, 17, 67], [2, 1, 8]];

/// On tensor cores the block has the bits of its operators one after the other, and so have its
/// gradients, but for that of the inner bias, whose sum has another order.
#[test]
fn on_tensor_cores_it_is_the_operators_that_it_joins() {
    if !is_cuda() {
        return skip!("cuda", "the device has no tensor cores");
    }
    for (dtype, _) in NARROW {
        for kind in KINDS {
            for size in INNER_SIZES {
                let inputs = of_few_bits(size);
                let joined = |inputs, ops| block(kind, inputs, [dtype, dtype].map(Operands::from), ops);
                let one_by_one = |inputs: Vec<Tensor<2>>, ops: Ops| {
                    let [x, first, inner_bias, second, bias] = inputs.try_into().unwrap();
                    let u = linear(x, first, None, dtype, ops).cast(dtype);
                    let h = Operand::gelu(u, vector(inner_bias), kind, ops).of_type(dtype);
                    assert_eq!(h.dtype(), dtype.into());
                    vector(linear(h, second, Some(vector(bias)), dtype, ops))
                };
                let what = format!("{dtype:?} {kind:?} {size:?}");
                let (got, gradients) = run(&inputs, &joined, Ops::Fused);
                let (expected, of_each) = run(&inputs, &one_by_one, Ops::Fused);
                assert_eq!(got, expected, "{what}");
                for i in [0, 1, 3, 4] {
                    assert_eq!(gradients[i], of_each[i], "{what}: gradient {i}");
                }
                close(&format!("{what}: gradient of the inner bias"), &gradients[2], &wide(&of_each[2]), 1e-5);
                assert_eq!(run(&inputs, &joined, Ops::Fused).1, gradients, "{what}: two calls");
                let device = crate::device();
                let untracked = inputs.iter().map(|input| tensor(input, &device)).collect();
                assert_eq!(read(joined(untracked, Ops::Fused)), got, "{what}: without autodiff");
            }
        }
    }
}

/// On tensor cores against f64, with the derivative of the activation by central differences.
#[test]
fn on_tensor_cores_it_is_that_of_f64() {
    if !is_cuda() {
        return skip!("cuda", "the device has no tensor cores");
    }
    for (dtype, rounding) in NARROW {
        for kind in KINDS {
            for [rows, d_in, width] in INNER_SIZES {
                let inputs = of_few_bits([rows, d_in, width]);
                let op = |inputs, ops| block(kind, inputs, [dtype, dtype].map(Operands::from), ops);
                let (got, gradients) = run(&inputs, &op, Ops::Fused);
                let [x, w, b, v, c] = std::array::from_fn(|i| wide(&inputs[i].values));
                let out = c.len();
                let dy = wide(&weights(rows * out));
                let times = |a: &[f64], b: &[f64], inner: usize| -> Vec<f64> {
                    let columns = b.len() / inner;
                    let sum = |r: usize, c: usize| (0..inner).map(|k| a[r * inner + k] * b[k * columns + c]).sum();
                    (0..a.len() / inner * columns).map(|i| sum(i / columns, i % columns)).collect()
                };
                let transposed = |a: &[f64], columns: usize| -> Vec<f64> {
                    let rows = a.len() / columns;
                    (0..a.len()).map(|i| a[i % rows * columns + i / rows]).collect()
                };
                let sums = |a: &[f64], columns: usize| -> Vec<f64> {
                    (0..columns).map(|c| a.iter().skip(c).step_by(columns).sum()).collect()
                };
                let u = times(&x, &w, d_in).iter().enumerate().map(|(i, u)| u + b[i % width]).collect::<Vec<f64>>();
                let h = u.iter().map(|u| gelu(*u, kind)).collect::<Vec<_>>();
                let y = times(&h, &v, width).iter().enumerate().map(|(i, y)| y + c[i % out]).collect::<Vec<f64>>();
                const STEP: f64 = 1e-5;
                let slope = |u: f64| (gelu(u + STEP, kind) - gelu(u - STEP, kind)) / (2.0 * STEP);
                let dh = times(&dy, &transposed(&v, out), out);
                let du = dh.iter().zip(&u).map(|(dh, u)| dh * slope(*u)).collect::<Vec<_>>();
                let expected = [
                    times(&du, &transposed(&w, width), width),
                    times(&transposed(&x, d_in), &du, rows),
                    sums(&du, width),
                    times(&transposed(&h, width), &dy, rows),
                    sums(&dy, out),
                ];
                let what = format!("{dtype:?} {kind:?} {:?}", [rows, d_in, width]);
                // The argument, its activation, the second weight and, added to its bias, the
                // result are rounded; the derivative of the activation is at most 1.13.
                close(&format!("{what}: value"), &got, &y, 4.0 * rounding);
                for (i, (got, expected)) in gradients.iter().zip(&expected).enumerate() {
                    // So are the gradients of the result, of the activation and of its argument,
                    // which is of order 4 where the second derivative is at most 0.8.
                    close(&format!("{what}: gradient {i}"), got, expected, 8.0 * rounding);
                }
            }
        }
    }
}

/// CUDA's tensor cores take bf16 and f16; the CPU has the block in bf16.
#[test]
fn devices_have_it_where_they_multiply_narrow_operands() {
    let x = Tensor::<2>::zeros([1, 1], &crate::device());
    let expected = [(BF16, on_cpu() || is_cuda()), (FloatDType::F16, is_cuda()), (FloatDType::F32, false)];
    for (dtype, expected) in expected {
        assert_eq!(is_fused(dtype, &x, Ops::Fused), expected, "{dtype:?}");
        assert!(!is_fused(dtype, &x, Ops::Plain));
    }
}

fn is_cuda() -> bool {
    matches!(std::env::var("KILN_TEST_DEVICE").as_deref(), Ok("cuda"))
}
