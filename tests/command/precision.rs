//! Mixed precision through the binary: how far it moves a model against torch's autocast, every
//! task in every mode and precision, what the plan says, the loss scale of f16 with its skipped
//! steps, and what is refused.

use std::path::Path;

use serde_json::{Value, json};

use crate::common::messages::messages;
use crate::common::small_run::{copy, figures, seal, train, write};
use crate::common::{fails, fixture, json, kiln, l2, rows_with_skips as rows, succeeds, tensors};

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

/// Bound on our distance from f32 in units of autocast's. Both round the same operands; where sums
/// are taken in another order other roundings fall the other way. Seen: 0.54 to 1.71, both of the
/// one logit of a regression, and 0.68 to 1.19.
const TIMES_AUTOCAST: f64 = 2.0;

#[test]
fn rounding_is_as_large_as_torchs_autocast() {
    let autocast = json(&Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/fixtures/autocast.json"));
    assert!(autocast["torch"].as_str().unwrap().starts_with("2."));
    for case in autocast["cases"].as_array().unwrap() {
        let text = |name: &str| case[name].as_str().unwrap();
        let (folder, oracle) = (tempfile::tempdir().unwrap(), fixture(text("case")));
        for compiler in ["native", "compiled"] {
            let out = folder.path().join("out.safetensors");
            let mut command = kiln(folder.path());
            command.arg("forward").arg(oracle.join("model")).arg("--batch").arg(oracle.join("batch.json"));
            command.args(["--task", text("task"), "--precision", text("precision"), "--compiler", compiler]);
            succeeds(command.args(["--gradients", "--out"]).arg(&out));
            let (got, exact) = (tensors(&out), tensors(&oracle.join("expected.safetensors")));
            let distance = |part: &dyn Fn(&str) -> bool| {
                let of = |tensors: &std::collections::BTreeMap<String, (Vec<usize>, Vec<f32>)>| {
                    let values =
                        tensors.iter().filter(|(name, _)| part(name)).flat_map(|(_, (_, values))| values.clone());
                    values.map(f64::from).collect::<Vec<_>>()
                };
                let (got, exact) = (of(&got), of(&exact));
                l2(got.iter().zip(&exact).map(|(a, b)| a - b)) / l2(exact)
            };
            for (name, distance) in [
                ("logits", distance(&|name| name.ends_with("logits"))),
                ("gradients", distance(&|name| name.starts_with("grad."))),
            ] {
                let theirs = case[name].as_f64().unwrap();
                println!("{} {} {compiler} {name}: {:.2}", text("case"), text("precision"), distance / theirs);
                assert!(distance < TIMES_AUTOCAST * theirs, "{case} {compiler} {name}: {distance}");
                assert!(distance > 0.2 * theirs, "{case} {compiler} {name}: {distance} is no rounding to speak of");
            }
        }
    }
}

/// Every task, mode and precision: it trains, the losses are those of f32 up to rounding,
/// evaluation included.
#[test]
fn every_task_in_every_mode_and_precision() {
    for task in TASKS {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), task);
        let no_dropout: &[&str] = match task {
            "clm" => &["--set", "model.resid_pdrop=0", "--set", "model.embd_pdrop=0", "--set", "model.attn_pdrop=0"],
            _ => &["--set", "model.hidden_dropout_prob=0", "--set", "model.attention_probs_dropout_prob=0"],
        };
        let run = |compiler: &str, precision: &str| {
            let name = format!("{compiler}-{precision}");
            let mut command = train(folder.path(), &name, no_dropout);
            let said = succeeds(command.args(["--compiler", compiler, "--precision", precision]));
            (said, rows(&folder.path().join(name)))
        };
        for compiler in ["native", "compiled"] {
            let exact = run(compiler, "f32").1;
            for precision in ["bf16", "f16"] {
                let (said, rows) = run(compiler, precision);
                assert!(said.contains(&format!("{precision} in matrix products")), "{said}");
                // The operators that this precision leaves plain, each with its reason.
                let plain: &[&str] = if precision == "f16" { &["cross_entropy", "adamw"] } else { &[] };
                let told = said.lines().find_map(|line| line.split_once("; plain: ")).map_or("", |(_, told)| told);
                let reasons = told.matches(&format!(" (precision {precision}: ")).count();
                assert_eq!(reasons, if compiler == "compiled" { plain.len() } else { 0 }, "{said}");
                assert!(compiler == "native" || plain.iter().all(|name| told.contains(&format!("{name} ("))), "{said}");
                assert_eq!(rows.len(), exact.len());
                // For some of these untrained models 65,536 is too much: the first steps find the
                // scale.
                let skipped = rows.iter().filter_map(|row| row.get("skipped_steps")?.as_u64()).max().unwrap_or(0);
                assert!(
                    skipped <= if precision == "f16" { 4 } else { 0 },
                    "{task} {precision}: {skipped} steps skipped"
                );
                for (row, exact) in rows.iter().zip(&exact) {
                    for name in ["loss", "eval_loss"] {
                        if let Some(expected) = exact[name].as_f64() {
                            let got = row[name].as_f64().unwrap();
                            // Rounding to bf16 moves a loss by 2^-9 at most; 14 updates of Adam
                            // carry it on.
                            let bound = match (precision, skipped) {
                                ("bf16", _) => 1e-2,
                                (_, 0) => 2e-3,
                                _ => 0.1, // the learning rate's first steps are missing
                            };
                            assert!((got / expected - 1.0).abs() < bound, "{task} {precision}: {row} against {exact}");
                        }
                    }
                    let scales = row.get("loss").is_some() && precision == "f16";
                    let scale = row.get("loss_scale").and_then(Value::as_f64);
                    assert_eq!(scale.is_some(), scales, "{row}");
                    assert!(skipped > 0 || scale.is_none_or(|scale| scale == 65536.0), "{row}");
                }
            }
        }
    }
}

/// The state of the checkpoint after step 7, which `change` is applied to; later ones are removed.
fn back_to_step_7(from: &Path, run: &Path, change: &dyn Fn(&mut Value)) {
    copy(from, run);
    std::fs::remove_dir_all(run.join("checkpoints/step-000014")).unwrap();
    std::fs::remove_dir_all(run.join("model")).unwrap();
    let path = run.join("checkpoints/step-000007/state.json");
    let mut state = json(&path);
    change(&mut state);
    std::fs::write(path, state.to_string()).unwrap();
    seal(&run.join("checkpoints/step-000007"));
}

#[test]
fn a_step_that_overflows_is_skipped_and_the_run_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let more = ["--precision", "f16", "--set", "trainer.save_steps=1", "--set", "trainer.save_total_limit=20"];
    succeeds(&mut train(folder.path(), "run", &more));
    let (run, injected) = (folder.path().join("run"), folder.path().join("injected"));
    copy(&run, &injected);
    for step in 8..=14 {
        std::fs::remove_dir_all(injected.join(format!("checkpoints/step-{step:06}"))).unwrap();
    }
    std::fs::remove_dir_all(injected.join("model")).unwrap();
    let path = injected.join("checkpoints/step-000007/state.json");
    let mut state = json(&path);
    assert_eq!(state["scaler"], json!({"scale": 65536.0, "growth_tracker": 7, "skipped": 0, "applied": 7}));
    // Under this scale every gradient overflows.
    let scale = 2f64.powi(60);
    state["scaler"]["scale"] = json!(scale);
    std::fs::write(&path, state.to_string()).unwrap();
    seal(path.parent().unwrap());
    succeeds(train(folder.path(), "injected", &more).arg("--resume"));

    let rows = rows(&injected).into_iter().filter(|row| row.get("loss").is_some()).collect::<Vec<_>>();
    let (step_7, step_8) = (&rows[6], &rows[7]);
    assert_eq!((&step_7["found_inf"], &step_7["skipped_steps"]), (&json!(0), &json!(0)));
    assert_eq!((&step_8["found_inf"], &step_8["skipped_steps"]), (&json!(1), &json!(1)));
    assert_eq!((&step_8["loss_scale"], &rows[8]["loss_scale"]), (&json!(scale), &json!(scale / 2.0)));
    let file = |step: usize, name: &str| {
        std::fs::read(injected.join(format!("checkpoints/step-{step:06}")).join(name)).unwrap()
    };
    for name in ["model.safetensors", "optimizer.safetensors"] {
        assert!(file(8, name) == file(7, name), "{name} of the skipped step");
    }
    let state = json(&injected.join("checkpoints/step-000008/state.json"));
    assert_eq!(state["scaler"], json!({"scale": scale / 2.0, "growth_tracker": 0, "skipped": 1, "applied": 7}));
    assert_eq!(rows.len(), 14, "the run went on to its end");
}

#[test]
fn a_stopped_f16_run_continues_exactly() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let f16 = ["--precision", "f16"];
    succeeds(&mut train(folder.path(), "run", &f16));
    let (run, stopped) = (folder.path().join("run"), folder.path().join("stopped"));
    back_to_step_7(&run, &stopped, &|_| {});
    succeeds(train(folder.path(), "stopped", &f16).arg("--resume"));
    assert_eq!(figures(&run), figures(&stopped));
    for name in ["model.safetensors", "optimizer.safetensors"] {
        let file = |run: &Path| std::fs::read(run.join("checkpoints/step-000014").join(name)).unwrap();
        assert!(file(&run) == file(&stopped), "{name}");
    }
    // Another precision is another run.
    messages.fails(
        train(folder.path(), "run", &["--precision", "bf16"]).args(["--resume", "--set", "trainer.max_steps=20"]),
        2,
    );
}

#[test]
fn a_scale_that_is_at_its_end_stops_the_run() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    succeeds(&mut train(folder.path(), "run", &["--precision", "f16"]));
    let broken = folder.path().join("broken");
    // A learning rate like this makes the weights, and with them every loss, no numbers.
    back_to_step_7(&folder.path().join("run"), &broken, &|state| state["scaler"]["scale"] = json!(1e-5));
    let weights = broken.join("checkpoints/step-000007/model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&weights, &bytes).unwrap();
    let path = broken.join("checkpoints/step-000007/state.json");
    let mut state = json(&path);
    state["files"]["model.safetensors"]["sha256"] = json!(sha256(&bytes));
    std::fs::write(&path, state.to_string()).unwrap();
    seal(&broken.join("checkpoints/step-000007"));
    fails(
        train(folder.path(), "broken", &["--precision", "f16"]).arg("--resume"),
        5,
        &["step 8", "NaN", "finite numbers"],
    );
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn how_it_can_be_asked_for() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let plan = |more: &[&str]| {
        let mut command = kiln(folder.path());
        succeeds(command.args(["plan", "config.toml"]).args(more))
    };
    for (more, part) in [
        (&["--set", "precision=bf16"][..], "bf16 in matrix products"),
        (&["--set", "precision=fp16"], "f16 in matrix products"),
        (&["--set", "trainer.bf16=true"], "bf16 in matrix products"),
        (&["--set", "trainer.fp16=true"], "dynamic loss scale"),
        (&["--set", "trainer.fp16=false"], "precision      f32\n"),
        (
            &["--set", "precision=auto", "--set", "compiler.enabled=false"],
            "f32 (auto: the CPU converts narrower types to f32 and back, which is slower)",
        ),
        (&[], "precision      f32\n"),
    ] {
        let said = plan(more);
        assert!(said.contains(part), "{more:?}: {said}");
    }
    succeeds(&mut train(folder.path(), "run", &["--precision", "auto"]));
    let written = std::fs::read_to_string(folder.path().join("run/plan.toml")).unwrap();
    assert!(written.contains("\nprecision = \"f32\"\n"), "{written}");
    succeeds(kiln(folder.path()).args(["eval", "config.toml", "--precision", "bf16"]));
    let refused = |more: &[&str]| messages.fails(train(folder.path(), "no", more), 2);
    refused(&["--precision", "half"]);
    refused(&["--set", "precision=fp8"]);
    refused(&["--set", "precision=16"]);
    refused(&["--precision", "f16", "--set", "trainer.optim=adafactor"]);
    std::fs::write(folder.path().join("two.toml"), "precision = \"f16\"\n[trainer]\nbf16 = true\n").unwrap();
    messages.fails(kiln(folder.path()).args(["plan", "two.toml"]), 2);
}

/// The unit that multiplies bf16 is printed, may be lowered for a process, and is part of what a
/// run promises.
#[test]
fn the_instructions_of_products_can_be_lowered() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let with = |unit: &str, arguments: &[&str]| {
        let mut command = kiln(folder.path());
        command.env("KILN_CPU_PRODUCTS", unit).args(arguments);
        command
    };
    let compiled = ["plan", "config.toml", "--set", "compiler.enabled=true"];
    let plan = |unit: &str, precision: &str| {
        succeeds(with(unit, &compiled).args(["--set", &format!("precision={precision}")]))
    };
    let devices = |unit: &str| succeeds(&mut with(unit, &["devices"]));
    for f32 in [plan("f32", "bf16"), plan("f32", "f16")] {
        assert!(f32.contains("(products by f32: ") && f32.contains(" of rounded operands"), "{f32}");
    }
    assert!(plan("f32", "f16").contains("bf16 is the faster of the two here"));
    assert!(plan("f32", "auto").contains("f32 (auto: this CPU multiplies bf16 no faster than f32)"));
    // Without the variable the choice is that of a measurement, which `auto` names where it
    // decided.
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let reason = match devices("").contains("products of bf16 in fused operators by f32: ") {
        true if flags.contains("avx512_bf16") => {
            "auto: this CPU multiplies bf16 no faster than f32, as its avx512-bf16 was measured to be slower)"
        }
        true => "auto: this CPU multiplies bf16 no faster than f32)",
        false => "auto: this CPU multiplies bf16 faster than f32, by ",
    };
    assert!(plan("", "auto").contains(reason), "{reason}: {}", plan("", "auto"));
    assert!(devices("f32").contains("products of bf16 in fused operators by f32: "));
    assert!(devices("").contains("products of bf16 in fused operators by "));

    fails(&mut with("avx2", &compiled), 2, &["KILN_CPU_PRODUCTS=avx2: expected one of amx-bf16, avx512-bf16, f32"]);
    let run = |unit: &str, name: &str| {
        let mut command = train(folder.path(), name, &["--compiler", "compiled", "--precision", "bf16"]);
        command.env("KILN_CPU_PRODUCTS", unit);
        command
    };
    succeeds(&mut run("f32", "f32"));
    for unit in ["avx512-bf16", "amx-bf16"] {
        if !devices(unit).contains(&format!("by {unit}: ")) {
            fails(
                &mut with(unit, &compiled),
                2,
                &[&format!("KILN_CPU_PRODUCTS={unit}: this CPU lacks it"), "the highest here is "],
            );
            continue;
        }
        assert!(plan(unit, "bf16").contains(&format!("(products by {unit}: ")));
        assert!(plan(unit, "auto").contains(&format!("bf16 in matrix products; weights, moments, norms, softmax, activation functions and loss in f32 (auto: this CPU multiplies bf16 faster than f32, by {unit}: ")));
        let mut other = run(unit, "f32");
        let told = format!("products of bf16 was \"f32\" and is \"{unit}\" (other instructions add in another order");
        fails(other.args(["--resume", "--set", "trainer.max_steps=20"]), 2, &[&told]);
        succeeds(&mut run(unit, unit));
        let loss = |name: &str| {
            let rows = rows(&folder.path().join(name));
            rows.iter().filter_map(|row| row["loss"].as_f64()).collect::<Vec<_>>()
        };
        for (a, b) in loss("f32").into_iter().zip(loss(unit)) {
            assert!((a / b - 1.0).abs() < 1e-3, "{unit}: {b}, f32: {a}"); // the same operands, sums in another order
        }
    }
}
