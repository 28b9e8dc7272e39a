//! Kiln's own models and tasks, as the Trainer sees them.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use kiln_core::error::{Error, Result, printable};
use kiln_core::files::{hex, json_text};
use kiln_core::signals;
use kiln_data::collate::Collator;
use kiln_data::labels::{LabelNames, label_names};
use kiln_data::padding::Padding;
use kiln_data::tokenized::Limits;
use kiln_data::tokenizer::{NamedFile, Tokenizer};
use kiln_data::{Dataset, Example};
use kiln_models::layers::EmbeddingNoise;
use kiln_models::weights::{LoadOptions, LoadReport, Narrow, Parameter, StateDict, load_adapted, load_with};
use kiln_models::{AllowedBy, Compute, Copies, LoraConfig, Model, ModelConfig, ModelInput, Pass, Rows};
use kiln_train::arguments::Samples;
use kiln_train::description::{Description, Outcome, Planned, Weights};
use kiln_train::evaluation::Evaluator;
use kiln_train::optim::ParameterGroups;
use kiln_train::optim::backward::Stages;
use kiln_train::optim::loss::LossOptions;
use kiln_train::task::{Figures, TensorMapper, TensorTree, TrainingTask};
use sha2::{Digest, Sha256};

use super::adapter::{ADAPTER_CONFIG, Adapters, lacks_pooler};
use super::card::card;
use super::generation_config::{self, GENERATION_CONFIG};
use crate::config::{DataSection, ModelSection, RunConfig, TrainingArguments};
use crate::plan::{self, Architecture, Facts, RunPlan, SamplePlan, TrainFacts, TrainPlan, model_config};
use crate::task::evaluator::{ComputeMetrics, EvalPrediction, TaskEvaluator, WithMetrics};
use crate::task::generate::Generator;
use crate::task::{DeviceBatch, ModelTask, Targets, TaskBatch, loss_options};

/// The file of a chat template.
const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// A model of Kiln's that learns a [`ModelTask`].
#[derive(Clone)]
pub struct TransformerTask {
    /// The task.
    pub task: Arc<dyn ModelTask>,
    /// The configuration of the model.
    pub model_config: ModelConfig,
    /// The options of the loss in training. The plan replaces them by those of the arguments
    /// (`label_smoothing_factor`, `class_weights`).
    pub loss: LossOptions,
    /// The noise on the output of the token embedding in training. The plan replaces it by that of
    /// the arguments.
    pub noise: EmbeddingNoise,
    /// The id that padding uses.
    pub pad_id: u32,
    /// The lengths that batches are padded to. The plan replaces them by those of the arguments.
    pub padding: Padding,
    /// The tokenizer, where there is one.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// The folder of the pretrained model, if any.
    pub model_from: Option<PathBuf>,
    /// The adapters on it, if there are any.
    pub lora: Option<LoraConfig>,
    /// The folder of the adapters that are trained on; none for new ones.
    pub adapter: Option<PathBuf>,
    /// Figures of one's own, with the names of all figures of an evaluation
    /// (`Session::open_with_metrics` sets both).
    pub compute_metrics: Option<(ComputeMetrics, &'static [&'static str])>,
    /// The chat template that the model is trained with, where it is not the tokenizer's own.
    pub chat_template: Option<String>,
    /// Files of the folder `model_from` that the trained model keeps as they are.
    pub kept_files: Vec<NamedFile>,
    /// The config that describes the run, where there is one.
    pub described: Option<Arc<Described>>,
}

/// The part of a run that a config file describes, besides its training.
#[derive(Debug)]
pub struct Described {
    /// The config, as it was given.
    pub config: RunConfig,
    /// The facts about its inputs, as they were found.
    pub facts: Facts,
    /// The samples of text, if any.
    pub generation: Option<SamplePlan>,
}

impl Described {
    /// The facts with other ones about training.
    pub(super) fn facts_of(&self, facts: &TrainFacts) -> Facts {
        Facts { train: facts.clone(), ..self.facts.clone() }
    }

    /// The plan of the run.
    pub(super) fn plan(&self, run: Planned<'_>) -> RunPlan {
        let samples = run.arguments.samples;
        let generation = self.generation.clone().filter(|_| samples != Samples::Never);
        let generation = generation.map(|options| SamplePlan { every: samples.every(), ..options });
        let config = self.config.with_arguments(run.arguments);
        RunPlan::around(run.plan.clone(), &config, &self.facts_of(run.facts), generation)
    }
}

impl TransformerTask {
    /// A model of `model_config` that learns `task`, from random weights, without tokenizer,
    /// adapters and config file; rows are padded with the id 0. Struct update syntax sets the other
    /// fields.
    pub fn new(task: Arc<dyn ModelTask>, model_config: ModelConfig) -> Self {
        Self {
            task,
            model_config,
            loss: LossOptions::default(),
            noise: EmbeddingNoise::default(),
            pad_id: 0,
            padding: Padding::default(),
            tokenizer: None,
            model_from: None,
            lora: None,
            adapter: None,
            compute_metrics: None,
            chat_template: None,
            kept_files: Vec::new(),
            described: None,
        }
    }

    /// The architecture of the model, its task and its origin.
    pub(super) fn architecture(&self) -> Architecture {
        Architecture {
            task: self.task.kind(),
            config: self.model_config.clone(),
            from: self.model_from.clone(),
            lora: self.lora.clone(),
            adapter: self.adapter.clone(),
            unknown_fields: Vec::new(),
        }
    }

    /// The config of the run, and the facts about its inputs.
    ///
    /// # Errors
    /// A task that no config describes.
    pub(super) fn described(&self) -> Result<&Described> {
        let lacks = || Error::config("this run is described by no config").help("open it with Session::open");
        self.described.as_deref().ok_or_else(lacks)
    }

    /// The task with `adapters` on its model.
    pub(super) fn with_adapters(self, adapters: Adapters) -> Self {
        Self { lora: adapters.config, adapter: adapters.from, ..self }
    }
}

impl TrainingTask for TransformerTask {
    type Model = Model;
    type Example = Example;
    type Batch = TaskBatch;

    const CAN_BE_CAPTURED: bool = true;
    const PADS_BY_PLAN: bool = true;
    const WRITES_SAMPLES: bool = true;
    const HAS_MEMORY_ESTIMATE: bool = true;

    fn name(&self) -> String {
        self.model_config.model_type().to_string()
    }

    fn planned(&self, plan: &TrainPlan) -> Self {
        let (loss, padding) = (plan.optimizer.loss.clone(), plan.data.padding.clone());
        let noise = EmbeddingNoise(plan.optimizer.neftune_noise_alpha);
        // `model_config::own` leaves out the fields of a file that are written anew.
        Self { loss, padding, noise, model_config: model_config::own(self.model_config.clone()), ..self.clone() }
    }

    fn task_name(&self) -> Option<&str> {
        Some(self.task.kind().name())
    }

    fn drops(&self) -> bool {
        self.architecture().has_dropout() || self.noise.0.is_some()
    }

    fn loss_options(&self, arguments: &TrainingArguments) -> Result<LossOptions> {
        loss_options(arguments, &*self.task, &self.model_config)
    }

    fn model(&self, compute: Compute, device: &Device) -> Result<Model> {
        let model = Model::new(&self.model_config, self.task.kind().head(), device)?;
        let model = model.with_compute(compute).with_embedding_noise(self.noise);
        Ok(match &self.lora {
            Some(lora) => model.with_lora(lora)?,
            None => model,
        })
    }

    fn pretrained(
        &self,
        model: Model,
        weights: &Weights,
        groups: &ParameterGroups,
        compute: Compute,
    ) -> Result<(Model, Option<LoadReport>)> {
        let has_adapters = self.lora.is_some();
        let (from, adapter) = match weights {
            Weights::Random => (None, None),
            Weights::OfTask => (self.model_from.as_deref(), self.adapter.as_deref()),
            // A model with adapters has saved the adapters alone.
            Weights::Saved(folder) if has_adapters => (self.model_from.as_deref(), Some(folder.as_path())),
            Weights::Saved(folder) => (Some(folder.as_path()), None),
        };
        let (model, report) = match from {
            Some(folder) => {
                // Frozen weights that do nothing but multiply need no f32.
                let only_multiplies = |it: &Parameter| has_adapters && it.in_linear && !groups.learns(it);
                let narrow: Narrow<'_> = (compute.dtype(), &only_multiplies);
                let (model, report) = match adapter {
                    Some(adapter) => load_adapted(model, folder, adapter, narrow).map_err(|error| match error {
                        kiln_models::Error::OtherSizes { allowed_by: AllowedBy::IgnoreMismatchedSizes, .. } => {
                            Error::from(error).help(
                                "the head of an adapter keeps its size: merge the adapter first (kiln merge), and set \
                                 model.ignore_mismatched_sizes = true on what comes of it",
                            )
                        }
                        other => other.into(),
                    })?,
                    None => {
                        let model_section = self.described.as_ref().map(|described| &described.config.model);
                        let asked = |of: fn(&ModelSection) -> bool| model_section.is_some_and(of);
                        let ignore_mismatched_sizes = asked(|section| section.ignore_mismatched_sizes);
                        let resize_token_embeddings = asked(|section| section.resize_token_embeddings);
                        let options = LoadOptions { narrow, ignore_mismatched_sizes, resize_token_embeddings };
                        let (model, report) = load_with(model, folder, options)?;
                        (model.with_begun_adapters(), report)
                    }
                };
                if let (Some(adapter), [first, ..]) = (adapter, report.replaced.as_slice()) {
                    return Err(Error::config(format!(
                        "model.from: the adapter {} has weights of its own in place of {first} of its base, which an adapter \
                         trained on would lose: they learn nothing, and only what learns is saved",
                        adapter.display()
                    ))
                    .help("merge it into its base first (kiln merge), and train on what comes of it, with [lora] or whole"));
                }
                (model, Some(report))
            }
            None => (model, None),
        };
        if has_adapters && let Some(report) = &report {
            let lost = report.random().filter(|name| model.saved_as(name).is_none()).cloned().collect::<Vec<_>>();
            if let Some(first) = lost.first() {
                if let Some(error) = adapter.and_then(|adapter| lacks_pooler(adapter, &lost)) {
                    return Err(error);
                }
                return Err(Error::config(format!(
                    "[lora]: the base has no {first}{}, so they would be random, frozen, and not in the saved adapter",
                    if lost.len() == 1 { String::new() } else { format!(" and {} tensors more", lost.len() - 1) }
                ))
                .help(match adapter {
                    Some(_) => "merge the adapter into its base first (kiln merge), and train on what comes of it",
                    None => "name their modules in lora.modules_to_save, so that they learn and are saved",
                }));
            }
        }
        Ok((model, report))
    }

    fn description(&self, run: Planned<'_>) -> Result<Description> {
        let Some(described) = &self.described else { return Description::of_a_program(run) };
        let (plan, config) = (described.plan(run), described.config.with_arguments(run.arguments));
        let resolved = plan.resolved(&config);
        let json = |config: &RunConfig| serde_json::to_value(config).map_err(|error| Error::config(error.to_string()));
        let saved = json_text(&plan).map_err(|error| Error::config(error.to_string()))?;
        // The folder and its treatment say nothing of what is computed.
        let trainer = resolved.trainer.clone().without(|key| key.name.starts_with("run."));
        let same = RunConfig { trainer, ..resolved.clone() };
        let sha256 = hex(&Sha256::digest(same.to_toml().unwrap_or_default().as_bytes()));
        Ok(Description {
            settings: json(&resolved)?,
            defaults: json(&RunConfig::default())?,
            keys: DataSection::KEYS,
            files: vec![
                ("plan.toml".into(), plan.to_toml(&config)?.into_bytes().into()),
                (plan::FILE.into(), saved.into_bytes().into()),
            ],
            lines: plan.describe(),
            sha256,
            flops_per_token: self.architecture().flops_per_token(run.plan.batch.seq_len),
        })
    }

    fn batch(&self, examples: &[Example], rows: usize) -> Result<TaskBatch> {
        // Files are checked when they are opened; a dataset of the user's own is not.
        let limits = Limits::of(&self.model_config, self.task.kind());
        for (row, example) in examples.iter().enumerate() {
            limits.check(example).map_err(|error| error.at(format_args!("row {row} of a batch")))?;
        }
        let batch = Collator { pad_id: self.pad_id, padding: self.padding.clone(), rows }.collate(examples)?;
        Ok(TaskBatch { batch, task: self.task.clone(), loss: self.loss.clone() })
    }

    fn loss(&self, model: &Model, batch: &DeviceBatch, pass: Pass<'_>) -> Result<Tensor<1>> {
        batch.loss_of(model, pass, &self.loss).map(|loss| loss.sum)
    }

    const HAS_BLOCKS: bool = true;

    fn stages<'a>(&'a self, model: &Model, batch: &'a DeviceBatch) -> Option<Box<dyn Stages<Model> + 'a>> {
        Some(Box::new(BatchStages { batch, rows: model.rows(&batch.input, model.pass(true)), options: &self.loss }))
    }

    fn evaluate(&self, model: &Model, batch: &DeviceBatch, pass: Pass<'_>) -> Result<Figures> {
        let logits = model.logits(&batch.input, pass);
        let own = self.compute_metrics.is_some().then(|| logits.clone());
        let mut figures = TaskEvaluator::figures(&*self.task, batch, logits, &self.loss)?;
        figures.extend(own.map(|logits| {
            let [rows, width] = logits.dims();
            let rows = rows / batch.input.input_ids.dims()[0] * batch.examples;
            ("logits", logits.slice([0..rows, 0..width]).reshape([rows * width]))
        }));
        Ok(figures)
    }

    fn metrics(&self) -> Option<&'static [&'static str]> {
        Some(self.compute_metrics.as_ref().map_or(self.task.figures(), |(_, figures)| figures))
    }

    fn evaluator(&self, data: &Arc<dyn Dataset>) -> Option<Box<dyn Evaluator<TaskBatch>>> {
        let labels = self.model_config.labels();
        // Names that cannot be read were refused when the data were opened: the scores need their
        // number alone.
        let names = || label_names(labels).unwrap_or_else(|_| vec![String::new(); labels.num_labels()]);
        let names = if self.task.kind().has_label_names() { names() } else { Vec::new() };
        let inner = TaskEvaluator::new(self.task.clone(), data, names);
        Some(match &self.compute_metrics {
            None => Box::new(inner) as _,
            Some((metrics, _)) => {
                Box::new(WithMetrics { inner, metrics: metrics.clone(), seen: EvalPrediction::default() })
            }
        })
    }

    fn config(&self) -> serde_json::Value {
        self.model_config.to_json("")
    }

    fn class_names(&self) -> Result<Option<Vec<String>>> {
        let names = LabelNames::of_model(self.model_config.labels())?;
        Ok(names.map(|names| names.names().to_vec()))
    }

    fn files(&self, model: &Model) -> Result<Vec<NamedFile>> {
        let config = serde_json::to_string_pretty(&self.model_config.to_json(&model.architecture()))
            .map_err(|error| Error::data(format!("config.json: {error}")))?;
        // Names of labels may hold anything; transformers escapes them too.
        let mut files = vec![("config.json".into(), format!("{}\n", printable(&config)).into_bytes().into())];
        if let Some(lora) = model.lora() {
            let lora = serde_json::to_string_pretty(&lora.to_json(self.model_config.model_type()))
                .map_err(|error| Error::data(format!("{ADAPTER_CONFIG}: {error}")))?;
            files.push((ADAPTER_CONFIG.into(), format!("{}\n", printable(&lora)).into_bytes().into()));
        }
        if let Some(tokenizer) = &self.tokenizer {
            files.extend(tokenizer.files(&self.model_config, self.model_from.as_deref())?);
        }
        if let Some(template) = &self.chat_template {
            files.retain(|(name, _)| name != CHAT_TEMPLATE);
            files.push((CHAT_TEMPLATE.into(), template.clone().into_bytes().into()));
        }
        files.extend(self.kept_files.iter().cloned());
        // An adapter's folder has no settings of the whole model.
        if model.generates() && model.lora().is_none() && !files.iter().any(|(name, _)| name == GENERATION_CONFIG) {
            let eot = self.tokenizer.as_ref().and_then(|tokenizer| tokenizer.eot_id());
            files.push(generation_config::file(&self.model_config, eot));
        }
        Ok(files)
    }

    fn card(&self, run: Planned<'_>, outcome: &Outcome<'_>) -> Result<Option<String>> {
        let Some(described) = &self.described else { return Ok(None) };
        let (plan, config) = (described.plan(run), described.config.with_arguments(run.arguments));
        Ok(Some(card(&config, &plan, &*self.task, &self.model_config, outcome)))
    }

    fn samples(&self, model: &Model, device: &Device) -> Result<Vec<(String, String)>> {
        let generation = self.described.as_ref().and_then(|described| described.generation.as_ref());
        let (Some(options), Some(tokenizer)) = (generation, &self.tokenizer) else { return Ok(Vec::new()) };
        let copies = Copies::default();
        let generator =
            Generator { model, config: &self.model_config, device, tokenizer: Some(tokenizer), copies: &copies };
        let mut samples = Vec::with_capacity(options.prompts.len());
        for prompts in options.prompts.chunks(PROMPTS_OF_A_BATCH) {
            let ids = prompts.iter().map(|prompt| tokenizer.encode(prompt)).collect::<Result<Vec<_>>>()?;
            let tokens = generator.generate(&ids, &options.sampling, |_, _| {
                // Nobody keeps samples once a signal has come.
                if signals::received().is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            for (prompt, tokens) in prompts.iter().zip(tokens) {
                samples.push((prompt.clone(), format!("{prompt}{}", tokenizer.decode(&tokens)?)));
            }
        }
        Ok(samples)
    }
}

/// Prompts that are continued together, at most.
const PROMPTS_OF_A_BATCH: usize = 8;

/// The loss of a batch by a model of Kiln's, in stages.
struct BatchStages<'a> {
    batch: &'a DeviceBatch,
    rows: Rows,
    options: &'a LossOptions,
}

impl Stages<Model> for BatchStages<'_> {
    fn num_blocks(&self, model: &Model) -> usize {
        model.num_blocks()
    }

    fn embed(&self, model: &Model, pass: Pass<'_>) -> Tensor<2> {
        model.embed(&self.batch.input, &self.rows, pass)
    }

    fn block(&self, model: &Model, index: usize, x: Tensor<2>, pass: Pass<'_>) -> Tensor<2> {
        model.block(index, x, &self.rows, pass)
    }

    fn loss(&self, model: &Model, x: Tensor<2>, pass: Pass<'_>) -> Result<Tensor<1>> {
        self.batch.loss_of_hidden(model, x, &self.rows, pass, self.options).map(|loss| loss.sum)
    }
}

impl TensorTree for DeviceBatch {
    fn map<M: TensorMapper>(self, mapper: &mut M) -> Self {
        let ModelInput { input_ids, attention_mask, token_type_ids, position_ids } = self.input;
        let input = ModelInput {
            input_ids: input_ids.map(mapper),
            attention_mask: attention_mask.map(|mask| mask.map(mapper)),
            token_type_ids: token_type_ids.map(|ids| ids.map(mapper)),
            position_ids: position_ids.map(|ids| ids.map(mapper)),
        };
        let targets = self.targets.map(|targets| match targets {
            Targets::Classes { index, weight } => {
                Targets::Classes { index: index.map(mapper), weight: weight.map(|weight| weight.map(mapper)) }
            }
            Targets::Values { values, weight } => {
                Targets::Values { values: values.map(mapper), weight: weight.map(|weight| weight.map(mapper)) }
            }
            Targets::Multi { values, weight } => {
                Targets::Multi { values: values.map(mapper), weight: weight.map(|weight| weight.map(mapper)) }
            }
            Targets::Spans { start, end, weight } => Targets::Spans {
                start: start.map(mapper),
                end: end.map(mapper),
                weight: weight.map(|weight| weight.map(mapper)),
            },
        });
        let class_weights = self.class_weights.map(|weights| weights.map(mapper));
        Self { input, targets, class_weights, ..self }
    }

    fn host_values(&self) -> Vec<u64> {
        let ModelInput { attention_mask, token_type_ids, position_ids, .. } = &self.input;
        let (kind, weight) = match &self.targets {
            None => (0, &None),
            Some(Targets::Classes { weight, .. }) => (1, weight),
            Some(Targets::Values { weight, .. }) => (2, weight),
            Some(Targets::Multi { weight, .. }) => (3, weight),
            Some(Targets::Spans { weight, .. }) => (4, weight),
        };
        let has = [
            attention_mask.is_some(),
            token_type_ids.is_some(),
            position_ids.is_some(),
            weight.is_some(),
            self.class_weights.is_some(),
        ];
        std::iter::once(kind).chain(has.map(u64::from)).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use kiln_core::model_config::ModelType;
    use kiln_data::{Label, PaddedBatch};
    use serde_json::json;

    use super::*;
    use crate::config::Task;
    use crate::task::{CausalLm, SequenceClassification, TaskScores};

    #[test]
    fn an_id_that_a_table_does_not_have_is_refused_before_it_reaches_the_device() {
        let fields = json!({"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 32, "n_positions": 8});
        let model = ModelConfig::from_fields(ModelType::Gpt2, fields.as_object().unwrap()).unwrap();
        let task = TransformerTask::new(Arc::new(CausalLm), model);
        let example = |ids: [i32; 3], positions: [i32; 3]| Example {
            input_ids: ids.to_vec(),
            attention_mask: None,
            token_type_ids: None,
            position_ids: Some(positions.to_vec()),
            label: Label::Tokens(vec![1, 2, 3]),
        };
        let fine = example([0, 31, 2], [0, 1, 7]);
        assert!(task.batch(&[fine.clone(), fine.clone()], 2).is_ok());
        for (bad, message) in [
            (example([0, 32, 2], [0, 1, 2]), "row 1 of a batch: input_ids[1]: expected 0 to 31, got 32"),
            (example([0, 1, -1], [0, 1, 2]), "row 1 of a batch: input_ids[2]: expected 0 to 31, got -1"),
            (example([0, 1, 2], [8, 0, 1]), "row 1 of a batch: position_ids[0]: expected 0 to 7, got 8"),
        ] {
            let error = task.batch(&[fine.clone(), bad], 2).err().unwrap().to_string();
            assert!(error.starts_with(message), "{error}");
        }
    }

    /// A BERT of one layer.
    fn small_bert(num_labels: usize) -> ModelConfig {
        let fields = json!({
            "num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 32,
            "max_position_embeddings": 8, "num_labels": num_labels
        });
        ModelConfig::from_fields(ModelType::Bert, fields.as_object().unwrap()).unwrap()
    }

    /// A task whose methods contradict one another.
    struct Lacking {
        has_scores: bool,
    }

    impl ModelTask for Lacking {
        fn kind(&self) -> Task {
            Task::Regression
        }
        fn figures(&self) -> &'static [&'static str] {
            &["loss"]
        }
        fn predicts_classes(&self) -> bool {
            !self.has_scores
        }
        fn targets(&self, batch: &PaddedBatch, device: &Device) -> Result<Option<Targets>> {
            crate::task::Regression.targets(batch, device)
        }
        fn scores(&self, _: &Arc<dyn Dataset>, _: Vec<String>) -> Option<Box<dyn TaskScores>> {
            self.has_scores.then(|| Box::new(FirstClasses::default()) as _)
        }
    }

    #[test]
    fn a_task_of_ones_own_that_lacks_a_method_is_told_which() {
        let model = small_bert(1);
        let folder = tempfile::tempdir().unwrap();
        let rows = (0..4).map(|row| Example {
            input_ids: vec![4, row, 5],
            attention_mask: None,
            token_type_ids: None,
            position_ids: None,
            label: Label::Value(0.5),
        });
        let rows = rows.collect::<Vec<_>>();
        for (has_scores, parts) in [
            (true, ["`scores` returns scores, and `predictions` returns nothing", "implement `predictions`"]),
            (false, ["`predicts_classes` is true, and `targets` returns no `Targets::Classes`", "or false from"]),
        ] {
            let task = TransformerTask::new(Arc::new(Lacking { has_scores }), model.clone());
            let arguments = TrainingArguments::new(folder.path().join(format!("{has_scores}")));
            let trainer = kiln_train::Trainer::new(arguments, task, rows.clone()).unwrap();
            let error = format!("{:?}", trainer.with_validation(rows.clone()).unwrap().evaluate().unwrap_err());
            assert!(error.contains("the `ModelTask` of kind regression"), "{error}");
            assert!(parts.iter().all(|part| error.contains(part)) && !error.contains("`evaluate`"), "{error}");
        }
    }

    /// Sequence classification whose figure is the share of rows of which the first class is
    /// predicted.
    struct FirstClass;

    impl ModelTask for FirstClass {
        fn kind(&self) -> Task {
            Task::SequenceClassification
        }
        fn figures(&self) -> &'static [&'static str] {
            &["loss", "accuracy", "first_class"]
        }
        fn predicts_classes(&self) -> bool {
            true
        }
        fn targets(&self, batch: &PaddedBatch, device: &Device) -> Result<Option<Targets>> {
            SequenceClassification.targets(batch, device)
        }
        fn predictions(&self, logits: Tensor<2>, batch: &DeviceBatch) -> Option<Tensor<1>> {
            SequenceClassification.predictions(logits, batch)
        }
        fn scores(&self, _: &Arc<dyn Dataset>, _: Vec<String>) -> Option<Box<dyn TaskScores>> {
            Some(Box::new(FirstClasses::default()))
        }
    }

    #[derive(Default)]
    struct FirstClasses(Vec<bool>);

    impl TaskScores for FirstClasses {
        fn add(&mut self, _: &PaddedBatch, predicted: &[f64]) {
            self.0.extend(predicted.iter().map(|class| *class == 0.0));
        }
        fn figures(&self) -> Vec<(&'static str, f64)> {
            let first = self.0.iter().filter(|first| **first).count();
            vec![("first_class", first as f64 / self.0.len() as f64)]
        }
    }

    #[test]
    fn a_task_of_ones_own_trains_a_model_of_kilns() {
        let model = small_bert(2);
        let folder = tempfile::tempdir().unwrap();
        let arguments = TrainingArguments {
            max_steps: Some(40),
            per_device_train_batch_size: 3.into(),
            per_device_eval_batch_size: 3,
            learning_rate: 5e-3,
            ..TrainingArguments::new(folder.path().join("run"))
        };
        // Three rows of four have the first class, which their first token tells.
        let rows = (0..8).map(|row| Example {
            input_ids: vec![if row % 4 == 0 { 9 } else { 4 }, row, 5],
            attention_mask: None,
            token_type_ids: None,
            position_ids: None,
            label: Label::Class(i32::from(row % 4 == 0)),
        });
        let rows = rows.collect::<Vec<_>>();
        let task = TransformerTask::new(Arc::new(FirstClass), model);
        let trainer = kiln_train::Trainer::new(arguments, task, rows.clone()).unwrap();
        let mut trainer = trainer.with_validation(rows).unwrap();
        let output = trainer.train().unwrap();
        let evaluation = trainer.evaluate().unwrap();
        let names = evaluation.metrics.iter().map(|(name, _)| *name).collect::<Vec<_>>();
        assert_eq!((output.step, names), (40, vec!["loss", "accuracy", "first_class"]));
        assert_eq!(evaluation.metric("accuracy"), Some(1.0), "{evaluation:?}");
        assert_eq!(evaluation.metric("first_class"), Some(0.75));
    }
}
