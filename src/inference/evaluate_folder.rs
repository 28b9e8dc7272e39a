//! `kiln eval`: a trained model on the validation data of a config, by the same pass that evaluates
//! during training.

use std::cmp::Ordering;
use std::time::Instant;

use kiln_core::error::{Error, Result};
use kiln_core::metrics::Record;
use kiln_data::labels::LabelNames;
use kiln_models::Model;
use kiln_train::confusion::Confusion;
use serde_json::json;

use crate::config::{BatchArguments, CheckedConfig, RunConfig, TrainBatchSize};
use crate::distributed::World;
use crate::inference::evaluate::evaluate;
use crate::session::Session;
use crate::session::evaluation::{EvaluationSession, no_validation};
use crate::session::model_folder::{ModelFolder, described, model_folder};

/// The results of an evaluation.
#[derive(Debug)]
pub struct Evaluated {
    /// The figures of an evaluation row.
    pub record: Record,
    /// The confusion matrix of a classification, and the names of its classes.
    pub confusion: Option<(Confusion, Vec<String>)>,
}

impl Evaluated {
    /// The matrix of a classification and the scores of each class, for people; nothing for other
    /// tasks.
    pub fn lines(&self) -> Vec<String> {
        self.confusion.as_ref().map_or_else(Vec::new, |(confusion, names)| confusion.lines(names))
    }

    /// All figures as an object of JSON.
    pub fn to_json(&self) -> String {
        let Some((confusion, names)) = &self.confusion else { return self.record.to_json() };
        let report = json!({ "classification_report": confusion.to_json(names) }).to_string();
        format!("{}, {}", self.record.to_json().trim_end_matches('}'), report.trim_start_matches('{'))
    }
}

/// Evaluates the model in the folder (or of the Hub id) `model`, or else the one in the run folder
/// of `config`, on the validation data of `config`. `open` opens a config. The ranks of `world`
/// share the work; `told` hears before each batch how many are done, and of how many.
///
/// # Errors
/// A config without validation data, a folder without a model of the config's task, and whatever
/// reading them meets.
pub fn evaluate_folder(
    world: &World,
    config: RunConfig,
    model: Option<&str>,
    open: &dyn Fn(&CheckedConfig) -> Result<EvaluationSession>,
    told: &mut dyn FnMut(u64, u64),
) -> Result<Evaluated> {
    let mut config = config;
    let folder = match model {
        Some(model) => model_folder(model)?,
        None => config.trainer.expanded_output_dir()?.join("model"),
    };
    if model.is_none() && !folder.join("config.json").is_file() {
        return Err(Error::data(format!("{}: expected a model folder, found no config.json in it", folder.display()))
            .help("train first, or name the folder: --model MODEL_DIR"));
    }
    // The model's own vocabulary holds, so data is encoded as it was in training.
    let spec = folder.display().to_string();
    config.model = crate::config::ModelSection { from: Some(spec.clone()), ..Default::default() };
    config.lora = None;
    // No rule about the batches of training is one about an evaluation.
    config.trainer.per_device_train_batch_size = TrainBatchSize::Size(1);
    config.trainer.batch = BatchArguments::default();
    // Names that the model has too have its ids; others are the data's names of its labels, in the
    // order of the ids.
    if let Ok(Some(known)) = LabelNames::of_model(described(&spec)?.0.labels()) {
        config.data.label_names.take_if(|names| known.lacks(names).is_none());
    }
    if kiln_data::tokenizer::Tokenizer::is_read(&folder) {
        config.tokenizer = crate::config::TokenizerSection::from_pretrained(spec.clone());
    }
    let config = config.checked()?;
    let session = open(&config)?;
    let model = ModelFolder::open(&spec, config.data.task, &session.device.clone().autodiff())?;
    if config.data.task.has_label_names() {
        let (outputs, labels) = (model.config.labels().num_labels(), session.task.model_config.labels().num_labels());
        check_outputs(&spec, outputs, labels)?;
    }
    figures(world, &session, &model.with_compute(session.compute).model, told)
}

/// Checks that the model in `folder` has an output for each label of the data and no more: classes
/// beyond them have no name.
fn check_outputs(folder: &str, outputs: usize, labels: usize) -> Result<()> {
    let help = match outputs.cmp(&labels) {
        Ordering::Equal => return Ok(()),
        Ordering::Greater => {
            "name the labels of the model, in the order of their ids, in `id2label` of its config.json, or in data.label_names"
        }
        Ordering::Less => {
            "evaluate a model that was trained on these labels, or leave out the rows of the labels it has not"
        }
    };
    Err(Error::data(format!("{folder} tells {outputs} classes apart, and the data have {labels} labels")).help(help))
}

/// Evaluates the model of `session` as it is before the first step, as [`evaluate_folder`] does.
///
/// # Errors
/// A session without validation data, and whatever reading model and data meets.
pub fn evaluate_untrained(session: Session, told: &mut dyn FnMut(u64, u64)) -> Result<Evaluated> {
    let (model, _) = session.model(&session.device.clone().autodiff())?;
    let validation = session.validation().cloned().ok_or_else(no_validation)?;
    figures(&World::alone(), &session.evaluation(validation), &model, told)
}

/// The figures of `model` in `session` by the ranks of `world`.
fn figures(
    world: &World,
    session: &EvaluationSession,
    model: &Model,
    told: &mut dyn FnMut(u64, u64),
) -> Result<Evaluated> {
    let started = Instant::now();
    let evaluation = evaluate(world, session, model, told)?;
    let record = evaluation.record(0, 0.0, started.elapsed());
    let figures = record.fields().filter(|(name, _)| name.starts_with("eval_"));
    let record = figures.fold(Record::default(), |figures, (name, value)| figures.with(name, value.clone()));
    let confusion = match evaluation.confusion {
        Some(confusion) => {
            let names = LabelNames::of_model(session.task.model_config.labels())?;
            Some((confusion, names.map_or_else(Vec::new, |names| names.names().to_vec())))
        }
        None => None,
    };
    Ok(Evaluated { record, confusion })
}
