//! The overhead of `Trainer` over the bare work: the same model, batches and optimizer run once as
//! a loop of forward, backward and update with nothing else, and once through `Trainer`. The two
//! alternate, and the result is the median of the repeats.
//!
//!     cargo bench --bench loop_overhead
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Instant;

use burn::optim::GradientsParams;
use burn::tensor::Device;
use kiln::OpenSession;
use kiln::config::{DataSection, ModelKind, ModelSection, OnExisting, Sampler, SaveStrategy, Task, TrainingArguments};
use kiln::data::collate::Collator;
use kiln::data::loader::{Loader, LoaderOptions, Share};
use kiln::data::padding::Padding;
use kiln::data::sampler::Order;
use kiln::optim::gradient::{global_norm, scale_and_norm};
use kiln::optim::{Optimizer, OptimizerConfig, ParameterGroups};
use kiln::task::{DeviceBatch, model_task};
use kiln::{RunConfig, Session, Trainer};
use kiln_models::Model;

const STEPS: usize = 12;
const REPEATS: usize = 7;

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data.jsonl");
    let row = |i: usize| {
        let ids = (0..128).map(|j| ((i * 31 + j * 17) % 2048).to_string()).collect::<Vec<_>>().join(",");
        format!("{{\"input_ids\": [{ids}]}}\n")
    };
    std::fs::write(&data, (0..STEPS * 8).map(row).collect::<String>()).unwrap();
    let session = || {
        let model = [("n_layer", 4), ("n_head", 4), ("n_embd", 256), ("n_positions", 128), ("vocab_size", 2048)];
        let model =
            model.into_iter().fold(ModelSection::new(ModelKind::Gpt2), |m, (field, value)| m.with(field, value));
        let arguments = TrainingArguments {
            on_existing: OnExisting::Overwrite,
            max_steps: Some(STEPS),
            sampler: Sampler::Sequential,
            logging_steps: Some(10.into()),
            // A checkpoint is no part of a step.
            save_strategy: SaveStrategy::No,
            ..TrainingArguments::new(folder.path().join("run"))
        };
        let config = RunConfig::builder(arguments)
            .model(model)
            .data(DataSection::tokenized(Task::Clm, [data.display().to_string()]))
            .build()
            .unwrap();
        Session::open(config).unwrap()
    };
    let (mut bare, mut trained) = (Vec::new(), Vec::new());
    for _ in 0..REPEATS {
        bare.push(bare_step_ms(&session()));
        let mut trainer = Trainer::from_session(session()).unwrap();
        let output = trainer.train().unwrap();
        let seconds = output.summary.get("train_runtime").unwrap();
        trained.push(seconds * 1e3 / STEPS as f64);
    }
    let median = |values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    println!("bare     {bare:.1?} ms/step");
    println!("trainer  {trained:.1?} ms/step");
    let (bare, trained) = (median(&mut bare), median(&mut trained));
    println!(
        "medians of {REPEATS}, {STEPS} steps each: bare {bare:.1} ms, trainer {trained:.1} ms, ratio {:.3}",
        trained / bare
    );
}

/// Milliseconds a step of the bare loop.
fn bare_step_ms(session: &Session) -> f64 {
    let plan = session.plan();
    let device = Device::flex().autodiff();
    let run_plan = session.run_plan().unwrap();
    let (config, task) = run_plan.model_and_task().unwrap();
    let mut model = Model::new(config, task.head(), &device).unwrap();
    let mut optimizer = Optimizer::new(OptimizerConfig::default(), &ParameterGroups::new(0.0), &model);
    let options = LoaderOptions {
        batch_size: plan.batch.micro,
        order: Order::SEQUENTIAL,
        drop_last: false,
        prefetch: 0,
        repeat: true,
        share: Share::ALL,
    };
    let collator = Collator { pad_id: 0, padding: Padding::default(), rows: plan.batch.micro };
    let mut loader =
        Loader::new(Arc::clone(session.train()), move |examples| collator.collate(examples), options).unwrap();
    let batches = (0..STEPS).map(|_| {
        let batch = loader.next_batch().unwrap().unwrap().batch;
        DeviceBatch::new(&*model_task(task), &batch, &device).unwrap()
    });
    let batches = batches.collect::<Vec<_>>();
    let start = Instant::now();
    for batch in batches {
        let loss = batch.loss(model.forward(batch.input.clone(), true)).unwrap();
        let grads = GradientsParams::from_grads(loss.sum.backward(), &model);
        let (scale, _) = scale_and_norm(global_norm(&model, &grads, model.ops()), loss.count as f64, Some(1.0));
        model = optimizer.step(model, grads, &scale, 1e-4);
    }
    device.sync().unwrap();
    start.elapsed().as_secs_f64() * 1e3 / STEPS as f64
}
