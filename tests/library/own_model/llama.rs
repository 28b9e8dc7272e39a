//! A model that Kiln does not ship: a small Llama-like decoder (RMSNorm, rotary positions, SwiGLU)
//! learns to continue progressions. All but the sums of the residual stream are Kiln's operators,
//! which `compiled` fuses.

use burn::module::{Module, Param};
use burn::tensor::{Device, Int, Tensor};
use kiln_models::layers::{Embedding, Linear, uninitialized};
use kiln_models::ops::attention::{Attention, Mask, Qkv};
use kiln_models::ops::rms_norm::rms_norm;
use kiln_models::ops::rotary::rotary;
use kiln_models::ops::swiglu::swiglu;
use kiln_models::ops::{cross_entropy::CrossEntropy, dropout::dropout};
use kiln_train::prelude::*;

const VOCABULARY: usize = 23;
const WIDTH: usize = 32;
const HEADS: usize = 4;
const SEQ: usize = 12;

#[derive(Module, Debug)]
pub(crate) struct Layer {
    norms: Vec<Param<Tensor<1>>>,
    qkv: Linear,
    out: Linear,
    gate_up: Linear,
    down: Linear,
}

#[derive(Module, Debug)]
pub(crate) struct Llama {
    embed_tokens: Embedding,
    layers: Vec<Layer>,
    norm: Param<Tensor<1>>,
}
impl StateDict for Llama {}

/// The angles of the pairs of a head at each of `seq` positions (Su et al. 2021).
fn angles(seq: usize, device: &Device) -> Tensor<2> {
    let half = WIDTH / HEADS / 2;
    let position = Tensor::<1, Int>::arange(0..seq as i64, device).float().reshape([seq, 1]);
    let rate = (Tensor::<1, Int>::arange(0..half as i64, device).float() * (-(1e4f64.ln()) / half as f64)).exp();
    position * rate.reshape([1, half])
}

impl Llama {
    fn forward(&self, ids: Tensor<2, Int>, pass: Pass<'_>) -> Tensor<2> {
        let [batch, seq] = ids.dims();
        let (device, ops) = (ids.device(), pass.ops());
        let mask = Mask::new(seq, true, None, &device, ops);
        let (cos, sin) = (angles(seq, &device).cos(), angles(seq, &device).sin());
        let norm = |x: &Tensor<2>, weight: &Param<Tensor<1>>| rms_norm(x.clone(), weight.val(), 1e-6, ops);
        let mut x = self.embed_tokens.forward(ids.reshape([batch * seq]), ops);
        for layer in &self.layers {
            let qkv = layer.qkv.forward(norm(&x, &layer.norms[0]), pass);
            let [query, key, value] = [0, 1, 2].map(|part| qkv.clone().narrow(1, part * WIDTH, WIDTH));
            let scale = (HEADS as f64 / WIDTH as f64).sqrt();
            let attention =
                Attention { batch, heads: HEADS, scale, dropout: 0.1, rng: pass.rng, products: pass.compute.dtype() };
            let [query, key] = [query, key].map(|part| rotary(part, cos.clone(), sin.clone(), HEADS, ops));
            x = x + layer.out.forward(attention.forward(Qkv::Separate { query, key, value }, &mask), pass);
            let h = layer.gate_up.forward(norm(&x, &layer.norms[1]), pass);
            let h = swiglu(h.clone().narrow(1, 0, 2 * WIDTH), h.narrow(1, 2 * WIDTH, 2 * WIDTH), ops);
            x = x + dropout(layer.down.forward(h, pass), 0.1, pass.rng, ops);
        }
        norm(&x, &self.norm)
    }
}

/// Progressions modulo the size of the vocabulary.
pub(crate) fn progressions(range: std::ops::Range<usize>) -> Vec<Vec<i32>> {
    let row = |index: usize| (0..SEQ).map(|i| ((index * 5 + i * (1 + index % 7)) % VOCABULARY) as i32).collect();
    range.map(row).collect()
}

/// Predicts each number from those before it.
#[derive(Clone)]
pub(crate) struct NextNumber;

impl TrainingTask for NextNumber {
    type Model = Llama;
    type Example = Vec<i32>;
    type Batch = TokenBatch;

    fn model(&self, _: Compute, device: &Device) -> Result<Llama> {
        let linear = |d_in, d_out| Linear::new(d_in, d_out, false, 0.1, device);
        let norm = || uninitialized([WIDTH], device, |shape, device| Tensor::ones(shape, device));
        let layer = |_| {
            let (qkv, out) = (linear(WIDTH, 3 * WIDTH), linear(WIDTH, WIDTH));
            let (gate_up, down) = (linear(WIDTH, 4 * WIDTH), linear(2 * WIDTH, WIDTH));
            Layer { norms: vec![norm(), norm()], qkv, out, gate_up, down }
        };
        let embed_tokens = Embedding::new(VOCABULARY, WIDTH, None, 0.1, device);
        Ok(Llama { embed_tokens, layers: (0..2).map(layer).collect(), norm: norm() })
    }
    fn batch(&self, rows: &[Vec<i32>], _: usize) -> Result<TokenBatch> {
        Ok(TokenBatch::new(rows))
    }
    fn loss(&self, model: &Llama, ids: &Tensor<2, Int>, pass: Pass<'_>) -> Result<Tensor<1>> {
        let (x, weight) = (model.forward(before(ids), pass), model.embed_tokens.weight.val());
        let (target, operands, row_weight) = (next(ids), pass.compute.dtype().into(), None);
        Ok(CrossEntropy { x, weight, bias: None, target, row_weight, label_smoothing: 0.0, operands }.sum(pass.ops()))
    }
    fn evaluate(&self, model: &Llama, ids: &Tensor<2, Int>, pass: Pass<'_>) -> Result<Figures> {
        let logits = model.forward(before(ids), pass).matmul(model.embed_tokens.weight.val().transpose());
        let right = logits.argmax(1).flatten(0, 1).equal(next(ids)).float().sum();
        Ok(vec![("loss", self.loss(model, ids, pass)?), ("accuracy", right)])
    }
}

/// All ids but the last of each row.
fn before(ids: &Tensor<2, Int>) -> Tensor<2, Int> {
    ids.clone().narrow(1, 0, SEQ - 1)
}

/// The id that follows each of [`before`].
fn next(ids: &Tensor<2, Int>) -> Tensor<1, Int> {
    ids.clone().narrow(1, 1, SEQ - 1).flatten(0, 1)
}
