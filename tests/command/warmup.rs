//! The warm-up stage, through the binary: it leaves no trace in a run, tells how far it has come,
//! can be stopped, and what comes after it with a shape of its own is counted. On the CPU nothing
//! is compiled or tuned, so tests force it.
#![cfg(unix)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::small_run::{figures, train, write};
use crate::common::{json, succeeds, text, train_rows};
use serde_json::Value;

const ON: [&str; 4] = ["--compiler", "compiled", "--set", "compiler.warmup=on"];

fn weights(run: &Path) -> Vec<u8> {
    std::fs::read(run.join("model/model.safetensors")).unwrap()
}

/// Rows as they are without a warm-up.
fn without_counts(run: &Path) -> Vec<Value> {
    let mut rows = figures(run);
    rows.iter_mut().for_each(|row| drop(row.as_object_mut().unwrap().remove("new_shapes")));
    rows
}

#[test]
fn a_run_ends_where_it_ends_without_a_warm_up() {
    // Dropout, accumulation, epochs with a smaller last batch, evaluations, and one task whose
    // batches have few shapes.
    for (task, more) in [("clm", ""), ("mlm", "data.padding=buckets"), ("sequence-classification", "precision=f16")] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), task);
        let more = if more.is_empty() { vec![] } else { vec!["--set", more] };
        let off = succeeds(train(folder.path(), "off", &["--compiler", "compiled"]).args(&more));
        let on = succeeds(train(folder.path(), "on", &ON).args(&more));
        assert!(!off.contains("warm-up: shape"), "{off}");
        assert!(off.contains("warm-up stage          off            nothing is compiled or tuned on the CPU"), "{off}");
        assert!(on.contains("warm-up stage          on             every batch shape once before step 1"), "{on}");
        assert!(on.contains("warm-up: shape 1 of ") && on.contains("warm-up: evaluation, "), "{on}");
        let (on, off) = (folder.path().join("on"), folder.path().join("off"));
        assert_eq!(without_counts(&on), without_counts(&off), "{task}");
        assert!(weights(&on) == weights(&off), "{task}: the final weights differ");

        let rows = train_rows(&on);
        let stage = rows[0]["warmup_seconds"].as_f64().unwrap();
        assert!(stage > 0.0 && rows[1].get("warmup_seconds").is_none(), "{}", rows[0]);
        if task == "mlm" {
            assert!(rows.iter().all(|row| row["new_shapes"] == 0), "few shapes: {rows:?}");
        }
        assert!(train_rows(&off).iter().all(|row| row.get("new_shapes").is_none()));
        let results = json(&on.join("all_results.json"));
        assert_eq!(results["warmup_seconds"].as_f64(), Some(stage));
        assert!(results["train_runtime"].as_f64().unwrap() > stage);
    }
}

#[test]
fn a_native_run_has_no_warm_up() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let stdout = succeeds(&mut train(folder.path(), "run", &["--set", "compiler.warmup=on", "--compiler", "native"]));
    assert!(stdout.contains("warm-up stage          off            the run is native"), "{stdout}");
    assert!(!stdout.contains("warm-up: "), "{stdout}");
}

/// A run on rows of `lengths`, without validation.
fn ragged(folder: &Path, lengths: impl Iterator<Item = usize>) {
    let rows = lengths.map(|length| format!("{{\"input_ids\": {:?}}}\n", (1..=length).collect::<Vec<_>>()));
    std::fs::write(folder.join("data.jsonl"), rows.collect::<String>()).unwrap();
    let config = std::fs::read_to_string(folder.join("config.toml")).unwrap();
    let config =
        config.replace("validation = \"20%\"\n", "").replace("eval_strategy = \"steps\"\neval_steps = 3\n", "");
    std::fs::write(folder.join("config.toml"), config).unwrap();
}

#[test]
fn shapes_that_come_later_are_counted_and_loud_when_they_repeat() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    ragged(folder.path(), 3..=24);
    let set = [
        "model.n_positions=32",
        "trainer.per_device_train_batch_size=1",
        "trainer.gradient_accumulation_steps=1",
        "trainer.max_steps=22",
        "trainer.warmup_steps=0",
        "trainer.logging_steps=11",
        "trainer.save_strategy=no",
    ];
    let mut command = train(folder.path(), "run", &ON);
    let stdout = succeeds(command.args(set.iter().flat_map(|set| ["--set", set])));
    assert!(stdout.contains("warm-up: 12 of 22 training shapes, the most frequent and the largest"), "{stdout}");
    assert!(stdout.contains("which is none of the 12 shapes of the warm-up"), "{stdout}");
    assert!(stdout.contains("warning: 2 new batch shapes since the warm-up"), "{stdout}");
    let log = std::fs::read_to_string(folder.path().join("run/run.log")).unwrap();
    assert!(log.contains("warning: 4 new batch shapes"), "{log}");
    let new = train_rows(&folder.path().join("run")).iter().map(|row| row["new_shapes"].as_u64().unwrap()).sum::<u64>();
    assert_eq!(new, 10, "22 lengths, of which 12 were warmed");
}

#[test]
fn a_signal_in_the_warm_up_leaves_a_run_that_can_begin() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    // Twelve shapes that take long enough to be interrupted.
    ragged(folder.path(), (0..128).map(|i| 57 + i / 16));
    let set = [
        "data.sampler=sequential",
        "model.vocab_size=128",
        "model.n_positions=64",
        "model.n_embd=64",
        "trainer.per_device_train_batch_size=16",
        "trainer.max_steps=1",
        "trainer.warmup_steps=0",
    ];
    let command = |run: &str| {
        let mut command = train(folder.path(), run, &ON);
        command.args(set.iter().flat_map(|set| ["--set", set]));
        command
    };
    let mut child = command("run").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("warm-up: shape 1 of 12, 16 x 64")));
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let all = text(&output);
    assert_eq!(output.status.code(), Some(130), "{all}");
    assert!(all.contains("SIGINT: stopped in the warm-up, before the first step"), "{all}");
    let run = folder.path().join("run");
    let status = json(&run.join("status.json"));
    assert_eq!((status["status"].as_str(), status["step"].as_u64()), (Some("Stopped"), Some(0)));
    assert!(!run.join("model").exists() && !run.join("checkpoints").exists() && !run.join("fault").exists());
    succeeds(command("run").args(["--set", "run.on_existing=resume"]));
    succeeds(&mut command("straight"));
    assert!(weights(&run) == weights(&folder.path().join("straight")));
}
