//! Runs of a small task, some of whose parts are wrong.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor, TensorData};
use kiln_core::dataset::Dataset;
use kiln_core::error::{ErrorKind, Result};
use kiln_models::layers::Embedding;
use kiln_models::weights::StateDict;
use kiln_models::{Compute, Pass};

use super::setup::TrainOutput;
use super::{Callback, Progress, StopAfter, Trainer};
use crate::arguments::{EvalStrategy, OnExisting, SaveStrategy, TrainingArguments};
use crate::evaluation::Evaluation;
use crate::task::{Evaluator, FigureValues, Figures, TensorBatch, TrainingTask};

/// Numbers of 3 values, each with one that it shall come to.
#[derive(Module, Debug)]
struct Table {
    embedding: Embedding,
}
impl StateDict for Table {}

/// The fault of a [`Task`].
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// The loss has a value for each row.
    RowsOfLoss,
    /// A figure has a value for each row.
    RowsOfFigure,
    /// The first figure is another one.
    NoLoss,
    /// The last batch has fewer figures.
    OtherFigures,
    /// The evaluator asks for a figure that there is not.
    NoFigure,
    /// A training example has an index that the table does not have.
    Index,
}

#[derive(Debug, Clone)]
struct Task(Fault);

impl TrainingTask for Task {
    type Model = Table;
    type Example = Vec<i32>;
    type Batch = TensorBatch<Tensor<2, Int>>;

    fn model(&self, _: Compute, device: &Device) -> Result<Table> {
        Ok(Table { embedding: Embedding::new(5, 3, None, 0.5, device) })
    }
    fn batch(&self, examples: &[Vec<i32>], _: usize) -> Result<Self::Batch> {
        let width = examples[0].len();
        Ok(TensorBatch::new(TensorData::new(examples.concat(), [examples.len(), width])))
    }
    /// The squared distance of the vectors from 1.
    fn loss(&self, model: &Table, ids: &Tensor<2, Int>, _: Pass<'_>) -> Result<Tensor<1>> {
        let ids = ids.clone().flatten(0, 1);
        let vectors = model.embedding.weight.val().select(0, ids);
        let rows = (vectors - 1.0).powi_scalar(2).sum_dim(1).flatten(0, 1);
        Ok(if self.0 == Fault::RowsOfLoss { rows } else { rows.sum() })
    }
    fn evaluate(&self, model: &Table, ids: &Tensor<2, Int>, pass: Pass<'_>) -> Result<Figures> {
        let loss = Self(Fault::None).loss(model, ids, pass)?;
        let rows = Tensor::ones([ids.dims()[0]], &ids.device());
        Ok(match self.0 {
            Fault::RowsOfFigure => vec![("loss", loss), ("accuracy", rows)],
            Fault::NoLoss => vec![("accuracy", rows.sum()), ("loss", loss)],
            Fault::OtherFigures if ids.dims()[0] == 2 => vec![("loss", loss)],
            _ => vec![("loss", loss), ("accuracy", rows.sum())],
        })
    }
    fn evaluator(&self, _: &Arc<dyn Dataset<Vec<i32>>>) -> Option<Box<dyn Evaluator<Self::Batch>>> {
        (self.0 == Fault::NoFigure).then(|| Box::new(Asking) as _)
    }
}

struct Asking;

impl<B> Evaluator<B> for Asking {
    fn add(&mut self, _: &B, figures: &FigureValues) -> Result<()> {
        assert!(figures.sum("loss")? > 0.0 && figures.get("accuracy")? == [8.0]);
        figures.sum("f1").map(drop)
    }
    fn metrics(&self) -> Result<Vec<(&'static str, f64)>> {
        Ok(Vec::new())
    }
}

/// The device's generator belongs to the process.
static TRAINS: Mutex<()> = Mutex::new(());

fn arguments(folder: &Path) -> TrainingArguments {
    TrainingArguments {
        on_existing: OnExisting::Resume,
        max_steps: Some(6),
        per_device_train_batch_size: 4.into(),
        learning_rate: 0.1,
        ..TrainingArguments::new(folder)
    }
}

fn trainer(arguments: TrainingArguments, fault: Fault) -> Trainer<Task> {
    let id = |index: usize| vec![if fault == Fault::Index && index == 9 { 7 } else { index as i32 % 5 }];
    let rows = |count: usize| (0..count).map(id).collect::<Vec<_>>();
    Trainer::new(arguments, Task(fault), rows(16)).unwrap().with_validation(rows(8)).unwrap()
}

fn run(arguments: &TrainingArguments) -> (TrainOutput, Evaluation) {
    let mut trainer = trainer(arguments.clone(), Fault::None);
    let output = trainer.train().unwrap();
    (output, trainer.evaluate().unwrap())
}

#[test]
fn a_complete_run_gives_the_weights_that_it_has_written() {
    let _alone = TRAINS.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let arguments = arguments(folder.path());
    let begun = trainer(arguments.clone(), Fault::None).evaluate().unwrap();
    let (output, trained) = run(&arguments);
    assert!(!output.was_complete && trained.metric("loss") < begun.metric("loss"));
    let (output, again) = run(&arguments);
    assert_eq!((output.was_complete, output.step), (true, 6));
    assert_eq!(again, trained);
    assert_eq!((again.metric("accuracy"), again.metric("acuracy")), (Some(1.0), None));
    fs::write(folder.path().join("model/model.safetensors"), "nothing").unwrap();
    let error = trainer(arguments, Fault::None).train().unwrap_err().to_string();
    assert!(error.contains("model.safetensors"), "{error}");
}

#[test]
fn losses_and_figures_that_are_no_sums_are_refused() {
    let _alone = TRAINS.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let expected = [
        (Fault::RowsOfLoss, "the loss of `Table` has shape [4], expected [1]: the sum over the batch"),
        (Fault::RowsOfFigure, "`evaluate` of `Table`: `accuracy` has 2 values, expected 1: the sum over the batch"),
        (Fault::NoLoss, "`evaluate` of `Table`: the first figure must be `loss`, got `accuracy`"),
    ];
    for (fault, message) in expected {
        let error = trainer(arguments(&folder.path().join(format!("{fault:?}"))), fault).train().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains(message), "{error}");
    }
    // So does an evaluation by itself.
    let error = trainer(arguments(&folder.path().join("untrained")), Fault::RowsOfFigure).evaluate().unwrap_err();
    assert!(error.to_string().contains("`accuracy` has 8 values, expected 1"), "{error}");
}

#[test]
fn figures_are_known_by_their_names() {
    let _alone = TRAINS.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let arguments = |rows: usize| TrainingArguments { per_device_eval_batch_size: rows, ..arguments(folder.path()) };
    let expected = [
        (3, Fault::OtherFigures, "`evaluate` of `Table`: expected the figures loss, accuracy, got loss"),
        (8, Fault::NoFigure, "the evaluator asks for the figure `f1`, and `evaluate` returns loss, accuracy"),
    ];
    for (rows, fault, message) in expected {
        let error = trainer(arguments(rows), fault).evaluate().unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

/// The reasons that a callback is told of an early end.
struct Ends(Arc<Mutex<Vec<String>>>);

impl<M> Callback<M> for Ends {
    fn on_early_end(&mut self, progress: &Progress, why: &str) {
        self.0.lock().unwrap().push(format!("{}: {why}", progress.step));
    }
}

#[test]
fn an_early_end_is_told_once_with_its_reason() {
    let _alone = TRAINS.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let ends = |name: &str, given: TrainingArguments, stop: Option<u64>| {
        let told = Arc::new(Mutex::new(Vec::new()));
        let output_dir = folder.path().join(name);
        let trainer = trainer(TrainingArguments { output_dir, ..given }, Fault::None);
        let mut trainer = trainer.with_callback(Ends(told.clone()));
        if let Some(step) = stop {
            trainer = trainer.with_callback(StopAfter(step));
        }
        trainer.train().unwrap();
        told.lock().unwrap().clone()
    };
    let exhausted = TrainingArguments {
        eval_strategy: EvalStrategy::Steps,
        eval_steps: Some(1.into()),
        early_stopping_patience: Some(1),
        early_stopping_threshold: 1e6,
        ..arguments(folder.path())
    };
    let told = ends("exhausted", exhausted, None);
    assert_eq!(told, ["2: ended after step 2 of 6: early stopping"]);
    let told = ends("stopped", arguments(folder.path()), Some(3));
    assert_eq!(told, ["3: ended after step 3 of 6: a callback asked for it"]);
    assert_eq!(ends("whole", arguments(folder.path()), None), [""; 0]);
    assert_eq!(ends("last", arguments(folder.path()), Some(6)), [""; 0], "the end of the plan is no early one");
}

#[test]
fn a_run_that_early_stopping_has_ended_is_complete() {
    let _alone = TRAINS.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let arguments = TrainingArguments {
        eval_strategy: EvalStrategy::Steps,
        eval_steps: Some(1.into()),
        save_strategy: SaveStrategy::Steps,
        save_steps: 2.into(),
        early_stopping_patience: Some(1),
        early_stopping_threshold: 1e6,
        ..arguments(folder.path())
    };
    let (output, trained) = run(&arguments);
    assert_eq!((output.was_complete, output.step), (false, 2));
    let kept = || {
        ["metrics.jsonl", "all_results.json", "status.json"]
            .map(|name| fs::read_to_string(folder.path().join(name)).unwrap())
    };
    let before = kept();
    assert!(before[2].contains("early stopping"), "{}", before[2]);
    let (output, again) = run(&arguments);
    assert_eq!((output.was_complete, output.step), (true, 2));
    assert_eq!((kept(), again), (before, trained));
    // More patience is another end.
    let (output, _) = run(&TrainingArguments { early_stopping_patience: Some(10), ..arguments });
    assert_eq!((output.was_complete, output.step), (false, 6));
}

#[test]
fn a_panic_on_the_host_is_no_failed_device() {
    let _alone = TRAINS.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let error = trainer(arguments(folder.path()), Fault::Index).train().unwrap_err().to_string();
    assert!(error.contains(" panicked: ") && error.contains("the labels of the batch"), "{error}");
    assert!(error.contains("run the program again with `on_existing = OnExisting::Resume`"), "{error}");
    assert!(!error.contains("device") && !error.contains("kiln train"), "{error}");
}
