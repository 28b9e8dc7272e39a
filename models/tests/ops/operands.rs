//! On the CPU operators write bf16 where products alone read what they give. That changes no bit:
//! such a product rounds its operands.

use burn::tensor::{FloatDType, Tensor};
use kiln_models::ops::Operand;
use kiln_models::ops::attention::{Attention, Mask, Qkv};
use kiln_models::ops::dropout::DropoutRng;
use kiln_models::ops::linear::linear;
use kiln_models::{Activation, Ops};

use crate::skip::skip;
use crate::{Input, input, on_cpu, run, vector};

const BF16: FloatDType = FloatDType::BF16;

/// LayerNorm, a projection, attention and another projection; `operand` is the type that both
/// operators write.
fn attention(operand: FloatDType, [seq, heads]: [usize; 2], mut inputs: Vec<Tensor<2>>, ops: Ops) -> Tensor<1> {
    let [x, weight, bias, qkv, to_qkv, out] = std::array::from_fn(|_| inputs.remove(0));
    let x = Operand::layer_norm(x, vector(weight), vector(bias), 1e-5, ops).0.of_type(operand);
    assert_eq!(FloatDType::from(x.dtype()), operand);
    let qkv = linear(x, qkv, Some(vector(to_qkv)), BF16, ops);
    let batch = qkv.dims()[0] / seq;
    let mask = Mask::new(seq, true, None, &qkv.device(), ops);
    let attention = Attention { batch, heads, scale: 0.3, dropout: 0.0, rng: DropoutRng::Off, products: BF16 };
    let attended = attention.operand(Qkv::Packed(qkv), &mask).of_type(operand);
    assert_eq!(FloatDType::from(attended.dtype()), operand);
    vector(linear(attended, out, None, BF16, ops))
}

/// The feed-forward block from its normalised input.
fn feed_forward(operand: FloatDType, kind: Activation, mut inputs: Vec<Tensor<2>>, ops: Ops) -> Tensor<1> {
    let [x, up, bias, down] = std::array::from_fn(|_| inputs.remove(0));
    let x = Operand::gelu(linear(x, up, None, BF16, ops), vector(bias), kind, ops).of_type(operand);
    assert_eq!(FloatDType::from(x.dtype()), operand);
    vector(linear(x, down, None, BF16, ops))
}

/// The gated feed-forward block of Llama, whose normalised input two products read.
fn gated(operand: FloatDType, mut inputs: Vec<Tensor<2>>, ops: Ops) -> Tensor<1> {
    let [x, weight, gate, up, down] = std::array::from_fn(|_| inputs.remove(0));
    let x = Operand::rms_norm(x, vector(weight), 1e-6, ops).0.of_type(operand);
    assert_eq!(FloatDType::from(x.dtype()), operand);
    let [gate, up] = [gate, up].map(|weight| linear(x.clone(), weight, None, BF16, ops));
    let x = Operand::swiglu(gate, up, ops).of_type(operand);
    assert_eq!(FloatDType::from(x.dtype()), operand);
    vector(linear(x, down, None, BF16, ops))
}

#[track_caller]
fn same_bits(inputs: &[Input], op: impl Fn(FloatDType, Vec<Tensor<2>>, Ops) -> Tensor<1>) {
    let (wide, wide_gradients) = run(inputs, &|inputs, ops| op(FloatDType::F32, inputs, ops), Ops::Fused);
    let (narrow, narrow_gradients) = run(inputs, &|inputs, ops| op(BF16, inputs, ops), Ops::Fused);
    assert!(wide.iter().all(|value| value.is_finite()));
    assert_eq!(wide, narrow);
    assert_eq!(wide_gradients, narrow_gradients);
}

#[test]
fn bf16_activations_give_the_bits_of_f32_ones() {
    if !on_cpu() {
        return skip!("cpu", "on other devices than the CPU operands are narrow, and products do not round them");
    }
    // Sizes that fit no vector, several blocks of rows and of queries.
    for (batch, seq, heads, head_dim) in [(1, 1, 1, 1), (2, 7, 3, 5), (3, 257, 2, 17)] {
        let (rows, width) = (batch * seq, heads * head_dim);
        let inputs = [
            input(rows, width, 2.0, 1),
            input(1, width, 1.0, 2),
            input(1, width, 1.0, 3),
            input(width, 3 * width, 0.5, 4),
            input(1, 3 * width, 0.5, 5),
            input(width, width + 1, 0.5, 6),
        ];
        same_bits(&inputs, |operand, inputs, ops| attention(operand, [seq, heads], inputs, ops));
    }
    for (rows, width, inner) in [(1, 1, 1), (5, 31, 33), (1009, 17, 67)] {
        let inputs = [
            input(rows, width, 2.0, 1),
            input(1, width, 1.0, 2),
            input(width, inner, 1.0, 3),
            input(width, inner, 1.0, 4),
            input(inner, width, 1.0, 5),
        ];
        same_bits(&inputs, gated);
    }
    for kind in [Activation::GeluTanh, Activation::GeluErf] {
        for (rows, width, inner) in [(1, 1, 1), (5, 31, 33), (1009, 17, 67)] {
            let inputs = [
                input(rows, width, 2.0, 1),
                input(width, inner, 1.0, 2),
                input(1, inner, 1.0, 3),
                input(inner, width, 1.0, 4),
            ];
            same_bits(&inputs, |operand, inputs, ops| feed_forward(operand, kind, inputs, ops));
        }
    }
}
