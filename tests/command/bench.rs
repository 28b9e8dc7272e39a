//! `kiln bench` through the binary: what it writes, that unequal losses make no ratio, and what is
//! refused. Faults are planted by a variant or by scripts that stand in for a peer. No assertion
//! depends on how fast anything is.
#![cfg(unix)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::messages::messages;
use crate::common::small_run::write;
use crate::common::{fails, json, kiln, succeeds, text};
use serde_json::Value;

fn bench(folder: &Path, args: &[&str]) -> Command {
    let mut command = kiln(folder);
    command.arg("bench").args(args).env("KILN", env!("CARGO_BIN_EXE_kiln"));
    command
}

/// The smallest case, as quickly as it goes.
const ONE: [&str; 8] = ["--suite", "smoke", "--case", "gpt2-tiny", "--operators", "0", "--out", "out.json"];

fn script(folder: &Path, name: &str, lines: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{lines}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn contestant<'a>(case: &'a Value, name: &str) -> &'a Value {
    case["contestants"].as_array().unwrap().iter().find(|it| it["name"] == name).unwrap()
}

#[test]
fn the_smoke_suite_measures_both_modes() {
    let folder = tempfile::tempdir().unwrap();
    let out = succeeds(&mut bench(folder.path(), &["--suite", "smoke", "--operators", "1"]));
    assert!(out.contains("gpt2-tiny: gpt2 for clm") && out.contains("result: bench-smoke.json"), "{out}");
    assert!(out.contains("losses of compiled against native: equal"), "{out}");
    let report = json(&folder.path().join("bench-smoke.json"));
    assert_eq!((&report["schema"], &report["complete"]), (&Value::from("kiln.bench/1"), &Value::from(true)));
    let cases = report["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 5);
    // Where each mode has the most that fit, steps are no longer the same work: figures, no ratio.
    let max = cases.iter().find(|case| case["name"] == "gpt2-tiny-max").unwrap();
    assert_eq!(["native", "compiled"].map(|mode| contestant(max, mode)["batch"].as_u64()), [Some(8); 2]);
    assert_eq!(["losses", "ratios"].map(|name| max[name].as_array().unwrap().len()), [0, 0]);
    for case in cases.iter().filter(|case| case["name"] != "gpt2-tiny-max") {
        for (mode, fused) in [("native", false), ("compiled", true)] {
            let it = contestant(case, mode);
            let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{mode}: {it}"));
            assert_eq!((it["provenance"]["fused_ops"].as_bool(), &it["failure"]), (Some(fused), &Value::Null));
            assert_eq!(it["provenance"]["mode"], mode);
            let rounds = it["rounds"].as_array().unwrap();
            assert_eq!((rounds.len(), it["warmup_steps"].as_array().unwrap().len()), (2, 2));
            let steps = rounds.iter().flat_map(|round| round.as_array().unwrap()).collect::<Vec<_>>();
            assert_eq!(steps.iter().map(|step| number(&step["step"])).collect::<Vec<_>>(), [3.0, 4.0, 5.0, 6.0]);
            for step in steps {
                let parts = ["data_ms", "forward_ms", "backward_ms", "update_ms", "sync_ms"];
                let sum = parts.iter().map(|part| number(&step[part])).sum::<f64>();
                assert!((sum - number(&step["step_ms"])).abs() < 1e-6 && number(&step["loss"]) > 0.0, "{step}");
            }
            // The first step of each turn of two is left out.
            assert_eq!(number(&it["step_ms"]["windows"]), 2.0);
            assert!(number(&it["first_step_seconds"]) > 0.0 && number(&it["tokens_per_s"]) > 0.0);
            if cfg!(target_os = "linux") {
                assert!(number(&it["peak_mib"]) > 1.0);
            }
        }
        let check = &case["losses"][0];
        assert_eq!((check["passed"].as_bool(), check["losses"].as_u64()), (Some(true), Some(6)));
        let ratio = &case["ratios"][0];
        assert_eq!((ratio["of"].as_str(), ratio["against"].as_str()), (Some("native"), Some("compiled")));
        let predicts = case["name"] != "bert-tiny";
        let operators = case["operators"].as_array().unwrap();
        assert_eq!(operators.len(), if predicts { 8 } else { 7 }, "{}", case["name"]);
        assert!(operators.iter().all(|operator| operator["ms"].as_array().unwrap().len() == 2));
    }
    // Rows of different lengths are padded.
    assert!(contestant(&cases[4], "native")["padding"].as_f64().unwrap() > 0.05);
}

#[test]
fn products_are_measured_in_the_precision_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let (few, bf16) = (["--operators", "1", "--precision", "bf16"], ["--suite", "smoke", "--case", "gpt2-tiny"]);
    let out = succeeds(bench(folder.path(), &bf16).args(few));
    assert!(
        out.contains("tokens, bf16, no dropout") && out.contains("losses of compiled against native: equal"),
        "{out}"
    );
    assert!(out.contains("% of the peak") && out.contains("the peak of products is "), "{out}");
    let report = json(&folder.path().join("bench-smoke.json"));
    let case = &report["cases"][0];
    for mode in ["native", "compiled"] {
        assert_eq!(contestant(case, mode)["provenance"]["precision"], "bf16");
    }
    // The unit is that of the plan and of `kiln devices`.
    let unit = case["peak"]["unit"].as_str().unwrap();
    let devices = succeeds(kiln(folder.path()).arg("devices"));
    assert!(devices.contains(&format!("products of bf16 in fused operators by {unit}")), "{unit}: {devices}");
    assert!(case["peak"]["gflops"].as_f64().unwrap() > 0.1);
    for operator in case["operators"].as_array().unwrap() {
        let multiplies = ["linear", "lora", "attention", "cross_entropy"].contains(&operator["name"].as_str().unwrap());
        assert_eq!(operator["gflop"].as_f64().is_some_and(|gflop| gflop > 0.0), multiplies, "{operator}");
    }
    // 64 tokens, 32 x 128 weights: three products of two operations a multiplication.
    let linear = case["operators"].as_array().unwrap().iter().find(|it| it["name"] == "linear").unwrap();
    assert_eq!(linear["gflop"].as_f64(), Some(6.0 * 64.0 * 32.0 * 128.0 / 1e9));

    write(folder.path(), "clm");
    let few = ["--warmup", "1", "--rounds", "1", "--steps", "2", "--operators", "1", "--precision", "f16"];
    succeeds(bench(folder.path(), &["config.toml"]).args(few));
    let report = json(&folder.path().join("bench-config.json"));
    let case = &report["cases"][0];
    assert_eq!(contestant(case, "compiled")["provenance"]["precision"], "f16");
    assert!(case["peak"]["unit"].as_str().unwrap().starts_with("f32: "), "f16 is multiplied in f32");
}

#[test]
fn a_planted_difference_makes_no_ratio() {
    let folder = tempfile::tempdir().unwrap();
    let planted = ["--variant", "planted=trainer.learning_rate=0.01"];
    let output = bench(folder.path(), &ONE).args(planted).output().unwrap();
    let said = text(&output);
    assert_eq!(output.status.code(), Some(6), "{said}");
    assert!(said.contains("NOT EQUAL, no ratio") && !said.contains("planted / compiled"), "{said}");
    assert!(said.contains("the losses of planted are not those of native"), "{said}");
    let report = json(&folder.path().join("out.json"));
    let case = &report["cases"][0];
    let check = case["losses"].as_array().unwrap().iter().find(|check| check["of"] == "planted").unwrap();
    assert_eq!(check["passed"], false);
    let ratios = case["ratios"].as_array().unwrap();
    assert!(ratios.iter().all(|ratio| ratio["of"] != "planted" && ratio["against"] != "planted"), "{case}");
    assert!(contestant(case, "planted")["step_ms"]["median"].as_f64().is_some(), "the figures themselves are kept");
}

/// A peer whose clock runs backwards.
const BACKWARDS: &str = r#"echo '{"provenance": {}, "batch": 1, "total_steps": 99}'
step='{"step":1,"samples":1,"tokens":1,"step_ms":-5,"data_ms":0,"forward_ms":0,"backward_ms":0,"update_ms":0,"sync_ms":0,"synced":true}'
while read order count; do
    steps=$step
    for i in $(seq 2 $count); do steps="$steps,$step"; done
    echo "{\"steps\": [$steps], \"peak_mib\": 1}"
done"#;

#[test]
fn peers_take_turns_and_their_end_is_told() {
    let folder = tempfile::tempdir().unwrap();
    // A peer that is Kiln again, in a run folder of its own, from what is in the case's folder.
    let lines = "[ -s \"$1/case.json\" ] && [ -s \"$1/model/model.safetensors\" ] || exit 9\n\
                 sed 's/^output_dir = .*/output_dir = \"peer\"/' \"$1/native.toml\" > peer.toml\n\
                 exec \"$KILN\" worker peer.toml";
    let peer = format!("again={}", script(folder.path(), "peer.sh", lines).display());
    let out = succeeds(bench(folder.path(), &ONE).args(["--peer", &peer]));
    assert!(out.contains("losses of again against native: equal; 0.0e0"), "{out}");
    assert!(out.contains("again / compiled:") && out.contains("again / native:"), "{out}");

    let peer = format!("gone={}", script(folder.path(), "gone.sh", "echo 'error: no luck' >&2; exit 3").display());
    let output = bench(folder.path(), &ONE).args(["--peer", &peer]).output().unwrap();
    let said = text(&output);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("gone failed: no luck") && said.contains("native / compiled:"), "{said}");

    let peer = format!("chatty={}", script(folder.path(), "chatty.sh", "echo hello; sleep 9").display());
    fails(
        bench(folder.path(), &ONE).args(["--peer", &peer]),
        3,
        &["chatty", "expected a line of JSON on its stdout", "\"hello\""],
    );

    // One that never answers, and one that is dead while what it has started holds its stdout.
    for (name, lines, code, part) in [
        ("silent", "sleep 600", 7, "it was silent for 2s, and was ended"),
        ("dead", "sleep 600 & kill -SEGV $$", 7, "it crashed (signal: 11"),
        ("closed", "exec 1>&-; sleep 600", 7, "it was silent for 2s"),
        ("early", "exit 0", 3, "it ended before it had answered"),
        // The exit codes of a foreign program have no known meaning.
        (
            "broken",
            "echo 'ModuleNotFoundError: torch' >&2; exit 1",
            7,
            "it crashed (exit status: 1): ModuleNotFoundError",
        ),
        ("flood", "yes | tr -d '\\n'", 3, "cannot read its stdout: a line of more than 67108864 bytes"),
        ("backwards", BACKWARDS, 3, "step 1: expected a time above 0 ms, got -5"),
    ] {
        let peer = format!("{name}={}", script(folder.path(), &format!("{name}.sh"), lines).display());
        let mut command = bench(folder.path(), &ONE);
        // A busy machine holds up peers that answer, too.
        let patience = if part.contains("silent") { "2s" } else { "60s" };
        fails(command.args(["--answer-within", patience, "--peer", &peer]), code, &[&format!("{name}: {part}")]);
    }
}

#[test]
fn a_variant_is_the_compiled_mode_with_another_setting() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    let out = succeeds(bench(folder.path(), &ONE).args(["--variant", "plain=compiler.fused_ops=off"]));
    assert!(out.contains("plain / compiled:") && out.contains("losses of plain against native: equal; 0.0e0"), "{out}");
    let report = json(&folder.path().join("out.json"));
    let provenance = &contestant(&report["cases"][0], "plain")["provenance"];
    assert_eq!((provenance["mode"].as_str(), provenance["fused_ops"].as_bool()), (Some("compiled"), Some(false)));
    let refused = |variant: &str| messages.fails(bench(folder.path(), &ONE).args(["--variant", variant]), 2);
    refused("fast=compiler.fused_op=on");
}

#[test]
fn a_run_of_ones_own_is_measured_and_left_alone() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let few = ["--warmup", "2", "--rounds", "2", "--steps", "2", "--operators", "1"];
    let out = succeeds(bench(folder.path(), &["config.toml"]).args(few));
    // Both modes drop the same, so that single losses are compared.
    assert!(out.contains("config.toml: the run of config.toml") && out.contains("1e-3 is allowed"), "{out}");
    let report = json(&folder.path().join("bench-config.json"));
    assert_eq!(report["cases"][0]["contestants"].as_array().unwrap().len(), 2);
    assert!(!folder.path().join("run").exists(), "the run itself was not begun");
    messages.fails(bench(folder.path(), &["config.toml"]), 2);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    let refused = |args: &[&str]| messages.fails(bench(folder.path(), args), 2);
    refused(&["--suite", "smok"]);
    refused(&["--suite", "smoke", "--case", "gpt2-tony"]);
    if cfg!(not(any(feature = "wgpu", feature = "cuda"))) {
        fails(&mut bench(folder.path(), &["--suite", "gpu"]), 2, &["is for a GPU", "for the CPU alone", "--suite cpu"]);
    }
    refused(&["--suite", "smoke", "--rounds", "0"]);
    refused(&["--suite", "smoke", "--precision", "auto"]);
    for flag in ["--warmup", "--rounds", "--steps", "--operators"] {
        refused(&["--suite", "smoke", flag, "18446744073709551615"]);
    }
    for time in ["400000000000y", "99999999999999999999s", "-1s", "inf"] {
        for flag in ["--time-limit", "--answer-within"] {
            refused(&["--suite", "smoke", &format!("{flag}={time}")]);
        }
    }
    // A name is that of files, too.
    for name in ["../x", "/x", "a/b", ".", "..", "", "native", "model", &"x".repeat(65)] {
        refused(&["--suite", "smoke", "--peer", &format!("{name}=true")]);
        refused(&["--suite", "smoke", "--variant", &format!("{name}=a.b=c")]);
    }
    refused(&["none.toml"]);
    write(folder.path(), "clm");
    refused(&["config.toml", "--peer", "eager=true"]);
    std::fs::write(folder.path().join("mine.json"), "{}").unwrap();
    refused(&["--suite", "smoke", "--out", "mine.json"]);
    let output = bench(folder.path(), &["--suite", "smoke", "--peer", "eager"]).output().unwrap();
    assert!(output.status.code() == Some(2) && text(&output).contains("expected NAME=COMMAND"), "{}", text(&output));
    assert!(!folder.path().join("bench-smoke.json").exists());
}

#[test]
fn the_time_limit_leaves_out_what_is_not_begun() {
    let folder = tempfile::tempdir().unwrap();
    let out = succeeds(&mut bench(folder.path(), &["--suite", "smoke", "--time-limit", "0s", "--out", "out.json"]));
    assert!(out.contains("gpt2-tiny: not measured, the time limit was over"), "{out}");
    let report = json(&folder.path().join("out.json"));
    assert_eq!((report["cases"].as_array().unwrap().len(), report["notes"].as_array().unwrap().len()), (0, 6));
}
