//! Every fault that a run may meet in silence, injected: the run stops with its exit code, its
//! checkpoints are marked, and a bundle tells what happened.

use std::panic::catch_unwind;
use std::path::Path;

use crate::common::{fails, json, kiln, succeeds, text};
use kiln::OpenSession;
use kiln::trainer::{Callback, Progress};
use kiln::{Error, RunConfig, Session, Trainer};

/// A tiny BERT that predicts the numbers `labels`, in order, one a step.
fn write(folder: &Path, labels: &[f64], trainer: &str) {
    let rows = labels.iter().enumerate().map(|(i, label)| {
        format!(
            "{{\"input_ids\": [{}, 2, 3], \"labels\": {label:e}}}\n",
            if label.fract() == 0.5 { 1 } else { i % 9 + 1 }
        )
    });
    std::fs::write(folder.join("data.jsonl"), rows.collect::<String>()).unwrap();
    let config = format!(
        "[run]\noutput_dir = \"run\"\n[model]\nkind = \"bert\"\nnum_hidden_layers = 1\nnum_attention_heads = 1\n\
         hidden_size = 8\nintermediate_size = 16\nmax_position_embeddings = 8\nvocab_size = 16\n\
         hidden_dropout_prob = 0.0\nattention_probs_dropout_prob = 0.0\n[data]\ntask = \"regression\"\n\
         format = \"tokenized\"\ntrain = \"data.jsonl\"\nsampler = \"sequential\"\n[trainer]\nmax_steps = 12\n\
         per_device_train_batch_size = 1\nlr_scheduler_type = \"constant\"\n{trainer}\n[device]\nkind = \"cpu\"\n"
    );
    std::fs::write(folder.join("config.toml"), config).unwrap();
}

fn numbers(count: usize) -> Vec<f64> {
    (0..count).map(|i| (i % 5) as f64).collect()
}

fn suspects(run: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(run.join("checkpoints")).unwrap().map(|entry| entry.unwrap().path());
    let suspects = entries.filter(|path| path.join("suspect.txt").is_file());
    let mut names = suspects.map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect::<Vec<_>>();
    names.sort();
    names
}

/// Does something before one step.
struct Before(u64, fn());

impl Callback for Before {
    fn on_step_begin(&mut self, progress: &Progress) {
        if progress.step + 1 == self.0 {
            (self.1)();
        }
    }
}

/// Paths that this process finds too.
fn overrides(folder: &Path) -> [String; 2] {
    [
        format!("run.output_dir={:?}", folder.join("run").display().to_string()),
        format!("data.train={:?}", folder.join("data.jsonl").display().to_string()),
    ]
}

fn train_with(folder: &Path, before: Before) -> Error {
    let config = RunConfig::load_with(folder.join("config.toml"), &overrides(folder)).unwrap();
    Trainer::from_session(Session::open(config).unwrap()).unwrap().with_callback(before).train().unwrap_err()
}

#[test]
fn a_panic_that_is_caught_on_a_device_thread_stops_the_run() {
    let _alone = crate::one_at_a_time();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &numbers(20), "logging_steps = 4\nsave_steps = 2");
    let error = train_with(
        folder.path(),
        Before(7, || {
            // As cubecl's device server does it (burn#5352).
            let device = std::thread::Builder::new().name("DSD-0-0".into());
            device.spawn(|| drop(catch_unwind(|| panic!("the kernel was not launched")))).unwrap().join().unwrap();
        }),
    );
    let message = error.to_string();
    assert_eq!(error.exit_code(), 7, "{message}");
    assert!(message.contains("step 7: thread DSD-0-0 panicked at ") && message.contains("tests/library/guard.rs:"));
    assert!(message.contains("the kernel was not launched"), "{message}");
    let run = folder.path().join("run");
    assert_eq!(suspects(&run), ["step-000006"], "the last row that was seen is that of step 4");
    let report = json(&run.join("fault/report.json"));
    assert_eq!(
        (&report["step"], &report["exit_code"], &report["first_suspect_step"]),
        (&7.into(), &7.into(), &5.into())
    );
    assert_eq!(report["panics"][0]["message"], "the kernel was not launched");
    assert_eq!(
        report["shapes"][0],
        serde_json::json!({"rows": 1, "tokens": 3, "padded": false, "batches": 7, "first_step": 1})
    );
    // The choices by which the run computed.
    let choices = &report["choices"];
    assert!(choices["threads"].as_u64().unwrap() >= 1, "{choices}");
    assert!(["f32", "avx512-bf16", "amx-bf16"].contains(&choices["bf16_products"].as_str().unwrap()), "{choices}");
    let operators = choices["operators"].as_array().unwrap();
    assert_eq!(operators.len(), kiln_models::ops::FUSED.len(), "{choices}");
    assert!(operators.iter().all(|it| it["form"] == "plain" && it["because"].is_string()), "{choices}");
    assert!(report["tunings"].is_null(), "a CPU tunes no kernels");
    for file in ["plan.toml", "metrics.jsonl", "provenance.json", "run.log"] {
        assert!(run.join("fault").join(file).is_file(), "{file}");
    }
    assert!(std::fs::read_to_string(run.join("run.log")).unwrap().contains("marked as suspect: [6]"));

    let [output_dir, train] = overrides(folder.path());
    let mut resume = kiln(folder.path());
    resume.args(["train", "config.toml", "--resume", "--set", &output_dir, "--set", &train]);
    let output = resume.output().unwrap();
    let all = text(&output);
    assert!(output.status.success(), "{all}");
    assert!(all.contains("step-000006 is suspect and skipped: step 7: thread DSD-0-0 panicked"), "{all}");
    assert!(all.contains("continuing after step 4 from"), "{all}");
    assert!(suspects(&run).is_empty(), "the new checkpoint of step 6 has taken the place of the old one");
}

#[test]
fn a_panic_of_a_step_is_a_failed_run_with_a_message() {
    let _alone = crate::one_at_a_time();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &numbers(20), "logging_steps = 1\nsave_steps = 2");
    let error = train_with(folder.path(), Before(6, || panic!("the device is poisoned")));
    assert_eq!(error.exit_code(), 7);
    assert!(error.to_string().contains("step 6 panicked: the device is poisoned"), "{error}");
    let run = folder.path().join("run");
    assert_eq!(json(&run.join("status.json"))["status"], "Failed");
    assert!(run.join("fault/report.json").is_file() && suspects(&run).is_empty());
}

#[test]
fn a_loss_that_is_no_number_in_a_step_that_is_not_logged_is_found_and_dated() {
    let folder = tempfile::tempdir().unwrap();
    let mut labels = numbers(20);
    labels[6] = 1e30; // its square is beyond f32
    write(folder.path(), &labels, "logging_steps = 12\nsave_steps = 3");
    let mut train = kiln(folder.path());
    fails(
        train.args(["train", "config.toml"]),
        5,
        &["step 7: the loss or the gradient norm was no finite number; found at step 9"],
    );
    let run = folder.path().join("run");
    // It was found before a checkpoint, and no row had been written.
    let described = succeeds(kiln(folder.path()).args(["describe", "run"]));
    assert!(described.contains("steps          9 of 12"), "{described}");
    assert!(succeeds(kiln(folder.path()).args(["runs", "."])).contains(" 9/12 "));
    assert_eq!(json(&run.join("status.json"))["step"], 9);
    assert_eq!(suspects(&run), ["step-000006"], "its weights gave the loss of step 7");
    assert_eq!(json(&run.join("fault/report.json"))["suspect_checkpoints"], serde_json::json!([6]));
    // The last good one is step 3; a constant schedule may be shortened.
    let mut resume = kiln(folder.path());
    let stdout = succeeds(resume.args(["train", "config.toml", "--resume", "--set", "trainer.max_steps=5"]));
    assert!(stdout.contains("continuing after step 3 from"), "{stdout}");
}

/// There is no checkpoint and no row but one that holds what no JSON has.
#[test]
fn a_run_that_died_in_a_row_of_nan_says_where() {
    let folder = tempfile::tempdir().unwrap();
    let mut labels = numbers(20);
    labels[3] = 1e30;
    write(folder.path(), &labels, "logging_steps = 4\nsave_strategy = \"no\"");
    fails(kiln(folder.path()).args(["train", "config.toml"]), 5, &["step 4: the loss is inf"]);
    let described = succeeds(kiln(folder.path()).args(["describe", "run"]));
    assert!(described.contains("steps          4 of 12") && described.contains("step 4: loss inf"), "{described}");
}

#[test]
fn a_loss_that_is_frozen_to_the_bit_stops_the_run_and_the_good_checkpoint_stays() {
    let folder = tempfile::tempdir().unwrap();
    // Equal rows and updates below f32's last bit.
    write(folder.path(), &[0.5; 20], "learning_rate = 1e-30\nlogging_steps = 1\nsave_steps = 1\nsave_total_limit = 1");
    let parts = ["step 4: loss ", "are the same to the bit since step 1", "the run learns nothing"];
    fails(kiln(folder.path()).args(["train", "config.toml"]), 7, &parts);
    let run = folder.path().join("run");
    assert_eq!(suspects(&run), ["step-000003"]);
    assert!(run.join("checkpoints/step-000001").is_dir(), "the limit of 1 has not removed it");
}

#[test]
fn weights_that_do_not_move_stop_the_run() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &numbers(20), "learning_rate = 1e-60\nlogging_steps = 2\nsave_strategy = \"no\"");
    let parts = ["step 8: no weight has moved at a learning rate of", "since step 2"];
    fails(kiln(folder.path()).args(["train", "config.toml"]), 7, &parts);
}
