//! A model that Kiln does not ship, in both modes: a small decoder with causal attention learns to
//! continue progressions. Its layers are Kiln's operators, which `compiled` fuses. Each run is
//! stopped once, continued from its checkpoint, and writes a page with its curves.
//!
//!     cargo run --release --example own_model

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor};
use kiln_measure::report::page_of_run;
use kiln_train::models::layers::{Embedding, LayerNorm, Linear};
use kiln_train::models::ops::attention::{Attention, Mask, Qkv};
use kiln_train::models::ops::cross_entropy::CrossEntropy;
use kiln_train::prelude::*;
use kiln_train::trainer::StopAfter;

const VOCABULARY: usize = 23;
const WIDTH: usize = 32;
const HEADS: usize = 4;
const SEQ: usize = 12;

#[derive(Module, Debug)]
struct Decoder {
    tokens: Embedding,
    positions: Embedding,
    norms: Vec<LayerNorm>,
    qkv: Linear,
    out: Linear,
}
impl StateDict for Decoder {} // weights are named by their fields

impl Decoder {
    /// Hidden states that predict the next token: `[batch, seq] -> [batch * seq, WIDTH]`
    fn forward(&self, ids: Tensor<2, Int>, pass: Pass<'_>) -> Tensor<2> {
        let ([batch, seq], device, ops) = (ids.dims(), ids.device(), pass.ops());
        let positions = Tensor::<1, Int>::arange(0..seq as i64, &device).repeat_dim(0, batch);
        let x = self.tokens.forward(ids.reshape([batch * seq]), ops) + self.positions.forward(positions, ops);
        let qkv = Qkv::Packed(self.qkv.forward(self.norms[0].forward(x.clone(), ops), pass));
        let (scale, products) = ((HEADS as f64 / WIDTH as f64).sqrt(), pass.compute.dtype());
        let attention = Attention { batch, heads: HEADS, scale, dropout: 0.1, rng: pass.rng, products };
        let mixed = attention.forward(qkv, &Mask::new(seq, true, None, &device, ops));
        self.norms[1].forward(x + self.out.forward(mixed, pass), ops)
    }
}

/// Predicts each number from those before it.
#[derive(Clone)]
struct NextNumber;

impl TrainingTask for NextNumber {
    type Model = Decoder;
    type Example = Vec<i32>;
    type Batch = TokenBatch;

    fn model(&self, _: Compute, device: &Device) -> Result<Decoder> {
        let embedding = |rows| Embedding::new(rows, WIDTH, None, 0.1, device);
        let linear = |outputs| Linear::new(WIDTH, outputs, true, 0.1, device);
        let norms = (0..2).map(|_| LayerNorm::new(WIDTH, 1e-5, device)).collect();
        let (tokens, positions) = (embedding(VOCABULARY), embedding(SEQ));
        Ok(Decoder { tokens, positions, norms, qkv: linear(3 * WIDTH), out: linear(WIDTH) })
    }
    fn batch(&self, rows: &[Vec<i32>], _: usize) -> Result<TokenBatch> {
        Ok(TokenBatch::new(rows))
    }
    /// The sum over the tokens of a batch; the Trainer divides it by their number.
    fn loss(&self, model: &Decoder, ids: &Tensor<2, Int>, pass: Pass<'_>) -> Result<Tensor<1>> {
        let [input, target] = [0, 1].map(|from| ids.clone().narrow(1, from, SEQ - 1));
        let (x, weight) = (model.forward(input, pass), model.tokens.weight.val());
        let (target, row_weight, operands) = (target.flatten(0, 1), None, pass.compute.dtype().into());
        Ok(CrossEntropy { x, weight, bias: None, target, row_weight, label_smoothing: 0.0, operands }.sum(pass.ops()))
    }
}

/// Progressions modulo the size of the vocabulary.
fn progressions(range: std::ops::Range<usize>) -> Vec<Vec<i32>> {
    let row = |index: usize| (0..SEQ).map(|i| ((index * 5 + i * (1 + index % 7)) % VOCABULARY) as i32).collect();
    range.map(row).collect()
}

fn main() -> Result<()> {
    for mode in [CompilerMode::Native, CompilerMode::Compiled] {
        let trainer = |on_existing| {
            let run = TrainingArguments::new(format!("runs/example-own-model-{mode}"));
            let compiler = Some(mode.into());
            let arguments =
                TrainingArguments { on_existing, max_steps: Some(60), learning_rate: 1e-2, compiler, ..run };
            let trainer = Trainer::new(arguments, NextNumber, progressions(0..256))?.with_page(page_of_run);
            trainer.with_validation(progressions(256..288))
        };
        trainer(OnExisting::Overwrite)?.with_callback(StopAfter(30)).train()?;
        let mut trainer = trainer(OnExisting::Resume)?;
        trainer.train()?;
        println!("{mode}: loss {:.3}", trainer.evaluate()?.metric("loss").unwrap_or(f64::NAN));
    }
    Ok(())
}
