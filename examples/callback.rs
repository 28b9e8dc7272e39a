//! Callbacks, with Hugging Face's events: one watches the gradient norm without making the device
//! wait, one ends the run when the loss is low enough.
//!
//!     cargo run --release --example callback

use std::sync::{Arc, Mutex};

use kiln::OpenSession;

use kiln::config::{DataSection, ModelKind, ModelSection, OnExisting, Task, TokenizerSection, TrainingArguments};
use kiln::core::metrics::Record;
use kiln::trainer::step_closures::{StepClosures, When};
use kiln::trainer::{Callback, Control, DeviceValues, Progress};
use kiln::{Result, RunConfig, Session, Trainer};

/// Keeps the largest gradient norm. It looks at no model, so it is a callback for every one.
struct LargestNorm(Arc<Mutex<f64>>);

impl<M> Callback<M> for LargestNorm {
    fn on_step_values(&mut self, _progress: &Progress, values: DeviceValues<'_>, closures: &mut StepClosures<'static>) {
        let largest = self.0.clone();
        // The value stays on the device until the next log row is read, and comes with it.
        closures.add(When::AtLog, [values.grad_norm.clone()], move |values| {
            if let Ok(mut largest) = largest.lock() {
                *largest = largest.max(values[0]);
            }
        });
    }
}

/// Ends the run once the loss of a row is below the number.
struct StopBelow {
    loss: f64,
    last: f64,
}

impl<M> Callback<M> for StopBelow {
    fn on_log(&mut self, progress: &Progress, row: &Record) {
        self.last = row.get("loss").unwrap_or(f64::NAN);
        println!("step {:2}: loss {:.3}", progress.step, self.last);
    }

    fn on_step_end(&mut self, _progress: &Progress, control: &mut Control) {
        control.should_training_stop |= self.last < self.loss;
    }
}

fn main() -> Result<()> {
    let model = ModelSection::new(ModelKind::Gpt2);
    let model = model.with("n_layer", 1).with("n_head", 2).with("n_embd", 32).with("n_positions", 64);
    let arguments = TrainingArguments {
        on_existing: OnExisting::Overwrite,
        max_steps: Some(60),
        learning_rate: 1e-2,
        logging_steps: Some(5.into()),
        ..TrainingArguments::new("runs/example-callback")
    };
    let config = RunConfig::builder(arguments)
        .model(model)
        .data(DataSection { block_size: Some(32), ..DataSection::text(Task::Clm, ["crates/train/src/optim/*.rs"]) })
        .tokenizer(TokenizerSection::train(300))
        .build()?;

    let largest = Arc::new(Mutex::new(0.0));
    let output = Trainer::from_session(Session::open(config)?)?
        .with_callback(LargestNorm(largest.clone()))
        .with_callback(StopBelow { loss: 4.3, last: f64::NAN })
        .train()?;
    let largest = largest.lock().map_or(f64::NAN, |largest| *largest);
    println!("ended after {} steps; the largest gradient norm was {largest:.2}", output.step);
    Ok(())
}
