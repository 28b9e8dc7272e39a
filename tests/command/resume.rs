//! N + M steps equal N steps, a stop and M steps, bit for bit on the CPU, through the binary:
//! weights, moments and rows. And what a resumed run refuses.

use std::path::{Path, PathBuf};

use crate::common::messages::messages;
use crate::common::small_run::{copy, figures, seal, train, write};
use crate::common::{fails, json, kiln, succeeds};

fn same_run(a: &Path, b: &Path) {
    assert_eq!(figures(a), figures(b));
    for file in [
        "model/model.safetensors",
        "checkpoints/step-000014/model.safetensors",
        "checkpoints/step-000014/optimizer.safetensors",
    ] {
        assert!(std::fs::read(a.join(file)).unwrap() == std::fs::read(b.join(file)).unwrap(), "{file} differs");
    }
}

/// `run` after a crash between step 7 and the end: the last checkpoint is gone, the rows after step
/// 7 are still there.
fn crashed(folder: &Path) -> PathBuf {
    let run = folder.join("crashed");
    copy(&folder.join("run"), &run);
    std::fs::remove_dir_all(run.join("checkpoints/step-000014")).unwrap();
    std::fs::remove_dir_all(run.join("model")).unwrap();
    run
}

fn continues_exactly(task: &str) {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), task);
    succeeds(&mut train(folder.path(), "run", &[]));
    let run = crashed(folder.path());
    let stdout = succeeds(&mut train(folder.path(), "crashed", &["--resume"]));
    assert!(stdout.contains("continuing after step 7 from"), "{stdout}");
    same_run(&folder.path().join("run"), &run);
    // From the plan that the run wrote, which states every default.
    crashed(folder.path());
    let mut from_plan = kiln(folder.path());
    from_plan.args(["train", "run/plan.toml", "--resume", "--set", "run.output_dir=crashed"]);
    succeeds(&mut from_plan);
    same_run(&folder.path().join("run"), &run);
}

#[test]
fn clm_continues_exactly() {
    continues_exactly("clm");
}

#[test]
fn mlm_continues_exactly() {
    continues_exactly("mlm");
}

#[test]
fn classification_continues_exactly() {
    continues_exactly("sequence-classification");
}

#[test]
fn regression_continues_exactly() {
    continues_exactly("regression");
}

#[test]
fn question_answering_continues_exactly() {
    continues_exactly("question-answering");
}

#[test]
fn token_classification_continues_exactly() {
    continues_exactly("token-classification");
}

#[test]
fn multi_label_classification_continues_exactly() {
    continues_exactly("multi-label-classification");
}

#[test]
fn multiple_choice_continues_exactly() {
    continues_exactly("multiple-choice");
}

/// The checkpoint after step 7 lies between the rows of steps 5 and 10.
#[test]
fn rows_over_several_steps_continue_exactly() {
    for precision in ["f32", "f16"] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "clm");
        let rows = ["--precision", precision, "--set", "trainer.logging_steps=5"];
        succeeds(&mut train(folder.path(), "run", &rows));
        let run = crashed(folder.path());
        succeeds(train(folder.path(), "crashed", &rows).arg("--resume"));
        same_run(&folder.path().join("run"), &run);
        let every = ["--precision", precision, "--set", "trainer.logging_steps=1"];
        succeeds(&mut train(folder.path(), "every", &every));
        let loss = |run: &str| {
            let rows = figures(&folder.path().join(run)).into_iter();
            rows.filter_map(|row| Some((row["step"].as_u64()?, row["loss"].as_f64()?))).collect::<Vec<_>>()
        };
        let (every, windows) = (loss("every"), loss("crashed"));
        assert_eq!(windows.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [5, 10, 14]);
        for (range, (step, loss)) in [0..5, 5..10, 10..14].into_iter().zip(windows) {
            let mean = every[range.clone()].iter().map(|(_, loss)| loss).sum::<f64>() / range.len() as f64;
            assert!((loss / mean - 1.0).abs() < 1e-6, "{precision}, step {step}: {loss} is not {mean}");
        }
    }
}

#[test]
fn damaged_checkpoints_are_skipped() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    succeeds(&mut train(folder.path(), "run", &[]));
    let last = folder.path().join("run/checkpoints/step-000014");
    type Damage = fn(&Path);
    fn state(last: &Path, from: &str, to: &str) {
        let file = last.join("state.json");
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains(from), "{from} in {text}");
        std::fs::write(file, text.replacen(from, to, 1)).unwrap();
    }
    let damages: [(&str, Damage); 13] = [
        ("does not match its checksum", |last| {
            let file = last.join("optimizer.safetensors");
            let mut bytes = std::fs::read(&file).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            std::fs::write(file, bytes).unwrap();
        }),
        ("bytes, expected", |last| {
            let file = std::fs::File::options().write(true).open(last.join("model.safetensors")).unwrap();
            file.set_len(100).unwrap();
        }),
        ("model.safetensors is missing", |last| std::fs::remove_file(last.join("model.safetensors")).unwrap()),
        ("state.json", |last| std::fs::write(last.join("state.json"), "{\"step\": 1").unwrap()),
        // One digit or word, each of them a run that is elsewhere or another.
        ("state.json does not match", |last| state(last, "\"step\": 14", "\"step\": 13")),
        ("state.json does not match", |last| state(last, "\"index\": 12", "\"index\": 11")),
        ("state.json does not match", |last| state(last, "\"metrics_rows\": 1", "\"metrics_rows\": 0")),
        ("state.json does not match", |last| state(last, "\"trainer.seed\": 42", "\"trainer.seed\": 43")),
        ("state.sha256 is missing", |last| std::fs::remove_file(last.join("state.sha256")).unwrap()),
        // Numbers that cannot be, in a file whose digest is right.
        ("step: expected at most", |last| {
            state(last, "\"step\": 14", "\"step\": 9223372036854775808");
            seal(last);
        }),
        ("position.index: expected at most 20", |last| {
            state(last, "\"index\": 12", "\"index\": 4294967296");
            seal(last);
        }),
        ("is no name of a file", |last| {
            state(last, "\"config.json\"", "\"../config.json\"");
            state(last, "\"files\": {", "\"files\": {\"config.json\": {\"bytes\": 1, \"sha256\": \"\"},");
            seal(last);
        }),
        ("it is the checkpoint of step 7", |last| {
            std::fs::remove_dir_all(last).unwrap();
            copy(&last.with_file_name("step-000007"), last);
        }),
    ];
    let whole = folder.path().join("whole");
    copy(&last, &whole);
    for (message, damage) in damages {
        damage(&last);
        let output = train(folder.path(), "run", &["--resume"]).output().unwrap();
        let text = crate::common::text(&output);
        assert!(output.status.success() && text.contains(message) && text.contains("after step 7"), "{text}");
        let file = |run: &Path| std::fs::read(run.join("model.safetensors")).unwrap();
        assert!(file(&last) == file(&whole), "{message}");
    }
    assert_eq!(std::fs::read_dir(folder.path().join("run/checkpoints")).unwrap().count(), 2, "nothing is left over");
    // How the run stands is in its checkpoints: a damaged `status.json` is written again.
    std::fs::write(folder.path().join("run/status.json"), "{").unwrap();
    let output = train(folder.path(), "run", &["--resume"]).output().unwrap();
    let text = crate::common::text(&output);
    assert!(output.status.success() && text.contains("status.json: ") && text.contains("after step 14"), "{text}");
    assert_eq!(json(&folder.path().join("run/status.json"))["status"], "Completed");
}

/// Rows, lists and small files of a run folder that are lost or damaged bar no run whose
/// checkpoints are whole: it ends with the same weights, the rows that can be read stay, and what
/// was there is kept.
#[cfg(unix)]
#[test]
fn a_damaged_run_folder_continues_from_its_newest_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    succeeds(&mut train(folder.path(), "run", &[]));
    let whole = folder.path().join("run");
    let mine = |run: &Path| run.join("model-notes.txt");
    type Damage = fn(&Path);
    fn changed(file: &Path, change: impl Fn(&mut Vec<u8>)) {
        let mut bytes = std::fs::read(file).unwrap();
        change(&mut bytes);
        std::fs::write(file, bytes).unwrap();
    }
    fn replaced(file: &Path, kind: &str) {
        std::fs::remove_file(file).unwrap();
        match kind {
            "loop" => std::os::unix::fs::symlink(file, file).unwrap(),
            "lost" => std::os::unix::fs::symlink("no/such/folder/file", file).unwrap(),
            "folder" => {
                std::fs::create_dir(file).unwrap();
                std::fs::write(file.join("notes.txt"), "mine").unwrap();
            }
            _ => assert!(std::process::Command::new("mkfifo").arg(file).status().unwrap().success()),
        }
    }
    let damages: [(&str, &str, Damage); 20] = [
        ("metrics.jsonl", "it is missing", |file| std::fs::remove_file(file).unwrap()),
        ("metrics.jsonl", "it has 0 of them", |file| std::fs::write(file, "").unwrap()),
        ("metrics.jsonl", "that can be read", |file| changed(file, |bytes| bytes.truncate(bytes.len() / 3))),
        ("metrics.jsonl", "it has 1 of them", |file| changed(file, |bytes| bytes.truncate(300))),
        ("metrics.jsonl", "that can be read", |file| changed(file, |bytes| bytes[0] ^= 1)),
        ("metrics.jsonl", "that can be read", |file| changed(file, |bytes| bytes[300] |= 128)),
        ("metrics.jsonl", "it is no regular file", |file| replaced(file, "pipe")),
        ("metrics.jsonl", "rows up to step 7", |file| replaced(file, "loop")),
        ("metrics.jsonl", "it is no regular file", |file| replaced(file, "folder")),
        (".lock", "does not list which", |file| changed(file, |bytes| bytes[3] ^= 4)),
        (".lock", "does not list which", |file| changed(file, |bytes| bytes.truncate(bytes.len() / 2))),
        (".lock", "does not list which", |file| std::fs::write(file, "").unwrap()),
        (".lock", "does not list which", |file| replaced(file, "loop")),
        (".lock", "does not list which", |file| replaced(file, "pipe")),
        ("status.json", "is no regular file, is now", |file| replaced(file, "loop")),
        ("plan.toml", "is no regular file, is now", |file| replaced(file, "loop")),
        ("plan.toml", "is no regular file, is now", |file| replaced(file, "pipe")),
        ("plan.toml", "is no regular file, is now", |file| replaced(file, "lost")),
        ("status.json", "is no regular file, is now", |file| replaced(file, "lost")),
        ("run.log", "is no regular file, is now", |file| replaced(file, "pipe")),
    ];
    for (name, message, damage) in damages {
        let _ = std::fs::remove_dir_all(folder.path().join("crashed"));
        let run = crashed(folder.path());
        std::fs::write(mine(&run), "mine").unwrap();
        damage(&run.join(name));
        let before = run.join(name).is_file().then(|| std::fs::read(run.join(name)).unwrap());
        let mut resume = train(folder.path(), "crashed", &["--resume"]);
        let output = resume.output().unwrap();
        let text = crate::common::text(&output);
        assert!(output.status.success() && text.contains("continuing after step 7"), "{name}, {message}: {text}");
        assert_eq!(text.matches(message).count(), 1, "{name}, {message}: {text}");
        for file in ["model/model.safetensors", "checkpoints/step-000014/optimizer.safetensors"] {
            assert!(
                std::fs::read(run.join(file)).unwrap() == std::fs::read(whole.join(file)).unwrap(),
                "{file} differs"
            );
        }
        assert_eq!(std::fs::read_to_string(mine(&run)).unwrap(), "mine");
        // Every row is one of the whole run's, those after the checkpoint are all there, and no
        // other file has others.
        let (rows, all) = (figures(&run), figures(&whole));
        let step = |row: &serde_json::Value| row["step"].as_u64().unwrap();
        assert!(rows.iter().all(|row| all.contains(row)), "{name}, {message}");
        let after = |rows: &[serde_json::Value]| rows.iter().filter(|row| step(row) > 7).cloned().collect::<Vec<_>>();
        assert_eq!(after(&rows), after(&all));
        assert_eq!(json(&run.join("trainer_state.json"))["log_history"].as_array().unwrap().len(), rows.len());
        let aside = run.join(format!("{name}.damaged-1"));
        if let Some(before) = before.filter(|bytes| !bytes.is_empty() && !bytes.starts_with(b"Kiln's")) {
            assert!(std::fs::read(&aside).unwrap() == before, "{name}, {message}");
        }
        let missing = message == "it is missing";
        assert!(name == ".lock" || missing || std::fs::symlink_metadata(&aside).is_ok(), "{name}, {message}");
        // It is a whole run folder again.
        let again = text_of(&mut train(folder.path(), "crashed", &["--resume"]));
        assert!(!again.contains("warning"), "{again}");
        succeeds(&mut train(folder.path(), "crashed", &["--set", "run.on_existing=overwrite"]));
        same_run(&whole, &run);
        assert_eq!(std::fs::read_to_string(mine(&run)).unwrap(), "mine");
        if message == "it is no regular file" && aside.is_dir() {
            assert_eq!(std::fs::read_to_string(aside.join("notes.txt")).unwrap(), "mine");
        }
    }
}

/// The list may end at any of its lines: a run that is complete says so, and its model stays.
#[test]
fn a_list_that_ends_early_bars_no_run() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    succeeds(&mut train(folder.path(), "run", &[]));
    let lock = folder.path().join("run/.lock");
    let whole = std::fs::read_to_string(&lock).unwrap();
    let before = whole.find("model/").unwrap();
    assert!(whole[..before].contains("checkpoints/"), "{whole}");
    let model = std::fs::read(folder.path().join("run/model/model.safetensors")).unwrap();
    for cut in [before, whole.find('\n').unwrap() + 1] {
        std::fs::write(&lock, &whole[..cut]).unwrap();
        let said = text_of(&mut train(folder.path(), "run", &["--resume"]));
        assert!(said.contains("does not list which"), "{said}");
        assert!(std::fs::read(folder.path().join("run/model/model.safetensors")).unwrap() == model);
        assert!(!text_of(&mut train(folder.path(), "run", &["--resume"])).contains("warning"));
        text_of(&mut train(folder.path(), "run", &["--set", "run.on_existing=overwrite"]));
        assert_eq!(std::fs::read_to_string(&lock).unwrap(), whole);
    }
}

/// Nothing is trained where no checkpoint could be written.
#[cfg(unix)]
#[test]
fn checkpoints_that_are_no_folder_are_refused() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    succeeds(&mut train(folder.path(), "run", &[]));
    let checkpoints = folder.path().join("run/checkpoints");
    std::fs::remove_dir_all(&checkpoints).unwrap();
    for target in ["checkpoints", "no/such/folder", "plan.toml"] {
        std::os::unix::fs::symlink(target, &checkpoints).unwrap();
        for more in [&["--resume"][..], &["--set", "run.on_existing=overwrite"]] {
            messages.fails(train(folder.path(), "run", more), 3);
        }
        std::fs::remove_file(&checkpoints).unwrap();
    }
}

/// Files that a user has put into a checkpoint stay when the checkpoint is removed: by rotation, by
/// a resumed run that began at an earlier one, and by `overwrite`.
#[test]
fn a_file_of_the_users_outlives_its_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    succeeds(&mut train(folder.path(), "run", &[]));
    let at = |name: &str| folder.path().join("run/checkpoints").join(name);
    for step in ["step-000007", "step-000014"] {
        std::fs::write(at(step).join("notes.txt"), step).unwrap();
        std::fs::create_dir(at(step).join("plots")).unwrap();
        std::fs::write(at(step).join("plots/loss.svg"), step).unwrap();
    }
    std::fs::write(at("step-000014/state.json"), "{").unwrap();
    let said = text_of(&mut train(folder.path(), "run", &["--resume", "--set", "trainer.save_total_limit=1"]));
    assert!(said.contains("continuing after step 7"), "{said}");
    let kept = |name: &str| std::fs::read_to_string(at(name)).unwrap();
    for step in ["step-000007", "step-000014"] {
        assert!(
            said.contains(&format!("the checkpoint {step} is removed, and what Kiln has not written in it")),
            "{said}"
        );
        let aside = format!("{step}.kept-1");
        assert_eq!(kept(&format!("{aside}/notes.txt")) + &kept(&format!("{aside}/plots/loss.svg")), step.repeat(2));
        assert_eq!(std::fs::read_dir(at(&aside)).unwrap().count(), 2, "Kiln's own files are gone");
    }
    assert_eq!(std::fs::read_dir(at("")).unwrap().count(), 3);
    std::fs::write(at("step-000014/notes.txt"), "new").unwrap();
    text_of(&mut train(folder.path(), "run", &["--set", "run.on_existing=overwrite"]));
    assert_eq!(kept("step-000014.kept-2/notes.txt") + &kept("step-000014.kept-1/notes.txt"), "newstep-000014");
}

fn text_of(command: &mut std::process::Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", crate::common::text(&output));
    crate::common::text(&output)
}

/// A file or folder that has the name of a checkpoint but is none is passed over, and is not
/// removed either.
#[cfg(unix)]
#[test]
fn what_is_no_checkpoint_is_passed_over_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    succeeds(&mut train(folder.path(), "run", &[]));
    let last = folder.path().join("run/checkpoints/step-000014");
    let weights = std::fs::read(last.join("model.safetensors")).unwrap();
    for kind in ["file", "loop"] {
        std::fs::remove_dir_all(&last).unwrap();
        match kind {
            "file" => std::fs::write(&last, "mine").unwrap(),
            _ => std::os::unix::fs::symlink(&last, &last).unwrap(),
        }
        std::fs::write(folder.path().join("run/checkpoints/step-000099"), "mine too").unwrap();
        let output = train(folder.path(), "run", &["--resume"]).output().unwrap();
        let text = crate::common::text(&output);
        assert!(output.status.success() && text.contains("continuing after step 7"), "{text}");
        assert!(text.contains("step-000014 is damaged (state.json: "), "{text}");
        assert!(std::fs::read(last.join("model.safetensors")).unwrap() == weights);
    }
    let kept = |name: &str| std::fs::read_to_string(last.with_file_name(name)).unwrap();
    assert_eq!((kept("step-000014.kept-1"), kept("step-000099")), ("mine".into(), "mine too".into()));
    assert!(last.with_file_name("step-000014.kept-2").is_symlink());
}

/// One number of one row of two thousand, and then of the data that the run is only evaluated on.
#[test]
fn a_change_anywhere_in_the_data_is_seen() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let rows = |changed: Option<usize>| {
        let row =
            |i: usize| format!("{{\"input_ids\": [{}, {}, 3]}}\n", i % 29 + 1, if changed == Some(i) { 30 } else { 2 });
        (0..2000).map(row).collect::<String>()
    };
    let write = |name: &str, changed| std::fs::write(folder.path().join(name), rows(changed)).unwrap();
    write("data.jsonl", None);
    write("validation.jsonl", None);
    let sets = ["--set", "data.validation=[\"validation.jsonl\"]", "--set", "trainer.eval_strategy=no"];
    let sets =
        [&sets[..], &["--set", "trainer.lr_scheduler_type=constant", "--set", "trainer.warmup_steps=0"]].concat();
    let run = |steps: &str, more: &[&str]| {
        let mut command = train(folder.path(), "run", &[&sets, more].concat());
        command.args(["--set", &format!("trainer.max_steps={steps}")]);
        command
    };
    succeeds(&mut run("1", &[]));
    for changed in [1, 700, 1999] {
        write("data.jsonl", Some(changed));
        messages.fails(run("2", &["--resume"]), 2);
    }
    write("data.jsonl", None);
    write("validation.jsonl", Some(700));
    let output = run("2", &["--resume"]).output().unwrap();
    let text = crate::common::text(&output);
    assert!(output.status.success() && text.contains("warning: the validation data have changed"), "{text}");
}

#[test]
fn what_would_break_the_promise_is_refused_by_name() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    succeeds(&mut train(folder.path(), "run", &["--set", "trainer.save_steps=5", "--set", "trainer.max_steps=9"]));
    let before = std::fs::read(folder.path().join("run/metrics.jsonl")).unwrap();
    for set in [
        "trainer.seed=7",
        "trainer.learning_rate=2e-3",
        "trainer.lr_scheduler_type=cosine",
        "trainer.max_steps=8",
        "trainer.warmup_steps=2",
        "model.n_layer=3",
        "model.attn_pdrop=0.0",
        "data.sampler=sequential",
        "data.validation=\"10%\"",
    ] {
        let mut command = train(folder.path(), "run", &["--resume", "--set", "trainer.max_steps=9", "--set", set]);
        messages.fails(&mut command, 2);
    }
    // A warm-up and a learning rate that are given do not follow from another length or another
    // batch.
    let scaled = ["learning_rate.scaling=linear", "learning_rate.reference_batch=3", "trainer.learning_rate=0.05"];
    let scaled = [&scaled[..], &["trainer.gradient_accumulation_steps=1", "trainer.max_steps=20"]].concat();
    for sets in [&["trainer.max_steps=20", "trainer.warmup_steps=2"][..], &scaled] {
        let mut command = train(folder.path(), "run", &["--resume"]);
        messages.fails(command.args(sets.iter().flat_map(|set| ["--set", set])), 2);
    }
    let data = folder.path().join("data.jsonl");
    let text = std::fs::read_to_string(&data).unwrap();
    std::fs::write(&data, text.replace("[1,", "[2,")).unwrap();
    let resume = ["--resume", "--set", "trainer.max_steps=9"];
    messages.fails(train(folder.path(), "run", &resume), 2);
    std::fs::write(&data, text).unwrap();
    assert_eq!(std::fs::read(folder.path().join("run/metrics.jsonl")).unwrap(), before, "nothing was touched");

    // Settings that change no weight may differ in a resumed run.
    for set in [
        "trainer.logging_steps=2",
        "trainer.save_total_limit=1",
        "trainer.eval_strategy=epoch",
        "trainer.max_minutes=9",
    ] {
        succeeds(train(folder.path(), "run", &resume).args(["--set", set]));
    }
    assert!(!folder.path().join("run/checkpoints/step-000020").exists());

    let state = folder.path().join("run/checkpoints/step-000009/state.json");
    let text = std::fs::read_to_string(&state).unwrap();
    std::fs::write(&state, text.replace("\"format_version\": 2", "\"format_version\": 99")).unwrap();
    seal(state.parent().unwrap());
    messages.fails(train(folder.path(), "run", &resume), 3);
    // The first version had no digest of its state.
    std::fs::write(&state, text.replace("\"format_version\": 2", "\"format_version\": 1")).unwrap();
    std::fs::remove_file(state.with_extension("sha256")).unwrap();
    messages.fails(train(folder.path(), "run", &resume), 3);
}

#[test]
fn another_micro_batch_at_the_same_global_batch() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    // Dropout is drawn for each micro-batch, so without it nothing differs but the order of sums.
    let no_dropout = ["resid_pdrop", "embd_pdrop", "attn_pdrop"].map(|name| format!("model.{name}=0.0"));
    let sets = no_dropout.iter().flat_map(|set| ["--set", set]).collect::<Vec<_>>();
    succeeds(&mut train(folder.path(), "run", &sets));
    let run = crashed(folder.path());
    let other = ["trainer.per_device_train_batch_size=6", "trainer.gradient_accumulation_steps=1"];
    let other = other.iter().flat_map(|set| ["--set", set]);
    succeeds(train(folder.path(), "crashed", &sets).args(other.clone()).arg("--resume"));
    let (whole, resumed) = (figures(&folder.path().join("run")), figures(&run));
    assert_eq!(whole.len(), resumed.len());
    for (a, b) in whole.iter().zip(&resumed) {
        assert_eq!((&a["step"], &a["epoch"], &a["samples"]), (&b["step"], &b["epoch"], &b["samples"]));
        for name in ["loss", "eval_loss", "grad_norm"] {
            let (Some(a), Some(b)) = (a[name].as_f64(), b[name].as_f64()) else { continue };
            // Rounding of f32 sums, carried through seven steps of AdamW.
            assert!((a - b).abs() <= 1e-4 * a.abs(), "{name}: {a} and {b}");
        }
    }

    // Where the loss depends on how a step is cut, the cut is part of the promise.
    write(folder.path(), "regression");
    let cut = ["--set", "trainer.max_steps=3", "--set", "trainer.accumulation=transformers"];
    succeeds(&mut train(folder.path(), "cut", &cut));
    let mut command = train(folder.path(), "cut", &cut);
    messages.fails(command.arg("--resume").args(other), 2);
    let mut command = train(folder.path(), "cut", &cut[..2]);
    messages.fails(command.arg("--resume"), 2);
}

#[test]
fn a_constant_schedule_can_be_extended() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let constant = ["--set", "trainer.lr_scheduler_type=constant_with_warmup"];
    succeeds(&mut train(folder.path(), "run", &constant));
    succeeds(train(folder.path(), "short", &constant).args(["--set", "trainer.max_steps=7"]));
    succeeds(train(folder.path(), "short", &constant).arg("--resume"));
    let file = |run: &str| std::fs::read(folder.path().join(run).join("model/model.safetensors")).unwrap();
    assert!(file("run") == file("short"));
}

#[test]
fn a_complete_run_is_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    succeeds(&mut train(folder.path(), "run", &[]));
    let state = || {
        let files = ["metrics.jsonl", "all_results.json", "status.json", "trainer_state.json", "run.log", "plan.toml"];
        files.map(|file| std::fs::read(folder.path().join("run").join(file)).unwrap())
    };
    let before = state();
    let stdout = succeeds(&mut train(folder.path(), "run", &["--resume"]));
    assert!(stdout.contains("complete after step 14, nothing to continue"), "{stdout}");
    assert!(stdout.contains("'train_runtime'"), "{stdout}");
    assert!(state() == before);
}

/// The system's clock was set back between two processes of a run: what they wrote lies in the
/// future.
#[test]
fn a_clock_that_went_back_does_not_matter() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    succeeds(&mut train(folder.path(), "run", &[]));
    let run = crashed(folder.path());
    let year_2100 = std::time::UNIX_EPOCH + std::time::Duration::from_secs(4_102_444_800);
    let mut status = json(&run.join("status.json"));
    status["started_at"] = 4_102_444_800.0.into();
    status["written_at"] = 4_102_444_900.0.into();
    std::fs::write(run.join("status.json"), status.to_string()).unwrap();
    let mut folders = vec![run.clone()];
    while let Some(inner) = folders.pop() {
        for entry in std::fs::read_dir(inner).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else {
                let file = std::fs::File::options().append(true).open(entry.path()).unwrap();
                file.set_modified(year_2100).unwrap();
            }
        }
    }
    succeeds(&mut train(folder.path(), "crashed", &["--resume"]));
    same_run(&run, &folder.path().join("run"));
    let seconds = json(&run.join("status.json"))["seconds"].as_f64().unwrap();
    assert!((0.0..3600.0).contains(&seconds), "{seconds}");
}

/// `--resume` continues; `run.on_existing = "resume"` also begins, for those who start the same
/// command every time.
#[test]
fn without_a_checkpoint_a_run_begins_where_the_config_says_so() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let steps = ["--set", "trainer.max_steps=3"];
    let begins = ["--set", "run.on_existing=resume"];
    let run = |run: &str, more: &[&[&str]]| train(folder.path(), run, &[&[&steps[..]], more].concat().concat());
    let parts = ["--resume: nothing to continue: the run folder typo does not exist", "run.on_existing = \"resume\""];
    fails(&mut run("typo", &[&["--resume"]]), 2, &parts);
    assert!(!folder.path().join("typo").exists());
    succeeds(&mut run("both", &[&["--resume"], &begins]));
    succeeds(&mut run("run", &[&begins]));
    assert!(text_of(&mut run("run", &[&["--resume"]])).contains("nothing to continue"));
    assert!(folder.path().join("run/model/config.json").is_file());

    // A run that was killed before its first checkpoint.
    let killed = folder.path().join("killed");
    copy(&folder.path().join("run"), &killed);
    ["checkpoints", "model"].iter().for_each(|name| std::fs::remove_dir_all(killed.join(name)).unwrap());
    let rows = std::fs::read(killed.join("metrics.jsonl")).unwrap();
    fails(&mut run("killed", &[&["--resume"]]), 2, &["the run folder killed holds no checkpoint"]);
    assert!(std::fs::read(killed.join("metrics.jsonl")).unwrap() == rows && !killed.join("checkpoints").exists());
    succeeds(&mut run("killed", &[&begins]));
    assert!(killed.join("model/config.json").is_file());

    // A run folder without a whole checkpoint is not replaced by a run with `--resume`.
    std::fs::remove_dir_all(folder.path().join("run/checkpoints")).unwrap();
    let before = std::fs::read(folder.path().join("run/model/model.safetensors")).unwrap();
    let resume = ["--resume", "--set", "trainer.max_steps=3"];
    messages.fails(train(folder.path(), "run", &resume), 3);
    assert!(std::fs::read(folder.path().join("run/model/model.safetensors")).unwrap() == before);
    let foreign = folder.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("thesis.txt"), "dear").unwrap();
    messages.fails(train(folder.path(), "foreign", &["--resume"]), 2);
    assert_eq!(std::fs::read_dir(&foreign).unwrap().count(), 1);
}

/// The learning rate of each step of a run.
fn rates(folder: &Path, run: &str) -> Vec<f64> {
    crate::common::train_rows(&folder.join(run)).iter().map(|row| row["learning_rate"].as_f64().unwrap()).collect()
}

#[test]
fn a_run_goes_on_to_another_end_by_the_schedule_that_transformers_makes() {
    let fixtures = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/fixtures");
    for case in json(&fixtures.join("longer.json")).as_array().unwrap() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "clm");
        let run = |total: &str, more: &[&str]| {
            let mut command = train(folder.path(), "run", more);
            for key in ["lr_scheduler_type", "warmup_steps"] {
                command.args(["--set", &format!("trainer.{key}={}", case[key])]);
            }
            succeeds(
                command.args(["--set", &format!("trainer.max_steps={}", case[total])]).args(["--log-format", "dict"]),
            )
        };
        run("planned", &[]);
        let from = format!("run/checkpoints/step-{:06}", case["from"].as_u64().unwrap());
        run("total", &["--resume-from", &from]);
        let expected = case["learning_rate"].as_array().unwrap().iter().map(|rate| rate.as_f64().unwrap());
        let expected = expected.collect::<Vec<_>>();
        let rates = rates(folder.path(), "run");
        assert_eq!(rates.len() as u64, case["total"].as_u64().unwrap());
        // The first step of theirs still has the rate that the old schedule left in the optimizer's
        // state.
        for (ours, theirs) in rates[rates.len() - expected.len()..].iter().zip(&expected).skip(1) {
            assert!((ours - theirs).abs() <= 1e-9 * theirs.abs().max(1e-9), "{case}: {ours} {theirs}");
        }
    }
}

#[test]
fn a_run_goes_on_with_another_global_batch_where_its_examples_are() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    // 20 training examples: an epoch has 4 steps of 6 examples, of which the last is smaller, or 7
    // of 3.
    let epochs = [
        "--set",
        "trainer.max_steps=-1",
        "--set",
        "trainer.num_train_epochs=4",
        "--set",
        "trainer.save_steps=6",
        "--set",
        "trainer.warmup_steps=0",
        "--log-format",
        "dict",
    ];
    let small = [&epochs[..], &["--set", "trainer.gradient_accumulation_steps=1"]].concat();
    succeeds(&mut train(folder.path(), "large", &epochs));
    succeeds(&mut train(folder.path(), "small", &small));
    let (large, whole) = (rates(folder.path(), "large"), rates(folder.path(), "small"));
    assert_eq!((large.len(), whole.len()), (16, 28));
    // Step 6 of 16 stands at example 12 of epoch 2, which is step 11 of 28: 17 follow, with their
    // learning rates.
    let output =
        train(folder.path(), "large", &[&small[..], &["--resume-from", "large/checkpoints/step-000006"]].concat());
    let output = { output }.output().unwrap();
    let text = crate::common::text(&output);
    assert!(output.status.success() && text.contains("with 3 examples in an optimizer step, which were 6"), "{text}");
    let smaller = rates(folder.path(), "large");
    assert_eq!(smaller.len(), 6 + 17);
    assert_eq!(smaller[6..], whole[11..]);
    let last = crate::common::train_rows(&folder.path().join("large")).pop().unwrap();
    assert_eq!((last["step"].as_u64(), last["epoch"].as_f64()), (Some(23), Some(4.0)));
    // And back, in a folder of its own, from a checkpoint that was saved on the way: step 18 is
    // step 23 of 28, at example 6 of epoch 4, that is step 13 of 16.
    let back =
        train(folder.path(), "back", &[&epochs[..], &["--resume-from", "large/checkpoints/step-000018"]].concat());
    succeeds(&mut { back });
    let back = rates(folder.path(), "back");
    assert_eq!(back[..18], smaller[..18]);
    assert_eq!(back[18..], large[13..]);
    assert!(folder.path().join("large/checkpoints/step-000018").is_dir(), "the other run is as it was");
    // A checkpoint of another run is no checkpoint of a run that has its own, and a folder of
    // another program is none at all.
    let other =
        train(folder.path(), "small", &[&small[..], &["--resume-from", "large/checkpoints/step-000006"]].concat());
    messages.fails(&mut { other }, 2);
    std::fs::create_dir(folder.path().join("checkpoint-500")).unwrap();
    let foreign = train(folder.path(), "new", &["--resume-from", "checkpoint-500"]);
    messages.fails(&mut { foreign }, 2);
}

#[test]
fn another_global_batch_within_an_epoch_ends_with_the_planned_examples() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let sets = ["trainer.max_steps=-1", "trainer.num_train_epochs=1", "trainer.warmup_steps=0", "trainer.save_steps=3"];
    let sets = [&sets[..], &["trainer.gradient_accumulation_steps=1"]].concat();
    let sets = sets.iter().flat_map(|set| ["--set", set]).collect::<Vec<_>>();
    succeeds(&mut train(folder.path(), "run", &sets));
    // 9 of 20 examples in batches of 3, and the other 11 in batches of 6 and 5.
    let other = [&sets[..], &["--set", "trainer.gradient_accumulation_steps=2"]].concat();
    let from = ["--resume-from", "run/checkpoints/step-000003"];
    succeeds(&mut train(folder.path(), "other", &[&other[..], &from].concat()));
    let last = crate::common::train_rows(&folder.path().join("other")).pop().unwrap();
    let last = ["step", "samples", "epoch"].map(|key| last[key].as_f64());
    assert_eq!(last, [5.0, 20.0, 1.0].map(Some));

    let by_length = [&sets[..], &["--set", "data.sampler=group_by_length"]].concat();
    succeeds(&mut train(folder.path(), "lengths", &by_length));
    let other = [&other[..], &["--set", "data.sampler=group_by_length"]].concat();
    let from = ["--resume-from", "lengths/checkpoints/step-000003"];
    messages.fails(train(folder.path(), "lengths", &[&other[..], &from].concat()), 2);
}

/// A folder that holds a run, whatever became of it, is none for a checkpoint of another run.
#[test]
fn a_checkpoint_of_another_run_replaces_no_run() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    succeeds(&mut train(folder.path(), "run", &[]));
    succeeds(&mut train(folder.path(), "finished", &["--set", "trainer.save_strategy=no", "--set", "trainer.seed=7"]));
    assert!(!folder.path().join("finished/checkpoints").exists());
    let state = || {
        let files = ["metrics.jsonl", "all_results.json", "plan.toml", "model/model.safetensors"];
        files.map(|file| std::fs::read(folder.path().join("finished").join(file)).unwrap())
    };
    let before = state();
    for step in ["step-000007", "step-000014"] {
        let from = format!("run/checkpoints/{step}");
        messages.fails(train(folder.path(), "finished", &["--resume-from", &from]), 2);
        assert!(state() == before);
    }
    // A checkpoint that lies elsewhere has no rows before it, which is said once.
    copy(&folder.path().join("run/checkpoints/step-000007"), &folder.path().join("copies/mine"));
    let said = text_of(&mut train(folder.path(), "new", &["--resume-from", "copies/mine"]));
    assert_eq!(said.matches("rows up to step 7").count(), 1, "{said}");
    assert!(said.contains("copies/mine lies in no run folder"), "{said}");
    same_model(&folder.path().join("run"), &folder.path().join("new"));
    assert!(figures(&folder.path().join("new")).iter().all(|row| row["step"].as_u64().unwrap() > 7));
}

fn same_model(a: &Path, b: &Path) {
    let model = |run: &Path| std::fs::read(run.join("model/model.safetensors")).unwrap();
    assert!(model(a) == model(b), "{} and {} differ", a.display(), b.display());
}

/// The process is killed before the new folder has a checkpoint that it has made itself.
#[cfg(unix)]
#[test]
fn a_run_that_continues_another_one_survives_a_kill() {
    use std::io::{BufRead, BufReader};
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    succeeds(&mut train(folder.path(), "run", &["--set", "trainer.max_steps=7"]));
    let longer = ["--set", "trainer.max_steps=80", "--set", "trainer.save_steps=80"];
    let from = [&longer[..], &["--resume-from", "run/checkpoints/step-000007"]].concat();
    succeeds(&mut train(folder.path(), "straight", &from));
    let mut command = train(folder.path(), "killed", &from);
    let mut child = command.args(["--log-format", "dict"]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("'loss'")), "it ended before its first row");
    child.kill().unwrap();
    assert!(child.wait().unwrap().code().is_none(), "it was faster than the signal");
    let checkpoints = folder.path().join("killed/checkpoints");
    assert_eq!(std::fs::read_dir(&checkpoints).unwrap().count(), 1);
    let file = |run: &str| std::fs::read(folder.path().join(run).join("checkpoints/step-000007/state.sha256")).unwrap();
    assert!(file("killed") == file("run"));
    let said = text_of(&mut train(folder.path(), "killed", &[&longer[..], &["--resume"]].concat()));
    assert!(said.contains("continuing after step 7 from"), "{said}");
    let (straight, killed) = (folder.path().join("straight"), folder.path().join("killed"));
    assert_eq!(figures(&straight), figures(&killed));
    same_model(&straight, &killed);
}

#[test]
fn the_best_checkpoint_is_the_one_continued_from_or_is_said_to_be_missing() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    // The worst is the best, so that no later evaluation is.
    let worst = ["trainer.metric_for_best_model=eval_loss", "trainer.greater_is_better=true"];
    let sets = |every: &str| {
        let all = [&worst[..], &[every]].concat();
        all.iter().flat_map(|set| ["--set".to_owned(), (*set).to_owned()]).collect::<Vec<_>>()
    };
    for (every, run) in [("trainer.eval_steps=7", "seven"), ("trainer.eval_steps=3", "three")] {
        succeeds(train(folder.path(), run, &[]).args(sets(every)));
        let mut command = train(
            folder.path(),
            &format!("{run}-new"),
            &["--set", "trainer.load_best_model_at_end=true", "--set", "trainer.save_strategy=best"],
        );
        let from = format!("{run}/checkpoints/step-000007");
        let said = text_of(command.args(sets(every)).args(["--resume-from", &from]));
        let says = said.contains("the best evaluation so far is that of step 3, of which");
        assert!(says == (run == "three") && !said.contains("was not kept"), "{said}");
    }
    let weights = |file: &str| std::fs::read(folder.path().join(file)).unwrap();
    assert!(weights("seven-new/model/model.safetensors") == weights("seven/checkpoints/step-000007/model.safetensors"));
    same_model(&folder.path().join("three"), &folder.path().join("three-new"));
}
