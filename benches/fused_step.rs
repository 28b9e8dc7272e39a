//! A training step of GPT-2 with plain and with fused operators: the same model, batch and optimizer, alternated in one
//! process, forward + backward + update. Prints the median of each, the median of the ratios of neighbours, and the
//! largest difference of the losses.
//!
//!     cargo bench --bench fused_step                       # 4 layers, width 256, vocabulary 8192, 8 x 128 tokens
//!     cargo bench --bench fused_step -- 6 384 6 8192 4 256 # layers, width, heads, vocabulary, batch, block
#![allow(clippy::unwrap_used)]

use std::time::Instant;

use burn::optim::GradientsParams;
use burn::tensor::Device;
use kiln::data::{Batch, Labels};
use kiln::execution::read_scalars;
use kiln::optim::gradient::{global_norm, scale_and_norm};
use kiln::optim::{Optimizer, OptimizerConfig, ParameterGroups};
use kiln::task::{DeviceBatch, LossOptions, Task};
use kiln_models::{Head, Model, ModelConfig, ModelType, Ops};
use serde_json::json;

const REPEATS: usize = 15;
const WARMUP: usize = 3;

/// A model with its optimizer, in one form.
struct Side {
    model: Option<Model>,
    optimizer: Optimizer,
    times: Vec<f64>,
}

impl Side {
    fn new(model: Model, ops: Ops) -> Self {
        let model = model.with_ops(ops);
        let optimizer = Optimizer::new(OptimizerConfig::default(), &ParameterGroups::new(0.0), &model).with_ops(ops);
        Self { model: Some(model), optimizer, times: Vec::new() }
    }

    /// One step; its loss.
    fn step(&mut self, batch: &DeviceBatch) -> f64 {
        let start = Instant::now();
        let model = self.model.take().unwrap();
        let loss = batch.loss_of(&model, true, &LossOptions::default()).unwrap();
        let forward = start.elapsed();
        let grads = GradientsParams::from_grads(loss.sum.backward(), &model);
        let backward = start.elapsed();
        let norm = global_norm(&model, &grads, model.ops());
        let (scale, _) = scale_and_norm(norm, loss.count as f64, Some(1.0));
        self.model = Some(self.optimizer.step(model, grads, &scale, 1e-4));
        let value = read_scalars(vec![loss.sum]).unwrap()[0] / loss.count as f64;
        let all = start.elapsed();
        self.times.push(all.as_secs_f64() * 1e3);
        if std::env::var_os("KILN_BENCH_PARTS").is_some() {
            println!("  forward {forward:.1?}, backward {:.1?}, update {:.1?}", backward - forward, all - backward);
        }
        value
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    // `cargo bench` passes `--bench`.
    let given = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect::<Vec<usize>>();
    let [layers, width, heads, vocabulary, batch, block] = given.try_into().unwrap_or([4, 256, 4, 8192, 8, 128]);
    let fields = json!({"n_layer": layers, "n_embd": width, "n_head": heads, "vocab_size": vocabulary, "n_positions": block,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0});
    let config = ModelConfig::from_fields(ModelType::Gpt2, fields.as_object().unwrap()).unwrap();
    let ids = (0..batch * block).map(|i| ((i * 7919 + i * i * 31) % vocabulary) as i32).collect::<Vec<_>>();
    let batch = Batch {
        rows: batch,
        examples: batch,
        seq_len: block,
        num_tokens: batch * block,
        input_ids: ids.clone(),
        attention_mask: None,
        token_type_ids: None,
        labels: Labels::Tokens(ids),
    };
    let batch = DeviceBatch::new(Task::Clm, &batch, &Device::flex().autodiff()).unwrap();
    let device = Device::flex().autodiff();
    device.seed(1);
    let model = Model::new(&config, Head::CausalLm, &device).unwrap();
    let (mut plain, mut fused) = (Side::new(model.clone(), Ops::Plain), Side::new(model, Ops::Fused));
    let mut worst = 0.0f64;
    for _ in 0..WARMUP + REPEATS {
        let (a, b) = (plain.step(&batch), fused.step(&batch));
        worst = worst.max((a / b - 1.0).abs());
    }
    let (plain, fused) = (plain.times.split_off(WARMUP), fused.times.split_off(WARMUP));
    let ratios = plain.iter().zip(&fused).map(|(plain, fused)| plain / fused).collect();
    println!("plain {plain:.0?} ms");
    println!("fused {fused:.0?} ms");
    println!(
        "medians of {REPEATS} alternated steps: plain {:.1} ms, fused {:.1} ms, ratio {:.2}; losses within {worst:.1e}",
        median(plain),
        median(fused),
        median(ratios)
    );
}
