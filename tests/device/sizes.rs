//! Sizes that fit no vector, no tile and no pitch of rows, against the CPU: one number is the width
//! of GPT-2, its vocabulary and the length of the rows; and small models of BERT and of Llama's
//! family.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde_json::json;

use crate::common::skip::skip;
use crate::common::small_run::train;
use crate::common::succeeds;
use crate::{MODE, apart_of_any, device, losses, modes, on_device_in, prepare_model, prepare_with};

const SIZES: [usize; 5] = [31, 48, 127, 130, 257];

const SHORT: [&str; 5] = [
    "trainer.max_steps=4",
    "trainer.per_device_train_batch_size=2",
    "trainer.eval_strategy=no",
    "trainer.save_strategy=no",
    "trainer.warmup_steps=0",
];

/// Runs of two tests at a time would share the store of compiled kernels, whose database (turso
/// 0.8.3, of CubeCL's cache) has panicked where two processes read it: "reader slot released by
/// non-owner".
static ALONE: Mutex<()> = Mutex::new(());

/// Trains a language model of each of `sizes` natively on the CPU and in every way on the device:
/// natively where that engine is found, compiled, and with captured steps of one micro-batch and of
/// two.
fn check_sizes(sizes: &[usize], precision: &str, tolerance: f64) {
    for &size in sizes {
        let heads = if size % 2 == 0 { 2 } else { 1 };
        // The first of two layers hands its sum on to the second.
        let layers = if size == 48 { 2 } else { 1 };
        let model =
            [("n_embd", size), ("n_positions", size), ("vocab_size", size), ("n_head", heads), ("n_layer", layers)];
        let model = model.map(|(name, value)| format!("model.{name}={value}"));
        let folder = prepare_with("clm", Some(&data(size)), &model);
        check(folder.path(), &size.to_string(), precision, tolerance);
    }
}

/// Ten rows of `size` ids below `size`.
fn data(size: usize) -> String {
    let row = |i: usize| json!({ "input_ids": (0..size).map(|j| (i * 7 + j * 3 + j * j) % size).collect::<Vec<_>>() });
    (0..10).map(|i| format!("{}\n", row(i))).collect()
}

/// Trains the model of `folder` as [`check_sizes`] does.
fn check(folder: &Path, what: &str, precision: &str, tolerance: f64) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let short = SHORT.map(|set| ["--set", set]).concat();
    for steps in [1, 2] {
        let accumulation = format!("trainer.gradient_accumulation_steps={steps}");
        let same = [&short[..], &["--set", &accumulation, "--precision", precision]].concat();
        let cpu = format!("cpu-{precision}-{steps}");
        succeeds(train(folder, &cpu, &["--compiler", "native"]).args(&same));
        let expected = losses(&folder.join(cpu));
        assert_eq!(expected.len(), 8, "4 losses and norms");
        let check = |mode: &str, name: &str, more: &[&str]| {
            let run = format!("{name}-{precision}-{steps}");
            let said = succeeds(on_device_in(mode, folder, &run, &same).args(more));
            assert_eq!(said.contains("is captured ("), name == "captured", "{said}");
            let apart = apart_of_any(&losses(&folder.join(run)), &expected);
            println!("{what} {name} {precision}, {steps} micro-batches: {apart:.1e}");
            assert!(apart < tolerance, "{what} {name} {precision}, {steps} micro-batches: {apart}");
        };
        for mode in modes() {
            check(mode, mode, &["--set", "compiler.graph=off", "--set", "compiler.fused_ops=on"]);
        }
        if MODE == "compiled" {
            check(MODE, "captured", &["--set", "compiler.graph=on", "--set", "compiler.fused_ops=on"]);
        }
    }
}

/// Other orders of summation than the CPU's, carried on by 4 updates of Adam; on CUDA products in
/// TF32 besides.
#[test]
fn every_size_in_f32_gives_the_figures_of_the_cpu() {
    check_sizes(&SIZES, "f32", 1e-3);
}

/// f16 rounds to 11 bits.
#[test]
fn every_size_in_f16_gives_the_figures_of_the_cpu() {
    check_sizes(&SIZES, "f16", 5e-3);
}

/// bf16 rounds to 8 bits.
#[test]
fn every_size_in_bf16_gives_the_figures_of_the_cpu() {
    match device().as_str() {
        "wgpu" => skip!("bf16", "WGSL has no bf16"),
        _ => check_sizes(&SIZES, "bf16", 2e-2),
    }
}

/// Rows of 48 numbers have a pitch on CUDA.
#[test]
fn a_width_of_48_gives_the_figures_of_the_cpu() {
    check_sizes(&[48], "f32", 1e-3);
}

/// Rows of 48 numbers have a pitch on CUDA in f16 and bf16, too.
#[test]
fn a_width_of_48_in_narrow_types_gives_the_figures_of_the_cpu() {
    check_sizes(&[48], "f16", 5e-3);
    if device() != "wgpu" {
        check_sizes(&[48], "bf16", 2e-2);
    }
}

/// Two heads of 32 numbers, which in these types have attention of their own on tensor cores.
#[test]
fn heads_of_32_in_narrow_types_give_the_figures_of_the_cpu() {
    check_sizes(&[64], "f16", 5e-3);
    if device() != "wgpu" {
        check_sizes(&[64], "bf16", 2e-2);
    }
}

/// BERT in a type in which its layers' LayerNorms write their rows twice; the second of three
/// layers reads and writes them so at both ends.
#[test]
fn a_bert_in_bf16_gives_the_figures_of_the_cpu() {
    if device() == "wgpu" {
        return skip!("bf16", "WGSL has no bf16");
    }
    let model = [("hidden_size", 48), ("num_hidden_layers", 3), ("num_attention_heads", 2), ("intermediate_size", 80)];
    let model = model.map(|(name, value)| format!("model.{name}={value}"));
    let folder = prepare_with("mlm", None, &model);
    check(folder.path(), "bert", "bf16", 2e-2);
}

/// Llama's family in the types in which its norms, gates, positions and residuals are read and
/// written: queries with shared keys (SmolLM2), norms of heads (Qwen 3), and biases (Qwen 2).
#[test]
fn llamas_in_narrow_types_give_the_figures_of_the_cpu() {
    let precisions = [("f16", 5e-3), ("bf16", 2e-2)];
    let precisions = precisions.into_iter().filter(|(precision, _)| device() != "wgpu" || *precision == "f16");
    let precisions = precisions.collect::<Vec<_>>();
    for kind in ["llama", "qwen3", "qwen2"] {
        let model = format!(
            "kind = \"{kind}\"\nhidden_size = 48\nintermediate_size = 80\nnum_hidden_layers = 1\n\
             num_attention_heads = 4\nnum_key_value_heads = 2\nhead_dim = 12\nmax_position_embeddings = 48\n\
             vocab_size = 48"
        );
        let folder = prepare_model(&data(48), &model);
        for (precision, tolerance) in &precisions {
            check(folder.path(), kind, precision, *tolerance);
        }
    }
}
