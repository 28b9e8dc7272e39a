//! Kiln's own models and tasks, as the Trainer sees them.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use kiln_core::error::{Error, Result, printable};
use kiln_core::signals;
use kiln_data::collate::Collator;
use kiln_data::labels::{LabelNames, label_names};
use kiln_data::padding::Padding;
use kiln_data::tokenizer::{NamedFile, Tokenizer};
use kiln_data::{Batch, Dataset, Example};
use kiln_models::{Compute, LoraConfig, Model, ModelConfig, ModelInput, Pass, Rows};

use super::adapter::{ADAPTER_CONFIG, Adapters};
use super::generation_config::{self, GENERATION_CONFIG};
use super::training_task::{BatchSize, TensorMapper, TensorTree, TrainingTask, model_facts};
use crate::config::Task;
use crate::optim::backward::Stages;
use crate::plan::{ModelFacts, RunPlan};
use crate::task::evaluator::{ComputeMetrics, EvalPrediction, Evaluator, Predictions, WithMetrics};
use crate::task::generate::Generator;
use crate::task::{DeviceBatch, LossOptions, Targets};

/// The file of a chat template.
const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// A model of Kiln's with a task.
#[derive(Clone)]
pub struct BuiltIn {
    /// The task.
    pub task: Task,
    /// The model.
    pub model_config: ModelConfig,
    /// The loss of training.
    pub loss: LossOptions,
    /// The id that padding uses.
    pub pad_id: u32,
    /// The lengths that batches are padded to.
    pub padding: Padding,
    /// The tokenizer, where there is one.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// The folder of the pretrained model, if any.
    pub model_from: Option<PathBuf>,
    /// The adapters on it, if there are any.
    pub lora: Option<LoraConfig>,
    /// The folder of the adapters that are trained on; none for new ones.
    pub adapter: Option<PathBuf>,
    /// Figures of one's own, with the names of all figures of an evaluation.
    pub compute_metrics: Option<(ComputeMetrics, &'static [&'static str])>,
    /// The chat template that the model is trained with, where it is not the tokenizer's own.
    pub chat_template: Option<String>,
    /// Files of that folder that the trained model keeps as they are.
    pub kept_files: Vec<NamedFile>,
}

impl BuiltIn {
    /// A model of `model_config` for `task`, with nothing beside it, as it is before there is a
    /// plan.
    pub fn new(task: Task, model_config: ModelConfig) -> Self {
        Self {
            task,
            model_config,
            loss: LossOptions::default(),
            pad_id: 0,
            padding: Padding::default(),
            tokenizer: None,
            model_from: None,
            lora: None,
            adapter: None,
            compute_metrics: None,
            chat_template: None,
            kept_files: Vec::new(),
        }
    }

    /// The facts about the model that a plan is derived from.
    ///
    /// # Errors
    /// A configuration of which no model can be made.
    pub(super) fn facts(&self) -> Result<ModelFacts> {
        let built_in = Some((self.model_config.clone(), self.task));
        let (from, lora, adapter) = (self.model_from.clone(), self.lora.clone(), self.adapter.clone());
        Ok(ModelFacts { built_in, from, lora, adapter, ..model_facts(self)? })
    }

    /// The task with `adapters` on its model.
    pub(super) fn with_adapters(self, adapters: Adapters) -> Self {
        Self { lora: adapters.config, adapter: adapters.from, ..self }
    }
}

impl TrainingTask for BuiltIn {
    type Model = Model;
    type Example = Example;
    type Batch = Batch;
    type DeviceBatch = DeviceBatch;

    const CAN_BE_CAPTURED: bool = true;

    fn name(&self) -> String {
        self.model_config.model_type().to_string()
    }

    fn planned(&self, plan: &RunPlan) -> Self {
        let (loss, padding) = (plan.optimizer.loss.clone(), plan.data.padding.clone());
        // Without the fields of a file that are written anew.
        let model_config = plan.model.config.clone().unwrap_or_else(|| self.model_config.clone());
        Self { loss, padding, model_config, ..self.clone() }
    }

    fn model(&self, compute: Compute, device: &Device) -> Result<Model> {
        let model = Model::new(&self.model_config, self.task.head(), device)?.with_compute(compute);
        Ok(match &self.lora {
            Some(lora) => model.with_lora(lora)?,
            None => model,
        })
    }

    fn collate(&self, examples: &[Example], rows: usize) -> Result<Batch> {
        Collator { pad_id: self.pad_id, padding: self.padding.clone(), rows }.collate(examples)
    }

    fn size(&self, batch: &Batch) -> BatchSize {
        BatchSize {
            rows: batch.rows,
            seq_len: batch.seq_len,
            padded: batch.attention_mask.is_some(),
            tokens: batch.num_tokens as u64,
            labels: self.loss.total_weight(self.task, batch),
        }
    }

    fn to_device(&self, batch: &Batch, device: &Device) -> Result<DeviceBatch> {
        Ok(DeviceBatch::new(self.task, batch, device)?.with_class_weights(&self.loss, device))
    }

    fn loss(&self, model: &Model, batch: &DeviceBatch, pass: Pass<'_>) -> Result<Tensor<1>> {
        batch.loss_of(model, pass, &self.loss).map(|loss| loss.sum)
    }

    const HAS_BLOCKS: bool = true;

    fn stages<'a>(&'a self, model: &Model, batch: &'a DeviceBatch) -> Option<Box<dyn Stages<Model> + 'a>> {
        Some(Box::new(BatchStages { batch, rows: model.rows(&batch.input), options: &self.loss }))
    }

    fn evaluate(&self, model: &Model, batch: &DeviceBatch, pass: Pass<'_>) -> Result<Vec<Tensor<1>>> {
        let logits = model.logits(&batch.input, pass);
        let own = self.compute_metrics.is_some().then(|| logits.clone());
        let mut values = Predictions::values(self.task, batch, logits, &self.loss)?;
        values.extend(own.map(|logits| {
            let [rows, width] = logits.dims();
            let rows = rows / batch.input.input_ids.dims()[0] * batch.examples;
            logits.slice([0..rows, 0..width]).reshape([rows * width])
        }));
        Ok(values)
    }

    fn metrics(&self) -> &'static [&'static str] {
        self.compute_metrics.as_ref().map_or(self.task.figures(), |(_, figures)| figures)
    }

    fn evaluator(&self, data: &Arc<dyn Dataset>) -> Box<dyn Evaluator<Batch>> {
        let labels = self.model_config.labels();
        // Where there are names that cannot be read, the data were refused; the figures need no
        // more than their number.
        let names = || label_names(labels).unwrap_or_else(|_| vec![String::new(); labels.num_labels()]);
        let names = if self.task.has_label_names() { names() } else { Vec::new() };
        let inner = Predictions::new(self.task, data.clone(), names);
        match &self.compute_metrics {
            None => Box::new(inner),
            Some((metrics, _)) => {
                let (task, metrics, seen) = (self.task, metrics.clone(), EvalPrediction::default());
                Box::new(WithMetrics { task, width: labels.num_labels(), inner, metrics, seen })
            }
        }
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

    fn samples(&self, plan: &RunPlan, model: &Model, device: &Device) -> Result<Vec<(String, String)>> {
        let (Some(options), Some(tokenizer)) = (&plan.generation, &self.tokenizer) else { return Ok(Vec::new()) };
        let generator = Generator { model, config: &self.model_config, device, tokenizer: Some(tokenizer) };
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
}
