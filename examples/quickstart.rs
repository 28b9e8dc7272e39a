//! A training script in one screen: a small GPT-2 learns Kiln's own source code, logs as it goes,
//! and writes a sample.
//!
//!     cargo run --release --example quickstart

use kiln::OpenSession;

use kiln::config::Task;
use kiln::config::{
    DataSection, GenerationSection, ModelKind, ModelSection, OnExisting, TokenizerSection, TrainingArguments,
};
use kiln::core::metrics::Record;
use kiln::trainer::{Callback, Progress};
use kiln::{Result, RunConfig, Session, Trainer};

/// Shows the loss; a callback has Hugging Face's events.
struct ShowLoss;

impl Callback for ShowLoss {
    fn on_log(&mut self, progress: &Progress, row: &Record) {
        println!(
            "step {:3} of {}: loss {:.3}",
            progress.step,
            progress.total_steps,
            row.get("loss").unwrap_or(f64::NAN)
        );
    }
}

fn main() -> Result<()> {
    let arguments = TrainingArguments {
        on_existing: OnExisting::Overwrite,
        max_steps: Some(60),
        learning_rate: 3e-3,
        ..TrainingArguments::new("runs/example-quickstart")
    };
    let config = RunConfig::builder(arguments)
        .model(
            ModelSection::new(ModelKind::Gpt2)
                .with("n_layer", 2)
                .with("n_head", 2)
                .with("n_embd", 64)
                .with("n_positions", 128),
        )
        .data(DataSection { block_size: Some(64), ..DataSection::text(Task::Clm, ["src/**/*.rs"]) })
        .tokenizer(TokenizerSection::train(1024))
        .generation(GenerationSection { max_new_tokens: 40, temperature: 0.7, ..GenerationSection::new("pub fn ") })
        .build()?;

    let session = Session::open(config)?;
    print!("{}", session.plan().describe());
    let output = Trainer::from_session(session)?.with_callback(ShowLoss).train()?;
    output.samples.iter().for_each(|sample| println!("{sample}"));
    Ok(())
}
