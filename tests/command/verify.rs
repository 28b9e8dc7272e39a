//! `compiler.verify`, through the binary: a run that checks itself against native stays the same to
//! the bit, and one whose modes drift apart ends with exit code 6 and the name of what differs
//! first.

use std::path::Path;

use crate::common::messages::messages;
use crate::common::small_run::{copy, figures, train, write};
use crate::common::{fails, json, kiln, succeeds};

const COMPILED: [&str; 2] = ["--compiler", "compiled"];

fn weights(run: &Path) -> Vec<u8> {
    std::fs::read(run.join("model/model.safetensors")).unwrap()
}

#[test]
fn a_run_that_checks_itself_is_the_same() {
    for (task, precision) in [("clm", "f32"), ("mlm", "bf16"), ("sequence-classification", "f16")] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), task);
        let precision = ["--precision", precision];
        let off = succeeds(train(folder.path(), "off", &COMPILED).args(precision));
        let start =
            succeeds(train(folder.path(), "start", &COMPILED).args(precision).args(["--set", "compiler.verify=start"]));
        let every =
            succeeds(train(folder.path(), "every", &COMPILED).args(precision).args(["--set", "compiler.verify=5"]));
        assert!(!off.contains("verify"), "{off}");
        assert!(start.contains("verify before step 1: native and compiled compute the same: loss "), "{start}");
        assert_eq!(start.matches("verify before").count() + start.matches("verify after").count(), 1, "{start}");
        for place in ["before step 1", "after step 5", "after step 10"] {
            assert!(every.contains(&format!("verify {place}: native and compiled compute the same")), "{every}");
        }
        let [off, start, every] = ["off", "start", "every"].map(|run| folder.path().join(run));
        for run in [&start, &every] {
            assert_eq!(figures(&off), figures(run));
            assert!(weights(&off) == weights(run), "{task}: the check has touched the run");
            assert!(json(&run.join("all_results.json"))["verify_seconds"].as_f64().unwrap() > 0.0);
        }
        assert!(json(&off.join("all_results.json")).get("verify_seconds").is_none());
    }
}

#[test]
fn a_run_that_is_continued_is_checked_from_its_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let set = ["--set", "compiler.verify=start"];
    succeeds(train(folder.path(), "run", &COMPILED).args(set));
    let (run, stopped) = (folder.path().join("run"), folder.path().join("stopped"));
    copy(&run, &stopped);
    std::fs::remove_dir_all(stopped.join("checkpoints/step-000014")).unwrap();
    std::fs::remove_dir_all(stopped.join("model")).unwrap();
    let stdout = succeeds(train(folder.path(), "stopped", &COMPILED).args(set).arg("--resume"));
    assert!(stdout.contains("verify after step 7: native and compiled compute the same"), "{stdout}");
    assert!(weights(&run) == weights(&stopped));
}

/// A learning rate that throws the weights so far that f32 cannot tell where they land: both modes
/// are right, and apart.
const WILD: [&str; 14] = [
    "--set",
    "model.resid_pdrop=0",
    "--set",
    "model.embd_pdrop=0",
    "--set",
    "model.attn_pdrop=0",
    "--set",
    "trainer.learning_rate=1e4",
    "--set",
    "trainer.warmup_steps=0",
    "--set",
    "trainer.weight_decay=0",
    "--set",
    "trainer.lr_scheduler_type=constant",
];

#[test]
fn modes_that_are_apart_end_the_run_with_the_first_difference() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let start = ["--set", "compiler.verify=start"];
    let parts = ["compiler.verify before step 1: compiled differs from native", "step 2: the ", "`kiln bisect FILE`"];
    fails(train(folder.path(), "run", &COMPILED).args(WILD).args(start), 6, &parts);
    let status = json(&folder.path().join("run/status.json"));
    assert_eq!((status["status"].as_str(), status["step"].as_u64()), (Some("Failed"), Some(0)));
    assert!(!folder.path().join("run/model").exists());
    // Nobody asked: the run goes on.
    succeeds(train(folder.path(), "unasked", &COMPILED).args(WILD).args(["--stop-after", "2"]));
    // A comparison asks by itself, before it runs anything.
    let compare = |more: &[&str]| {
        let mut command = kiln(folder.path());
        command
            .args(["compare", "config.toml", "--steps", "10", "--repeats", "2", "--out", "compared"])
            .args(WILD)
            .args(more);
        command
    };
    fails(&mut compare(&[]), 6, &["compiler.verify before step 1: compiled differs from native"]);
    assert!(!folder.path().join("compared").exists());
}

#[test]
fn what_is_refused_and_what_there_is_nothing_to_compare_of() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let set = |value: &str| format!("compiler.verify={value}");
    for value in ["0", "-1", "always", "true"] {
        messages.fails(train(folder.path(), "run", &COMPILED).args(["--set", &set(value)]), 2);
    }
    let off = ["--set", "compiler.fused_ops=off", "--set", "compiler.verify=start", "--stop-after", "1"];
    let stdout = succeeds(train(folder.path(), "plain", &COMPILED).args(off));
    assert!(stdout.contains("verify: nothing is fused, so there is nothing to compare"), "{stdout}");
}
