//! Tests of figures that belong to the whole process: bytes that are allocated, memory that is
//! resident, reads from the device. Each test runs in a process of its own: it starts this binary
//! again with itself as the only test.
#![allow(clippy::unwrap_used)]

mod counting;
mod device_reads;
mod kv_cache;
mod loading;
mod saved_bytes;
mod soak;
mod tokenized_memory;

use std::process::Command;

/// Set in the process that runs one test alone.
const ALONE: &str = "KILN_TEST_ALONE";

/// Runs `test` of the module with `module_path` in a process of its own and panics if it fails
/// there; then true. In that process itself: false, and the caller goes on with the test.
fn ran_alone(module_path: &str, test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return false;
    }
    let (_, module) = module_path.split_once("::").unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("{module}::{test}"), "--nocapture"]).env(ALONE, "1");
    let output = command.output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    println!("{stdout}");
    let passed = output.status.success() && stdout.contains("1 passed");
    assert!(passed, "{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    true
}
