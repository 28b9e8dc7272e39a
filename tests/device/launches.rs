//! How many kernels a step launches, and what it reads.

use std::path::Path;

use serde_json::Value;

use crate::common::succeeds;
use crate::{ONE_SHAPE, modes, on_device_in, prepare};

/// Kernels of a step of a GPT-2 of two layers, of one micro-batch and of two: the native engine's
/// at the least (984 and 1461 were counted), the compiled one's at the most (172 and 338), which is
/// below half of that.
const NATIVE_LAUNCHES: [f64; 2] = [900.0, 1200.0];
const COMPILED_LAUNCHES: [f64; 2] = [200.0, 390.0];

/// Kernels are counted as the device runs them, though one call replays all of a captured step.
/// Nothing is read between rows.
#[test]
fn launches_and_reads_of_a_step() {
    let folder = prepare("clm");
    for mode in modes() {
        for (micro_batches, (native, compiled)) in (1..).zip(NATIVE_LAUNCHES.into_iter().zip(COMPILED_LAUNCHES)) {
            let mean = launches(folder.path(), mode, micro_batches);
            assert!(compiled <= native / 2.0);
            match mode {
                "native" => assert!(mean >= native, "{mean}"),
                _ => assert!(mean > 50.0 && mean <= compiled, "{mean}"),
            }
        }
    }
}

/// The mean of the steps whose shapes have been there before.
fn launches(folder: &Path, mode: &str, micro_batches: usize) -> f64 {
    let accumulation = format!("trainer.gradient_accumulation_steps={micro_batches}");
    let sets = ["trainer.logging_steps=4", "trainer.eval_strategy=no", "trainer.save_strategy=no", &accumulation];
    let run = format!("{mode}-{micro_batches}");
    let mut command = on_device_in(mode, folder, &run, &ONE_SHAPE);
    succeeds(command.arg("--step-times").args(sets.map(|set| ["--set", set]).concat()));
    let text = std::fs::read_to_string(folder.join(&run).join("steps.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect::<Vec<_>>();
    for (line, step) in lines[..12].iter().zip(1..) {
        assert_eq!(line["device_reads"].as_u64(), Some(u64::from(step % 4 == 0)), "step {step}");
    }
    // A shape is recorded when it first comes, which computes it a few times.
    let steady = lines.iter().skip(2).filter(|line| line["new_shape"] == false);
    let launches = steady.map(|line| line["kernel_launches"].as_f64().unwrap()).collect::<Vec<_>>();
    let mean = launches.iter().sum::<f64>() / launches.len() as f64;
    println!("{mode}, {micro_batches} micro-batches: {mean:.0} launches a step, {launches:?}");
    assert!(launches.len() >= 4, "{launches:?}");
    mean
}
