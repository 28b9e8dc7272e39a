//! A trained or pretrained model in its folder, as the commands that use one open it:
//! configuration, weights, tokenizer.

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use kiln_core::error::{Error, ErrorKind, Result};
use kiln_core::files::read_regular_text;
use kiln_data::labels::problem_type;
use kiln_data::tokenizer::{NamedFile, Tokenizer, read_file, tokenizer_files};
use kiln_models::weights::{ALL_WIDE, Narrow};
use kiln_models::{Compute, Model, ModelConfig};

use crate::config::{RunConfig, Task};
use crate::session::adapter::{Source, lacks_pooler, stated_task, task_of_architecture};
use crate::session::generation_config::GENERATION_CONFIG;

/// The config of a run with every default explicit, in the run folder and in what `kiln merge`
/// makes of it.
pub const PLAN_TOML: &str = "plan.toml";

/// A model read from a folder, with everything in place.
pub struct ModelFolder {
    /// Where it was read from: of an adapter its own folder.
    pub path: PathBuf,
    /// The folder of the whole model, which is another one for an adapter.
    pub base: PathBuf,
    /// Its configuration.
    pub config: ModelConfig,
    /// The model with its weights.
    pub model: Model,
    /// Things worth telling: unknown fields, unused tensors.
    pub notes: Vec<String>,
}

impl ModelFolder {
    /// Opens the model that `spec` (a folder or a Hub id) names, with the head of `task`, on
    /// `device`.
    ///
    /// # Errors
    /// Files that are missing or do not fit, and a checkpoint without that head: its output would
    /// be random.
    pub fn open(spec: &str, task: Task, device: &Device) -> Result<Self> {
        Self::open_with(spec, task, device, ALL_WIDE)
    }

    /// [`open`](Self::open) for a model that only computes, and does so as `compute` says: weights
    /// of linear layers are kept in the type of its products, to which these would round them. They
    /// are f32 beside an adapter with magnitudes (DoRA), and where the adapter's file replaces
    /// them. Such a model must not learn, be saved, be merged, or compute in another type.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn open_frozen(spec: &str, task: Task, device: &Device, compute: Compute) -> Result<Self> {
        let narrow: Narrow<'_> = (compute.dtype(), &|it| it.in_linear);
        Ok(Self::open_with(spec, task, device, narrow)?.with_compute(compute))
    }

    fn open_with(spec: &str, task: Task, device: &Device, narrow: Narrow<'_>) -> Result<Self> {
        let source = Source::resolve(spec)?;
        let path = source.folder().to_owned();
        let (mut config, unknown) = source.config()?;
        if matches!(task, Task::Regression | Task::MultiLabelClassification) {
            config.labels_mut().problem_type = problem_type(task).map(str::to_owned);
        }
        let file = if path.join("config.json").is_file() { &path } else { &source.base }.join("config.json");
        let model = Model::new(&config, task.head(), device).map_err(|error| match error {
            kiln_models::Error::Config(error) => error
                .into_kind(ErrorKind::Data)
                .at(file.display())
                .help("let id2label name the ids from 0 on, and label2id say the same, or leave label2id out"),
            other => other.into(),
        })?;
        let (model, report) = source.load(model, narrow)?;
        let random = report.random().cloned().collect::<Vec<_>>();
        // A head that the task does not read would be left out without a word.
        if source.adapter.is_none()
            && random.is_empty()
            && let Some(own) = task_of_architecture(&config).filter(|own| own.head() != task.head())
        {
            return Err(Error::data(format!(
                "{}: the model has a head for {own}, and none for {task}",
                path.display()
            ))
            .help(format!("ask for {own}, or train a model for {task}")));
        }
        if !random.is_empty() {
            if let Some(error) = source.adapter.as_ref().and_then(|adapter| lacks_pooler(&adapter.path, &random)) {
                return Err(error);
            }
            return Err(Error::data(format!(
                "{}: the checkpoint has no head for the task {task} (missing {})",
                path.display(),
                random.join(", ")
            ))
            .help("its output would be random; fine-tune the model on this task first, or choose the task it was trained for"));
        }
        let labels = config.labels().num_labels();
        if task == Task::Regression && labels != 1 {
            return Err(Error::data(format!(
                "{}: regression predicts one number, but the model has {labels} labels",
                path.display()
            ))
            .help("choose the task that the model was trained for"));
        }
        let mut notes = report.lines();
        if !unknown.is_empty() {
            notes.push(format!("config.json has fields that Kiln does not know: {}", unknown.join(", ")));
        }
        Ok(Self { path, base: source.base, config, model, notes })
    }

    /// Makes the model compute as `compute` says.
    #[must_use]
    pub fn with_compute(mut self, compute: Compute) -> Self {
        self.model = self.model.with_compute(compute);
        self
    }

    /// The tokenizer in the folder, or of an adapter without one in that of its base.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        Tokenizer::load(if Tokenizer::is_in(&self.path) { &self.path } else { &self.base })
    }
}

/// The files of the pretrained model in `folder` that a model trained from it keeps as they are:
/// `generation_config.json`, and `with_tokenizer` those of its tokenizer, which is of a kind that
/// Kiln does not read.
///
/// # Errors
/// A file that cannot be read.
pub(crate) fn kept_files(folder: &Path, with_tokenizer: bool) -> Result<Vec<NamedFile>> {
    let mut kept = if with_tokenizer { tokenizer_files(folder)? } else { Vec::new() };
    kept.extend(read_file(folder, GENERATION_CONFIG)?);
    Ok(kept)
}

/// The folder of the model or adapter that `spec` names.
///
/// # Errors
/// Files that are missing.
pub fn model_folder(spec: &str) -> Result<PathBuf> {
    Ok(Source::resolve(spec)?.folder().to_owned())
}

/// The file with the config of the run that the model in `folder` was trained by: beside it in what
/// `kiln merge` wrote, above `model/` and above `checkpoints/`; none for a model that stands alone.
pub(crate) fn plan_of(folder: &Path) -> Option<PathBuf> {
    let folder = folder.canonicalize().ok()?;
    // A file of this name above another folder is none of a run's.
    let above_model = folder.parent().filter(|_| folder.ends_with("model"));
    let checkpoints = folder.parent().filter(|parent| parent.ends_with("checkpoints"));
    let folders = [Some(&*folder), above_model, checkpoints.and_then(Path::parent)].into_iter().flatten();
    folders.map(|folder| folder.join(PLAN_TOML)).find(|plan| plan.is_file())
}

/// The config of the run that the model `spec` was trained by, with its file; none for a model that
/// stands alone.
///
/// # Errors
/// A model that is not there, and a file that is no config.
pub fn run_of(spec: &str) -> Result<Option<(PathBuf, RunConfig)>> {
    let Some(plan) = plan_of(&model_folder(spec)?) else { return Ok(None) };
    let config = RunConfig::load(&plan).map_err(|error| match error.kind() {
        ErrorKind::Config => error.help(format!(
            "it says how the run of this model read its rows; without the file (move {} away) rows are read by the \
             arguments alone",
            plan.display()
        )),
        _ => error,
    })?;
    Ok(Some((plan, config.into())))
}

/// The configuration of the model or adapter that `spec` names, and the task that an adapter
/// states.
///
/// # Errors
/// Files that are missing or cannot be read.
pub fn described(spec: &str) -> Result<(ModelConfig, Option<Task>)> {
    let source = Source::resolve(spec)?;
    let (config, _) = source.config()?;
    let stated = stated_task(&source, &config);
    Ok((config, stated))
}

/// The configuration of the model in `folder`, and the fields of it that Kiln does not know.
pub fn read_config(folder: &Path) -> Result<(ModelConfig, Vec<String>)> {
    let path = folder.join("config.json");
    let text = read_regular_text(&path).map_err(|e| Error::io(format!("read {}", path.display()), &e))?;
    ModelConfig::from_json(&text)
        // Of the `[model]` section it would be a fault of the run's config; here it stands in a
        // file of the model.
        .map_err(|error| error.into_kind(ErrorKind::Data).at(path.display()))
}
