//! Every task, against the native mode of the CPU.

use crate::common::skip::skip;
use crate::common::small_run::train;
use crate::common::{fails, rows_with_skips, succeeds};
use crate::{ONE_SHAPE, apart, device, losses, modes, on_device_in, prepare};

const TASKS: [&str; 8] = [
    "clm",
    "mlm",
    "sequence-classification",
    "regression",
    "question-answering",
    "token-classification",
    "multi-label-classification",
    "multiple-choice",
];

/// Trains every task in `precision` on the device and natively on the CPU.
fn every_task(precision: &str, tolerance: f64) {
    for task in TASKS {
        let folder = prepare(task);
        let on_cpu = ["--compiler", "native", "--precision", precision];
        succeeds(train(folder.path(), "cpu", &on_cpu).args(ONE_SHAPE));
        let expected = losses(&folder.path().join("cpu"));
        // Steps that the loss scale skips: a regression's first gradients are too large for 65,536.
        let skipped = |name: &str| {
            let rows = rows_with_skips(&folder.path().join(name));
            rows.iter().filter_map(|row| row.get("skipped_steps")?.as_u64()).max()
        };
        for mode in modes() {
            let said = succeeds(on_device_in(mode, folder.path(), mode, &ONE_SHAPE).args(["--precision", precision]));
            assert!(said.contains(&format!("{mode} engine")), "{said}");
            let found = losses(&folder.path().join(mode));
            assert_eq!(skipped(mode), skipped("cpu"), "{task} {mode}");
            let apart = apart(&found, &expected);
            println!("{task} {mode} {precision}: {apart:.1e}");
            assert!(apart < tolerance, "{task} {mode} {precision}: {apart}");
            if device() == "wgpu" {
                // WGSL has no bf16: refused by name.
                let mut command = on_device_in(mode, folder.path(), "bf16", &[]);
                fails(command.args(["--precision", "bf16"]), 2, &["WGSL", "cubecl#802"]);
            }
        }
    }
}

/// Other orders of summation than the CPU's, carried on by 14 updates of Adam.
#[test]
fn every_task_in_f32_gives_the_figures_of_the_cpu() {
    every_task("f32", 1e-3);
}

/// f16 rounds to 11 bits besides, not always the same way.
#[test]
fn every_task_in_f16_gives_the_figures_of_the_cpu() {
    every_task("f16", 2e-3);
}

/// bf16 rounds to 8 bits.
#[test]
fn every_task_in_bf16_gives_the_figures_of_the_cpu() {
    match device().as_str() {
        "wgpu" => skip!("bf16", "WGSL has no bf16"),
        _ => every_task("bf16", 2e-2),
    }
}
