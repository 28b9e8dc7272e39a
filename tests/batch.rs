//! The batch of an optimizer step through the binary: what the plan shows of it, that a stated global batch trains the
//! same however it is cut, and that intervals in samples and tokens follow it.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;

use common::small_run::{train, write};
use common::{fails, kiln, succeeds, train_rows};

fn plan(folder: &Path, more: &[&str]) -> String {
    let mut command = kiln(folder);
    command.args(["plan", "config.toml"]);
    for set in more {
        command.args(["--set", set]);
    }
    succeeds(&mut command)
}

#[test]
fn the_plan_shows_every_number_with_its_arithmetic() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let text = plan(
        folder.path(),
        &[
            "trainer.gradient_accumulation_steps=1",
            "trainer.per_device_train_batch_size=2",
            "batch.global_batch_size=8",
            "trainer.learning_rate=5e-5",
            "learning_rate.scaling=linear",
            "learning_rate.reference_batch=32",
            "learning_rate.scope=per_device",
            "trainer.warmup_steps=20 samples",
            "trainer.save_steps=100 tokens",
            "trainer.logging_steps=0.5",
        ],
    );
    for part in [
        "8 = 2 x 4 micro-batches x 1 device",
        "peak 5e-5 / 32 x 8 (per device) = 1.25e-5",
        "warm-up 3 steps",
        "warm-up 20 samples / 8 a step = 3",
        "saving 100 tokens / 29 a step = 4",
        "logging 0.5 x 14 steps = 7",
        "1.250e-5 at step 4",
    ] {
        assert!(text.contains(part), "expected {part:?} in\n{text}");
    }
    // The same samples are half as many steps of twice the batch.
    let text = plan(folder.path(), &["trainer.per_device_train_batch_size=6", "trainer.warmup_steps=20 samples"]);
    assert!(text.contains("warm-up 20 samples / 12 a step = 2"), "{text}");
}

#[test]
fn a_stated_global_batch_trains_the_same_however_it_is_cut() {
    // Rows of mean losses that are added up would make the loss depend on the cut; the stated batch is one mean.
    for task in ["clm", "sequence-classification"] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), task);
        let prefix =
            if task == "clm" { ["resid_pdrop", "embd_pdrop"] } else { ["hidden_dropout_prob", "classifier_dropout"] };
        let attention = if task == "clm" { "attn_pdrop" } else { "attention_probs_dropout_prob" };
        let run = |micro: usize| {
            let name = format!("run-{micro}");
            let mut command = train(folder.path(), &name, &["--set", "batch.global_batch_size=6"]);
            command.args(["--set", &format!("trainer.per_device_train_batch_size={micro}")]);
            command.args(["--set", "trainer.gradient_accumulation_steps=1"]);
            for name in prefix.iter().chain([&attention]) {
                command.args(["--set", &format!("model.{name}=0.0")]);
            }
            succeeds(&mut command);
            train_rows(&folder.path().join(name))
        };
        let whole = run(6);
        assert_eq!(whole.len(), 14);
        for micro in [1, 3] {
            for (a, b) in whole.iter().zip(&run(micro)) {
                for (name, tolerance) in [("loss", 1e-5), ("grad_norm", 1e-3)] {
                    // Sums in another order, through 14 updates; a gradient norm near 0 loses digits.
                    let (a, b) = (a[name].as_f64().unwrap(), b[name].as_f64().unwrap());
                    assert!((a / b - 1.0).abs() < tolerance, "{task}, {micro}: {name} {a} against {b}");
                }
                assert_eq!((&a["samples"], &a["learning_rate"]), (&b["samples"], &b["learning_rate"]));
            }
        }
    }
}

#[test]
fn what_contradicts_itself_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let refused = |sets: &[&str], parts: &[&str]| {
        let mut command = kiln(folder.path());
        command.args(["plan", "config.toml"]);
        for set in sets {
            command.args(["--set", set]);
        }
        fails(&mut command, 2, parts);
    };
    refused(&["batch.global_batch_size=7"], &["7 is no multiple of trainer.per_device_train_batch_size = 3", "= 9"]);
    refused(&["batch.global_batch_size=9"], &["3 x 2 micro-batches", "are 6", "3 follows from the global batch"]);
    refused(
        &["batch.global_batch_size=6", "batch.scaling=grow"],
        &["batch.global_batch_size", "leave one of the two out"],
    );
    refused(&["batch.scaling=growing"], &["did you mean `grow`?"]);
    refused(&["learning_rate.scaling=linear"], &["learning_rate.reference_batch: required", "for example 32"]);
    refused(&["learning_rate.reference_batch=32"], &["no effect with learning_rate.scaling = \"none\""]);
    refused(&["learning_rate.scope=per_device"], &["learning_rate.scope: has no effect"]);
    refused(&["learning_rate.scaling=linear", "learning_rate.reference_batch=0"], &["expected 1 or more, got 0"]);
    refused(&["trainer.per_device_train_batch_size=auto"], &["would depend on the memory", "batch.global_batch_size"]);
    refused(&["trainer.per_device_train_batch_size=most"], &["or \"auto\"", "\"most\""]);
    refused(&["trainer.save_steps=0 tokens"], &["trainer.save_steps: expected more than 0 tokens"]);
    refused(&["trainer.warmup_steps=3 epochs"], &["\"1000 samples\""]);
}
