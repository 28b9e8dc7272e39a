//! The energy of the device during a run.

use serde_json::Value;

use crate::common::small_run::write;
use crate::common::succeeds;
use crate::{ONE_SHAPE, device, on_device};

/// The emulated NVML tells of 300 W, so the joules of the steps are those of their time; wgpu has
/// no counter.
#[test]
fn the_energy_of_a_gpu_is_that_of_its_steps() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let more = ["--step-times", "--set", "trainer.max_steps=4", "--set", "trainer.eval_strategy=no"];
    succeeds(&mut on_device(folder.path(), "run", &[&ONE_SHAPE[..], &more].concat()));
    let steps = std::fs::read_to_string(folder.path().join("run/steps.jsonl")).unwrap();
    let steps = steps.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>();
    assert_eq!(steps.len(), 4);
    if device() != "cuda" {
        assert!(steps.iter().all(|step| step.get("joules").is_none()), "{steps:?}");
        return;
    }
    let joules = steps.iter().map(|step| step["joules"].as_f64().unwrap()).sum::<f64>();
    let seconds = steps[3]["since_start_ms"].as_f64().unwrap() / 1e3;
    println!("{joules} J in {seconds} s");
    if std::env::var_os("FAKE_CUDA_RUN").is_some() {
        assert!((joules / seconds / 300.0 - 1.0).abs() < 0.05, "{joules} J in {seconds} s");
    } else {
        assert!(joules > 0.0, "{joules} J in {seconds} s");
    }
}
