//! Fine-tuning: a GPT-2 that has read Kiln's source code learns to tell code from comments. Without
//! a network the pretrained model is a small one that is made here; with one,
//! `ModelSection::from_pretrained("gpt2")` is all there is to it.
//!
//!     cargo run --release --example fine_tune

use std::fs;
use std::path::Path;

use kiln::OpenSession;

use kiln::config::{
    DataFormat, DataSection, EvalStrategy, ModelKind, ModelSection, OnExisting, Task, TokenizerSection,
    TrainingArguments, Validation,
};
use kiln::{Error, Result, RunConfig, Session, Trainer};

/// Trains a language model on `src`; returns the folder of the model.
fn pretrain(folder: &Path) -> Result<String> {
    let model = ModelSection::new(ModelKind::Gpt2);
    let model = model.with("n_layer", 2).with("n_head", 2).with("n_embd", 48).with("n_positions", 64);
    let arguments = TrainingArguments {
        on_existing: OnExisting::Overwrite,
        max_steps: Some(20),
        learning_rate: 5e-3,
        ..TrainingArguments::new(folder)
    };
    let config = RunConfig::builder(arguments)
        .model(model)
        .data(DataSection { block_size: Some(48), ..DataSection::text(Task::Clm, ["crates/train/src/optim/*.rs"]) })
        .tokenizer(TokenizerSection::train(400))
        .build()?;
    Trainer::from_session(Session::open(config)?)?.train()?;
    Ok(folder.join("model").display().to_string())
}

/// Lines of Kiln's source with what they are, as a table.
fn write_table(path: &Path) -> Result<()> {
    let read = |file: &str| fs::read_to_string(file).map_err(|error| Error::io(format!("read {file}"), &error));
    let source = read("crates/train/src/optim/optimizer.rs")?
        + &read("crates/train/src/optim/schedule.rs")?
        + &read("crates/train/src/optim/scaler.rs")?;
    let lines = source.lines().map(str::trim).filter(|line| line.len() > 12);
    let row = |line: &str| {
        let label = if line.starts_with("//") { "comment" } else { "code" };
        serde_json::json!({ "text": line.trim_start_matches('/').trim(), "label": label }).to_string() + "\n"
    };
    fs::write(path, lines.map(row).collect::<String>())
        .map_err(|error| Error::io(format!("write {}", path.display()), &error))
}

fn main() -> Result<()> {
    let pretrained = pretrain(Path::new("runs/example-fine-tune-pretrained"))?;
    let table = Path::new("runs/example-fine-tune.jsonl");
    write_table(table)?;
    let arguments = TrainingArguments {
        on_existing: OnExisting::Overwrite,
        max_steps: Some(60),
        learning_rate: 3e-3,
        eval_strategy: EvalStrategy::Epoch,
        ..TrainingArguments::new("runs/example-fine-tune")
    };
    let config = RunConfig::builder(arguments)
        .model(ModelSection::from_pretrained(pretrained))
        .data(DataSection {
            format: DataFormat::Jsonl,
            max_length: Some(24),
            validation: Some(Validation::Share(0.2)),
            ..DataSection::text(Task::SequenceClassification, [table.display().to_string()])
        })
        .build()?;

    let mut trainer = Trainer::from_session(Session::open(config)?)?;
    if let Some(report) = trainer.load_report() {
        println!("loaded {} tensors, drew {}", report.loaded, report.new.len());
    }
    trainer.train()?;
    let evaluation = trainer.evaluate()?;
    let figures = ["accuracy", "f1"].map(|name| format!("{name} {:.3}", evaluation.metric(name).unwrap_or(f64::NAN)));
    println!("{} rows that it has not seen: {}", evaluation.samples, figures.join(", "));
    Ok(())
}
