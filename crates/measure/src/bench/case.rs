//! A case written down for its arms: a folder with the model's weights in Hugging Face's form
//! (`model/`), adapters on it in PEFT's (`adapter/`, where the case has any), the rows
//! (`data.jsonl`, in the order in which they are trained on), and `case.json`, which says
//! everything else that a peer of another framework has to know. Kiln's own arms read the same
//! files through an ordinary config.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use kiln::config::{
    BatchScaling, DataSection, DeviceArguments, DeviceKind, ModelSection, RunConfig, Sampler, SaveStrategy,
    SchedulerType, Task, TrainBatchSize, TrainingArguments,
};
use kiln_core::error::{Error, Result};
use kiln_core::files::{write_json, write_whole};
use kiln_core::random::{seed_for, uniform, zipf};
use kiln_data::IGNORED;
use kiln_models::weights::save;
use kiln_models::{LoraConfig, Model, ModelType};
use serde::{Deserialize, Serialize};

use super::suite::{Case, CaseBatch, Lengths};
use crate::operators::Shapes;

/// The version of the form of `case.json`.
pub const CASE_SCHEMA: &str = "kiln.bench-case/1";

/// Batches of the data; a run that needs more begins again.
const BATCHES: usize = 32;

/// Rows of a case that looks for its batch.
const ROWS_OF_MAX: usize = 2048;

/// Seed of weights and tokens.
const SEED: u64 = 1;

const LEARNING_RATE: f64 = 1e-4;
const MAX_GRAD_NORM: f64 = 1.0;

/// `case.json`: what a peer has to know besides the model and the rows.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CaseFile {
    /// [`CASE_SCHEMA`]
    pub schema: String,
    /// The case's name.
    pub name: String,
    /// The task of the model.
    pub task: Task,
    /// Rows of a batch: the first so many, the next so many, ... padded to the longest of each
    /// batch.
    pub batch: usize,
    /// Rows in all; after them the first comes again.
    pub rows: usize,
    /// `f32`, `bf16` or `f16`: the type of matrix products, by autocast.
    pub precision: String,
    /// `cpu` or another: a peer takes its GPU then.
    pub device: String,
    /// AdamW's rate, constant; betas 0.9 and 0.999, epsilon 1e-8, no weight decay.
    pub learning_rate: f64,
    /// The global norm is clipped at it.
    pub max_grad_norm: f64,
    /// `adapter/` beside `model/` is what learns.
    #[serde(default)]
    pub has_adapter: bool,
    /// Threads on the CPU.
    pub threads: usize,
    /// The sizes of single operators.
    pub shapes: Shapes,
}

/// A case in its folder.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// The folder.
    pub folder: PathBuf,
    /// The config of Kiln's arms; its run folder is still to be set.
    pub config: RunConfig,
}

/// Writes `case` into `folder`, which is there, for a device of `kind`.
///
/// # Errors
/// A case that does not fit its model, and the operating system's.
pub fn prepare(case: &Case, review_lengths: &[usize], kind: DeviceKind, folder: &Path) -> Result<Prepared> {
    let model_config = case.model_config()?;
    let device = Device::flex();
    device.seed(SEED);
    let model = Model::new(&model_config, case.task.head(), &device)?;
    let model_folder = folder.join("model");
    fs::create_dir(&model_folder).map_err(|error| Error::io(format!("make {}", model_folder.display()), &error))?;
    write_json(&model_folder.join("config.json"), &model_config.to_json(&model.architecture()))?;
    save(&model, &model_folder)?;
    let from = match case.lora_r {
        Some(r) => adapters(model, r, case, &model_folder, folder)?,
        None => model_folder,
    };
    let (batch, rows) = match case.batch {
        CaseBatch::Size(size) => (Some(size), size * BATCHES),
        CaseBatch::Max => (None, ROWS_OF_MAX),
    };
    let data = folder.join("data.jsonl");
    let text = (0..rows).try_fold(String::new(), |mut text, row| {
        let line = row_of(case, model_config.vocab_size(), review_lengths, row as u64);
        writeln!(text, "{line}").map(|()| text)
    });
    write_whole(&data, text.expect("writing to a String cannot fail").as_bytes())?;
    let file = CaseFile {
        schema: CASE_SCHEMA.into(),
        name: case.name.clone(),
        task: case.task,
        batch: batch.unwrap_or(1),
        rows,
        precision: case.precision.to_string(),
        device: kind.to_string(),
        learning_rate: LEARNING_RATE,
        max_grad_norm: MAX_GRAD_NORM,
        has_adapter: case.lora_r.is_some(),
        threads: kiln_core::host::threads(),
        shapes: Shapes::new(&model_config, case.task, batch.unwrap_or(1), case.length),
    };
    write_json(&folder.join("case.json"), &file)?;
    let mut config = RunConfig {
        model: ModelSection::from_pretrained(from.to_string_lossy()),
        data: DataSection::tokenized(case.task, [data.to_string_lossy()]),
        trainer: TrainingArguments {
            // Longer than any measurement.
            max_steps: Some(1_000_000),
            per_device_train_batch_size: batch.map_or(TrainBatchSize::Auto, TrainBatchSize::Size),
            learning_rate: LEARNING_RATE,
            lr_scheduler_type: SchedulerType::Constant,
            max_grad_norm: MAX_GRAD_NORM,
            save_strategy: SaveStrategy::No,
            sampler: Sampler::Sequential,
            dataloader_drop_last: true,
            precision: case.precision,
            device: DeviceArguments { kind, index: 0 },
            ..TrainingArguments::default()
        },
        ..RunConfig::default()
    };
    if batch.is_none() {
        // An optimizer step is one micro-batch of whatever size is found.
        config.trainer.batch.scaling = BatchScaling::Grow;
    }
    Ok(Prepared { folder: folder.into(), config })
}

/// Writes adapters of rank `r` on all linear layers of `model`, which is saved in `base`, below
/// `folder`; returns their folder.
fn adapters(model: Model, r: usize, case: &Case, base: &Path, folder: &Path) -> Result<PathBuf> {
    let adapter = folder.join("adapter");
    fs::create_dir(&adapter).map_err(|error| Error::io(format!("make {}", adapter.display()), &error))?;
    let config = model.settled(LoraConfig {
        base_model_name_or_path: Some(base.to_string_lossy().into_owned()),
        r,
        lora_alpha: 2.0 * r as f64,
        target_modules: vec!["all-linear".into()],
        task_type: LoraConfig::task_type_of(case.task.head()).map(str::to_owned),
        ..LoraConfig::default()
    });
    write_json(&adapter.join("adapter_config.json"), &config.to_json(case.kind))?;
    save(&model.with_lora(&config)?, &adapter)?;
    Ok(adapter)
}

/// Row `row` as a line of `data.jsonl`.
fn row_of(case: &Case, vocabulary: usize, review_lengths: &[usize], row: u64) -> serde_json::Value {
    let length = match case.lengths {
        Lengths::Full => case.length,
        Lengths::Reviews => review_length(review_lengths, uniform(seed_for(SEED, "bench-length", row, 0)), case.length),
    };
    // Id 0 is BERT's padding. A text has few ids very often, on which the time of an embedding's
    // gradient may depend.
    let first = u64::from(case.kind != ModelType::Gpt2);
    let id = |at: u64| first + zipf(uniform(seed_for(SEED, "bench-ids", row, at)), vocabulary as u64 - first);
    let ids = (0..length as u64).map(id).collect::<Vec<_>>();
    match case.task {
        Task::Clm => serde_json::json!({ "input_ids": ids }),
        Task::Mlm => {
            // 15 % of the positions are asked for; at least the first, so that no row is without a
            // label.
            let asked = |at: usize| at == 0 || uniform(seed_for(SEED, "bench-mask", row, at as u64)) < 0.15;
            let label = |(at, id): (usize, &u64)| if asked(at) { *id as i64 } else { i64::from(IGNORED) };
            let labels = ids.iter().enumerate().map(label).collect::<Vec<_>>();
            let shown = ids.iter().enumerate().map(|(at, id)| if asked(at) { 1 } else { *id }).collect::<Vec<_>>();
            serde_json::json!({ "input_ids": shown, "labels": labels })
        }
        _ => serde_json::json!({ "input_ids": ids, "labels": seed_for(SEED, "bench-label", row, 0) % 2 }),
    }
}

/// The length at `at` (0 to 1) of the distribution whose percentiles are `lengths`, scaled to rows
/// of up to `longest`.
fn review_length(lengths: &[usize], at: f64, longest: usize) -> usize {
    let place = at * (lengths.len() - 1) as f64;
    let (low, high) = (lengths[place.floor() as usize] as f64, lengths[place.ceil() as usize] as f64);
    let length = (low + (high - low) * place.fract()) * longest as f64 / 64.0;
    (length.round() as usize).clamp(1, longest)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::bench::suite::Suite;
    use kiln::OpenSession;
    use kiln::session::Session;

    #[test]
    fn lengths_follow_their_percentiles() {
        let lengths = Suite::named("cpu").unwrap().review_lengths;
        let drawn = (0..4000).map(|i| review_length(&lengths, f64::from(i) / 4000.0, 64)).collect::<Vec<_>>();
        // The rows of the data set have 26.8 tokens in the mean; 5 % have more than 46, one in a
        // hundred is cut.
        let mean = drawn.iter().sum::<usize>() as f64 / 4000.0;
        assert!((mean - 26.8).abs() < 1.0, "{mean}");
        assert_eq!((drawn[0], drawn[2000], *drawn.iter().max().unwrap()), (4, 26, 64));
        assert_eq!(review_length(&lengths, 0.5, 128), 52);
        assert_eq!(review_length(&lengths, 0.0, 8), 1, "no row is empty");
    }

    #[test]
    fn a_prepared_case_is_a_run() {
        let suite = Suite::named("smoke").unwrap();
        for case in &suite.cases {
            let folder = tempfile::tempdir().unwrap();
            let prepared = prepare(case, &suite.review_lengths, DeviceKind::Cpu, folder.path()).unwrap();
            let mut config = prepared.config;
            config.trainer.output_dir = folder.path().join("run");
            let (micro, rows) = match case.batch {
                CaseBatch::Size(size) => (size, size * BATCHES),
                CaseBatch::Max => {
                    // Without a size that a search has found there is no plan, so one is put in its
                    // place.
                    assert_eq!(config.trainer.per_device_train_batch_size, TrainBatchSize::Auto);
                    config.trainer.per_device_train_batch_size = TrainBatchSize::Size(8);
                    (8, ROWS_OF_MAX)
                }
            };
            let session = Session::open(RunConfig::parse(&config.to_toml().unwrap(), "case").unwrap()).unwrap();
            let plan = session.plan();
            assert_eq!((plan.batch.micro, session.task.task.kind()), (micro, case.task));
            assert!(session.train().max_len() <= case.length);
            let read: CaseFile =
                serde_json::from_str(&fs::read_to_string(folder.path().join("case.json")).unwrap()).unwrap();
            assert_eq!((read.rows, read.shapes.width), (rows, 32));
        }
    }
}
