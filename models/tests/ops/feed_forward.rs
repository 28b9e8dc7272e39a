//! The feed-forward block as one operator, against the fused operators one after the other and
//! against the composition of Burn's operations. It has a fused form on the CPU in bf16.

use burn::tensor::{FloatDType, Tensor};
use kiln_models::ops::Operand;
use kiln_models::ops::linear::{FeedForward, feed_forward, is_fused, linear};
use kiln_models::ops::products::{Operands, Packed};
use kiln_models::{Activation, Ops};

use crate::skip::skip;
use crate::{Input, close, input, on_cpu, read, run, tensor, vector, wide};

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
        return skip!("cpu", "on other devices than the CPU the block has no fused form");
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
        return skip!("cpu", "on other devices than the CPU the block has no fused form");
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
        return skip!("cpu", "on other devices than the CPU the block has no fused form");
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
        return skip!("cpu", "on other devices than the CPU the block has no fused form");
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
            let operands = packed.clone().map(|packed| Operands { dtype: BF16, packed: Some(packed) });
            let tensors = inputs.iter().map(|input| tensor(input, &device)).collect();
            assert_eq!(read(block(kind, tensors, operands, Ops::Fused)), one.0, "{size:?}");
        }
    }
}

/// A frozen input has no gradient, and the gradients of the other inputs stay what they are.
#[test]
fn frozen_inputs_have_no_gradient() {
    if !on_cpu() {
        return skip!("cpu", "on other devices than the CPU the block has no fused form");
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
