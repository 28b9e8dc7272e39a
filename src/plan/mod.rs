//! Plans of runs: the [`TrainPlan`] of a run's training, and what a config file adds to it. A plan
//! is derived from the config and the facts about the run's inputs, printed, and saved before
//! step 1.

mod facts;
mod file;
mod labels;
pub mod memory;
mod outline;
mod print;
mod sections;

pub use facts::{ExampleFacts, Facts, TokenizerFacts};
use kiln_core::dataset::padding::Padding;
use kiln_core::error::{Error, Result};
pub use kiln_core::words::thousands;
use kiln_models::weights::Parameter;
use kiln_models::{LoraConfig, ModelConfig};
pub use kiln_train::plan::{
    BatchPlan, DataFacts, DataPlan, EnginePlan, EvaluationPlan, FILE, FoundBatch, LoggingPlan, ModelFacts, ModelPlan,
    NotCaptured, OptimizerPlan, Part, RunSettings, SCHEMA, SavingPlan, StepPlan, TrainFacts, TrainPlan, batch,
};
pub use labels::{LabelCount, LabelledRows, RowCounts};
pub use outline::{Found, outline};
pub(crate) use sections::model_config;
pub use sections::{Architecture, ExamplePlan, MemoryPlan, SamplePlan};
use serde::{Deserialize, Serialize};

use crate::config::{
    CheckedConfig, DataFormat, DeviceKind, Documents, Errors, GenerateOptions, RunConfig, Sampler, SaveStrategy, Task,
    Validation,
};
use crate::plan::file::PlanFile;
use crate::plan::memory::{Host, MemoryEstimate, MemoryInputs, Values};

/// Refuses lengths of `padding`, for rows of up to `longest` tokens, that `model` has no positions
/// for.
///
/// # Errors
/// Such a length.
pub(crate) fn check_positions(padding: &Padding, longest: usize, model: &ModelConfig) -> Result<()> {
    let (length, positions) = (padding.length(longest), model.max_positions());
    if length <= positions {
        return Ok(());
    }
    Err(Error::config(format!(
        "data.padding: rows of up to {longest} tokens are padded to {length}, and the model has {positions} positions"
    ))
    .help("lower data.max_length or data.block_size, or change data.pad_to_multiple_of or data.buckets"))
}

/// A run, resolved. `plan.json` in its folder holds it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "PlanFile", into = "PlanFile")]
pub struct RunPlan {
    /// [`SCHEMA`]
    pub schema: String,
    /// The version of Kiln that made it.
    pub kiln: String,
    /// Its training.
    pub train: TrainPlan,
    /// The model's architecture, its task and its origin; none for a model that is not Kiln's.
    pub architecture: Option<Architecture>,
    /// How examples are made.
    pub examples: ExamplePlan,
    /// The text samples, if any.
    pub generation: Option<SamplePlan>,
    /// Memory, by arithmetic.
    pub memory: MemoryPlan,
    /// The files that the config file includes.
    pub included: Vec<String>,
}

impl RunPlan {
    /// The plan that follows from `config` and `facts`. Pure: the same config and facts have the
    /// same plan.
    ///
    /// # Errors
    /// Settings that contradict one another or the facts.
    pub fn derive(config: &CheckedConfig, facts: &Facts) -> Result<Self> {
        let train = TrainPlan::derive(config.checked_arguments(), &facts.train)?;
        train.check_evaluation()?;
        let data = &facts.train.data;
        let longest = data.train.max_len.max(data.validation.map_or(0, |split| split.max_len));
        check_positions(&train.data.padding, longest, &facts.architecture.config)?;
        let generation = sample_plan(config, facts)?;
        Ok(Self::around(train, config, facts, generation))
    }

    /// The plan of the run of `config` whose training is `train`, with samples of text as
    /// `generation` says.
    pub(crate) fn around(train: TrainPlan, config: &RunConfig, facts: &Facts, generation: Option<SamplePlan>) -> Self {
        let config_data = &config.data;
        let memory = MemoryPlan { values: values(facts, &train), estimate: None };
        let plan = Self {
            schema: SCHEMA.into(),
            kiln: env!("CARGO_PKG_VERSION").into(),
            architecture: Some(Architecture {
                config: model_config::own(facts.architecture.config.clone()),
                ..facts.architecture.clone()
            }),
            examples: ExamplePlan {
                block_size: facts.examples.block_size,
                max_length: facts.train.data.max_length,
                documents: documents(config, facts, train.engine.device.kind),
                limits: limits(config, facts.examples.replaced),
                pad_id: facts.examples.pad_id,
                sequences: facts.examples.sequences,
                packing: config_data.packing,
                version_2_with_negative: facts.examples.version_2_with_negative,
                counts: facts.examples.counts.clone(),
            },
            train,
            generation,
            memory,
            included: config.included.clone(),
        };
        let estimate = plan.estimated_memory();
        Self { memory: MemoryPlan { estimate, ..plan.memory.clone() }, ..plan }
    }

    /// Configuration and task of a model of Kiln's.
    ///
    /// # Errors
    /// Another model.
    pub fn model_and_task(&self) -> Result<(&ModelConfig, Task)> {
        let architecture = self.architecture.as_ref().ok_or_else(|| {
            Error::config(format!(
                "expected one of Kiln's models, got a model of its own kind, {}",
                self.train.model.kind
            ))
        })?;
        Ok((&architecture.config, architecture.task))
    }

    /// `config`, of which this is the plan, with every derived value made explicit: `plan.toml`
    /// repeats the run from it.
    #[must_use]
    pub fn resolved(&self, config: &RunConfig) -> RunConfig {
        let mut config = RunConfig { trainer: self.train.resolved(&config.trainer), ..config.clone() };
        config.data.block_size = self.examples.block_size.or(config.data.block_size);
        config.data.max_length = self.examples.max_length;
        config.data.version_2_with_negative = self.examples.version_2_with_negative;
        if config.data.format.is_table() {
            let (text, label) = config.data.task.columns();
            if !config.data.has_instructions() {
                config.data.text_column.get_or_insert_with(|| text.into());
            }
            if !config.data.task.is_language_model() {
                config.data.label_column.get_or_insert_with(|| label.into());
            }
        }
        config
    }

    /// The estimated memory of the same run with micro-batches of `micro` examples.
    pub fn estimated_memory_of(&self, micro: usize) -> Option<MemoryEstimate> {
        self.with_memory_of(&BatchPlan { micro, ..self.train.batch.clone() }).memory.estimate
    }

    /// This plan with its steps cut as in `batch`, and the memory for that.
    #[must_use]
    pub fn with_memory_of(&self, batch: &BatchPlan) -> Self {
        let mut plan = self.clone();
        plan.train.batch = batch.clone();
        plan.memory.estimate = plan.estimated_memory();
        plan
    }

    /// This plan with the memory that it would need with adapters of rank `r` on every linear layer
    /// in place of all weights that learn.
    #[must_use]
    pub(crate) fn with_adapters(&self, facts: &Facts, r: usize) -> Self {
        let layers = || facts.train.model.parameters.iter().filter(|parameter| parameter.in_linear);
        let adapters = layers().map(|parameter| r * parameter.shape.iter().sum::<usize>()).sum::<usize>();
        let Values { trained, state, .. } = self.memory.values;
        let mut plan = self.clone();
        plan.memory.values = Values {
            parameters: self.memory.values.parameters + adapters,
            trained: adapters,
            multiplying: layers().map(|parameter| parameter.num_elements()).sum(),
            largest: layers()
                .map(|parameter| r * parameter.shape.iter().max().copied().unwrap_or(0))
                .max()
                .unwrap_or(0),
            // Adafactor's state, which is no multiple of the weights, is small in both.
            state: (state as f64 / trained.max(1) as f64 * adapters as f64) as usize,
            ..self.memory.values
        };
        plan.memory.estimate = plan.estimated_memory();
        plan
    }

    fn estimated_memory(&self) -> Option<MemoryEstimate> {
        let ((model, task), train) = (self.model_and_task().ok()?, &self.train);
        let examples = train.data.validation_examples.filter(|_| train.evaluation.is_on()).unwrap_or(0);
        let saves = match train.saving.strategy {
            SaveStrategy::No => false,
            SaveStrategy::Steps => train.saving.steps < train.steps.total,
            SaveStrategy::Epoch | SaveStrategy::Best => train.steps.per_epoch < train.steps.total,
        };
        let host = Host { saves };
        Some(MemoryEstimate::new(&MemoryInputs {
            model,
            task,
            values: self.memory.values,
            batch: &train.batch,
            sequences: self.examples.sequences,
            documents: self.examples.packing,
            eval_batch: train.evaluation.batch_size.min(examples),
            compute: train.engine.compute(),
            checkpointing: train.engine.activation_checkpointing,
            adapts_attention_alone: self
                .architecture
                .as_ref()
                .and_then(|it| it.lora.as_ref())
                .is_some_and(LoraConfig::adapts_attention_alone),
            skips: train.engine.precision.scales_loss(),
            sharded: train.distributed.optimizer_sharding,
            bytes_at_a_time: train.engine.device.bytes_at_a_time,
            flash_head_dims: &train.engine.device.flash_head_dims,
            host: (train.engine.device.kind == DeviceKind::Cpu).then_some(host),
        }))
    }
}

fn values(facts: &Facts, train: &TrainPlan) -> Values {
    let parameters = &facts.train.model.parameters;
    let groups = &train.optimizer.groups;
    let learning = || parameters.iter().filter(|parameter| groups.learns(parameter));
    Values {
        parameters: parameters.iter().map(|parameter| parameter.num_elements()).sum(),
        trained: learning().map(|parameter| parameter.num_elements()).sum(),
        multiplying: match facts.architecture.lora {
            Some(_) => {
                parameters.iter().filter(|it| it.in_linear && !groups.learns(it)).map(|it| it.num_elements()).sum()
            }
            None => 0,
        },
        dora: parameters
            .iter()
            .filter(|parameter| parameter.name.ends_with(".lora_magnitude_vector"))
            .map(|parameter| parameter.num_elements())
            .sum::<usize>()
            * facts.architecture.lora.as_ref().map_or(0, |lora| if lora.lora_dropout > 0.0 { 3 } else { 1 }),
        tables: {
            let vocabulary = facts.architecture.config.vocab_size();
            let computes = |it: &&Parameter| {
                it.name.ends_with(".trainable_tokens_delta")
                    || it.name.ends_with(".lora_B.weight") && it.shape[0] == vocabulary
            };
            parameters.iter().filter(computes).count() * vocabulary * facts.architecture.config.embedding_size()
        },
        largest: learning().map(|parameter| parameter.num_elements()).max().unwrap_or(0),
        state: train.optimizer.state_values,
        resident: facts.resident,
    }
}

/// How documents are joined; none where examples are rows.
fn documents(config: &RunConfig, facts: &Facts, device: DeviceKind) -> Option<String> {
    let data = &config.data;
    if data.has_instructions() {
        return data.packing.then(|| {
            let attention = match device {
                DeviceKind::Cpu => "",
                _ => "; their attention is the plain operator, since the kernel of this device knows no documents",
            };
            format!(
                "several rows stand in a sample, each with attention and positions of its own (data.packing){attention}"
            )
        });
    }
    let script = match data.task {
        Task::Clm => "run_clm.py",
        Task::Mlm => "run_mlm.py",
        _ => return None,
    };
    let unit = match data.format {
        DataFormat::Tokenized | DataFormat::Squad => return None,
        DataFormat::Text if data.documents == Documents::File => "file",
        DataFormat::Text => "line",
        _ => "row",
    };
    let split = match data.validation {
        Some(Validation::Share(share)) if facts.examples.split_at_block => {
            let percent = (share * 1e6).round() / 1e4;
            let learned = if config.tokenizer.train_vocab_size.is_some() {
                ", and the tokenizer is learned from all of it"
            } else {
                ""
            };
            format!("; the last {percent} % of the blocks of the one file are the validation data{learned}")
        }
        _ => String::new(),
    };
    Some(if data.marks_ends() {
        format!("a {unit} is a document, and end-of-text follows each (data.document_end){split}")
    } else {
        format!("{unit}s are joined without end-of-text, as {script} joins rows (data.document_end){split}")
    })
}

/// The settings that keep the run from using all of its data as they stand, where so many sequences
/// of bytes are `replaced`.
fn limits(config: &RunConfig, replaced: u64) -> Vec<String> {
    let (data, trainer) = (&config.data, &config.trainer);
    let limit = |name: &str, limit: Option<usize>| limit.map(|limit| format!("{name} = {limit}"));
    let streaming = data.streaming.then(|| match config.trainer.sampler {
        Sampler::Sequential => "streaming: read in order as needed, over and over".to_owned(),
        _ => format!(
            "streaming: read in order as needed, over and over, and shuffled among {}",
            data.shuffle_buffer_size
        ),
    });
    let is_replaced = match replaced {
        _ if data.errors == Errors::Strict => None,
        _ if data.streaming => {
            Some("bytes that are not UTF-8 are read as U+FFFD, and not counted while streaming".into())
        }
        0 => None,
        1 => Some("1 sequence of bytes that are not UTF-8 is read as U+FFFD".to_owned()),
        many => Some(format!("{} sequences of bytes that are not UTF-8 are read as U+FFFD", thousands(many))),
    };
    let limits = [
        streaming,
        is_replaced.map(|said| format!("errors = \"replace\": {said}")),
        limit("max_train_samples", data.max_train_samples),
        limit("max_eval_samples", data.max_eval_samples),
    ];
    limits.into_iter().flatten().chain(trainer.limits()).collect()
}

/// The samples of text that `config` asks for.
///
/// # Errors
/// A task that writes no text, a model without a tokenizer, and options or prompts that it cannot
/// take.
pub(crate) fn sample_plan(config: &RunConfig, facts: &Facts) -> Result<Option<SamplePlan>> {
    let Some(section) = &config.generation else { return Ok(None) };
    if config.data.task != Task::Clm {
        return Err(Error::config(format!("[generation]: task {} does not generate text", config.data.task))
            .help("remove the section, or set data.task = \"clm\""));
    }
    let Some(tokenizer) = &facts.tokenizer else {
        return Err(Error::config("[generation] needs a tokenizer, and this run has none")
            .help("set tokenizer.from, or remove the section"));
    };
    let sampling = GenerateOptions::of(section, tokenizer.eot_id.into_iter().collect());
    sampling.validate().map_err(|error| error.at("[generation]"))?;
    let positions = facts.architecture.config.max_positions();
    if let Some(&tokens) = tokenizer.prompt_tokens.iter().find(|tokens| **tokens == 0 || **tokens >= positions) {
        return Err(Error::config(format!(
            "generation.prompt: expected 1 to {} tokens, since the model has {positions} positions and the answer needs \
             one, got {tokens}",
            positions - 1
        ))
        .help("shorten the prompt, or give the model more positions"));
    }
    Ok(Some(SamplePlan { prompts: section.prompt.clone(), every: section.every, sampling }))
}
