//! A run folder says how its run is made again, and what continues it stays there.

use std::path::Path;

use serde_json::json;

use crate::common::small_run::{figures, train, write};
use crate::common::{fails, kiln, succeeds, text};

fn read(folder: &Path, file: &str) -> Vec<u8> {
    std::fs::read(folder.join(file)).unwrap()
}

/// The command after `again:` in what a run has said.
fn again(said: &str) -> Vec<String> {
    let line = said.lines().find_map(|line| line.split_once("again: kiln ")).unwrap_or_else(|| panic!("{said}"));
    line.1.split(' ').map(str::to_owned).collect()
}

#[test]
fn a_run_that_was_taken_over_is_made_again_from_where_it_was_begun() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "clm");
    succeeds(&mut train(folder, "run", &[]));
    let said = |command: &mut std::process::Command| text(&command.output().unwrap());
    let first = again(&said(&mut train(folder, "new", &["--resume-from", "run/checkpoints/step-000007"])));
    let expected = "train new/plan.toml --set run.output_dir=new-again --resume-from run/checkpoints/step-000007";
    assert_eq!(first.join(" "), expected);
    succeeds(kiln(folder).args(&first));
    assert!(read(folder, "new-again/model/model.safetensors") == read(folder, "new/model/model.safetensors"));
    assert_eq!(figures(&folder.join("new-again")), figures(&folder.join("new")));
    // Whoever goes on with it later, says the same.
    let longer = ["train", "new", "--resume", "--set", "trainer.max_steps=16"];
    assert_eq!(again(&said(kiln(folder).args(longer))).join(" "), expected);
    // A run that goes on in its own folder began there.
    let own = again(&said(&mut train(folder, "run", &["--resume", "--set", "trainer.max_steps=16"])));
    assert_eq!(own.join(" "), "train run/plan.toml --set run.output_dir=run-again");
}

#[test]
fn the_plan_of_a_resumed_run_keeps_the_guard_of_resume() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "clm");
    succeeds(&mut train(folder, "run", &["--stop-after", "7"]));
    succeeds(&mut train(folder, "run", &["--resume"]));
    let plan = String::from_utf8(read(folder, "run/plan.toml")).unwrap();
    assert!(plan.contains("on_existing = \"fail\""), "{plan}");
    let typo = ["train", "run/plan.toml", "--resume", "--set", "run.output_dir=rum"];
    fails(kiln(folder).args(typo), 2, &["--resume: nothing to continue: the run folder rum does not exist"]);
    assert!(!folder.join("rum").exists());
}

/// Arguments of a script name a folder always; the one on the command line is the run's.
#[test]
fn the_folder_of_hf_args_is_told_where_a_run_folder_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "clm");
    succeeds(&mut train(folder, "run", &["--stop-after", "7"]));
    std::fs::write(folder.join("args.json"), json!({ "output_dir": "other", "max_steps": 15 }).to_string()).unwrap();
    let resumed = kiln(folder).args(["train", "run", "--resume", "--hf-args", "args.json"]).output().unwrap();
    let said = text(&resumed);
    assert!(resumed.status.success(), "{said}");
    assert!(
        said.contains("args.json: output_dir = \"other\" has no effect, since the run folder is named by run"),
        "{said}"
    );
    assert!(!folder.join("other").exists());
    assert_eq!(figures(&folder.join("run")).last().unwrap()["step"], 15);
    // The folder of the run itself is no other one.
    std::fs::write(folder.join("args.json"), json!({ "output_dir": "run", "max_steps": 16 }).to_string()).unwrap();
    let resumed = kiln(folder).args(["train", "run", "--resume", "--hf-args", "args.json"]).output().unwrap();
    assert!(resumed.status.success() && !text(&resumed).contains("has no effect, since"), "{}", text(&resumed));
}

/// A matrix of an evaluation that the run has yet to make is not shown as its own; one that another
/// program wrote there is no hindrance.
#[test]
fn the_confusion_matrix_is_of_a_step_that_the_run_has_made() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "sequence-classification");
    succeeds(&mut train(folder, "run", &[]));
    let file = folder.join("run/confusion_matrix.json");
    let matrix = || serde_json::from_slice::<serde_json::Value>(&std::fs::read(&file).unwrap()).unwrap();
    let whole = matrix();
    assert_eq!(whole["step"], 14, "an evaluation ends the run");
    let go_on = |more: &[&str]| {
        let from = ["--resume-from", "run/checkpoints/step-000007"];
        let output = train(folder, "run", &[&from, more].concat()).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        text(&output)
    };
    // An end has an evaluation, unless there are none.
    let unevaluated = ["--stop-after", "8", "--set", "trainer.eval_strategy=no"];
    let said = go_on(&unevaluated);
    assert!(!file.exists(), "step 14 is not made: {said}");
    let mut earlier = whole.clone();
    earlier["step"] = 6.into();
    std::fs::write(&file, earlier.to_string()).unwrap();
    go_on(&unevaluated);
    assert_eq!(matrix(), earlier);
    for other in ["[[1, 2], [3, 4]]", "{\"labels\": [\"a\"], \"counts\": []}", "no JSON"] {
        std::fs::write(&file, other).unwrap();
        let said = go_on(&[]);
        assert_eq!(matrix(), whole, "{said}");
        assert!(!said.contains("cannot be read"), "{said}");
    }
}
