//! The description that a run keeps in its folder of itself, and the weights that it begins with.

use std::path::PathBuf;

use kiln_core::error::{Error, Result};
use kiln_core::files::{NamedFile, hex, json_text};
use kiln_core::metrics::Record;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::arguments::{DataArguments, Key, TrainingArguments};
use crate::plan::{self, Remarks, TrainFacts, TrainPlan};

/// The weights that a run begins with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Weights {
    /// The task's: pretrained ones, or random ones where it has none.
    #[default]
    OfTask,
    /// Random ones, drawn from the seed.
    Random,
    /// Weights that a run has saved in this folder.
    Saved(PathBuf),
}

/// A run before it begins: what its [description](crate::TrainingTask::description) follows from.
#[derive(Clone, Copy)]
pub struct Planned<'a> {
    /// The arguments.
    pub arguments: &'a TrainingArguments,
    /// The facts.
    pub facts: &'a TrainFacts,
    /// The plan that follows from both.
    pub plan: &'a TrainPlan,
}

/// The description that a run keeps in its folder of itself.
#[derive(Debug, Clone)]
pub struct Description {
    /// The settings of the run by key, with their values in the plan: a resumed run must not change
    /// those that its weights depend on.
    pub settings: Value,
    /// The settings of a run in which nothing is set.
    pub defaults: Value,
    /// The entries of settings that are no arguments of the Trainer. A setting without an entry
    /// must stay in a resumed run.
    pub keys: &'static [Key],
    /// The files of the plan.
    pub files: Vec<NamedFile>,
    /// The plan in lines, for people.
    pub lines: String,
    /// SHA-256 of the settings without those of the run folder, so that equal plans are recognised.
    pub sha256: String,
    /// Floating-point operations that training on a token takes, where they are known.
    pub flops_per_token: Option<f64>,
}

/// The outcome of a run, for its model card.
#[derive(Debug, Clone, Copy)]
pub struct Outcome<'a> {
    /// The evaluation of the model that is kept, where there was one.
    pub evaluation: Option<&'a Record>,
    /// The row that ends the run.
    pub summary: &'a Record,
    /// All rows before it.
    pub rows: &'a [Record],
}

impl Description {
    /// The description of a run that a program has made, which no file describes.
    ///
    /// # Errors
    /// A value that JSON cannot hold.
    pub fn of_a_program(run: Planned<'_>) -> Result<Self> {
        let resolved = run.plan.resolved(run.arguments);
        let mut plan = serde_json::Map::new();
        plan.insert("schema".into(), plan::SCHEMA.into());
        plan.insert("kiln".into(), env!("CARGO_PKG_VERSION").into());
        let bad = |error: serde_json::Error| Error::config(format!("{}: {error}", plan::FILE));
        if let Value::Object(training) = serde_json::to_value(run.plan).map_err(bad)? {
            plan.extend(training);
        }
        let text = json_text(&plan).map_err(bad)?;
        let settings = settings(&resolved);
        let sha256 = hex(&Sha256::digest(settings.to_string()));
        Ok(Self {
            settings,
            defaults: self::settings(&TrainingArguments::default()),
            keys: &[],
            files: vec![(plan::FILE.into(), text.into_bytes().into())],
            lines: run.plan.describe_with(&Remarks { data: run.arguments.limits(), ..Remarks::default() }),
            sha256,
            flops_per_token: None,
        })
    }
}

/// The arguments by section and key, as a config file names them, without those of the run folder.
fn settings(arguments: &TrainingArguments) -> Value {
    json!({
        "precision": arguments.precision,
        "data": DataArguments::from(arguments),
        "trainer": arguments,
        "batch": arguments.batch,
        "learning_rate": arguments.learning_rate_scaling,
        "device": arguments.device,
        "distributed": arguments.distributed,
        "compiler": arguments.compiler,
    })
}
