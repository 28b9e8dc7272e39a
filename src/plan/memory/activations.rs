//! The bytes of activations that the forward pass keeps for the backward pass. They were counted in
//! the code of `kiln_models`, operator by operator, in the form and the type in which each
//! computes, and compared with the measured allocations of a step
//! (benches/results/2026-11-21-plan-memory.md). With `balanced` checkpointing Burn decides which
//! activations are computed again, so its figures are the measured allocations themselves.
//!
//! All figures are bytes for one micro-batch.

use burn::tensor::FloatDType;
use kiln_models::ops::cross_entropy::padded;
use kiln_models::ops::{Form, pitched};
use kiln_models::{Activation, Gpt2Variant, LlamaVariant, ModelConfig, Operator};

use super::MemoryInputs;
use crate::config::{ActivationCheckpointing, Task};

/// Bytes of a value.
pub(super) const F32: u128 = 4;

/// From this size on the C library maps a block of its own, whose pages are there once they are
/// written to, and gives it back at once (glibc's `DEFAULT_MMAP_THRESHOLD_MAX`). Smaller ones come
/// from its heap, which keeps their pages.
const MAPPED: u128 = 32 << 20;

/// Bytes of a page.
const PAGE: u128 = 4096;

/// The size of a value in units of two bytes: 2 for f32, 1 for bf16 and f16.
type Halves = u128;

/// The parts of what is kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Activations {
    /// A layer, with everything kept.
    layer: u128,
    /// A layer with what checkpointing leaves of it.
    kept: u128,
    /// The last layer with that.
    last: u128,
    /// The hidden states that one layer hands to the next.
    passed: u128,
    layers: u128,
    /// Embeddings and head, with what the loss and its gradient need at their largest.
    head: u128,
    /// Logits of the plain loss that are mapped: the heap keeps the pages of what a step has had,
    /// and one of the tensors of this size finds no place there in the next step.
    mapped: u128,
    /// The head again, in the backward pass of the layers below.
    head_gradient: u128,
    /// The head once more, beside the gradient of the embedding.
    second_table: u128,
    /// Gradients on their way through a layer.
    moving: u128,
    /// Working space of the first layer of the backward pass that computes again what it needs.
    again: u128,
    /// A batch of an evaluation.
    evaluation: u128,
    checkpointing: ActivationCheckpointing,
}

impl Activations {
    pub(super) fn new(inputs: &MemoryInputs<'_>) -> Self {
        let MemoryInputs { model, task, compute, checkpointing, batch, .. } = *inputs;
        let (width, layers, heads, inner) = model.shape();
        let [width, layers, heads, inner] = [width, layers, heads, inner].map(|size| size as u128);
        let seq = batch.seq_len as u128;
        let tokens = (batch.micro * inputs.sequences) as u128 * seq;
        let scores = heads * seq;
        let is_plain = |operator| compute.ops().form(operator) == Form::Plain;
        let plain = |operator, values: u128| if is_plain(operator) { values } else { 0 };
        let is_bert = matches!(model, ModelConfig::Bert(_));
        let is_llama = matches!(model, ModelConfig::Llama(_));
        let [queries, keys] = model.attention_widths().map(|size| size as u128);
        let [hidden_dropout, attention_dropout] = model.has_dropout();
        // Fused products on the CPU take f32 and round their operands themselves.
        let takes_f32 = compute.is_f32() || (inputs.host.is_some() && !is_plain(Operator::Linear));
        // An operand of a matrix product.
        let operand: Halves = if takes_f32 { 2 } else { 1 };
        // Those that a fused kernel of the CPU gives to one product alone are bf16 there; adapters
        // take f32.
        let is_adapted = inputs.values.multiplying > 0;
        let is_bf16 = takes_f32 && compute.dtype() == FloatDType::BF16;
        let given = |by: Operator| if is_bf16 && !is_adapted && !is_plain(by) { 1 } else { operand };
        // On a GPU fused products share a narrow operand, and the fused gate reads narrow factors,
        // unless adapters read and give f32.
        let is_narrow = inputs.host.is_none() && !takes_f32 && !is_adapted && !is_plain(Operator::Linear);
        // A frozen layer without adapters keeps no operand, since its weight wants no gradient.
        let is_spared = is_adapted && inputs.adapts_attention_alone;
        let wanted = |halves: Halves| if is_spared { 0 } else { halves };

        // Of a token of a layer, in halves of a value. LayerNorm, twice: what it normalised, and in
        // the plain form that once more, divided, for the gradient of its weight.
        let [norm_operator, block_operator] =
            if is_llama { [Operator::RmsNorm, Operator::Swiglu] } else { [Operator::LayerNorm, Operator::Gelu] };
        let norm_is_plain = is_plain(norm_operator);
        let divided = |width: u128| if norm_is_plain && !is_adapted { width } else { 0 };
        let head_norms = match model {
            ModelConfig::Llama(config) if config.variant == LlamaVariant::Qwen3 => queries + keys,
            _ => 0,
        };
        let norms = 2 * 2 * (width + divided(width)) + 2 * (head_norms + divided(head_norms));
        // Their results as operands: f32, and what fused products share, is kept once; other
        // projections that stand apart each cast their own.
        let is_apart = matches!(model, ModelConfig::Gpt2(config) if config.variant == Gpt2Variant::GptNeo);
        // One of the two norms stands before the feed-forward block.
        let [of_attention, of_block] = match (is_bert, is_apart, takes_f32) {
            _ if is_narrow => [operand, operand],
            _ if is_llama && !takes_f32 => [3 * operand, 2 * operand],
            _ if is_llama => [operand, operand],
            (true, _, true) => [operand, operand], // BERT's are residuals as well
            (false, true, true) => [operand, given(Operator::LayerNorm)],
            (true, _, false) | (false, true, false) => [2 * operand, 2 * operand],
            (false, false, _) => [given(Operator::LayerNorm); 2],
        };
        let casts = of_attention + wanted(of_block);
        // And query, key, value and the context, which the projection after it multiplies.
        let context = match model.window() {
            Some((window, _)) if seq > window as u128 => operand,
            _ => given(Operator::Attention),
        };
        let operands = casts * width + operand * (queries + 2 * keys) + wanted(context) * queries;
        // The scores' exponentials and twice the softmax, one of them as operand; where dropout
        // falls on it its mask.
        let softmax = 2 * 2 + operand + if attention_dropout { operand } else { 0 };
        let attention = plain(Operator::Attention, softmax * scores);
        // Local layers have no fused form where the window is shorter than the sequence.
        let attention = match model.window() {
            Some((window, local)) if attention == 0 && seq > window as u128 => {
                softmax * scores * local as u128 / layers
            }
            _ => attention,
        };
        // Two masks.
        let masks = if hidden_dropout { plain(Operator::Dropout, 2 * 2 * width) } else { 0 };
        // The input of the activation function, the factors of the plain form, and its result as
        // operand.
        let factors = match model.activation() {
            Some(Activation::GeluTanh) => 4,
            Some(Activation::GeluErf) | None => 2,
        };
        // The feed-forward block as one operator keeps its input in bf16, a fused kernel on a GPU
        // as the product gives it.
        let is_joined = is_bf16 && (!is_adapted || is_spared) && !is_plain(Operator::Gelu);
        let of_input = match inputs.host.is_some() || is_plain(Operator::Gelu) {
            true if is_joined => 1,
            true => 2,
            false => operand,
        };
        let of_gate = if is_narrow && !is_plain(block_operator) { operand } else { 2 };
        let gelu = match is_llama {
            // The gate and its factor, in the plain form also the gate's sigmoid and what that
            // gives, and the result as operand.
            true => {
                2 * of_gate * inner + 2 * plain(block_operator, factors * inner) + wanted(given(block_operator)) * inner
            }
            false => {
                of_input * inner + 2 * plain(Operator::Gelu, factors * inner) + wanted(given(Operator::Gelu)) * inner
            }
        };
        let dora = 2 * inputs.values.dora as u128 / layers;
        let layer = norms + operands + attention + masks + gelu + dora;
        // A byte for each pair of a row's tokens, the same for all layers, and another where some
        // are local.
        let documents = match (inputs.documents, model.window()) {
            (true, Some(_)) => 2 * tokens * seq,
            (true, None) if is_plain(Operator::Attention) => tokens * seq,
            _ => 0,
        };

        // Balanced: the results of products, sums and casts stay, and random numbers.
        let drops = attention_dropout || hidden_dropout;
        let balanced = if is_llama { 4 } else { 2 } * inner
            + if is_llama {
                6 * width + operand * (2 * queries + 3 * keys) + plain(Operator::Attention, 2 * scores)
            } else if takes_f32 {
                12 * width + plain(Operator::Attention, (2 + if drops { 4 } else { 0 }) * scores)
            } else {
                inner
                    + (17 + if is_bert { 2 } else { 0 }) * width
                    + plain(Operator::Attention, (3 + if drops { 3 } else { 0 }) * scores)
            }
            + if drops { plain(Operator::Dropout, 9 * width) } else { 0 };
        let kept = match checkpointing {
            // A fused operator is not computed again.
            ActivationCheckpointing::Balanced if norm_is_plain || !takes_f32 => balanced,
            _ => layer,
        };

        // Where the head reads first tokens alone, the last layer has keys and values of the
        // others.
        let reads_first =
            is_bert && !matches!(task, Task::Clm | Task::Mlm | Task::QuestionAnswering | Task::TokenClassification);
        let last = if reads_first && !is_plain(Operator::Attention) {
            // Each casts its own operand, or both read one.
            let casts = match (takes_f32, is_narrow) {
                (true, _) => 0,
                (false, true) => operand,
                (false, false) => operand * 2,
            };
            (operand * 2 + casts) * width
        } else {
            kept
        };

        // Above and below the layers: the norm, its result, and in the plain form the norm's
        // division. The width there is that of the embeddings.
        let width_of_layers = width;
        let width = model.embedding_size() as u128;
        let norm = width + if norm_is_plain { width } else { 0 };
        let is_language_model = task.is_language_model();
        let mut around = norm + if is_language_model { width } else { 0 };
        if task == Task::Mlm {
            around += (2 + plain(Operator::Gelu, 2)) * width + norm;
        }
        if hidden_dropout {
            around += plain(Operator::Dropout, width);
        }
        let vocabulary = model.vocab_size() as u128;
        let table = F32 * vocabulary * width;
        // Under adapters the table and the layers' weights are frozen, and a table that is computed
        // anew has a gradient.
        let computed = F32 * inputs.values.tables as u128;
        let table_gradient = if is_adapted { computed } else { table };
        let is_fused = is_language_model && !is_plain(Operator::CrossEntropy);
        // The plain loss keeps the exponentials; its gradient passes through three more of their
        // size, one of them zeros but for the targets. The fused one has its gradients at once, and
        // a chunk of rows.
        let logits = F32 * tokens * vocabulary;
        let zeros =
            if inputs.host.is_some() && logits >= MAPPED { tokens * PAGE.min(F32 * vocabulary) } else { logits };
        let (loss, head_gradient) = match (is_language_model, is_fused) {
            (false, _) => (0, 0),
            (true, false) => (3 * logits + zeros, table_gradient),
            (true, true) => {
                // On the CPU a narrow `x` is widened. Elsewhere logits are as wide as operands, and
                // a padded table is a copy.
                let widened = if inputs.host.is_some() && !takes_f32 { F32 * tokens * width } else { 0 };
                let chunk = match inputs.bytes_at_a_time {
                    None => F32 * tokens.min(width.clamp(128, 1024)) * vocabulary,
                    Some(bytes) => {
                        let columns = padded(model.vocab_size()) as u128;
                        let copy = if columns == vocabulary { 0 } else { operand * table / 2 };
                        copy + at_a_time(bytes, operand * F32 / 2 * columns, tokens)
                    }
                };
                (table_gradient + widened + chunk, table_gradient)
            }
        };

        // Where the backward of the lookup adds its rows to the gradient of the head, there is no
        // other table. The parts of a backward pass that goes by blocks, or that is sent part by
        // part, have a gradient each.
        let is_added = model.ties_word_embeddings()
            && is_fused
            && !is_adapted
            && !is_plain(Operator::Embedding)
            && checkpointing != ActivationCheckpointing::Blocks
            && batch.devices.count == 1;
        let second_table = if is_added { 0 } else { head_gradient };

        let is_mapped = inputs.host.is_some() && is_language_model && !is_fused && logits >= MAPPED;
        let mapped = if is_mapped { logits } else { 0 };

        let width = width_of_layers;
        let layer_bytes = |halves: u128| tokens * halves * F32 / 2;
        // The gradients of a layer's result, of what the activation gave, and of the feed-forward
        // block's two weights.
        let matrices = if is_llama { 3 } else { 2 };
        let weights = if is_adapted { 0 } else { matrices * width * inner };
        // Fused attention on a GPU computes scores and the gradient of the weights again, for some
        // sequences at a time, or on tensor cores in registers. Without a scale scores are f32
        // where f16 would overflow.
        let is_unscaled = matches!(model, ModelConfig::Gpt2(config) if config.scale() >= 1.0);
        let are_wide = is_unscaled && compute.dtype() == FloatDType::F16;
        let has_flash =
            !compute.is_f32() && !are_wide && inputs.flash_head_dims.contains(&((queries / heads) as usize));
        let of_scores = match inputs.bytes_at_a_time {
            Some(bytes) if !is_plain(Operator::Attention) && !has_flash => {
                let of_score = if are_wide { F32 } else { operand * F32 / 2 };
                let row = pitched((of_score * seq) as u64);
                2 * at_a_time(bytes, heads * seq * u128::from(row), tokens / seq.max(1))
            }
            _ => 0,
        };
        // The fused kernel of the CPU writes bf16 to new memory, f32 in place. Of the feed-forward
        // block there is one in bf16 alone where the CPU has instructions for that, and the product
        // in f32 elsewhere.
        let gradient_of_block = match is_llama {
            // The gradients of the gate and of its factor, and in the plain form of their product.
            true => (if is_plain(block_operator) { 3 } else { of_gate }) * inner,
            false if is_bf16 || is_plain(block_operator) => inner,
            false => 0,
        };
        let moving = F32 * (tokens * (width + gradient_of_block) + weights) + of_scores;
        let again = match checkpointing {
            ActivationCheckpointing::Balanced => layer_bytes(layer.saturating_sub(kept)),
            _ => 0,
        };
        Self {
            layer: layer_bytes(layer),
            kept: layer_bytes(kept),
            last: layer_bytes(last),
            passed: F32 * tokens * width,
            layers,
            head: F32 * tokens * around + loss + documents + computed,
            mapped,
            head_gradient,
            second_table,
            moving,
            again,
            evaluation: evaluation(inputs, is_language_model),
            checkpointing,
        }
    }

    /// When the backward pass begins: what all layers keep beside the head with its loss, or beside
    /// the head's gradient and what the last layer's gradients need.
    pub(super) fn at_the_top(&self) -> u128 {
        match self.checkpointing {
            // The head comes first, without any layer's activations.
            ActivationCheckpointing::Blocks => {
                self.layers * self.passed + self.head.max(self.head_gradient + self.layer + self.moving)
            }
            ActivationCheckpointing::None | ActivationCheckpointing::Balanced => {
                let head = match self.head_gradient {
                    0 => self.head + self.moving + self.again,
                    _ => self.head.max(self.head_gradient + self.moving + self.again),
                };
                (self.layers - 1) * self.kept + self.last + head
            }
        }
    }

    /// When it ends: what the first layer keeps, beside all gradients.
    pub(super) fn at_the_bottom(&self) -> u128 {
        let layer = if self.layers == 1 { self.layer.min(self.last) } else { self.layer };
        layer + self.moving + self.second_table + self.mapped
    }

    /// The memory of a batch of an evaluation, before which the heap has given back what training's
    /// activations have left there.
    pub(super) fn of_evaluation(&self) -> u128 {
        self.evaluation
    }
}

/// The bytes of as many of `count` parts, of `each` bytes, as `bytes` hold; of one at the least.
fn at_a_time(bytes: u64, each: u128, count: u128) -> u128 {
    each * (u128::from(bytes) / each.max(1)).clamp(1, count.max(1))
}

/// The bytes of a batch of an evaluation: its logits twice, and narrow ones, or a layer's widest
/// results. The heap keeps the pages of these beside logits that are mapped.
fn evaluation(inputs: &MemoryInputs<'_>, is_language_model: bool) -> u128 {
    let MemoryInputs { model, compute, batch, .. } = *inputs;
    let tokens = (inputs.eval_batch * inputs.sequences) as u128 * batch.seq_len as u128;
    let (width, _, heads, _) = model.shape();
    let scores = 3 * heads * batch.seq_len;
    let layer = match compute.ops().form(Operator::Attention) {
        Form::Plain => scores.max(9 * width),
        Form::Fused => 9 * width,
    };
    let takes_f32 = compute.is_f32() || (inputs.host.is_some() && compute.ops().form(Operator::Linear) == Form::Fused);
    let halves = match (is_language_model, takes_f32) {
        (false, _) => 0,
        (true, true) => 4,
        (true, false) => 5,
    };
    let logits = F32 * tokens * model.vocab_size() as u128;
    let (of_layer, of_logits) = (F32 * tokens * layer as u128, logits * halves / 2);
    if inputs.host.is_some() && logits >= MAPPED { of_layer + of_logits } else { of_layer.max(of_logits) }
}

#[cfg(test)]
mod tests {
    use super::at_a_time;

    #[test]
    fn parts_exist_as_far_as_memory_holds_them() {
        assert_eq!(at_a_time(100, 30, 5), 90);
        assert_eq!(at_a_time(100, 30, 2), 60, "no more than there are");
        assert_eq!(at_a_time(100, 200, 5), 200, "one at the least");
    }
}
