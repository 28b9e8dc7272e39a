//! Activation checkpointing through the binary: a run that computes activations again learns what
//! one that keeps them does, dropout included, to the last bit; what the plan says; what is
//! refused.

use crate::common::messages::messages;
use crate::common::small_run::{figures, train, write};
use crate::common::{kiln, succeeds};

#[test]
fn runs_are_the_same() {
    for (task, compiler, precision, kind) in [
        ("mlm", "native", "f32", Some("albert")),
        ("mlm", "compiled", "bf16", Some("albert")),
        ("clm", "native", "f32", None),
        ("clm", "compiled", "f32", None),
        ("clm", "native", "f16", None),
        ("mlm", "native", "bf16", None),
        ("question-answering", "native", "f32", None),
        ("sequence-classification", "compiled", "bf16", None),
        ("sequence-classification", "compiled", "f32", None),
    ] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), task);
        let run = |strategy: &str| {
            let name = strategy;
            let set = format!("trainer.activation_checkpointing={strategy}");
            let mut command = train(folder.path(), name, &["--set", &set]);
            if let Some(kind) = kind {
                command.args(["--set", &format!("model.kind={kind}"), "--set", "model.hidden_dropout_prob=0.1"]);
            }
            let said = succeeds(command.args(["--compiler", compiler, "--precision", precision]));
            let run = folder.path().join(name);
            let weights = std::fs::read(run.join("checkpoints/step-000014/model.safetensors")).unwrap();
            let moments = std::fs::read(run.join("checkpoints/step-000014/optimizer.safetensors")).unwrap();
            assert_eq!(said.contains(&format!("again ({strategy})")), strategy != "none", "{said}");
            (figures(&run), weights, moments)
        };
        let kept = run("none");
        let what = format!("{kind:?} {task} {compiler} {precision}");
        for strategy in ["balanced", "blocks"] {
            let again = run(strategy);
            assert_eq!(kept.0, again.0, "{what} {strategy}");
            assert!(kept.1 == again.1 && kept.2 == again.2, "{what} {strategy}: weights or moments differ");
        }
    }
}

#[test]
fn how_it_can_be_asked_for() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let mut command = kiln(folder.path());
    let said = succeeds(command.args(["plan", "config.toml", "--set", "trainer.gradient_checkpointing=true"]));
    assert!(said.contains("computes every layer again (blocks)"), "{said}");
    let refused = |set: &str| messages.fails(train(folder.path(), "no", &["--set", set]), 2);
    refused("trainer.activation_checkpointing=all");
    refused("trainer.gradient_checkpointing=2");
}
