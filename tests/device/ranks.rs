//! Several ranks on the device: their gradients go through the memory of the machine. One device that is software is enough for
//! them.
#![cfg(unix)]

use std::process::Command;

use serde_json::Value;

use crate::common::ranks::Launcher;
use crate::common::{relative_l2, succeeds, tensors};
use crate::{ONE_SHAPE, apart, losses, modes, on_device_settings};

/// A run by `ranks` ranks on the device, of a global batch of two micro-batches.
fn run(launcher: &Launcher, mode: &str, ranks: usize, name: &str, more: &[&str]) -> Command {
    let (settings, cache) = on_device_settings(mode);
    let settings = settings.iter().map(String::as_str).collect::<Vec<_>>();
    let set = ["--set", "batch.global_batch_size=6", "--set", "trainer.gradient_accumulation_steps=1"];
    let mut command = launcher.run(ranks, name, &[&settings[..], &ONE_SHAPE, &set, more].concat());
    command.env("KILN_CACHE", cache);
    command
}

/// Two ranks with one micro-batch each compute what one with two does to the bit, with dropout and clipping. A rank without a
/// micro-batch ends each epoch.
#[test]
fn two_ranks_train_what_one_does() {
    for mode in modes() {
        let Some(launcher) = Launcher::of("clm") else { return };
        let path = |run: &str| launcher.folder().join(run);
        succeeds(&mut run(&launcher, mode, 1, "one", &[]));
        let difference = |other: &str| {
            let apart = apart(&losses(&path(other)), &losses(&path("one")));
            let weights = |run: &str| {
                let all = tensors(&path(run).join("model/model.safetensors"));
                all.into_values().flat_map(|(_, values)| values).collect::<Vec<_>>()
            };
            let weights = relative_l2(&weights(other), &weights("one"));
            println!("{mode}, {other}: losses {apart:.1e}, weights {weights:.1e}");
            f64::max(apart, weights)
        };

        let said = succeeds(run(&launcher, mode, 2, "two", &[]).arg("--step-times"));
        assert!(said.contains("6 = 3 x 1 micro-batch x 2 devices"), "{said}");
        let is_captured = said.contains("is captured (");
        assert_eq!(is_captured, mode == "compiled", "{said}");
        assert_eq!(difference("two"), 0.0);
        let steps = std::fs::read_to_string(path("two/steps.jsonl")).unwrap();
        for line in steps.lines() {
            let step: Value = serde_json::from_str(line).unwrap();
            // All gradients and the loss in one, the norm that an eager step agrees on, and the row's.
            let reads = if is_captured { 2 } else { 3 };
            assert_eq!(step["device_reads"], reads, "{step}");
            assert!(step["communicate_ms"].as_f64().unwrap() > 0.0, "{step}");
        }
    }
}
