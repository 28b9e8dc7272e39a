//! The bytes that a forward pass keeps for the backward pass, native against compiled: on the CPU
//! for a GPT-2 and a Qwen 3 of 2 layers with their losses, counted by this binary's own allocator;
//! on wgpu for a layer at the geometry of GPT-2 small, counted by the device's allocator. The
//! predictions are sums of the tensors that each operator has to keep.

use burn::tensor::{Device, FloatDType};
use kiln::data::{BatchLabels, PaddedBatch};
use kiln::task::{CausalLm, DeviceBatch, LossOptions};
use kiln_models::{Compute, Head, Model, ModelConfig, ModelType, Ops};

use crate::counting::live;

/// Passes within which every thread has made its buffers.
const PASSES: usize = 50;

/// The sizes of a GPT-2 and its batch.
struct Sizes {
    layers: usize,
    width: usize,
    heads: usize,
    vocabulary: usize,
    batch: usize,
    seq: usize,
}

impl Sizes {
    /// Floats that the fused operators keep of a token in a layer: LayerNorm its input and two
    /// statistics, twice; its result, the input of a product, twice; q, k and v; the attention's
    /// result and its log-sum-exp; before and after GELU.
    fn layer(&self) -> usize {
        let Self { width, heads, .. } = self;
        2 * (width + 2) + 2 * width + 3 * width + (width + heads) + 2 * 4 * width
    }

    /// Floats that the plain attention keeps besides of a token in a layer: the exponentials and
    /// the softmax.
    fn scores(&self) -> usize {
        2 * self.heads * self.seq
    }
}

/// Bytes, as `live` counts them, that live after the forward pass of a GPT-2 and did not before it.
fn live_after_forward(sizes: &Sizes, ops: Ops, device: &Device, live: impl Fn() -> isize) -> isize {
    let Sizes { layers, width, heads, vocabulary, batch, seq } = *sizes;
    let mut fields = serde_json::Map::new();
    let numbers =
        [("n_layer", layers), ("n_embd", width), ("n_head", heads), ("vocab_size", vocabulary), ("n_positions", seq)];
    fields.extend(numbers.map(|(name, value)| (name.into(), value.into())));
    fields.extend(["resid_pdrop", "embd_pdrop", "attn_pdrop"].map(|name| (name.into(), 0.0.into())));
    let config = ModelConfig::from_fields(ModelType::Gpt2, &fields).unwrap();
    live_after_forward_of(&config, [batch, seq], Compute::new(ops, FloatDType::F32), device, live)
}

/// [`live_after_forward`] of the language model `config` with a batch of `[rows, tokens of a row]`.
fn live_after_forward_of(
    config: &ModelConfig,
    [batch, seq]: [usize; 2],
    compute: Compute,
    device: &Device,
    live: impl Fn() -> isize,
) -> isize {
    let device = device.clone().autodiff();
    let model = Model::new(config, Head::CausalLm, &device).unwrap().with_compute(compute);
    let ids = (0..batch * seq).map(|i| (i * 7 % config.vocab_size()) as i32).collect::<Vec<_>>();
    let batch = PaddedBatch {
        rows: batch,
        examples: batch,
        seq_len: seq,
        input_ids: ids.clone(),
        attention_mask: None,
        token_type_ids: None,
        position_ids: None,
        labels: BatchLabels::Tokens(ids),
        num_tokens: batch * seq,
    };
    let batch = DeviceBatch::new(&CausalLm, &batch, &device).unwrap();
    let loss = || batch.loss_of(&model, model.pass(true), &LossOptions::default()).unwrap();
    // A thread keeps the buffers of an operator from the first part that it is given, so a busy
    // machine gives out some of them late: the pass that counts leaves nothing behind.
    let pass = || {
        let before = live();
        let kept = {
            let loss = loss();
            let kept = live() - before;
            drop(loss.sum.backward());
            kept
        };
        (live() == before).then_some(kept)
    };
    (0..PASSES).find_map(|_| pass()).expect("a pass that leaves nothing behind")
}

#[test]
fn compiled_keeps_what_its_operators_have_to_and_native_several_times_that() {
    if crate::ran_alone(module_path!(), "compiled_keeps_what_its_operators_have_to_and_native_several_times_that") {
        return;
    }
    let sizes = Sizes { layers: 2, width: 64, heads: 4, vocabulary: 1024, batch: 4, seq: 128 };
    let live_after = |ops: Ops| live_after_forward(&sizes, ops, &Device::flex(), live);
    let native = live_after(Ops::Plain);
    let compiled = live_after(Ops::fused(&Device::flex()).unwrap());
    // Above the layers: the last LayerNorm, its result, and of the loss the log-sum-exp and the
    // weight of the row.
    let above = (sizes.width + 2) + sizes.width + 2;
    let tokens = sizes.batch * sizes.seq;
    let predicted = (4 * tokens * (sizes.layers * sizes.layer() + above)) as f64;
    let ratio = native as f64 / compiled as f64;
    println!("native {native}, compiled {compiled}, predicted {predicted} for compiled, ratio {ratio:.2}");
    // Besides: the embeddings' ids, the graph's nodes, and what is kept twice in another layout.
    assert!((0.7..1.3).contains(&(compiled as f64 / predicted)), "compiled {compiled}, predicted {predicted}");
    // PERFORMANCE.md's model: without the scores, the softmax, GELU's and LayerNorm's intermediate
    // results and the logits.
    let logits = 2 * sizes.vocabulary;
    let at_least = (4 * tokens * (sizes.layers * (sizes.layer() + sizes.scores()) + above + logits)) as f64;
    assert!(native as f64 >= at_least, "native {native}, expected at least {at_least}");
}

/// Shared heads, norms of query and key, and a gate, in both forms and in bf16.
#[test]
fn a_decoder_with_a_gate_and_shared_heads_keeps_what_its_operators_have_to() {
    if crate::ran_alone(module_path!(), "a_decoder_with_a_gate_and_shared_heads_keeps_what_its_operators_have_to") {
        return;
    }
    let (layers, width, inner, heads, shared, head_dim) = (2, 64, 176, 4, 2, 24);
    let (vocabulary, batch, seq) = (1024, 4, 128);
    let fields = serde_json::json!({
        "num_hidden_layers": layers, "hidden_size": width, "intermediate_size": inner, "num_attention_heads": heads,
        "num_key_value_heads": shared, "head_dim": head_dim, "vocab_size": vocabulary, "max_position_embeddings": seq,
    });
    let config = ModelConfig::from_fields(ModelType::Qwen3, fields.as_object().unwrap()).unwrap();
    let (queries, keys, tokens) = (heads * head_dim, shared * head_dim, batch * seq);
    let device = Device::flex();
    // Each norm its input and a number a row; query, key and value; the attention's result; the
    // gate and its factor.
    let all = 2 * width + queries + keys + queries + 2 * keys + queries + 2 * inner;
    let numbers = 2 + heads + shared;
    for (name, ops, dtype, bytes) in [
        // The results of the norms and of the product with the gate, and the log-sum-exp.
        ("compiled", Ops::Fused, FloatDType::F32, 4 * (all + numbers + 2 * width + inner + heads)),
        // Attention and the gate write bf16, which one product alone reads.
        (
            "compiled",
            Ops::Fused,
            FloatDType::BF16,
            4 * (all - queries + numbers + 2 * width + heads) + 2 * (queries + inner),
        ),
        // What was normalised; the softmax and its exponentials; the sigmoid and what comes of it.
        (
            "native",
            Ops::Plain,
            FloatDType::F32,
            4 * (all + numbers + 2 * width + queries + keys + 2 * width + 2 * heads * seq + 3 * inner),
        ),
    ] {
        let live = live_after_forward_of(&config, [batch, seq], Compute::new(ops, dtype), &device, live);
        // Above the layers: the last norm and its result. The plain loss keeps what was normalised,
        // the exponentials and the softmax; the fused one has the gradients of its two factors.
        let above = match ops {
            Ops::Plain => 4 * tokens * (3 * width + 2 * vocabulary),
            _ => 4 * (tokens * 3 * width + vocabulary * width),
        };
        let predicted = tokens * layers * bytes + above;
        println!("{name} {dtype:?}: {live}, predicted {predicted}, ratio {:.3}", live as f64 / predicted as f64);
        // Besides: ids, angles, statistics of blocks of rows, the graph's nodes.
        assert!((0.97..1.04).contains(&(live as f64 / predicted as f64)), "{name} {dtype:?}: {live}, {predicted}");
    }
}

/// A sequence of 1024 tokens through layers of GPT-2 small, in f32. PERFORMANCE.md predicts 303 MB
/// of activations for its 12 layers compiled in bf16, twice that in f32, and several times as much
/// natively. The difference of two depths is a layer.
#[test]
#[cfg(feature = "wgpu")]
fn a_layer_of_gpt2_small_on_wgpu() {
    if crate::ran_alone(module_path!(), "a_layer_of_gpt2_small_on_wgpu") {
        return;
    }
    let device = Device::wgpu(burn::tensor::DeviceKind::Cpu);
    let in_use = || {
        device.sync().unwrap();
        isize::try_from(device.memory_pool_usage().unwrap().bytes_in_use).unwrap()
    };
    // One form is one engine: without the feature `compiler` there are no kernels but Burn's, and
    // with it native is the sibling.
    let ops = if cfg!(feature = "compiler") { Ops::fused(&device).unwrap() } else { Ops::Plain };
    let of = |layers: usize| Sizes { layers, width: 768, heads: 12, vocabulary: 64, batch: 1, seq: 1024 };
    let [one, two] = [1, 2].map(|layers| live_after_forward(&of(layers), ops, &device, in_use));
    let (megabytes, sizes) = (12.0 * (two - one) as f64 / 1e6, of(1));
    let predicted = (12 * 4 * sizes.seq * sizes.layer()) as f64 / 1e6;
    println!("12 layers keep {megabytes:.0} MB, predicted {predicted:.0} compiled");
    if cfg!(feature = "compiler") {
        assert!((590.0..620.0).contains(&predicted), "{predicted}");
        assert!((0.95..1.1).contains(&(megabytes / predicted)), "{megabytes} MB, predicted {predicted}");
    } else {
        let at_least = predicted + (12 * 4 * sizes.seq * sizes.scores()) as f64 / 1e6;
        assert!(megabytes >= at_least, "{megabytes} MB, expected at least {at_least}");
    }
}
