//! `kiln verify-resume FILE`: shows on the user's own config that N + M steps equal N steps, a stop and M steps. Model,
//! data, batch, schedule and seed are the config's; only what changes no weight is left out (evaluation, the text sample,
//! the checkpoints' schedule). It works in a temporary folder and leaves the run folder alone.

use std::path::Path;

use safetensors::SafeTensors;
use serde_json::{Map, Value};

use crate::config::{EvalStrategy, OnExisting, RunConfig, SaveStrategy};
use crate::error::{Error, Result};
use crate::plan::RunPlan;
use crate::trainer::{Callback, Control, Progress, Trainer, checkpoint};

/// Figures of a training row that say something about the run, not about the machine.
const FIGURES: [&str; 7] = ["step", "epoch", "samples", "tokens", "loss", "grad_norm", "learning_rate"];

/// What was compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Steps before the stop.
    pub before: u64,
    /// Steps after it.
    pub after: u64,
    /// Tensors that were compared: weights and moments.
    pub tensors: usize,
    /// Rows that were compared.
    pub rows: usize,
    /// What differs; empty when the promise is kept.
    pub differences: Vec<String>,
}

/// Runs `config` for a few steps, once straight and once with a stop between, and compares. `plan` makes a plan of a
/// config ([`RunConfig::plan`], or one that shows its progress).
///
/// # Errors
/// Whatever the runs meet.
pub fn verify(config: &RunConfig, plan: &dyn Fn(RunConfig) -> Result<RunPlan>) -> Result<Report> {
    let folder = tempfile::tempdir().map_err(|error| Error::io("make a temporary folder", &error))?;
    let mut config = config.clone();
    config.generation = None;
    let trainer = &mut config.trainer;
    (trainer.eval_strategy, trainer.eval_steps, trainer.eval_on_start) = (EvalStrategy::No, None, false);
    (trainer.save_strategy, trainer.load_best_model_at_end) = (SaveStrategy::No, false);
    (trainer.metric_for_best_model, trainer.greater_is_better) = (None, None);
    (trainer.early_stopping_patience, trainer.early_stopping_threshold) = (None, 0.0);
    (trainer.max_minutes, trainer.logging_steps) = (None, Some(1.into()));
    let run = |name: &str, steps: u64| -> Result<()> {
        let mut config = config.clone();
        config.run.output_dir = folder.path().join(name);
        config.run.on_existing = OnExisting::Resume;
        Trainer::new(plan(config)?)?.with_callback(StopAfter(steps)).train().map(drop)
    };
    let total = plan(config.clone())?.steps.total as u64;
    if total < 2 {
        return Err(Error::config("this run has one step: there is nothing to stop in the middle of"));
    }
    let (before, all) = ((total / 2).min(3), total.min(6));
    run("straight", all)?;
    run("stopped", before)?;
    run("stopped", all)?;
    compare(&folder.path().join("straight"), &folder.path().join("stopped"), before, all)
}

fn compare(straight: &Path, stopped: &Path, before: u64, all: u64) -> Result<Report> {
    let mut report = Report { before, after: all - before, tensors: 0, rows: 0, differences: Vec::new() };
    let last = Path::new(checkpoint::FOLDER).join(checkpoint::name(all));
    for file in ["model.safetensors", "optimizer.safetensors"] {
        let [a, b] = [straight, stopped].map(|run| read(&run.join(&last).join(file)));
        let (a, b) = (a?, b?);
        let bad = |error: safetensors::SafeTensorError| Error::data(format!("{file}: {error}"));
        let (a, b) = (SafeTensors::deserialize(&a).map_err(bad)?, SafeTensors::deserialize(&b).map_err(bad)?);
        let mut names = a.names();
        names.extend(b.names().into_iter().filter(|name| a.tensor(name).is_err()));
        for name in names {
            report.tensors += 1;
            match (a.tensor(name), b.tensor(name)) {
                (Ok(a), Ok(b)) if a.data() == b.data() => {}
                _ => report.differences.push(name.to_owned()),
            }
        }
    }
    let (a, b) = (rows(straight)?, rows(stopped)?);
    report.rows = a.len();
    if a.len() != b.len() {
        report.differences.push(format!("{} rows against {}", a.len(), b.len()));
    }
    for (a, b) in a.iter().zip(&b).filter(|(a, b)| a != b) {
        report.differences.push(format!("{} against {}", Value::from(a.clone()), Value::from(b.clone())));
    }
    Ok(report)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| Error::io(format!("read {}", path.display()), &error))
}

/// The training rows of a run, without what is measured.
fn rows(run: &Path) -> Result<Vec<Map<String, Value>>> {
    let text = read(&run.join("metrics.jsonl"))?;
    let mut rows = Vec::new();
    for line in String::from_utf8_lossy(&text).lines() {
        let row = serde_json::from_str::<Map<String, Value>>(line);
        let mut row = row.map_err(|error| Error::data(format!("metrics.jsonl: {error}: {line}")))?;
        if row.contains_key("loss") {
            row.retain(|name, _| FIGURES.contains(&name.as_str()));
            rows.push(row);
        }
    }
    Ok(rows)
}

/// Saves and stops after a number of steps.
struct StopAfter(u64);

impl Callback for StopAfter {
    fn on_step_end(&mut self, progress: &Progress, control: &mut Control) {
        let reached = progress.step >= self.0;
        (control.should_save, control.should_training_stop) = (reached, reached);
    }
}
