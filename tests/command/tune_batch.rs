//! `kiln tune-batch` through the binary: the size that it finds trains within the memory, the next
//! one does not; what it finds is kept and used; what cannot be searched is refused.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Command;

use crate::common::messages::messages;
use crate::common::{fails, json, kiln, succeeds, train_rows};
use serde_json::Value;

/// Rows of 128 tokens and a vocabulary of 8192: the logits of a row take 4 MiB, several times over.
/// One row at a time is evaluated, which takes less than any training batch.
fn write(folder: &Path, batch: &str) {
    let rows = (0..40).map(|row: usize| {
        let ids = (0..128).map(|i| ((row * 7 + i * 3) % 8191 + 1).to_string()).collect::<Vec<_>>();
        format!("{{\"input_ids\": [{}]}}\n", ids.join(", "))
    });
    std::fs::write(folder.join("data.jsonl"), rows.collect::<String>()).unwrap();
    let config = format!(
        "[run]\noutput_dir = \"run\"\n[model]\nkind = \"gpt2\"\nn_layer = 1\nn_head = 2\nn_embd = 16\nn_positions = 128\n\
         vocab_size = 8192\n[data]\ntask = \"clm\"\nformat = \"tokenized\"\ntrain = \"data.jsonl\"\nvalidation = \"10%\"\n\
         [batch]\n{batch}\n[trainer]\nmax_steps = 2\nper_device_train_batch_size = \"auto\"\n\
         per_device_eval_batch_size = 1\n[device]\nkind = \"cpu\"\n"
    );
    std::fs::write(folder.join("config.toml"), config).unwrap();
}

fn tune(folder: &Path, more: &[&str]) -> Command {
    let mut command = kiln(folder);
    command.args(["tune-batch", "config.toml"]).args(more);
    command
}

/// The size that the cache holds for `mode`.
fn stored(folder: &Path, mode: &str) -> Value {
    let files = std::fs::read_dir(folder.join("kiln-cache/batch-sizes")).unwrap();
    files.map(|file| json(&file.unwrap().path())).find(|stored| stored["key"]["mode"] == mode).unwrap()
}

#[test]
fn what_is_found_fits_and_the_next_does_not_and_the_run_uses_it() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "scaling = \"grow\"");
    // The line first, from small sizes; then a budget in the middle between two sizes of it.
    let stdout = succeeds(&mut tune(folder.path(), &["--start", "2", "--max", "8"]));
    assert!(stdout.contains("memory = ") && stdout.contains("MiB x batch"), "{stdout}");
    let line = stored(folder.path(), "native")["line"].clone();
    let (fixed, each) = (line["fixed_mib"].as_f64().unwrap(), line["per_sample_mib"].as_f64().unwrap());
    assert!(fixed > 5.0 && each > 1.0, "{line}");
    let budget = fixed + 11.5 * each;
    let stdout = succeeds(&mut tune(folder.path(), &["--memory-budget", &format!("{budget}MiB")]));
    let found = stored(folder.path(), "native");
    let batch = found["batch"].as_u64().unwrap();
    assert!((6..=20).contains(&batch) && found["next_fails"] == true, "{stdout}");
    assert!(stdout.contains(&format!("native: {batch} fit, {} do not", batch + 1)), "{stdout}");
    let trials = found["trials"].as_array().unwrap();
    let outcome = |size: u64| &trials.iter().find(|trial| trial["batch"] == size).unwrap()["outcome"];
    assert!(outcome(batch)["fits"]["peak_mib"].as_f64().unwrap() <= budget, "{found}");
    assert!(outcome(batch + 1)["too_large"].as_str().unwrap().contains("over the budget"), "{found}");

    let list = succeeds(kiln(folder.path()).args(["tune-batch", "--list"]));
    assert!(list.contains("found on this machine: 1") && list.contains(&format!("{batch} native")), "{list}");
    let stdout = succeeds(kiln(folder.path()).args(["train", "config.toml"]));
    assert!(stdout.contains(&format!("{batch} fit in ")) && !stdout.contains("looking for one"), "{stdout}");
    assert_eq!(train_rows(&folder.path().join("run"))[0]["samples"], batch);
    // The mode of an evaluation is chosen by itself, whatever the size of a training batch.
    assert!(succeeds(kiln(folder.path()).args(["eval", "config.toml"])).contains("eval_loss"));
}

/// A trial only trains: what else the config asks of its run neither fails in it nor is done.
#[test]
fn a_trial_leaves_out_what_is_no_training() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "global_batch_size = 2");
    let settings = ["compiler.verify=start", "trainer.report_to=tensorboard", "trainer.eval_strategy=epoch"];
    let mut command = tune(folder.path(), &["--mode", "compiled"]);
    let stdout = succeeds(command.args(settings.into_iter().flat_map(|set| ["--set", set])));
    assert!(stdout.contains("compiled: 2 fit"), "{stdout}");
}

#[test]
fn a_run_that_has_no_size_looks_for_one_once_and_keeps_it() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "global_batch_size = 6");
    messages.fails(kiln(folder.path()).args(["plan", "config.toml"]), 2);
    let stdout = succeeds(kiln(folder.path()).args(["train", "config.toml", "--set", "trainer.max_steps=1"]));
    assert!(stdout.contains("looking for one"), "{stdout}");
    assert!(stdout.contains("6 fit, and the run has no use for more than 6"), "{stdout}");
    assert!(stdout.contains("6 = 6 x 1 micro-batch x 1 device"), "{stdout}");
    // Another global batch has a use for more; this one is found to be enough for a smaller.
    let plan = |global: &str| {
        let mut command = kiln(folder.path());
        command.args(["plan", "config.toml", "--set", &format!("batch.global_batch_size={global}")]);
        command
    };
    messages.fails(plan("12"), 2);
    assert!(succeeds(&mut plan("4")).contains("4 is the largest divisor of 4 up to what fits: 6 fit"));
    // Nothing is kept any more, and the run goes on with what it began with.
    std::fs::remove_dir_all(folder.path().join("kiln-cache")).unwrap();
    let mut resume = kiln(folder.path());
    resume.args(["train", "config.toml", "--resume", "--set", "trainer.max_steps=1"]);
    let stdout = succeeds(&mut resume);
    assert!(stdout.contains("the size with which the run began") && !stdout.contains("looking for one"), "{stdout}");
}

#[test]
fn both_modes_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "scaling = \"grow\"");
    for both in
        [&["--mode", "both"][..], &["--compiler", "auto"], &["--set", "compiler.enabled=auto", "--mode", "both"]]
    {
        let stdout = succeeds(tune(folder.path(), both).args(["--start", "2", "--max", "2"]));
        assert!(stdout.contains("compiled fits 2, as many as native's 2: 1.00 times"), "{stdout}");
        assert!(stdout.contains("native: gpt2, ") && stdout.contains("compiled: gpt2, "), "{stdout}");
    }
    assert_eq!(
        (&stored(folder.path(), "native")["batch"], &stored(folder.path(), "compiled")["batch"]),
        (&2.into(), &2.into())
    );
}

#[test]
fn what_cannot_be_searched_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "scaling = \"grow\"");
    let path = folder.path();
    fails(
        &mut tune(path, &["--memory-budget", "8MiB"]),
        4,
        &["not even a batch of 1 trains in 8 MiB", "--memory-budget"],
    );
    fails(&mut tune(path, &["--memory-budget", "9000TiB"]), 2, &["MiB are free"]);
    fails(&mut tune(path, &["--memory-budget", "much"]), 2, &["--memory-budget", "got `much`", "2GiB"]);
    fails(&mut tune(path, &["--memory-reserve", "1.5"]), 2, &["--memory-reserve", "got 1.5"]);
    fails(&mut tune(path, &["--steps-per-trial", "1"]), 2, &["--steps-per-trial", "2 or more"]);
    fails(&mut tune(path, &["--mode", "fast"]), 2, &["--mode", "`fast`"]);
    fails(&mut tune(path, &["--time-limit", "0s", "--max", "2"]), 2, &["no size had trained", "--time-limit"]);
    fails(&mut tune(path, &["--time-limit", "400000000000y"]), 2, &["--time-limit", "up to ten years"]);
    // A failure that is not about memory ends the search with its own message and code.
    let diverges = ["--max", "2", "--set", "trainer.learning_rate=1e38"];
    fails(&mut tune(path, &diverges), 5, &["a trial failed", "expected finite numbers"]);
    assert!(!path.join("kiln-cache/batch-sizes").exists(), "nothing was kept");
}

#[test]
fn a_comparison_takes_the_size_that_was_found() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "scaling = \"grow\"");
    let compare = |more: &[&str]| {
        let mut command = kiln(folder.path());
        command.args(["compare", "config.toml", "--arms", "native,compiled-large", "--steps", "10", "--repeats", "2"]);
        command.args(["--set", "trainer.max_steps=30"]).args(more);
        command
    };
    messages.fails(compare(&[]), 2);
    succeeds(&mut tune(folder.path(), &["--mode", "compiled", "--start", "2", "--max", "3"]));
    // Without compiled at the native batch, the gate is about compiled at its own.
    let more = ["--set", "trainer.per_device_train_batch_size=2", "--gate", "speedup>0,total_speedup>0"];
    let stdout = succeeds(&mut compare(&more));
    let cells = |line: &str| line.split_whitespace().map(String::from).collect::<Vec<_>>();
    assert!(stdout.lines().any(|line| cells(line) == ["batch", "2", "3", "2"]), "{stdout}");
}
