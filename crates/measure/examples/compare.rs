//! The two modes of a run against each other, in this process: the same losses, gradients and
//! weight changes, and how long a step takes in each. Works for a model of one's own too (see
//! `own_model`).
//!
//!     cargo run --release --example compare

use kiln::OpenSession;

use kiln::config::{
    DataSection, ModelKind, ModelSection, OnExisting, Task, TokenizerSection, TrainingArguments, TrainingCompilerConfig,
};
use kiln::{Result, RunConfig, Session};
use kiln_measure::proof::parity::modes;

fn main() -> Result<()> {
    let model = ModelSection::new(ModelKind::Gpt2);
    let model = model.with("n_layer", 2).with("n_head", 2).with("n_embd", 64).with("n_positions", 64);
    let arguments = TrainingArguments {
        on_existing: OnExisting::Overwrite,
        max_steps: Some(20),
        learning_rate: 1e-3,
        compiler: Some(TrainingCompilerConfig::default()),
        ..TrainingArguments::new("runs/example-compare")
    };
    let config = RunConfig::builder(arguments)
        .model(model)
        .data(DataSection { block_size: Some(64), ..DataSection::text(Task::Clm, ["crates/train/src/optim/*.rs"]) })
        .tokenizer(TokenizerSection::train(512))
        .build()?;
    let found = modes(&Session::open(config)?, 3)?;
    found.report.lines().iter().for_each(|line| println!("{line}"));
    match &found.report.difference {
        Some(difference) => println!("different: {difference}"),
        None => println!("the same; {:.1} ms a step native, {:.1} ms compiled", found.native_ms, found.compiled_ms),
    }
    Ok(())
}
