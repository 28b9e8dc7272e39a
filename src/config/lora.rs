//! `[lora]`: adapters beside frozen weights. `kiln_models::lora` computes them.

use kiln_core::ranges::{ABOVE_0, number, texts, whole};
use kiln_models::lora::MAX_RANK;
use kiln_models::{LoraBias, LoraConfig, LoraInit, Patterns, TokenIndices};
use serde::{Deserialize, Serialize};

use kiln_core::values::{count, strings};

kiln_core::keys! {
    /// `[lora]`: adapters of low rank beside frozen weights. It needs `model.from` (LoRA, Hu et al.
    /// 2021): the weights of the model stay as they are; the adapters learn, with a new head where
    /// the task has one, and `model/` in the run folder is a PEFT folder. Names and defaults are
    /// those of PEFT's `LoraConfig`. Left out: the whole model learns.
    #[serde(default)]
    pub struct LoraSection in "lora" {
        /// The rank of the adapters. Default: 8.
        #[serde(deserialize_with = "count")]
        r: usize = LoraConfig::default().r, Bound, whole(1..=MAX_RANK);
        /// The product of the two matrices of an adapter is scaled by `lora_alpha / r`. `alpha` is
        /// an accepted spelling. Default: 8.0.
        lora_alpha: f64 = LoraConfig::default().lora_alpha, Bound, ABOVE_0;
        /// The probability with which an element of the input of an adapter is dropped out in
        /// training. `dropout` is an accepted spelling. Default: 0.0.
        lora_dropout: f64 = LoraConfig::default().lora_dropout, Bound, number("a probability from 0 to below 1", 0.0..1.0);
        /// The layers that get an adapter, by their Hugging Face names or the last parts of them,
        /// one or a list: `["c_attn", "mlp.c_proj"]`; or `"all-linear"`: all linear layers but that
        /// of the output. Embeddings (`wte`, `word_embeddings`) and the output of a language model
        /// (`lm_head`, `decoder`) get one by their names. Default: PEFT's, which are `c_attn` for
        /// GPT-2, `q_proj` and `v_proj` for GPT-Neo and the Llama family, `q_lin` and `v_lin` for
        /// DistilBERT, `query` and `value` for the others.
        #[serde(deserialize_with = "strings", skip_serializing_if = "Vec::is_empty")]
        target_modules: Vec<String> = Vec::new(), Bound, texts;
        /// The biases that learn, too: `"none"`, `"all"`, or `"lora_only"`, which are those of the
        /// layers with an adapter. Default: `"none"`.
        bias: LoraBias = LoraConfig::default().bias, Bound;
        /// Modules that learn and are saved whole, by the ends of their Hugging Face names. Those
        /// of PEFT's task are always among them: `classifier` and `score` for a sequence
        /// classification or regression, `qa_outputs` for question answering. A language model
        /// whose embedding (`wte`) or output (`lm_head`) is among them has an output of its own
        /// from then on, as in PEFT.
        #[serde(deserialize_with = "strings", skip_serializing_if = "Vec::is_empty")]
        modules_to_save: Vec<String> = Vec::new(), Bound, texts;
        /// The product is scaled by `lora_alpha / sqrt(r)` (rank-stabilised LoRA, Kalajdzievski
        /// 2023). Default: false.
        use_rslora: bool = LoraConfig::default().use_rslora, Bound;
        /// The beginning of an adapter: `true` (a uniform first matrix, and zeros in the second, so
        /// that the model begins as its base), `"gaussian"` (a normal first matrix, and zeros in
        /// the second) or `false` (both uniform, for tests). Default: true.
        init_lora_weights: LoraInit = LoraConfig::default().init_lora_weights, Bound;
        /// The ranks of layers that differ from `r`, by patterns: `{ "c_proj" = 4, "h\.0\..*" = 2
        /// }`. A pattern is a regular expression for the Hugging Face name of a layer or the last
        /// parts of it, as in PEFT; the first that matches holds. One that no adapted layer matches
        /// is refused. Left out: `r` for all.
        #[serde(skip_serializing_if = "Patterns::is_empty")]
        rank_pattern: Patterns<usize> = Patterns::default(), Bound;
        /// The values of layers that differ from `lora_alpha`, by patterns as in `rank_pattern`.
        /// Left out: `lora_alpha` for all.
        #[serde(skip_serializing_if = "Patterns::is_empty")]
        alpha_pattern: Patterns<f64> = Patterns::default(), Bound;
        /// Whether the second matrix of an adapter has a bias, which is scaled as the product is.
        /// An adapter with one is merged only into layers that have a bias. Default: false.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        lora_bias: bool = LoraConfig::default().lora_bias, Bound;
        /// Whether the length of each column of a weight learns beside its direction (DoRA, Liu et
        /// al. 2024). A step takes longer: the lengths are computed from the whole weight in each.
        /// Default: false.
        use_dora: bool = LoraConfig::default().use_dora, Bound;
        /// Tokens whose rows of the embedding learn and are saved beside the adapters, by their
        /// ids: `[50257, 50258]`, or with the module, which is the embedding of the input: `{ wte =
        /// [50257] }`. An output that is the embedding again follows. Left out: none.
        #[serde(skip_serializing_if = "Option::is_none")]
        trainable_token_indices: Option<TokenIndices> = None, Bound;
        /// PEFT's statement of how weights are stored. It has no effect: Kiln knows each layer.
        #[serde(skip_serializing)]
        fan_in_fan_out: Option<bool> = None, Bound;
        /// PEFT's name of the task. It has no effect: `data.task` says it.
        #[serde(skip_serializing)]
        task_type: Option<String> = None, Bound;
    }
}
