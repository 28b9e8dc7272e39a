//! What `[trainer]` says about the update and the loss, through the binary: every optimizer trains and continues from a
//! checkpoint bit for bit, what is frozen stays as it was, class weights and label smoothing reach the loss of training and
//! no evaluation. The formulas are tested in `src/optim/tests.rs` and `src/task/loss.rs`.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;

use common::small_run::{copy, train, write};
use common::{fails, succeeds, tensors, train_rows};

/// Every name of `trainer.optim`, with arguments where it takes some, and a learning rate that suits it.
const OPTIMIZERS: [(&str, &str, &str); 8] = [
    ("adamw_torch", "", "1e-2"),
    ("adam", "", "1e-2"),
    ("sgd", "", "0.5"),
    ("sgd", "momentum=0.9,nesterov=true", "0.1"),
    ("adafactor", "scale_parameter=true,beta1=0.9", "0.1"),
    ("lion", "", "2e-3"),
    ("lamb", "", "5e-2"),
    ("muon", "adjust_lr_fn=original", "1e-2"),
];

fn bytes(run: &Path, file: &str) -> Vec<u8> {
    std::fs::read(run.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

#[test]
fn every_optimizer_learns_and_continues_exactly() {
    for (optim, args, lr) in OPTIMIZERS {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "clm");
        let settings = [format!("trainer.optim={optim}"), format!("trainer.learning_rate={lr}")];
        let mut more = settings.iter().flat_map(|setting| ["--set", setting]).collect::<Vec<_>>();
        let args = format!("trainer.optim_args={args}");
        more.extend(["--set", "model.resid_pdrop=0.0", "--set", &args]);
        succeeds(&mut train(folder.path(), "run", &more));
        let run = folder.path().join("run");
        let losses = train_rows(&run).iter().map(|row| row["loss"].as_f64().unwrap()).collect::<Vec<_>>();
        let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
        let (first, last) = (mean(&losses[..4]), mean(&losses[10..]));
        assert!(last < first, "{optim} {args}: {first} to {last}");

        let crashed = folder.path().join("crashed");
        copy(&run, &crashed);
        std::fs::remove_dir_all(crashed.join("checkpoints/step-000014")).unwrap();
        std::fs::remove_dir_all(crashed.join("model")).unwrap();
        more.push("--resume");
        let stdout = succeeds(&mut train(folder.path(), "crashed", &more));
        assert!(stdout.contains("continuing after step 7"), "{stdout}");
        for file in ["model/model.safetensors", "checkpoints/step-000014/optimizer.safetensors"] {
            assert!(bytes(&run, file) == bytes(&crashed, file), "{optim} {args}: {file}");
        }
        let other = ["--resume", "--set", "trainer.optim=adamw", "--set", "trainer.optim_args={}"];
        if optim != "adamw_torch" {
            fails(&mut train(folder.path(), "crashed", &other), 2, &["of another run", "trainer.optim was"]);
        }
    }
}

#[test]
fn frozen_tensors_stay_as_they_were() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "sequence-classification");
    let more = [
        "--set",
        "trainer.freeze_layers=1",
        "--set",
        "trainer.freeze=[\"*pooler*\"]",
        "--set",
        "trainer.layer_wise_lr_decay=0.5",
        "--set",
        "trainer.save_steps=1",
    ];
    let stdout = succeeds(&mut train(folder.path(), "run", &more));
    assert!(stdout.contains("are frozen"), "{stdout}");
    assert!(stdout.contains("head 1.0000, layer 1 0.5000, layer 0 0.2500, embeddings 0.1250"), "{stdout}");
    let run = folder.path().join("run");
    let of = |step: usize| tensors(&run.join(format!("checkpoints/step-{step:06}/model.safetensors")));
    // The warm-up's first step has rate 0, so nothing has moved after it.
    let (first, last) = (of(1), of(14));
    for (name, values) in &first {
        let frozen = ["embeddings", "layer.0.", "pooler"].iter().any(|part| name.contains(part));
        assert_eq!(values == &last[name], frozen, "{name}");
    }
    let state = tensors(&run.join("checkpoints/step-000014/optimizer.safetensors"));
    assert!(state.contains_key("classifier.weight.exp_avg"));
    assert!(state.keys().all(|name| !["embeddings", "layer.0.", "pooler"].iter().any(|part| name.contains(part))));

    // Frozen stays frozen when the run is taken up again.
    std::fs::remove_dir_all(run.join("checkpoints/step-000014")).unwrap();
    std::fs::remove_dir_all(run.join("model")).unwrap();
    succeeds(train(folder.path(), "run", &more).arg("--resume"));
    assert_eq!(of(14), last);
}

#[test]
fn the_loss_of_training_is_weighted_and_smoothed_and_that_of_evaluation_is_smoothed() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "sequence-classification");
    // The first step: nothing has been learned, so evaluation after a step with rate 0 sees the same weights.
    let first = |run: &str, set: &str| {
        let base = ["--set", "trainer.max_steps=1", "--set", "trainer.warmup_steps=1", "--set", "model.num_labels=3"];
        let mut command = train(folder.path(), run, &base);
        let stdout = succeeds(command.args(["--set", set]));
        let rows = common::rows(&folder.path().join(run));
        let number = |key: &str| rows.iter().find_map(|row| row.get(key)).unwrap().as_f64().unwrap();
        (number("loss"), number("eval_loss"), stdout)
    };
    let (plain, evaluated, _) = first("plain", "trainer.label_smoothing_factor=0.0");
    let (doubled, same, _) = first("doubled", "trainer.class_weights=[2, 2, 2]");
    // Every term and the divisor twice: the same but for the order of roundings.
    assert!((plain - doubled).abs() < 1e-6 * plain, "{plain} is not {doubled}");
    assert_eq!(evaluated, same);
    let (weighted, same, stdout) = first("weighted", "trainer.class_weights=[1, 5, 0.1]");
    assert!((plain - weighted).abs() > 1e-4, "{plain} {weighted}");
    assert_eq!(evaluated, same);
    assert!(stdout.contains("class weights [1.0, 5.0, 0.1], not in eval_loss"), "{stdout}");
    let (smoothed, other, _) = first("smoothed", "trainer.label_smoothing_factor=0.5");
    assert!((plain - smoothed).abs() > 1e-4, "{plain} {smoothed}");
    assert!((evaluated - other).abs() > 1e-4, "{evaluated} {other}");
    for (set, part) in [
        ("trainer.class_weights=[1, 2]", "trainer.class_weights: expected 3 weights"),
        ("trainer.class_weights=[1, 2, 0]", "trainer.class_weights: expected numbers above 0, got 0"),
        ("trainer.label_smoothing_factor=1", "trainer.label_smoothing_factor: expected a number from 0 to below 1"),
    ] {
        let labels = ["--set", "model.num_labels=3", "--set", set];
        fails(&mut train(folder.path(), "no", &labels), 2, &[part]);
    }
}

/// Perplexity is the exponential of the negative log-likelihood, which smoothing is not; and `kiln eval` computes what a run
/// does.
#[test]
fn the_perplexity_of_a_smoothed_model_is_that_of_its_text() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let evaluation = |run: &str, smoothing: &str| {
        // The only step has rate 0.
        let smoothing = format!("trainer.label_smoothing_factor={smoothing}");
        let sets = ["--set", "trainer.max_steps=1", "--set", "trainer.warmup_steps=1", "--set", &smoothing];
        succeeds(&mut train(folder.path(), run, &sets));
        let mut eval = common::kiln(folder.path());
        let model = folder.path().join(run).join("model");
        eval.args(["eval", "config.toml", "--out", "eval.json", "--set", &smoothing, "--model"]).arg(model);
        succeeds(&mut eval);
        let rows = common::rows(&folder.path().join(run));
        let row = rows.into_iter().find(|row| row.get("eval_loss").is_some()).unwrap();
        let again = common::json(&folder.path().join("eval.json"));
        ["eval_loss", "eval_perplexity"].map(|name| {
            assert_eq!(row[name], again[name], "{name}");
            row[name].as_f64().unwrap()
        })
    };
    let ([plain, perplexity], [smoothed, same]) = (evaluation("plain", "0.0"), evaluation("smoothed", "0.3"));
    assert!((plain - smoothed).abs() > 1e-4, "{plain} {smoothed}");
    assert_eq!(perplexity, same);
}

#[test]
fn what_does_not_fit_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    for (set, parts) in [
        ("trainer.optim=adamx", &["trainer.optim: unknown optimizer `adamx`", "did you mean `adam`?"][..]),
        ("trainer.optim=lion_8bit", &["`lion_8bit` is not supported", "use `lion_32bit`"]),
        ("trainer.optim_args=momentum=0.9", &["the optimizer `adamw_torch` has no argument `momentum`"]),
        ("trainer.optim_args=momentm=0.9", &["trainer.optim_args.momentm: unknown key", "did you mean `momentum`?"]),
        ("trainer.optim_args=0.9", &["trainer.optim_args: expected a table", "got float"]),
        ("trainer.optim_args=fast", &["trainer.optim_args: expected key=value, got `fast`"]),
        ("trainer.freeze=transformer.hh.*", &["no tensor of the model fits \"transformer.hh.*\"", "transformer.wte"]),
        ("trainer.freeze_layers=3", &["trainer.freeze_layers: the model has 2 layers, got 3"]),
        ("trainer.layer_wise_lr_decay=1.5", &["expected a number above 0 and at most 1, got 1.5"]),
    ] {
        fails(&mut train(folder.path(), "run", &["--set", set]), 2, parts);
        assert!(!folder.path().join("run").exists(), "{set}");
    }
}
