//! Where the weights of a model come from: its own folder, or a base and an adapter on it, which is
//! a PEFT folder (`adapter_config.json`, `adapter_model.safetensors`) that names its base.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use kiln_core::error::{Error, ErrorKind, Result};
use kiln_core::files::read_regular_text;
use kiln_core::model_config::Labels;
use kiln_core::variables::expand_text;
use kiln_data::hub::{self, Wanted};
use kiln_models::weights::{ALL_WIDE, LoadOptions, LoadReport, Narrow, adapter_tensors, load_adapted, load_with};
use kiln_models::{LoraConfig, Model, ModelConfig};

use super::model_folder::read_config;
use crate::config::{RunConfig, Task};

/// The settings of an adapter, in its folder.
pub const ADAPTER_CONFIG: &str = "adapter_config.json";

/// A model on disk.
pub(crate) struct Source {
    /// The folder of the whole model.
    pub base: PathBuf,
    /// The adapter on it, if there is one.
    pub adapter: Option<Adapter>,
}

/// An adapter on disk.
pub(crate) struct Adapter {
    /// Its folder.
    pub path: PathBuf,
    /// Its settings.
    pub config: LoraConfig,
    /// Whether the path of its base leads there from its own folder or one around it, and not from
    /// the working directory.
    base_is_beside: bool,
    /// Names and shapes of its tensors.
    tensors: Vec<(String, Vec<usize>)>,
}

impl Source {
    /// The model that `spec` names: a folder with a model or an adapter, a run folder that ended
    /// with one, or an id of the Hub.
    ///
    /// # Errors
    /// Files that are missing or cannot be read, an adapter of a kind that Kiln does not have, and
    /// one whose base is not there.
    pub(crate) fn resolve(spec: &str) -> Result<Self> {
        let lacks = |error: &Error| error.message().contains("has no ");
        let path = match hub::resolve(spec, &Wanted::MODEL) {
            Ok(base) => return Ok(Self { base, adapter: None }),
            // A folder with the settings of an adapter lacks the adapter's weights, not a model.
            Err(error) if lacks(&error) => hub::resolve(spec, &Wanted::ADAPTER)
                .map_err(|other| if other.message().contains("has no adapter_model") { other } else { error })?,
            Err(error) => return Err(error),
        };
        let mut adapter = Adapter::open(path)?;
        let stated = adapter.path.join(ADAPTER_CONFIG);
        let base = match &adapter.config.base_model_name_or_path {
            Some(base) => match beside(base, &adapter.path) {
                Some(folder) => {
                    adapter.base_is_beside = true;
                    hub::resolve(&folder.to_string_lossy(), &Wanted::MODEL)
                }
                None => named_base(base, adapter.config.revision.as_deref()),
            },
            None => Err(Error::data("base_model_name_or_path is missing, so the adapter's base is not known")),
        };
        let base = base.map_err(|error| {
            let named = error.message().to_owned();
            Error::data(format!("{}: the adapter's base: {named}", stated.display()))
                .help("set base_model_name_or_path in this file to the folder or Hub id of the base")
        })?;
        Ok(Self { base, adapter: Some(adapter) })
    }

    /// The folder that says what the model is: the adapter's where there is one.
    pub(crate) fn folder(&self) -> &Path {
        self.adapter.as_ref().map_or(&self.base, |adapter| &adapter.path)
    }

    /// The model's configuration, and the fields of it that Kiln does not know. PEFT leaves it to
    /// the base, whose head an adapter may replace by one with other labels.
    ///
    /// # Errors
    /// A configuration that cannot be read.
    pub(crate) fn config(&self) -> Result<(ModelConfig, Vec<String>)> {
        let Some(adapter) = &self.adapter else { return read_config(&self.base) };
        if adapter.path.join("config.json").is_file() {
            return read_config(&adapter.path);
        }
        let (mut config, unknown) = read_config(&self.base)?;
        let tables = ["wte", "word_embeddings", "embed_tokens"]
            .map(|module| [format!("{module}.weight"), format!("{module}.base_layer.weight")]);
        let tables = tables.as_flattened();
        let table = adapter.tensors.iter().find(|(name, _)| tables.iter().any(|end| name.ends_with(end.as_str())));
        if let Some([rows, _]) = table.map(|(_, shape)| shape.as_slice()) {
            // Tokens were added to the base before it got the adapter, and the file has all rows.
            config.set_vocab_size(*rows);
        }
        let ends = ["model.score.weight", "model.classifier.weight", "model.classifier.out_proj.weight"];
        let head = adapter.tensors.iter().find(|(name, _)| ends.iter().any(|end| name.ends_with(end)));
        if let Some(labels) = head.and_then(|(_, shape)| shape.first().copied())
            && labels != config.labels().num_labels()
        {
            *config.labels_mut() = Labels::numbered(labels);
        }
        Ok((config, unknown))
    }

    /// `model` with the weights, those of `narrow` in its type, and with the adapter where there is
    /// one. Where the adapter has magnitudes (DoRA) all weights are f32, since they are read to
    /// compute lengths as well.
    ///
    /// # Errors
    /// Weights that do not fit the model.
    pub(crate) fn load(&self, model: Model, narrow: Narrow<'_>) -> Result<(Model, LoadReport)> {
        let Some(adapter) = &self.adapter else {
            return Ok(load_with(model, &self.base, LoadOptions { narrow, ..LoadOptions::default() })?);
        };
        let path = adapter.path.display();
        let model = model.with_lora(&adapter.config).map_err(|error| {
            Error::data(format!("{path}: the adapter does not fit its base {}: {error}", self.base.display()))
        })?;
        let narrow = if adapter.config.use_dora { ALL_WIDE } else { narrow };
        Ok(load_adapted(model, &self.base, &adapter.path, narrow)?)
    }
}

impl Adapter {
    fn open(path: PathBuf) -> Result<Self> {
        let file = path.join(ADAPTER_CONFIG);
        let text = read_regular_text(&file).map_err(|e| Error::io(format!("read {}", file.display()), &e))?;
        let tensors = adapter_tensors(&path)?;
        let names = tensors.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        let config = LoraConfig::from_json(&text, &names)
            .map_err(|error| error.into_kind(ErrorKind::Data).at(file.display()))?;
        Ok(Self { path, config, base_is_beside: false, tensors })
    }
}

/// The error of the adapter in `folder` without the pooler that its head reads, where `random`, the
/// parameters that neither it nor its base has, are those of the pooler alone.
pub(crate) fn lacks_pooler(folder: &Path, random: &[String]) -> Option<Error> {
    let first = random.first().filter(|_| random.iter().all(|name| name.contains(".pooler.")))?;
    Some(
        Error::data(format!(
            "{}: neither the adapter nor its base has {first}; PEFT draws it anew each time",
            folder.display()
        ))
        .help(
            "train the adapter again with modules_to_save = [\"classifier\", \"pooler\"], or on a base that has a pooler",
        ),
    )
}

/// The folder that the path `base` of an adapter in `folder` leads to from there, or from a folder
/// around it; none where it leads somewhere from the working directory, as `peft` takes it.
fn beside(base: &str, folder: &Path) -> Option<PathBuf> {
    if hub::is_local(base) || Path::new(base).is_absolute() {
        return None;
    }
    let folder = std::path::absolute(folder).ok()?;
    let mut found = folder.ancestors().map(|around| around.join(base));
    found.find(|path| path.is_dir() && hub::resolve(&path.to_string_lossy(), &Wanted::MODEL).is_ok())
}

/// The folder of the base `base`, a path from the working directory or an id of the Hub.
fn named_base(base: &str, revision: Option<&str>) -> Result<PathBuf> {
    match revision.filter(|_| !Path::new(base).exists() && !base.contains('@')) {
        Some(revision) => hub::resolve(&format!("{base}@{revision}"), &Wanted::MODEL),
        None => hub::resolve(base, &Wanted::MODEL),
    }
}

/// The adapters of a run: what they are, and the folder of those that it continues.
#[derive(Debug, Clone, Default)]
pub(crate) struct Adapters {
    /// Their settings; none for a run that trains the whole model.
    pub config: Option<LoraConfig>,
    /// The folder of those that are trained on; none for new ones.
    pub from: Option<PathBuf>,
}

impl Adapters {
    /// The adapters that `config` asks for in `model`: new ones by `[lora]`, or those of the folder
    /// `model.from`.
    ///
    /// # Errors
    /// Settings that do not fit the model, and both at once.
    pub(crate) fn of(config: &RunConfig, model: &ModelConfig) -> Result<Self> {
        let from = config.model.from.as_deref().map(expand_text).transpose();
        let from = from.map_err(|error| error.at("model.from"))?;
        let source = from.as_deref().map(Source::resolve).transpose()?;
        let found = source.as_ref().and_then(|source| source.adapter.as_ref());
        if let Some(source) = source.as_ref().filter(|source| config.lora.is_some() || source.adapter.is_some()) {
            let (had, wanted) = (source.config()?.0.vocab_size(), model.vocab_size());
            if wanted > had {
                return Err(Error::config(format!(
                    "model.resize_token_embeddings: the embedding of {} would grow from {had} to {wanted} rows, which an \
                     adapter does not save",
                    source.base.display()
                ))
                .help(
                    "train the whole model with this tokenizer first, without [lora], and set model.from to the folder of \
                     that run; or use the tokenizer that belongs to the model",
                ));
            }
        }
        match (&config.lora, found, source.as_ref()) {
            (None, None, _) | (Some(_), None, None) => Ok(Self::default()),
            (None, Some(adapter), source) => {
                let mut lora = adapter.config.clone();
                if let Some(source) = source.filter(|_| adapter.base_is_beside) {
                    // From the folder of this run the path would lead elsewhere.
                    lora.base_model_name_or_path = Some(source.base.to_string_lossy().into_owned());
                }
                Ok(Self { config: Some(lora), from: Some(adapter.path.clone()) })
            }
            (Some(_), Some(adapter), _) => Err(Error::config(format!(
                "[lora]: {} is an adapter already, with settings of its own in {ADAPTER_CONFIG}",
                adapter.path.display()
            ))
            .help(
                "leave [lora] out to train that adapter on; or merge it into its base first (kiln merge) for a new one",
            )),
            (Some(section), None, Some(source)) => {
                let task = config.data.task;
                let lora = section.resolve(model, task, &source.base, from.as_deref().unwrap_or_default());
                let fresh = Model::new(model, task.head(), &burn::tensor::Device::flex())?;
                let lora = fresh.settled(lora);
                let refused = |error: kiln_models::Error| {
                    let kind = model.model_type();
                    let default = LoraConfig::default_targets(kind).join(", ");
                    let help = matches!(error, kiln_models::Error::NoSuchTarget { .. })
                        .then(|| format!("left out, lora.target_modules is {default} for {}", kind.name()));
                    let error = Error::from(error).at("[lora]");
                    match help {
                        Some(help) => error.help(help),
                        None => error,
                    }
                };
                // An output that is saved whole is there with the adapters.
                let targets = fresh.with_lora(&lora).and_then(|model| model.lora_targets(&lora)).map_err(refused)?;
                if let Some((name, pattern)) = lora.idle_pattern(&targets) {
                    let layers = targets.iter().map(|module| module.rsplit('.').next().unwrap_or(module));
                    let layers = layers.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", ");
                    return Err(Error::config(format!("lora.{name}: no layer with an adapter matches {pattern:?}"))
                        .help(format!("the layers with an adapter end in {layers}")));
                }
                Ok(Self { config: Some(lora), from: None })
            }
        }
    }
}

impl crate::config::LoraSection {
    /// The settings of the adapters, with PEFT's defaults for the model and the task. The base is
    /// `folder`, which the config calls `spec`; its path stays as the config has it, as `peft`
    /// keeps it.
    fn resolve(&self, model: &ModelConfig, task: Task, folder: &Path, spec: &str) -> LoraConfig {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let is_local = hub::is_local(spec);
        let (id, revision) = spec.split_once('@').map_or((spec, None), |(id, revision)| (id, Some(revision)));
        let mut modules_to_save = self.modules_to_save.clone();
        modules_to_save.extend(owned(LoraConfig::default_saved(task.head())));
        modules_to_save.sort();
        modules_to_save.dedup();
        LoraConfig {
            base_model_name_or_path: Some(if is_local { folder.to_string_lossy().into_owned() } else { id.into() }),
            revision: revision.filter(|_| !is_local).map(str::to_owned),
            r: self.r,
            lora_alpha: self.lora_alpha,
            lora_dropout: self.lora_dropout,
            target_modules: match self.target_modules.as_slice() {
                [] => owned(LoraConfig::default_targets(model.model_type())),
                given => given.to_vec(),
            },
            bias: self.bias,
            modules_to_save,
            use_rslora: self.use_rslora,
            init_lora_weights: self.init_lora_weights,
            rank_pattern: self.rank_pattern.clone(),
            alpha_pattern: self.alpha_pattern.clone(),
            lora_bias: self.lora_bias,
            use_dora: self.use_dora,
            trainable_token_indices: self.trainable_token_indices.clone(),
            task_type: LoraConfig::task_type_of(task.head()).map(str::to_owned),
        }
    }
}

/// The task that the adapter in `source` states, if it states one.
pub(crate) fn stated_task(source: &Source, config: &ModelConfig) -> Option<Task> {
    match source.adapter.as_ref()?.config.task_type.as_deref()? {
        "CAUSAL_LM" => Some(Task::Clm),
        "SEQ_CLS" => Some(classifying(config)),
        "QUESTION_ANS" => Some(Task::QuestionAnswering),
        "TOKEN_CLS" => Some(Task::TokenClassification),
        _ => None,
    }
}

/// The task of a sequence classification with these labels.
fn classifying(config: &ModelConfig) -> Task {
    let labels = config.labels();
    match labels.problem_type.as_deref() {
        Some("multi_label_classification") => Task::MultiLabelClassification,
        Some("regression") => Task::Regression,
        _ if labels.num_labels() == 1 => Task::Regression,
        _ => Task::SequenceClassification,
    }
}

/// The task whose head the class that `config` names has, if Kiln has it.
pub fn task_of_architecture(config: &ModelConfig) -> Option<Task> {
    let architecture = config.architecture()?;
    let ends = [
        ("LMHeadModel", Task::Clm),
        ("ForCausalLM", Task::Clm),
        ("ForMaskedLM", Task::Mlm),
        ("ForSequenceClassification", classifying(config)),
        ("ForQuestionAnswering", Task::QuestionAnswering),
        ("ForTokenClassification", Task::TokenClassification),
        ("ForMultipleChoice", Task::MultipleChoice),
    ];
    ends.into_iter().find(|(end, _)| architecture.ends_with(end)).map(|(_, task)| task)
}

/// The task of the model in `source`, by the adapter's `task_type` or the architecture of `config`.
///
/// # Errors
/// A model that does not say it, or one with a head that Kiln does not have.
pub(crate) fn task_of(source: &Source, config: &ModelConfig) -> Result<Task> {
    if let Some(task) = stated_task(source, config) {
        return Ok(task);
    }
    task_of_architecture(config).ok_or_else(|| {
        Error::data(format!(
            "{}: neither task_type in {ADAPTER_CONFIG} nor architectures in config.json tells which head the model has",
            source.folder().display()
        ))
        .help("set task_type to CAUSAL_LM, SEQ_CLS, TOKEN_CLS or QUESTION_ANS")
    })
}
