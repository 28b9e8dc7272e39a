//! Runs on wgpu or CUDA, whichever `KILN_TEST_DEVICE` names, on whatever device this machine has
//! (for wgpu Mesa's software Vulkan does, for CUDA the emulated device of `tests/fake-cuda`): every
//! task in every precision against the CPU, and in the compiled engine each part of the compiler by
//! itself. One engine is one build: the native one runs this too. Where `KILN_NATIVE` names the
//! native engine, the compiled one's tests of tasks, sizes and launches have it run them as well.
#![cfg(any(feature = "wgpu", feature = "cuda"))]
#![allow(clippy::unwrap_used)]

#[cfg(feature = "compiler")]
mod auto;
#[cfg(feature = "compiler")]
mod captured;
#[path = "../common/mod.rs"]
mod common;
#[cfg(feature = "compiler")]
mod copies;
#[cfg(feature = "compiler")]
mod debug;
mod energy;
mod engines;
mod launches;
mod memory;
mod ranks;
mod sizes;
mod tasks;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use common::small_run::{train, write};
use common::{rows_with_skips, succeeds};

const NO_DROPOUT_GPT2: [&str; 6] =
    ["--set", "model.resid_pdrop=0", "--set", "model.embd_pdrop=0", "--set", "model.attn_pdrop=0"];
const NO_DROPOUT_BERT: [&str; 4] =
    ["--set", "model.hidden_dropout_prob=0", "--set", "model.attention_probs_dropout_prob=0"];

/// The kind of the device.
fn device() -> String {
    match common::device().as_str() {
        "cpu" if cfg!(feature = "wgpu") => "wgpu".into(),
        "cpu" => "cuda".into(),
        named => named.into(),
    }
}

/// Rows of different lengths in batches of one shape: a device that is software tunes and records
/// every shape for seconds.
const ONE_SHAPE: [&str; 2] = ["--set", "data.padding=max_length"];

/// The mode of this build's engine.
const MODE: &str = if cfg!(feature = "compiler") { "compiled" } else { "native" };

/// A folder with a config for `task` without dropout, whose model is one of random weights on disk:
/// every device draws its own.
fn prepare(task: &str) -> tempfile::TempDir {
    prepare_with(task, None, &[])
}

/// A folder with a config for `task`, like that of [`prepare`], with other rows of data and
/// settings of the model.
fn prepare_with(task: &str, data: Option<&str>, model: &[String]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), task);
    if let Some(data) = data {
        std::fs::write(folder.path().join("data.jsonl"), data).unwrap();
    }
    let no_dropout: &[&str] = if task == "clm" { &NO_DROPOUT_GPT2 } else { &NO_DROPOUT_BERT };
    let model = model.iter().map(String::as_str).flat_map(|set| ["--set", set]);
    begin_with_random_weights(folder.path(), &path, &no_dropout.iter().copied().chain(model).collect::<Vec<_>>());
    folder
}

/// A folder like that of [`prepare_with`] for a language model of the fields `model`.
fn prepare_model(data: &str, model: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "clm");
    std::fs::write(folder.path().join("data.jsonl"), data).unwrap();
    replace_model(&path, model);
    begin_with_random_weights(folder.path(), &path, &[]);
    folder
}

/// Writes a model of random weights, and has the config at `path` begin with it.
fn begin_with_random_weights(folder: &Path, path: &Path, settings: &[&str]) {
    let start = ["trainer.max_steps=1", "trainer.warmup_steps=0", "trainer.learning_rate=1e-30"];
    let start = start.into_iter().flat_map(|set| ["--set", set]);
    succeeds(&mut train(folder, "start", &settings.iter().copied().chain(start).collect::<Vec<_>>()));
    replace_model(path, "from = \"start/model\"");
}

/// Gives the section `model` of a config these fields.
fn replace_model(path: &Path, fields: &str) {
    let config = std::fs::read_to_string(path).unwrap();
    let (before, after) = (config.split("[model]").next().unwrap(), config.split("[data]").nth(1).unwrap());
    std::fs::write(path, format!("{before}[model]\n{fields}\n[data]{after}")).unwrap();
}

/// This engine's mode, and the native one where its engine can be found.
fn modes() -> Vec<&'static str> {
    let native = (MODE != "native" && std::env::var_os("KILN_NATIVE").is_some()).then_some("native");
    native.into_iter().chain([MODE]).collect()
}

/// A run on the device in this engine.
fn on_device(folder: &Path, name: &str, more: &[&str]) -> Command {
    on_device_in(MODE, folder, name, more)
}

/// A run on the device.
fn on_device_in(mode: &str, folder: &Path, name: &str, more: &[&str]) -> Command {
    let (settings, cache) = on_device_settings(mode);
    let mut command = train(folder, name, &[]);
    command.args(settings).env("KILN_CACHE", cache).args(more);
    command
}

/// The arguments of a run on the device, and its cache: kernels are kept from test to test, since a
/// software device compiles them for minutes.
fn on_device_settings(mode: &str) -> ([String; 4], PathBuf) {
    let kind = format!("device.kind={}", device());
    let settings = ["--set".into(), kind, "--compiler".into(), mode.into()];
    (settings, Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels"))
}

/// Losses of training and evaluation, and gradient norms but those of skipped steps, by row.
fn losses(run: &Path) -> Vec<f64> {
    let of = |row: &Value| {
        let number = |name: &str| match row.get(name)? {
            Value::Null => {
                assert!(name == "grad_norm" && row["found_inf"].as_u64() > Some(0), "{name} is no number: {row}");
                None
            }
            value => value.as_f64(),
        };
        ["loss", "grad_norm", "eval_loss"].into_iter().filter_map(number).collect::<Vec<_>>()
    };
    rows_with_skips(run).iter().flat_map(of).collect()
}

/// Largest relative difference.
#[track_caller]
fn apart(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    assert!(a.len() > 20, "{} figures", a.len());
    apart_of_any(a, b)
}

/// The largest relative difference between figures, however few they are.
#[track_caller]
fn apart_of_any(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a / b - 1.0).abs()).fold(0.0, f64::max)
}
