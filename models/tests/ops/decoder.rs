//! The halves of a decoder layer of the Llama family, with adapters on every projection: the
//! operators one after the other, and the gradients through all of them.

use burn::tensor::{FloatDType, Tensor};
use kiln_models::Ops;
use kiln_models::ops::attention::{Attention, Mask, Qkv};
use kiln_models::ops::dropout::DropoutRng;
use kiln_models::ops::linear::{Adapted, adapted};
use kiln_models::ops::rms_norm::rms_norm;
use kiln_models::ops::rotary::rotary;
use kiln_models::ops::swiglu::swiglu;

use crate::{Input, agrees_with_plain, close, input, of_products, run, tensor, vector, wide};

const RANK: usize = 3;

/// Weight and adapter of a projection, drawn from `seed` on.
fn projection(from: usize, to: usize, seed: u64) -> [Input; 3] {
    [input(from, to, 0.4, seed), input(from, RANK, 0.5, seed + 1), input(RANK, to, 0.5, seed + 2)]
}

/// The product of `x` and the projection whose tensors are next in `inputs`.
fn projected(x: Tensor<2>, inputs: &mut Vec<Tensor<2>>, ops: Ops) -> Tensor<2> {
    let [weight, a, b] = std::array::from_fn(|_| inputs.remove(0));
    let layer = Adapted { weight, a, b, scaling: 0.5, dropout: 0.0, operands: FloatDType::F32.into() };
    adapted(x, layer, None, DropoutRng::Off, ops)
}

#[test]
fn a_gated_feed_forward_block() {
    for (rows, width, inner) in [(1, 1, 1), (17, 63, 65), (300, 7, 97)] {
        let mut inputs = vec![input(rows, width, 2.0, 1), input(1, width, 1.0, 2)];
        inputs.extend(
            [(width, inner, 3), (width, inner, 6), (inner, width, 9)].map(|(a, b, c)| projection(a, b, c)).concat(),
        );
        let op = |mut inputs: Vec<Tensor<2>>, ops: Ops| {
            let (x, weight) = (inputs.remove(0), vector(inputs.remove(0)));
            let normalised = rms_norm(x, weight, 1e-6, ops);
            let gate = projected(normalised.clone(), &mut inputs, ops);
            let up = projected(normalised, &mut inputs, ops);
            vector(projected(swiglu(gate, up, ops), &mut inputs, ops))
        };
        agrees_with_plain(&format!("[{rows}, {width}, {inner}]"), &inputs, &op, of_products(1e-5));
    }
}

/// Norms of query and key as Qwen 3 has them, and positions that turn the heads.
#[test]
fn an_attention_block_with_shared_keys() {
    for (batch, seq, kv_heads, group, head_dim) in [(1, 1, 1, 2, 2), (2, 17, 1, 3, 6), (2, 65, 2, 2, 16)] {
        let (heads, width) = (kv_heads * group, 31);
        let (all, kv) = (heads * head_dim, kv_heads * head_dim);
        let mut inputs =
            vec![input(batch * seq, width, 1.0, 1), input(1, head_dim, 1.0, 2), input(1, head_dim, 1.0, 3)];
        let sizes = [(width, all, 4), (width, kv, 7), (width, kv, 10), (all, width, 13)];
        inputs.extend(sizes.map(|(from, to, seed)| projection(from, to, seed)).concat());
        for window in [None, Some(5)] {
            let op = |mut inputs: Vec<Tensor<2>>, ops: Ops| {
                let (x, device) = (inputs.remove(0), inputs[0].device());
                let norms = [0, 1].map(|_| vector(inputs.remove(0)));
                let [cos, sin] = [f32::cos, f32::sin].map(|turn| {
                    let mut angles = input(seq, head_dim / 2, 3.0, 16);
                    angles.values.iter_mut().for_each(|angle| *angle = turn(*angle));
                    tensor(&angles, &device)
                });
                let placed = |x: Tensor<2>, norm: &Tensor<1>, heads: usize| {
                    let rows = x.dims()[0];
                    let x = rms_norm(x.reshape([rows * heads, head_dim]), norm.clone(), 1e-6, ops);
                    rotary(x.reshape([rows, heads * head_dim]), cos.clone(), sin.clone(), heads, ops)
                };
                let query = placed(projected(x.clone(), &mut inputs, ops), &norms[0], heads);
                let key = placed(projected(x.clone(), &mut inputs, ops), &norms[1], kv_heads);
                let value = projected(x, &mut inputs, ops);
                let mask = match window {
                    Some(window) => Mask::local(seq, window, None, &device, ops),
                    None => Mask::new(seq, true, None, &device, ops),
                };
                let (scale, rng, products) = ((head_dim as f64).powf(-0.5), DropoutRng::Off, FloatDType::F32);
                let attention = Attention { batch, heads, scale, dropout: 0.0, rng, products };
                let attended = attention.forward(Qkv::Separate { query, key, value }, &mask);
                vector(projected(attended, &mut inputs, ops))
            };
            let what = format!("[{batch}, {seq}, {kv_heads} x {group}, {head_dim}], window {window:?}");
            let tolerance = of_products(2e-5);
            if window.is_none_or(|window| seq <= window) {
                agrees_with_plain(&what, &inputs, &op, tolerance);
                continue;
            }
            // The attention is plain, and may round otherwise with autodiff than without.
            let [(plain, of_plain), (fused, of_fused)] = [Ops::Plain, Ops::Fused].map(|ops| run(&inputs, &op, ops));
            close(&what, &fused, &wide(&plain), tolerance);
            for (fused, plain) in of_fused.iter().zip(&of_plain) {
                close(&what, fused, &wide(plain), tolerance);
            }
        }
    }
}
