//! The training compiler on the CPU, through the binary: what a run prints, that a compiled run
//! learns what a native one does, that it can be stopped and continued in either mode, and what is
//! refused.

use crate::common::place::{CLASSES, REVIEWS, WORDS};
use crate::common::small_run::{copy, figures, train, write};
use crate::common::{fails, fixture, kiln, succeeds, train_rows};

const NO_DROPOUT: [&str; 6] =
    ["--set", "model.resid_pdrop=0", "--set", "model.embd_pdrop=0", "--set", "model.attn_pdrop=0"];

#[test]
fn a_compiled_run_learns_what_a_native_one_does() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let native = succeeds(train(folder.path(), "native", &NO_DROPOUT).args(["--compiler", "native"]));
    let compiled = succeeds(train(folder.path(), "compiled", &NO_DROPOUT).args(["--set", "compiler.enabled=true"]));
    assert!(native.contains("native engine, Kiln's fused operators off"), "{native}");
    assert!(compiled.contains("compiled engine, Kiln's fused operators on"), "{compiled}");
    for text in [&native, &compiled] {
        assert!(!text.contains("Training Compiler"), "the start-up lines of SageMaker are a job's: {text}");
    }
    for (text, part) in [
        (&native, "compiler       Kiln's fused operators off            the run is native"),
        (&compiled, "compiler       Kiln's fused operators on             embedding, dropout, layer_norm, rms_norm"),
        (&compiled, "Burn's fusion          not available  the CPU backend"),
        (&compiled, "autotune               not available  the CPU backend"),
        (&compiled, "captured step          not available  the CPU backend"),
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let plan = std::fs::read_to_string(folder.path().join("compiled/plan.toml")).unwrap();
    assert!(plan.contains("# compiler       Kiln's fused operators on"), "the table is in the run folder");
    let rows = |run: &str| train_rows(&folder.path().join(run));
    let (native, compiled) = (rows("native"), rows("compiled"));
    assert_eq!(native.len(), compiled.len());
    for (native, compiled) in native.iter().zip(&compiled) {
        for (name, tolerance) in [("loss", 1e-5), ("grad_norm", 1e-4)] {
            // The same function, rounded in another order, through 14 updates.
            let (a, b) = (native[name].as_f64().unwrap(), compiled[name].as_f64().unwrap());
            assert!((a / b - 1.0).abs() < tolerance, "{name}: {native} against {compiled}");
        }
    }
}

#[test]
fn over_fifty_steps_the_losses_are_equal_within_1e_5() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let set =
        ["--set", "trainer.max_steps=50", "--set", "trainer.eval_strategy=no", "--set", "trainer.save_strategy=no"];
    let losses = |mode: &str| {
        succeeds(train(folder.path(), mode, &NO_DROPOUT).args(set).args(["--compiler", mode]));
        let rows = train_rows(&folder.path().join(mode));
        rows.iter().map(|row| row["loss"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    let (native, compiled) = (losses("native"), losses("compiled"));
    assert_eq!((native.len(), compiled.len()), (50, 50));
    let worst = native.iter().zip(&compiled).map(|(a, b)| (a / b - 1.0).abs()).fold(0.0, f64::max);
    assert!(worst < 1e-5, "a loss is off by {worst:.1e} relative");
    assert!(native[49] < native[0] - 0.2, "it learns: {} to {}", native[0], native[49]);
}

#[test]
fn a_compiled_run_with_dropout_continues_exactly() {
    for task in ["clm", "mlm", "sequence-classification"] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), task);
        succeeds(&mut train(folder.path(), "run", &["--compiler", "compiled"]));
        let (run, stopped) = (folder.path().join("run"), folder.path().join("stopped"));
        copy(&run, &stopped);
        std::fs::remove_dir_all(stopped.join("checkpoints/step-000014")).unwrap();
        std::fs::remove_dir_all(stopped.join("model")).unwrap();
        succeeds(&mut train(folder.path(), "stopped", &["--resume", "--compiler", "compiled"]));
        assert_eq!(figures(&run), figures(&stopped));
        let weights = |run: &std::path::Path| std::fs::read(run.join("model/model.safetensors")).unwrap();
        assert!(weights(&run) == weights(&stopped), "{task}: weights differ");
    }
}

#[test]
fn a_run_may_change_its_mode() {
    for (first, second) in [("native", "compiled"), ("compiled", "native")] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "clm");
        succeeds(train(folder.path(), "whole", &NO_DROPOUT).args(["--compiler", first]));
        let (whole, run) = (folder.path().join("whole"), folder.path().join("run"));
        copy(&whole, &run);
        std::fs::remove_dir_all(run.join("checkpoints/step-000014")).unwrap();
        std::fs::remove_dir_all(run.join("model")).unwrap();
        succeeds(train(folder.path(), "run", &NO_DROPOUT).args(["--resume", "--compiler", second]));
        for (whole, run) in train_rows(&whole).iter().zip(&train_rows(&run)) {
            let (a, b) = (whole["loss"].as_f64().unwrap(), run["loss"].as_f64().unwrap());
            assert!((a / b - 1.0).abs() < 1e-5, "{first} then {second}: {whole} against {run}");
        }
    }
}

#[test]
fn operators_can_be_chosen_singly() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let some = ["--set", "compiler.fused_ops=[\"gelu\", \"attention\"]"];
    let stdout = succeeds(train(folder.path(), "some", &NO_DROPOUT).args(some));
    assert!(stdout.contains("on             attention, gelu; plain: embedding, dropout"), "{stdout}");
    let native = succeeds(&mut train(folder.path(), "native", &NO_DROPOUT));
    assert!(native.contains("the run is native"), "{native}");
    let weights = |run: &str| std::fs::read(folder.path().join(run).join("model/model.safetensors")).unwrap();
    assert!(weights("some") != weights("native"), "rounded in another order");
    for (some, native) in train_rows(&folder.path().join("some")).iter().zip(&train_rows(&folder.path().join("native")))
    {
        let (a, b) = (some["loss"].as_f64().unwrap(), native["loss"].as_f64().unwrap());
        assert!((a / b - 1.0).abs() < 1e-5, "{some} against {native}");
    }
}

#[test]
fn auto_tries_both_modes_and_leaves_no_trace_in_the_run() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "mlm");
    let stdout = succeeds(train(folder.path(), "auto", &[]).args(["--compiler", "auto"]));
    assert_eq!(stdout.matches("compiler auto: trying both modes on the run's own data\n").count(), 1, "{stdout}");
    let plan = succeeds(kiln(folder.path()).args(["plan", "config.toml", "--set", "compiler.enabled=auto"]));
    assert!(plan.contains("compiler auto: a trial before step 1 chooses the mode"), "{plan}");
    let (auto, other) = (folder.path().join("auto"), folder.path().join("other"));
    let choice = crate::common::json(&auto.join("compiler.json"));
    let (mode, reason) = (choice["mode"].as_str().unwrap(), choice["reason"].as_str().unwrap());
    assert_eq!(stdout.matches(&format!("compiler auto: {mode}, {reason}")).count(), 1, "{stdout}");
    assert!(choice["native_step_ms"].as_f64().unwrap() > 0.0 && choice["compiled_step_ms"].as_f64().unwrap() > 0.0);
    succeeds(train(folder.path(), "other", &[]).args(["--compiler", mode]));
    assert_eq!(figures(&auto), figures(&other));
    let weights = |run: &std::path::Path| std::fs::read(run.join("model/model.safetensors")).unwrap();
    assert!(weights(&auto) == weights(&other), "the trial has touched the run");

    // A run that is continued keeps its mode, whatever another trial would say.
    let kept = if mode == "native" { "compiled" } else { "native" };
    let text = std::fs::read_to_string(auto.join("compiler.json")).unwrap();
    let text = text.replace(&format!("\"{mode}\""), &format!("\"{kept}\""));
    std::fs::write(auto.join("compiler.json"), text).unwrap();
    std::fs::remove_dir_all(auto.join("checkpoints/step-000014")).unwrap();
    std::fs::remove_dir_all(auto.join("model")).unwrap();
    let stdout = succeeds(train(folder.path(), "auto", &["--resume"]).args(["--compiler", "auto"]));
    assert!(stdout.contains(&format!("compiler auto: {kept}, ")), "{stdout}");
}

/// The line is there once for a run that is native because nobody said anything, and a narrow type
/// that makes a native run on a CPU slower is warned of.
#[test]
fn a_native_run_is_told_what_the_switch_is_worth() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let run = |name: &str, more: &[&str]| {
        succeeds(train(folder.path(), name, &["--set", "trainer.max_steps=3", "--log-format", "table"]).args(more))
    };
    let hint = "native mode; `--compiler compiled` is usually 1.8 to 5.0 times as fast on a CPU in f32";
    let stdout = run("native", &[]);
    let header = stdout.lines().position(|line| line.starts_with("device  ")).unwrap_or_else(|| panic!("{stdout}"));
    let told = stdout.lines().position(|line| line.starts_with(hint)).unwrap_or_else(|| panic!("{stdout}"));
    let first_row = stdout.lines().position(|line| line.contains("val loss")).unwrap_or_else(|| panic!("{stdout}"));
    assert!(header < told && told < first_row && stdout.matches(hint).count() == 1, "{stdout}");
    for (name, more) in [("compiled", ["--compiler", "compiled"]), ("asked", ["--compiler", "native"])] {
        let stdout = run(name, &more);
        assert!(!stdout.contains("times as fast"), "{name}: {stdout}");
    }
    let warned = "! native mode in bf16 on a CPU: a step takes 1.0 to 1.4 times as long as in f32; `--compiler compiled` is \
                  usually 2.1 to 9.9 times as fast";
    let stdout = run("bf16", &["--precision", "bf16"]);
    assert!(stdout.lines().any(|line| line == warned), "{stdout}");
    let stdout = run("f16", &["--precision", "f16"]);
    assert!(stdout.contains("`kiln compare FILE` measures the worth") && !stdout.contains("times as fast"), "{stdout}");
}

/// Commands that use a model compute compiled unless they are told otherwise: their answers are, to
/// the bit, those of `--compiler compiled`.
#[test]
fn predictions_generations_and_evaluations_are_compiled_by_default() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "sequence-classification");
    succeeds(&mut train(folder.path(), "run", &[]));
    let config = std::fs::read_to_string(folder.path().join("config.toml")).unwrap();
    std::fs::write(folder.path().join("native.toml"), format!("{config}\n[compiler]\nenabled = false\n")).unwrap();
    let figures = |args: &[&str], more: &[&str]| succeeds(kiln(folder.path()).args(args).args(more));
    let eval = ["eval", "config.toml", "--precision", "bf16", "--set", "run.output_dir=run"];
    let without_time = |text: String| {
        let figure =
            |text: &str| text.split("'eval_loss': ").nth(1).and_then(|rest| rest.split(',').next()).map(str::to_owned);
        figure(&text).unwrap_or_else(|| panic!("{text}"))
    };
    let [auto, compiled, native] = [&[][..], &["--compiler", "compiled"], &["--compiler", "native"]]
        .map(|more| without_time(figures(&eval, more)));
    assert_eq!(auto, compiled);
    assert_ne!(auto, native, "rounded in another order");
    let said = figures(&["eval", "native.toml", "--precision", "bf16", "--set", "run.output_dir=run"], &[]);
    assert_eq!(without_time(said), native, "the config says native");

    let place = tempfile::tempdir().unwrap();
    std::fs::create_dir(place.path().join("words")).unwrap();
    for (name, text) in [("config.toml", CLASSES), ("words/vocab.txt", WORDS), ("rows.csv", REVIEWS)] {
        std::fs::write(place.path().join(name), text).unwrap();
    }
    succeeds(kiln(place.path()).args(["train", "config.toml"]));
    let [auto, compiled, native] = [&[][..], &["--compiler", "compiled"], &["--compiler", "native"]].map(|more| {
        succeeds(kiln(place.path()).args(["predict", "run", "--input", "rows.csv", "--precision", "bf16"]).args(more))
    });
    assert!(auto == compiled && auto != native, "{auto}\n{native}");
}

#[test]
fn generation_is_the_same() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("text")).unwrap();
    std::fs::write(folder.path().join("text/a.txt"), "the cat sat on the mat and the dog sat on the log. ".repeat(40))
        .unwrap();
    let config = "[run]\noutput_dir = \"run\"\n[model]\nkind = \"gpt2\"\nn_layer = 1\nn_head = 2\nn_embd = 8\nn_positions = \
                  32\n[data]\ntask = \"clm\"\ntrain = \"text/*.txt\"\nblock_size = 8\n[tokenizer]\ntrain_vocab_size = 270\n\
                  [device]\nkind = \"cpu\"\n[trainer]\nmax_steps = 2\n[compiler]\n";
    std::fs::write(folder.path().join("config.toml"), config).unwrap();
    succeeds(kiln(folder.path()).args(["train", "config.toml"]));
    let text = |mode: &str| {
        let mut command = kiln(folder.path());
        command.args(["generate", "run/model", "--prompt", "the cat", "--max-new-tokens", "12", "--temperature", "0"]);
        succeeds(command.args(["--compiler", mode]))
    };
    assert_eq!(text("native"), text("compiled"));
}

#[test]
fn what_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let run = |more: &[&str], parts: &[&str]| fails(&mut train(folder.path(), "run", more), 2, parts);
    run(&["--compiler", "compild"], &["unknown compiler `compild`", "did you mean `compiled`?"]);
    run(&["--set", "compiler.fused_ops=true"], &["compiler.fused_ops", "expected auto, on, off or a list"]);
    run(&["--set", "compiler.fused_ops=yes"], &["compiler.fused_ops", "expected one of auto, on, off"]);
    run(&["--set", "compiler.fused_ops=[\"gellu\"]"], &["unknown operator `gellu`", "did you mean `gelu`?"]);
    run(&["--set", "compiler.enable=true"], &["compiler.enable", "did you mean `enabled`?"]);
    run(&["--set", "compiler.enabled=1"], &["compiler.enabled", "expected true, false or \"auto\", got 1"]);
    run(&["--set", "compiler.autotune=most"], &["compiler.autotune", "minimal, balanced, extensive, full"]);
    run(
        &["--set", "compiler.autotune=full"],
        &["compiler.autotune = \"full\"", "does not fuse, tune or capture on the CPU"],
    );
    run(&["--set", "compiler.fusion=on"], &["compiler.fusion = \"on\"", "does not fuse, tune or capture on the CPU"]);
    run(&["--set", "compiler.graph=on"], &["compiler.graph = \"on\"", "does not fuse, tune or capture on the CPU"]);
    run(&["--unfused"], &["--unfused", "the native engine has no fusion"]);
    let model = fixture("gpt2-lm").join("model");
    let mut forward = kiln(folder.path());
    forward.arg("forward").arg(model).args(["--batch", "b", "--task", "clm", "--out", "o", "--compiler", "fast"]);
    fails(&mut forward, 2, &["unknown compiler `fast`"]);
}
