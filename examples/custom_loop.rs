//! A loop of one's own from Kiln's pieces, without the Trainer: model, data, loss, gradients,
//! schedule and optimizer, each used by itself. The task is to continue a repeating sequence.
//!
//!     cargo run --release --example custom_loop

use burn::optim::GradientsParams;
use burn::tensor::Device;
use kiln::Result;
use kiln::config::{SchedulerKwargs, SchedulerType, Task};
use kiln::core::random::seed_for;
use kiln::data::{BatchLabels, PaddedBatch};
use kiln::optim::gradient::{global_norm, scale_and_norm};
use kiln::optim::schedule::Schedule;
use kiln::optim::{Optimizer, OptimizerConfig, ParameterGroups};
use kiln::task::{CausalLm, DeviceBatch};
use kiln::trainer::step_closures::{StepClosures, When};
use kiln_models::{Gpt2Config, Model, ModelConfig};

const STEPS: usize = 50;
const ROWS: usize = 8;
const SEQ_LEN: usize = 16;
const PERIOD: u64 = 7;

/// Rows that count modulo [`PERIOD`], each from another start.
fn batch(step: u64) -> PaddedBatch {
    let start = |row| seed_for(1, "example", step, row) % PERIOD;
    let rows = (0..ROWS as u64).flat_map(|row| (0..SEQ_LEN as u64).map(move |i| ((start(row) + i) % PERIOD) as i32));
    let input_ids = rows.collect::<Vec<_>>();
    PaddedBatch {
        rows: ROWS,
        examples: ROWS,
        seq_len: SEQ_LEN,
        labels: BatchLabels::Tokens(input_ids.clone()),
        num_tokens: input_ids.len(),
        input_ids,
        attention_mask: None,
        token_type_ids: None,
        position_ids: None,
    }
}

fn main() -> Result<()> {
    let device = Device::flex().autodiff();
    device.seed(1);
    let config =
        Gpt2Config { vocab_size: 10, n_positions: 32, n_embd: 32, n_layer: 2, n_head: 2, ..Default::default() };
    let mut model = Model::new(&ModelConfig::Gpt2(config), Task::Clm.head(), &device)?;
    let mut optimizer = Optimizer::new(OptimizerConfig::default(), &ParameterGroups::new(0.01), &model);
    let schedule = Schedule::new(SchedulerType::Cosine, 1e-2, 5, STEPS, &SchedulerKwargs::default())?;
    let mut closures = StepClosures::default();

    for step in 0..STEPS {
        let batch = DeviceBatch::new(&CausalLm, &batch(step as u64), &device)?;
        let logits = model.forward(batch.input.clone(), true);
        let loss = batch.loss(logits)?; // a sum and a count
        let grads = GradientsParams::from_grads(loss.sum.backward(), &model);
        let (scale, norm) = scale_and_norm(global_norm(&model, &grads, model.ops()), loss.count as f64, Some(1.0));
        model = optimizer.step(model, grads, &scale, schedule.lr(step));
        // The only values that leave the device, ten steps of them at once.
        let (step, count) = (step + 1, loss.count as f64);
        closures.add(When::AtLog, [loss.sum.inner(), norm], move |values| {
            println!("step {step:2}: loss {:.4}, gradient norm {:.3}", values[0] / count, values[1]);
        });
        closures.end_step(step % 10 == 0)?;
    }
    Ok(())
}
