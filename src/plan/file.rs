//! `plan.json`: the keys of a plan in the order of the file.

use std::path::PathBuf;

use kiln_data::padding::{Padding, PaddingCost};
use kiln_models::{LoraConfig, ModelConfig};
use kiln_train::arguments::Samples;
use kiln_train::plan::{
    BatchPlan, DataPlan, EnginePlan, EvaluationPlan, LoggingPlan, ModelPlan, OptimizerPlan, RunSettings, SavingPlan,
    StepPlan, TrainPlan,
};
use serde::{Deserialize, Serialize};

use super::{Architecture, ExamplePlan, LabelledRows, MemoryPlan, RunPlan, SamplePlan, model_config};
use crate::config::{DistributedArguments, PaddingStrategy, Sampler, Task};

/// A plan as its file has it. The plan of a program's own run lacks what a config file adds.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct PlanFile {
    schema: String,
    kiln: String,
    run: RunSettings,
    model: ModelFile,
    data: DataFile,
    batch: BatchPlan,
    #[serde(default)]
    distributed: DistributedArguments,
    steps: StepPlan,
    optimizer: OptimizerPlan,
    engine: EnginePlan,
    evaluation: EvaluationPlan,
    logging: LoggingPlan,
    saving: SavingPlan,
    #[serde(default)]
    generation: Option<SamplePlan>,
    #[serde(default)]
    memory: MemoryPlan,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    included: Vec<String>,
}

#[derive(Clone, Serialize, Deserialize)]
struct ModelFile {
    kind: String,
    #[serde(default)]
    task: Option<Task>,
    #[serde(default, with = "model_config")]
    config: Option<ModelConfig>,
    #[serde(default)]
    from: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lora: Option<LoraConfig>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    adapter: Option<PathBuf>,
    #[serde(default)]
    unknown_fields: Vec<String>,
    num_parameters: usize,
    num_trainable: usize,
    can_be_captured: bool,
}

#[derive(Clone, Serialize, Deserialize)]
struct DataFile {
    train_examples: usize,
    train_tokens: u64,
    validation_examples: Option<usize>,
    #[serde(default)]
    block_size: Option<usize>,
    #[serde(default)]
    max_length: Option<usize>,
    #[serde(default)]
    documents: Option<String>,
    #[serde(default)]
    limits: Vec<String>,
    sampler: Sampler,
    seed: u64,
    drop_last: bool,
    #[serde(default)]
    pad_id: u32,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    sequences: usize,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    packing: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    version_2_with_negative: bool,
    #[serde(default, skip_serializing_if = "LabelledRows::is_empty")]
    counts: LabelledRows,
    padding_strategy: PaddingStrategy,
    padding: Padding,
    padding_cost: PaddingCost,
}

fn one() -> usize {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_one(count: &usize) -> bool {
    *count == 1
}

impl From<PlanFile> for RunPlan {
    fn from(file: PlanFile) -> Self {
        let PlanFile { schema, kiln, run, model, data, batch, distributed, steps, optimizer, engine, .. } = file;
        let architecture = model.task.zip(model.config).map(|(task, config)| Architecture {
            task,
            config,
            from: model.from,
            lora: model.lora,
            adapter: model.adapter,
            unknown_fields: model.unknown_fields,
        });
        let samples = match &file.generation {
            None => Samples::Never,
            Some(SamplePlan { every: None, .. }) => Samples::AtEnd,
            Some(SamplePlan { every: Some(steps), .. }) => Samples::Every(*steps),
        };
        let train = TrainPlan {
            run,
            model: ModelPlan {
                kind: model.kind,
                num_parameters: model.num_parameters,
                num_trainable: model.num_trainable,
                can_be_captured: model.can_be_captured,
            },
            data: DataPlan {
                train_examples: data.train_examples,
                train_tokens: data.train_tokens,
                validation_examples: data.validation_examples,
                sampler: data.sampler,
                seed: data.seed,
                drop_last: data.drop_last,
                padding_strategy: data.padding_strategy,
                padding: data.padding,
                padding_cost: data.padding_cost,
            },
            batch,
            distributed,
            steps,
            optimizer,
            engine,
            evaluation: file.evaluation,
            logging: file.logging,
            saving: file.saving,
            samples,
        };
        let examples = ExamplePlan {
            block_size: data.block_size,
            max_length: data.max_length,
            documents: data.documents,
            limits: data.limits,
            pad_id: data.pad_id,
            sequences: data.sequences,
            packing: data.packing,
            version_2_with_negative: data.version_2_with_negative,
            counts: data.counts,
        };
        Self {
            schema,
            kiln,
            train,
            architecture,
            examples,
            generation: file.generation,
            memory: file.memory,
            included: file.included,
        }
    }
}

impl From<RunPlan> for PlanFile {
    fn from(plan: RunPlan) -> Self {
        let RunPlan { schema, kiln, train, architecture, examples, generation, memory, included } = plan;
        let (model, data) = (train.model, train.data);
        let (task, config, from, lora, adapter, unknown_fields) = match architecture {
            Some(Architecture { task, config, from, lora, adapter, unknown_fields }) => {
                (Some(task), Some(config), from, lora, adapter, unknown_fields)
            }
            None => Default::default(),
        };
        Self {
            schema,
            kiln,
            run: train.run,
            model: ModelFile {
                kind: model.kind,
                task,
                config,
                from,
                lora,
                adapter,
                unknown_fields,
                num_parameters: model.num_parameters,
                num_trainable: model.num_trainable,
                can_be_captured: model.can_be_captured,
            },
            data: DataFile {
                train_examples: data.train_examples,
                train_tokens: data.train_tokens,
                validation_examples: data.validation_examples,
                block_size: examples.block_size,
                max_length: examples.max_length,
                documents: examples.documents,
                limits: examples.limits,
                sampler: data.sampler,
                seed: data.seed,
                drop_last: data.drop_last,
                pad_id: examples.pad_id,
                sequences: examples.sequences,
                packing: examples.packing,
                version_2_with_negative: examples.version_2_with_negative,
                counts: examples.counts,
                padding_strategy: data.padding_strategy,
                padding: data.padding,
                padding_cost: data.padding_cost,
            },
            batch: train.batch,
            distributed: train.distributed,
            steps: train.steps,
            optimizer: train.optimizer,
            engine: train.engine,
            evaluation: train.evaluation,
            logging: train.logging,
            saving: train.saving,
            generation,
            memory,
            included,
        }
    }
}
