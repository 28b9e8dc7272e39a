//! Runs on wgpu, on whatever device this machine has (Mesa's software Vulkan does): every task in every precision against
//! the CPU, and in the compiled engine each part of the compiler by itself. One engine is one build: the native one runs
//! this too.
#![cfg(feature = "wgpu")]
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use common::small_run::{train, write};
use common::{fails, rows, succeeds, train_rows};
#[cfg(feature = "compiler")]
use common::{relative_l2, tensors};

const TASKS: [&str; 5] = ["clm", "mlm", "sequence-classification", "regression", "question-answering"];

const NO_DROPOUT_GPT2: [&str; 6] =
    ["--set", "model.resid_pdrop=0", "--set", "model.embd_pdrop=0", "--set", "model.attn_pdrop=0"];
const NO_DROPOUT_BERT: [&str; 4] =
    ["--set", "model.hidden_dropout_prob=0", "--set", "model.attention_probs_dropout_prob=0"];

/// The mode of this build's engine.
const MODE: &str = if cfg!(feature = "compiler") { "compiled" } else { "native" };

/// A folder with a config for `task` without dropout, whose model is one of random weights on disk: every device draws its
/// own.
fn prepare(task: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), task);
    let no_dropout: &[&str] = if task == "clm" { &NO_DROPOUT_GPT2 } else { &NO_DROPOUT_BERT };
    let start = ["trainer.max_steps=1", "trainer.warmup_steps=0", "trainer.learning_rate=1e-30"];
    let start = start.map(|set| ["--set", set]).concat();
    succeeds(&mut train(folder.path(), "start", &[no_dropout, &start].concat()));
    let config = std::fs::read_to_string(&path).unwrap();
    let (before, after) = (config.split("[model]").next().unwrap(), config.split("[data]").nth(1).unwrap());
    std::fs::write(&path, format!("{before}[model]\nfrom = \"start/model\"\n[data]{after}")).unwrap();
    folder
}

/// A run on wgpu in this engine. Kernels are kept from test to test: a software device compiles them for minutes.
fn on_wgpu(folder: &Path, name: &str, more: &[&str]) -> Command {
    let mut command = train(folder, name, &["--set", "device.kind=wgpu", "--compiler", MODE]);
    command.env("KILN_CACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels")).args(more);
    command
}

/// Losses of training and evaluation, and gradient norms, by row.
fn losses(run: &Path) -> Vec<f64> {
    let of = |row: &Value| {
        ["loss", "grad_norm", "eval_loss"].into_iter().filter_map(|name| row[name].as_f64()).collect::<Vec<_>>()
    };
    rows(run).iter().flat_map(of).collect()
}

/// Largest relative difference.
#[track_caller]
fn apart(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    assert!(a.len() > 20, "{} figures", a.len());
    a.iter().zip(b).map(|(a, b)| (a / b - 1.0).abs()).fold(0.0, f64::max)
}

#[test]
fn every_task_gives_the_figures_of_the_cpu() {
    for task in TASKS {
        let folder = prepare(task);
        succeeds(&mut train(folder.path(), "cpu", &["--compiler", "native"]));
        let expected = losses(&folder.path().join("cpu"));
        // Other orders of summation, carried on by 14 updates of Adam; f16 rounds to 11 bits besides. Not every task in f16: a
        // software device takes minutes to compile its kernels.
        let precisions = [("f32", 1e-3), ("f16", 2e-2)];
        for (precision, tolerance) in precisions.into_iter().take(if ["clm", "mlm"].contains(&task) { 2 } else { 1 }) {
            let run = format!("wgpu-{precision}");
            let said = succeeds(on_wgpu(folder.path(), &run, &[]).args(["--precision", precision]));
            assert!(said.contains(&format!("{MODE} engine")), "{said}");
            let found = losses(&folder.path().join(&run));
            if precision == "f16" {
                // A step that the loss scale skipped would be another training.
                let rows = train_rows(&folder.path().join(&run));
                assert_eq!(rows.last().unwrap()["skipped_steps"].as_u64(), Some(0), "{task}");
            }
            let apart = apart(&found, &expected);
            println!("{task} {precision}: {apart:.1e}");
            assert!(apart < tolerance, "{task} {precision}: {apart}");
        }
        // WGSL has no bf16: refused by name.
        fails(on_wgpu(folder.path(), "bf16", &[]).args(["--precision", "bf16"]), 2, &["bf16", "wgpu"]);
    }
}

/// Each part of the compiler off by itself, and all of them on: the same training. With several micro-batches a step, of
/// which the last of an epoch has fewer, those are captured one by one.
#[test]
#[cfg(feature = "compiler")]
fn every_part_of_the_compiler_gives_the_figures_of_the_cpu() {
    let folder = prepare("clm");
    let weights = |run: &str| tensors(&folder.path().join(run).join("model/model.safetensors"));
    let accumulation = |steps: usize| format!("trainer.gradient_accumulation_steps={steps}");
    for steps in [1, 3] {
        succeeds(&mut train(folder.path(), &format!("cpu-{steps}"), &["--set", &accumulation(steps)]));
    }
    for (name, steps, settings) in [
        ("all", 1, &["--set", "compiler.fused_ops=on", "--set", "compiler.graph=on"][..]),
        ("micro-batches", 3, &["--set", "compiler.fused_ops=on", "--set", "compiler.graph=on"]),
        ("no-graph", 1, &["--set", "compiler.fused_ops=on", "--set", "compiler.graph=off"]),
        ("no-operators", 1, &["--set", "compiler.fused_ops=off"]),
        ("unfused", 1, &["--set", "compiler.fused_ops=on", "--set", "compiler.fusion=off"]),
    ] {
        let more = ["--set", &accumulation(steps)];
        let said = succeeds(on_wgpu(folder.path(), name, &more).args(settings));
        let captured = said.lines().any(|line| line.contains("captured step          on"));
        assert_eq!(captured, ["all", "micro-batches"].contains(&name), "{said}");
        assert_eq!(said.contains("is captured ("), captured, "{said}");
        let cpu = format!("cpu-{steps}");
        let apart = apart(&losses(&folder.path().join(name)), &losses(&folder.path().join(&cpu)));
        println!("{name}: {apart:.1e}");
        assert!(apart < 1e-3, "{name}: {apart}");
        for (tensor, (_, values)) in weights(&cpu) {
            let apart = relative_l2(&weights(name)[&tensor].1, &values);
            assert!(apart < 1e-2, "{name} {tensor}: {apart}");
        }
    }
}

/// Kernels of a step of a GPT-2 of two layers, of one micro-batch and of two: the native engine's at the least (992 and 1350
/// were counted), the compiled one's at the most (172 and 338), which is below half of that.
const NATIVE_LAUNCHES: [f64; 2] = [900.0, 1200.0];
const COMPILED_LAUNCHES: [f64; 2] = [200.0, 390.0];

/// Kernels are counted as the device runs them, though one call replays all of a captured step. Nothing is read between rows.
#[test]
fn launches_and_reads_of_a_step() {
    let folder = prepare("clm");
    for micro_batches in [1, 2] {
        let accumulation = format!("trainer.gradient_accumulation_steps={micro_batches}");
        let sets = ["trainer.logging_steps=4", "trainer.eval_strategy=no", "trainer.save_strategy=no", &accumulation];
        let run = format!("micro-batches-{micro_batches}");
        succeeds(on_wgpu(folder.path(), &run, &["--step-times"]).args(sets.map(|set| ["--set", set]).concat()));
        let text = std::fs::read_to_string(folder.path().join(&run).join("steps.jsonl")).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect::<Vec<_>>();
        for (line, step) in lines[..12].iter().zip(1..) {
            assert_eq!(line["device_reads"].as_u64(), Some(u64::from(step % 4 == 0)), "step {step}");
        }
        // The median: a shape is recorded when it first comes, which computes it a few times.
        let mut launches = lines.iter().map(|line| line["kernel_launches"].as_f64().unwrap()).collect::<Vec<_>>();
        launches.sort_by(f64::total_cmp);
        let median = launches[launches.len() / 2];
        println!("{MODE}, {micro_batches} micro-batches: {median} launches a step, {launches:?}");
        let [native, compiled] = [NATIVE_LAUNCHES, COMPILED_LAUNCHES].map(|all| all[micro_batches - 1]);
        assert!(compiled <= native / 2.0);
        match MODE {
            "native" => assert!(median >= native, "{median}"),
            _ => assert!(median > 50.0 && median <= compiled, "{median}"),
        }
    }
}

/// A captured step follows the schedule and draws dropout anew: a replay repeats the kernels, not the numbers.
#[test]
#[cfg(feature = "compiler")]
fn a_captured_run_resumes_and_is_the_run_that_computes_every_step() {
    for steps in [1, 2] {
        captured_runs(&format!("trainer.gradient_accumulation_steps={steps}"));
    }
}

#[cfg(feature = "compiler")]
fn captured_runs(accumulation: &str) {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let settings = ["--set", accumulation, "--set", "compiler.fused_ops=on"];
    let run = |name: &str, more: &[&str]| {
        succeeds(on_wgpu(folder.path(), name, &settings).args(more));
        losses(&folder.path().join(name))
    };
    let captured = run("captured", &["--set", "compiler.graph=on"]);
    let again = run("again", &["--set", "compiler.graph=on"]);
    assert!(apart(&captured, &again) < 1e-5, "a seed is a run: {}", apart(&captured, &again));
    let resumed = folder.path().join("resumed");
    common::small_run::copy(&folder.path().join("captured"), &resumed);
    let text = std::fs::read_to_string(resumed.join("status.json")).unwrap();
    std::fs::write(resumed.join("status.json"), text.replace("Completed", "Stopped")).unwrap();
    std::fs::remove_dir_all(resumed.join("checkpoints/step-000014")).unwrap();
    let resumed = run("resumed", &["--set", "compiler.graph=on", "--resume"]);
    assert!(apart(&captured, &resumed) < 1e-5, "{}", apart(&captured, &resumed));
    // Without a learning rate nothing moves: the rate is not what it was when the step was recorded.
    let still = run("still", &["--set", "compiler.graph=on", "--set", "trainer.learning_rate=1e-30"]);
    let evaluations =
        rows(&folder.path().join("still")).iter().filter_map(|row| row["eval_loss"].as_f64()).collect::<Vec<_>>();
    assert!(evaluations.iter().all(|loss| *loss == evaluations[0]), "{evaluations:?}");
    assert_ne!(still, captured);
}

/// What tuning chose and what was compiled is told by a run that found nothing, and only by it.
#[test]
#[cfg(feature = "compiler")]
fn debug_tells_what_was_tuned_and_compiled() {
    let folder = prepare("sequence-classification");
    let cache = folder.path().join("kernels");
    let more = ["--set", "compiler.debug=true", "--set", "trainer.max_steps=4"]; // three of them warm up
    let run = |name: &str| {
        let said = succeeds(on_wgpu(folder.path(), name, &more).env("KILN_CACHE", &cache));
        (said, common::json(&folder.path().join(name).join("compiler/report.json"))["burn"]["cache"].clone())
    };
    let (said, cold) = run("cold");
    let tunings = cold["tunings"].as_array().unwrap();
    assert!(!tunings.is_empty() && cold["compiled"].as_u64() > Some(10), "{cold}");
    for tuning in tunings {
        let tried = tuning["tried"].as_array().unwrap();
        assert!(tuning["winner"].as_str().is_some_and(|winner| !winner.starts_with("candidate")), "{tuning}");
        assert!(!tried.is_empty() && tried.iter().all(|tried| tried["seconds"].as_f64() > Some(0.0)), "{tuning}");
    }
    assert!(said.contains(&format!("{} choices in", tunings.len())), "{said}");
    let (said, warm) = run("warm");
    assert_eq!((&warm["tunings"], &warm["compiled"]), (&Value::Array(Vec::new()), &Value::from(0)), "{warm}");
    assert!(said.contains("nothing was tuned or compiled"), "{said}");
}
