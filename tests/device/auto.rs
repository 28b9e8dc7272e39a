//! `compiler.enabled = "auto"` where each mode has an engine of its own: both are tried, and the
//! run is the chosen one's.

use crate::common::skip::skip;
use crate::common::{json, succeeds, text};
use crate::{ONE_SHAPE, apart, losses, on_device_in, prepare};

/// Tries both engines, then takes the run up as if the other one had been chosen: one of the two
/// changes engines.
#[test]
fn auto_is_the_engine_that_it_chose() {
    if std::env::var_os("KILN_NATIVE").is_none() {
        return skip!("native", "KILN_NATIVE names no native engine");
    }
    let folder = prepare("clm");
    let run = folder.path().join("auto");
    let stdout = succeeds(&mut on_device_in("auto", folder.path(), "auto", &ONE_SHAPE));
    assert_eq!(stdout.matches("compiler auto: trying both modes").count(), 1, "{stdout}");
    let choice = json(&run.join("compiler.json"));
    let (mode, reason) = (choice["mode"].as_str().unwrap(), choice["reason"].as_str().unwrap());
    assert_eq!(stdout.matches(&format!("compiler auto: {mode}, {reason}")).count(), 1, "{stdout}");
    assert!(stdout.contains(&format!("{mode} engine, Kiln's fused operators")), "{stdout}");
    assert!(choice["native_step_ms"].as_f64().unwrap() > 0.0 && choice["compiled_step_ms"].as_f64().unwrap() > 0.0);
    succeeds(&mut on_device_in(mode, folder.path(), "chosen", &ONE_SHAPE));
    let apart = apart(&losses(&run), &losses(&folder.path().join("chosen")));
    assert!(apart < 1e-5, "the trial has touched the run: {apart}");

    let kept = if mode == "native" { "compiled" } else { "native" };
    let before = std::fs::read_to_string(run.join("compiler.json")).unwrap();
    std::fs::write(run.join("compiler.json"), before.replace(&format!("\"{mode}\""), &format!("\"{kept}\""))).unwrap();
    std::fs::remove_dir_all(run.join("checkpoints/step-000014")).unwrap();
    std::fs::remove_dir_all(run.join("model")).unwrap();
    let output = on_device_in("auto", folder.path(), "auto", &ONE_SHAPE).arg("--resume").output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let (stdout, stderr) = (text(&output), String::from_utf8_lossy(&output.stderr).into_owned());
    assert_eq!(stderr.contains("native engine: "), kept == "native", "{stderr}");
    assert!(!stdout.contains("trying both modes"), "{stdout}");
    assert!(stdout.contains(&format!("compiler auto: {kept}, ")), "{stdout}");
    assert!(stdout.contains(&format!("{kept} engine, Kiln's fused operators")), "{stdout}");
    assert!(stdout.contains("continuing after step 7"), "{stdout}");
}
