//! The batch of an optimizer step through the binary: what the plan shows of it, that a stated
//! global batch trains the same however it is cut, and that intervals in samples and tokens follow
//! it.

use std::path::Path;

use crate::common::messages::messages;
use crate::common::small_run::{train, write};
use crate::common::{kiln, l2, succeeds, tensors, train_rows};

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
                    // Sums in another order, through 14 updates; a gradient norm near 0 loses
                    // digits.
                    let (a, b) = (a[name].as_f64().unwrap(), b[name].as_f64().unwrap());
                    assert!((a / b - 1.0).abs() < tolerance, "{task}, {micro}: {name} {a} against {b}");
                }
                assert_eq!((&a["samples"], &a["learning_rate"]), (&b["samples"], &b["learning_rate"]));
            }
        }
    }
}

/// Without a stated global batch: 4 micro-batches of 4 are the step of one of 16, and so are fewer
/// of them at the end of an epoch, whose last is smaller. SGD moves every weight by its gradient,
/// so that a gradient that is 0 but for rounding moves none.
#[test]
fn a_step_is_the_same_however_it_is_cut() {
    let none: &[&str] = &[];
    for (task, more) in [
        ("clm", none),
        ("mlm", none),
        ("mlm", &["trainer.label_smoothing_factor=0.1"]),
        ("sequence-classification", none),
        ("sequence-classification", &["trainer.label_smoothing_factor=0.1"]),
        ("sequence-classification", &["trainer.class_weights=[1, 5, 0.1]"]),
        ("sequence-classification", &["precision=\"f16\""]),
        ("regression", none),
        // The softmax over a row takes padding in, as in `transformers`, so that rows are padded to
        // one length.
        ("question-answering", &["data.padding=max_length"]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), task);
        let dropout = match task {
            "clm" => &["resid_pdrop", "embd_pdrop", "attn_pdrop"][..],
            _ => &["hidden_dropout_prob", "attention_probs_dropout_prob"],
        };
        // In f16 products of other shapes are rounded in another order, and the norm of a small
        // gradient shows it.
        let tolerance = if more.iter().any(|set| set.contains("f16")) { 1e-2 } else { 1e-5 };
        for compiler in ["native", "compiled"] {
            let run = |micro: usize, accumulation: usize| {
                let name = format!("{compiler}-{micro}");
                let mut sets = vec![
                    format!("trainer.per_device_train_batch_size={micro}"),
                    format!("trainer.gradient_accumulation_steps={accumulation}"),
                    "trainer.max_steps=6".into(),
                    "trainer.warmup_steps=0".into(),
                    "trainer.optim=sgd".into(),
                    "trainer.learning_rate=0.3".into(),
                    "trainer.max_grad_norm=0.5".into(),
                ];
                sets.extend(dropout.iter().map(|name| format!("model.{name}=0.0")));
                sets.extend(more.iter().map(|set| (*set).to_owned()));
                if task == "sequence-classification" {
                    sets.push("model.num_labels=3".into());
                }
                let mut command = train(folder.path(), &name, &["--compiler", compiler]);
                command.args(sets.iter().flat_map(|set| ["--set", set]));
                succeeds(&mut command);
                let run = folder.path().join(name);
                (train_rows(&run), tensors(&run.join("model/model.safetensors")))
            };
            let ((whole, weights), (cut, of_cut)) = (run(16, 1), run(4, 4));
            assert_eq!(whole.len(), 6);
            for (a, b) in whole.iter().zip(&cut) {
                for name in ["loss", "grad_norm"] {
                    let (x, y) = (a[name].as_f64().unwrap(), b[name].as_f64().unwrap());
                    assert!((x / y - 1.0).abs() < tolerance, "{task} {more:?} {compiler}: {name} of {a} and {b}");
                }
                assert_eq!((&a["step"], &a["samples"]), (&b["step"], &b["samples"]));
            }
            for (name, (_, values)) in &weights {
                let off = l2(of_cut[name].1.iter().zip(values).map(|(a, b)| f64::from(a - b)));
                let size = l2(values.iter().map(|value| f64::from(*value)));
                // A key's bias begins at 0 and has no gradient but rounding.
                assert!(
                    off < tolerance * size.max(0.1),
                    "{task} {more:?} {compiler}: {name} is off by {off} of {size}"
                );
            }
        }
    }
}

#[test]
fn the_plan_says_what_the_loss_of_a_step_is() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    let transformers = "trainer.accumulation=transformers";
    for (task, exact, other) in [
        ("clm", "divided once", "divided once"),
        ("mlm", "divided once", "the sum of the micro-batches' means"),
        ("sequence-classification", "divided once", "the sum of the micro-batches' means"),
        ("regression", "divided once", "the sum of the micro-batches' means"),
        ("question-answering", "divided once", "the mean of the micro-batches' means"),
    ] {
        write(folder.path(), task);
        let text = plan(folder.path(), &[]);
        assert!(text.contains(exact) && text.contains("(trainer.accumulation = \"exact\")"), "{task}: {text}");
        let text = plan(folder.path(), &[transformers]);
        assert!(text.contains(other) && text.contains("(trainer.accumulation = \"transformers\")"), "{task}: {text}");
    }
    // The Trainer's own label smoothing is divided by the labels of the step.
    write(folder.path(), "sequence-classification");
    let text = plan(folder.path(), &[transformers, "trainer.label_smoothing_factor=0.1"]);
    assert!(text.contains("divided once"), "{text}");
    let mut command = kiln(folder.path());
    command.args(["plan", "config.toml", "--set", "trainer.accumulation=mean"]);
    messages.fails(&mut command, 2);
}

#[test]
fn what_contradicts_itself_is_refused() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let refused = |sets: &[&str]| {
        let mut command = kiln(folder.path());
        command.args(["plan", "config.toml"]);
        for set in sets {
            command.args(["--set", set]);
        }
        messages.fails(&mut command, 2);
    };
    refused(&["batch.global_batch_size=7"]);
    refused(&["batch.global_batch_size=9"]);
    refused(&["batch.global_batch_size=6", "batch.scaling=grow"]);
    refused(&["batch.scaling=growing"]);
    refused(&["learning_rate.scaling=linear"]);
    refused(&["learning_rate.reference_batch=32"]);
    refused(&["learning_rate.scope=per_device"]);
    refused(&["learning_rate.scaling=linear", "learning_rate.reference_batch=0"]);
    refused(&["trainer.per_device_train_batch_size=auto"]);
    refused(&["trainer.per_device_train_batch_size=most"]);
    refused(&["trainer.save_steps=0 tokens"]);
    refused(&["trainer.warmup_steps=3 epochs"]);
}
