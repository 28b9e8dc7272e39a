//! The sections of a run's plan beside those of its training, as `plan.json` has them.

use std::path::PathBuf;

use kiln_models::{LoraConfig, ModelConfig, ModelType};
use serde::{Deserialize, Serialize};

use super::LabelledRows;
use super::memory::{MemoryEstimate, Values};
use crate::config::{GenerateOptions, Task};

/// The architecture of a model of Kiln's, its task, and where its weights come from.
#[derive(Debug, Clone, PartialEq)]
pub struct Architecture {
    /// The task that the model learns.
    pub task: Task,
    /// Its configuration, in the form of `config.json`.
    pub config: ModelConfig,
    /// The folder of the pretrained model, if any.
    pub from: Option<PathBuf>,
    /// The adapters on it, if there are any; the rest of the model is frozen.
    pub lora: Option<LoraConfig>,
    /// The folder of the adapters that are trained on; none for new ones.
    pub adapter: Option<PathBuf>,
    /// Fields of a pretrained model's `config.json` that Kiln does not know.
    pub unknown_fields: Vec<String>,
}

impl Architecture {
    /// Floating-point operations of forward and backward for one token of sequences of `seq_len`:
    /// `6 x` the weights that it is multiplied with, `4 x` where these are frozen under adapters
    /// (linear layers and, for language models, the output matrix; embeddings are looked up, not
    /// multiplied) `+ 12 x layers x width of the queries x sequence length` for attention, all
    /// positions counted, also where a causal mask leaves half of them out (the convention of PaLM,
    /// Chowdhery et al. 2022, appendix B, without its embedding term). Recomputation counts as
    /// nothing, and what the compiled mode leaves out (`models/rows.rs`) as if it were computed.
    /// None for a model that Kiln does not know.
    pub fn flops_per_token(&self, seq_len: usize) -> Option<f64> {
        let (config, task) = (&self.config, self.task);
        let (width, layers, _, inner) = config.shape();
        let [attention, keys] = config.attention_widths();
        let [width, layers, inner, attention, keys] = [width, layers, inner, attention, keys].map(|size| size as f64);
        let (embedding, vocabulary) = (config.embedding_size() as f64, config.vocab_size() as f64);
        let head = match task {
            Task::Clm => embedding * vocabulary,
            Task::Mlm => embedding * (width + vocabulary),
            _ => 0.0, // one row of logits for a sequence, or two columns: nothing beside the layers
        };
        let head = head + if embedding == width { 0.0 } else { embedding * width };
        // A frozen weight takes no part in the third product, that of its gradient.
        let products = if self.lora.is_some() { 4.0 } else { 6.0 };
        // A block with a gate has a third matrix.
        let matrices = if config.activation().is_some() { 2.0 } else { 3.0 };
        let of_layer = 2.0 * width * (attention + keys) + matrices * width * inner;
        let products = products * (layers * of_layer + head);
        Some(products + 12.0 * layers * attention * seq_len as f64)
    }

    /// Whether the layers are Llama's, with operators of their own for norms, positions and the
    /// feed-forward block.
    pub fn is_llama(&self) -> bool {
        matches!(self.config, ModelConfig::Llama(_))
    }

    /// Whether training drops anything.
    pub fn has_dropout(&self) -> bool {
        if self.lora.as_ref().is_some_and(|lora| lora.lora_dropout > 0.0) {
            return true;
        }
        match &self.config {
            ModelConfig::Gpt2(c) => [c.resid_pdrop, c.embd_pdrop, c.attn_pdrop].iter().any(|p| *p > 0.0),
            config @ ModelConfig::Bert(c) => {
                let head = match self.task {
                    Task::SequenceClassification
                    | Task::MultiLabelClassification
                    | Task::Regression
                    | Task::TokenClassification
                    | Task::MultipleChoice => c.classifier_dropout.unwrap_or(0.0),
                    Task::QuestionAnswering if config.model_type() == ModelType::DistilBert => c.qa_dropout,
                    _ => 0.0,
                };
                [c.hidden_dropout_prob, c.attention_probs_dropout_prob, head].iter().any(|p| *p > 0.0)
            }
            // The classifier of tokens has dropout by default.
            ModelConfig::Llama(c) => {
                c.attention_dropout > 0.0
                    || (self.task == Task::TokenClassification && c.classifier_dropout != Some(0.0))
            }
        }
    }
}

/// A model's configuration as its `config.json`, without the name of a class.
pub(crate) mod model_config {
    use kiln_models::ModelConfig;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use serde_json::Value;

    pub(crate) fn serialize<S: Serializer>(config: &Option<ModelConfig>, serializer: S) -> Result<S::Ok, S::Error> {
        let json = config.as_ref().map(|config| {
            let mut json = config.to_json("");
            if let Value::Object(fields) = &mut json {
                fields.shift_remove("architectures");
            }
            json
        });
        json.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ModelConfig>, D::Error> {
        let json = Option::<Value>::deserialize(deserializer)?;
        let read = json.map(|json| ModelConfig::from_json(&json.to_string()).map(|(config, _)| own(config)));
        read.transpose().map_err(|error| serde::de::Error::custom(format_args!("model config: {error}")))
    }

    /// `config` without the fields of its file that are written anew whatever they were.
    pub(crate) fn own(mut config: ModelConfig) -> ModelConfig {
        let inert = match &mut config {
            ModelConfig::Gpt2(config) => &mut config.inert,
            ModelConfig::Bert(config) => &mut config.inert,
            ModelConfig::Llama(config) => &mut config.inert,
        };
        for written in ["architectures", "model_type", "dtype", "torch_dtype"] {
            inert.shift_remove(written);
        }
        config
    }
}

/// How the examples of a run are made.
#[derive(Debug, Clone, PartialEq)]
pub struct ExamplePlan {
    /// Block size of packed text; none for data that is tokenised already.
    pub block_size: Option<usize>,
    /// Tokens that rows of a table are cut to; none for other data.
    pub max_length: Option<usize>,
    /// How documents are joined, for people; none where examples are rows.
    pub documents: Option<String>,
    /// The settings that keep the run from using all of its data, for people.
    pub limits: Vec<String>,
    /// The id that padding uses.
    pub pad_id: u32,
    /// Sequences of an example: the choices of a multiple choice, else one.
    pub sequences: usize,
    /// Whether a sequence is several documents.
    pub packing: bool,
    /// Whether "no answer" may be the answer to the questions that an evaluation asks.
    pub version_2_with_negative: bool,
    /// Labels and rows, counted.
    pub counts: LabelledRows,
}

/// The text samples that a run writes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SamplePlan {
    /// The texts that the model continues.
    pub prompts: Vec<String>,
    /// After every so many steps, besides the end; none for the end alone.
    pub every: Option<usize>,
    /// How it continues.
    pub sampling: GenerateOptions,
}

/// Memory, by arithmetic.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryPlan {
    /// How many values model and optimizer keep, and what the process has resident already.
    pub values: Values,
    /// The estimate; none for a model whose activations are not known.
    pub estimate: Option<MemoryEstimate>,
}
