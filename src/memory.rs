//! What a run will need in memory, by arithmetic, so that a plan can say it before anything is allocated. An estimate: a
//! log row's `peak_mib` is the measurement.

use kiln_models::ModelConfig;

use crate::config::{ActivationCheckpointing, Precision};
use crate::plan::BatchPlan;
use crate::task::Task;

/// Bytes by what they hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// Weights, f32.
    pub weights: u64,
    /// Gradients, f32; twice while micro-batches are accumulated.
    pub gradients: u64,
    /// What the optimizer keeps, f32.
    pub optimizer: u64,
    /// What the backward pass needs of the forward pass, logits and narrow copies of the weights included.
    pub activations: u64,
}

impl MemoryEstimate {
    /// For `[parameters, of which learn, values that the optimizer keeps]` and micro-batches of `batch.micro` sequences of
    /// `batch.seq_len` tokens, in the given precision and with what is computed again.
    pub fn new(
        model: &ModelConfig,
        task: Task,
        sizes: [usize; 3],
        batch: BatchPlan,
        (precision, checkpointing): (Precision, ActivationCheckpointing),
    ) -> Self {
        let [weights, gradients, optimizer] = sizes.map(|size| 4 * size as u64);
        let (width, layers, heads, inner) = model.shape();
        // In 128 bits, so that the largest sizes that are allowed do not overflow on their way to a number.
        let [width, layers, heads, inner] = [width, layers, heads, inner].map(|size| size as u128);
        let seq_len = batch.seq_len as u128;
        let tokens = batch.micro as u128 * seq_len;
        // Values that autodiff keeps for a token of a layer, counted in the code of the plain composition: LayerNorms
        // (2 x 4), query, key, value with their slices and head copies, context and projections (14), residuals (2), the
        // activation's factors (8 of the inner width), scores, softmax and, with dropout, mask and product. In mixed
        // precision the operands of matrix products are narrow: both LayerNorms' results, all around attention, the
        // activation's result, and the softmax as it meets the values.
        let kept_scores = if has_attention_dropout(model) { 5 } else { 3 };
        let narrow_scores = kept_scores - 2;
        let scores = heads * seq_len;
        let per_layer = 24 * width + 8 * inner + kept_scores * scores;
        let narrow_per_layer = 16 * width + inner + narrow_scores * scores;
        // Element-wise results are computed again: what remains are results of products, means and casts.
        let balanced_per_layer = 12 * width + 2 * inner + 2 * scores;
        let narrow = precision != Precision::F32;
        let bytes = |values: u128, of_which_narrow: u128| 4 * values - if narrow { 2 * of_which_narrow } else { 0 };
        let layer = bytes(per_layer, narrow_per_layer);
        let blocks = match checkpointing {
            ActivationCheckpointing::None => layers * layer,
            ActivationCheckpointing::Balanced => layers * bytes(balanced_per_layer, 8 * width + inner + scores),
            // What passes from layer to layer, and one layer at a time.
            ActivationCheckpointing::Blocks => layers * 4 * width + layer,
        };
        // Logits, their exponential, and their gradients on the way back.
        let head = match task {
            Task::Clm | Task::Mlm => 5 * model.vocab_size() as u128,
            _ => 4 * width,
        };
        let per_token = blocks + 4 * (6 * width + head);
        // The compute copies of the weights live until the backward pass has used them.
        let copies = if narrow { weights as u128 / 2 } else { 0 };
        Self {
            weights,
            gradients: if batch.accumulation > 1 { 2 * gradients } else { gradients },
            optimizer,
            activations: u64::try_from(tokens * per_token + copies).unwrap_or(u64::MAX),
        }
    }

    /// All of it, in bytes.
    pub fn total(&self) -> u64 {
        [self.gradients, self.optimizer, self.activations].into_iter().fold(self.weights, u64::saturating_add)
    }
}

fn has_attention_dropout(model: &ModelConfig) -> bool {
    match model {
        ModelConfig::Gpt2(config) => config.attn_pdrop > 0.0,
        ModelConfig::Bert(config) => config.attention_probs_dropout_prob > 0.0,
    }
}
