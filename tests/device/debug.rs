//! `compiler.debug` on a device where there is something to tell.

use serde_json::Value;

use crate::common::{json, succeeds};
use crate::{on_device, prepare};

/// A run that finds no kernels in the cache reports its tunings and the kernels that it compiled; a
/// run that finds them all reports none.
#[test]
fn debug_tells_what_was_tuned_and_compiled() {
    let folder = prepare("sequence-classification");
    let cache = folder.path().join("kernels");
    let more = ["--set", "compiler.debug=true", "--set", "trainer.max_steps=4"]; // three of them warm up
    let run = |name: &str| {
        let said = succeeds(on_device(folder.path(), name, &more).env("KILN_CACHE", &cache));
        (said, json(&folder.path().join(name).join("compiler/report.json"))["burn"]["cache"].clone())
    };
    let (said, cold) = run("cold");
    let tunings = cold["tunings"].as_array().unwrap();
    assert!(!tunings.is_empty() && cold["compiled"].as_u64() > Some(10), "{cold}");
    for tuning in tunings {
        let tried = tuning["tried"].as_array().unwrap();
        assert!(tuning["winner"].as_str().is_some_and(|winner| !winner.starts_with("candidate")), "{tuning}");
        assert!(!tried.is_empty() && tried.iter().all(|tried| tried["seconds"].as_f64() > Some(0.0)), "{tuning}");
    }
    assert!(said.contains(&format!("{} choices in", tunings.len())), "{said}");
    let (said, warm) = run("warm");
    assert_eq!((&warm["tunings"], &warm["compiled"]), (&Value::Array(Vec::new()), &Value::from(0)), "{warm}");
    assert!(said.contains("nothing was tuned or compiled"), "{said}");
}
