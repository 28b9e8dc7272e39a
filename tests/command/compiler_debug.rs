//! `compiler.debug`, through the binary: what it writes and shows, that the run itself stays the
//! same, and that nobody makes a speed-up of its times.

use std::path::Path;

use crate::common::small_run::{train, write};
use crate::common::{fails, json, kiln, succeeds, train_rows};

const DEBUG: [&str; 4] = ["--compiler", "compiled", "--set", "compiler.debug=true"];

fn weights(run: &Path) -> Vec<u8> {
    std::fs::read(run.join("model/model.safetensors")).unwrap()
}

#[test]
fn a_run_with_debug_tells_what_the_compiler_did_and_computes_the_same() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let stdout = succeeds(&mut train(folder.path(), "debug", &DEBUG));
    succeeds(&mut train(folder.path(), "plain", &["--compiler", "compiled"]));
    let (debug, plain) = (folder.path().join("debug"), folder.path().join("plain"));
    assert!(weights(&debug) == weights(&plain), "looking has changed the run");

    assert!(train_rows(&debug).iter().all(|row| row["timings_not_comparable"] == 1));
    assert_eq!(json(&debug.join("all_results.json"))["timings_not_comparable"], 1);
    assert!(json(&plain.join("all_results.json")).get("timings_not_comparable").is_none());
    assert!(!plain.join("compiler").exists());

    let report = json(&debug.join("compiler/report.json"));
    assert_eq!(
        (report["steps"].as_u64(), report["engine"].as_str()),
        (Some(14), Some("native")),
        "a build for the CPU"
    );
    let operators = report["operators"].as_array().unwrap();
    assert!(
        operators.len() == kiln_models::Operator::ALL.len()
            && operators.iter().all(|of| of["form"] == "fused" && of["because"].is_null())
    );
    let shapes = report["shapes"].as_array().unwrap();
    // 14 steps of two micro-batches, but for the one at the end of each epoch of 20 rows in batches
    // of 3: 4 steps an epoch.
    assert_eq!(shapes.iter().map(|shape| shape["batches"].as_u64().unwrap()).sum::<u64>(), 14 * 2 - 3);
    assert!(shapes.iter().any(|shape| shape["first_step"] == 1));
    let reads = report["device_reads"].as_array().unwrap();
    let of_rows = reads.iter().find(|site| site["reads"] == 14).unwrap();
    assert!(of_rows["site"].as_str().unwrap().starts_with("crates/train/src/trainer/log.rs:"), "{reads:?}");
    assert!(report["burn"].is_null(), "the CPU has neither fusion nor kernels to launch");

    let table = std::fs::read_to_string(debug.join("compiler/summary.txt")).unwrap();
    assert!(stdout.contains(&table), "{stdout}");
    assert!(table.starts_with("compiler debug: 14 steps; timings not comparable\n"), "{table}");
    assert!(
        table.contains("kernels        not observed: the CPU backend (Flex) computes every operation at once"),
        "{table}"
    );
}

#[test]
fn what_is_not_fused_has_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let set = ["--set", "compiler.fused_ops=[\"gelu\", \"adamw\"]", "--set", "precision=f16"];
    let stdout = succeeds(train(folder.path(), "run", &DEBUG).args(set));
    assert!(stdout.contains("fused          gelu\n"), "{stdout}");
    assert!(stdout.contains("not fused      adamw: precision f16: it cannot skip a step"), "{stdout}");
    assert!(stdout.contains("not fused      attention: not in the list of compiler.fused_ops"), "{stdout}");
}

#[test]
fn no_speed_up_is_made_of_it() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    succeeds(&mut train(folder.path(), "native", &[]));
    succeeds(&mut train(folder.path(), "debug", &DEBUG));
    let stdout = succeeds(kiln(folder.path()).args(["report", "native", "debug"]));
    assert!(stdout.contains("not comparable (debug)"), "{stdout}");
    let report = json(&folder.path().join("report/native-debug/report.json"));
    let comparison = &report["comparisons"][0];
    assert_eq!(
        (comparison["verdict"].as_str(), comparison["reason"].as_str()),
        (Some("not comparable"), Some("debug"))
    );
    assert!(comparison["speedup"].is_null() && comparison["time_saved_percent"].is_null(), "{comparison}");
    let mut gate = kiln(folder.path());
    fails(
        gate.args(["report", "native", "debug", "--out", "gated", "--gate", "speedup>=0.1"]),
        6,
        &["not comparable (debug)"],
    );
}

#[test]
fn a_native_run_has_nothing_to_tell() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let native = ["--set", "compiler.debug=true", "--compiler", "native", "--stop-after", "1"];
    let stdout = succeeds(&mut train(folder.path(), "run", &native));
    assert!(!stdout.contains("debug"), "{stdout}");
    assert!(!folder.path().join("run/compiler").exists());
    let parts = ["compiler.debug", "expected true or false, got string \"yes\""];
    fails(&mut train(folder.path(), "other", &["--set", "compiler.debug=yes"]), 2, &parts);
}
