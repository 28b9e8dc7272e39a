//! A module of plain `burn::nn` layers learns to continue progressions.
//!
//!     cargo run --release --example plain_model

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor, activation::relu};
use kiln_train::prelude::*;

const VOCABULARY: usize = 17;
const WIDTH: usize = 32;

#[derive(Module, Debug)]
struct Net {
    embedding: Embedding,
    hidden: Linear,
    out: Linear,
}
impl StateDict for Net {} // weights are named by their fields

/// Predicts each number from the one before it.
#[derive(Clone)]
struct NextNumber;

impl TrainingTask for NextNumber {
    type Model = Net;
    type Example = Vec<i32>;
    type Batch = TokenBatch;

    fn model(&self, _: Compute, device: &Device) -> Result<Net> {
        let embedding = EmbeddingConfig::new(VOCABULARY, WIDTH).init(device);
        let hidden = LinearConfig::new(WIDTH, WIDTH).init(device);
        Ok(Net { embedding, hidden, out: LinearConfig::new(WIDTH, VOCABULARY).init(device) })
    }
    fn batch(&self, rows: &[Vec<i32>], _: usize) -> Result<TokenBatch> {
        Ok(TokenBatch::new(rows))
    }
    fn loss(&self, net: &Net, ids: &Tensor<2, Int>, _: Pass<'_>) -> Result<Tensor<1>> {
        let [rows, seq] = ids.dims();
        let [input, target] = [0, 1].map(|from| ids.clone().narrow(1, from, seq - 1));
        let x = relu(net.hidden.forward(net.embedding.forward(input)));
        let logits = net.out.forward(x).reshape([rows * (seq - 1), VOCABULARY]);
        let mean = CrossEntropyLossConfig::new().init(&ids.device()).forward(logits, target.flatten(0, 1));
        Ok(mean * (rows * (seq - 1)) as f64) // the Trainer divides by the labels of a step
    }
}

fn main() -> Result<()> {
    let row = |i: i32| (0..8).map(|j| (i + 3 * j) % VOCABULARY as i32).collect();
    let rows = |range: std::ops::Range<i32>| range.map(row).collect::<Vec<Vec<i32>>>();
    let run = TrainingArguments::new("runs/example-plain-model");
    let arguments =
        TrainingArguments { on_existing: OnExisting::Overwrite, max_steps: Some(60), learning_rate: 1e-2, ..run };
    let mut trainer = Trainer::new(arguments, NextNumber, rows(0..200))?.with_validation(rows(200..240))?;
    trainer.train()?;
    println!("loss {:.3}", trainer.evaluate()?.metric("loss").unwrap_or(f64::NAN));
    Ok(())
}
