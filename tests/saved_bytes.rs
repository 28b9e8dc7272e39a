//! What a forward pass leaves in memory for the backward pass, native against compiled, counted by this binary's own
//! allocator on the CPU: a GPT-2 of 2 layers with its loss. The prediction is arithmetic: what each operator has to keep.
#![allow(clippy::unwrap_used)]

#[path = "common/counting.rs"]
mod counting;

use burn::tensor::Device;
use counting::live;
use kiln::data::{Batch, Labels};
use kiln::task::{DeviceBatch, LossOptions, Task};
use kiln_models::{Head, Model, ModelConfig, ModelType, Ops};

const LAYERS: usize = 2;
const WIDTH: usize = 64;
const HEADS: usize = 4;
const VOCABULARY: usize = 1024;
const BATCH: usize = 4;
const SEQ: usize = 128;

/// Bytes that live after the forward pass and did not before it.
fn live_after_forward(ops: Ops) -> isize {
    let mut fields = serde_json::Map::new();
    let numbers =
        [("n_layer", LAYERS), ("n_embd", WIDTH), ("n_head", HEADS), ("vocab_size", VOCABULARY), ("n_positions", SEQ)];
    fields.extend(numbers.map(|(name, value)| (name.into(), value.into())));
    fields.extend(["resid_pdrop", "embd_pdrop", "attn_pdrop"].map(|name| (name.into(), 0.0.into())));
    let config = ModelConfig::from_fields(ModelType::Gpt2, &fields).unwrap();
    let device = Device::flex().autodiff();
    let model = Model::new(&config, Head::CausalLm, &device).unwrap().with_ops(ops);
    let ids = (0..BATCH * SEQ).map(|i| (i * 7 % VOCABULARY) as i32).collect::<Vec<_>>();
    let batch = Batch {
        rows: BATCH,
        examples: BATCH,
        seq_len: SEQ,
        input_ids: ids.clone(),
        attention_mask: None,
        token_type_ids: None,
        labels: Labels::Tokens(ids),
        num_tokens: BATCH * SEQ,
    };
    let batch = DeviceBatch::new(Task::Clm, &batch, &device).unwrap();
    let loss = || batch.loss_of(&model, true, &LossOptions::default()).unwrap();
    // Once without counting: weights are drawn, and pools of threads and buffers made.
    drop(loss().sum.backward());
    let before = live();
    let loss = loss();
    let live = live() - before;
    drop(loss.sum.backward());
    live
}

#[test]
fn compiled_keeps_what_its_operators_have_to_and_native_several_times_that() {
    let native = live_after_forward(Ops::Plain);
    let compiled = live_after_forward(Ops::fused(&Device::flex()).unwrap());
    // Floats that the fused operators keep of a token. In a layer: LayerNorm its input and two statistics, twice; its
    // result, the input of a product, twice; q, k and v; the attention's result and its log-sum-exp; before and after GELU.
    let layer = 2 * (WIDTH + 2) + 2 * WIDTH + 3 * WIDTH + (WIDTH + HEADS) + 2 * 4 * WIDTH;
    // Above: the last LayerNorm, its result, and of the loss the log-sum-exp and the weight of the row.
    let above = (WIDTH + 2) + WIDTH + 2;
    let predicted = (4 * BATCH * SEQ * (LAYERS * layer + above)) as f64;
    let ratio = native as f64 / compiled as f64;
    println!("native {native}, compiled {compiled}, predicted {predicted} for compiled, ratio {ratio:.2}");
    // Besides: the embeddings' ids, the graph's nodes, and what is kept twice in another layout.
    assert!((0.7..1.3).contains(&(compiled as f64 / predicted)), "compiled {compiled}, predicted {predicted}");
    // PERFORMANCE.md's model: without the scores, the softmax, GELU's and LayerNorm's intermediate results and the logits.
    let scores = 2 * HEADS * SEQ; // the exponentials and the softmax
    let logits = 2 * VOCABULARY;
    let at_least = (4 * BATCH * SEQ * (LAYERS * (layer + scores) + above + logits)) as f64;
    assert!(native as f64 >= at_least, "native {native}, expected at least {at_least}");
}
