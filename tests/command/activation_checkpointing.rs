//! Activation checkpointing through the binary: a run that computes activations again learns what one that keeps them does,
//! dropout included, to the last bit; what the plan says; what is refused.

use crate::common::small_run::{figures, train, write};
use crate::common::{fails, kiln, succeeds};

#[test]
fn runs_are_the_same() {
    for (task, compiler, precision) in [
        ("clm", "native", "f32"),
        ("clm", "compiled", "f32"),
        ("clm", "native", "f16"),
        ("mlm", "native", "bf16"),
        ("question-answering", "native", "f32"),
        ("sequence-classification", "compiled", "bf16"),
        ("sequence-classification", "compiled", "f32"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), task);
        let run = |strategy: &str| {
            let name = strategy;
            let set = format!("trainer.activation_checkpointing={strategy}");
            let mut command = train(folder.path(), name, &["--set", &set]);
            let said = succeeds(command.args(["--compiler", compiler, "--precision", precision]));
            let run = folder.path().join(name);
            let weights = std::fs::read(run.join("checkpoints/step-000014/model.safetensors")).unwrap();
            let moments = std::fs::read(run.join("checkpoints/step-000014/optimizer.safetensors")).unwrap();
            assert_eq!(said.contains(&format!("again ({strategy})")), strategy != "none", "{said}");
            (figures(&run), weights, moments)
        };
        let kept = run("none");
        let what = format!("{task} {compiler} {precision}");
        for strategy in ["balanced", "blocks"] {
            let again = run(strategy);
            assert_eq!(kept.0, again.0, "{what} {strategy}");
            assert!(kept.1 == again.1 && kept.2 == again.2, "{what} {strategy}: weights or moments differ");
        }
    }
}

#[test]
fn how_it_can_be_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let mut command = kiln(folder.path());
    let said = succeeds(command.args(["plan", "config.toml", "--set", "trainer.gradient_checkpointing=true"]));
    assert!(said.contains("computes every layer again (blocks)"), "{said}");
    let refused = |set: &str, parts: &[&str]| fails(&mut train(folder.path(), "no", &["--set", set]), 2, parts);
    refused("trainer.activation_checkpointing=all", &["expected one of none, balanced, blocks"]);
    refused("trainer.gradient_checkpointing=2", &["expected true or false"]);
}
