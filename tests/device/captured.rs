//! Captured steps and the other parts of the compiler: the same training without each, and with all of them.

use crate::common::small_run::{copy, train, write};
use crate::common::{relative_l2, rows, succeeds, tensors};
use crate::{ONE_SHAPE, apart, device, losses, on_device, prepare};

/// Each part of the compiler off by itself, and all of them on: the same training. With several micro-batches a step, of
/// which the last of an epoch has fewer, those are captured one by one.
#[test]
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
        let said = succeeds(on_device(folder.path(), name, &more).args(settings));
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

/// Weights are cast within a recording. WGSL has no bf16.
#[test]
fn bf16_steps_give_the_figures_of_the_cpu() {
    if device() == "wgpu" {
        println!("skipped: WGSL has no bf16");
        return;
    }
    let folder = prepare("clm");
    for steps in [1, 2] {
        let accumulation = format!("trainer.gradient_accumulation_steps={steps}");
        let same = [&ONE_SHAPE[..], &["--precision", "bf16", "--set", &accumulation]].concat();
        let (cpu, captured) = (format!("cpu-{steps}"), format!("captured-{steps}"));
        succeeds(&mut train(folder.path(), &cpu, &[&same[..], &["--compiler", "native"]].concat()));
        let said = succeeds(&mut on_device(folder.path(), &captured, &same));
        assert!(said.contains("is captured ("), "{said}");
        let apart = apart(&losses(&folder.path().join(captured)), &losses(&folder.path().join(cpu)));
        println!("bf16, {steps} micro-batches: {apart:.1e}");
        assert!(apart < 2e-2, "{steps} micro-batches: {apart}");
    }
}

/// A captured step follows the schedule and draws dropout anew: a replay repeats the kernels, not the numbers.
#[test]
fn a_captured_run_resumes_and_is_the_run_that_computes_every_step() {
    for steps in [1, 2] {
        captured_runs(&format!("trainer.gradient_accumulation_steps={steps}"));
    }
}

fn captured_runs(accumulation: &str) {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let settings = ["--set", accumulation, "--set", "compiler.fused_ops=on"];
    let run = |name: &str, more: &[&str]| {
        succeeds(on_device(folder.path(), name, &settings).args(more));
        losses(&folder.path().join(name))
    };
    let captured = run("captured", &["--set", "compiler.graph=on"]);
    let again = run("again", &["--set", "compiler.graph=on"]);
    assert!(apart(&captured, &again) < 1e-5, "a seed is a run: {}", apart(&captured, &again));
    let resumed = folder.path().join("resumed");
    copy(&folder.path().join("captured"), &resumed);
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
